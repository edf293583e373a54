"""A search for the highest load within a target: which level to try next, and what is known so far.

The higher the load, the sooner it misses the target. Brief probes bracket the level at which a monotone fit of their
margins crosses the target, in large steps. Long probes on both sides of it then show that the one meets the target and
the other misses it: between them lies the answer.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

Outcome = Literal["meets", "misses", "undecided"]
_STEP, _SMALL_STEP = 4.0, 2.0  # while no level misses
_NEAR = -0.7  # a margin above this, half of the limit: the target is near
_RISE = 0.1
_COARSE = 1.4  # levels of a bracket, one over the other: narrower ones take long probes
_LONG_MOST = 14


class Probe(msgspec.Struct, frozen=True):
    """A load that was tried."""

    level: float
    outcome: Outcome
    margin: float  # log of the figure over its limit, of the tightest: below 0 is within
    brief: bool = False  # it was not to decide, only to show where to look
    requests: int = 0
    duration_s: float = 0.0


class Search:
    """Proposes levels until the bracket is narrow enough. Whoever tries them adds the probes."""

    def __init__(
        self, least: float, most: float, *, whole: bool, resolution: float = 0.05, start: float | None = None
    ) -> None:
        self.least, self.most, self.whole = least, most, whole
        self.resolution = resolution
        self.probes: list[Probe] = []
        self._start = min(max(start or least, least), most)

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)

    # ---- what is known ----

    @property
    def met(self) -> float | None:
        """The highest level that was shown to meet the target, below all that miss it."""
        missed = self.missed or math.inf
        return max((p.level for p in self.probes if p.outcome == "meets" and p.level < missed), default=None)

    @property
    def missed(self) -> float | None:
        """The lowest level that was shown to miss it."""
        return min((p.level for p in self.probes if p.outcome == "misses"), default=None)

    @property
    def contradictions(self) -> list[float]:
        """Levels that met the target above one that missed it: runs differ by more than the search looks for."""
        missed = self.missed or math.inf
        return sorted(p.level for p in self.probes if p.outcome == "meets" and p.level >= missed)

    def interval(self) -> tuple[float, float]:
        """Return the levels between which the highest load within the target lies. 0, infinity: no bound is known."""
        top = max(self.contradictions, default=0.0)
        above = [p.level for p in self.probes if p.outcome == "misses" and p.level > top]
        return self.met or 0.0, min(above, default=math.inf)

    # ---- what to try next ----

    def next(self) -> tuple[float, bool] | None:
        """Return the next level to try, and whether briefly. None: there is no more to learn."""
        if not self.probes:
            return self._rounded(self._start), True
        highs = [p.level for p in self.probes if _beyond(p)]
        lows = [p.level for p in self.probes if not _beyond(p) and p.level < min(highs, default=math.inf)]
        if not highs:
            return self._upwards(max(lows))
        if not lows:
            return self._downwards(min(highs))
        low, high = max(lows), min(highs)
        if high / low > _COARSE and not (self.whole and high - low <= 1):
            crossing = self.crossing()
            share = np.clip((math.log(crossing) - math.log(low)) / math.log(high / low), 0.15, 0.85)
            if level := self._untried(low * (high / low) ** float(share), low, high, brief=True):
                return level, True
        return self._prove()

    def _upwards(self, last: float) -> tuple[float, bool] | None:
        if last < self.most:
            # Of an open loop, latencies are flat until the server is nearly full.
            rises = len(self.probes) < 2 or self.probes[-1].margin > self.probes[-2].margin + _RISE
            near = rises and self.probes[-1].margin > _NEAR
            return self._rounded(min(last * (_SMALL_STEP if near else _STEP), self.most)), True
        return None if self._tried_long(self.most) else (self.most, False)

    def _downwards(self, last: float) -> tuple[float, bool] | None:
        if last > self.least:
            return self._rounded(max(last / _STEP, self.least)), True
        return None if self._tried_long(self.least) else (self.least, False)

    def _prove(self) -> tuple[float, bool] | None:
        """Show that a level meets the target and another misses it, as near to the crossing as they can be shown."""
        if sum(not p.brief for p in self.probes) >= _LONG_MOST:
            return None
        crossing, met, missed = self.crossing(), self.met, self.missed
        if met is not None and missed is not None and self._narrow(met, missed):
            return None
        both = (self._towards(crossing, met, below=True), self._towards(crossing, missed, below=False))
        gain, level = max((step for step in both if step is not None), default=(0.0, 0.0))  # where less is known
        return (level, False) if gain else None

    def _towards(self, crossing: float, shown: float | None, below: bool) -> tuple[float, float] | None:
        """Return how much there is to gain on a side of the crossing, and the level to try there."""
        undecided = [p.level for p in self.probes if p.outcome == "undecided" and not p.brief]
        side = [u for u in undecided if (u <= crossing) == below]
        if shown is None:
            # Farther and farther from the crossing, until one is decided.
            away = self.resolution
            if side:
                away = max(2 * max(abs(math.log(u / crossing)) for u in side), away)
            x = crossing * math.exp(-away if below else away)
            x = min(max(x, self.least), self.most)
            level = self._rounded(x)
            return None if self._tried_long(level) else (math.inf, level)
        nearest = (min if below else max)([crossing, *undecided], key=lambda u: u)
        gap = abs(math.log(nearest / shown))
        if gap <= math.log1p(self.resolution) / 2:
            return None
        # A step back from what could not be decided there, half of one from the crossing.
        away = min(self.resolution * (1.0 if undecided else 0.5), gap / 2)
        middle = nearest * math.exp(-away if below else away)
        bounds = sorted((nearest, shown))
        tried = self._untried(middle, bounds[0] / 1.0001, bounds[1] * 1.0001, brief=False)
        return (gap, tried) if tried else None

    def _narrow(self, met: float, missed: float) -> bool:
        return missed / met <= 1 + self.resolution or (self.whole and missed - met <= 1)

    def _tried_long(self, level: float) -> bool:
        return any(p.level == level and (not p.brief or p.outcome != "undecided") for p in self.probes)

    def _untried(self, level: float, low: float, high: float, brief: bool) -> float | None:
        """Return the level, rounded, if it lies between these and wasn't tried; a long probe may follow a brief one."""
        level = self._rounded(level)
        tried = any(p.level == level for p in self.probes) if brief else self._tried_long(level)
        return level if low < level < high and not tried else None

    def crossing(self) -> float:
        """Return the level at which the margins cross zero, by a monotone fit. Long probes count more."""
        points = sorted((math.log(p.level), p.margin, max(p.requests, 1)) for p in self.probes)
        xs = np.array([x for x, _, _ in points])
        ys = monotone([y for _, y, _ in points], [n for _, _, n in points])
        below, above = np.flatnonzero(ys < 0), np.flatnonzero(ys >= 0)
        if not len(below) or not len(above):
            return math.exp(float(xs[-1] if len(below) else xs[0]))
        i, j = below[-1], above[0]
        return math.exp(float(xs[i] + (xs[j] - xs[i]) * ys[i] / (ys[i] - ys[j])))

    def _rounded(self, level: float) -> float:
        return float(round(level)) if self.whole else float(f"{level:.3g}")


def _beyond(probe: Probe) -> bool:
    return probe.margin >= 0 if probe.outcome == "undecided" else probe.outcome == "misses"


def monotone(values: Sequence[float], weights: Sequence[float]) -> np.ndarray:
    """Return the nearest values that never fall (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, v, n), (a, w, m) = blocks.pop(), blocks.pop()
            blocks.append(((a * w + b * v) / (w + v), w + v, m + n))
    return np.array([*itertools.chain.from_iterable([value] * n for value, _, n in blocks)])
