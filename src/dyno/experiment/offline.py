"""Offline trials: an engine in a process of its own, with no server in between."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dyno.experiment.watcher import Watcher
from dyno.facts.offline import Iteration
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.store.run import Manifest, Run


class OfflineOutcome(msgspec.Struct, frozen=True):
    run: Run
    manifest: Manifest
    result: Result
    iterations: list[Iteration]
    interrupted: bool = False


def conduct(
    trials: Sequence[TrialSpec], *, runs: Path, watcher: Watcher | None = None, stop: Stop | None = None
) -> Iterator[OfflineOutcome]:
    """One run folder for each trial; those with one engine setting share one loaded engine."""
    raise NotImplementedError


def reopened(run: Run) -> OfflineOutcome:
    """Of a run that is whole."""
    raise NotImplementedError


def lines(trial: TrialSpec) -> Iterator[str]:
    """What would be run."""
    raise NotImplementedError


def problems(trial: TrialSpec) -> list[str]:
    raise NotImplementedError
