"""Forms of public results in which `dyno audit` once saw a defect that isn't there; and the same defect where it is."""

import json
from pathlib import Path

import pytest

from dyno.audit.audit import Audit, audit
from dyno.audit.document import read_bytes, read_text
from dyno.facts.finding import Finding
from dyno.facts.imported import Document
from dyno.probe.peaks import of_name
from test_coverage import fenced, report

SERVED = """============ Serving Benchmark Result ============
Successful requests:                     {completed}
Benchmark duration (s):                  {took:.2f}
Total input tokens:                      {read}
Total generated tokens:                  {made}
Request throughput (req/s):              {rate:.2f}
Output token throughput (tok/s):         {speed:.2f}
Mean TTFT (ms):                          {ttft:.2f}
Mean TPOT (ms):                          10.00
==================================================
"""


def block(completed: int = 200, took: float = 100.0, ttft: float = 50.0) -> str:
    made, read = 100 * completed, 300 * completed
    return SERVED.format(
        completed=completed,
        took=took,
        read=read,
        made=made,
        rate=completed / took,
        speed=made / took,
        ttft=ttft,
    )


def serve_json(**fields: object) -> dict[str, object]:
    """A result file of vLLM's."""
    return {
        "date": "20260101-120000", "backend": "vllm", "model_id": "org/Thing-8B-Instruct", "num_prompts": 100,
        "request_rate": "inf", "max_concurrency": 8, "duration": 50.0, "completed": 100,
        "total_input_tokens": 30_000, "total_output_tokens": 10_000, "request_throughput": 2.0,
        "output_throughput": 200.0, "mean_ttft_ms": 80.0, "mean_tpot_ms": 10.0,
    } | fields  # fmt: skip


def judged(*documents: Document) -> Audit:
    return audit(documents, of_name)


def text(content: str, file: str = "r.md") -> Document:
    return read_text(file, content.encode())


def data(content: object, file: str = "r.json") -> Document:
    return read_bytes(file, json.dumps(content).encode())


def table(content: str, file: str = "r.csv") -> Document:
    return read_bytes(file, content.encode())


def having(code: str, *documents: Document) -> list[Finding]:
    return [f for f in judged(*documents).each if f.code == code]


# ---- a count that a file doesn't report ----

COUNTED = """engine,concurrency,num_prompts,completed,output_throughput,mean_ttft_ms
vllm,8,100,100,500.5,40.5
tgi,8,100,{},300.5,60.5
"""


def test_requests_that_are_not_counted_did_not_fail() -> None:
    assert having("comparability.success_differs", table(COUNTED.format(""))) == []
    (void,) = having("comparability.success_differs", table(COUNTED.format("40")))
    assert void.level == "void" and "completed 100 %" in void.text
    (void,) = having("comparability.success_differs", table(COUNTED.format("0")))
    assert void.level == "void", "a count of 0 is a count"


# ---- a warm-up is not the run ----

PHASES = {
    "time_to_first_token": {"unit": "ms", "avg": 90.5},
    "request_latency": {"unit": "ms", "avg": 300.5},
    "request_count": {"unit": "requests", "avg": 200.0},
}


@pytest.mark.parametrize("field", ["name", "kind", "type"])
def test_the_load_of_an_aiperf_run_is_not_that_of_its_warm_up(field: str) -> None:
    warm_up = {field: "warmup", "requests": 10, "concurrency": 1}
    named = {
        **PHASES,
        "input_config": {"phases": [warm_up, {"requests": 200, "concurrency": 16}]},
    }
    (row,) = data(named).rows
    assert (row.setting("concurrency"), row.setting("num_prompts")) == (16, 200)
    assert having("consistency.command", data(named)) == []
    swapped = {
        **PHASES,
        "input_config": {
            "phases": [{"kind": "profiling", "requests": 10, "concurrency": 1}]
        },
    }
    assert having("consistency.command", data(swapped)), (
        "more completed than the run itself asked for"
    )


def test_aiperf_records_of_the_warm_up_are_not_the_runs() -> None:
    def record(phase: str, error: str | None = None) -> str:
        about = {"request_start_ns": 1, "credit_phase": phase}
        metrics = {"time_to_first_token": {"value": 5.5, "unit": "ms"}}
        return json.dumps({"metadata": about, "metrics": metrics, "error": error})

    warm = [record("warmup", "refused")] * 5
    lines = "\n".join([*warm, *[record("profiling")] * 20]).encode()
    assert having("requests.failed", read_bytes("r.jsonl", lines)) == []
    failed = "\n".join(
        [*warm, *[record("profiling")] * 20, record("profiling", "refused")]
    ).encode()
    (doubt,) = having("requests.failed", read_bytes("r.jsonl", failed))
    assert "1 of 21 requests failed" in doubt.text


