"""Each check of rows speaks where it should, and is silent where it should be."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from dyno.checks import (
    CHECKS,
    comparability,
    consistency,
    load,
    physics,
    requests,
    statistics,
    tokens,
)
from dyno.facts.engine import EngineFacts
from dyno.facts.finding import Finding, merged
from dyno.facts.imported import Row, RunFacts, Samples
from dyno.facts.rig import Peaks
from dyno.facts.study import Place
from dyno.measure.pairs import copies, without
from rows import micro, offline, row, score

TPOT_NOISE = {"mean_e2el_ms": None, "median_e2el_ms": None, "p99_e2el_ms": None}
NO_LATENCY = {**TPOT_NOISE, "mean_ttft_ms": None, "mean_itl_ms": None}
RATE = {"rate": 16, "concurrency": None}
LENGTHS = [100] * 620 + [0] * 380
FIRST = [2400.0] * 620 + [0.0] * 380


def times(values: list[float], stem: str = "ttft") -> Samples:
    return Samples(times_ms={stem: values})


NONE = ("requests.none_completed", "void")
ZEROS, ERRORS = ("requests.zeros_in_mean", "void"), ("requests.errors_counted", "doubt")
SHORT, ORDER = ("tokens.output_short", "doubt"), ("consistency.percentiles", "void")
WORK, LESS_WORK = (
    ("comparability.work_differs", "void"),
    ("comparability.work_differs", "doubt"),
)
SURVIVORS = ("comparability.success_differs", "void")
TWINS, SURELY = ("consistency.twins", "doubt"), ("consistency.twins", "void")

BATCH = {"input_len": 2048, "output_len": 2048}

# (check, row, code and level of what it says; None: nothing)
SINGLE: list[tuple[Callable[[Row], Iterator[Finding]], Row, tuple[str, str] | None]] = [
    (requests.failed, row(), None),
    (requests.failed, row({"completed": 990, "failed": 10}), ("requests.failed", "doubt")),
    (requests.failed, row({"completed": 640, "failed": None}), ("requests.failed", "doubt")),
    (requests.failed, row({"completed": 198, "failed": None}, {"num_prompts": 900}), ("requests.failed", "void")),
    (requests.failed, row({"completed": 0, "failed": 1000}), ("requests.none_completed", "void")),
    (requests.failed, row({"failed": None}, {"num_prompts": None}), None),
    (requests.failed, row({"completed": 0, "failed": None}, {"num_prompts": None}), NONE),
    (requests.more_than_asked, row(), None),
    (requests.more_than_asked, row({}, {"num_prompts": 500}), ("consistency.command", "doubt")),
    (requests.empty, row(samples=Samples(output_lens=[100] * 1000)), None),
    (requests.empty, row(samples=Samples(output_lens=LENGTHS)), ("requests.empty", "void")),
    (requests.empty, row(samples=Samples(output_lens=[100] * 995 + [0] * 5)), ("requests.empty", "note")),
    # Failed ones have no tokens, and don't count as successes.
    (requests.empty, row({"completed": 620}, samples=Samples(output_lens=LENGTHS)), None),
    (requests.zeros_in_mean, row({"mean_ttft_ms": 1488.0}, samples=times(FIRST)), ZEROS),
    (requests.zeros_in_mean, row({"mean_ttft_ms": 2400.0}, samples=times(FIRST)), None),
    (requests.zeros_in_mean, row(samples=times([230.0] * 1000)), None),
    (requests.errors_among_successes, row(samples=Samples(errors=[""] * 1000)), None),
    (requests.errors_among_successes, row(samples=Samples(errors=[""] * 990 + ["boom"] * 10)), ERRORS),
    (requests.errors_among_successes, row({"completed": 990}, samples=Samples(errors=[""] * 990 + ["boom"] * 10)),
     None),
    (tokens.output_short, row({}, {"input_len": 200, "output_len": 100}), None),
    (tokens.output_short, row({}, {"output_len": 512}), SHORT),
    (tokens.input_length, row({}, {"input_len": 1024}), ("tokens.input_length", "doubt")),
    (tokens.input_length, row({}, {"input_len": 220}), None),  # a chat template
    (tokens.output_short, row({}, {"output_len": 200}, tool="sglang"), None),  # it draws lengths unless asked not to
    (tokens.output_short, row({}, {"output_len": 200, "random_range_ratio": 1.0}, tool="sglang"), SHORT),
    (tokens.cached, row({"cached_input_tokens": 150_000}, {"dataset": "random"}), ("cache.hits", "doubt")),
    (tokens.cached, row({"cached_input_tokens": 150_000}), ("cache.hits", "note")),
    (tokens.cached, row({"cached_input_tokens": 500}), None),
    (tokens.counted_again, row({"retokenized_output_tokens": 99_000}), None),
    (tokens.counted_again, row({"retokenized_output_tokens": 48_000}), ("tokens.text_differs", "doubt")),
    (consistency.sums, row(), None),
    (consistency.sums, row({"output_throughput": 1004.3}), ("consistency.sums", "doubt")),
    (consistency.sums, row({"output_throughput": 1100.0}), ("consistency.sums", "void")),
    (consistency.sums, row({"request_throughput": 12.8}), ("consistency.sums", "void")),
    (consistency.sums, row({"output_throughput": 1004.3}, tool="guidellm"), None),  # a window of its own
    # '0.05' is 0.045 to 0.055.
    (consistency.sums, row({"completed": 64, "duration_s": 1295.4, "request_throughput": 0.05,
     "output_throughput": None,
                            "total_token_throughput": None}), None),
    (consistency.percentiles, row(), None),
    (consistency.percentiles, row({"p99_ttft_ms": 190.0}), ORDER),
    (consistency.percentiles, row({"p90_ttft_ms": 300.0, "p95_ttft_ms": 280.0}), ORDER),
    (consistency.percentiles, row({"completed": 10, "mean_ttft_ms": 4246.98, "median_ttft_ms": 80.0,
     "p99_ttft_ms": 48_091.05}),
     ORDER),  # above n × mean
    (consistency.percentiles, row({"median_ttft_ms": 500.0}), ORDER),  # above 2 × mean
    (consistency.percentiles, row({"completed": 10, "mean_ttft_ms": 4800.0, "p99_ttft_ms": 40_000.0}), None),
    (consistency.percentiles, row({"median_ttft_ms": -4.0}), ORDER),
    (consistency.tail_below_mean, row(), None),
    (consistency.tail_below_mean, row({"p99_tpot_ms": 29.0}), ("consistency.tail_below_mean", "doubt")),
    (consistency.end_before_first, row(), None),
    (consistency.end_before_first, row({"median_ttft_ms": 3300.0}), ("consistency.end_before_first", "void")),
    # The mean end may well lie below the median first token.
    (consistency.end_before_first, row({"mean_e2el_ms": 3200.0, "median_e2el_ms": 3500.0,
     "median_ttft_ms": 3400.0}), None),
    (consistency.latencies, row(), None),
    (consistency.latencies, row({"mean_itl_ms": 10.0}), ("consistency.latencies", "doubt")),
    (consistency.latencies, row({"mean_itl_ms": 80.0}), None),  # several tokens in a chunk
    (consistency.in_flight, row(), None),
    (consistency.in_flight, row({"mean_e2el_ms": 4000.0}), ("consistency.in_flight", "void")),
    (consistency.in_flight, row({**TPOT_NOISE, "mean_tpot_ms": 60.0}), ("consistency.mean_tpot", "doubt")),
    (consistency.in_flight, row({**TPOT_NOISE, "mean_tpot_ms": 32.5}), ("consistency.mean_tpot", "note")),
    (consistency.in_flight, row({**TPOT_NOISE, "mean_tpot_ms": 30.5}), None),
    (consistency.zero_first_token, row(), None),
    (consistency.zero_first_token, row({"median_ttft_ms": 0.0}), ("consistency.zero_ttft", "doubt")),
    (consistency.zero_first_token, row({"median_ttft_ms": 0.0, "mean_ttft_ms": 0.0, "mean_tpot_ms": 0.0,
     "mean_itl_ms": 0.0}), None),
    (consistency.peak, row({"peak_output_throughput": 1500.0}), None),
    (consistency.peak, row({"peak_output_throughput": 600.0}), ("consistency.peak_below_mean", "note")),
    (consistency.two_runs, offline(8, 8 * 4096 / 70, 70.0), None),
    (consistency.two_runs, offline(8, 8 * 4096 / 75, 70.0), ("consistency.two_runs", "doubt")),
    (consistency.two_runs, offline(8, 2 * 8 * 4096 / 70, 70.0), ("consistency.two_runs", "void")),
    (consistency.price, row({"cost_per_million_tokens": 24 / (3000 * 3.6) * 1000}, {"price_per_hour": 24}), None),
    (consistency.price, row({"cost_per_million_tokens": 24 / (1000 * 3.6) * 1000}, {"price_per_hour": 24}), None),
    (consistency.price, row({"cost_per_million_tokens": 5.0}, {"price_per_hour": 24}), ("consistency.price",
     "doubt")),
    (consistency.rate_exceeds, row({}, {"rate": 10}), None),
    (consistency.rate_exceeds, row({}, {"rate": 2}), ("consistency.more_than_offered", "doubt")),
    (consistency.beyond_the_run, row(), None),
    (consistency.beyond_the_run, row({"median_tpot_ms": 2400.0}), ("consistency.beyond_the_run", "void")),
    (consistency.batch_counts, row({"completed": 4, "total_tokens": 16_384}, BATCH, base={}, load={},
                                   kind="throughput"), None),
    (consistency.batch_counts, row({"completed": 4, "total_tokens": 22_000}, BATCH, base={}, load={},
                                   kind="throughput"), ("consistency.tokens", "doubt")),
    (load.rate_row, row({}, {"rate": 10, "concurrency": None}), None),
    (load.rate_row, row({}, {**RATE, "rate": 32}), ("load.rate_not_reached", "doubt")),
    (load.rate_row, row({}, {"rate": 32}), ("load.rate_not_reached", "note")),  # a closed loop, whatever its rate says
    (load.rate_row, row({}, {"rate": 1e9, "concurrency": None}), None),  # infinity
    (load.rate_row, row({"completed": 50, "duration_s": 8.2}, {"rate": 10, "num_prompts": 50, "concurrency": None}),
     None),  # drain
    (load.not_sent, row({"sent_rate": 9.9}, {"rate": 10}), None),
    (load.not_sent, row({"sent_rate": 5.0, "max_queue_ms": 55_000.0}, {"rate": 10}), ("load.not_sent", "doubt")),
    (load.queue, row(), None),
    (load.queue, row({"mean_ttft_ms": 30_000.0}), ("load.queue", "note")),
    (load.slots, row({}, {"max_num_seqs": 64}), None),
    (load.slots, row({}, {"max_num_seqs": 16}), ("load.slots", "doubt")),
    (load.slots, row({}, {"max_num_seqs": 16, "replicas": 2}), None),
    (statistics.few_samples, row(), None),
    (statistics.few_samples, row({"completed": 64}), ("statistics.few_samples", "note")),
    (statistics.ramp, row(), None),
    (statistics.ramp, row({"mean_e2el_ms": 2000.0}), ("statistics.ramp_and_drain", "note")),
    (statistics.drift, row(samples=times([200.0] * 1000)), None),
    (statistics.drift, row(samples=times([400.0] * 500 + [200.0] * 500)), ("statistics.drift", "note")),
    (statistics.drift, row({}, RATE, samples=times([200.0] * 500 + [900.0] * 500)), None),
    (statistics.first_iteration, row(kind="latency", samples=times([100.0, 99.0, 101.0], "latency")), None),
    (statistics.first_iteration, row(kind="latency", samples=times([150.0, 99.0, 101.0], "latency")),
     ("statistics.first_iteration", "note")),
    (statistics.unsteady, micro("tg128", 40.0), None),
    (statistics.unsteady, micro("pp512", 25_232.0, deviation=17_263.0), ("statistics.unsteady", "doubt")),
    (statistics.unsteady, micro("pp512", 1000.0, deviation=80.0), ("statistics.unsteady", "note")),
]  # fmt: skip

OTHER = {"model": "mistralai/Mistral-7B-Instruct-v0.3"}
BASE = {"model": "meta-llama/Llama-3.1-8B"}
Q8 = {"model": "/m/llama-2-7b.Q8_0.gguf", "quantization": "Q8_0", "concurrency": 1}
Q4 = {"model": "/m/llama-2-7b.Q4_K_M.gguf", "quantization": "Q4_K_M", "concurrency": 1}
TG = [micro("tg128", 25.2, "llama 7B Q8_0"), micro("tg128", 33.3, "llama 7B Q4_K - Medium")]
FLAT = {
    "median_ttft_ms": 120.0,
    "p99_ttft_ms": 129.0,
    "mean_ttft_ms": 121.0,
    "median_tpot_ms": 116.0,
    "mean_tpot_ms": 116.0,
}
ALONE = {"concurrency": 1, "model": "meta-llama/Llama-2-7b-chat-hf"}
PP = micro("pp512", 500.0, "llama 7B F16", parameters=6.74e9)
KNEE = {"output_throughput": 1005.0, "mean_ttft_ms": 1400.0}


def timed(ready_s: float) -> Row:
    """A trial of a study; its engine was ready after so many seconds."""
    return msgspec.structs.replace(
        row(),
        run=RunFacts(
            Place("s", "1", "e", "w", "l"), engine=EngineFacts("fake", "1", [], ready_s)
        ),
    )


def answered(ready_s: float) -> Row:
    """The quality of the engine that was ready then."""
    place = Place("s", "2", "e", "quality", "")
    return msgspec.structs.replace(
        score(0.5, 0.1, process=f"{ready_s} s"), run=RunFacts(place)
    )


ACROSS: list[tuple[Callable[[Sequence[Row]], Iterator[Finding]], list[Row], tuple[str, str] | None]] = [
    (comparability.work, [row(), row({}, OTHER)], None),
    (comparability.work, [row(), row({"total_output_tokens": 148_000}, OTHER)], WORK),
    (comparability.work, [row(), row({"total_output_tokens": 115_000}, OTHER)], LESS_WORK),
    (comparability.work, [row(), row({"total_output_tokens": 148_000}, {**OTHER, "concurrency": 64})], None),
    # Nobody tells which prompts: those of another length are another load.
    (comparability.work, [row({}, {"dataset": None}), row({"total_input_tokens": 9_000_000}, {**OTHER,
     "dataset": None})], None),
    (comparability.success, [row(), row({}, OTHER)], None),
    (comparability.success, [row(), row({"completed": 563, "failed": None}, OTHER)], SURVIVORS),
    (requests.dropped, [row({"completed": n}, {"num_prompts": None}, form="csv", file=f)
                             for f in "ab" for n in (300, 600, 900)], None),
    (requests.dropped, [row({"completed": n, "failed": None}, {"num_prompts": None}, form="csv", file=f)
                             for f, last in (("a", 198), ("b", 900)) for n in (300, 600, last)],
                             ("requests.failed", "void")),
    (comparability.models, [row(), row({}, OTHER)], None),
    (comparability.models, [row(), row({}, BASE)], ("comparability.model_differs", "doubt")),
    (comparability.models, [row(), row({}, {"model": "amd/Llama-3.1-8B-Instruct-FP8-KV"})], None),
    (comparability.parts_of_a_node, [row({}, {"accelerators": 8}), row({}, {**OTHER, "accelerators": 8})], None),
    (comparability.parts_of_a_node, [row({}, {"accelerators": 8}), row({}, {**OTHER, "accelerators": 4})],
     ("comparability.parts_of_a_node", "note")),
    (comparability.definitions_rows, [row(), row(tool="dyno")], None),
    (comparability.definitions_rows, [row(), row(tool="guidellm")], ("comparability.definitions", "note")),
    (comparability.loads, [row({}, {"concurrency": c}, form="csv", series=s) for s in "ab" for c in (1, 2, 4)], None),
    (comparability.loads, [row({}, {"concurrency": c}, form="csv", series=s) for s, cs in (("a", (1, 2)), ("b",
     (1, 2, 4)))
                           for c in cs], ("comparability.loads_differ", "note")),
    (load.rate_rows, [row({"request_throughput": r, "completed": 1000, "duration_s": 1000 / r}, {**RATE, "rate": o})
                     for o, r in ((4, 3.9), (8, 7.8), (12, 11.5))], None),
    (load.rate_rows, [row({**NO_LATENCY, "request_throughput": r, "completed": 1000, "duration_s": 1000 / r},
                          {**RATE, "rate": o}) for o, r in ((16, 9.93), (32, 10.19))],
     ("load.rate_not_reached", "doubt")),
    (load.rate_rows, [row({"request_throughput": r, "completed": 1000, "duration_s": 1000 / r}, {**RATE, "rate": o})
                      for o, r in ((16, 9.93), (32, 10.19))], None),  # said of each row already
    (load.replicas_gain, [row(), row({"output_throughput": 1900.0}, {"replicas": 2})], None),
    (load.replicas_gain, [row(), row({"output_throughput": 900.0}, {"replicas": 2, "dtype": "fp16"})], None),
    (load.replicas_gain, [row(), row({"output_throughput": 900.0}, {"replicas": 2})],
     ("load.replicas_no_gain", "doubt")),
    (load.saturated, [row(), row({"output_throughput": 1800.0}, {"concurrency": 64})], None),
    (load.saturated, [row(), row(KNEE, {"concurrency": 64})], ("load.saturated", "note")),
    (load.saturated, [row(), row({**KNEE, "output_throughput": 900.0}, {"concurrency": 64})], ("load.fell", "note")),
    (load.saturated, [row({}, {"max_num_seqs": 32}), row(KNEE, {"concurrency": 64, "max_num_seqs": 32})],
     ("load.slots", "doubt")),
    (statistics.single_runs, [row()], ("statistics.single_run", "note")),
    (statistics.single_runs, [row(), row({"duration_s": 101.0})], None),
    (statistics.repeats, [row(), row({"duration_s": 101.0})], None),
    (statistics.repeats, [row(), row({"duration_s": 101.0, "p99_tpot_ms": 70.0})], ("statistics.repeats_differ",
     "note")),
    (statistics.within_error, [score(0.8466, 0.0135), score(0.848, 0.0134)], ("statistics.within_error", "note")),
    (statistics.within_error, [score(0.60, 0.0135), score(0.848, 0.0134)], None),
    (statistics.within_error, [score(0.8466, 0.0135), score(0.848, 0.0134, task="law")], None),
    (consistency.copies, [row(), row(line=60)], ("consistency.copies", "note")),
    (consistency.copies, [row(), row({"duration_s": 100.01}, line=60)], None),
    (consistency.twins, [row({}, Q8), row({"duration_s": 100.03, "p99_ttft_ms": 611.0}, Q4)], TWINS),
    (consistency.twins, [row({}, Q8), row({"duration_s": 100.03, "p99_ttft_ms": 611.0}, Q4), *TG], SURELY),
    (consistency.twins, [row({}, Q8), row({"duration_s": 100.03, "mean_tpot_ms": 31.0}, Q4)], None),
    (consistency.twins, [row({}, Q8), row({"duration_s": 100.03}, Q8)], None),
    (consistency.twins, [row(), row({}, {"concurrency": 64})], SURELY),
    (consistency.multiples, [offline(4, 92.42484198, 94.17381532, "4x"), offline(4, 2 * 92.42484198, 94.17381532,
     "8x")],
     ("comparability.multiplied", "void")),
    (consistency.multiples, [offline(4, 92.42484198, 94.17381532, "4x"), offline(4, 180.1, 95.2, "8x")], None),
    (consistency.multiples, [offline(4, 92.4, 94.2, "4x"), offline(4, 184.8, 94.2, "8x")],
     None),  # by chance, with few digits
    (tokens.warm, [row(FLAT, ALONE)], ("cache.warm", "note")),
    (tokens.warm, [row(FLAT, ALONE), PP], ("cache.warm", "doubt")),
    (tokens.warm, [row({**FLAT, "p99_ttft_ms": 400.0}, ALONE)], None),
    (tokens.warm, [row(FLAT, {**ALONE, "dataset": "random"})], None),  # all prompts have one length
    (tokens.warm, [row(FLAT, {**ALONE, "concurrency": 8})], None),
    (tokens.later_faster, [row(), row({"mean_ttft_ms": 80.0, "duration_s": 99.0})], ("cache.later_faster", "doubt")),
    (tokens.later_faster, [row(), row({"mean_ttft_ms": 80.0}, {"concurrency": 64})], None),
    (comparability.processes, [timed(1.0), answered(7.0)], ("comparability.other_process", "note")),
    (comparability.processes, [timed(1.0), timed(7.0), answered(7.0)], None),
]  # fmt: skip


def names(case: Any) -> str:
    return str(getattr(case, "__name__", ""))


@pytest.mark.parametrize(("check", "one", "said"), SINGLE, ids=names)
def test_a_row_by_itself(
    check: Callable[[Row], Iterator[Finding]], one: Row, said: tuple[str, str] | None
) -> None:  # fmt: skip
    assert [(f.code, f.level) for f in check(one)] == ([said] if said else [])


@pytest.mark.parametrize(("check", "several", "said"), ACROSS, ids=names)
def test_rows_beside_each_other(
    check: Callable[[Sequence[Row]], Iterator[Finding]], several: list[Row], said: tuple[str, str] | None
) -> None:  # fmt: skip
    assert list(dict.fromkeys((f.code, f.level) for f in check(several))) == (
        [said] if said else []
    )


def test_every_check_of_rows_has_a_speaking_and_a_silent_case() -> None:
    cases = [(c, said) for c, _, said in [*SINGLE, *ACROSS]]
    needs = ("row", "any_row", "rows")
    every = {
        judge for check in CHECKS for need, judge in check.judges.items() if need in needs
    }
    assert {c for c, said in cases if said} == every
    assert {c for c, said in cases if not said} == every


H100 = Peaks("H100 SXM", 1, 3.35e12, {"fp8": 1979e12, "bf16": 989e12}, "a sheet")
FAST = {"median_tpot_ms": 2.0, "mean_tpot_ms": 2.0, "total_token_throughput": 3000.0}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        # 70 B parameters of a byte each take 21 ms to be read.
        (row(FAST, {"model": "meta-llama/Llama-3.1-70B-Instruct", "quantization": "fp8", "accelerator": "H100"}),
         "void"),
        (row({"median_tpot_ms": 30.0}, {"model": "meta-llama/Llama-3.1-70B", "quantization": "fp8",
         "accelerator": "H100"}), None),
        (row(FAST, {"model": "openai/gpt-oss-120b", "accelerator": "H100"}), None),  # reads a part of its weights
        (row(FAST, {"model": "somebody/New-70B", "accelerator": "H100"}), None),  # nobody knows
        (row(FAST, {"model": "meta-llama/Llama-3.1-70B-Instruct", "speculative": "eagle",
         "accelerator": "H100"}), None),
        (row(FAST, {"model": "meta-llama/Llama-3.1-70B-Instruct", "quantization": "fp8"}), None),  # on what?
        (micro("tg128", 1000.0, accelerator="H100", parameters=6.74e9, model_bytes=3.8e9), "void"),
        (micro("tg128", 400.0, accelerator="H100", parameters=6.74e9, model_bytes=3.8e9), None),
    ],
)  # fmt: skip
def test_what_no_machine_can_do_is_void(one: Row, said: str | None) -> None:
    found = list(physics.roofline_rows(physics.Machines([one], lambda name, count: H100)))
    assert [f.level for f in found if f.code == "physics.above_roofline"] == (
        [said] if said else []
    )


def test_a_finding_has_the_numbers_and_the_lines() -> None:
    (f,) = requests.zeros_in_mean(row({"mean_ttft_ms": 1488.0}, samples=times(FIRST)))
    assert (
        "380 of 1,000" in f.text
        and "2,400 ms instead of 1,488" in f.text
        and f.locations == ["r.md:9", "r.md:10"]
    )
    (f,) = statistics.within_error([score(0.8466, 0.0135), score(0.848, 0.0134)])
    assert "607 and 608 of 717 answers are right" in f.text


def test_a_result_reported_again_in_a_table_is_one_result() -> None:
    block = row()
    again = row(
        dict.fromkeys(("completed", "total_input_tokens", "p99_ttft_ms")),
        {"num_prompts": None},
        form="table",
        line=90,
    )
    assert without([block, again], copies([block, again])) == [block]
    other = row({}, {"concurrency": 64})
    assert without([block, other], copies([block, other])) == [block, other]


def test_many_alike_are_reported_once_with_all_lines() -> None:
    rows = [row({"completed": 640, "failed": None}, line=1 + 30 * i) for i in range(9)]
    found = [f for r in rows for f in requests.failed(r)]
    (reported,) = merged(found)
    assert len(reported.locations) == 9
    different = [
        f
        for i, r in enumerate(rows)
        for f in requests.failed(row({"completed": 600 + i}, line=r.line))
    ]
    (reported,) = merged(different)
    assert (
        reported.text.startswith("392 to 400 of 1,000")
        and reported.text.endswith("(9 results).")
        and len(reported.locations) == 18
    )
