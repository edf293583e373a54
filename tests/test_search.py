"""The search for the highest load within a target, in simulated time: an oracle answers instead of a server."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from dyno.facts.limits import Limit
from dyno.measure.judge import Judge
from dyno.measure.search import Probe, Search

SEEDS = 100
MOST_REQUESTS, BRIEF = 4_000, 120  # of a probe
ALPHA = 0.05 / 12


class Oracle:
    """A server with a known capacity: TTFT grows with the load, with noise, and neighbours in time are alike."""

    def __init__(
        self, limit: Limit, capacity: float, sigma: float = 0.5, rho: float = 0.0, cliff: bool = False
    ) -> None:
        self.limit, self.capacity, self.sigma, self.rho, self.cliff = limit, capacity, sigma, rho, cliff
        self.sent = 0

    def median_ms(self, level: float) -> float:
        """So that the percentile of the limit is at the limit when the load is at the capacity."""
        z = {50.0: 0.0, 90.0: 1.2816, 99.0: 2.3263}[self.limit.percentile or 50.0]
        at_capacity = self.limit.most / math.exp(z * self.sigma)
        if self.cliff:
            return at_capacity * (0.2 if level <= self.capacity else 20.0)
        return at_capacity * (level / self.capacity) ** 1.5

    def latencies(self, level: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield a hundred at a time."""
        last = rng.standard_normal()
        while True:
            noise = rng.standard_normal(100)
            if self.rho:
                for i in range(100):
                    noise[i] = last = self.rho * last + math.sqrt(1 - self.rho**2) * noise[i]
            yield self.median_ms(level) * np.exp(self.sigma * noise)


def find(oracle: Oracle, search: Search, rng: np.random.Generator) -> Search:
    while proposed := search.next():
        level, brief = proposed
        judge, most = Judge([oracle.limit], ALPHA), BRIEF if brief else MOST_REQUESTS
        for value in itertools.chain.from_iterable(oracle.latencies(level, rng)):
            judge.add_values(False, {oracle.limit.stem: value})
            if judge.requests < min(judge.next_look, most):
                continue
            if judge.outcome() != "undecided" or judge.requests >= most or (not brief and judge.hopeless(most)):
                break
        oracle.sent += judge.requests
        search.add(Probe(level, judge.outcome(), judge.margin, brief, judge.requests))
        assert len(search.probes) < 60
    return search


@pytest.mark.parametrize(
    ("percentile", "rho", "cliff"), [(99.0, 0.0, False), (90.0, 0.6, False), (50.0, 0.0, False), (99.0, 0.0, True)]
)
def test_the_interval_covers_the_truth_in_nearly_all_searches_with_a_third_of_a_grids_requests(
    percentile: float, rho: float, cliff: bool
) -> None:
    limit = Limit("ttft", 500.0, "median" if percentile == 50 else f"p{percentile:g}")
    covered, shares, widths = 0, [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        capacity = math.exp(rng.uniform(math.log(3), math.log(300)))
        oracle = Oracle(limit, capacity, rho=rho, cliff=cliff)
        search = find(oracle, Search(1, 1024, whole=False, resolution=0.05), rng)
        low, high = search.interval()
        covered += low <= capacity <= high
        widths.append(high / low)
        from dyno.measure.statistics import samples_needed

        grid = math.log(1024) / math.log(1.05) * samples_needed(percentile)
        shares.append(oracle.sent / grid)
    print(percentile, rho, cliff, covered, np.mean(shares), np.max(shares), np.median(widths), np.max(widths))
    assert covered >= 90
    assert np.mean(shares) <= 1 / 3
    assert np.median(widths) <= 1.15
