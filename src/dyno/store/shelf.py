"""The shelf: runs, studies, searches and imports below a folder. Of each, only as much is read as a list shows.

`dyno find` has a folder of its own, with a run folder for each probe and the answer in find.json. `dyno tune` has a
study's folder, with search.json from its beginning and the answer in tune.json.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from dyno.errors import NotFound, StoreError, UsageError
from dyno.facts.find import FindAnswer
from dyno.facts.quality import QualitySummary
from dyno.facts.study import Place
from dyno.facts.tune import TuneAnswer
from dyno.store import imports
from dyno.store.run import Run, locked, read, read_optional, tags_of
from dyno.store.study import Failure, StudyFolder, trial_name

State = Literal[
    "done", "running", "cut off", "failed", "no measurement", "not begun", "unreadable", "left out", "no longer in it",
]  # fmt: skip
Kind = Literal["run", "study", "search"]  # a search for settings is a study, too
# in the folder of `dyno find`, beside its probes
_FIND_FILES = {"find.json", "probes.json"}
_TUNE_FILE = "search.json"  # in the folder of `dyno tune`, which is a study's


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
    # of `dyno find`, whose probes are among the runs, and of `dyno tune`, among the studies
    searches: list[Path] = []
    imports: list[Path] = []  # stored by `dyno import`
    foreign: list[Path] = []  # folders that hold neither
    unreadable: list[str] = []  # in words


# Parts of the files: decoding a whole manifest takes ten times as long.
class _Manifest(msgspec.Struct):
    dyno: str
    started: str


class _Numbers(msgspec.Struct):
    completed: int | None = None
    failed: int | None = None
    output_throughput: float | None = None
    results: int | None = None  # vectors or scores: then no text has come


class _Offline(msgspec.Struct):
    completed: int
    failed: int
    speed: float | None = None


class _Result(msgspec.Struct):
    verdict: str
    summary: _Numbers | None
    offline: _Offline | None = None
    quality: QualitySummary | None = None

    @property
    def numbers(self) -> _Numbers:
        if self.quality is not None:
            by_task = {score.task: score.items for score in self.quality.scores}
            failed = self.quality.passes[0].failed
            return _Numbers(sum(by_task.values()) - failed, failed)
        if self.offline is not None:
            return _Numbers(self.offline.completed, self.offline.failed, self.offline.speed)
        return self.summary or _Numbers()


class _Planned(msgspec.Struct):
    place: Place


class _Plan(msgspec.Struct):
    name: str
    trials: list[_Planned]


class _Engine(msgspec.Struct):
    kind: str
    launches: list[msgspec.Raw]


def look_around(top: Path) -> Shelf:
    """Return everything below `top`, which may be a run or a study itself. Links and hidden folders are not entered."""
    shelf = Shelf()
    if top.is_dir():
        _scan(top, shelf, depth=0)
    return shelf


def _scan(path: Path, shelf: Shelf, depth: int) -> bool:
    """Return whether the folder holds anything of dyno's."""
    try:
        with os.scandir(path) as entries:
            inside = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
    except OSError as e:
        shelf.unreadable.append(f"{path} can't be read: {e.strerror}.")
        return True
    names = {name for name, _ in inside}
    if _add(path, names, shelf):
        return True
    ours, before = False, len(shelf.runs)
    for name in _folders(path, inside, shelf, depth):
        below = _scan(path / name, shelf, depth + 1)
        ours |= below
        if depth == 0 and not below:
            shelf.foreign.append(path / name)
    # only where probes are inside
    if names & _FIND_FILES and any(run.parent == path for run in shelf.runs[before:]):
        shelf.searches.append(path)
    return ours


def _add(path: Path, names: set[str], shelf: Shelf) -> bool:
    """Add a folder that is a study or a run. `names`: of its files."""
    if "study.json" in names:
        shelf.studies.append(path)
        if _TUNE_FILE in names:
            shelf.searches.append(path)
        return True
    if names & {"trial.json", "engine.json"}:
        shelf.runs.append(path)
        return True
    return False


def _folders(
    path: Path, inside: list[tuple[str, bool]], shelf: Shelf, depth: int
) -> list[str]:
    """Return the names of the folders to enter. The imports at the top are added to the shelf."""
    folders = [name for name, is_dir in inside if is_dir and not name.startswith(".")]
    if depth:
        return [name for name in folders if name != "engines"]  # a start is not a run
    if imports.FOLDER in folders:
        shelf.imports += imports.listed(path)
        folders.remove(imports.FOLDER)
    return folders


