"""Where does a line through the probes near the target cross it?

Probes of one load say little about the next one, unless all of them are taken together: near the target, the log of a
figure rises about evenly with the log of the load. So a line through the probes, by least squares, says with so much
certainty up to which load the figure keeps its limit and from which load on it doesn't. It is asked only where it
rests on several probes of several loads near the limit, some on either side, and only between the loads that these
probes had.

The nearer a probe to the limit, the more it counts, as a curve is a line only nearby. The line's error holds three
things: by how much probes of one load differ; what the line leaves unexplained, where that is more, and more so where
neighbours in time are off on one side together, as a server that changes makes them; and what all probes may have in
common, since they are shorter than the load that the answer is for.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.measure.statistics import quantile
from dyno.search.evidence import Variation

NEAR = 0.5  # margins of probes through which a line goes: 60 to 165 % of the limit
_NEARER = (
    0.3  # a margin with which a probe counts about a third: a curve is a line only nearby
)
_FEWEST, _FEWEST_LEVELS = 5, 3  # probes, and loads
_FEWEST_BESIDE = 2  # probes above the limit, and below
_IN_COMMON = 0.025  # log of a figure, by which all probes may be off alike
_MOST_ALIKE = 0.8  # of what neighbours in time have in common
_LEVELS = 400  # at which the line is asked


class Point(NamedTuple):
    """A probe: its load, and the log of a figure over its limit."""

    level: float
    low: float  # at least
    high: float  # at most
    error: float  # of the margin, were the requests independent
    began_s: float


class Ends(NamedTuple):
    """The highest load that meets a limit for certain, and the lowest that misses it. 0, infinity: none does."""

    low: float
    high: float


NOTHING = Ends(0.0, math.inf)


def ends(points: Sequence[Point], variation: Variation, error: float) -> Ends:
    """Return what a line through these probes shows, with so small an error on each side."""
    levels = {point.level for point in points}
    above = sum(point.low > 0 for point in points)
    below = sum(point.high < 0 for point in points)
    few = len(points) < _FEWEST or len(levels) < _FEWEST_LEVELS
    if few or min(above, below) < _FEWEST_BESIDE:
        return NOTHING
    ordered = sorted(points, key=lambda point: point.began_s)
    asked = np.linspace(math.log(min(levels)), math.log(max(levels)), _LEVELS)
    good, bad = _beside_the_limit(points)
    highs = np.array([point.high for point in ordered])
    lows = np.array([point.low for point in ordered])
    by_highs = _TrendLine(ordered, highs, variation).bounds(asked, error)
    by_lows = _TrendLine(ordered, lows, variation).bounds(asked, error)
    return Ends(
        low=min(_last_of_the_first(asked, by_highs.high < 0), good),
        high=max(_first_of_the_last(asked, by_lows.low > 0), bad),
    )


def _beside_the_limit(points: Sequence[Point]) -> Ends:
    """Return the highest load whose own probes are below the limit on average, and the lowest whose are above.

    Between these two the figure may jump: a line there would be a guess."""
    good, bad = 0.0, math.inf
    for level in {point.level for point in points}:
        own = [point for point in points if point.level == level]
        if sum(point.high for point in own) < 0:
            good = max(good, level)
        if sum(point.low for point in own) > 0:
            bad = min(bad, level)
    return Ends(good, bad)


class _Bounds(NamedTuple):
    low: np.ndarray
    high: np.ndarray


class _TrendLine:
    """A line through margins, in the order of time."""

    def __init__(
        self, points: Sequence[Point], margins: np.ndarray, variation: Variation
    ) -> None:
        x = np.log([point.level for point in points])
        errors = np.array([max(variation.spread, point.error) for point in points])
        near = np.exp(-((margins / _NEARER) ** 2))
        self._weights = near / errors**2
        self._middle = float(np.average(x, weights=self._weights))
        self._height = float(np.average(margins, weights=self._weights))
        self._across = float((self._weights * (x - self._middle) ** 2).sum())
        across, up = x - self._middle, margins - self._height
        self._slope = float((self._weights * across * up).sum()) / self._across
        off = (margins - self._margin_at(x)) * np.sqrt(self._weights)
        own = len(points) - 2
        self._scale = _unexplained(off, own, variation.degrees) * _alike(off)
        self._degrees = min(variation.degrees + own, own + 3)

    def _margin_at(self, x: np.ndarray) -> np.ndarray:
        return self._height + self._slope * (x - self._middle)

    def bounds(self, x: np.ndarray, error: float) -> _Bounds:
        """Return between which margins the true ones are, at these logs of loads."""
        variance = 1 / self._weights.sum() + (x - self._middle) ** 2 / self._across
        beyond = quantile(1 - error, self._degrees) * np.sqrt(self._scale * variance)
        beyond = beyond + _IN_COMMON
        return _Bounds(self._margin_at(x) - beyond, self._margin_at(x) + beyond)


def _unexplained(off: np.ndarray, own: int, known: float) -> float:
    """Return how many times as much as expected the margins are off the line, squared; once at least."""
    squares = float((off**2).sum())
    return max(1.0, (squares + known) / (own + known), squares / own)


def _alike(off: np.ndarray) -> float:
    """Return how many probes are worth one, by what neighbours in time have in common."""
    squares = max(float((off**2).sum()), 1e-12)
    correlation = float((off[1:] * off[:-1]).sum()) / squares + 1 / len(off)
    correlation = min(max(correlation, 0.0), _MOST_ALIKE)
    return (1 + correlation) / (1 - correlation)


def _last_of_the_first(logs: np.ndarray, holds: np.ndarray) -> float:
    """Return the load up to which something holds from the lowest one on. 0: not even there."""
    count = len(holds) if holds.all() else int(np.argmin(holds))
    return math.exp(logs[count - 1]) if count else 0.0


def _first_of_the_last(logs: np.ndarray, holds: np.ndarray) -> float:
    """Return the load from which on something holds up to the highest one. Infinity: not even there."""
    count = len(holds) if holds.all() else int(np.argmin(holds[::-1]))
    return math.exp(logs[len(logs) - count]) if count else math.inf
