"""OpenTelemetry GenAI spans: model calls with their messages, in the order that times and parents give them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from dyno import files
from dyno.errors import WorkloadError
from dyno.workload.calls import (
    AgentSession,
    Call,
    CallWindow,
    checked_tools,
    ordered,
    waits,
)

_DEEPEST = 1000  # spans inside one another
_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_FAILED = (2, "STATUS_CODE_ERROR", "ERROR")


class ModelSpan(msgspec.Struct):
    id: str
    trace: str
    where: str
    parent: str | None
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    failed: bool

    @property
    def is_call(self) -> bool:
        return _INPUT in self.attributes and not self.failed

    @property
    def window(self) -> CallWindow:
        return CallWindow(self.id, self.start_s, self.end_s)


def spans(documents: list[tuple[str, Any]]) -> list[AgentSession]:
    """Return a session for each trace that has model calls."""
    traces: dict[str, list[ModelSpan]] = {}
    for where, value in documents:
        for raw in _raw_spans(where, value):
            span = _span(where, raw)
            traces.setdefault(span.trace, []).append(span)
    sessions = [
        _session(members)
        for members in traces.values()
        if any(span.is_call for span in members)
    ]
    if not sessions:
        raise WorkloadError(
            f"{documents[0][0]}: no span has {_INPUT}. Record the messages with the spans: instrumentations have a "
            "setting for it, such as OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true."
        )
    return sessions


def _raw_spans(where: str, value: dict[str, Any]) -> Iterator[Any]:
    if "resourceSpans" not in value:
        yield from _list(where, value, "spans") if "spans" in value else [value]
        return
    for resource in _list(where, value, "resourceSpans"):
        for scope in _list(where, resource, "scopeSpans"):
            yield from _list(where, scope, "spans")


def _list(where: str, value: Any, key: str) -> list[Any]:
    """Return a list of the file, empty where it has none."""
    given = value.get(key) if isinstance(value, dict) else value
    if given is None:
        return []
    if not isinstance(given, list) or not isinstance(value, dict):
        raise WorkloadError(f"{where}: {key} is not a list. Correct the file.")
    return given


def _span(where: str, raw: Any) -> ModelSpan:
    if not isinstance(raw, dict):
        raise WorkloadError(f"{where}: a span is not an object. Correct the file.")
    name = raw.get("span_id") or raw.get("spanId")
    where = f"{where}, span {name}"
    if not name:
        raise WorkloadError(f"{where}: no span_id. Correct the file.")
    times = [
        _time_s(where, raw, *keys)
        for keys in (("start_time", "startTimeUnixNano"), ("end_time", "endTimeUnixNano"))
    ]
    if times[1] < times[0]:
        raise WorkloadError(
            f"{where}: it ends {times[0] - times[1]:g} s before it starts. Correct its times."
        )
    status = raw.get("status")
    return ModelSpan(
        str(name),
        str(raw.get("trace_id") or raw.get("traceId") or ""),
        where,
        str(parent)
        if (parent := raw.get("parent_span_id") or raw.get("parentSpanId"))
        else None,
        times[0],
        times[1],
        _attributes(raw.get("attributes")),
        isinstance(status, dict) and status.get("code") in _FAILED,
    )


def _attributes(given: Any) -> dict[str, Any]:
    """Return attributes by name, also from OTLP's list of keys and typed values."""
    if isinstance(given, list):
        pairs = [(a.get("key"), a.get("value")) for a in given if isinstance(a, dict)]
        return {
            str(key): next(iter(value.values()), None)
            for key, value in pairs
            if isinstance(value, dict)
        }
    return given if isinstance(given, dict) else {}


def _time_s(where: str, raw: dict[str, Any], *names: str) -> float:
    value = next((raw[name] for name in names if raw.get(name) is not None), None)
    try:
        if isinstance(value, str) and not value.isdigit():
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return int(value) / 1e9  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError(
            f"{where}: {names[0]} is {value!r:.80}, not a date and time. Correct it."
        ) from None


def _session(members: list[ModelSpan]) -> AgentSession:
    by_id = {span.id: span for span in members}
    timed = sorted(
        (span for span in members if span.is_call),
        key=lambda span: (span.start_s, span.end_s),
    )
    lineages = _lineages(timed, by_id)
    after = ordered(lineages)
    calls: list[Call] = []
    known: dict[bytes, int] = {}  # digest of a call's messages and answer → its number
    for i, (span, wait_s) in enumerate(zip(timed, waits(lineages, after), strict=True)):
        messages, answer = _input(span), _answer(span)
        checked_tools((span.where, message) for message in messages)
        history, digests = None, _digests([*messages, *([answer] if answer else [])])
        # the most of an earlier call that this one goes on with
        for k in range(len(messages) - 2, -1, -1):
            earlier = known.get(digests[k])
            if earlier is not None and _comes_before(after, earlier, i):
                history, messages = earlier, messages[k + 1 :]
                break
        if answer:
            known[digests[-1]] = i
        asked = _tokens(span, "gen_ai.request.max_tokens")
        calls.append(
            Call.from_messages(
                messages,
                answer=answer,
                output_tokens=_tokens(
                    span, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"
                )
                or (None if answer else asked),
                most_tokens=asked,
                history=history,
                after=after[i],
                wait_s=wait_s,
                tools=_tools(span),
            )
        )
    return AgentSession(calls, timed[0].start_s)


