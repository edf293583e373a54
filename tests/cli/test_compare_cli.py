"""`dyno compare` on runs that were really made: what it prints, which exit code it has, and 200 splits of a study."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conftest import Built
from dyno.cli.main import main
from dyno.compare.compare import default_metrics
from dyno.conduct.read import Source, read
from dyno.errors import UsageError
from dyno.facts.finding import Finding
from dyno.facts.spread import Spread
from dyno.facts.summary import Result
from dyno.report import result_json
from dyno.store.rows import read_row, row_of
from dyno.store.run import Run
from offlines import (
    PERCENTILES,
    iterations,
    manifest,
    micro_iterations,
    micro_trial,
    outcome,
    trial,
)
from rows import differ

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
repeats = 6
interleave = "trials"
[engines.quick]
kind = "fake"
args = ["first_ms=6", "gap_ms=1"]
[engines.slow]
kind = "fake"
args = ["first_ms=60", "gap_ms=12"]
trial = { correctness_check = false }  # a quarter of a second for each prompt
[workloads.w]
input_len = 8
output_len = 5
[loads.c]
max_concurrency = 4
num_prompts = 20
"""


@pytest.fixture(scope="session")
def measured(built_once: Built) -> Path:
    """A study of two fake engines, one ten times slower, with six repeats each. A repeat takes 0.05 s: where something
    held the machine up for as long, six say little, and the study is measured again."""
    runs = built_once("compare", _measure) / "runs"
    if not all(_steady(f"s:{engine}", runs) for engine in ("quick", "slow")):
        pytest.skip("the machine is too busy for repeats of 0.05 s")
    return runs


def _measure(folder: Path) -> None:
    (folder / "s.toml").write_text(STUDY)
    for _ in range(5):
        shutil.rmtree(folder / "runs", ignore_errors=True)
        assert (
            main(
                [
                    "run",
                    str(folder / "s.toml"),
                    "--runs",
                    str(folder / "runs"),
                    "--no-report",
                ]
            )
            == 0
        )
        if all(_steady(f"s:{engine}", folder / "runs") for engine in ("quick", "slow")):
            break


def _steady(name: str, runs: Path) -> bool:
    speeds = [row.get("output_throughput") or 0.0 for row in read(name, runs).document.rows]
    return max(speeds) < 1.5 * min(speeds)


