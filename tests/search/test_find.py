"""`dyno find` against the fake engine, whose capacity is known."""

import argparse
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from conftest import ExpectDecided, StartFake
from dyno.cli import find as find_cli
from dyno.cli.main import main
from dyno.facts.entry import Cost
from dyno.facts.find import FindAnswer, FindSpec, LimitFigure, ProbeFacts
from dyno.facts.finding import Finding
from dyno.facts.limits import Limit
from dyno.facts.load import LoadSpec
from dyno.facts.summary import Result
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.measure.statistics import distribution_ms
from dyno.report.find import lines
from dyno.screen import SCREEN, Screen
from dyno.search.find import Finder, disturbed, others
from dyno.search.judge import OPEN_FILL, OPEN_LEAST_S, ROUGH
from dyno.search.search import ProbeStep
from dyno.store.run import Run
from dyno.trial.watcher import Watcher
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

MODEL = Path(__file__).parents[2] / "src" / "dyno" / "engines" / "dyno-5m"
# Asking the server for each prompt would take longer than the probes.
SHORT = ["--random-input-len", "8", "--random-output-len", "3", "--disable-tqdm", "--no-correctness-check",
         "--tokenizer", str(MODEL)]  # fmt: skip


def find(url: str, folder: Path, *flags: str) -> list[str]:
    return ["find", "--base-url", url, "--runs", str(folder), *SHORT, *flags]


def answer(folder: Path) -> FindAnswer:
    [path] = folder.glob("*/find.json")
    return msgspec.json.decode(path.read_bytes(), type=FindAnswer)


@pytest.mark.engines  # slow
def test_the_interval_holds_the_capacity_of_the_server(
    fake: StartFake,
    expect_decided: ExpectDecided,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # TTFT is 40 ms up to 4 requests at once, then 10 ms for each: 8 at once are the most within 80 ms, and the median
    # shows it with few requests.
    url = fake(first_ms=40.0, gap_ms=1.0, slots=4, noise=0.05).base_url
    flags = [
        "--target",
        "ttft_p50:85",
        "failed:0",
        "--to",
        "64",
        "--resolution",
        "0.1",
        "--budget",
        "60",
        "--json",
    ]
    code = main(find(url, tmp_path, *flags, "--price", "machine=2"))
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["low"] or 0) <= 8.5 <= (found["high"] or math.inf)
    expect_decided(code == 0 and found["ended"] == "narrow")
    assert re.search(
        r"about \d+ (s|min) to \d+ (s|min): \d+ to \d+ probes; at most 60 s \(--budget\)",
        err,
    ), err
    assert len(re.findall(r"About .* left", err)) == 1
    assert found["high"] / found["low"] < 2
    stored = answer(tmp_path)
    assert stored.limited_by[0] == "median TTFT ≤ 85 ms"
    text = "\n".join(lines(stored))
    assert (
        f"concurrency {found['low']:g} (95 % interval:" in text
        and "lowest that misses it" in text
    )
    assert {p.outcome for p in stored.probes} >= {"meets", "misses"}
    [folder] = [path.parent for path in tmp_path.glob("*/find.json")]
    picture = (folder / "find.svg").read_text()
    assert f"Chart: {folder / 'find.svg'}" in err and "median TTFT (ms)" in picture
    speed = stored.at_level(stored.low).throughput  # type: ignore[union-attr]
    assert found["cost"]["per_million_output"] == pytest.approx(
        2 / 3600 / speed * 1e6, rel=0.01
    )
    cost = msgspec.convert(found["cost"], Cost)
    assert "  cost there: " in "\n".join(
        lines(stored, cost)
    ) and "per million output tokens" in "\n".join(lines(stored, cost))
    runs = [folder / p.run for p in stored.probes]
    assert all((run / "summary.json").exists() for run in runs) and len(set(runs)) == len(
        runs
    )


