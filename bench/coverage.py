"""How often the intervals that dyno prints contain the truth.

Each row simulates many runs, repeats or tests whose true figure is known: by a formula of the distribution that they
are drawn from, or as the mean of many runs; dyno never sees it. `holds`: the share of printed intervals that have it;
`printed`: the share of runs that print one. Where the data say too little, dyno prints none.

    python bench/coverage.py                 the whole table, a few minutes on two cores
    python bench/coverage.py --seeds 100     a coarse one
    python bench/coverage.py --markdown      as METHOD.md has it

The rules were chosen with other seeds than these. It exits with 1 if a promise isn't kept: of the intervals that a
tenth of the runs or more print, at least 93 % hold, and at most 7 % of all runs print one that doesn't.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from dyno.compare.compare import difference
from dyno.facts.comparison import Estimate
from dyno.measure.estimate import error_of_repeats, interval
from dyno.measure.paired import paired, share_interval
from dyno.measure.statistics import Error, error_of_slices, errors_of_requests

SEEDS = 500
HOLDS, RARELY = 0.93, 0.1
STATISTICS = {"mean": None, "median": 0.5, "p90": 0.9, "p99": 0.99}
_SD = 0.4  # of the logarithm of a latency
_NORMAL = NormalDist()
_SLOW = 3.0  # times as long takes a request in a slow spell
# in a run, on average: with fewer, a run doesn't know how often they come
_FEWEST_SPELLS = 10
_STREAMS, _TOKENS = 8, 10.0
_CHEAP = 8  # times as many seeds of what costs little


class Case(NamedTuple):
    """One row of the table: what is simulated. `promised`: the interval must hold."""

    group: str
    name: str
    figure: str
    seeds: int
    promised: bool = True


class Row(NamedTuple):
    case: Case
    printed: float
    holds: float | None  # None: none was printed

    @property
    def kept(self) -> bool:
        if not self.case.promised or self.holds is None:
            return True
        missed = self.printed * (1 - self.holds)
        return missed <= 1 - HOLDS and (self.holds >= HOLDS or self.printed < RARELY)


# ---- within a run: requests in the order of sending ----


def correlated(rng: np.random.Generator, runs: int, n: int, rho: float) -> np.ndarray:
    """AR(1): each request is like the one before it."""
    x = rng.normal(size=(n, runs))
    for i in range(1, n):
        x[i] = rho * x[i - 1] + math.sqrt(1 - rho * rho) * x[i]
    latencies: np.ndarray = 50 * np.exp(_SD * x.T)
    return latencies


def spells(
    rng: np.random.Generator, runs: int, n: int, length: int, share: float
) -> np.ndarray:
    """Now and then, as many requests in a row are slow: in all, this share of them."""
    gap = length * (1 - share) / share
    slow = np.zeros((runs, n + length), dtype=bool)
    for run in slow:
        at = (
            -int(rng.integers(length))
            if rng.random() < share
            else int(rng.geometric(1 / gap)) - 1
        )
        while at < n:
            run[max(at, 0) : at + length] = True
            at += length + int(rng.geometric(1 / gap))
    latencies: np.ndarray = (
        50
        * np.exp(_SD / 2 * rng.normal(size=(runs, n)))
        * np.where(slow[:, :n], _SLOW, 1.0)
    )
    return latencies


def true_of_correlated(share: float | None) -> float:
    return 50 * math.exp(_SD**2 / 2 if share is None else _SD * _NORMAL.inv_cdf(share))


def true_of_spells(slow: float) -> Callable[[float | None], float]:
    """`slow`: the share of requests in slow spells."""

    def below(value: float) -> float:
        normal, late = (
            _NORMAL.cdf(math.log(value / 50 / times) / (_SD / 2)) for times in (1.0, _SLOW)
        )
        return (1 - slow) * normal + slow * late

    def true(share: float | None) -> float:
        if share is None:
            return 50 * math.exp((_SD / 2) ** 2 / 2) * (1 + slow * (_SLOW - 1))
        low, high = 1.0, 1e4
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) < share else (low, middle)
        return low

    return true


def requests(
    name: str,
    values: np.ndarray,
    true: Callable[[float | None], float],
    promised: bool = True,
) -> Iterator[Row]:
    """Without the 2 % that dyno adds for what differs from run to run."""
    held: dict[str, list[bool]] = {statistic: [] for statistic in STATISTICS}
    for run in values:
        for statistic, error in errors_of_requests(run, list(STATISTICS)).items():
            share = STATISTICS[statistic]
            value = float(run.mean() if share is None else np.quantile(run, share))
            if isinstance(error, Error) and (
                ends := interval(Estimate(value, len(run), error.error, error.df))
            ):
                held[statistic].append(ends[0] <= true(share) <= ends[1])
    for statistic, each in held.items():
        group = f"within a run, {values.shape[1]:,} requests"
        yield row(Case(group, name, statistic, len(values), promised), each)


def row(case: Case, held: Sequence[bool]) -> Row:
    return Row(case, len(held) / case.seeds, sum(held) / len(held) if held else None)


def within_runs(seeds: int, n: int) -> Iterator[Row]:
    for rho in (0.0, 0.6, 0.9, 0.95):
        name = f"AR(1), correlation {rho:g}" if rho else "independent"
        yield from requests(
            name, correlated(np.random.default_rng(11), seeds, n, rho), true_of_correlated
        )
    for slow, length in itertools.product((0.05, 0.1, 0.2), (20, 50)):
        count = slow * n / length
        drawn = spells(np.random.default_rng(12), seeds, n, length, slow)
        name = f"slow spells of {length}, {slow:.0%} of the requests: {count:.2g} a run"
        yield from requests(name, drawn, true_of_spells(slow), count >= _FEWEST_SPELLS)


# ---- throughput within a run: a closed loop whose server is slower at times ----


def loops(
    rng: np.random.Generator, runs: int, each: int, reach_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Streams that send one request after the other, each of about 1 s. `reach_s`: how long the server's speed stays
    alike; 0: it doesn't change."""
    step_s, speed = 0.1, np.ones((runs, 1))
    if reach_s:
        steps = int(3 * each / step_s)
        x, rho = rng.normal(size=(steps, runs)), math.exp(-step_s / reach_s)
        for i in range(1, steps):
            x[i] = rho * x[i - 1] + math.sqrt(1 - rho * rho) * x[i]
        speed = np.exp(0.2 * x.T)
    now = np.zeros((runs, _STREAMS))
    starts, ends = [], []
    for _ in range(each):
        starts.append(now)
        at = np.minimum((now / step_s).astype(np.int64), speed.shape[1] - 1)
        now = now + np.exp(0.2 * rng.normal(size=now.shape)) * np.take_along_axis(
            speed, at, 1
        )
        ends.append(now)
    return np.concatenate(starts, axis=1), np.concatenate(ends, axis=1)


