"""Every flag of vLLM's benchmarks is done, passed on, or missing for a reason; and no reason is out of date."""

import argparse
import json

import pytest

import parity
from dyno.cli.main import main, parser
from dyno.cli.settings import LACKS

# Also flags that newer versions have lost: none may be passed on to an engine, or dropped.
EVERY = [
    (command, flag)
    for command in parity.COMMANDS
    for flag in [*parity.TABLE[command], *parity.TABLE["removed"][command].split()]
]
VALUES = [
    (command, flag)
    for command in ("serve", "throughput")
    for flag in ("--backend", "--dataset-name")
]


def _kind(action: argparse.Action) -> str:
    return type(action).__name__


def _of_vllm() -> set[str]:
    tables = [*parity.COMMANDS, *parity.NO_COMMAND]
    removed = " ".join(parity.TABLE["removed"].values()).split()
    return {flag for command in tables for flag in parity.TABLE[command]} | {*removed}


@pytest.mark.parametrize(("command", "flag"), EVERY)
def test_each_flag_of_vllm_s_benchmarks_is_known(command: str, flag: str) -> None:
    assert flag in parity.actions(command)


@pytest.mark.parametrize("command", parity.COMMANDS)
def test_a_flag_that_is_missing_or_does_nothing_has_a_reason_and_is_vllm_s(
    command: str,
) -> None:
    """A flag that works can't be among them: argparse takes no flag twice."""
    noted = {
        flag: action
        for flag, action in parity.actions(command).items()
        if _kind(action) in ("_Refused", "_Ignored")
    }
    assert noted or command == "latency"
    assert [flag for flag in noted if flag not in _of_vllm()] == []
    assert [flag for flag, action in noted.items() if len(action.reason) < 12] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", parity.COMMANDS)
def test_another_default_than_vllm_s_is_on_the_list_and_the_list_has_no_other(
    command: str,
) -> None:
    listed = {flag for known, flag in parity.DEFAULTS if known == command}
    assert parity.different(command) == listed


@pytest.mark.parametrize(("command", "flag"), VALUES)
def test_each_value_that_vllm_s_flag_takes_works_or_has_a_reason(
    command: str, flag: str
) -> None:
    each = parity.values(command, flag)
    assert {*each} == {*parity.TABLE[command][flag]["choices"]}
    assert not all(each.values())


def test_a_reason_for_a_missing_value_is_about_one_that_is_missing() -> None:
    known = {
        flag: {v for command, f in VALUES if f == flag for v in parity.values(command, f)}
        for flag in LACKS
    }
    for flag, reasons in LACKS.items():
        assert {*reasons} & known[flag]
        assert not {*reasons} & {*(parity.actions("throughput")[flag].choices or ())}


def test_a_command_that_is_called_missing_is_missing() -> None:
    commands = parser().commands()["bench"].commands()
    assert not {*parity.NO_COMMAND} & {*commands}
    for command in parity.NO_COMMAND:
        assert {p.state for p in parity.flags(command)} == {parity.MISSING}


def test_a_value_that_only_vllm_takes_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "throughput", "--dataset-name", "random-mm"]) == 2
    assert capsys.readouterr().err == (
        "dyno: --dataset-name random-mm: offline, dyno sends text only; `dyno bench serve` has it.\n"
    )


# Printed by vLLM's own interpreter: the flags of its parsers that are not the engine's, with their defaults.
ASK = """
import json, sys
from vllm.benchmarks import latency, serve, throughput
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
engines = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())._option_string_actions
out = {}
for module in (serve, throughput, latency):
    parser = FlexibleArgumentParser()
    module.add_cli_args(parser)
    own = {a.option_strings[0]: a for a in parser._actions if a.option_strings}
    if module is not serve:
        own = {f: a for f, a in own.items() if f not in engines}
    out[module.__name__.rpartition(".")[2]] = {
        flag: {"default": action.default, "choices": action.choices and sorted(action.choices)}
        for flag, action in own.items() if flag not in ("-h", "--help")
    }
print(json.dumps(out, default=str))
"""


def test_the_question_to_vllm_is_python() -> None:
    compile(ASK, "ask", "exec")
    assert json.loads(json.dumps(parity.TABLE)) == parity.TABLE
