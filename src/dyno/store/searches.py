"""Searches as a list shows them: one line each, however many runs they made.

`dyno find` has a folder of its own, with a run folder for each probe and the answer in find.json. `dyno tune` has a
study's folder, with search.json from its beginning and the answer in tune.json.
"""

from pathlib import Path
from typing import Literal

import msgspec

from dyno.facts.find import FindAnswer
from dyno.facts.tune import TuneAnswer
from dyno.store.run import read_optional, tags_of
from dyno.store.shelf import (
    RunLine,
    State,
    is_tuning,
    look,
    probe_folders,
    study_runs,
    trial_folders,
)

SearchKind = Literal["find", "tune"]
Answer = FindAnswer | TuneAnswer


class SearchLine(msgspec.Struct, frozen=True):
    """A search as a list shows it."""

    search: str  # its folder
    kind: SearchKind
    state: State
    runs: int  # with a result
    last_started: str | None  # of its runs
    tags: list[str]
    trials: list[RunLine]


def look_at_search(path: Path) -> SearchLine:
    kind: SearchKind = "tune" if is_tuning(path) else "find"
    running = kind == "tune" and study_runs(path)
    lines = [
        look(run, running)
        for run in (trial_folders(path) if kind == "tune" else probe_folders(path))
    ]
    done = [line for line in lines if line.state == "done"]
    return SearchLine(
        search=str(path),
        kind=kind,
        state=_state(path, kind, running or any(line.state == "running" for line in lines)),
        runs=len(done),
        last_started=max((line.started for line in done if line.started), default=None),
        tags=tags_of(path),
        trials=lines,
    )


def answer_of(path: Path) -> Answer | None:
    """Return the answer of a search; None: it has none yet."""
    if is_tuning(path):
        return read_optional(path / "tune.json", TuneAnswer)
    return read_optional(path / "find.json", FindAnswer)


def _state(path: Path, kind: SearchKind, running: bool) -> State:
    if running:
        return "running"
    return "done" if (path / f"{kind}.json").exists() else "cut off"
