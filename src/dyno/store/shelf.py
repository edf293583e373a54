"""The shelf: what lies under a folder of runs. Of each run only as much is read as a list shows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from dyno.errors import StoreError, UsageError
from dyno.facts.study import Place
from dyno.store import imports
from dyno.store.run import Run, locked, read
from dyno.store.study import Failure, StudyFolder, trial_name
from dyno.store.tags import tags_of

State = Literal[
    "done", "running", "cut off", "failed", "no measurement", "not begun", "unreadable", "left out", "no longer in it",
]  # fmt: skip
Kind = Literal["run", "study"]


class RunLine(msgspec.Struct, frozen=True):
    """A run as a list shows it."""

    run: str  # its folder
    state: State
    why: str = ""  # it has no result, in words
    started: str | None = None
    completed: int | None = None
    failed: int | None = None
    output_throughput: float | None = None
    verdict: str | None = None
    tags: list[str] = []


class StudyLine(msgspec.Struct, frozen=True):
    study: str  # its folder
    name: str
    planned: int
    done: int
    failed: int
    doubtful: int
    void: int
    left_out: int  # their series was saturated before
    running: bool
    last_started: str | None  # of its trials
    tags: list[str]
    trials: list[RunLine]
    why: str = ""  # it can't be read


class Shelf(msgspec.Struct):
    runs: list[Path] = []
    studies: list[Path] = []
    imports: list[Path] = []  # what `dyno import` kept
    foreign: list[Path] = []  # folders in which neither was found
    unreadable: list[str] = []  # in words


# Parts of what lies in the files: decoding a whole manifest takes ten times as long.
class _Manifest(msgspec.Struct):
    dyno: str
    started: str


class _Numbers(msgspec.Struct):
    completed: int | None = None
    failed: int | None = None
    output_throughput: float | None = None


class _Offline(msgspec.Struct):
    completed: int
    failed: int
    speed: float | None = None


class _Result(msgspec.Struct):
    verdict: str
    summary: _Numbers | None
    offline: _Offline | None = None

    @property
    def numbers(self) -> _Numbers:
        o = self.offline
        return _Numbers(o.completed, o.failed, o.speed) if o else self.summary or _Numbers()


class _Planned(msgspec.Struct):
    place: Place


class _Plan(msgspec.Struct):
    name: str
    trials: list[_Planned]


class _Engine(msgspec.Struct):
    kind: str
    launches: list[msgspec.Raw]


def look_around(top: Path) -> Shelf:
    """Everything below `top`, which may be a run or a study itself. Links and hidden folders are not entered."""
    shelf = Shelf()
    if top.is_dir():
        _scan(top, shelf, depth=0)
    return shelf


def _scan(path: Path, shelf: Shelf, depth: int) -> bool:
    """Whether there was anything of dyno's."""
    try:
        with os.scandir(path) as entries:
            found = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
    except OSError as e:
        shelf.unreadable.append(f"{path} can't be read: {e.strerror}.")
        return True
    names = {name for name, _ in found}
    if "study.json" in names:
        shelf.studies.append(path)
        return True
    if names & {"trial.json", "engine.json"}:
        shelf.runs.append(path)
        return True
    ours = False
    for name, is_dir in found:
        if is_dir and depth == 0 and name == imports.FOLDER:
            shelf.imports += imports.listed(path)
        elif is_dir and not name.startswith("."):
            below = _scan(path / name, shelf, depth + 1)
            ours |= below
            if depth == 0 and not below:
                shelf.foreign.append(path / name)
    return ours


def look(path: Path, study_runs: bool = False) -> RunLine:
    """`study_runs`: a dyno is at work on the study that this trial belongs to."""
    told = str(path)
    try:
        names = {p.name for p in path.iterdir()}
        tags = tags_of(path) if "tags.json" in names else []
        started = read(path / "trial.json", _Manifest).started if "trial.json" in names else None
        if "summary.json" in names:
            result = read(path / "summary.json", _Result)
            s = result.numbers
            return RunLine(
                told, "done", "", started, s.completed, s.failed, s.output_throughput, result.verdict, tags
            )  # fmt: skip
        if "failed.json" in names:
            failure = read(path / "failed.json", Failure)
            return RunLine(told, "failed", failure.text, started, tags=tags)
    except OSError as e:
        return RunLine(told, "unreadable", f"{path} can't be read: {e.strerror}.")
    except StoreError as e:
        return RunLine(told, "unreadable", str(e))
    state, why = _without_result(Run(path), names, study_runs)
    return RunLine(told, state, why, started, tags=tags)


def _without_result(run: Run, names: set[str], study_runs: bool) -> tuple[State, str]:
    if run.running() or (study_runs and "trial.json" not in names):
        return "running", ""
    if "exchanges.spool" in names:
        again = "`dyno run` measures it anew" if study_of(run.path) else "`dyno runs show` decodes it"
        return "cut off", again
    if "trial.json" not in names and "engine.json" in names:
        return "no measurement", "see its engine.log"
    return "no measurement", ""


