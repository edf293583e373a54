"""Models of servers whose highest load within a target is known, in simulated time. `dyno find` never sees the truth.

A model answers one load: in the order of sending, when each request was sent, when its first token came and when it
ended. `truth` is a formula, or the result of a long run.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np

from dyno.facts.limits import Limit, parse, with_statistic
from dyno.search.timeline import LimitColumn, Requests

_NORMAL = NormalDist()
_CHUNK = 256
_PREFIX = 1e-9


class Load(Protocol):
    """Requests of one load, as time goes on."""

    def until(self, now_s: float) -> None:
        """Simulate up to a time."""

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return sent, first token, end (s), failed, turn: in the order of sending."""


class Server(NamedTuple):
    """A model and what is asked about it."""

    name: str
    target: str
    over: str
    least: float
    most: float
    # the truth, or what calculates it; 0: no load meets the target; infinity: every load does
    known: float | Callable[[], float]
    # level, randomness, when it begins
    load: Callable[[float, np.random.Generator, float], Load]
    served: float = math.inf  # the most that it serves, requests/s
    turns: tuple[float, ...] = ()
    hard: bool = False  # five minutes can hardly decide it
    # what is late, fails or changes here takes longer than a probe: METHOD.md says how often such answers are wrong
    slower: bool = False
    phased: bool = True  # a search may begin at any time; else its first load begins at 0

    @property
    def truth(self) -> float:
        """Return the highest load that meets the target: of some after many seconds."""
        return self.known() if callable(self.known) else self.known

    @property
    def limits(self) -> list[Limit]:
        return with_statistic(parse(self.target.split()))


def requests_of(load: Load, limits: list[Limit]) -> Requests:
    sent, first, end, failed, turn = load.columns()
    stems = {limit.stem for limit in limits}
    latencies = {"ttft": (first - sent) * 1e3, "e2el": (end - sent) * 1e3}
    if "tpot" in stems:
        latencies["tpot"] = (end - np.where(np.isfinite(first), first, 0.0)) * 1e3 / 127
    columns = {}
    for limit in limits:
        if (
            limit.stem == "invalid"
        ):  # what a model fails is an answer of the wrong form then
            wrong = failed.astype(float)
            columns["invalid"] = LimitColumn(wrong, wrong)
            failed = np.zeros(len(sent), bool)
        elif not limit.is_share:
            values = np.where(failed, math.nan, latencies[limit.stem])
            columns[limit.metric] = LimitColumn(values, values)
    return Requests(sent, first, end, failed, columns, turn if turn.any() else None)


