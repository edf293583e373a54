"""Several answers to one request can't be timed as one: dyno says so before the load, wherever they are asked for."""

import re
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.conduct import study_plan
from dyno.errors import UsageError
from dyno.facts.trial import several_answers

STUDY = """
[engines.e]
kind = "fake"
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = [1]
requests_per_stream = 4
[trial]
%s
"""


@pytest.mark.parametrize("command", [["bench", "serve"], ["find", "--target", "failed:0"]])
@pytest.mark.parametrize("body", ['{"n": 2}', '{"best_of": 4}', '{"n_cmpl": 3, "n": 1}'])
def test_several_answers_are_refused_in_extra_body(
    command: list[str], body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                *command,
                "--base-url",
                "http://127.0.0.1:9",
                "--model",
                "m",
                "--extra-body",
                body,
            ]
        )
        == 2
    )
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"--extra-body \w+ asks for several answers to each request \(\d\), but dyno times one",
        text,
    )
    assert "send more requests at a higher concurrency" in text


@pytest.mark.parametrize(
    "line", ["extra_body = { n = 2 }", "sampling = { temperature = 0.5, best_of = 2 }"]
)
def test_several_answers_are_refused_at_their_line_of_a_study(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY % line)
    with pytest.raises(
        UsageError,
        match=r"s\.toml:11: trial\.\w+\.\w+: asks for several answers to each request \(2\)",
    ):
        study_plan.read(path)


def test_one_answer_may_be_asked_for() -> None:
    assert several_answers({"n": 1, "best_of": None, "temperature": 2}) is None
    assert several_answers({"n": "2"}) == "n"  # vLLM takes it for a number
