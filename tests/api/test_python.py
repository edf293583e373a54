"""dyno in Python: what the functions return, raise and leave behind."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dyno
from conftest import ExpectDecided, StartFake
from reference import ROOT

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RUNS = ROOT / "tests/fixtures/runs"
QUICK: dict[str, Any] = {
    "max_concurrency": 2,
    "num_prompts": 8,
    "input_len": 8,
    "output_len": 4,
    "correctness_check": False,
}


@pytest.fixture
def run(
    fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dyno.MeasuredRun:
    monkeypatch.chdir(tmp_path)
    server = fake()
    for _ in range(6):  # until a busy client has missed the time of no chunk
        measured = dyno.serve(base_url=server.base_url, label="a", **QUICK)
        if "mean_ttft_ms" in measured.figures:
            break
    return measured


def test_a_run_has_figures_findings_and_records(run: dyno.MeasuredRun) -> None:
    assert run.path.parent == Path("runs") and run.label == "a"
    assert run.summary.completed == run["completed"] == 8
    assert run.verdict in ("sound", "doubtful", "void")
    assert {f.code for f in run.findings} and all(f.advice for f in run.findings)
    assert run.settings["concurrency"] == 2
    assert "Serving Benchmark Result" in run.text
    ttft = run.records["ttft_ms"]
    assert ttft.dtype == np.float64 and len(ttft) == len(run.records) == 8
    assert abs(float(ttft.mean()) - run["mean_ttft_ms"]) < 1e-6
    with pytest.raises(dyno.UsageError, match="has no figure 'p99_tftt_ms'"):
        run["p99_tftt_ms"]


def test_other_libraries_read_the_columns(run: dyno.MeasuredRun) -> None:
    records = run.records
    import pandas  # half a second of each worker's start

    frame = pandas.DataFrame(dict(records))
    assert list(frame.columns) == records.columns and len(frame) == 8
    assert isinstance(records.__arrow_c_stream__(), object)
    assert duckdb.sql("select count(*) from records").fetchall() == [(8,)]
    assert next(records.rows())["index"] == 0
    missing = dyno.sql("select NULL::DOUBLE as x, NULL::BIGINT as n, NULL as t, 1 as one")
    assert np.isnan(missing["x"][0]) and np.isnan(missing["n"][0])
    assert missing["t"][0] is None and missing["one"][0] == 1


def test_nothing_is_printed_and_progress_is_called(
    fake: StartFake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[dyno.ProgressReport] = []
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    dyno.serve(base_url=fake().base_url, runs=tmp_path, progress=seen.append, **QUICK)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert "Measuring" in [report.phase for report in seen]
    assert {s: signal.getsignal(s) for s in before} == before


def test_an_error_in_the_progress_function_costs_the_progress_alone(
    fake: StartFake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: dyno.ProgressReport) -> None:
        raise ValueError("mine")

    run = dyno.serve(base_url=fake().base_url, runs=tmp_path, progress=fails, **QUICK)
    assert run.summary.completed == 8
    [logged] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "is not called again" in logged.getMessage()


def test_it_runs_where_an_event_loop_runs(fake: StartFake, tmp_path: Path) -> None:
    """As in a notebook: its kernel's loop is running in the same thread."""
    url = fake().base_url

    async def cell() -> dyno.MeasuredRun:
        return dyno.serve(base_url=url, runs=tmp_path, **QUICK)

    assert asyncio.run(cell()).summary.completed == 8


def test_it_runs_in_another_thread(fake: StartFake, tmp_path: Path) -> None:
    url, runs = fake().base_url, []
    thread = threading.Thread(
        target=lambda: runs.append(dyno.serve(base_url=url, runs=tmp_path, **QUICK))
    )
    thread.start()
    thread.join()
    assert runs[0].summary.completed == 8


def test_errors_are_exceptions_of_one_tree(tmp_path: Path) -> None:
    with pytest.raises(dyno.TargetError) as caught:
        dyno.serve(base_url="http://127.0.0.1:9", runs=tmp_path, **QUICK)
    assert isinstance(caught.value, dyno.DynoError)
    with pytest.raises(dyno.NotFound, match="no such file, and no run or study"):
        dyno.load("nothing", runs=tmp_path)
    with pytest.raises(dyno.UsageError, match="Did you mean input_len"):
        dyno.serve(inputlen=3)  # type: ignore[call-arg]


INTERRUPTED = """
import sys, dyno
try:
    dyno.serve(engine="fake", args=["gap_ms=200"], max_concurrency=2, num_prompts=500,
               input_len=8, output_len=3, correctness_check=False,
               progress=lambda p: print(p.phase, p.ended, flush=True))
except dyno.Interrupted as e:
    print("kept", e.folder)
"""


