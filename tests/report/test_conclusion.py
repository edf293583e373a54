"""What a report says at its top, in words."""

import re
from random import Random
from typing import Any

import msgspec
import pytest

from dyno.facts.entry import Entry, Number
from dyno.facts.finding import Finding
from dyno.facts.imported import Row, RunFacts, Samples
from dyno.facts.load import Load
from dyno.facts.price import Price, PriceRule
from dyno.facts.report import Words
from dyno.facts.study import Place
from dyno.report.conclusion import conclude
from dyno.report.entries import entries
from dyno.report.target import best
from dyno.report.target import falls as falling
from rows import micro, row, score


def said(
    rows: list[Row],
    limits: dict[str, float] | None = None,
    price: float | None = None,
    **more: Any,
) -> Words:
    rules = [PriceRule(Price(accelerator_hour=price), origin="--price")] if price else []
    made = entries(list(rows), more.pop("found", []), rules, lambda m: None)
    chosen = best(made, limits or {})
    return conclude(
        made, chosen, more.pop("findings", []), limits or {}, lambda m: None, **more
    )


def at(
    engine: str, streams: int, speed: float, ttft: float = 600.0, **settings: Any
) -> Row:
    """Speeds are reached by as many requests in less time."""
    took = 100_000 / speed
    figures: dict[str, float | None] = {
        "output_throughput": speed, "duration_s": took, "request_throughput": 1000 / took, "p99_ttft_ms": ttft,
        "total_token_throughput": 3 * speed,
    }  # fmt: skip
    line = 1000 * streams + 50 * settings.pop("line_of", int(engine == "tgi"))
    reported = {
        "engine": engine,
        "concurrency": streams,
        "accelerator": "H100",
        "accelerators": 1,
        **settings,
    }
    return row(figures, reported, line=line)


def test_who_leads_by_how_much_and_how_sure_are_three_sentences() -> None:
    words = said(
        [
            at("vllm", 8, 500.0),
            at("vllm", 64, 2000.0),
            at("tgi", 8, 400.0),
            at("tgi", 64, 1600.0),
        ]
    )
    who, how_much, how_sure = words.answer
    assert (
        who == "vllm has the highest throughput: 2,000 output tokens/s at concurrency 64."
    )
    assert how_much == "That is 25 % more than tgi (1,600)."
    assert how_sure.startswith("Confidence unknown: ")
    assert (
        words.compared.startswith("vllm and tgi (served) at concurrency 8 to 64")
        and "4 results" in words.compared
    )
    assert "1 × H100" in words.on


def test_several_workloads_are_three_sentences_too() -> None:
    def rows(vllm: float, length: int) -> list[Row]:
        return [
            at("vllm", 8, vllm, input_len=length, line_of=length),
            at("tgi", 8, 400.0, input_len=length),
        ]

    words = said([*rows(500.0, 100), *rows(600.0, 1000), *rows(300.0, 9000)])
    leaders, example, how_sure = words.answer
    assert leaders == "vllm has the highest throughput on 2 of 3 workloads, tgi on 1."
    assert example.endswith(
        "vllm reaches 600.0 output tokens/s at concurrency 8, 50 % more than tgi (400.0)."
    )
    assert (
        how_sure.startswith("Confidence unknown on all 3 workloads")
        and len(words.workloads) == 3
    )
    assert (
        said([*rows(500.0, 100), *rows(600.0, 1000)]).answer[0]
        == "vllm has the highest throughput on both workloads."
    )


def test_runs_too_short_for_an_interval_have_no_leader() -> None:
    """Their requests are there, but say nothing of the error: one file without its requests is quoted as it is."""
    few = Samples(
        times_ms={"ttft": [20.0, 21.0], "e2el": [80.0, 82.0]}, starts_s=[0.0, 0.1]
    )
    short = [
        msgspec.structs.replace(at(name, 8, speed), samples=few)
        for name, speed in (("vllm", 500.0), ("tgi", 400.0))
    ]
    who, how_sure = said(short).answer
    assert who.startswith(
        "vllm and tgi can't be separated: 500.0 and 400.0 output tokens/s at concurrency 8."
    )
    assert (
        how_sure
        == "Confidence unknown: the run was too short for an error estimate; repeat it."
    )


