"""Texts as people keep them: consoles, logs and Markdown, whole or cut, with what terminals and loggers put around."""

from pathlib import Path

import msgspec
import pytest

from dyno.audit.document import read, read_text
from dyno.facts.imported import Document, Row

HERE = Path(__file__).parents[1]
FIXTURES = HERE / "fixtures" / "imports"
CAPTURES = HERE / "captures"


def text(content: str, name: str = "bench.log") -> Document:
    return read_text(name, content.encode())


def markdown(content: str) -> Document:
    return text(content, "README.md")


def only(document: Document) -> Row:
    assert len(document.rows) == 1, document.rows
    return document.rows[0]


def values(row: Row) -> dict[str, float]:
    return {name: figure.value for name, figure in row.figures.items()}


def reported(row: Row) -> dict[str, object]:
    return {name: setting.value for name, setting in row.settings.items()}


def entry(label: str, value: object) -> str:
    return f"{label + ':':<40} {value:<10}"


def block(completed: int = 64, ttft: float = 50.25, **more: object) -> str:
    """As vLLM printed it from 0.6 on."""
    rows = {
        "Successful requests": completed, "Benchmark duration (s)": "16.36", "Total input tokens": 32768,
        "Total generated tokens": 8192, "Request throughput (req/s)": "3.91",
        "Output token throughput (tok/s)": "500.73", "Total Token throughput (tok/s)": "2503.67",
    } | more  # fmt: skip
    lines = [
        f"{' Serving Benchmark Result ':=^50}",
        *(entry(k, v) for k, v in rows.items()),
    ]
    lines += [
        f"{'Time to First Token':-^50}",
        entry("Mean TTFT (ms)", ttft),
        entry("Median TTFT (ms)", "48.10"),
    ]
    lines += [
        entry("P99 TTFT (ms)", "82.50"),
        f"{'Time per Output Token (excl. 1st token)':-^50}",
    ]
    lines += [entry("Mean TPOT (ms)", "8.86"), entry("P99 TPOT (ms)", "11.70"), "=" * 50]
    return "\n".join(lines) + "\n"


SGLANG = "\n".join([
    f"{' Serving Benchmark Result ':=^50}",
    entry("Backend", "sglang"), entry("Traffic request rate", "inf"), entry("Max reqeuest concurrency", 16),
    entry("Successful requests", 80), entry("Benchmark duration (s)", "107.24"), entry("Total input tokens", 50561),
    entry("Total generated tokens", 25883), entry("Total generated tokens (retokenized)", 25591),
    entry("Request throughput (req/s)", "0.75"), entry("Input token throughput (tok/s)", "471.48"),
    entry("Output token throughput (tok/s)", "241.36"), entry("Total throughput (tok/s)", "712.84"),
    entry("Concurrency", "14.42"),
    f"{'End-to-End Latency':-^50}", entry("Mean E2E Latency (ms)", "17609.46"), entry("Median E2E Latency "
    "(ms)", "12343.82"),
    f"{'Time to First Token':-^50}", entry("Mean TTFT (ms)", "190.71"),
    f"{'Inter-Token Latency':-^50}", entry("Mean ITL (ms)", "22.71"), entry("Max ITL (ms)", "222.00"),
    "=" * 50, "",
])  # fmt: skip


# Blocks


def test_a_block_of_vllm_024_is_read_to_the_digit() -> None:
    row = only(read(FIXTURES / "vllm-0.24-serve-c64.txt"))
    assert (row.kind, row.tool, row.form, row.line, row.end) == (
        "serve",
        "vllm",
        "block",
        1,
        40,
    )
    assert reported(row) == {"concurrency": 64}
    v = values(row)
    assert (v["completed"], v["failed"], v["duration_s"]) == (640, 0, 16.36)
    assert (
        v["peak_output_throughput"],
        v["peak_concurrency"],
        v["total_token_throughput"],
    ) == (
        7759.0,
        128.0,
        25037.08,
    )
    assert (v["mean_ttft_ms"], v["p95_tpot_ms"], v["p99_itl_ms"], v["p99_e2el_ms"]) == (
        506.70,
        11.42,
        158.30,
        1813.70,
    )
    assert row.figures["mean_ttft_ms"].line == 14
    assert row.figures["mean_ttft_ms"].half == pytest.approx(0.005)
    assert row.figures["completed"].half == 0
    assert row.figures["mean_ttft_ms"].definition == "vllm.ttft"