@pytest.fixture
def runs(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(measured.parent)
    return measured


def compare(*words: str) -> int:
    return main(["compare", *words])


def test_a_part_of_a_study_is_chosen_by_name_or_whole_id_and_not_by_letters_of_an_id(
    runs: Path,
) -> None:
    """`two:b` took trials of engine a, too: the id of one ended with eb5."""
    folder = sorted((runs / "s" / "trials").iterdir())[0]
    id = folder.name.rpartition("-")[2]
    for whole in (id, folder.name):
        assert [row.file for row in read(f"s:{whole}", runs).document.rows] == [str(folder)]
    with pytest.raises(UsageError, match="No trial is named like"):
        read(f"s:{id[1:]}", runs)


def trials(runs: Path, pattern: str) -> list[Path]:
    return sorted((runs / "s/trials").glob(pattern))


@pytest.mark.nightly
def test_200_splits_of_a_studys_repeats_show_no_difference_in_nine_of_ten(
    runs: Path,
) -> None:
    """Three against three there are twenty, each as likely as the others: five times over, for two engines."""
    clean = []
    for engine in ("quick", "slow"):
        rows = read(f"s:{engine}", runs).document.rows
        assert len(rows) == 6 and all(row.samples for row in rows)
        metrics = default_metrics(rows, rows)
        # a busy client may not know them all
        assert "output_throughput" in metrics and len(metrics) >= 3
        for split in itertools.combinations(range(6), 3):
            found = differ(
                [rows[i] for i in split],
                [rows[i] for i in range(6) if i not in split],
                metrics,
            )
            clean += 5 * [not any(d.word in ("better", "worse") for d in found)]
    assert len(clean) == 200 and sum(clean) >= 180


def test_two_engines_of_a_study_are_distinguished_in_words(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("s:quick", "s:slow") == 0
    out = capsys.readouterr().out
    assert "A  runs/s:quick" in out and "concurrency 4, 8 in, 5 out" in out
    assert "A: quick, w, c, 120 completed, 0 failed, 6 runs" in out
    assert "B is slower in " in out and "over repeats." in out
    assert "args first_ms=6 gap_ms=1 / first_ms=60 gap_ms=12" in " ".join(out.split())
    assert "Verdict: " in out.splitlines()[-1]
    assert max(map(len, out.splitlines())) <= 100


def test_json_has_it_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        compare(
            "s:slow", "s:quick", "--metric", "output_throughput", "p60_ttft_ms", "--json"
        )
        == 0
    )
    reported = json.loads(capsys.readouterr().out)
    (pairing,) = reported["pairings"]
    throughput, ttft = pairing["differences"]
    assert (throughput["metric"], throughput["word"], throughput["a"]["by"]) == (
        "output_throughput",
        "better",
        "repeats",
    )
    assert (
        throughput["low"] < throughput["change"] < throughput["high"]
        and throughput["smallest"] > 0
    )
    assert ttft["word"] == "better" and -1 < ttft["change"] < -0.2
    assert pairing["load"]["concurrency"] == 4 and pairing["a"]["failed"] == 0
    assert (
        reported["verdict"] != "void"
        and reported["exit"] == 0
        and len(pairing["a"]["rows"]) == 6
    )


def test_a_run_against_another_says_that_single_runs_say_little(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = trials(runs, "quick*")[:2]
    assert compare(str(one), other.name, "--markdown") == 0
    out = capsys.readouterr().out
    assert "| output tokens/s |" in out and "`comparability.single_runs`" in out
    # Beside other processes one of them may not know its p99: then it isn't compared.
    known = all(
        Run(run).result().served.ttft.percentiles["99"] is not None for run in (one, other)
    )
    assert ("- Confidence unknown: p99 TTFT" in out and "500" in out) is known


def test_gates_decide_the_exit_code(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        compare(
            "s:quick",
            "s:slow",
            "--gate",
            "failed<=0",
            "output_throughput>-99%",
            "median_ttft_ms<1000",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert out.count(": holds: ") == 3
    assert out.splitlines()[-1] == "All 3 gates hold. Exit 0."
    assert compare("s:quick", "s:slow", "--gate", "output_throughput>-99%") == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"Gate holds: output_throughput>-99%: -[\d.]+ % \(95 %: -[\d.]+ to -[\d.]+ %\)\. Exit 0\.",
        last,
    )
    assert compare("s:quick", "s:slow", "--gate", "median_ttft_ms<5%") == 3
    *_, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"Gate broken: median_ttft_ms<5%: \+[\d,]+ % \(95 %: \+[\d,]+ to \+[\d,]+ %\)\. Exit 3\.",
        last,
    )
    one, other = trials(runs, "quick*")[:2]
    unsure = (str(one), str(other), "--gate", "p99_ttft_ms<200%")
    assert compare(*unsure) == 4
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Gate undecided: p99_ttft_ms<200%: ") and last.endswith(
        "Exit 4."
    )
    assert compare(*unsure, "--strict") == 3
    assert compare("s:quick", "s:slow", "--gate", "acceptance_rate>-1%") == 4
    *_, last = capsys.readouterr().out.splitlines()
    assert (
        last
        == "Gate undecided: acceptance_rate>-1%: no result reports this figure. Exit 4."
    )


def test_a_run_and_its_result_file_are_judged_alike(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(trials(runs, name)[0]) for name in ("quick*", "slow*")]
    files = [str(tmp_path / f"{name}.json") for name in ("quick", "slow")]
    for folder, file in zip(folders, files, strict=True):
        run = Run(Path(folder))
        result_json.save(
            Path(file),
            result_json.build(run.result(), run.manifest(), read_row(run)),
            append=False,
        )
    gates = (
        "output_throughput>-5%",
        "median_ttft_ms<50%",
        "median_tpot_ms<10000%",
        "p99_ttft_ms<900%",
        "failed<=0",
    )

    def judged(a: str, b: str) -> dict[str, Any]:
        code = compare(a, b, "--json", "--gate", *gates)
        reported = json.loads(capsys.readouterr().out)
        (pairing,) = reported["pairings"]
        words = {d["metric"]: (d["word"], d["low"]) for d in pairing["differences"]}
        findings = sorted(f["code"] for f in pairing["findings"])
        states = [(g["gate"], g["state"]) for g in reported["gates"]]
        return {
            "code": code,
            "words": words,
            "load": pairing["load"],
            "findings": findings,
            "gates": states,
        }

    as_folders = judged(folders[0], folders[1])
    assert dict(as_folders["gates"])["failed<=0"] == "held" and as_folders["code"] == 3
    assert judged(files[0], files[1]) == judged(folders[0], files[1]) == as_folders


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("nope", "s"), "nope: no such file, and no run or study with this name in"),
        (("s", "s"), "s: A and B are the same."),
        (("s", "s:slow"), "is on both sides. Name two without a run in common"),
        (
            ("s:quick", "s:zzz"),
            "No trial is named like 'zzz': whole words match, or parts with * and ?. There are 'quick, w, c'",
        ),
        (("s:quick", "s:slow", "--metric", "p99_tft_ms"), "Did you mean p99_ttft_ms?"),
        (("s:quick", "s:slow", "--gate", "p99_ttft_ms=5"), "write METRIC<LIMIT"),
    ],
)
def test_a_slip_gets_a_sentence(
    runs: Path, words: Any, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*words) == 2
    assert reported in capsys.readouterr().err


