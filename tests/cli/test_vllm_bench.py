"""Every flag of vLLM's benchmarks is done, passed on, or missing for a reason; and no reason is out of date."""

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

import parity
from dyno.cli import offline, serve
from dyno.cli.flags import check_refused
from dyno.cli.main import main, parse
from dyno.cli.settings import LACKS
from dyno.errors import DynoError, UsageError
from dyno.trial.dataset import located
from dyno.workload.prompts import make
from dyno.workload.tokenizer import ApproximateTokenizer

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
    tables = [*parity.COMMANDS, *parity.WHOLE_COMMANDS]
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


@pytest.mark.parametrize("command", parity.WHOLE_COMMANDS)
def test_a_command_that_vllm_does_gets_each_flag_as_it_was_given(command: str) -> None:
    assert {p.state for p in parity.flags(command)} == {parity.PASSED}
    for flag in parity.TABLE[command]:
        o = parse(["bench", command, "--model", "M", flag, "x", "--tensor-parallel-size=2"])
        assert o.own_args == ["--model", "M", flag, "x", "--tensor-parallel-size=2"]


@pytest.mark.parametrize("command", ["sweep", "startup", "mm-processor"])
def test_a_benchmark_of_vllm_s_that_dyno_lacks_is_refused_with_what_is_nearest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", command, "serve"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dyno: `dyno bench` has no command {command!r}: ")
    assert "Did you mean" not in said


def test_a_value_that_only_vllm_takes_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "throughput", "--dataset-name", "random-mm"]) == 2
    assert capsys.readouterr().err == (
        "dyno: --dataset-name random-mm: offline, dyno sends text only; `dyno bench serve` has it.\n"
    )


def test_an_object_can_be_given_by_its_keys() -> None:
    """As vLLM's own parser reads them."""
    words = (
        "--extra-body.min_tokens 1 --extra-body.chat_template_kwargs.enable_thinking=false"
    )
    o = parse(["bench", "serve", *words.split(), "--chat-template-kwargs.mood", "merry"])
    assert json.loads(o.extra_body) == {
        "min_tokens": 1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert json.loads(o.chat_template_kwargs) == {"mood": "merry"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--extra-body.min_tokens", "--extra-body.min_tokens: a value is missing."),
        (
            "--extra-body.a 1 --extra-body={}",
            "--extra-body is given whole and by its keys.",
        ),
        ("--request-rate.x 1", "has no flag --request-rate.x"),
    ],
)
def test_keys_of_another_value_and_keys_beside_an_object_are_refused(
    words: str, said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse(["bench", "serve", *words.split()])


# Each line of vLLM's documentation, by what becomes of it with one word changed.
LINES: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "vllm-bench-lines.json").read_text()
)
# They are about images and audio of the Hub, or offline.
OTHERS = re.compile(
    r"image|audio|vision|video|whisper|-mm|openai-responses|embeddings|rerank|LLaVA|vllm-chat",
    re.I,
)


@pytest.mark.parametrize("line", LINES["work"])
def test_a_line_of_vllm_s_documentation_works_with_one_word_changed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    o = _parsed(line, tmp_path)
    if o.words[1] == "serve":
        [(_, load)] = serve.loads(o)
        trial = serve.spec(load)[0]
        assert trial.workload.dataset == o.dataset_name
    elif o.words[1] != "forward":
        trial = offline.spec(o)
        assert trial.engine is not None and trial.engine.kind == "vllm"


@pytest.mark.parametrize("line", LINES["missing"])
def test_a_line_that_cannot_work_says_why(line: str, tmp_path: Path) -> None:
    assert OTHERS.search(line)
    with pytest.raises(DynoError, match=r"dyno |It is for images|must be at most"):
        o = _parsed(line, tmp_path)
        check_refused(o)
        [(_, load)] = serve.loads(o)
        workload = serve.spec(load)[0].workload
        make(located(workload, print, print)[0], ApproximateTokenizer())


def _parsed(line: str, folder: Path) -> argparse.Namespace:
    words = shlex.split(line)
    assert words[:2] == ["vllm", "bench"]
    if "--dataset-path" in words or "--dataset_path" in words:
        place = (
            next(
                i
                for i, w in enumerate(words)
                if w.startswith("--dataset") and w.endswith("path")
            )
            + 1
        )
        if words[place].endswith(".json"):
            file = folder / Path(words[place]).name
            pictured = "4v" in file.name.lower() or "video" in file.name
            file.write_text(
                json.dumps([{"conversations": [], "image": "1.jpg" if pictured else None}])
            )
            words[place] = str(file)
    return parse(words[1:])
