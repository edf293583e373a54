"""A function and the command of its name make the same trial of the same settings."""

from typing import Any

import msgspec
import pytest

from dyno.api import keywords
from dyno.cli import offline, serve
from dyno.cli.main import parse
from dyno.errors import UsageError
from dyno.facts.trial import TrialSpec

URL = "http://127.0.0.1:9"
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": (f"--base-url {URL}", {"base_url": URL}),
    "port": ("--port 9", {"port": 9}),
    "concurrency": (
        f"--base-url {URL} --max-concurrency 64 --num-prompts 200",
        {"base_url": URL, "max_concurrency": 64, "num_prompts": 200},
    ),
    "rate": (
        f"--base-url {URL} --request-rate 4 --burstiness 2 --seed 7",
        {"base_url": URL, "request_rate_rps": 4, "burstiness": 2, "seed": 7},
    ),
    "duration": (
        f"--base-url {URL} --max-concurrency 4 --duration 30",
        {"base_url": URL, "max_concurrency": 4, "duration_s": 30},
    ),
    "lengths": (
        f"--base-url {URL} --random-input-len 32 --random-output-len 8 --random-prefix-len 4",
        {"base_url": URL, "input_len": 32, "output_len": 8, "prefix_len": 4},
    ),
    "replicas": (
        f"--base-url {URL} http://127.0.0.1:10/v1 --backend openai-chat --model m",
        {
            "base_url": [URL, "http://127.0.0.1:10"],
            "backend": "openai-chat",
            "model": "m",
        },
    ),
    "chat": (
        f"--base-url {URL} --dataset-name chat --turns 5 --think-time 2 --max-concurrency 8",
        {
            "base_url": URL,
            "dataset": "chat",
            "turns": "5",
            "think_time_s": "2",
            "max_concurrency": 8,
        },
    ),
    "sonnet": (
        f"--base-url {URL} --dataset-name sonnet --num-prompts 9",
        {"base_url": URL, "dataset": "sonnet", "num_prompts": 9},
    ),
    "shaped": (
        f"--base-url {URL} --dataset-name sharegpt-shaped --request-rate 4",
        {"base_url": URL, "dataset": "sharegpt-shaped", "request_rate_rps": 4},
    ),
    "clients": (
        f"--base-url {URL} --dataset-name clients --num-clients 5 --duration 9",
        {"base_url": URL, "dataset": "clients", "num_clients": 5, "duration_s": 9},
    ),
    "sampling": (
        f"--base-url {URL} --temperature 0 --top-p 0.9 --ignore-eos --goodput ttft:500",
        {
            "base_url": URL,
            "sampling": {"temperature": 0.0, "top_p": 0.9},
            "ignore_eos": True,
            "goodput_ms": {"ttft": 500.0},
        },
    ),
    "engine": (
        "--engine llamacpp --quantization Q8_0 --max-num-seqs 8 --max-model-len 1024 --max-concurrency 8",
        {
            "engine": "llamacpp",
            "quantization": "Q8_0",
            "max_num_seqs": 8,
            "max_model_len": 1024,
            "max_concurrency": 8,
        },
    ),
    "checked server": (
        f"--base-url {URL} --engine openai --model m --dtype bf16",
        {"base_url": URL, "engine": "openai", "model": "m", "dtype": "bf16"},
    ),
}
OFFLINE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "throughput": ("throughput", "", {}),
    "throughput of a model": (
        "throughput",
        "--model x/y --num-prompts 5 --num-iters 3",
        {"model": "x/y", "num_prompts": 5, "iterations": 3},
    ),
    "latency": ("latency", "", {}),
    "latency of a batch": (
        "latency",
        "--batch-size 2 --input-len 16 --output-len 4 --num-iters 5",
        {"batch_size": 2, "input_len": 16, "output_len": 4, "iterations": 5},
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_serve_measures_what_the_command_measures(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    flags, settings = SERVED[name]
    options = parse(["bench", "serve", *flags.split()])
    [(_, one)] = serve.loads(options)
    by_flags, _ = serve.spec(one)
    by_keywords, _ = keywords.served(settings, None)
    if by_keywords.reset_cache:  # dyno starts the engine: the address follows
        url = by_flags.target.base_url
        target = msgspec.structs.replace(by_keywords.target, base_url=url)
        by_keywords = msgspec.structs.replace(by_keywords, target=target)
    assert by_keywords == by_flags


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_benchmarks_too(name: str) -> None:
    kind, flags, settings = OFFLINE[name]
    options = parse(["bench", kind, *flags.split()])
    by_flags = offline.spec(options)
    by_keywords: TrialSpec = keywords.offline(kind, settings, None)  # type: ignore[arg-type]
    assert by_keywords == by_flags


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (
            {"max_concurency": 3},
            "max_concurency: unknown key. Did you mean max_concurrency?",
        ),
        ({"max_concurrency": 0}, "max_concurrency: must be at least 1, but is 0."),
        ({"max_concurrency": "x"}, "max_concurrency: must be a whole number, but is 'x'."),
        ({"engine": "vlm"}, "engine: there is no engine 'vlm'. Did you mean vllm?"),
        ({"dataset": "chatt"}, "dataset: there is no dataset 'chatt'. Did you mean chat?"),
        ({"dtype": "bf16"}, "dtype: only for engines. Add engine=KIND to start one"),
        ({"engine": "vllm", "base_url": URL}, "base_url: dyno starts vllm itself."),
        ({"goodput_ms": {"tttf": 1}}, "tttf: unknown key."),
        (
            {"max_concurrency": [1, 4]},
            "max_concurrency: must be a whole number, but is [1, 4].",
        ),
    ],
)
def test_a_mistake_names_the_keyword(settings: dict[str, Any], reported: str) -> None:
    with pytest.raises(UsageError) as caught, keywords.spoken():
        keywords.served(settings, None)
    assert str(caught.value).startswith("dyno.serve: ") and reported in str(caught.value)
    assert "--" not in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"2 mistakes\. Nothing was started\."):
        keywords.served({"max_concurrency": 0, "input_len": "x"}, None)
