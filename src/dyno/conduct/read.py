"""Reading results: words of a command line → results → a report or a comparison. Nothing is printed here: a list of
warnings is returned instead."""

import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from dyno import __version__, checks, files, secrets
from dyno.audit.audit import SINGLE, Audit, audit, coverage
from dyno.compare.compare import compare
from dyno.compare.gate import Gate
from dyno.errors import DynoError, NotFound, StoreError, UsageError
from dyno.facts.comparison import Comparison
from dyno.facts.entry import Entry, Moment
from dyno.facts.finding import Finding, merged, verdict, worst_first
from dyno.facts.imported import Document, Row, Unread, place
from dyno.facts.limits import Limit
from dyno.facts.metric import DEFINITIONS
from dyno.facts.price import PriceRule
from dyno.facts.record import Record
from dyno.facts.report import AuthorsTable, Report
from dyno.facts.study import PlannedTrial, Study, label_matches, unmatched
from dyno.probe.peaks import of_name
from dyno.report.conclusion import conclude
from dyno.report.entries import about_failures, commands, engine_sheets, entries, rig_sheets
from dyno.report.front import with_quality
from dyno.report.target import best, target
from dyno.report.timeline import Detail, bars_of_records, bars_of_samples, moments
from dyno.results.tools.lm_eval import results_beside
from dyno.store.explained import explained
from dyno.store.rows import read_row, read_rows, row_without
from dyno.store.run import Run
from dyno.store.shelf import Shelf, find, kind_of, look_around, trial_folders
from dyno.store.study import StudyFolder, failure_of
from dyno.study.prices import About, about

# ---- a word of the command line as results: of a run, of a study or a part of it, or of another tool's file ----

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
    if row.kind != "serve" or not run.records_path.exists():
        return Detail(read_row(run))
    records = list(run.records())
    full = read_row(run, records=records)
    each = explained(run, records=records)
    return Detail(
        full,
        bars_of_records(records),
        len(records),
        _moments(run, row, records),
        each.explanation.parts if each.explanation.requests else [],
        each.happenings.neighbourhoods(),
    )


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


# ---- results into a report or a comparison ----

# Findings that repeats make together, and no result alone.
_OF_REPEATS = ("statistics.repeats_differ", "study.failed_trials")


class ReportRequest(msgspec.Struct, frozen=True):
    words: list[str]  # as the user wrote them
    rules: list[PriceRule] = []
    limits: list[Limit] = []  # the latency target
    title: str = ""
    again: str = ""  # the command that makes this report


class Sources(msgspec.Struct, frozen=True):
    sources: list[Source]
    failed: list[str] = []  # words that can't be read: why

    @property
    def documents(self) -> list[Document]:
        return [s.document for s in self.sources]

    @property
    def rows(self) -> list[Row]:
        return [row for d in self.documents for row in d.rows]

    @property
    def unread(self) -> list[str]:
        """Describe named sources that couldn't be read: results may differ without them."""
        out = []
        for s in self.sources:
            d = s.document
            out += s.damaged if s.own else [u.describe(d.file) for u in d.unread]
            if not s.own and not (d.rows or d.unread or d.commands):
                out.append(f"{d.file} holds no result that dyno knows.")
        return out


def read_words(words: Sequence[str], runs: Path) -> Sources:
    """Read files, runs and studies, without those that fail if others don't. Samples are read later, a trial at a
    time."""
    sources: list[Source] = []
    failed: list[DynoError] = []
    for word in dict.fromkeys(spread(words)):
        try:
            sources.append(read(word, runs, samples=False))
        except DynoError as e:
            failed.append(e)
    why = [str(e) for e in failed]
    if failed and not sources:
        raise max(failed, key=lambda e: e.exit_code).__class__("\n".join(why))
    return Sources(sources, why)


def own_findings(rows: Sequence[Row]) -> list[Finding]:
    """Findings stored with results, each with its location."""
    return [
        msgspec.structs.replace(f, locations=[row.location])
        for row in rows
        for f in row.findings
    ]


# ---- what is named twice ----


def distinct(reading: Sources) -> Sources:
    """Drop sources that are named twice."""
    seen: set[Path] = set()
    runs: set[tuple[object, ...]] = set()
    out = []
    for s in reading.sources:
        if not s.own:
            if s.path.resolve() not in seen:
                out.append(s)
            seen.add(s.path.resolve())
            continue
        rows, missing = (
            [row for row in some if Path(row.file).resolve() not in seen]
            for some in (_without_copies(s.document.rows, runs), s.missing)
        )
        seen |= {Path(row.file).resolve() for row in (*rows, *missing)}
        if rows or missing:
            document = msgspec.structs.replace(s.document, rows=rows)
            out.append(msgspec.structs.replace(s, document=document, missing=missing))
    return Sources(out, reading.failed)


