"""What columns mean, and the results that a table holds."""

from typing import Literal

import pytest

from dyno.facts import setting
from dyno.facts.imported import DocumentCell, DocumentTable, Row
from dyno.facts.metric import better
from dyno.results.columns import Meaning, meaning, statistic
from dyno.results.printed import Printed, printed
from dyno.results.tables import rows_of


def table(text: str, line: int = 1) -> DocumentTable:
    """Of Markdown, as an author writes it."""
    lines = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in text.strip().splitlines()
    ]
    body = [
        [DocumentCell(cell.strip("*"), cell.startswith("**")) for cell in row]
        for row in lines[2:]
    ]
    return DocumentTable(
        line, lines[0], body, list(range(line + 2, line + len(lines))), section="Results"
    )


def rows(text: str, form: Literal["table", "csv"] = "table") -> list[Row]:
    return rows_of(table(text, line=10), 3, "report.md", form)


def values(row: Row) -> dict[str, float]:
    return {name: figure.value for name, figure in row.figures.items()}


@pytest.mark.parametrize(
    ("title", "name", "scale"),
    [
        ("Req/s", "request_throughput", 1.0),
        ("requests/sec", "request_throughput", 1.0),
        ("Throughput (req/s)", "request_throughput", 1.0),
        ("Output Tok/s", "output_throughput", 1.0),
        ("Output Token Throughput (tokens/sec)", "output_throughput", 1.0),
        ("Total Token throughput (tok/s)", "total_token_throughput", 1.0),
        ("Peak output token throughput (tok/s):", "peak_output_throughput", 1.0),
        ("tokens_per_second", "total_token_throughput", 1.0),
        ("tok/s", "speed", 1.0),
        ("TPS", "speed", 1.0),
        ("Throughput (tok/s)", "speed", 1.0),
        ("Throughput tok/s (higher is better)", "speed", 1.0),
        ("Mean TTFT (ms)", "mean_ttft_ms", 1.0),
        ("Mean TTFT ↓ (ms)", "mean_ttft_ms", 1.0),
        ("P99 TPOT (ms)", "p99_tpot_ms", 1.0),
        ("p99.9_itl_ms", "p99.9_itl_ms", 1.0),
        ("p50 ttft (s)", "p50_ttft_ms", 1e3),
        ("avg_ttft_s", "mean_ttft_ms", 1e3),
        ("TTFT (p99, ms)", "p99_ttft_ms", 1.0),
        ("99th percentile TTFT (ms)", "p99_ttft_ms", 1.0),
        ("TTFT p99", "p99_ttft_ms", None),
        ("TTFT", "mean_ttft_ms", None),
        ("Time to First Token (ms)", "mean_ttft_ms", 1.0),
        ("Inter-token latency (ms)", "mean_itl_ms", 1.0),
        ("Median E2E Latency (ms)", "median_e2el_ms", 1.0),
        ("end_to_end_latency", "mean_e2el_ms", 1e3),
        ("latency (s)", "mean_latency_ms", 1e3),
        ("Duration (s)", "duration_s", 1.0),
        ("Benchmark duration (s)", "duration_s", 1.0),
        ("Successful requests", "completed", 1.0),
        ("cost_per1M_token", "cost_per_million_tokens", 1.0),
        ("$/1M tokens", "cost_per_million_tokens", 1.0),
        ("VRAM (GiB)", "memory_bytes", 2.0**30),
        ("Acceptance rate (%)", "acceptance_rate", 0.01),
    ],
)
def test_a_title_means_a_figure(title: str, name: str, scale: float | None) -> None:
    assert meaning(title) == Meaning(name, scale=scale)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Concurrency", "concurrency"), ("max_concurrency", "concurrency"), ("QPS", "rate"),
        ("Request rate (req/s)", "rate"), ("batch_size", "batch_size"), ("Batch Size", "batch_size"),
        ("usd_per_hr", "price_per_hour"),
        ("$/hr", "price_per_hour"), ("GPU", "accelerator"), ("Model/Quant", "model"), ("Backend", "backend"),
        ("Engine", "engine"), ("ISL", "input_len"), ("TP", "tensor_parallel"),
        ("enable-chunked-prefill", "chunked_prefill"), ("max-num-seqs", "max_num_seqs"),
        ("num-scheduler-step", "scheduler_steps"),
    ],
)  # fmt: skip
def test_a_title_means_a_setting(title: str, name: str) -> None:
    assert meaning(title) == Meaning(name, figure=False)