def throughputs(seeds: int, each: int) -> Iterator[Row]:
    for reach_s in (0.0, 1.0, 3.0):
        starts, ends = loops(np.random.default_rng(13), 4000, each, reach_s)
        speeds = _STREAMS * each * _TOKENS / ends.max(axis=1)
        true, tokens, held = float(speeds.mean()), np.full(_STREAMS * each, _TOKENS), []
        for start, end, speed in zip(starts[:seeds], ends[:seeds], speeds, strict=False):
            error = error_of_slices(start, start + 0.1 * (end - start), end, tokens)
            if error is not None and (
                found := interval(Estimate(float(speed), 1, error.error, error.df))
            ):
                held.append(found[0] <= true <= found[1])
        name = f"server's speed stays alike for {reach_s:g} s" if reach_s else "independent"
        group = f"within a run of {each} request lengths"
        yield row(Case(group, name, "throughput", seeds, reach_s * 20 <= each), held)


# ---- repeats ----


def drawn_repeats(
    rng: np.random.Generator, name: str, shape: tuple[int, int]
) -> tuple[np.ndarray, float]:
    if name.startswith("normal"):
        return 100 * (1 + 0.03 * rng.normal(size=shape)), 100.0
    deviation = float(name.split()[-1])
    return 100 * np.exp(deviation * rng.normal(size=shape)), 100 * math.exp(
        deviation**2 / 2
    )


def estimate(values: np.ndarray) -> Estimate:
    error = error_of_repeats(values.tolist())
    assert error is not None
    return Estimate(float(values.mean()), len(values), error.error, error.df, "repeats")