def look_at_study(path: Path) -> StudyLine:
    folder = StudyFolder(path)
    running = study_runs(path)
    try:
        plan = read(folder.json_path, _Plan)
        tags, skipped = tags_of(path), folder.skipped()
    except StoreError as e:
        return StudyLine(str(path), path.name, 0, 0, 0, 0, 0, 0, running, None, [], [], str(e))
    there = {p.name.rpartition("-")[2]: p for p in trial_folders(path)}
    # Of a study for several machines, those that were begun.
    rigs = {t.place.rig for t in plan.trials if t.place.id in there} or {t.place.rig for t in plan.trials}
    planned = {t.place.id: t.place for t in plan.trials if t.place.rig in rigs}

    def line(place: Place) -> RunLine:
        if place.id in there:
            return look(there[place.id], running)
        name = str(folder.trials_path / trial_name(place))
        return RunLine(name, "left out", skipped[place.id]) if place.id in skipped else RunLine(name, "not begun")

    lines = [line(place) for place in planned.values()]
    done = [told for told in lines if told.state == "done"]
    # Trials of an earlier state of the file lie there too; they are shown, and don't count.
    for id, at in there.items():
        if id not in planned:
            told = look(at, running)
            lines.append(msgspec.structs.replace(told, state="no longer in it") if told.state == "done" else told)
    return StudyLine(
        study=str(path),
        name=plan.name,
        planned=len(planned),
        done=len(done),
        failed=sum(told.state == "failed" for told in lines),
        doubtful=sum(told.verdict == "doubtful" for told in done),
        void=sum(told.verdict == "void" for told in done),
        left_out=sum(told.state == "left out" for told in lines),
        running=running,
        last_started=max((told.started for told in done if told.started), default=None),
        tags=tags,
        trials=lines,
    )


def trial_folders(study: Path) -> list[Path]:
    trials = StudyFolder(study).trials_path
    try:
        with os.scandir(trials) as entries:
            return [trials / name for name in sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))]
    except OSError:  # nothing was begun
        return []


def study_runs(path: Path) -> bool:
    return locked(path / ".lock")


def study_of(path: Path) -> Path | None:
    """The study that a trial's folder belongs to."""
    study = path.absolute().parent.parent
    return study if path.absolute().parent.name == "trials" and StudyFolder(study).exists else None


def kind_of(path: Path) -> Kind | None:
    """None: neither, or a file in it is not dyno's: many a program writes a study.json."""
    try:
        if (path / "study.json").exists():
            read(path / "study.json", _Plan)
            return "study"
        if (path / "trial.json").exists():
            read(path / "trial.json", _Manifest)
            return "run"
        if study_of(path) is not None:
            return "run" if path.is_dir() else None
        if (path / "engine.json").exists() and path.absolute().parent.name != "engines":
            read(path / "engine.json", _Engine)
            return "run"
    except StoreError:
        pass
    return None


def find(word: str, runs: Path) -> Path:
    """A run or study by its path, else by its name under `runs`: whole, or as much of either end as is enough."""
    path = Path(word)
    if word and kind_of(path) is not None:
        return path
    there = list(_all(runs)) if word else []
    hits = [p for p in there if word in (p.name, str(p.relative_to(runs)))]
    hits = hits or [p for p in there if p.name.startswith(word) or p.name.endswith(word)]
    hits = hits or [p for p in there if p.name.rpartition("-")[2].startswith(word)]  # an id's beginning
    if len(hits) > 1:
        some = ", ".join(map(str, hits[:4])) + (" …" if len(hits) > 4 else "")
        raise UsageError(f"{len(hits)} runs are named like {word}: {some}. Give more of the name, or the path.")
    if not hits:
        raise StoreError(
            f"{word!r} is no run folder or study, nor does anything under {runs} bear that name. `dyno runs` lists all."
        )
    return hits[0]


def _all(runs: Path) -> Iterator[Path]:
    shelf = look_around(runs)
    yield from shelf.runs
    for study in shelf.studies:
        yield study
        yield from trial_folders(study)


def in_use(path: Path) -> str | None:
    """Why a folder must be left alone now, in words."""
    import psutil  # takes a moment, and a help text needs none of it

    study = path if (path / "study.json").exists() else study_of(path)
    if study is not None and study_runs(study):
        return f"a dyno is at work on the study {study}"
    if Run(path).running():
        return "it is still running"
    # An engine that is still starting, or a decoding under way, holds no lock; but it has files open there.
    inside = f"{path.resolve()}{os.sep}"
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(f.path.startswith(inside) for f in process.open_files()):
                return f"process {process.pid} ({process.name()}) has files open in it"
        except psutil.Error:  # gone, or another user's
            continue
    return None
