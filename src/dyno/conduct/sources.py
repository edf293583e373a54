"""A word of the command line as what was measured: a run, a study or a part of it, or another tool's file."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import msgspec

from dyno import files
from dyno.errors import StoreError, UsageError
from dyno.facts.entry import Moment
from dyno.facts.finding import Verdict
from dyno.facts.imported import Document, Row, Unread
from dyno.facts.measured import Measured
from dyno.facts.record import Record
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial
from dyno.http import Url
from dyno.measure.rows import row_of, row_without
from dyno.report.timeline import Detail, bars_of_records, bars_of_samples, moments
from dyno.store.run import Manifest, Run
from dyno.store.shelf import find, kind_of, look_around, trial_folders
from dyno.store.study import StudyFolder, failure_of

_LONGEST = 255  # of a file's name


class Source(msgspec.Struct, frozen=True):
    word: str
    path: Path
    document: Document
    measured: list[Measured]  # the document's rows, in its order, with what dyno knows of its own runs besides
    missing: list[Measured] = []  # trials of a study that failed: rows without figures
    studies: list[Path] = []  # folders
    damaged: list[str] = []  # trials that can't be read, in words


def spread(words: Iterable[str]) -> Iterator[str]:
    """A folder that holds files and no runs is its files, but for what tells of the folder itself."""
    for word in words:
        if any(len(part) > _LONGEST for part in word.split("/")):  # to ask for it would be an error
            raise UsageError(f"There is no file, run or study of so long a name: {word[:60]}….")
        path = Path(word)
        shelf = look_around(path) if path.is_dir() and kind_of(path) is None else None
        if shelf is not None and not shelf.runs and not shelf.studies and not shelf.imports:
            files = [p for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith(".")]
            yield from (str(p) for p in files if p.name != "about.toml")
            if not files:  # a folder of such folders
                yield from spread(str(p) for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith("."))
        else:
            yield word


def read(word: str, runs: Path, samples: bool = True) -> Source:
    """`samples`: the single requests too, where they are there."""
    if word == "-":
        from dyno.audit.document import read_bytes

        try:
            data = files.taken(sys.stdin.buffer, files.DATA, "stdin")
        except OSError as e:
            raise UsageError(f"Standard input can't be read: {e.strerror}.") from None
        document = read_bytes("stdin", data)
        return Source(word, Path("stdin"), document, [_foreign(row) for row in document.rows])
    if Path(word).is_file() or Path(word).is_fifo():
        return _of_file(word)
    path, part = _named(word, runs)
    kind = kind_of(path)
    if kind == "run":
        return _source(word, path, [path], "run", samples, whole=True)
    if kind == "study":
        folders = trial_folders(path)
        if part:
            folders = _part(path, folders, part)
        return _source(word, path, folders, "study", samples, studies=[path])
    shelf = look_around(path)
    folders = [*shelf.runs, *(p for study in shelf.studies for p in trial_folders(study))]
    return _source(word, path, folders, "runs", samples, studies=shelf.studies)


def _of_file(word: str) -> Source:
    from dyno.audit.document import read as read_file
    from dyno.store.imports import is_import, load

    path = Path(word)
    document = load(path) if path.is_file() and is_import(_head(path)) else read_file(path)
    return Source(word, path, document, [_foreign(row) for row in document.rows])


def _foreign(row: Row) -> Measured:
    return Measured(row, findings=row.findings, verdict=_verdict(row))


def _head(path: Path) -> bytes:
    try:
        with files.opened(path) as file:
            return file.read(64)
    except OSError as e:
        raise StoreError(f"{path} can't be read: {e.strerror}.") from None


def _verdict(row: Row) -> Verdict | None:
    """A result file of dyno's own tells it."""
    told = row.setting("verdict")
    return next((v for v in get_args(Verdict) if v == told), None)


def _named(word: str, runs: Path) -> tuple[Path, str]:
    """A path, or the name of something under `runs`; of a study, its trials that match what follows the colon."""
    if (
        Path(word).is_dir()
        and kind_of(Path(word)) is None
        and ((shelf := look_around(Path(word))).runs or shelf.studies)
    ):
        return Path(word), ""
    try:
        return find(word, runs), ""
    except StoreError as e:
        name, colon, part = word.rpartition(":")
        if colon and name:
            path = find(name, runs)
            if kind_of(path) == "study":
                return path, part
        raise UsageError(f"{e} Nor is there a file {word!r}.") from None


