"""A claim against rows: every way to read it, and whether it holds in that one."""

from collections.abc import Iterator
from typing import NamedTuple

from dyno.audit.claim.bound import Bound, Growth
from dyno.audit.claim.scope import Range, covers, load
from dyno.audit.claim.sentence import Versus
from dyno.audit.claim.side import Names, Pair, Side, alike, pairs
from dyno.facts.imported import Row
from dyno.facts.metric import leads

MARGIN = 0.01  # single runs differ by that much


class Reading(NamedTuple):
    figure: str
    place: tuple[object, ...]
    compared: list[tuple[Pair, float]]  # with the first side's lead
    universal: bool

    def against(self, margin: float = MARGIN) -> list[tuple[Pair, float]]:
        """Loads at which the other side leads; none where the claim as a whole holds."""
        found = [(pair, lead) for pair, lead in self.compared if lead < -margin]
        return found if self.universal or len(found) == len(self.compared) else []


def _sides(claim: Versus, names: Names) -> Iterator[tuple[Side, list[Pair]]]:
    ones, others = names.find(claim.one), names.find(claim.other)
    if set(ones) & set(others):  # the words don't tell the two apart
        return
    for one in ones:
        for other in alike(one, others):
            if one in alike(other, ones):
                yield from pairs(names, one, other)


def readings(claim: Versus, names: Names, figures: tuple[str, ...], scope: list[Range]) -> list[Reading]:
    found = []
    for side, paired in _sides(claim, names):
        inside = [p for p in paired if covers(scope, p.one) and covers(scope, p.other)]
        for figure in figures:
            compared = []
            for pair in inside:
                a, b = pair.one.get(figure), pair.other.get(figure)
                if a is not None and b is not None and min(a, b) > 0:
                    compared.append((pair, leads(figure, a, b)))
            if compared:
                found.append(Reading(figure, side.place, compared, claim.universal))
    return found


class Most(NamedTuple):
    figure: str
    row: Row
    value: float


def most(claim: Bound, names: Names, scope: list[Range]) -> list[Most]:
    """The highest figure of each reading."""
    found = []
    for name in names.find(claim.one):
        for side in names.sides(name):
            rows = [r for r in side.rows if covers(scope, r)]
            for figure in claim.metric.names:
                values = [(v, r) for r in rows if (v := r.get(figure)) is not None]
                if values:
                    value, row = max(values, key=lambda item: item[0])
                    found.append(Most(figure, row, value))
    return found


def breaks(claim: Bound, highest: float) -> bool:
    slack = 0.05 if claim.about else MARGIN
    return highest > claim.number * (1 + slack) if claim.sort == "at most" else highest < claim.number * (1 - slack)


class Slope(NamedTuple):
    figure: str
    points: list[tuple[float, float, Row]]  # load, figure

    @property
    def load(self) -> float:
        return self.points[-1][0] / self.points[0][0]

    @property
    def gain(self) -> float:
        return self.points[-1][1] / self.points[0][1]

    @property
    def falls(self) -> list[tuple[float, float, Row]]:
        steps = zip(self.points, self.points[1:], strict=False)
        return [after for before, after in steps if after[1] < before[1] * (1 - MARGIN)]


def slopes(claim: Growth, names: Names, scope: list[Range]) -> list[Slope]:
    found = []
    for name in names.find(claim.one):
        for side in names.sides(name):
            for figure in claim.metric.names:
                points = [
                    (x, y, r)
                    for r in side.rows
                    if covers(scope, r) and (x := load(r, claim.variable)) and (y := r.get(figure))
                ]
                points.sort(key=lambda p: p[0])
                if len(points) >= 3 and len({x for x, *_ in points}) == len(points):
                    found.append(Slope(figure, points))
    return found


def grows_otherwise(claim: Growth, slope: Slope) -> bool:
    """In proportion: at least half of what the load grew, and no step down. Only slight: under twice as much."""
    if claim.proportional:
        return slope.gain < 0.5 * slope.load or bool(slope.falls)
    return slope.gain >= 2
