"""Rows that belong together: the same result reported twice, repeats of one setting, and pairs of two sides under the
same workload and load. What else differs in a pair is what is compared."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dyno.facts import identity
from dyno.facts.imported import Figure, Row
from dyno.facts.load import ONE_WORKLOAD, near, plain
from dyno.facts.metric import SPEEDS
from dyno.measure.points import input_each, load_of, requests_of, same_model

# What differs between repeats of one setting, or follows from the figures' own place.
_PASSING = {
    "seed", "date", "repeat", "percentiles", "price_per_hour", "tool_version", "samples", "verdict", "run_number",
    "run_num", "run", "repetition", "iteration", "rep", "trial", "iter", "try", "process",
}  # fmt: skip
# In other tools' rows also what is named like a time or an id.
_ONE_RUN = re.compile(r"(?:^|[_-])(?:time|timestamp|date|uuid|run_?id)(?:$|[_-])", re.I)
# So many times its rounding, that two figures can't well agree by chance: for one name, and for two.
_MATCH, _MATCH_ACROSS_NAMES = 5e2, 5e4
# results of one file at one speed that are looked at: where all are alike, it says nothing
_ALIKE = 50
_EXACT = 1e-9  # of a figure whose rounding is unknown

Group = list[Row]  # repeats of one setting


class Pairs(NamedTuple):
    pairs: list[tuple[Group, Group]]
    left_a: list[Group]
    left_b: list[Group]
    # of those left, the ones that fit several of the other side equally well
    several: list[Group]


def passes(name: str, own: bool = False) -> bool:
    """Return whether a setting is of one run and no other. `own`: dyno measured it, and declares what its settings
    are."""
    return name in _PASSING or (not own and bool(_ONE_RUN.search(name)))


def groups(rows: Sequence[Row]) -> list[Group]:
    """Group the repeats of one setting."""
    by_identity: dict[tuple[object, ...], Group] = {}
    for row in rows:
        by_identity.setdefault(_identity(row), []).append(row)
    return list(by_identity.values())


def _identity(row: Row) -> tuple[object, ...]:
    """Return what repeats of one setting have in common.

    Of a run of dyno's own it is its place in a study, and the settings that are declared to be part of what was
    measured. Of another tool's rows it is the words beside them, and how many requests of what length there were: often
    only that distinguishes two lines of a table or two blocks of a log."""
    own = row.form == "run"
    if own:
        named: tuple[object, ...] = row.place.key if row.place is not None else ()
    else:
        each = input_each(row)
        named = (row.series, row.label, requests_of(row), each and f"{each:.1e}")
    aside = identity.ASIDE if own else ()
    lasting = {
        n: s.value for n, s in row.settings.items() if n not in aside and not passes(n, own)
    }
    return (
        row.kind,
        row.tool,
        named,
        *sorted((n, str(plain(value))) for n, value in lasting.items()),
    )


def pair(a: Sequence[Group], b: Sequence[Group]) -> Pairs:
    """Pair each group of A with the one of B that is most like it, unless that one is more like another of A. A group
    that is the only one of its load goes with all that are equally like it."""
    fits = _fits(a, b)
    chosen: list[tuple[int, int]] = []
    torn: list[Group] = []
    for i, group in enumerate(a):
        wanted = _most_alike(fits, i)
        if len(wanted) > 1 and any(k != i and j in wanted for k, j in fits):
            torn.append(group)
        else:
            chosen += [(i, j) for j in wanted]
    used_a, used_b = {i for i, _ in chosen}, {j for _, j in chosen}
    return Pairs(
        [(a[i], b[j]) for i, j in chosen], _rest(a, used_a), _rest(b, used_b), torn
    )


def _fits(a: Sequence[Group], b: Sequence[Group]) -> dict[tuple[int, int], int]:
    """Return the likeness of each group of A to each of B under the same load, by their numbers."""
    loads_a = [load_of(group[0]) for group in a]
    loads_b = [load_of(group[0]) for group in b]
    fits = {}
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            if x[0].kind == y[0].kind and loads_a[i].same(loads_b[j]):
                fits[i, j] = _likeness(x[0], y[0])
    return fits


def _most_alike(fits: dict[tuple[int, int], int], i: int) -> list[int]:
    """Return the groups of B that group `i` of A is most like, without those that are more like another of A."""
    own = {j: like for (k, j), like in fits.items() if k == i}
    best = max(own.values(), default=-1)
    most_alike = []
    for j in own:
        if own[j] == best and not any(
            m == j and like > best for (_, m), like in fits.items()
        ):
            most_alike.append(j)
    return most_alike


def _rest(groups: Sequence[Group], used: set[int]) -> list[Group]:
    return [group for i, group in enumerate(groups) if i not in used]


def _likeness(a: Row, b: Row) -> int:
    """Return how many settings agree."""
    own = a.tool == b.tool == "dyno"
    same = sum(
        plain(s.value) == plain(b.setting(name))
        for name, s in a.settings.items()
        if not passes(name, own)
    )
    same += requests_of(a) == requests_of(b)
    x, y = input_each(a), input_each(b)
    same += x is not None and y is not None and near(y, x, ONE_WORKLOAD)
    same += bool(a.series) and a.series == b.series
    same += bool(a.label) and a.label == b.label
    return same


# ---- the same result, reported twice: in another file, perhaps under another name and with other figures ----


def once(rows: Sequence[Row]) -> list[Row]:
    """Return each result once. The first copy gets the merged figures, and knows where else it is reported."""
    whole = {id(row) for row in without(rows, copies(rows))}
    often = Counter(row.series for row in rows)
    out: list[Row] = []
    places = _Places()
    for row in rows:
        if id(row) not in whole:
            continue
        keys = [(row.kind, load_of(row), *speed) for speed in _near(row)]
        index = next(
            (i for i in places.in_other_files(keys, row.file) if _same(out[i], row)), None
        )
        if index is None:
            places.add(keys, row.file, len(out))
            out.append(row)
        else:
            out[index] = _both(out[index], row, often)
    return out


class _Places:
    """Knows which results have about the same speed: their numbers, by speed and by file."""

    def __init__(self) -> None:
        self._by_speed: dict[tuple[object, ...], dict[str, list[int]]] = {}

    def add(self, keys: Sequence[tuple[object, ...]], file: str, number: int) -> None:
        for key in keys:
            numbers = self._by_speed.setdefault(key, {}).setdefault(file, [])
            if len(numbers) < _ALIKE:
                numbers.append(number)

    def in_other_files(self, keys: Sequence[tuple[object, ...]], file: str) -> list[int]:
        """Return the numbers of results at these speeds, each once."""
        unique: dict[int, None] = {}
        for key in keys:
            for other, numbers in self._by_speed.get(key, {}).items():
                if other != file:
                    unique.update(dict.fromkeys(numbers))
        return list(unique)


def _near(row: Row) -> set[tuple[str, str]]:
    """Return its speeds to four digits, and the next above and below: a copy lies at one of these."""
    speeds = [(n, row.figures[n].value) for n in SPEEDS if n in row.figures]
    near = set()
    for name, value in speeds:
        if math.isfinite(value):
            near |= {
                (name, f"{value * factor:.3e}")
                for factor in (0.999, 0.9995, 1.0, 1.0005, 1.001)
            }
    return near


def _same(one: Row, other: Row) -> bool:
    """Return whether all figures that both report are equal as far as printed, with enough digits, and of the same
    model."""
    shared = [n for n in one.figures if n in other.figures]
    if one.file == other.file or not all(
        _agree(one.figures[n], other.figures[n]) for n in shared
    ):
        return False
    if not same_model(one, other):
        return False
    wanted = _MATCH if one.series == other.series else _MATCH_ACROSS_NAMES
    return any(
        _sharp(one.figures[n], other.figures[n]) >= wanted for n in shared if n in SPEEDS
    )


def _rounding(figure: Figure) -> float:
    return figure.half or abs(figure.value) * _EXACT


def _agree(a: Figure, b: Figure) -> bool:
    if not (math.isfinite(a.value) and math.isfinite(b.value)):
        return False
    return abs(a.value - b.value) <= _rounding(a) + _rounding(b)


def _sharp(a: Figure, b: Figure) -> float:
    least = max(_rounding(a), _rounding(b))
    return abs(a.value) / least if least else 0.0


def _both(one: Row, other: Row, often: Counter[str]) -> Row:
    """Merge two reports of one result. Of two names the usual one holds: the other is a slip."""
    return msgspec.structs.replace(
        one,
        series=max(one.series, other.series, key=lambda name: (bool(name), often[name])),
        figures=one.figures
        | {n: f for n, f in other.figures.items() if n not in one.figures},
        settings=other.settings | one.settings,
        tool=one.tool or other.tool,
        samples=one.samples or other.samples,
        also=[*one.also, other, *other.also],
    )


def without(rows: Sequence[Row], twice: Iterable[tuple[Row, Row]]) -> list[Row]:
    gone = {id(copy) for _, copy in twice}
    return [row for row in rows if id(row) not in gone]


def copies(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return results that a table or another file reports again, each with the fuller report that counts."""
    twice: list[tuple[Row, Row]] = []
    seen: dict[tuple[float, ...], Row] = {}
    for row in sorted(
        rows, key=lambda r: (r.form == "table", r.samples is None, -len(r.figures))
    ):
        values = [row.get(name) for name in ("duration_s", "mean_ttft_ms", "mean_tpot_ms")]
        mark = tuple(round(v, 2) for v in values if v is not None)
        if len(mark) < 3:
            continue
        first = seen.setdefault(mark, row)
        if first is not row and _same_result(first, row):
            twice.append((first, row))
    return twice


def _same_result(first: Row, row: Row) -> bool:
    """Return whether a result is reported again, and not as something else. Two run folders are two runs."""
    if first.form == row.form == "run":
        return False
    for name in ("concurrency", "rate", "num_prompts"):
        a, b = first.setting(name), row.setting(name)
        if a is not None and b is not None and a != b:
            return False
    return same_model(first, row) and (first.form != row.form or first.file != row.file)