def test_a_void_run_is_refused_unless_anyway(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trials(runs, "quick*")[0], tmp_path / "bad")
    run = Run(tmp_path / "bad")
    finding = Finding("engine.quantization", "void", "Q8 for Q4.", "Look.")
    run.write_result(
        msgspec.structs.replace(run.result(), findings=[finding], verdict="void")
    )
    other = str(trials(runs, "quick*")[1])
    assert compare(str(run.path), other) == 3
    out = capsys.readouterr().out
    assert "Side A is void: engine.quantization." in out and "tokens/s" not in out.replace(
        "tokens/s.", ""
    )
    assert compare(str(run.path), other, "--anyway") == 3
    assert "Verdict: void (compared because of --anyway)" in capsys.readouterr().out
    assert compare(str(run.path), other, "--anyway", "--allow-void") == 0


def test_another_load_is_refused_with_both_loads(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trials(runs, "quick*")[0], tmp_path / "other")
    run = Run(tmp_path / "other")
    m = run.manifest()
    load = msgspec.structs.replace(m.trial.load, max_concurrency=9)
    run.write_manifest(
        msgspec.structs.replace(m, trial=msgspec.structs.replace(m.trial, load=load))
    )
    assert compare("s:quick", str(run.path)) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "A has serve: concurrency 4, 8 in, 5 out. B has serve: concurrency 9" in out


