"""A latency is declared in two files: what it is called (facts/metric.py) and how a request shows it
(measure/timing.py). Every surface then has it. Here one is added to a copy of the source, as a contributor would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dyno
from conftest import StartFake

SOURCE = Path(dyno.__file__).parent
DECLARED = """
    "ttst": Stem("TTST", "Time to the second token.", served=True, samples=True, goodput=True, target=True,
                 titles=("ttst", "time to second token"), heading="Time to Second Token", key="ttst", asked=True,
                 compared="both"),
"""
CALCULATED = '''
def ttst_ns(r: Record) -> Span | None:
    """Return the time to the second chunk. None: there is one."""
    return Span(r.chunk_ns[1], r.chunk_ns[1]) - r.sent_ns if len(r.chunk_ns) > 1 else None


# Latencies of a completed request'''
EDITS = {
    "facts/metric.py": [
        ("LATENCIES = {\n", "LATENCIES = {" + DECLARED),
        (
            '    "dyno.ttft": ',
            '    "dyno.ttst": "from sending to the second chunk",\n    "dyno.ttft": ',
        ),
    ],
    "measure/timing.py": [
        ("\n# Latencies of a completed request", CALCULATED),
        ('    "ttft": ttft_ns,', '    "ttft": ttft_ns, "ttst": ttst_ns,'),
    ],
}
SHAPE = [
    "--random-input-len",
    "16",
    "--random-output-len",
    "4",
    "--num-prompts",
    "12",
    "--max-concurrency",
    "2",
]
MODEL = SOURCE / "engines" / "dyno-5m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with another latency."""
    folder = tmp_path_factory.mktemp("added")
    left = shutil.ignore_patterns("__pycache__", MODEL.name)
    shutil.copytree(SOURCE, folder / "dyno", ignore=left)
    (folder / "dyno" / "engines" / MODEL.name).symlink_to(MODEL)
    for name, edits in EDITS.items():
        path = folder / "dyno" / name
        text = path.read_text()
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    return folder


def run(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dyno", *args],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(folder: Path, shared_fake: StartFake) -> str:
    url = [
        "--base-url",
        shared_fake().base_url,
        "--disable-tqdm",
        "--save-result",
        "--result-filename",
        "result.json",
    ]
    return run(
        folder, "bench", "serve", *url, *SHAPE, "--goodput", "ttst:10000", "--percentile-metrics", "ttft,ttst",
        "--result-dir", str(folder), "--seed", "3",
    )  # fmt: skip


def test_two_files_add_a_latency() -> None:
    assert len(EDITS) == 2


def test_the_block_the_result_file_and_goodput_have_it(folder: Path, printed: str) -> None:
    assert "Time to Second Token" in printed and "P99 TTST (ms):" in printed
    result = json.loads((folder / "result.json").read_text())
    assert (
        result["mean_ttst_ms"] > result["mean_ttft_ms"]
        and result["p99_ttst_ms"] >= result["median_ttst_ms"]
    )
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])


def test_sql_a_report_and_a_comparison_have_it(folder: Path, printed: str) -> None:
    (mean,) = json.loads(run(folder, "sql", "select mean_ttst_ms from trials", "--json"))
    file = json.loads((folder / "result.json").read_text())
    assert mean["mean_ttst_ms"] == pytest.approx(file["mean_ttst_ms"])
    run(folder, "report", "result.json", "-o", "report.csv", "-o", "report.md")
    assert (
        "mean_ttst_ms" in (folder / "report.csv").read_text()
        and "TTST" in (folder / "report.md").read_text()
    )
    shutil.copy(folder / "result.json", folder / "again.json")
    assert "TTST" in run(folder, "compare", "result.json", "again.json")


@pytest.mark.engines  # slow
def test_a_search_has_it_as_a_target(folder: Path, shared_fake: StartFake) -> None:
    words = [
        "--target",
        "ttst_p50:60s",
        "--from",
        "1",
        "--to",
        "1",
        "--budget",
        "90",  # beside busy programs its first probe may take 25 s
        "--json",
    ]
    answer = json.loads(
        run(folder, "find", "--base-url", shared_fake().base_url, *SHAPE[:4], *words)
    )
    assert (
        answer["ended"] == "every load meets"
        and answer["probes"][0]["figures"][0]["value"] > 0
    )
