"""The plan: when each request is due."""

import math
from itertools import pairwise
from typing import Any

import pytest

from dyno.facts.load import LoadSpec
from dyno.load import plan
from dyno.load.plan import Plan
from dyno.units import NS_PER_S


def gaps_s(p: Plan) -> list[float]:
    assert p.due_ns is not None
    return [(b - a) / NS_PER_S for a, b in pairwise([0, *p.due_ns])]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def coefficient_of_variation(values: list[float]) -> float:
    m = mean(values)
    return math.sqrt(mean([(v - m) ** 2 for v in values])) / m


@pytest.mark.parametrize("concurrency", [None, 1, 64])
def test_a_closed_loop_has_no_times_only_slots(concurrency: int | None) -> None:
    assert plan.make(LoadSpec(max_concurrency=concurrency), 10) == Plan(
        10, None, concurrency
    )


@pytest.mark.parametrize("rate", [0.5, 8.0, 1000.0])
@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0, None])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_the_last_arrival_is_at_count_over_rate(
    rate: float, burstiness: float | None, count: int
) -> None:
    due = plan.make(
        LoadSpec(request_rate_rps=rate, burstiness=burstiness, seed=3), count
    ).due_ns
    assert due is not None and len(due) == count
    assert due == sorted(due) and due[0] >= 0
    assert due[-1] == pytest.approx(count / rate * NS_PER_S, rel=1e-9)


@pytest.mark.parametrize(
    ("burstiness", "expected"), [(0.25, 2.0), (0.5, math.sqrt(2)), (1.0, 1.0), (4.0, 0.5)]
)
def test_gaps_scatter_as_a_gamma_distribution_of_that_burstiness(
    burstiness: float, expected: float
) -> None:
    gaps = gaps_s(
        plan.make(LoadSpec(request_rate_rps=10, burstiness=burstiness, seed=1), 20_000)
    )
    assert mean(gaps) == pytest.approx(0.1, rel=1e-6)
    assert coefficient_of_variation(gaps) == pytest.approx(expected, rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(plan.make(LoadSpec(request_rate_rps=10, seed=2), 20_000))
    assert sum(g > 0.1 for g in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_infinite_burstiness_is_a_constant_rate() -> None:
    due = plan.make(LoadSpec(request_rate_rps=8, burstiness=None), 4).due_ns
    assert due == [125_000_000, 250_000_000, 375_000_000, 500_000_000]


def test_a_linear_ramp_goes_from_rate_to_rate() -> None:
    load = LoadSpec(ramp="linear", ramp_start_rps=10, ramp_end_rps=50, burstiness=None)
    rates = [1 / g for g in gaps_s(plan.make(load, 5))]
    assert rates == pytest.approx([10, 20, 30, 40, 50], rel=1e-6)


def test_an_exponential_ramp_multiplies() -> None:
    load = LoadSpec(ramp="exponential", ramp_start_rps=1, ramp_end_rps=16, burstiness=None)
    rates = [1 / g for g in gaps_s(plan.make(load, 5))]
    assert rates == pytest.approx([1, 2, 4, 8, 16], rel=1e-6)


def test_a_ramp_from_nothing_begins_soon() -> None:
    load = LoadSpec(ramp="linear", ramp_start_rps=0, ramp_end_rps=100, burstiness=None)
    assert gaps_s(plan.make(load, 100))[0] == pytest.approx(1.0)


def test_a_random_ramp_speeds_up() -> None:
    load = LoadSpec(ramp="linear", ramp_start_rps=1, ramp_end_rps=10, seed=4)
    gaps = gaps_s(plan.make(load, 2000))
    assert mean(gaps[:500]) > 2 * mean(gaps[-500:])


def test_a_ramp_of_one_request_has_one() -> None:
    assert plan.make(
        LoadSpec(ramp="linear", ramp_start_rps=2, ramp_end_rps=4, burstiness=None), 1
    ).due_ns == [NS_PER_S // 2]


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    def made(seed: int) -> Plan:
        return plan.make(LoadSpec(request_rate_rps=5, seed=seed, max_concurrency=7), 50)

    assert made(1) == made(1)
    assert made(1).due_ns != made(2).due_ns
    assert made(1).in_flight_max == 7


@pytest.mark.parametrize(
    ("load", "needed"),
    [
        (LoadSpec(), None),
        (LoadSpec(request_rate_rps=10), None),
        (LoadSpec(duration_s=10), None),  # a closed loop: as many as the server serves
        (LoadSpec(duration_s=10, request_rate_rps=2.5), 25),
        (LoadSpec(duration_s=1.5, request_rate_rps=3), 5),
        # 10 s × 3 / ln 4
        (LoadSpec(duration_s=10, ramp="linear", ramp_start_rps=1, ramp_end_rps=4), 22),
    ],
)
def test_how_many_prompts_a_duration_needs(load: LoadSpec, needed: int | None) -> None:
    assert plan.prompts_needed(load) == needed


@pytest.mark.parametrize("ramp", ["linear", "exponential"])
def test_a_ramp_with_a_duration_reaches_its_end_rate_at_the_end(ramp: Any) -> None:
    load = LoadSpec(
        duration_s=100, ramp=ramp, ramp_start_rps=2, ramp_end_rps=20, burstiness=None
    )
    count = plan.prompts_needed(load)
    assert count is not None
    due = plan.make(load, count).due_ns
    assert due is not None
    assert 97e9 < due[-1] < 103e9


def test_a_duration_ends_the_sending() -> None:
    assert plan.make(LoadSpec(duration_s=2.5), 10).stop_sending_ns == 2_500_000_000


@pytest.mark.parametrize(
    ("p", "wave"),
    [
        (Plan(10, None, None), 10),
        (Plan(10, None, 4), 4),
        (Plan(3, None, 8), 3),
        (Plan(4, [1, 2, 30, 40], None), 2),
        (Plan(4, [1, 2, 3, 40], 2), 2),
    ],
)
def test_connections_are_opened_for_the_first_moments_and_no_more(
    p: Plan, wave: int
) -> None:
    assert p.first_wave(10) == wave
