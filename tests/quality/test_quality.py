"""Quality trials: items asked of a server that knows the answers, or is wrong, cut, silent or killed on purpose."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dyno.checks import examine
from dyno.checks.evidence import QualityEvidence
from dyno.cli.main import main
from dyno.facts.load import LoadSpec
from dyno.facts.quality import (
    ItemAnswer,
    PairedDifference,
    QualityPass,
    QualitySpec,
    QualitySummary,
    Sitting,
    TaskScore,
)
from dyno.facts.record import Record
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.quality import ask
from dyno.store.run import Run
from dyno.workload.tasks import TASKS, items
from pupil import known, pupil

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

ITEMS = 5 * len(TASKS)


def asked(tmp_path: Path, url: str, *words: str) -> tuple[int, Run, dict[str, Any]]:
    """Run `dyno eval` on 5 items of each task, and return its code, its folder and its summary."""
    code = main(
        ["eval", "--base-url", url, "--limit", "5", "--runs", str(tmp_path), *words]
    )
    folder = max(tmp_path.glob("*-quality-*"))
    return code, Run(folder), json.loads((folder / "summary.json").read_text())


def scores(summary: dict[str, Any], place: int = 0) -> dict[str, float]:
    return {s["task"]: s["score"] for s in summary["quality"]["passes"][place]["scores"]}


def test_right_answers_score_one_at_each_concurrency_and_each_item_is_asked_once_a_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pupil() as server:
        code, run, summary = asked(tmp_path, server.url, "--concurrency", "1", "8")
    assert code == 0
    assert scores(summary) == scores(summary, 1) == dict.fromkeys(TASKS, 1.0)
    assert len(server.asked) == ITEMS and set(server.asked.values()) == {2}
    assert {body["temperature"] for body in server.bodies} == {
        0.0
    } and "ignore_eos" not in server.bodies[0]
    assert len(run.answers(1)) == len(run.answers(8)) == ITEMS
    assert summary["quality"]["load_changes"]["items"] == ITEMS
    assert summary["verdict"] == "sound" and not run.spool_path.exists()
    out = capsys.readouterr().out
    assert "arithmetic" in out and "score at 8" in out and "no difference detected" in out
    assert (
        main(["runs", "--runs", str(tmp_path)]) == 0 and "sound" in capsys.readouterr().out
    )
    assert main(["runs", "show", str(run.path)]) == 0 and "100 %" in capsys.readouterr().out
    assert main(["runs", "show", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quality"]["form"] == "chat"


def test_examples_come_before_the_question_in_both_forms(tmp_path: Path) -> None:
    with pupil() as server:
        _, _, chat = asked(
            tmp_path / "a",
            server.url,
            "--num-fewshot",
            "2",
            "--system-instruction",
            "Be brief.",
        )
        talk = server.bodies[-1]["messages"]
        _, _, text = asked(tmp_path / "b", server.url, "--form", "completions", "--choices")
        prompt = server.bodies[-1]["prompt"]
    assert [message["role"] for message in talk] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert prompt.count("Question: ") == prompt.count("Answer:") == 4 and prompt.endswith(
        "Answer:"
    )
    assert scores(chat) == scores(text) == dict.fromkeys(TASKS, 1.0)
    assert {s["chance"] for s in text["quality"]["passes"][0]["scores"]} == {0.25}


def test_a_wrong_task_is_reported_with_the_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--base-url", "http://127.0.0.1:9", "--tasks", "arithmatic"]) == 2
    assert "Did you mean arithmetic?" in capsys.readouterr().err
    study = tmp_path / "s.toml"
    study.write_text(
        '[engines.e]\nkind = "fake"\n[quality]\ntasks = ["recal"]\nlimits = 3\n'
    )
    assert main(["run", str(study), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert (
        "s.toml:4: quality.tasks" in err
        and "recall" in err
        and "s.toml:5: quality.limits" in err
    )


def test_failed_requests_are_sent_once_more_and_then_count_as_wrong(tmp_path: Path) -> None:
    right = known()
    with pupil(
        lambda question: None if question.startswith("Copy") else right[question]
    ) as server:
        code, run, summary = asked(tmp_path, server.url)
    assert code == 3 and scores(summary)["copy"] == 0.0 and scores(summary)["sort"] == 1.0
    assert {
        count for question, count in server.asked.items() if question.startswith("Copy")
    } == {2}
    assert (
        summary["quality"]["passes"][0]["failed"] == 5
        and summary["findings"][0]["code"] == "quality.failed"
    )
    assert "refused" in next(a.error or "" for a in run.answers(1) if a.task == "copy")


def test_a_server_that_never_answers_ends_the_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pupil(lambda _: None) as server:
        assert (
            main(
                ["eval", "--base-url", server.url, "--limit", "30", "--runs", str(tmp_path)]
            )
            == 1
        )
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.hostile)]
)
def test_a_test_that_is_killed_continues_without_asking_an_answered_item_again(
    tmp_path: Path, how: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "eval",
        "--limit",
        "5",
        "--concurrency",
        "1",
        "2",
        "--runs",
        str(tmp_path),
        "--base-url",
    ]
    with pupil(pause_s=0.01) as server:
        command = [sys.executable, "-m", "dyno", *words, server.url]
        process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while len(server.bodies) < ITEMS + 10:  # in the second pass
            time.sleep(0.005)
        process.send_signal(how)
        assert process.wait() == (130 if how == signal.SIGINT else -signal.SIGKILL)
        if how == signal.SIGKILL:
            assert main(["runs", "show", str(*tmp_path.iterdir())]) == 1
            assert main(["runs", "--runs", str(tmp_path)]) == 0
            assert "`dyno eval` continues it" in capsys.readouterr().out
        assert main([*words, server.url]) == 0
    [folder] = tmp_path.iterdir()
    assert len(Run(folder).answers(1)) == len(Run(folder).answers(2)) == ITEMS
    # Two passes; the requests that were open may be sent again, and no other.
    assert 2 * ITEMS <= len(server.bodies) <= 2 * ITEMS + 2


def test_another_question_begins_a_new_test_and_a_finished_one_is_not_continued(
    tmp_path: Path,
) -> None:
    with pupil() as server:
        asked(tmp_path, server.url)
        asked(tmp_path, server.url)
        assert len([*tmp_path.iterdir()]) == 2 and len(server.bodies) == 2 * ITEMS


def test_the_key_reaches_the_server_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-quality-0123456789")
    with pupil(
        lambda question: "sk-quality-0123456789" if question.startswith("Copy") else "7"
    ) as server:
        _, run, _ = asked(tmp_path, server.url)
    assert server.keys == {"Bearer sk-quality-0123456789"}
    assert not [p for p in run.path.iterdir() if b"sk-quality" in p.read_bytes()]


# ---- a study ----

STUDY = """
name = "q"
repeats = 2
[engines.server]
kind = "openai"
base_url = "{url}"
[workloads.short]
dataset = "random"
input_len = 8
output_len = 4
num_prompts = 2
[loads.one]
max_concurrency = [1, 2]
[trial]
correctness_check = false
[quality]
limit = 2
"""


def test_a_study_asks_once_for_each_setting_after_what_it_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.toml"
    with pupil() as server:
        file.write_text(STUDY.format(url=server.url))
        assert main(["run", str(file), "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
        lines = [
            line.strip()
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("   server")
        ]
        assert [("quality" in line) for line in lines] == [False, False, True]
        assert "10 items of arithmetic, copy, recall, sort, count" in lines[2]
        assert (
            main(["run", str(file), "--runs", str(tmp_path / "runs"), "--no-report"]) == 0
        )
        before = dict(server.asked)
        assert (
            main(["run", str(file), "--runs", str(tmp_path / "runs"), "--no-report"]) == 0
        )
    assert server.asked == before
    [folder] = (tmp_path / "runs" / "q" / "trials").glob("server-quality-*")
    assert len(Run(folder).answers(1)) == 10
    assert "arithmetic" in capsys.readouterr().out


TWO = STUDY.replace("[engines.server]", "[engines.first]", 1).replace(
    "[workloads.short]",
    '[engines.second]\nkind = "openai"\nbase_url = "{other}"\n[workloads.short]',
)


def test_a_gate_on_speed_holds_beside_quality_and_says_where_its_figure_is_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pupil() as server, pupil() as other:
        (tmp_path / "q.toml").write_text(
            TWO.format(url=server.url, other=other.url).replace("[1, 2]", "1")
        )
        assert main(["run", "q.toml", "--no-report"]) == 0
    capsys.readouterr()
    assert (
        main(["compare", "q:first", "q:second", "--gate", "output_throughput>0.0001"]) == 0
    )
    assert (
        "gate output_throughput>0.0001: holds at concurrency 1" in capsys.readouterr().out
    )
    assert (
        main(
            [
                "compare",
                "q:first",
                "q:second",
                "--gate",
                "output_throughput>1e12",
                "score>-99pt",
            ]
        )
        == 3
    )
    assert main(["compare", "q:first", "q:second", "--gate", "acceptance_rate>0.5"]) == 4
    reported = capsys.readouterr().out.splitlines()[-1]
    assert (
        reported
        == "Gate undecided: acceptance_rate>0.5: no result reports this figure. Exit 4."
    )
    # A figure that is asked for is compared where it is, too.
    assert (
        main(["compare", "q:first", "q:second", "--metric", "output_throughput", "--json"])
        == 0
    )
    assert [p["kind"] for p in json.loads(capsys.readouterr().out)["pairings"]] == ["serve"]


# ---- scores ----


@pytest.mark.parametrize(
    ("text", "choices", "extracted"),
    [("B", True, "B"), (" B) 17", True, "B"), ("(C)", True, "C"), ("The answer is D.", True, "D"),
     ("Because", True, None), ("I don't know", True, None), (" 42.\n", False, "42"), ("", False, None)],
)  # fmt: skip
def test_answers_are_extracted_exactly(
    text: str, choices: bool, extracted: str | None
) -> None:
    spec = QualitySpec(tasks=["copy"], limit=1, choices=choices)
    [question] = ask.questions(spec)
    record = Record(0, 0, 0, 0, 0, 0, text=text)
    assert ask.answered(spec, question, record).extracted == extracted


def test_an_answer_in_the_completions_form_ends_before_the_next_question() -> None:
    spec = QualitySpec(tasks=["copy"], limit=1, form="completions")
    [question] = ask.questions(spec)
    record = Record(
        0,
        0,
        0,
        0,
        0,
        0,
        text=f" {question.target}\n\nQuestion: What",
        finish_reason="length",
    )
    answer = ask.answered(spec, question, record)
    assert (answer.score, answer.finish_reason) == (1.0, "stop")


def test_items_have_an_exact_answer_and_three_wrong_ones() -> None:
    for item in items(list(TASKS), 30):
        question, letter = item.with_choices()
        assert (
            len({item.answer, *item.wrong}) == 4 and f"{letter}) {item.answer}" in question
        )
    assert items(["sort"], 5) == items(["sort"], 5) != items(["sort"], 5, seed=1)


# ---- findings ----


def found(each: dict[str, Any], **more: Any) -> dict[str, str]:
    score = TaskScore("copy", "exact_match", each.pop("score", 1.0), 100, chance=0.25)
    sittings = more.pop("sittings", [])
    summary = QualitySummary("chat", [QualityPass(1, [score], 1.0, **each)], **more)
    trial = TrialSpec(
        TargetSpec("", "openai", ""),
        ask.workload(QualitySpec()),
        LoadSpec(),
        quality=QualitySpec(),
    )
    evidence = QualityEvidence(
        trial=trial, target=TargetFacts("m"), quality=summary, sittings=sittings
    )
    return {
        finding.code.removeprefix("quality."): finding.level
        for finding in examine(evidence)
    }


def test_findings_of_a_quality_test() -> None:
    change = PairedDifference(100, 0.9, 0.7, 20, 0, -0.2, -0.3, -0.1, 0.001, 0.1)
    assert found({}) == {}
    assert found({"failed": 1}) == {"failed": "doubt"} and found({"failed": 10}) == {
        "failed": "void"
    }
    assert found({"cut": 1}) == {"cut": "note"} and found({"cut": 2}) == {"cut": "doubt"}
    assert found({"not_extracted": 6}) == {"not_extracted": "doubt"}
    assert found({"truncated": 1}) == {"truncated": "void"}
    assert found({"score": 0.3}) == {"at_chance": "doubt"} and found({"score": 0.33}) == {}
    assert found({}, load_changes=change) == {"changes_under_load": "doubt"}
    assert (
        found(
            {}, load_changes=PairedDifference(100, 0.9, 0.9, 2, 2, 0.0, -0.1, 0.1, 1.0, 0.1)
        )
        == {}
    )
    assert found({}, sittings=[Sitting(1, "a"), Sitting(1, "b")]) == {"processes": "note"}


def test_dropped_prompts_are_seen_by_the_tokenizer_or_by_the_context_that_they_fill() -> (
    None
):
    def answer(tokens: int) -> ItemAnswer:
        return ItemAnswer("copy", str(tokens), "exact_match", 0.0, "", prompt_tokens=tokens)

    short, full = answer(20), answer(500)
    assert ask.dropped([short, full], lambda a: (30, 90), None) == 1
    assert ask.dropped([short, full], lambda a: (20, 90), None) == 0
    lengths = iter([(0, 100), (0, 3000), (0, 2000)])
    assert ask.dropped([short, full, full], lambda _: next(lengths), 512) == 2
    lengths = iter([(0, 100), (0, 2000), (0, 2000)])
    assert ask.dropped([short, full, full], lambda _: next(lengths), 512) == 0


def test_a_token_limit_that_ends_answers_is_a_finding(tmp_path: Path) -> None:
    with pupil(finish="length") as server:
        _, _, summary = asked(tmp_path, server.url)
    assert [finding["code"] for finding in summary["findings"]] == ["quality.cut"]


def test_a_pack_without_prompts_has_scores_and_no_words(tmp_path: Path) -> None:
    with pupil() as server:
        _, run, _ = asked(tmp_path / "a", server.url)
    archive = str(tmp_path / "a.tar.zst")
    assert main(["runs", "pack", str(run.path), "--no-prompts", "-o", archive]) == 0
    assert main(["runs", "unpack", archive, "--runs", str(tmp_path / "b")]) == 0
    [folder] = (tmp_path / "b").iterdir()
    answers = Run(folder).answers(1)
    assert [a.score for a in answers] == [1.0] * ITEMS and {
        f"{a.answer}{a.target}{a.extracted}" for a in answers
    } == {""}