def _lineages(
    spans: list[ModelSpan], by_id: dict[str, ModelSpan]
) -> list[list[CallWindow]]:
    """Return for each span the windows that lead to it, outermost first and its own last."""
    known: dict[str, list[CallWindow]] = {}
    for span in spans:
        way = _way_up(span, by_id, known)
        while way:
            inner = way.pop()
            above = known[inner.parent] if inner.parent is not None else []
            if len(above) >= _DEEPEST:
                raise WorkloadError(
                    f"{inner.where}: it is inside more than {_DEEPEST} other spans. Correct their parents."
                )
            known[inner.id] = [*above, inner.window]
    return [known[span.id] for span in spans]


def _way_up(
    span: ModelSpan, by_id: dict[str, ModelSpan], known: dict[str, list[CallWindow]]
) -> list[ModelSpan]:
    """Return the span and those that it is inside of, up to one whose lineage is known."""
    way: list[ModelSpan] = []
    seen: set[str] = set()
    current: ModelSpan | None = span
    while current is not None and current.id not in known:
        if current.id in seen:
            names = " → ".join([*(inner.id for inner in way), current.id])
            raise WorkloadError(
                f"{span.where}: its parents form a cycle: {names}. Correct their parent_span_id."
            )
        way.append(current)
        seen.add(current.id)
        if current.parent is not None and current.parent not in by_id:
            raise WorkloadError(
                f"{current.where}: its parent {current.parent} is not in the file. Export the whole trace, or remove "
                "the parent's id."
            )
        current = by_id[current.parent] if current.parent is not None else None
    return way


def _comes_before(after: list[list[int]], earlier: int, later: int) -> bool:
    reached, waiting = {later}, [later]
    while waiting:
        for i in after[waiting.pop()]:
            if i == earlier:
                return True
            if i > earlier and i not in reached:
                reached.add(i)
                waiting.append(i)
    return False


def _digests(messages: list[dict[str, Any]]) -> list[bytes]:
    """Return a digest of the messages up to each of them."""
    digest, digests = blake2b(digest_size=16), []
    for message in messages:
        digest.update(msgspec.json.encode(message, order="deterministic"))
        digests.append(digest.digest())
    return digests


# ---- messages ----


def _json(span: ModelSpan, name: str) -> Any:
    value = span.attributes.get(name)
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except files.BROKEN as e:
        raise WorkloadError(
            f"{span.where}: {name} is not valid JSON ({e}). Was the attribute cut off?"
        ) from None


def _input(span: ModelSpan) -> list[dict[str, Any]]:
    given = _json(span, _INPUT)
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(m, dict) for m in given)
    ):
        raise WorkloadError(
            f"{span.where}: {_INPUT} is not a list of messages. Correct or delete the span."
        )
    system = _json(span, "gen_ai.system_instructions")
    parts = [{"role": "system", "parts": system}] if isinstance(system, list) else []
    return [message for m in [*parts, *given] for message in _messages(span.where, m)]


def _tools(span: ModelSpan) -> list[dict[str, Any]]:
    name = "gen_ai.tool.definitions"
    given = _json(span, name) or []
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise WorkloadError(
            f"{span.where}: {name} is not a list of objects. Correct or delete it."
        )
    return given


def _answer(span: ModelSpan) -> dict[str, Any] | None:
    given = _json(span, _OUTPUT)
    if isinstance(given, list) and given and isinstance(given[0], dict):
        return _messages(span.where, {**given[0], "role": "assistant"})[0]
    text = span.attributes.get("gen_ai.output.text")
    return (
        {"role": "assistant", "content": text} if isinstance(text, str) and text else None
    )


def _messages(where: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message in OpenAI's form. The convention's own form has parts, and may have several tool results."""
    if "parts" not in given:
        return [{key: value for key, value in given.items() if key != "finish_reason"}]
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    parts = given["parts"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise WorkloadError(
            f"{where}: the parts of a message are not a list of objects. Correct or delete the span."
        )
    for part in parts:
        if part.get("type") == "tool_call":
            function = {
                "name": part.get("name", ""),
                "arguments": _as_text(part.get("arguments")),
            }
            calls.append(
                {"id": part.get("id", ""), "type": "function", "function": function}
            )
        elif part.get("type") == "tool_call_response":
            content = _as_text(part.get("response", part.get("result")))
            results.append(
                {"role": "tool", "tool_call_id": part.get("id", ""), "content": content}
            )
        elif part.get("type") == "text":
            texts.append(str(part.get("content", "")))
    if results:
        return results
    extra = {"tool_calls": calls} if calls else {}
    return [{"role": given.get("role"), "content": "\n".join(texts) or None, **extra}]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _tokens(span: ModelSpan, *names: str) -> int | None:
    """Return the first of these attributes that is a number of tokens."""
    for name in names:
        value = span.attributes.get(name)
        if isinstance(value, int | str) and re.fullmatch(r"0*[1-9][0-9]{0,8}", str(value)):
            return int(value)
    return None
