"""OpenAI's completions and chat completions, as vLLM, llama.cpp, SGLang, TGI and many others speak them."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from dyno.load.plain import PlainEvents, TextShape, shape_of
from dyno.load.protocols.base import (
    UNREADABLE,
    Asked,
    CallParts,
    ServerTimes,
    StreamReading,
    WireProtocol,
    finish,
    garbage,
    note_one_text,
    read_object,
    reported_ns,
    settle_silent,
    several_choices,
    stream_error,
    tokens_between,
)
from dyno.load.protocols.llamacpp import times_of
from dyno.workload.media import Medium, contents, with_media
from dyno.workload.request import ChatRequest, MediaRequest, Request, ToolRequest


class _CachedTokens(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _ReasoningTokens(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    completion_tokens_details: _ReasoningTokens | None = None


class _Delta(msgspec.Struct, gc=False):
    role: Any = None
    content: str | None = None
    reasoning_content: str | None = None  # vLLM before 0.12, llama.cpp, SGLang, DeepSeek
    reasoning: str | None = None  # vLLM now, OpenRouter
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None  # of an answer in one piece
    finish_reason: Any = None  # SGLang: perhaps an object
    token_ids: Any = None  # vLLM's, where they are asked for
    logprobs: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None
    metrics: Any = None  # vLLM's, with --enable-per-request-metrics
    timings: Any = None  # llama.cpp's


_decode = msgspec.json.Decoder(_Chunk).decode
# that `transformers serve` takes by these names
_OPENAI = ("temperature", "top_p", "frequency_penalty", "seed")


_RUNS = 4  # attempts to read many events of a stream at once


class _EventReader:
    """Takes the events of a stream one by one."""

    __slots__ = ("_calls", "_last_silent_end", "_so_far", "_tokens", "reading")

    def __init__(self) -> None:
        self.reading = StreamReading([], [])
        self._calls = CallParts()
        # the event with the finish reason, where it has no text
        self._last_silent_end: int | None = None
        # so far, by the usage, token ids or log probabilities of each event
        self._tokens = 0
        # the same, by the end of each event that has them
        self._so_far: dict[int, int] = {}

    def take(self, end: int, data: bytes) -> bool:
        """Take one event. Return whether the next one is to be read: not after an error."""
        reading = self.reading
        try:
            chunk = _decode(data)
        except UNREADABLE as e:
            if data == b"[DONE]":
                reading.done = True
                return True
            garbage(reading, data, e)
            return False
        if chunk.error is not None:
            stream_error(reading, chunk.error)
            return False
        if chunk.choices:
            choice = chunk.choices[-1]
            if choice.index:
                several_choices(reading, choice.index)
                return False
            self._count(end, choice, chunk.usage)
            self._place(end, choice)
        if chunk.usage is not None:
            _note_usage(reading, chunk.usage)
        if chunk.metrics or chunk.timings:
            reading.times = _times(chunk) or reading.times
        if reading.model is None:
            reading.model = chunk.model
        return True

    def extend(self, ends: list[int], texts: list[str]) -> None:
        """Take events after the first text that have a text and nothing else."""
        self.reading.chunk_ends += ends
        self.reading.texts += texts

    def close(self) -> StreamReading:
        settle_silent(self.reading, self._last_silent_end)
        self.reading.calls = self._calls.calls()
        _note_tokens(self.reading, self._so_far)
        return self.reading

    def _count(self, end: int, choice: _Choice, usage: _Usage | None) -> None:
        """Note how many tokens have come, where the event says it."""
        if usage is not None and usage.completion_tokens:
            self._so_far[end] = self._tokens = usage.completion_tokens
        elif choice.token_ids or choice.logprobs:
            self._so_far[end] = self._tokens = self._tokens + _listed(choice)

    def _place(self, end: int, choice: _Choice) -> None:
        """Note the event as a chunk, if it has text or may have a token without."""
        reading = self.reading
        so_far = self._so_far
        reason = choice.finish_reason
        text = choice.text if choice.delta is None else self._delta_text(end, choice.delta)
        if reason:  # TGI's completions say "" until the last token
            text = _finished(reading, reason, text)
        if text:
            reading.chunk_ends.append(end)
            reading.texts.append(text)
        elif not reading.chunk_ends:
            _note_leading(reading, choice.delta)
        elif not reason or _adds_tokens(so_far, reading.chunk_ends[-1], end):
            # a token without text: a special one, half a character
            reading.chunk_ends.append(end)
            reading.texts.append("")
        elif end not in so_far or reading.chunk_ends[-1] not in so_far:
            self._last_silent_end = end

    def _delta_text(self, end: int, delta: _Delta) -> str | None:
        """Return reasoning and text of an event of a chat."""
        text = delta.content
        if thought := delta.reasoning_content or delta.reasoning:
            self.reading.thoughts[end] = len(thought)
            text = thought if not text else thought + text
        if delta.tool_calls:
            self._calls.add(delta.tool_calls)
            if not text:
                text = _called(delta.tool_calls)
        return text


def _read_object(body: bytes) -> StreamReading:
    reading = StreamReading([], [])
    answer = read_object(body, _decode, reading)
    if answer is None:
        return reading
    choices = answer.choices or []
    if len(choices) > 1:
        return several_choices(reading, 1)
    for choice in choices:
        _note_message(reading, choice)
    if answer.usage is not None:
        _note_usage(reading, answer.usage)
    reading.model = answer.model
    return reading


def _note_message(reading: StreamReading, choice: _Choice) -> None:
    """Note the one text of an answer in one piece, its reasoning before it."""
    text, thought = choice.text or "", ""
    if (message := choice.message) is not None:
        text = message.content or ""
        thought = message.reasoning_content or message.reasoning or ""
        calls = CallParts()
        calls.add(message.tool_calls or [])
        reading.calls = calls.calls()
        if reading.calls and not text:
            text = _called(message.tool_calls or [])
    if choice.finish_reason:
        finish(reading, choice.finish_reason)
    note_one_text(reading, text, thought)


def _read_events(events: list[tuple[int, bytes]]) -> StreamReading:
    reader = _EventReader()
    for end, data in events:
        if not reader.take(end, data):
            return reader.reading
    return reader.close()


def _read_plain(raw: bytes, start: int, key: str) -> StreamReading | None:
    """Read a stream of HTTP chunks with an event each; None: it is none. `key`: of a text."""
    events = PlainEvents.read(raw, start)
    if events is None:
        return None
    reader = _EventReader()
    attempts = _RUNS
    i = 0
    spoken = reader.reading.texts
    while i < len(events):
        before = len(spoken)
        data = events.data(i)
        if data is None:
            return None
        if not reader.take(events.ends[i], data):
            return reader.reading
        i += 1
        if attempts and len(spoken) > before:
            attempts -= 1
            if shape := _shape(data, key):
                texts = events.texts(i, shape)
                reader.extend(events.ends[i : i + len(texts)], texts)
                i += len(texts)
    return reader.close()


def _shape(data: bytes, key: str) -> TextShape | None:
    """Return the shape of an event that has a text and nothing else that counts."""
    shape = shape_of(data, key)
    if shape is None:
        return None
    try:
        # Two texts that a shape of another meaning would not give back.
        alone = all(_has_only(_decode(shape.event(text.encode())), text) for text in "AB")
    except UNREADABLE:
        return None
    return shape if alone else None


def _has_only(chunk: _Chunk, text: str) -> bool:
    """Return whether an event has this text, and nothing else that a reading would note."""
    choices = chunk.choices or []
    if len(choices) != 1 or chunk.error is not None or chunk.usage is not None:
        return False
    if chunk.metrics or chunk.timings:
        return False
    (choice,) = choices
    counted = (choice.index, choice.finish_reason, choice.token_ids, choice.logprobs)
    if any(counted):
        return False
    delta = choice.delta
    if delta is None:
        return choice.text == text
    thought = delta.reasoning_content or delta.reasoning
    return delta.content == text and not (thought or delta.tool_calls)


def _note_usage(reading: StreamReading, usage: _Usage) -> None:
    reading.prompt_tokens = usage.prompt_tokens
    reading.output_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        reading.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.completion_tokens_details is not None:
        reading.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens


def _times(chunk: _Chunk) -> ServerTimes | None:
    """Return what the server says of its time. vLLM's time to the first token begins when it schedules the request."""
    if isinstance(chunk.timings, dict):
        return times_of(chunk.timings)
    if not isinstance(chunk.metrics, dict):
        return None
    names = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    return ServerTimes(*(reported_ns(chunk.metrics.get(name)) for name in names))


