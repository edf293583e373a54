"""A search for the highest load within a target: which load to try next, for how long, and what is known so far.

The higher the load, the sooner it misses the target. Brief probes bracket the load at which a monotone fit of their
margins crosses the target, in large steps. Longer probes on both sides of it, in turns, then show that one load meets
the target and another misses it: between them is the answer. The search knows no clock and no server: whoever runs it
says how much time is left.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec
import numpy as np

from dyno.facts.find import Outcome, ProbeLook
from dyno.facts.limits import Limit
from dyno.measure.judge import LEAST_S, evidences
from dyno.measure.statistics import quantile

ERROR = 0.05  # that the interval doesn't contain the answer
_EVEN, _EVEN_SHARE = 12, 0.75  # loads that share most of the error; further ones share the rest
_STEP, _SMALL_STEP = 4.0, 2.0  # while no load misses
_NEAR = -0.35  # a margin above this, 70 % of the limit: the target is near
_COARSE = 1.5  # loads of a bracket, one over the other: narrower ones take long probes
# How much the capacity of a server differs from one visit to the next, before visits have shown it.
_VARIES, _VARIES_WORTH = 0.02, 2.0
_SECURE = 0.35  # a margin at which an end is shown first: nearer ones follow if there is time
_FARTHEST = 3.0  # log of a load over the crossing
_FEW_STEPS = 8.0  # whole loads up to which the next one is far
_LEAST_AWAY = 0.035  # log of a load over the crossing, at least
_HOPE_AFTER, _HOPE = 0.6, 0.1  # of a probe's time, and of the evidence that decides: the rest won't bring it
_VISITS = 3.0  # of the time left, for one probe
_TRIES = 3  # long probes of a load that is still undecided
_RATHER = 1.3  # times as long: rather a load that has begun to be shown
_WORTH = 0.5  # of the time spent: what a narrower interval may cost
_NARROW, _WORTH_S = 0.3, 60.0  # log of the interval: narrower ones may take as long as the search so far, or a minute
_CLOSE_ENOUGH = 0.14  # log of the interval: narrower ones must be cheap
_PACE = 10.0  # evidence of a second, for a margin of 1, before it is known
_OPENING = 1.5  # evidence that a sequential test pays for looking at any time
_OUTWARD = 1.6  # times as far, after a load that could not be decided
_NEARER = (0.35, 0.5, 0.65, 0.8)  # of the distance of an end from the crossing
_STEP_IN = 0.1  # of the interval: what a narrower one must gain
_LEAST_ERROR = 0.005
_TOO_NEAR = 0.04  # a margin that takes very long
_LONG_LEAST_S = 10.0  # of a probe that is to decide: a server may change
_CLOSE = 0.12  # an error of the margin with which a brief probe ends
_AT_IT = 0.1  # a margin by which the crossing is found
_FAR = 0.5  # a margin that a brief probe need not look at closely
_SINGLE = 0.7  # a margin at which one visit is enough: half or twice the limit
_AGAIN_S = 30.0  # that a second visit lasts, at most, when it confirms the first
_VISITS_EACH = 3  # of a load near the target
_BETWEEN_S, _BETWEEN = 40.0, 0.15  # from the first of them to the last; of a short search, this share
_VISIT_S = 20.0  # probes of a load that begin within this time are one visit
_UNEVEN = (1.0, 1.4, 0.8)  # lengths of further visits: not in step with what the server does
_UNKNOWN_S = 10.0  # that a probe lasts at least, before one has shown it
_UNVISITED = 0.075  # the doubt of an end that was not visited again, at least


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _remembered(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Calculate a method of Search once for each load, until a probe is added."""

    @functools.wraps(method)
    def known(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if len(args) > 2 or kwargs:  # with a probe under way
            return method(*args, **kwargs)
        memory: dict[Any, Any] = args[0]._known  # type: ignore[attr-defined]
        key = (method.__name__, *args[1:])
        if key not in memory:
            memory[key] = method(*args, **kwargs)
        value: _T = memory[key]
        return value

    return known


class Probe(msgspec.Struct, frozen=True):
    """A load that was tried, once."""

    level: float
    look: ProbeLook
    brief: bool
    took_s: float = 0.0  # with all that a probe costs
    began_s: float = 0.0  # since the search began


class ProbeStep(msgspec.Struct, frozen=True):
    """A probe to make."""

    level: float
    brief: bool
    most_s: float
    last_s: float = math.inf  # by then it ends, however little it has shown


class Interval(msgspec.Struct, frozen=True):
    """Between two loads, with so much confidence. 0, infinity: no bound is known."""

    low: float
    high: float
    confidence: float


class Search:
    """Proposes probes until the bracket is narrow enough. Whoever makes them adds what they show."""

    def __init__(
        self,
        limits: Sequence[Limit],
        least: float,
        most: float,
        *,
        whole: bool,
        resolution: float = 0.05,
        start: float | None = None,
    ) -> None:
        self.limits = limits
        self.least, self.most, self.whole = least, most, whole
        self.resolution = resolution
        self.probes: list[Probe] = []
        self._start = min(max(start or least, least), most)
        self._order: list[float] = []  # loads, as they were first tried
        self.budget_s = 0.0
        self._known: dict[tuple[Any, ...], Any] = {}  # what follows from the probes so far

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)
        self._known.clear()
        if probe.level not in self._order:
            self._order.append(probe.level)

    # ---- what is known of a load ----

    @_remembered
    def probes_at(self, level: float) -> list[Probe]:
        return [p for p in self.probes if p.level == level]

    def needed(self, level: float) -> float:
        """Return the log of the evidence that decides a load: all that can be decided share the error."""
        tried = self._decidable()
        place = tried.index(level) if level in tried else len(tried)
        if place < _EVEN:
            return -math.log(ERROR * _EVEN_SHARE / _EVEN)
        return -math.log(ERROR * (1 - _EVEN_SHARE) * 6 / (math.pi * (place - _EVEN + 1)) ** 2)

    @_remembered
    def _decidable(self) -> list[float]:
        """Return the loads with a probe that could decide them, in the order of the first one."""
        return list(dict.fromkeys(p.level for p in self.probes if p.look.ready))

    def strength(self, level: float, more: ProbeLook | None = None) -> tuple[float, float]:
        """Return the evidence that a load meets the target and that it misses it, as shares of what decides it. `more`:
        a probe under way."""
        looks = [p.look for p in self.probes_at(level)] + ([more] if more is not None else [])
        if any(look.grows for look in looks):
            return 0.0, 1.0
        looks = [look for look in looks if look.ready]
        if not looks:
            return 0.0, 0.0
        needed = self.needed(level)
        meets, misses = math.inf, 0.0
        for i, limit in enumerate(self.limits):
            weighed = [look.weighed[i] for look in looks]
            for_it, against = evidences(limit, weighed)
            meets = min(meets, for_it)
            misses = max(misses, against - math.log(len(self.limits)))
        if any(look.swells for look in looks):
            meets = 0.0
        return meets / needed, misses / needed

    def sides(self, level: float) -> list[bool | None]:
        """Return for each limit whether a load keeps it. None: undecided."""
        looks = [p.look for p in self.probes_at(level) if p.look.ready]
        out: list[bool | None] = []
        for i, limit in enumerate(self.limits):
            meets, misses = evidences(limit, [look.weighed[i] for look in looks])
            needed = self.needed(level)
            within = True if meets >= needed else None
            out.append(False if misses >= needed + math.log(len(self.limits)) else within)
        return out

    @_remembered
    def outcome(self, level: float, more: ProbeLook | None = None) -> Outcome:
        """By one load's own evidence, however its probes vary."""
        meets, misses = self.strength(level, more)
        if misses >= 1:
            return "misses"
        return "meets" if meets >= 1 else "undecided"

    @_remembered
    def likely(self, level: float) -> Outcome:
        """By its evidence, and by how much probes of one load differ: as far as one visit can show it."""
        outcome = self.outcome(level)
        if outcome == "undecided" or any(p.look.grows for p in self.probes_at(level)):
            return outcome
        return outcome if abs(self.margin(level)) >= self.variation_at(level) else "undecided"

    @_remembered
    def shown(self, level: float) -> Outcome:
        """The same, and near the target by visits at different times: a server may change."""
        outcome = self.likely(level)
        return outcome if self._revisited(level) else "undecided"

    def _revisited(self, level: float) -> bool:
        if abs(self.margin(level)) >= _SINGLE or any(p.look.grows for p in self.probes_at(level)):
            return True
        visits = self.visits(level)
        between_s = min(_BETWEEN_S, _BETWEEN * self.budget_s)
        if len(visits) < 2 or visits[-1][0].began_s - visits[0][0].began_s < between_s:
            return False
        return len(visits) >= _VISITS_EACH or sum(p.look.now_s for visit in visits for p in visit) >= between_s

    @_remembered
    def visits(self, level: float) -> list[list[Probe]]:
        """Return a load's probes by time: those that follow one another soon see the same state of the server."""
        apart_s = min(_VISIT_S, _BETWEEN * self.budget_s / 2)
        out: list[list[Probe]] = []
        for p in self.probes_at(level):
            if not p.look.ready or not p.look.weighed:
                continue
            if out and p.began_s - out[-1][0].began_s < apart_s:
                out[-1].append(p)
            else:
                out.append([p])
        return out

    @_remembered
    def margin(self, level: float) -> float:
        """Return the log of the figure over its limit: of the limit that is missed most, over all its probes."""
        probes = self.probes_at(level)
        if any(p.look.grows for p in probes):
            return max(p.look.margin for p in probes)
        ready = [p for p in probes if p.look.ready] or probes
        return max((_mean_margin(ready, i) for i in range(len(self.limits))), default=0.0)

    def variation_at(self, level: float) -> float:
        visits = max(len(self.visits(level)), 1)
        spread, degrees = self.variation()
        return quantile(1 - ERROR / 2, degrees) * spread / math.sqrt(visits)

    @_remembered
    def variation(self) -> tuple[float, float]:
        """Return by how much margins of one load differ from visit to visit (standard deviation), and its degrees of
        freedom: by the visits, and by what is assumed before there are any."""
        seen, degrees = self.seen_variation()
        assumed = _VARIES * max(self.slope(), 0.5)
        total = degrees + _VARIES_WORTH
        return math.sqrt((degrees * seen**2 + _VARIES_WORTH * assumed**2) / total), total

    @_remembered
    def seen_variation(self) -> tuple[float, int]:
        """The same by the visits alone."""
        squares, degrees = 0.0, 0
        for level in self._order:
            margins = [_margin(visit) for visit in self.visits(level)]
            if len(margins) > 1:
                squares += float(np.var(margins)) * len(margins)
                degrees += len(margins) - 1
        return (math.sqrt(squares / degrees) if degrees else 0.0), degrees

    # ---- what is known of all ----

    @property
    def met(self) -> float | None:
        """The highest load that was shown to meet the target, below all that miss it."""
        missed = self.missed or math.inf
        return max((x for x in self._order if x < missed and self.shown(x) == "meets"), default=None)

    @property
    def missed(self) -> float | None:
        """The lowest load that was shown to miss it."""
        return min((x for x in self._order if self.shown(x) == "misses"), default=None)

    @property
    def contradictions(self) -> list[float]:
        """Loads that met the target above one that missed it: the server varies more than the search looks for."""
        missed = self.missed or math.inf
        return sorted(x for x in self._order if x >= missed and self.shown(x) == "meets")

    @_remembered
    def interval(self) -> Interval:
        """Return the loads between which the highest load within the target is, at 95 %."""
        top = max(self.contradictions, default=0.0)
        above = [x for x in self._order if x > top and self.shown(x) == "misses"]
        return Interval(self.met or 0.0, min(above, default=math.inf), 1 - ERROR)

    def best(self) -> Interval:
        """Return the narrowest interval that the data supports with less confidence."""
        known = self.interval()
        lows = [(x, self._doubt(x, 0)) for x in self._order if x > known.low]
        highs = [(x, self._doubt(x, 1)) for x in self._order if x < known.high]
        lows = [(x, d) for x, d in lows if d < 0.25 and self.margin(x) < 0]
        highs = [(x, d) for x, d in highs if d < 0.25 and self.margin(x) > 0]
        low = (known.low, ERROR / 2) if known.low else max(lows, default=(0.0, 0.0))
        high = (known.high, ERROR / 2) if math.isfinite(known.high) else min(highs, default=(math.inf, 0.0))
        if low[0] >= high[0]:
            return known
        return Interval(low[0], high[0], max(1 - low[1] - high[1], 0.0))

    def _doubt(self, level: float, side: int) -> float:
        return max(math.exp(-max(self.strength(level)[side], 0.0) * self.needed(level)), _UNVISITED)

    @_remembered
    def bracket(self) -> tuple[float, float]:
        """Return the loads between which the crossing is, by what the probes look like. 0, infinity: none."""
        highs = [x for x in self._order if self._beyond(x)]
        lows = [x for x in self._order if not self._beyond(x) and x < min(highs, default=math.inf)]
        return max(lows, default=0.0), min(highs, default=math.inf)

    def _beyond(self, level: float) -> bool:
        outcome = self.outcome(level)
        return self.margin(level) >= 0 if outcome == "undecided" else outcome == "misses"

    def factors(self, level: float) -> list[float]:
        """Return how many requests are worth one, for each limit, by the probes of loads nearby."""
        near = [p.look for p in self.probes if p.look.ready and 0.6 <= p.level / level <= 1.6]
        out = []
        for i in range(len(self.limits)):
            known = [look.weighed[i].factor for look in near if look.weighed[i].settled]
            out.append(float(np.median(known)) if known else 1.0)
        return out

    # ---- what to try next ----

    def next(self, left_s: float, spent_s: float = 0.0) -> ProbeStep | None:
        """Return the next probe. None: there is no more to learn in the time left."""
        self.budget_s = max(self.budget_s, left_s + spent_s)
        step = self._next(left_s, spent_s)
        if step is None:
            return None
        last_s = left_s if self.probes else left_s / 2
        return msgspec.structs.replace(step, most_s=min(step.most_s, last_s), last_s=last_s)

    def _next(self, left_s: float, spent_s: float) -> ProbeStep | None:
        if not self.probes:
            return self._brief(self._start, left_s)
        low, high = self.bracket()
        if math.isinf(high):
            return self._upwards(low, left_s)
        if not low:
            return self._downwards(high, left_s)
        near = any(p.look.ready and abs(p.look.margin) < _AT_IT for p in self.probes)
        if high / low > _COARSE and not near and not (self.whole and high - low <= 1):
            share = (math.log(self.crossing()) - math.log(low)) / math.log(high / low)
            level = self._rounded(low * (high / low) ** min(max(share, 0.2), 0.8))
            if low < level < high and level not in self._order:
                return self._brief(level, left_s)
        return self._prove(left_s, spent_s)

    def _brief(self, level: float, left_s: float) -> ProbeStep:
        return ProbeStep(self._rounded(level), True, max(min(1.5 * self._least_s(level), left_s / 3), LEAST_S))

    def _least_s(self, level: float) -> float:
        """Return how long a probe lasts at least, by those so far: until it is ready."""
        near = [p for p in self.probes if p.look.rough]
        if not near:
            return _UNKNOWN_S
        nearest = min(near, key=lambda p: abs(math.log(p.level / level)))
        wait_s = nearest.look.from_s + max(LEAST_S, 4 * nearest.look.length_s)
        return 1.2 * wait_s * math.sqrt(max(level / nearest.level, 1.0) if self.whole else 1.0)

    def _upwards(self, last: float, left_s: float) -> ProbeStep | None:
        if last < self.most:
            near = self.margin(last) > _NEAR
            return self._brief(min(last * (_SMALL_STEP if near else _STEP), self.most), left_s)
        return (
            None if self.shown(self.most) == "meets" else ProbeStep(self.most, False, self._long_s(self.most, left_s))
        )

    def _downwards(self, last: float, left_s: float) -> ProbeStep | None:
        if last > self.least:
            step = _SMALL_STEP if last / self.least <= 8 else _STEP
            return self._brief(max(last / step, self.least), left_s)
        return (
            None
            if self.shown(self.least) == "misses"
            else ProbeStep(self.least, False, self._long_s(self.least, left_s))
        )

    def _long_s(self, level: float, left_s: float) -> float:
        return max(left_s / _VISITS, min(self._least_s(level), left_s))

    def expected_s(self, step: ProbeStep) -> float:
        """Return how long a probe will probably take, by the margin there."""
        least_s = self._least_s(step.level)
        if step.brief or len(self.probes) < 2:
            return min(1.5 * least_s, step.most_s)
        margin = self.margin(step.level) if self.probes_at(step.level) else self._guess(step.level)
        margin = min(max(abs(margin), _TOO_NEAR), 0.7)
        decided_s = (self.needed(step.level) + _OPENING) / (self.pace() * margin * margin)
        return min(max(1.5 * decided_s, 2 * least_s), step.most_s)

    def _guess(self, level: float) -> float:
        return self.slope() * math.log(level / self.crossing())

    def _prove(self, left_s: float, spent_s: float) -> ProbeStep | None:
        """Find a load that meets the target and one that misses it, as near to the crossing as they can be shown; then
        visit both again, in turns."""
        low, high = self._ends()
        if low is None or high is None:
            sides = [below for below, known in ((True, low), (False, high)) if known is None]
            last = self.probes[-1].level <= self.crossing()
            below = sides[0] if len(sides) == 1 else not last
            level = self._candidate(below, left_s / _VISITS)
            return ProbeStep(level, False, self._long_s(level, left_s))
        return self._tighten(low, high, left_s, spent_s) or self._again(low, high, left_s)

    @_remembered
    def _ends(self) -> tuple[float | None, float | None]:
        """Return the loads that one visit has shown to meet and to miss the target, nearest to the crossing."""
        high = min((x for x in self._order if self.likely(x) == "misses"), default=None)
        top = math.inf if high is None else high
        return max((x for x in self._order if x < top and self.likely(x) == "meets"), default=None), high

    def _again(self, low: float, high: float, left_s: float) -> ProbeStep | None:
        """Visit an end again: the one whose last visit is longer ago."""
        ends = [x for x in (low, high) if self.shown(x) == "undecided"]
        if not ends:
            return None
        level = min(ends, key=lambda x: self.probes_at(x)[-1].began_s)
        longest_s = max(p.look.now_s for p in self.probes_at(level))
        uneven = _UNEVEN[len(self.probes) % len(_UNEVEN)]
        return ProbeStep(level, False, min(max(longest_s, self._least_s(level), _LONG_LEAST_S) * uneven, left_s))

    def _candidate(self, below: bool, time_s: float) -> float:
        """Return the load on a side of the crossing that can be shown in this time, as near as possible."""
        crossing = self.crossing()
        between = self._between_ends(crossing, below)
        begun = [x for x in between if (self._time_left(x, below) or math.inf) < _RATHER * time_s]
        if begun:  # what it has shown so far counts
            return max(begun) if below else min(begun)
        away = self._first_away(crossing, time_s)
        stuck = [x for x in between if self._long_probes(x)]
        if stuck and self._ends()[0 if below else 1] is None:
            farthest = max(abs(math.log(x / crossing)) for x in stuck)
            away = min(max(away, _OUTWARD * farthest), _FARTHEST)
        level = self._outward(crossing * math.exp(-away if below else away), below)
        level = min(max(level, self.least), self.most)
        near = [x for x in self._order if self._side(x, crossing, below) and self._near(x, level)]
        near = [x for x in near if self._long_probes(x) < _TRIES]
        return min(near, key=lambda x: abs(math.log(x / level)), default=level)

    def _between_ends(self, crossing: float, below: bool) -> list[float]:
        """Return the loads on a side of the crossing that are nearer to it than the end there."""
        low, high = self._ends()
        inside = [x for x in self._order if (low or 0.0) < x < (high or math.inf)]
        return [x for x in inside if self._side(x, crossing, below)]

    def _first_away(self, crossing: float, time_s: float) -> float:
        """Return how far from the crossing an end is tried first, in logs of the load."""
        secure = _SECURE / max(self.slope(), 0.5)
        if self.whole and crossing < _FEW_STEPS:
            secure = 0.0
        return min(max(self._away(time_s), secure, self.resolution / 2), _FARTHEST)

    def _long_probes(self, level: float) -> int:
        return sum(not p.brief for p in self.probes_at(level))

    def _side(self, level: float, crossing: float, below: bool) -> bool:
        return level < crossing if below else level > crossing

    def _near(self, a: float, b: float) -> bool:
        return abs(math.log(a / b)) < max(self.resolution / 2, 0.02)

    def _away(self, time_s: float) -> float:
        """Return how far from the crossing, in logs of the load, a load is decided in this time. Evidence grows with
        time and with the square of the margin."""
        slope = max(self.slope(), 0.2)
        spread, degrees = self.variation()
        varies = quantile(1 - ERROR / 2, degrees) * spread / math.sqrt(2) / slope
        needed = self.needed(math.nan)
        margin = math.sqrt((needed + _OPENING) / (self.pace() * max(time_s, 1.0)))
        return max(1.15 * margin / slope, 1.1 * varies, _LEAST_AWAY)

    def pace(self) -> float:
        """Return the evidence that a second brings, for a margin of 1: half the square of the margin over its error."""
        useful = [p for p in self.probes if p.look.rough and p.look.weighed and _error(p.look) < math.inf]
        useful = [p for p in useful if p.look.ready] or useful
        near = sorted(useful, key=lambda p: abs(p.look.margin))[:3]
        each = [0.5 / (max(_error(p.look), _LEAST_ERROR) ** 2 * max(p.took_s, 0.1)) for p in near]
        return float(np.median(each)) if each else _PACE

    def _tighten(self, met: float, missed: float, left_s: float, spent_s: float) -> ProbeStep | None:
        """Return a load nearer to the crossing than an end, if it can be shown in a time that it is worth."""
        if missed / met <= 1 + self.resolution or (self.whole and missed - met <= 1):
            return None
        crossing = min(max(self.crossing(), met), missed)
        most_s = self._worth_s(math.log(missed / met), left_s, spent_s)
        for below in sorted((True, False), key=lambda b: -abs(math.log((met if b else missed) / crossing))):
            known = met if below else missed
            distance = abs(math.log(known / crossing))
            for share in _NEARER:
                level = self._outward(crossing * math.exp(-distance * share if below else distance * share), below)
                gain = abs(math.log(level / known))
                least = max(math.log1p(self.resolution) / 3, _STEP_IN * math.log(missed / met))
                if gain < least or not met < level < missed or self._hopeless(level, below):
                    continue
                if (time_s := self._decided_s(level, below)) <= most_s:
                    return ProbeStep(level, False, min(max(1.5 * time_s, 2 * self._least_s(level)), most_s))
        return None

    def _decided_s(self, level: float, below: bool) -> float:
        """Return how long a load probably takes to be decided."""
        if (left_s := self._time_left(level, below)) is not None:
            return left_s
        margin = abs(self._guess(level))
        spread, degrees = self.variation()
        if margin < quantile(1 - ERROR / 2, degrees) * spread / math.sqrt(_VISITS_EACH):
            return math.inf
        decided_s = (self.needed(level) + _OPENING) / (self.pace() * min(margin, _SINGLE) ** 2)
        return max(decided_s, self._least_s(level))

    def _hopeless(self, level: float, below: bool) -> bool:
        """Return whether a load was tried for long without getting near a decision, or turned out to be on the other
        side."""
        tried = [p for p in self.probes_at(level) if not p.brief]
        if not tried:
            return False
        return len(tried) >= _TRIES or self.strength(level)[0 if below else 1] < 0.1 * len(tried)

    def _worth_s(self, wide: float, left_s: float, spent_s: float) -> float:
        """Return how long a narrower interval may take: the wider it is, the more it is worth."""
        most_s = (left_s - self._again_s()) / 2
        if wide <= _NARROW:
            most_s = min(most_s, max(spent_s, _WORTH_S) / 2)
        if wide <= _CLOSE_ENOUGH:
            most_s = min(most_s, _WORTH * spent_s / 2)
        return most_s

    def _again_s(self) -> float:
        """Return how long it takes to visit both ends again."""
        visits = [max(p.took_s for p in self.probes_at(x)) for x in self._ends() if x is not None]
        return sum(s if s > _BETWEEN_S / 2 else (_VISITS_EACH - 1) * s for s in visits)

    # ---- the crossing ----

    @_remembered
    def crossing(self) -> float:
        """Return the load at which the margins cross zero, by a monotone fit. Probes with more requests count more."""
        x, y = self._fit()
        below, above = np.flatnonzero(y < 0), np.flatnonzero(y >= 0)
        if not len(below) or not len(above):
            return math.exp(float(x[-1] if len(below) else x[0]))
        i, j = below[-1], above[0]
        return math.exp(float(x[i] + (x[j] - x[i]) * y[i] / (y[i] - y[j])))

    @_remembered
    def slope(self) -> float:
        """Return by how much the margin rises with the log of the load, where it crosses zero."""
        if len(self._order) < 2:
            return 1.0
        x, y = self._fit()
        below, above = np.flatnonzero(y < 0), np.flatnonzero(y >= 0)
        if not len(below) or not len(above):
            return 1.0
        i, j = below[-1], above[0]
        return float((y[j] - y[i]) / (x[j] - x[i]))

    def _fit(self) -> tuple[np.ndarray, np.ndarray]:
        levels = sorted(self._order)
        margins = [float(np.clip(self.margin(x), -2.0, 2.0)) for x in levels]
        weights = [sum(_weight(p.look) for p in self.probes_at(x)) for x in levels]
        return np.log(np.array(levels)), monotone(margins, weights)

    def _rounded(self, level: float) -> float:
        return float(round(level)) if self.whole else float(f"{level:.3g}")

    def _outward(self, level: float, below: bool) -> float:
        if not self.whole:
            return self._rounded(level)
        return float(math.floor(level + 1e-9) if below else math.ceil(level - 1e-9))

    # ---- the time that would decide ----

    def time_needed(self) -> float | None:
        """Return how many seconds more would probably decide it, both sides. None: not known."""
        if not any(p.look.ready for p in self.probes):
            return None
        met, missed = self.met, self.missed
        seconds = 0.0
        for below, known in ((True, met), (False, missed)):
            if known is not None:
                continue
            side = [x for x in self._order if self._side(x, self.crossing(), below)]
            options = [t for x in side if (t := self._time_left(x, below)) is not None]
            options = options or [self._by_margin_s(x) for x in side if abs(self.margin(x)) > _TOO_NEAR]
            if not options:
                return None
            seconds += min(options)
        return seconds

    def _by_margin_s(self, level: float) -> float:
        """Return how long a load takes to be decided, by its margin alone."""
        margin = min(abs(self.margin(level)), _SINGLE)
        return (self.needed(level) + _OPENING) / (self.pace() * margin * margin) + 2 * self._least_s(level)

    def _time_left(self, level: float, below: bool) -> float | None:
        strength = self.strength(level)[0 if below else 1]
        took = sum(p.took_s for p in self.probes_at(level))
        if strength <= 0.1:
            return None
        return took * max(1 / min(strength, 1.0) - 1, 0.2)


