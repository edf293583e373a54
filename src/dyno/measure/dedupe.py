"""Results that are told again, in another file, perhaps under another name and with other figures: each is one."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from dyno.facts.imported import Figure, Row
from dyno.facts.measured import Measured
from dyno.facts.metric import SPEEDS
from dyno.measure.model_name import same_model
from dyno.measure.points import point

# So many times its rounding, that two figures can't well agree by chance: for one name, and for two.
_TELLING, _TELLING_OF_ANOTHER = 5e2, 5e4
_ALIKE = 50  # results of one file at one speed that are looked at: where all are alike, it tells nothing
_EXACT = 1e-9  # of a figure of which nobody says how it was rounded


def once(measured: Sequence[Measured]) -> list[Measured]:
    """The first telling has the figures of all, and knows where else it is told."""
    whole = {id(row) for row in without_copies([m.row for m in measured])}
    often = Counter(m.row.series for m in measured)
    out: list[Measured] = []
    places: dict[tuple[object, ...], dict[str, list[int]]] = {}  # by speed, and by file
    for m in measured:
        if id(m.row) not in whole:
            continue
        at = [(m.row.kind, point(m.row), *speed) for speed in _near(m.row)]
        near = dict.fromkeys(
            i for key in at for file, some in places.get(key, {}).items() if file != m.row.file for i in some
        )
        index = next((i for i in near if _same(out[i].row, m.row)), None)
        if index is None:
            for key in at:
                some = places.setdefault(key, {}).setdefault(m.row.file, [])
                some += [len(out)] * (len(some) < _ALIKE)
            out.append(m)
        else:
            out[index] = _both(out[index], m, often)
    return out


def _near(row: Row) -> set[tuple[str, str]]:
    """Its speeds to four digits, and the next above and below: what is told again lies at one of these."""
    told = [(n, row.figures[n].value) for n in SPEEDS if n in row.figures and math.isfinite(row.figures[n].value)]
    return {(n, f"{v * near:.3e}") for n, v in told for near in (0.999, 0.9995, 1.0, 1.0005, 1.001)}


def _same(one: Row, other: Row) -> bool:
    """All figures that both report are equal as far as printed, with enough digits, and of the same model."""
    shared = [n for n in one.figures if n in other.figures]
    if one.file == other.file or not all(_agree(one.figures[n], other.figures[n]) for n in shared):
        return False
    if not same_model(one, other):
        return False
    wanted = _TELLING if one.series == other.series else _TELLING_OF_ANOTHER
    return any(_sharp(one.figures[n], other.figures[n]) >= wanted for n in shared if n in SPEEDS)


def _rounding(figure: Figure) -> float:
    return figure.half or abs(figure.value) * _EXACT


def _agree(a: Figure, b: Figure) -> bool:
    if not (math.isfinite(a.value) and math.isfinite(b.value)):
        return False
    return abs(a.value - b.value) <= _rounding(a) + _rounding(b)


def _sharp(a: Figure, b: Figure) -> float:
    least = max(_rounding(a), _rounding(b))
    return abs(a.value) / least if least else 0.0


def _both(one: Measured, other: Measured, often: Counter[str]) -> Measured:
    """Of two names the usual one: the other is a slip."""
    row = msgspec.structs.replace(
        one.row,
        series=max(one.row.series, other.row.series, key=lambda name: (bool(name), often[name])),
        figures=one.row.figures | {n: f for n, f in other.row.figures.items() if n not in one.row.figures},
        settings=other.row.settings | one.row.settings,
        tool=one.row.tool or other.row.tool,
        samples=one.row.samples or other.row.samples,
    )
    return msgspec.structs.replace(one, row=row, also=[*one.also, other.row, *other.also])


def without_copies(rows: Sequence[Row]) -> list[Row]:
    return without(rows, copies(rows))


def without(rows: Sequence[Row], twice: Iterable[tuple[Row, Row]]) -> list[Row]:
    gone = {id(copy) for _, copy in twice}
    return [row for row in rows if id(row) not in gone]


def copies(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Results that a table or another file reports again, each with the fuller report that counts."""
    twice: list[tuple[Row, Row]] = []
    seen: dict[tuple[float, ...], Row] = {}
    for row in sorted(rows, key=lambda r: (r.form == "table", r.samples is None, -len(r.figures))):
        mark = tuple(
            round(v, 2) for n in ("duration_s", "mean_ttft_ms", "mean_tpot_ms") if (v := row.get(n)) is not None
        )
        if len(mark) < 3:
            continue
        first = seen.setdefault(mark, row)
        if first is not row and _same_result(first, row):
            twice.append((first, row))
    return twice


def _same_result(first: Row, row: Row) -> bool:
    """Told again, and not as something else."""
    for name in ("concurrency", "rate", "num_prompts"):
        a, b = first.setting(name), row.setting(name)
        if a is not None and b is not None and a != b:
            return False
    return same_model(first, row) and (first.form != row.form or first.file != row.file)
