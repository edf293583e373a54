"""What a server says of its own times, in the last event of a stream: vLLM's metrics and llama.cpp's timings."""

import json
from typing import Any

import pytest

from dyno.load.protocols import PROTOCOLS, StreamReading
from dyno.load.protocols.base import ServerTimes

# As vLLM 0.32 and 0.33 write it (entrypoints/generate/base/protocol.py, PerRequestMetrics).
VLLM = {
    "time_to_first_token_ms": 20.5,
    "generation_time_ms": 80.25,
    "queue_time_ms": 3.125,
    "mean_itl_ms": 5.35,
    "tokens_per_second": 158.8,
}
LLAMACPP = {
    "cache_n": 0,
    "prompt_n": 64,
    "prompt_ms": 99.613,
    "predicted_n": 32,
    "predicted_ms": 126.289,
}


def read(backend: str, *events: dict[str, Any]) -> StreamReading:
    return PROTOCOLS[backend].read(
        [(i + 1, json.dumps(event).encode()) for i, event in enumerate(events)]
    )


def openai(end: dict[str, Any], backend: str = "openai") -> StreamReading:
    text = {"choices": [{"index": 0, "text": " tok", "finish_reason": None}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}
    return read(backend, text, {**usage, **end})


def test_vllms_metrics_are_its_times() -> None:
    assert openai({"metrics": VLLM}).times == ServerTimes(3_125_000, 20_500_000, 80_250_000)


def test_vllm_without_them_says_nothing() -> None:
    assert openai({}).times is None
    assert openai({"metrics": None}).times is None


def test_llamacpps_timings_are_its_times_on_both_routes() -> None:
    expected = ServerTimes(None, 99_613_000, 126_289_000)
    assert openai({"timings": LLAMACPP}).times == expected
    end = {"content": "", "stop": True, "tokens_predicted": 32, "timings": LLAMACPP}
    assert read("llama.cpp", {"content": "a", "tokens": [1]}, end).times == expected


@pytest.mark.parametrize("value", [None, "12", True, -1, 1e30, [1], {}], ids=str)
def test_a_time_that_is_none_is_not_read(value: Any) -> None:
    times = openai({"metrics": {**VLLM, "queue_time_ms": value}}).times
    assert times is not None
    assert (times.queue_ns, times.prefill_ns) == (None, 20_500_000)


@pytest.mark.parametrize("metrics", ["none", 3, ["queue_time_ms"]], ids=str)
def test_metrics_of_another_form_are_not_read(metrics: Any) -> None:
    reading = openai({"metrics": metrics})
    assert (reading.times, reading.error) == (None, None)
