"""Every interval that dyno prints contains its figure, lies in the figure's range and holds as often as it says."""

import importlib.util
import math
import re
from collections.abc import Iterator
from csv import DictReader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dyno import numbers
from dyno.compare.compare import compare
from dyno.facts.comparison import Difference, Estimate
from dyno.facts.entry import Number
from dyno.facts.imported import Row, Samples
from dyno.measure.estimate import (
    enough,
    error_of_repeats,
    interval,
    interval_of_repeats,
    with_interval,
)
from dyno.report import compare as compare_report
from dyno.report.charts import base
from dyno.report.conclusion import conclude
from dyno.report.entries import entries
from dyno.report.table import figure_interval, figure_text, whole_interval
from dyno.report.text import csv, markdown
from reports import of
from rows import row

_NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_PLUS_MINUS = re.compile(rf"({_NUMBER})(?: (?:%|pt))? ± ({_NUMBER})")
_ENDS = re.compile(
    rf"({_NUMBER})(?: (?:%|pt))? \(({_NUMBER}) to ({_NUMBER})(?: (?:%|pt))?\)"
)
SEEDS = range(40)


def value(text: str) -> float:
    return float(text.replace(",", ""))


def printed(text: str) -> Iterator[tuple[float, float, float]]:
    """Figures of a text with the two ends of their intervals, as a reader calculates them."""
    for figure, reach in _PLUS_MINUS.findall(text):
        yield value(figure), value(figure) - value(reach), value(figure) + value(reach)
    for figure, low, high in _ENDS.findall(text):
        yield value(figure), value(low), value(high)


def spread(rng: np.random.Generator) -> float:
    """From repeats that agree to the last digit to those that share no digit."""
    return float(10 ** rng.uniform(-6, 0.5))


def repeats(rng: np.random.Generator, engine: str, count: int) -> list[Row]:
    middle, deviation = float(10 ** rng.uniform(-3, 6)), spread(rng)
    out = []
    for i in range(count):
        speed, ttft = (float(v) for v in middle * np.exp(deviation * rng.normal(size=2)))
        figures = {
            "output_throughput": speed,
            "median_ttft_ms": ttft,
            "p99_ttft_ms": 2 * ttft,
            "duration_s": 10.0,
        }
        out.append(
            row(figures, {"engine": engine}, base={"completed": 1000, "failed": 0}, file=f"{engine}-run{i}.json",
                label=f"{engine}-run{i}", form="json", half=0.0)
        )  # fmt: skip
    return out


def scores(rng: np.random.Generator, side: str) -> list[Row]:
    """Some items of 0 and 1, or graded; up to all of them right."""
    items, share = int(rng.integers(1, 60)), rng.choice([0.0, 0.05, 0.5, 0.95, 1.0])
    right = (rng.random(items) < share).astype(float)
    values = right if rng.random() < 0.5 else np.round(right * rng.random(items), 2)
    mean, error = float(values.mean()), float(values.std() / math.sqrt(items))
    reported = {
        "task": "copy",
        "metric": "exact_match",
        "n_shot": 0,
        "samples": items,
        "engine": side,
    }
    kept = {str(i): float(v) for i, v in enumerate(values)}
    return [
        row({}, reported, base={"score": mean, "stderr": error}, load={}, kind="quality", tool="dyno", form="json",
            half=0.0, file=f"{side}.json", samples=Samples(scores=kept))
    ]  # fmt: skip


def test_a_printed_figure_lies_in_its_printed_interval_which_never_passes_0() -> None:
    rng = np.random.default_rng(1)
    kinds = dict.fromkeys(("±", "to", "too few"), 0)
    for _ in range(3000):
        estimate = Estimate(
            float(10 ** rng.uniform(-4, 7)),
            3,
            spread(rng),
            float(rng.integers(1, 40)),
            "repeats",
        )
        number = with_interval(estimate)
        text = f"{figure_text(number)} {whole_interval(number)}"
        for kind in kinds:
            kinds[kind] += kind in text
        for figure, low, high in printed(text):
            assert 0 <= low <= figure <= high, text
    assert min(kinds.values()) > 300


def test_a_printed_change_lies_in_its_printed_interval_which_stays_above_minus_100_percent() -> (
    None
):
    rng = np.random.default_rng(2)
    for _ in range(3000):
        middle, reach = rng.normal(0, rng.choice([0.01, 0.5, 2])), spread(rng)
        share, low, high = (
            math.expm1(min(middle + side * reach, 40)) for side in (0, -1, 1)
        )
        text = numbers.change_with_interval(share, low, high)
        ((figure, least, most),) = printed(text)
        assert -100 <= least <= figure <= most, text


