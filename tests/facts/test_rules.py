"""What contradicts what is one list: the command line prints a rule with flags, a study with keys."""

from pathlib import Path
from string import Formatter

import pytest

from dyno.api import vocabulary
from dyno.cli.main import main
from dyno.conduct import study_plan
from dyno.errors import UsageError
from dyno.facts import rules
from dyno.study.cells import CELLS

ALL = [*rules.LOAD, *rules.WORKLOAD, *rules.TRIAL, *rules.TARGET]
STUDY = """
[engines.e]
kind = "openai"
base_url = "http://127.0.0.1:9"
[workloads.w]
input_len = 16
output_len = 3
%s
[loads.l]
num_prompts = 4
%s
"""


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: f"{rule.setting} {rule.text[:30]}")
def test_a_rule_names_settings_that_there_are(rule: rules.Rule) -> None:
    named = {field for _, field, _, _ in Formatter().parse(rule.text) if field} - {
        "value",
        "data set",
    }
    keys = {key for cells in CELLS.values() for key in cells}
    for setting in (rule.setting, *named, *rule.mends):
        assert setting in keys
        assert rule.only == "keys" or vocabulary.flag(setting).startswith("--")


@pytest.mark.parametrize(
    ("flags", "workload", "load", "by_flags", "by_keys"),
    [
        (
            "--request-rate 5 --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2",
            "",
            'request_rate_rps = 5\nramp = "linear"\nramp_start_rps = 1\nramp_end_rps = 2',
            "--ramp-up-strategy can't be combined with --request-rate. Give one of them.",
            "s.toml:12: loads.l.ramp: can't be combined with request_rate_rps. Give one of them.",
        ),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 3 --ramp-up-end-rps 2",
            "",
            'ramp = "linear"\nramp_start_rps = 3\nramp_end_rps = 2',
            "--ramp-up-strategy must rise: 0 ≤ --ramp-up-start-rps ≤ --ramp-up-end-rps, and --ramp-up-end-rps > 0.",
            "s.toml:11: loads.l.ramp: must rise: 0 ≤ ramp_start_rps ≤ ramp_end_rps, and ramp_end_rps > 0.",
        ),
        (
            "--ramp-up-end-rps 2 --max-concurrency 2",
            "",
            "ramp_end_rps = 2\nmax_concurrency = 2",
            "--ramp-up-end-rps needs --ramp-up-strategy.",
            "s.toml:11: loads.l.ramp_end_rps: needs ramp.",
        ),
        (
            "--concurrency-schedule step:0=2",
            "",
            'concurrency_schedule = "step: 0=2 5=4"',
            "--concurrency-schedule needs --duration.",
            "s.toml:11: loads.l.concurrency_schedule: needs duration_s.",
        ),
        (
            "--turns 3",
            'turns = "3"',
            "max_concurrency = 2",
            "--turns is for --dataset-name chat or conversations, but this is random.",
            "s.toml:8: workloads.w.turns: is for dataset chat or conversations, but this is random.",
        ),
        (
            "--self-timed",
            "",
            'arrivals = "recorded"',
            "--self-timed is for datasets with times: agents, mooncake,",
            "s.toml:11: loads.l.arrivals: is for datasets with times: agents, mooncake,",
        ),
    ],
)
def test_one_rule_is_printed_with_flags_and_with_keys(
    flags: str,
    workload: str,
    load: str,
    by_flags: str,
    by_keys: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "bench",
                "serve",
                "--base-url",
                "http://127.0.0.1:9",
                "--model",
                "m",
                *flags.split(),
            ]
        )
        == 2
    )
    assert by_flags in " ".join(capsys.readouterr().err.split())
    (tmp_path / "s.toml").write_text(STUDY % (workload, load))
    with pytest.raises(UsageError) as e:
        study_plan.read(tmp_path / "s.toml")
    assert by_keys in str(e.value)


def test_a_key_that_is_misspelled_is_the_mistake_and_not_the_rule_that_misses_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "s.toml").write_text(
        STUDY % ("", 'concurrency_schedule = "step: 0=2 5=4"\nduration = 10')
    )
    with pytest.raises(UsageError, match="Did you mean duration_s") as e:
        study_plan.read(tmp_path / "s.toml")
    assert "needs duration_s" not in str(e.value)
