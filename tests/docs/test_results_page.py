"""docs/results.md: its programs read any folder of runs, also what an interrupted dyno has left."""

import shutil
from pathlib import Path

import pytest

from listings import listings
from reference import ROOT


def test_the_program_passes_over_a_run_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "tests/fixtures/runs", tmp_path / "runs")
    (
        tmp_path / "runs" / "20261119-020805-serve-fake-c2-c52b"
    ).mkdir()  # stopped before the load
    page = listings(ROOT / "docs/results.md")
    [program] = [
        n.text for n in page if n.language == "python" and "records.jsonl" in n.text
    ]
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "results.md", "exec"), {})
    out = capsys.readouterr().out
    assert "completed, slowest TTFT" in out and "c52b" not in out
