"""The command line's own rules: help, mistakes in words and flags, completion, exit codes."""

import argparse
import ast
import functools
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import dyno
from dyno.api.vocabulary import command, keys
from dyno.cli import engines, exit_codes
from dyno.cli.main import main, parser
from dyno.facts.engine import EngineSpec
from dyno.facts.finding import Verdict
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS
from dyno.option import declared, named_by, opposite, setting_name, with_names
from dyno.study.cells import CELLS
from dyno.workload.spec import WorkloadSpec
from trees import parsed

if TYPE_CHECKING:
    from dyno.trial.fleet import Fleet

SOURCE = Path(dyno.__file__).parent

# ---- exit codes ----


def test_flags_change_the_exit_code_of_a_void_or_doubtful_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def code(
        *verdicts: Verdict, fail_on: str | None = None, allow_void: bool = False
    ) -> int:
        return exit_codes.from_verdicts(
            verdicts, Namespace(fail_on=fail_on, allow_void=allow_void), "trial"
        )

    assert code("sound") == code("sound", "doubtful") == 0
    assert code("void", allow_void=True) == 0
    assert capsys.readouterr().err == ""
    assert code("sound", "void", "void") == 3
    assert (
        capsys.readouterr().err
        == "dyno: 2 of 3 trials are void: exit code 3. --allow-void exits with 0.\n"
    )
    assert code("sound", "doubtful", fail_on="doubtful") == 3
    assert capsys.readouterr().err.startswith(
        "dyno: 1 of 2 trials is doubtful: exit code 3"
    )
    assert code("void", "doubtful", fail_on="doubtful", allow_void=True) == 3


# ---- help ----


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_without_a_command_the_help_is_printed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    out = capsys.readouterr().out
    assert (
        "start here:\n  demo" in out
        and "  compare           test whether two results really differ" in out
    )


@pytest.mark.parametrize(
    "words", ["bench", "engines", "engines start", "help bench serve", "help bench"]
)
def test_help_is_found_by_any_way_in(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert run([*words.removeprefix("help ").split(), "--help"]) == 0
    assert capsys.readouterr().out == shown.out


def run(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as e:  # argparse's --help
        return int(e.code or 0)


# ---- mistakes ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench serve --num-promts 3", "`dyno bench serve` has no flag --num-promts. Did you mean --num-prompts?"),
        ("bench serve --wishes", "`dyno bench serve` has no flag --wishes. See `dyno bench serve --help`."),
        ("doctor --engine vllm", "--engine is a flag of `dyno bench serve`, `dyno bench throughput`, `dyno bench "
                                 "latency` and 3 more, not of `dyno doctor`."),
        ("--max-concurrency 3 bench serve", "--max-concurrency is a flag of `dyno bench serve`, `dyno find`, "
                                            "not of `dyno`. Flags follow the command."),
        ("bench --max-concurrency 3 serve", "--max-concurrency is a flag of `dyno bench serve`, `dyno find`, "
                                            "not of `dyno bench`. Flags follow the command."),
        ("bench srve", "`dyno bench` has no command 'srve'. Did you mean `dyno bench serve`?"),
        ("bench serve --backend vlm", "--backend: there is no 'vlm'. Did you mean vllm? It takes "
                                      f"{', '.join(PROTOCOLS)}."),
        ("bench serve --num-prompts", "--num-prompts: a value is missing."),
        ("bench serve --dry-run=1", "--dry-run: takes no value, but '1' was given."),
        ("demo extra words", "`dyno demo` doesn't take extra words. See `dyno demo --help`."),
        ("compare a", "`dyno compare` needs B. See `dyno compare --help`."),
        ("sql --csv --json x", "--json: can't be combined with --csv. Give one of them."),
    ],
)  # fmt: skip
def test_a_mistake_in_words_or_flags_gets_a_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"dyno: {message}\n")


