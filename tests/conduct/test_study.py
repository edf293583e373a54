"""`dyno run` on engines that really run: done once, stopped at any moment, and gone on with."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from conftest import Built, StartFake
from dyno.cli.main import main
from dyno.conduct import study
from dyno.engines.fake.engine import Fake
from dyno.errors import TargetError
from dyno.store.study import StudyFolder
from dyno.trial.online import measure

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
repeats = 2
[engines.quick]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
trial = { correctness_check = false }
[engines.slow]
kind = "fake"
args = ["first_ms=6", "gap_ms=2"]
trial = { correctness_check = false }
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = [1, 2]
requests_per_stream = 4
"""
ALL = 8


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def write(text: str, name: str = "s.toml") -> None:
    Path(name).write_text(text)


def run(*words: str) -> int:
    return main(["run", "s.toml", "--no-report", *words])


def done(folder: str = "runs/s") -> set[str]:
    return {p.parent.name for p in Path(folder, "trials").glob("*/summary.json")}


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dyno", "run", "s.toml", "--no-report", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(condition: object, what: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def finished(built_once: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of STUDY, run to its end, with what it printed."""
    shutil.copytree(built_once("study", _finish), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def _finish(folder: Path) -> None:
    (folder / "s.toml").write_text(STUDY)
    with (
        contextlib.chdir(folder),
        Path("out").open("w") as out,
        Path("err").open("w") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        assert run() == 0


def test_every_trial_becomes_a_folder_that_says_it_all(finished: None) -> None:
    assert ["slow", "2", "2", "16", "0"] in [
        line.split()[:5] for line in Path("out").read_text().splitlines()
    ]
    assert "[8/8]" in Path("err").read_text()
    assert len(done()) == ALL
    for name in done():
        folder = Path("runs/s/trials") / name
        trial = json.loads((folder / "trial.json").read_text())
        assert trial["place"]["study"] == "s" and name.endswith(trial["place"]["id"])
        assert (
            trial["trial"]["engine"]["kind"] == "fake"
            and trial["workload_sha256"]
            and trial["rig"]["cpu"]
        )
        assert json.loads((folder / "engine.json").read_text())["launches"][0]["argv"]
        assert (folder / "engine.log").exists() and (folder / "records.jsonl").exists()
        assert json.loads((folder / "summary.json").read_text())["summary"]["completed"] > 0
        assert not (folder / "exchanges.spool").exists()
    starts = sorted(p.name for p in Path("runs/s/engines").iterdir())
    assert starts == ["001-quick", "002-slow", "003-quick"], (
        "the first repeat ends, the second begins with slow"
    )
    assert Path("runs/s/study.toml").read_text() == Path("s.toml").read_text()


def test_done_once_it_stays_so_and_engines_met_the_same_prompts(
    finished: None, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes: dict[tuple[object, ...], set[str]] = {}
    for name in done():
        m = json.loads((Path("runs/s/trials") / name / "trial.json").read_text())
        key = (m["place"]["repeat"], m["trial"]["load"]["max_concurrency"])
        hashes.setdefault(key, set()).add(m["workload_sha256"])
    assert len(hashes) == 4 and all(len(h) == 1 for h in hashes.values())
    assert len(set.union(*hashes.values())) == 4, (
        "no level and no repeat gets what an earlier one has had"
    )

    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in Path("runs/s/trials").rglob("*.json*")}

    before = times()
    assert run() == 0
    assert times() == before, "the same command again keeps everything as it is"
    assert capsys.readouterr().out == Path("out").read_text(), "and shows the table again"

    # One that was measured to its end and not summed up is summed up, not run again.
    folder = Path("runs/s/trials") / sorted(done())[0]
    ttft = json.loads((folder / "summary.json").read_text())["summary"]["latencies"]["ttft"]
    (folder / "summary.json").unlink()
    assert run() == 0
    assert (folder / "client.json").stat().st_mtime_ns == before[folder / "client.json"]
    assert (
        json.loads((folder / "summary.json").read_text())["summary"]["latencies"]["ttft"]
        == ttft
    )


# tests/hostile/test_hostile_processes.py kills one, with an engine that flees
@pytest.mark.nightly
def test_a_study_killed_20_times_ends_like_one_that_was_not(here: Path) -> None:
    write(STUDY)
    assert run("--runs", "calm") == 0
    rng = random.Random()
    seed = rng.randrange(10**6)
    rng.seed(seed)  # reported where it fails
    kept: dict[str, int] = {}
    for _ in range(20):
        process = start()
        with_it = time.monotonic() + rng.uniform(0.4, 1.2)
        while process.poll() is None and time.monotonic() < with_it:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        now = {
            n: (Path("runs/s/trials") / n / "summary.json").stat().st_mtime_ns
            for n in done()
        }
        assert kept.items() <= now.items(), (
            f"a finished trial was lost or run again (seed {seed})"
        )
        kept = now
    assert run() == 0
    assert done() == done("calm/s"), f"seed {seed}"
    assert len(done()) == ALL == len(list(Path("runs/s/trials").iterdir()))
    for name in done():
        records = (Path("runs/s/trials") / name / "records.jsonl").read_text().splitlines()
        summary = json.loads((Path("runs/s/trials") / name / "summary.json").read_text())[
            "summary"
        ]
        assert len(records) == summary["completed"] == summary["planned"]
    left = [
        p
        for p in psutil.process_iter(["cmdline"])
        if str(here) in " ".join(p.info["cmdline"] or [])
    ]
    assert not left


def test_a_study_killed_while_it_makes_its_folder_continues(here: Path) -> None:
    write(ONE.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "1"))
    folder = Path("runs/s")
    steps = [
        folder / name
        for name in (".lock", "trials", "engines", "study.toml.partial", "study.toml")
    ]
    folder.mkdir(parents=True)
    # each of them as the last that was made
    for path in (*steps, folder / "study.json.partial"):
        path.mkdir() if path.name in ("trials", "engines") else path.touch()
        assert StudyFolder(folder).blank
    assert run() == 0
    assert len(done()) == 1


@pytest.mark.parametrize("theirs", ["study.toml", "trials/notes.txt", "notes.txt"])
def test_a_folder_of_others_is_not_taken_for_a_study(
    here: Path, theirs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY)
    path = Path("runs/s") / theirs
    path.parent.mkdir(parents=True)
    path.touch()
    assert run() != 0
    assert "is not a study" in capsys.readouterr().err
    assert [p for p in Path("runs/s").rglob("*") if p.is_file()] == [path]


def test_ctrl_c_keeps_what_is_done_and_says_how_to_continue(here: Path) -> None:
    write(STUDY)
    process = start()
    until(lambda: len(done()) >= 2, "nothing was measured")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Resume with:\n  dyno run s.toml" in err and "Traceback" not in err
    kept = done()
    assert 2 <= len(kept) < ALL
    assert run("--limit", "1") == 0
    assert kept < done() and len(done()) == len(kept) + 1


# ---- the file changes ----


@pytest.mark.engines
def test_a_changed_file_says_what_differs_and_can_extend_or_begin_anew(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = STUDY[: STUDY.index("[engines.slow]")].replace("repeats = 2", "repeats = 1")
    small += STUDY[STUDY.index("[workloads.w]") :]
    write(small)
    assert run() == 0
    first = done()
    write(small.replace("[1, 2]", "[1, 4]"))
    assert run() == 2
    err = capsys.readouterr().err
    assert "1 trial is the same, 1 is new (quick, w, c concurrency 4)" in err
    assert "1 is removed (quick, w, c concurrency 2" in err
    assert done() == first, "nothing was run"
    assert run("--new") == 0
    assert done() == first and len(done("runs/s-2")) == 2
    assert run() == 0, "the changed file goes on in the folder that it made"
    write(small.replace("[1, 2]", "[1, 2, 4]"))
    assert run("--extend") == 0
    assert len(done("runs/s-2")) == 3 and done() == first


# of the two engines
ONE = STUDY[: STUDY.index("[engines.slow]")] + STUDY[STUDY.index("[workloads.w]") :]


def test_a_finished_trial_is_kept_where_its_name_changes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its id: a value that becomes a list, or a second repeat, gives it another label."""
    small = ONE.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "2")
    write(small)
    run()
    (path,) = Path("runs/s/trials").glob("*/client.json")
    before = path.stat().st_mtime_ns
    for text in (
        small.replace("= 2\n", "= [2, 4]\n"),
        small.replace("repeats = 1", "repeats = 2"),
    ):
        write(text)
        capsys.readouterr()
        assert run("--extend") == 0
        assert path.stat().st_mtime_ns == before, "it was run again"
        main(["runs", "show", "s"])
        shown = capsys.readouterr().out
        assert "s: 2 of 2 trials done" in shown
    assert ["quick", "2", "16"] in [line.split()[:3] for line in shown.splitlines()], shown


@pytest.mark.hostile
def test_a_cut_trial_is_not_summed_up_by_looking_at_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ONE.replace("requests_per_stream = 4", "requests_per_stream = 2000"))
    process = start("--limit", "1")
    until(
        lambda: any(
            p.stat().st_size > 20_000 for p in Path("runs").rglob("exchanges.spool")
        ),
        "nothing was sent",
    )
    process.kill()
    process.communicate()
    (cut,) = Path("runs/s/trials").iterdir()
    assert main(["runs", "show", str(cut)]) == 0
    assert "Its study measures it again." in capsys.readouterr().err
    assert not (cut / "summary.json").exists()


def test_a_dataset_that_changed_makes_other_trials(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("data.jsonl").write_text('{"prompt": "one two three"}\n' * 9)
    text = ONE.replace(
        "input_len = 16\n", 'dataset = "custom"\npath = "./data.jsonl"\n'
    ).replace("[1, 2]", "1")
    write(text)
    assert run("--limit", "1") == 0
    Path("data.jsonl").write_text('{"prompt": "four five six seven"}\n' * 9)
    assert run() == 2
    assert "0 trials are the same" in capsys.readouterr().err


def test_models_of_the_same_last_name_are_rows_of_their_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ONE.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "1")
    write(
        text.replace('kind = "fake"', 'kind = "fake"\nserved_name = ["a/x", "b/x"]')
        + "[trial]\nignore_eos = [true, false]\n"
    )
    assert run() == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert all([name, word] in rows for name in ("a/x", "b/x") for word in ("on", "off"))


def test_words_about_a_study_may_change(finished: None) -> None:
    write("about = 'Better words'\non_failure = 'stop'\n" + STUDY)
    assert run() == 0
    assert not Path("runs/s-2").exists()


# ---- failures ----

# a trial of each engine
SINGLE = STUDY.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "1")
BROKEN = SINGLE.replace('args = ["first_ms=6", "gap_ms=2"]', "args = [ARGS]")


def test_an_engine_that_does_not_come_up_is_tried_twice_and_the_others_continue(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(BROKEN.replace("ARGS", '"fault=die@1"'))
    assert run() == 1
    err = capsys.readouterr().err
    assert len(done()) == 1 and all("quick" in n for n in done())
    assert len([p for p in Path("runs/s/engines").iterdir() if "slow" in p.name]) == 2
    failures = [
        json.loads(p.read_text()) for p in Path("runs/s/trials").glob("*/failed.json")
    ]
    assert len(failures) == 1 and "exited with code" in failures[0]["text"]
    assert "Retrying" in err and "failed: " in err and "Traceback" not in err


ATTACHED = """
[engines.server]
kind = "openai"
base_url = "{url}"
[workloads.w]
{prompts}
[loads.steady]
request_rate_rps = 20
num_prompts = 40
[trial]
correctness_check = false
cache = "keep"
"""


def _cut_and_resumed(
    fake: Fake, prompts: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Interrupt the only trial of a study on a server that goes on running, resume it, and return the trial before and
    after, and the result."""
    write(ATTACHED.format(url=fake.base_url, prompts=prompts))
    process = start()
    trials = Path("runs/s/trials")
    until(
        lambda: (
            [p for p in trials.glob("*/*.spool") if p.stat().st_size > 5000]
            or process.poll() is not None
        ),
        "",
    )
    [folder] = Path("runs/s/trials").iterdir()
    before = json.loads((folder / "trial.json").read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130 and not done()
    assert run() == 0
    return before, *(
        json.loads((folder / name).read_text()) for name in ("trial.json", "summary.json")
    )


@pytest.mark.parametrize(
    "reports_hits", [True, pytest.param(False, marks=pytest.mark.nightly)]
)
def test_a_trial_that_is_resumed_sends_prompts_that_the_running_server_has_not_met(
    here: Path, fake: StartFake, reports_hits: bool
) -> None:
    server = fake(first_ms=1, gap_ms=1, prefix_cache=reports_hits)
    before, after, result = _cut_and_resumed(server, "input_len = 64\noutput_len = 3")
    assert before["workload_sha256"] != after["workload_sha256"]
    seed, again = (trial["trial"]["workload"]["seed"] for trial in (before, after))
    [planned] = json.loads(Path("runs/s/study.json").read_text())["trials"]
    assert planned["trial"]["workload"]["seed"] == seed != again
    assert (
        before["trial"]["load"] == after["trial"]["load"]
        and before["place"] == after["place"]
    )
    assert [f["code"] for f in result["findings"] if f["code"].startswith("cache.")] == []
    assert after["sent_before"] is None
    if reports_hits:
        assert result["summary"]["cached_input_tokens"] == 0


def test_a_resumed_trial_whose_file_has_no_other_prompts_says_that_they_were_sent_before(
    here: Path, fake: StartFake
) -> None:
    lines = [
        json.dumps({"prompt": f"{i} " + "word " * 63, "output_tokens": 3})
        for i in range(40)
    ]
    Path("p.jsonl").write_text("\n".join(lines))
    before, after, result = _cut_and_resumed(
        fake(first_ms=1, gap_ms=1), 'dataset = "custom"\npath = "p.jsonl"'
    )
    assert "cache.sent_before" in [f["code"] for f in result["findings"]]
    assert after["sent_before"].endswith(before["place"]["id"])


def test_a_second_attempt_on_the_same_engine_draws_other_prompts(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        """
        [engines.one]
        kind = "fake"
        args = ["first_ms=1", "gap_ms=1", "prefix_cache=true"]
        [workloads.w]
        input_len = 64
        output_len = 3
        [loads.c]
        max_concurrency = 8
        num_prompts = 40
        [trial]
        correctness_check = false
        cache = "keep"
        """
    )
    calls: list[int] = []

    def fails_at_first(*args: Any) -> None:
        """Sends the load, and then fails once."""
        measure(*args)
        calls.append(1)
        if len(calls) == 1:
            raise TargetError("the line went down")

    monkeypatch.setattr(study, "measure", fails_at_first)
    assert run() == 0
    [folder] = Path("runs/s/trials").iterdir()
    result = json.loads((folder / "summary.json").read_text())
    assert len(list(Path("runs/s/engines").iterdir())) == 1
    assert "engine.second_attempt" in [f["code"] for f in result["findings"]]
    assert result["summary"]["cached_input_tokens"] == 0


def test_failed_trials_are_tried_again_by_the_next_command(here: Path) -> None:
    write(BROKEN.replace("ARGS", '"fault=die@1"'))
    run()
    folders = {p.parent.name for p in Path("runs/s/trials").glob("*/failed.json")}
    assert run() == 1
    assert {p.parent.name for p in Path("runs/s/trials").glob("*/failed.json")} == folders
    assert len(list(Path("runs/s/engines").iterdir())) == 5


def test_carry_on_does_not_try_again_and_stop_stops(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("on_failure = 'carry_on'\n" + BROKEN.replace("ARGS", '"fault=die@1"'))
    assert run() == 1
    assert len(list(Path("runs/s/engines").iterdir())) == 2
    write(
        "name = 't'\non_failure = 'stop'\n"
        + BROKEN.replace("ARGS", '"fault=die@1"').replace("first_ms=2", "fault=die@1")
    )
    capsys.readouterr()
    assert run() == 1
    assert "so the study stops" in capsys.readouterr().err
    assert not done("runs/t") and len(list(Path("runs/t/engines").iterdir())) == 1
    assert len(list(Path("runs/t/trials").glob("*/failed.json"))) == 1, (
        "only those that waited for that engine"
    )


@pytest.mark.hostile
def test_an_engine_that_dies_under_load_is_started_anew_for_the_rest(here: Path) -> None:
    # It dies at its 20th request: some trials are done before that, and each start is good for a few more.
    text = BROKEN.replace("ARGS", '"first_ms=1", "gap_ms=1", "fault=die@20"')
    write(text.replace("max_concurrency = 1", "max_concurrency = [1, 2, 3]"))
    assert run() in (0, 1)
    slow = [n for n in done() if n.startswith("slow")]
    failed = list(Path("runs/s/trials").glob("slow*/failed.json"))
    assert slow and len(slow) + len(failed) == 3
    results = [
        json.loads((Path("runs/s/trials") / n / "summary.json").read_text()) for n in slow
    ]
    codes = [f["code"] for r in results for f in r["findings"]]
    assert failed or "engine.second_attempt" in codes, (
        "what went wrong at first is reported"
    )
    assert len([p for p in Path("runs/s/engines").iterdir() if "slow" in p.name]) > 1


def test_a_trial_too_long_for_the_engine_is_reported_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace(
        'kind = "fake"\nargs = ["first_ms=6"',
        'kind = "llamacpp"\nmax_model_len = 8\nargs = ["--no-warmup"',
    )
    write(text.replace(', "gap_ms=2"', ""))
    assert run() == 2
    err = capsys.readouterr().err
    assert "nothing was fetched or started" in err and "slow, w, c" in err
    assert not Path("runs/s/study.json").exists()


def test_an_engine_that_is_not_here_is_reported_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(SINGLE + '[engines.tgi]\nkind = "tgi"\nmodel = ["some/model", "another/model"]\n')
    assert run() == 2
    err = capsys.readouterr().err
    assert (
        "tgi" in err
        and " (and 1 more trial): " in err
        and "dyno knows no image of tgi for cpu" in err
    )
    assert run("--only", "quick*") == 0, "what is asked for can be run all the same"


# ---- stopping early ----


def test_a_saturated_series_is_not_driven_further(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        STUDY[: STUDY.index("[engines.slow]")]
        + STUDY[STUDY.index("[workloads.w]") :]
        + "[stop]\n"
    )
    write(text.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "[1, 4, 2, 8]"))
    assert run("--limit", "2") == 0
    # as if two streams were one too many
    for name, throughput, latency in (("1", 100.0, 10.0), ("2", 101.0, 20.0)):
        (path,) = Path("runs/s/trials").glob(f"quick-w-c-{name}-*/summary.json")
        result = json.loads(path.read_text())
        result["summary"]["latencies"]["e2el"] |= {"median": latency}
        result["summary"] |= {"output_throughput": throughput, "steady": None}
        path.write_text(json.dumps(result | {"findings": []}))
    capsys.readouterr()
    assert run() == 0
    assert len(done()) == 2 and not any("c-4-" in n or "c-8-" in n for n in done())
    out, err = capsys.readouterr()
    reported = "saturated at less load: 101.0 tok/s after 100.0 (whole run), median latency 20.00 ms after 10.00"
    assert (
        f"skipped quick, w, c concurrency 8: {reported}" in out
        and err.count("skipped: saturated") == 2
    )
    assert main(["runs"]) == 0
    assert "2/2" in capsys.readouterr().out, "what was left out is not missing"
    assert run() == 0 and len(done()) == 2, "and it stays so"


def test_vectors_are_measured_by_their_own_throughput(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers without text have no output tokens: more load saturates nothing as long as more vectors come."""
    text = STUDY[: STUDY.index("[engines.slow]")] + STUDY[STUDY.index("[workloads.w]") :]
    text = text.replace("repeats = 2", "repeats = 1").replace("[1, 2]", "[1, 2, 4]")
    text = text.replace('kind = "fake"', 'kind = "fake"\nbackend = "openai-embeddings"')
    text = text.replace("first_ms=2", "first_ms=40")
    write(f"{text}[stop]\n")
    assert run() == 0
    assert len(done()) == 3
    out = capsys.readouterr().out
    assert "inputs/s" in out and "tok/s" not in out.partition("Latencies")[0]


# ---- choosing ----


def test_only_and_limit_choose_trials_of_the_same_study(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY)
    assert run("--only", "quick", "--limit", "1") == 0
    assert len(done()) == 1 and all(n.startswith("quick") for n in done())
    assert run("--only", "slow*concurrency 2", "--limit", "1") == 0
    assert len(done()) == 2
    capsys.readouterr()
    assert run("--only", "fast") == 2
    assert "No trial is named like 'fast'" in capsys.readouterr().err


def test_a_study_meant_for_another_machine_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY + '[rigs.big]\naccelerator = "MI300X"\naccelerators = 8\n')
    assert run() == 2
    assert "is for big (8 × MI300X), but this machine has" in capsys.readouterr().err
    assert run("--dry-run") == 0
    assert run("--any-rig", "--limit", "1") == 0
    place = json.loads(next(Path("runs/s/trials").glob("*/trial.json")).read_text())[
        "place"
    ]
    assert place["rig"] == "big"
    capsys.readouterr()
    assert run("--rig", "bigg") == 2
    assert "no such rig. There are: big." in capsys.readouterr().err


def test_a_study_begun_on_another_machine_is_not_gone_on_with(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY)
    run("--limit", "1")
    path = next(Path("runs/s/trials").glob("*/trial.json"))
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"rig": manifest["rig"] | {"cpu": "another"}}))
    assert run("--limit", "1") == 2
    assert (
        "was started on another machine, or this machine has changed"
        in capsys.readouterr().err
    )
    assert run("--limit", "1", "--any-rig") == 0


def test_an_engine_that_was_upgraded_in_between_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY)
    run("--limit", "1", "--only", "quick")
    path = next(Path("runs/s/trials").glob("*/engine.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.1"}))
    assert run("--only", "quick") == 1
    assert "is version fake now, but was 0.1 in" in capsys.readouterr().err
    assert len(done()) == 1


def test_two_dynos_do_not_run_one_study(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(STUDY)
    with StudyFolder(Path("runs/s")).lock():
        assert run() == 1
    assert (
        f"Another dyno (process {os.getpid()}) runs the study in runs/s"
        in capsys.readouterr().err
    )
    assert run("--limit", "1") == 0


# ---- running servers ----


def test_a_server_that_runs_is_measured_and_its_key_stays_out_of_all_files(
    here: Path,
    fake: StartFake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = fake(first_ms=1.0, gap_ms=1.0).base_url
    write(f"""
[engines.theirs]
kind = "openai"
base_url = "{url}"
api_key_env = "THEIR_KEY"
[workloads.w]
input_len = 16
output_len = 4
num_prompts = 5
[loads.c]
max_concurrency = [1, 2]
""")
    assert run() == 2
    assert "this environment variable is not set" in capsys.readouterr().err
    monkeypatch.setenv("THEIR_KEY", "sk-very-secret-0123456789")
    assert run() == 0
    assert len(done()) == 2
    assert not list(Path("runs/s/engines").iterdir()), "nothing was started"
    for path in Path("runs").rglob("*"):
        assert not path.is_file() or b"very-secret" not in path.read_bytes()


@pytest.mark.hostile
def test_a_secret_in_a_setting_reaches_no_file_and_no_screen(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["hf_abcdefghijklmnop", "hf_qrstuvwxyzabcdef"]
    small = STUDY.replace("repeats = 2", "repeats = 1")
    envs = ", ".join(
        f'{{ HF_TOKEN = "{key}", WORD = "{i}" }}' for i, key in enumerate(keys)
    )
    write(small.replace('kind = "fake"\n', f'kind = "fake"\nenv = [{envs}]\n', 1))
    assert run("--dry-run") == 0
    assert run() == 0
    assert len(done()) == 6
    out = capsys.readouterr()
    for path in Path("runs").rglob("*"):
        assert not any(key in str(path) for key in keys)
        assert not path.is_file() or not any(
            key.encode() in path.read_bytes() for key in keys
        ), path
    assert not any(key in out.out + out.err for key in keys)
    assert "WORD:1" in out.err


def test_a_server_that_is_not_there_fails_its_trials_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        SINGLE
        + '[engines.gone]\nkind = "openai"\nbase_url = "http://127.0.0.1:9"\nmodel = "x"\n'
    )
    assert run() == 1
    assert len(done()) == 2
    assert len(list(Path("runs/s/trials").glob("gone*/failed.json"))) == 1
    assert "Nothing listens at http://127.0.0.1:9" in capsys.readouterr().err


# ---- the dry run ----


def test_the_dry_run_shows_trials_commands_and_time_and_runs_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        STUDY
        + '[engines.vllm]\nkind = "vllm"\nmodel = "some/model"\ntensor_parallel = [1, 2]\ndevices = [0, 1]\n'
    )
    assert run("--dry-run") == 0
    out = capsys.readouterr().out
    assert "s: 16 trials" in out and "--tensor-parallel-size 2" in out
    assert out.count("vllm tensor_parallel=2, w, c concurrency 2: ") == 1, (
        "repeats are folded"
    )
    assert "2 repeats, ~" in out and "# About " in out
    assert not Path("runs").exists()


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_a_backend_without_the_wanted_form_of_answers_is_refused_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    server = '[engines.s]\nkind = "openai"\nbase_url = "http://127.0.0.1:9"\nbackend = "transformers"\n'
    write(
        f"{server}[workloads.w]\ninput_len = 8\noutput_len = 4\n"
        "[loads.c]\nmax_concurrency = 1\nnum_prompts = 2\n[trial]\nstream = false\n"
    )
    assert run(*words) == 2
    assert "transformers has only streams" in capsys.readouterr().err
    assert not [*Path("runs").rglob("trial.json")]


def test_a_study_that_comes_with_dyno_is_found_by_its_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "demo", "--dry-run"]) == 0
    assert main(["run", "dmo", "--dry-run"]) == 2
    assert "no shipped study of that name. Shipped studies:" in capsys.readouterr().err
    assert main(["run", "no/such.toml"]) == 2


@pytest.mark.engines
def test_the_screen_shows_the_study_and_its_load(here: Path) -> None:
    """In a terminal of its own: lines that stay in place, with counts, rates and what is left."""
    import pty

    write(
        STUDY.replace("requests_per_stream = 4", "requests_per_stream = 120").replace(
            "repeats = 2", "repeats = 1"
        )
    )
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "150"
        os.execv(
            sys.executable, [sys.executable, "-m", "dyno", "run", "s.toml", "--limit", "2"]
        )
    seen = b""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = seen.decode()
    for words in (
        "of 2 trials done",
        "now    ",
        "req/s",
        "tok/s",
        "TTFT ~",
        " completed, 0 failed, ",
        "[2/2]",
        "\x1b[J",
    ):
        assert words in text, words


def test_ids_do_not_depend_on_the_process(here: Path) -> None:
    write(STUDY)
    code = "from dyno.conduct.study_plan import read; from pathlib import Path; s, _ = read(Path('s.toml')); "
    code += "print([p.place.id for p in s.trials])"
    reported = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(reported) == 1 and msgspec.json.decode(
        next(iter(reported)).replace(b"'", b'"')
    )
