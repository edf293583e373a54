"""`dyno.load`, `compare`, `audit`, `report` and `sql`: results read, compared, checked and shown."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno.api import html
from dyno.api.columns import ColumnTable
from dyno.api.runs import RUNS, MeasuredRun, MeasuredRuns
from dyno.errors import ImportFailed, StoreError, UsageError
from dyno.facts.comparison import Comparison, GateResult
from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import Document, Row
from dyno.facts.report import Report

if TYPE_CHECKING:
    from dyno.audit.audit import Audit
    from dyno.conduct.read import Source, Sources

Named = str | os.PathLike[str]
ComparedSide = Named | MeasuredRun | MeasuredRuns
NOTHING = "No results found. `dyno audit --help` lists the formats that dyno reads."


def load(what: Named = RUNS, *, runs: Named = RUNS) -> MeasuredRuns:
    """Read measured runs: a run, a study, a part of one, or a folder of them.

        dyno.load("runs")[-1].figures
        dyno.load("fp8:bf16")                    # a part of the study fp8

    What could not be read, or has no result yet, is in `missing`. `runs`: where names are looked up.
    """
    from dyno.conduct.read import read

    source = read(os.fspath(what), Path(runs), samples=False)
    if not source.own:
        raise UsageError(
            f"{source.word} is another tool's result. dyno.audit reads it, and dyno.compare."
        )
    folders = dict.fromkeys(row.file for row in source.document.rows)
    missing = [u.describe(source.document.file) for u in source.document.unread]
    return MeasuredRuns((MeasuredRun(folder) for folder in folders), missing)


def sql(query: str, *, runs: Named = RUNS) -> ColumnTable:
    """Query all runs with SQL, as `dyno sql` does. docs/reference/sql.md lists tables and columns."""
    from dyno.store.sql import RunTables

    return ColumnTable(RunTables(Path(runs)), query)


# ---- two sides ----


class ComparedRuns:
    """Two sides under the same loads: what differs, and how certain that is. `comparison` has every figure."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def verdict(self) -> Verdict:
        return self.comparison.verdict

    @property
    def gates(self) -> list[GateResult]:
        """Return each gate at each load, with its state: held, broken or undecided."""
        return self.comparison.gates

    @property
    def passed(self) -> bool:
        """Return whether nothing is void and every gate is held."""
        held = all(gate.state == "held" for gate in self.gates)
        return held and self.verdict != "void"

    @property
    def differences(self) -> list[dict[str, Any]]:
        """Return a dictionary for each figure at each load: a, b, change, low and high of its 95 % interval, word."""
        return [
            {
                "load": _load_words(pairing.load),
                "metric": d.metric,
                "a": d.a.value,
                "b": d.b.value,
                "change": d.change,
                "low": d.low,
                "high": d.high,
                "word": d.word,
            }
            for pairing in self.comparison.pairings
            for d in pairing.differences
        ]

    @property
    def text(self) -> str:
        """Return what the command prints."""
        from dyno.report.compare import text

        return text(self.comparison, False)

    def __repr__(self) -> str:
        return f"<comparison of {len(self.comparison.pairings)} loads: {self.verdict}>"

    def _repr_html_(self) -> str:
        names = ["load", "metric", "a", "b", "change", "95 % interval", ""]
        rows = [
            [
                _load_words(p.load),
                d.metric,
                d.a.value,
                d.b.value,
                d.change_words,
                d.interval_words,
                d.word,
            ]
            for p in self.comparison.pairings
            for d in p.differences
        ]
        doubts = [f for p in self.comparison.pairings for f in p.findings]
        doubts += self.comparison.findings
        verdict = f"<p>{html.mark(self.verdict)}</p>"
        alone = [*self.comparison.unpaired_a, *self.comparison.unpaired_b]
        unpaired = html.paragraph(f"On one side only: {'; '.join(alone)}") if alone else ""
        return verdict + html.table(names, rows) + unpaired + html.findings(doubts)


def _load_words(load: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in load.items())


def compare(
    a: ComparedSide,
    b: ComparedSide,
    *,
    metrics: Sequence[str] = (),
    gates: Sequence[str] = (),
    anyway: bool = False,
    runs: Named = RUNS,
) -> ComparedRuns:
    """Test whether two results really differ, as `dyno compare` does. `a` is the baseline.

    Each side: a run or runs, a path, the name of a study or of a part of it, or another tool's file. `gates`: such as
    "p99_ttft_ms<5%". `anyway`: compare what is not comparable; the verdict is void then.
    """
    from dyno.compare.gate import check_metric, parse
    from dyno.conduct.read import compare_sources

    parsed = [parse(gate) for gate in gates]
    for name in metrics:
        check_metric(name, "--metric")
    sides = (_side(a, Path(runs)), _side(b, Path(runs)))
    return ComparedRuns(compare_sources(sides, metrics, parsed, anyway))


def _side(side: ComparedSide, runs: Path) -> "Source":
    from dyno.conduct import read as reading
    from dyno.store.rows import read_rows
    from dyno.store.run import Run

    if not isinstance(side, MeasuredRuns):
        return reading.read(os.fspath(side), runs)
    if not len(side):
        raise StoreError("A side of the comparison has no runs.")
    rows = [row for run in side for row in read_rows(Run(run.path))]
    folder = side[0].path.parent
    document = Document(str(folder), "dyno runs", rows)
    return reading.Source(f"{folder} ({len(side)} runs)", folder, document)


# ---- checks of any tool's results ----


