"""A judge of one load: after each request, does the load meet its target, miss it, or isn't that decided yet?"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dyno.facts.find import LimitFigure
from dyno.facts.limits import Limit
from dyno.facts.record import Record
from dyno.measure import timing
from dyno.measure.search import Outcome
from dyno.measure.sequential import effective, evidence
from dyno.measure.statistics import quantile, samples_needed, settled
from dyno.units import NS_PER_MS, seconds

FEWEST = 20  # requests before a load can miss
_FIRST_LOOK = 64  # at a mean: then after twice as many
_EVERY = 1.15  # at shares: after so many times as many requests
_GAPS_EACH = 10  # that a request's gaps are worth, at most: requests in one batch wait together
_HOPE = 0.7  # of the evidence that decides, at the end
# An open loop begins with an empty server, which fills slowly: requests count after some times of a request's length,
# and a load meets its target only when it has lasted long enough for a queue to show.
FILL_TIMES, STEADY_TIMES, STEADY_S = 3, 10, 6.0
QUEUE_FEWEST, QUEUE_GROWTH, QUEUE_SURE = 60, 2.0, 6.0


class Judge:
    """Takes in what requests took, in the order in which they ended. The first wave is left out: whoever begins a load
    sends as much as it may at once, and no load goes on like that."""

    def __init__(self, limits: Sequence[Limit], alpha: float, open_loop: bool = False) -> None:
        self.limits = limits
        self._open_loop = open_loop
        self._alpha = alpha / len(limits)
        self._values: dict[str, list[float]] = {limit.stem: [] for limit in limits if limit.stem != "failed"}
        self._least: dict[str, list[float]] = {}  # the same, as low as they can be, where the values are upper bounds
        self._failed: list[float] = []
        self._sides = {limit.metric: 0 for limit in limits}
        self._strength = {limit.metric: 0.0 for limit in limits}  # the evidence; 1 decides
        self._look = float(FEWEST)
        self._mean_look = _FIRST_LOOK
        self._looks_at_mean = 0
        self._first_end_ns: int | None = None
        self._count_from_ns = self._last_sent_ns = 0
        self._lengths_ns: list[int] = []
        self._open: list[int] = []  # requests in flight whenever one is sent
        self.queue_grows = False

    def add(self, r: Record) -> None:
        if self._first_end_ns is None or r.end_ns < self._first_end_ns:
            self._first_end_ns = r.end_ns
            self._count_from_ns = r.end_ns + (FILL_TIMES * (r.end_ns - r.sent_ns) if self._open_loop else 0)
        if r.error in ("cancelled", "interrupted"):
            return
        self._lengths_ns.append(r.end_ns - r.sent_ns)
        if r.sent_ns < self._count_from_ns:
            return
        self._last_sent_ns = max(self._last_sent_ns, r.sent_ns)
        if "tpot" in self._values and r.error is None:
            self._add_least_tpot(r)
        self.add_values(
            r.error is not None,
            {name: values for name in self._values if (values := _values_ms(r, name)) is not None},
        )

    def _add_least_tpot(self, r: Record) -> None:
        """Where it isn't known how many tokens a first chunk has, its TPOT is between two values."""
        span = timing.own_tpot_ns(r)
        if span is None:
            return
        if "tpot" not in self._least and settled(span.low, span.high) is None:
            self._least["tpot"] = [*self._values["tpot"]]
        if "tpot" in self._least:
            known = settled(span.low, span.high)
            self._least["tpot"].append((span.low if known is None else known) / NS_PER_MS)

    def add_values(self, failed: bool, values_ms: Mapping[str, float | Sequence[float]]) -> None:
        """`values_ms`: a request's latencies, at most; for itl, all its gaps."""
        self._failed.append(float(failed))
        if not failed:
            for name, value in values_ms.items():
                self._values[name].extend([value] if isinstance(value, float | int) else value)

    def in_flight(self, count: int) -> None:
        """Note how many requests are open, at regular times."""
        self._open.append(count)

    @property
    def requests(self) -> int:
        return len(self._failed)

    @property
    def next_look(self) -> int:
        """How many requests it looks at next: between looks, `outcome` doesn't change."""
        return math.ceil(self._look)

    def outcome(self) -> Outcome:
        """Look at the requests so far. A decision is final, except that an open loop may leave a limit that it kept."""
        self._update()
        if any(s > 0 for s in self._sides.values()) or self.queue_grows:
            return "misses"
        return "meets" if self.promising and self._steady() else "undecided"

    @property
    def promising(self) -> bool:
        """Whether every limit is kept so far: of an open loop that isn't enough."""
        return all(s < 0 for s in self._sides.values())

    def _steady(self) -> bool:
        if not self._open_loop:
            return True
        lasted_ns = self._last_sent_ns - self._count_from_ns
        return seconds(lasted_ns) > steady_s_of(self.length_s or 0.0)

    @property
    def length_s(self) -> float | None:
        """How long a request takes: the median."""
        return seconds(float(np.median(self._lengths_ns))) if self._lengths_ns else None

    def _update(self) -> None:
        count = len(self._failed)
        if count < self._look:
            return
        self._look = count * _EVERY
        if count >= self._mean_look:
            self._mean_look *= 2
            self._looks_at_mean += 1
            for limit in self.limits:
                if limit.percentile is None and limit.stem != "failed" and self._pending(limit):
                    self._sides[limit.metric] = self._side(limit, self._side_of_mean)
        for limit in self.limits:
            if self._pending(limit) and (limit.percentile is not None or limit.stem == "failed"):
                self._sides[limit.metric] = self._side(limit, self._side_of_share)
        self._look_at_queue()

    def _pending(self, limit: Limit) -> bool:
        """Whether it is still to be decided: while a server fills, what was within its limit may leave it."""
        return self._sides[limit.metric] <= 0 if self._open_loop else not self._sides[limit.metric]

    def _side(self, limit: Limit, look: Callable[[Limit, Sequence[float]], int]) -> int:
        """Values that lie between two bounds are within a limit if the upper ones are, beyond it if the lower are."""
        side = look(limit, self._values.get(limit.stem, []))
        if side <= 0 or limit.stem not in self._least:
            return side
        return max(look(limit, self._least[limit.stem]), 0)

    def _side_of_share(self, limit: Limit, values: Sequence[float]) -> int:
        if limit.stem == "failed":
            events, share, fewest = np.array(self._failed), limit.most, FEWEST
            if not share:  # no number of good requests shows that none will fail
                return 1 if events.any() else -1 if len(events) >= FEWEST else 0
        else:
            assert limit.percentile is not None
            events = np.array(values) > limit.most
            share, fewest = 1 - limit.percentile / 100, samples_needed(limit.percentile)
        count = len(events)
        if count < FEWEST:
            return 0
        worth = min(effective(events), _GAPS_EACH * self.requests) / count
        against = evidence(float(events.sum()) * worth, count * worth, share)
        self._strength[limit.metric] = against / -math.log(self._alpha)
        decided = 0 if self._strength[limit.metric] < 1 else 1 if events.mean() > share else -1
        return decided if decided > 0 or count >= fewest else 0

    def _side_of_mean(self, limit: Limit, each: Sequence[float]) -> int:
        values = np.array(each)
        if len(values) < FEWEST:
            return 0
        worth = min(effective(values), _GAPS_EACH * self.requests)
        # Looks share the error: the k-th has 6/(πk)² of it.
        alpha = self._alpha * 6 / (math.pi * self._looks_at_mean) ** 2
        off = quantile(1 - alpha / 2, max(worth - 1, 1.0)) * float(values.std(ddof=1)) / math.sqrt(max(worth, 2.0))
        mean = float(values.mean())
        self._strength[limit.metric] = ((mean - limit.most) / off) ** 2 if off else math.inf
        return -1 if mean + off < limit.most else 1 if mean - off > limit.most else 0

    def _look_at_queue(self) -> None:
        """A queue that grows without end: twice as many requests in flight in the last third as in the first, and the
        difference is beyond chance."""
        if len(self._open) < QUEUE_FEWEST:
            return
        counts = np.array(self._open, dtype=float)
        third = len(counts) // 3
        first, middle, last = counts[:third], counts[third : 2 * third], counts[-third:]
        error = math.sqrt((first.var() + last.var()) / max(min(effective(first), effective(last)), 2.0))
        grown = last.mean() - first.mean()
        self.queue_grows = bool(
            first.mean() < middle.mean() < last.mean()
            and last.mean() > QUEUE_GROWTH * max(first.mean(), 1.0)
            and grown > QUEUE_SURE * error
        )

    def figures(self) -> list[LimitFigure]:
        within = {0: None, -1: True, 1: False}
        return [LimitFigure(limit, self._value(limit), within[self._sides[limit.metric]]) for limit in self.limits]

    def _value(self, limit: Limit) -> float | None:
        if limit.stem == "failed":
            return float(np.mean(self._failed)) if self._failed else None
        values = self._values[limit.stem]
        if self._sides[limit.metric] > 0:  # it is beyond the limit however low it is
            values = self._least.get(limit.stem, values)
        if not values or (limit.stem in self._least and not self._sides[limit.metric]):
            return None
        return float(np.mean(values) if limit.percentile is None else np.percentile(values, limit.percentile))

    def hopeless(self, most: int) -> bool:
        """Whether `most` requests will hardly decide it: evidence grows with their number, here too slowly."""
        count = self.requests
        if count < max(most / 3, *(samples_needed(limit.percentile or 50.0) for limit in self.limits)):
            return False
        undecided = [self._strength[limit.metric] for limit in self.limits if not self._sides[limit.metric]]
        return bool(undecided) and min(undecided) * most / count < _HOPE

    @property
    def margin(self) -> float:
        """Of the limit that is nearest to being missed, or missed most."""
        return max((figure.margin for figure in self.figures()), default=0.0)


def steady_s_of(length_s: float) -> float:
    """Return how long an open loop lasts before it can meet its target. `length_s`: of a request."""
    return max(STEADY_S, STEADY_TIMES * length_s)


def _values_ms(r: Record, name: str) -> float | list[float] | None:
    if r.error is not None:
        return None
    if name == "itl":
        unseen = set(r.unseen)
        pairs = enumerate(itertools.pairwise(r.chunk_ns))
        return [(b - a) / NS_PER_MS for i, (a, b) in pairs if i not in unseen and i + 1 not in unseen]
    if name == "tpot":
        return _most_tpot_ms(r)
    span = {"ttft": timing.ttft_ns, "e2el": timing.e2el_ns}[name](r)
    return None if span is None else span.middle / NS_PER_MS


def _most_tpot_ms(r: Record) -> float | None:
    """Return dyno's own TPOT, or the most that it can be."""
    span = timing.own_tpot_ns(r)
    if span is None:
        return None
    known = settled(span.low, span.high)
    return (span.high if known is None else known) / NS_PER_MS
