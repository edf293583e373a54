"""Sentences that claim something of the figures: does it hold in them?

A claim is spoken of only where its names, its metric and its load are found among rows; where the words may be read in
several ways, only where it fails in all of them. What can't be resolved is passed over in silence.
"""

import math
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from dyno.audit.claim.bound import Bound, Growth, bounds, growth
from dyno.audit.claim.judge import Reading, breaks, grows_otherwise, most, readings, slopes
from dyno.audit.claim.metric import PLAIN
from dyno.audit.claim.scope import Range, load, prompts, ranges
from dyno.audit.claim.sentence import Versus, alone, first_names, versus
from dyno.audit.claim.side import Names, Pair, legend
from dyno.audit.claim.words import sentences, within, words
from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Passage, Row
from dyno.facts.load import LENGTHS, LEVELS

_PERFORMANCE = ("serve", "throughput", "latency", "micro")
SAMPLES = 100  # fewer requests have no P99 to speak of
SIDES = 200  # more names than that are no comparison of a few
BEYOND = 0.1
WORK = 0.1  # two sides' output tokens by request may differ by so much
_ADVICE = "Say what the rows show, with the loads at which it is otherwise."


class Context(NamedTuple):
    """What surrounds a sentence."""

    document: Document
    passage: Passage
    sentence: str
    scope: list[Range]  # of its section
    spoken: frozenset[str]  # words of it and of the sentence before

    def finding(self, code: str, doubt: bool, text: str, advice: str, rows: list[Row]) -> Finding:
        at = [f"{self.document.file}:{self.passage.line}", *dict.fromkeys(r.location for r in rows)]
        return Finding(code, "doubt" if doubt else "note", text, advice, at[:9])


def claims(documents: list[Document]) -> Iterator[Finding]:
    data = [r for d in documents if not any(h.level for h in d.headings) for r in _rows(d)]
    for document in documents:
        if not any(h.level for h in document.headings):
            continue
        own = _rows(document)
        defined = legend(document)
        pools = [Names(rows, tier, defined) for rows in (own, data) if rows for tier in (0, 1, 2)]
        pools = [names for names in pools if 1 < len(names.rows) <= SIDES]
        said: set[tuple[str, int]] = set()
        for context, it in _contexts(document) if pools else ():
            for finding in _judged(context, pools, it):
                if (finding.text, context.passage.line) not in said:
                    said.add((finding.text, context.passage.line))
                    yield finding


def _rows(document: Document) -> list[Row]:
    return [r for r in document.rows if r.kind in _PERFORMANCE]


def _contexts(document: Document) -> Iterator[tuple[Context, str]]:
    """Each sentence, and the one before it."""
    lengths = {p.section: length for p in document.passages if not p.listing and (length := prompts(p.text))}
    for passage in document.passages:
        if passage.listing:
            continue
        scope = list(ranges(passage.section) or [])
        if passage.section in lengths and not any(r.variable == "input_len" for r in scope):
            scope.append(lengths[passage.section])
        before = ""
        for sentence in sentences(passage.text):
            spoken = frozenset(words(sentence) + words(before))
            yield Context(document, passage, sentence, scope, spoken), before
            before = sentence


def _judged(context: Context, pools: list[Names], before: str) -> Iterator[Finding]:
    """By the first rows in which its names are found: the report's own, then those of files given with it."""
    for judge in (_versus, _bounds, _growth):
        for names in pools:
            found = judge(context, names, before)
            if found is not None:
                yield from found
                break


def _named(text: str, names: Names) -> list[str]:
    return list(dict.fromkeys(n for word in text.split()[:400] for n in first_names([word], names)))


def _it(before: str, names: Names) -> str:
    """Whom 'it' means: the one name in the sentence before."""
    found = _named(before, names)
    return found[0] if len(found) == 1 else ""


def _named_place(context: Context, files: set[str]) -> set[str]:
    """Files of which the words speak by name; all, where they don't."""
    spoken = set()
    for file in files:
        name = words(PurePath(file).stem.split(".")[-1])
        if len(name) > 1 and all(within(w, context.spoken) for w in name):
            spoken.add(file)
    return spoken or files


def _in_named_place(context: Context, found: list[Reading]) -> list[Reading]:
    files = _named_place(context, {reading.compared[0][0].one.file for reading in found})
    return [reading for reading in found if reading.compared[0][0].one.file in files]


def _versus(context: Context, names: Names, before: str) -> Iterator[Finding] | None:
    """None where nothing could be resolved."""
    resolved = []
    said = versus(context.sentence, context.passage.section, names, _it(before, names))
    for claim in said + alone(context.sentence, names, lambda: _named(context.passage.text, names)):
        own = {r.variable for r in claim.scope}
        scope = claim.scope + [r for r in context.scope if r.variable not in own]
        found = _in_named_place(context, readings(claim, names, claim.metric.names, scope))
        if found:
            resolved.append((claim, scope, found))
    if not resolved:
        return None
    return (f for claim, scope, found in resolved for f in _compared(context, names, claim, scope, found))


