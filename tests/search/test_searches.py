"""Five searches of the fake engine, whose capacity is known. tests/search/test_search.py has hundreds, simulated."""

import heapq
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import NormalDist, median
from typing import Any

import msgspec
import pytest

from conftest import ExpectDecided, StartFake
from dyno.cli.main import main
from dyno.facts.find import FindAnswer

pytestmark = [pytest.mark.real, pytest.mark.engines]  # slow

MODEL = Path(__file__).parents[2] / "src" / "dyno" / "engines" / "dyno-5m"
SHORT = [
    "--random-input-len",
    "8",
    "--random-output-len",
    "3",
    "--disable-tqdm",
    "--no-correctness-check",
    "--tokenizer",
    str(MODEL),
]  # asking the server for each prompt takes longer than the probes
NORMAL = NormalDist()
RESOLUTION = 0.3


def closed_loop(
    limit_ms: float, first_ms: float, slots: int, noise: float, percentile: float
) -> float:
    """The highest concurrency: TTFT grows with it above `slots`, and its logarithm has the noise."""
    return (
        slots * limit_ms / (first_ms * math.exp(noise * NORMAL.inv_cdf(percentile / 100)))
    )


def open_loop(limit_ms: float, takes_ms: float, slots: int, noise: float) -> float:
    """The highest rate within a median: the fake engine in simulated time."""

    def median_ms(rate: float) -> float:
        random, now, ends, times = Random(1), 0.0, list[float](), list[float]()
        for _ in range(40_000):
            now += random.expovariate(rate) * 1e3
            while ends and ends[0] <= now:
                heapq.heappop(ends)
            times.append(
                takes_ms
                * max((len(ends) + 1) / slots, 1.0)
                * math.exp(random.gauss(0.0, noise))
            )
            heapq.heappush(ends, now + times[-1])
        return median(times)

    low, high = 0.0, 2e3 * slots / takes_ms
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (low, middle) if median_ms(middle) > limit_ms else (middle, high)
    return low


class SearchCase(msgspec.Struct, frozen=True):
    fake: dict[str, Any]
    target: str
    percentile: float
    truth: Callable[[], float]
    flags: tuple[str, ...] = ()
    least: float = 1
    most: float = 1024


CASES = {
    "median": SearchCase(
        {"first_ms": 20.0, "gap_ms": 1.0, "slots": 4, "noise": 0.5}, "ttft_p50:67", 50.0,
        partial(closed_loop, 67, 20, 4, 0.5, 50),
    ),
    "p90": SearchCase(
        {"first_ms": 20.0, "gap_ms": 1.0, "slots": 8, "noise": 0.4}, "ttft_p90:80", 90.0,
        partial(closed_loop, 80, 20, 8, 0.4, 90),
    ),
    "open loop": SearchCase(
        {"first_ms": 38.0, "gap_ms": 1.0, "slots": 8, "noise": 0.3}, "e2el_p50:60", 50.0,
        partial(open_loop, 60, 40, 8, 0.3), ("--over", "rate"), 40, 1000,
    ),
    "cliff": SearchCase(
        {"first_ms": 30.0, "gap_ms": 1.0, "cliff": 9, "noise": 0.2}, "e2el_p90:100", 90.0, lambda: 9.5,
    ),
    "conversations": SearchCase(
        {"first_ms": 20.0, "gap_ms": 1.0, "slots": 6, "noise": 0.4}, "ttft_p90:80", 90.0,
        partial(closed_loop, 80, 20, 6, 0.4, 90),
        ("--dataset-name", "chat", "--turns", "3", "--turn-input-len", "8", "--turn-output-len", "3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        name if name == "conversations" else pytest.param(name, marks=pytest.mark.nightly)
        for name in CASES
    ],
)
def test_the_interval_covers_the_truth_in_the_time_estimated(
    name: str, fake: StartFake, expect_decided: ExpectDecided, tmp_path: Path
) -> None:
    case = CASES[name]
    flags = ["--target", case.target, "--from", f"{case.least:g}", "--to", f"{case.most:g}", "--resolution",
             f"{RESOLUTION}", "--budget", "150", *SHORT, *case.flags]  # fmt: skip
    where = ["--base-url", fake(**case.fake).base_url, "--runs", str(tmp_path)]
    code = main(["find", *where, *flags])
    [path] = tmp_path.glob("*/find.json")
    found = msgspec.json.decode(path.read_bytes(), type=FindAnswer)
    truth = case.truth()
    assert (found.low or 0) <= truth <= (found.high or math.inf), (found, truth)
    expect_decided(code == 0)
    assert found.low and found.high, found.ended
    assert found.high / found.low <= 2  # noise may keep it wider than asked for
    assert found.estimate is not None
    assert found.duration_s < 1.5 * found.estimate.most_s, (
        found.duration_s,
        found.estimate,
    )
