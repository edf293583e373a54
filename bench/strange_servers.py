"""Models of servers that the search had not met when it was made: engines that run out of memory, static batches,
gateways, quotas, pauses, servers that change for good.

What "the highest load" means where a server changes: what a run of many minutes at that load shows. So of a server
that slows down when it is warm it is the load that the warm one carries, and of one whose speed comes and goes it is
the load whose figure over all its states keeps the limit.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from servers import (
    DrawnLoad,
    ListedLoad,
    Load,
    MM1Load,
    PoolLoad,
    Server,
    independent,
    long_run,
    mixture,
    z,
)

_CHUNK = 256
_CAPACITY = 41.3
_P90 = "ttft_p90:500"
Make = Callable[[float, np.random.Generator, float], Load]
Truth = float | Callable[[], float]


def closed(
    name: str, target: str, truth: Truth, load: Make, *, phased: bool = True
) -> Server:
    return Server(name, target, "concurrency", 1, 1024, truth, load, phased=phased)


def open_(
    name: str, target: str, truth: Truth, load: Make, served: float, *, phased: bool = True
) -> Server:
    return Server(name, target, "rate", 0.1, 1000, truth, load, served, phased=phased)


# ---- engines ----


class KvLoad(ListedLoad):
    """Continuous batching with chunked prefill and a KV cache that is too small: the youngest is preempted when it is
    full, and its tokens are calculated again. Prompts and answers vary."""

    _STEP_TOKENS, _KV_TOKENS = 2048, 40_000

    def __init__(self, rng: np.random.Generator, users: int = 0, rate: float = 0.0) -> None:
        super().__init__()
        self._rng, self._rate = rng, rate
        self._now, self._step, self._used = 0.0, 0, 0
        self._next = rng.exponential(1 / rate) if rate else math.inf
        self._sizes: Iterator[tuple[int, int]] = self._draw()
        # place, tokens to prefill, tokens still to answer
        self._waiting: list[tuple[int, int, int]] = []
        self._prefilling: list[list[int]] = []  # place, left, prefill, answer
        self._running: dict[int, tuple[int, int, int]] = {}  # begun, prefill, answer
        self._ends: list[tuple[int, int]] = []
        for _ in range(users):
            self._send(0.0)

    def _draw(self) -> Iterator[tuple[int, int]]:
        while True:
            prompts = 400 * np.exp(0.6 * self._rng.standard_normal(_CHUNK))
            answers = 150 * np.exp(0.5 * self._rng.standard_normal(_CHUNK))
            yield from zip(
                np.clip(prompts, 16, 4000).astype(int).tolist(),
                np.clip(answers, 8, 1000).astype(int).tolist(),
                strict=True,
            )

    def _send(self, at_s: float) -> None:
        prompt, answer = next(self._sizes)
        self._waiting.append((len(self.sent), prompt, answer))
        self.sent.append(at_s)
        self.first.append(math.inf)
        self.end.append(math.inf)

    def _admit(self) -> None:
        while self._waiting and self._used + self._waiting[0][1] <= self._KV_TOKENS:
            place, prompt, answer = self._waiting.pop(0)
            self._used += prompt
            self._prefilling.append([place, prompt, prompt, answer])

    def _prefill(self, budget: int) -> int:
        taken = 0
        while self._prefilling and taken < budget:
            entry = self._prefilling[0]
            tokens = min(budget - taken, entry[1])
            entry[1] -= tokens
            taken += tokens
            if not entry[1]:
                place, _, prompt, answer = self._prefilling.pop(0)
                self._running[place] = (self._step, prompt, answer)
                heapq.heappush(self._ends, (self._step + answer, place))
        return taken

    def _preempt(self) -> None:
        while self._used > self._KV_TOKENS and len(self._running) > 1:
            place, (begun, prompt, answer) = self._running.popitem()
            made = self._step - begun
            self._used -= prompt + made
            self._waiting.insert(0, (place, prompt + made, max(answer - made, 1)))

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            while self._next <= self._now:
                self._send(self._next)
                self._next += self._rng.exponential(1 / self._rate)
            self._admit()
            if not self._running and not self._prefilling:
                self._now = self._next
                continue
            decoding = len(self._running)
            self._step += 1
            before = set(self._running) if self._prefilling else None
            tokens = self._prefill(self._STEP_TOKENS - decoding)
            self._now += 0.006 + 0.00006 * decoding + 0.00002 * tokens
            self._used += decoding
            if before is not None:
                for place in self._running.keys() - before:
                    self.first[place] = min(self.first[place], self._now)
            self._preempt()
            while self._ends and self._ends[0][0] <= self._step:
                at, place = heapq.heappop(self._ends)
                begun, prompt, answer = self._running.get(place, (-1, 0, 0))
                if begun < 0 or begun + answer != at:  # it was preempted
                    continue
                del self._running[place]
                self._used -= prompt + answer
                self.end[place] = self._now
                if not self._rate:
                    self._send(self._now)


def _kv_closed() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return KvLoad(rng, users=int(level))

    target = "ttft_p90:1000"
    return closed(
        "KV full, closed", target, long_run(load, target, 20, 200, 500.0, True), load
    )


def _kv_open() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return KvLoad(rng, rate=level)

    target = "ttft_p90:1000"
    truth = long_run(load, target, 5, 45, 1500.0, False)
    return open_("KV full, open", target, truth, load, served=math.inf)


class StaticBatchLoad(ListedLoad):
    """Whoever waits, 16 at most, is answered together; the next batch waits for the longest answer of this one."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._now = rng, 0.0
        self._waiting: list[tuple[float, int]] = []
        for i in range(users):
            self._send(1e-6 * i)

    def _send(self, at_s: float) -> None:
        heapq.heappush(self._waiting, (at_s, len(self.sent)))
        self.sent.append(at_s)
        self.end.append(math.inf)

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            ready = sum(at <= self._now for at, _ in self._waiting)
            if not ready:
                self._now = self._waiting[0][0]
                continue
            batch = [heapq.heappop(self._waiting)[1] for _ in range(min(ready, 16))]
            self._now += 0.3 * math.exp(
                0.1 * float(np.max(self._rng.standard_normal(len(batch))))
            )
            for place in batch:
                self.end[place] = self._now
                # the next request follows a little later
                self._send(self._now + 0.02 * float(self._rng.random()))


