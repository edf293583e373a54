"""An audit: everything that can be said of results that were read, each doubt once, with the lines it rests on."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dyno import checks
from dyno.audit.coverage import Coverage, coverage
from dyno.audit.reports import REPORTS
from dyno.checks.physics import Machines, titled
from dyno.facts.finding import Finding, Verdict, verdict, worst_first
from dyno.facts.imported import Document
from dyno.facts.roofline import Peaks
from dyno.measure.dedupe import copies, without

# Each of these is about a sentence of its own.
APART = {"consistency.claim", "consistency.mean_only", "comparability.claimed_work", "consistency.arithmetic",
         "comparability.extrapolated", "consistency.percent", "consistency.bold"}  # fmt: skip
SHOWN = 3  # findings of one code in one file, before they are told as one


class Audit(msgspec.Struct, frozen=True):
    verdict: Verdict
    findings: list[Finding]  # of many alike one, as a reader wants them
    each: list[Finding]  # all of them
    documents: list[Document]
    coverage: Coverage


def audit(
    documents: Sequence[Document], peaks_of: Callable[[str, int], Peaks | None], own: Iterable[Finding] = ()
) -> Audit:
    """`own`: what dyno's runs among them have found out by themselves."""
    rows = [row for d in documents for row in d.rows]
    twice = copies(rows)
    once = without(rows, twice)
    # A run of dyno's own was examined with all its records when it was measured.
    found = [
        f for row in once for f in (checks.run(any_row=row) if row.form == "run" else checks.run(row=row, any_row=row))
    ]
    found += checks.run(rows=once)
    title = titled([h.text for d in documents for h in d.headings if h.level == 1])
    found += checks.run(roofline=Machines(once, peaks_of, title))
    found += [f for of in REPORTS for f in of(list(documents))]
    found += checks.run(duplicates=twice)
    each = worst_first([*own, *found])
    return Audit(verdict(each), worst_first(gathered(each)), each, list(documents), coverage(documents))


def gathered(found: Iterable[Finding]) -> Iterator[Finding]:
    """Of many alike one is told, with the lines of all."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        file = finding.locations[0].rpartition(":")[0] if finding.locations and finding.level != "note" else ""
        alike.setdefault((finding.code, finding.level, file), []).append(finding)
    for (code, level, _), same in alike.items():
        told = list(_merged(same))
        if code in APART or len(told) <= (SHOWN if level != "note" else 1):
            yield from told
        else:
            yield _one(told, len(same))


def _merged(same: Sequence[Finding]) -> Iterator[Finding]:
    """The same words for several lines are one finding."""
    lines: dict[str, list[str]] = {}
    for f in same:
        lines.setdefault(f.text, []).extend(f.locations)
    first = {f.text: f for f in reversed(same)}
    for text, at in lines.items():
        yield msgspec.structs.replace(first[text], locations=list(dict.fromkeys(at)))


def _one(told: Sequence[Finding], count: int) -> Finding:
    lines = list(dict.fromkeys(at for f in told for at in f.locations))
    return msgspec.structs.replace(told[0], text=f"{told[0].text} {count - 1} more like it.", locations=lines)