def test_the_answer_table_has_the_contenders_with_the_lead_over_each() -> None:
    standing = said(
        [at(f"e{i}", 8, 1000.0 - 100 * i, line_of=i) for i in range(9)]
    ).standing
    assert standing is not None and standing.metric == "output_throughput"
    assert len(standing.contenders) == 6 and standing.more == 3
    assert standing.contenders[0].lead is None and standing.contenders[
        1
    ].lead == pytest.approx(1 / 9)


def test_an_inconclusive_difference_is_not_a_lead() -> None:
    def run(engine: str, i: int, speed: float) -> Row:
        return row({"output_throughput": speed, "duration_s": 100_000 / speed}, {"engine": engine},
                   file=f"{engine}-run{i}.json", label=f"{engine}-run{i}", form="json", half=0.0)  # fmt: skip

    rows = [run("vllm", i, 1000.0 + 300 * i) for i in range(3)] + [
        run("tgi", i, 950.0 + 300 * i) for i in range(3)
    ]
    words = said(rows)
    assert "highest" not in " ".join(words.answer) and words.answer[0].startswith(
        "vllm and tgi can't be separated: "
    )
    assert (
        words.standing is not None and words.standing.contenders[1].word == "inconclusive"
    )


@pytest.mark.parametrize("deviation", [0.001, 0.01, 0.05, 0.2])
def test_no_superlative_is_beside_two_that_cannot_be_separated(
    deviation: float,
) -> None:
    """Over many draws: a report claims a lead, or says that the two can't be separated, never both."""
    seen = set()
    for seed in range(12):
        rng = Random(seed)
        rows = [
            row({"output_throughput": v, "duration_s": 100_000 / v}, {"engine": engine}, form="json", half=0.0,
                file=f"{engine}-run{i}.json", label=f"{engine}-run{i}")
            for engine, middle in (("vllm", 1000.0), ("tgi", 1000.0 * rng.choice((1, 1.03, 1.3))))
            for i in range(3) for v in [middle * (1 + deviation * rng.gauss(0, 1))]
        ]  # fmt: skip
        words = said(rows)
        text = " ".join([*words.answer, *words.workloads])
        claims = bool(re.search(r"\b(fastest|highest|best|leads|more than)\b", text))
        equal = bool(re.search(r"can't be separated|[Nn]o difference is detected", text))
        assert claims != equal, text
        seen.add(equal)
    assert True in seen


def test_a_load_that_only_one_was_measured_under_wins_nothing() -> None:
    words = said([at("vllm", 8, 500.0), at("vllm", 256, 9000.0), at("tgi", 8, 600.0)])
    assert "tgi has the highest throughput: 600.0" in words.answer[0]
    assert (
        "vllm reaches 9,000 at concurrency 256, where others lack a result."
        in words.workloads[0]
    )
    assert "Only loads at which all of them were measured count." in words.workloads[0]


def test_where_no_load_is_shared_there_is_no_leader() -> None:
    words = said([at("vllm", 256, 9000.0), at("tgi", 8, 600.0)])
    assert words.answer[0] == "sharegpt: no answer: the usable results share no load."
    assert not any("highest" in sentence for sentence in words.answer)


def test_a_target_leaves_out_what_misses_it() -> None:
    rows = [
        at("vllm", 8, 500.0, 100.0),
        at("vllm", 64, 2000.0, 900.0),
        at("tgi", 8, 400.0, 100.0),
    ]
    words = said([*rows, at("tgi", 64, 1600.0, 900.0)], {"p99_ttft_ms": 500.0})
    within = "Within p99 TTFT ≤ 500 ms, vllm has the highest throughput: 500.0 output tokens/s at concurrency 8."
    assert words.answer[0] == within


def test_under_a_rate_that_all_serve_the_sooner_answer_leads() -> None:
    def offered(engine: str, ttft: float) -> Row:
        return at(engine, 8, 1000.0, ttft, concurrency=None, rate=10.0)

    words = said([offered("vllm", 200.0), offered("tgi", 300.0)])
    assert "vllm has the lowest p99 TTFT: 200.0 ms at 10 requests/s" in words.answer[0]
    assert "33.3 % less than tgi" in words.answer[1]


