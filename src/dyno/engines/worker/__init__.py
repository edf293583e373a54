"""An engine loaded in a process of its own and asked for one iteration after the other, with no server in between.

`python FOLDER ENGINE FLAGS…` runs this folder with the engine's own interpreter, where dyno isn't installed. It needs
nothing but that engine and Python 3.9.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Answer = dict[str, Any]
now_ns = time.monotonic_ns


class RefusedError(Exception):
    """A job that this engine can't do. It stays ready for others."""


class FailedError(Exception):
    """The program that an engine called gave no result."""


class WorkerEngine:
    # takes the number of completed requests of an iteration
    progress: Callable[[int], None]
    # called right before the clock runs: waits until all replicas are prepared
    begin: Callable[[], None]

    def facts(self) -> dict[str, Any]:
        """Return what it knows once it is loaded: fields of `trial.offline_engine.Ready`."""
        raise NotImplementedError

    def generate(self, job: Job) -> dict[str, Any]:
        raise NotImplementedError

    def micro(self, job: Job) -> Any:
        """Return one iteration or, of an engine that repeats by itself, a list of them."""
        raise NotImplementedError

    def close(self) -> None:
        pass


def iteration(
    start: int, end: int, answers: list[Answer], counts: dict[str, int] | None = None
) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "answers": answers, **(counts or {})}
