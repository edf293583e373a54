"""Do probes show that a load keeps a limit, or that it doesn't?

Two questions, and both must be answered yes. By the figure: is its mean over the probes on one side of the limit, by
how much probes of one load differ? That difference contains whatever makes requests alike: batches, queues, slow
spells, a server that changes. By the requests: would a load at the limit have as few late ones, or as many? A figure of
a short probe may be too good on average, a share of late requests is not.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from dyno.facts.find import Weighed
from dyno.facts.limits import Limit
from dyno.measure.statistics import beta_share, quantile, two_sided

# differences between two probes, that what requests of one probe have in common is worth
_WITHIN = 1.0
_POWER = 0.84  # standard errors more: with these, four of five searches show it
_CLUMPS_NEAR = (
    0.3  # a margin at which what is late together near the limit counts about a third
)
# requests without a failure, for a factor of e: no number of them shows that none ever fails
_NONE_FAILED = 4.0


Late = Literal["few", "many"]


class Variation(NamedTuple):
    """By how much the margins of one load differ from probe to probe."""

    spread: float  # standard deviation
    degrees: float  # of freedom


def doubt_of_meeting(
    limit: Limit, probes: Sequence[Weighed], variation: Variation, clump: float = 1.0
) -> float:
    """Return the probability that a load which just misses its limit looks as good as these probes, or better.
    `clump`: how many requests are late together, by all probes near the limit."""
    distances = [-w.margin_high for w in probes]
    return _doubt(limit, probes, distances, variation, "few", clump)


def doubt_of_missing(
    limit: Limit, probes: Sequence[Weighed], variation: Variation, clump: float = 1.0
) -> float:
    """Return the probability that a load which just meets its limit looks as bad as these probes, or worse."""
    distances = [w.margin_low for w in probes]
    return _doubt(limit, probes, distances, variation, "many", clump)


def doubt_of_few(limit: Limit, probes: Sequence[Weighed], clump: float) -> float:
    """Return the probability that a load at its limit has as few late requests as these probes. 0: a mean has none."""
    share, here = allowed(limit), _clump_here(limit, probes, clump)
    return 0.0 if share is None else _doubt_by_requests(share, tuple(probes), "few", here)


def doubt_of_many(limit: Limit, probes: Sequence[Weighed], clump: float) -> float:
    share, here = allowed(limit), _clump_here(limit, probes, clump)
    return 0.0 if share is None else _doubt_by_requests(share, tuple(probes), "many", here)


def clump(loads: Sequence[Sequence[Weighed]]) -> float:
    """Return how many requests are late together, by all probes near the limit, those of one load in one group.

    A pause or a burst of failures makes many late at once, and most short probes see none of it. So probes without a
    late request don't show by themselves that late ones come singly: all probes of such loads together do."""
    squares, degrees, within, events = 0.0, 0, 0.0, 0.0
    for probes in loads:
        worth = sum(w.worth for w in probes)
        mean = sum(w.late_low * w.worth for w in probes) / max(worth, 1.0)
        if not 0 < mean < 1:
            continue
        off = sum(w.worth * (w.late_low - mean) ** 2 for w in probes)
        squares += off / (mean * (1 - mean))
        degrees += len(probes) - 1
        for w in probes:
            variance = w.worth * w.late_low * (1 - w.late_low)
            within, events = within + w.factor * variance, events + variance
    if not events:
        return 1.0
    return max((squares + _WITHIN * within / events) / (degrees + _WITHIN), 1.0)


def _doubt(
    limit: Limit,
    probes: Sequence[Weighed],
    distances: Sequence[float],
    variation: Variation,
    what: Late,
    clump: float,
) -> float:
    """Return the doubt. `distances`: from the limit, on the side that is to be shown. `what`: few late requests, or
    many."""
    share, clump = allowed(limit), _clump_here(limit, probes, clump)
    if limit.is_share:
        return _doubt_by_requests(limit.most, tuple(probes), what, clump)
    by_figure = _doubt_by_figure(distances, probes, variation)
    if share is None or by_figure == 1:
        return by_figure
    return max(by_figure, _doubt_by_requests(share, tuple(probes), what, clump))


