"""Any JSON endpoint, by a template: the fields of a request, and where an answer has its text and counts.

    stream = true
    body = {inputs = "{{prompt}}", parameters = {max_new_tokens = "{{output_tokens}}"}}
    answer = {text = "token.text", output_tokens = "details.generated_tokens", error = "error"}

A place is a path of keys and numbers: choices.0.delta.content. Of a stream it is one in each event's object.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dyno.errors import UsageError
from dyno.facts.template import RequestTemplate
from dyno.load.protocols.base import (
    UNREADABLE,
    Asked,
    StreamReading,
    WireProtocol,
    finish,
    garbage,
    note_one_text,
    settle_silent,
    stream_error,
)
from dyno.option import setting_name
from dyno.workload.request import BatchRequest, Request

_decode = msgspec.json.Decoder().decode


class Template(WireProtocol):
    path = "/"
    takes_token_ids = True
    batched = True
    whole = True

    def __init__(self, template: RequestTemplate | None = None) -> None:
        self._template = template or RequestTemplate()
        self._given = template is not None
        self.streams = self._template.stream
        self.output = self._template.output

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        if not self._given:
            raise UsageError(
                f"The backend json needs a template: {setting_name('--request-template')}."
            )
        values = {
            "prompt": request.prompt,
            "inputs": request.inputs
            if isinstance(request, BatchRequest)
            else [request.prompt],
            "output_tokens": request.output_tokens,
            "model": asked.model,
            "ignore_eos": asked.ignore_eos,
            **asked.sampling,
        }
        filled: dict[str, Any] = _filled(self._template.body, values)
        return {**filled, **asked.extra_body}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        reading = StreamReading([], [])
        for end, data in events:
            if data == b"[DONE]":
                reading.done = True
                continue
            try:
                event = _decode(data)
            except UNREADABLE as e:
                return garbage(reading, data, e)
            text = self._note(reading, event)
            if reading.error is not None:
                return reading
            if text or (reading.chunk_ends and text is not None):
                reading.chunk_ends.append(end)
                reading.texts.append(text)
            elif not reading.chunk_ends:
                reading.empty_chunks += 1
                reading.leading += text is not None
        # Such an API may have no end mark: HTTP says whether the answer is whole.
        reading.done = reading.done or bool(reading.texts)
        settle_silent(reading, None)
        return reading

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        try:
            answer = _decode(body)
        except UNREADABLE as e:
            return garbage(reading, body, e)
        text = self._note(reading, answer)
        reading.done = True
        if self.output == "scores":
            results = place(answer, self._template.answer.get("results", ""))
            reading.results = len(results) if isinstance(results, list) else 0
        else:
            note_one_text(reading, text or "")
        return reading

    def _note(self, reading: StreamReading, answer: Any) -> str | None:
        """Note the counts of an answer or an event, and return its text; None: it has no place for one."""
        where = self._template.answer
        if where.get("error") and (error := place(answer, where["error"])):
            stream_error(reading, error)
            return None
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            value = place(answer, where[name]) if where.get(name) else None
            if type(value) is int:
                setattr(reading, name, value)
        if where.get("finish_reason") and (reason := place(answer, where["finish_reason"])):
            finish(reading, reason)
        text = place(answer, where["text"]) if where.get("text") else None
        return text if isinstance(text, str) else None


def place(value: Any, path: str) -> Any:
    """Return what an object has at a path; None: nothing."""
    for step in filter(None, path.split(".")):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdigit():
            number = int(step)
            value = value[number] if -len(value) <= number < len(value) else None
        else:
            return None
    return value


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a body with its placeholders filled in. One that is a whole text keeps its value's type."""
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    for name, value in values.items():
        hole = f"{{{{{name}}}}}"
        if part == hole:
            return value
        part = part.replace(hole, str(value)) if hole in part else part
    return part
