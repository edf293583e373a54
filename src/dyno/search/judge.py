"""A judge of one probe: what it contains, and what its requests show about each limit.

Requests count in the order of sending. One that is open and older than its limit is late; a younger one counts as late
when the load is to meet its target, and as in time when it is to miss it. So a figure never depends on which requests
happened to end first.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.facts.find import ProbeLook, Weighed
from dyno.facts.limits import Limit
from dyno.search import start, timeline
from dyno.search.timeline import LimitColumn, Requests

FEWEST = 20  # requests that count
WAVES = 3  # so many times the concurrency
LENGTHS = 3.0  # so many times the length of a request, after the start
LEAST_S = 2.0
OPEN_LENGTHS, OPEN_LEAST_S = 5.0, 6.0
ROUGH_FEWEST = 6
ROUGH = 2.5  # a probe that only shows where to look is shorter by this factor
TAIL = 5  # requests beyond a percentile
# independent requests, by what neighbours have in common
INDEPENDENT, OPEN_INDEPENDENT = 4, 8
FILL_ENDS, FILL_LENGTHS = 2, 2.0
# lengths, or share of the time, that an empty server fills
OPEN_FILL_LENGTHS, OPEN_FILL = 3.0, 0.25
_FAR = 100.0  # times its limit: a failed request has not kept it
# Of the time that counts: a limit's time is waited for, but no longer than these shares of it.
_WAITED_FOR, _WAIT_SHARE = 0.6, 0.25
_WAIT_LENGTHS = 5.0  # a limit that is many lengths away is waited for so long
_HANGS = 3.0  # lengths after which the tokens of an open request may well never come
_LOST = 10.0  # lengths after which an open request may well be one that fails
# of its share of the load, that a turn must have among the requests that count
_TURNS_LEAST = 0.4
_FAR_OVER = 0.7  # log of a figure over its limit
_HALVES = 16  # requests from which on the second half is looked at alone
# lengths, and share of the time, after which a request has probably ended
_ENDED_LENGTHS, _ENDED_SHARE = 3.0, 0.25
_LEAST_VALUE = 1e-3  # of the limit: lower figures count as this
# of neighbours that are late together
FEWEST_BATCHES = 8
# failed requests where none was seen; of the limit, at most: few requests without a failure look good, not bad
_NONE_FAILED, _NONE_SEEN = 0.25, 0.5
_EQUAL = 1e-12  # of the mean square: a variance that is none
_STILL_GROWING = 1.3  # from one batch size to the next: there is no plateau yet
# times what the largest batches show: their own variance is known from a few of them
_MOST_BEYOND = 2.5


class _Values(NamedTuple):
    """A latency of each request that counts, in the order of sending."""

    high: np.ndarray  # ms, at most
    low: np.ndarray  # at least
    late_high: np.ndarray  # 1: it is late; of gaps between tokens, the share that is
    late_low: np.ndarray
    weights: np.ndarray


def _rate(r: Requests, from_s: float, now_s: float) -> float:
    """Return the requests that ended each second."""
    if now_s <= from_s:
        return 0.0
    return float(((r.end > from_s) & (r.end <= now_s)).sum()) / (now_s - from_s)


def _later_half(v: _Values) -> _Values:
    half = slice(len(v.high) // 2, None)
    weights = v.weights[half]
    weights = weights / max(float(weights.mean()), 1e-9)
    return _Values(v.high[half], v.low[half], v.late_high[half], v.late_low[half], weights)


class Judge:
    """Looks at a probe's requests. `wave`: requests in flight, of a closed loop; 0: an open one. `turns`: share of each
    turn in the whole load. `alike_nearby`: how many requests were worth one in other probes of such a load."""

    def __init__(
        self,
        limits: Sequence[Limit],
        wave: int,
        turns: Sequence[float] = (),
        alike_nearby: float = 1.0,
        start_nearby_s: float = 0.0,
    ) -> None:
        self.limits, self.wave = limits, wave
        self._start_nearby_s = start_nearby_s
        self._turns = np.array(turns)
        self._alike_nearby = alike_nearby
        self._begins = False  # a closed loop whose latencies still fall or rise
        self._failures_judged = any(limit.stem == "failed" for limit in limits)
        self._tail = max((tail_requests(limit) for limit in limits), default=FEWEST)

    def look(self, requests: Requests, now_s: float) -> ProbeLook:
        """Return what a probe shows at this time."""
        sent_count = int(np.searchsorted(requests.sent, now_s, side="right"))
        r = _first(requests, sent_count)
        ended = int((r.end <= now_s).sum())
        if not ended:
            return ProbeLook(now_s, now_s, now_s, 0, 0.0, False)
        # open ones count with their age
        length_s = float((np.minimum(r.end, now_s) - r.sent).sum()) / ended
        filled_s = self._from(r, now_s, length_s)
        begun = self._start(r, now_s, filled_s, length_s)
        from_s = begun.ends_s
        first = int(np.searchsorted(r.sent, from_s))
        count = sent_count - first
        window_s = now_s - from_s
        grows = self._grows(r, now_s)
        # in overload, those that are open grow old
        ended_s = float((r.end - r.sent)[r.end <= now_s].mean())
        rough = self._is_rough(count, window_s, min(length_s, ended_s))
        ready = self._is_ready(count, window_s, length_s) and self._turns_are_there(
            r, first
        )
        filled = not self.wave and window_s >= max(OPEN_LEAST_S, ended_s)
        weighed: list[Weighed] = []
        if rough or grows or filled:
            self._begins = begun.lasts
            weighed = self._weigh_all(r, first, now_s, length_s)
        ready = ready or (filled and self._far_over(weighed))
        shows = rough or ready
        return ProbeLook(
            now_s=now_s,
            from_s=from_s,
            length_s=length_s,
            count=count,
            rate=_rate(r, from_s, now_s),
            ready=ready,
            rough=shows,
            weighed=weighed,
            grows=grows,
            swells=ready and not self.wave and timeline.swells(r, from_s, now_s),
            settled=ready and not begun.lasts and self._is_settled(count, weighed),
            profiles=self._profiles(r, now_s, filled_s, length_s) if shows else [],
        )

    def _grows(self, r: Requests, now_s: float) -> bool:
        """Return whether the backlog of an open loop grows without end."""
        return not self.wave and timeline.grows(r, 0.0, now_s)

    def _is_rough(self, count: int, window_s: float, length_s: float) -> bool:
        """Return whether a probe shows where to look."""
        least_s = window_s_of(self.limits, not self.wave, length_s) / ROUGH
        return count >= max(ROUGH_FEWEST, self.wave) and window_s >= least_s

    def _is_ready(self, count: int, window_s: float, length_s: float) -> bool:
        """Return whether a probe is long enough and has enough requests that count."""
        least_s = window_s_of(self.limits, not self.wave, length_s)
        return count >= max(FEWEST, WAVES * self.wave) and window_s >= least_s

    def _is_settled(self, count: int, weighed: Sequence[Weighed]) -> bool:
        """Return whether enough requests are beyond each percentile, and enough are independent."""
        return count >= self._tail and all(w.count >= self._least_worth(w) for w in weighed)

    def _far_over(self, weighed: Sequence[Weighed]) -> bool:
        """Return whether a limit is missed by far already. An open loop begins with an empty server, and its latencies
        only rise from there: to see how far would take as long as its queue grows."""
        return any(w.count >= FEWEST and w.margin_low > _FAR_OVER for w in weighed)

    def _least_worth(self, weighed: Weighed) -> float:
        independent = INDEPENDENT if self.wave else OPEN_INDEPENDENT
        return independent * max(weighed.alike, self._alike_nearby)

    def _from(self, r: Requests, now_s: float, length_s: float) -> float:
        """Return from when on requests count: a load begins with as many as it may send at once, or with an empty
        server, and never looks like that again."""
        begun = float(r.sent[0])
        if not self.wave:
            return begun + max(
                min(OPEN_FILL_LENGTHS * length_s, (now_s - begun) / 3),
                OPEN_FILL * (now_s - begun),
            )
        wanted = FILL_ENDS * self.wave
        if len(r.end) <= wanted:
            return now_s
        return max(
            float(np.partition(r.end, wanted - 1)[wanted - 1]),
            begun + FILL_LENGTHS * length_s,
        )

    def _start(
        self, r: Requests, now_s: float, filled_s: float, length_s: float
    ) -> start.Start:
        """Return until when the load still begins: requests of a closed loop are sent together and part only slowly."""
        from_s = max(filled_s, float(r.sent[0]) + self._start_nearby_s)
        if not self.wave:
            return start.Start(from_s, lasts=False)
        known = self._ended(r, now_s, filled_s, length_s)
        starts = [start.ends(r.sent[known], c[known], self.wave) for c in self._columns(r)]
        ends_s = max((each.ends_s for each in starts), default=filled_s)
        return start.Start(max(ends_s, from_s), any(each.lasts for each in starts))

    def _columns(self, r: Requests) -> list[np.ndarray]:
        """Return the latencies that have a limit."""
        return [r.columns[limit.metric].high for limit in self.limits if not limit.is_share]

    def _ended(
        self, r: Requests, now_s: float, from_s: float, length_s: float
    ) -> np.ndarray:
        """Return which requests were sent since then and have been answered. Of the last ones only the quick have."""
        last_s = now_s - min(_ENDED_LENGTHS * length_s, _ENDED_SHARE * (now_s - from_s))
        ended: np.ndarray = (
            (r.sent >= from_s) & (r.sent <= last_s) & (r.end <= now_s) & ~r.failed
        )
        return ended

    def _profiles(
        self, r: Requests, now_s: float, filled_s: float, length_s: float
    ) -> list[start.Profile]:
        begun_s = float(r.sent[0])
        if not self.wave:  # the time that is left out there may be all of the start
            filled_s = min(filled_s, begun_s + OPEN_FILL_LENGTHS * length_s)
        known = self._ended(r, now_s, filled_s, length_s)
        since_s = r.sent[known] - begun_s
        return [start.profile(since_s, column[known]) for column in self._columns(r)]

    def _turns_are_there(self, r: Requests, first: int) -> bool:
        if r.turn is None or len(self._turns) < 2:
            return True
        count = len(self._turns)
        seen = np.bincount(r.turn[first:], minlength=count)[:count]
        shares = seen / (len(r.sent) - first)
        return bool((shares >= _TURNS_LEAST * self._turns).all())

    def _weigh_all(
        self, r: Requests, first: int, now_s: float, length_s: float
    ) -> list[Weighed]:
        return [self._weigh(r, limit, first, now_s, length_s) for limit in self.limits]

    def _weigh(
        self, r: Requests, limit: Limit, first: int, now_s: float, length_s: float
    ) -> Weighed:
        window_s = now_s - (float(r.sent[first]) if first < len(r.sent) else now_s)
        wait_s = 3 * length_s
        if limit.stem in ("ttft", "e2el") and limit.percentile is not None:
            wait_s = limit.most / 1e3
        last = int(
            np.searchsorted(
                r.sent, now_s - min(wait_s, _WAIT_SHARE * window_s), side="right"
            )
        )
        part = _part(r, first, max(last, first))
        if limit.is_share:
            return self._share(part, limit, now_s, length_s)
        values = self._values(part, limit, now_s, length_s)
        if len(values.high) < 2:
            return Weighed()
        if limit.percentile is None:
            return self._mean(values, limit)
        return self._percentile(values, limit)

    # ---- latencies, as far as they are known ----

    def _values(self, r: Requests, limit: Limit, now_s: float, length_s: float) -> _Values:
        column, open_ = _seen(r, r.columns[limit.metric], limit, now_s)
        failed = r.failed & (r.end <= now_s)
        known = ~np.isnan(column.high) & ~open_
        age_ms = (now_s - r.sent) * 1e3
        timed = limit.stem in ("ttft", "e2el")
        if timed:  # an open request takes as long as it is old, at least
            most = (
                2 * age_ms
                if limit.percentile is None
                else 2 * np.maximum(age_ms, limit.most)
            )
            least = age_ms
        else:  # how quick its tokens come isn't known yet; a request that hangs has none
            open_ = open_ & (age_ms > _HANGS * length_s * 1e3)
            most, least = np.full(len(age_ms), _FAR * limit.most), np.zeros(len(age_ms))
        high, low = np.where(open_, most, column.high), np.where(open_, least, column.low)
        late_high = np.where(open_, 1.0, _late(column, column.high, limit))
        late_low = np.where(open_, least > limit.most, _late(column, column.low, limit))
        counts = known | open_ if timed or limit.percentile is not None else known
        # a failed request has not kept its limit
        if not self._failures_judged and limit.percentile is not None:
            high, low = (np.where(failed, _FAR * limit.most, each) for each in (high, low))
            late_high, late_low = (
                np.where(failed, 1.0, each) for each in (late_high, late_low)
            )
            counts = counts | failed
        if not counts.any():
            return _Values(*[np.zeros(0)] * 5)
        weights = self._turn_weights(r, counts) * _parts_of(column, known, counts)
        if timed:
            weights = _spread_open(low[counts], open_[counts], weights)
        known_high, weights = high[counts], weights / weights.mean()
        if column.low is column.high and not open_.any():
            late = late_high[counts]
            return _Values(known_high, known_high, late, late, weights)
        return _Values(
            known_high, low[counts], late_high[counts], late_low[counts], weights
        )

    def _turn_weights(self, r: Requests, counts: np.ndarray) -> np.ndarray:
        """Return the weight of each request. Turns count as in the whole load, however many of each a probe happened to
        send."""
        if r.turn is None or len(self._turns) < 2 or not counts.any():
            return np.ones(int(counts.sum()))
        turn = np.minimum(r.turn[counts], len(self._turns) - 1)
        seen = np.bincount(turn, minlength=len(self._turns)) / len(turn)
        each: np.ndarray = np.where(seen > 0, self._turns / np.maximum(seen, 1e-9), 0.0)[
            turn
        ]
        return each

    # ---- a percentile: a share of late requests ----

    def _percentile(self, v: _Values, limit: Limit) -> Weighed:
        assert limit.percentile is not None
        p = limit.percentile / 100
        count = len(v.high)
        worth = count / float((v.weights**2).mean())
        ordered = _Ordered(v.high, v.weights)
        low_ordered = ordered if v.low is v.high else _Ordered(v.low, v.weights)
        high, low = ordered.quantile(p, upper=True), low_ordered.quantile(p, upper=False)
        late_high = float((v.late_high * v.weights).mean())
        late_low = float((v.late_low * v.weights).mean())
        # what gets worse is not yet as bad as it will be
        if count >= _HALVES and (not self.wave or self._begins):
            half = _later_half(v)
            high = max(high, _Ordered(half.high, half.weights).quantile(p, upper=True))
            late_high = max(late_high, float((half.late_high * half.weights).mean()))
            if self.wave:  # and what gets better not yet as good
                low = min(low, _Ordered(half.low, half.weights).quantile(p, upper=False))
                late_low = min(late_low, float((half.late_low * half.weights).mean()))
        middle = ordered if v.low is v.high else _Ordered((v.high + v.low) / 2, v.weights)
        value = middle.quantile(p, upper=True)
        off = math.sqrt(p * (1 - p) / worth)
        below = max(ordered.quantile(max(p - off, 0.0), upper=True), 1e-9)
        above = max(ordered.quantile(min(p + off, 1.0), upper=True), 1e-9)
        error = max(math.log(above / below) / 2, 1e-3)
        return Weighed(
            count=count,
            worth=worth,
            late_high=late_high,
            late_low=late_low,
            margin=_margin(value, limit),
            margin_high=_margin(high, limit),
            margin_low=_margin(low, limit),
            error=error,
            value=value if value < _FAR * limit.most / 2 else None,
            factor=together(v.late_low[v.weights > 0], max(self.wave, 1)),
            alike=self._alike(v.high[v.weights > 0], p),
        )

    def _alike(self, took: np.ndarray, p: float) -> float:
        """Return how many neighbours are worth one, by who is above the figure itself and above the median."""
        wave = max(self.wave, 1)
        return max(
            together((took > top).astype(float), wave) for top in _quantiles(took, (0.5, p))
        )

    # ---- a mean ----

    def _mean(self, v: _Values, limit: Limit) -> Weighed:
        high = float((v.high * v.weights).mean())
        low = float((v.low * v.weights).mean())
        value = (high + low) / 2
        if len(v.high) >= _HALVES and (not self.wave or self._begins):
            half = _later_half(v)
            high = max(high, float((half.high * half.weights).mean()))
            if self.wave:
                low = min(low, float((half.low * half.weights).mean()))
        worth = len(v.high) / float((v.weights**2).mean())
        error = float(v.high.std(ddof=1)) / math.sqrt(worth) / max(value, 1e-9)
        alike = together(v.high[v.weights > 0], max(self.wave, 1))
        return Weighed(
            count=len(v.high),
            worth=worth,
            margin=_margin(value, limit),
            margin_high=_margin(high, limit),
            margin_low=_margin(low, limit),
            error=max(error, 1e-3),
            value=value,
            alike=alike,
        )

    # ---- shares of requests ----

    def _share(self, r: Requests, limit: Limit, now_s: float, length_s: float) -> Weighed:
        if limit.stem == "failed":
            high, low = _failures(r, now_s, length_s)
        else:
            high = low = self._invalid(r, now_s)
        count = len(low)
        if not count:
            return Weighed()
        share = float(low.mean())
        margin = 1.0 if share else -1.0
        if limit.most:
            probable = share or min(_NONE_FAILED / count, _NONE_SEEN * limit.most)
            margin = math.log(max(probable, 1e-2 * limit.most) / limit.most)
        return Weighed(
            count=count,
            worth=count,
            late_high=float(high.mean()),
            late_low=share,
            margin=margin,
            margin_high=margin,
            margin_low=margin,
            error=1 / math.sqrt(max(float(low.sum()), 0.25)),
            value=share,
            factor=together(high, max(self.wave, 1)),
        )

    def _invalid(self, r: Requests, now_s: float) -> np.ndarray:
        """Return for each answer that should have a form whether it lacks it. A failed request does, unless failures
        have a limit of their own."""
        invalid = r.columns["invalid"].high
        counts = (r.end <= now_s) & ~np.isnan(invalid)
        if self._failures_judged:
            counts &= ~r.failed
        answers: np.ndarray = invalid[counts]
        return answers


def _failures(r: Requests, now_s: float, length_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return for each request that counts whether it failed: at most, and at least."""
    ended = r.end <= now_s
    lost = ~ended & (now_s - r.sent > _LOST * length_s)
    failed = (r.failed & ended).astype(float)
    counts = ended | lost
    return np.where(lost, 1.0, failed)[counts], failed[counts]