def test_a_void_result_is_in_no_answer() -> None:
    bad = at("vllm", 64, 9000.0)
    void = Finding(
        "requests.failed", "void", "28 of 64 requests failed.", "Look.", [bad.location]
    )
    rows = [at("vllm", 8, 500.0), bad, at("tgi", 8, 400.0), at("tgi", 64, 1600.0)]
    words = said(rows, found=[void], findings=[void])
    assert "9,000" not in " ".join(words.answer)
    assert (
        words.caveats[0]
        == "1 of 4 results is void. Void results are excluded from the answer above."
    )
    assert "28 of 64 requests failed. (requests.failed)" in words.caveats


def test_a_series_without_a_usable_result_is_named_below_the_answers_table() -> None:
    """One of six was missing from the table, without a word."""
    bad = at("sglang", 8, 9000.0, line_of=2)
    void = Finding("requests.failed", "void", "Most failed.", "Look.", [bad.location])
    words = said([at("vllm", 8, 500.0), bad, at("tgi", 8, 400.0)], found=[void])
    assert words.standing is not None
    assert words.standing.remark == "Without a usable result at these loads: sglang."


def test_single_results_are_reported_to_show_nothing_of_the_next() -> None:
    words = said([at("vllm", 8, 500.0), at("tgi", 8, 400.0)])
    assert "confidence unknown" in words.confidence[0]
    assert any("Nothing was repeated" in d for d in words.caveats)


def test_what_is_not_comparable_is_reported_with_the_reason() -> None:
    long = {"total_output_tokens": 400_000.0, "output_throughput": 4000.0}
    words = said(
        [at("vllm", 8, 500.0), row(long, {"engine": "tgi", "concurrency": 8}, line=9000)]
    )
    assert (
        words.answer[0] == "vllm and tgi are not comparable."
        or "comparable" in words.confidence[0]
    )
    assert words.confidence[0].endswith("(A: vllm, B: tgi)")


def test_costs_are_reported_where_prices_are() -> None:
    words = said([at("vllm", 8, 500.0), at("tgi", 8, 400.0)], price=3.6)
    assert words.cost == [
        "A million output tokens cost 2.00 USD with vllm at concurrency 8, 2.50 USD with tgi at concurrency 8."
    ]


def test_scores_and_micro_tests_are_ranked_at_the_same_test() -> None:
    rows = [
        micro("pp512", 1000.0, "A"),
        micro("pp512", 1200.0, "B"),
        micro("tg128", 20.0, "A"),
        micro("tg128", 10.0, "B"),
    ]
    prompt, generation = said(rows).workloads
    assert prompt.startswith("pp512: B has the highest throughput: 1,200 tokens/s")
    assert generation.startswith("tg128: A has the highest throughput: 20.00 tokens/s")
    words = said(
        [
            score(0.8466, 0.0135, quantization="FP16"),
            score(0.848, 0.0135, quantization="FP8"),
        ]
    )
    assert (
        "No difference is detected between FP8 (0.8480) and FP16 (0.8466)."
        in words.answer[0]
    )
    assert "no difference detected" in words.confidence[0]
    words = said(
        [score(0.95, 0.01, quantization="FP16"), score(0.6, 0.01, quantization="FP8")]
    )
    assert words.answer[:2] == [
        "FP16 scores highest: 0.9500.",
        "That is against FP8 (0.6000).",
    ]


def test_one_thing_alone_is_reported_by_the_most_it_does() -> None:
    words = said([at("vllm", 8, 500.0), at("vllm", 64, 2000.0)])
    assert words.answer == [
        "vllm reaches 2,000 output tokens/s at concurrency 64, with p99 TTFT 600.0 ms.",
        "Single run: run-to-run variation is unknown.",
    ]
    assert "Nothing is compared" in words.confidence[0]
    assert words.standing is not None and len(words.standing.contenders) == 2


def test_a_study_that_is_not_finished_says_so() -> None:
    words = said([at("vllm", 8, 500.0)], unfinished=3)
    assert any("not finished: 3 planned trials" in d for d in words.caveats)
    assert "3 planned trials not run yet" in words.compared


