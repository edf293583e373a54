"""Models of servers as they run in production: replicas that come when they are needed, quotas, caches that fill, chips
that get hot, rare pauses and crashes, batch timers, queues with priorities.

No rule of the search was made for them. Some have a state that outlasts a load, and that the search itself changes. As
of all servers that change, the highest load is the one that a run of many minutes carries.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from servers import ListedLoad, Load, PoolLoad, Server, long_run, sine, timed, z
from strange_servers import KvLoad, PausingLoad, closed, open_

_CHUNK = 256
_BETWEEN_S = 0.7  # from one load to the next


# ---- engines ----


class MixedPromptsLoad(KvLoad):
    """Chunked prefill in the order of arrival: nine of ten prompts have 200 tokens, the tenth 8,000."""

    _KV_TOKENS = 400_000

    def _draw(self) -> Iterator[tuple[int, int]]:
        while True:
            prompts = np.where(self._rng.random(_CHUNK) < 0.1, 8000, 200)
            answers = np.clip(100 * np.exp(0.4 * self._rng.standard_normal(_CHUNK)), 8, 600)
            yield from zip(prompts.tolist(), answers.astype(int).tolist(), strict=True)


def mixed_prompts() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return MixedPromptsLoad(rng, users=int(level))

    target = "ttft_p90:1000"
    truth = long_run(load, target, 40, 400, 300.0, True)
    return closed("long and short prompts", target, truth, load)


class LongAnswersLoad(KvLoad):
    """Answers of 900 tokens on average: the cache takes a minute to fill, then requests are preempted."""

    _KV_TOKENS = 150_000

    def _draw(self) -> Iterator[tuple[int, int]]:
        while True:
            prompts = np.clip(
                300 * np.exp(0.5 * self._rng.standard_normal(_CHUNK)), 16, 2000
            )
            answers = np.clip(
                700 * np.exp(0.7 * self._rng.standard_normal(_CHUNK)), 8, 4000
            )
            yield from zip(
                prompts.astype(int).tolist(), answers.astype(int).tolist(), strict=True
            )


def long_answers() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return LongAnswersLoad(rng, rate=level)

    target = "ttft_p90:800"
    truth = long_run(load, target, 8, 25, 900.0, False)
    return open_("long answers fill the cache", target, truth, load, served=math.inf)


class BatchTimerLoad(ListedLoad):
    """A batch starts when 32 requests are there or the first has waited 300 ms; one at a time. Who comes seldom waits
    for the timer."""

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._rate = rng, rate
        self._now = 0.0  # until then the server is busy
        self._next = float(rng.exponential(1 / rate))
        self._waiting: list[int] = []

    def _arrive(self) -> None:
        self._waiting.append(len(self.sent))
        self.sent.append(self._next)
        self.end.append(math.inf)
        self._next += float(self._rng.exponential(1 / self._rate))

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            while self._next <= self._now:
                self._arrive()
            if not self._waiting:
                self._arrive()
            timer = self.sent[self._waiting[0]] + 0.3
            while len(self._waiting) < 32 and self._next <= timer:
                self._arrive()
            full = len(self._waiting) >= 32
            batch, self._waiting = self._waiting[:32], self._waiting[32:]
            begins = max(self._now, self.sent[batch[-1]] if full else timer)
            took = (0.22 + 0.004 * len(batch)) * math.exp(
                0.1 * float(self._rng.standard_normal())
            )
            self._now = begins + took
            for place in batch:
                self.end[place] = self._now


def batch_timer() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return BatchTimerLoad(level, rng)

    target = "e2el_p90:700"
    truth = long_run(load, target, 40, 95, 4000.0, False)
    return open_("batch timer", target, truth, load, served=32 / 0.348)


class PriorityLoad(ListedLoad):
    """Four servers; one of ten requests has low priority, and is served when no other waits."""

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._rate = rng, rate
        self._busy = [0.0] * 4
        self._next = float(rng.exponential(1 / rate))
        self._waiting: list[tuple[bool, int]] = []

    def _arrive(self) -> None:
        low = bool(self._rng.random() < 0.1)
        heapq.heappush(self._waiting, (low, len(self.sent)))
        self.sent.append(self._next)
        self.first.append(math.inf)
        self.end.append(math.inf)
        self._next += float(self._rng.exponential(1 / self._rate))

    def until(self, now_s: float) -> None:
        while self._next <= now_s or (self._waiting and self._busy[0] <= now_s):
            if not self._waiting or self._next <= self._busy[0]:
                self._arrive()
                continue
            _, place = heapq.heappop(self._waiting)
            begins = max(self._busy[0], self.sent[place])
            self.first[place] = begins + 0.02
            self.end[place] = begins + 0.02 + float(self._rng.exponential(0.1))
            heapq.heapreplace(self._busy, self.end[place])


def priorities() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PriorityLoad(level, rng)

    target = "ttft_p95:400"
    truth = long_run(load, target, 24, 33, 6000.0, False)
    return open_("low priority waits", target, truth, load, served=4 / 0.12)


# ---- what is in front of them ----


class Autoscaler:
    """One to three replicas of eight places each. One more, 30 s after two periods of 15 s in which they were 80 %
    busy; one fewer after four in which they were less than 40 % busy. Its state outlasts a load."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.replicas, self._comes_at = 1, math.inf
        self._high = self._low = 0
        self._ends_s, self._busy_s = 15.0, 0.0

    def note(self, now_s: float, busy_s: float) -> int:
        """Take in work, and return how many replicas there are."""
        while now_s >= self._ends_s:
            busy = self._busy_s / (15.0 * 8 * self.replicas)
            self._high = self._high + 1 if busy > 0.8 else 0
            self._low = self._low + 1 if busy < 0.4 else 0
            if self._high >= 2 and self.replicas < 3 and math.isinf(self._comes_at):
                self._comes_at = self._ends_s + 30
            if self._low >= 4 and self.replicas > 1:
                self.replicas, self._low = self.replicas - 1, 0
            self._busy_s = 0.0
            self._ends_s += 15.0
        if now_s >= self._comes_at:
            self.replicas, self._comes_at, self._high = self.replicas + 1, math.inf, 0
        self._busy_s += busy_s
        return self.replicas


