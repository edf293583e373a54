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
# requests without a failure, for a factor of e: no number of them shows that none ever fails
_NONE_FAILED = 4.0


Late = Literal["few", "many"]


class Variation(NamedTuple):
    """By how much the margins of one load differ from probe to probe."""

    spread: float  # standard deviation
    degrees: float  # of freedom


def doubt_of_meeting(
    limit: Limit, probes: Sequence[Weighed], variation: Variation
) -> float:
    """Return the probability that a load which just misses its limit looks as good as these probes, or better."""
    return _doubt(limit, probes, [-w.margin_high for w in probes], variation, "few")


def doubt_of_missing(
    limit: Limit, probes: Sequence[Weighed], variation: Variation
) -> float:
    """Return the probability that a load which just meets its limit looks as bad as these probes, or worse."""
    return _doubt(limit, probes, [w.margin_low for w in probes], variation, "many")


def _doubt(
    limit: Limit,
    probes: Sequence[Weighed],
    distances: Sequence[float],
    variation: Variation,
    what: Late,
) -> float:
    """Return the doubt. `distances`: from the limit, on the side that is to be shown. `what`: few late requests, or
    many."""
    share = allowed(limit)
    if limit.stem == "failed":
        return _doubt_by_requests(limit.most, tuple(probes), what)
    by_figure = _doubt_by_figure(distances, probes, variation)
    if share is None or by_figure == 1:
        return by_figure
    return max(by_figure, _doubt_by_requests(share, tuple(probes), what))


def allowed(limit: Limit) -> float | None:
    """Return the share of requests that may be late, or fail. None: the limit is one of a mean."""
    if limit.stem == "failed":
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
def _doubt_by_requests(share: float, probes: tuple[Weighed, ...], what: Late) -> float:
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
    count = worth / _dispersion(late, probes, mean, worth)
    events = mean * count
    if what == "few":
        return beta_share(count - events, events + 1, 1 - share)
    return beta_share(events, count - events + 1, share)


def requests_wanted(limit: Limit, probes: Sequence[Weighed], error: float) -> float:
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
    alike = _dispersion(late, probes, mean, worth)
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
