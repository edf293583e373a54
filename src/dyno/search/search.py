"""A search for the highest load within a target: which load to try next, for how long, and what is known so far.

The higher the load, the sooner it misses the target. So probes at and above a load show that it meets the target, if
they are good; probes at and below it show that it misses it, if they are bad. Brief probes bracket the load at which a
monotone fit of their margins crosses the target, in large steps. Longer probes on both sides of it, in turns, then make
both ends certain, as near to the crossing as the time allows. The search knows no clock and no server: whoever runs it
says how much time is left.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import numpy as np

from dyno.facts.find import Outcome, ProbeLook, Weighed
from dyno.facts.limits import Limit
from dyno.measure.statistics import quantile
from dyno.search import start, trend
from dyno.search.evidence import (
    Variation,
    clump,
    doubt_of_few,
    doubt_of_many,
    doubt_of_meeting,
    doubt_of_missing,
    requests_wanted,
)
from dyno.search.judge import LEAST_S, OPEN_FILL, ROUGH, window_s_of

ERROR = 0.05  # that the interval doesn't contain the answer
_EACH = 0.0125  # of it, for each end: a search looks several times
_OTHERS = (0.1, 0.2, 0.35)  # errors of intervals that are printed where 95 % is not reached
_STEP, _SMALL_STEP = 4.0, 2.0  # while no load misses
_NEAR = -0.2  # a margin above this, 82 % of the limit: the target is near
_OVERSHOOT = 1.1  # of a rate that was served: more may be, once the server has filled
_COARSE = 1.5  # loads of a bracket, one over the other: narrower ones take long probes
_AT_IT = 0.1  # a margin by which the crossing is found
# How much the capacity of a server differs from one probe to the next, before probes have shown it.
_VARIES, _VARIES_WORTH = 0.05, 3.0
_OPEN_VARIES = 0.07  # the same in an open loop: queues vary more
_COMPARED = 1.2  # a margin up to which probes of one load show how much probes differ
# margins at which one probe is enough, or two: half or twice the limit; 70 or 140 % of it
_SINGLE, _DOUBLE = 0.7, 0.35
_VISITS = 3  # of a load near the target
# from the first probe of an end to the last; of a short search, this share
_BETWEEN_S, _BETWEEN = 40.0, 0.15
# probes that begin later than this after one another see another state of the server
_APART_S = 8.0
# that requests of a load must be seen where few may fail: failures come in bursts; of a short search, this share
_FAILURES_S, _FAILURES = 60.0, 0.2
_FIRST_TRIES = (1, 4)  # probes for each end, at first: as many as there is time for
_TRIES = (3, 4, 6, 8, 12)  # for a narrower one
# doubt with which a load is nearly certain; probes of it, at most
_BEGUN, _MOST_TRIES = 0.1, 6
# probes that the time left is for: then an end may be near the crossing at once
_AMPLE = 10
# probes of a load that still is undecided; times as far to go then
_STUCK, _OUTWARD = 5, 1.5
# Among few whole loads, one whose figure is at the limit: probes that it would take, and those that show that
_HOPELESS, _STUCK_AT_IT = 12, 2
_SURPLUS = 1.2  # times as far as it must be
# of the distance of an end from the crossing: what a narrower one must reach
_NEARER = 0.75
_BESIDE = 0.15  # margin of loads that a line goes through best
_FARTHEST = 3.0  # log of a load over the crossing
_FEW_STEPS = 8.0  # whole loads up to which the next one is far
# of the distance from the crossing: loads nearer to each other than this are one
_SAME = 0.3
_PROBE_SHARE = 0.125  # of the time left: what one probe may take
_WORTH = 0.5  # of the time spent: what a narrower interval may cost
# log of the interval: narrower ones may take as long as the search so far, or a minute
_NARROW, _WORTH_S = 0.3, 60.0
_WIDE = 2.0  # one end over the other: the time that is left is for this
_CLOSE_ENOUGH = 0.14  # log of the interval: narrower ones must be cheap
_MOST_ERROR = 0.3  # of a margin: few failed requests say little about their share
_ROUGHLY = 0.2  # what a probe that isn't ready counts in a fit
_LINE, _LEAST_SLOPE = 0.5, 0.2  # margins near the target; by how much they rise at least
_TOO_NEAR = 0.04  # a margin that takes very long
_BETTER = 0.1  # margins by which a higher load looks better than the lowest one
_FAR = 0.35  # a margin that a brief probe need not look at closely
_CLOSE = 0.12  # an error of the margin with which a brief probe ends
# times what is assumed; degrees of freedom; times as long
_DIFFERS, _DIFFERS_AFTER, _LONGEST = 2.0, 3, 4.0
_UNEVEN = (1.0, 1.4, 0.8)  # lengths of probes: not in step with what the server does
# that a probe near the target lasts; of a short search, this share
_LONG_S, _LONG_SHARE = 6.0, 0.02
_OPEN_S, _OPEN_MOST_S = 8.0, 20.0  # the same in an open loop: a queue takes its time
_SLACK_S = 0.05
_ROUNDING = 1e-9  # of a load, by its logarithm and back
_NEARBY = 1.0  # log of a load over another
# of the first long probe; of a short search, these shares
_LOOK_S, _LOOK_SHARE, _OPEN_LOOK_SHARE = 30.0, 0.125, 0.09
_LAST_LOOK_S, _LAST_LOOK = 60.0, 0.2  # of the last probe of an open loop
_LONGEST_S = 30.0  # hardly another probe of an open loop lasts as long
_PROBES_LATER = 2  # probes for which there is no time left then
_UNKNOWN_S = 10.0  # that a probe lasts at least, before one has shown it


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _remembered(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Calculate a method of Search once for each load, until a probe is added."""

    @functools.wraps(method)
    def known(*args: _P.args, **kwargs: _P.kwargs) -> _T:
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
    least_s: float = 0.0


class Interval(msgspec.Struct, frozen=True):
    """Between two loads, with so much confidence. 0, infinity: no bound is known."""

    low: float
    high: float
    confidence: float


class Shown(NamedTuple):
    """What the probes on one side of a load show."""

    doubt: float  # probability of the opposite
    again: bool  # at different times, or by far

    @property
    def certain(self) -> bool:
        return self.doubt <= _EACH and self.again


def _order(shown: Shown) -> tuple[bool, bool, float]:
    return shown.doubt > _EACH, not shown.again, shown.doubt


