"""The plan: when each request is due, made ahead from the seed and aimed at absolute times."""

import math
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np

from dyno.facts.load import LoadSpec
from dyno.load.sessions import Graph
from dyno.units import NS_PER_S, ns
from dyno.workload.spec import WorkloadSpec


class Cancelling(msgspec.Struct, frozen=True):
    """Which requests the client cancels, and when."""

    rate: float
    after_ns: int  # from sending, at most
    seed: int

    def after(self, exchange: int) -> int | None:
        """Return the time from sending to cancelling; None: it is not cancelled."""
        rng = Random(f"{self.seed}/{exchange}")
        return round(rng.random() * self.after_ns) if rng.random() < self.rate else None


class Plan(msgspec.Struct, frozen=True):
    count: int  # sessions. Where there is no graph, each is one request
    # when each begins, from the start of the load; None: as soon as a slot is free
    due_ns: list[int] | None
    in_flight_max: int | None  # sessions
    stop_sending_ns: int | None = None
    graph: Graph | None = None  # the requests of each session
    # slots from each of these times on; in_flight_max is the most of them
    steps: list[tuple[int, int]] = []
    cancelling: Cancelling | None = None

    @property
    def requests(self) -> int:
        """Return how many requests all sessions have."""
        return self.count if self.graph is None else self.graph.members(self.count).start

    def first_wave(self, window_ns: int) -> int:
        """Return how many requests may be open within the first moments: connections are opened ahead for them."""
        wave = (
            self.count if self.due_ns is None else sum(d <= window_ns for d in self.due_ns)
        )
        return min(wave, self.in_flight_max or wave)


def make(
    load: LoadSpec,
    count: int,
    graph: Graph | None = None,
    starts_s: Sequence[float] | None = None,
) -> Plan:
    """Plan a load. `count`: sessions. `starts_s`: when they begin by the file, for a load with recorded arrivals."""
    steps = load.slots.levels(load.duration_s) if load.slots and load.duration_s else []
    cancelling = None
    if load.cancel_rate:
        cancelling = Cancelling(load.cancel_rate, ns(load.cancel_after_s), load.seed)
    return Plan(
        count=count,
        due_ns=_due_ns(load, count, starts_s),
        in_flight_max=max((slots for _, slots in steps), default=load.max_concurrency),
        stop_sending_ns=None if load.duration_s is None else ns(load.duration_s),
        graph=graph and graph.faster(load.speedup),
        steps=[(ns(time_s), slots) for time_s, slots in steps],
        cancelling=cancelling,
    )


def _due_ns(
    load: LoadSpec, count: int, starts_s: Sequence[float] | None
) -> list[int] | None:
    """Return when each session begins. None: in a closed loop, when another has ended."""
    if load.arrivals == "recorded":
        assert starts_s is not None, "workloads without times are refused before"
        return [ns(start_s / load.speedup) for start_s in starts_s[:count]]
    rng = np.random.default_rng([load.seed, 0x10AD])
    if load.rates:
        areas = np.cumsum(_gaps_s(np.ones(count), load.burstiness, rng))
        # as below: the number of arrivals is the one asked for, whatever the seed
        areas *= count / areas[-1]
        most_s = math.inf if load.duration_s is None else load.duration_s
        return [ns(min(time_s, most_s)) for time_s in load.rates.times(areas.tolist())]
    if load.closed_loop:
        return None
    arrivals_s = np.cumsum(_gaps_s(rates_rps(load, count), load.burstiness, rng))
    if load.request_rate_rps is not None:
        # As vLLM does: the last arrival falls on count/rate, so that the offered rate is the one asked for
        # whatever the seed. The price is a little less variance than a true Poisson process has.
        arrivals_s *= count / load.request_rate_rps / arrivals_s[-1]
        if load.duration_s is not None:
            arrivals_s = np.minimum(arrivals_s, load.duration_s)  # the count is rounded up
    due: list[int] = np.rint(arrivals_s * NS_PER_S).astype(np.int64).tolist()
    return due


def prompts_needed(load: LoadSpec, work: WorkloadSpec | None = None) -> int | None:
    """Return how many requests the load can send in its duration, where that is known ahead. `work`: may have times of
    its own."""
    if load.duration_s is None:
        return None
    if load.arrivals == "recorded":
        rate = work.own_rate_rps if work else None
        return math.ceil(load.duration_s * load.speedup * rate) if rate else None
    if load.request_rate_rps is not None:
        return math.ceil(load.duration_s * load.request_rate_rps)
    if load.rates:
        return math.ceil(round(load.rates.area(load.duration_s), 6))
    if load.ramp is None:
        return None
    # A ramp goes by the request, so its mean rate over time is the harmonic mean of the rates.
    rates = rates_rps(load, 1000)
    return math.ceil(load.duration_s * len(rates) / float((1 / rates).sum()))


def rates_rps(load: LoadSpec, count: int) -> np.ndarray:
    """Return the rate at which each of so many requests is sent."""
    if load.request_rate_rps is not None:
        return np.full(count, load.request_rate_rps)
    start = load.ramp_start_rps
    end = load.ramp_end_rps
    assert start is not None and end is not None, "the command line checks this"
    progress = np.arange(count) / max(count - 1, 1)
    if load.ramp == "linear":
        # A start of 0 would put the first request at infinity: begin a hundredth of the way up.
        return np.maximum(start + (end - start) * progress, end / 100)
    return start * (end / start) ** progress


def _gaps_s(
    rates: np.ndarray, burstiness: float | None, rng: np.random.Generator
) -> np.ndarray:
    if burstiness is None:
        return 1.0 / rates
    return rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness))
