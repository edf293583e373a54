"""What the fake engine is told: its times, its model's name, and how it shall fail."""

from collections.abc import Sequence

import msgspec

from dyno.errors import UsageError

FAULTS = {
    "refuse": "the connection is reset before any answer",
    "429": "HTTP 429", "500": "HTTP 500", "503": "HTTP 503",
    "reset": "the connection is reset in the middle of the stream",
    "cut": "the connection is closed in the middle of the stream",
    "stall": "nothing more comes after the middle of the stream",
    "error": "an error object inside the stream, then the stream's regular end",
    "garbage": "an event that is no JSON",
    "not_a_stream": "one JSON object instead of a stream",
    "slow_headers": "the head comes in pieces, 20 ms apart",
    "empty": "a stream without text or tokens",
    "end_at_once": "the only token is the end token",
    "bundle": "four tokens in each chunk",
    "joined": "all events in one write",
    "dribble": "each event in three writes",
    "cut_utf8": "a multi-byte character cut in two",
    "comments": "SSE comments between the events",
    "crlf": "lines end in CR LF",
    "no_done": "no [DONE] at the end",
    "no_usage": "no usage, though asked for",
    "reasoning": "the first half comes as reasoning text (chat)",
    "other_model": "answers carry another model's name",
    "trailer": "the last chunk carries a trailer field",
    "silent": "every second token has no text, and the last one comes with the finish reason, as from vLLM",
    "short": "half the tokens asked for, then an end token",
    "die": "the whole server exits",
}  # fmt: skip


class FakeSpec(msgspec.Struct, frozen=True):
    first_ms: float = 50.0
    gap_ms: float = 10.0
    model: str = "fake"
    max_model_len: int = 131_072
    faults: dict[str, int] = {}  # kind → every how many requests it strikes


def parse_faults(texts: list[str]) -> dict[str, int]:
    faults = {}
    for text in texts:
        kind, _, every = text.partition("@")
        if kind not in FAULTS:
            raise UsageError(f"The fake engine has no fault {kind!r}. Known: {', '.join(FAULTS)}.")
        if every and not (every.isdigit() and int(every)):
            raise UsageError(f"--fault {text}: after the @ stands every how many requests it strikes, from 1 on.")
        faults[kind] = int(every or 1)
    return faults


def changed(spec: FakeSpec, words: Sequence[str]) -> FakeSpec:
    """By words such as first_ms=20 or fault=die@100, as a setting's args give them."""
    fields = msgspec.to_builtins(spec)
    for word in words:
        name, _, value = word.partition("=")
        if name == "fault":
            fields["faults"] |= parse_faults([value])
        elif name in fields and name != "faults":
            fields[name] = value
        else:
            known = ", ".join(["fault", *(f for f in fields if f != "faults")])
            raise UsageError(f"The fake engine has no {name!r}. Known: {known}.")
    try:
        return msgspec.convert(fields, FakeSpec, strict=False)
    except msgspec.ValidationError as e:
        raise UsageError(f"The fake engine's settings {' '.join(words)} can't be read: {e}.") from None