def test_other_tools_files_are_compared_by_what_they_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files of one name, of which the second says a tenth more; without single requests, means have an interval."""
    fixture = Path(__file__).parents[1] / "fixtures/imports/vllm-0.24-serve-c16.json"
    reported = json.loads(fixture.read_text())
    lists = [name for name, value in reported.items() if isinstance(value, list)]
    reported = {name: value for name, value in reported.items() if name not in lists}
    paths = []
    for name, times in (("a", 1.0), ("b", 1.1)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "result.json")
        more = {
            n: reported[n] * times
            for n in ("output_throughput", "mean_ttft_ms", "median_ttft_ms")
        }
        paths[-1].write_text(json.dumps(reported | more))
    a, b = map(str, paths)
    assert compare(a, b, "--json", "--metric", "output_throughput", "mean_ttft_ms") == 0
    (found,) = json.loads(capsys.readouterr().out)["pairings"]
    throughput, ttft = found["differences"]
    assert (
        throughput["change"] == pytest.approx(0.1)
        and throughput["word"] == "confidence unknown"
    )
    assert ttft["a"]["by"] == "deviation" and ttft["low"] < 0.1 < ttft["high"]
    assert compare(a, b, "--gate", "median_ttft_ms<5%") == 3
    assert compare(a, a) == 2
    (tmp_path / "empty.txt").write_text("nothing here\n")
    assert compare(a, str(tmp_path / "empty.txt")) == 1
    assert "no result was found" in capsys.readouterr().err


# ---- runs as rows ----


def test_a_run_is_a_row_with_the_figures_of_its_summary(runs: Path) -> None:
    run = Run(trials(runs, "quick*")[0])
    summary = run.result().served
    row = read_row(run)
    assert (row.kind, row.tool, row.form, row.series) == ("serve", "dyno", "run", "quick")
    assert (
        row.get("output_throughput") == summary.output_throughput and row.get("failed") == 0
    )
    assert row.get("p99_ttft_ms") == summary.ttft.percentiles["99"]
    assert row.get("median_tpot_ms") == summary.tpot.median
    assert {
        f.definition for name, f in row.figures.items() if name.endswith("_tpot_ms")
    } <= {"dyno.tpot"}
    reported = {
        name: row.setting(name)
        for name in ("concurrency", "input_len", "output_len", "num_prompts", "repeat")
    }
    assert reported == {
        "concurrency": 4,
        "input_len": 8,
        "output_len": 5,
        "num_prompts": 20,
        "repeat": 1,
    }
    assert row.setting("engine") == "fake" and row.prompts_sha256 and row.rig is not None
    assert row.samples is not None and row.samples.starts_s == sorted(row.samples.starts_s)
    for values, latency in (
        (row.samples.latencies("ttft"), summary.ttft),
        (row.samples.latencies("itl"), summary.itl),
    ):
        if latency.bounds:  # read late: then there are no samples
            assert values == []
        else:
            assert np.nanmean(values) == pytest.approx(latency.mean, rel=0.02)
    assert read_row(run, samples=False).samples is None


def test_a_study_is_a_document_of_its_trials(runs: Path) -> None:
    source: Source = read("s", runs)
    assert source.document.format == "dyno study" and len(source.document.rows) == 12
    assert {row.setting("repeat") for row in source.document.rows} == set(range(1, 7))


def test_offline_runs_are_rows_too(tmp_path: Path) -> None:
    its = iterations([100_000_000, 110_000_000, 90_000_000], [500_000_000])
    of = outcome(tmp_path, trial("latency", batch_size=4), its)
    row = row_of("x", of.manifest, of.result, iterations=its)
    assert (row.kind, row.setting("batch_size"), row.setting("concurrency")) == (
        "latency",
        4,
        None,
    )
    assert (
        row.get("mean_latency_ms") == pytest.approx(100)
        and row.figures["p99_latency_ms"].definition == "offline.latency"
    )
    assert row.samples is not None and row.samples.latencies("latency") == [100, 110, 90]
    assert {f"p{p:g}_latency_ms" for p in PERCENTILES} <= set(row.figures)
    throughput = outcome(tmp_path, trial("throughput"), its)
    row = row_of("x", throughput.manifest, throughput.result, iterations=its)
    assert (
        row.kind == "throughput" and row.figures["output_throughput"].deviation is not None
    )
    assert row.figures["total_token_throughput"].definition == "offline.throughput"


def test_a_micro_test_is_a_row_with_its_speed(tmp_path: Path) -> None:
    from dyno.measure.offline import summarize

    spec = micro_trial(512, 0, depth=64)
    its = micro_iterations(spec, [10_000_000, 10_200_000, 9_800_000])
    result = Result(
        None, [], "sound", offline=summarize(spec, [i for i in its if not i.warmup])
    )
    row = row_of("x", manifest(spec), result, iterations=its)
    assert (
        row.kind,
        row.setting("test"),
        row.setting("depth"),
        row.setting("--threads"),
    ) == (
        "micro",
        "pp512",
        64,
        "2",
    )
    assert (
        row.get("speed") == pytest.approx(51_214, rel=1e-3) and len(row.samples.speeds) == 3
    )  # type: ignore[union-attr]
    assert isinstance(result.offline.request_throughput, Spread)  # type: ignore[union-attr]