def test_flags_without_effect_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        "--trust-remote-code --tokenizer-mode auto --no-stream --no-stream --endpoint v1"
    )
    assert main(["bench", "serve", *flags.split()]) == 2  # for the endpoint
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first == "dyno: --no-stream has no effect (accepted for compatibility)."
    assert (
        second
        == "dyno: --trust-remote-code, --tokenizer-mode have no effect (accepted for compatibility)."
    )


# ---- every option has a help text and its default ----

# Nothing stands in for these: they are needed where they mean something.
WITHOUT = {
    "--dataset",
    "--dataset-path",
    "--engine-image",
    "--lora-path",
    "--model",
    "--ramp-up-end-rps",
    "--ramp-up-start-rps",
    "--target",
}
ACTIONS = [
    (p, a)
    for p in parser().walk()
    for a in p._actions
    if a.help != argparse.SUPPRESS and a.nargs != argparse.PARSER
]


def test_every_option_has_a_help_text() -> None:
    assert [
        f"{p.prog}: {_name(a)}"
        for p, a in ACTIONS
        if not a.help or a.help.startswith("default")
    ] == []


def test_every_option_that_takes_a_value_shows_its_default() -> None:
    flags = [
        (p, a)
        for p, a in ACTIONS
        if a.option_strings and a.nargs != 0 and a.default not in ([], argparse.SUPPRESS)
    ]
    shown = {(p.prog, _name(a)): p._get_formatter()._get_help_string(a) for p, a in flags}
    assert {
        name: text
        for name, text in shown.items()
        if "default: " not in text and name[1] not in WITHOUT
    } == {}


def _name(action: argparse.Action) -> str:
    return next(reversed(action.option_strings), str(action.metavar or action.dest))


# ---- a setting's name: the flag, or the key of a study ----


@pytest.mark.parametrize(
    ("flag", "value", "by_flag", "by_key"),
    [
        ("--max-concurrency", [], "--max-concurrency", "load.max_concurrency"),
        ("--tensor-parallel-size", [2], "--tensor-parallel-size 2", "engine.tensor_parallel = 2"),
        ("--quantization", ["x"], "--quantization 'x'", "engine.quantization = 'x'"),
        ("--devices", [[7]], "--devices [7]", "engine.devices = [7]"),
        ("--no-enable-prefix-caching", [], "--no-enable-prefix-caching", "engine.prefix_caching = false"),
        ("--disable-shuffle", [], "--disable-shuffle", "workload.shuffle = false"),
        ("--output-len", [], "--output-len", "workload.output_len"),
        ("--engine-image", [], "--engine-image", "engine.container.image"),
    ],
)  # fmt: skip
def test_a_message_names_a_setting_by_its_flag_or_by_the_key_of_a_study(
    flag: str, value: list[Any], by_flag: str, by_key: str
) -> None:
    assert setting_name(flag, *value) == by_flag
    with named_by(keys()):
        assert setting_name(flag, *value) == by_key
    assert setting_name(flag, *value) == by_flag


def test_a_text_of_a_table_has_the_names_of_settings_filled_in() -> None:
    with named_by(keys()):
        assert with_names("Lower {--max-model-len}.") == "Lower engine.max_model_len."


def test_every_key_of_a_study_that_has_a_flag_is_found_by_it() -> None:
    with named_by(keys()):
        for section, cells in CELLS.items():
            for name, hint in cells.items():
                if flag := declared(hint)[1].flag:
                    named = setting_name(flag).removesuffix(" = false")
                    assert named.rpartition(".")[2] == name, (section, flag)


# What is stored names flags: records of requests, reasons beside figures, descriptions of columns and data sets.
STORED = {
    "load/wire.py", "probe/peaks.py", "workload/traces.py", "facts/summary.py",
}  # fmt: skip
FLAG = re.compile(r"(?<![\w{-])--[a-z]+(?:-[a-z]+)*(?![\w-])")
ARGUMENT = re.compile(r"-[\w-]+[= ]?[\w+]*(?: -[\w-]+)*")


