"""Latency targets, and the best load that meets one."""

from typing import Any

import pytest

from dyno.errors import UsageError
from dyno.facts.entry import Entry, Number
from dyno.facts.limits import Limit
from dyno.facts.limits import parse as limits
from dyno.facts.load import Load
from dyno.report.target import best, target


def entry(name: str, streams: int, speed: float | None = None, **more: Any) -> Entry:
    figures = {
        "p99_ttft_ms": 10.0 * streams,
        "mean_ttft_ms": 5.0 * streams,
        **more.pop("figures", {}),
    }
    if speed is not None:
        figures["output_throughput"] = speed
    load = {
        "concurrency": streams,
        "num_prompts": streams * 10,
        "input_len": 512,
        **more.pop("load", {}),
    }
    settled = {
        "series": "a",
        "kind": "serve",
        "verdict": "sound",
        "completed": streams * 10.0,
        **more,
    }
    reported = {k: Number(v) for k, v in figures.items() if v is not None}
    return Entry(id=name, load=Load(load), figures=reported, **settled)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ttft:500", Limit("ttft", 500.0)),
        ("p99_ttft:500", Limit("ttft", 500.0, "p99")),
        ("p99.9_tpot:1.5", Limit("tpot", 1.5, "p99.9")),
        ("mean_itl:20", Limit("itl", 20.0, "mean")),
        ("p50_e2el:10000", Limit("e2el", 10000.0, "median")),
        ("p99_ttft_ms:500", Limit("ttft", 500.0, "p99")),
        ("ttft_p90:500ms", Limit("ttft", 500.0, "p90")),
        ("ttft_p90:2s", Limit("ttft", 2000.0, "p90")),
        ("ttft_p90:1.5 S", Limit("ttft", 1500.0, "p90")),
        ("tpot:1e1ms", Limit("tpot", 10.0)),
        ("failed:1%", Limit("failed", 0.01)),
        ("failed:7%", Limit("failed", 0.07)),
        ("failed:0.07", Limit("failed", 0.07)),
        ("failed:0", Limit("failed", 0.0)),
        ("invalid:1%", Limit("invalid", 0.01)),
    ],
)
def test_a_target_is_written_as_a_goodput_is(word: str, expected: Limit) -> None:
    assert limits([word]) == [expected]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["ttft"], "write NAME:LIMIT"),
        (["ttft:fast"], "write NAME:LIMIT"),
        (["tfft:5"], "unknown latency 'tfft'. Did you mean ttft"),
        (["ttft:-1"], "above 0 milliseconds"),
        (["ttft:nan"], "above 0 milliseconds"),
        (["ttft:inf"], "above 0 milliseconds"),
        (
            ["ttft:5min"],
            "the unit 'min' does not fit. A latency is in ms, or in s: 500, 500ms or 2s",
        ),
        (["ttft:5%"], "the unit '%' does not fit. A latency is in ms, or in s"),
        (
            ["failed:1ms"],
            "the unit 'ms' does not fit. A share of the requests has no unit, or is in %: 0.01 or 1%",
        ),
        (["failed:100%"], "a share of the requests, such as failed:0, failed:0.01 or 1%"),
        (["failed:few"], "write NAME:LIMIT"),
        (["invalid:100ms"], "the unit 'ms' does not fit. A share of the requests"),
        (["invald:1"], "Did you mean invalid"),
        (["ttft:500ms", "ttft:1s"], "ttft has two limits"),
        (["ttft:1", "ttft:2"], "ttft has two limits"),
    ],
)
def test_a_wrong_target_gets_a_sentence(words: list[str], reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        limits(words)


@pytest.mark.parametrize(
    ("statistics", "expected", "why"),
    [
        ([{"p99", "mean"}, {"p99"}], "p99", "all results with this latency have it"),
        ([{"p90", "p95", "mean"}, {"p95", "p90", "p99"}], "p95", "the highest percentile that all results have"),
        ([{"p50", "mean"}, {"median", "mean"}], "median", "the highest percentile that all results have"),
        ([{"mean"}, {"mean", "p99"}], "mean", "the results share no percentile"),
        ([{"mean"}, {"p99"}, {"p99"}], "p99", "2 of 3 results have it, and none is in all of them"),
        ([{"max"}], "max", "the results have nothing else"),
        ([set(), {"p90"}], "p90", "the highest percentile that all results have"),
        ([], "p99", "no result has one"),
    ],
)  # fmt: skip
def test_the_statistic_is_the_strictest_that_all_results_have(
    statistics: list[set[str]], expected: str, why: str
) -> None:
    base = {"p99_ttft_ms": None, "mean_ttft_ms": None}
    entries = [
        entry("t", 1, 1.0, figures={**base, **{f"{s}_ttft_ms": 1.0 for s in sorted(names)}})
        for names in statistics
    ]
    found = target(entries, limits(["ttft:500"]))
    assert found.limits == {f"{expected}_ttft_ms": 500.0}
    assert found.words == [f"TTFT by its {expected}: {why}."]
    assert target(entries, limits(["p90_ttft:5"])).words == [], (
        "what was asked for needs no reason"
    )


def test_the_best_load_is_the_fastest_that_meets_the_target() -> None:
    entries = [
        entry("t1", 1, 10.0),
        entry("t2", 8, 60.0),
        entry("t3", 16, 55.0),
        entry("t4", 64, 90.0),
    ]
    (found,) = best(entries, {"p99_ttft_ms": 200.0})
    assert (found.series, found.entry, found.workload, found.why) == (
        "a",
        "t2",
        "512 in",
        "",
    )
    (found,) = best(entries, {})
    assert found.entry == "t4"


def test_series_workloads_and_kinds_have_a_best_each() -> None:
    entries = [
        entry("t1", 1, 10.0), entry("t2", 2, 20.0), entry("t3", 1, 10.0, series="b"),
        entry("t4", 1, 1.0, load={"input_len": 9, "dataset": "random"}), entry("t5", 1, 10.0, kind="throughput"),
        entry("t6", 1, 99.0, kind="micro"),
    ]  # fmt: skip
    found = [(b.series, b.workload, b.entry) for b in best(entries, {"p99_ttft_ms": 100.0})]
    assert found == [
        ("a", "512 in", "t2"), ("b", "512 in", "t3"), ("a", "9 in", "t4"),
        ("a", "512 in, offline throughput", "t5"),
    ]  # fmt: skip


def test_why_there_is_none_names_the_nearest() -> None:
    (found,) = best([entry("t1", 60, 1.0), entry("t2", 80, 2.0)], {"p99_ttft_ms": 500.0})
    assert found.entry is None
    assert found.why == "Nearest: concurrency 60 with p99 TTFT 600.0 ms, 500 allowed."


def test_void_results_and_those_with_failures_are_never_the_best() -> None:
    entries = [
        entry("t1", 8, 90.0, verdict="void"),
        entry("t2", 4, 80.0, failed=1.0, completed=40.0),
        entry("t3", 5, 80.0, completed=20.0),  # of 50 that were asked for
        entry(
            "t4",
            2,
            70.0,
            failure="it died",
            figures={"p99_ttft_ms": None, "mean_ttft_ms": None},
        ),
    ]
    (found,) = best(entries, {"p99_ttft_ms": 500.0})
    assert found.entry is None
    assert found.why == (
        "Void at concurrency 8; over 1 % of the requests failed at concurrency 4, concurrency 5; "
        "no result at concurrency 2."
    )
    doubtful = entry("t5", 1, 1.0, verdict="doubtful", failed=1.0, completed=100.0)
    (found,) = best([*entries, doubtful], {"p99_ttft_ms": 500.0})
    assert (found.entry, found.why) == ("t5", "")


def test_a_result_without_the_latency_does_not_meet_it_and_that_is_reported() -> None:
    silent = entry("t2", 8, 90.0, figures={"p99_ttft_ms": None})
    (found,) = best([entry("t1", 1, 10.0), silent], {"p99_ttft_ms": 500.0})
    assert (found.entry, found.why) == ("t1", "No p99 TTFT at concurrency 8.")
    (found,) = best(
        [entry("t1", 1, 10.0), entry("t2", 8, 90.0, figures={"p99_ttft_ms": float("nan")})],
        {"p99_ttft_ms": 5.0},
    )
    assert found.entry is None and "no p99 TTFT at concurrency 8" in found.why


def test_a_result_with_too_many_invalid_answers_does_not_meet_its_target() -> None:
    entries = [
        entry("t1", 1, 10.0, figures={"valid_share": 0.995}),
        entry("t2", 8, 80.0, figures={"valid_share": 0.8}),
        entry("t3", 16, 90.0),
    ]
    (found,) = best(entries, {"invalid": 0.01})
    assert (found.entry, found.why) == ("t1", "No check of answers at concurrency 16.")
    (found,) = best(entries[1:], {"invalid": 0.01})
    assert found.why == (
        "No check of answers at concurrency 16; over 1 % of the answers are invalid at concurrency 8."
    )


@pytest.mark.parametrize(("valid", "of"), [(19, 20), (38, 40), (95, 100), (990, 1000)])
def test_a_share_of_invalid_answers_that_is_just_the_limit_meets_it(
    valid: int, of: int
) -> None:
    entries = [entry("t1", 1, 10.0, figures={"valid_share": valid / of})]
    limit = float(f"{(of - valid) / of:g}")
    assert best(entries, {"invalid": limit})[0].entry == "t1"
    (found,) = best(entries, {"invalid": limit * 0.99})
    assert found.entry is None and "of the answers are invalid" in found.why


def test_total_throughput_counts_where_no_other_is_reported() -> None:
    entries = [
        entry("t1", 1, figures={"total_token_throughput": 50.0}),
        entry("t2", 2, figures={"total_token_throughput": 40.0}),
        entry("t3", 3),
    ]
    (found,) = best(entries, {})
    assert found.entry == "t1"
    (found,) = best(
        [entry("t1", 1, 5.0, figures={"total_token_throughput": 50.0}), entries[1]], {}
    )
    assert found.entry == "t1"
