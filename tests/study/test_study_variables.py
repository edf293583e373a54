"""Variables of a study's file: from outside, from one another, and where text is wanted."""

from pathlib import Path

import pytest

from dyno.errors import UsageError
from studies import study

TEXT = """
[variables]
version = "0.6"
steps = [1, 20]
name = "llama"
models = ["${name}-8b", "${name}-70b"]

[engines.vllm]
kind = "vllm"
version = "${version}"
model = "${models}"
args = ["--num-scheduler-steps", "${steps}"]
env = { STEPS = "${steps}", THREADS = 4 }

[workloads.w]
input_len = 8
output_len = 8

[loads.one]
max_concurrency = 1
num_prompts = 1
"""


def engines(
    text: str = TEXT, **given: str
) -> list[tuple[str | None, str | None, list[str], dict[str, str]]]:
    trials = study(text, Path("some.toml"), given).trials
    return [(e.version, e.model, e.args, e.env) for p in trials if (e := p.trial.engine)]


def test_a_number_among_words_and_in_the_environment_is_text() -> None:
    assert engines(name="tiny") == [
        (
            "0.6",
            f"tiny-{size}",
            ["--num-scheduler-steps", steps],
            {"STEPS": steps, "THREADS": "4"},
        )
        for size in ("8b", "70b")
        for steps in ("1", "20")
    ]


def test_what_is_text_in_the_file_stays_text_when_it_is_set() -> None:
    assert {e[0] for e in engines(version="0.10")} == {"0.10"}
    assert {e[0] for e in engines(version='["0.9", "0.10"]')} == {"0.9", "0.10"}
    assert {e[2][1] for e in engines(steps="5")} == {"5"}


def test_a_variable_that_names_one_that_is_not_there_is_reported() -> None:
    with pytest.raises(
        UsageError,
        match=r":6: variables\.models: there is no variable .nam.*Did you mean name",
    ):
        engines(TEXT.replace("${name}-8b", "${nam}-8b"))
