"""Two sides: which part changed, by how much, and within what interval."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from dyno.explain.explain import Explained, without_claims
from dyno.explain.split import title_of
from dyno.facts.explanation import ATOMS, Part, PartChange, PartDifference
from dyno.measure.statistics import quantile, welch_df
from dyno.numbers import count, many, number, percent
from dyno.units import NS_PER_MS

_BATCHES = 20  # consecutive requests of a run, added up: neighbours are alike
_LEAST = 40  # requests, from which their batches say something
_TOKENS_DIFFER = 0.02  # from this share on, time is compared per output token
# Parts that the sentence names: of the change, and of the latency in percent.
_NAMED = 0.1
_LEAST_POINTS = 0.5
_CONFIDENCE = 0.975
By = Literal["repeats", "requests"]
BASIS: dict[By, str] = {
    "repeats": "Intervals are from the repeats.",
    "requests": "Intervals are from the requests of one run each: they leave out what differs from run to run.",
}
Per = Literal["request", "output token"]


class _Mean(NamedTuple):
    value: float  # ns
    squared_error: float | None
    df: float


def difference(
    a: Sequence[Explained], b: Sequence[Explained], names: tuple[str, str]
) -> PartDifference:
    """Compare two sides of one load; each may have several repeats. Where a server reports its times on one side alone,
    they are used on neither: parts would have other borders."""
    counts = _Ended(*map(_completed, (a, b)), *map(_failed, (a, b)))
    if not min(counts.a, counts.b):
        return _nothing(names, counts, _notes(a, b, names))
    a, b = ([each for each in side if each.explanation.requests] for side in (a, b))
    if len({each.has_claims for each in (*a, *b)}) > 1:
        a, b = ([without_claims(each) for each in side] for side in (a, b))
    by: By = "repeats" if min(len(a), len(b)) > 1 else "requests"
    per = _per(a, b)
    groups = _common([_parts(each, by) for each in (*a, *b)])
    whole = _change([*ATOMS, ""], a, b, by, per)
    base = whole.a_ms
    changes = [_with_points(_change(atoms, a, b, by, per), base) for atoms in groups]
    rest = _with_points(_change([""], a, b, by, per), base)
    if rest.a_ms or rest.b_ms:
        changes.append(rest)
    whole = _with_points(whole, base)
    sentence = _sentence(names, whole, changes, per)
    return PartDifference(
        a=names[0],
        b=names[1],
        per=per,
        by=by,
        a_ms=whole.a_ms,
        b_ms=whole.b_ms,
        change=whole,
        parts=changes,
        sentence=" ".join([sentence, *_failures(names, counts)]),
        a_requests=counts.a,
        a_failed=counts.a_failed,
        b_requests=counts.b,
        b_failed=counts.b_failed,
        notes=_notes(a, b, names),
    )


# ---- what completed, and what is known about it ----


class _Ended(NamedTuple):
    a: int  # completed
    b: int
    a_failed: int
    b_failed: int


def _completed(side: Sequence[Explained]) -> int:
    return sum(each.explanation.requests for each in side)


def _failed(side: Sequence[Explained]) -> int:
    return sum(each.explanation.failed for each in side)


def _nothing(names: tuple[str, str], counts: _Ended, notes: list[str]) -> PartDifference:
    """Return that nothing is compared: of one side no request completed."""
    without = [name for name, n in zip(names, counts[:2], strict=True) if not n]
    sentence = f"Nothing to compare: no request of {' and '.join(without)} completed."
    return PartDifference(
        a=names[0],
        b=names[1],
        per="request",
        by="requests",
        a_ms=None,
        b_ms=None,
        change=None,
        parts=[],
        sentence=" ".join([sentence, *_failures(names, counts)]),
        a_requests=counts.a,
        a_failed=counts.a_failed,
        b_requests=counts.b,
        b_failed=counts.b_failed,
        notes=notes,
    )


def _failures(names: tuple[str, str], counts: _Ended) -> list[str]:
    """Say how many requests of each side failed: these are in none of its figures."""
    sides = zip(names, counts[:2], counts[2:], strict=True)
    return [
        f"{name}: {count(failed)} of {many(completed + failed, 'request')} failed."
        for name, completed, failed in sides
        if failed
    ]


def _notes(
    a: Sequence[Explained], b: Sequence[Explained], names: tuple[str, str]
) -> list[str]:
    """Return the notes of both sides, each with the name of its side if it isn't of both."""
    of_a, of_b = ([n for each in side for n in each.explanation.notes] for side in (a, b))
    out = []
    for note in dict.fromkeys([*of_a, *of_b]):
        sides = [name for name, own in zip(names, (of_a, of_b), strict=True) if note in own]
        out.append(note if len(sides) > 1 else f"{sides[0]}: {note}")
    return out


# ---- the parts of both ----


def _parts(each: Explained, by: By) -> list[Part]:
    """Return the parts whose values are known as often as the interval needs: of each run, or of each request."""
    e = each.explanation
    return e.parts if by == "repeats" else e.request_parts


def _per(a: Sequence[Explained], b: Sequence[Explained]) -> Per:
    tokens = [
        sum(e.explanation.output_tokens for e in side)
        / max(sum(e.explanation.requests for e in side), 1)
        for side in (a, b)
    ]
    if min(tokens) > 0 and abs(tokens[1] / tokens[0] - 1) > _TOKENS_DIFFER:
        return "output token"
    return "request"


