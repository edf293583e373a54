"""What a protocol is: a path, a request body, and a way to read the events of its stream."""

from typing import Any, Protocol

import msgspec

from dyno.facts.request import Request


class Asked(msgspec.Struct, frozen=True):
    """What every request of a run asks for besides its prompt."""

    model: str
    ignore_eos: bool = False
    sampling: dict[str, Any] = {}  # temperature, top_p, top_k, min_p … where given
    extra_body: dict[str, Any] = {}


class Reading(msgspec.Struct):
    """What a stream's events said. An event that can't be read ends it with an error."""

    chunk_ns: list[int]
    texts: list[str]
    chunk_tokens: list[int] | None = None
    empty_chunks: int = 0
    reasoning: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    done: bool = False
    error: str | None = None
    error_detail: str = ""


class WireProtocol(Protocol):
    path: str
    takes_token_ids: bool

    def body(self, request: Request, asked: Asked) -> dict[str, Any]: ...

    def read(self, events: list[tuple[int, bytes]]) -> Reading: ...


def garbage(reading: Reading, data: bytes, error: Exception) -> Reading:
    reading.error = "garbage"
    reading.error_detail = f"an event that can't be read ({error}): {data[:120].decode('utf-8', 'replace')}"
    return reading


def stream_error(reading: Reading, error: Any) -> Reading:
    reading.error = "stream_error"
    message = error.get("message", error) if isinstance(error, dict) else error
    reading.error_detail = str(message)[:300]
    return reading