def _finished(reading: StreamReading, reason: Any, text: str | None) -> str | None:
    """Note why the answer ended, and return the text of that event. TGI's end token has its own: "</s>"."""
    finish(reading, reason)
    return None if reason == "eos_token" else text


def _note_tokens(reading: StreamReading, so_far: dict[int, int]) -> None:
    """Note the tokens of each chunk, where the server counts them. `so_far`: by the end of each event."""
    reading.chunk_tokens = tokens_between(reading.chunk_ends, so_far)
    if reading.chunk_ends:
        reading.first_tokens = so_far.get(reading.chunk_ends[0])


def _note_leading(reading: StreamReading, delta: _Delta | None) -> None:
    """Note an event without text before the first with some.

    Most often it is a role: then the first event. It is never the first token, but it may be a token."""
    has_role = delta is not None and bool(delta.role)
    if not has_role or reading.empty_chunks:
        reading.leading += 1
    reading.empty_chunks += 1


def _listed(choice: _Choice) -> int:
    """Return the tokens that an event lists: by their ids, else by their log probabilities."""
    if isinstance(choice.token_ids, list):
        return len(choice.token_ids)
    listed = choice.logprobs
    if isinstance(listed, dict):
        listed = listed.get("content") or listed.get("tokens")  # of chat, of completions
    return len(listed) if isinstance(listed, list) else 0


