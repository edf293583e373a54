"""An audit: all findings about results, each once and with its lines, and how much was read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dyno import checks
from dyno.audit import claims, numbers, wording
from dyno.checks import CHECKS, Check
from dyno.checks.inputs import VERSION, Unchecked, compared
from dyno.checks.physics import Machines, titled
from dyno.facts.finding import Basis, Finding, Verdict, merged, verdict, worst_first
from dyno.facts.imported import Document, Row, Unread
from dyno.facts.rig import Peaks
from dyno.measure.pairs import copies, without
from dyno.measure.points import is_warm_up
from dyno.numbers import many
from dyno.results import tables


def _each(
    *judges: Callable[[Document], Iterator[Finding]],
) -> Callable[[Sequence[Document]], Iterator[Finding]]:
    return lambda documents: (f for judge in judges for d in documents for f in judge(d))


# Checks of a report's words, tables, commands and versions.
REPORT_CHECKS = (
    Check({
        "consistency.arithmetic": ("doubt", "A calculation (`8 × 2.99 = 24.92`, a Python prompt and its answer) or a "
            "share beside its two numbers (`12 % higher (150 vs 100)`) is wrong by more than rounding.",
            "Correct it, and the conclusions from it."),
    }, documents=_each(numbers.sums), needs=[]),
    Check({
        "comparability.extrapolated": ("doubt",
            "A throughput from the same report is multiplied by a whole number from 2 to 64, without a measurement.",
            "Run them side by side and report the measured sum: they share a host, memory and links, and load is never "
            "spread evenly."),
    }, documents=_each(numbers.extrapolated), needs=[]),
    Check({
        "consistency.bold": ("doubt", "Bold marks the best value in most columns (at least two), but a bold value is "
            "not the best in its column, nor in its block of one load or model, nor within the printed deviation.",
            "Mark the best value, or say what bold means: readers remember the bold numbers."),
    }, documents=_each(numbers.bold), needs=[]),
    Check({
        "consistency.percent": ("doubt", "A percentage or ratio in a table follows from no two numbers in its row, "
            "while at least three rows and 60 % are right.",
            "Calculate it again."),
    }, documents=_each(numbers.percentages), needs=[]),
    Check({
        "consistency.claim": ("doubt", "A sentence compares two named sides ('A is 28 % faster than B'), but results "
            "in the report or in files given with it contradict it by over 1 %.",
            "State what the results show, and at which loads."),
        "consistency.mean_only": ("doubt; note if the sentence says 'mean'", "A comparison of latencies holds for the "
            "mean, but is reversed by over 5 % at the median or 10 % at p99 (from 100 requests).",
            "Give median and p99 beside the mean."),
    }, documents=claims.claims, needs=[]),
    Check({
        "consistency.empty_section": ("doubt; note for other headings and announced lists",
            "A heading promises figures and has nothing under it, or a list is announced and missing.",
            "Fill it or remove it."),
    }, documents=_each(wording.empty, wording.dangling), needs=[]),
    Check({
        "consistency.no_figures": ("doubt; note for a guide, beside benchmark commands or with result files",
            "A title or section promises speed or latency, but tables, blocks and words have no such figure.",
            "Draw no conclusions about speed. Figures may be in pictures, which dyno doesn't read: ask for numbers."),
    }, documents=wording.no_figures, needs=[]),
    Check({}, documents=_each(wording.command_differs, wording.fewer_than_commanded), needs=[]),
    Check({
        "comparability.engine_differs": ("doubt", "Environment dumps in one report name several engine versions.",
            "Versions often differ more than settings do. Measure all with one."),
    }, documents=_each(wording.versions_differ),
        needs=[compared(VERSION, kinds=("serve", "throughput", "latency", "micro"))]),
    Check({
        "comparability.settings_differ": ("note; doubt if the title announces a comparison",
            "Commands that are compared differ in more than one setting or variable.",
            "Any of them may cause the difference. Change one at a time, or say that whole setups are compared."),
    }, documents=_each(wording.flags_differ), needs=[]),
    Check({
        "comparability.model_named": ("doubt; note for a size above one command",
            "The text names a model that no command runs, but a similar one.",
            "Name the model that was run: base and instruction-tuned models end their answers differently."),
    }, documents=lambda documents: (*wording.models_named(documents), *_each(wording.size_named)(documents)), needs=[]),
    Check({
        "comparability.quality_elsewhere": ("doubt; note for the cache alone",
            "Accuracy was measured with another model or cache type than the commands run.",
            "Measure accuracy and speed with the same configuration."),
    }, documents=_each(wording.quality_elsewhere), needs=[]),
)  # fmt: skip
# Each of these quotes its own place in the text.
SINGLE = {"consistency.claim", "consistency.mean_only", "consistency.arithmetic", "comparability.extrapolated",
          "consistency.percent", "consistency.bold"}  # fmt: skip


class ReadShare(msgspec.Struct, frozen=True):
    read: int
    all: int


class Coverage(msgspec.Struct, frozen=True):
    """How much was read of documents: tables, printed blocks and whole files that hold numbers."""

    tables: ReadShare
    columns: ReadShare  # of the tables that were read
    blocks: ReadShare
    files: ReadShare  # that consist of results, or hold numbers and no result
    lost: list[tuple[str, Unread]]  # the file, and the part with numbers that was not read

    @property
    def complete(self) -> bool:
        return not self.lost

    def describe(self) -> str:
        """Return it in words: '12 of 14 tables, 9 of 16 columns, 3 of 3 blocks'."""
        parts = (
            ("table", self.tables),
            ("column", self.columns),
            ("block", self.blocks),
            ("file", self.files),
        )
        words = [
            f"{share.read:,} of {many(share.all, name)}"
            for name, share in parts
            if share.all
        ]
        if any(u.part == "lines" for _, u in self.lost):
            words.append("not all lines")
        return ", ".join(words)


def coverage(documents: Sequence[Document]) -> Coverage:
    """Return how much was read of documents."""
    lost = list(_lost(documents))
    lost_parts = Counter(unread.part for _, unread in lost)
    tables_read, blocks_read, files_read = 0, 0, 0
    for d in documents:
        tables_read += len({row.table for row in d.rows if row.table is not None})
        blocks_read += sum(row.form == "block" for row in d.rows)
        files_read += any(
            row.form in ("json", "sql") and row.table is None for row in d.rows
        )
    return Coverage(
        tables=ReadShare(tables_read, tables_read + lost_parts["table"]),
        columns=_columns(documents),
        blocks=ReadShare(blocks_read, blocks_read + lost_parts["block"]),
        files=ReadShare(files_read, files_read + lost_parts["file"]),
        lost=lost,
    )


def _lost(documents: Sequence[Document]) -> Iterator[tuple[str, Unread]]:
    """Yield the parts with numbers that were not read. A text without results counts only if nothing else has any: the
    words of a report are read anyway."""
    has_results = any(d.rows for d in documents)
    for d in documents:
        words_of_report = has_results and bool(d.headings)
        for unread in d.unread:
            if unread.lost and not (unread.part == "file" and words_of_report):
                yield d.file, unread


def _columns(documents: Sequence[Document]) -> ReadShare:
    """Count the columns with numbers, of tables that results came of."""
    read = total = 0
    for d in documents:
        by_table: dict[int, list[Row]] = {}
        for row in d.rows:
            if row.table is not None and row.table < len(d.tables):
                by_table.setdefault(row.table, []).append(row)
        for index, rows in by_table.items():
            left, all_of_it = tables.columns_left(d.tables[index], rows)
            read, total = read + all_of_it - len(left), total + all_of_it
    return ReadShare(read, total)


class Audit(msgspec.Struct, frozen=True):
    verdict: Verdict
    findings: list[Finding]  # many alike are one
    each: list[Finding]  # all of them
    documents: list[Document]
    coverage: Coverage
    unchecked: list[Unchecked]  # inputs that results lack

    @property
    def basis(self) -> Basis:
        lacking = [one.describe() for one in self.unchecked]
        return Basis(self.coverage.describe(), self.coverage.complete, lacking)


def audit(
    documents: Sequence[Document],
    peaks_of: Callable[[str, int], Peaks | None],
    own: Iterable[Finding] = (),
) -> Audit:
    """Examine documents. `own`: findings that dyno's runs among them already have."""
    rows = [row for d in documents for row in d.rows]
    twice = copies(rows)
    once = without(rows, twice)
    once = [row for row in once if not is_warm_up(row)] or once
    findings: list[Finding] = []
    for row in once:
        # of dyno's own: it was examined with all its records when it was measured
        if row.form == "run":
            findings += checks.run(any_row=row)
        else:
            findings += checks.run(row=row, any_row=row)
    findings += checks.run(rows=once)
    title = titled([h.text for d in documents for h in d.headings if h.level == 1])
    findings += checks.run(roofline=Machines(once, peaks_of, title))
    findings += checks.run(REPORT_CHECKS, documents=documents)
    findings += checks.run(duplicates=twice)
    each = worst_first([*own, *findings])
    sources = {id(row): d for d in documents for row in d.rows}
    return Audit(
        verdict=verdict(each),
        findings=worst_first(merged(each, SINGLE)),
        each=each,
        documents=list(documents),
        coverage=coverage(documents),
        unchecked=checks.unchecked(
            [(row, sources[id(row)]) for row in once], peaks_of, CHECKS, REPORT_CHECKS
        ),
    )