def test_a_printed_difference_of_scores_lies_within_100_points() -> None:
    rng = np.random.default_rng(3)
    for _ in range(3000):
        low, share, high = (
            sorted(rng.uniform(-1, 1, 3)) if rng.random() < 0.5 else (-0.953, -0.9, -0.786)
        )
        reach = min(spread(rng) / 10, 1 - abs(share))
        low, high = (low, high) if rng.random() < 0.5 else (share - reach, share + reach)
        text = numbers.points_with_interval(share, low, high)
        ((figure, least, most),) = printed(text)
        assert -100 <= least <= figure <= most <= 100, text
    assert (
        numbers.points_with_interval(-0.9, -0.953, -0.786) == "-90 pt (-95.3 to -78.6 pt)"
    )


def surfaces(a: list[Row], b: list[Row]) -> Iterator[str]:
    """All that prints an interval: compare's two tables, a report as Markdown, its sentences."""
    compared = compare(a, b, ("a", "b"))
    yield from (
        compare_report.text(compared, details=True),
        compare_report.as_markdown(compared, details=True),
    )
    for d in (
        d
        for p in compared.pairings
        for d in p.differences
        if d.enough_repeats is None and d.low is not None
    ):
        yield f"{d.change_words} ({d.interval_words})"  # two columns of a table
    twice = compare([*a, *_at(a, 64)], [*b, *_at(b, 64)], ("a", "b"))  # one row a load
    yield compare_report.text(twice)
    made = entries([*a, *b], [], [], lambda m: None)
    words = conclude(made, [], [], {}, lambda m: None)
    yield from (*words.answer, *words.confidence, *words.workloads)
    yield markdown(of(made, best=[], words=words))


def _at(rows: list[Row], concurrency: int) -> list[Row]:
    return [row({n: f.value for n, f in r.figures.items()}, {n: s.value for n, s in r.settings.items()} | {
        "concurrency": concurrency}, base={}, file=f"{concurrency}-{r.file}", form="json", half=0.0, kind=r.kind,
        tool=r.tool, samples=r.samples) for r in rows]  # fmt: skip


