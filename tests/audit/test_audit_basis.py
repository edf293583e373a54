"""What a verdict of `dyno audit` rests on: how much was read, and which checks lacked their inputs."""

import json
from pathlib import Path

import msgspec
import pytest

from dyno import checks
from dyno.audit.audit import REPORT_CHECKS, audit
from dyno.audit.document import read_bytes, read_text
from dyno.checks import CHECKS
from dyno.checks.inputs import (
    ACCELERATOR,
    DURATION,
    FAILURES,
    LENGTHS,
    LOAD,
    MODEL,
    REQUESTS,
    SINGLE,
    SLOTS,
    TOKENS,
    Input,
)
from dyno.cli.main import main
from dyno.facts.finding import Basis
from dyno.facts.imported import Document, Row
from dyno.probe.peaks import of_name
from findings import ALL
from test_coverage import READ, UNKNOWN, fenced, report
from test_false_alarms import block, serve_json

# evidence from other tools
RESULTS = {"row", "any_row", "rows", "roofline", "duplicates", "documents"}
RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
FULL = serve_json(
    model_id="org/Llama-3.1-8B-Instruct", failed=0, max_num_seqs=64, gpu_name="H100", tp=1, dataset_name="random",
    random_input_len=300, random_output_len=100, ttfts=[0.08] * 100, input_lens=[300] * 100, output_lens=[100] * 100,
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lacking(*documents: Document) -> list[str]:
    return [one.words for one in audit(documents, of_name).unchecked]


def of_json(**fields: object) -> Document:
    kept = {name: value for name, value in (FULL | fields).items() if value is not None}
    return read_bytes("r.json", json.dumps(kept).encode())


# ---- the words ----


@pytest.mark.parametrize(
    ("basis", "sound", "void"),
    [
        (Basis("2 of 2 tables"), "sound", "void"),
        (
            Basis("1 of 2 tables", complete=False),
            "sound as far as checked: 1 of 2 tables",
            "void; checked: 1 of 2 tables",
        ),
        (
            Basis("2 of 2 tables", unchecked=["failures", "versions"]),
            "sound as far as checked: 2 of 2 tables; not checked: failures, versions",
            "void; checked: 2 of 2 tables; not checked: failures, versions",
        ),
        (
            Basis(unchecked=["failures"]),
            "sound as far as checked; not checked: failures",
            "void; not checked: failures",
        ),
    ],
)
def test_a_verdict_says_what_was_checked_and_what_was_not(
    basis: Basis, sound: str, void: str
) -> None:
    assert (basis.describe("sound"), basis.describe("void")) == (sound, void)


# ---- the inputs ----


def test_every_check_of_others_results_states_its_inputs() -> None:
    for check in ALL:
        assert (check.needs is not None) == bool(RESULTS & check.judges.keys()), list(
            check.about
        )


def test_a_result_with_every_input_is_sound_without_a_limit() -> None:
    document = of_json()
    found = audit([document], of_name)
    assert found.unchecked == [] and found.verdict == "sound", found.each
    assert found.basis.describe(found.verdict) == "sound"


@pytest.mark.parametrize(
    ("missing", "fields"),
    [
        (REQUESTS, ("completed",)),
        (FAILURES, ("failed", "num_prompts")),
        (TOKENS, ("total_output_tokens", "total_input_tokens")),
        (DURATION, ("duration",)),
        (LOAD, ("max_concurrency", "request_rate")),
        (SLOTS, ("max_num_seqs",)),
        (LENGTHS, ("random_input_len", "random_output_len")),
        (SINGLE, ("ttfts", "input_lens", "output_lens")),
        (MODEL, ("model_id",)),
        (ACCELERATOR, ("gpu_name",)),
    ],
    ids=lambda value: value.words if isinstance(value, Input) else "",
)
def test_an_input_that_a_result_lacks_is_named(
    missing: Input, fields: tuple[str, ...]
) -> None:
    assert missing.words in lacking(of_json(**dict.fromkeys(fields)))


def test_an_accelerator_whose_peaks_are_unknown_is_named() -> None:
    assert lacking(of_json(gpu_name="Abacus 9000")) == ["peaks of the accelerators"]


def test_a_model_whose_active_parameters_are_unknown_is_named() -> None:
    """The roofline goes by the model's name, for families known to read all weights for each token."""
    assert lacking(of_json(model_id="org/Thing-8B-Instruct")) == ["active parameters"]
    assert lacking(of_json(model_id="org/Mixtral-8x7B-Instruct")) == ["active parameters"]


def test_an_input_that_some_results_lack_is_counted() -> None:
    without = dict.fromkeys(("failed", "num_prompts"))
    rows = (
        of_json(**without),
        read_bytes("other.json", json.dumps(FULL | {"mean_ttft_ms": 81.5}).encode()),
    )
    (one,) = [one for one in audit(rows, of_name).unchecked if one.words == "failures"]
    assert one.describe() == "failures in 1 of 2 results"


def test_versions_are_needed_where_several_things_are_compared() -> None:
    table = "| Engine | Output tok/s |\n|---|---|\n| vllm | 500.5 |\n{}"
    alone, both = table.format(""), table.format("| sglang | 600.5 |\n")
    assert "versions" not in lacking(read_text("r.md", report(alone).encode()))
    assert "versions" in lacking(read_text("r.md", report(both).encode()))
    dump = "vLLM Version: 0.6.3"
    assert "versions" not in lacking(read_text("r.md", report(both, fenced(dump)).encode()))


def stripped(row: Row, one: Input) -> Row:
    return msgspec.structs.replace(
        row,
        figures={name: f for name, f in row.figures.items() if name not in one.figures},
        settings={name: s for name, s in row.settings.items() if name not in one.settings},
        samples=None if one.samples else row.samples,
    )


def found_codes(row: Row) -> set[str]:
    return {f.code for f in checks.run(row=row, any_row=row)}


@pytest.mark.parametrize(
    ("code", "fields", "one"),
    [
        ("requests.failed", {"completed": 80, "failed": None}, FAILURES),
        ("requests.failed", {"completed": 80, "failed": None}, REQUESTS),
        ("requests.empty", {"output_lens": [100] * 60 + [0] * 40}, SINGLE),
        ("consistency.sums", {"output_throughput": 300.0}, DURATION),
        ("consistency.sums", {"output_throughput": 300.0}, TOKENS),
        ("tokens.output_short", {"total_output_tokens": 5_000, "output_throughput": 100.0}, LENGTHS),
        ("tokens.output_short", {"total_output_tokens": 5_000, "output_throughput": 100.0}, TOKENS),
        ("load.slots", {"max_num_seqs": 4}, SLOTS),
        ("load.slots", {"max_num_seqs": 4}, LOAD),
    ],
)  # fmt: skip
def test_without_its_input_a_check_cannot_find_what_it_finds_with_it(
    code: str, fields: dict[str, object], one: Input
) -> None:
    """The inputs that checks state are those that they use."""
    (row,) = of_json(**fields).rows
    assert code in found_codes(row)
    assert code not in found_codes(stripped(row, one))
    (check,) = [
        check
        for check in (*CHECKS, *REPORT_CHECKS)
        if code in check.about and "row" in {*check.judges, "row"}
    ]
    assert one in [i for need in check.needs or () for i in need.inputs]


# ---- wherever the verdict stands ----


def test_json_and_pages_have_the_verdict_with_its_limits(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, UNKNOWN))
    assert main(["audit", "r.md", "--json"]) == 5
    reported = json.loads(capsys.readouterr().out)
    assert reported["verdict"] == "sound as far as checked"
    assert reported["verdict_line"].startswith(
        "sound as far as checked: 1 of 2 tables, 3 of 3 columns; not checked: "
    )
    assert reported["read"]["columns"] == {"read": 3, "all": 3}
    assert {"what": "failures", "results": 2, "of": 2} in reported["not_checked"]
    assert main(["report", "r.md", "-o", "page.md"]) == 0
    assert f"**{reported['verdict_line']}** ·" in (here / "page.md").read_text()
    assert main(["report", "r.md", "-o", "page.html"]) == 0
    page = (here / "page.html").read_text()
    assert (
        ">sound as far as checked</span>" in page
        and "Checked: 1 of 2 tables, 3 of 3 columns; not checked: " in page
    )


