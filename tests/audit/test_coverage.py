"""How much of a document was read: what no result came of is listed with its line, and changes the exit code."""

import json
from pathlib import Path

import pytest

from dyno.audit.audit import coverage
from dyno.audit.document import read_text
from dyno.cli.main import main
from dyno.facts.imported import Document
from dyno.store.imports import load

READ = """| Concurrency | Output tok/s | Mean TTFT (ms) |
|---|---|---|
| 1 | 100.5 | 20.1 |
| 8 | 700.2 | 31.7 |
"""
UNKNOWN = """| Model | 4K pp | 8K pp |
|---|---|---|
| Thing-8B | 1081.93 | 1089.48 |
"""
SPECIFICATIONS = """| Component | Value |
|---|---|
| CUDA | 12.4 |
| Driver version | 550.54 |
| CPU cores | 64 |
| TP | 8 |
"""
BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     {completed}
Benchmark duration (s):                  100.00
Total input tokens:                      200000
Total generated tokens:                  100000
Request throughput (req/s):              {rate:.2f}
Output token throughput (tok/s):         1000.00
Mean TTFT (ms):                          230.00
==================================================
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*parts: str) -> str:
    return "# A report\n\n" + "\n\n".join(parts)


def document(text: str, file: str = "r.md") -> Document:
    return read_text(file, text.encode())


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```\n"


def lost(text: str, file: str = "r.md") -> list[tuple[int, str, str]]:
    return [(u.line, u.part, u.what) for u in document(text, file).unread if u.lost]


# ---- the verdict and the exit code ----


def test_a_table_without_known_columns_is_listed_as_unread_with_its_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, "More.", UNKNOWN))
    assert main(["audit", "r.md"]) == 5
    out = capsys.readouterr().out
    assert out.startswith(
        "Verdict: sound as far as checked: 1 of 2 tables, 3 of 3 columns; not checked: "
    )
    assert "Not read:\n  r.md:11: Model, 4K pp, 8K pp: unknown columns: 4K pp, 8K pp" in out


def test_a_report_that_was_read_as_a_whole_has_exit_code_0(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, fenced(BLOCK.format(completed=1000, rate=10))))
    assert main(["audit", "r.md"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Verdict: sound as far as checked: 1 of 1 table, 3 of 3 columns, 1 of 1 block; not checked: "
    )
    assert "Not read" not in out


def test_void_wins_over_unread(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    void = "vllm bench serve --num-prompts 1000\n" + BLOCK.format(completed=400, rate=4)
    (here / "r.md").write_text(report(fenced(void), UNKNOWN))
    assert main(["audit", "r.md"]) == 3
    assert capsys.readouterr().out.startswith(
        "Verdict: void; checked: 0 of 1 table, 1 of 1 block; not checked: "
    )


@pytest.mark.parametrize(
    "text",
    [report(UNKNOWN), "mean 1.25 of all\nworst 3.75 of all\n", '{"a": 1.25, "b": [2.5]}'],
)
def test_a_file_with_numbers_of_which_nothing_was_read_is_never_sound(
    text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(text)
    assert main(["audit", "r.md"]) == 5
    assert capsys.readouterr().out.startswith("No results found in 1 file (0 of 1 ")
    assert main(["audit", "r.md", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["verdict"] is None


def test_a_file_without_a_number_has_failed_as_before(here: Path) -> None:
    (here / "r.txt").write_text("nothing to see\n")
    assert main(["audit", "r.txt"]) == 1


def test_the_words_of_a_report_are_not_unread_beside_the_results_that_they_are_about(
    here: Path,
) -> None:
    (here / "r.md").write_text("# A report\n\nIt took 12.5 s and 13.5 s.\n")
    (here / "r.log").write_text(BLOCK.format(completed=1000, rate=10))
    assert main(["audit", "r.md", "r.log"]) == 0
    assert main(["audit", "r.md"]) == 5


def test_json_and_markdown_say_how_much_was_read(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, UNKNOWN))
    assert main(["audit", "r.md", "--json"]) == 5
    reported = json.loads(capsys.readouterr().out)
    assert (reported["complete"], reported["read"]["tables"]) == (
        False,
        {"read": 1, "all": 2},
    )
    (unread,) = reported["files"][0]["unread"]
    assert (unread["line"], unread["part"], unread["what"]) == (
        9,
        "table",
        "Model, 4K pp, 8K pp",
    )
    assert main(["audit", "r.md", "--markdown"]) == 5
    out = capsys.readouterr().out
    assert out.startswith(
        "## Verdict: sound as far as checked: 1 of 2 tables, 3 of 3 columns; not checked: "
    )
    assert "Not read:\n\n- r.md:9: Model" in out


def test_an_import_says_how_much_was_read_and_keeps_what_was_not(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, UNKNOWN))
    assert main(["import", "r.md", "-o", "kept"]) == 0
    reported = capsys.readouterr()
    assert (
        "r.md: markdown, 2 results from a table, 1 of 2 tables, 3 of 3 columns read → kept/r.md.json"
        in reported.out
    )
    assert "  r.md:9: Model, 4K pp, 8K pp: unknown columns" in reported.err
    assert not coverage([load(here / "kept/r.md.json")]).complete
    assert main(["audit", "kept/r.md.json"]) == 5


def test_a_report_page_notes_what_was_not_read(here: Path) -> None:
    (here / "r.md").write_text(report(READ, UNKNOWN))
    assert main(["report", "r.md", "-o", "page.md"]) == 0
    text = (here / "page.md").read_text()
    assert (
        "Not everything with numbers was read: 1 of 2 tables, 3 of 3 columns." in text
        and "r.md:9" in text
    )


def test_a_line_of_a_csv_file_that_was_not_read_changes_the_exit_code(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.csv").write_text(
        "concurrency,output_throughput\n1,100.5\n2,200.5,7\n4,400.5\n"
    )
    assert main(["audit", "r.csv"]) == 5
    out = capsys.readouterr().out
    assert out.startswith(
        "Verdict: sound as far as checked: 1 of 1 table, 2 of 2 columns, not all lines; not checked: "
    )


# ---- what counts as unread ----


def test_versions_and_settings_are_not_figures() -> None:
    assert lost(report(READ, SPECIFICATIONS)) == []


def test_a_latency_without_a_unit_is_unread_and_the_reason_says_so() -> None:
    (found,) = document(
        report(
            "| Rate | Median TTFT | Median ITL |\n|---|---|---|\n| 4 | 31.98 | 11.93 |\n"
        )
    ).unread
    assert (found.part, found.why) == ("table", "no unit: Median TTFT, Median ITL")


def test_columns_that_were_left_out_of_a_table_are_named_and_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = (
        "| Concurrency | Output tok/s | Wall feel |\n|---|---|---|\n| 1 | 100.5 | 3.25 |\n"
    )
    (found,) = document(report(table)).unread
    assert (found.part, found.what, found.why) == (
        "columns",
        "Wall feel",
        "meaning unknown",
    )
    read = coverage([document(report(table))])
    assert (read.complete, read.columns.read, read.columns.all) == (False, 2, 3)
    (here / "r.md").write_text(report(table))
    assert main(["audit", "r.md"]) == 5
    assert (
        "Columns or metrics not read:\n  r.md:3: Wall feel: meaning unknown"
        in capsys.readouterr().out
    )
    metrics = (
        "| Metric | A | B |\n|---|---|---|\n| TTFT (ms) | 2.5 | 3 |\n| Output tok/s | "
        "7 | 9 |\n| Feel | 4.5 | 5 |\n"
    )
    (found,) = document(report(metrics)).unread
    assert (found.part, found.what) == ("columns", "Feel")


def test_printed_figures_of_no_known_tool_are_listed_as_a_block() -> None:
    printed = fenced("Total Time:  145.07\nAvg Latency:  77.86\nMax Latency:  144.99")
    assert lost(report(READ, printed)) == [(11, "block", "Avg Latency")]
    assert lost(
        report(READ, "- **Mean TTFT**: 91.2 ms\n- **Throughput**: 1,204 tok/s\n")
    ) == [(9, "block", "Mean TTFT")]
    box = fenced(
        "┌────────────────┐\n│ TTFT: 250 ms   │\n│ p99 TTFT: 1.2s │\n└────────────────┘"
    )
    assert lost(report(READ, box)) == [(11, "block", "TTFT")]


def test_a_configuration_a_command_and_an_engines_log_are_not_printed_figures() -> None:
    config = "max_latency_ms: 200\ntarget_throughput: 50\n"
    assert lost(report(READ, fenced(config, "yaml"))) == []
    assert lost(report(READ, fenced("./load --goodput=3 --p99 ttft:200 --latency=7"))) == []
    log = "INFO 11-15 14:00:00 Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 3.5 tokens/s\n"
    assert lost(log * 5 + BLOCK.format(completed=1000, rate=10), "r.log") == []


# ---- forms that are read ----

BOX = """
┌───────────────────────────────────────────────┐
│ Comparison: baseline vs prefix cache          │
├──────────────────┬──────────┬─────────────────┤
│ Metric           │ Baseline │ Prefix Cache    │
├──────────────────┼──────────┼─────────────────┤
│ TTFT p50 (ms)    │ 45.2     │ 12.3            │
│ TTFT p99 (ms)    │ 89.1     │ 28.4            │
│ Throughput (t/s) │ 1,245    │ 1,312           │
└──────────────────┴──────────┴─────────────────┘
"""
GRID = """
+-------------+--------------+----------------+
| Concurrency | Output tok/s | Mean TTFT (ms) |
+=============+==============+================+
|           1 |        100.5 |           20.1 |
+-------------+--------------+----------------+
|           8 |        700.2 |           31.7 |
+-------------+--------------+----------------+
"""
ALIGNED = """
Concurrency  Throughput   TTFT p95   TPOT p95
     1           95 tok/s    120 ms     11 ms
    32        1,740 tok/s  1,410 ms     23 ms   ← the knee
"""


def test_a_table_in_box_drawing_characters_is_read() -> None:
    baseline, cached = document(report(fenced(BOX))).rows
    assert (baseline.label, baseline.get("p50_ttft_ms"), baseline.get("speed")) == (
        "Baseline",
        45.2,
        1245,
    )
    assert (
        cached.label,
        cached.get("p99_ttft_ms"),
        cached.figures["p99_ttft_ms"].line,
    ) == ("Prefix Cache", 28.4, 10)


def test_a_cell_of_a_box_that_continues_in_the_next_line_is_one_cell() -> None:
    text = """
┏━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━┓
┃              Metric ┃    avg ┃    p99 ┃
┡━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━┩
│       Time to First │  91.18 │ 241.59 │
│          Token (ms) │        │        │
│        Output Token │ 107.60 │    N/A │
│ Throughput Per User │        │        │
│   (tokens/sec/user) │        │        │
│ Request Latency (s) │   2.25 │   4.50 │
└─────────────────────┴────────┴────────┘
"""
    (row,) = document(text, "r.txt").rows
    assert {name: figure.value for name, figure in row.figures.items()} == {
        "mean_ttft_ms": 91.18, "p99_ttft_ms": 241.59, "mean_e2el_ms": 2250.0, "p99_e2el_ms": 4500.0,
    }  # fmt: skip


def test_a_grid_and_aligned_columns_are_read_in_a_listing_and_in_a_plain_log() -> None:
    for file, wrap in (("r.md", fenced), ("r.log", str)):
        rows = document(wrap(GRID), file).rows
        assert [(r.number("concurrency"), r.get("output_throughput"), r.get("mean_ttft_ms")) for r in rows] == [
            (1, 100.5, 20.1), (8, 700.2, 31.7),
        ]  # fmt: skip
        rows = document(wrap(ALIGNED), file).rows
        names = ("speed", "p95_ttft_ms", "p95_tpot_ms")
        reported = [
            (r.number("concurrency"), *(r.get(name) for name in names)) for r in rows
        ]
        assert reported == [(1, 95, 120, 11), (32, 1740, 1410, 23)]


def test_columns_that_do_not_stand_below_their_titles_are_not_read() -> None:
    shifted = """
Load  Conc  Output tok/s  Mean TTFT (ms)
a        1         100.5            20.1
b                  700.2            31.7
c        9                          55.5  late
"""
    rows = document(fenced(shifted)).rows
    assert [(r.number("concurrency"), r.get("output_throughput"), r.get("mean_ttft_ms")) for r in rows] == [
        (1, 100.5, 20.1), (None, 700.2, 31.7),
    ]  # fmt: skip
    titles = "Load, Conc, Output tok/s, Mean TTFT (ms)"
    assert lost(fenced(shifted)) == [(5, "lines", titles)]
    one_space = "Load  Conc  Output tok/s  Mean TTFT (ms)\na  1 100.5  20.1\n"
    assert (document(fenced(one_space)).rows, lost(fenced(one_space))) == (
        [],
        [(3, "block", titles)],
    )


def test_configurations_side_by_side_whose_cells_have_the_unit_are_read() -> None:
    table = "| Context | Vulkan | ROCm |\n|---|---|---|\n| 2K | 50.05 t/s | 46.56 t/s |\n"
    rows = document(report(table)).rows
    assert [(r.series, r.get("speed")) for r in rows] == [
        ("2K, Vulkan", 50.05),
        ("2K, ROCm", 46.56),
    ]
    assert document(report(table.replace("t/s", "GB/s"))).rows == []


def test_tests_of_named_configurations_are_read() -> None:
    titles = "| Model | Vulkan pp512 | HIP pp512 | HIP tg128 | Vulkan tg128 |"
    table = f"{titles}\n|---|---|---|---|---|\n| m | 10.5 | 20 | 30 | 40 |\n"
    rows = document(report(table)).rows
    assert [(r.series, r.setting("test"), r.get("speed")) for r in rows] == [
        ("m, Vulkan", "pp512", 10.5), ("m, HIP", "pp512", 20), ("m, HIP", "tg128", 30), ("m, Vulkan", "tg128", 40),
    ]  # fmt: skip


def test_words_behind_each_number_say_what_a_column_means() -> None:
    body = "| a | 8 | 256.1 output tok/s |\n| b | 64 | 502.9 output tok/s |\n"
    table = f"| run | conc | primary metric |\n|---|---|---|\n{body}"
    rows = document(report(table)).rows
    assert [(r.number("concurrency"), r.get("output_throughput")) for r in rows] == [
        (8, 256.1),
        (64, 502.9),
    ]
    mixed = document(report(table.replace("502.9 output", "502.9 decode")))
    assert mixed.rows == [] and [u.part for u in mixed.unread] == ["table"]


def test_a_total_beside_a_figure_of_each_device_is_not_input_and_output_together() -> None:
    def named(titles: str) -> set[str]:
        cells = "|---" * titles.count("|")
        return set(
            document(report(f"{titles}\n{cells}|\n| 2 | 4427.5 | 2213.7 |\n"))
            .rows[0]
            .figures
        )

    assert named("| TP | tok/s total | tok/s per GPU") == {"speed"}
    assert "total_token_throughput" in named("| TP | Total tok/s | Output tok/s")


def test_the_nearest_words_above_a_table_name_it() -> None:
    table = "| Prompt Tokens | Generation t/s |\n|---|---|\n| 19 | 50.5 |\n"
    rows = document(
        report("**Thing-8B** (Q4_K_M):", table, "**Other-8B** (Q8_0):", table)
    ).rows
    assert [(r.label, r.setting("quantization")) for r in rows] == [
        ("Thing-8B (Q4_K_M):", "Q4_K_M"), ("Other-8B (Q8_0):", "Q8_0"),
    ]  # fmt: skip