def test_a_block_of_vllm_032_reports_its_goodput() -> None:
    row = only(read(CAPTURES / "vllm-0.32-serve.txt"))
    assert row.get("request_goodput") == 3.50
    assert row.number("concurrency") == 2


def test_a_peak_is_not_taken_for_the_throughput_itself() -> None:
    row = only(
        text(
            "Successful requests: 5\nPeak output token throughput (tok/s): 70.00\nMean TTFT (ms): 4.0\n"
        )
    )
    assert values(row) == {
        "completed": 5,
        "peak_output_throughput": 70.0,
        "mean_ttft_ms": 4.0,
    }


def test_an_old_block_has_no_failures_and_another_word_for_its_total() -> None:
    row = only(text(block()))
    assert row.get("failed") is None
    assert row.get("total_token_throughput") == 2503.67
    assert row.get("mean_ttft_ms") == 50.25


def test_a_block_of_sglang_is_known_by_its_words() -> None:
    row = only(text(SGLANG))
    assert row.tool == "sglang"
    assert reported(row) == {"backend": "sglang", "rate": "inf", "concurrency": 16}
    v = values(row)
    assert (
        v["total_token_throughput"],
        v["concurrency_mean"],
        v["retokenized_output_tokens"],
    ) == (
        712.84,
        14.42,
        25591,
    )
    assert (v["mean_e2el_ms"], v["max_itl_ms"]) == (17609.46, 222.0)
    assert row.figures["mean_e2el_ms"].definition == "sglang.e2el"


def test_a_new_block_of_sglang_says_not_set_where_there_is_no_limit() -> None:
    row = only(
        text(
            SGLANG.replace(
                "Max reqeuest concurrency:", "Max request concurrency: "
            ).replace(" 16 ", " not set ")
        )
    )
    assert "concurrency" not in row.settings


def test_several_blocks_in_one_file_are_several_rows_with_their_lines() -> None:
    document = text(block(10) + "\n" + block(20) + "nothing\n" + block(30))
    assert [r.get("completed") for r in document.rows] == [10, 20, 30]
    assert [r.line for r in document.rows] == [1, 18, 35]


def test_a_block_right_after_another_without_its_end_is_one_of_its_own() -> None:
    cut = block(10).replace("=" * 50 + "\n", "")
    assert [r.get("completed") for r in text(cut + block(20)).rows] == [10, 20]


@pytest.mark.parametrize(
    "prefix",
    ["INFO 08-31 14:22:17 [serve.py:1] ", "(APIServer pid=1) ", "bench-1  | ", "> ", ">> ", "    ",
     "\x1b[36mbench |\x1b[0m ",
     "2025-08-31T14:22:17.123456Z stdout F "],
)  # fmt: skip
def test_what_a_logger_puts_before_each_line_does_no_harm(prefix: str) -> None:
    row = only(text("".join(prefix + line + "\n" for line in block().splitlines())))
    assert (row.get("completed"), row.get("duration_s"), row.get("mean_ttft_ms")) == (
        64,
        16.36,
        50.25,
    )
    assert row.get("p99_tpot_ms") == 11.70


def test_a_progress_bar_is_painted_over_and_reports_how_many_were_asked_for() -> None:
    bar = (
        "\r".join(
            f" {i:2d}%|█  | {i}/80 [00:0{i % 10}<00:10,  3.90it/s]" for i in range(80)
        )
        + "\n"
    )
    row = only(text(bar + block(75)))
    assert (row.get("completed"), row.number("num_prompts")) == (75, 80)
    assert row.settings["num_prompts"].by == "progress"


