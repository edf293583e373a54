"""A data set is one file and a line of the registry, a setting one field, a rule one line: every surface has them then.

The additions are made in a copy of the source (additions.py), so that nothing of them can be in dyno's own lists.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import additions
import dyno
from dyno.workload.datasets import DATASETS
from trees import parsed

SOURCE = Path(dyno.__file__).parent
# Where a text is a data set's name, outside of the data sets' own files.
OTHER_MEANINGS = {
    # The value of another setting: --lora-assignment.
    "api/keys.py": {"random"},
    # Results of other tools: their data sets, by their names.
    "audit/commands.py": {"random"},
    "checks/comparability.py": {"random"},
    "checks/inputs.py": {"random"},
    "checks/tokens.py": {"random"},
    "facts/load.py": {"random"},
    "results/tools/sglang.py": {"random"},
    # Quality tests: the form of their requests, and their tasks.
    "cli/eval.py": {"tasks"},
    "quality/lm_eval.py": {"chat", "tasks"},
    "quality/flow.py": {"chat"},
    "facts/quality.py": {"chat"},
    "facts/setting.py": {"tasks"},
    "quality/ask.py": {"chat", "tasks"},
    "quality/harness.py": {"chat", "tasks"},
    "results/tools/lm_eval.py": {"tasks"},
    # Words of models' names, vLLM's name of transformers, a choice by chance, a column of ShareGPT's file.
    "measure/points.py": {"chat", "hf"},
    "cli/offline.py": {"hf"},
    "workload/common.py": {"random"},
    "workload/published.py": {"conversations"},
}


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a dyno with the additions prints, stores and reads."""
    folder = tmp_path_factory.mktemp("added")
    package = additions.copy(SOURCE, folder)
    paths = os.pathsep.join([str(folder), str(Path(additions.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, additions.__file__, str(folder)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    surfaces: dict[str, Any] = json.loads(done.stdout)
    assert surfaces["source"] == str(package / "__init__.py")
    return {**surfaces, "changed": additions.changed(SOURCE, package)}


def test_a_data_set_is_a_file_and_the_registry_a_setting_one_file_and_a_rule_one_file(
    added: dict[str, Any],
) -> None:
    files = set(added["changed"])
    dataset = {"workload/datasets/echo.py", "workload/datasets/__init__.py"}
    assert files - dataset == {"workload/common.py", "facts/rules.py"}
    # its import, and its line
    assert added["changed"]["workload/datasets/__init__.py"] == 2
    assert added["changed"]["workload/common.py"] == 1


def test_a_new_data_set_and_its_settings_are_in_the_help_the_docs_and_the_study_keys(
    added: dict[str, Any],
) -> None:
    assert ",echo,mix}" in added["help"]
    assert "--echo-word WORD" in added["help"]
    assert "| `echo` | a word, again and again: `--echo-word` |" in added["docs"]
    assert (
        "| `echo_word` | text | `hello` | word of each echo | `--echo-word` |"
        in added["keys"]
    )


def test_a_new_data_set_generates_what_is_sent(added: dict[str, Any]) -> None:
    assert added["prompts"] == [f"{number}" + " pong" * 8 for number in (1, 2)]
    assert all(
        "Successful requests:                     2" in text for text in added["printed"]
    )


def test_a_new_data_set_is_read_by_a_study_with_its_own_settings(
    added: dict[str, Any],
) -> None:
    assert [trial[:2] for trial in added["trials"]] == [["ping", 3], ["pong", 3]]
    assert len({number for *_, number in added["trials"]}) == 2


def test_a_setting_of_a_new_data_set_is_refused_for_another(added: dict[str, Any]) -> None:
    assert (
        added["refused_flag"]
        == "dyno: --echo-word is for --dataset-name echo, but this is random.\n"
    )
    assert (
        "workloads.words.echo_word: is for dataset echo, but this is tasks."
        in added["refused_key"]
    )


def test_a_new_setting_is_a_flag_and_a_study_key(added: dict[str, Any]) -> None:
    assert "--loudness N          how loud prompts are (default: 0)" in added["help"]
    assert (
        "| `loudness` | whole number | `0` | how loud prompts are | `--loudness` |"
        in added["keys"]
    )


def test_new_settings_are_stored_and_read_as_settings_of_a_result(
    added: dict[str, Any],
) -> None:
    assert added["settings"] == [
        {"dataset": "echo", "--echo-word": "ping", "--loudness": None},
        {"dataset": "echo", "--echo-word": "pong", "--loudness": None},
        {"dataset": "echo", "--echo-word": "ping", "--loudness": 3},
    ]


def test_new_settings_are_sql_columns(added: dict[str, Any]) -> None:
    assert added["sql"].split() == [
        "workload_dataset,workload_echo_word,workload_loudness", "echo,ping,0", "echo,pong,0", "echo,ping,3",
    ]  # fmt: skip


def test_results_that_differ_in_a_new_setting_are_not_repeats(
    added: dict[str, Any],
) -> None:
    assert added["entries"] == 3
    assert added["repeats"] == 1


def test_a_new_rule_is_printed_with_flags_on_the_command_line_and_with_keys_in_a_study(
    added: dict[str, Any],
) -> None:
    assert (
        added["rule_of_flags"]
        == "dyno: --loudness can't be combined with --request-rate. Give one of them.\n"
    )
    assert (
        "loudness: can't be combined with request_rate_rps. Give one of them."
        in added["rule_of_keys"]
    )


def named_datasets(root: Path) -> dict[str, set[str]]:
    """Return the data sets' names that are texts in each file, but the data sets' own files."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        texts = {n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant)}
        if (
            used := {text for text in texts if isinstance(text, str)} & set(DATASETS)
        ) and "datasets/" not in place:
            names[place] = used
    return names


def test_no_file_but_its_own_knows_a_data_set_by_name() -> None:
    assert named_datasets(SOURCE) == OTHER_MEANINGS


def test_a_data_set_that_is_named_elsewhere_is_detected(tmp_path: Path) -> None:
    (tmp_path / "workload" / "datasets").mkdir(parents=True)
    (tmp_path / "workload" / "datasets" / "hf.py").write_text('NAME = "hf"')
    (tmp_path / "cli.py").write_text(
        'def f(o):\n    return o.dataset == "sonnet" or "my sonnet"'
    )
    assert named_datasets(tmp_path) == {"cli.py": {"sonnet"}}
