"""Quality items whose answers have a prescribed form: what is JSON, what has the form, and what is right."""

import json
from pathlib import Path

import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.facts.record import Record, ToolCall
from dyno.quality import forms
from dyno.store.run import Run
from dyno.workload.tasks import TASKS, Item, items
from pupil import pupil

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

BY_QUESTION = {one.question: one for one in items(list(TASKS), 60)}


def item_of(question: str) -> Item:
    return BY_QUESTION[question.partition("\nAnswer as JSON")[0]]


def right(question: str) -> str:
    return json.dumps({"answer": item_of(question).value})


def as_text(question: str) -> str:
    """The right answer, where a number or a list was asked for as a text."""
    return json.dumps({"answer": item_of(question).answer})


def asked(folder: Path, url: str, *words: str) -> tuple[int, Path]:
    code = main(["eval", "--base-url", url, "--runs", str(folder), *words])
    return code, max(folder.glob("*-quality-*"))


def scores(folder: Path) -> dict[tuple[str, str], float]:
    [each] = json.loads((folder / "summary.json").read_text())["quality"]["passes"]
    return {(s["task"], s["metric"]): s["score"] for s in each["scores"]}


def test_an_answer_that_is_json_may_be_invalid_and_a_valid_one_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        "arithmetic": right,
        "copy": lambda _: '{"answer": "lamp"}',
        "sort": as_text,
        "recall": lambda question: item_of(question).answer + " is the code",
        "count": lambda question: right(question)[:-1] + ', "why": "counted"}',
    }
    with pupil(lambda question: said[item_of(question).task](question)) as server:
        words = ["--answer-form", "json", "--limit", "6"]
        _, folder = asked(tmp_path, server.url, *words)
        schema = server.bodies[0]["response_format"]["json_schema"]
    assert schema["strict"] and schema["schema"]["required"] == ["answer"]
    found = scores(folder)
    by_task = {
        task: [found[task, metric] for metric in ("parsed", "valid", "exact_match")]
        for task in TASKS
    }
    assert by_task == {
        "arithmetic": [1, 1, 1],
        "copy": [1, 1, 0],
        "sort": [1, 0, 0],
        "recall": [0, 0, 0],
        "count": [1, 0, 0],
    }
    problems = {a.task: a.problem for a in Run(folder).answers(1)}
    assert problems["sort"] == "schema" and problems["recall"] == "not JSON"
    printed = capsys.readouterr().out
    assert "parsed" in printed and "valid" in printed
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    assert " 30 " in capsys.readouterr().out, "an item counts once, not once a metric"


def test_in_words_the_question_is_the_same_and_nothing_is_prescribed(
    tmp_path: Path,
) -> None:
    with pupil(right) as server:
        code, folder = asked(
            tmp_path, server.url, "--answer-form", "json-words", "--limit", "4"
        )
        words = server.bodies[-1]
        asked(tmp_path, server.url, "--answer-form", "json", "--limit", "4")
        json_ = server.bodies[-1]
    assert code == 0 and set(scores(folder).values()) == {1.0}
    assert "response_format" not in words and "response_format" in json_
    assert words["messages"] == json_["messages"]


@pytest.mark.parametrize(
    ("fault", "parsed", "valid"),
    [("schema", 40, 32), ("not_json", 32, 32), ("wrong_tool", 40, 32), ("no_call", 32, 32)],
)
def test_tool_calls_are_judged_by_name_and_arguments(
    fault: str, parsed: int, valid: int, fake: StartFake, tmp_path: Path
) -> None:
    url = fake(first_ms=2, gap_ms=0.1, faults={fault: 5}).base_url
    words = ["--answer-form", "tool", "--tasks", "arithmetic", "--limit", "40"]
    _, folder = asked(tmp_path, url, *words)
    found = scores(folder)
    assert found["arithmetic", "parsed"] == pytest.approx(parsed / 40)
    assert found["arithmetic", "valid"] == pytest.approx(valid / 40)
    assert 0 < found["arithmetic", "exact_match"] <= found["arithmetic", "valid"]


def test_a_comparison_has_each_of_the_three_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--answer-form", "json", "--tasks", "arithmetic", "count", "--limit", "60"]
    with pupil(right) as server:
        asked(tmp_path / "a", server.url, *words)
    numbers = iter(range(1000))
    with pupil(lambda q: right(q) if next(numbers) % 3 else as_text(q)) as server:
        asked(tmp_path / "b", server.url, *words)
    sides = [str(max((tmp_path / side).glob("*-quality-*"))) for side in "ab"]
    capsys.readouterr()
    main(["compare", *sides])
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in map(str.strip, out.splitlines())}
    assert "-33.3 pt" in rows["count, exact_match"] and "-33.3 pt" in rows["count, valid"]
    assert rows["count, parsed"].endswith("no difference detected")
    assert rows["count, valid"].endswith("worse")


def test_every_right_answer_is_valid() -> None:
    for one in items(list(TASKS), 60):
        record = Record(0, 0, 0, 1, 1, 1, text=forms.answer(one), finish_reason="stop")
        assert forms.judge("json", one, record)[:3] == (True, True, True), one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--answer-form", "json", "--tasks", "gsm8k"], "json is for built-in tasks alone"),
        (["--answer-form", "json", "--choices"], "without choices"),
        (["--answer-form", "tool", "--form", "completions"], "needs the chat form"),
        (["--answer-form", "tool", "--num-fewshot", "2"], "takes no examples"),
    ],
)
def test_forms_that_a_test_can_not_have_are_refused_before_anything_is_asked(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--base-url", "http://127.0.0.1:9", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_call_is_valid_by_its_arguments_and_right_by_its_answer() -> None:
    one = items(["sort"], 1)[0]

    def judged(*calls: ToolCall) -> tuple[bool, bool, bool]:
        record = Record(0, 0, 0, 1, 1, 1, calls=list(calls), finish_reason="tool_calls")
        return forms.judge("tool", one, record)[:3]

    answer = json.dumps({"answer": one.value})
    cut = Record(0, 0, 0, 1, 1, 1, text="92", finish_reason="length")
    assert forms.judge("json", one, cut)[:3] == (False, False, False)
    assert judged(ToolCall("give_answer", answer)) == (True, True, True)
    assert judged(ToolCall("other", answer)) == (True, False, False)
    assert judged(ToolCall("give_answer", '{"answer": "1"}')) == (True, False, False)
    assert judged(ToolCall("give_answer", '{"answer": [')) == (False, False, False)
    assert judged() == (False, False, False)
