"""`dyno audit` and `dyno import` as a user meets them."""

import io
import json
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.facts.imported import Document, Figure, Row
from dyno.store.imports import load, store

BLOCK = """
============ Serving Benchmark Result ============
Successful requests:                     {completed}
Benchmark duration (s):                  100.00
Total input tokens:                      200000
Total generated tokens:                  100000
Request throughput (req/s):              {rate:.2f}
Output token throughput (tok/s):         1000.00
Total Token throughput (tok/s):          3000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          230.00
Median TTFT (ms):                        200.00
P99 TTFT (ms):                           600.00
==================================================
"""
COMMAND = "vllm bench serve --model org/Thing-8B --num-prompts 1000 --max-concurrency 32 --api-key sk-verysecret1234\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sound.log").write_text(COMMAND + BLOCK.format(completed=1000, rate=10))
    (tmp_path / "failed.log").write_text(COMMAND + BLOCK.format(completed=400, rate=4))
    return tmp_path


def test_a_sound_log_gets_notes_at_most(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "sound.log"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Verdict: sound as far as checked: 1 of 1 block; not checked: single requests,"
    )
    assert "(1 note)\nRead: 1 result in 1 file\n  sound.log: text" in out
    assert "Serving (vllm)" in out and "vllm.ttft: from sending to the first chunk" in out


def test_a_void_one_exits_with_3_and_names_the_lines(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "failed.log", "sound.log"]) == 3
    out = capsys.readouterr().out
    assert "600 of 1,000 requests failed, 60 %" in out and "failed.log:4" in out


def test_json_has_findings_files_results_and_definitions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "failed.log", "--json", "--price", "2"]) == 3
    reported = json.loads(capsys.readouterr().out)
    assert reported["verdict"] == "void" and {"requests.failed"} <= {
        f["code"] for f in reported["findings"]
    }
    (result,) = reported["results"]
    assert (
        result["at"] == "failed.log:3"
        and result["sent"] == 1000
        and result["latencies"]["mean_ttft_ms"] == [230.0, "vllm.ttft"]
    )
    assert result["cost_per_million"] == pytest.approx(2 / 3.6, rel=1e-6)
    assert reported["files"] == [
        {"file": "failed.log", "format": "text", "results": 1, "unread": []}
    ]


def test_a_share_of_accepted_drafts_is_a_share_whoever_prints_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        BLOCK.format(completed=1000, rate=10)
        .replace("====\n\n", "")
        .rstrip()
        .removesuffix("=" * 50)
    )
    (here / "drafts.log").write_text(
        text + "Acceptance rate (%):                     61.50\n" + "=" * 50 + "\n"
    )
    assert main(["import", "drafts.log", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["figures"]["acceptance_rate"]["value"] == pytest.approx(
        0.615
    )


def test_many_alike_are_reported_once_to_a_reader_and_each_to_a_script(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "many.log").write_text(
        "".join(COMMAND + BLOCK.format(completed=990 - i, rate=9.9) for i in range(6))
    )
    main(["audit", "many.log"])
    assert "10 to 15 of 1,000 requests failed" in capsys.readouterr().out
    main(["audit", "many.log", "--json"])
    reported = json.loads(capsys.readouterr().out)["findings"]
    assert sum(f["code"] == "requests.failed" for f in reported) == 6


def test_markdown_can_be_put_into_a_review(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "failed.log", "--markdown"]) == 3
    out = capsys.readouterr().out
    assert (
        out.startswith(
            "## Verdict: void; checked: 1 of 1 block; not checked: single requests, "
        )
        and "(1 void, 2 notes)\n" in out.partition("\nRead")[0]
        and "- **void** `requests.failed`: 600 of 1,000" in out
        and "| line | name |" in out
    )


def test_what_holds_no_result_is_reported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "words.txt").write_text("nothing to see\n")
    (here / "noise.bin").write_bytes(bytes(range(256)) * 8)
    assert main(["audit", "words.txt", "noise.bin"]) == 1
    reported = capsys.readouterr()
    assert (
        "words.txt:1: no results found" in reported.out
        and "noise.bin:1: not a text file" in reported.out
    )
    assert "No results found." in reported.err
    assert reported.out.startswith("No results found in 2 files\n")
    assert main(["audit", "words.txt", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] is None


def test_a_missing_file_is_named_and_the_others_are_read(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "sound.log", "gone.log"]) == 1
    reported = capsys.readouterr()
    assert "gone.log" in reported.err and "1 result in 1 file" in reported.out
    assert main(["audit", "gone.log"]) == 2


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--json", "--markdown"], "exclude each other"),
        (["--price", "-3"], "is not a price"),
    ],
)
def test_a_mistake_gets_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], reported: str
) -> None:  # fmt: skip
    assert main(["audit", "sound.log", *words]) == 2
    assert reported in capsys.readouterr().err


