"""llama.cpp's native /completion."""

from typing import Any

import msgspec

from dyno.load.protocols.base import (
    Asked,
    ServerTimes,
    StreamReading,
    WireProtocol,
    decoded,
    finish,
    note_one_text,
    read_object,
    reported_ns,
    settle_silent,
    several_choices,
)
from dyno.workload.request import Request


class _CompletionEvent(msgspec.Struct, gc=False):
    index: int | None = 0
    content: str = ""
    tokens: list[int] | None = None
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    model: str | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_CompletionEvent).decode

_FINISH = {"limit": "length", "eos": "stop", "word": "stop"}  # in OpenAI's words


def times_of(timings: dict[str, Any]) -> ServerTimes:
    """Return the times of llama.cpp's `timings`. Its clock starts when a slot begins to work on the prompt."""
    return ServerTimes(
        prefill_ns=reported_ns(timings.get("prompt_ms")),
        decode_ns=reported_ns(timings.get("predicted_ms")),
    )


def _note_end(reading: StreamReading, event: _CompletionEvent) -> None:
    """Note what the last event says of the whole answer."""
    reading.done = True
    finish(reading, _FINISH.get(event.stop_type or "", event.stop_type))
    reading.output_tokens = event.tokens_predicted
    reading.prompt_tokens = event.tokens_evaluated
    timings = event.timings or {}
    reading.times = times_of(timings)
    cached = timings.get("cache_n")
    reading.cached_tokens = cached if type(cached) is int else None


class Completion(WireProtocol):
    path = "/completion"
    takes_token_ids = True
    text_key = "content"
    whole = True

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": request.prompt,
            "n_predict": request.output_tokens,
            "stream": asked.stream,
            **asked.sampling,
        }
        if asked.ignore_eos:
            body["ignore_eos"] = True
        return {**body, **asked.extra_body}

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        if (answer := read_object(body, _decode, reading)) is not None:
            note_one_text(reading, answer.content)
            _note_end(reading, answer)
            reading.model = answer.model
        return reading

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [], chunk_tokens=[])
        last_end = None
        for end, event in decoded(events, _decode, reading):
            if event.index:
                return several_choices(reading, event.index)
            if event.content or (reading.chunk_ends and not event.stop):
                reading.chunk_ends.append(end)
                reading.texts.append(event.content)
                if reading.chunk_tokens is not None and event.tokens:
                    reading.chunk_tokens.append(len(event.tokens))
                else:
                    reading.chunk_tokens = None
            elif not event.stop:
                reading.empty_chunks += 1
                reading.leading += 1
            else:
                last_end = end
            if event.stop:
                _note_end(reading, event)
            if event.model is not None:
                reading.model = event.model
        if (
            reading.error is None
            and sum(reading.chunk_tokens or []) != reading.output_tokens
        ):
            reading.chunk_tokens = None
            settle_silent(reading, last_end)
        return reading
