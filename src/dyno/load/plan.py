"""The plan: when each request is due, made ahead from the seed and aimed at absolute times."""

import math

import msgspec
import numpy as np

from dyno.facts.load import LoadSpec
from dyno.units import NS_PER_S, ns


class Plan(msgspec.Struct, frozen=True):
    count: int
    due_ns: list[int] | None  # offsets from the start of the load; None: as soon as a slot is free
    in_flight_max: int | None
    stop_sending_ns: int | None = None

    def first_wave(self, window_ns: int) -> int:
        """Return how many requests may be open within the first moments: connections are opened ahead for them."""
        wave = self.count if self.due_ns is None else sum(d <= window_ns for d in self.due_ns)
        return min(wave, self.in_flight_max or wave)


def make(load: LoadSpec, count: int) -> Plan:
    due = None
    if not load.closed_loop:
        rng = np.random.default_rng([load.seed, 0x10AD])
        arrivals_s = np.cumsum(_gaps_s(_rates_rps(load, count), load.burstiness, rng))
        if load.request_rate_rps is not None:
            # As vLLM does: the last arrival falls on count/rate, so that the offered rate is the one asked for
            # whatever the seed. The price is a little less variance than a true Poisson process has.
            arrivals_s *= count / load.request_rate_rps / arrivals_s[-1]
            if load.duration_s is not None:
                arrivals_s = np.minimum(arrivals_s, load.duration_s)  # the count is rounded up
        due = np.rint(arrivals_s * NS_PER_S).astype(np.int64).tolist()
    return Plan(
        count=count,
        due_ns=due,
        in_flight_max=load.max_concurrency,
        stop_sending_ns=None if load.duration_s is None else ns(load.duration_s),
    )


def prompts_needed(load: LoadSpec) -> int | None:
    """Return how many requests the load can send in its duration, where that is known ahead."""
    if load.duration_s is None:
        return None
    if load.request_rate_rps is not None:
        return math.ceil(load.duration_s * load.request_rate_rps)
    if load.ramp is None:
        return None
    # A ramp goes by the request, so its mean rate over time is the harmonic mean of the rates.
    rates = _rates_rps(load, 1000)
    return math.ceil(load.duration_s * len(rates) / float((1 / rates).sum()))


def _rates_rps(load: LoadSpec, count: int) -> np.ndarray:
    if load.request_rate_rps is not None:
        return np.full(count, load.request_rate_rps)
    start, end = load.ramp_start_rps, load.ramp_end_rps
    assert start is not None and end is not None, "the command line checks this"
    progress = np.arange(count) / max(count - 1, 1)
    if load.ramp == "linear":
        # A start of 0 would put the first request at infinity: begin a hundredth of the way up.
        return np.maximum(start + (end - start) * progress, end / 100)
    return start * (end / start) ** progress


def _gaps_s(rates: np.ndarray, burstiness: float | None, rng: np.random.Generator) -> np.ndarray:
    if burstiness is None:
        return 1.0 / rates
    return rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness))
