"""Schedules: a rate or a concurrency that changes during the load."""

from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

import pytest

from dyno.errors import UsageError
from dyno.facts import schedule
from dyno.facts.load import Load, LoadSpec
from dyno.facts.schedule import Schedule
from dyno.load import plan
from dyno.units import NS_PER_S

SHAPES = [
    "step: 0=2 30=8 60=2",
    "ramp: 2..8 over=60",
    "sine: 2..8 period=60",
    "burst: 2 peak=20 every=30 for=3",
]


def counts(load: LoadSpec, *bounds_s: float) -> list[int]:
    """How many arrivals fall into each window."""
    needed = plan.prompts_needed(load)
    assert needed is not None
    due = plan.make(load, needed).due_ns
    assert due is not None and due == sorted(due)
    places = [bisect_left(due, bound * NS_PER_S) for bound in bounds_s]
    return [b - a for a, b in pairwise(places)]


@pytest.mark.parametrize(
    ("text", "windows", "expected"),
    [
        ("step: 0=2 30=8 60=2", (0, 30, 60, 90), [60, 240, 60]),
        ("ramp: 0..10 over=100", (0, 50, 100, 150), [125, 375, 500]),
        ("sine: 2..8 period=60", (0, 30, 60, 120), [150, 150, 300]),
        ("sine: 0..10 period=100", (0, 25, 75, 100), [45, 410, 45]),
        ("burst: 2 peak=20 every=30 for=3", (0, 27, 30, 57, 60), [54, 60, 54, 60]),
        ("step: 0=0 10=5", (0, 10, 20), [0, 50]),
    ],
)
def test_constant_gaps_put_as_many_arrivals_into_a_window_as_the_rate_says(
    text: str, windows: tuple[float, ...], expected: list[int]
) -> None:
    load = LoadSpec(rate_schedule=text, burstiness=None, duration_s=windows[-1] + 1)
    assert counts(load, *windows) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("text", SHAPES)
def test_random_arrivals_follow_the_rate_and_their_number_is_exact(text: str) -> None:
    load = LoadSpec(rate_schedule=text.replace("2..8", "200..800"), duration_s=60, seed=5)
    rates = load.rates
    assert rates is not None
    expected = [rates.area(t + 10) - rates.area(t) for t in range(0, 60, 10)]
    windows = counts(load, *range(0, 70, 10))
    assert sum(windows) == pytest.approx(sum(expected), abs=2)
    for got, wanted in zip(windows, expected, strict=True):
        assert abs(got - wanted) < 5 * wanted**0.5 + 2  # five standard deviations
    assert windows == counts(load, *range(0, 70, 10))


@pytest.mark.parametrize("text", SHAPES)
def test_times_are_the_inverse_of_the_area(text: str) -> None:
    made = Schedule.parse(text)
    areas = [0.5 * i for i in range(1, 1000)]
    assert [made.area(t) for t in made.times(areas)] == pytest.approx(areas)


def test_a_schedule_without_a_duration_continues_until_all_are_sent() -> None:
    due = plan.make(LoadSpec(rate_schedule="step: 0=10 1=100", burstiness=None), 210).due_ns
    assert due is not None and due[-1] == 3 * NS_PER_S
    with pytest.raises(UsageError, match="ends at 0"):
        plan.make(LoadSpec(rate_schedule="step: 0=10 1=0", burstiness=None), 11)


def test_a_concurrency_schedule_is_a_list_of_steps() -> None:
    load = LoadSpec(concurrency_schedule="ramp: 1..4 over=6", duration_s=10)
    made = plan.make(load, 100)
    assert made.steps == [(0, 1), (NS_PER_S, 2), (3 * NS_PER_S, 3), (5 * NS_PER_S, 4)]
    assert made.in_flight_max == 4 and load.closed_loop and made.due_ns is None
    steps = plan.make(
        LoadSpec(concurrency_schedule="burst: 2 peak=9 every=4 for=1", duration_s=8), 1
    ).steps
    assert [(t // NS_PER_S, slots) for t, slots in steps] == [
        (0, 2),
        (3, 9),
        (4, 2),
        (7, 9),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("saw: 1", "one of 'step: "),
        ("step: 5=2", "from 0 s on"),
        ("step: 0=2 8", "SECONDS=VALUE"),
        ("step: 0=1 9=2 4=3", "ascend"),
        ("step: 0=0", "above 0"),
        ("step: 0=1e9", "SECONDS=VALUE"),
        ("sine: 2..8", "'sine: 2..8 period=60'"),
        ("ramp: 2..8 over=0", "times above 0"),
        ("burst: 2 peak=20 every=3 for=3", "shorter than their distance"),
        ("step: 0=99999999", "up to 10,000,000"),
    ],
)
def test_a_wrong_schedule_says_why(text: str, says: str) -> None:
    assert says in (schedule.problem(text) or "")
    assert says in (schedule.slots_problem(text) or "")


def test_a_concurrency_has_at_least_one_slot() -> None:
    assert schedule.problem("step: 0=0 5=1") is None
    assert "from 1 on" in (schedule.slots_problem("step: 0=0 5=1") or "")


def test_a_file_becomes_steps_that_the_result_holds(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("time,rate\n100,2\n130,8.5\n\n160,2\n")
    assert schedule.located("file: rates.csv", tmp_path) == "step: 0=2 30=8.5 60=2"
    assert schedule.located(SHAPES[2], tmp_path) == SHAPES[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no lines"),
        ("0,2\n5\n", "line 2"),
        ("0,2\n-5,3\n", "line 2"),
        ("0,2\n9,3\n4,1\n", "ascend"),
        (None, "can't be read"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(UsageError, match=says):
        schedule.located("file: rates.csv", tmp_path)


def test_a_schedule_is_a_load_of_its_own() -> None:
    sine, step = LoadSpec(rate_schedule=SHAPES[2]), LoadSpec(rate_schedule=SHAPES[0])
    assert (
        sine.words == "2 to 8 requests/s (sine)"
        and sine.slug == "r2-8sine"
        and sine.level[0] == 8
    )
    assert sine.without_level() != step.without_level() and not sine.closed_loop
    both = LoadSpec(concurrency_schedule="step: 0=1 9=4", request_rate_rps=3)
    assert (
        both.words == "3 requests/s, concurrency 1 to 4 (step)"
        and both.slug == "r3c1-4step"
    )
    one, two = (
        Load({"num_prompts": 10, "--rate-schedule": text}, complete=True)
        for text in SHAPES[:2]
    )
    assert not one.same(two) and one.paced and one.words == f"requests/s {SHAPES[0]}"