class ListedLoad:
    """Keeps the columns as lists."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.first: list[float] = []
        self.end: list[float] = []
        self.failed: list[bool] = []
        self.turn: list[int] = []

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        sent = np.array(self.sent)
        end = np.array(self.end)
        first = np.array(self.first) if self.first else end
        failed = np.array(self.failed) if self.failed else np.zeros(len(sent), bool)
        turn = np.array(self.turn) if self.turn else np.zeros(len(sent), int)
        return sent, first, end, failed, turn


# ---- closed loops whose latencies are drawn ----


class DrawnLoad(ListedLoad):
    """N requests are always in flight; how long each takes is drawn in the order of sending."""

    def __init__(self, users: int, lengths: Iterator[np.ndarray], begins_s: float = 0.0,
                 times: Callable[[float], float] | None = None) -> None:  # fmt: skip
        super().__init__()
        self._free = [1e-6 * i for i in range(users)]
        self._lengths, self._times, self._begins_s = lengths, times, begins_s

    def until(self, now_s: float) -> None:
        free, sent, end = self._free, self.sent, self.end
        times, begins = self._times, self._begins_s
        while free[0] <= now_s:
            for length in next(self._lengths).tolist():
                start = free[0]
                if times is not None:
                    length *= times(begins + start)
                sent.append(start)
                end.append(start + length)
                heapq.heapreplace(free, start + length)


def independent(rng: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        yield rng.standard_normal(_CHUNK)


def correlated(rng: np.random.Generator, rho: float) -> Iterator[np.ndarray]:
    """AR(1): each request is like the one before it."""
    steps = np.arange(_CHUNK)
    lower = np.tril(rho ** np.maximum(steps[:, None] - steps[None, :], 0)) * math.sqrt(
        1 - rho * rho
    )
    fade, last = rho ** (steps + 1.0), float(rng.standard_normal())
    while True:
        x = lower @ rng.standard_normal(_CHUNK) + fade * last
        last = float(x[-1])
        yield x


SLOW, SLOW_SHARE = 3.0, 0.2  # a slow spell: times as long, share of the requests


def spells(rng: np.random.Generator, length: int, sigma: float) -> Iterator[np.ndarray]:
    """Now and then, as many requests in a row are slow. Yields logs of lengths."""
    left, gap = 0, length * (1 - SLOW_SHARE) / SLOW_SHARE
    wait = rng.exponential(gap)
    while True:
        out = sigma * rng.standard_normal(_CHUNK)
        i = 0
        while i < _CHUNK:
            if left:
                k = min(left, _CHUNK - i)
                out[i : i + k] += math.log(SLOW)
                left, i = left - k, i + k
            else:
                k = min(math.ceil(wait), _CHUNK - i)
                wait, i = wait - k, i + k
                if wait <= 0:
                    left, wait = length, rng.exponential(gap)
        yield out


def noisy(
    target: str, capacity: float, sigma: float, noise: Callable[[np.random.Generator], Iterator[np.ndarray]],
    quantile_z: float, power: float = 1.0, sd: float = 0.0,
) -> Callable[[float, np.random.Generator, float], Load]:  # fmt: skip
    """Latencies grow as a power of the concurrency and have a noise; at `capacity`, the figure is at its limit.
    `sd`: of the capacity, from run to run."""
    [limit] = with_statistic(parse([target]))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        here = capacity * math.exp(sd * rng.standard_normal()) if sd else capacity
        scale = limit.most / 1e3 * (level / here) ** power * math.exp(-sigma * quantile_z)
        return DrawnLoad(
            int(level), (scale * np.exp(sigma * x) for x in noise(rng)), begins_s
        )

    return load


def z(statistic: str) -> float:
    return _NORMAL.inv_cdf(float(statistic[1:]) / 100)


# ---- queues ----


class MM1Load(ListedLoad):
    """Requests arrive at random; one server, lengths exponential."""

    def __init__(self, rate: float, service: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rate, self._service, self._rng = rate, service, rng
        self._arrive, self._work = np.zeros(0), np.zeros(0)

    def until(self, now_s: float) -> None:
        while not len(self._arrive) or self._arrive[-1] <= now_s:
            last = self._arrive[-1] if len(self._arrive) else 0.0
            self._arrive = np.concatenate(
                [self._arrive, last + np.cumsum(self._rng.exponential(1 / self._rate, 512))]
            )
            self._work = np.concatenate(
                [self._work, self._rng.exponential(1 / self._service, 512)]
            )

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        done = np.cumsum(self._work)
        end = done + np.maximum.accumulate(self._arrive - (done - self._work))
        none = np.zeros(len(end), bool)
        return self._arrive, end, end, none, none.astype(int)


class PoolLoad(ListedLoad):
    """`servers` requests are served at once, in the order of arrival. Open loop (`rate`) or closed (`users`)."""

    def __init__(self, servers: int, lengths: Callable[[int], np.ndarray], rng: np.random.Generator, rate: float = 0.0,
                 users: int = 0) -> None:  # fmt: skip
        super().__init__()
        self._busy = [0.0] * servers
        self._lengths, self._rng, self._rate = lengths, rng, rate
        self._free = [1e-6 * i for i in range(users)]
        self._now = 0.0

    def until(self, now_s: float) -> None:
        busy, free, sent, first, end = (
            self._busy,
            self._free,
            self.sent,
            self.first,
            self.end,
        )
        while (free[0] if free else self._now) <= now_s:
            lengths = self._lengths(_CHUNK).tolist()
            gaps = (
                self._rng.exponential(1 / self._rate, _CHUNK).tolist()
                if self._rate
                else lengths
            )
            for length, gap in zip(lengths, gaps, strict=True):
                if free:
                    start = free[0]
                else:
                    start = self._now = self._now + gap
                begun = max(busy[0], start)
                heapq.heapreplace(busy, begun + length)
                if free:
                    heapq.heapreplace(free, begun + length)
                sent.append(start)
                first.append(begun + 0.02)
                end.append(begun + length + 0.02)


class UnlimitedLoad(ListedLoad):
    """Every request is served at once; lengths vary."""

    def __init__(
        self, rate: float, lengths: Callable[[int], np.ndarray], rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._rate, self._lengths, self._rng = rate, lengths, rng
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._last = 0.0

    def until(self, now_s: float) -> None:
        while self._last <= now_s:
            sent = self._last + np.cumsum(self._rng.exponential(1 / self._rate, _CHUNK))
            self._parts.append((sent, sent + 0.027 + self._lengths(_CHUNK)))
            self._last = float(sent[-1])

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        sent, end = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        none = np.zeros(len(sent), bool)
        return (
            sent,
            sent + 0.027 * np.exp(0.1 * np.sin(np.arange(len(sent)) * 12.9898)),
            end,
            none,
            none.astype(int),
        )


class PrefillFirstLoad(ListedLoad):
    """An engine that prefills whoever waits, one after the other, before it decodes for all: they end in waves."""

    def __init__(self, users: int, rng: np.random.Generator, prefill_s: float = 0.0111, step_s: float = 0.012,
                 tokens: int = 32, vary: float = 0.0) -> None:  # fmt: skip
        super().__init__()
        self._waiting: list[tuple[float, int]] = []
        self._running: list[tuple[float, int]] = []  # decode step at which it ends, place
        self._rng, self._prefill_s, self._step_s, self._tokens, self._vary = (
            rng,
            prefill_s,
            step_s,
            tokens,
            vary,
        )
        self._now, self._steps = 0.0, 0
        self._queue = 0  # of self.sent, next to be prefilled
        for _ in range(users):
            self._send(0.0)

    def _send(self, at_s: float) -> None:
        self.sent.append(at_s)
        self.first.append(math.inf)
        self.end.append(math.inf)

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            if self._queue < len(self.sent):
                place, self._queue = self._queue, self._queue + 1
                self._now += self._prefill_s * (
                    1 + 0.1 * float(self._rng.standard_normal())
                )
                self.first[place] = self._now
                tokens = max(
                    2,
                    round(
                        self._tokens * (1 + self._vary * float(self._rng.standard_normal()))
                    ),
                )
                heapq.heappush(self._running, (self._steps + tokens, place))
            else:
                steps = int(self._running[0][0]) - self._steps
                self._steps += steps
                self._now += steps * self._step_s
                while self._running and self._running[0][0] <= self._steps:
                    _, place = heapq.heappop(self._running)
                    self.end[place] = self._now
                    self._send(self._now)


class RefusingLoad(ListedLoad):
    """More than `most` at once are refused (429)."""

    def __init__(self, users: int, most: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._free = [(1e-6 * i, False) for i in range(users)]
        self._most, self._rng, self._served = most, rng, 0

    def until(self, now_s: float) -> None:
        free = self._free
        while free[0][0] <= now_s:
            for length in (0.3 * np.exp(0.2 * self._rng.standard_normal(_CHUNK))).tolist():
                start, was_served = free[0]
                self._served -= was_served
                refused = self._served >= self._most
                took = 0.02 if refused else length
                self._served += not refused
                self.sent.append(start)
                self.end.append(start + took)
                self.failed.append(refused)
                heapq.heapreplace(free, (start + took, not refused))


class FailingLoad(DrawnLoad):
    """A share of the requests fails at random."""

    def __init__(self, users: int, share: float, rng: np.random.Generator) -> None:
        super().__init__(users, (0.05 * np.exp(0.2 * x) for x in independent(rng)))
        self._share, self._rng = share, rng

    def until(self, now_s: float) -> None:
        super().until(now_s)
        more = len(self.sent) - len(self.failed)
        self.failed.extend((self._rng.random(more) < self._share).tolist())


class ChatLoad(ListedLoad):
    """Users hold conversations of some turns; a turn takes longer than the one before."""

    def __init__(
        self, users: int, scale_s: float, turns: tuple[float, ...], rng: np.random.Generator
    ) -> None:
        super().__init__()
        self._free = [(1e-6 * i, i, 0) for i in range(users)]
        self._scale_s, self._turns, self._rng = scale_s, turns, rng

    def until(self, now_s: float) -> None:
        free, turns, scale = self._free, self._turns, self._scale_s
        while free[0][0] <= now_s:
            for noise in np.exp(0.25 * self._rng.standard_normal(_CHUNK)).tolist():
                start, user, turn = free[0]
                first = start + scale * turns[turn] * noise
                self.sent.append(start)
                self.first.append(first)
                self.end.append(first + 0.3)
                self.turn.append(turn)
                heapq.heapreplace(free, (first + 0.3 + 0.2, user, (turn + 1) % len(turns)))


# ---- truth by a long run ----


def figure(load: Load, limit: Limit, last_s: float, first_s: float = 20.0) -> float:
    load.until(last_s)
    sent, first, end, failed, _ = load.columns()
    keep = (sent > first_s) & (sent < last_s * 0.97) & ~failed & np.isfinite(end)
    sent, first, end = sent[keep], first[keep], end[keep]
    values = {"ttft": first - sent, "e2el": end - sent, "tpot": (end - first) / 127}[
        limit.stem
    ] * 1e3
    return float(
        values.mean()
        if limit.percentile is None
        else np.percentile(values, limit.percentile)
    )


def long_run(make: Callable[[float, np.random.Generator, float], Load], target: str, low: float, high: float,
             last_s: float, whole: bool) -> Callable[[], float]:  # fmt: skip
    """Return what bisects the load at which the figure crosses its limit; once, and only where somebody asks."""

    @cache
    def bisected() -> float:
        [limit] = with_statistic(parse([target]))
        rng = np.random.default_rng(7)
        least, most = low, high
        for _ in range(40):
            middle = (least + most) / 2
            middle = float(round(middle)) if whole else middle
            if middle in (least, most) or most / least < 1.003:
                break
            inside = figure(make(middle, rng, 0.0), limit, last_s) <= limit.most
            least, most = (middle, most) if inside else (least, middle)
        return (least + most) / 2

    return bisected


def mixture(quantile: float, parts: list[tuple[float, float]], sigma: float) -> float:
    """Return the quantile of lognormal values: `parts` have a share and a factor each."""
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        below = sum(
            share * _NORMAL.cdf(math.log(middle / times) / sigma) for share, times in parts
        )
        low, high = (middle, high) if below < quantile else (low, middle)
    return low


# ---- the models ----

_SIGMA = 0.4
_CAPACITY = 41.3
TURNS = (0.6, 0.8, 1.0, 1.2, 1.4)


def _drawn(name: str, target: str, noise: Callable[[np.random.Generator], Iterator[np.ndarray]], sd: float = 0.0,
           hard: bool = False, capacity: float = _CAPACITY) -> Server:  # fmt: skip
    statistic = target.partition("_")[2].partition(":")[0]
    make = noisy(target, capacity, _SIGMA, noise, z(statistic), sd=sd)
    return Server(name, target, "concurrency", 1, 1024, capacity, make, hard=hard)


def _spells(name: str, target: str, length: int, hard: bool) -> Server:
    p = float(target.partition("_p")[2].partition(":")[0]) / 100
    sigma = 0.2
    top = mixture(p, [(1 - SLOW_SHARE, 1.0), (SLOW_SHARE, SLOW)], sigma)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        scale = 0.5 * level / _CAPACITY / top
        return DrawnLoad(
            int(level), (scale * np.exp(x) for x in spells(rng, length, sigma)), begins_s
        )

    return Server(name, target, "concurrency", 1, 1024, _CAPACITY, load, hard=hard)


def timed(name: str, times: Callable[[float], float], hard: bool) -> Server:
    """(50 + 10 N) ms, times a factor that changes with time; the median is to be 300 ms."""
    target = "ttft_p50:300"

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        shift = float(rng.uniform(0, 1000)) if begins_s < 0 else begins_s
        lengths = ((0.05 + 0.01 * level) * np.exp(0.05 * x) for x in independent(rng))
        return DrawnLoad(int(level), lengths, shift, times)

    return Server(
        name,
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 5, 80, 1200.0, True),
        load,
        hard=hard,
    )


def _exponential(name: str, target: str, limit_of_mean: float, draw: str) -> Server:
    """Unlimited capacity, lengths that vary much: 5 s on average at concurrency 128."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        mean = 5.0 * (0.5 + 0.5 * level / 128)

        def lengths() -> Iterator[np.ndarray]:
            while True:
                if draw == "exponential":
                    yield mean * rng.exponential(1.0, _CHUNK)
                else:
                    yield mean * np.exp(1.0 * rng.standard_normal(_CHUNK) - 0.5)

        return DrawnLoad(int(level), lengths(), begins_s)

    [limit] = with_statistic(parse([target]))
    truth = 128 * (2 * limit.most / 1e3 / (5.0 * limit_of_mean) - 1)
    return Server(name, target, "concurrency", 1, 1024, truth, load)