def allowed(limit: Limit) -> float | None:
    """Return the share of requests that may be late, or fail. None: the limit is one of a mean."""
    if limit.is_share:
        return limit.most
    return None if limit.percentile is None else 1 - limit.percentile / 100


def _doubt_by_figure(
    distances: Sequence[float], probes: Sequence[Weighed], variation: Variation
) -> float:
    squares = [max(variation.spread, w.error or 0.0) ** 2 for w in probes]
    weights = [1 / square for square in squares]
    total = sum(weights)
    mean = sum(d * weight for d, weight in zip(distances, weights, strict=True)) / total
    if mean <= 0:
        return 1.0
    return two_sided(mean * math.sqrt(total), variation.degrees) / 2


# a search asks again after each probe; most loads have none that is new
@lru_cache(maxsize=4096)
def _doubt_by_requests(
    share: float, probes: tuple[Weighed, ...], what: Late, clump: float
) -> float:
    worth = sum(w.worth for w in probes)
    if worth <= 0:
        return 1.0
    late = [w.late_high if what == "few" else w.late_low for w in probes]
    mean = sum(each * w.worth for each, w in zip(late, probes, strict=True)) / worth
    if not share:
        return _doubt_of_none(mean, worth, what)
    on_its_side = mean < share if what == "few" else mean > share
    if not on_its_side:
        return 1.0
    alike = max(_dispersion(late, probes, mean, worth), clump)
    count = worth / alike
    events = mean * count
    if what == "few":
        return beta_share(count - events, events + 1, 1 - share)
    return beta_share(events, count - events + 1, share)


def _clump_here(limit: Limit, probes: Sequence[Weighed], clump: float) -> float:
    """Return how many requests are late together in these probes. The farther their figure is from the limit, the less
    do those near it say of them: a queue that is long there is short here."""
    if limit.is_share:
        return clump
    worth = sum(w.worth for w in probes)
    margin = sum(w.margin * w.worth for w in probes) / max(worth, 1.0)
    return 1 + (clump - 1) * math.exp(-((margin / _CLUMPS_NEAR) ** 2))


def requests_wanted(
    limit: Limit, probes: Sequence[Weighed], error: float, clump: float = 1.0
) -> float:
    """Return how many requests, with as many late ones as these probes have, show that these are few or many. Infinity:
    they are as many as may be."""
    share, worth = allowed(limit), sum(w.worth for w in probes)
    if not share:
        return 0.0
    if worth <= 0:
        return math.inf
    late = [(w.late_high + w.late_low) / 2 for w in probes]
    mean = sum(each * w.worth for each, w in zip(late, probes, strict=True)) / worth
    distance = abs(mean - share)
    if distance * worth < 1:  # one more, or one fewer, and they are
        return math.inf
    alike = max(_dispersion(late, probes, mean, worth), _clump_here(limit, probes, clump))
    return (
        alike
        * share
        * (1 - share)
        * ((quantile(1 - error, math.inf) + _POWER) / distance) ** 2
    )


def _doubt_of_none(failed: float, worth: float, what: Late) -> float:
    """Return the doubt where no request may fail: one failure is a miss."""
    if what == "many":
        return 0.0 if failed else 1.0
    return 1.0 if failed else math.exp(-worth / _NONE_FAILED)


def _dispersion(
    late: Sequence[float], probes: Sequence[Weighed], mean: float, worth: float
) -> float:
    """Return how many requests are worth one: by how much probes differ, and by who is late within each while there are
    few. (In a batch that repeats, neighbours are alike, and its shares are not.)"""
    if not 0 < mean < 1:
        return 1.0
    within = sum(w.factor * w.worth for w in probes) / worth
    squares = sum(
        w.worth * (each - mean) ** 2 for each, w in zip(late, probes, strict=True)
    )
    total = squares / (mean * (1 - mean)) + _WITHIN * within
    return max(total / (len(probes) - 1 + _WITHIN), 1.0)