class ScaledLoad(ListedLoad):
    """An open loop on replicas that come and go."""

    def __init__(
        self, rate: float, scaler: Autoscaler, begins_s: float, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._rate, self._scaler, self._begins_s, self._rng = rate, scaler, begins_s, rng
        self._busy: list[float] = []
        self._next = float(rng.exponential(1 / rate))

    def until(self, now_s: float) -> None:
        while self._next <= now_s:
            work = float(self._rng.exponential(0.2))
            places = 8 * self._scaler.note(self._begins_s + self._next, work)
            while len(self._busy) < places:
                heapq.heappush(self._busy, self._next)
            while len(self._busy) > places:
                heapq.heappop(self._busy)
            begins = max(self._busy[0], self._next)
            heapq.heapreplace(self._busy, begins + work)
            self.sent.append(self._next)
            self.first.append(begins + 0.02)
            self.end.append(begins + 0.02 + work)
            self._next += float(self._rng.exponential(1 / self._rate))


def autoscaled() -> Server:
    scaler = Autoscaler()

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            scaler.reset()
        return ScaledLoad(level, scaler, begins_s, rng)

    def with_all(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PoolLoad(24, lambda n: rng.exponential(0.2, n), rng, rate=level)

    target = "ttft_p90:400"
    truth = long_run(with_all, "ttft_p90:380", 90, 119.9, 6000.0, False)
    return open_("scales by load", target, truth, load, served=120.0, phased=False)


class QuotaLoad(ListedLoad):
    """1,200 requests in each minute by the clock; the rest is refused until the next one begins."""

    def __init__(
        self, rate: float, used: dict[int, int], begins_s: float, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._rate, self._used, self._begins_s, self._rng = rate, used, begins_s, rng
        self._next = float(rng.exponential(1 / rate))

    def until(self, now_s: float) -> None:
        while self._next <= now_s:
            minute = int((self._begins_s + self._next) // 60)
            count = self._used.get(minute, 0)
            refused = count >= 1200
            self._used[minute] = count + (not refused)
            self.sent.append(self._next)
            self.end.append(self._next + (0.005 if refused else 0.1))
            self.failed.append(refused)
            self._next += float(self._rng.exponential(1 / self._rate))


def _quota_truth() -> float:
    """Return the rate at which 1 % of the requests of a minute, a Poisson number, are more than 1,200."""
    rng = np.random.default_rng(7)
    low, high = 18.0, 22.0
    while high - low > 0.01:
        rate = (low + high) / 2
        count = rng.poisson(60 * rate, 200_000)
        refused = np.maximum(count - 1200, 0).sum() / count.sum()
        low, high = (rate, high) if refused <= 0.01 else (low, rate)
    return low


def quota() -> Server:
    used: dict[int, int] = {}

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            used.clear()
        return QuotaLoad(level, used, begins_s, rng)

    return open_(
        "quota of a minute",
        "failed:0.01",
        cache(_quota_truth),
        load,
        served=20.4,
        phased=False,
    )


class CachedAnswersLoad(ListedLoad):
    """Answers are kept for 60 s: of 3,000 prompts some are asked often. The others wait for one of eight places. What
    is kept outlasts a load."""

    def __init__(
        self, rate: float, kept: np.ndarray, begins_s: float, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._rate, self._kept, self._begins_s, self._rng = rate, kept, begins_s, rng
        self._busy, self._next = [0.0] * 8, float(rng.exponential(1 / rate))
        shares = 1 / np.arange(1, len(kept) + 1) ** 0.9
        self._below = np.cumsum(shares / shares.sum())

    def until(self, now_s: float) -> None:
        while self._next <= now_s:
            asked = np.searchsorted(self._below, self._rng.random(_CHUNK)).tolist()
            work = self._rng.exponential(0.2, _CHUNK).tolist()
            gaps = self._rng.exponential(1 / self._rate, _CHUNK).tolist()
            for prompt, took, gap in zip(asked, work, gaps, strict=True):
                now = self._begins_s + self._next
                self.sent.append(self._next)
                if 0 <= now - self._kept[prompt] < 60:
                    self.end.append(self._next + 0.005)
                else:
                    end = max(self._busy[0], self._next) + took
                    heapq.heapreplace(self._busy, end)
                    self.end.append(end)
                    self._kept[prompt] = self._begins_s + end
                self._next += gap


def cached_answers() -> Server:
    kept = np.full(3000, -1e9)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            kept[:] = -1e9
        return CachedAnswersLoad(level, kept, begins_s, rng)

    target = "e2el_p95:500"
    truth = long_run(load, target, 30, 200, 1500.0, False)
    return open_(
        "answers kept for a minute", target, truth, load, served=math.inf, phased=False
    )


class BacklogLoad(ListedLoad):
    """64 connections are accepted; who finds no place comes again 1, 3, 7 s later, and so on, as TCP does."""

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._rate = rng, rate
        self._next = float(rng.exponential(1 / rate))
        self._again: list[tuple[float, float, int]] = []  # time, pause, place
        self._open: list[float] = []

    def _offer(self, at_s: float, pause_s: float, place: int) -> None:
        while self._open and self._open[0] <= at_s:
            heapq.heappop(self._open)
        if len(self._open) >= 64:
            heapq.heappush(self._again, (at_s + pause_s, 2 * pause_s, place))
            return
        ends = at_s + 0.3 * math.exp(0.2 * float(self._rng.standard_normal()))
        heapq.heappush(self._open, ends)
        self.end[place] = ends

    def until(self, now_s: float) -> None:
        while self._next <= now_s or (self._again and self._again[0][0] <= now_s):
            if self._again and self._again[0][0] < self._next:
                self._offer(*heapq.heappop(self._again))
                continue
            self.sent.append(self._next)
            self.end.append(math.inf)
            self._offer(self._next, 1.0, len(self.sent) - 1)
            self._next += float(self._rng.exponential(1 / self._rate))


def backlog() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return BacklogLoad(level, rng)

    target = "e2el_p90:800"
    truth = long_run(load, target, 120, 220, 600.0, False)
    return open_("connections come again", target, truth, load, served=64 / 0.306)


class StickyLoad(ListedLoad):
    """Four replicas; each user stays with one for 20 requests, then draws another. A replica with more of them is
    slower."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng
        where = rng.integers(0, 4, users).tolist()
        left = rng.integers(1, 21, users).tolist()
        self._users = np.bincount(where, minlength=4).tolist()
        self._free = [
            (1e-6 * i, w, n) for i, (w, n) in enumerate(zip(where, left, strict=True))
        ]

    def until(self, now_s: float) -> None:
        free, users = self._free, self._users
        while free[0][0] <= now_s:
            noise = np.exp(0.15 * self._rng.standard_normal(_CHUNK)).tolist()
            for x, drawn in zip(
                noise, self._rng.integers(0, 4, _CHUNK).tolist(), strict=True
            ):
                start, where, left = free[0]
                if not left:
                    users[where] -= 1
                    where, left = drawn, 20
                    users[where] += 1
                end = start + (0.05 + 0.03 * users[where]) * x
                self.sent.append(start)
                self.end.append(end)
                heapq.heapreplace(free, (end, where, left - 1))


def sticky() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return StickyLoad(int(level), rng)

    target = "e2el_p90:600"
    truth = long_run(load, target, 10, 150, 3000.0, True)
    return closed("sticky sessions", target, truth, load)


# ---- machines ----


class Chip:
    """Gets hot with the load, within 45 s, and slower from 80 % of its heat on. It stays hot from load to load."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.heat, self._at_s = 0.3, 0.0

    def factor(self, now_s: float, use: float) -> float:
        passed_s = max(now_s - self._at_s, 0.0)
        self._at_s = max(now_s, self._at_s)
        self.heat += (use - self.heat) * (1 - math.exp(-passed_s / 45.0))
        return hot(self.heat)


def hot(heat: float) -> float:
    return 1 + 3 * max(heat - 0.8, 0.0)


class HotLoad(ListedLoad):
    def __init__(
        self, users: int, chip: Chip, begins_s: float, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._rng, self._chip, self._begins_s = rng, chip, begins_s
        self._use = min(users / 40, 1.0)
        self._length_s = 0.5 * users / 50.0 / math.exp(0.2 * z("p90"))
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free = self._free
        while free[0] <= now_s:
            start = free[0]
            factor = self._chip.factor(self._begins_s + start, self._use)
            took = (
                self._length_s * factor * math.exp(0.2 * float(self._rng.standard_normal()))
            )
            self.sent.append(start)
            self.end.append(start + took)
            heapq.heapreplace(free, start + took)


def throttles() -> Server:
    chip = Chip()

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            chip.reset()
        return HotLoad(int(level), chip, begins_s, rng)

    truth = max(n for n in np.arange(20, 50, 0.1) if n / 50 * hot(min(n / 40, 1.0)) <= 1)
    return closed("gets hot", "e2el_p90:500", round(float(truth), 1), load, phased=False)


def seldom_pauses() -> Server:
    """2.5 s every 45 s (a checkpoint is written). Who is in flight waits: 1 % of the requests from about 50 on."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PausingLoad(int(level), rng, every_s=45.0, lasts_s=2.5, begins_s=begins_s)

    target = "e2el_p99:1000"
    truth = long_run(load, target, 20, 120, 4500.0, True)
    return closed("2.5 s every 45 s, p99", target, truth, load)


class CrashingLoad(ListedLoad):
    """Beyond 30 at once it crashes every 100 s or so: all that run fail, and for 4 s all that come."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng
        gap_s = 100.0 if users > 30 else 1e9
        self._crashes = np.cumsum(4.0 + rng.exponential(gap_s, 400)) - 4.0
        self._crash = 0
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free = self._free
        while free[0] <= now_s:
            for x in np.exp(0.2 * self._rng.standard_normal(_CHUNK)).tolist():
                start, took = free[0], 0.4 * x
                while start >= self._crashes[self._crash] + 4:
                    self._crash += 1
                crash_s = float(self._crashes[self._crash])
                down, cut = start >= crash_s, start < crash_s < start + took
                if down:
                    took = 0.5
                elif cut:
                    took = crash_s - start
                self.sent.append(start)
                self.end.append(start + took)
                self.failed.append(down or cut)
                heapq.heapreplace(free, start + took)


def crashes() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return CrashingLoad(int(level), rng)

    return closed("crashes every 100 s", "failed:0.01", 30.5, load)._replace(most=128)


class WarmingLoad(ListedLoad):
    """A cache fills with what is asked: each request is up to 40 % quicker, the more have come before it."""

    def __init__(self, users: int, served: list[float], rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._served = rng, served
        self._length_s = 0.5 * users / 41.3 / 0.6 / math.exp(0.25 * z("p90"))
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free = self._free
        while free[0] <= now_s:
            start = free[0]
            factor = 0.6 + 0.4 * math.exp(-self._served[0] / 4000)
            took = (
                self._length_s
                * factor
                * math.exp(0.25 * float(self._rng.standard_normal()))
            )
            self._served[0] += 1
            self.sent.append(start)
            self.end.append(start + took)
            heapq.heapreplace(free, start + took)


def warms() -> Server:
    served = [0.0]

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            served[0] = 0.0
        return WarmingLoad(int(level), served, rng)

    return closed("cache warms over the search", "e2el_p90:500", 41.3, load, phased=False)


def slow_sine() -> Server:
    return timed("sine, 90 s", sine(90.0, 0.3), hard=True)


PRODUCTION: dict[str, Callable[[], Server]] = {
    "long and short prompts": mixed_prompts,
    "long answers fill the cache": long_answers,
    "batch timer": batch_timer,
    "low priority waits": priorities,
    "scales by load": autoscaled,
    "quota of a minute": quota,
    "answers kept for a minute": cached_answers,
    "connections come again": backlog,
    "sticky sessions": sticky,
    "gets hot": throttles,
    "2.5 s every 45 s, p99": seldom_pauses,
    "crashes every 100 s": crashes,
    "cache warms over the search": warms,
    "sine, 90 s": slow_sine,
}