class Search:
    """Proposes probes until the interval is narrow enough. Whoever makes them adds what they show."""

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
        self._levels: list[float] = []  # in order
        # loads that miss the target below one that meets it, and what their probes show
        self._slow_below: dict[float, Outcome] = {}
        self.budget_s = 0.0
        self._known: dict[tuple[Any, ...], Any] = {}  # what follows from the probes so far

    def add(self, probe: Probe) -> None:
        self.probes.append(probe)
        self._known.clear()
        if probe.level in self._slow_below:
            return
        if probe.level not in self._levels:
            self._levels = sorted([*self._levels, probe.level])
        self._leave_out_slow_below()

    def _leave_out_slow_below(self) -> None:
        """Leave out the loads that miss the target below one that meets it, where both were shown in turns: such a
        server is slower with little load, as where batches wait until they are full. Then the answer is above."""
        for place, good in enumerate(self._levels):
            below = self._levels[:place]
            if self._alone(good) != "meets" or not self._slower(below, good):
                continue
            for level in below:
                self._slow_below[level] = self._alone(level)
            self._levels = self._levels[place:]
            self._known.clear()
            return

    def _slower(self, below: Sequence[float], good: float) -> bool:
        """Return whether one of these loads misses the target, visited in turns with one that meets it."""
        return any(
            self._alone(level) == "misses" and self._in_turns(level, good)
            for level in below
        )

    @_remembered
    def _alone(self, level: float) -> Outcome:
        """Return what a load's own probes show, by how much probes of one load differ: whether a higher load may be
        quicker is the question, so that it is quicker counts as no variation."""
        own = self._ready(level, level)
        if not own:
            return "undecided"
        differs = self._variation_by(*self._differences_of_repeats())
        count = len(self.limits)
        if all(self._limit_met(i, own, differs) <= _EACH for i in range(count)):
            return "meets" if self._seen_again(own, level, below=True) else "undecided"
        if any(self._limit_missed(i, own, differs) * count <= _EACH for i in range(count)):
            return "misses" if self._seen_again(own, level, below=False) else "undecided"
        return "undecided"

    def _in_turns(self, one: float, other: float) -> bool:
        """Return whether each of two loads was visited between visits of the other."""
        times = [[p.began_s for p in self._ready(x, x)] for x in (one, other)]
        if not all(times):
            return False
        return max(min(each) for each in times) < min(max(each) for each in times)

    @property
    def left_out(self) -> list[float]:
        """The loads that miss the target below one that meets it."""
        return sorted(self._slow_below)

    @property
    def slow_below(self) -> float | None:
        """The load below which the server misses the target although it meets it there."""
        return self._levels[0] if self._slow_below else None

    # ---- what probes show ----

    @_remembered
    def probes_at(self, level: float) -> list[Probe]:
        return [p for p in self.probes if p.level == level]

    @_remembered
    def _ready(self, low: float, high: float) -> list[Probe]:
        return [
            p
            for p in self.probes
            if low <= p.level <= high
            and p.look.ready
            and p.look.weighed
            and p.look.from_s >= self.start_nearby(p.level) - _SLACK_S
        ]

    @_remembered
    def start_nearby(self, level: float) -> float:
        """Return how many seconds of such a load don't count, by the probes so far."""
        # the last long probe of an open loop is there for what comes late: its queue comes and goes meanwhile
        longest_s = math.inf if self.whole else max(self._last_look_s(), _LONGEST_S)
        near = [
            p.look.profiles
            for p in self.probes
            if _is_near(p, level) and p.look.now_s < longest_s
        ]
        columns = zip(*(each for each in near if each), strict=False)  # files may be odd
        return max((start.length(column) for column in columns), default=0.0)

    @_remembered
    def meets(self, level: float) -> Shown:
        """Judge by the probes of this load and of the next higher ones, as far as they help: none of them would be good
        if this one weren't."""
        best = Shown(1.0, False)
        for high in self._levels[self._levels.index(level) :]:
            probes = self._ready(level, high)
            if not probes or any(p.look.swells or p.look.grows for p in probes):
                continue
            doubt = max(self._limit_met(i, probes) for i in range(len(self.limits)))
            if doubt == 1:  # with loads that are higher still, they look no better
                break
            again = doubt <= _EACH and self._seen_again(probes, level, below=True)
            best = min(best, Shown(doubt, again), key=_order)
        return best

    @_remembered
    def misses(self, level: float) -> Shown:
        """Judge by the probes of this load and of the next lower ones."""
        best = Shown(1.0, False)
        for low in self._levels[self._levels.index(level) :: -1]:
            if any(p.look.grows for p in self.probes if low <= p.level <= level):
                return Shown(0.0, True)
            probes = self._ready(low, level)
            if not probes:
                continue
            by_limit = [self._limit_missed(i, probes) for i in range(len(self.limits))]
            if min(by_limit) == 1:
                break
            doubt = min(min(by_limit) * len(by_limit), 1.0)
            again = doubt <= _EACH and self._seen_again(probes, level, below=False)
            best = min(best, Shown(doubt, again), key=_order)
        return best

    def _limit_met(
        self, i: int, probes: Sequence[Probe], differs: Variation | None = None
    ) -> float:
        """Return the doubt. `differs`: by how much probes do; None: as all of them show."""
        weighed, differs = [p.look.weighed[i] for p in probes], differs or self.variation()
        return doubt_of_meeting(self.limits[i], weighed, differs, self._clump(i))

    def _limit_missed(
        self, i: int, probes: Sequence[Probe], differs: Variation | None = None
    ) -> float:
        weighed, differs = [p.look.weighed[i] for p in probes], differs or self.variation()
        return doubt_of_missing(self.limits[i], weighed, differs, self._clump(i))

    @_remembered
    def _clump(self, i: int) -> float:
        """Return how many requests are late together, by all probes with a figure near this limit."""
        loads = []
        for level in self._levels:
            probes = [p.look.weighed[i] for p in self._ready(level, level)]
            near = all(abs(w.margin) < _SINGLE for w in probes)
            if near or self.limits[i].is_share:
                loads.append(probes)
        return clump(loads)

    def _seen_again(self, probes: Sequence[Probe], level: float, below: bool) -> bool:
        """Return whether probes near the target were made at different times: a server may change. More often where
        they look odd."""
        margin = _margin(probes)
        wanted = self._visits(margin)
        if self._looks_odd(margin, level, below):
            wanted = _VISITS
        if wanted == 1:
            return True
        between_s = self._between_s()
        if below and any(limit.is_share for limit in self.limits):
            seen_s = sum(p.look.now_s - p.look.from_s for p in probes)
            if seen_s < min(_FAILURES_S, _FAILURES * self.budget_s):
                return False
        times = sorted(p.began_s for p in probes)
        apart_s = min(_APART_S, between_s / 4)
        return _visits(times, apart_s) >= wanted and times[-1] - times[0] >= between_s

    def _looks_odd(self, margin: float, level: float, below: bool) -> bool:
        """Return whether a load looks better than a lower one, or worse than a higher one."""
        for other in self._levels:
            if below:
                odd = (
                    other < level
                    and self._ready(other, other)
                    and self.margin(other) > margin
                )
            else:
                odd = (
                    other > level
                    and self._ready(other, other)
                    and self.margin(other) < margin
                )
            if odd:
                return True
        return False

    def _visits(self, margin: float) -> int:
        """Return how often a load with such a margin must be seen: where margins rise steeply, they say little."""
        if any(limit.is_share for limit in self.limits):
            return _VISITS  # a share of requests says nothing of how far the limit is
        distance = abs(margin) / max(self.slope(), 1.0)
        if distance >= _SINGLE:
            return 1
        return 2 if distance >= _DOUBLE else _VISITS

    def _between_s(self) -> float:
        return min(_BETWEEN_S, _BETWEEN * self.budget_s)

    @_remembered
    def shown(self, level: float, error: float = _EACH) -> Outcome:
        """Return what is certain of a load: by the probes on one side of it, or by a line through those near it."""
        shown = self._shown_by_side(level, error)
        return self._shown_by_line(level, error) if shown == "undecided" else shown

    @_remembered
    def _shown_by_side(self, level: float, error: float) -> Outcome:
        """Return what the probes on one side show; with a larger error, also what only one visit shows."""
        misses, meets = self.misses(level), self.meets(level)
        once_is_enough = error > _EACH
        if misses.doubt <= error and (misses.again or once_is_enough):
            return "misses"
        if meets.doubt <= error and (meets.again or once_is_enough):
            return "meets"
        return "undecided"

    @_remembered
    def outcome(self, level: float) -> Outcome:
        """Return the same without another visit: what its probes and those beside it look like."""
        if level in self._slow_below:
            return self._slow_below[level]
        if self.misses(level).doubt <= _EACH:
            return "misses"
        if self.meets(level).doubt <= _EACH:
            return "meets"
        return self._shown_by_line(level, _EACH)

    def _shown_by_line(self, level: float, error: float) -> Outcome:
        known = self.interval(error)
        if level <= known.low:
            return "meets"
        return "misses" if level >= known.high else "undecided"

    def sides(self, level: float) -> list[bool | None]:
        """Return for each limit whether a load keeps it. None: undecided."""
        own, outcome = self._ready(level, level), self.outcome(level)
        count = len(self.limits)
        missed = outcome == "misses" and count == 1
        out: list[bool | None] = []
        for i in range(count):
            if missed or (own and self._limit_missed(i, own) * count <= _EACH):
                out.append(False)
            elif outcome == "meets" or (own and self._limit_met(i, own) <= _EACH):
                out.append(True)
            else:
                out.append(None)
        return out

    def judged_alone(self, level: float, look: ProbeLook) -> "Search":
        """Return a search with one probe alone, and with what this one knows of how much probes differ."""
        alone = Search(self.limits, self.least, self.most, whole=self.whole)
        alone.add(Probe(level, look, False))
        alone._known[("variation",)] = self.variation()
        return alone

    @_remembered
    def margin(self, level: float) -> float:
        """Return the log of the figure over its limit: of the limit that is missed most, over all its probes."""
        probes = self.probes_at(level)
        if any(p.look.grows for p in probes):
            return max(p.look.margin for p in probes)
        return _margin([p for p in probes if p.look.ready] or probes)

    @_remembered
    def variation(self) -> Variation:
        """Estimate by the probes of one load, and by what is assumed before there are several."""
        seen, degrees = self.seen_variation()
        return self._variation_by(degrees * seen**2, degrees)

    def _variation_by(self, squares: float, degrees: float) -> Variation:
        """Return the variation by sums of squares, and by what is assumed."""
        total = degrees + _VARIES_WORTH
        assumed = _VARIES_WORTH * self._assumed() ** 2
        return Variation(math.sqrt((squares + assumed) / total), total)

    def _assumed(self) -> float:
        return (_VARIES if self.whole else _OPEN_VARIES) * max(self.slope(), 1.0)

    @_remembered
    def seen_variation(self) -> Variation:
        """Estimate by the probes alone: of one load, and of loads whose margins fall where they should rise."""
        near = self._compared()
        squares, degrees = self._differences_of_repeats()
        means, counts = (
            [self.margin(x) for x in near],
            [len(self._ready(x, x)) for x in near],
        )
        fit = monotone(means, counts)
        squares += sum(n * (m - f) ** 2 for n, m, f in zip(counts, means, fit, strict=True))
        degrees += len(near) - len(set(fit.tolist()))
        return Variation(math.sqrt(squares / degrees) if degrees else 0.0, degrees)

    def _compared(self) -> list[float]:
        """Return the loads whose probes show how much probes differ."""
        return [
            x for x in self._levels if self._ready(x, x) and abs(self.margin(x)) < _COMPARED
        ]

    @_remembered
    def _differences_of_repeats(self) -> tuple[float, int]:
        """Return by how much probes of one load differ: the sum of squares, and its degrees of freedom."""
        squares, degrees = 0.0, 0
        for level in self._compared():
            margins = [p.look.margin for p in self._ready(level, level)]
            squares += float(np.var(margins)) * len(margins)
            degrees += len(margins) - 1
        return squares, degrees

    # ---- what is known of all ----

    @property
    def met(self) -> float | None:
        """The highest load that was shown to meet the target, below all that miss it."""
        missed = self.missed or math.inf
        return max(
            (x for x in self._levels if x < missed and self.shown(x) == "meets"),
            default=None,
        )

    @property
    def missed(self) -> float | None:
        """The lowest load that was shown to miss it."""
        return min((x for x in self._levels if self.shown(x) == "misses"), default=None)

    @property
    def contradictions(self) -> list[float]:
        """Loads that met the target above one that missed it: the server varies more than the search looks for."""
        missed = self.missed or math.inf
        return sorted(x for x in self._levels if x >= missed and self.meets(x).certain)

    @_remembered
    def interval(self, error: float = _EACH) -> Interval:
        """Return the loads between which the highest load within the target is."""
        by_side, by_line = self._interval_by_side(error), self._ends_by_line(error)
        low, high = max(by_side.low, by_line.low), min(by_side.high, by_line.high)
        if low >= high:
            return by_side
        return msgspec.structs.replace(by_side, low=low, high=high)

    @_remembered
    def _interval_by_side(self, error: float) -> Interval:
        highs, lows = (
            self._levels_shown("misses", error),
            self._levels_shown("meets", error),
        )
        high = min(highs, default=math.inf)
        low = max((x for x in lows if x < high), default=0.0)
        # they contradict each other
        above = max((x for x in lows if x > high), default=0.0)
        high = min((x for x in highs if x > above), default=math.inf)
        return Interval(low, high, 1 - (ERROR if error <= _EACH else 2 * error))

    def _levels_shown(self, outcome: Outcome, error: float) -> list[float]:
        return [x for x in self._levels if self._shown_by_side(x, error) == outcome]

    # ---- a line through the probes near the target ----

    @_remembered
    def _ends_by_line(self, error: float) -> trend.Ends:
        """Return the load up to which a line keeps all limits, and the one from which on it misses one of them."""
        count = len(self.limits)
        lines = [self._line_of(i, error / count) for i in range(count)]
        high = min(line.high for line in lines)
        low = 0.0
        if any(line.low for line in lines):
            low = min(
                line.low or self._highest_keeping(i, error) for i, line in enumerate(lines)
            )
        return trend.Ends(
            low=self._outward(low, below=True),
            high=self._outward(high, below=False),
        )

    def _line_of(self, i: int, error: float) -> trend.Ends:
        """Ask a line through the margins of one limit, and the requests beside each of its ends."""
        if self.limits[i].is_share:
            return trend.NOTHING
        near = self._near_limit(i)
        times = [p.began_s for p in near]
        if not near or max(times) - min(times) < self._between_s():
            return trend.NOTHING
        ends = trend.ends([_point(p, i) for p in near], self.variation(), error)
        return trend.Ends(
            low=self._end_with_few_late(i, ends.low, error),
            high=self._end_with_many_late(i, ends.high, error),
        )

    def _end_with_few_late(self, i: int, end: float, error: float) -> float:
        """Return the end by a line, or the next load below it, beside which few requests are late. 0: none."""
        if not end:
            return 0.0
        lower = {p.level for p in self._near_limit(i) if p.level < end}
        for level in (end, *sorted(lower, reverse=True)):
            if self._few_beside(i, level, error):
                return level
        return 0.0

    def _end_with_many_late(self, i: int, end: float, error: float) -> float:
        """Return the end by a line, or the next load above it, beside which many requests are late. Infinity: none."""
        if math.isinf(end):
            return math.inf
        higher = {p.level for p in self._near_limit(i) if p.level > end}
        for level in (end, *sorted(higher)):
            if self._many_beside(i, level, error):
                return level
        return math.inf

    def _few_beside(self, i: int, level: float, error: float) -> bool:
        """Return whether the probes beside a load have few late requests: those above it, as far as they help, and as
        many below it."""
        return any(
            doubt_of_few(self.limits[i], weighed, self._clump(i)) <= error
            for weighed in self._beside(i, level, above=True)
        )

    def _many_beside(self, i: int, level: float, error: float) -> bool:
        return any(
            doubt_of_many(self.limits[i], weighed, self._clump(i)) <= error
            for weighed in self._beside(i, level, above=False)
        )

    def _beside(self, i: int, level: float, *, above: bool) -> Iterator[list[Weighed]]:
        """Yield what the probes beside a load show, of more and more loads."""
        near = self._near_limit(i)
        distances = {p.level: abs(math.log(p.level / level)) for p in near}
        for farthest in sorted(set(distances.values())):
            beside = [p for p in near if distances[p.level] <= farthest]
            chosen = _around(level, beside, above=above)
            yield [p.look.weighed[i] for p in chosen]

    def on_the_line(self) -> list[Probe]:
        """Return the probes through which lines go."""
        near = [self._near_limit(i) for i in range(len(self.limits))]
        return [p for p in self.probes if any(p in each for each in near)]

    def _near_limit(self, i: int) -> list[Probe]:
        """Return the probes with a figure near this limit."""
        near = []
        lowest = min(self._levels, default=0.0)  # that isn't left out
        for probe in self._ready(lowest, math.inf):
            look = probe.look
            piles_up = look.grows or look.swells
            margin = look.weighed[i].margin
            if not piles_up and abs(margin) < trend.NEAR:
                near.append(probe)
        return near

    def _highest_keeping(self, i: int, error: float) -> float:
        """Return the highest load whose own probes show that it keeps a limit, and the loads below it. 0: none."""
        highest = 0.0
        for level in self._levels:
            own = self._ready(level, level)
            if own and self._limit_met(i, own) > error:
                break
            highest = level if own else highest
        return highest

    def best(self) -> Interval:
        """Return the interval that the data supports with less confidence."""
        known = self.interval()
        for error in _OTHERS:
            wider = self.interval(error / 2)
            if wider.low and math.isfinite(wider.high):
                return wider
            if (wider.low > known.low) or (wider.high < known.high):
                known = wider
        return known

    @_remembered
    def bracket(self) -> tuple[float, float]:
        """Return the loads between which the crossing is, by what the probes look like. 0, infinity: none."""
        high = min((x for x in self._levels if self._beyond(x)), default=math.inf)
        low = max((x for x in self._levels if x < high), default=0.0)
        return low, high

    def _beyond(self, level: float) -> bool:
        outcome = self.shown(level)
        if outcome == "undecided":
            return self.margin(level) >= 0
        return outcome == "misses"

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
        between = self._between(low, high)
        if between is not None:
            return self._brief(between, left_s)
        return self._prove(left_s, spent_s)

    def _between(self, low: float, high: float) -> float | None:
        """Return a load inside a coarse bracket, near the crossing. None: the bracket is narrow enough."""
        near = any(p.look.ready and abs(p.look.margin) < _AT_IT for p in self.probes)
        top = min(high, max(self._served(), low * _SMALL_STEP))
        if near or top / low <= _COARSE or (self.whole and high - low <= 1):
            return None
        share = (math.log(self.crossing()) - math.log(low)) / math.log(top / low)
        level = self._rounded(low * (top / low) ** min(max(share, 0.2), 0.8))
        return level if low < level < high and level not in self._levels else None

    def _served(self) -> float:
        """Return the highest rate that was served, where requests piled up: the answer is below."""
        return min(
            (_OVERSHOOT * p.look.rate for p in self.probes if p.look.grows),
            default=math.inf,
        )

    def _brief(self, level: float, left_s: float) -> ProbeStep:
        most_s = max(min(1.5 * self._least_s(level), left_s / 3), LEAST_S)
        return ProbeStep(self._rounded(level), True, most_s)

    def _long(self, level: float, left_s: float) -> ProbeStep:
        uneven = _UNEVEN[len(self.probes) % len(_UNEVEN)]
        least_s = self._least_s(level)
        most_s = max(left_s * _PROBE_SHARE, min(1.5 * least_s, left_s / 2))
        usual_s = _LONG_S
        if not self.whole:  # the steeper figures rise, the longer a queue takes to show
            usual_s = min(_OPEN_S * max(self.slope(), 1.0), _OPEN_MOST_S)
        usual_s *= self._longer()
        if all(p.brief for p in self.probes):
            share = _LOOK_SHARE if self.whole else _OPEN_LOOK_SHARE
            look_s = max(min(_LOOK_S, share * self.budget_s), least_s)
            return ProbeStep(level, False, max(most_s, look_s), least_s=look_s)
        least_s = max(
            least_s, min(usual_s, self.budget_s * _LONG_SHARE * usual_s / _LONG_S)
        )
        return ProbeStep(
            level, False, most_s * uneven, least_s=min(least_s * uneven, most_s)
        )

    def _longer(self) -> float:
        """Return how many times as long a probe lasts where probes differ much: a longer one averages over what
        changes in the server, and its start costs once."""
        seen, degrees = self.seen_variation()
        if degrees < _DIFFERS_AFTER:
            return 1.0
        return min(max(seen / (_DIFFERS * self._assumed()), 1.0), _LONGEST)

    def alike_nearby(self, level: float) -> float:
        """Return how many requests were worth one in probes of such a load."""
        near = [
            p.look for p in self.probes if p.look.ready and 0.6 <= p.level / level <= 1.6
        ]
        each = [w.alike for look in near for w in look.weighed]
        return float(np.median(each)) if each else 1.0

    def _least_s(self, level: float) -> float:
        """Return how long a probe lasts at least, by those so far: until it is ready."""
        near = [p for p in self.probes if p.look.rough]
        if not near:
            return _UNKNOWN_S
        nearest = min(near, key=lambda p: abs(math.log(p.level / level)))
        window_s = window_s_of(self.limits, not self.whole, nearest.look.length_s)
        if not self.whole:
            fills_s = 1.1 * window_s / (1 - OPEN_FILL)
            return max(fills_s, 1.1 * (self.start_nearby(level) + window_s))
        from_s = max(nearest.look.from_s, self.start_nearby(level))
        higher = max(level / nearest.level, 1.0)
        return 1.1 * (from_s + window_s) * math.sqrt(higher)

    def _upwards(self, last: float, left_s: float) -> ProbeStep | None:
        if last < self.most:
            near = self.margin(last) > _NEAR
            step = _SMALL_STEP if near else _STEP
            level = min(last * step, self.most)
            return self._brief(level, left_s)
        if self.shown(self.most) == "meets":
            return self._long_look(self.most, left_s)
        return self._long(self.most, left_s)

    def _downwards(self, last: float, left_s: float) -> ProbeStep | None:
        if last > self.least:
            step = _SMALL_STEP if last / self.least <= 8 else _STEP
            level = max(last / step, self.least)
            return self._brief(level, left_s)
        if "misses" in (self.shown(self.least), self._alone(self.least)):
            return self._better_above(left_s)
        return self._long(self.least, left_s)

    def _better_above(self, left_s: float) -> ProbeStep | None:
        """Return a higher load, where the lowest one misses the target and the figure does not rise from there: a
        server may be slower with little load. None: no load looks better."""
        if self._only_shares():  # no server fails fewer with more load
            return None
        spread = self._variation_by(*self._differences_of_repeats()).spread
        last, clear = self._levels[-1], max(_BETTER, 2 * spread)
        if last < self.most and self._may_fall_above(last, clear):
            return self._brief(min(last * _STEP, self.most), left_s)
        best = min(self._levels, key=self.margin)
        better = self.margin(self.least) - self.margin(best)
        visited = len(self._ready(best, best))
        if self.margin(best) >= 0 or better < clear or visited >= _MOST_TRIES:
            return None
        again = self.probes[-1].level == best
        return self._long(self.least if again else best, left_s)

    def _may_fall_above(self, last: float, clear: float) -> bool:
        """Return whether the figure may be lower above the highest load tried: it is not higher there than at the
        lowest one, and two steps up it has begun to fall."""
        if self.margin(last) >= self.margin(self.least) + clear:
            return False
        if last < self.least * _STEP**2:
            return True
        return self.margin(last) < self.margin(self._levels[-2]) - clear / 2

    def expected_s(self, step: ProbeStep) -> float:
        """Return how long a probe will probably take."""
        least_s = self._least_s(step.level)
        if step.brief or len(self.probes) < 2:
            return min(1.5 * least_s, step.most_s)
        usual_s = max(1.5 * self._probe_s(), 2 * least_s)
        usual_s = min(usual_s, step.most_s)
        return max(usual_s, 1.3 * least_s)

    def ready_s(self, step: ProbeStep) -> float:
        """Return how long a probe must last to show anything."""
        least_s = max(self._least_s(step.level), step.least_s)
        return min(least_s / ROUGH if step.brief else least_s, step.last_s)

    def _prove(self, left_s: float, spent_s: float) -> ProbeStep | None:
        """Show a load that meets the target and one that misses it; then nearer ones, if that is worth its time."""
        met, missed = self.met, self.missed
        if met is not None and missed is not None:
            return self._tighten(met, missed, left_s, spent_s)
        sides = [below for below, known in ((True, met), (False, missed)) if known is None]
        last = self.probes[-1].level <= self.crossing()
        below = sides[0] if len(sides) == 1 else not last
        begun = self._begun(below, left_s)
        if begun is not None:
            return self._long(begun, left_s)
        beside = self._beside_shares(below)
        if beside is not None:
            return self._long(beside, left_s)
        fewest, most = _FIRST_TRIES
        tries = int(min(max(left_s / self._probe_s() / 2 / len(sides), fewest), most))
        return self._long(self._end(below, self._distance(tries, below)), left_s)

    def _only_shares(self) -> bool:
        return all(limit.is_share for limit in self.limits)

    def _beside_shares(self, below: bool) -> float | None:
        """Return the load beside the limit that was tried, where all limits are shares of requests. These jump:
        a load farther away is no sooner certain, and a lower rate takes longer. None: another figure has a limit."""
        if not self._only_shares():
            return None
        stuck = [x for x in self._stuck(below) if abs(self.margin(x)) < _SINGLE]
        tried = [x for x in self._side(below) if x not in stuck]
        nearest = max if below else min
        return nearest(tried, default=None)

    def _begun(self, below: bool, left_s: float) -> float | None:
        """Return a load that is nearly certain on a side: the one nearest to the crossing, or if time is short the one
        with the least doubt."""
        doubts = {}
        for x in self._levels:
            tries = len(self._ready(x, x))
            if 0 < tries < _MOST_TRIES:
                doubts[x] = (self.meets(x) if below else self.misses(x)).doubt
        nearly = [x for x, doubt in doubts.items() if doubt < _BEGUN]
        if left_s < _AMPLE * self._probe_s():
            return min(nearly, key=lambda x: doubts[x], default=None)
        nearest = max if below else min
        return nearest(nearly, default=None)

    def _tighten(
        self, met: float, missed: float, left_s: float, spent_s: float
    ) -> ProbeStep | None:
        """Return a load nearer to the crossing than an end, if it can be shown in a time that it is worth."""
        known = self.interval()
        if known.low < known.high:
            met, missed = max(met, known.low), min(missed, known.high)
        long_look = self._long_look(met, left_s)
        later_s = left_s - _PROBES_LATER * self._probe_s()
        last_chance = later_s < 1.1 * self._last_look_s()
        if self._narrow_enough(met, missed) or (long_look and last_chance):
            return long_look
        most_s = self._worth_s(math.log(missed / met), left_s, spent_s)
        pending = [x for x in self._levels if met < x < missed and self._pending(x)]
        if pending and self._probe_s() <= most_s:
            longest_ago = min(pending, key=lambda x: self.probes_at(x)[-1].began_s)
            return self._long(longest_ago, left_s)
        gains = itertools.chain(
            self._gains(met, missed, most_s), self._gains_again(met, missed, most_s)
        )
        along = self._gain_along_the_line(met, missed, most_s)
        best = max(itertools.chain(gains, along), default=None)
        # it may need fewer than expected
        if best is None and missed / met > _WIDE and left_s > self._probe_s():
            best = max(self._gains_again(met, missed, math.inf), default=None)
        return self._long(best.level, left_s) if best else long_look

    def _last_look_s(self) -> float:
        return min(_LAST_LOOK_S, _LAST_LOOK * (self.budget_s or math.inf))

    def _long_look(self, met: float, left_s: float) -> ProbeStep | None:
        """Return a last long probe of an open loop at the load that meets the target: some engines serve more than they
        can until their memory is full, and short probes end before that. None: it had one, or there is no time."""
        look_s = self._last_look_s()
        seen = any(p.look.now_s >= look_s for p in self.probes_at(met))
        if self.whole or seen or left_s < 1.1 * look_s:
            return None
        return ProbeStep(met, False, look_s, least_s=look_s)

    def _narrow_enough(self, met: float, missed: float) -> bool:
        return missed / met <= 1 + self.resolution or (self.whole and missed - met <= 1)

    def _gains(self, met: float, missed: float, most_s: float) -> "Iterator[_Gain]":
        """Yield what nearer ends gain, on both sides, by how many probes they take."""
        for below, tries in itertools.product((True, False), _TRIES):
            gain = self._gain(met, missed, most_s, below, tries)
            if gain is not None:
                yield gain

    def _gains_again(self, met: float, missed: float, most_s: float) -> "Iterator[_Gain]":
        """Yield the same for the loads between the ends that were tried."""
        for level in self._levels:
            gain = (
                self._gain_again(met, missed, most_s, level)
                if met < level < missed
                else None
            )
            if gain is not None:
                yield gain

    def _gain(
        self, met: float, missed: float, most_s: float, below: bool, tries: int
    ) -> "_Gain | None":
        """Return what a nearer end gains each second if it takes `tries` probes. None: it isn't nearer, or takes too
        long."""
        known = met if below else missed
        crossing = min(max(self.crossing(), met), missed)
        distance = self._distance(tries, below)
        level = self._end(below, distance)
        if distance > _NEARER * abs(math.log(known / crossing)) or not met < level < missed:
            return None
        visited = len(self._ready(level, level))
        cost_s = max(tries - visited, 1) * self._probe_s()
        if cost_s > most_s or visited > tries:
            return None
        return _Gain(abs(math.log(known / level)) / cost_s, level)

    def _gain_along_the_line(
        self, met: float, missed: float, most_s: float
    ) -> "Iterator[_Gain]":
        """Yield what more probes near the crossing gain where a line shows an end, on the side that has fewer."""
        ends = self._ends_by_line(_EACH)
        shows_an_end = ends.low == met or ends.high == missed
        probes = self.on_the_line()
        more = (1 / _NEARER**2 - 1) * len(probes)
        cost_s = more * self._probe_s()
        if not shows_an_end or cost_s > most_s:
            return
        crossing = self.crossing()
        count_below = sum(p.level < crossing for p in probes)
        fewer_below = count_below <= len(probes) / 2
        distance = _BESIDE / max(self.slope(), 1.0)
        gained = (1 - _NEARER) * math.log(missed / met)
        yield _Gain(gained / cost_s, self._end(fewer_below, distance))

    def _gain_again(
        self, met: float, missed: float, most_s: float, level: float
    ) -> "_Gain | None":
        """Return the same for a load that was tried, by its margin. None: that is too small, or takes too long."""
        margin, visited = self.margin(level), len(self._ready(level, level))
        if (
            abs(margin) < _TOO_NEAR
            or self.outcome(level) != "undecided"
            or visited >= _MOST_TRIES
        ):
            return None
        tries = max(self._tries(margin), self._visits(margin))
        cost_s = max(tries - visited, 1) * self._probe_s()
        if cost_s > most_s:
            return None
        known = met if margin < 0 else missed
        return _Gain(abs(math.log(known / level)) / cost_s, level)

    def _pending(self, level: float) -> bool:
        """Return whether a load is certain but for another visit."""
        return any(
            shown.doubt <= _EACH and not shown.again
            for shown in (self.meets(level), self.misses(level))
        )

    def _worth_s(self, wide: float, left_s: float, spent_s: float) -> float:
        """Return how long a narrower interval may take: the wider it is, the more it is worth."""
        most_s = left_s
        if wide <= _NARROW:
            most_s = min(most_s, max(spent_s, _WORTH_S))
        if wide <= _CLOSE_ENOUGH:
            most_s = min(most_s, _WORTH * spent_s)
        return most_s

    @_remembered
    def _distance(self, tries: int, below: bool) -> float:
        """Return how far from the crossing, in logs of the load, an end is certain after `tries` probes: farther than
        those that were not, after several."""
        spread, degrees = self.variation()
        spread = max(spread, self._usual_error())
        margin = (
            _SURPLUS * quantile(1 - _EACH, degrees + tries - 1) * spread / math.sqrt(tries)
        )
        crossing = self.crossing()
        farther = max(
            (_OUTWARD * abs(math.log(x / crossing)) for x in self._stuck(below)),
            default=0.0,
        )
        return min(
            max(margin / max(self.slope(), 0.2), self.resolution / 2, farther), _FARTHEST
        )

    @_remembered
    def _usual_error(self) -> float:
        errors = []
        for probe in self.probes:
            look = probe.look
            near = abs(look.margin) < _SINGLE
            if look.ready and near:
                errors.append(_error_of(look))
        if not errors:
            return 0.0
        return float(np.median(errors))

    @_remembered
    def _stuck(self, below: bool) -> list[float]:
        """Return the loads on a side of the crossing that several probes have not decided, or would not decide."""
        few = self.whole and self.crossing() < _FEW_STEPS
        stuck = []
        for level in self._side(below):
            visited = len(self._ready(level, level))
            hopeless = few and self._tries(self.margin(level)) > _HOPELESS
            if visited >= (_STUCK_AT_IT if hopeless else _STUCK):
                stuck.append(level)
        return [level for level in stuck if self.outcome(level) == "undecided"]

    def _side(self, below: bool) -> list[float]:
        """Return the loads that were tried on a side of the crossing."""
        return [x for x in self._levels if self._is_below(x) == below]

    def _is_below(self, level: float) -> bool:
        """Return whether a load is below the crossing. One that the crossing is at has the side of its margin."""
        crossing = self.crossing()
        if math.isclose(level, crossing, rel_tol=_ROUNDING):
            return self.margin(level) < 0
        return level < crossing

    def _end(self, below: bool, distance: float) -> float:
        """Return the load at this distance from the crossing, or one that was tried near it."""
        crossing = self.crossing()
        if self.whole and crossing < _FEW_STEPS:
            distance = 0.0
        level = self._outward(crossing * math.exp(-distance if below else distance), below)
        stuck = self._stuck(below)
        if self.whole and stuck:
            level = min(level, min(stuck) - 1) if below else max(level, max(stuck) + 1)
        level = min(max(level, self.least), self.most)

        def distance_to(x: float) -> float:
            return abs(math.log(x / level))

        near = max(_SAME * distance, self.resolution / 2)
        same = [x for x in self._side(below) if x not in stuck and distance_to(x) < near]
        return min(same, key=distance_to, default=level)

    def _probe_s(self) -> float:
        """Return how long a probe near the target takes, by those so far."""
        long = [p.took_s for p in self.probes if not p.brief]
        if not long:
            return 2 * self._least_s(self.crossing())
        return float(np.mean(long[-4:]))

    # ---- the crossing ----

    @_remembered
    def crossing(self) -> float:
        """Return the load at which the margins cross zero: by a line through those near it, between the loads that are
        clearly on either side."""
        x, y = self._monotone()
        clear = self._clear()
        below = np.flatnonzero((y < 0) & clear)
        above = np.flatnonzero((y >= 0) & clear)
        line = self._line()
        crossing = line.crossing if line else _interpolated(x, y)
        low = x[below[-1]] if len(below) else -math.inf
        high = x[above[0]] if len(above) else math.inf
        return math.exp(float(min(max(crossing, low), high)))

    @_remembered
    def slope(self) -> float:
        """Return by how much the margin rises with the log of the load, where it crosses zero."""
        line = self._line()
        return line.slope if line else 1.0

    def _clear(self) -> np.ndarray:
        """Return of which loads the side is clear by their margins."""
        seen, degrees = self.seen_variation()
        spread = seen if degrees >= 3 else max(seen, _VARIES)
        clear = []
        for level in self._levels:
            probes = max(len(self.probes_at(level)), 1)
            error = spread / math.sqrt(probes)
            clear.append(abs(self.margin(level)) > 2 * error)
        return np.array(clear)

    @_remembered
    def _line(self) -> "_MarginLine | None":
        """Fit the margins of the loads near the target. None: there are none on both sides, or they don't rise."""
        margins = np.array([self.margin(x) for x in self._levels])
        if not (margins < 0).any() or not (margins >= 0).any():
            return None
        x = np.log(np.array(self._levels))
        worth = np.array(
            [sum(_weight(p.look) for p in self.probes_at(level)) for level in self._levels]
        )
        weights = worth * np.exp(-((margins / _LINE) ** 2))
        nearest = np.argsort(np.abs(margins))[:2]
        weights[nearest] = np.maximum(weights[nearest], 1e-3 * worth[nearest])
        middle, height = (
            np.average(x, weights=weights),
            np.average(margins, weights=weights),
        )
        across = float(np.average((x - middle) ** 2, weights=weights))
        slope = float(np.average((x - middle) * (margins - height), weights=weights)) / max(
            across, 1e-12
        )
        if slope < _LEAST_SLOPE:
            return None
        return _MarginLine(slope, float(middle - height / slope))

    @_remembered
    def _monotone(self) -> tuple[np.ndarray, np.ndarray]:
        margins = [float(np.clip(self.margin(x), -2.0, 2.0)) for x in self._levels]
        weights = [sum(_weight(p.look) for p in self.probes_at(x)) for x in self._levels]
        return np.log(np.array(self._levels)), monotone(margins, weights)

    def _rounded(self, level: float) -> float:
        return float(round(level)) if self.whole else float(f"{level:.3g}")

    def _outward(self, level: float, below: bool) -> float:
        if not math.isfinite(level):
            return level
        if not self.whole:
            return self._rounded(level)
        return float(math.floor(level + 1e-9) if below else math.ceil(level - 1e-9))

    # ---- the time that would decide ----

    def time_needed(self) -> float | None:
        """Return how many seconds more would probably decide it, both sides. None: not known."""
        if not any(p.look.ready for p in self.probes):
            return None
        crossing = self.crossing()
        seconds = 0.0
        if self.met is None:
            seconds += self._least_more_s([x for x in self._levels if x <= crossing])
        if self.missed is None:
            seconds += self._least_more_s([x for x in self._levels if x >= crossing])
        return seconds if math.isfinite(seconds) else None

    def _least_more_s(self, levels: Sequence[float]) -> float:
        """Return how long the quickest of these loads takes to be decided. Infinity: all are too near the target."""
        return min(
            (self._more_s(x) for x in levels if abs(self.margin(x)) > _TOO_NEAR),
            default=math.inf,
        )

    def _more_s(self, level: float) -> float:
        """Return how long a load still takes to be decided, by its margin and by how much probes differ."""
        margin = self.margin(level)
        visited = len(self._ready(level, level))
        tries = max(self._tries(margin) - visited, 1.0)
        by_figure_s = tries * self._probe_s() + self._between_s()
        seen = [p for p in self.probes_at(level) if p.look.weighed]
        count = len(self.limits)
        by_requests_s = [self._requests_s(i, seen) for i in range(count)]
        return max([by_figure_s, *by_requests_s])

    def _requests_s(self, i: int, probes: Sequence[Probe]) -> float:
        """Return how long it takes until as many requests have come as one limit wants, at the pace of these probes."""
        weighed = [p.look.weighed[i] for p in probes]
        worth = sum(w.worth for w in weighed)
        more = max(
            requests_wanted(self.limits[i], weighed, _EACH, self._clump(i)) - worth, 0.0
        )
        return more * sum(p.took_s for p in probes) / max(worth, 1.0)

    def _tries(self, margin: float) -> float:
        """Return how many probes with such a margin show on which side it is, by how much probes differ."""
        spread, degrees = self.variation()
        if margin == 0:
            return math.inf
        return (quantile(1 - _EACH, degrees) * spread / abs(margin)) ** 2


