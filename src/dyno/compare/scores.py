"""The difference of two scores: by item where both sides have the same items, else by their standard errors."""

import math

from dyno.facts.comparison import CONFIDENCE, Basis, Difference, Estimate
from dyno.facts.metric import better
from dyno.measure.paired import POWER, paired
from dyno.measure.pairs import Group
from dyno.measure.scores import items_of
from dyno.measure.statistics import quantile, two_sided

_Z = quantile((1 + CONFIDENCE) / 2, math.inf)
_MANY = 1e9  # degrees of freedom: as good as known
_UNKNOWN = "neither single items nor the standard error of each score are known"


def score_difference(a: Group, b: Group) -> Difference | None:
    """Return the difference of two scores. None: they are not between 0 and 1, and have no points."""
    scores = [
        [figure.value for row in group if (figure := row.figures.get("score"))]
        for group in (a, b)
    ]
    if not all(0 <= score <= 1 for side in scores for score in side):
        return None
    lower = better("score", str(a[0].setting("metric") or "")) == "lower"
    x, y = items(a), items(b)
    both = [item for item in x if item in y]
    if both:
        d = paired([x[item] for item in both], [y[item] for item in both])
        return Difference(
            "score",
            _estimate(d.score_a, d.items, a, "items"),
            _estimate(d.score_b, d.items, b, "items"),
            "inconclusive",
            change=d.difference,
            low=d.low,
            high=d.high,
            smallest=d.detectable,
            p=d.p,
            paired=d,
            lower=lower,
            points=True,
        )
    one, other = (
        _estimate(sum(side) / len(side), len(side), group, "stderr")
        for side, group in zip(scores, (a, b), strict=True)
    )
    gap, error = other.value - one.value, _error(a, b)
    if error is None:
        return Difference(
            "score",
            one,
            other,
            "confidence unknown",
            gap,
            why=_UNKNOWN,
            lower=lower,
            points=True,
        )
    return Difference(
        "score",
        one,
        other,
        "inconclusive",
        change=gap,
        low=max(gap - _Z * error, -1.0),
        high=min(gap + _Z * error, 1.0),
        smallest=(_Z + quantile(POWER, math.inf)) * error,
        p=two_sided(gap / error, math.inf),
        lower=lower,
        points=True,
    )


def _estimate(value: float, count: int, group: Group, basis: Basis) -> Estimate:
    stderr = group[0].get("stderr")
    return Estimate(
        value, count, stderr / value if stderr and value else None, _MANY, basis
    )


def items(group: Group) -> dict[str, float]:
    """Return each item's score, over repeats its mean; items that all repeats have."""
    each = list(map(items_of, group))
    return {
        item: sum(s[item] for s in each) / len(each)
        for item in each[0]
        if all(item in s for s in each)
    }


def _error(a: Group, b: Group) -> float | None:
    """Return the standard error of the difference of two single scores, with their rounding."""
    if len(a) > 1 or len(b) > 1 or not all(row.get("stderr") for row in (a[0], b[0])):
        return None
    rounded = [row.figures["score"].half / math.sqrt(3) for row in (a[0], b[0])]
    return math.hypot(*(row.figures["stderr"].value for row in (a[0], b[0])), *rounded)