def _mm1() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return MM1Load(level, 50.0, rng)

    return Server(
        "M/M/1",
        "e2el_p90:500",
        "rate",
        0.1,
        1000,
        50 - math.log(10) / 0.5,
        load,
        served=50.0,
    )


def _mmc_closed() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PoolLoad(8, lambda n: rng.exponential(0.18, n), rng, users=int(level))

    target = "e2el_p90:700"
    return Server(
        "M/M/8, closed",
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 4, 64, 4000.0, True),
        load,
    )


def _mmc_open() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PoolLoad(8, lambda n: rng.exponential(0.2, n), rng, rate=level)

    target = "ttft_p90:400"
    truth = long_run(load, target, 20, 40, 8000.0, False)
    return Server("M/M/8, open", target, "rate", 0.1, 1000, truth, load, served=40.0)


def _unlimited(name: str, draw: str) -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        if draw == "exponential":
            return UnlimitedLoad(level, lambda n: rng.exponential(4.0, n), rng)
        return UnlimitedLoad(
            level, lambda n: 4.0 * np.exp(1.2 * rng.standard_normal(n) - 0.72), rng
        )

    return Server(name, "ttft_p90:500", "rate", 0.1, 64, math.inf, load)


def _prefill_first(name: str, vary: float) -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return PrefillFirstLoad(
            int(level), rng, prefill_s=0.0111 if not vary else 0.02, vary=vary
        )

    target = "ttft_p90:150" if vary else "ttft_p50:250"
    return Server(
        name,
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 4, 400, 300.0, True),
        load,
    )


