"""Other endpoints than streams of text, on real engines: the embedded llama.cpp, and vLLM with small models made here.

Prompts have the lengths that were asked for, by the server's own counts.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gguf_files
from conftest import ends_ms
from dyno.cli.main import main
from dyno.engines import model
from dyno.engines.environment import installed
from dyno.engines.port import free_port
from reference import ROOT

pytestmark = [pytest.mark.real, pytest.mark.engines]

_SHORT = ["--random-input-len", "40", "--random-output-len", "8"]


def measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, Any]:
    args = ["--runs", str(tmp_path / "runs"), "--disable-tqdm", "--allow-void", "--json"]
    load = ["--num-prompts", "6", "--max-concurrency", "2"]
    assert main(["bench", "serve", *args, *load, *words]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize("form", [[], ["--no-streaming"]])
@pytest.mark.parametrize("backend", ["openai-responses", "anthropic", "openai-chat"])
def test_llama_cpp_speaks_each_api_of_text(
    backend: str, form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--engine", "llamacpp", "--backend", backend, *_SHORT, *form]
    result = measured(tmp_path, capsys, *words)
    assert result["completed"] == 6
    assert result["dyno"]["tokens_by"] == {"usage": 6}
    # a chat template's marks come on top
    assert 6 * 40 < result["total_input_tokens"] < 6 * 60
    known = result["mean_ttft_ms"] is not None or "ttft" in result["dyno"]["bounds"]
    assert known != bool(form)
    assert ends_ms(result, "mean_e2el_ms")[1] > 0


@pytest.mark.parametrize("backend", ["openai-responses", "anthropic"])
def test_llama_cpp_goes_on_with_its_own_answers_in_each_api(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--engine", "llamacpp", "--backend", backend, "--dataset-name", "chat"]
    words += ["--turns", "3", "--turn-input-len", "10", "--turn-output-len", "6"]
    result = measured(
        tmp_path, capsys, *words, "--num-sessions", "2", "--system-prompt-len", "10"
    )
    assert result["dyno"]["sessions"]["completed"] == 2


@contextmanager
def _llama(path: Path, *words: str) -> Iterator[str]:
    """Serve by the embedded llama.cpp, without its cache of prompts, whose tokens its metrics don't count."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "dyno.engines.embedded", "--model", str(path)]
    command += ["--port", str(port), "--metrics", "--no-cache-prompt", *words]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.1)
    pytest.fail("llama.cpp did not start")


