"""Reading results: words of a command line → results → a report or a comparison. Nothing is printed here: a list of
warnings is returned instead."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dyno import __version__, checks, secrets
from dyno.audit.audit import SINGLE, Audit, audit, coverage
from dyno.compare.compare import compare
from dyno.compare.gate import Gate
from dyno.conduct.sources import Source, detail, read, spread
from dyno.errors import DynoError, StoreError, UsageError
from dyno.facts.comparison import Comparison
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding, merged, verdict, worst_first
from dyno.facts.imported import Document, Row, place
from dyno.facts.limits import Limit
from dyno.facts.metric import DEFINITIONS
from dyno.facts.price import PriceRule
from dyno.facts.report import AuthorsTable, Report
from dyno.facts.study import Study
from dyno.probe.peaks import of_name
from dyno.report import sheets
from dyno.report.conclusion import conclude
from dyno.report.entries import about_failures, entries
from dyno.report.front import with_quality
from dyno.report.target import best, target
from dyno.report.timeline import Detail
from dyno.store.study import StudyFolder
from dyno.study.prices import About, about

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
        rigs=sheets.rigs(shown, documents),
        engines=sheets.engines(shown),
        commands=sheets.commands(
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