def _point(probe: Probe, i: int) -> trend.Point:
    weighed = probe.look.weighed[i]
    return trend.Point(
        probe.level,
        weighed.margin_low,
        weighed.margin_high,
        weighed.error or 0.0,
        probe.began_s,
    )


def _around(level: float, probes: Sequence[Probe], *, above: bool) -> list[Probe]:
    """Return the probes at a load and on one side of it, and of those on the other side as many as leave the middle of
    all on this one: the nearest first."""

    def ahead(probe: Probe) -> float:
        return math.log(probe.level / level) * (1 if above else -1)

    chosen = [p for p in probes if ahead(p) >= 0]
    middle = sum(ahead(p) for p in chosen)
    others = sorted((p for p in probes if ahead(p) < 0), key=ahead, reverse=True)
    for probe in others:
        middle += ahead(probe)
        if middle < 0:
            break
        chosen.append(probe)
    return chosen


def _visits(times_s: Sequence[float], apart_s: float) -> int:
    """Return how many of these times, in order, are at least so far apart."""
    visits, last_s = 0, -math.inf
    for at_s in times_s:
        if at_s - last_s >= apart_s:
            visits, last_s = visits + 1, at_s
    return visits


def _is_near(probe: Probe, level: float) -> bool:
    return abs(math.log(probe.level / level)) < _NEARBY