@pytest.mark.engines
def test_a_target_that_no_load_meets_and_one_that_every_load_meets(
    fake: StartFake,
    expect_decided: ExpectDecided,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = fake(first_ms=30.0).base_url
    none = ["--target", "ttft_p50:10", "--from", "4", "--budget", "40"]
    code = main(find(url, tmp_path / "none", *none))
    assert answer(tmp_path / "none").low is None
    expect_decided(code == 0)
    assert "no load meets it, not even concurrency 4." in capsys.readouterr().out
    every = ["--target", "ttft_p50:1000", "--to", "4", "--price", "B999=2"]
    code = main(find(url, tmp_path / "all", *every))
    assert answer(tmp_path / "all").high is None
    expect_decided(code == 0)
    out, err = capsys.readouterr()
    assert (
        "every load up to concurrency 4 meets it. Raise --to." in out
        and "Give --price machine=DOLLARS." in err
    )


@pytest.mark.engines
def test_aborted_answers_miss_a_target_without_failures(
    fake: StartFake,
    expect_decided: ExpectDecided,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = fake(faults={"abort": 2}).base_url
    code = main(
        find(url, tmp_path, "--target", "failed:0", "--from", "4", "--budget", "40")
    )
    assert answer(tmp_path).low is None
    expect_decided(code == 0)
    assert "no load meets it, not even concurrency 4" in capsys.readouterr().out


@pytest.mark.engines
def test_a_server_that_dies_half_way_leaves_what_was_learnt(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake(first_ms=20.0, slots=2, faults={"die": 150}).base_url
    flags = ["--target", "ttft_p50:500", "failed:0.5", "--to", "64", "--budget", "30"]
    assert main(find(url, tmp_path, *flags)) == 1
    found = answer(tmp_path)
    assert found.ended == "server gone" and found.probes
    assert "The server stopped answering" in capsys.readouterr().out


@pytest.mark.engines  # slow
def test_a_cliff_is_named(
    fake: StartFake,
    expect_decided: ExpectDecided,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = fake(first_ms=20.0, cliff=6, noise=0.1).base_url
    code = main(
        find(url, tmp_path, "--target", "ttft_p50:100", "--to", "32", "--budget", "60")
    )
    found = answer(tmp_path)
    assert (found.low or 0) <= 6 < (found.high or math.inf)
    expect_decided(code == 0 and found.ended == "narrow")
    assert found.low == 6 and found.high in (7, 8)
    assert "a cliff: median TTFT jumps to" in capsys.readouterr().out


def test_ctrl_c_keeps_the_best_answer_so_far(fake: StartFake, tmp_path: Path) -> None:
    url = fake(first_ms=50.0, slots=2).base_url
    command = [
        sys.executable,
        "-m",
        "dyno",
        *find(url, tmp_path, "--target", "ttft_p90:900", "--budget", "120"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while (
        not any('"facts"' in p.read_text() for p in tmp_path.glob("*/probes.json"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Interrupted: this is the best answer so far." in out and answer(tmp_path).probes


def test_a_dry_run_says_how_long_it_takes_and_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            find(
                "http://127.0.0.1:9",
                tmp_path,
                "--target",
                "ttft_p90:100",
                "--to",
                "64",
                "--dry-run",
            )
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "p90 TTFT ≤ 100 ms: about " in out and "at most 20 min (--budget)" in out
    assert not list(tmp_path.iterdir())
    assert main([*find("", tmp_path, "--target", "ttft:5", "--dry-run")[:1], "--target", "ttft:5", "--engine", "fake",
                 "--dry-run"]) == 0  # fmt: skip
    assert "dyno.engines.fake" in capsys.readouterr().out


def test_ctrl_c_in_the_first_probe(fake: StartFake, tmp_path: Path) -> None:
    url = fake(first_ms=50.0, slots=2).base_url
    flags = ["--target", "ttft_p90:900", "--over", "rate"]
    command = [sys.executable, "-m", "dyno", *find(url, tmp_path, *flags)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/*/exchanges.spool")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "not known: no probe was completed." in out or "interrupted" in err
    assert "Traceback" not in err
    assert list(tmp_path.glob("*/probes.json"))  # `dyno runs` lists a search, not a run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--target", "throughput:5"], "Known: ttft, tpot, itl, e2el, optionally"),
        (["--target", "ttft_p0:5"], "--target ttft_p0: a search takes ttft"),
        (
            ["--target", "ttft:5", "--from", "1.5"],
            "--from 1.5: concurrency is a whole number",
        ),
        (
            ["--target", "ttft:5", "--over", "rate", "--request-rate", "5"],
            "--request-rate: .* chooses the load itself",
        ),
        (
            ["--target", "ttft:5", "--num-prompts", "5"],
            "--num-prompts: .* chooses the load itself",
        ),
        (["--target", "ttft:5", "--save-result"], "--json prints its answer"),
        (["--target", "ttft_p99"], "write NAME:LIMIT"),
        (["--target", "tfft:5"], "Did you mean ttft"),
        (["--target", "failed:3"], "share of the requests"),
        (["--target", "ttft:5", "--max-concurrency", "4"], "chooses the load itself"),
        (["--target", "ttft:5", "--from", "9", "--to", "3"], "--from 9 is above --to 3"),
        (["--target", "ttft_max:5"], "takes ttft, tpot, itl or e2el"),
        (["--target", "ttft:5", "--budget", "soon"], "is not a time"),
    ],
)
def test_mistakes_get_a_sentence(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(find("http://127.0.0.1:9", tmp_path, *flags))
    except SystemExit as e:
        code = int(str(e.code))
    assert code == 2 and re.search(words, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_server_that_isnt_up_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(find("http://127.0.0.1:9", tmp_path, "--target", "ttft:5")) == 1
    assert "Nothing listens at http://127.0.0.1:9" in capsys.readouterr().err and not list(
        tmp_path.iterdir()
    )


def probe(level: float, outcome: Any, ms: float) -> ProbeFacts:
    within = {"meets": True, "misses": False, "undecided": None}[outcome]
    return ProbeFacts(
        level,
        outcome,
        False,
        100,
        120,
        5.0,
        [LimitFigure(Limit("ttft", 60.0, "p90"), ms, within)],
        "x",
    )


@pytest.mark.parametrize(
    ("ended", "probes", "least", "words"),
    [
        ("narrow", [probe(4, "undecided", 59), probe(8, "undecided", 61)], None,
         "not decided at 95 %: concurrency 4 to 8 was tried, and none is shown to meet or miss it."),
        ("interrupted", [probe(4, "undecided", 40)], None,
         "not decided at 95 %: concurrency 4 was tried, and none is shown to meet or miss it."),
        ("interrupted", [], None, "not known: no probe was completed."),
        ("no load meets", [probe(1, "misses", 90)], None, "no load meets it, not even concurrency 1. Raise the limit."),
        ("no load meets", [probe(8, "misses", 90)], 8, "not even concurrency 8. Raise the limit or lower --from."),
        ("budget", [probe(4, "meets", 40)], None,
         "not decided at 95 %: at least concurrency 4; no probe showed a load that misses it."),
    ],
)  # fmt: skip
def test_an_answer_that_isnt_one_says_what_to_do(
    ended: Any, probes: list[ProbeFacts], least: float | None, words: str
) -> None:
    spec = FindSpec([Limit("ttft", 60.0, "p90")], least=least)
    low = max((p.level for p in probes if p.outcome == "meets"), default=None)
    high = min((p.level for p in probes if p.outcome == "misses"), default=None)
    text = list(lines(FindAnswer(spec, ended, low, high, probes, 0, 5.0)))
    assert words in " ".join(line.strip() for line in text)
    assert ("within" in " ".join(text[2:])) == bool(probes)
    token = SCREEN.set(Screen(60, fits=True))
    narrow = list(lines(FindAnswer(spec, ended, low, high, probes, 0, 5.0)))
    SCREEN.reset(token)
    assert max(map(len, narrow)) <= 60


def test_a_miss_at_the_lowest_load_answers_also_where_higher_ones_could_not_be_measured() -> (
    None
):
    """It printed "no load meets it", and exited with "not decided"."""
    spec = FindSpec([Limit("ttft", 60.0, "p90")], least=4)
    found = FindAnswer(spec, "client", None, 4, [probe(4, "misses", 90)], 3, 5.0)
    assert found.decided and "no load meets it" in " ".join(lines(found))
    assert not FindAnswer(spec, "client", None, 8, [], 3, 5.0).decided


def test_what_makes_probes_doubtful_is_named_below_their_table() -> None:
    spec = FindSpec([Limit("ttft", 60.0, "p90")])
    codes = [["engine.frozen", "client.unseen_chunks"], ["client.unseen_chunks"], []]
    probes = [
        msgspec.structs.replace(probe(level, "meets", 40), doubts=doubts)
        for level, doubts in enumerate(codes, 1)
    ]
    text = " ".join(lines(FindAnswer(spec, "budget", 3, None, probes, 0, 5.0)))
    assert "Doubtful by client.unseen_chunks (2 probes), engine.frozen (1 probe):" in text
    sound = FindAnswer(spec, "budget", 3, None, probes[2:], 0, 5.0)
    assert "Doubtful" not in " ".join(lines(sound))


@pytest.mark.engines  # slow
def test_a_queue_that_grows_ends_a_probe_and_is_named(
    fake: StartFake,
    expect_decided: ExpectDecided,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = fake(first_ms=50.0, slots=2).base_url  # about 40 requests/s
    flags = [
        "--over",
        "rate",
        "--target",
        "failed:0",
        "--from",
        "90",
        "--to",
        "100",
        "--budget",
        "30",
    ]
    code = main(find(url, tmp_path, *flags))  # no load meets it
    assert answer(tmp_path).low is None
    expect_decided(code == 0)
    assert any(
        probe.queue_grew and probe.outcome == "misses" for probe in answer(tmp_path).probes
    )
    assert "a queue that grew without end" in capsys.readouterr().out


# ---- what spoils a probe ----

SERVED = (
    Path(__file__).parents[1] / "fixtures" / "runs" / "20261116-115039-serve-fake-c3-2af4"
)


def with_client(**figures: Any) -> Result:
    """The result of a sound run, whose client was such."""
    result = Run(SERVED).result()
    assert result.summary is not None
    client = msgspec.structs.replace(result.summary.client, **figures)
    return msgspec.structs.replace(
        result, findings=[], summary=msgspec.structs.replace(result.summary, client=client)
    )


def test_a_probe_is_spoiled_only_for_the_figures_that_its_target_has() -> None:
    unseen = with_client(unseen_share=0.4)
    assert disturbed(unseen, [Limit("ttft", 500.0, "p50")]) == ""
    assert disturbed(unseen, [Limit("e2el", 500.0, "p99")]) == ""
    assert "could not time 40 % of the chunks" in disturbed(
        unseen, [Limit("itl", 50.0, "p99")]
    )


def test_requests_that_are_sent_late_spoil_every_target_and_who_disturbed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "dyno.search.find.rig.read_machine", lambda: SimpleNamespace(cores=2)
    )
    late = with_client(send_late=distribution_ms([5e9] * 10, [99]), others_cpu=1.8)
    why = disturbed(late, [Limit("ttft", 500.0, "p50")])
    assert why == "dyno sent late: 5,000 ms on average. Other programs used 1.8 of 2 cores."
    alone = with_client(send_late=distribution_ms([5e3] * 10, [99]), others_cpu=0.1)
    assert disturbed(alone, [Limit("ttft", 500.0, "p50")]) == "" and others(alone) == ""


def test_a_latency_that_is_known_within_bounds_is_left_to_its_limit() -> None:
    doubts = with_client()
    loose = Finding(
        "client.unseen_chunks",
        "doubt",
        "p99 TPOT is known within bounds only.",
        "Use --procs.",
    )
    busy = Finding("client.busy", "doubt", "dyno used a whole core.", "Use --procs 2.")
    assert (
        disturbed(
            msgspec.structs.replace(doubts, findings=[loose]), [Limit("ttft", 500.0, "p50")]
        )
        == ""
    )
    assert "whole core" in disturbed(
        msgspec.structs.replace(doubts, findings=[busy]), [Limit("ttft", 500.0, "p50")]
    )


def test_a_probe_has_prompts_enough_to_show_something_however_slowly_they_are_made(
    tmp_path: Path,
) -> None:
    """Once, slow prompts left 2 s of load, of which nothing could be judged; the search tried it again and again."""
    spec = FindSpec(limits=[Limit("e2el", 500.0, "p50")], over="rate", budget_s=60.0)
    trial = TrialSpec(
        TargetSpec("http://127.0.0.1:1", "openai", "/v1/completions"),
        WorkloadSpec("random", num_prompts=1),
        LoadSpec(),
    )
    finder = Finder(trial, spec, tmp_path, Watcher(), Stop())
    finder._prompt_s = 0.1
    step = ProbeStep(80.0, True, 20.0)
    counted_s = OPEN_LEAST_S / ROUGH / (1 - OPEN_FILL)
    assert finder._requests(step, None) > 80 * counted_s
    assert finder._requests(ProbeStep(80.0, False, 20.0), None) > 80 * OPEN_LEAST_S / (
        1 - OPEN_FILL
    )


def test_an_undecided_search_ends_with_the_command_that_would_decide_it() -> None:
    spec = FindSpec([Limit("ttft", 500.0, "p90")])
    found = FindAnswer(
        spec, "budget", 3, None, [probe(3, "meets", 90)], 0, 30.0, needs_s=95
    )
    words = ["find", "--port", "1", "--budget", "30s", "--target", "ttft_p90:500"]
    command = find_cli._again(found, argparse.Namespace(words=words))
    assert command == "dyno find --port 1 --target ttft_p90:500 --budget 2m"
    text = " ".join(lines(msgspec.structs.replace(found, command=command)))
    assert f"search again: {command}" in text
