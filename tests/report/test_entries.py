"""From results to what a report shows of them: names, repeats together, intervals, prices, doubts, single requests."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from dyno.facts.engine import EngineSpec
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding
from dyno.facts.imported import Row, RunFacts, Samples
from dyno.facts.load import Load, LoadSpec
from dyno.facts.price import Price, PriceRule
from dyno.facts.record import Record
from dyno.facts.study import Place, PlannedTrial
from dyno.facts.target import TargetSpec
from dyno.facts.telemetry import Sample
from dyno.facts.trial import TrialSpec
from dyno.report.entries import entries
from dyno.report.series import Loads, names
from dyno.report.timeline import (
    BARS,
    Detail,
    bars_of_records,
    bars_of_samples,
    moments,
    quantiles,
)
from dyno.store.rows import row_without
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.spec import WorkloadSpec
from rows import micro, offline, row, score


def made(
    rows: list[Row],
    found: list[Finding] | None = None,
    rules: list[PriceRule] | None = None,
) -> list[Entry]:
    def detail(m: Row) -> Detail | None:
        return None if m.samples is None else Detail(m, bars_of_samples(m.samples), 3)

    return entries(rows, found or [], rules or [], detail)


def named(*settings: dict[str, Any]) -> list[str]:
    of = [row({}, s, line=10 * i) for i, s in enumerate(settings, 1)]
    return names(of, Loads(of))


# ---- names ----


def test_a_series_is_named_by_what_differs_and_not_by_the_load() -> None:
    of = [
        {"engine": "vllm", "tensor_parallel": tp, "concurrency": c}
        for tp in (1, 4)
        for c in (1, 64)
    ]
    assert named(*of) == ["tp 1", "tp 1", "tp 4", "tp 4"]


def test_where_nothing_differs_the_engine_is_the_name() -> None:
    assert named(
        {"engine": "vllm", "concurrency": 1}, {"engine": "vllm", "concurrency": 2}
    ) == ["vllm", "vllm"]


def test_who_says_nothing_of_a_quantization_has_none() -> None:
    assert named({"engine": "vllm"}, {"engine": "vllm", "quantization": "fp8"}) == [
        "vllm",
        "FP8",
    ]


def test_what_some_dont_report_is_not_a_difference_unless_nothing_else_distinguishes_them() -> (
    None
):
    of = [
        {"tensor_parallel": 1, "concurrency": 1},
        {"tensor_parallel": 2, "concurrency": 1, "memory_fraction": 0.9},
    ]
    assert named(*of) == ["tp 1", "tp 2"]
    of = [
        {"tensor_parallel": 1},
        {"tensor_parallel": 1, "max_num_seqs": 4096},
        {"tensor_parallel": 2},
    ]
    assert named(*of) == ["tp 1", "tp 1 slots 4096", "tp 2"]


def test_beside_another_model_a_studys_engine_is_named_with_its_own() -> None:
    def run(study: str, engine: str, model: str) -> Row:
        place = Place(study, f"{study}{engine}", engine, "w", "c")
        return msgspec.structs.replace(
            row({}, {"model": model}), run=RunFacts(place), form="run"
        )

    fast, small = run("speed", "fp8", "/models/llama-8b"), run("scores", "fp8", "dyno-5m")
    assert names([fast, small], Loads([fast, small])) == [
        "speed llama-8b",
        "scores dyno-5m",
    ]
    other = run("speed", "bf16", "/models/llama-8b-bf16")
    assert names([fast, other], Loads([fast, other])) == ["fp8", "bf16"]


def test_results_that_only_their_table_distinguishes_are_named_by_its_line() -> None:
    rows = [micro("pp512", 1000.0, fa=1), micro("pp512", 1200.0, fa=1)]
    apart = [
        Row(**{**_fields(r), "line": line, "table": i})
        for i, (r, line) in enumerate(zip(rows, (8, 20), strict=True))
    ]
    assert names(apart, Loads(apart)) == [
        "llama 7B Q4_0 (line 8)",
        "llama 7B Q4_0 (line 20)",
    ]


def _fields(r: Row) -> dict[str, Any]:
    return {name: getattr(r, name) for name in r.__struct_fields__}


def files(*of: tuple[str, dict[str, Any]]) -> list[str]:
    """Results in files of their own."""
    rows = [
        row({}, {"num_prompts": None, **s}, file=name, label=name, form="json")
        for name, s in of
    ]
    return names(rows, Loads(rows))


def test_files_distinguish_what_nothing_else_does() -> None:
    of = [
        (f"{card}-c{c}.json", {"concurrency": c})
        for card in ("h100", "mi300x")
        for c in (8, 64)
    ]
    reported = files(*of)
    assert (
        reported[0] == reported[1]
        and reported[2] == reported[3]
        and reported[0] != reported[2]
    )
    assert "h100" in reported[0] and "mi300x" in reported[2] and "c8" not in reported[0]


def test_files_that_differ_by_a_number_of_the_run_are_repeats() -> None:
    assert (
        len(set(files(("a-run1.json", {}), ("a-run2.json", {}), ("a-20250101.json", {}))))
        == 1
    )
    assert len(set(files(("h100.json", {}), ("h200.json", {})))) == 2, (
        "a card's number is none of a run's"
    )


def test_two_servers_under_one_load_are_two_series() -> None:
    def run(port: int, streams: int) -> Row:
        reported = {
            "engine": "vllm",
            "--base-url": f"http://127.0.0.1:{port}",
            "concurrency": streams,
        }
        return row({}, reported, form="run", file=f"runs/{port}-{streams}", tool="dyno")

    of = [run(port, streams) for port in (8000, 8001) for streams in (1, 8)]
    reported = names(of, Loads(of))
    assert (
        reported[0] == reported[1] != reported[2] == reported[3] and "8001" in reported[2]
    )


def test_runs_of_one_server_are_one_series_and_a_second_run_of_a_load_another() -> None:
    def run(stamp: int, streams: int) -> Row:
        return row(
            {},
            {"engine": "vllm", "concurrency": streams},
            form="run",
            file=f"runs/{stamp}-ab",
            tool="dyno",
        )

    some = [run(2, 4), run(1, 4), run(3, 8), run(4, 16)]
    assert names(some, Loads(some)) == ["vllm (run 2)", "vllm", "vllm", "vllm"]


def test_long_names_stay_apart() -> None:
    a, b = named({"engine": "e" * 70 + " A"}, {"engine": "e" * 70 + " B"})
    assert a != b


# ---- entries ----


def test_an_entry_has_its_axes_and_what_is_beside_them() -> None:
    (e,) = made([row({}, {"input_len": 512, "output_len": 128})])
    assert e.axes == {"concurrency": 32, "context": 512}
    assert e.load.beside("concurrency") == Load(
        {"input_len": 512, "output_len": 128, "dataset": "sharegpt"}
    )
    assert e.load.beside("context") == Load(
        {"concurrency": 32, "output_len": 128, "dataset": "sharegpt"}
    )


def test_a_shared_prefix_is_another_workload_and_no_other_series() -> None:
    of = [
        row(
            {},
            {"engine": "vllm", "--random-prefix-len": n},
            form="run",
            file=f"r{n}",
            tool="dyno",
        )
        for n in (64, 512)
    ]
    one, other = made(of)
    assert one.series == other.series == "vllm" and one.load.workload != other.load.workload


def test_where_no_load_is_reported_the_requests_are_it() -> None:
    (e,) = made([row({}, {"concurrency": None, "dataset": None})])
    assert (
        e.axes["requests"] == 1000
        and "num_prompts" not in e.load.beside("requests").settings
    )


def test_prompts_of_nearly_one_length_are_one_workload() -> None:
    unsaid = {"concurrency": None, "dataset": None, "num_prompts": None}
    of = [row({"completed": n, "total_input_tokens": n * each}, unsaid, line=50 * i)
          for i, (n, each) in enumerate([(10, 79.5), (20, 82.1), (40, 10_050)], 1)]  # fmt: skip
    assert sorted(e.axes["context"] for e in made(of)) == [80.8, 80.8, 10_000]
    assert all("context" not in e.axes for e in made(of[:2])), (
        "alike ones say nothing of the load"
    )


def test_a_figure_keeps_the_digits_that_were_printed() -> None:
    (e,) = made([row({"output_throughput": 2269.09})])
    assert (e.figures["output_throughput"].value, e.figures["output_throughput"].half) == (
        2269.09,
        0.005,
    )


def test_single_requests_give_an_interval_and_quantiles() -> None:
    rng = np.random.default_rng(1)
    ttfts = list(rng.lognormal(5.0, 0.3, 400))
    (e,) = made(
        [
            row(
                {"mean_ttft_ms": float(np.mean(ttfts))},
                samples=Samples(times_ms={"ttft": ttfts}),
            )
        ]
    )
    mean = e.figures["mean_ttft_ms"]
    assert (
        mean.low is not None and mean.high is not None and mean.low < mean.value < mean.high
    )
    assert mean.by == "requests"
    assert mean.high / mean.low < 1.2
    shares = [share for share, _ in e.quantiles["ttft"]]
    values = [ms for _, ms in e.quantiles["ttft"]]
    assert shares == sorted(shares) and values == sorted(values)
    assert values[0] == pytest.approx(min(ttfts), rel=1e-4) and values[-1] == pytest.approx(
        max(ttfts), rel=1e-4
    )


def test_a_single_figure_has_no_interval() -> None:
    (e,) = made([row()])
    assert (
        e.figures["output_throughput"].low is None
        and e.figures["output_throughput"].by == ""
    )


def test_a_score_has_the_interval_of_its_error() -> None:
    (e,) = made([score(0.8466, 0.0135)])
    number = e.figures["score"]
    assert number.low == pytest.approx(0.8466 * math.exp(-1.96 * 0.0135 / 0.8466), rel=1e-3)


def test_doubts_go_to_the_rows_whose_lines_they_name() -> None:
    doubt = Finding("x.y", "doubt", "something", "look", ["r.md:105"])
    first, second = made(
        [row(line=10), row({"duration_s": 99.0}, {"concurrency": 64}, line=100)], [doubt]
    )
    assert (first.verdict, first.findings) == ("sound", [])
    assert (second.verdict, second.findings) == ("doubtful", [doubt])


def test_a_result_that_two_files_report_is_one_entry_with_the_figures_of_both() -> None:
    one = offline(64, 2091.4837, 4.0, file="a.csv")
    other = row({}, {"batch_size": 64, "input_len": 2048, "output_len": 2048}, load={}, kind="throughput", form="csv",
                base={"total_token_throughput": 2091.4837, "request_throughput": 0.51}, series="8xH100",
                file="b.csv", half=0.00005)  # fmt: skip
    (e,) = made([one, other])
    assert {
        "total_token_throughput",
        "mean_latency_ms",
        "request_throughput",
    } <= e.figures.keys()
    assert e.locations == ["a.csv:1", "b.csv:1"]


def test_repeats_in_several_files_are_one_entry_with_an_interval() -> None:
    rows = [row({"output_throughput": v, "duration_s": 100.0 + i, "mean_ttft_ms": 230.0 + i}, file=f"a-run{i}.json",
                form="json", half=0.0) for i, v in enumerate((1000.0, 1001.0, 1002.0))]  # fmt: skip
    (e,) = made(rows)
    assert e.repeats == 3 and e.completed == 3000
    assert (
        e.value("output_throughput") == pytest.approx(1001.0)
        and e.figures["output_throughput"].by == "repeats"
    )


def test_a_rounded_copy_of_a_result_is_the_same_one() -> None:
    def reported(value: float, half: float, file: str, name: str) -> Row:
        return row({}, {"batch_size": 64}, load={}, kind="throughput", form="csv", series=name, file=file, half=half,
                   base={"total_token_throughput": value})  # fmt: skip

    full = reported(998.7796751286725, 0.0, "a.json", "vllm H100")
    assert len(made([full, reported(998.7796751, 5e-8, "b.csv", "8xH100")])) == 1
    assert len(made([full, reported(999.1, 0.05, "b.csv", "8xH100")])) == 2


def test_a_result_under_another_name_in_another_file_is_reported_once() -> None:
    def reported(name: str, file: str, value: float) -> Row:
        return row({}, {"batch_size": 64}, load={}, kind="throughput", form="csv", series=name, file=file,
                   base={"total_token_throughput": value}, half=0.00005)  # fmt: skip

    assert (
        len(
            made(
                [
                    reported("8xMi300x", "a.csv", 2091.4837),
                    reported("8xMi300", "b.csv", 2091.4837),
                ]
            )
        )
        == 1
    )
    assert (
        len(
            made(
                [
                    reported("8xMi300x", "a.csv", 2091.4837),
                    reported("8xMi300", "b.csv", 2091.49),
                ]
            )
        )
        == 2
    )
    assert (
        len(
            made(
                [
                    reported("8xMi300x", "a.csv", 2091.4837),
                    reported("8xMi300", "a.csv", 2091.4837),
                ]
            )
        )
        == 2
    ), "one file"


def test_a_price_of_the_command_line_makes_a_cost() -> None:
    rules = [PriceRule(Price(accelerator_hour=3.6), accelerator="H100", origin="--price")]
    (e,) = made([row({}, {"accelerator": "H100", "accelerators": 2})], rules=rules)
    assert e.cost is not None and e.cost.hour == pytest.approx(7.2)
    assert e.cost.per_million_output == pytest.approx(7.2 / (1000 * 3600) * 1e6)
    assert e.cost.per_thousand_requests == pytest.approx(7.2 / (10 * 3600) * 1000)


def test_a_trial_that_failed_is_an_entry_with_its_load_and_no_figures() -> None:
    trial = TrialSpec(
        TargetSpec("", "openai", "/v1/completions"), WorkloadSpec("random", input_len=64, output_len=8),
        LoadSpec(max_concurrency=16), engine=EngineSpec("vllm"),
    )  # fmt: skip
    place = Place("s", "ab", "vllm", "w", "c", {"engine.tensor_parallel": 2})
    m = row_without(PlannedTrial(place, trial), "runs/s/trials/x-ab", "out of memory")
    (e,) = entries([m], [], [], lambda m: None)
    assert (e.failure, e.verdict, e.figures) == ("out of memory", "void", {})
    assert e.repeats == 1
    assert e.axes["concurrency"] == 16 and e.load.get("input_len") == 64


# ---- single requests ----


def record(
    index: int, sent_ms: float, first_ms: float, end_ms: float, **more: Any
) -> Record:
    times = (
        [int(t * NS_PER_MS) for t in np.linspace(first_ms, end_ms, 5)] if first_ms else []
    )
    sent = int(sent_ms * NS_PER_MS)
    return Record(
        index,
        sent,
        sent,
        int(end_ms * NS_PER_MS),
        8,
        5,
        chunk_ns=times,
        output_tokens=5,
        **more,
    )


def test_a_bar_goes_from_sending_to_the_first_and_the_last_token() -> None:
    bars = bars_of_records(
        [
            record(1, 100, 150, 300),
            record(0, 0, 50, 200),
            record(2, 120, 0, 900, error="timeout"),
        ]
    )
    assert [(b.sent_s, b.first_s, b.end_s, b.error) for b in bars] == [
        (0.0, 0.05, 0.2, ""), (0.1, 0.15, 0.3, ""), (0.12, None, 0.9, "timeout"),
    ]  # fmt: skip


def test_of_many_requests_some_are_kept_and_the_failed_ones_first() -> None:
    many = [
        record(i, i, i + 1, i + 2, **({"error": "reset"} if i % 100 == 7 else {}))
        for i in range(2000)
    ]
    bars = bars_of_records(many)
    assert len(bars) <= BARS and sum(bool(b.error) for b in bars) >= 20
    assert bars[0].sent_s < 0.02 and bars[-1].sent_s > 1.9


def test_other_tools_requests_make_bars_where_their_times_are_reported() -> None:
    s = Samples(
        starts_s=[100.5, 100.0], times_ms={"ttft": [20.0, 0.0], "e2el": [120.0, 50.0]}
    )
    assert [(b.sent_s, b.first_s, b.end_s, b.error) for b in bars_of_samples(s)] == [
        (0.0, None, 0.05, "empty"), (0.5, 0.52, 0.62, ""),
    ]  # fmt: skip
    assert bars_of_samples(Samples(times_ms={"ttft": [20.0]})) == []


def test_energy_for_a_token_is_power_over_tokens_in_each_slice_of_time() -> None:
    """Two accelerators at 100 W each, and ten tokens a second: 20 J each."""
    zero = 5 * NS_PER_S
    samples = [
        Sample(zero + int(i * 0.1 * NS_PER_S), "accelerator", card, {"power_w": 100.0})
        for i in range(-5, 106)
        for card in (0, 1)
    ]
    records = [record(i, 1000 * i, 1000 * i + 1, 1000 * i + 999) for i in range(10)]
    ten = [*records, *records]
    found = moments(ten, samples, zero, zero + 10 * NS_PER_S, [0, 1])
    assert 50 <= len(found) <= 100 and found[0].at_s < found[-1].at_s < 10
    assert all(m.power_w == pytest.approx(200, rel=0.01) for m in found)
    made_tokens = sum((m.tokens_per_s or 0) * (10 / len(found)) for m in found)
    assert made_tokens == pytest.approx(100, rel=0.01)
    assert moments(ten, [], zero, zero + 10 * NS_PER_S, [0]) == [], (
        "without power there is nothing to draw"
    )


def test_quantiles_need_a_few_samples() -> None:
    assert quantiles(row(samples=Samples(times_ms={"ttft": [1.0, 2.0]}))) == {}