def test_those_behind_the_second_are_named_too() -> None:
    words = said([at(f"e{i}", 8, 1000.0 - 100 * i, line_of=i) for i in range(6)])
    assert "Then e2 800.0, e3 700.0, 1 other, last e5 500.0." in words.workloads[0]


def test_where_accelerators_differ_in_number_each_ones_share_is_reported() -> None:
    rows = [
        at("one", 8, 500.0, accelerators=1, line_of=0),
        at("four", 8, 1000.0, accelerators=4, line_of=1),
    ]
    words = said(rows)
    assert "four ×4 has the highest throughput: 1,000" in words.answer[0]
    assert words.workloads[0].endswith(
        "Per accelerator: one ×1 500.0, four ×4 250.0 output tokens/s."
    )


def test_a_workload_without_results_that_count_has_no_answer() -> None:
    rows = [at("vllm", 8, 500.0), at("tgi", 8, 400.0)]
    words = said(rows, {"p99_ttft_ms": 5.0})
    assert words.answer == ["sharegpt: no result meets p99 TTFT ≤ 5 ms."]


def test_one_series_that_alone_meets_the_target_is_named() -> None:
    words = said(
        [at("vllm", 8, 500.0, 100.0), at("tgi", 8, 400.0, 900.0)], {"p99_ttft_ms": 500.0}
    )
    assert words.answer[0] == "sharegpt: only vllm meets p99 TTFT ≤ 500 ms."
    assert words.answer[1].startswith(
        "Within p99 TTFT ≤ 500 ms, vllm reaches 500.0 output tokens/s"
    )


def test_another_rate_under_one_concurrency_is_another_load() -> None:
    words = said([at("vllm", 64, 1000.0, rate=4.0), at("tgi", 64, 3000.0, rate=16.0)])
    assert not any("more than" in a for a in words.answer)


def test_one_series_that_shares_no_load_is_left_out_and_named() -> None:
    rows = [
        at("a", 8, 500.0, line_of=0),
        at("b", 8, 400.0, line_of=1),
        at("c", 16, 900.0, line_of=2),
    ]
    words = said(rows)
    assert "a has the highest throughput: 500.0" in words.answer[0]
    assert words.workloads[0].endswith("Without a usable result at these loads: c.")


def test_money_of_two_currencies_is_not_held_together() -> None:
    rules = [PriceRule(Price(accelerator_hour=1.0), series="vllm"),
             PriceRule(Price(accelerator_hour=150.0, currency="JPY"), series="tgi")]  # fmt: skip
    made = entries([at("vllm", 8, 500.0), at("tgi", 8, 400.0)], [], rules, lambda m: None)
    words = conclude(made, best(made, {}), [], {}, lambda m: None)
    costs = words.cost
    assert (
        len(costs) == 2
        and "USD" in costs[0]
        and "JPY" in costs[1]
        and "tgi" not in costs[0]
    )


def test_a_score_or_a_latency_alone_is_an_answer_too() -> None:
    assert "scores 0.8466 in biology" in said([score(0.8466, 0.0135)]).answer[0]
    waits = row(
        {},
        base={"mean_latency_ms": 420.0},
        kind="latency",
        load={"batch_size": 8, "engine": "vllm"},
    )
    assert said([waits]).answer == [
        "vllm has a mean latency of 420.0 ms at batch size 8.",
        "Single run: run-to-run variation is unknown.",
    ]


def test_trials_that_failed_are_reported() -> None:
    bare = row({}, {"engine": "gone"}, base={}, form="run", label="gone, w, c")
    place = Place("s", "x", "gone", "w", "c")
    lost = msgspec.structs.replace(bare, run=RunFacts(place), failure="exited with code 3")
    made = entries([at("vllm", 8, 500.0), lost], [], [], lambda m: None)
    words = conclude(made, [], [], {}, lambda m: None)
    assert any("1 trial failed: gone, exited with code 3" in d for d in words.caveats)