def _hangs() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        def lengths() -> Iterator[np.ndarray]:
            while True:
                usual = 0.2 * np.exp(0.05 * rng.standard_normal(_CHUNK))
                yield np.where(rng.random(_CHUNK) < 0.15, 25.0, usual)

        return DrawnLoad(int(level), lengths(), begins_s)

    return Server(
        "15 % take 25 s", "e2el_p90:500", "concurrency", 1, 48, 0.0, load, hard=True
    )


def _refuses() -> Server:
    return Server("429 above 24", "ttft_p90:800 failed:0.01", "concurrency", 1, 1024, 24.5,
                  lambda level, rng, begins_s: RefusingLoad(int(level), 24, rng))  # fmt: skip


def _fails(name: str, share: float) -> Server:
    truth = 0.0 if share > 0.01 else math.inf
    return Server(name, "failed:0.01", "concurrency", 1, 64, truth,
                  lambda level, rng, begins_s: FailingLoad(int(level), share, rng), hard=share > 0.01)  # fmt: skip


def _violates(name: str, share: float) -> Server:
    """A half percent of the answers break their schema; above 12 at once, more."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return FailingLoad(int(level), share if level > 12 else 0.005, rng)

    return Server(
        name, "invalid:0.05", "concurrency", 1, 64, 12.5 if share > 0.05 else math.inf, load
    )


def _cliff() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        scale = 0.1 if level <= 37 else 0.9
        return DrawnLoad(
            int(level), (scale * np.exp(0.2 * x) for x in independent(rng)), begins_s
        )

    return Server("cliff", "ttft_p90:500", "concurrency", 1, 1024, 37.5, load)


def _chat() -> Server:
    middle = mixture(0.5, [(0.2, t) for t in TURNS], 0.25)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return ChatLoad(int(level), 0.25 / middle * level / _CAPACITY, TURNS, rng)

    return Server(
        "chat, turns grow",
        "ttft_p50:250",
        "concurrency",
        1,
        1024,
        _CAPACITY,
        load,
        turns=(0.2,) * 5,
    )


def _classes() -> Server:
    top = mixture(0.9, [(0.8, 1.0), (0.2, 3.0)], 0.3)

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        def lengths() -> Iterator[np.ndarray]:
            while True:
                x = np.exp(0.3 * rng.standard_normal(_CHUNK)) * np.where(
                    rng.random(_CHUNK) < 0.2, 3.0, 1.0
                )
                yield 0.5 * level / _CAPACITY / top * x

        return DrawnLoad(int(level), lengths(), begins_s)

    return Server("two classes", "ttft_p90:500", "concurrency", 1, 1024, _CAPACITY, load)


def sine(period_s: float, depth: float) -> Callable[[float], float]:
    return lambda t: 1 + depth * math.sin(2 * math.pi * t / period_s)


def steps(period_s: float, factor: float) -> Callable[[float], float]:
    """Half of the time slower."""
    return lambda t: factor if (t // period_s) % 2 else 1.0


# ---- models that the search was not tuned with ----


def _modulated() -> Server:
    """Every 2 to 4 s the speed is drawn anew (gamma)."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        speeds = np.repeat(
            rng.gamma(12.0, 1 / 12.0, 4000), rng.integers(4, 9, 4000)
        ).tolist()
        lengths = (0.35 * level / _CAPACITY * np.exp(0.2 * x) for x in independent(rng))
        return DrawnLoad(int(level), lengths, 0.0, lambda t: speeds[int(t * 2)])

    target = "ttft_p90:500"
    return Server(
        "gamma speeds",
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 10, 100, 3000.0, True),
        load,
    )