def _without_copies(rows: Sequence[Row], runs: set[tuple[object, ...]]) -> list[Row]:
    """Drop runs that were read from a copy of their folder: they began at the same moment and took as long."""
    out = []
    for row in rows:
        task = tuple(map(row.setting, ("task", "metric", "filter")))
        mark = (
            row.setting("date"),
            row.label,
            row.setting("repeat"),
            row.get("duration_s"),
            row.prompts_sha256,
            task,
        )
        if mark not in runs:
            out.append(row)
        runs.add(mark)
    return out


# ---- a comparison ----


def compare_words(
    words: tuple[str, str],
    runs: Path,
    metrics: Sequence[str],
    gates: Sequence[Gate],
    anyway: bool,
) -> Comparison:
    a, b = (read(word, runs) for word in words)
    return compare_sources((a, b), metrics, gates, anyway)


def compare_sources(
    sides: tuple[Source, Source],
    metrics: Sequence[str],
    gates: Sequence[Gate],
    anyway: bool,
) -> Comparison:
    a, b = sides
    _check_apart(a, b)
    return compare(
        a.document.rows, b.document.rows, (_name(a), _name(b)), metrics, gates, anyway
    )


def _name(source: Source) -> str:
    """Return the path of a source, with the part of the study that was named."""
    _, colon, part = source.word.rpartition(":")
    return (
        f"{source.path}:{part}"
        if colon and source.document.format == "dyno study"
        else str(source.path)
    )


def _check_apart(a: Source, b: Source) -> None:
    """Refuse one and the same thing twice."""
    for s in (a, b):
        if not s.document.rows:
            why = f": {s.document.unread[0].why}" if s.document.unread else "."
            raise StoreError(f"In {s.word} ({s.document.format}) no result was found{why}")
    one, other = (
        {s.path.resolve()}
        if s.path.is_file()
        else {Path(row.file).resolve() for row in s.document.rows}
        for s in (a, b)
    )
    shared = one & other
    if shared and one == other:
        what = f"{a.word} and {b.word}" if a.word != b.word else a.word
        raise UsageError(f"{what}: A and B are the same. Name two that differ.")
    if shared:
        raise UsageError(
            f"{min(shared)} is on both sides. Name two without a run in common: STUDY:WORDS takes a part of a study."
        )


# ---- a report ----


def make_report(reading: Sources, request: ReportRequest) -> tuple[Report, list[str]]:
    """Return a report, and warnings. `reading`: without what is named twice."""
    if not reading.sources:
        raise StoreError(f"No results found in {', '.join(request.words) or 'any file'}.")
    folder, warnings = _about(request.words)
    sources, documents = reading.sources, reading.documents
    rows = _rows_and_failed(sources)
    judged = audit(
        documents, of_name, own_findings([row for row in rows if row.form == "run"])
    )

    def single_requests(row: Row) -> Detail | None:
        try:
            return detail(row)
        except StoreError as e:  # its figures are known; only single requests are missing
            warnings.append(f"{e} Figures of its single requests are left out.")
            return None

    shown = entries(rows, judged.each, request.rules, single_requests)
    if not shown:
        raise StoreError(_nothing_found(documents))
    warnings += _unused(request.rules, shown)
    aim = target(shown, request.limits)
    shown = with_quality(shown, aim.limits)
    chosen = best(shown, aim.limits)
    more = [*_besides(judged, shown), *_lost(reading), *about_failures(shown)]
    findings = worst_first(merged([*judged.each, *more], SINGLE))
    studies = _studies(sources)
    report = Report(
        title=secrets.clean(
            secrets.without_looks(request.title or folder.title or _title(sources))
        ),
        created=datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        dyno=__version__,
        verdict=verdict([*judged.each, *findings]),
        basis=judged.basis,
        words=conclude(
            shown, chosen, findings, aim.limits, single_requests, _unfinished(sources)
        ),
        entries=shown,
        findings=findings,
        about=folder.about or _about_study(sources, studies),
        sources=_source_words(folder, sources),
        target=aim.limits,
        best=chosen,
        target_words=aim.words,
        prices=list(dict.fromkeys(e.price for e in shown if e.price)),
        tables=[AuthorsTable(d.file, table) for d in documents for table in d.tables],
        rigs=rig_sheets(shown, documents),
        engines=engine_sheets(shown),
        commands=commands(
            shown, documents, [(study.name, text) for text, study in studies]
        ),
        definitions=_definitions(shown),
        again=request.again,
    )
    return report, list(dict.fromkeys(warnings))


def _rows_and_failed(sources: Sequence[Source]) -> list[Row]:
    """Return all rows of each source, followed by its failed trials, which have no figures."""
    rows: list[Row] = []
    for source in sources:
        rows += source.document.rows
        rows += source.missing
    return rows