def _weight(look: ProbeLook) -> float:
    return min((w.worth for w in look.weighed), default=0.0) + 0.1 * (1 + look.ready)


def _margin(probes: Sequence[Probe]) -> float:
    """Return the mean margin of probes, the longer ones first."""
    times = [p.look.now_s for p in probes]
    return sum(p.look.margin * s for p, s in zip(probes, times, strict=True)) / sum(times)


def _mean_margin(probes: Sequence[Probe], i: int) -> float:
    """Longer visits count more."""
    pairs = [(p.look.weighed[i].margin, p.look.now_s - p.look.from_s + 1e-3) for p in probes if p.look.weighed]
    total = sum(weight for _, weight in pairs)
    return sum(margin * weight for margin, weight in pairs) / total if total else 0.0


def monotone(values: Sequence[float], weights: Sequence[float]) -> np.ndarray:
    """Return the nearest values that never fall (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, v, n), (a, w, m) = blocks.pop(), blocks.pop()
            blocks.append(((a * w + b * v) / (w + v), w + v, m + n))
    return np.array([*itertools.chain.from_iterable([value] * n for value, _, n in blocks)])


def looks(step: ProbeStep, first_s: float = 0.5, times: float = 1.25) -> Iterator[float]:
    """Yield when a probe is looked at: each time when it has lasted this many times as long."""
    at_s = first_s
    while at_s < step.last_s:
        yield at_s
        at_s = min(at_s * times, step.most_s) if at_s < step.most_s else at_s * times
    yield step.last_s


def _error(look: ProbeLook) -> float:
    """Return the error of the margin that counts."""
    worst = max(look.weighed, key=lambda w: w.margin)
    return math.inf if worst.error is None else worst.error


def enough(search: Search, step: ProbeStep, look: ProbeLook) -> bool:
    """Return whether a probe has shown what it can: it is decided, or the rest of its time won't decide it."""
    if look.grows or look.now_s >= step.last_s:
        return True
    if look.now_s >= step.most_s and (look.ready or (step.brief and look.rough)):
        return True
    if not look.ready:
        return step.brief and look.rough and abs(look.margin) > max(4 * _error(look), _FAR)
    outcome = search.outcome(step.level, look)
    if not step.brief and look.now_s < min(_LONG_LEAST_S, _BETWEEN * search.budget_s, step.most_s):
        return False
    if outcome != "undecided":  # a second visit is to be compared with the first
        return look.now_s >= min(max((p.look.now_s for p in search.probes_at(step.level)), default=0.0) / 2, _AGAIN_S)
    if step.brief:
        return abs(look.margin) > max(3 * _error(look), 0.15) or _error(look) < _CLOSE
    if look.now_s < _HOPE_AFTER * step.most_s:
        return False
    return max(search.strength(step.level, look)) * step.most_s / look.now_s < _HOPE