def test_an_interrupt_keeps_what_was_measured_and_leaves_no_engine(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", INTERRUPTED],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            phase, _, ended = line.strip().rpartition(" ")
            if phase == "Measuring" and ended.isdigit() and int(ended) >= 2:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    folder = tmp_path / out.splitlines()[-1].removeprefix("kept ")
    engine = json.loads((folder / "engine.json").read_text())
    assert (folder / "summary.json").exists()
    assert not any(map(is_served, engine["launches"]))


def is_served(launch: dict[str, Any]) -> bool:
    """Whether somebody listens at an engine's port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", launch["port"])) == 0


def test_cancelling_a_task_stops_its_engine(tmp_path: Path) -> None:
    measuring = threading.Event()

    async def cancelled() -> None:
        def hear(report: dyno.ProgressReport) -> None:
            if report.ended:
                measuring.set()

        task = asyncio.create_task(
            dyno.aio.serve(
                engine="fake",
                args=["gap_ms=100"],
                runs=tmp_path,
                progress=hear,
                **{**QUICK, "num_prompts": 500, "output_len": 4},
            )
        )
        while not measuring.is_set() and not task.done():
            await asyncio.sleep(0.05)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    [folder] = tmp_path.iterdir()
    assert dyno.load(folder)[0].summary.completed > 0
    engine = json.loads((folder / "engine.json").read_text())
    assert not any(map(is_served, engine["launches"]))


def test_an_error_of_a_task_is_that_of_the_function(tmp_path: Path) -> None:
    with pytest.raises(dyno.TargetError):
        asyncio.run(dyno.aio.serve(base_url="http://127.0.0.1:9", runs=tmp_path, **QUICK))


def test_a_study_from_tables_runs_resumes_and_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = dyno.study(
        {
            "repeats": 2,
            "engines": {"fake": {"kind": "fake", "args": ["first_ms=2", "gap_ms=1"]}},
            "workloads": {"short": {"input_len": 8, "output_len": 3}},
            "loads": {"closed": {"max_concurrency": [1, 2], "requests_per_stream": 4}},
            "trial": {"correctness_check": False},
        },
        name="mine",
    )
    assert study.trials == [
        "fake, short, closed concurrency 1",
        "fake, short, closed concurrency 2",
    ]
    first = study.run(limit=2)
    result = study.run()
    assert len(first) == 2 and len(result) == 4 and not result.failed
    assert {run.path for run in first} <= {run.path for run in result}
    assert len(result.part("concurrency 1")) == 2 and "ramp_and_drain" in result.text
    assert len(dyno.load("mine")) == len(dyno.load("runs")) == 4
    again = dyno.study("runs/mine/study.toml")
    assert again.trials == study.trials
    compared = dyno.compare(result[:2], result[2:], anyway=True, gates=["failed<=0"])
    assert compared.verdict == "void" and not compared.passed


def test_a_study_says_where_its_mistake_is() -> None:
    with pytest.raises(
        dyno.UsageError, match=r"mine.toml:5: workloads.w.inputlen: unknown key"
    ):
        dyno.study(
            {
                "engines": {"e": {"kind": "fake"}},
                "workloads": {"w": {"inputlen": 3}},
                "loads": {"c": {"max_concurrency": 1}},
            },
            name="mine",
        )


def test_old_runs_are_loaded_compared_audited_and_reported(tmp_path: Path) -> None:
    runs = dyno.load(RUNS)
    assert len(runs) > 2 and runs.verdict in ("sound", "doubtful", "void")
    table = runs.table
    assert len(table) == len(runs) and {"run", "output_throughput"} <= set(table.columns)
    pairs = runs.sql("select verdict, count(*) as n from trials group by all")
    assert sum(pairs["n"]) == len(runs)
    audited = dyno.audit(ROOT / "tests/captures/vllm-0.32-serve.json")
    assert len(audited.rows) == 1 and audited.complete
    report = dyno.report(*runs)
    assert report.save(tmp_path / "r.md").read_text() == report.markdown
    with pytest.raises(dyno.UsageError, match=r"must be one of \.html, \.md, \.csv"):
        report.save(tmp_path / "r.docx")


@pytest.mark.parametrize("markup", ["<script>alert(1)</script>", "\x1b[31mred"])
def test_a_notebooks_tables_show_others_text_as_text(
    markup: str, fake: StartFake, tmp_path: Path
) -> None:
    run = dyno.serve(base_url=fake().base_url, runs=tmp_path, label=markup, **QUICK)
    shown = [run, dyno.load(run), run.records, dyno.report(run)]
    pages = [each._repr_html_() for each in shown]  # type: ignore[attr-defined]
    assert all(page.startswith("<") and markup not in page for page in pages)


def test_a_search_returns_its_interval(
    fake: StartFake, tmp_path: Path, expect_decided: ExpectDecided
) -> None:
    found = dyno.find(
        ["ttft_p50:60s", "failed:0"],
        base_url=fake(first_ms=60, gap_ms=10).base_url,
        most=1,
        budget=6,
        runs=tmp_path,
        input_len=8,
        output_len=3,
        correctness_check=False,
        tokenizer=str(ROOT / "src/dyno/engines/dyno-5m"),
    )
    assert found.decided == (found.low is not None) or found.answer.ended
    assert "<pre>" in found._repr_html_()
    with pytest.raises(dyno.UsageError, match="max_concurrency: unknown key"):
        dyno.find("ttft_p50:60s", max_concurrency=3)  # type: ignore[call-arg]
    expect_decided(bool(found.runs))  # no probe counts where the cores are taken


# ---- import ----

LIGHT = "import dyno, sys; print(*sorted(sys.modules))"


def test_importing_dyno_loads_nothing_of_it() -> None:
    modules = subprocess.check_output([sys.executable, "-c", LIGHT], text=True).split()
    assert [m for m in modules if m.startswith("dyno")] == ["dyno"]
    assert not {"numpy", "msgspec", "duckdb", "asyncio", "inspect"} & {*modules}


def test_importing_dyno_takes_no_time() -> None:
    """The best of five: others use the machine."""
    code = (
        "import time; t = time.perf_counter(); import dyno; print(time.perf_counter() - t)"
    )
    took = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    assert min(took) < 0.1


def test_reading_runs_loads_no_engine_and_no_wire() -> None:
    code = f"import dyno, sys; dyno.load({str(RUNS)!r}); print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"dyno.trial.online", "altair", "duckdb", "dyno.cli.main"} & {*modules}
