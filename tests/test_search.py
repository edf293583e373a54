"""The search for the highest load within a target, in simulated time: an oracle answers instead of a server."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from dyno.facts.limits import Limit, parse
from dyno.facts.record import Record
from dyno.measure.judge import Judge
from dyno.measure.search import Probe, Search, monotone
from dyno.measure.sequential import effective, evidence
from dyno.units import NS_PER_MS, NS_PER_S

SEEDS = range(100)
SAMPLE = SEEDS[::4]
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


@pytest.mark.parametrize("seeds", [SAMPLE, pytest.param(SEEDS, marks=pytest.mark.nightly)], ids=["sample", "all"])
@pytest.mark.parametrize(("statistic", "rho", "cliff"), [("p99", 0.0, False), ("p90", 0.6, False), ("p99", 0.0, True)])
def test_the_interval_covers_the_truth_with_a_third_of_the_requests_of_a_grid(
    statistic: str, rho: float, cliff: bool, seeds: range
) -> None:
    limit = Limit("ttft", 500.0, statistic)
    covered, shares, widths = 0, [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        capacity = math.exp(rng.uniform(math.log(3), math.log(300)))
        oracle = Oracle(limit, capacity, rho=rho, cliff=cliff)
        search = find(oracle, Search(1, 1024, whole=False, resolution=0.05), rng)
        low, high = search.interval()
        covered += low <= capacity <= high
        widths.append(high / low)
        # A grid that is as fine as this interval, each load with the requests that one near the target needs.
        needed = max(p.requests for p in search.probes if p.outcome != "undecided")
        shares.append(oracle.sent / (math.log(1024) / math.log(high / low) * needed))
    assert covered >= 0.9 * len(seeds), covered
    assert np.mean(shares) <= 1 / 3, np.mean(shares)
    assert np.median(widths) <= 1.4, np.median(widths)


def test_looking_again_and_again_doesnt_make_it_err_more_often() -> None:
    """At the limit itself, neither side is right. A fixed 95 % interval, looked at as often, errs far more often."""
    decided = fixed = 0
    for seed in range(200):
        events = np.random.default_rng(seed).random(3000) < 0.1
        looks = [int(20 * 1.15**k) for k in range(36) if 20 * 1.15**k <= 3000]
        evidences = [evidence(float(events[:n].sum()), n, 0.1) for n in looks]
        decided += max(evidences) > -math.log(0.05)
        fixed += any(abs(events[:n].mean() - 0.1) > 1.96 * math.sqrt(0.1 * 0.9 / n) for n in looks)
    assert decided <= 10, decided
    assert fixed > 3 * decided and fixed > 20, fixed


def test_requests_that_are_late_together_count_for_fewer() -> None:
    rng = np.random.default_rng(1)
    alone = rng.random(2000) < 0.1
    together = np.repeat(rng.random(200) < 0.1, 10)
    assert effective(alone) > 1200
    assert effective(together) < 400


def judged(limits: list[str], values: list[float], failed: int = 0, alpha: float = 0.01) -> Judge:
    judge = Judge(parse(limits), alpha)
    for i, value in enumerate(values):
        judge.add_values(i < failed, {limit.stem: value for limit in judge.limits if limit.stem != "failed"})
        judge.outcome()
    return judge


def test_a_percentile_is_not_met_before_it_has_its_samples() -> None:
    assert judged(["ttft_p99:100"], [50.0] * 600).outcome() == "undecided"
    assert judged(["ttft_p99:100"], [50.0] * 800).outcome() == "meets"
    assert judged(["ttft_p99:100"], [150.0] * 30).outcome() == "misses"


def test_one_failure_misses_a_target_of_none() -> None:
    assert judged(["failed:0"], [1.0] * 40).outcome() == "meets"
    assert judged(["failed:0"], [1.0] * 40, failed=1).outcome() == "misses"
    assert judged(["failed:0.5"], [1.0] * 400, failed=3).outcome() == "meets"


def test_a_mean_is_judged_by_its_error() -> None:
    values = list(np.random.default_rng(2).normal(100, 30, 2000))
    assert judged(["ttft_mean:110"], values).outcome() == "meets"
    assert judged(["ttft_mean:90"], values).outcome() == "misses"
    assert judged(["ttft_mean:100"], values).outcome() == "undecided"


def test_all_limits_must_be_met_and_one_missed_is_enough() -> None:
    assert judged(["ttft_p50:60", "tpot_p50:60"], [50.0] * 100).outcome() == "meets"
    assert judged(["ttft_p50:60", "tpot_p50:40"], [50.0] * 100).outcome() == "misses"


def test_a_queue_that_grows_misses() -> None:
    judge = judged(["ttft_p99:1000"], [50.0] * 100)
    for count in range(120):
        judge.in_flight(3 + count)
    judge.add_values(False, {"ttft": 50.0})
    for _ in range(200):
        judge.add_values(False, {"ttft": 50.0})
        judge.outcome()
    assert judge.queue_grows and judge.outcome() == "misses"


def test_an_open_loop_meets_nothing_before_the_server_could_fill() -> None:
    judge, closed = (Judge(parse(["e2el_p50:100"]), 0.01, open_loop) for open_loop in (True, False))
    for i in range(2000):  # 200 each second, of 50 ms
        sent, end = i * NS_PER_S // 200, i * NS_PER_S // 200 + 50 * NS_PER_MS
        r = Record(i, sent, sent, end, 8, 1, chunk_ns=[end], output_tokens=1)
        for each in (judge, closed):
            each.add(r)
            each.outcome()
        if i == 400:
            assert judge.promising and judge.outcome() == "undecided" and closed.outcome() == "meets"
    assert judge.outcome() == "meets"


def test_how_long_requests_take_is_known_before_one_counts() -> None:
    judge = Judge(parse(["e2el_p50:100"]), 0.01, open_loop=True)
    for i in range(28):  # one each second, of 10 s: the server fills for 40
        sent, end = i * NS_PER_S, (i + 10) * NS_PER_S
        judge.add(Record(i, sent, sent, end, 8, 1, chunk_ns=[end], output_tokens=1))
    assert judge.requests == 0 and judge.length_s == 10


def test_an_open_loop_whose_latencies_rise_later_doesnt_meet_the_target() -> None:
    judge = Judge(parse(["e2el_p50:100"]), 0.01, open_loop=True)
    for i in range(2000):
        sent, took_ms = i * NS_PER_S // 200, 50 if i < 400 else 150
        end = sent + took_ms * NS_PER_MS
        judge.add(Record(i, sent, sent, end, 8, 1, chunk_ns=[end], output_tokens=1))
        assert judge.outcome() != "meets"
    assert not judge.promising


@pytest.mark.parametrize(
    ("target", "outcome"), [("itl_p90:30", "misses"), ("itl_p50:30", "meets"), ("tpot_p90:30", "meets")]
)
def test_every_gap_between_tokens_is_judged(target: str, outcome: str) -> None:
    """Each request has eight gaps of 5 ms and two of 100 ms: 24 ms on average."""
    judge = Judge(parse([target]), 0.01)
    for i in range(300):
        times = list(itertools.accumulate([5] * 8 + [100] * 2, initial=i * 300))
        chunks = [ms * NS_PER_MS for ms in times]
        judge.add(Record(i, chunks[0], chunks[0], chunks[-1], 8, 11, chunk_ns=chunks, output_tokens=11))
        judge.outcome()
    assert judge.outcome() == outcome


def test_flat_latencies_take_large_steps() -> None:
    search = Search(1, 1000, whole=False)
    levels = []
    while (proposed := search.next()) and len(levels) < 5:
        levels.append(proposed[0])
        search.add(Probe(proposed[0], "undecided", -0.4, proposed[1], 20))
    assert levels == [1, 2, 8, 32, 128]


def test_what_every_load_meets_and_what_none_meets() -> None:
    every, none = Search(1, 64, whole=True), Search(1, 64, whole=True, start=16)
    for _ in range(10):
        if proposed := every.next():
            every.add(Probe(proposed[0], "meets", -2.0, proposed[1]))
        if proposed := none.next():
            none.add(Probe(proposed[0], "misses", 2.0, proposed[1]))
    assert every.next() is none.next() is None
    assert every.interval() == (64, math.inf) and none.interval() == (0.0, 1.0)


def test_a_level_that_was_tried_briefly_is_tried_in_full() -> None:
    search = Search(1, 16, whole=True)
    tried = ((4.0, "meets", -0.3), (8.0, "misses", 0.3), (6.0, "undecided", 0.2), (5.0, "undecided", 0.1))
    for level, outcome, margin in tried:
        search.add(Probe(level, outcome, margin, brief=True, requests=100))  # type: ignore[arg-type]
    assert search.next() == (5.0, False)


def test_levels_that_contradict_each_other_widen_the_interval() -> None:
    search = Search(1, 64, whole=True)
    for level, outcome in ((4.0, "meets"), (8.0, "misses"), (10.0, "meets"), (16.0, "misses")):
        search.add(Probe(level, outcome, 0.0))  # type: ignore[arg-type]
    assert search.contradictions == [10.0] and search.interval() == (4.0, 16.0)


def test_a_fit_never_falls() -> None:
    assert monotone([1, 3, 2, 5], [1, 1, 1, 1]).tolist() == [1, 2.5, 2.5, 5]
    assert monotone([3, 1], [1, 3]).tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("text", "metric"),
    [("ttft_p99:5", "p99_ttft_ms"), ("p99_ttft:5", "p99_ttft_ms"), ("tpot_p50:5", "median_tpot_ms")],
)
def test_a_limit_is_written_either_way_round(text: str, metric: str) -> None:
    assert parse([text])[0].metric == metric
