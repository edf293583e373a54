"""Result files of other tools, as they were really written where one was at hand, and every way to break them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dyno.facts.imported import Document, Row
from dyno.facts.metric import DEFINITIONS
from dyno.results.structured import read

HERE = Path(__file__).parents[1]
CAPTURES = HERE / "captures"
FIXTURES = HERE / "fixtures" / "imports"


def document(path: Path) -> Document:
    found = read(path.name, path.read_bytes())
    assert found is not None
    return found


def one(content: Any, indent: int | None = None) -> Row:
    found = read("results/run-7.json", json.dumps(content, indent=indent).encode())
    assert found is not None
    assert found.unread == []
    assert len(found.rows) == 1
    return found.rows[0]


def values(row: Row) -> dict[str, float]:
    return {name: figure.value for name, figure in row.figures.items()}


SERVED: dict[str, Any] = {
    "date": "20260101-000000", "backend": "openai", "model_id": "m", "num_prompts": 10, "request_rate": "inf",
    "max_concurrency": 4, "duration": 2.0, "completed": 10, "total_input_tokens": 100, "total_output_tokens": 50,
    "request_throughput": 5.0, "output_throughput": 25.0, "total_token_throughput": 75.0, "mean_ttft_ms": 12.5,
}  # fmt: skip


# vLLM and dyno


def test_vllms_result_is_read_to_the_digit() -> None:
    row = document(FIXTURES / "vllm-0.24-serve-c16.json").rows[0]
    reported = json.loads((FIXTURES / "vllm-0.24-serve-c16.json").read_text())
    assert (row.kind, row.tool, row.form, row.label) == (
        "serve",
        "vllm",
        "json",
        "vllm-0.24-serve-c16",
    )
    for key, name in (
        ("duration", "duration_s"),
        ("max_output_tokens_per_s", "peak_output_throughput"),
    ):
        assert row.get(name) == reported[key]
    for key in reported:
        if key.endswith("_ms"):
            assert row.figures[key].value == reported[key]
            assert row.figures[key].definition in DEFINITIONS
    assert "request_goodput" not in row.figures  # null
    assert row.setting("concurrency") == 16
    assert row.setting("rate") == "inf"
    assert row.setting("model") == "llama8b"
    assert row.samples is not None
    assert row.samples.latencies("ttft") == [1e3 * s for s in reported["ttfts"]]
    assert row.samples.latencies("itl") == [
        1e3 * s for request in reported["itls"] for s in request
    ]
    assert row.samples.output_lens == [128, 128, 128, 128]


def test_a_file_of_2024_has_fewer_keys_and_other_names() -> None:
    row = document(FIXTURES / "vllm-0.6-serve-16qps.json").rows[0]
    assert row.setting("rate") == 16.0
    assert row.setting("backend") == "vllm"
    assert row.get("p99_itl_ms") == 290.83847719986807
    assert row.get("failed") is None
    assert one({**SERVED, "request_goodput:": 3.5}).get("request_goodput") == 3.5


def test_each_figure_has_the_line_of_its_key() -> None:
    text = json.dumps(SERVED, indent=2)
    row = one(SERVED, indent=2)
    lines = text.splitlines()
    assert '"mean_ttft_ms"' in lines[row.figures["mean_ttft_ms"].line - 1]
    assert '"duration"' in lines[row.figures["duration_s"].line - 1]
    assert '"max_concurrency"' in lines[row.settings["concurrency"].line - 1]
    assert (row.line, row.end) == (1, len(lines))


def test_metadata_are_settings_under_their_own_names_and_known_ones_under_dynos() -> None:
    row = one({**SERVED, "tp": 8, "note_of_mine": "second try", "label": "baseline"})
    assert row.setting("tensor_parallel") == 8
    assert row.setting("note_of_mine") == "second try"
    assert row.label == "baseline"


def test_appended_results_a_sweeps_summary_and_printed_ones_in_a_row_are_a_row_each() -> (
    None
):
    lines = "\n".join(json.dumps({**SERVED, "completed": n}) for n in (1, 2, 3))
    pretty = "\n".join(json.dumps({**SERVED, "completed": n}, indent=4) for n in (1, 2, 3))
    listed = json.dumps(
        [{**SERVED, "completed": n, "run_number": n} for n in (1, 2, 3)], indent=4
    )
    for text, second in ((lines, 2), (pretty, 17), (listed, 19)):
        found = read("f", text.encode())
        assert found is not None
        assert found.unread == []
        assert [row.get("completed") for row in found.rows] == [1, 2, 3]
        assert found.rows[1].line == second


def test_numbers_of_vllm_under_unknown_keys_are_listed_as_not_read() -> None:
    later = {
        "mean_first_audio_ms": 20.5,
        "kv_transfer_gbps": 3.25,
        "note": "fp8",
        "tp": 8,
        "p99_ttft_ms": 30.0,
    }
    later |= {
        "mean_client_queue_time_ms": 0.1,
        "probe_ms": 1.0,
        "spec_decode_num_drafts": 4,
    }  # its own, for nothing here
    found = read("f", json.dumps({**SERVED, **later}).encode())
    assert found is not None and found.rows[0].get("p99_ttft_ms") == 30.0
    assert [(u.part, u.what) for u in found.unread] == [
        ("columns", "mean_first_audio_ms, kv_transfer_gbps")
    ]
    swept = read("f", json.dumps([{**SERVED, "run_number": 0, "block_size": 16}]).encode())
    assert (
        swept is not None
        and swept.unread == []
        and swept.rows[0].settings["block_size"].value == 16
    )


def test_offline_throughput_and_latency_are_of_the_batch() -> None:
    row = document(CAPTURES / "vllm-0.24-throughput.json").rows[0]
    assert (row.kind, row.get("completed"), row.get("total_tokens")) == (
        "throughput",
        1000,
        640000,
    )
    assert row.figures["total_token_throughput"].definition == "offline.throughput"
    assert row.figures["total_token_throughput"].line == 6
    row = document(CAPTURES / "vllm-0.24-latency-b1.json").rows[0]
    assert row.kind == "latency"
    assert row.figures["p99_latency_ms"].value == pytest.approx(
        636.4284791100385, rel=1e-15
    )
    assert row.figures["p99_latency_ms"].line == 21
    assert row.samples is not None
    assert len(row.samples.latencies("latency")) == 10


def test_dynos_own_result_is_reported_from_vllms() -> None:
    own = {
        "version": "0.1.0",
        "verdict": "valid",
        "cached_input_tokens": 3,
        "target": {"kind": "vllm", "version": "0.24"},
    }
    row = one({**SERVED, "dyno": own})
    assert row.tool == "dyno"
    assert row.figures["mean_ttft_ms"].definition == "dyno.ttft"
    assert row.get("cached_input_tokens") == 3
    assert (row.setting("engine"), row.setting("engine_version")) == ("vllm", "0.24")
    assert (
        one(
            {
                "avg_latency": 0.5,
                "latencies": [0.5],
                "percentiles": {"50": 0.5},
                "dyno": own,
            }
        ).kind
        == "latency"
    )


# The others


def test_sglangs_line_has_its_own_words() -> None:
    row = one({
        "tag": "night", "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": 16,
        "random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 1.0, "duration": 10.5,
        "completed": 40,
        "total_input_tokens": 40960, "total_output_tokens": 5120, "total_output_tokens_retokenized": 5119,
        "request_throughput": 3.81, "total_throughput": 4388.5, "mean_e2e_latency_ms": 900.5, "p99_ttft_ms": 210.25,
        "concurrency": 3.43, "accept_length": 2.5,
        "server_info": {"tp_size": 2, "version": "0.5.3", "api_key": "sk-abcdefghij"},
        "input_lens": [1024], "output_lens": [128], "ttfts": [0.125], "itls": [[0.5, 0.25]], "errors": [""],
    })  # fmt: skip
    assert (row.tool, row.label) == ("sglang", "night")
    assert row.get("mean_e2el_ms") == 900.5
    assert row.figures["mean_e2el_ms"].definition == "sglang.e2el"
    assert row.get("total_token_throughput") == 4388.5
    assert row.get("concurrency_mean") == 3.43
    assert row.setting("concurrency") == 16
    assert (
        row.setting("input_len"),
        row.setting("output_len"),
        row.setting("tensor_parallel"),
    ) == (1024, 128, 2)
    assert row.samples is not None
    assert row.samples.latencies("itl") == [500.0, 250.0]


def test_sglang_writes_infinity_where_json_has_none() -> None:
    line = (
        b'{"backend": "sglang", "request_rate": Infinity, "random_range_ratio": 1.0, '
        b'"duration": 2.5, "completed": 3}\n'
    )
    found = read("f.jsonl", line + line)
    assert found is not None
    assert found.unread == []
    assert [
        (row.line, row.setting("rate"), row.get("completed")) for row in found.rows
    ] == [
        (1, "inf", 3),
        (2, "inf", 3),
    ]


def test_the_servers_own_metrics_are_not_a_result_of_inference_perf() -> None:
    found = read(
        "f",
        b'{"load_summary": {}, "successes": {"count": 937, "time_to_first_token": {"mean": 1.5}}, "failures": {}}',
    )
    assert found is not None
    assert found.rows == []


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "sql"])
def test_llama_bench_reports_the_same_in_every_format(ending: str) -> None:
    found = document(CAPTURES / f"llama-bench-11434.{ending}")
    prompt, generated = found.rows
    assert (prompt.kind, prompt.tool) == ("micro", "llama-bench")
    assert (prompt.setting("test"), generated.setting("test")) == ("pp128", "tg32")
    assert (
        prompt.setting("model"),
        prompt.setting("model_bytes"),
        prompt.setting("parameters"),
    ) == (
        "llama ?B F16",
        10494976,
        5245184,
    )
    assert (
        prompt.setting("backend"),
        prompt.setting("threads"),
        prompt.setting("depth"),
    ) == ("CPU", 2, None)
    speed = prompt.figures["speed"]
    assert speed.definition == "llama-bench.speed"
    expected = {"csv": (6622.428658, 15.909122, 2), "json": (6628.997697, 32.348105, 43),
                "jsonl": (6636.760660, 32.802620, 1), "sql": (6450.447419, 279.713073, 46)}  # fmt: skip
    assert (speed.value, speed.deviation, speed.line) == expected[ending]
    assert speed.half == pytest.approx(5e-7)


def test_llama_batched_bench_is_two_tests() -> None:
    line = {"n_kv_max": 4096, "flash_attn": 1, "pp": 128, "tg": 64, "pl": 4, "n_kv": 768, "t_pp": 0.5,
            "speed_pp": 1024.0, "t_tg": 2.0, "speed_tg": 128.0, "t": 2.5, "speed": 307.2}  # fmt: skip
    found = read("f", json.dumps(line).encode())
    assert found is not None
    assert [
        (r.setting("test"), r.setting("batch_size"), r.get("speed")) for r in found.rows
    ] == [
        ("pp128", 4, 1024.0),
        ("tg64", 4, 128.0),
    ]


def test_lm_evals_scores_have_their_errors_and_the_models_arguments() -> None:
    found = read("results.json", json.dumps({
        "results": {"gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.25,
                              "exact_match_stderr,strict-match": 0.0119,
                              "exact_match,flexible-extract": 0.5, "exact_match_stderr,flexible-extract": "N/A"}},
        "versions": {"gsm8k": 3.0}, "n-shot": {"gsm8k": 5},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 100}},
        "config": {"model": "vllm", "limit": 100.0,
                   "model_args": "pretrained=m/x,dtype=float16,tensor_parallel_size=8,base_url=http://me:pass@h/v1"},
        "lm_eval_version": "0.4.9",
    }, indent=1).encode())  # fmt: skip
    assert found is not None
    strict, flexible = found.rows
    assert (strict.kind, strict.get("score"), strict.get("stderr"), strict.line) == (
        "quality",
        0.25,
        0.0119,
        5,
    )
    assert "stderr" not in flexible.figures
    reported = {
        name: strict.setting(name)
        for name in ("task", "metric", "filter", "n_shot", "limit", "samples", "samples_of")
    }
    assert reported == {"task": "gsm8k", "metric": "exact_match", "filter": "strict-match", "n_shot": 5, "limit": 100.0,
                    "samples": 100, "samples_of": 1319}  # fmt: skip
    assert (
        strict.setting("model"),
        strict.setting("dtype"),
        strict.setting("tensor_parallel"),
    ) == (
        "m/x",
        "float16",
        8,
    )
    assert strict.settings["model"].by == "namespace"
    assert "pass" not in str(strict)


def test_guidellms_tenth_of_a_percent_is_p001() -> None:
    row = document(FIXTURES / "guidellm-0.8.1.json").rows[0]
    reported = json.loads((FIXTURES / "guidellm-0.8.1.json").read_text())["benchmarks"][0][
        "metrics"
    ]
    ttft = reported["time_to_first_token_ms"]["successful"]
    assert row.get("p0.1_ttft_ms") == ttft["percentiles"]["p001"]
    assert row.get("p99.9_ttft_ms") == ttft["percentiles"]["p999"]
    assert (
        row.get("mean_e2el_ms") == 1e3 * reported["request_latency"]["successful"]["mean"]
    )
    assert row.figures["mean_tpot_ms"].definition == "guidellm.tpot"
    assert (row.get("completed"), row.get("total_output_tokens")) == (12, 240)
    assert (row.setting("concurrency"), row.setting("model"), row.setting("seed")) == (
        2,
        "truth",
        42,
    )
    lines = (FIXTURES / "guidellm-0.8.1.json").read_text().splitlines()
    assert '"p999"' in lines[row.figures["p99.9_itl_ms"].line - 1]
    assert row.samples is not None
    assert row.samples.output_lens == [20, 20]


def test_an_old_guidellm_keeps_its_strategy_elsewhere() -> None:
    spread = {
        "mean": 2.0,
        "median": 1.5,
        "std_dev": 0.5,
        "count": 6,
        "percentiles": {"p99": 4.0},
    }
    row = one({"benchmarks": [{
        "args": {"strategy": {"type_": "constant", "rate": 2.5}}, "worker": {"backend_model": "m"},
        "run_stats": {"requests_made": {"successful": 6, "errored": 1, "incomplete": 0, "total": 7}},
        "start_time": 100.0, "end_time": 112.5, "request_loader": {"data": "prompt_tokens=128,output_tokens=64"},
        "metrics": {"requests_per_second": {"successful": spread}, "request_latency": {"successful": spread}},
    }]})  # fmt: skip
    assert (row.get("completed"), row.get("failed"), row.get("duration_s")) == (6, 1, 12.5)
    assert (row.get("p99_e2el_ms"), row.setting("rate"), row.setting("model")) == (
        4000.0,
        2.5,
        "m",
    )
    assert (row.setting("input_len"), row.setting("output_len")) == (128, 64)


def test_aiperfs_units_are_read() -> None:
    row = document(FIXTURES / "aiperf-0.13.json").rows[0]
    reported = json.loads((FIXTURES / "aiperf-0.13.json").read_text())
    assert row.get("p99_ttft_ms") == reported["time_to_first_token"]["p99"]
    assert row.get("median_itl_ms") == reported["inter_token_latency"]["p50"]
    assert row.figures["mean_itl_ms"].definition == "aiperf.itl"
    assert (row.get("completed"), row.get("duration_s")) == (12, 1.9586611200000001)
    assert (
        row.setting("concurrency"),
        row.setting("model"),
        row.setting("tool_version"),
    ) == (2, "truth", "0.13.0")
    row = one({"request_latency": {"unit": "ns", "avg": 5_000_000, "p50": 4_000_000},
               "input_config": {"model": ["ensemble"], "concurrency": 100, "request_count": 0}})  # fmt: skip
    assert (row.get("mean_e2el_ms"), row.get("median_e2el_ms")) == (5.0, 4.0)
    assert (
        row.setting("model"),
        row.setting("concurrency"),
        row.setting("num_prompts"),
    ) == ("ensemble", 100, None)


def test_aiperfs_records_are_one_rows_samples() -> None:
    row = document(FIXTURES / "aiperf-0.13-records.jsonl").rows[0]
    assert (row.get("completed"), row.line, row.end) == (3, 1, 3)
    assert row.samples is not None
    assert row.samples.latencies("ttft")[0] == 254.692783
    assert row.samples.output_lens == [20, 20, 20]
    assert len(row.samples.latencies("itl")) == 3 * 19


def test_inference_perfs_seconds_become_milliseconds() -> None:
    stage = {"load_summary": {"count": 10, "requested_rate": 8.0}, "benchmark_time_seconds": 1.25,
             "successes": {"count": 9, "latency": {"time_to_first_token": {"mean": 0.5, "p99.9": 2.0, "median": 0.25}},
                           "throughput": {"output_tokens_per_sec": 99.5}},
             "failures": {"count": 1, "request_latency": None}}  # fmt: skip
    row = one(stage)
    assert values(row) == {"completed": 9, "failed": 1, "duration_s": 1.25, "output_throughput": 99.5,
                           "mean_ttft_ms": 500.0, "p99.9_ttft_ms": 2000.0, "median_ttft_ms": 250.0}  # fmt: skip
    assert row.setting("rate") == 8.0
    assert one({"stage_0": stage, "note": 3}).label == "stage_0"


def test_hugging_faces_tokens_are_the_generated_ones_and_its_warm_up_is_not_a_result() -> (
    None
):
    result = {"id": "constant@1.00req/s", "executor_type": "ConstantArrivalRate",
              "config": {"max_vus": 128, "rate": 1.0}, "total_tokens": 500, "total_tokens_sent": 900,
              "token_throughput_secs": 50.0, "duration_ms": 10000,
              "time_to_first_token_ms": {"p50": 20.5, "avg": 25.0}, "successful_requests": 9, "failed_requests": 1,
              "request_rate": 0.9}  # fmt: skip
    row = one(
        {
            "config": {"model_name": "m", "meta": {"engine": "TGI"}},
            "results": [{**result, "id": "warmup"}, result],
        }
    )
    assert (
        row.get("total_output_tokens"),
        row.get("output_throughput"),
        row.get("duration_s"),
    ) == (500, 50.0, 10.0)
    assert (
        row.get("median_ttft_ms"),
        row.setting("rate"),
        row.setting("concurrency"),
        row.setting("engine"),
    ) == (
        20.5,
        1.0,
        None,
        "TGI",
    )


def test_inferencex_and_llmperf_write_seconds() -> None:
    row = one(
        {
            "hw": "mi355x",
            "conc": 64,
            "framework": "vllm",
            "tp": 8,
            "mean_ttft": 0.25,
            "p99_tpot": 0.0125,
        }
    )
    assert values(row) == {"mean_ttft_ms": 250.0, "p99_tpot_ms": 12.5}
    assert row.series == "mi355x, vllm"
    row = one(
        {
            "results_ttft_s_mean": 0.5,
            "results_end_to_end_latency_s_quantiles_p99": 2.0,
            "num_concurrent_requests": 2,
        }
    )
    assert (row.tool, values(row)) == (
        "llmperf",
        {"mean_ttft_ms": 500.0, "p99_e2el_ms": 2000.0},
    )


# CSV


def test_a_csv_file_of_vllms_keys_has_their_meaning() -> None:
    found = document(FIXTURES / "qps_comparison.csv")
    assert found.unread == []
    row = found.rows[0]
    assert (row.tool, row.kind, row.form, row.line, row.table) == (
        "vllm",
        "serve",
        "csv",
        2,
        0,
    )
    assert (row.get("total_token_throughput"), row.get("p99_itl_ms")) == (
        3336.581187,
        290.8384772,
    )
    assert row.figures["request_throughput"].half == pytest.approx(5e-10)
    assert (
        row.setting("accelerator"),
        row.setting("accelerators"),
        row.setting("rate"),
    ) == ("H100", 8, 16)
    assert (row.setting("chunked_prefill"), row.setting("scheduler_steps"), row.label) == (
        True,
        1,
        "8xH100 1FP8-meta",
    )
    assert len(found.tables[0].rows) == len(found.rows) == 5


def test_a_csv_file_of_offline_batches() -> None:
    row = document(FIXTURES / "throughput_comparsion.csv").rows[0]
    assert (row.kind, row.get("completed"), row.get("total_tokens")) == (
        "throughput",
        4,
        139328,
    )
    assert (row.get("total_token_throughput"), row.setting("batch_size")) == (
        590.0635218,
        4,
    )
    row = document(FIXTURES / "throughput_latency_curve.csv").rows[0]
    assert row.get("mean_latency_ms") == pytest.approx(71273.94036, rel=1e-15)
    assert row.figures["mean_latency_ms"].definition == "offline.latency"
    assert (row.get("cost_per_million_tokens"), row.setting("price_per_hour")) == (
        54.40897716,
        23.92,
    )
    assert "tokens_per_hr" not in row.settings


def test_a_csv_file_of_the_blocks_words_is_called_by_its_file() -> None:
    found = document(FIXTURES / "result_tgi_QPS_high.csv")
    assert [row.get("completed") for row in found.rows] == [300, 600, 198]
    assert found.rows[2].label == "result_tgi_QPS_high"
    assert found.rows[2].figures["request_throughput"].half == 0.005
    assert found.rows[2].figures["completed"].half == 0.0


def test_a_line_of_csv_with_a_comma_too_many_is_left_out() -> None:
    found = read(
        "f.csv", b"model,note,Req/s\nm,fast, but odd,1.5\nm,fine,2.5\nm,2.5\nm,ok,3.5,,\n"
    )
    assert found is not None
    assert [(row.line, row.get("request_throughput")) for row in found.rows] == [
        (3, 2.5),
        (5, 3.5),
    ]
    assert [u.line for u in found.unread] == [2, 4]


def test_csv_behind_comments_keeps_its_lines() -> None:
    found = read(
        "f.csv",
        b"# Licensed under x, y and z\n# by w\nModel,ISL,Concurrency,Mean TTFT (ms)\nm,1024,4,40.5\n",
    )
    assert found is not None
    assert [
        (row.line, row.get("mean_ttft_ms"), row.setting("concurrency"))
        for row in found.rows
    ] == [(4, 40.5, 4)]
    assert read("f", b"# A title\n\none, two\nthree, four\n") is None


def test_llmperfs_columns() -> None:
    found = read(
        "f.csv",
        b"model,mean_input_tokens,mean_output_tokens,num_concurrent_requests,results_ttft_s_quantiles_p90,"
        b"results_mean_output_throughput_token_per_s,results_num_completed_requests_per_min\nm,2048,256,4,0.5,20.5,30\n",
    )
    assert found is not None
    (row,) = found.rows
    assert (row.tool, values(row)) == (
        "llmperf", {"p90_ttft_ms": 500.0, "output_throughput": 20.5, "request_throughput": 0.5},
    )  # fmt: skip
    assert (
        row.setting("concurrency"),
        row.setting("input_len"),
        row.setting("output_len"),
    ) == (4, 2048, 256)


def test_a_line_for_each_request_is_not_a_result() -> None:
    lines = "".join(f"m,{n},measure,0.{n}5,1.5\n" for n in range(5))
    found = read("f.csv", f"model,request_index,phase,ttft_s,latency_s\n{lines}".encode())
    assert found is not None
    assert (found.rows, [u.why for u in found.unread]) == (
        [],
        ["one line per request, no summary"],
    )


def test_columns_that_arent_known_are_named() -> None:
    found = read("f.csv", b"model,latency,throughput\nm,1.5,20\n")
    assert found is not None
    assert found.unread[0].why.endswith(": latency, throughput")


LLAMA_TEST = {"build_commit": "c", "build_number": 1, "model_type": "m", "n_prompt": 512, "n_gen": 0, "avg_ts": 50.5,
              "stddev_ts": 0.5}  # fmt: skip


def test_llama_benchs_json_behind_what_was_printed_before_it() -> None:
    log = "# cmd: llama-bench -o json\nfound 1 device:\n  Device 0: x\n"
    for text, line in (
        (log + json.dumps([LLAMA_TEST], indent=1), 5),
        (log + json.dumps(LLAMA_TEST) + "\n" + json.dumps(LLAMA_TEST), 4),
        (log + json.dumps([LLAMA_TEST], indent=1) + "\n\n=== stderr ===\ndone\n", 5),
    ):
        found = read("f", text.encode())
        assert found is not None
        assert (found.format, found.rows[0].line, found.rows[0].get("speed")) == (
            "llama-bench json",
            line,
            50.5,
        )
    assert read("f", (log + '{"a": 1}').encode()) is None


def test_llama_benchs_tests_inside_an_object_of_others() -> None:
    found = read(
        "f",
        json.dumps(
            {"name": "x", "pp_tok_s": 50.5, "raw": [LLAMA_TEST, LLAMA_TEST]}
        ).encode(),
    )
    assert found is not None
    assert [row.setting("test") for row in found.rows] == ["pp512", "pp512"]


def test_aiperfs_csv_is_one_result() -> None:
    row = document(FIXTURES / "aiperf-0.13.csv").rows[0]
    assert (row.tool, row.get("p99_ttft_ms"), row.get("request_throughput")) == (
        "aiperf",
        241.59,
        5.89,
    )


@pytest.mark.parametrize(
    "text",
    ["", "hello, world\nthis is, as it were, a text\n", "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
     "a line\nanother\n", "[2026-01-01 10:00] INFO started\n", "{'a': 1}", "[link](https://example.org)",
     "\x00\x01\x02", "key: value\nlist:\n  - 1\n"],
)  # fmt: skip
def test_plain_text_is_of_others(text: str) -> None:
    assert read("f", text.encode()) is None


# Strange and broken


def test_json_and_csv_of_no_known_kind_say_so() -> None:
    for text, form in (
        ('{"a": 1}', "json"),
        ("[1, 2]", "json"),
        ("colour,count\nred,3\nblue,4\n", "csv"),
        ("1,2\n3,4\n", "csv"),
    ):
        found = read("f", text.encode())
        assert found is not None
        assert (found.format, found.rows, len(found.unread)) == (form, [], 1)


def test_one_bad_line_among_json_lines_costs_that_line() -> None:
    lines = [json.dumps({**SERVED, "completed": n}) for n in (1, 2, 3)]
    lines[1] = lines[1][:80] + "\\ oops"
    found = read("f", "\n".join(lines).encode())
    assert found is not None
    assert [row.get("completed") for row in found.rows if "completed" in row.figures] == [
        1,
        3,
    ]
    assert found.unread[0].line == 2


def test_a_file_that_was_cut_keeps_what_is_before() -> None:
    text = json.dumps({**SERVED, "input_lens": [1] * 50}, indent=1)
    cut = text[: text.index('"total_token_throughput": 7') + 27]
    found = read("f", cut.encode())
    assert found is not None
    assert found.rows[0].get("output_throughput") == 25.0
    assert "total_token_throughput" not in found.rows[0].figures  # 7 of 75
    assert found.unread[0].line == cut.count("\n") + 1


def test_what_is_not_a_number_is_left_out_with_its_line() -> None:
    text = json.dumps(
        {**SERVED, "mean_ttft_ms": "fast", "ttfts": ["x"], "completed": float("nan")},
        indent=0,
    )
    found = read("f", text.replace('"duration": 2.0', '"duration": 1e999').encode())
    assert found is not None
    row = found.rows[0]
    assert not {"mean_ttft_ms", "completed", "duration_s"} & set(row.figures)
    assert row.get("output_throughput") == 25.0
    lines = text.splitlines()
    assert {lines[u.line - 1].split('"')[1] for u in found.unread} == {
        "mean_ttft_ms",
        "ttfts",
        "completed",
        "duration",
    }


@pytest.mark.parametrize(
    "data",
    [b"[" * 10_000, b'{"a":' * 10_000, b'{"completed":' + b"9" * 100_000 + b',"request_throughput":1}',
     b'{"results":' + b"[" * 2000 + b"]" * 2000 + b"}", b"\xff\xfe" + '{"a": 1}'.encode("utf-16-le"),
     b'{"a": "' + b"x" * 100_000, b'{"\xff": 1}', b"a,b\n" + b'"' * 50_000, b"{" * 3, b'{"' * 20_000, b'{"a\n' * 5_000,
     b"x" * 200_000 + b",y\n1,2\n"],
)  # fmt: skip
def test_hostile_content_is_answered_at_once(data: bytes) -> None:
    started = time.process_time()
    found = read("f", data)
    assert found is None or found.rows == [] or found.unread
    assert time.process_time() - started < 2


def test_secrets_reach_no_document() -> None:
    secret = "hf_abcdefghijklmnop"
    reported = {**SERVED, "api_key": "verysecret123", "note": f"with {secret}", "label": secret, "url": "http://me:pw1234@h/v1",
            "input_lens": [1], "errors": [f"401 for {secret}"]}  # fmt: skip
    text = str(read("f", json.dumps(reported).encode())) + str(
        read("f", f"model,Req/s,hf_token\n{secret},1.5,verysecret123\n".encode())
    )
    assert not [word for word in (secret, "verysecret123", "pw1234") if word in text]


def test_many_remarks_become_a_count() -> None:
    data = b"".join(
        b'{"completed": 1, "request_throughput": "x%d"}\n' % n for n in range(500)
    )
    found = read("f", data)
    assert found is not None
    assert len(found.unread) == 101
    assert found.unread[-1].why.startswith("and 400 more")


def test_generated_texts_of_a_large_file_are_never_decoded() -> None:
    reported = {
        **SERVED,
        "generated_texts": ["w" * 10_000] * 1000,
        "itls": [[0.01] * 1000] * 200,
    }
    data = json.dumps(reported).encode()
    started = time.process_time()
    found = read("f", data)
    assert found is not None
    assert time.process_time() - started < 1.5  # 11 MB
    assert found.rows[0].samples is not None
    assert len(found.rows[0].samples.latencies("itl")) == 200_000
