"""A word of the command line as results: of a run, of a study or a part of it, or of another tool's file."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from dyno import files
from dyno.errors import NotFound, StoreError, UsageError
from dyno.facts.entry import Moment
from dyno.facts.imported import Document, Row, Unread
from dyno.facts.record import Record
from dyno.facts.study import PlannedTrial, label_matches, unmatched
from dyno.report.timeline import Detail, bars_of_records, bars_of_samples, moments
from dyno.results.tools.lm_eval import results_beside
from dyno.store.rows import read_row, read_rows, row_without
from dyno.store.run import Run
from dyno.store.shelf import Shelf, find, kind_of, look_around, trial_folders
from dyno.store.study import StudyFolder, failure_of

_LONGEST = 255  # of a file's name


class Source(msgspec.Struct, frozen=True):
    """Everything that one word names."""

    word: str
    path: Path
    document: Document
    missing: list[Row] = []  # trials of a study that failed: rows without figures
    studies: list[Path] = []  # folders
    damaged: list[str] = []  # trials that can't be read, in words

    @property
    def own(self) -> bool:
        """Runs and studies of dyno's, and no file."""
        return self.document.format in ("dyno run", "dyno study", "dyno runs")


def spread(words: Iterable[str]) -> Iterator[str]:
    """Replace a folder that holds files and no runs by its files, without its about.toml."""
    for word in words:
        # to ask for it would be an error
        if any(len(part) > _LONGEST for part in word.split("/")):
            raise UsageError(
                f"The name is too long for a file, run or study: {word[:60]}…."
            )
        path = Path(word)
        shelf = _shelf(path)
        if shelf is None or shelf.runs or shelf.studies or shelf.imports:
            yield word
        else:
            yield from _files_inside(path)


def _files_inside(folder: Path) -> Iterator[str]:
    inside = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    found_files = [path for path in inside if path.is_file()]
    if not found_files:  # a folder of such folders
        yield from spread(str(path) for path in inside if path.is_dir())
    for path in found_files:
        # lm-eval's single items are read with the results that they lie beside.
        if path.name != "about.toml" and results_beside(path) is None:
            yield str(path)


def _shelf(path: Path) -> Shelf | None:
    """Return everything in a folder that is neither a run nor a study itself."""
    return look_around(path) if path.is_dir() and kind_of(path) is None else None


def read(word: str, runs: Path, samples: bool = True) -> Source:
    """Read what a word names. `samples`: the single requests too, where they are there."""
    if word == "-":
        from dyno.audit.document import read_bytes

        try:
            data = files.taken(sys.stdin.buffer, files.DATA, "stdin")
        except OSError as e:
            raise UsageError(f"Standard input can't be read: {e.strerror}.") from None
        return Source(word, Path("stdin"), read_bytes("stdin", data))
    if Path(word).is_file() or Path(word).is_fifo():
        return _of_file(word)
    path, part = _named(word, runs)
    kind = kind_of(path)
    if kind == "run":
        return _source(word, path, [path], [], "run", samples)
    if kind == "study":
        folders = trial_folders(path)
        return _source(
            word,
            path,
            _part(path, folders, part) if part else folders,
            [path],
            "study",
            samples,
        )
    shelf = look_around(path)
    folders = [*shelf.runs, *(p for study in shelf.studies for p in trial_folders(study))]
    return _source(word, path, folders, shelf.studies, "runs", samples)


def _of_file(word: str) -> Source:
    from dyno.audit.document import read as read_file
    from dyno.store.imports import is_import, load

    path = Path(word)
    document = load(path) if path.is_file() and is_import(_head(path)) else read_file(path)
    return Source(word, path, document)


def _head(path: Path) -> bytes:
    try:
        with files.opened(path) as file:
            return file.read(64)
    except OSError as e:
        raise StoreError(f"{path} can't be read: {e.strerror}.") from None


def _named(word: str, runs: Path) -> tuple[Path, str]:
    """Return the path of a word, which may name something under `runs`, and the part of a study after its colon."""
    if (shelf := _shelf(Path(word))) is not None and (shelf.runs or shelf.studies):
        return Path(word), ""
    try:
        return find(word, runs), ""
    except NotFound:
        name, colon, part = word.rpartition(":")
        if colon and name:
            path = find(name, runs)
            if kind_of(path) == "study":
                return path, part
        if Path(word).is_dir():
            raise UsageError(
                f"The folder {word} contains no runs and no results."
            ) from None
        raise NotFound(
            f"{word}: no such file, and no run or study with this name in {runs}/."
        ) from None


