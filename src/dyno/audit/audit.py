"""An audit: all findings about results that were read, each once, with the lines it rests on; and how much was read."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dyno import checks
from dyno.audit import claims, numbers, wording
from dyno.checks.physics import Machines, titled
from dyno.facts.finding import Finding, Verdict, verdict, worst_first
from dyno.facts.imported import Document, Unread
from dyno.facts.rig import Peaks
from dyno.measure.pairs import copies, without
from dyno.numbers import many

Check = Callable[[Sequence[Document]], Iterator[Finding]]


def _each(check: Callable[[Document], Iterator[Finding]]) -> Check:
    return lambda documents: (f for d in documents for f in check(d))


# Checks over what surrounds figures: a report's words, tables, commands and versions.
REPORTS: tuple[Check, ...] = (
    *map(_each, (numbers.sums, numbers.extrapolated, numbers.bold, numbers.percentages)),
    claims.claims,
    _each(wording.empty),
    wording.no_figures,
    *map(_each, (wording.dangling, wording.command_differs, wording.fewer_than_commanded)),
    *map(_each, (wording.versions_differ, wording.flags_differ)),
    wording.models_named,
    *map(_each, (wording.size_named, wording.quality_elsewhere)),
)
# Each of these is about a sentence of its own.
SINGLE = {"consistency.claim", "consistency.mean_only", "consistency.arithmetic", "comparability.extrapolated",
          "consistency.percent", "consistency.bold"}  # fmt: skip
SHOWN = 3  # findings of one code in one file, before they are joined into one


class ReadShare(msgspec.Struct, frozen=True):
    read: int
    all: int


class Coverage(msgspec.Struct, frozen=True):
    """How much was read of documents: tables, printed blocks and whole files that hold numbers."""

    tables: ReadShare
    blocks: ReadShare
    files: ReadShare  # that consist of results, or hold numbers and no result
    lost: list[tuple[str, Unread]]  # the file, and the part with numbers that was not read

    @property
    def complete(self) -> bool:
        return not self.lost

    def describe(self) -> str:
        """12 of 14 tables, 3 of 3 blocks"""
        parts = (("table", self.tables), ("block", self.blocks), ("file", self.files))
        words = [f"{share.read:,} of {many(share.all, name)}" for name, share in parts if share.all]
        return ", ".join(words + ["not all lines"] * any(u.part == "lines" for _, u in self.lost))


def coverage(documents: Sequence[Document]) -> Coverage:
    """A text without results counts as unread only if nothing else has any: the words of a report are read anyway."""
    results = any(d.rows for d in documents)
    lost = [
        (d.file, u) for d in documents for u in d.unread if u.lost and not (u.part == "file" and d.headings and results)
    ]
    read = {
        "table": sum(len({row.table for row in d.rows if row.table is not None}) for d in documents),
        "block": sum(row.form == "block" for d in documents for row in d.rows),
        "file": sum(any(row.form in ("json", "sql") and row.table is None for row in d.rows) for d in documents),
    }
    tables, blocks, files = (ReadShare(n, n + sum(u.part == part for _, u in lost)) for part, n in read.items())
    return Coverage(tables, blocks, files, lost)


class Audit(msgspec.Struct, frozen=True):
    verdict: Verdict
    findings: list[Finding]  # many alike are one
    each: list[Finding]  # all of them
    documents: list[Document]
    coverage: Coverage


def audit(
    documents: Sequence[Document], peaks_of: Callable[[str, int], Peaks | None], own: Iterable[Finding] = ()
) -> Audit:
    """`own`: findings that dyno's runs among them already have."""
    rows = [row for d in documents for row in d.rows]
    twice = copies(rows)
    once = without(rows, twice)
    # A run of dyno's own was examined with all its records when it was measured.
    findings = [
        f for row in once for f in (checks.run(any_row=row) if row.form == "run" else checks.run(row=row, any_row=row))
    ]
    findings += checks.run(rows=once)
    title = titled([h.text for d in documents for h in d.headings if h.level == 1])
    findings += checks.run(roofline=Machines(once, peaks_of, title))
    findings += [f for check in REPORTS for f in check(documents)]
    findings += checks.run(duplicates=twice)
    each = worst_first([*own, *findings])
    return Audit(verdict(each), worst_first(gathered(each)), each, list(documents), coverage(documents))


def gathered(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Join many alike into one, with the lines of all."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        file = finding.locations[0].rpartition(":")[0] if finding.locations and finding.level != "note" else ""
        alike.setdefault((finding.code, finding.level, file), []).append(finding)
    for (code, level, _), same in alike.items():
        lines: dict[str, list[str]] = {}  # the same words for several lines are one finding
        for f in same:
            lines.setdefault(f.text, []).extend(f.locations)
        first = {f.text: f for f in reversed(same)}
        merged = [_located(first[text], locations) for text, locations in lines.items()]
        if code in SINGLE or len(merged) <= (SHOWN if level != "note" else 1):
            yield from merged
        else:
            one = msgspec.structs.replace(merged[0], text=f"{merged[0].text} {len(same) - 1} more like it.")
            yield _located(one, [location for f in merged for location in f.locations])


def _located(finding: Finding, locations: Iterable[str]) -> Finding:
    return msgspec.structs.replace(finding, locations=list(dict.fromkeys(locations)))