@pytest.mark.parametrize(
    "title",
    ["latency", "Latency", "Throughput", "Score", "tok/s/user", "Eval rate", "Peak decode tok/s",
     "Throughput/GPU (tok/s)", "Generation throughput (tok/s)", "tok/s per $ (decode)", "TTFT mean/med (ms)",
     "Decode (code)", "output_tput_per_gpu", "vLLM (tok/s)", "Speedup", "tokens_per_hr", "TPOT (ms) (excl. 1st)",
     "Output throughput", "P99", "", "time (s)", "TTFT mean/median (ms)", "mean p99 TTFT (ms)", "x" * 500,
     "Total Time (s)", "tok/s per $"],
)  # fmt: skip
def test_what_isnt_certain_means_nothing(title: str) -> None:
    assert meaning(title) is None


@pytest.mark.parametrize(
    ("title", "test"),
    [
        ("Prompt (tok/s)", "pp"), ("Prefill tokens/s", "pp"), ("PP t/s", "pp"), ("prefill_tps", "pp"),
        ("tok/s (prefill)", "pp"), ("Prompt eval rate (tokens/s)", "pp"), ("Generation (tok/s)", "tg"),
        ("Gen t/s", "tg"), ("Decode tok/s", "tg"), ("decode_tps", "tg"), ("tg (t/s)", "tg"), ("Avg decode tok/s", "tg"),
    ],
)  # fmt: skip
def test_a_speed_of_prompts_or_of_decoding_has_its_test(title: str, test: str) -> None:
    assert meaning(title) == Meaning("speed", test=test)


@pytest.mark.parametrize(
    ("title", "column"),
    [
        ("Output tok/s (c32)", Meaning("output_throughput", load=(("concurrency", 32),))),
        ("Mean TTFT (ms) (bs=4)", Meaning("mean_ttft_ms", load=(("batch_size", 4),))),
        ("Aggregate tok/s", Meaning("speed")),
        ("out_tok_s", Meaning("output_throughput")),
        ("out_tput", Meaning("output_throughput")),
        ("avg_tps_mean", Meaning("speed")),
        ("results_ttft_s_quantiles_p90", Meaning("p90_ttft_ms", scale=1e3)),
        ("results_inter_token_latency_s_stddev", Meaning("std_itl_ms", scale=1e3)),
        ("成功请求数", Meaning("completed")),
        ("平均 TTFT (ms)", Meaning("mean_ttft_ms")),
        ("总 Token 吞吐量 (tok/s)", Meaning("total_token_throughput")),
        ("并发数", Meaning("concurrency", figure=False)),
    ],
)
def test_more_titles(title: str, column: Meaning) -> None:
    assert meaning(title) == column


def test_a_statistic_alone_is_one() -> None:
    assert [statistic(t) for t in ("P99", "avg", "Median", "p99.9", "95th percentile", "TTFT", "Mean (ms)")] == [
        "p99", "mean", "median", "p99.9", "p95", None, None,
    ]  # fmt: skip