class AuditedResults:
    """Results that were checked: `findings` about them, and `rows` with every figure that was read."""

    def __init__(
        self, audited: "Audit", documents: list[Document], failed: list[str]
    ) -> None:
        self.audited, self.documents, self.failed = audited, documents, failed

    @property
    def verdict(self) -> Verdict:
        return self.audited.verdict

    @property
    def findings(self) -> list[Finding]:
        """Return the errors and doubts, the worst first, each with its lines in `locations`."""
        return self.audited.findings

    @property
    def rows(self) -> list[Row]:
        return [row for document in self.documents for row in document.rows]

    @property
    def empty(self) -> bool:
        """Return whether no file has results or looks like a report: parts were not read, and none has headings."""
        if self.rows or not self.audited.coverage.complete:
            return False
        return all(d.unread for d in self.documents) and not any(
            d.headings for d in self.documents
        )

    @property
    def complete(self) -> bool:
        """Return whether all tables, blocks and files with numbers were read."""
        return self.audited.coverage.complete and not self.failed

    @property
    def text(self) -> str:
        """Return what the command prints."""
        from dyno.audit.printed import normal, text

        return text(self.audited, [normal(row, []) for row in self.rows])

    def __repr__(self) -> str:
        return f"<audit of {len(self.rows)} results: {self.verdict}, {len(self.findings)} findings>"

    def _repr_html_(self) -> str:
        words = self.audited.basis.describe(self.verdict)
        return f"<p>{html.mark(self.verdict)} {html.text(words)}</p>" + html.findings(
            self.findings
        )


def audit(*files: Named, runs: Named = RUNS) -> AuditedResults:
    """Check any tool's results and reports about them for errors, as `dyno audit` does."""
    audited = audited_words([os.fspath(file) for file in files], Path(runs))
    if audited.empty:
        raise ImportFailed(NOTHING)
    return audited


# ---- a report ----


class ReportPage:
    """A report. `save` writes it in the format of the file's extension: .html, .md or .csv."""

    def __init__(self, report: Report, warnings: list[str]) -> None:
        self.report, self.warnings = report, warnings

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    @property
    def answer(self) -> str:
        """Return the answer in sentences."""
        return " ".join(self.report.words.answer)

    @property
    def findings(self) -> list[Finding]:
        return self.report.findings

    @property
    def markdown(self) -> str:
        from dyno.report.text import markdown

        return markdown(self.report)

    @property
    def csv(self) -> str:
        """Return a line per result, repeats joined."""
        from dyno.report.text import csv

        return csv(self.report)

    @property
    def html(self) -> str:
        """Return the self-contained page with its charts."""
        from dyno.report.charts import charts
        from dyno.report.page import page

        return page(self.report, charts(self.report))

    def chart(self, name: str) -> str:
        """Return a chart as SVG, such as "throughput-concurrency". `charts` has the names."""
        from dyno.report.picture import svg

        for chart in self._charts():
            if chart.name == name:
                return svg(chart)
        raise UsageError(
            f"No chart {name!r}. There are {', '.join(self.charts) or 'none'}."
        )

    @property
    def charts(self) -> list[str]:
        return [chart.name for chart in self._charts()]

    def _charts(self) -> "list[Any]":
        from dyno.report.charts import charts

        return charts(self.report)

    def save(self, path: Named) -> Path:
        """Write it, and return the path."""
        from dyno.store.run import write

        file = Path(path)
        forms = {".html": "html", ".md": "markdown", ".csv": "csv"}
        if file.suffix.lower() not in forms:
            raise UsageError(f"{file}: the extension must be one of {', '.join(forms)}.")
        text: str = getattr(self, forms[file.suffix.lower()])
        write(file, text.encode(), mode=0o666)
        return file

    def __repr__(self) -> str:
        return f"<report {self.report.title}: {self.verdict}>"

    def _repr_html_(self) -> str:
        pictures = "".join(self.chart(name) for name in self.charts[:1])
        words = html.paragraph(self.answer)
        return f"<p>{html.mark(self.verdict)}</p>{words}{pictures}" + html.findings(
            self.findings
        )


def report(
    *what: Named | MeasuredRun | MeasuredRuns,
    title: str = "",
    target: Sequence[str] = (),
    price: Sequence[str] = (),
    energy_price: float | None = None,
    prices: Named | None = None,
    runs: Named = RUNS,
) -> ReportPage:
    """Make a report of runs, studies and other tools' results, as `dyno report` does.

    dyno.report("runs/my-study", target=["ttft:500ms"]).save("report.html")
    """
    from dyno.conduct.read import ReportRequest, distinct, make_report, read_words
    from dyno.facts.limits import parse
    from dyno.study.prices import price_rules

    rules = price_rules(list(price), energy_price, None if prices is None else Path(prices))
    words = list(_as_words(what))
    request = ReportRequest(words, rules, parse(list(target), "target"), title)
    return ReportPage(*make_report(distinct(read_words(words, Path(runs))), request))


def _as_words(what: Iterable[Named | MeasuredRun | MeasuredRuns]) -> Iterable[str]:
    for one in what:
        if isinstance(one, MeasuredRuns):
            yield from (str(run.path) for run in one)
        else:
            yield os.fspath(one)


# ---- what the commands call, too ----


def audited_words(words: list[str], runs: Path) -> AuditedResults:
    """Check what words name. One that can't be read is in `failed`, and the others are still read."""
    from dyno.audit.audit import audit as audited
    from dyno.conduct.read import own_findings, read_words
    from dyno.probe.peaks import of_name

    reading: Sources = read_words(words, runs)
    own = own_findings(reading.rows)
    return AuditedResults(
        audited(reading.documents, of_name, own), reading.documents, reading.failed
    )
