"""OpenAI's Responses, as vLLM, llama.cpp and OpenAI itself speak them. A text, a reasoning text and the arguments of a
call come as events of their own; the usage comes with the event that ends the answer."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dyno.load.protocols.base import (
    Asked,
    CallParts,
    StreamReading,
    WireProtocol,
    decoded,
    finish,
    note_one_text,
    note_text,
    read_object,
    settle_silent,
    stream_error,
)
from dyno.load.protocols.openai import messages_of, own_fields
from dyno.workload.media import Medium, with_media
from dyno.workload.request import Request

_TEXTS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_ARGUMENTS = "response.function_call_arguments.delta"
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_REASONS = {"max_output_tokens": "length"}  # in the words of chat


class _Cached(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Reasoned(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _ResponsesUsage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None


class _Text(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _OutputItem(msgspec.Struct, gc=False):
    type: str = ""
    name: str | None = None
    arguments: str | None = None
    content: list[_Text] | None = None


class _Reason(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    model: str | None = None
    status: str | None = None
    error: Any = None
    incomplete_details: _Reason | None = None
    output: list[_OutputItem] | None = None
    usage: _ResponsesUsage | None = None


class _ResponsesEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    output_index: int | None = 0
    item: _OutputItem | None = None
    response: _Response | None = None
    error: Any = None
    message: str | None = None  # of the event `error`


_decode = msgspec.json.Decoder(_ResponsesEvent).decode
_decode_whole = msgspec.json.Decoder(_Response).decode


class Responses(WireProtocol):
    path = "/v1/responses"
    chat = True
    whole = True
    media = frozenset(("image",))
    text_mark = re.compile(
        rb'"type"\s*:\s*"response\.'
        rb"(?:output_text|refusal|reasoning_text|reasoning_summary_text|function_call_arguments)"
        rb'\.delta"'
    )
    token_event = None  # the answer, its item and its part are announced first
    # in full: llama.cpp takes an answer in no shorter form
    answer_around = (
        b'{"type":"message","id":"msg_0","status":"completed","role":"assistant","content":[{"type":"output_text",'
        b'"annotations":[],"text":"',
        b'"}]}',
    )

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        messages, fields = self.messages(messages_of(request))
        body = {
            "input": messages,
            "max_output_tokens": request.output_tokens,
            **fields,
            **own_fields(request, asked),
        }
        return self.translated(body)

    def translated(self, body: dict[str, Any]) -> dict[str, Any]:
        return _translated(body)

    def messages(
        self, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        items = [item for message in messages for item in _items(message)]
        return with_media(items, _image), {}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [])
        calls = CallParts()
        for end, event in decoded(events, _decode, reading):
            if event.type == "error":
                stream_error(reading, event.message or "error")
                break
            _place(reading, calls, end, event)
            if event.response is not None:
                _note(reading, event.response, over=event.type in _ENDS)
            if reading.error is not None:
                break
        reading.calls = calls.calls()
        settle_silent(reading, None)
        return reading

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        answer = read_object(body, _decode_whole, reading)
        if answer is None:
            return reading
        calls = CallParts()
        texts: list[str] = []
        thoughts: list[str] = []
        for number, item in enumerate(answer.output or []):
            parts = [part.text or part.refusal or "" for part in item.content or []]
            (thoughts if item.type == "reasoning" else texts).extend(parts)
            if item.type == "function_call":
                calls.extend(number, item.name, item.arguments)
                texts.append(item.arguments or "")
        reading.calls = calls.calls()
        note_one_text(reading, "".join(texts), "".join(thoughts))
        _note(reading, answer, over=True)
        return reading


def _place(
    reading: StreamReading, calls: CallParts, end: int, event: _ResponsesEvent
) -> None:
    """Note the event as a chunk, if it has text."""
    text = event.delta if isinstance(event.delta, str) else ""
    if event.type in _THOUGHTS:
        reading.thoughts[end] = len(text)
    elif event.type == _ARGUMENTS:
        calls.extend(event.output_index, None, text)
    elif event.type == "response.output_item.added" and event.item is not None:
        if event.item.type == "function_call":
            calls.extend(event.output_index, event.item.name, None)
        return
    elif event.type not in _TEXTS:
        return
    note_text(reading, end, text)


def _note(reading: StreamReading, response: _Response, over: bool) -> None:
    """Note what an event says of the whole answer."""
    reading.model = reading.model or response.model
    if response.error is not None:
        stream_error(reading, response.error)
        return
    if response.usage is not None:
        usage = response.usage
        reading.prompt_tokens = usage.input_tokens
        reading.output_tokens = usage.output_tokens
        if usage.input_tokens_details is not None:
            reading.cached_tokens = usage.input_tokens_details.cached_tokens
        if usage.output_tokens_details is not None:
            reading.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
    if not over:
        return
    reading.done = True
    details = response.incomplete_details
    reason = details.reason if details is not None else None
    if response.status in ("failed", "cancelled"):
        finish(reading, "error" if response.status == "failed" else "cancelled")
    elif reason is not None or response.status == "incomplete":
        finish(reading, _REASONS.get(reason or "max_output_tokens", reason))
    else:
        finish(reading, "stop")


# ---- from OpenAI's chat ----


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a message: its text, its calls, or the result of one."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        name = str(message.get("tool_call_id"))
        return [{"type": "function_call_output", "call_id": name, "output": content}]
    items: list[dict[str, Any]] = []
    if role == "assistant" and isinstance(content, str) and content:
        items.append(_answer(content))
    elif content or not message.get("tool_calls"):
        items.append({"role": role, "content": _content(content)})
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        items.append(
            {
                "type": "function_call",
                "call_id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return items


def _answer(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "annotations": [], "text": text}
    about = {"type": "message", "id": "msg_0", "status": "completed"}
    return {**about, "role": "assistant", "content": [part]}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "input_text"} if part.get("type") == "text" else part
        for part in content
    ]


def _image(medium: Medium) -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", "image_url": medium.url()}


def _translated(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with tools and a response format of chat in this API's form."""
    body = dict(body)
    tools = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = [
            {"type": "function", **tool["function"]}
            if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
            else tool
            for tool in tools
        ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        body["tool_choice"] = {"type": "function", **choice["function"]}
    form = body.pop("response_format", None)
    if isinstance(form, dict):
        schema = form.get("json_schema")
        own = schema if isinstance(schema, dict) else {}
        body["text"] = {"format": {"type": form.get("type"), **own}}
    return body