def _adds_tokens(so_far: dict[int, int], before: int, end: int) -> bool:
    """Return whether the server says that the event which ends at `end` has tokens."""
    return before in so_far and so_far.get(end, 0) > so_far[before]


def _called(calls: list[Any]) -> str:
    """Return the text of tool calls: output too, though no answer. Never empty."""
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    parts = [
        f.get(key)
        for f in functions
        if isinstance(f, dict)
        for key in ("name", "arguments")
    ]
    return "".join(part for part in parts if isinstance(part, str)) or "\u200b"


def _common(request: Request, asked: Asked) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": asked.model,
        **_streaming(asked.stream),
        **asked.sampling,
    }
    if asked.ignore_eos:
        body["ignore_eos"] = True
    return body


def _streaming(stream: bool) -> dict[str, Any]:
    if not stream:
        return {"stream": False}
    return {"stream": True, "stream_options": {"include_usage": True}}


def messages_of(request: Request) -> list[dict[str, Any]]:
    """Return a request of its own as messages in the form of OpenAI's chat."""
    if isinstance(request, ToolRequest):
        return request.messages
    if isinstance(request, MediaRequest):
        return [{"role": "user", "content": contents(str(request.prompt), request.media)}]
    before = request.before if isinstance(request, ChatRequest) else []
    return [
        {"role": role, "content": text}
        for role, text in [*before, ("user", request.prompt)]
    ]


def own_fields(request: Request, asked: Asked) -> dict[str, Any]:
    """Return what a request of an API that is not OpenAI's chat has besides its messages and its length."""
    body: dict[str, Any] = {
        "model": asked.model,
        "stream": asked.stream,
        **asked.sampling,
    }
    if asked.ignore_eos:
        body["ignore_eos"] = True
    own = request.body if isinstance(request, ToolRequest) else {}
    return body | asked.extra_body | own


def written(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with their media as a chat takes them."""
    return with_media(messages, _part)


def _part(medium: Medium) -> dict[str, Any]:
    """Return the part of a message that has a medium."""
    if medium.kind == "audio":
        (file,) = medium.files()
        data = base64.b64encode(file).decode("ascii")
        return {"type": "input_audio", "input_audio": {"data": data, "format": medium.form}}
    kind = f"{medium.kind}_url"
    return {"type": kind, kind: {"url": medium.url()}}


class Completions(WireProtocol):
    path = "/v1/completions"
    takes_token_ids = True
    takes_stop = True
    text_key = "text"
    whole = True
    read_whole = staticmethod(_read_object)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        return {
            **_common(request, asked),
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            **asked.extra_body,
        }

    read = staticmethod(_read_events)

    def read_plain(self, raw: bytes, start: int) -> StreamReading | None:
        return _read_plain(raw, start, "text")


class Chat(WireProtocol):
    path = "/v1/chat/completions"
    chat = True
    text_key = "content"
    whole = True
    media = frozenset(("image", "video", "audio"))
    read_whole = staticmethod(_read_object)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        body = {
            **_common(request, asked),
            "messages": self.messages(messages_of(request))[0],
            "max_completion_tokens": request.output_tokens,
            **asked.extra_body,
        }
        return body | request.body if isinstance(request, ToolRequest) else body

    def messages(
        self, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return written(messages), {}

    read = staticmethod(_read_events)

    def read_plain(self, raw: bytes, start: int) -> StreamReading | None:
        return _read_plain(raw, start, "content")


class TransformersCompletions(WireProtocol):
    """`transformers serve` refuses fields that OpenAI doesn't have; the rest goes into a generation_config."""

    path = "/v1/completions"
    text_key = "text"

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        sampling = dict(asked.sampling)
        config: dict[str, Any] = {}
        if asked.ignore_eos:
            # min_new_tokens doesn't act with continuous batching
            config["eos_token_id"] = -1
        if "temperature" in sampling:  # which alone turns sampling neither on nor off
            config["do_sample"] = sampling["temperature"] > 0
            if not sampling["temperature"]:
                del sampling["temperature"]
        config |= {
            name: sampling.pop(name) for name in list(sampling) if name not in _OPENAI
        }
        return {
            "model": asked.model,
            "stream": True,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            **sampling,
            "generation_config": json.dumps(config),
            **asked.extra_body,
        }

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = _read_events(events)
        if reading.model is not None:
            # it adds the revision: NAME@main
            reading.model = reading.model.partition("@")[0]
        return reading
