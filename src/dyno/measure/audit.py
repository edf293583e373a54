"""An audit: everything that can be said of results that were read, each doubt once, with the lines it rests on."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dyno.facts.finding import Finding, Verdict, verdict, worst_first
from dyno.facts.imported import Document, Row
from dyno.facts.roofline import Peaks
from dyno.measure.checks.reports import REPORTS
from dyno.measure.checks.rows import POSSIBLE, ROW, ROWS, physics
from dyno.measure.model_name import named, related

# Each of these is about a sentence of its own.
APART = {"consistency.claim", "consistency.mean_only", "comparability.claimed_work", "consistency.arithmetic",
         "comparability.extrapolated", "consistency.percent", "consistency.bold"}  # fmt: skip
SHOWN = 3  # findings of one code in one file, before they are told as one


class Audit(msgspec.Struct, frozen=True):
    verdict: Verdict
    findings: list[Finding]  # of many alike one, as a reader wants them
    each: list[Finding]  # all of them
    documents: list[Document]


def audit(
    documents: Sequence[Document], peaks_of: Callable[[str, int], Peaks | None], own: Iterable[Finding] = ()
) -> Audit:
    """`own`: what dyno's runs among them have found out by themselves."""
    rows = [row for d in documents for row in d.rows]
    once = without_copies(rows)
    # A run of dyno's own was examined with all its records when it was measured.
    found = [f for row in once for check in (ROW if row.form != "run" else POSSIBLE) for f in check(row)]
    found += [f for across in ROWS for f in across(once)]
    title = physics.titled([h.text for d in documents for h in d.headings if h.level == 1])
    found += list(physics.roofline(once, peaks_of, title))
    found += [f for of in REPORTS for f in of(list(documents))]
    each = worst_first([*own, *found])
    return Audit(verdict(each), worst_first(gathered(each)), each, list(documents))


def without_copies(rows: Sequence[Row]) -> list[Row]:
    """A result that is told again, in a table or another file, is one result: the fuller telling counts."""
    kept: list[Row] = []
    seen: dict[tuple[float, ...], Row] = {}
    for row in sorted(rows, key=lambda r: (r.form == "table", r.samples is None, -len(r.figures))):
        mark = tuple(
            round(v, 2) for n in ("duration_s", "mean_ttft_ms", "mean_tpot_ms") if (v := row.get(n)) is not None
        )
        if len(mark) == 3 and (first := seen.get(mark)) is not None and _same_result(first, row):
            continue
        if len(mark) == 3:
            seen.setdefault(mark, row)
        kept.append(row)
    order = {id(row): i for i, row in enumerate(rows)}
    return sorted(kept, key=lambda r: order[id(r)])


def _same_result(first: Row, row: Row) -> bool:
    """Told again, and not as something else."""
    for name in ("concurrency", "rate", "num_prompts"):
        a, b = first.told(name), row.told(name)
        if a is not None and b is not None and a != b:
            return False
    if not related(*(named(str(r.told("model") or "")) for r in (first, row))):
        return False
    return first.form != row.form or first.file != row.file


def gathered(found: Iterable[Finding]) -> Iterator[Finding]:
    """Of many alike one is told, with the lines of all."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        file = finding.at[0].rpartition(":")[0] if finding.at and finding.level != "note" else ""
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
        lines.setdefault(f.text, []).extend(f.at)
    first = {f.text: f for f in reversed(same)}
    for text, at in lines.items():
        yield msgspec.structs.replace(first[text], at=list(dict.fromkeys(at)))


def _one(told: Sequence[Finding], count: int) -> Finding:
    lines = list(dict.fromkeys(at for f in told for at in f.at))
    return msgspec.structs.replace(told[0], text=f"{told[0].text} {count - 1} more like it.", at=lines)