def run_line(path: Path, study_runs: bool = False) -> RunLine:
    """Return the line of a run. `study_runs`: a dyno is at work on the study that this trial belongs to."""
    run = str(path)
    try:
        names = {p.name for p in path.iterdir()}
        tags = tags_of(path) if "tags.json" in names else []
        started = (
            read(path / "trial.json", _Manifest).started if "trial.json" in names else None
        )
        if "summary.json" in names:
            result = read(path / "summary.json", _Result)
            n = result.numbers
            return RunLine(
                run,
                "done",
                "",
                started,
                n.completed,
                n.failed,
                None if n.results else n.output_throughput,
                result.verdict,
                tags,
            )
        if "failed.json" in names:
            return RunLine(
                run, "failed", read(path / "failed.json", Failure).text, started, tags=tags
            )
    except OSError as e:
        return RunLine(run, "unreadable", f"{path} can't be read: {e.strerror}.")
    except StoreError as e:
        return RunLine(run, "unreadable", str(e))
    state, why = _without_result(Run(path), names, study_runs)
    return RunLine(run, state, why, started, tags=tags)


def _without_result(run: Run, names: set[str], study_runs: bool) -> tuple[State, str]:
    if run.running() or (study_runs and "trial.json" not in names):
        return "running", ""
    in_study = study_of(run.path) is not None
    if "sittings.json" in names:
        return (
            "cut off",
            "`dyno run` continues it" if in_study else "the same `dyno eval` continues it",
        )
    if "exchanges.spool" in names:
        return (
            "cut off",
            "`dyno run` measures it again" if in_study else "`dyno runs show` decodes it",
        )
    if "trial.json" not in names and "engine.json" in names:
        return "no measurement", "see its engine.log"
    return "no measurement", ""


def study_line(path: Path) -> StudyLine:
    """Return the line of a study, with those of its trials."""
    folder = StudyFolder(path)
    running = study_runs(path)
    try:
        plan = read(folder.json_path, _Plan)
        tags, skipped = tags_of(path), folder.skipped()
    except StoreError as e:
        return _unreadable_study(path, running, str(e))
    begun = {_id_of(p): p for p in trial_folders(path)}
    planned = _planned_here(plan, begun)
    lines = []
    for place in planned.values():
        if place.id in begun:
            lines.append(run_line(begun[place.id], running))
        else:
            lines.append(_without_folder(folder, place, skipped))
    done = [trial for trial in lines if trial.state == "done"]
    lines += [_look_at_former(begun[id], running) for id in begun if id not in planned]
    return StudyLine(
        study=str(path),
        name=plan.name,
        planned=len(planned),
        done=len(done),
        failed=sum(trial.state == "failed" for trial in lines),
        doubtful=sum(trial.verdict == "doubtful" for trial in done),
        void=sum(trial.verdict == "void" for trial in done),
        left_out=sum(trial.state == "left out" for trial in lines),
        running=running,
        last_started=max((trial.started for trial in done if trial.started), default=None),
        tags=tags,
        trials=lines,
    )


def _unreadable_study(path: Path, running: bool, why: str) -> StudyLine:
    return StudyLine(
        study=str(path),
        name=path.name,
        planned=0,
        done=0,
        failed=0,
        doubtful=0,
        void=0,
        left_out=0,
        running=running,
        last_started=None,
        tags=[],
        trials=[],
        why=why,
    )


def _planned_here(plan: _Plan, begun: dict[str, Path]) -> dict[str, Place]:
    """Return the planned places by id. Of a study for several machines, only those of machines with begun trials."""
    places = [t.place for t in plan.trials]
    rigs = {place.rig for place in places if place.id in begun}
    return {place.id: place for place in places if not rigs or place.rig in rigs}


def _without_folder(folder: StudyFolder, place: Place, skipped: dict[str, str]) -> RunLine:
    name = str(folder.trials_path / trial_name(place))
    if place.id in skipped:
        return RunLine(name, "left out", skipped[place.id])
    return RunLine(name, "not begun")


def _look_at_former(path: Path, running: bool) -> RunLine:
    """Return the line of a trial of an earlier state of the file: it is shown, and doesn't count."""
    trial = run_line(path, running)
    return (
        msgspec.structs.replace(trial, state="no longer in it")
        if trial.state == "done"
        else trial
    )


def trial_folders(study: Path) -> list[Path]:
    trials = StudyFolder(study).trials_path
    try:
        with os.scandir(trials) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:  # nothing was begun
        return []
    return [trials / name for name in names]


def probe_folders(search: Path) -> list[Path]:
    """Return the runs that `dyno find` has made."""
    return sorted(path.parent for path in search.glob("*/trial.json"))


def is_tuning(path: Path) -> bool:
    """Return whether `dyno tune` has made this folder."""
    return (path / _TUNE_FILE).exists() and StudyFolder(path).exists


def study_runs(path: Path) -> bool:
    return locked(path / ".lock")


def study_of(path: Path) -> Path | None:
    """Return the study that a trial's folder belongs to."""
    study = path.absolute().parent.parent
    return (
        study
        if path.absolute().parent.name == "trials" and StudyFolder(study).exists
        else None
    )


