"""Recorded agent sessions: model calls that wait for one another and for tools. Five kinds of file, recognized by
their keys: MLPerf's agentic rows, requests with messages and tools, OpenTelemetry GenAI spans, TraceLab's rounds,
and block traces with sub-agents as Weka's kv-cache-tester writes them."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.visible import one_line
from dyno.workload.blocks import Blocks
from dyno.workload.calls import (
    AgentSession,
    Call,
    CallWindow,
    checked_tools,
    converted,
    ordered,
    text_of,
    waits,
)
from dyno.workload.common import CommonSpec
from dyno.workload.recorded import numbered_lines, read
from dyno.workload.request import Request, Turn
from dyno.workload.spans import spans
from dyno.workload.tokenizer import Tokenizer, special_ids

OUTPUT_LEN = 256  # where neither the file nor the user gives a length
_ENDS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
# in the examples that TraceLab expands for reading
_SEPARATOR = re.compile(rb"^(?:#.*|=====.*=====)\s*$", re.M)
_SHAPES = (
    "dyno reads MLPerf's agentic rows (conversation_id, role), requests (messages, tools), OpenTelemetry spans "
    "(spans or resourceSpans), TraceLab's rounds (session_id, round_index) and block traces (requests, block_size)"
)


class AgentDocument(NamedTuple):
    where: str
    value: dict[str, Any]
    kind: str


def agents(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the model calls of recorded sessions, in the order of the file; traces by their times."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset agents needs its file: give it with {setting_name('--dataset-path')}. {_SHAPES}."
        )
    position, number, turns = 0, -1, _Turns(spec, tokenizer)
    for number, session in enumerate(_sessions(spec, tokenizer)):
        yield from turns.session(session, number, position)
        position += len(session.calls)
    if number < 0:
        raise WorkloadError(f"{spec.path} has no agent session. {_SHAPES}.")


class _Turns:
    def __init__(self, spec: CommonSpec, tokenizer: Tokenizer) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        self._special = len(special_ids(tokenizer))

    def session(self, session: AgentSession, number: int, position: int) -> Iterator[Turn]:
        """Yield the requests of a session. `position`: of its first request in the workload."""
        prompts: list[int] = []
        outputs: list[int] = []
        for i, call in enumerate(session.calls):
            tokens = self._count(call.prompt)
            if call.history is None:
                tools = msgspec.json.encode(call.tools).decode() if call.tools else ""
                tokens += self._special + self._count(tools)
            else:
                tokens += prompts[call.history] + outputs[call.history]
            prompts.append(tokens)
            outputs.append(self._output(call))
            yield Turn(
                call.prompt,
                tokens,
                outputs[-1],
                session=number,
                after=[position + k for k in call.after],
                wait_s=call.wait_s,
                history=None if call.history is None else position + call.history,
                messages=call.messages,
                answer=call.answer,
                start_s=None if i else session.start_s,
                body={"tools": call.tools} if call.tools else {},
            )

    def _output(self, call: Call) -> int:
        if self._spec.output_len:
            return self._spec.output_len
        recorded = call.output_tokens or (
            self._count(text_of([call.answer])) if call.answer else 0
        )
        # Another tokenizer may count more than the call asked for.
        wanted = recorded or OUTPUT_LEN
        return min(wanted, call.most_tokens) if call.most_tokens else wanted

    def _count(self, text: str) -> int:
        return max(1, self._tokenizer.count(text) - self._special) if text else 0


def _sessions(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[AgentSession]:
    blocks: Blocks | None = None
    timed: list[AgentDocument] = []
    documents = (
        document for path in _paths(spec.path or "") for document in _documents(path)
    )
    for kind, group in groupby(documents, key=lambda document: document.kind):
        if kind == "otel":
            timed += group
        elif kind == "mlperf":
            yield from _conversations(group)
        elif kind == "messages":
            yield from map(_from_messages, group)
        else:
            blocks = blocks or Blocks(tokenizer, spec.seed)
            yield from _from_blocks(kind, group, blocks)
    # all before the first is sent: a trace may be spread over files, and they begin in the order of time
    if timed:
        yield from sorted(
            spans([(d.where, d.value) for d in timed]),
            key=lambda session: session.start_s or 0.0,
        )


def _from_messages(document: AgentDocument) -> AgentSession:
    line = converted(document.where, document.value, _Line)
    return _conversation(
        document.where, [(document.where, m) for m in line.messages], line.tools
    )


def _from_blocks(
    kind: str, documents: Iterable[AgentDocument], blocks: Blocks
) -> Iterator[AgentSession]:
    if kind == "tracelab":
        yield from rounds(((d.where, d.value) for d in documents), blocks)
    else:
        yield from (block_session(d.where, d.value, blocks) for d in documents)


# ---- files ----


def _paths(path: str) -> list[str]:
    """Return the file, or those of a folder by name."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return [path]
    names = sorted(str(file) for file in folder.iterdir() if file.name.endswith(_ENDS))
    if not names:
        raise WorkloadError(
            f"{path} has no file that ends in {', '.join(_ENDS)}. Check {setting_name('--dataset-path')}."
        )
    return names


