"""A worker: an engine loaded in its own process, asked for one iteration after the other."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.lifecycle import Changed, Life, Say, around, describe, look_at, start, verify
from dyno.engines.engine import Engine
from dyno.errors import UsageError
from dyno.facts.target import TargetFacts, known
from dyno.numbers import duration

_WORD_EVERY_S = 20.0  # while it loads: a sign of life
_LOOK_S = 0.5


class Ready(msgspec.Struct):
    """Its message when the model is loaded."""

    vocab: int | None = None  # ids below that
    special: list[int] = []  # … but not these
    target: dict[str, Any] = {}  # fields of TargetFacts
    base_url: str | None = None  # where a server is part of it after all, which can be asked
    version: str | None = None
    repeats: bool = False  # it warms up and repeats by itself, all in one iteration


class _Message(msgspec.Struct):
    """One line of a worker."""

    ready: Ready | None = None
    iterations: list[dict[str, Any]] | None = None
    refused: str | None = None  # it can't do that
    failed: str | None = None  # it tried
    progress: int | None = None  # requests of the iteration that are done


class Worker(Life):
    ready: Ready

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def ask(
        self, job: dict[str, Any], limit_s: float, progress: Callable[[int], None] = lambda _: None
    ) -> list[dict[str, Any]]:
        """Do a job; return its iterations."""
        began = time.monotonic()

        def waiting() -> None:
            if time.monotonic() > began + limit_s:
                raise self.engine.failed(f"didn't finish an iteration within {limit_s:g} s")

        self.engine.process.say(msgspec.json.encode(job))
        while (message := _next_message(self.engine, waiting)).progress is not None:
            progress(message.progress)
        if message.refused:
            raise UsageError(f"{self.plan.title} refused: {self.plan.clean(message.refused)}")
        if message.failed:
            raise self.engine.failed(f"failed: {self.plan.clean(message.failed)}")
        for answer in (a for it in message.iterations or [] for a in it.get("answers", []) if a.get("error")):
            answer["error"] = self.plan.clean(answer["error"])
        return message.iterations or []

    def describe(self) -> str:
        """Say in a line what came up."""
        took = f"{self.plan.title} {self.facts.version or ''} loaded after {duration(self.facts.ready_s or 0)}"
        return ": ".join(filter(None, (took, self.capacity())))


@contextlib.contextmanager
def working(plan: EnginePlan, folder: Path, say: Say, changed: Changed) -> Iterator[Worker]:
    """Load the engine and verify it; end it on leaving."""
    worker = Worker(plan, changed)
    with around(worker, folder, say):
        plan = worker.plan  # perhaps another, by the version of an image that was pulled
        say(f"Loading {describe(plan)}")
        worker.engines.append(start(plan, folder / "engine.log"))
        worker.ready = _loaded(worker.engine, plan, say)
        target = verify(plan, worker.engine, _target(plan, worker.ready))
        worker.came_up(target, worker.engine.process.age_s, worker.ready.version)
        say(worker.describe())
        yield worker


def _loaded(engine: Engine, plan: EnginePlan, say: Say) -> Ready:
    word_due_s = _WORD_EVERY_S
    limit = plan.spec.ready_timeout_s

    def waiting() -> None:
        nonlocal word_due_s
        age_s = engine.process.age_s
        if age_s > limit:
            raise engine.failed(f"wasn't loaded within {limit:g} s")
        if age_s > word_due_s:
            word_due_s += _WORD_EVERY_S
            say(f"Still loading after {age_s:.0f} s: {plan.clean(engine.process.last_line())[:100]}")

    message = _next_message(engine, waiting, loading=True)
    if message.ready is None:
        raise engine.failed("sent an unexpected message instead of being ready")
    engine.ready = True
    return message.ready


def _next_message(engine: Engine, waiting: Callable[[], None], loading: bool = False) -> _Message:
    """Return its next message. Raise where it died, with its last lines."""
    while True:
        line = engine.process.hear(_LOOK_S)
        if line is None and not engine.process.alive() and (line := engine.process.hear(0)) is None:
            when = f"after {duration(engine.process.age_s)}, while loading" if loading else "during a measurement"
            raise engine.failed(f"exited with code {engine.process.exit_code} {when}")
        if line is None:
            waiting()
            continue
        try:
            return msgspec.json.decode(line, type=_Message)
        except msgspec.MsgspecError:
            # A banner of the interpreter's wrapper, before the worker itself had a say: for the log.
            with engine.process.log.open("ab") as log:
                log.write(line + b"\n")
            if not loading:
                raise engine.failed("sent a message that dyno can't read") from None


def _target(plan: EnginePlan, ready: Ready) -> TargetFacts:
    if ready.base_url is None:
        return TargetFacts(**{"model": plan.served_name, "kind": plan.kind.name, **known(ready.target)})
    return look_at(plan, ready.base_url, {})