def _common(sides: Sequence[Sequence[Part]]) -> list[list[str]]:
    """Return groups of atoms that are separated on all sides, in the order of ATOMS."""
    covers = [{*part.covers} for side in sides for part in side if part.covers]
    groups: list[set[str]] = []
    for atoms in covers:
        touched = [group for group in groups if group & atoms]
        groups = [group for group in groups if group not in touched]
        groups.append(atoms.union(*touched))
    places = list(ATOMS)
    in_order = [sorted(group, key=places.index) for group in groups]
    return sorted(in_order, key=lambda group: places.index(group[0]))


def _change(
    atoms: Sequence[str], a: Sequence[Explained], b: Sequence[Explained], by: By, per: Per
) -> PartChange:
    one, other = (
        _over_repeats(side, atoms, per)
        if by == "repeats"
        else _over_requests(side, atoms, per)
        for side in (a, b)
    )
    change = other.value - one.value
    low = high = None
    if one.squared_error is not None and other.squared_error is not None:
        squared = one.squared_error + other.squared_error
        df = (
            welch_df(one.squared_error, one.df, other.squared_error, other.df)
            if squared
            else 1.0
        )
        half = quantile(_CONFIDENCE, df) * math.sqrt(squared) if squared else 0.0
        low, high = (change - half) / NS_PER_MS, (change + half) / NS_PER_MS
    covers = [atom for atom in atoms if atom]
    title = "latency" if len(covers) == len(ATOMS) else title_of(covers)
    return PartChange(
        title,
        covers,
        one.value / NS_PER_MS,
        other.value / NS_PER_MS,
        change / NS_PER_MS,
        low,
        high,
        0.0,
    )


def _with_points(change: PartChange, base_ms: float) -> PartChange:
    points = 100 * change.change_ms / base_ms if base_ms else 0.0
    return PartChange(
        change.title,
        change.covers,
        change.a_ms,
        change.b_ms,
        change.change_ms,
        change.low_ms,
        change.high_ms,
        points,
    )


def _over_repeats(side: Sequence[Explained], atoms: Sequence[str], per: Per) -> _Mean:
    values = []
    for each in side:
        e = each.explanation
        total = sum(p.total_ns for p in e.parts if _is_in(p.covers, atoms))
        values.append(total / max(e.requests if per == "request" else e.output_tokens, 1))
    mean = float(np.mean(values))
    return _Mean(mean, float(np.var(values, ddof=1)) / len(values), len(values) - 1.0)


def _over_requests(side: Sequence[Explained], atoms: Sequence[str], per: Per) -> _Mean:
    """Return the mean over all requests, with the error by batches of consecutive ones."""
    values = np.concatenate([_values(each, atoms) for each in side])
    weights = np.concatenate([_weights(each, per) for each in side])
    whole = float(weights.sum()) or 1.0
    mean = float(values.sum()) / whole
    if len(values) < _LEAST:
        return _Mean(mean, None, 1.0)
    off = values - mean * weights
    batches = np.array([part.sum() for part in np.array_split(off, _BATCHES)])
    squared = float((batches**2).sum()) * _BATCHES / (_BATCHES - 1) / whole**2
    return _Mean(mean, squared, _BATCHES - 1.0)


def _values(each: Explained, atoms: Sequence[str]) -> np.ndarray:
    columns = [p.value for p in each.split.parts if _is_in(p.covers, atoms)]
    return (
        np.sum(columns, axis=0, dtype=float) if columns else np.zeros(len(each.split.rows))
    )


def _weights(each: Explained, per: Per) -> np.ndarray:
    if per == "request":
        return np.ones(len(each.split.rows))
    tokens: np.ndarray = each.columns.output[each.split.rows].astype(float)
    return tokens


def _is_in(covers: Sequence[str], atoms: Sequence[str]) -> bool:
    """Return whether a part belongs to a group of atoms. The rest covers none: its name here is ''."""
    return {*covers} <= {*atoms} if covers else "" in atoms


# ---- in one sentence ----


def _sentence(
    names: tuple[str, str], whole: PartChange, parts: Sequence[PartChange], per: Per
) -> str:
    a, b = names
    if number(whole.a_ms) == number(whole.b_ms) and not _is_open(whole):
        return f"No difference: {a} and {b} take {number(whole.a_ms)} ms per {per}."
    unit = f"per {per} ({number(whole.b_ms)} instead of {number(whole.a_ms)} ms)"
    if _is_open(whole):
        limits = (100 * ms / whole.a_ms for ms in (whole.low_ms or 0, whole.high_ms or 0))
        low, high = (f"{limit:+.1f}" for limit in limits)
        return f"No difference detected between {a} and {b} {unit}: {low} to {high} % with 95 % confidence."
    share = percent(abs(whole.points) / 100)
    change = f"is {share} slower" if whole.change_ms > 0 else f"takes {share} less time"
    sure = "" if whole.low_ms is not None else "; too few requests say how sure that is"
    least = max(_NAMED * abs(whole.points), _LEAST_POINTS)
    named = [p for p in parts if abs(p.points) >= least]
    named.sort(key=lambda p: -abs(p.points))
    words = [_named(p, whole, i == 0) for i, p in enumerate(named[:3])]
    reasons = f": {', '.join(words)}" if words else ""
    return f"{b} {change} than {a} {unit}{reasons}{sure}."


def _is_open(whole: PartChange) -> bool:
    """Return whether the change may as well be none."""
    low, high = whole.low_ms, whole.high_ms
    return low is not None and high is not None and whole.a_ms > 0 and low <= 0 <= high


def _named(part: PartChange, whole: PartChange, first: bool) -> str:
    points = f"{abs(part.points):.1f}".removesuffix(".0")
    unit = " points of it" if first else ""
    same = (part.change_ms > 0) == (whole.change_ms > 0)
    return (
        f"{points}{unit} in {part.title}"
        if same
        else f"{points} the other way in {part.title}"
    )