def test_colours_windows_ends_and_marks_of_bytes_do_no_harm() -> None:
    coloured = block().replace("64", "\x1b[1;32m64\x1b[0m").replace("\n", "\r\n")
    for data in (coloured.encode(), b"\xef\xbb\xbf" + coloured.encode()):
        row = only(read_text("a.log", data))
        assert (row.get("completed"), row.line, row.get("p99_tpot_ms")) == (64, 1, 11.70)


def test_utf_16_as_powershell_writes_it_is_read(tmp_path: Path) -> None:
    for name in ("utf-16", "utf-16-le", "utf-16-be"):
        mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(name, b"")
        path = tmp_path / f"{name}.txt"
        path.write_bytes(mark + block().replace("\n", "\r\n").encode(name))
        assert only(read(path)).get("mean_ttft_ms") == 50.25


def test_mangled_letters_are_mended_and_latin_1_is_understood() -> None:
    table = (
        "| model | size | params | backend | test | t/s |\n|---|---|---|---|---|---|\n"
        "| m | 1 GiB | 1 B | CPU | pp512 | 100.00 ± 2.50 |\n"
    )
    for data in (
        table.encode(),
        table.encode("latin-1"),
        table.encode().decode("cp1252").encode(),  # Â±
    ):
        row = only(read_text("a.log", data))
        assert (row.get("speed"), row.figures["speed"].deviation) == (100.0, 2.5)
    assert (
        only(read_text("a.log", ("â–ˆ" * 5 + " 5/70 [00:01\n" + block()).encode())).number(
            "num_prompts"
        )
        == 70
    )


def test_a_trimmed_block_without_its_frame_is_a_row() -> None:
    lines = block().splitlines()[1:-1]
    row = only(text("\n".join(lines) + "\n"))
    assert (row.line, row.get("completed"), row.get("mean_tpot_ms")) == (1, 64, 8.86)


def test_a_block_cut_in_the_middle_is_a_row_and_the_cut_is_reported() -> None:
    document = text("\n".join(block().splitlines()[:5]))
    assert only(document).get("total_output_tokens") == 8192
    assert [(u.line, "ends early" in u.why) for u in document.unread] == [(5, True)]
    document = text(f"{' Serving Benchmark Result ':=^50}\n")
    assert document.rows == []
    assert document.unread[0].line == 1


def test_a_warning_between_the_lines_does_not_end_a_block() -> None:
    lines = block().splitlines()
    lines.insert(6, "/usr/lib/python3/x.py:12: UserWarning: something is deprecated")
    assert only(text("\n".join(lines))).get("p99_tpot_ms") == 11.70


def test_code_that_prints_a_block_is_none() -> None:
    document = markdown(
        "# Code\n```python\n"
        'print("{s:{c}^{n}}".format(s=" Serving Benchmark Result ", n=50, c="="))\n'
        'print("============ Serving Benchmark Result ============")\n'
        'print("{:<40} {:<10}".format("Successful requests:", metrics.completed))\n'
        'print("{:<40} {:<10.2f}".format("Benchmark duration (s):", benchmark_duration))\n'
        'const out = "============ Serving Benchmark Result ============\\nSuccessful requests: 10\\n";\n```\n'
    )
    assert document.rows == []
    assert document.unread == []


@pytest.mark.parametrize(
    ("before", "after"), [("<pre>", "</pre>"), ("<td><pre><code>", "</code></pre></td>")]
)
def test_blocks_inside_a_page_are_read(before: str, after: str) -> None:
    row = only(markdown(f"# R\n{before}{block().rstrip()}{after}\n"))
    assert (row.get("completed"), row.get("p99_tpot_ms"), row.section) == (64, 11.70, "R")
    with_breaks = "".join(line + "<br/>\n" for line in block().splitlines())
    assert only(markdown("# R\n" + with_breaks)).get("mean_ttft_ms") == 50.25


def test_blocks_in_the_cells_of_a_table_of_html_are_read() -> None:
    document = markdown(
        f"# R\n<table><tr><th>a</th><th>b</th></tr>\n<tr><td>\n\n```\n{block(1)}```\n\n</td><td>\n\n```\n"
        f"{block(2)}```\n</td></tr></table>\n"
    )
    assert [r.get("completed") for r in document.rows] == [1, 2]