@pytest.mark.parametrize(
    "bar",
    [
        "Test request: 100%|███| 1/1 [00:02",
        "Warmup: 100%|███| 300/300 [00:09",
        "Capturing CUDA graphs: 100%|███| 999/999 [00:09",
        "100%|███| 16/16 [00:02",
    ],
)
def test_a_progress_bar_of_something_else_does_not_count_the_requests(bar: str) -> None:
    log = text(f"{bar}<00:00]\n{block(200)}", "r.log")
    codes = {f.code for f in judged(log).each}
    assert not codes & {"requests.failed", "consistency.command"}
    (doubt,) = having(
        "requests.failed", text(f"100%|███| 250/250 [00:50<00:00]\n{block(200)}", "r.log")
    )
    assert "50 of 250 requests failed" in doubt.text


def test_a_warm_up_run_is_not_a_repeat_of_the_run() -> None:
    command = "vllm bench serve --model org/Thing-8B-Instruct --max-concurrency 8 --num-prompts 200\n"
    first = fenced(command + block(200, took=250.0, ttft=900.0))
    second = fenced(command + block(200))
    document = text(report("## Warm-up", first, "## Run", second))
    assert len(document.rows) == 2
    codes = {f.code for f in judged(document).each}
    assert not codes & {"statistics.repeats_differ", "cache.later_faster"}
    again = text(
        report(
            "## Run",
            fenced(command + block(200, took=250.0, ttft=900.0) + command + block(200)),
        )
    )
    codes = {f.code for f in judged(again).each}
    assert codes & {"statistics.repeats_differ", "cache.later_faster"}


# ---- names of models ----

NAMED = """model,concurrency,num_prompts,completed,total_input_tokens,total_output_tokens,output_throughput
{},8,100,100,30000,10000,500.5
{},8,100,100,30000,10000,400.5
"""


@pytest.mark.parametrize(
    "served", ["llama3", "llama-3", "llama3:8b", "llama-3-8b", "default"]
)
def test_a_served_name_is_not_taken_for_a_base_model(served: str) -> None:
    names = NAMED.format("meta-llama/Meta-Llama-3-8B-Instruct", served)
    assert having("comparability.model_differs", table(names)) == []


@pytest.mark.parametrize(
    "base",
    ["meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B.Q8_0.gguf", "Meta-Llama-3-8B-Q4_K_M"],
)
def test_a_base_model_beside_its_tuned_one_is_a_doubt(base: str) -> None:
    (doubt,) = having(
        "comparability.model_differs",
        table(NAMED.format("meta-llama/Meta-Llama-3-8B-Instruct", base)),
    )
    assert doubt.level == "doubt"


# ---- repeats ----

SIX = [40.0, 60.0, 75.0, 90.0, 110.0, 150.0]


def test_six_models_are_not_six_repeats() -> None:
    load = "Maximum request concurrency: 8\n"
    by_heading = report(
        *(
            f"## thing-{i}\n\n{fenced(load + block(200, took))}"
            for i, took in enumerate(SIX)
        )
    )
    assert having("statistics.repeats_differ", text(by_heading)) == []
    by_line = "".join(
        f"Model: thing-{i}\n{load}{block(200, took)}\n" for i, took in enumerate(SIX)
    )
    assert having("statistics.repeats_differ", text(by_line, "r.log")) == []
    command = "vllm bench serve --model org/Thing-8B-Instruct --max-concurrency 8 --num-prompts 200\n"
    of_one = report("## Thing", fenced("".join(command + block(200, took) for took in SIX)))
    (note,) = having("statistics.repeats_differ", text(of_one))
    assert "The 6 repeats" in note.text


RUNS = "{},model,concurrency,output_throughput,mean_ttft_ms,duration_s\n"


