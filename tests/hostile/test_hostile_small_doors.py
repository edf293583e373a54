"""Small doors that stood open: headers that frame a request, an image that is an option, quotes in what is shared."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Scripted
from dyno import secrets
from dyno.api.headers import check_headers
from dyno.cli.main import main
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, image_problem
from dyno.facts.rig import Rig
from dyno.http import Client, Url
from dyno.store.pack import _without_quotes
from dyno.trial.engine_plan import EnginePlan

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
RIG = Rig("test", "0", "any", "cpu", 2, memory_free_bytes=8 * 2**30)


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "content-length", "Transfer-Encoding", "Connection", "Expect", "TE"],
)
def test_a_header_that_frames_the_request_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="frames the request, which dyno does itself"):
        check_headers({name: "5"})
    check_headers({"X-Length": "5", "Host": "example"})


@pytest.mark.parametrize(
    "image",
    ["--privileged", "-v/:/host", "", "a b", "a\nb", "a;b", "$(x)", "x" * 600, "/x"],
)
def test_an_image_that_is_an_option_is_refused(image: str) -> None:
    spec = EngineSpec("vllm", model="m", container=ContainerSpec(image=image))
    with pytest.raises(UsageError, match="is not the name of a container image"):
        EnginePlan(spec, RIG, dry=True)


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:v0.11",
        "ghcr.io/x/y@sha256:" + "a" * 64,
        "localhost:5000/x",
        "x:1+cu12",
    ],
)
def test_an_image_is_a_name(image: str) -> None:
    assert image_problem(image) is None


def test_an_image_of_the_command_line_is_checked_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["engines", "images", "pull", "--", "--privileged"]) == 2
    assert "is not the name of a container image" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["hf_subset", "hf_max_batch_size", "hf_split", "hf_name", "hf_transfer_enabled"]
)
def test_a_setting_is_not_a_token(word: str) -> None:
    assert secrets.without_looks(f"Unknown key {word}.") == f"Unknown key {word}."


@pytest.mark.parametrize(
    "token", ["hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567", "hf_abc123def456", "hf_ABCDEFGH"]
)
def test_a_token_is_one(token: str) -> None:
    assert token not in secrets.without_looks(f"Unknown key {token}.")


def test_hints_before_the_answer_are_passed_over(scripted: Callable[..., Scripted]) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    final = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'

    def talk(connection: Any, number: int) -> None:
        connection.recv(65536)  # a GET of a few lines
        connection.sendall(hint + hint + final)

    client = Client(Url(scripted(talk).base_url), {})
    assert client.call("/v1/models") == (200, {"a": 1})
    client.close()


FINDINGS = {
    "verdict": "doubtful",
    "findings": [
        {
            "code": "correctness.repeats",
            "level": "doubt",
            "text": "All answers repeat 'my secret prompt'.",
        },
        {
            "code": "requests.errors",
            "level": "note",
            "text": "It doesn't matter: 'the server\\'s words' and \"more\".",
        },
    ],
    "find": {
        "probes": [
            {
                "findings": [
                    {"code": "correctness.empty", "level": "doubt", "text": "'x y z'"}
                ]
            }
        ]
    },
}


def test_findings_that_are_shared_without_prompts_quote_nothing() -> None:
    text = json.dumps(_without_quotes(FINDINGS))
    for word in ("secret", "words", "more", "x y z"):
        assert word not in text
    assert (
        "It doesn't matter: '…' and '…'."
        in _without_quotes(FINDINGS)["findings"][1]["text"]
    )


def test_an_archive_without_prompts_has_no_quote_of_an_answer(tmp_path: Path) -> None:
    source = next(
        p.parent
        for p in sorted(RUNS.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )
    run = tmp_path / source.name
    shutil.copytree(source, run)
    summary = json.loads((run / "summary.json").read_text())
    summary["findings"] += FINDINGS["findings"]
    (run / "summary.json").write_text(json.dumps(summary))
    assert (
        main(["runs", "pack", str(run), "--no-prompts", "-o", str(tmp_path / "x.tar.zst")])
        == 0
    )
    assert (
        main(
            ["runs", "unpack", str(tmp_path / "x.tar.zst"), "--runs", str(tmp_path / "out")]
        )
        == 0
    )
    assert (
        "my secret prompt" not in (tmp_path / "out" / run.name / "summary.json").read_text()
    )