def test_single_lines_of_the_offline_procedures_are_rows() -> None:
    document = markdown(
        "# T\n```\nThroughput: 7.61 requests/s, 3895.53 total tokens/s, 972.30 output tokens/s\n"
        "Total num prompt tokens:  3000\nTotal num output tokens:  1000\n```\n"
        "# L\n```\nAvg latency: 1.2345 seconds\n10% percentile latency: 1.2 seconds\n99% percentile "
        "latency: 1.5 seconds\n```\n"
    )
    throughput, latency = document.rows
    assert (throughput.kind, values(throughput)) == (
        "throughput",
        {"request_throughput": 7.61, "total_token_throughput": 3895.53, "output_throughput": 972.30,
         "total_input_tokens": 3000, "total_output_tokens": 1000},
    )  # fmt: skip
    assert (latency.kind, values(latency)) == (
        "latency",
        {"mean_latency_ms": 1234.5, "p10_latency_ms": 1200.0, "p99_latency_ms": 1500.0},
    )
    assert latency.figures["mean_latency_ms"].half == pytest.approx(0.05)
    assert (throughput.line, throughput.end, throughput.section) == (3, 5, "T")


# Commands


def test_a_command_over_several_lines_belongs_to_the_block_below() -> None:
    row = only(markdown(
        "# Run\n```bash\nCUDA_VISIBLE_DEVICES=0 vllm bench serve \\\n  --model org/m-7b \\\n  "
        "--dataset-name random \\\n"
        "  --random-input-len 512 --random-output-len=128 \\\n  --num-prompts 64 --request-rate 4 -tp 2\n```\n\n"
        f"```\n{block()}```\n"
    ))  # fmt: skip
    assert reported(row) == {
        "model": "org/m-7b", "dataset": "random", "input_len": 512, "output_len": 128, "num_prompts": 64, "rate": 4,
        "tensor_parallel": 2,
    }  # fmt: skip
    assert {s.by for s in row.settings.values()} == {"command"}
    assert row.settings["model"].line == 3


def test_variables_of_the_shell_are_put_in_and_placeholders_are_left_out() -> None:
    document = markdown(
        "# Run\n```bash\nexport MODEL=org/m-7b\nN='100'\nvllm bench serve --model $MODEL --num-prompts ${N} "
        "--random-input-len <INPUT_LEN> --random-output-len $OUT --seed SEED --tokenizer base/$MODEL\n```\n"
    )
    command = document.commands[0]
    assert {k: s.value for k, s in command.settings.items()} == {
        "model": "org/m-7b", "num_prompts": 100, "tokenizer": "base/org/m-7b"
    }  # fmt: skip


def test_a_server_s_model_is_its_first_word_and_its_engine_is_known() -> None:
    for line, model, engine in (
        ("vllm serve org/m-7b --tensor-parallel-size 4", "org/m-7b", "vllm"),
        ("VLLM_USE_V1=1 vllm serve --max-model-len 4096 org/m-7b", "org/m-7b", "vllm"),
        (
            "python3 -m sglang.launch_server --model-path org/m-7b --tp 4",
            "org/m-7b",
            "sglang",
        ),
        ("trtllm-serve org/m-7b --max_batch_size 8", "org/m-7b", "tensorrt-llm"),
    ):
        command = markdown(f"# Run\n```\n{line}\n```\n").commands[0]
        assert (command.role, command.settings["model"].value) == ("server", model)
        assert command.settings["engine"].value == engine
        assert "-m" not in command.settings


def test_json_that_is_broken_over_lines_stays_one_word() -> None:
    command = markdown(
        '# Run\n```\nvllm bench throughput --model m --speculative-config $\'{"method": "ngram",\n  '
        '"num": 5}\' --seed 3\n```\n'
    ).commands[0]
    assert command.settings["speculative"].value == '{"method": "ngram", "num": 5}'
    assert command.settings["seed"].value == 3