def test_a_target_changes_nothing_of_which_loads_are_shared() -> None:
    rows = [at("vllm", 1, 300.0, 100.0), at("vllm", 64, 9000.0, 900.0), at("tgi", 1, 200.0, 100.0),
            at("tgi", 16, 2400.0, 200.0), at("tgi", 64, 5000.0, 900.0)]  # fmt: skip
    words = said(rows, {"p99_ttft_ms": 500.0})
    assert (
        "vllm has the highest throughput: 300.0 output tokens/s at concurrency 1"
        in words.answer[0]
    )
    assert (
        "tgi reaches 2,400 at concurrency 16, where others lack a result."
        in words.workloads[0]
    )


def test_what_misses_the_target_is_never_reported_to_keep_it() -> None:
    rows = [row({"output_throughput": None, "total_token_throughput": None, "p99_ttft_ms": v},
                {"engine": name, "concurrency": 8}, line=line)
            for name, v, line in (("vllm", 900.0, 1), ("tgi", 950.0, 100))]  # fmt: skip
    assert said(rows, {"p99_ttft_ms": 500.0}).answer == [
        "sharegpt: no result meets p99 TTFT ≤ 500 ms."
    ]


def test_a_rate_that_one_lacks_breaks_nothing() -> None:
    def offered(engine: str, rate: float, speed: float) -> Row:
        return at(engine, 8, speed, 200.0, concurrency=None, rate=rate, line_of=int(rate))

    words = said([offered("vllm", 10.0, 1000.0), offered("vllm", 20.0, 1005.0), offered("tgi", 10.0, 1000.0)],
                 {"p99_ttft_ms": 500.0})  # fmt: skip
    assert words.answer


def test_repeats_of_files_are_compared_as_repeats() -> None:
    def run(engine: str, i: int, speed: float) -> Row:
        figures: dict[str, float | None] = {
            "output_throughput": speed,
            "duration_s": 100_000 / speed,
        }
        name = f"{engine}-run{i}"
        figures["mean_ttft_ms"] = 230.0 + i
        return row(
            figures,
            {"engine": engine},
            file=f"{name}.json",
            label=name,
            form="json",
            half=0.0,
        )

    rows = [
        run(e, i, s * (1 + 0.01 * i))
        for e, s in (("vllm", 1000.0), ("tgi", 500.0))
        for i in range(3)
    ]
    words = said(rows)
    assert "2 results, 3 repeats each" in words.compared
    assert (
        "vllm has the highest throughput" in words.answer[0]
        and "over repeats" in words.confidence[0]
    )


def test_as_many_shared_loads_as_may_be_decide() -> None:
    rows = [at("a", 1, 100.0, line_of=0), at("a", 8, 500.0, line_of=0), at("a", 64, 900.0, line_of=0),
            at("b", 1, 200.0, line_of=1), at("b", 8, 800.0, line_of=1), at("c", 64, 300.0, line_of=2)]  # fmt: skip
    words = said(rows)
    assert "b has the highest throughput: 800.0" in words.answer[0]
    assert "a reaches 900.0 at concurrency 64" in words.workloads[0]


def test_who_leads_at_the_lowest_load_is_reported_where_it_is_another() -> None:
    words = said(
        [
            at("vllm", 1, 100.0),
            at("vllm", 64, 2000.0),
            at("tgi", 1, 150.0),
            at("tgi", 64, 1600.0),
        ]
    )
    assert "vllm has the highest throughput: 2,000" in words.answer[0]
    assert words.workloads[0].endswith(
        "At concurrency 1, tgi has 150.0 against vllm's 100.0."
    )


@pytest.mark.parametrize(
    ("most", "last", "falls"),
    [
        (Number(273.4), Number(256.4), True),  # a single run each: the page says so
        (Number(273.4, 216.0, 346.0, enough=25), Number(256.4, 195.0, 337.0), False),
        (Number(273.4, 260.0, 280.0), Number(256.4, 255.0, 258.0), True),
        (Number(273.4, 260.0, 280.0), Number(270.0, 269.0, 271.0), False),
    ],
)
def test_throughput_falls_only_beyond_the_intervals(
    most: Number, last: Number, falls: bool
) -> None:
    line = [
        Entry(
            name,
            "a",
            "serve",
            Load({"concurrency": level}),
            "sound",
            figures={"output_throughput": figure},
        )
        for name, level, figure in (("t1", 2, most), ("t2", 4, last))
    ]
    assert bool([*falling(line)]) == falls