def _pauses() -> Server:
    """Every 7 s the server stops for 0.8 s: who is sent then, waits."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        lengths = ((0.02 + 0.01 * level) * np.exp(0.1 * x) for x in independent(rng))
        shift = float(rng.uniform(0, 7))

        def times(t: float) -> float:
            left = 0.8 - (t + shift) % 7.0
            return 1.0 if left <= 0 else 1.0 + left / (0.02 + 0.01 * level)

        return DrawnLoad(int(level), lengths, 0.0, times)

    target = "ttft_p90:400"
    return Server(
        "pauses every 7 s",
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 10, 100, 2000.0, True),
        load,
    )


def _starting(name: str, times: Callable[[float], float]) -> Server:
    """A closed loop in which requests take longer, or less long, the first seconds of a load."""
    top = math.exp(0.25 * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        lengths = (
            0.5 * level / _CAPACITY / top * np.exp(0.25 * x) for x in independent(rng)
        )
        return DrawnLoad(int(level), lengths, 0.0, times)

    return Server(name, "ttft_p90:500", "concurrency", 1, 1024, _CAPACITY, load)


# How the figure grows with the load, from a share of the capacity to a share of the limit. None of these is a line.


def knee(share: float) -> float:
    """Nearly flat first, then steep."""
    return 0.4 + 0.6 * share**6


def step(share: float) -> float:
    """Flat but for a jump from 80 to 110 % of the limit."""
    return 0.8 if share <= 1 else 1.1


def stairs(share: float) -> float:
    """It jumps by a fifth each time that the load has grown by a fifth, as where a batch size is rounded up."""
    return float(0.93 * 1.2 ** math.ceil(math.log(share) / math.log(1.2) - 1e-9))


def bend(share: float) -> float:
    """It rises slowly up to the limit, and quickly beyond."""
    return share**0.4 if share <= 1 else share**2.5


def _curved(
    name: str,
    shape: Callable[[float], float],
    truth: float = _CAPACITY,
    sd: Callable[[float], float] = lambda share: 0.03,
    outliers: float = 0.0,
) -> Server:
    """A closed loop whose figure grows by such a curve. `sd`: from run to run; `outliers`: share of runs that are 1.4
    times as slow."""
    top = math.exp(0.3 * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        share = level / _CAPACITY
        run = math.exp(sd(share) * rng.standard_normal())
        if rng.random() < outliers:
            run *= 1.4
        lengths = (
            0.5 * run * shape(share) / top * np.exp(0.3 * x) for x in independent(rng)
        )
        return DrawnLoad(int(level), lengths, begins_s)

    return Server(name, "ttft_p90:500", "concurrency", 1, 1024, truth, load)


class StartingLoad(ListedLoad):
    """The same in an open loop."""

    def __init__(
        self,
        rate: float,
        length_s: float,
        times: Callable[[float], float],
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self._rate, self._length_s, self._times, self._rng = rate, length_s, times, rng
        self._next = float(rng.exponential(1 / rate))

    def until(self, now_s: float) -> None:
        while self._next <= now_s:
            varies = math.exp(0.25 * self._rng.standard_normal())
            self.sent.append(self._next)
            self.end.append(self._next + self._length_s * varies * self._times(self._next))
            self._next += float(self._rng.exponential(1 / self._rate))


def _starting_open(name: str, times: Callable[[float], float]) -> Server:
    top = math.exp(0.25 * z("p90"))

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return StartingLoad(level, 0.5 * level / _CAPACITY / top, times, rng)

    return Server(name, "ttft_p90:500", "rate", 0.1, 1000, _CAPACITY, load)


def fading(more: float, lasts_s: float) -> Callable[[float], float]:
    """Return how many times as long requests take: at first by so much more, later less and less."""
    return lambda t: 1 + more * math.exp(-t / lasts_s)


def slow_for(first_s: float, factor: float) -> Callable[[float], float]:
    return lambda t: factor if t < first_s else 1.0


class TwoReplicasLoad(ListedLoad):
    """Requests go to two single servers in turn; one is slower."""

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._rate, self._rng, self._now, self._busy, self._turns = (
            rate,
            rng,
            0.0,
            [0.0, 0.0],
            0,
        )

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            for gap, work in zip(self._rng.exponential(1 / self._rate, _CHUNK).tolist(),
                                 self._rng.exponential(0.02, _CHUNK).tolist(), strict=True):  # fmt: skip
                self._now += gap
                which = self._turns % 2
                self._turns += 1
                begun = max(self._busy[which], self._now)
                self._busy[which] = begun + work * (1.5 if which else 1.0)
                self.sent.append(self._now)
                self.end.append(self._busy[which])


def _replicas() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return TwoReplicasLoad(level, rng)

    target = "e2el_p90:250"
    truth = long_run(load, target, 20, 66, 4000.0, False)
    return Server(
        "two replicas, one slow", target, "rate", 0.1, 1000, truth, load, served=2 / 0.03
    )


class LastFirstLoad(ListedLoad):
    """Four servers; who came last is served first. Closed loop."""

    def __init__(
        self, users: int, rng: np.random.Generator, priority: bool = False
    ) -> None:
        super().__init__()
        self._rng, self._priority = rng, priority
        self._waiting: list[tuple[float, int]] = []
        self._events: list[tuple[float, int]] = []  # ends
        self._now, self._idle = 0.0, 4
        for _ in range(users):
            self._send(0.0)

    def _send(self, at_s: float) -> None:
        place = len(self.sent)
        self.sent.append(at_s)
        self.first.append(math.inf)
        self.end.append(math.inf)
        order = float(place % 5 != 0) if self._priority else -float(place)
        heapq.heappush(self._waiting, (order, place))

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            while self._idle and self._waiting:
                _, place = heapq.heappop(self._waiting)
                self._idle -= 1
                self.first[place] = self._now + 0.005
                length = 0.1 * math.exp(0.3 * float(self._rng.standard_normal()))
                heapq.heappush(self._events, (self._now + 0.005 + length, place))
            self._now, place = heapq.heappop(self._events)
            self.end[place] = self._now
            self._idle += 1
            self._send(self._now)


class EngineLoad(ListedLoad):
    """An engine with continuous batching: each step decodes for all that run and prefills a part of what waits. Steps
    take longer with more of both. All outputs have 128 tokens."""

    def __init__(self, rng: np.random.Generator, users: int = 0, rate: float = 0.0) -> None:
        super().__init__()
        self._rng, self._rate = rng, rate
        self._now, self._step = 0.0, 0
        self._next = rng.exponential(1 / rate) if rate else math.inf
        # place and prompt tokens still to prefill, in the order of arrival
        self._left: list[list[float]] = []
        self._ends: list[tuple[int, int]] = []  # step, place
        for _ in range(users):
            self._send(0.0)

    def _send(self, at_s: float) -> None:
        self._left.append([len(self.sent), 512])
        self.sent.append(at_s)
        self.first.append(math.inf)
        self.end.append(math.inf)

    def _prefill(self) -> tuple[int, list[int]]:
        """Return how many prompt tokens this step takes, and whose prompts it completes."""
        budget, done = 2048, []
        while self._left and budget:
            tokens = min(budget, int(self._left[0][1]))
            budget -= tokens
            self._left[0][1] -= tokens
            if not self._left[0][1]:
                done.append(int(self._left.pop(0)[0]))
        return 2048 - budget, done

    def until(self, now_s: float) -> None:
        while self._now <= now_s:
            while self._next <= self._now:
                self._send(self._next)
                self._next += self._rng.exponential(1 / self._rate)
            if not self._left and not self._ends:
                self._now = self._next
                continue
            running = len(self._ends)
            tokens, done = self._prefill()
            self._step += 1
            took = 0.0045 + 0.00007 * running + 0.000018 * tokens
            self._now += took * (1 + 0.05 * abs(float(self._rng.standard_normal())))
            for place in done:
                self.first[place] = self._now
                heapq.heappush(self._ends, (self._step + 127, place))
            while self._ends and self._ends[0][0] <= self._step:
                _, place = heapq.heappop(self._ends)
                self.end[place] = self._now
                if not self._rate:
                    self._send(self._now)


def _engine_closed() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return EngineLoad(rng, users=int(level))

    target = "tpot_p90:12"
    truth = long_run(load, target, 4, 200, 100.0, True)
    return Server("batching engine, closed", target, "concurrency", 1, 1024, truth, load)


def _engine_flat() -> Server:
    """Its TTFT hardly rises: from 45 ms at concurrency 4 to 60 at the truth."""

    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return EngineLoad(rng, users=int(level))

    target = "ttft_p90:60"
    truth = long_run(load, target, 4, 400, 300.0, True)
    return Server(
        "batching engine, TTFT", target, "concurrency", 1, 1024, truth, load, hard=True
    )


def _engine_open() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return EngineLoad(rng, rate=level)

    target = "tpot_p90:12"
    truth = long_run(load, target, 8, 60, 300.0, False)
    return Server("batching engine, open", target, "rate", 0.1, 1000, truth, load)


def _last_first() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return LastFirstLoad(int(level), rng)

    # Those who wait longest are few: 60 of all requests at most.
    return Server(
        "last come, first served", "ttft_p90:300", "concurrency", 1, 64, math.inf, load
    )


def _priority() -> Server:
    def load(level: float, rng: np.random.Generator, begins_s: float) -> Load:
        return LastFirstLoad(int(level), rng, priority=True)

    target = "ttft_p95:600"
    return Server(
        "priority classes",
        target,
        "concurrency",
        1,
        1024,
        long_run(load, target, 4, 100, 1000.0, True),
        load,
    )


MODELS: dict[str, Callable[[], Server]] = {
    **{f"independent, {p}": partial(_drawn, f"independent, {p}", f"ttft_{p}:500", independent)
       for p in ("p50", "p90", "p99")},
    "AR(1) 0.6, p90": lambda: _drawn("AR(1) 0.6, p90", "ttft_p90:500", lambda rng: correlated(rng, 0.6)),
    "AR(1) 0.9, p90": lambda: _drawn("AR(1) 0.9, p90", "ttft_p90:500", lambda rng: correlated(rng, 0.9)),
    "AR(1) 0.95, p90": lambda: _drawn("AR(1) 0.95, p90", "ttft_p90:500", lambda rng: correlated(rng, 0.95), hard=True),
    "AR(1) 0.99, p50": lambda: _drawn("AR(1) 0.99, p50", "ttft_p50:500", lambda rng: correlated(rng, 0.99), hard=True),
    "spells of 20, p99": lambda: _spells("spells of 20, p99", "ttft_p99:500", 20, hard=True),
    "spells of 50, p95": lambda: _spells("spells of 50, p95", "ttft_p95:500", 50, hard=True),
    "prefill first, waves": lambda: _prefill_first("prefill first, waves", 0.0),
    "prefill first, mixed": lambda: _prefill_first("prefill first, mixed", 0.3),
    "M/M/1": _mm1,
    "M/M/8, closed": _mmc_closed,
    "M/M/8, open": _mmc_open,
    "exponential lengths, mean": partial(
        _exponential, "exponential lengths, mean", "e2el_mean:5000", 1.0, "exponential"),
    "exponential lengths, p90": partial(
        _exponential, "exponential lengths, p90", "e2el_p90:11513", math.log(10), "exponential"),
    "lognormal lengths, p50": partial(
        _exponential, "lognormal lengths, p50", "e2el_p50:3033", math.exp(-0.5), "lognormal"),
    "unlimited, exponential": partial(_unlimited, "unlimited, exponential", "exponential"),
    "unlimited, lognormal": partial(_unlimited, "unlimited, lognormal", "lognormal"),
    "15 % take 25 s": _hangs,
    "429 above 24": _refuses,
    "0.5 % fail": partial(_fails, "0.5 % fail", 0.005),
    "2 % fail": partial(_fails, "2 % fail", 0.02),
    "0.5 % invalid": partial(_violates, "0.5 % invalid", 0.005),
    "20 % invalid above 12": partial(_violates, "20 % invalid above 12", 0.2),
    "cliff": _cliff,
    "sine, 20 s": lambda: timed("sine, 20 s", sine(20.0, 0.5), hard=True),
    "steps of 30 s": lambda: timed("steps of 30 s", steps(30.0, 1.3), hard=True),
    "run to run 3 %": lambda: _drawn("run to run 3 %", "ttft_p90:500", independent, sd=0.03),
    "run to run 5 %": lambda: _drawn("run to run 5 %", "ttft_p90:500", independent, sd=0.05),
    "chat, turns grow": _chat,
    "two classes": _classes,
}  # fmt: skip
# Models that the search was not tuned with.
HELD_OUT: dict[str, Callable[[], Server]] = {
    "gamma speeds": _modulated, "pauses every 7 s": _pauses, "two replicas, one slow": _replicas,
    "batching engine, closed": _engine_closed, "batching engine, TTFT": _engine_flat,
    "batching engine, open": _engine_open,
    "in step at first": lambda: _starting("in step at first", fading(0.9, 4.0)),
    "slow start, 10 s": lambda: _starting("slow start, 10 s", fading(0.5, 10.0)),
    "slow for 5 s": lambda: _starting("slow for 5 s", slow_for(5.0, 1.5)),
    "slightly slow at first": lambda: _starting("slightly slow at first", fading(0.2, 6.0)),
    "quick at first": lambda: _starting("quick at first", fading(-0.4, 5.0)),
    "slow start, open": lambda: _starting_open("slow start, open", fading(0.9, 4.0)),
    "slow for 5 s, open": lambda: _starting_open("slow for 5 s, open", slow_for(5.0, 1.5)),
    "quick at first, open": lambda: _starting_open("quick at first, open", fading(-0.4, 5.0)),
    "last come, first served": _last_first, "priority classes": _priority,
    "a knee": lambda: _curved("a knee", knee),
    "a small step": lambda: _curved("a small step", step, 41.5),
    "stairs": lambda: _curved("stairs", stairs, 41.5),
    "a bend": lambda: _curved("a bend", bend),
    "steep": lambda: _curved("steep", lambda share: share**3),
    "hardly rising": lambda: _curved("hardly rising", lambda share: share**0.3),
    "noisier above": lambda: _curved("noisier above", float, sd=lambda share: 0.02 if share <= 1 else 0.15),
    "one run in ten slow": lambda: _curved("one run in ten slow", float, outliers=0.1),
}  # fmt: skip
