"""Conversations with real engines: all requests are accounted for, and prompts grow as planned."""

from collections import defaultdict
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.store.run import Run
from test_real_engines import CPU

pytestmark = pytest.mark.engines

VLLM = [
    "vllm", "--model", "dyno-5m", "--enforce-eager", "--dtype", "fp32", "--gpu-memory-utilization", "0.2",
    *(word for name, value in CPU.items() for word in ("--engine-env", f"{name}={value}")),
]  # fmt: skip
LLAMA = ["llamacpp", "--max-num-seqs", "4"]


@pytest.mark.parametrize(
    ("engine", "answers"),
    [
        pytest.param(LLAMA, "server", id="llama.cpp"),
        pytest.param(LLAMA, "recorded", id="llama.cpp, recorded answers"),
        pytest.param(VLLM, "server", id="vLLM", marks=pytest.mark.nightly),
        pytest.param(
            VLLM, "recorded", id="vLLM, recorded answers", marks=pytest.mark.nightly
        ),
    ],
)
def test_prompts_grow_with_the_turns_as_planned(
    engine: list[str], answers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "--dataset-name",
        "chat",
        "--num-sessions",
        "12",
        "--turns",
        "2..4",
        "--turn-input-len",
        "10..30",
    ]
    words += [
        "--turn-output-len",
        "8..16",
        "--think-time",
        "0.05",
        "--answers",
        answers,
        "--max-concurrency",
        "4",
    ]
    assert (
        main(["bench", "serve", "--engine", *engine, "--max-model-len", "1024", *words])
        == 0
    )
    [run] = [Run(path) for path in (tmp_path / "runs").iterdir()]
    client, records = run.client(), list(run.records())
    assert client is not None and run.manifest().answers == answers
    failed = sum(r.error is not None for r in records)
    assert (
        len(records) + client.skipped == client.planned == len(run.lengths()) and not failed
    )
    by_turn: dict[int, list[int]] = defaultdict(list)
    for r in records:
        assert (
            r.prompt_tokens is not None
            and abs(r.prompt_tokens - r.prompt_tokens_planned) <= 3 * r.turn + 1
        )
        by_turn[r.turn].append(r.prompt_tokens)
    means = [sum(by_turn[turn]) / len(by_turn[turn]) for turn in sorted(by_turn)]
    assert len(means) == 4 and means == sorted(means)
    assert "tokens.input_length" not in {f.code for f in run.result().findings}