class _Gain(NamedTuple):
    per_s: float  # log of the interval
    level: float


class _MarginLine(NamedTuple):
    slope: float
    crossing: float  # log of the load


def _interpolated(x: np.ndarray, y: np.ndarray) -> float:
    """Return where a rising line crosses zero. Where it does not, the nearer end."""
    below, above = np.flatnonzero(y < 0), np.flatnonzero(y >= 0)
    if not len(above):
        return float(x[-1])
    if not len(below):
        return float(x[0])
    i, j = below[-1], above[0]
    return float(x[i] + (x[j] - x[i]) * y[i] / (y[i] - y[j]))


def _weight(look: ProbeLook) -> float:
    worth = min((w.worth / w.alike for w in look.weighed), default=0.0)
    return worth * (1.0 if look.ready else _ROUGHLY) + 0.1


def _margin(probes: Sequence[Probe]) -> float:
    """Return the mean margin of probes, of the limit that is missed most. Longer ones count more."""
    looks = [p.look for p in probes if p.look.weighed]
    weights = [look.now_s - look.from_s + 1e-3 for look in looks]
    total = sum(weights)
    # of each limit, all probes
    columns = zip(*(look.weighed for look in looks), strict=True)
    means = (
        sum(w.margin * weight for w, weight in zip(column, weights, strict=True)) / total
        for column in columns
    )
    return max(means, default=0.0)