def _documents(path: str) -> Iterator[AgentDocument]:
    """Yield the JSON objects of a file: one, a list, one a line, or one after each separator."""
    data = read(path)
    if data.startswith((b"#", b"=====")):
        parts = [part for part in _SEPARATOR.split(data) if part.strip()]
        for number, part in enumerate(parts, 1):
            yield _document(
                f"{path}, record {number}", _decoded(part, f"{path}, record {number}")
            )
        return
    try:
        whole = msgspec.json.decode(data)
    except files.BROKEN:
        for number, line in numbered_lines(data):
            yield _document(
                f"{path}, line {number}", _decoded(line, f"{path}, line {number}")
            )
        return
    for number, value in enumerate(whole if isinstance(whole, list) else [whole], 1):
        yield _document(
            f"{path}, entry {number}" if isinstance(whole, list) else path, value
        )


def _decoded(part: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(part)
    except files.BROKEN as e:
        raise WorkloadError(
            f"{where}: not valid JSON ({e}). Was the file cut off?"
        ) from None


def _document(where: str, value: Any) -> AgentDocument:
    keys = value.keys() if isinstance(value, dict) else set()
    for needed, kind in (
        ({"conversation_id", "role"}, "mlperf"),
        ({"messages"}, "messages"),
        ({"spans"}, "otel"),
        ({"resourceSpans"}, "otel"),
        ({"span_id", "attributes"}, "otel"),
        ({"spanId", "attributes"}, "otel"),
        ({"requests", "block_size"}, "blocks"),
        ({"session_id", "round_index"}, "tracelab"),
    ):
        if needed <= keys:
            return AgentDocument(where, value, kind)
    names = ", ".join(sorted(map(str, keys))[:8]) or "it is not an object"
    raise WorkloadError(f"{where}: not an agent session ({one_line(names)}). {_SHAPES}.")


# ---- conversations ----


class _ToolResult(msgspec.Struct):
    tool_call_id: str
    content: str = ""


class _MessageRow(msgspec.Struct):
    """A message of MLPerf's agentic data set."""

    conversation_id: str
    role: str
    turn: int
    content: str | None = None
    system: str | None = None
    tools: list[dict[str, Any]] = []
    tool_calls: list[dict[str, Any]] = []
    tool_results: list[_ToolResult] = []
    reasoning_content: str | None = None
    delay_seconds: float = 0.0
    max_new_tokens: int | None = None
    max_completion_tokens: int | None = None


class _Line(msgspec.Struct):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []


def _conversations(documents: Iterable[AgentDocument]) -> Iterator[AgentSession]:
    seen: set[str] = set()
    rows = ((where, converted(where, value, _MessageRow)) for where, value, _ in documents)
    for name, group in groupby(rows, key=lambda row: row[1].conversation_id):
        own = list(group)
        if name in seen:
            raise WorkloadError(
                f"{own[0][0]}: conversation {name} comes again. Put its rows together."
            )
        seen.add(name)
        yield _from_rows(own)


def _from_rows(rows: list[tuple[str, _MessageRow]]) -> AgentSession:
    messages: list[tuple[str, dict[str, Any]]] = []
    waits: dict[int, float] = {}
    lengths: dict[int, int] = {}
    last = 0
    for where, row in rows:
        if row.turn <= last:
            raise WorkloadError(
                f"{where}: turn {row.turn} follows turn {last}. Sort the rows of the conversation."
            )
        last = row.turn
        if row.delay_seconds < 0:
            raise WorkloadError(
                f"{where}: delay_seconds is {row.delay_seconds}; it can't be negative."
            )
        if row.system and not messages:
            messages.append((where, {"role": "system", "content": row.system}))
        waits[len(messages)] = row.delay_seconds
        if limit := row.max_completion_tokens or row.max_new_tokens:
            lengths[len(messages)] = limit
        if row.role == "tool":
            if not row.tool_results:
                raise WorkloadError(
                    f"{where}: a tool row without tool_results. Fill them in or delete the row."
                )
            messages += [
                (where, {"role": "tool", **msgspec.to_builtins(result)})
                for result in row.tool_results
            ]
        else:
            extra = {"tool_calls": row.tool_calls} if row.tool_calls else {}
            thought = (
                {"reasoning_content": row.reasoning_content}
                if row.reasoning_content
                else {}
            )
            messages.append(
                (where, {"role": row.role, "content": row.content, **thought, **extra})
            )
    tools = next((row.tools for _, row in rows if row.tools), [])
    return _conversation(rows[0][0], messages, tools, waits, lengths)


def _conversation(
    where: str,
    messages: list[tuple[str, dict[str, Any]]],
    tools: list[dict[str, Any]],
    waits: dict[int, float] | None = None,
    lengths: dict[int, int] | None = None,
) -> AgentSession:
    """Return a session with a call for each recorded answer, and one for messages at the end that have none.
    `waits` and `lengths`: by the number of the message."""
    waits, lengths = waits or {}, lengths or {}
    checked_tools(messages)
    calls: list[Call] = []
    for own, answer in _exchanges(messages):
        before = [len(calls) - 1] if calls else []
        limit = next((lengths[k] for k in own if k in lengths), None)
        calls.append(
            Call.from_messages(
                [messages[k][1] for k in own],
                answer=answer,
                output_tokens=limit if answer is None else None,
                history=before[0] if before else None,
                after=before,
                wait_s=sum(waits.get(k, 0.0) for k in own),
                tools=tools,
            )
        )
    if not calls:
        raise WorkloadError(f"{where}: the conversation has no message to send. Delete it.")
    return AgentSession(calls)


def _exchanges(
    messages: list[tuple[str, dict[str, Any]]],
) -> Iterator[tuple[list[int], dict[str, Any] | None]]:
    """Yield the numbers of the messages that are sent together, and the recorded answer to them."""
    own: list[int] = []
    for i, (place, message) in enumerate(messages):
        if message.get("role") != "assistant":
            own.append(i)
            continue
        if not own:
            raise WorkloadError(
                f"{place}: an answer without a message before it. Delete it, or add the question."
            )
        yield own, message
        own = []
    if own:
        yield own, None


# ---- sessions without texts: TraceLab's rounds, and block traces. Prompts share what the recorded ones shared ----

_SLACK_S = 1.0  # block traces round their times to a second
_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_INPUTS = ("user_message", "tool_result")


class _Event(msgspec.Struct):
    event_type: str
    timestamp: datetime


class _Tool(msgspec.Struct):
    tool_wall_latency_ms: _Seconds | None = None


class Round(msgspec.Struct):
    """A model call of a coding agent, as TraceLab normalizes it."""

    session_id: str
    round_index: int
    input_tokens_total: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
    output_tokens: _Count
    prefix_tokens: _Count = 0  # found in the provider's cache
    provider: str = ""
    model: str | None = None
    timing_events: list[_Event] = []
    tools: list[_Tool] = []

    def bounds(self) -> tuple[datetime, datetime] | None:
        """Return when its input was complete, and its last output."""
        inputs: list[datetime] = []
        outputs: list[datetime] = []
        for event in self.timing_events:
            times = inputs if event.event_type in _INPUTS else outputs
            times.append(event.timestamp)
        return (max(inputs), max(outputs)) if inputs and outputs else None


def rounds(documents: Iterable[tuple[str, Any]], blocks: Blocks) -> Iterator[AgentSession]:
    """Yield TraceLab's sessions. A prompt begins with as much of the one before as the provider had in its cache;
    the first of a session with the start that all sessions of its model share."""
    rows = ((where, converted(where, value, Round)) for where, value in documents)
    for _, group in groupby(rows, key=lambda row: row[1].session_id):
        yield AgentSession(list(_calls(list(group), blocks)))


def _calls(rows: list[tuple[str, Round]], blocks: Blocks) -> Iterator[Call]:
    keys: list[str] = [f"{rows[0][1].provider}/{rows[0][1].model}"]
    ends = [rows[0][1].prefix_tokens]
    for i, (where, row) in enumerate(rows):
        if i and row.round_index <= rows[i - 1][1].round_index:
            raise WorkloadError(
                f"{where}: round {row.round_index} follows round {rows[i - 1][1].round_index} of session "
                f"{row.session_id}. Sort the rounds of a session, and put them together."
            )
        if row.prefix_tokens > row.input_tokens_total:
            raise WorkloadError(
                f"{where}: prefix_tokens ({row.prefix_tokens}) is more than input_tokens_total "
                f"({row.input_tokens_total}). Correct or delete the round."
            )
        shared = [min(end, row.prefix_tokens) for end in ends]
        # What is cached beyond the last prompt and its answer is unknown: new, as the rest.
        keys, ends = (
            [*keys, f"{row.session_id}/{row.round_index}"],
            [*shared, row.input_tokens_total],
        )
        prompt, _ = blocks.prompt(keys, ends)
        wait_s = _wait_s(rows[i - 1][1], row) if i else 0.0
        yield Call(
            prompt,
            output_tokens=row.output_tokens or 1,
            after=[i - 1] if i else [],
            wait_s=wait_s,
        )
        keys.append(f"{row.session_id}/{row.round_index} answer")
        ends.append(ends[-1] + row.output_tokens)


def _wait_s(earlier: Round, row: Round) -> float:
    """Return the time that tools, or the user, took between two rounds."""
    before, now = earlier.bounds(), row.bounds()
    if before and now:
        return max(0.0, (now[0] - before[1]).total_seconds())
    return (
        max((tool.tool_wall_latency_ms or 0.0 for tool in earlier.tools), default=0.0)
        / 1000
    )


class _BlockCall(msgspec.Struct, tag_field="type", tag="n"):
    t: _Seconds
    tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = msgspec.field(name="in")
    output: _Count = msgspec.field(name="out")
    hash_ids: list[int] = []
    api_time: _Seconds | None = None


class _StreamedCall(_BlockCall, tag_field="type", tag="s"):
    pass


class _SubAgent(msgspec.Struct, tag_field="type", tag="subagent"):
    t: _Seconds
    requests: list[_BlockCall | _StreamedCall]
    agent_id: str = ""
    duration_ms: _Seconds | None = None


class BlockTrace(msgspec.Struct):
    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    requests: list[_BlockCall | _StreamedCall | _SubAgent]
    hash_id_scope: Literal["local", "global"] = "local"


def block_session(where: str, value: Any, blocks: Blocks) -> AgentSession:
    """Return the session of a block trace: a hash id stands for a block of tokens. Calls of a sub-agent follow what
    had ended when it began; the main agent waits for sub-agents that had ended."""
    trace = converted(where, value, BlockTrace)
    timed = sorted(_timed(trace), key=lambda pair: pair[1][-1].start_s)
    if not timed:
        raise WorkloadError(f"{where}: trace {trace.id} has no requests. Delete it.")
    lineages = [lineage for _, lineage in timed]
    after = ordered(lineages, _SLACK_S)
    calls = []
    for i, ((call, lineage), wait_s) in enumerate(
        zip(timed, waits(lineages, after), strict=True)
    ):
        scope = "" if trace.hash_id_scope == "global" else trace.id
        hashes = call.hash_ids[: -(-call.tokens // trace.block_size)]
        ends = [min(trace.block_size * k, call.tokens) for k in range(1, len(hashes) + 1)]
        keys = [*(f"{scope}/{h}" for h in hashes), f"{trace.id} {lineage[-1].name}"]
        prompt, _ = blocks.prompt(keys, [*ends, call.tokens])
        calls.append(
            Call(prompt, output_tokens=call.output or 1, after=after[i], wait_s=wait_s)
        )
    return AgentSession(calls)


def _timed(trace: BlockTrace) -> Iterator[tuple[_BlockCall, list[CallWindow]]]:
    """Yield calls with their windows. Those of sub-agents count from its start, or as all others do."""
    agents = [entry for entry in trace.requests if isinstance(entry, _SubAgent)]
    relative = any(
        call.t < agent.t - _SLACK_S for agent in agents for call in agent.requests
    )
    for i, entry in enumerate(trace.requests):
        if isinstance(entry, _SubAgent):
            yield from _agent_calls(f"agent {i}", entry, entry.t if relative else 0.0)
        else:
            yield entry, [_window(f"request {i}", entry.t, entry)]


def _agent_calls(
    name: str, agent: _SubAgent, offset_s: float
) -> Iterator[tuple[_BlockCall, list[CallWindow]]]:
    windows = [
        _window(f"{name} request {k}", offset_s + call.t, call)
        for k, call in enumerate(agent.requests)
    ]
    end_s = max([agent.t + (agent.duration_ms or 0.0) / 1000, *(w.end_s for w in windows)])
    for call, window in zip(agent.requests, windows, strict=True):
        yield call, [CallWindow(name, agent.t, end_s), window]


def _window(name: str, start_s: float, call: _BlockCall) -> CallWindow:
    return CallWindow(name, start_s, start_s + (call.api_time or 0.0))