@pytest.mark.parametrize("title", ["run", "iteration", "trial", "run_id", "repeat"])
def test_a_list_of_twenty_runs_is_not_twenty_single_runs(title: str) -> None:
    body = "".join(
        f"{i},thing,8,{500 + i / 7:.2f},{40 + i / 9:.2f},{60 + i / 9:.2f}\n"
        for i in range(20)
    )
    document = table(RUNS.format(title) + body)
    assert len(document.rows) == 20
    assert having("statistics.single_run", document) == []
    named = "".join(
        f"night-{i},thing,8,{500 + i / 7:.2f},{40 + i / 9:.2f},{60 + i / 9:.2f}\n"
        for i in range(20)
    )
    assert having("statistics.single_run", table(RUNS.format(title) + named)), (
        "these are names, and may mean anything"
    )
    loads = "".join(f"thing,{2**i},{500 + i / 7:.2f},{40 + i / 9:.2f}\n" for i in range(5))
    (note,) = having(
        "statistics.single_run",
        table("model,concurrency,output_throughput,mean_ttft_ms\n" + loads),
    )
    assert "All 5 results" in note.text


@pytest.mark.parametrize(
    ("titles", "cells"),
    [("Runs | Output tok/s", "20 | 512.5"), ("Output tok/s", "512.5 ± 3.1")],
)
def test_a_mean_of_several_runs_is_not_a_single_run(titles: str, cells: str) -> None:
    def reported(titles: str, cells: str) -> Document:
        rule = "|---" * (titles.count("|") + 2)
        return text(report(f"| Concurrency | {titles} |\n{rule}|\n| 8 | {cells} |\n"))

    assert len(reported(titles, cells).rows) == 1
    assert having("statistics.single_run", reported(titles, cells)) == []
    assert having("statistics.single_run", reported("Output tok/s", "512.5"))


# ---- zeros in a mean ----


def test_zeros_are_counted_among_the_requests_of_the_mean_alone() -> None:
    """vLLM lists failed requests with a TTFT of 0, and leaves them out of its mean."""
    real, empty, failed = [0.1] * 70, [0.0] * 20, [0.0] * 10
    lists = {
        "ttfts": [*real, *empty, *failed],
        "output_lens": [100] * 70 + [0] * 30,
        "errors": [""] * 90 + ["refused"] * 10,
        "num_prompts": 100,
        "completed": 90,
    }
    mean_ms = 1000 * sum(real) / 90
    (void,) = having(
        "requests.zeros_in_mean", data(serve_json(**lists, mean_ttft_ms=mean_ms))
    )
    assert (
        "20 of 90 requests count with a TTFT of 0 ms. Without them the mean is 100.0 ms"
        in void.text
    )
    honest = serve_json(**lists, mean_ttft_ms=1000 * sum(real) / 70)
    assert having("requests.zeros_in_mean", data(honest)) == []


def test_failed_requests_alone_are_not_zeros_in_the_mean() -> None:
    lists = {
        "ttfts": [0.1] * 90 + [0.0] * 10,
        "errors": [""] * 90 + ["refused"] * 10,
        "completed": 90,
    }
    assert (
        having("requests.zeros_in_mean", data(serve_json(**lists, mean_ttft_ms=100.0)))
        == []
    )
    wrong = data(serve_json(**lists | {"completed": 100}, mean_ttft_ms=90.0))
    assert having("requests.zeros_in_mean", wrong), "here they are in it"


# ---- figures in prose ----


@pytest.mark.parametrize(
    "words",
    [
        "It answers after 2.4 seconds, end-to-end latency included.",
        "The time to first token fell to 0.35s.",
        "We reach 1,250 output tokens per second.",
        "Throughput rose by 38% against the old version.",
        "Decoding runs at about 30 tokens a second.",
        "That is a 2.3x speedup.",
        "Peak load was 14 QPS.",
    ],
)
def test_figures_in_prose_keep_what_the_title_promises(words: str) -> None:
    title = "# Inference latency and throughput results\n\n"
    assert having("consistency.no_figures", text(title + words)) == []
    assert having(
        "consistency.no_figures", text(title + "We were surprised how fast it is.")
    ), "nothing is in it"


def test_figures_in_an_unread_listing_keep_what_the_title_promises() -> None:
    listing = fenced("llama  31.7  12.5\nqwen   28.1  11.9")
    assert (
        having(
            "consistency.no_figures", text("# Inference throughput results\n\n" + listing)
        )
        == []
    )


def test_a_doubt_about_a_page_of_commands_stays(tmp_path: Path) -> None:
    page = "# Serving throughput results\n\n" + fenced(
        "vllm bench serve --model org/Thing-8B --num-prompts 1000", "bash"
    )
    assert having("consistency.no_figures", text(page))
