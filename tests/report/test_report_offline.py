"""The printed block and the result file of throughput and latency, of hand-made iterations."""

import json
from pathlib import Path
from typing import Any

import goldens
import offlines
from dyno.facts.engine import EngineFacts
from dyno.facts.finding import Finding
from dyno.facts.offline import Iteration, Speculation
from dyno.facts.spread import Spread
from dyno.facts.summary import Result
from dyno.facts.telemetry import HostTelemetry, TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.report import result_json
from dyno.report.block import offline_block as block
from dyno.store.rows import row_of

CAPTURES = Path(__file__).parents[1] / "captures"

MS = 1_000_000


def bare(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_the_block_of_a_latency_benchmark() -> None:
    its = offlines.iterations(
        [625 * MS, 635 * MS, 645 * MS, 655 * MS], warmups_ns=[900 * MS]
    )
    summary = offlines.summary(
        "latency",
        its[1:],
        prefill_ms=Spread(4, 20.0, 0.5),
        decode_ms=Spread(4, 620.0, 1.0),
        tpot_ms=Spread(4, 4.88, 0.01),
        prefill_speed=Spread(4, 12800.0, 10.0),
        decode_speed=Spread(4, 1638.0, 2.0),
        in_flight_mean=7.9,
        context_mean=96.0,
        speculation=Speculation(100, 400, 300),
    )
    finding = Finding(
        "statistics.first_iteration",
        "doubt",
        "The first one was slower.",
        "Raise --num-iters-warmup.",
    )
    telemetry = TelemetrySummary(0.2, 1.0, 0.001, 0.2, host=HostTelemetry(10, 1.5))
    result = Result(None, [finding], "doubtful", telemetry, offline=summary)
    goldens.check(
        "offline/block.txt", bare(block(result, offlines.trial("latency", batch_size=8), 1))
    )


def test_the_block_of_a_throughput_benchmark_distinguishes_the_three_rates_by_name() -> (
    None
):
    its = offlines.iterations([2_000 * MS], requests=10)
    result = Result(None, [], "sound", offline=offlines.summary("throughput", its))
    text = bare(block(result, offlines.trial("throughput", num_warmups=4), 1))
    assert "Warm-up prompts:                         4\n" in text
    assert "Request throughput (req/s):              5.000\n" in text
    assert "Output token throughput (tok/s):         640.0\n" in text
    assert "Total token throughput (tok/s):          800.0\n" in text
    assert "Mean latency (ms):                       2,000\n" in text
    assert "Median" not in text  # of one iteration there is no spread
    assert (
        "Throughput: 5.00 requests/s, 800.00 total tokens/s, 640.00 output tokens/s\n"
        "Total num prompt tokens:  320\n"
        "Total num output tokens:  1280\n"
        "Verdict: sound\n"
    ) in text


def test_a_failure_is_shown_and_no_rate_is_printed_where_nothing_was_completed() -> None:
    its = offlines.iterations([2_000 * MS], requests=10)
    summary = offlines.summary(
        "throughput", its, completed=0, failed=10, failure_example="out of memory"
    )
    text = block(Result(None, [], "void", offline=summary), offlines.trial("throughput"), 0)
    assert "  first failure: out of memory" in text
    assert "Throughput: " not in text


def built(
    result: Result,
    trial: TrialSpec,
    its: list[Iteration],
    engine: EngineFacts | None = None,
) -> dict[str, Any]:
    manifest = offlines.manifest(trial)
    row = row_of("runs/r", manifest, result, engine, iterations=its)
    return result_json.build(result, manifest, row, iterations=its)


def test_the_latency_file_has_vllms_keys_and_values_in_seconds() -> None:
    theirs = json.loads((CAPTURES / "vllm-0.24-latency-b1.json").read_text())
    took = [round(s * 1e9) for s in theirs["latencies"]]
    its = offlines.iterations(took, warmups_ns=[10**9], requests=1)
    trial = offlines.trial("latency", batch_size=1)
    result = Result(None, [], "sound", offline=offlines.summary("latency", its[1:]))
    ours = built(result, trial, its)
    assert list(ours) == ["model_id", *theirs, "dyno"]  # model_id: as newer ones have it
    assert list(ours["percentiles"]) == list(theirs["percentiles"])
    for mine, wanted in (
        ([ours["avg_latency"]], [theirs["avg_latency"]]),
        (ours["latencies"], theirs["latencies"]),
        (ours["percentiles"].values(), theirs["percentiles"].values()),
    ):
        assert [round(v, 6) for v in mine] == [round(v, 6) for v in wanted]
    assert ours["dyno"]["warmup_latencies"] == [1.0]
    assert (ours["model_id"], ours["dyno"]["verdict"], ours["dyno"]["run"]) == (
        "M",
        "sound",
        "runs/r",
    )
    json.dumps(ours)


def test_the_throughput_file_has_vllms_keys_and_is_of_one_iteration() -> None:
    theirs = json.loads((CAPTURES / "vllm-0.24-throughput.json").read_text())
    its = offlines.iterations([1_000 * MS, 3_000 * MS], requests=10)
    trial = offlines.trial("throughput")
    result = Result(None, [], "sound", offline=offlines.summary("throughput", its))
    engine = offlines.engine_facts("0.32.0")
    ours = built(result, trial, its, engine)
    assert list(ours) == ["model_id", *theirs, "dyno"]
    assert (ours["elapsed_time"], ours["num_requests"], ours["total_num_tokens"]) == (
        2.0,
        10,
        1600,
    )
    assert ours["dyno"]["summary"]["latency"]["count"] == 2
    assert ours["dyno"]["engine"]["version"] == "0.32.0"