def test_a_dump_of_arguments_belongs_to_the_block_below() -> None:
    row = only(text(
        "Namespace(backend='vllm', dataset_name='random', random_input_len=1024, random_output_len=128, model='org/m',"
        " num_prompts=64, request_rate=inf, seed=0, max_concurrency=None, ignore_eos=True,"
        " api_key='sesame')\n" + block()
    ))  # fmt: skip
    assert reported(row) == {
        "backend": "vllm", "dataset": "random", "input_len": 1024, "output_len": 128, "model": "org/m",
        "num_prompts": 64, "rate": "inf", "seed": 0, "ignore_eos": True,
    }  # fmt: skip


def test_lengths_of_random_prompts_say_nothing_of_another_dataset() -> None:
    row = only(
        text(
            "Namespace(dataset_name='sharegpt', random_input_len=1024, random_output_len=128)\n"
            + block()
        )
    )
    assert reported(row) == {"dataset": "sharegpt"}


def test_no_secret_is_kept() -> None:
    secrets = (
        "sesame-open-1",
        "abc-token-2",
        "hf_AbCdEfGhIjKlMn3",
        "pass-word-4",
        "bearer-word-5",
        "quoted six",
        "sk-abcdefgh7",
        "val-8",
    )
    document = markdown(
        "# Use hf_AbCdEfGhIjKlMn3\n"
        "Set HF_TOKEN=abc-token-2 first, and Authorization: Bearer bearer-word-5. The api_key: "
        "sesame-open-1 is ours.\n\n"
        "```bash\nexport HF_TOKEN=hf_AbCdEfGhIjKlMn3\nexport API_KEY=abc-token-2\nKEY=val-8\n"
        "HF_TOKEN=abc-token-2 vllm serve m-7b --api-key sesame-open-1 --hf-token=abc-token-2 "
        "--served-model-name $API_KEY\n"
        "vllm bench serve --model m --base-url http://user:pass-word-4@host:8000 --header "
        "'Authorization: Bearer bearer-word-5'"
        " --api-key 'quoted six' --tokenizer hf_AbCdEfGhIjKlMn3\n"
        "docker run -e HF_TOKEN=abc-token-2 vllm/vllm-openai vllm serve m-8b --env OPENAI_API_KEY=sk-abcdefgh7\n"
        f"{block()}```\n"
        "hf (pretrained=m,token=abc-token-2), gen_kwargs: (None), limit: None, num_fewshot: 5, batch_size: 1\n\n"
        "| key | value |\n|---|---|\n| HF_TOKEN=abc-token-2 | http://user:pass-word-4@host |\n\n"
        "Namespace(model='m', api_key='sesame-open-1', token='abc-token-2')\n"
    )
    encoded = msgspec.json.encode(document).decode()
    for secret in secrets:
        assert secret not in encoded, secret
    assert len(document.commands) == 3
    assert only(document).setting("model") == "m-8b"


def test_ordinary_words_about_tokens_are_not_secrets() -> None:
    document = markdown(
        "# Max token throughput\nThe output token: 12.5 ms, max_token=512, add_bos_token=True and token "
        "throughput 900.\n"
    )
    assert (
        document.passages[0].text
        == "The output token: 12.5 ms, max_token=512, add_bos_token=True and token throughput 900."
    )


# How far something holds


def test_a_command_in_a_listing_with_results_says_nothing_of_the_next_listing() -> None:
    document = markdown(
        f"# A\n```\nvllm bench serve --model a --num-prompts 5\n{block(1)}```\n\n```\n{block(2)}```\n"
    )
    assert [r.setting("model") for r in document.rows] == ["a", None]


def test_a_command_in_a_listing_of_its_own_holds_until_the_next_heading_of_its_level() -> (
    None
):
    document = markdown(
        f"## A\n```\nvllm serve a-7b\n```\n### c=4\n```\n{block(1)}```\n### c=8\n```\n{block(2)}```\n## "
        f"B\n```\n{block(3)}```\n"
    )
    assert [r.setting("model") for r in document.rows] == ["a-7b", "a-7b", None]
    assert [r.number("concurrency") for r in document.rows] == [4, 8, None]
    assert document.rows[0].settings["concurrency"].by == "heading"