def _static() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return StaticBatchLoad(int(level), rng)

    target = "ttft_p90:1400"
    return closed(
        "static batches of 16", target, long_run(load, target, 4, 120, 1500.0, True), load
    )


def _ticks() -> Server:
    """First tokens come with a clock of 50 ms."""
    top = math.exp(0.3 * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        def lengths() -> Iterator[np.ndarray]:
            for x in independent(rng):
                took = 0.5 * level / _CAPACITY / top * np.exp(0.3 * x)
                yield np.ceil(took / 0.05 - 1e-9) * 0.05

        return DrawnLoad(int(level), lengths(), begins_s)

    return closed("clock of 50 ms", _P90, _CAPACITY, load)


class WaitForBatchLoad(ListedLoad):
    """A batch starts when it has eight requests, or the first has waited 200 ms: more load is quicker at first."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._users = rng, users
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free, users = self._free, self._users
        wait = 0.2 * max(1 - users / 8, 0.0)
        while free[0] <= now_s:
            for x in self._rng.standard_normal(_CHUNK).tolist():
                start = free[0]
                took = (wait + 0.4 * users / _CAPACITY) * math.exp(0.2 * x)
                took += 0.1 * math.exp(-users / 10)
                self.sent.append(start)
                self.end.append(start + took)
                heapq.heapreplace(free, start + took)


def _quicker() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return WaitForBatchLoad(int(level), rng)

    truth = _CAPACITY * 0.5 / 0.4 / math.exp(0.2 * z("p90"))
    return closed("quicker with more", _P90, round(truth, 1), load)


def _misses_below() -> Server:
    """Misses the target up to concurrency 5, since batches wait to be filled, and keeps it from there up to 40."""
    top = math.exp(0.2 * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        share = level / _CAPACITY
        usual = max(share, 1.3 - share / 0.3) if level < 16 else share
        lengths = (0.5 * usual / top * np.exp(0.2 * x) for x in independent(rng))
        return DrawnLoad(int(level), lengths, begins_s)

    return closed("misses at low loads", _P90, _CAPACITY, load)


def _outliers() -> Server:
    """Eight of a thousand take ten times as long: the p99 is the 99.8th of the others."""
    top = mixture(0.99, [(0.992, 1.0), (0.008, 10.0)], 0.3)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        def lengths() -> Iterator[np.ndarray]:
            for x in independent(rng):
                slow = np.where(rng.random(_CHUNK) < 0.008, 10.0, 1.0)
                yield 0.5 * level / _CAPACITY / top * np.exp(0.3 * x) * slow

        return DrawnLoad(int(level), lengths(), begins_s)

    return closed("0.8 % outliers, p99", "ttft_p99:500", _CAPACITY, load)


# ---- several replicas ----


class TwoSpeedsLoad(ListedLoad):
    """Two replicas, one 1.6 times as slow, behind a balancer that sends to them in turn. Each takes longer the more it
    has."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng
        self._free = [(1e-6 * i, -1) for i in range(users)]
        self._open, self._turns = [0, 0], 0

    def until(self, now_s: float) -> None:
        free, open_ = self._free, self._open
        while free[0][0] <= now_s:
            for x in np.exp(0.2 * self._rng.standard_normal(_CHUNK)).tolist():
                start, was = free[0]
                if was >= 0:
                    open_[was] -= 1
                which = self._turns % 2
                self._turns += 1
                open_[which] += 1
                took = (0.1 + 0.012 * open_[which]) * (1.6 if which else 1.0) * x
                self.sent.append(start)
                self.end.append(start + took)
                heapq.heapreplace(free, (start + took, which))


def _two_speeds() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return TwoSpeedsLoad(int(level), rng)

    target = "e2el_p90:800"
    return closed(
        "two speeds in turn", target, long_run(load, target, 4, 200, 1500.0, True), load
    )


class GatewayLoad(ListedLoad):
    """Eight are served at once, eight wait; who finds no place is sent again by a gateway after 0.25, 0.5 and 1 s, then
    fails."""

    _PAUSES = (0.25, 0.5, 1.0)

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rate, self._rng = rate, rng
        self._busy, self._next = [0.0] * 8, float(rng.exponential(1 / rate))
        self._again: list[tuple[float, int, int]] = []  # time, place, tries

    def _offer(self, at_s: float, place: int, tries: int) -> None:
        # the 16 places: those whose end is still to come
        if self._busy[0] <= at_s:
            while self._busy and self._busy[0] <= at_s:
                heapq.heappop(self._busy)
        if len(self._busy) < 16:
            slots = sorted(self._busy)
            begun = slots[-8] if len(slots) >= 8 else at_s
            end = max(begun, at_s) + float(self._rng.exponential(0.2))
            heapq.heappush(self._busy, end)
            self.end[place] = end
        elif tries < len(self._PAUSES):
            heapq.heappush(self._again, (at_s + self._PAUSES[tries], place, tries + 1))
        else:
            self.end[place], self.failed[place] = at_s, True

    def until(self, now_s: float) -> None:
        while self._next <= now_s or (self._again and self._again[0][0] <= now_s):
            if self._again and self._again[0][0] < self._next:
                self._offer(*heapq.heappop(self._again))
                continue
            self.sent.append(self._next)
            self.end.append(math.inf)
            self.failed.append(False)
            self._offer(self._next, len(self.sent) - 1, 0)
            self._next += float(self._rng.exponential(1 / self._rate))


def _gateway() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return GatewayLoad(level, rng)

    target = "e2el_p90:1000"
    truth = long_run(load, target, 20, 60, 3000.0, False)
    return open_("gateway sends again", target, truth, load, served=40.0)


# ---- servers that change ----


class Weather:
    """What a server does whatever its load, drawn anew for each search: spans with a factor on all lengths."""

    def __init__(
        self, draw: Callable[[np.random.Generator], Iterator[tuple[float, float]]]
    ) -> None:
        self._draw = draw
        self._ends: list[float] = []
        self._factors: list[float] = []

    def at(self, begins_s: float, rng: np.random.Generator) -> Callable[[float], float]:
        """Return the factor at a time of a load that begins so late in the search."""
        if begins_s == 0:
            spans = itertools.islice(self._draw(rng), 4000)
            lasts, factors = zip(*spans, strict=True)
            self._ends, self._factors = np.cumsum(lasts).tolist(), list(factors)
        ends, factors, i = self._ends, self._factors, 0

        def factor(now_s: float) -> float:
            nonlocal i
            while ends[i] <= begins_s + now_s:
                i += 1
            return factors[i]

        return factor


def _weathered(
    name: str,
    draw: Callable[[np.random.Generator], Iterator[tuple[float, float]]],
    states: list[tuple[float, float]],
) -> Server:
    """Lengths in proportion to the concurrency, times what the weather does. `states`: a share of the time each, and a
    factor. In a closed loop a slow state has fewer requests."""
    weather = Weather(draw)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        lengths = (0.35 * level / _CAPACITY * np.exp(0.2 * x) for x in independent(rng))
        return DrawnLoad(int(level), lengths, 0.0, weather.at(begins_s, rng))

    requests = sum(share / factor for share, factor in states)
    of_requests = [(share / factor / requests, factor) for share, factor in states]
    truth = _CAPACITY * 0.5 / 0.35 / mixture(0.9, of_requests, 0.2)
    return closed(name, _P90, round(truth, 1), load, phased=False)


def two_states(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Quick and slow in turns, 30 s each on average."""
    yield float(rng.uniform(0, 30)), 1.0
    for factor in itertools.cycle((1.5, 1.0)):
        yield float(rng.uniform(20, 40)), factor


def neighbours(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Now and then a neighbour takes half of the machine for two or three seconds."""
    while True:
        yield float(rng.exponential(15.0)), 1.0
        yield float(rng.uniform(2, 3)), 2.0


def warm_after(
    span_s: float, factor: float
) -> Callable[[np.random.Generator], Iterator[tuple[float, float]]]:
    """Slower or quicker for good, so many seconds after the first request of all."""

    def draw(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        yield span_s, 1 / factor
        while True:
            yield 1e6, 1.0

    return draw


class PausingLoad(ListedLoad):
    """Everything stands still now and then: garbage is collected, a checkpoint is written."""

    def __init__(
        self,
        users: int,
        rng: np.random.Generator,
        every_s: float,
        lasts_s: float,
        begins_s: float,
    ) -> None:
        super().__init__()
        self._rng, self._every_s, self._lasts_s, self._shift = (
            rng,
            every_s,
            lasts_s,
            begins_s,
        )
        self._length_s = 0.35 * users / _CAPACITY
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free = self._free
        while free[0] <= now_s:
            for x in np.exp(0.2 * self._rng.standard_normal(_CHUNK)).tolist():
                start = free[0]
                took = self._length_s * x
                phase = (start + self._shift) % self._every_s
                if phase + took > self._every_s:  # the next pause comes meanwhile
                    took += self._lasts_s
                elif phase < self._lasts_s:
                    took += self._lasts_s - phase
                self.sent.append(start)
                self.end.append(start + took)
                heapq.heapreplace(free, start + took)


def _collects() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PausingLoad(int(level), rng, every_s=10.0, lasts_s=0.3, begins_s=begins_s)

    target = "e2el_p99:700"
    return closed(
        "pauses every 10 s, p99", target, long_run(load, target, 5, 120, 3000.0, True), load
    )


def _scales() -> Server:
    """Capacity doubles 45 s after the first load above 12."""
    top = math.exp(0.2 * z("p90"))
    asked = {"at": math.inf}

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            asked["at"] = math.inf
        if level > 12:
            asked["at"] = min(asked["at"], begins_s)
        since_s = asked["at"] + 45 - begins_s
        lengths = (
            0.5 * level / _CAPACITY / top * np.exp(0.2 * x) for x in independent(rng)
        )
        return DrawnLoad(int(level), lengths, 0.0, lambda t: 2.0 if t < since_s else 1.0)

    return closed("scales up after 45 s", _P90, _CAPACITY, load, phased=False)


# ---- lengths that vary much ----


def _pareto() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PoolLoad(16, lambda n: 0.05 * (1 + rng.pareto(1.6, n)), rng, rate=level)

    target = "e2el_p90:400"
    truth = long_run(load, target, 60, 119, 8000.0, False)
    return open_("Pareto lengths", target, truth, load, served=16 / (0.05 * 1.6 / 0.6))


class SessionsLoad(ListedLoad):
    """Each user has sessions of ten requests that are all long or all short."""

    def __init__(self, users: int, scale_s: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._scale_s = rng, scale_s
        self._free = [(1e-6 * i, 0, 1.0) for i in range(users)]

    def until(self, now_s: float) -> None:
        free, rng = self._free, self._rng
        while free[0][0] <= now_s:
            own = np.exp(0.6 * rng.standard_normal(_CHUNK)).tolist()
            each = np.exp(0.2 * rng.standard_normal(_CHUNK)).tolist()
            for session, x in zip(own, each, strict=True):
                start, left, factor = free[0]
                if not left:
                    left, factor = 10, session
                end = start + self._scale_s * factor * x
                self.sent.append(start)
                self.end.append(end)
                heapq.heapreplace(free, (end, left - 1, factor))


def _sessions() -> Server:
    scale = 0.5 / math.exp(math.hypot(0.6, 0.2) * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return SessionsLoad(int(level), scale * level / _CAPACITY, rng)

    # every session has ten requests, however long: a request is as often long as a session is
    return closed("sessions alike", "e2el_p90:500", _CAPACITY, load)


class PrefixCacheLoad(ListedLoad):
    """Conversations of five turns. The first turn prefills all; later ones find their prefix in a cache, if that is big
    enough for all users: beyond 30, more and more of them miss it."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng, self._users = rng, users
        self._free = [(1e-6 * i, int(t)) for i, t in enumerate(rng.integers(0, 5, users))]
        self._free = [(at, 0) for at, _ in self._free]

    def until(self, now_s: float) -> None:
        free, rng = self._free, self._rng
        hits = min(30 / self._users, 1.0)
        while free[0][0] <= now_s:
            noise = np.exp(0.2 * rng.standard_normal(_CHUNK)).tolist()
            for x, luck in zip(noise, rng.random(_CHUNK).tolist(), strict=True):
                start, turn = free[0]
                cached = turn > 0 and luck < hits
                tokens = 1.0 + 0.5 * turn
                first = start + x * (0.03 + 0.002 * self._users) * (
                    0.5 if cached else 2.0 * tokens
                )
                self.sent.append(start)
                self.first.append(first)
                self.end.append(first + 0.3)
                self.turn.append(turn)
                heapq.heapreplace(free, (first + 0.4, (turn + 1) % 5))


def _prefix_cache() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PrefixCacheLoad(int(level), rng)

    target = "ttft_p90:400"
    truth = long_run(load, target, 4, 300, 1500.0, True)
    return closed("prefix cache", target, truth, load)._replace(turns=(0.2,) * 5)


# ---- limits and failures ----


class BothLoad(ListedLoad):
    """The first token takes longer with the load; the speed of the others is always 4 % below its limit."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng
        self._scale = 0.5 * users / _CAPACITY / math.exp(0.3 * z("p90"))
        self._step = (
            0.0096
            / math.exp(0.03 * z("p90"))
            * math.exp(0.01 * float(rng.standard_normal()))
        )
        self._free = [1e-6 * i for i in range(users)]

    def until(self, now_s: float) -> None:
        free, rng = self._free, self._rng
        while free[0] <= now_s:
            firsts = (self._scale * np.exp(0.3 * rng.standard_normal(_CHUNK))).tolist()
            steps = (127 * self._step * np.exp(0.03 * rng.standard_normal(_CHUNK))).tolist()
            for first, rest in zip(firsts, steps, strict=True):
                start = free[0]
                self.sent.append(start)
                self.first.append(start + first)
                self.end.append(start + first + rest)
                heapq.heapreplace(free, start + first + rest)


def _flat() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return BothLoad(int(level), rng)

    return closed("one limit is flat", "ttft_p90:500 tpot_p90:10", _CAPACITY, load)


class BurstsOfFailuresLoad(DrawnLoad):
    """Beyond 24 at once, half of the requests fail for a second now and then: 2.5 % of all."""

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        super().__init__(users, (0.4 * np.exp(0.2 * x) for x in independent(rng)))
        gap = 19.0 if users > 24 else 190.0
        self._bursts = np.cumsum(1.0 + rng.exponential(gap, 4000)) - 1.0
        self._rng = rng

    def until(self, now_s: float) -> None:
        super().until(now_s)
        sent = np.array(self.sent[len(self.failed) :])
        last = np.searchsorted(self._bursts, sent, side="right") - 1
        since = np.where(last >= 0, sent - self._bursts[last], np.inf)
        fails = (since < 1.0) & (self._rng.random(len(sent)) < 0.5)
        self.failed.extend(fails.tolist())


def _fails_in_bursts() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return BurstsOfFailuresLoad(int(level), rng)

    server = closed("fails in bursts", "failed:0.01", 24.5, load)
    return server._replace(most=128)


class BucketLoad(ListedLoad):
    """20 requests a second, and 100 more of what was saved; the rest is refused. What is saved stays from load to
    load."""

    def __init__(self, rate: float, saved: list[float], rng: np.random.Generator) -> None:
        super().__init__()
        self._rate, self._saved, self._rng = rate, saved, rng
        self._now = 0.0

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            gap = float(self._rng.exponential(1 / self._rate))
            self._now += gap
            tokens = min(self._saved[0] + 20.0 * gap, 100.0)
            refused = tokens < 1
            self._saved[0] = tokens if refused else tokens - 1
            self.sent.append(self._now)
            self.end.append(self._now + (0.005 if refused else 0.1))
            self.failed.append(refused)


def _bucket() -> Server:
    saved, ended = [100.0], [0.0]

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if begins_s == 0:
            saved[0], ended[0] = 100.0, 0.0
        saved[0] = min(saved[0] + 20 * 0.7, 100.0)  # between two probes
        return BucketLoad(level, saved, rng)

    # 1 % are refused: by a random walk between 0 and 100
    return open_("token bucket", "failed:0.01", 20.2, load, served=20.4, phased=False)


# ---- open loops near saturation ----


class Queue(MM1Load):
    """One server. What passes between arrivals, and what each takes, is drawn."""

    def __init__(
        self, gap: Callable[[int], np.ndarray], work: Callable[[int], np.ndarray]
    ) -> None:
        super().__init__(1.0, 1.0, np.random.default_rng(0))
        self._gap, self._draw = gap, work

    def until(self, now_s: float) -> None:
        while not len(self._arrive) or self._arrive[-1] <= now_s:
            self._add(512)

    def _add(self, count: int) -> None:
        last = self._arrive[-1] if len(self._arrive) else 0.0
        more = last + np.cumsum(self._gap(count))
        self._arrive = np.concatenate([self._arrive, more])
        self._work = np.concatenate([self._work, self._draw(count)])

    def took(self, count: int) -> np.ndarray:
        """Return how long so many requests take from their sending to their end."""
        self._add(count)
        sent, _, end, _, _ = self.columns()
        took: np.ndarray = end - sent
        return took


def _queue(name: str, steady: str, least: float, most: float, target: str) -> Server:
    """`steady`: what doesn't vary, arrivals or service; 50 requests/s are served."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        def even(n: int) -> np.ndarray:
            return (1 + 0.01 * rng.standard_normal(n)) / level

        def random(n: int) -> np.ndarray:
            return rng.exponential(1 / level, n)

        def same(n: int) -> np.ndarray:
            return 0.02 * (1 + 0.05 * rng.standard_normal(n))

        def various(n: int) -> np.ndarray:
            return rng.exponential(0.02, n)

        gap = even if steady in ("arrivals", "both") else random
        work = same if steady in ("service", "both") else various
        return Queue(gap, work)

    truth: Truth = 50.0
    if steady != "both":
        limit_s = float(target.partition(":")[2]) / 1e3
        truth = cache(partial(_crossing, load, least, most, limit_s))
    return open_(name, target, truth, load, served=50.0)


def _crossing(load: Make, least: float, most: float, limit_s: float) -> float:
    """Return the rate at which the p90 of a million requests to one server is at its limit."""
    while most / least > 1.001:
        rate = (least + most) / 2
        queue = load(rate, np.random.default_rng(7), 0.0)
        assert isinstance(queue, Queue)
        inside = float(np.quantile(queue.took(1_000_000), 0.9)) <= limit_s
        least, most = (rate, most) if inside else (least, rate)
    return (least + most) / 2


STRANGE: dict[str, Callable[[], Server]] = {
    "KV full, closed": _kv_closed,
    "KV full, open": _kv_open,
    "static batches of 16": _static,
    "clock of 50 ms": _ticks,
    "quicker with more": _quicker,
    "misses at low loads": _misses_below,
    "0.8 % outliers, p99": _outliers,
    "two speeds in turn": _two_speeds,
    "gateway sends again": _gateway,
    "two states of 30 s": lambda: _weathered(
        "two states of 30 s", two_states, [(0.5, 1.0), (0.5, 1.5)]
    ),
    "bursts of a neighbour": lambda: _weathered(
        "bursts of a neighbour", neighbours, [(6 / 7, 1.0), (1 / 7, 2.0)]
    ),
    "slower after 60 s": lambda: _weathered(
        "slower after 60 s", warm_after(60.0, 1.3), [(1.0, 1.0)]
    ),
    "quicker after 60 s": lambda: _weathered(
        "quicker after 60 s", warm_after(60.0, 1 / 1.3), [(1.0, 1.0)]
    ),
    "pauses every 10 s, p99": _collects,
    "scales up after 45 s": _scales,
    "Pareto lengths": _pareto,
    "sessions alike": _sessions,
    "prefix cache": _prefix_cache,
    "one limit is flat": _flat,
    "fails in bursts": _fails_in_bursts,
    "token bucket": _bucket,
    "M/D/1": partial(_queue, "M/D/1", "service", 30, 49.9, "e2el_p90:200"),
    "D/M/1": partial(_queue, "D/M/1", "arrivals", 30, 49.9, "e2el_p90:300"),
    "even arrivals": partial(_queue, "even arrivals", "both", 30, 49.9, "e2el_p90:300"),
}
