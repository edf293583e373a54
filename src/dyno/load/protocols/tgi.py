"""Text Generation Inference's own route. Checked against its API description and client; no TGI server was run."""

from typing import Any

import msgspec

from dyno.load.protocols.base import (
    Asked,
    StreamReading,
    WireProtocol,
    decoded,
    finish,
    note_one_text,
    note_text,
    read_object,
    settle_silent,
)
from dyno.workload.request import Request


class _Token(msgspec.Struct, gc=False):
    text: str = ""
    special: bool = False


class _Details(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None  # from TGI 2.3 on


class _TokenEvent(msgspec.Struct, gc=False):
    token: _Token | None = None
    generated_text: str | None = None  # with the last token
    details: _Details | None = None  # likewise
    error: Any = None


class _WholeText(msgspec.Struct, gc=False):
    """What /generate sends."""

    generated_text: str = ""
    details: _Details | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_TokenEvent).decode
_decode_answer = msgspec.json.Decoder(_WholeText).decode


class GenerateStream(WireProtocol):
    path = "/generate_stream"
    whole, whole_path = True, "/generate"
    # TGI 3.3's GenerateParameters. It ignores every other name without a word, so dyno refuses them.
    fields = frozenset(
        (
            "adapter_id", "best_of", "decoder_input_details", "details", "do_sample", "frequency_penalty", "grammar",
            "max_new_tokens", "repetition_penalty", "return_full_text", "seed", "stop", "temperature", "top_k",
            "top_n_tokens", "top_p", "truncate", "typical_p", "watermark",
        )
    )  # fmt: skip

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        # ignore_eos has no name here: in every version the router makes its shards stop at the end token. Answers
        # that came out short are a finding (tokens.output_short).
        parameters = {
            "max_new_tokens": request.output_tokens,
            "details": True,
            "decoder_input_details": False,
            **_sampling(asked.sampling),
            **asked.extra_body,
        }
        # stream: for --endpoint /
        return {"inputs": request.prompt, "parameters": parameters, "stream": asked.stream}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [])
        for end, event in decoded(events, _decode, reading):
            if event.token is not None:
                text = "" if event.token.special else event.token.text
                note_text(reading, end, text)
            if event.generated_text is not None:
                reading.done = True
            if event.details is not None:
                _note_details(reading, event.details)
                reading.done = True  # TGI closes with the event that carries the details
        if reading.error is None:
            settle_silent(reading, None)
        return reading

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        body = body.strip().removeprefix(b"[").removesuffix(b"]")  # at /, in a list
        if (answer := read_object(body, _decode_answer, reading)) is not None:
            note_one_text(reading, answer.generated_text)
            if answer.details is not None:
                _note_details(reading, answer.details)
        return reading


def _note_details(reading: StreamReading, details: _Details) -> None:
    finish(reading, details.finish_reason)
    reading.output_tokens = details.generated_tokens
    reading.prompt_tokens = details.input_length


def _sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Translate sampling values: TGI refuses those by which others turn a filter off; greedy is to give none at all."""
    greedy = given.get("temperature") == 0
    off = {
        "temperature": greedy,
        "top_p": greedy or given.get("top_p") == 1,
        "top_k": greedy or given.get("top_k", 1) < 1,  # vLLM: 0 and -1 are all tokens
    }
    sampling = {name: value for name, value in given.items() if not off.get(name)}
    if off.keys() & sampling.keys():
        sampling["do_sample"] = True  # a temperature of 1 alone would be greedy
    return sampling