def test_the_next_command_of_a_kind_takes_the_place_of_the_last() -> None:
    document = text(
        f"vllm bench serve --model a --num-prompts 5\n{block(1)}\nvllm bench serve --model b --seed 3\n{block(2)}"
    )
    assert [r.setting("model") for r in document.rows] == ["a", "b"]
    assert document.rows[1].setting("num_prompts") is None


def test_words_about_a_program_are_not_a_command() -> None:
    document = markdown(
        "# A\nWe ran vllm serve --model x on one node, and benchmark_serving.py against it.\n"
    )
    assert document.commands == []
    assert len(document.passages) == 1


# Headings, words and tables


def test_headings_of_three_kinds_and_empty_ones() -> None:
    document = markdown(
        "Title\n=====\n\nWords\n\nPart\n----\n\n# One #\n\n## Empty\n\n## C#\nx\n<h2>Three</h2>\n\ny\n"
    )
    assert [(h.line, h.level, h.text, h.empty) for h in document.headings] == [
        (1, 1, "Title", False), (6, 2, "Part", True), (9, 1, "One", False), (11, 2, "Empty", True),
        (13, 2, "C#", False),
        (15, 2, "Three", False),
    ]  # fmt: skip


def test_a_rule_below_a_list_or_a_front_matter_makes_no_heading() -> None:
    document = markdown("---\ntitle: x\n---\n# A\n- item\n---\ntwo lines\nof words\n---\n")
    assert [h.text for h in document.headings] == ["A"]


def test_the_last_item_of_a_list_is_not_a_name_of_the_table_below() -> None:
    document = markdown(
        "# A\n- llama.cpp b1620\n- ExLlamaV2\n\n| Software | TTFT (ms) | tok/s |\n|---|---|---|\n| vLLM "
        "| 12.5 | 80.1 |\n"
    )
    assert only(document).setting("engine") in (None, "vllm")


TABLES = {
    "plain": "| Engine | TTFT (ms) | tok/s |\n|---|---:|---|\n| vLLM | **12.5** | 80.1 |\n| TGI | 13.5 | 70.1 |\n",
    "without outer bars": "Engine | TTFT (ms) | tok/s\n--- | ---: | ---\nvLLM | **12.5** | 80.1\nTGI | 13.5 | 70.1\n",
    "in a comment": (
        "# | Engine | TTFT (ms) | tok/s |\n# |---|---:|---|\n# | vLLM | **12.5** | 80.1 |\n# | TGI | 13.5 | "
        "70.1 |\n"
    ),
    "quoted": (
        "> | Engine | TTFT (ms) | tok/s |\n> |---|---:|---|\n> | vLLM | **12.5** | 80.1 |\n> | TGI | 13.5 | "
        "70.1 |\n"
    ),
    "of a page": "<table><tr><th>Engine</th><th>TTFT (ms)</th><th>tok/s</th></tr>\n<tr></tr>\n"
    "<tr><td>vLLM</td><td><b>12.5</b></td><td>80.1</td></tr>\n"
    "<tr><td>TGI</td><td>13.5</td><td>70.1</td></tr></table>\n",
}  # fmt: skip


@pytest.mark.parametrize("form", TABLES)
def test_a_table_is_a_table_however_it_is_written(form: str) -> None:
    document = markdown("# A\n\nWords.\n\n" + TABLES[form] + "\nWords.\n")
    table = document.tables[0]
    assert (table.line, table.header, table.lines, table.section) == (
        5,
        ["Engine", "TTFT (ms)", "tok/s"],
        [7, 8],
        "A",
    )
    assert [[c.text for c in row] for row in table.rows] == [
        ["vLLM", "12.5", "80.1"],
        ["TGI", "13.5", "70.1"],
    ]
    assert [c.bold for c in table.rows[0]] == [False, True, False]
    assert [r.get("mean_ttft_ms") for r in document.rows] == [12.5, 13.5]
    assert [h.text for h in document.headings] == ["A"]
    assert [p.line for p in document.passages] == [3, 10]