def monotone(values: Sequence[float], weights: Sequence[float]) -> np.ndarray:
    """Return the nearest values that never fall (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, and how many values it has
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            b, v, n = blocks.pop()
            a, w, m = blocks.pop()
            blocks.append(((a * w + b * v) / (w + v), w + v, m + n))
    fit: list[float] = []
    for value, _, count in blocks:
        fit += [value] * count
    return np.array(fit)


def looks(step: ProbeStep, first_s: float = 0.5, times: float = 1.25) -> Iterator[float]:
    """Yield when a probe is looked at: each time when it has lasted this many times as long."""
    at_s = max(first_s, step.least_s)
    while at_s < step.last_s:
        yield at_s
        at_s = min(at_s * times, step.most_s) if at_s < step.most_s else at_s * times
    yield step.last_s


def _error_of(look: ProbeLook) -> float:
    """Return the error of the margin that counts, were the requests independent."""
    worst = max(look.weighed, key=lambda w: w.margin)
    return min(math.inf if worst.error is None else worst.error, _MOST_ERROR)


def _error(look: ProbeLook) -> float:
    worst = max(look.weighed, key=lambda w: w.margin)
    return math.inf if worst.error is None else worst.error * math.sqrt(worst.alike)


def enough(step: ProbeStep, look: ProbeLook) -> bool:
    """Return whether a probe contains what it must."""
    if look.grows or look.now_s >= step.last_s:
        return True
    if look.now_s >= step.most_s and (look.ready or (step.brief and look.rough)):
        return True
    if not look.rough:
        return False
    if step.brief:
        return _enough_in_brief(look)
    return look.ready and (look.settled or abs(look.margin) > 2 * _SINGLE)


def _enough_in_brief(look: ProbeLook) -> bool:
    margin, error = abs(look.margin), _error(look)
    if margin > max(2.5 * error, _FAR):
        return True
    return look.ready and (margin > max(3 * error, 0.15) or error < _CLOSE)