def _nothing_found(documents: Sequence[Document]) -> str:
    """Say that there are no results, and why the first files have none."""
    why = [f"{d.file}: {d.unread[0].why}" for d in documents if d.unread]
    return " ".join(["No results found.", *why[:5]])


def _about_study(sources: Sequence[Source], studies: Sequence[tuple[str, Study]]) -> str:
    """Return what a study says about itself, where it is all that is reported."""
    if len(sources) == 1 and len(studies) == 1:
        return studies[0][1].about or ""
    return ""


def _source_words(folder: About, sources: Sequence[Source]) -> list[str]:
    words = [source.word for source in sources]
    return [folder.source, *words] if folder.source else words


def _definitions(shown: Sequence[Entry]) -> dict[str, str]:
    """Return the definitions of all figures that are shown."""
    names = {figure.definition for entry in shown for figure in entry.figures.values()}
    return {name: DEFINITIONS[name] for name in sorted(names) if name in DEFINITIONS}


def _besides(judged: Audit, shown: Sequence[Entry]) -> list[Finding]:
    """Findings that only repeats or copies of a result make."""
    known = {f.text for f in judged.each}
    findings = [
        f
        for e in shown
        for f in e.findings
        if f.text not in known and f.code in _OF_REPEATS
    ]
    findings += checks.run(
        duplicates=[(row, copy) for e in shown for row in e.rows for copy in row.also]
    )
    return list({f.text: f for f in findings}.values())


def _lost(reading: Sources) -> list[Finding]:
    """Return unreadable sources as findings: readers of a page don't see warnings."""
    advice = "The report excludes it. Measure it again, or delete its folder."
    damaged = [why for s in reading.sources for why in s.damaged]
    findings = [
        Finding("study.unreadable", "doubt", f"A trial can't be read: {why}", advice)
        for why in damaged
    ]
    # its own are the doubts above
    read = coverage([s.document for s in reading.sources if not s.own])
    if not read.complete:
        text = f"Not everything with numbers was read: {read.describe()}."
        advice = "The report lacks these figures. `dyno audit` lists them with the reason."
        locations = [place(file, u.line) for file, u in read.lost]
        findings.append(Finding("sources.unread", "note", text, advice, locations))
    return findings


def _unused(rules: Sequence[PriceRule], shown: Sequence[Entry]) -> list[str]:
    """Warn of a price that no result uses: its name doesn't fit, or the machine has no accelerators. A file of prices
    may hold more than is needed."""
    out = []
    stated = " ".join(e.price for e in shown)
    names = [f"{e.accelerator} {e.series}".lower() for e in shown]
    for rule in rules:
        if rule.origin != "--price":
            continue
        named = rule.accelerator or rule.series
        if named:
            if not any(named.lower() in name for name in names):
                out.append(
                    f"{rule.origin} {named}: no result has this name, so the price is unused."
                )
        elif rule.price.accelerator_hour is not None and rule.origin not in stated:
            out.append(
                f"{rule.origin}: no result says how many accelerators it used. Give a price per machine instead: "
                "--price machine=DOLLARS."
            )
    return out


def _about(words: Sequence[str]) -> tuple[About, list[str]]:
    """Return the contents of a folder's about.toml, and warnings."""
    folders = {Path(word) if Path(word).is_dir() else Path(word).parent for word in words}
    if len(folders) != 1:
        return About(), []
    folder = folders.pop()
    try:
        return about(folder), []
    except UsageError as e:
        if folder in map(Path, words):
            raise
        # perhaps it is another tool's
        return About(), [f"{folder / 'about.toml'} is ignored: {e}"]


def _title(sources: Sequence[Source]) -> str:
    names: list[str] = []
    for source in sources:
        names += [study.name for study in source.studies] or [source.path.name]
    names = list(dict.fromkeys(names))  # two parts of one study have its name once
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _studies(sources: Sequence[Source]) -> list[tuple[str, Study]]:
    """Return each study's file as text, and the study."""
    folders = [StudyFolder(path) for s in sources for path in s.studies]
    return [(f.text(), f.study()) for f in folders]


def _unfinished(sources: Sequence[Source]) -> int:
    """Count trials of whole studies that have neither a result nor a failure, and weren't left out."""
    left: dict[tuple[str, str], bool] = {}
    for s in sources:
        # a part of a study wants no more of it
        if ":" in s.word and not Path(s.word).exists():
            continue
        for path in s.studies:
            folder = StudyFolder(path)
            settled = {*folder.done(), *folder.skipped()}
            for p in folder.study().trials:
                key = (p.place.study, p.place.id)
                # whatever it holds
                failed = (folder.run(p.place).path / "failed.json").exists()
                left[key] = left.get(key, True) and p.place.id not in settled and not failed
    return sum(left.values())