def test_an_import_is_kept_beside_the_runs_listed_and_queried(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "sound.log"]) == 0
    assert (
        "sound.log: text, 1 result from vllm, 1 of 1 block read → runs/imports/sound.log.json"
        in capsys.readouterr().out
    )
    assert main(["runs"]) == 0
    assert ["runs/imports/sound.log.json", "sound.log", "1", "text"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert (
        main(
            [
                "sql",
                "select tool, line, value, definition from imported where name = 'mean_ttft_ms'",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == [
        {"tool": "vllm", "line": 12, "value": 230.0, "definition": "vllm.ttft"}
    ]  # fmt: skip
    assert main(["audit", "runs/imports/sound.log.json"]) == 0
    assert "1 result in 1 file" in capsys.readouterr().out
    for name in ("sound.log", "sound.log.json"):
        assert main(["runs", "show", name]) == 0
        assert "Serving (vllm)" in capsys.readouterr().out
    assert main(["runs", "delete", "sound.log.json", "--yes"]) == 0
    assert "Deleted 1." in capsys.readouterr().out
    assert (
        not (here / "runs" / "imports" / "sound.log.json").exists()
        and (here / "sound.log").exists()
    )
    assert (
        main(["runs", "delete", "sound.log", "--yes"]) != 0
        and (here / "sound.log").exists()
    )


def test_a_folder_is_its_files_and_a_pipe_is_read(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert main(["audit", "."]) == 3
    assert "2 results in 2 files" in capsys.readouterr().out
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO((here / "sound.log").read_bytes()))
    )
    assert main(["audit", "-"]) == 0
    assert "stdin: text, 1 result" in capsys.readouterr().out


def test_what_a_file_of_dynos_own_says_about_itself_counts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = {
        "code": "client.late_loop",
        "level": "void",
        "text": "It was late.",
        "advice": "Measure again.",
    }
    reported = {"date": "20261115-120000", "backend": "openai", "model_id": "m", "num_prompts": 700,
            "request_rate": "inf",
            "duration": 70.0, "completed": 700, "failed": 0, "total_input_tokens": 700, "total_output_tokens": 700,
            "request_throughput": 10.0, "output_throughput": 10.0, "mean_ttft_ms": 5.0,
            "dyno": {"version": "0.1.0", "verdict": "void", "findings": [finding]}}  # fmt: skip
    (here / "own.json").write_text(json.dumps(reported))
    assert main(["audit", "own.json"]) == 3
    assert "void  client.late_loop: It was late." in capsys.readouterr().out


def test_a_secret_of_a_command_line_reaches_no_file_and_no_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "sound.log"]) == 0
    assert main(["audit", "sound.log", "--json"]) == 0
    kept = (here / "runs" / "imports" / "sound.log.json").read_text()
    assert "org/Thing-8B" in kept
    assert "verysecret" not in kept + capsys.readouterr().out


def test_without_text_the_authors_words_stay_where_they_are(here: Path) -> None:
    (here / "report.md").write_text(
        f"# Mine\n\nI think that it is quick.\n\n```\n{BLOCK.format(completed=1000, rate=10)}```\n"
    )
    assert main(["import", "report.md", "--no-text", "-o", "kept"]) == 0
    kept = (here / "kept" / "report.md.json").read_text()
    assert "think" not in kept and '"mean_ttft_ms"' in kept


# ---- dyno import --set ----

BARE = """Successful requests,Benchmark duration (s),Output token throughput (tok/s)
10,5.0,20.0
20,6.0,30.0
30,7.0,40.0
"""


def set_(here: Path, *words: str) -> int:
    (here / "bare.csv").write_text(BARE)
    return main(["import", "bare.csv", "-o", "kept", *(f"--set={word}" for word in words)])


def test_what_a_file_does_not_report_is_given_and_kept_with_who_reported_it(
    here: Path,
) -> None:
    reported = ["engine=TGI", "--tensor-parallel-size=8", "accelerators=8", "accelerator=MI300X", "--swap-space=16",
            "series=TGI on eight", "rate=inf", "no-enable-prefix-caching=true"]  # fmt: skip
    assert set_(here, *reported, "3:input_len=80", "3-4:num_prompts=30") == 0
    rows = load(here / "kept/bare.csv.json").rows
    assert {name: s.value for name, s in rows[1].settings.items()} == {
        "engine": "tgi", "tensor_parallel": 8, "accelerators": 8, "accelerator": "MI300X", "--swap-space": 16,
        "rate": "inf", "prefix_caching": False, "input_len": 80, "num_prompts": 30,
    }  # fmt: skip
    assert {(s.by, s.line) for s in rows[1].settings.values()} == {("user", 0)}
    assert ["num_prompts" in r.settings for r in rows] == [False, True, True]
    assert {r.series for r in rows} == {"TGI on eight"}
    assert [r.get("completed") for r in rows] == [10, 20, 30], "figures are the file's"


def test_given_settings_are_audited_and_compared_like_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_(here, "accelerators=8", "4:num_prompts=60") == 0
    capsys.readouterr()
    assert main(["audit", "kept/bare.csv.json", "--price", "2"]) == 3
    out = capsys.readouterr().out
    assert "30 of 60 requests failed, 50 % (60 was given with" in out
    assert "222.22" in out, "16 an hour at 20 tokens/s"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["engine"], "write NAME=VALUE, such as engine=vllm"),
        (["enginee=x"], "unknown setting. Did you mean engine?"),
        (["engine="], "has no value"),
        (["accelerators=eight"], "accelerators must be a number, 0 or more"),
        (["accelerators=-1"], "accelerators must be a number, 0 or more"),
        (["9:rate=3"], "no result on these lines. The first results are at bare.csv:2, bare.csv:3"),
        (["4-2:rate=3"], "write FIRST-LAST"),
        (["engine=vllm", "3:engine=tgi"], "--set engine=vllm and --set 3:engine=tgi both apply to bare.csv:3"),
        (["api_key=abc"], "looks like a secret"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_given_gets_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], reported: str
) -> None:
    assert set_(here, *words) == 2
    assert reported in capsys.readouterr().err and not (here / "kept").exists()


def test_what_a_file_reports_is_not_overridden(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "sound.log", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    model = document["rows"][0]["settings"]["model"]["value"]
    assert main(["import", "sound.log", "-o", "kept", "--set", "model=another"]) == 2
    reported = capsys.readouterr().err
    assert f"--set model=another: sound.log:3 already has model = {model}" in reported
    assert (
        main(["import", "sound.log", "-o", "kept", "--set", f"model={model.upper()}"]) == 0
    )
    (row,) = load(here / "kept/sound.log.json").rows
    assert row.settings["model"].value == model and row.settings["model"].by != "user"


@pytest.mark.parametrize(
    "command", [["audit"], ["audit", "--json"], ["report", "-o", "x.md"]]
)
def test_a_definition_that_this_version_does_not_know_is_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = {
        n: Figure(1.5, 1, definition="later.ttft")
        for n in ("mean_ttft_ms", "output_throughput")
    }
    row = Row("serve", "vllm", "json", "f", 1, 1, figures)
    path = store(Document("f", "json", rows=[row]), tmp_path / "kept")
    assert main([command[0], str(path), *command[1:]]) in (0, 3)