def repeated(seeds: int, count: int) -> Iterator[Row]:
    seeds *= _CHEAP
    for name in (
        "normal, 3 %",
        "lognormal, deviation 0.1",
        "lognormal, deviation 0.3",
        "lognormal, deviation 0.5",
    ):
        values, true = drawn_repeats(
            np.random.default_rng(100 + count), name, (2 * seeds, count)
        )
        sides = [estimate(each) for each in values]
        ends = [found for side in sides if (found := interval(side))]
        yield row(
            Case(f"{count} repeats", name, "mean", 2 * seeds),
            [low <= true <= high for low, high in ends],
        )
        changes = [
            difference("output_throughput", a, b)
            for a, b in zip(sides[::2], sides[1::2], strict=True)
        ]
        held = [
            d.low <= 0 <= d.high
            for d in changes
            if d.low is not None and d.high is not None
        ]
        yield row(Case(f"{count} repeats", name, "change (compare)", seeds), held)


# ---- quality ----


def scored(seeds: int, items: int) -> Iterator[Row]:
    rng = np.random.default_rng(200 + items)
    seeds *= 2
    for share in (0.5, 0.9):
        held = [
            low <= share <= high
            for low, high in (
                share_interval(n / items, items) for n in rng.binomial(items, share, seeds)
            )
        ]
        yield row(
            Case(f"{items} items", f"right answers, {share:.0%}", "score", seeds), held
        )
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "right or wrong, 25 % differ": lambda: rng.choice(
            [-1.0, 0.0, 1.0], items, p=[0.1, 0.75, 0.15]
        ),
        "graded, even": lambda: 0.05 + 0.1 * rng.normal(size=items),
        "graded, skewed (exponential)": lambda: 0.05 + rng.exponential(0.1, items) - 0.1,
    }
    for name, draw in kinds.items():
        held = []
        for _ in range(seeds):
            changes = np.clip(draw(), -1, 1)
            a = np.where(changes < 0, 1.0, 0.0) if "wrong" in name else np.full(items, 0.4)
            d = paired(a.tolist(), np.clip(a + changes, 0, 1).tolist())
            held.append(d.low <= 0.05 <= d.high)
        yield row(Case(f"{items} items", name, "difference (compare)", seeds), held)


# ---- the table ----

Part = tuple[Callable[[int, int], Iterator[Row]], int]
PARTS: list[Part] = [
    (within_runs, 5000), (within_runs, 1000), (repeated, 10), (scored, 100), (within_runs, 300), (throughputs, 100),
    (throughputs, 30), (repeated, 5), (repeated, 3), (repeated, 2), (scored, 30), (scored, 10),
]  # fmt: skip


def _part(part: Part, seeds: int) -> list[Row]:
    simulate, size = part
    return list(simulate(seeds, size))


def table(seeds: int, parts: Sequence[Part] = tuple(PARTS)) -> list[Row]:
    with ProcessPoolExecutor(max_workers=2) as pool:
        return [
            found for rows in pool.map(_part, parts, [seeds] * len(parts)) for found in rows
        ]


def lines(rows: Iterable[Row], markdown: bool) -> Iterator[str]:
    """One line a process, its figures side by side."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for found in rows:
        grouped.setdefault((found.case.group, found.case.name), []).append(found)
    if markdown:
        yield "| interval | data | intervals that contain the truth |\n|---|---|---|"
    for (group, name), some in sorted(grouped.items(), key=lambda pair: _order(pair[0][0])):
        cells = ", ".join(_cell(found) for found in some)
        yield (
            f"| {group} | {name} | {cells} |"
            if markdown
            else f"{group:<30} {name:<58} {cells}"
        )


def _order(group: str) -> tuple[int, int]:
    kinds = ("within a run,", "within a run of", "repeats", "items")
    size = int("".join(c for c in group if c.isdigit()))
    return next(i for i, kind in enumerate(kinds) if kind in group), size


def _cell(found: Row) -> str:
    case = found.case
    if found.holds is None or found.printed < 0.005:
        return f"{case.figure}: none printed"
    printed = f" (printed by {found.printed:.0%})" if found.printed < 0.995 else ""
    kept = " NOT KEPT" if not found.kept else ""
    star = "" if case.promised else " *"
    return f"{case.figure} {100 * found.holds:.1f} %{printed}{star}{kept}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    rows = table(options.seeds)
    print(*lines(rows, options.markdown), sep="\n")
    broken = [found for found in rows if not found.kept]
    print(
        f"\n*: not promised. {len(rows)} intervals, {options.seeds} seeds each; not kept: {len(broken)}."
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