def _part(study: Path, folders: list[Path], part: str) -> list[Path]:
    """As `dyno run --only`: those whose name in the file, or whose folder's, matches or holds the words."""
    pattern = part if set(part) & set("*?") else f"*{part}*"
    labels = {p.place.id: p.place.label for p in StudyFolder(study).study().trials}

    def matches(folder: Path) -> bool:
        label = labels.get(folder.name.rpartition("-")[2], "")
        return fnmatchcase(label, pattern) or fnmatchcase(folder.name, pattern)

    found = [folder for folder in folders if matches(folder)]
    if not found:
        some = ", ".join(repr(label) for label in list(dict.fromkeys(labels.values()))[:3])
        raise UsageError(f"{study}: no trial is named like {part!r}. There are {some} ….")
    return found


def _source(
    word: str, path: Path, folders: list[Path], kind: str, samples: bool, whole: bool = False,
    studies: Sequence[Path] = (),
) -> Source:  # fmt: skip
    planned: dict[str, PlannedTrial] = {}
    damaged, readable = [], []
    for study in studies:
        try:
            planned |= {p.place.id: p for p in StudyFolder(study).study().trials}
            StudyFolder(study).skipped()
            readable.append(study)
        except StoreError as e:
            if kind == "study":
                raise
            damaged.append(str(e))  # its trials tell of themselves
    order = {id: i for i, id in enumerate(planned)}  # as the file has them
    folders = sorted(folders, key=lambda folder: order.get(folder.name.rpartition("-")[2], -1))
    measured, missing = [], []
    unread = [Unread(0, why) for why in damaged]
    for folder in folders:
        run = Run(folder)
        try:
            if run.whole:
                measured.append(of_run(run, samples))
                continue
            failure = failure_of(run)
        except StoreError as e:
            if whole:
                raise
            unread.append(Unread(0, str(e)))
            damaged.append(str(e))
        else:
            unread.append(Unread(0, f"{folder}: {failure.text if failure else 'it has no result.'}"))
            if failure is not None and (p := planned.get(folder.name.rpartition("-")[2])) is not None:
                row = row_without(p.trial, p.place, str(folder))
                missing.append(Measured(row, place=p.place, why_not=failure.text))
    if not measured and not missing:
        told = unread[0].why if unread else f"{path} holds no trial."
        raise StoreError(f"{told} {'`dyno runs show` tells more.' if whole else ''}".strip())
    document = Document(str(path), f"dyno {kind}", rows=[m.row for m in measured], unread=unread)
    return Source(word, path, document, measured, missing, readable, damaged)


def of_run(run: Run, samples: bool = True) -> Measured:
    """A run that is whole."""
    manifest, result = run.manifest(), run.result()
    if result.summary is None and result.offline is None:
        raise StoreError(f"{run.summary_path} holds no figures: it is damaged.")
    rig = _engines_rig(manifest)
    offline = manifest.trial.offline is not None
    row = row_of(
        result,
        manifest.trial,
        manifest.target,
        file=str(run.path),
        dyno_version=manifest.dyno,
        started=manifest.started,
        tokenizer=manifest.tokenizer,
        engine=run.engine(),
        rig=rig,
        model=manifest.model,
        place=manifest.place,
        records=_records(run) if samples and not offline else (),
        iterations=list(run.iterations()) if offline else (),
    )
    return Measured(
        row, rig, result.findings, result.verdict, manifest.workload_sha256, manifest.place, result, run.engine()
    )


def detail(m: Measured) -> Detail | None:
    """The single requests of a result, where they are there."""
    if m.row.form != "run":
        samples = m.row.samples
        return None if samples is None else Detail(m.row, bars_of_samples(samples), len(samples.starts_s))
    run = Run(Path(m.row.file))
    try:
        full = of_run(run).row
        if m.row.kind != "serve" or not run.records_path.exists():
            return Detail(full)
        records = list(run.records())
        return Detail(full, bars_of_records(records), len(records), _moments(run, m, records))
    except StoreError as e:  # its figures are there: single requests are what else there would be
        print(f"dyno: {e} Left out: what single requests tell of this trial.", file=sys.stderr)
        return None


def _moments(run: Run, m: Measured, records: list[Record]) -> list[Moment]:
    from dyno.probe.telemetry.sampler import read as read_samples

    client, told = run.client(), m.result.telemetry if m.result is not None else None
    its = [a.index for a in told.accelerators if a.engine] if told is not None else []
    if client is None or not its or not run.telemetry_path.exists():
        return []
    return moments(records, read_samples(run.telemetry_path)[0], client.start_ns, client.end_ns, its)


def _records(run: Run) -> Iterator[Record]:
    return run.records() if run.records_path.exists() else iter(())


def _engines_rig(manifest: Manifest) -> Rig | None:
    at = manifest.trial.target.base_url
    return manifest.rig if not at or Url(at).local else None
