"""SGLang's own /generate. Its answers say how long a request waited, if the server runs with --enable-metrics.

Made after the sources of SGLang 0.5.23 and those of August 2026; no SGLang server was run. They have no time of
decoding: `decode_throughput` counts one token more in some versions, and begins late where nothing is streamed.
"""

from itertools import takewhile
from typing import Any

import msgspec

from dyno.errors import UsageError
from dyno.load.protocols.base import (
    Asked,
    ServerTimes,
    StreamReading,
    WireProtocol,
    decoded,
    finish,
    note_one_text,
    note_text,
    read_object,
    reported_ns,
    settle_silent,
    tokens_between,
)
from dyno.option import setting_name
from dyno.workload.request import Request


class _Meta(msgspec.Struct, gc=False):
    finish_reason: Any = None  # an object: {"type": "length", "length": 16}
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # so far
    cached_tokens: int | None = None
    # seconds, and seconds since 1970, with --enable-metrics
    queue_time: Any = None
    forward_entry_time: Any = None
    prefill_finished_time: Any = None


class _TextSoFar(msgspec.Struct, gc=False):
    text: str | None = (
        None  # so far, or the new text alone: with --incremental-streaming-output
    )
    output_ids: list[int] | None = None  # likewise
    meta_info: _Meta | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_TextSoFar).decode
_NAMES = {"seed": "sampling_seed"}  # of sampling values that SGLang calls otherwise


class Generate(WireProtocol):
    path = "/generate"
    takes_token_ids = True
    whole = True
    token_event = 1

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        extra = dict(asked.extra_body)
        sampling = {_NAMES.get(name, name): value for name, value in asked.sampling.items()}
        sampling["max_new_tokens"] = request.output_tokens
        if asked.ignore_eos:
            sampling["ignore_eos"] = True
        sampling |= _object(extra.pop("sampling_params", {}))
        prompt = "text" if isinstance(request.prompt, str) else "input_ids"
        body = {prompt: request.prompt, "sampling_params": sampling, "stream": asked.stream}
        return {**body, **extra}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [])
        so_far = _SoFar()
        tokens_at: dict[int, int] = {}
        for end, event in decoded(events, _decode, reading):
            meta = event.meta_info or _Meta()
            note_text(reading, end, so_far.new_text(event, meta))
            if meta.completion_tokens is not None:
                tokens_at[end] = meta.completion_tokens
            _note_meta(reading, meta)
        if reading.error is None:
            settle_silent(reading, None)
        reading.chunk_tokens = tokens_between(reading.chunk_ends, tokens_at)
        return reading

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        if (answer := read_object(body, _decode, reading)) is not None:
            note_one_text(reading, answer.text or "")
            _note_meta(reading, answer.meta_info or _Meta())
        return reading


def _object(params: Any) -> dict[str, Any]:
    """Return a user's sampling_params."""
    if not isinstance(params, dict):
        raise UsageError(
            f"sampling_params in {setting_name('--extra-body')} must be an object, such as "
            '{"sampling_params": {"top_k": 20}}.'
        )
    return params


class _SoFar:
    """Tells a text so far from a new piece of one: a server sends the one or the other, in all events of a stream."""

    def __init__(self) -> None:
        self._text = ""
        self._grows: bool | None = None  # None: not known yet

    def new_text(self, event: _TextSoFar, meta: _Meta) -> str:
        text, before = event.text or "", self._text
        if self._grows is None and before:
            self._grows = self._is_so_far(event, meta)
        if not self._grows:
            self._text += text
            return text
        # A letter that was cut may have changed: what differs is new. A stop string that was cut off is no new text.
        self._text = text
        if text.startswith(before):
            return text[len(before) :]
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))
        return text[sum(1 for _ in alike) :]

    def _is_so_far(self, event: _TextSoFar, meta: _Meta) -> bool:
        if event.output_ids is not None and meta.completion_tokens is not None:
            return len(event.output_ids) == meta.completion_tokens
        return (event.text or "").startswith(self._text)


def _note_meta(reading: StreamReading, meta: _Meta) -> None:
    reading.prompt_tokens = meta.prompt_tokens
    reading.cached_tokens = meta.cached_tokens
    reading.output_tokens = meta.completion_tokens
    reading.times = _first_of(reading.times, _times(meta))
    if meta.finish_reason is not None:
        finish(reading, meta.finish_reason)


def _times(meta: _Meta) -> ServerTimes:
    return ServerTimes(
        queue_ns=_between(0, meta.queue_time),
        prefill_ns=_between(meta.forward_entry_time, meta.prefill_finished_time),
    )


def _first_of(earlier: ServerTimes | None, later: ServerTimes) -> ServerTimes | None:
    """Return the first value of each time: the server counts the queue anew, and wrongly, after it has preempted a
    request."""
    before = earlier or ServerTimes()
    first = ServerTimes(
        queue_ns=later.queue_ns if before.queue_ns is None else before.queue_ns,
        prefill_ns=later.prefill_ns if before.prefill_ns is None else before.prefill_ns,
    )
    return None if first == ServerTimes() else first


def _between(begin: Any, end: Any) -> int | None:
    """Return the ns between two of the server's times, which are seconds; None: it doesn't say one of them."""
    numbers = all(type(value) in (int, float) for value in (begin, end))
    return reported_ns(1000 * (end - begin)) if numbers else None
