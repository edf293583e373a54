"""Is a difference real? Of data whose truth is known: what is covered, what is found, what is paired and refused."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from dyno.checks.comparability import things_changed
from dyno.compare import gate
from dyno.compare.compare import Among, compare, decide
from dyno.errors import UsageError
from dyno.facts.comparison import LEAST, Comparison, Difference, Pairing
from dyno.facts.finding import Finding
from dyno.facts.imported import Figure, Row, Samples, Setting
from dyno.facts.metric import better, words
from dyno.facts.rig import Rig
from dyno.measure import statistics
from dyno.measure.estimate import ALLOWED, estimates
from dyno.measure.pairs import pair
from dyno.report.conclusion import conclude
from dyno.report.entries import entries
from rows import differ

METRICS = (
    "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms",
    "median_e2el_ms",
)  # fmt: skip
LOAD = {
    "concurrency": 8,
    "dataset": "random",
    "input_len": 64,
    "output_len": 32,
    "num_prompts": 100,
}
FOUND = ("better", "worse", "higher", "lower")


def row(
    file: str = "a",
    samples: Samples | None = None,
    form: Any = "run",
    kind: Any = "serve",
    **changes: Any,
) -> Row:
    """`changes`: figures by their names (a value, or value and definition), all else settings."""
    figures = {
        "completed": 100.0,
        "failed": 0.0,
        "total_input_tokens": 6400.0,
        "total_output_tokens": 3200.0,
    }
    settings: dict[str, Any] = dict(LOAD)
    defined: dict[str, str] = {}
    for name, value in changes.items():
        if isinstance(value, tuple):
            value, defined[name] = value
        if better(name) is not None or name in figures or name.startswith("std_"):
            figures[name] = value
        else:
            settings[name] = value
    reported = {
        n: Figure(v, 0, definition=defined.get(n, ""))
        for n, v in figures.items()
        if v is not None
    }
    named = {n: Setting(v, 0) for n, v in settings.items() if v is not None}
    return Row(
        kind,
        changes.get("tool", "dyno"),
        form,
        file,
        0,
        0,
        reported,
        named,
        samples=samples,
    )


def one(file: str = "a", **changes: Any) -> Row:
    return row(file, **{"verdict": "sound", **changes})


def pairing(a: Sequence[Row], b: Sequence[Row], **how: Any) -> Pairing:
    (found,) = compare(a, b, ("a", "b"), **how).pairings
    return found


def codes(of: Pairing | Comparison) -> dict[str, str]:
    return {f.code: f.level for f in of.findings}


def correlated(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    """Latencies of which each is like the one before it."""
    x = rng.normal(size=n) * math.sqrt(1 - phi * phi)
    x[0] /= math.sqrt(1 - phi * phi)
    for i in range(1, n):
        x[i] += phi * x[i - 1]
    return 50 * np.exp(0.3 * x)


def repeats(
    rng: np.random.Generator, count: int, times: float = 1.0, deviation: float = 0.03
) -> list[Row]:
    """Of one setting: figures move together by half, as those of real runs do."""
    together = rng.normal(size=(count, 1))
    values = (
        100
        * times
        * np.exp(
            deviation * (together + rng.normal(size=(count, len(METRICS)))) / math.sqrt(2)
        )
    )
    return [
        one(str(i), **dict(zip(METRICS, map(float, v), strict=True)))
        for i, v in enumerate(values)
    ]


# ---- statistics ----


@pytest.mark.parametrize(
    ("df", "t"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (4, 2.77645),
        (10, 2.22814),
        (30, 2.04227),
        (1e9, 1.95996),
    ],
)
def test_students_t_is_that_of_the_tables(df: float, t: float) -> None:
    assert statistics.quantile(0.975, df) == pytest.approx(t, abs=1e-4)
    assert statistics.two_sided(t, df) == pytest.approx(0.05, abs=1e-5)


def test_neighbours_that_are_alike_widen_an_interval_as_theory_says() -> None:
    """AR(1) with a correlation of 0.8: the variance of a mean is (1 + 0.8) ÷ (1 - 0.8) = 9 times that of strangers."""
    errors = {0.0: [], 0.8: []}  # type: dict[float, list[float]]
    for phi, each in errors.items():
        for seed in range(20):
            error = statistics.errors_of_requests(
                correlated(np.random.default_rng(seed), 4000, phi), ["mean"]
            )["mean"]
            assert isinstance(error, statistics.Error)
            each.append(error.error)
    assert 2.6 < np.mean(errors[0.8]) / np.mean(errors[0.0]) < 3.8


def test_values_that_are_all_the_same_have_no_error() -> None:
    errors = statistics.errors_of_requests(np.full(1000, 5.0), ["mean", "p99"])
    assert errors == {"mean": statistics.Error(0.0, 999), "p99": statistics.Error(0.0, 999)}


def test_a_p99_of_requests_that_are_too_alike_has_no_interval_and_says_how_many_are_needed() -> (
    None
):
    """At a correlation of 0.95 the intervals of 1,000 requests held in 72 %."""
    for seed in range(10):
        errors = statistics.errors_of_requests(
            correlated(np.random.default_rng(seed), 1000, 0.95), ["mean", "p99"]
        )
        assert isinstance(errors["mean"], statistics.Error)
        assert isinstance(errors["p99"], statistics.TooAlike)
        assert errors["p99"].needed is None or errors["p99"].needed > 1000
    values = correlated(np.random.default_rng(0), 1000, 0.95).tolist()
    alike = one("a", samples=Samples(times_ms={"ttft": values}), p99_ttft_ms=100.0)
    (estimate,) = estimates([alike], ["p99_ttft_ms"]).values()
    assert estimate.error is None
    assert estimate.why.startswith(
        "1,000 samples are too few for an error estimate, given how alike consecutive"
    )


def test_the_same_data_give_the_same_interval_and_a_percentile_without_samples_none() -> (
    None
):
    values = correlated(np.random.default_rng(1), 100, 0.3)
    assert statistics.errors_of_requests(values, ["p90"]) == statistics.errors_of_requests(
        values, ["p90"]
    )
    assert set(statistics.errors_of_requests(values, ["mean", "p95", "p99"])) == {
        "mean",
        "p95",
    }
    assert statistics.errors_of_requests(values[:5], ["mean"]) == {}


def test_a_long_series_has_the_error_of_its_parts() -> None:
    """The likeness of requests is itself an estimate: the ratio of a single series is from 2.1 to 3.2."""
    ratios = []
    for seed in range(5):
        values = correlated(np.random.default_rng(seed), 60_000, 0.9)
        whole = statistics.errors_of_requests(values, ["mean"])["mean"]
        part = statistics.errors_of_requests(values[:10_000], ["mean"])["mean"]
        assert isinstance(whole, statistics.Error) and isinstance(part, statistics.Error)
        ratios.append(part.error / whole.error)
    assert np.mean(ratios) == pytest.approx(math.sqrt(6), rel=0.3)


def test_throughput_of_one_run_is_judged_by_slices_of_time() -> None:
    """8 streams of requests that take about 1 s with 10 tokens: slices of a run differ by what those differ."""
    rng = np.random.default_rng(0)
    true, reported = [], []
    for _ in range(60):
        took = rng.gamma(20, 1 / 20, size=(8, 100))
        ends = np.cumsum(took, axis=1)
        starts, tokens = (ends - took).ravel(), np.full(800, 10.0)
        found = statistics.error_of_slices(
            starts, starts + 0.1 * took.ravel(), ends.ravel(), tokens
        )
        assert found is not None and found.df >= 3
        reported.append(found.error)
        true.append(8000 / ends.max())
    spread = float(np.std(true) / np.mean(true))
    assert 0.5 * spread < float(np.mean(reported)) < 2.5 * spread
    first = np.zeros(8)
    assert statistics.error_of_slices(first, first, ends[:, 0], tokens[:8]) is None, (
        "nothing of it is steady"
    )


# ---- splits of one study's repeats ----


@pytest.mark.nightly
@pytest.mark.real  # it takes seconds
@pytest.mark.parametrize(("count", "half"), [(6, 3), (10, 5)])
def test_a_studys_repeats_against_themselves_show_no_difference_in_nine_of_ten_splits(
    count: int, half: int
) -> None:
    shares, single = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = repeats(rng, count)
        splits = list(itertools.combinations(range(count), half))
        clean = inside = 0
        chosen = [splits[i] for i in rng.choice(len(splits), 200)]
        for split in chosen:
            found = differ(
                [rows[i] for i in split],
                [rows[i] for i in range(count) if i not in split],
                METRICS,
            )
            clean += not any(d.word in FOUND for d in found)
            inside += sum(
                d.low < 0 < d.high
                for d in found
                if d.low is not None and d.high is not None
            )
        shares.append(clean / len(chosen))
        single.append(inside / len(chosen) / len(METRICS))
    assert np.mean(shares) >= 0.93, shares
    assert np.mean(single) >= 0.93, single


def test_repeats_that_agree_by_luck_are_not_taken_at_their_word() -> None:
    a = [one(str(i), output_throughput=v) for i, v in enumerate((100.0, 100.001, 100.002))]
    b = [one(str(i), output_throughput=v) for i, v in enumerate((100.3, 100.301, 100.302))]
    (found,) = differ(a, b, ["output_throughput"])
    assert found.word == "no difference detected" and found.a.error == pytest.approx(
        LEAST / math.sqrt(3)
    )


# ---- what is found ----


@pytest.mark.parametrize("count", [3, 5])
def test_a_real_difference_of_a_fifth_is_found(count: int) -> None:
    found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        differences = differ(
            repeats(rng, count, deviation=0.015), repeats(rng, count, 1.2, 0.015), METRICS
        )
        throughput, ttft = differences[0], differences[1]
        found += throughput.word == "better" and ttft.word == "worse"
        assert throughput.change == pytest.approx(0.2, abs=0.08)
    assert found >= 9


def test_the_smallest_difference_is_found_in_four_of_five_cases() -> None:
    rng = np.random.default_rng(3)
    metric = ["output_throughput"]
    smallest = float(
        np.mean(
            [
                differ(repeats(rng, 5), repeats(rng, 5), metric)[0].smallest or 0
                for _ in range(60)
            ]
        )
    )
    hits = [
        differ(repeats(rng, 5), repeats(rng, 5, 1 + smallest), metric)[0].word in FOUND
        for _ in range(150)
    ]
    assert 0.68 <= np.mean(hits) <= 0.92


def test_one_of_many_figures_that_lies_outside_by_chance_is_a_perhaps() -> None:
    def side(shift: float) -> list[Row]:
        values = ((100.0, 99.0, 101.5), (99.0, 101.0, 100.0), (101.0, 100.0, 99.2))
        return [
            one(
                str(i),
                output_throughput=v[0] + shift,
                **dict(zip(METRICS[1:], [*v[1:], *v[1:], *v[1:]], strict=False)),
            )
            for i, v in enumerate(values)
        ]

    a, b = side(0), side(3)
    assert differ(a, b, METRICS)[0].word == "perhaps better"
    assert differ(a, b, METRICS[:1])[0].word == "better", (
        "asked alone, it is no one of many"
    )


def test_the_words_are_corrected_for_the_figures_of_all_loads() -> None:
    def side(shift: float, concurrency: int) -> list[Row]:
        values = (100.0, 99.0, 101.0)
        return [
            one(str(i), concurrency=concurrency, output_throughput=v + shift)
            for i, v in enumerate(values)
        ]

    def word(loads: Sequence[int]) -> str:
        a, b = (
            [row for c in loads for row in side(shift * (c == 1), c)]
            for shift in (0.0, 3.0)
        )
        return compare(a, b, ("a", "b")).pairings[0].differences[0].word

    assert (word([1]), word([1, 2, 4, 8, 16, 32])) == ("better", "perhaps better")


def test_the_throughput_of_a_closed_loop_has_half_of_the_error_and_that_of_a_rate_has_no_more_than_others() -> (
    None
):
    def side(shift: float, **load: Any) -> list[Row]:
        latencies = dict.fromkeys(METRICS[1:], 100.0)
        values = (100.0, 99.0, 101.5)
        return [
            one(
                str(i),
                **load,
                output_throughput=v + shift,
                **{name: latency + i for name, latency in latencies.items()},
            )
            for i, v in enumerate(values)
        ]

    def word(**load: Any) -> str:
        sides = side(0.0, **load), side(4.5, **load)
        compared = compare(*sides, ("a", "b")).pairings[0].differences
        return next(d.word for d in compared if d.metric == "output_throughput")

    assert word(concurrency=8) == "better"
    assert word(concurrency=8, rate=10.0) == "perhaps better"


@pytest.mark.parametrize("loads", [1, 2, 6])
@pytest.mark.parametrize("first", ["output_throughput", ""])
def test_where_nothing_differs_a_figure_is_called_different_in_one_of_twenty_comparisons_at_most(
    loads: int, first: str
) -> None:
    rng = np.random.default_rng(loads)
    names = ["output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_ttft_ms"]
    sides = [
        [one("a", output_throughput=v)] * 2 + [one("a", output_throughput=v + 1)]
        for v in (10, 20)
    ]
    [model] = differ(*sides, names[:1])
    false, tries = 0, 2000
    for _ in range(tries):
        each = [
            [
                msgspec.structs.replace(model, metric=name, p=float(p))
                for name, p in zip(names, rng.uniform(size=4), strict=True)
            ]
            for _ in range(loads)
        ]
        decided = decide(each, first=[first] * loads)
        false += any(d.word in FOUND for some in decided for d in some)
    assert 0.03 < false / tries < 0.065


@pytest.mark.parametrize("closed", [0, 15, 30])
def test_of_a_large_comparison_a_page_is_never_surer_than_the_whole(closed: int) -> None:
    """A page looks at one of thirty loads; the whole comparison at all of them. Some of them are closed loops."""
    rng = np.random.default_rng(closed)
    names = ["output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_ttft_ms"]
    [model] = differ(
        [one("a", output_throughput=10.0)] * 2,
        [one("a", output_throughput=20.0)] * 2,
        names[:1],
    )
    first = [names[0]] * closed + [""] * (30 - closed)
    for _ in range(200):
        each = [
            [
                msgspec.structs.replace(model, metric=name, p=float(p))
                for name, p in zip(names, 10 ** rng.uniform(-6, -1, 4), strict=True)
            ]
            for _ in range(30)
        ]
        whole = decide(each, first=first)
        for load in (0, 29):
            [part] = decide([each[load]], Among(120, 30), [first[load]])
            for of_part, of_whole in zip(part, whole[load], strict=True):
                assert of_part.word not in FOUND or of_whole.word in FOUND


@pytest.mark.parametrize(
    ("figures", "word"),
    [
        ({"output_throughput": 150.0, "median_ttft_ms": 100.0}, "better"),
        ({"output_throughput": 100.0, "median_ttft_ms": 150.0}, "worse"),
        ({"output_throughput": 150.0, "median_ttft_ms": 150.0}, "mixed"),
        ({"output_throughput": 100.0, "median_ttft_ms": 100.0}, "no difference detected"),
    ],
)
def test_a_load_has_one_word_for_all_its_figures(
    figures: dict[str, float], word: str
) -> None:
    def side(figures: dict[str, float]) -> list[Row]:
        return [
            one(str(i), **{n: v * (1 + i / 1000) for n, v in figures.items()})
            for i in range(3)
        ]

    assert pairing(side(dict.fromkeys(figures, 100.0)), side(figures)).word == word


def test_more_repeats_are_advised_where_they_are_too_few_and_reach_what_they_promise() -> (
    None
):
    rng = np.random.default_rng(5)
    promised: list[int] = []
    for _ in range(40):
        (d,) = differ(repeats(rng, 3), repeats(rng, 3, 1.06), ["output_throughput"])
        if (
            d.word == "inconclusive"
            and d.more_repeats
            and d.change
            and 0.05 < d.change < 0.07
        ):
            promised.append(d.more_repeats)
    more = round(float(np.median(promised)))
    assert 1 <= more <= 12
    hits = [
        differ(repeats(rng, 3 + more), repeats(rng, 3 + more, 1.06), ["output_throughput"])[
            0
        ].word
        for _ in range(60)
    ]
    assert hits.count("better") / len(hits) > 0.65


def test_a_single_run_beside_repeats_is_held_to_vary_as_those_do() -> None:
    a = [one(str(i), output_throughput=v) for i, v in enumerate((98.0, 100.0, 102.0))]
    (d,) = differ(a, [one("b", output_throughput=105.0)], ["output_throughput"])
    assert d.b.by == "shared" and d.b.error == pytest.approx(0.02)
    assert d.low is not None and d.low < 0 < 0.05 < d.high  # type: ignore[operator]


def test_of_a_printed_block_the_mean_alone_has_an_interval() -> None:
    a = one(
        "a",
        form="block",
        mean_ttft_ms=100.0,
        std_ttft_ms=20.0,
        p99_ttft_ms=180.0,
        completed=400.0,
    )
    b = one(
        "b",
        form="block",
        mean_ttft_ms=110.0,
        std_ttft_ms=20.0,
        p99_ttft_ms=190.0,
        completed=400.0,
    )
    mean, p99 = differ([a], [b], ["mean_ttft_ms", "p99_ttft_ms"])
    assert mean.word == "worse" and mean.a.by == "deviation"
    assert mean.a.error == pytest.approx(math.hypot(0.01, ALLOWED))
    assert p99.word == "confidence unknown" and p99.change == pytest.approx(
        0.0556, abs=1e-3
    )
    assert "repeat" in p99.why


def test_of_single_runs_requests_decide_and_a_percentile_that_was_not_printed_is_calculated() -> (
    None
):
    rng = np.random.default_rng(0)

    def run(times: float) -> Row:
        ttfts = (times * correlated(rng, 600, 0.4)).tolist()
        return one(
            "x",
            samples=Samples(times_ms={"ttft": [math.nan, 0.0, *ttfts]}),
            median_ttft_ms=float(np.median(ttfts)),
        )

    a, b = run(1), run(1.3)
    median, p90 = differ([a], [b], ["median_ttft_ms", "p90_ttft_ms"])
    assert (
        median.word == p90.word == "worse"
        and median.a.by == "requests"
        and median.a.count == 600
    )
    same = differ([run(1)], [run(1.004)], ["p90_ttft_ms"])[0]
    assert same.word == "inconclusive" and same.more_requests is None, (
        "so small a thing isn't worth the requests"
    )


def test_a_score_has_its_own_standard_error_and_one_question_is_not_a_difference() -> None:
    a = [
        one(
            "a",
            kind="quality",
            form="table",
            score=0.795,
            stderr=0.0254,
            **dict.fromkeys(LOAD),
        )
    ]
    b = [
        one(
            "b",
            kind="quality",
            form="table",
            score=0.799,
            stderr=0.0253,
            **dict.fromkeys(LOAD),
        )
    ]
    a[0].figures["stderr"] = Figure(0.0254, 0)
    b[0].figures["stderr"] = Figure(0.0253, 0)
    (d,) = differ(a, b, ["score"])
    assert (
        d.word == "no difference detected"
        and d.a.by == "stderr"
        and d.change == pytest.approx(0.004)
    )
    assert d.smallest == pytest.approx(2.8016 * math.hypot(0.0254, 0.0253), rel=1e-3)


# ---- pairing ----


def test_the_same_load_is_paired_and_the_rest_is_reported() -> None:
    a = [one(f"a{c}", concurrency=c, output_throughput=100.0) for c in (1, 8, 64)]
    b = [one(f"b{c}", concurrency=c, output_throughput=110.0) for c in (8, 64, 128)]
    found = compare(a, b, ("a", "b"))
    assert [p.load["concurrency"] for p in found.pairings] == [8, 64]
    assert found.unpaired_a == ["concurrency 1, 64 in, 32 out"]
    assert found.unpaired_b == ["concurrency 128, 64 in, 32 out"]


def test_of_several_settings_those_most_alike_are_paired() -> None:
    a = [
        one(f"a{tp}", tensor_parallel=tp, output_throughput=100.0 * tp) for tp in (1, 2, 4)
    ]
    b = [
        one(f"b{tp}", tensor_parallel=tp, engine_version="2", output_throughput=100.0)
        for tp in (4, 2)
    ]
    found = compare(a, b, ("a", "b"))
    assert [(p.a.rows, p.b.rows) for p in found.pairings] == [
        (["a2"], ["b2"]),
        (["a4"], ["b4"]),
    ]


def test_one_setting_goes_with_all_that_fit_and_many_with_many_are_not_guessed() -> None:
    two = [one(f"b{e}", engine=e, output_throughput=100.0) for e in ("x", "y")]
    found = compare([one("a", engine="z", output_throughput=90.0)], two, ("a", "b"))
    assert [p.b.rows for p in found.pairings] == [["bx"], ["by"]]
    others = [one(f"a{e}", engine=e, output_throughput=100.0) for e in ("v", "w")]
    found = compare(others, two, ("a", "b"))
    assert codes(found) == {"comparability.ambiguous": "void"} and not found.pairings


def test_repeats_are_one_whatever_their_seeds() -> None:
    a = [one(f"a{i}", seed=i, repeat=i, output_throughput=100.0 + i) for i in range(3)]
    b = [one(f"b{i}", seed=i, repeat=i, output_throughput=105.0 + i) for i in range(2)]
    found = pairing(a, b)
    assert (len(found.a.rows), len(found.b.rows)) == (3, 2)
    assert found.differences[0].a.by == "repeats"


def test_nothing_to_pair_is_refused_with_the_loads_of_each_and_anyway_marks_it() -> None:
    a, b = (
        [one("a", concurrency=8, output_throughput=9.0)],
        [one("b", concurrency=16, output_throughput=18.0)],
    )
    found = compare(a, b, ("a", "b"))
    assert found.verdict == "void" and not found.pairings
    assert (
        "A has serve: concurrency 8" in found.findings[0].text
        and "B has serve: concurrency 16" in found.findings[0].text
    )
    marked = compare(a, b, ("a", "b"), anyway=True)
    assert (
        marked.verdict == "void"
        and marked.pairings[0].differences
        and not marked.pairings[0].refused
    )
    assert codes(marked.pairings[0])["comparability.load"] == "void"


def test_no_rate_and_a_rate_are_not_paired() -> None:
    a, b = (
        one("a", form="json", rate="inf", output_throughput=1.0),
        one("b", form="json", rate=2.0, output_throughput=1.0),
    )
    assert not pair([[a]], [[b]]).pairs


def test_prompts_of_other_lengths_are_not_paired_where_the_lengths_are_unknown() -> None:
    reported = {"form": "json", "output_throughput": 1.0, "input_len": None}
    a, b = one("a", **reported), one("b", **reported, total_input_tokens=64000.0)
    assert not pair([[a]], [[b]]).pairs
    assert pair([[a]], [[one("b", **reported, total_input_tokens=7000.0)]]).pairs


def test_no_rate_is_written_inf_by_some() -> None:
    a, b = one("a", rate="inf", output_throughput=9.0), one("b", output_throughput=9.0)
    assert len(compare([a], [b], ("a", "b")).pairings) == 1


# ---- may they be compared? ----


@pytest.mark.parametrize(
    ("changes", "code", "level", "reported"),
    [
        ({"quantization": "fp8"}, "comparability.subject", "note", "quantization unknown / fp8"),
        ({"engine_version": "2", "max_num_seqs": 8}, "comparability.several_changes", "doubt", "2 settings differ"),
        ({}, "comparability.nothing_changed", "note", ""),
        ({"num_prompts": 500}, "comparability.requests", "doubt", "A has 100 requests, B 500"),
        ({"tokenizer": "y"}, "comparability.tokenizers", "doubt", "x and y"),
        ({"failed": 5.0}, "comparability.failures", "doubt", "0 % of A's requests failed and 4.8 % of B's"),
        ({"total_output_tokens": 4800.0}, "comparability.output_length", "doubt", "A has 32 output tokens"),
        ({"total_input_tokens": 6600.0}, "comparability.input_length", "doubt", "tokens per request, B 66"),
        ({"accelerators": 8}, "comparability.accelerators", "doubt", "B 8. Per accelerator: 100.0 and 12.50 tokens/s"),
    ],
)  # fmt: skip
def test_what_differs_is_reported(
    changes: dict[str, Any], code: str, level: str, reported: str
) -> None:
    base: dict[str, Any] = {"output_throughput": 100.0, "tokenizer": "x"}
    if "accelerators" in changes:
        base["accelerators"] = 1
    a, b = one("a", **base), one("b", **{**base, **changes})
    found = pairing([a], [b])
    assert codes(found)[code] == level
    assert reported in next(f.text for f in found.findings if f.code == code)
    assert all(f.text.endswith(".") and f.advice.endswith(".") for f in found.findings)


def test_a_latency_without_a_statistic_leads_to_two() -> None:
    with pytest.raises(UsageError, match="median_ttft_ms or p99_ttft_ms"):
        gate.check_metric("ttft", "--gate")


def test_doubts_of_both_sides_are_said_of_both() -> None:
    def doubtful(label: str, code: str) -> Row:
        row = one(label, output_throughput=1.0, verdict="doubtful")
        return msgspec.structs.replace(row, findings=[Finding(code, "doubt", "", "")])

    def words(a: str, b: str) -> str:
        found = pairing([doubtful("a", a)], [doubtful("b", b)]).findings
        return next(f.text for f in found if f.code == "comparability.doubtful_side")

    assert words("x.y", "x.y") == "Both sides have doubts of their own: x.y."
    assert words("x.y", "x.z") == "Both sides have doubts of their own: A x.y; B x.z."


def test_a_void_side_is_refused_and_a_doubtful_one_reported() -> None:
    replace = msgspec.structs.replace
    void = replace(
        one("a", output_throughput=1.0, verdict="void"),
        findings=[Finding("x.y", "void", "", "")],
    )
    doubtful = one("b", output_throughput=1.0, verdict="doubtful")
    doubtful = replace(doubtful, findings=[Finding("x.z", "doubt", "", "")])
    found = pairing([void], [doubtful])
    assert found.refused and not found.differences
    assert (
        codes(found)["comparability.void_side"] == "void"
        and codes(found)["comparability.doubtful_side"] == "doubt"
    )
    assert pairing([void], [doubtful], anyway=True).differences


def test_many_failures_on_one_side_are_refused() -> None:
    b = one("b", completed=36.0, failed=28.0, output_throughput=9.0)
    assert pairing([one("a", output_throughput=9.0)], [b]).refused


def test_requests_each_second_of_other_lengths_are_left_out_and_tokens_are_not() -> None:
    a = one("a", output_throughput=100.0, request_throughput=3.0)
    b = one(
        "b", output_throughput=101.0, request_throughput=2.0, total_output_tokens=4800.0
    )
    metrics = ["output_throughput", "request_throughput"]
    found = pairing([a], [b], metrics=metrics)
    assert [d.metric for d in found.differences] == ["output_throughput"]
    assert [(x.metric, x.why) for x in found.left_out] == [
        ("request_throughput", "comparability.output_length")
    ]
    marked = pairing([a], [b], metrics=metrics, anyway=True)
    assert len(marked.differences) == 2 and marked.verdict == "void"


def test_figures_that_two_tools_calculate_differently_share_no_line() -> None:
    a = one(
        "a",
        tool="vllm",
        form="json",
        median_ttft_ms=(9.0, "vllm.ttft"),
        median_tpot_ms=(9.0, "vllm.tpot"),
    )
    b = one(
        "b",
        tool="x",
        form="json",
        median_ttft_ms=(9.0, "sglang.ttft"),
        median_tpot_ms=(9.0, "guidellm.tpot"),
    )
    found = pairing([a], [b])
    assert [x.metric for x in found.left_out] == ["median_tpot_ms"], (
        "TTFT is the same but for an empty first chunk"
    )
    near, other = (f.text for f in found.findings if f.code == "comparability.definitions")
    assert "(vllm.ttft)" in near and "(guidellm.tpot)" in other


def test_other_prompts_are_reported_and_machines_compared() -> None:
    rig = Rig("Debian", "6.1", "x86_64", "Xeon", 8)
    a = msgspec.structs.replace(
        row("a", output_throughput=1.0, seed=1), rig=rig, prompts_sha256="1"
    )
    rig = Rig("Debian", "6.8", "x86_64", "Xeon", 8)
    b = msgspec.structs.replace(
        row("b", output_throughput=1.0, seed=2), rig=rig, prompts_sha256="2"
    )
    found = pairing([a], [b])
    assert (
        codes(found)["comparability.prompts"] == "note"
        and codes(found)["rig.software_differs"] == "doubt"
    )


@pytest.mark.parametrize(
    ("a", "b", "changed"),
    [
        ({"engine": "vllm", "engine_version": "1"}, {"engine": "tgi", "engine_version": "3"}, ["engine"]),
        ({"quantization": "F16", "model": "m-F16"}, {"quantization": "Q8_0", "model": "m-Q8_0"}, ["quantization"]),
        ({"quantization": "F16", "model": "m"}, {"quantization": "Q8_0", "model": "other"}, ["quantization", "model"]),
        ({"model": "/x/m"}, {"model": "m"}, []),
        ({"tensor_parallel": 1, "accelerators": 1}, {"tensor_parallel": 4, "accelerators": 4}, ["tensor_parallel"]),
    ],
)  # fmt: skip
def test_what_follows_from_a_change_is_not_a_second_one(
    a: Any, b: Any, changed: list[str]
) -> None:
    assert [name for name, _, _ in things_changed(row("a", **a), row("b", **b))] == changed


# ---- gates ----


def judged(text: str, change: float, low: float | None, high: float | None) -> str:
    metric = gate.parse(text).metric
    (d,) = differ(
        [one("a", **{metric: 100.0})], [one("b", **{metric: 100 * (1 + change)})], [metric]
    )
    whole = Difference(metric, d.a, d.b, "inconclusive", change, low, high)
    found = pairing([one("a", output_throughput=1.0)], [one("b", output_throughput=1.0)])
    of = Pairing("serve", {}, found.a, found.b, "sound", [], differences=[whole])
    return gate.judge(gate.parse(text), of, 0).state


@pytest.mark.parametrize(
    ("text", "change", "low", "high", "state"),
    [
        ("p99_ttft_ms<5%", 0.02, -0.01, 0.04, "held"),
        ("p99_ttft_ms<5%", 0.02, -0.03, 0.08, "undecided"),
        ("p99_ttft_ms<5%", 0.08, 0.04, 0.12, "undecided"),
        ("p99_ttft_ms<5%", 0.09, 0.06, 0.12, "broken"),
        ("p99_ttft_ms < 5 %", 0.09, None, None, "broken"),
        ("p99_ttft_ms<5%", 0.01, None, None, "undecided"),
        ("output_throughput>-5%", -0.08, -0.1, -0.06, "broken"),
        ("output_throughput>=-5%", 0.1, 0.05, 0.15, "held"),
        ("p99_ttft_ms<200", 0.5, None, None, "undecided"),
        ("p99_ttft_ms<120", 0.5, None, None, "broken"),
        ("failed<=0", -1.0, None, None, "held"),
        ("failed<=0", 0.0, None, None, "broken"),
    ],
)
def test_a_gate_is_broken_only_where_the_whole_interval_is_beyond(
    text: str, change: float, low: float | None, high: float | None, state: str
) -> None:
    assert judged(text, change, low, high) == state


def test_a_gate_is_about_the_loads_that_have_its_figure() -> None:
    def side(file: str, p99_at_16: float | None = 20.0) -> list[Row]:
        few = [
            one(f"{file}{i}", output_throughput=100.0 + i, p99_ttft_ms=20.0)
            for i in range(3)
        ]
        many = [
            one(
                f"{file}{i}",
                concurrency=16,
                output_throughput=200.0 + i,
                median_ttft_ms=9.0,
            )
            for i in range(3)
        ]
        many = [msgspec.structs.replace(r, figures=_with(r, p99_at_16)) for r in many]
        score = row(
            file,
            kind="quality",
            task="biology",
            metric="exact_match",
            score=0.5,
            **dict.fromkeys(LOAD),
        )
        return [*few, *many, score]

    def _with(r: Row, p99: float | None) -> dict[str, Figure]:
        return r.figures if p99 is None else {**r.figures, "p99_ttft_ms": Figure(p99, 0)}

    def judged(
        a: Sequence[Row], b: Sequence[Row], text: str
    ) -> list[tuple[str, int | None]]:
        return [
            (g.state, g.pairing)
            for g in compare(a, b, ("a", "b"), gates=[gate.parse(text)]).gates
        ]

    kinds = [p.kind for p in compare(side("a"), side("b"), ("a", "b")).pairings]
    assert kinds == ["serve", "serve", "quality"]
    assert judged(side("a"), side("b"), "output_throughput>-99.9%") == [
        ("held", 0),
        ("held", 1),
    ]
    assert judged(side("a"), side("b"), "p99_ttft_ms<999%") == [("held", 0), ("held", 1)]
    # Not known at one load: that isn't a load without latencies.
    assert judged(side("a", None), side("b", None), "p99_ttft_ms<999%") == [
        ("held", 0),
        ("undecided", 1),
    ]
    assert judged(side("a"), side("b", None), "p99_ttft_ms<999%") == [
        ("held", 0),
        ("undecided", 1),
    ]
    assert judged(side("a"), side("b"), "acceptance_rate>-1%") == [("undecided", None)]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("p99_ttft_ms", "write METRIC<LIMIT"),
        ("p99_ttft_ms<5ms", "write METRIC<LIMIT"),
        ("p99_tft_ms<5%", "Did you mean p99_ttft_ms?"),
        ("output_throughput<5%", "write 'output_throughput>-5%'"),
        ("mean_tpot_ms>-3%", "write 'mean_tpot_ms<3%'"),
    ],
)
def test_a_gate_with_a_slip_is_explained(text: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported.replace("?", r"\?")):
        gate.parse(text)


def test_words_and_directions() -> None:
    assert (better("p99.9_itl_ms"), better("score"), better("total_tokens")) == (
        "lower",
        "higher",
        None,
    )
    assert (words("p99_ttft_ms"), words("output_throughput")) == (
        "p99 TTFT",
        "output tokens/s",
    )


def test_a_figure_of_zero_has_no_percent() -> None:
    found = estimates([one("a")], ["failed"])["failed"]
    assert found.value == 0 and found.error is None
    (d,) = differ([one("a")], [one("b", failed=3.0)], ["failed"])
    assert d.change is None and d.word == "confidence unknown"


@pytest.mark.parametrize("loads", [(1, 2, 4, 8), tuple(range(1, 41))])
def test_a_page_claims_a_lead_where_compare_finds_one_and_nowhere_else(
    loads: Sequence[int],
) -> None:
    rng = np.random.default_rng(3)
    words: set[str] = set()
    gains = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
    for gain in gains if len(loads) < 24 else gains[::3]:
        rows = {
            engine: [
                one(f"{engine}-{c}-{repeat}", engine=engine, concurrency=c, seed=repeat,
                    output_throughput=1000.0 * (1 + c / 100) * factor * (1 + 0.004 * rng.standard_normal()))
                for c in loads for repeat in range(3)
            ]
            for engine, factor in (("a", 1.0), ("b", 1.0 + gain))
        }  # fmt: skip
        shown = entries([*rows["a"], *rows["b"]], [], [], lambda m: None)
        standing = conclude(shown, [], [], {}, lambda m: None).standing
        assert standing is not None
        leader, second = ({e.id: e for e in shown}[c.entry] for c in standing.contenders)
        if leader.load != second.load:
            continue
        compared = compare(rows[second.series], rows[leader.series], ("A", "B"))
        (d,) = (d for p in compared.pairings if p.load["concurrency"] == leader.load.get("concurrency")
                for d in p.differences if d.metric == "output_throughput")  # fmt: skip
        word = standing.contenders[1].word
        words.add(word)
        if len(loads) < 24:
            assert (word == "real") is (d.word in FOUND), (gain, word, d.word)
        else:  # judged by the number of figures alone
            assert word != "real" or d.word in FOUND
    assert "real" in words and len(words) > 1
