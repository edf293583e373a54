"""Text Generation Inference's own route. Built from its API description; no TGI server was run against it."""

from typing import Any

import msgspec

from dyno.facts.request import Request
from dyno.load.protocols.base import Asked, Reading, garbage, in_openais_words, settle_silent, stream_error


class _Token(msgspec.Struct, gc=False):
    text: str = ""
    special: bool = False


class _Details(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None


class _Event(msgspec.Struct, gc=False):
    token: _Token | None = None
    details: _Details | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode

# TGI's names differ from OpenAI's for some; min_p it doesn't know.
_KNOWN = ("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty")


class GenerateStream:
    path = "/generate_stream"
    takes_token_ids = False

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        sampling = {k: v for k, v in asked.sampling.items() if k in _KNOWN}
        if sampling.get("temperature") == 0:
            del sampling["temperature"]  # TGI wants it above 0; without one it is greedy
        parameters = {
            "max_new_tokens": request.output_tokens,
            "details": True,
            "decoder_input_details": False,
            **sampling,
            **asked.extra_body,
        }
        if sampling.get("temperature"):
            parameters["do_sample"] = True
        if asked.ignore_eos:
            parameters["ignore_eos_token"] = True
        return {"inputs": request.prompt, "parameters": parameters, "stream": True}

    def read(self, events: list[tuple[int, bytes]]) -> Reading:
        reading = Reading([], [])
        silent = 0
        for ns, data in events:
            if data == b"[DONE]":
                reading.done = True
                continue
            try:
                event = _decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                return garbage(reading, data, e)
            if event.error is not None:
                return stream_error(reading, event.error)
            if event.token is not None:
                text = "" if event.token.special else event.token.text
                if text or reading.chunk_ns:
                    reading.chunk_ns.append(ns)
                    reading.texts.append(text)
                    silent += not text
                else:
                    reading.empty_chunks += 1
            if event.details is not None:
                reading.finish_reason = in_openais_words(event.details.finish_reason)
                reading.output_tokens = event.details.generated_tokens
                reading.prompt_tokens = event.details.input_length
                reading.done = True  # TGI closes with the event that carries the details
        settle_silent(reading, silent, None)
        return reading