def _part(study: Path, folders: list[Path], part: str) -> list[Path]:
    """Select trials as `dyno run --only` does: by words of the name, or by folder. A part of an id means nothing."""
    labels = {p.place.id: p.place.label for p in StudyFolder(study).study().trials}

    def matches(folder: Path) -> bool:
        name, _, id = folder.name.rpartition("-")
        return part in (id, folder.name) or any(
            label_matches(text, part) for text in (labels.get(id, ""), name)
        )

    paths = [folder for folder in folders if matches(folder)]
    if not paths:
        raise UsageError(f"{study}: {unmatched(part, labels.values())}")
    return paths


def _source(
    word: str,
    path: Path,
    folders: list[Path],
    studies: Sequence[Path],
    kind: str,
    samples: bool,
) -> Source:
    reading = _Reading()
    for study in studies:
        try:
            reading.plan(study)
        except StoreError as e:
            if kind == "study":
                raise
            reading.damage(e)  # its trials are read all the same
    for folder in reading.in_order(folders):
        try:
            reading.trial(folder, samples)
        except StoreError as e:
            if kind == "run":
                raise
            reading.damage(e)
    if not reading.rows and not reading.missing:
        why = reading.unread[0].why if reading.unread else f"{path} has no trial."
        raise StoreError(
            f"{why} Run `dyno runs show` for details." if kind == "run" else why.strip()
        )
    document = Document(str(path), f"dyno {kind}", reading.rows, unread=reading.unread)
    return Source(word, path, document, reading.missing, reading.studies, reading.damaged)


class _Reading:
    """What was read so far of runs and studies."""

    def __init__(self) -> None:
        self._planned: dict[str, PlannedTrial] = {}
        self.studies: list[Path] = []
        self.rows: list[Row] = []
        self.missing: list[Row] = []
        self.unread: list[Unread] = []
        self.damaged: list[str] = []

    def plan(self, study: Path) -> None:
        """Read which trials a study has."""
        self._planned |= {p.place.id: p for p in StudyFolder(study).study().trials}
        StudyFolder(study).skipped()
        self.studies.append(study)

    def damage(self, error: StoreError) -> None:
        self.unread.append(Unread(0, str(error), "file"))
        self.damaged.append(str(error))

    def in_order(self, folders: Iterable[Path]) -> list[Path]:
        """Sort folders of trials as the studies have them."""
        order = {id: i for i, id in enumerate(self._planned)}
        return sorted(folders, key=lambda folder: order.get(_trial_id(folder), -1))

    def trial(self, folder: Path, samples: bool) -> None:
        """Read a trial's rows, or why it has none."""
        run = Run(folder)
        if run.whole:
            self.rows += read_rows(run, samples)
            return
        failure = failure_of(run)
        self.unread.append(
            Unread(0, f"{folder}: {failure.text if failure else 'it has no result.'}")
        )
        planned = self._planned.get(_trial_id(folder))
        if failure is not None and planned is not None:
            self.missing.append(row_without(planned, str(folder), failure.text))


def _trial_id(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def detail(row: Row) -> Detail | None:
    """Return the single requests of a result, where they were stored."""
    if row.form != "run":
        samples = row.samples
        return (
            None
            if samples is None
            else Detail(row, bars_of_samples(samples), len(samples.starts_s))
        )
    if row.kind == "quality":  # read with its answers
        return Detail(row)
    run = Run(Path(row.file))
    full = read_row(run)
    if row.kind != "serve" or not run.records_path.exists():
        return Detail(full)
    records = list(run.records())
    return Detail(full, bars_of_records(records), len(records), _moments(run, row, records))


def _moments(run: Run, row: Row, records: list[Record]) -> list[Moment]:
    from dyno.probe.telemetry.sampler import read as read_samples

    client, telemetry = (
        run.client(),
        row.result.telemetry if row.result is not None else None,
    )
    indices = (
        [a.index for a in telemetry.accelerators if a.engine]
        if telemetry is not None
        else []
    )
    if client is None or not indices or not run.telemetry_path.exists():
        return []
    return moments(
        records,
        read_samples(run.telemetry_path)[0],
        client.start_ns,
        client.end_ns,
        indices,
    )
