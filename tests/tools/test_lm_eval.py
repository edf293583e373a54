"""lm-evaluation-harness for real: its own code, asked through `dyno eval`, against a server that knows the answers.

`make test-tools`. It is installed once, outside the project (`dyno engines install lm-eval`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.engines import environment
from dyno.engines.install import install
from dyno.store.run import Run
from pupil import Pupil, known, pupil

pytestmark = pytest.mark.tools
KEY = "sk-lm-eval-0123456789"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if environment.find("lm-eval") is None:
        install("lm-eval")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tasks")
    assert main(["eval", "--write-tasks", str(folder), "--limit", "10"]) == 0
    return str(folder)


def words(server: Pupil, tasks: str, runs: Path, *more: str) -> list[str]:
    return [
        "eval",
        "--base-url",
        server.url,
        "--include-path",
        tasks,
        "--runs",
        str(runs),
        *more,
    ]


def test_lm_eval_asks_the_items_of_built_in_tasks_and_scores_them(
    tmp_path: Path, tasks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    right = known()
    wrong = next(question for question in right if question.startswith("Sort"))
    refused = next(question for question in right if question.startswith("Copy"))
    answer = {**right, wrong: KEY, refused: None}
    with pupil(answer.get, finish="length") as server:
        more = [
            "--tasks",
            "dyno_copy",
            "dyno_sort",
            "--form",
            "chat",
            "--concurrency",
            "1",
            "4",
            "--limit",
            "5",
        ]
        assert main(words(server, tasks, tmp_path, *more)) == 3
    [folder] = tmp_path.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    for each in summary["quality"]["passes"]:
        assert {s["task"]: s["score"] for s in each["scores"]} == {
            "dyno_copy": 0.8,
            "dyno_sort": 0.8,
        }
        assert (each["failed"], each["cut"]) == (1, 9)
    assert summary["quality"]["tools"]["lm-eval"] == "0.4.13"
    answers = Run(folder).answers(4)
    assert len(answers) == 10 and {a.finish_reason for a in answers if not a.error} == {
        "length"
    }
    assert all(a.prompt_tokens and a.prompt_sha256 for a in answers if not a.error)
    assert [
        a.error for a in answers if a.error and "400" in a.error and a.task == "dyno_copy"
    ]
    assert server.keys == {f"Bearer {KEY}"}
    assert not [p for p in folder.iterdir() if KEY.encode() in p.read_bytes()]


def test_a_killed_test_asks_no_answered_item_again(tmp_path: Path, tasks: str) -> None:
    with pupil(pause_s=0.05) as server:
        more = [
            "--tasks",
            "dyno_copy",
            "dyno_count",
            "dyno_sort",
            "--form",
            "chat",
            "--concurrency",
            "2",
        ]
        command = words(server, tasks, tmp_path, *more)
        process = subprocess.Popen(
            [sys.executable, "-m", "dyno", *command], start_new_session=True
        )
        while len(server.bodies) < 12:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(2.0)  # the program ends with dyno: it asks nothing more
        asked = len(server.bodies)
        time.sleep(0.5)
        assert len(server.bodies) == asked
        assert main(command) == 0
    [folder] = tmp_path.iterdir()
    assert len(Run(folder).answers(2)) == 30 and 30 <= len(server.bodies) <= 32
    assert not [p.name for p in folder.iterdir() if p.suffix in (".cache", ".log")]


def test_what_can_not_be_asked_is_refused_in_words(
    tmp_path: Path,
    tasks: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    with pupil() as server:
        for task, message in (
            ("dyno_copy_choices", "A generative form: dyno_copy."),
            ("gsmk8", "Did you mean gsm8k?"),
            ("gsm8k", "The data set openai/gsm8k of the task gsm8k is not on this machine"),
        ):
            assert main(words(server, tasks, tmp_path, "--tasks", task, "--new")) == 2
            assert message in capsys.readouterr().err