def _compared(
    context: Context, names: Names, claim: Versus, scope: list[Range], found: list[Reading]
) -> Iterator[Finding]:
    if all(reading.against() for reading in found):
        yield _contradicted(context, claim, found)
        return
    if claim.amount and claim.metric.names != PLAIN:
        yield from _amount(context, claim, found)
    yield from _bound_missed(context, names, claim, scope)
    if claim.metric.stem and claim.metric.names[0].startswith("mean"):
        yield from _mean_only(context, names, claim, scope)
    if claim.metric.names == ("request_throughput",):
        yield from _other_work(context, claim, found)


def _contradicted(context: Context, claim: Versus, found: list[Reading]) -> Finding:
    told = []
    rows: list[Row] = []
    for reading in found[:4]:
        pair, _ = min(reading.against(), key=lambda item: item[1])
        told.append(_words(reading.figure, pair, len(reading.against()), len(reading.compared)))
        rows += [pair.one, pair.other]
    return context.finding(
        "consistency.claim",
        True,
        f"'{_short(context.sentence)}': not so in {claim.metric.words}. "
        f"{claim.one} against {claim.other}: {'; '.join(dict.fromkeys(told))}.",
        _ADVICE,
        rows,
    )


def _words(figure: str, pair: Pair, against: int, of: int) -> str:
    a, b = pair.one.figures[figure].value, pair.other.figures[figure].value
    among = f" ({against} of {of} loads)" if of > 1 else ""
    return f"{figure.replace('_', ' ')} {a:.6g} against {b:.6g}{_load(pair.one)}{among}"


def _load(row: Row) -> str:
    names = (*sorted(LEVELS), *LENGTHS)
    told = [f"{n.replace('_', ' ')} {v:g}" for n in names if (v := row.number(n)) is not None]
    if not told and (completed := row.get("completed")) is not None:
        told = [f"{completed:g} requests"]
    return f" at {', '.join(told)}" if told else ""


def _mean_only(context: Context, names: Names, claim: Versus, scope: list[Range]) -> Iterator[Finding]:
    """Holds for the mean; not for the median or the 99th percentile, whichever way the names are read."""
    stem = claim.metric.stem
    for statistic, margin in (("median", 0.05), ("p99", 0.1)):
        found = readings(claim, names, (f"{statistic}_{stem}_ms",), scope)
        many = all(
            min(p.one.get("completed") or 0, p.other.get("completed") or 0) >= SAMPLES
            for r in found
            for p, _ in r.compared
        )
        if not found or (statistic == "p99" and not many) or not all(r.against(margin) for r in found):
            continue
        pair, _ = min(found[0].against(margin), key=lambda item: item[1])
        yield context.finding(
            "consistency.mean_only",
            not claim.metric.named,
            f"'{_short(context.sentence)}': that holds for the mean, not for the "
            f"{'median' if statistic == 'median' else '99th percentile'}. {claim.one} against {claim.other}: "
            f"{_words(found[0].figure, pair, len(found[0].against(margin)), len(found[0].compared))}.",
            "Give median and tail beside the mean, and say for whom it is faster.",
            [pair.one, pair.other],
        )
        return


def _amount(context: Context, claim: Versus, found: list[Reading]) -> Iterator[Finding]:
    """'28 % higher', where no load of any reading has about that; of the lesser or of the greater one."""
    number = float(re.findall(r"[\d.]+", claim.amount)[0])
    percent = "%" in claim.amount
    slack = max(0.1 * number, 1.0 if percent else 0.1)
    leads = [(lead, reading.figure, pair) for reading in found for pair, lead in reading.compared]
    amounts = [a for lead, *_ in leads for a in (_of_lead(lead, percent) if lead > 0 else [])]
    # 'Over' and 'up to' may be said of any load; without them one near it is enough.
    if not amounts or any(abs(a - number) <= slack for a in amounts):
        return
    if "over" in claim.amount and max(amounts) >= number:
        return
    lead, figure, pair = min(leads, key=lambda item: min(abs(a - number) for a in _of_lead(item[0], percent)))
    yield context.finding(
        "consistency.claim",
        True,
        f"'{_short(context.sentence)}': at no load here. The nearest is {_words(figure, pair, 1, 1)} "
        f"({lead:+.1%}; {claim.one}, {claim.other}).",
        _ADVICE,
        [pair.one, pair.other],
    )


def _of_lead(lead: float, percent: bool) -> list[float]:
    return [100 * lead, 100 * (1 - 1 / (1 + abs(lead)))] if percent else [1 + lead, lead]