def test_which_way_is_better() -> None:
    assert (
        better("mean_ttft_ms")
        == better("duration_s")
        == better("failed")
        == better("cost_per_million_tokens")
        == "lower"
    )
    assert (
        better("output_throughput")
        == better("speed")
        == better("score")
        == better("request_goodput")
        == "higher"
    )
    assert (
        better("completed")
        is better("std_ttft_ms")
        is better("total_output_tokens")
        is None
    )
    assert better("score", "word_perplexity") == "lower"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.05", Printed(0.05, 0.005)),
        ("1,234.5", Printed(1234.5, 0.05)),
        ("12", Printed(12.0, 0.5)),
        ("12.3 ± 0.4", Printed(12.3, 0.05, 0.4)),
        ("39.33 Â± 0.00", Printed(39.33, 0.005, 0.0)),
        ("121 ms", Printed(121.0, 0.5, unit="ms")),
        ("3.56 GiB", Printed(3.56, 0.005, unit="gib")),
        ("$5.88", Printed(5.88, 0.005, unit="usd")),
        ("72.17 (+12 %)", Printed(72.17, 0.005)),
        ("🏆 72.17", Printed(72.17, 0.005)),
        ("-1.5e3", Printed(-1500.0, 50.0)),
        ("~760", None), ("≤ 21 s", None), ("> 5", None),
        ("1.2k", None), ("1.5x", None), ("N/A", None), ("—", None), ("OOM", None), ("36/64", None), ("", None),
        ("1.2.3", None), ("1234,5", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_a_printed_number(text: str, number: Printed | None) -> None:
    found = printed(text)
    assert (found is None) == (number is None)
    if found is not None and number is not None:
        assert (found.value, found.deviation, found.unit) == (
            number.value,
            number.deviation,
            number.unit,
        )
        assert found.half == pytest.approx(number.half)


def test_a_comparison_of_engines_has_rows_series_and_bold_cells() -> None:
    first, second = rows("""
| Backend   | Model/Quant    | Size   | Concurrency | Duration (s) | Req/s    | Mean TTFT (ms) |
|-----------|----------------|--------|-------------|--------------|----------|----------------|
| vLLM      | m/a (FP16)     | 13.5GB | c=16        | 155.97       | 0.41     | 871.62         |
| llama.cpp | a.f16.gguf     | 13.5GB | 16          | **79.95**    | **0.45** | **497.90**     |
""")
    assert (first.kind, first.tool, first.form, first.line, first.table, first.section) == (
        "serve",
        "",
        "table",
        12,
        3,
        "Results",
    )
    assert values(first) == {
        "duration_s": 155.97,
        "request_throughput": 0.41,
        "mean_ttft_ms": 871.62,
    }
    assert first.figures["request_throughput"].half == 0.005
    assert first.figures["mean_ttft_ms"].definition == ""
    assert [f.bold for f in second.figures.values()] == [True, True, True]
    assert (
        first.setting("engine"),
        first.setting("model"),
        first.setting("concurrency"),
    ) == ("vllm", "m/a (FP16)", 16)
    assert (second.setting("concurrency"), second.setting("model_bytes")) == (16, 13.5e9)
    assert second.label == second.series == "llama.cpp, a.f16.gguf"


def test_a_load_in_the_first_column_is_neither_a_label_nor_a_series() -> None:
    found = rows("""
| QPS | TTFT   | Throughput (tok/s) | Notes |
|-----|--------|--------------------|-------|
| 1   | 120 ms | 1,031.8            | fine  |
| 2   | 1.5 s  | OOM                | —     |
| 3   | 99     | N/A                | gone  |
""")
    assert [values(row) for row in found] == [
        {"mean_ttft_ms": 120.0, "speed": 1031.8},
        {"mean_ttft_ms": 1500.0},
    ]
    assert found[0].figures["mean_ttft_ms"].half == 0.5
    assert found[1].figures["mean_ttft_ms"].half == 50.0
    assert [(row.label, row.series, row.setting("rate")) for row in found] == [
        ("", "", 1),
        ("", "", 2),
    ]
    assert (found[0].setting("Notes"), found[1].setting("Notes")) == ("fine", None)


def test_counts_are_exact_and_unknown_fractions_are_not_settings() -> None:
    (row,) = rows("""
| GPU         | Successful requests | Req/s | Score | Layers |
|-------------|---------------------|-------|-------|--------|
| 4x MI300X   | 1,000               | 9.9   | 3.25  | 80     |
""")
    assert (row.figures["completed"].value, row.figures["completed"].half) == (1000.0, 0.0)
    assert (row.setting("accelerator"), row.setting("accelerators")) == ("MI300X", 4)
    assert (row.setting("Score"), row.setting("Layers")) == (None, 80)


@pytest.mark.parametrize(
    ("cell", "reported"),
    [
        ("8xH100 1FP8-meta", ("H100", 8)),
        ("2× RTX 4090", ("RTX 4090", 2)),
        ("TPU pod", ("TPU pod", None)),
        ("8", (None, 8)),
        ("3060", ("3060", None)),
    ],
)
def test_accelerators_are_counted_where_the_cell_does(
    cell: str, reported: tuple[str | None, int | None]
) -> None:
    (row,) = rows(f"| gpu | tok/s |\n|---|---|\n| {cell} | 5 |")
    assert (row.setting("accelerator"), row.setting("accelerators")) == reported


def test_llama_benchs_table_reports_the_test_the_depth_and_the_model() -> None:
    first, second = rows("""
| model          |       size |     params | backend    | ngl | fa |            test |                  t/s |
| -------------- | ---------: | ---------: | ---------- | --: | -: | --------------: | -------------------: |
| llama 7B Q4_0  |   3.56 GiB |     6.74 B | ROCm       |  99 |  1 |           pp512 |        878.31 ± 4.11 |
| llama 7B Q4_0  |   3.56 GiB |     6.74 B | ROCm       |  99 |  1 |  tg128 @ d4096  |         39.33 ± 0.00 |
""")
    speed = first.figures["speed"]
    assert (first.kind, first.tool, speed.value, speed.deviation) == (
        "micro",
        "llama-bench",
        878.31,
        4.11,
    )
    assert (speed.half, speed.definition, speed.line) == (0.005, "llama-bench.speed", 12)
    assert (
        first.setting("test"),
        first.setting("depth"),
        first.setting("ngl"),
        first.setting("flash_attn"),
    ) == (
        "pp512",
        None,
        99,
        1,
    )
    assert (second.setting("test"), second.setting("depth")) == ("tg128", 4096)
    assert (first.setting("model_bytes"), first.setting("parameters")) == (
        3.56 * 2**30,
        6.74e9,
    )
    assert (first.label, first.setting("backend")) == ("llama 7B Q4_0", "ROCm")


def test_llama_batched_benchs_table_is_two_tests_a_line() -> None:
    found = rows("""
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |
|-------|--------|------|--------|----------|----------|----------|----------|
|   512 |    128 |    4 |   2560 |    0.500 |  4096.00 |    2.000 |   256.00 |
""")
    assert [
        (r.tool, r.setting("test"), r.setting("batch_size"), r.get("speed")) for r in found
    ] == [
        ("llama-batched-bench", "pp512", 4, 4096.0),
        ("llama-batched-bench", "tg128", 4, 256.0),
    ]


def test_llama_benchys_speed_is_a_servers() -> None:
    (row,) = rows(
        "| model | test | t/s | peak t/s | ttfr (ms) |\n|---|---|---|---|---|\n| m | tg32 | 50.5 ± 0.2 | 52 | |"
    )
    assert (row.tool, row.figures["speed"].definition, row.get("speed")) == (
        "llama-benchy",
        "",
        50.5,
    )


def test_tests_side_by_side_are_a_result_each() -> None:
    found = rows("""
| Model | Backend | pp512 (t/s)   | tg128 @ d4096 |
|-------|---------|---------------|---------------|
| m Q4  | Vulkan  | **878.3 ± 4** | 39.3          |
| m Q8  | ROCm    | OOM           | 25.2          |
""")
    assert [
        (r.kind, r.setting("test"), r.setting("depth"), r.get("speed"), r.line)
        for r in found
    ] == [
        ("micro", "pp512", None, 878.3, 12),
        ("micro", "tg128", 4096, 39.3, 12),
        ("micro", "tg128", 4096, 25.2, 13),
    ]
    assert (
        found[0].series,
        found[0].figures["speed"].bold,
        found[0].figures["speed"].deviation,
    ) == (
        "m Q4, Vulkan",
        True,
        4,
    )


def test_a_lone_speed_is_of_the_test_beside_it() -> None:
    (row,) = rows(
        "| model | workload | tps |\n|---|---|---|\n| m | pp512 @ d16 | 1116.65 |",
        form="csv",
    )
    assert (row.kind, row.setting("test"), row.setting("depth"), row.get("speed")) == (
        "micro",
        "pp512",
        16,
        1116.65,
    )


def test_a_unit_in_every_cell_replaces_one_in_the_title() -> None:
    first, second = rows("""
| Config | Throughput        | TTFT P95 | Rate      |
|--------|-------------------|----------|-----------|
| a      | 36,914 tok/s      | 1.2 s    | 3 req/s   |
| b      | 116.3&nbsp;tok/s  | 151 ms   | 5 req/s   |
""")
    assert values(first) == {"speed": 36914.0, "p95_ttft_ms": 1200.0}
    assert values(second) == {"speed": 116.3, "p95_ttft_ms": 151.0}
    (row,) = rows("| Model | Throughput |\n|---|---|\n| m | 2.5 req/s |")
    assert values(row) == {"request_throughput": 2.5}
    assert (
        rows("| Config | Throughput |\n|---|---|\n| a | 5 tok/s |\n| b | 3 req/s |") == []
    )
    assert rows("| Link | Throughput |\n|---|---|\n| a | 5 GB/s |") == []


def test_prompts_and_tokens_are_two_tests_of_a_line() -> None:
    found = rows("""
| Model | Prompt (tok/s) | Gen t/s | Prefill tok/s (pp128) |
|-------|----------------|---------|-----------------------|
| m     | 812            | 69.6    | 700                   |
""")
    assert [(r.kind, r.setting("test"), r.get("speed"), r.series) for r in found] == [
        ("micro", "pp", 812, "m"), ("micro", "tg", 69.6, "m"), ("micro", "pp128", 700, "m"),
    ]  # fmt: skip


def test_decoding_of_several_requests_or_of_guesses_is_not_tg() -> None:
    found = rows("| Batch | Decode tok/s |\n|---|---|\n| 1 | 20 |\n| 8 | 150 |")
    assert [r.setting("test") for r in found] == ["tg", "decode"]
    found = rows("| Config | Decode tok/s |\n|---|---|\n| no-spec | 20 |\n| MTP n=3 | 50 |")
    assert [r.setting("test") for r in found] == ["tg", "decode"]


def test_a_load_in_a_title_is_its_lines() -> None:
    (row,) = rows(
        "| Engine | Output tok/s (c32) | TTFT med (ms) |\n|---|---|---|\n| vllm | 965.0 | 403.1 |"
    )
    assert (values(row), row.setting("concurrency")) == (
        {"output_throughput": 965.0, "median_ttft_ms": 403.1},
        32,
    )
    found = rows(
        "| Engine | Req/s (c=1) | Req/s (c=8) |\n|---|---|---|\n| vllm | 1.5 | 9.5 |"
    )
    assert [(r.setting("concurrency"), r.get("request_throughput")) for r in found] == [
        (1, 1.5),
        (8, 9.5),
    ]


def test_configurations_side_by_side_are_a_result_each() -> None:
    found = rows("""
| concurrency | fp16 (tok/s) | AWQ (tok/s) | fp16 median TTFT (ms) | AWQ median TTFT (ms) | Speedup |
|-------------|--------------|-------------|-----------------------|----------------------|---------|
| 4           | 304.3        | 524.2       | 24.3                  | 14.0                 | 1.7x    |
""")
    assert [(r.series, r.setting("concurrency"), values(r)) for r in found] == [
        ("fp16", 4, {"speed": 304.3, "median_ttft_ms": 24.3}),
        ("AWQ", 4, {"speed": 524.2, "median_ttft_ms": 14.0}),
    ]
    # Other figures, not other configurations.
    assert (
        rows("| c | Per-user tok/s | Single tok/s |\n|---|---|---|\n| 4 | 30 | 40 |") == []
    )
    assert rows("| c | vLLM (tok/s) |\n|---|---|\n| 4 | 30 |") == []


def test_builds_side_by_side_in_llama_benchs_table() -> None:
    found = rows("""
| model | test  | t/s (main)    | t/s (PR)       | Speedup |
|-------|-------|---------------|----------------|---------|
| m IQ4 | pp512 | 668.46 ± 1.74 | 680.74 ± 21.47 | 1.018   |
""")
    assert [
        (r.series, r.setting("test"), r.get("speed"), r.figures["speed"].deviation)
        for r in found
    ] == [
        ("m IQ4, main", "pp512", 668.46, 1.74),
        ("m IQ4, PR", "pp512", 680.74, 21.47),
    ]
    assert "speedup" not in found[0].settings


def test_llama_benchys_requests_at_once() -> None:
    found = rows("""
| model | test              | t/s (total)    | t/s (req)         | peak t/s | ttfr (ms)  |
|-------|-------------------|----------------|-------------------|----------|------------|
| m     | pp2048 @ d4 (c20) | 20262.35 ± 18.4 | 3773.25 ± 4501.36 |          | 11496 ± 64 |
""")
    assert [
        (
            r.series,
            r.setting("test"),
            r.setting("depth"),
            r.setting("concurrency"),
            r.get("speed"),
        )
        for r in found
    ] == [
        ("m, total", "pp2048", 4, 20, 20262.35),
        ("m, req", "pp2048", 4, 20, 3773.25),
    ]
    # A request's wait among others says nothing of how steady the runs were.
    assert [r.figures["speed"].deviation for r in found] == [18.4, None]


def test_words_that_name_a_configuration_are_the_series_and_loads_never() -> None:
    first, second = rows("""
| Concurrency | Configuration | Output Throughput (tok/s) |
|-------------|---------------|---------------------------|
| 256         | dp + ep       | 13,660                    |
| 512         | dp + ep + tbo | 10,688                    |
""")
    assert (first.label, first.series, second.series) == (
        "dp + ep",
        "dp + ep",
        "dp + ep + tbo",
    )
    (row,) = rows("| request_count | model | Req/s |\n|---|---|---|\n| 20 | m | 1.5 |")
    assert row.series == "m"
    first, _ = rows("| prefill | Req/s |\n|---|---|\n| 1 | 1.5 |\n| 2 | 2.5 |")
    assert first.series == "prefill 1"


def test_tokens_per_second_are_all_tokens_only_where_vllm_offline_wrote_them() -> None:
    (row,) = rows("| model | tokens_per_second |\n|---|---|\n| m | 32.4 |", form="csv")
    assert values(row) == {"speed": 32.4}
    (row,) = rows(
        "| Metric | Value |\n|---|---|\n| tokens_per_second | 32.4 |\n| p50 latency | 5 ms |"
    )
    assert values(row) == {"speed": 32.4, "p50_latency_ms": 5.0}


def test_a_table_called_metric_may_have_other_things_too() -> None:
    found = rows("""
| Metric         | Value      |
|----------------|------------|
| p50 latency    | 1500.33 ms |
| tokens/sec     | **66.81**  |
| decode tok/s   | 66.9       |
| Sanity         | 100%       |
| Load time      | 5308 ms    |
| Answers        | fine       |
| Mood           | good       |
| Weather        | dry        |
""")
    assert [(r.kind, r.setting("test"), values(r)) for r in found] == [
        ("serve", None, {"p50_latency_ms": 1500.33, "speed": 66.81}),
        ("micro", "tg", {"speed": 66.9}),
    ]


def test_a_load_as_a_columns_title_is_not_a_series() -> None:
    first, _ = rows(
        "| 指标 | 1 并发 | c=8 | 变化 |\n|---|---|---|---|\n| 输出吞吐 | 20 tok/s | 90 tok/s | 4x |\n"
        "| 平均 TTFT | 0.5s | 0.6s | |"
    )
    assert (first.setting("concurrency"), first.series, values(first)) == (
        1, "", {"output_throughput": 20.0, "mean_ttft_ms": 500.0},
    )  # fmt: skip


def test_lm_evals_table_continues_where_the_task_is_blank() -> None:
    first, second = rows("""
|Tasks|Version|     Filter     |n-shot|  Metric   |   |Value |   |Stderr|
|-----|------:|----------------|-----:|-----------|---|-----:|---|-----:|
|gsm8k|      3|flexible-extract|     5|exact_match|↑  |0.8466|±  |0.0135|
|     |       |strict-match    |     5|exact_match|↑  |**0.848**|±  |N/A |
""")
    assert (first.kind, first.tool, first.get("score"), first.get("stderr")) == (
        "quality",
        "lm-eval",
        0.8466,
        0.0135,
    )
    assert first.figures["stderr"].half == pytest.approx(5e-5)
    assert (second.setting("task"), second.setting("filter"), second.setting("n_shot")) == (
        "gsm8k",
        "strict-match",
        5,
    )
    assert (second.get("score"), second.get("stderr"), second.figures["score"].bold) == (
        0.848,
        None,
        True,
    )


def test_metrics_as_rows_are_a_result_for_each_column() -> None:
    first, second = rows("""
| Metric           | vLLM      | TGI   | Difference |
|------------------|-----------|-------|------------|
| Req/s            | **1.03**  | 0.61  | +69 %      |
| Mean TTFT (ms)   | 272106.88 | 8829  | -96 %      |
| Remark           | slow      | fast  |            |
| Concurrency      | 16        | 16    |            |
""")
    assert (first.label, first.series, second.label) == ("vLLM", "vLLM", "TGI")
    assert values(second) == {"request_throughput": 0.61, "mean_ttft_ms": 8829.0}
    assert (
        first.figures["request_throughput"].line,
        first.figures["mean_ttft_ms"].line,
    ) == (12, 13)
    assert first.figures["request_throughput"].bold
    assert first.setting("concurrency") == 16
    assert (first.line, first.end) == (10, 15)


def test_metrics_by_statistics_are_one_result() -> None:
    (row,) = rows("""
| Metric    | Mean | Median | P99   |
|-----------|------|--------|-------|
| TTFT (ms) | 12.5 | 11.0   | 99.5  |
| TPOT (ms) | 5.5  | 5.0    | 9.25  |
| Tokens    | 5    | 6      | 7     |
""")
    assert values(row) == {
        "mean_ttft_ms": 12.5, "median_ttft_ms": 11.0, "p99_ttft_ms": 99.5,
        "mean_tpot_ms": 5.5, "median_tpot_ms": 5.0, "p99_tpot_ms": 9.25,
    }  # fmt: skip


def test_what_was_measured_is_not_a_setting() -> None:
    (row,) = rows("""
| Config | RPS   | Prefill throughput | Latency P50 | GPU util (%) | Random input length | TTFT avg |
|--------|-------|--------------------|-------------|--------------|---------------------|----------|
| a      | 0.719 | 197                | 8.67s       | 80           | 1,024 tokens        | 349ms    |
""")
    assert values(row) == {"mean_ttft_ms": 349.0, "p50_latency_ms": 8670.0}
    assert {name: setting.value for name, setting in row.settings.items()} == {
        "Config": "a",
        "input_len": 1024,
    }


def test_a_machines_memory_and_a_kernels_latency_are_not_results() -> None:
    assert rows("| VM | GPU memory (GB) | GPUs |\n|---|---|---|\n| nc6 | 112 | 1 |") == []
    assert (
        rows("| Kernel | Latency (ms) | TFLOPS |\n|---|---|---|\n| sdpa | 84.56 | 1384.2 |")
        == []
    )
    assert len(rows("| Batch | Latency (ms) |\n|---|---|\n| 8 | 84.56 |")) == 1


def test_a_lone_column_of_values_has_no_name() -> None:
    (row,) = rows(
        "| metric | value |\n|---|---|\n| avg_ttft_ms | 716.041 |\n| p50_itl_ms | 9.5 |"
    )
    assert (row.label, row.series, values(row)) == (
        "",
        "",
        {"mean_ttft_ms": 716.041, "p50_itl_ms": 9.5},
    )


def test_requests_beside_a_concurrency_were_asked_for() -> None:
    (row,) = rows(
        "| num_requests | concurrency | mean TTFT(ms) |\n|---|---|---|\n| 720 | 144 | 4717.45 |"
    )
    assert (row.setting("num_prompts"), row.get("completed")) == (720, None)


def test_a_table_without_figures_has_no_rows() -> None:
    assert rows("| file | by | what |\n|---|---|---|\n| a | b | 3 |") == []
    assert rows("| Req/s |\n|---|") == []
    assert rows("| Req/s | Notes |\n|---|---|\n| tbd | none |") == []


def test_a_line_that_ends_early_is_left_out() -> None:
    assert rows("| Value | Tasks | Metric |\n|---|---|---|\n| 0.5 |") == []
    assert rows("| t/s | test |\n|---|---|\n| |") == []


def test_secrets_in_cells_stay_out() -> None:
    found = rows(
        "| Model | api_key | Req/s |\n|---|---|---|\n| hf_abcdefghijklmnop | verysecret1 | 1.5 |"
    )
    assert "hf_abc" not in str(found)
    assert "verysecret1" not in str(found)


@pytest.mark.parametrize("fields", [("both", "titles"), ("both", "flags"), ("labels",)])
def test_a_name_that_others_have_for_a_setting_means_one(fields: tuple[str, ...]) -> None:
    words = [
        word
        for alias in setting.ALIASES
        for field in fields
        for word in getattr(alias, field).split(", ")
        if word
    ]
    assert len(words) == len(set(words))


def test_a_flag_means_the_same_setting_however_it_is_written() -> None:
    assert {
        setting.of_flag(f)
        for f in ("--tensor-parallel-size", "tensor_parallel_size", "--tp")
    } == {"tensor_parallel"}
    assert setting.of_flag("--no-enable-prefix-caching") == "-prefix_caching"
    assert setting.of_flag("--device") == "" and meaning("Device") == Meaning(
        "accelerator", figure=False
    )
