"""A search is one line of `dyno runs`, and `dyno sql` marks its runs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.facts.tune import TuneAnswer, TuneGain, TuneSpec, TuneTrial

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

SHORT = [
    "--random-input-len",
    "8",
    "--random-output-len",
    "2",
    "--disable-tqdm",
    "--no-correctness-check",
]
TUNE = """
name = "quick"
[engines.fake]
kind = "fake"
[workloads.short]
input_len = 8
output_len = 2
num_prompts = 20
[loads.two]
max_concurrency = 2
[tune]
seconds = 0.2
confirm_repeats = 0
settings."gap_ms=" = [1]
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def asked(
    capsys: pytest.CaptureFixture[str], query: str, runs: Path
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        printed(capsys, "sql", query, "--runs", str(runs), "--json")
    )
    return rows


@pytest.mark.engines
def test_a_search_is_one_line_and_its_probes_are_marked(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, runs = fake(first_ms=5.0).base_url, tmp_path / "runs"
    here = ["--base-url", url, "--runs", str(runs), *SHORT]
    assert main(["bench", "serve", *here, "--num-prompts", "4"]) == 0
    assert (
        main(
            [
                "find",
                *here,
                "--target",
                "ttft_p50:2s",
                "--to",
                "4",
                "--budget",
                "30",
                "--label",
                "mine",
            ]
        )
        == 0
    )
    capsys.readouterr()
    [found] = runs.glob("*/find.json")
    search, probes = (
        found.parent,
        sorted(p.parent for p in found.parent.glob("*/trial.json")),
    )
    assert probes

    lines = printed(capsys, "runs", "--runs", str(runs)).splitlines()
    [line] = [text for text in lines if search.name in text]
    assert (
        "dyno find" in line
        and "median TTFT ≤ 2,000 ms: " in line
        and "concurrency 4" in line
    )
    [alone] = (path.parent.name for path in runs.glob("*/trial.json"))
    assert sum(alone in text for text in lines) == 1 and not any(
        p.name in text for p in probes for text in lines
    )

    listed = json.loads(printed(capsys, "runs", "--runs", str(runs), "--json"))
    [one] = listed["searches"]
    assert (one["kind"], one["state"], one["runs"]) == (
        "find",
        "done",
        len(probes),
    ) and "trials" not in one
    assert len(listed["runs"]) == 1 and not listed["studies"]

    for words in (["list", str(search)], ["--all"]):
        opened = printed(capsys, "runs", *words, "--runs", str(runs))
        assert all(p.name in opened for p in probes)

    marked = asked(
        capsys, "select run, search from trials order by search nulls first, run", runs
    )
    assert [row["search"] for row in marked] == [None, *[str(search)] * len(probes)]
    assert [row["run"] for row in marked[1:]] == [str(p) for p in probes]


@pytest.mark.engines  # slow
def test_a_search_is_shown_tagged_packed_and_deleted_as_a_whole(
    fake: StartFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = fake(first_ms=50.0).base_url
    assert (
        main(
            [
                "find",
                "--base-url",
                url,
                *SHORT,
                "--target",
                "ttft_p50:2s",
                "--to",
                "1",
                "--label",
                "mine",
            ]
        )
        == 0
    )
    [found] = Path("runs").glob("*/find.json")
    name = found.parent.name
    assert "Highest load with median TTFT ≤ 2,000 ms:" in capsys.readouterr().out
    assert "Highest load with median TTFT ≤ 2,000 ms:" in printed(
        capsys, "runs", "show", name
    )
    assert (
        json.loads(printed(capsys, "runs", "show", name, "--json"))["spec"]["over"]
        == "concurrency"
    )
    assert main(["runs", "tag", name, "--add", "kept"]) == 0
    assert name in printed(capsys, "runs", "--tag", "kept") and name not in printed(
        capsys, "runs", "--tag", "other"
    )
    assert main(["runs", "pack", name, "-o", "mine.tar.zst"]) == 0
    assert main(["runs", "delete", name, "--yes"]) == 0
    assert (
        f"{name}, a search with " in capsys.readouterr().err and not found.parent.exists()
    )
    assert main(["runs", "unpack", "mine.tar.zst"]) == 0
    assert found.exists() and "dyno find" in printed(capsys, "runs")


def test_a_search_that_was_cut_off_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = (
        tmp_path / "runs" / "20260101-000000-find-mine-abcd" / "20260101-000000-01-c1-abcd"
    )
    probe.mkdir(parents=True)
    (probe / "trial.json").write_text(
        '{"dyno": "0", "started": "2026-01-01T00:00:00+00:00"}'
    )
    (probe.parent / "probes.json").write_text("[]")
    text = printed(capsys, "runs", "--runs", str(tmp_path / "runs"))
    assert "cut off: no answer" in text and probe.name not in text
    assert main(["runs", "show", str(probe.parent)]) != 0
    assert "has no answer yet" in capsys.readouterr().err


def test_a_foreign_folder_with_a_find_json_is_not_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    (tmp_path / "runs" / "other" / "find.json").write_text("{}")
    assert "No runs in" in printed(capsys, "runs", "--runs", str(tmp_path / "runs"))
    assert main(["runs", "delete", str(tmp_path / "runs" / "other"), "--yes"]) != 0
    assert (tmp_path / "runs" / "other").exists()


def test_a_search_for_settings_is_one_line_among_searches_and_no_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, best = tmp_path / "quick-tune", TuneTrial({"gap_ms=": 1}, "measured", value=9.0)
    (folder / "trials" / "fake-1").mkdir(parents=True)
    (folder / "trials" / "fake-1" / "trial.json").write_text(
        '{"dyno": "0", "started": "2026-01-01T00:00:00+00:00"}'
    )
    (folder / "study.json").write_text('{"name": "quick", "trials": []}')
    (folder / "search.json").write_text("[]")
    assert "cut off: the same command resumes it" in printed(
        capsys, "runs", "--runs", str(tmp_path)
    )
    gain = TuneGain(6.0, 9.0, 3, 0.5, 0.4, 0.6)
    answer = TuneAnswer(
        "quick", "fake", TuneSpec({}), "trials", best, [best], best, 3.0, gain
    )
    (folder / "tune.json").write_bytes(msgspec.json.encode(answer))
    [_, line] = printed(capsys, "runs", "--runs", str(tmp_path)).splitlines()
    assert (
        "dyno tune" in line
        and "output tokens/s: gap_ms=1, +50 % against the default" in line
    )
    listed = json.loads(printed(capsys, "runs", "--runs", str(tmp_path), "--json"))
    assert not listed["studies"] and listed["searches"][0]["answer"].startswith(
        "output tokens/s: gap_ms=1"
    )
    assert "fake-1" in printed(capsys, "runs", "list", str(folder))
    assert asked(capsys, "select search from trials", tmp_path) == [{"search": str(folder)}]


@pytest.mark.engines  # slow
def test_a_search_for_settings_is_one_line_and_its_trials_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = tmp_path / "study.toml", tmp_path / "runs"
    path.write_text(TUNE)
    assert main(["tune", str(path), "--runs", str(runs), "--plain"]) == 0
    capsys.readouterr()
    folder = runs / "quick-tune"
    lines = printed(capsys, "runs", "--runs", str(runs)).splitlines()
    [line] = [text for text in lines if "quick-tune" in text]
    assert "dyno tune" in line and "output tokens/s: " in line
    trials = list(folder.glob("trials/*/trial.json"))
    marked = asked(
        capsys, "select distinct search, count(*) as runs from trials group by all", runs
    )
    assert marked == [{"search": str(folder), "runs": len(trials)}]
    assert "Best setting of fake by output tokens/s" in printed(
        capsys, "runs", "show", str(folder)
    )
