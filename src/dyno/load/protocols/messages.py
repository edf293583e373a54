"""Anthropic's Messages, as Anthropic, vLLM and llama.cpp speak them: blocks of text, thinking and calls of tools."""

import base64
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
)
from dyno.load.protocols.openai import messages_of, own_fields
from dyno.workload.media import Medium, with_media
from dyno.workload.request import Request

# in the words of chat
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


class _MessagesUsage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _ContentBlock(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: Any = None


class _BlockDelta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _WholeMessage(msgspec.Struct, gc=False):
    type: str = ""
    model: str | None = None
    content: list[_ContentBlock] | None = None
    stop_reason: str | None = None
    usage: _MessagesUsage | None = None
    error: Any = None


class _MessagesEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int | None = 0
    message: _WholeMessage | None = None
    content_block: _ContentBlock | None = None
    delta: _BlockDelta | None = None
    usage: _MessagesUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_MessagesEvent).decode
_decode_whole = msgspec.json.Decoder(_WholeMessage).decode


class Messages(WireProtocol):
    path = "/v1/messages"
    chat = True
    whole = True
    media = frozenset(("image",))
    text_mark = re.compile(rb'"type"\s*:\s*"(?:text|thinking|input_json)_delta"')
    token_event = None  # its message and its block come first
    headers = {"anthropic-version": "2023-06-01"}

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        messages, fields = self.messages(messages_of(request))
        body = {
            "messages": messages,
            "max_tokens": request.output_tokens,
            **fields,
            **own_fields(request, asked),
        }
        return self.translated(body)

    def translated(self, body: dict[str, Any]) -> dict[str, Any]:
        return _translated(body)

    def messages(
        self, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        said = [m for m in messages if m.get("role") not in ("system", "developer")]
        system = "\n\n".join(str(m.get("content") or "") for m in messages if m not in said)
        spoken = with_media(map(_message, said), _image)
        return spoken, {"system": system} if system else {}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [])
        calls = CallParts()
        for end, event in decoded(events, _decode, reading):
            if event.message is not None:
                reading.model = event.message.model
                _note_usage(reading, event.message.usage)
            if event.content_block is not None and event.content_block.type == "tool_use":
                calls.extend(event.index, event.content_block.name, None)
            if event.delta is not None:
                _place(reading, calls, end, event.index, event.delta)
            if event.type == "message_delta":
                _note_usage(reading, event.usage)
            elif event.type == "message_stop":
                reading.done = True
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
        for number, block in enumerate(answer.content or []):
            texts.append(block.text or "")
            thoughts.append(block.thinking or "")
            if block.type == "tool_use":
                arguments = msgspec.json.encode(block.input).decode()
                calls.extend(number, block.name, arguments)
                texts.append(arguments)
        reading.calls = calls.calls()
        note_one_text(reading, "".join(texts), "".join(thoughts))
        _note_usage(reading, answer.usage)
        finish(reading, _REASONS.get(answer.stop_reason or "", answer.stop_reason))
        reading.model = answer.model
        return reading


def _place(
    reading: StreamReading,
    calls: CallParts,
    end: int,
    index: int | None,
    delta: _BlockDelta,
) -> None:
    """Note the event as a chunk, if it has text; a signature has none."""
    if delta.stop_reason is not None:
        finish(reading, _REASONS.get(delta.stop_reason, delta.stop_reason))
    if delta.type == "input_json_delta":
        calls.extend(index, None, delta.partial_json)
        text = delta.partial_json
    elif delta.type == "thinking_delta":
        text = delta.thinking
        reading.thoughts[end] = len(text or "")
    elif delta.type == "text_delta":
        text = delta.text
    else:
        return
    note_text(reading, end, text or "")


def _note_usage(reading: StreamReading, usage: _MessagesUsage | None) -> None:
    """Note counts. Of a prompt, what came from the cache is counted apart."""
    if usage is None:
        return
    if usage.output_tokens is not None:
        reading.output_tokens = usage.output_tokens
    if usage.cache_read_input_tokens is not None:
        reading.cached_tokens = usage.cache_read_input_tokens
    if usage.input_tokens is not None:
        created = usage.cache_creation_input_tokens or 0
        cached = usage.cache_read_input_tokens or 0
        reading.prompt_tokens = usage.input_tokens + created + cached


# ---- from OpenAI's chat ----


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as blocks, where it is more than a text."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message.get("tool_call_id"),
            "content": content,
        }
        return {"role": "user", "content": [result]}
    calls = message.get("tool_calls") or []
    if not calls:
        return {"role": role, "content": content}
    blocks = [{"type": "text", "text": content}] if content else []
    return {"role": role, "content": [*blocks, *map(_use, calls)]}


def _use(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        given = msgspec.json.decode(function.get("arguments") or "{}")
    except msgspec.DecodeError:
        given = {}
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": given,
    }


def _image(medium: Medium) -> dict[str, Any]:
    (file,) = medium.files()
    data = base64.b64encode(file).decode("ascii")
    source = {"type": "base64", "media_type": medium.mime, "data": data}
    return {"type": "image", "source": source}


def _translated(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with tools and a response format of chat in this API's form."""
    body = dict(body)
    tools = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = [_tool(tool) for tool in tools]
    choice = body.get("tool_choice")
    if choice in ("auto", "none"):
        body["tool_choice"] = {"type": choice}
    elif choice == "required":
        body["tool_choice"] = {"type": "any"}
    elif isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        body["tool_choice"] = {"type": "tool", "name": choice["function"].get("name")}
    form = body.pop("response_format", None)
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        schema = form["json_schema"].get("schema")
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return body


def _tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    own = {key: value for key, value in function.items() if key != "parameters"}
    return {**own, "input_schema": function.get("parameters") or {"type": "object"}}