@pytest.mark.house
@pytest.mark.usefixtures("no_collector")
def test_messages_below_the_command_line_ask_for_the_name_of_a_setting() -> None:
    """A flag that is written out would be a riddle for who writes a study. Findings advise with flags: any command
    reads them."""
    known = {*keys(), *map(opposite, keys())}
    wrong = [
        f"{name}:{node.lineno}: {node.value}"
        for name, tree in _below_the_command_line()
        if name not in STORED
        for node in _texts(tree)
        if not ARGUMENT.fullmatch(node.value) and known & {*FLAG.findall(node.value)}
    ]
    assert wrong == []


@pytest.mark.house
def test_a_message_asks_for_the_names_of_settings_that_exist() -> None:
    known = {*keys(), *map(opposite, keys())}
    asked = [
        (name, node.args[0].value)
        for name, tree in _below_the_command_line()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "setting_name"
        and isinstance(node.args[0], ast.Constant)
    ]
    asked += [
        (name, flag)
        for name, tree in _below_the_command_line()
        for node in _texts(tree)
        for flag in re.findall(r"\{(--[a-z-]+)\}", node.value)
    ]
    assert len(asked) > 100
    assert [flag for flag in asked if flag[1] not in known] == []


@pytest.mark.house
def test_messages_name_no_setting_by_a_key_that_is_written_out() -> None:
    known = {
        name: flag
        for cells in CELLS.values()
        for name, hint in cells.items()
        if (flag := declared(hint)[1].flag)
    }
    written = re.compile(
        rf"(?<![\w.$/'\[-])({'|'.join(name for name in known if '_' in name)})(?![\w'=/\]-])"
    )
    quoted = re.compile(rf"`({'|'.join(known)})`")
    wrong = [
        f"{path.name}:{line}: {match[1]} is {known[match[1]]}: {text}"
        for room in (
            "conduct",
            "engines",
            "load",
            "models",
            "probe",
            "quality",
            "remote",
            "search",
            "trial",
        )
        for path in sorted((SOURCE / room).rglob("*.py"))
        for line, text in _raised(parsed(path))
        for match in [*written.finditer(text), *quoted.finditer(text)]
    ]
    assert wrong == []


@functools.cache
def _below_the_command_line() -> list[tuple[str, ast.Module]]:
    """Return the modules whose messages a study's user may read, each with its place."""
    apart = ("cli/", "audit/", "checks/", "results/", "workload/datasets/")
    modules = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(apart):
            modules.append((name, parsed(path)))
    return modules


def _texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the texts of a module, but for docstrings and declarations of settings."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            apart.add(id(node.value))
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("Option", "_replace", "setting_name"):
                apart |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in apart
        ):
            yield node


def _raised(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of errors, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            texts = [
                n
                for n in ast.walk(node)
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            yield from ((n.lineno, n.value) for n in texts)


def test_a_command_to_paste_has_flags_that_dyno_takes() -> None:
    engine = EngineSpec("vllm", model="m", prefix_caching=False, chunked_prefill=True)
    trial = TrialSpec(
        TargetSpec("http://x", backend="openai", endpoint="/v1/completions"),
        WorkloadSpec("random"),
        LoadSpec(),
        engine=engine,
        correctness_check=False,
    )
    words = shlex.split(command(trial))
    assert {
        "--no-correctness-check",
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
    } <= {*words}
    assert not any("no-no" in word for word in words)


def test_what_an_engine_reports_is_printed_in_words() -> None:
    target = TargetFacts(
        model="m",
        models_listed=["m", "n"],
        slots=4,
        settings={"kv_unified": "false", "n": "2"},
    )
    shown = list(engines._lines(cast("Fleet", SimpleNamespace(target=target))))
    assert "settings               kv_unified false, n 2" in shown
    assert "models listed          m, n" in shown and "slots                  4" in shown
