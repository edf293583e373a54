"""TGI without TGI: readers against the streams it sends, as its router's sources (3.3.6) write them."""

import json
from typing import Any

import pytest

from dyno.load.protocols import PROTOCOLS, Reading

# ---- TGI's streams on OpenAI's routes, as its router writes them ----


def completion(text: str, finish_reason: str, tokens: int | None = None) -> bytes:
    event: dict[str, Any] = {
        "object": "text_completion", "id": "", "created": 1, "model": "m", "system_fingerprint": "3.3.6-native",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}],
    }  # fmt: skip
    if tokens is not None:
        event["usage"] = {"prompt_tokens": 2, "completion_tokens": tokens, "total_tokens": 2 + tokens}
    return json.dumps(event).encode()


def read(*told: bytes, backend: str = "openai") -> Reading:
    """One event a nanosecond."""
    return PROTOCOLS[backend].read(list(enumerate(told)))


def test_an_empty_finish_reason_is_none_and_its_token_keeps_its_place() -> None:
    reading = read(completion(" a", ""), completion("", ""), completion(" c", ""), completion(" d", "length", 4))
    assert reading.chunk_ns == [0, 1, 2, 3]
    assert reading.texts == [" a", "", " c", " d"]
    assert (reading.finish_reason, reading.output_tokens, reading.prompt_tokens) == ("length", 4, 2)


def test_a_cut_stream_of_empty_finish_reasons_has_none() -> None:
    reading = read(completion(" a", ""), completion(" b", ""))
    assert reading.finish_reason is None and not reading.done


@pytest.mark.parametrize(
    ("word", "reason", "texts"),
    [
        ("eos_token", "stop", [" a", " b", ""]),  # the last one's text is the end token's own
        ("stop_sequence", "stop", [" a", " b", "</s>"]),
        ("length", "length", [" a", " b", "</s>"]),
    ],
)
def test_tgis_reasons_are_told_in_openais_words(word: str, reason: str, texts: list[str]) -> None:
    reading = read(completion(" a", ""), completion(" b", ""), completion("</s>", word, 3), b"[DONE]")
    assert (reading.finish_reason, reading.texts, reading.chunk_ns) == (reason, texts, [0, 1, 2])
    assert reading.done and reading.output_tokens == 3


def test_an_end_token_alone_is_no_text() -> None:
    reading = read(completion("</s>", "eos_token", 1))
    assert (reading.chunk_ns, reading.output_tokens, reading.finish_reason) == ([], 1, "stop")


def test_a_finish_reason_before_the_last_text_puts_no_time_out_of_order() -> None:
    reading = read(completion(" a", ""), completion("", "stop"), completion(" b", ""), completion(" c", "stop", 4))
    assert reading.chunk_ns == [0, 1, 2, 3] and reading.texts == [" a", "", " b", " c"]


def chat(content: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return json.dumps({"object": "chat.completion.chunk", "id": "", "choices": [choice], "usage": None}).encode()


def test_tgis_chat_has_no_role_chunk_and_its_first_one_is_the_first_token() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    last = json.dumps({"choices": [], "usage": usage}).encode()
    reading = read(
        chat(" a", None), chat("", None), chat(" c", "stop_sequence"), last, b"[DONE]", backend="openai-chat"
    )
    assert (reading.chunk_ns, reading.texts, reading.empty_chunks) == ([0, 1, 2], [" a", "", " c"], 0)
    assert (reading.finish_reason, reading.output_tokens) == ("stop", 3)


def test_an_error_event_of_tgis_openai_routes_is_an_error() -> None:
    reading = read(b'{"error":{"message":"Model is overloaded","http_status_code":422}}', b"[DONE]")
    assert (reading.error, reading.error_detail) == ("stream_error", "Model is overloaded")


def test_tgi_before_2_3_tells_no_prompt_length() -> None:
    details = {"finish_reason": "stop_sequence", "generated_tokens": 1, "seed": None}
    event = {"token": {"id": 1, "text": " a", "logprob": None, "special": False}, "details": details}
    reading = read(json.dumps(event).encode(), backend="tgi")
    assert (reading.prompt_tokens, reading.output_tokens, reading.finish_reason) == (None, 1, "stop")