def test_cells_of_a_page_that_span_several_are_repeated_in_each() -> None:
    document = markdown(
        "# A\n<table>\n<tr>\n<th>Model</th>\n<th>Load</th>\n<th colspan='2'>TTFT &amp; more</th>\n</tr>\n"
        '<tr><td rowspan="2">m</td><td>1</td><td>2</td><td>3</td></tr>\n'
        "<tr><td>4</td><td>5</td><td>6</td></tr>\n</table>\n"
    )
    table = document.tables[0]
    assert table.header == ["Model", "Load", "TTFT & more", "TTFT & more"]
    assert [[c.text for c in row] for row in table.rows] == [
        ["m", "1", "2", "3"],
        ["m", "4", "5", "6"],
    ]
    assert table.lines == [8, 9]


def test_lines_between_bars_are_not_a_table() -> None:
    document = markdown("# A\n| a | b |\n| c | d |\n\na | b\n\nx\n---|---\n")
    assert document.tables == []


def test_what_lm_eval_writes_about_its_model_belongs_to_the_table_below() -> None:
    for comment in ("", "# "):
        content = (
            "vllm (pretrained=org/m-8b,dtype=auto,quantization=fp8), gen_kwargs: (None), limit: 250.0, "
            "num_fewshot: 5, batch_size: auto\n"
            "|Tasks|Version|Filter|n-shot|Metric|   |Value|   |Stderr|\n"
            "|-----|------:|------|-----:|------|---|----:|---|-----:|\n"
            "|gsm8k|      3|strict|     5|exact_match|↑  |0.768|±  |0.0268|\n"
        )
        row = only(text("".join(comment + line + "\n" for line in content.splitlines())))
        assert (row.kind, row.tool, row.get("score"), row.get("stderr")) == (
            "quality",
            "lm-eval",
            0.768,
            0.0268,
        )
        assert (row.setting("model"), row.setting("quantization"), row.setting("task")) == (
            "org/m-8b",
            "fp8",
            "gsm8k",
        )


def test_the_build_below_a_table_of_llama_bench_belongs_to_its_rows() -> None:
    content = (CAPTURES / "llama-bench-11434.md").read_text()
    document = markdown(
        "# A\n```\n" + content.replace("unknown (0)", "11fb327bf (7941)") + "```\n"
    )
    assert len(document.rows) == 4
    assert {r.setting("engine_version") for r in document.rows} == {"7941 (11fb327bf)"}
    assert {r.tool for r in document.rows} == {"llama-bench"}


def test_a_dump_of_an_environment_counts_its_accelerators() -> None:
    gpus = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3\n" for i in range(8))
    dump = (
        "Collecting environment information...\nPyTorch version: 2.5.1+cu124\nCUDA runtime version: 12.4.131\n"
        f"GPU models and configuration: \n{gpus}Nvidia driver version: 550.54.15\n"
        "Model name:                         Some CPU 8480\nvLLM Version: 0.6.5\n[pip3] transformers==4.47.0\n"
    )
    document = text(dump + dump.replace("0.6.5", "0.7.0"))
    assert len(document.environments) == 2
    first = {k: s.value for k, s in document.environments[0].items()}
    assert first == {
        "torch": "2.5.1+cu124", "cuda": "12.4.131", "accelerator": "NVIDIA H100 80GB HBM3", "accelerators": 8,
        "driver": "550.54.15", "cpu": "Some CPU 8480", "engine_version": "0.6.5", "transformers": "4.47.0",
    }  # fmt: skip
    assert document.environments[1]["engine_version"].line == 31


def test_words_of_markdown_lose_their_marks_and_keep_their_line() -> None:
    document = markdown(
        "# A\n\nWe see **2.5x** more [tokens](http://x) with `fp8`, *really*.\nAnd __so__.\n\n- one\n- two\n"
    )
    assert [(p.line, p.text, p.listing) for p in document.passages] == [
        (3, "We see 2.5x more tokens with fp8, really. And so.", False), (6, "one", False), (7, "two", False),
    ]  # fmt: skip


def test_sums_in_a_listing_are_words_that_claim() -> None:
    document = markdown("# A\n```\n>>> 640 / 16.36\n39.12\n```\n")
    assert [(p.line, p.text, p.listing) for p in document.passages] == [
        (3, ">>> 640 / 16.36", True),
        (4, "39.12", True),
    ]
