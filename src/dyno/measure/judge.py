"""A judge of one probe: what do its requests show about each limit, and is that enough?

Requests count in the order of sending. One that is open and older than its limit is late; a younger one counts as late
when the load is to meet its target, and as in time when it is to miss it. So a decision never depends on which requests
happened to end first.
"""

import math
from collections.abc import Sequence

import numpy as np

from dyno.facts.find import ProbeLook, Weighed
from dyno.facts.limits import Limit
from dyno.measure import backlog
from dyno.measure.correlation import FEWEST_BATCHES, together
from dyno.measure.sequential import evidence, evidence_of_mean
from dyno.measure.timeline import LimitColumn, Requests

FEWEST = 20  # requests that count
WAVES = 3  # so many times the concurrency
LENGTHS = 3.0  # so many times the length of a request, after the start
LEAST_S = 2.0
OPEN_LENGTHS, OPEN_LEAST_S = 5.0, 6.0
ROUGH_FEWEST = 10
ROUGH = 2.5  # a probe that only shows where to look is shorter by this factor
TRUSTED = 20.0  # independent requests without which their correlation isn't known
FILL_ENDS, FILL_LENGTHS, OPEN_FILL_LENGTHS = 2, 2.0, 3.0
BATCH_WAVES, BATCH_TAIL, LEAST_BATCHES, MOST_BATCHES = 2, 10, 5, 12
_GAPS_EACH = 10  # that a request's gaps are worth, at most: requests in one batch wait together
_FEW = 10  # late requests, without which the latencies' own correlation counts
# Of the time that counts: requests are waited for if that takes no more than this share of it; else those of the last
# quarter are left out, and what is open of the others bounds the answer both ways.
_WAITED_FOR, _WAIT_SHARE = 0.6, 0.25
_WAIT_LENGTHS = 5.0  # a limit that is many lengths away is waited for so long
_LOST = 10.0  # lengths after which an open request may well be one that fails
_TURNS_LEAST = 0.4  # of its share of the load, that a turn must have among the requests that count


