"""Agent sessions without their texts: TraceLab's rounds, and block traces with sub-agents as Weka's kv-cache-tester
writes them. Their prompts are made up, and share what the recorded ones shared."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec

from dyno.errors import WorkloadError
from dyno.workload.blocks import Blocks
from dyno.workload.calls import AgentSession, Call, CallWindow, converted, ordered, waits

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