def _counted(url: str) -> dict[str, float]:
    """Return the tokens that the server itself has counted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    names = {"prompt_tokens_total": "input", "tokens_predicted_total": "output"}
    return {
        names[name]: float(value)
        for name, value in (
            line.removeprefix("llamacpp:").split() for line in lines if line[0] != "#"
        )
        if name in names
    }


def _by_both(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> tuple[list[float], list[float]]:
    """Return the input and output tokens of six requests, by dyno's results and by the server's metrics: those of a
    load of nine less those of one of three, since a load also has a test request."""
    dyno, server = [], [_counted(url)]
    for count in (3, 9):
        load = ["--base-url", url, "--no-correctness-check", *words]
        result = measured(tmp_path, capsys, *load, "--num-prompts", str(count))
        assert result["completed"] == count
        dyno.append([result["total_input_tokens"], result["total_output_tokens"]])
        server.append(_counted(url))
    by_server = [
        (server[2][side] - server[1][side]) - (server[1][side] - server[0][side])
        for side in ("input", "output")
    ]
    return [b - a for a, b in zip(*dyno, strict=True)], by_server


def test_llama_cpp_counts_the_tokens_of_each_api_of_text_as_dyno_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _llama(model.build("F16")) as url:
        for backend in ("openai", "openai-chat", "openai-responses", "anthropic"):
            words = ["--backend", backend, "--temperature", "0", *_SHORT]
            dyno, server = _by_both(url, tmp_path, capsys, words)
            assert dyno == server, backend
            assert (
                dyno[0] > 6 * 40 - 1 and 0 < dyno[1] <= 6 * 8
            )  # some APIs have no ignore_eos


def test_llama_cpp_embeds_with_the_counts_of_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", "openai-embeddings", "--random-input-len", "30"]
    with _llama(model.build("F16"), "--embeddings", "--pooling", "mean") as url:
        dyno, server = _by_both(url, tmp_path, capsys, [*words, "--random-batch-size", "2"])
    assert dyno == server == [6 * 2 * 30, 0]


def test_llama_cpp_ranks_with_the_counts_of_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "reranker.gguf"
    gguf_files.write_reranker(made)
    words = ["--backend", "vllm-rerank", "--dataset-name", "random-rerank"]
    words += ["--random-input-len", "42", "--random-batch-size", "3"]
    with _llama(made, "--rerank") as url:
        dyno, server = _by_both(url, tmp_path, capsys, words)
    # query and document have 40 tokens together, with the separators
    assert dyno == server == [6 * 3 * 40, 0]


def test_a_reranker_is_started_without_a_load(tmp_path: Path) -> None:
    made = tmp_path / "reranker.gguf"
    gguf_files.write_reranker(made)
    command = [sys.executable, "-m", "dyno", "engines", "start", "llamacpp", "--rerank"]
    command += ["--model", str(made), "--port", str(free_port())]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        watch = threading.Timer(60, process.kill)  # it waited for the end of a text
        watch.start()
        said = []
        for line in process.stderr:
            said.append(line)
            if "listens at" in line:
                break
        watch.cancel()
        process.terminate()
    assert "listens at" in said[-1], said


@pytest.mark.parametrize("backend", ["openai-chat", "openai-responses", "anthropic"])
def test_llama_cpp_counts_an_image_of_any_size_by_its_projector(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "projector.gguf"
    config = json.loads((model.FOLDER / "config.json").read_text())
    gguf_files.write_projector(made, config["hidden_size"])
    sizes = {"(56, 56, 1)": 0.3, "(200, 300, 1)": 0.4, "(720, 1280, 1)": 0.3}
    words = ["--engine", "llamacpp", f"--engine-args=--mmproj {made}"]
    words += ["--backend", backend, "--dataset-name", "random-mm", *_SHORT]
    words += ["--random-mm-bucket-config", json.dumps(sizes), "--image-tokens", "16"]
    media = measured(tmp_path, capsys, *words)["dyno"]["media"]
    assert media["items"] == 6
    assert media["media_tokens"] == media["ruled_tokens"] == 6 * 16


def test_llama_cpp_holds_a_schema_on_its_chat_route(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
    }
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    words = ["--engine", "llamacpp", "--backend", "openai-chat", "--random-input-len", "40"]
    words += [
        "--random-output-len",
        "60",
        "--extra-body",
        json.dumps({"response_format": form}),
    ]
    held = measured(tmp_path, capsys, *words, "--dataset-name", "tasks")["dyno"][
        "structured"
    ]
    assert held["checked"] == 6
    # a model of this size may fill its answer with white space; what it ends is valid
    assert held["valid"] + held["problems"].get("cut", 0) == 6


# ---- vLLM ----


def _made(kind: str, folder: Path) -> Path:
    """Make a small model by vLLM's interpreter."""
    known = installed("vllm")
    if not known:
        pytest.skip("needs `dyno engines install vllm --variant cpu`")
    script = ROOT / "tests" / "small_models.py"
    words = [known[0].python, str(script), kind, str(model.FOLDER), str(folder / kind)]
    subprocess.run(words, check=True, capture_output=True)
    return folder / kind


@pytest.mark.parametrize(
    ("kind", "backend", "words", "tokens"),
    [
        ("embedding", "openai-embeddings", ["--random-batch-size", "2"], 6 * 2 * 30),
        pytest.param(
            "reranker",
            "vllm-rerank",
            ["--dataset-name", "random-rerank", "--random-batch-size", "3"],
            None,
            marks=pytest.mark.nightly,  # a minute
        ),
    ],
)
def test_vllm_counts_the_inputs_that_dyno_counts(
    kind: str,
    backend: str,
    words: list[str],
    tokens: int | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = _made(kind, tmp_path)
    engine = ["--engine", "vllm", "--model", str(made), "--dtype", "float32"]
    engine += ["--engine-args=--enforce-eager", "--max-num-seqs", "4"]
    engine += ["--gpu-memory-utilization", "0.2"]
    result = measured(
        tmp_path, capsys, *engine, "--backend", backend, "--random-input-len", "30", *words
    )
    inputs = 12 if kind == "embedding" else 18
    assert result["total_input_sequences"] == inputs
    assert result["completed"] == 6
    if tokens is not None:
        assert result["total_input_tokens"] == tokens