def kind_of(path: Path) -> Kind | None:
    """Return what a folder holds. None: neither, or a file in it is not dyno's; many a program writes a study.json."""
    try:
        if (path / "study.json").exists():
            read(path / "study.json", _Plan)
            return "study"
        if (path / "trial.json").exists():
            read(path / "trial.json", _Manifest)
            return "run"
        if any((path / name).exists() for name in _FIND_FILES) and (
            probes := probe_folders(path)
        ):
            read(probes[0] / "trial.json", _Manifest)
            return "search"
        if study_of(path) is not None:
            return "run" if path.is_dir() else None
        if (path / "engine.json").exists() and path.absolute().parent.name != "engines":
            read(path / "engine.json", _Engine)
            return "run"
    except StoreError:
        pass
    return None


_ENOUGH = 3  # letters of a name: one or two match by chance


def find(word: str, runs: Path) -> Path:
    """Return a run or study by its path, else by its name under `runs`: whole, or enough of either end."""
    path = Path(word)
    if word and kind_of(path) is not None:
        return path
    hits = _matches(word, runs) if word else []
    if len(hits) > 1:
        some = ", ".join(map(str, hits[:4]))
        if len(hits) > 4:
            some += " …"
        raise UsageError(
            f"{len(hits)} runs match {word}: {some}. Give more of the name, or the path."
        )
    if not hits:
        raise NotFound(
            f"No run or study named {word!r} in {runs}/. `dyno runs` lists all of them."
        )
    return hits[0]


def _matches(word: str, runs: Path) -> list[Path]:
    """Return those with this name, else those whose name begins or ends with it, else those whose id begins with it."""
    every = list(_all(runs))
    whole = [path for path in every if word in (path.name, str(path.relative_to(runs)))]
    if whole or not _is_part(word):
        return whole
    either_end = [
        path for path in every if path.name.startswith(word) or path.name.endswith(word)
    ]
    if either_end:
        return either_end
    return [path for path in every if _id_of(path).startswith(word)]


def _is_part(word: str) -> bool:
    """Return whether the word may be a part of a name: it is long enough, and not a path."""
    return len(word) >= _ENOUGH and not Path(word).exists()


def _id_of(path: Path) -> str:
    return path.name.rpartition("-")[2]


def _all(runs: Path) -> Iterator[Path]:
    shelf = look_around(runs)
    yield from shelf.runs
    yield from (path for path in shelf.searches if path not in shelf.studies)
    for study in shelf.studies:
        yield study
        yield from trial_folders(study)


def in_use(path: Path) -> str | None:
    """Say why a folder must be left alone now."""
    study = path if (path / "study.json").exists() else study_of(path)
    if study is not None and study_runs(study):
        return f"another dyno runs the study {study}"
    if any(Run(run).running() for run in (path, *probe_folders(path))):
        return "it is still running"
    return _open_files(path)


def _open_files(path: Path) -> str | None:
    """Say which process has files open there: an engine that is still starting, or a decoding, holds no lock."""
    import psutil  # takes a moment, and a help text needs none of it

    inside = f"{path.resolve()}{os.sep}"
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(
                f.path.startswith(inside) for f in process.open_files()
            ):
                return f"process {process.pid} ({process.name()}) has files open in it"
        except psutil.Error:  # gone, or another user's
            continue
    return None


# ---- removing ----


class Weight(msgspec.Struct, frozen=True):
    """The size of a run or a study on the disk."""

    files: int
    bytes: int
    trials: int | None  # of a study or a search


def weigh(path: Path) -> Weight:
    """Return the size of what a removal would delete. Refuse what dyno didn't write, or what is in use."""
    if path.is_symlink():
        raise UsageError(
            f"{path} is a link to {path.resolve()}. Name that folder, or remove the link yourself."
        )
    kind = kind_of(path)
    if kind is None:
        raise StoreError(
            f"{path} was not removed: it is not a run, study or search, or its trial.json can't be read."
        )
    if why := in_use(path):
        raise StoreError(f"{path} was not removed: {why}. Stop that first.")
    files = size = 0
    for folder, _, names in os.walk(path):
        files += len(names)
        size += sum((Path(folder) / name).lstat().st_size for name in names)
    inside = {"study": trial_folders, "search": probe_folders}.get(kind)
    return Weight(files, size, len(inside(path)) if inside else None)


def remove(path: Path) -> None:
    """Rename it first: half a run must not look like one. Links in it are removed, not followed."""
    path = path.absolute()
    going = path.with_name(f".deleting-{path.name}")
    try:
        path.rename(going)
        shutil.rmtree(going)
    except OSError as e:
        rest = going if going.exists() else path
        raise StoreError(
            f"{rest} was removed only in part: {e.strerror}. Remove the rest yourself."
        ) from None


# ---- searches: one line each, however many runs they made ----

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


def search_line(path: Path) -> SearchLine:
    kind: SearchKind = "tune" if is_tuning(path) else "find"
    running = kind == "tune" and study_runs(path)
    lines = [
        run_line(run, running)
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