def test_the_reader_of_these_tests_reads_both_forms() -> None:
    assert list(printed("speed 1,580 ± 20 tok/s, 410.5 (308 to 548), -90 pt (-95.3 to -78.6 pt), +12.3 % ± 0.6")) == [
        (1580, 1560, 1600), (12.3, 11.700000000000001, 12.9), (410.5, 308, 548), (-90, -95.3, -78.6),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    texts = surfaces(repeats(rng, "vllm", 3), repeats(rng, "tgi", 3))
    assert sum(len(list(printed(text))) for text in texts) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_every_surface_prints_intervals_that_contain_their_figure_in_its_range(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (repeats(rng, engine, int(rng.choice([2, 3, 5]))) for engine in ("vllm", "tgi"))
    for text in surfaces(a, b):
        for figure, low, high in printed(text):
            least = -100 if re.search(rf"[+-]{abs(figure):,g}", text) or figure <= 0 else 0
            assert least <= low <= figure <= high, text
    a, b = scores(rng, "vllm"), scores(rng, "tgi")
    for text in surfaces(a, b):
        for figure, low, high in printed(text):
            assert -100 <= low <= figure <= high <= 100, text


@pytest.mark.parametrize("seed", SEEDS)
def test_json_and_csv_keep_both_ends_of_an_interval_around_the_figure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = entries(
        [*repeats(rng, "vllm", 3), *repeats(rng, "tgi", 2), *scores(rng, "vllm")],
        [],
        [],
        lambda m: None,
    )
    known = 0
    for entry in made:
        for name, number in entry.figures.items():
            if number.low is not None and number.high is not None:
                known += 1
                most = 1.0 if name == "score" else math.inf
                assert 0 <= number.low <= number.value <= number.high <= most
    assert known >= 5
    for line in DictReader(csv(of(made, best=[])).splitlines()):
        if line["output_throughput.low"]:
            low, figure, high = (
                float(line[f"output_throughput{end}"]) for end in (".low", "", ".high")
            )
            assert 0 <= low <= figure <= high


# ---- intervals that are wider than their figure ----


def test_an_interval_wider_than_its_figure_says_too_few_repeats_and_how_many_would_do() -> (
    None
):
    number = interval_of_repeats([30.0, 112.1])
    assert number.enough is not None and number.low is not None and number.high is not None
    text = f"{figure_text(number)} {whole_interval(number)}"
    assert re.fullmatch(r"71\.05 \(too few repeats; about \d[\d,]* would do\)", text), text
    assert figure_interval(number) == "± ?", "a column of a table has room for no more"
    assert figure_interval(interval_of_repeats([65.0, 71.0, 77.1])).startswith("(")
    assert figure_interval(interval_of_repeats([71.0, 71.1, 71.2])).startswith("± ")


def test_as_many_repeats_as_are_advised_narrow_the_interval_to_a_tenth() -> None:
    rng = np.random.default_rng(5)
    advised = enough(Estimate(100.0, 3, 0.2 / math.sqrt(3), 2, "repeats"))
    reaches = []
    for _ in range(200):
        low, high = interval(_estimate(100 * (1 + 0.2 * rng.normal(size=advised)))) or (
            0.0,
            0.0,
        )
        reaches.append((high / low) ** 0.5 - 1)
    assert 10 < advised < 40 and np.median(reaches) == pytest.approx(0.1, abs=0.015)


def _estimate(values: np.ndarray) -> Estimate:
    error = error_of_repeats(values.tolist())
    assert error is not None
    return Estimate(float(values.mean()), len(values), error.error, error.df, "repeats")


def test_a_comparison_of_too_few_repeats_says_so_in_table_sentence_and_report_and_keeps_both_ends() -> (
    None
):
    def side(name: str, speeds: list[float]) -> list[Row]:
        done = {"completed": 100, "failed": 0}
        return [row({"output_throughput": v}, {}, base=done, half=0.0, form="json", file=f"{name}-run{i}.json")
                for i, v in enumerate(speeds)]  # fmt: skip

    sides = side("a", [40.0, 160.0]), side("b", [60.0, 200.0])
    compared = compare(sides[0], sides[1], ("a", "b"))
    (d,) = [
        d
        for p in compared.pairings
        for d in p.differences
        if d.metric == "output_throughput"
    ]
    assert d.low is not None and d.high is not None and d.low < -0.9 and d.high > 1, (
        "JSON keeps both ends"
    )
    assert d.both_words == "+30 % (too few repeats)" and d.enough_repeats
    assert d.smallest is not None and d.smallest_words == "–"
    text = " ".join(compare_report.text(compared).split())
    assert "too few repeats" in text and "±" not in text.replace("± 10 %", "")
    assert re.search(
        r"about \d[\d,]* repeats per side would make the interval ± 10 %", text
    )
    made = entries([*sides[0], *sides[1]], [], [], lambda m: None)
    assert any(
        "too few repeats" in whole_interval(e.figures["output_throughput"]) for e in made
    )


def test_a_real_difference_keeps_its_ends_however_wide_they_are() -> None:
    d = Difference("speed", Estimate(1.0, 2), Estimate(20.0, 2), "better", 19.0, 7.0, 49.0)
    assert d.both_words == "+1,900 % (+700 to +4,900 %)"


def test_a_chart_has_no_bar_of_an_interval_that_is_wider_than_the_figure() -> None:
    drawn: dict[str, Any] = {}
    base.put(drawn, "y", interval_of_repeats([30.0, 112.1]))
    assert drawn == {"y": 71.05}
    base.put(drawn, "y", Number(71.05, 70.0, 72.1, by="repeats"))
    assert (drawn["y_low"], drawn["y_high"]) == (70.0, 72.1)


# ---- coverage, sampled: bench/coverage.py has the whole table ----


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_bench", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.real  # it takes seconds
@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9, 0.95])
def test_intervals_within_a_run_hold_where_neighbours_are_alike(
    coverage: ModuleType, rho: float
) -> None:
    values = coverage.correlated(np.random.default_rng(7), 80, 1000, rho)
    rows = {
        found.case.figure: found
        for found in coverage.requests("", values, coverage.true_of_correlated)
    }
    for name in ("mean", "median", "p90"):
        assert rows[name].printed > 0.7 and rows[name].holds >= 0.9
    assert rows["p99"].printed * (1 - (rows["p99"].holds or 0.0)) <= 0.07
    assert rows["p99"].printed == pytest.approx(
        {0.0: 1.0, 0.6: 0.9, 0.9: 0.0, 0.95: 0.0}[rho], abs=0.2
    )


@pytest.mark.real
def test_intervals_within_a_run_hold_where_it_has_slow_spells(coverage: ModuleType) -> None:
    for n, share in ((1000, 0.2), (3000, 0.1)):
        values = coverage.spells(np.random.default_rng(8), 80, n, 20, share)
        for found in coverage.requests("", values, coverage.true_of_spells(share)):
            assert found.holds is None or found.holds >= 0.9


def test_intervals_over_repeats_and_of_changes_hold_also_where_they_are_skewed(
    coverage: ModuleType,
) -> None:
    for count in (2, 3, 5, 10):
        for found in coverage.repeated(40, count):
            assert found.holds >= 0.9, found


def test_a_promise_that_is_not_kept_is_noticed(coverage: ModuleType) -> None:
    case = coverage.Case("g", "n", "mean", 100)
    assert not coverage.row(case, [True] * 92 + [False] * 8).kept
    assert coverage.row(case, [True] * 93 + [False] * 7).kept
    assert not coverage.row(case, [True] * 40 + [False] * 10).kept, (
        "of those that are printed"
    )
    assert coverage.row(case, []).kept
    assert coverage.row(case._replace(promised=False), [False]).kept
