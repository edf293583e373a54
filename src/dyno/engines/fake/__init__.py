"""The fake engine: known first-token and inter-token times, a log of its own send times, and faults on demand.

Compare with its log (`GET /fake/log`), never with the nominal times. It has OpenAI's completions and chat routes, TGI's
own routes, and vLLM's /tokenize and /detokenize.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dyno.errors import UsageError

FAULTS = {
    "refuse": "the connection is reset before any answer",
    "429": "HTTP 429",
    "500": "HTTP 500",
    "503": "HTTP 503",
    "reset": "the connection is reset in the middle of the stream",
    "cut": "the connection is closed in the middle of the stream",
    "cut_at_end": "the connection is closed after the finish reason, before the end of the response",
    "stall": "the stream stops in the middle and stays open",
    "abort": "one token, then the finish reason abort and the stream's regular end, as from vLLM",
    "choices": "two answers in one stream",
    "error": "an error object inside the stream, then the stream's regular end",
    "garbage": "an event that is not JSON",
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
    "no_usage": "no usage, although requested",
    "reasoning": "the first half comes as reasoning text (chat)",
    "other_model": "answers have another model's name",
    "trailer": "the last chunk has a trailer field",
    "silent": "every second token has no text, and the last one comes with the finish reason, as from vLLM",
    "short": "half the requested tokens, then an end token",
    "schema": "an answer that breaks the schema that was asked for, or a call whose arguments do",
    "not_json": "half of the JSON that was asked for",
    "wrong_tool": "a call of a tool that doesn't exist",
    "no_call": "text where a call was asked for",
    "zeros": "vectors of zeros (embeddings)",
    "blind": "each image counts as 2 tokens, whatever its size",
    "deaf": "a client that goes away is not noticed: generation continues",
    "die": "the whole server exits",
}


class FakeSpec(msgspec.Struct, frozen=True):
    first_ms: float = 50.0
    gap_ms: float = 10.0
    model: str = "fake"
    max_model_len: int = 131_072
    # that it listens on; 0.0.0.0: also for clients on other machines
    host: str = "127.0.0.1"
    # requests at once without slowing down; more share the speed. 0: no limit
    slots: int = 0
    cliff: int = 0  # more requests at once than this are ten times as slow; 0: none
    noise: float = 0.0  # of an answer's times: the standard deviation of their logarithm
    # it reports blocks of 16 words that earlier prompts and their answers began with
    prefix_cache: bool = False
    bodies: bool = False  # its log has the head and body of each request, too
    constrained: float = 1.0  # answers of a prescribed form take so many times as long
    # rule for the tokens of images: see workload/vision.py
    image_tokens: str = "qwen2-vl"
    profiler: bool = False  # it has vLLM's routes that start and stop a profiler
    faults: dict[str, int] = {}  # kind → it strikes every Nth request
    busy_faults: dict[str, int] = {}  # of these: only with more requests at once than this


_FAULT_FIELDS = ("faults", "busy_faults")


class ParsedFaults(NamedTuple):
    faults: dict[str, int]
    busy_faults: dict[str, int]


def parse_faults(texts: Sequence[str]) -> ParsedFaults:
    """Read faults: reset, reset@10, or reset@10>4 where they strike only with more than 4 requests at once."""
    faults, busy = {}, {}
    for text in texts:
        strikes, over, open_ = text.partition(">")
        kind, often, every = strikes.partition("@")
        if kind not in FAULTS:
            raise UsageError(
                f"The fake engine has no fault {kind!r}. Known: {', '.join(FAULTS)}."
            )
        for sign, number in ((often, every), (over, open_)):
            if sign and not (number.isdecimal() and int(number)):
                raise UsageError(
                    f"--fault {text}: give a whole number of requests after the {sign}, at least 1."
                )
        faults[kind] = int(every or 1)
        if open_:
            busy[kind] = int(open_)
    return ParsedFaults(faults, busy)


def changed(spec: FakeSpec, words: Sequence[str]) -> FakeSpec:
    """Return the spec, changed by words such as first_ms=20 or fault=die@100, as in a setting's args."""
    fields = msgspec.to_builtins(spec)
    for word in words:
        name, _, value = word.partition("=")
        if name == "fault":
            parsed = parse_faults([value])
            for kind in parsed.faults:  # a later word replaces an earlier one whole
                fields["busy_faults"].pop(kind, None)
            fields["faults"] |= parsed.faults
            fields["busy_faults"] |= parsed.busy_faults
        elif name in fields and name not in _FAULT_FIELDS:
            fields[name] = value
        else:
            known = ", ".join(["fault", *(f for f in fields if f not in _FAULT_FIELDS)])
            raise UsageError(f"The fake engine has no setting {name!r}. Known: {known}.")
    try:
        return msgspec.convert(fields, FakeSpec, strict=False)
    except msgspec.ValidationError as e:
        raise UsageError(
            f"The fake engine's settings {' '.join(words)} can't be read: {e}."
        ) from None


def as_words(spec: FakeSpec) -> list[str]:
    """Return the words that change the default into this spec."""
    default, fields = (
        FakeSpec(),
        [name for name in FakeSpec.__struct_fields__ if name not in _FAULT_FIELDS],
    )
    words = [
        f"{name}={getattr(spec, name)}"
        for name in fields
        if getattr(spec, name) != getattr(default, name)
    ]
    for kind, every in spec.faults.items():
        over = f">{spec.busy_faults[kind]}" if kind in spec.busy_faults else ""
        words.append(f"fault={kind}@{every}{over}")
    return words