def _bound_missed(context: Context, names: Names, claim: Versus, scope: list[Range]) -> Iterator[Finding]:
    """'Cheaper for batch sizes below 16', and it is so by over a tenth at 16 too: the bound isn't in the rows."""
    for part in claim.scope:
        if claim.degree or not part.strict or part.high == math.inf:
            continue
        beyond = [r for r in scope if r.variable != part.variable] + [Range(part.variable, low=part.high)]
        found = readings(claim, names, claim.metric.names, beyond)
        firsts = [_first(reading, part.variable) for reading in found]
        if firsts and all(lead > BEYOND for _, lead in firsts):
            pair, _ = min(firsts, key=lambda item: item[1])
            yield context.finding(
                "consistency.claim",
                False,
                f"'{_short(context.sentence)}': not only there. {claim.one} against {claim.other}: "
                f"{_words(found[0].figure, pair, 1, 1)}.",
                "Give the load at which the order changes, by the rows.",
                [pair.one, pair.other],
            )


def _first(reading: Reading, variable: str) -> tuple[Pair, float]:
    """At the least load; of several there, the least lead."""
    least = min(load(pair.one, variable) or 0.0 for pair, _ in reading.compared)
    there = [(pair, lead) for pair, lead in reading.compared if load(pair.one, variable) == least]
    return min(there, key=lambda item: item[1])


def _each(row: Row) -> float | None:
    output, completed = row.get("total_output_tokens"), row.get("completed")
    return output / completed if output and completed else None


def _other_work(context: Context, claim: Versus, found: list[Reading]) -> Iterator[Finding]:
    for reading in found:
        for pair, _ in reading.compared:
            a, b = _each(pair.one), _each(pair.other)
            if a and b and max(a, b) > (1 + WORK) * min(a, b):
                x, y = pair.one.get("output_throughput"), pair.other.get("output_throughput")
                turned = f", and in output tokens/s it is {x:.6g} against {y:.6g}" if x and y and x < y else ""
                yield context.finding(
                    "comparability.claimed_work",
                    True,
                    f"'{_short(context.sentence)}': requests/s of answers of {a:.4g} and {b:.4g} tokens are compared "
                    f"({claim.one}, {claim.other}{_load(pair.one)}){turned}.",
                    "Compare tokens/s, or have both produce as many tokens (ignore_eos, one model).",
                    [pair.one, pair.other],
                )
                return


def _bounds(context: Context, names: Names, before: str) -> Iterator[Finding] | None:
    resolved: list[Finding | None] = []
    for claim in bounds(context.sentence, names):
        found = most(claim, names, claim.scope + context.scope)
        files = _named_place(context, {m.row.file for m in found})
        found = [m for m in found if m.row.file in files]
        if found:
            wrong = all(breaks(claim, m.value) for m in found)
            resolved.append(_unbound(context, claim, [(m.figure, m.value, m.row) for m in found]) if wrong else None)
    return (f for f in resolved if f is not None) if resolved else None


def _unbound(context: Context, claim: Bound, found: list[tuple[str, float, Row]]) -> Finding:
    pick = min if claim.sort == "at most" else max
    figure, value, row = pick(found, key=lambda item: item[1])
    return context.finding(
        "consistency.claim",
        True,
        f"'{_short(context.sentence)}': the highest {figure.replace('_', ' ')} of {claim.one} is {value:.6g}"
        f"{_load(row)}, {value / claim.number - 1:+.1%} of what is said.",
        _ADVICE,
        [row],
    )


def _growth(context: Context, names: Names, before: str) -> Iterator[Finding] | None:
    resolved: list[Finding | None] = []
    for claim in growth(context.sentence, names):
        own = {r.variable for r in claim.scope}
        found = slopes(claim, names, claim.scope + [r for r in context.scope if r.variable not in own])
        if found:
            wrong = all(grows_otherwise(claim, s) for s in found)
            points = [(s.figure, s.load, s.gain, s.points, s.falls) for s in found]
            resolved.append(_otherwise(context, claim, points[0]) if wrong else None)
    return (f for f in resolved if f is not None) if resolved else None


Points = list[tuple[float, float, Row]]


def _otherwise(context: Context, claim: Growth, slope: tuple[str, float, float, Points, Points]) -> Finding:
    figure, load, gain, points, falls = slope
    fall = f", and it falls at {falls[0][0]:g}" if falls else ""
    return context.finding(
        "consistency.claim",
        True,
        f"'{_short(context.sentence)}': from {points[0][0]:g} to {points[-1][0]:g} (×{load:.3g}) "
        f"{figure.replace('_', ' ')} of {claim.one} goes {' → '.join(f'{y:.5g}' for _, y, _ in points[:9])}: "
        f"×{gain:.3g}{fall}.",
        _ADVICE,
        [row for *_, row in points],
    )


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 140 else sentence[:137].rsplit(" ", 1)[0] + " …"