class Judge:
    """Looks at a probe's requests. `wave`: requests in flight, of a closed loop; 0: an open one. `turns`: share of each
    turn in the whole load. `least_factor`: what other probes of the search have shown, for each limit."""

    def __init__(
        self,
        limits: Sequence[Limit],
        wave: int,
        turns: Sequence[float] = (),
        least_factor: Sequence[float] = (),
    ) -> None:
        self.limits, self.wave = limits, wave
        self._turns = np.array(turns)
        self._least = least_factor or [1.0] * len(limits)
        self._failures_judged = any(limit.stem == "failed" for limit in limits)

    def look(self, requests: Requests, now_s: float) -> ProbeLook:
        sent_count = int(np.searchsorted(requests.sent, now_s, side="right"))
        r = _first(requests, sent_count)
        ended = int((r.end <= now_s).sum())
        if not ended:
            return ProbeLook(now_s, now_s, now_s, 0, 0.0, False)
        length_s = float((np.minimum(r.end, now_s) - r.sent).sum()) / ended  # open ones count with their age
        from_s = self._from(r, now_s, length_s)
        first = int(np.searchsorted(r.sent, from_s))
        count = sent_count - first
        window_s = now_s - from_s
        rate = float(((r.end > from_s) & (r.end <= now_s)).sum()) / window_s if window_s > 0 else 0.0
        ready = (
            count >= max(FEWEST, WAVES * self.wave)
            and window_s >= self._window(length_s)
            and self._turns_are_there(r, first)
        )
        if not ready:
            rough = count >= max(ROUGH_FEWEST, self.wave) and window_s >= self._window(length_s) / ROUGH
            weighed = self._weigh(r, first, now_s, length_s, window_s)
            grows = not self.wave and backlog.grows(r, 0.0, now_s)
            return ProbeLook(now_s, from_s, length_s, count, rate, False, rough, weighed, grows)
        weighed = self._weigh(r, first, now_s, length_s, window_s)
        grows = swells = False
        if not self.wave:
            grows, swells = backlog.grows(r, 0.0, now_s), backlog.swells(r, from_s, now_s)
        return ProbeLook(now_s, from_s, length_s, count, rate, True, True, weighed, grows, swells)

    def _window(self, length_s: float) -> float:
        """Return how long requests must count: in an open loop long enough for a queue to show."""
        timed = [limit.most / 1e3 for limit in self.limits if limit.stem in ("ttft", "e2el") and limit.percentile]
        waited_s = min(max(timed, default=0.0) / _WAITED_FOR, _WAIT_LENGTHS * length_s)
        if not self.wave:
            return max(OPEN_LEAST_S, OPEN_LENGTHS * length_s, waited_s)
        return max(LEAST_S, LENGTHS * length_s, waited_s)

    def _from(self, r: Requests, now_s: float, length_s: float) -> float:
        """Return from when on requests count: a load begins with as many as it may send at once, or with an empty
        server, and never looks like that again."""
        begun = float(r.sent[0])
        if not self.wave:
            return begun + min(OPEN_FILL_LENGTHS * length_s, (now_s - begun) / 3)  # in overload, lengths only grow
        wanted = FILL_ENDS * self.wave
        if len(r.end) <= wanted:
            return now_s
        return max(float(np.partition(r.end, wanted - 1)[wanted - 1]), begun + FILL_LENGTHS * length_s)

    def _turns_are_there(self, r: Requests, first: int) -> bool:
        if r.turn is None or len(self._turns) < 2:
            return True
        shares = np.bincount(r.turn[first:], minlength=len(self._turns))[: len(self._turns)] / (len(r.sent) - first)
        return bool((shares >= _TURNS_LEAST * self._turns).all())

    def _weigh(self, r: Requests, first: int, now_s: float, length_s: float, window_s: float) -> list[Weighed]:
        out = []
        for limit, least in zip(self.limits, self._least, strict=True):
            wait_s = 3 * length_s
            if limit.stem in ("ttft", "e2el") and limit.percentile is not None:
                wait_s = limit.most / 1e3
            waited_s = wait_s if wait_s <= _WAITED_FOR * window_s else _WAIT_SHARE * window_s
            last = int(np.searchsorted(r.sent, now_s - waited_s, side="right"))
            part = _part(r, first, max(last, first))
            if limit.stem == "failed":
                out.append(self._failures(part, limit, now_s, length_s, least))
            elif limit.percentile is None:
                out.append(self._mean(part, limit, now_s, least))
            else:
                out.append(self._share(part, limit, now_s, least))
        return out

    # ---- a percentile: a share of late requests ----

    def _share(self, r: Requests, limit: Limit, now_s: float, least: float) -> Weighed:
        assert limit.percentile is not None
        column, open_ = _seen(r, r.columns[limit.metric], limit, now_s)
        failed = r.failed & (r.end <= now_s)
        known = ~np.isnan(column.high) & ~open_
        age_ms = (now_s - r.sent) * 1e3
        beyond = age_ms > limit.most if limit.stem in ("ttft", "e2el") else np.zeros(len(age_ms), bool)
        if column.late is not None:
            high = low = np.where(known, np.nan_to_num(column.late), 0.0)
        else:
            high, low = ((known & (each > limit.most)).astype(float) for each in (column.high, column.low))
        high, low = np.where(open_, 1.0, high), np.where(open_, beyond.astype(float), low)
        counts = known | open_
        if not self._failures_judged:  # a failed request has not kept its limit
            high, low, counts = np.where(failed, 1.0, high), np.where(failed, 1.0, low), counts | failed
        weights = (
            np.ones(len(high))
            if column.parts is None
            else np.where(known, column.parts, column.parts[known].mean() if known.any() else 1.0)
        )
        high, low, weights = high[counts], low[counts], weights[counts]
        n = len(high)
        if not n:
            return Weighed(0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None)
        turn_weights = self._turn_weights(r, counts)
        w = weights * turn_weights
        w = w / w.mean()
        unlike = self._unlike_its_turn(high * w, r, counts)
        factor = max(self._factor(unlike, high, column, r, open_, now_s, limit.percentile), least)
        each = min(float(weights.mean()), _GAPS_EACH) if column.parts is not None else 1.0
        worth = each * n / factor / float((turn_weights**2).mean())
        most, least_share = float((high * w).mean()), float((low * w).mean())
        half = n // 2
        if half >= 8:  # what gets worse is not yet as bad as it will be
            most = max(most, float((high * w)[half:].sum() / w[half:].sum()))
        value, margin, error = self._quantile(r, column, limit, open_, worth, now_s)
        settled = self._settled(n, factor) and bool(min(high.sum(), n - high.sum()) >= _FEW)
        parts = self._batches(r, column, limit, open_, now_s) if turn_weights.std() == 0 else ([], [])
        return Weighed(n, worth, most, least_share, 0.0, margin, error, value, factor, settled, *parts)

    def _turn_weights(self, r: Requests, counts: np.ndarray) -> np.ndarray:
        """Turns count as in the whole load, however many of each a probe happened to send."""
        if r.turn is None or len(self._turns) < 2:
            return np.ones(int(counts.sum()))
        turn = np.minimum(r.turn[counts], len(self._turns) - 1)
        seen = np.bincount(turn, minlength=len(self._turns)) / len(turn)
        each: np.ndarray = np.where(seen > 0, self._turns / np.maximum(seen, 1e-9), 0.0)[turn]
        even: np.ndarray = each / each.mean()
        return even

    def _unlike_its_turn(self, values: np.ndarray, r: Requests, counts: np.ndarray) -> np.ndarray:
        """Return by how much each differs from its turn's mean: turns of all users may come in step."""
        if r.turn is None or len(self._turns) < 2:
            return values
        turn = np.minimum(r.turn[counts], len(self._turns) - 1)
        means = np.bincount(turn, values) / np.maximum(np.bincount(turn), 1)
        unlike: np.ndarray = values - means[turn]
        return unlike

    def _factor(
        self, unlike: np.ndarray, high: np.ndarray, column: LimitColumn, r: Requests, open_: np.ndarray, now_s: float,
        percentile: float,
    ) -> float:  # fmt: skip
        """How many requests are worth one. Where nearly all are late, or in time, their latencies say it."""
        wave = max(self.wave, 1)
        factor = together(unlike, wave)
        if min(high.sum(), len(high) - high.sum()) >= _FEW:
            return factor
        took = np.where(open_, (now_s - r.sent) * 1e3, column.high)
        took = took[~np.isnan(took)]
        if len(took) < FEWEST:
            return factor
        tops = np.quantile(took, [0.5, percentile / 100])
        return max(factor, *(together((took > top).astype(float), wave) for top in tops))

    def _quantile(
        self, r: Requests, column: LimitColumn, limit: Limit, open_: np.ndarray, worth: float, now_s: float
    ) -> tuple[float | None, float, float | None]:
        """Return the figure, the log of it over its limit, and the error of that."""
        assert limit.percentile is not None
        values = (column.high + column.low) / 2
        if limit.stem in ("ttft", "e2el"):
            values = np.where(open_, (now_s - r.sent) * 1e3, values)
        else:
            values = np.where(open_, math.nan, values)
        if not self._failures_judged:
            values = np.where(r.failed & (r.end <= now_s), math.inf, values)
        values = values[~np.isnan(values)]
        if not len(values):
            return None, 0.0, None
        p = limit.percentile / 100
        off = math.sqrt(p * (1 - p) / max(worth, 1.0))
        shares = [max(p - off, 0.0), p, min(p + off, 1.0)]
        low, value, high = (max(float(v), 1e-3 * limit.most) for v in np.quantile(values, shares, method="lower"))
        if math.isinf(value):
            return None, 1.0, 0.5
        top = high if math.isfinite(high) else value * 2
        return value, math.log(value / limit.most), max(math.log(top / low) / 2, 1e-3)

    def _batches(
        self, r: Requests, column: LimitColumn, limit: Limit, open_: np.ndarray, now_s: float
    ) -> tuple[list[float], list[float]]:
        """Return the margin in each of some long batches: far from the limit, they say more than how many are late."""
        assert limit.percentile is not None
        p = limit.percentile / 100
        if column.late is not None:
            return [], []
        age_ms = (now_s - r.sent) * 1e3
        young = 2 * np.maximum(age_ms, limit.most)
        failed = r.failed & (r.end <= now_s)
        far = math.nan if self._failures_judged else 100 * limit.most
        high, low = (
            np.where(failed, far, np.where(open_, unknown, each))
            for unknown, each in ((young, column.high), (age_ms, column.low))
        )
        keep = ~np.isnan(high) & ~np.isnan(low)
        high, low = high[keep], low[keep]
        size = max(BATCH_WAVES * self.wave, math.ceil(BATCH_TAIL / min(p, 1 - p)))
        count = min(len(high) // size, MOST_BATCHES)
        if count < LEAST_BATCHES:
            return [], []
        size = len(high) // count
        out = []
        for values in (high, low):
            table = np.sort(values[-size * count :].reshape(count, size), axis=1)
            each = table[:, min(int(p * size), size - 1)]
            out.append(np.log(np.maximum(each, 1e-3 * limit.most) / limit.most).tolist())
        return out[0], out[1]

    def _settled(self, n: int, factor: float) -> bool:
        return n >= 2 * max(self.wave, 1) * FEWEST_BATCHES and n / factor >= TRUSTED

    # ---- a mean ----

    def _mean(self, r: Requests, limit: Limit, now_s: float, least: float) -> Weighed:
        column, open_ = _seen(r, r.columns[limit.metric], limit, now_s)
        known = ~np.isnan(column.high) & ~open_
        timed = limit.stem in ("ttft", "e2el")
        age_ms = (now_s - r.sent) * 1e3
        # An open request takes as long as it is old, at least; at most as long again is assumed.
        high, low = (np.where(open_, times * age_ms, each) for times, each in ((2.0, column.high), (1.0, column.low)))
        counts = known | (open_ if timed else False)
        parts = None if column.parts is None else column.parts[counts]
        high, low = high[counts], low[counts]
        n = len(high)
        if n < 2:
            return Weighed(n, 0.0, math.inf, 0.0, 0.0, 0.0, None, None)
        w = self._turn_weights(r, counts) * (1.0 if parts is None else parts / parts.mean())
        factor = max(together(high, max(self.wave, 1)), least)
        worth = n / factor / float((w**2).mean())
        most, less, value = float((high * w).mean()), float((low * w).mean()), float(((high + low) / 2 * w).mean())
        if n >= 16:
            most = max(most, float((high * w)[n // 2 :].sum() / w[n // 2 :].sum()))
        spread = float(high.std(ddof=1))
        error = spread / math.sqrt(max(worth, 1.0)) / max(value, 1e-9)
        margin = math.log(max(value, 1e-3 * limit.most) / limit.most)
        return Weighed(n, worth, most, less, spread, margin, max(error, 1e-3), value, factor, self._settled(n, factor))

    # ---- failed requests ----

    def _failures(self, r: Requests, limit: Limit, now_s: float, length_s: float, least: float) -> Weighed:
        ended = r.end <= now_s
        lost = ~ended & (now_s - r.sent > _LOST * length_s)
        failed = (r.failed & ended).astype(float)
        counts = ended | lost
        high, low = np.where(lost, 1.0, failed)[counts], failed[counts]
        n = len(high)
        if not n:
            return Weighed(0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None)
        factor = max(together(high, max(self.wave, 1)), least)
        share = float(low.mean())
        if not limit.most:
            margin = 1.0 if share else -1.0
        else:
            margin = math.log(max(share, 0.25 / n, 1e-2 * limit.most) / limit.most)
        error = 1 / math.sqrt(max(float(low.sum()) / factor, 0.25))
        return Weighed(
            n, n / factor, float(high.mean()), share, 0.0, margin, error, share, factor, self._settled(n, factor)
        )


def _seen(r: Requests, column: LimitColumn, limit: Limit, now_s: float) -> tuple[LimitColumn, np.ndarray]:
    """Return a latency as far as it is known at a time, and which requests may still get one."""
    if limit.stem != "ttft":
        return column, r.end > now_s
    come = (r.first <= now_s) & (r.end > now_s) & np.isnan(column.high)
    if come.any():  # by its first bytes, at the latest
        at_most = (r.first - r.sent) * 1e3
        column = LimitColumn(np.where(come, at_most, column.low), np.where(come, at_most, column.high))
    return column, (r.first > now_s) & (r.end > now_s)


def _first(r: Requests, count: int) -> Requests:
    return r if count == len(r.sent) else _part(r, 0, count)


def _part(r: Requests, a: int, b: int) -> Requests:
    columns = {
        name: LimitColumn(*(None if each is None else each[a:b] for each in column))  # type: ignore[arg-type]
        for name, column in r.columns.items()
    }
    return Requests(
        r.sent[a:b], r.first[a:b], r.end[a:b], r.failed[a:b], columns, None if r.turn is None else r.turn[a:b]
    )


def evidences(limit: Limit, probes: Sequence[Weighed]) -> tuple[float, float]:
    """Return the log of the evidence that a load keeps the limit, and that it doesn't, from all its probes."""
    worth = sum(w.worth for w in probes)
    if worth <= 0:
        return 0.0, 0.0
    high = sum(w.high * w.worth for w in probes) / worth
    low = sum(w.low * w.worth for w in probes) / worth
    if limit.stem == "failed":
        return _evidences_of_failures(limit, probes, high, low, worth)
    if limit.percentile is None:
        return _evidences_of_mean(limit, probes, high, low, worth)
    return _evidences_of_share(1 - limit.percentile / 100, probes, high, low, worth)


def _evidences_of_failures(
    limit: Limit, probes: Sequence[Weighed], high: float, low: float, worth: float
) -> tuple[float, float]:
    if limit.most:
        return _evidences_of_share(limit.most, probes, high, low, worth)
    # No number of good requests shows that none will fail.
    meets = worth / 4 if high == 0 else 0.0
    misses = math.inf if low > 0 else 0.0
    return meets, misses


def _evidences_of_mean(
    limit: Limit, probes: Sequence[Weighed], high: float, low: float, worth: float
) -> tuple[float, float]:
    spread = math.sqrt(sum(w.spread**2 * w.worth for w in probes) / worth)
    error = spread / math.sqrt(worth)
    if not error:
        below, above = math.inf, math.inf
    else:
        below, above = (limit.most - high) / error, (low - limit.most) / error
    return evidence_of_mean(max(below, 0.0), worth), evidence_of_mean(max(above, 0.0), worth)


def _evidences_of_share(
    allowed: float, probes: Sequence[Weighed], high: float, low: float, worth: float
) -> tuple[float, float]:
    """By how many are late, or by the percentiles of long batches, whichever shows more."""
    worth = min(worth, _worth_of_visits([w.low for w in probes], low))
    trust = min(worth / TRUSTED, 1.0) ** 2  # correlation is known only from enough independent requests
    meets = trust * evidence(high * worth, worth, allowed) if high < allowed else 0.0
    misses = trust * evidence(low * worth, worth, allowed) if low > allowed else 0.0
    meets_by_batches = batch_evidence([-x for w in probes for x in w.batches])
    misses_by_batches = batch_evidence([x for w in probes for x in w.batches_low])
    return max(meets, meets_by_batches), max(misses, misses_by_batches)


def _worth_of_visits(shares: Sequence[float], mean: float) -> float:
    """Return how many independent requests probes are worth whose shares of late requests differ: a server may be slow
    in one and quick in another."""
    if len(shares) < 2:
        return math.inf
    between = float(np.var(shares, ddof=1)) / len(shares)
    return max(mean * (1 - mean) / between, 1.0) if between > 0 else math.inf


def batch_evidence(margins: Sequence[float]) -> float:
    """Return the log of the evidence that these margins are above 0, on average. Neighbours may be alike."""
    count = len(margins)
    if count < LEAST_BATCHES:
        return 0.0
    x = np.array(margins)
    mean, spread = float(x.mean()), float(x.std(ddof=1))
    if mean <= 0:
        return 0.0
    unlike = x - mean
    alike = float((unlike[1:] * unlike[:-1]).sum() / max(float((unlike**2).sum()), 1e-12))
    alike = min(max(alike + 1 / count, 0.0), 0.8)
    worth = max(count * (1 - alike) / (1 + alike), 2.0)
    error = max(spread, 0.01) / math.sqrt(worth)
    return evidence_of_mean(mean / error, worth)