def test_a_run_of_dynos_own_was_examined_with_all_its_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = next(p for p in sorted(RUNS.iterdir()) if "-serve-fake-c" in p.name)
    assert main(["audit", str(run)]) in (0, 3)
    out = capsys.readouterr().out
    assert "checked" not in out.partition("\n")[0]


# ---- all reasons to leave a number out ----

AIPERF = """Metric,avg,min,max,p99
Request Latency (ms),268.26,242.25,414.72,403.31
Time to First Token (ms),91.18,51.71,254.69,241.59
{}

Metric,Value
Request Throughput (requests/sec),5.89
"""


def test_an_aiperf_csv_with_an_unread_row_exits_with_5(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.csv").write_text(
        AIPERF.format("HTTP Waiting (ms),73.11,51.31,110.56,110.54")
    )
    assert main(["audit", "r.csv"]) == 5
    out = capsys.readouterr().out
    assert (
        "Columns or metrics not read:\n  r.csv:1: HTTP Waiting (ms): meaning unknown" in out
    )
    (here / "r.csv").write_text(
        AIPERF.format("Inter Token Latency (ms),9.32,8.42,10.11,10.10")
    )
    assert main(["audit", "r.csv"]) == 0
    assert "ot read:" not in capsys.readouterr().out


def test_a_second_table_in_a_csv_file_without_numbers_is_a_remark(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = "concurrency,output_throughput\n1,100.5\n2,200.5\n"
    (here / "r.csv").write_text(f"{csv}GPU,name,state\n")
    assert main(["audit", "r.csv"]) == 0
    out = capsys.readouterr().out
    assert "Remarks:\n  r.csv:4: 3 cells, but 2 titles" in out and "ot read:" not in out
    (here / "r.csv").write_text(f"{csv}GPU,name,71.5\n")
    assert main(["audit", "r.csv"]) == 5
    assert "Not read:\n  r.csv:4: 3 cells, but 2 titles" in capsys.readouterr().out


@pytest.mark.parametrize(
    "part",
    [
        fenced("llama  31.7  12.5\nqwen   28.1  11.9"),
        fenced('{"mean_ttft_ms": 31.7, "p99_ttft_ms": 88.2}', "json"),
        fenced("decode: 31 tok/s"),
        fenced("$ ./run.sh\nthroughput 512.5 tok/s", "bash"),
        "| Concurrency | Output tok/s | GPU util % |\n|---|---|---|\n| 1 | 100.5 | 87.5 |\n",
        "| Concurrency | Output tok/s |\n|---|---|\n| 1 | 100.5 |\n| 2 | 95.5 → 101.2 |\n",
        fenced(block(200).replace("Mean TPOT (ms):  ", "Mean Feel (ms):  ").replace(
            "Mean TTFT (ms):", "Queue depth:                             3.25\nMean TTFT (ms):")),
    ],
    ids=["listing", "json", "named", "console", "share", "cell", "block"],
)  # fmt: skip
def test_numbers_that_were_not_read_are_listed_and_exit_with_5(
    part: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "r.md").write_text(report(READ, part))
    assert main(["audit", "r.md"]) == 5
    out = capsys.readouterr().out
    assert "ot read:\n  r.md:" in out
    assert out.startswith("Verdict: sound as far as checked: ")


@pytest.mark.parametrize(
    "part",
    [
        fenced("gpu_memory_utilization: 0.95\ntemperature: 0.7", "yaml"),
        fenced("pip install torch==2.4 vllm==0.6\n./serve --rate 0.5 --ratio 1.5", "bash"),
        fenced(">>> 8 * 2.99\n23.92"),
        fenced('{"temperature": 0.7, "top_p": 0.95}', "json"),
        fenced("latency = 3.5\nprint(latency / 1.5)", "python"),
        "| Concurrency | Output tok/s | Speedup |\n|---|---|---|\n| 1 | 100.5 | 1.00x |\n| 2 | 201.0 | 2.00x |\n",
    ],
    ids=["config", "command", "calculation", "request", "program", "speedup"],
)
def test_numbers_that_were_set_or_calculated_are_not_unread(part: str, here: Path) -> None:
    (here / "r.md").write_text(report(READ, part))
    assert main(["audit", "r.md"]) == 0


def test_a_block_with_parts_of_a_forks_own_is_not_read_in_silence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = block(200).split("Total input tokens")
    parts = (
        "\n----- Load Distribution -----\n" + "instance http://here has 100 requests\n" * 9
    )
    (here / "r.log").write_text(f"{first}{parts}Total input tokens{second}")
    assert main(["audit", "r.log"]) == 5
    assert "Not read:\n  r.log:3: the block ends early" in capsys.readouterr().out


def test_whole_numbers_with_a_unit_in_a_text_without_results_are_unread(here: Path) -> None:
    (here / "r.md").write_text("# Speed\n\nIt reaches 1,250 tok/s.\n")
    assert main(["audit", "r.md"]) == 5


def test_whole_numbers_of_unknown_columns_are_not_called_checked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be settings, and tell results apart; or figures, which no check has seen."""
    titles = "engine,concurrency,TP,ok,secs,gen toks,output tok/s,TTFT avg ms"
    (here / "t.csv").write_text(
        f"{titles}\na,4,1,100,20,10000,500,100\nb,4,1,100,20,10000,900,100\n"
    )
    assert main(["audit", "t.csv", "--json"]) == 5
    reported = json.loads(capsys.readouterr().out)
    assert reported["read"]["columns"] == {"read": 4, "all": 7}
    assert main(["audit", "t.csv"]) == 5
    assert "ok, secs, gen toks: meaning unknown" in capsys.readouterr().out