def window_s_of(limits: Sequence[Limit], open_loop: bool, length_s: float) -> float:
    """Return how long requests must count: in an open loop long enough for a queue to show."""
    timed = [
        limit.most / 1e3
        for limit in limits
        if limit.stem in ("ttft", "e2el") and limit.percentile
    ]
    waited_s = min(max(timed, default=0.0) / _WAITED_FOR, _WAIT_LENGTHS * length_s)
    if open_loop:
        return max(OPEN_LEAST_S, OPEN_LENGTHS * length_s, waited_s)
    return max(LEAST_S, LENGTHS * length_s, waited_s)


def tail_requests(limit: Limit) -> int:
    """Return how many requests a probe should contain, for some to be beyond its percentile."""
    if limit.is_share:
        return math.ceil(TAIL / limit.most) if limit.most else FEWEST
    if limit.percentile is None:
        return FEWEST
    share = min(limit.percentile, 100 - limit.percentile) / 100
    return math.ceil(TAIL / share)


def _late(column: LimitColumn, values: np.ndarray, limit: Limit) -> np.ndarray:
    late: np.ndarray = (np.nan_to_num(values, nan=0.0) > limit.most).astype(float)
    if column.late is not None:
        late = np.nan_to_num(column.late)
    return late


def _parts_of(column: LimitColumn, known: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return how much each request counts: a share of gaps counts by their number."""
    if column.parts is None:
        return np.ones(int(counts.sum()))
    usual = column.parts[known].mean() if known.any() else 1.0
    parts: np.ndarray = np.maximum(np.where(known, column.parts, usual)[counts], 1e-9)
    return parts


def _spread_open(ages: np.ndarray, open_: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights, with that of each open request spread over those that took longer than it is old: it will
    take as long as one of them (Kaplan and Meier). None did: it keeps its weight, and its bounds."""
    if not open_.any():
        return weights
    order = np.lexsort((open_, ages))
    w, ended = weights[order], ~open_[order]
    at_risk = np.cumsum(w[::-1])[::-1]
    stays = np.where(ended, 1 - w / at_risk, 1.0)
    reached = np.concatenate(([1.0], np.cumprod(stays)[:-1]))
    spread = np.where(ended, reached * w / at_risk, 0.0)
    if not ended[-1]:
        last = np.flatnonzero(ended)[-1] + 1 if ended.any() else 0
        spread[last:] = (1 - spread.sum()) * w[last:] / w[last:].sum()
    out = np.empty(len(w))
    out[order] = spread * len(w)
    return out


def _quantiles(values: np.ndarray, shares: Sequence[float]) -> list[float]:
    """Return the same as np.quantile, which takes longer for a few shares than the sorting."""
    ordered = np.sort(values)
    quantiles = []
    for share in shares:
        place = share * (len(ordered) - 1)
        below, above = ordered[int(place)], ordered[math.ceil(place)]
        quantiles.append(float(below + (place % 1) * (above - below)))
    return quantiles


class _Ordered:
    """Weighted values, sorted once."""

    def __init__(self, values: np.ndarray, weights: np.ndarray) -> None:
        order = np.argsort(values)
        self._values, self._below = values[order], np.cumsum(weights[order])

    def quantile(self, p: float, upper: bool) -> float:
        """Return a percentile; between two values, the upper or the lower one."""
        wanted = p * self._below[-1] * (1 - 1e-12)
        place = int(np.searchsorted(self._below, wanted, side="right" if upper else "left"))
        return float(self._values[min(place, len(self._values) - 1)])


def _margin(value: float, limit: Limit) -> float:
    return math.log(max(value / limit.most, _LEAST_VALUE))


def _seen(
    r: Requests, column: LimitColumn, limit: Limit, now_s: float
) -> tuple[LimitColumn, np.ndarray]:
    """Return a latency as far as it is known at a time, and which requests may still get one."""
    if limit.stem != "ttft":
        return column, r.end > now_s
    come = (r.first <= now_s) & (r.end > now_s) & np.isnan(column.high)
    if come.any():  # by its first bytes, at the latest
        at_most = (r.first - r.sent) * 1e3
        column = LimitColumn(
            np.where(come, at_most, column.low), np.where(come, at_most, column.high)
        )
    return column, (r.first > now_s) & (r.end > now_s)


def _first(r: Requests, count: int) -> Requests:
    return r if count == len(r.sent) else _part(r, 0, count)


def _part(r: Requests, a: int, b: int) -> Requests:
    columns = {
        name: LimitColumn(*(None if each is None else each[a:b] for each in column))  # type: ignore[arg-type]
        for name, column in r.columns.items()
    }
    turn = None if r.turn is None else r.turn[a:b]
    return Requests(r.sent[a:b], r.first[a:b], r.end[a:b], r.failed[a:b], columns, turn)


# ---- how many neighbouring requests are worth one: those in one batch or queue are late together ----


def _variance(values: np.ndarray, degrees: int) -> float:
    """Return the same as values.var(), without what that takes for a few numbers."""
    off = values - values.sum() / len(values)
    return float(off @ off) / degrees


def together(values: np.ndarray, wave: int = 1) -> float:
    """Return the factor by which the mean of these values, in the order of sending, varies more than that of as many
    independent ones. `wave`: requests that a load has in flight. Batches of whole waves say most, if there are enough.
    """
    n = len(values)
    spread = _variance(values, n) if n else 0.0
    if n < 2 * FEWEST_BATCHES or spread <= _EQUAL * float(np.square(values).mean()):
        return 1.0
    size = 2 * wave if n >= 2 * wave * FEWEST_BATCHES else 2
    factor = previous = last = 1.0
    sums = np.concatenate(([0.0], np.cumsum(values)))
    while n // size >= FEWEST_BATCHES:
        means = np.diff(sums[::size][: n // size + 1]) / size
        previous, last = last, _variance(means, len(means) - 1) * size / spread
        factor = max(factor, last)
        size *= 2
    if last == factor and last > _STILL_GROWING * previous:
        factor *= min((last / previous) ** 2, _MOST_BEYOND)
    return min(factor, float(n))
