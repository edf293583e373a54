"""The model calls of a recorded agent session: their order by time and nesting, and the checks on their messages."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from dyno.errors import WorkloadError

T = TypeVar("T")


class Call(msgspec.Struct):
    prompt: str
    messages: list[dict[str, Any]] = []  # of its own; empty: the prompt, from the user
    answer: dict[str, Any] | None = None
    output_tokens: int | None = None  # None: as many as the answer has
    most_tokens: int | None = None  # that the call asked for
    # number of the call, in its session, whose messages and answer come before
    history: int | None = None
    after: list[int] = []
    wait_s: float = 0.0
    tools: list[dict[str, Any]] = []

    @classmethod
    def from_messages(cls, messages: list[dict[str, Any]], **fields: Any) -> "Call":
        plain = (
            len(messages) == 1
            and messages[0].get("role") == "user"
            and isinstance(messages[0]["content"], str)
        )
        return cls(text_of(messages), [] if plain else messages, **fields)


class AgentSession(NamedTuple):
    """A session of a file."""

    calls: list[Call]
    start_s: float | None = None  # by the file's clock


class CallWindow(NamedTuple):
    """When a call, or the agent that makes it, ran."""

    name: str
    start_s: float
    end_s: float


def ordered(lineages: list[list[CallWindow]], slack_s: float = 0.0) -> list[list[int]]:
    """Return for each call those that must end before it: what had ended by the recorded times when it began, without
    what follows from the others. `lineages`: the call's window, last, after those of the agents that enclose it,
    outermost first; calls in the order of their starts. Agents that overlap run in parallel: their calls don't wait
    for one another. `slack_s`: how far recorded times can be off."""
    after: list[list[int]] = []
    closures: list[int] = []  # a bit for each call that comes before, at any distance
    for i, lineage in enumerate(lineages):
        direct, closure = [], 0
        unknown = (1 << i) - 1  # a bit for each earlier call that follows from no other yet
        while unknown:
            j = unknown.bit_length() - 1
            unknown ^= 1 << j
            if _precedes(lineages[j], lineage, slack_s):
                direct.append(j)
                closure |= closures[j] | 1 << j
                unknown &= ~closures[j]
        after.append(sorted(direct))
        closures.append(closure)
    return after


def _precedes(one: list[CallWindow], other: list[CallWindow], slack_s: float) -> bool:
    if one[-1].end_s - slack_s > other[-1].start_s:
        return False
    shared, most = 0, min(len(one), len(other))
    # two lineages share their beginning: half the rest is decided by one look
    while shared < most:
        middle = (shared + most) // 2
        shared, most = (
            (middle + 1, most)
            if one[middle].name == other[middle].name
            else (shared, middle)
        )
    if shared == min(len(one), len(other)):
        return True
    # The outermost agents that they don't share, or the calls themselves.
    return one[shared].end_s - slack_s <= other[shared].start_s


def waits(lineages: list[list[CallWindow]], after: list[list[int]]) -> list[float]:
    """Return for each call the time from the end of those before it, or from the start of the session."""
    start_s = min(lineage[-1].start_s for lineage in lineages)
    ends = [
        max((lineages[j][-1].end_s for j in before), default=start_s) for before in after
    ]
    return [
        max(0.0, lineage[-1].start_s - end)
        for lineage, end in zip(lineages, ends, strict=True)
    ]


def text_of(messages: Iterable[dict[str, Any]]) -> str:
    """Return all that a model reads of some messages: texts, reasoning, tool calls."""
    parts: list[str] = []
    for message in messages:
        parts.append(str(message.get("reasoning_content") or ""))
        parts += _contents(message.get("content"))
        parts += _calls(message.get("tool_calls"))
    return "\n".join(part for part in parts if part)


def _contents(content: Any) -> Iterator[str]:
    pieces = content if isinstance(content, list) else [content]
    for piece in pieces:
        text = piece.get("text") if isinstance(piece, dict) else piece
        yield str(text or "")


def _calls(calls: Any) -> Iterator[str]:
    """Yield names and arguments of tool calls; what is not a call has none."""
    if not isinstance(calls, list):
        return
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(function.get("name", ""))
            yield str(function.get("arguments", ""))


def checked_tools(messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Refuse a tool's result that no call asked for, and messages that no server takes."""
    calls: set[str] = set()
    for where, message in messages:
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise WorkloadError(
                f"{where}: a message has the role {role!r}. Use system, user, assistant or tool."
            )
        given = message.get("tool_calls") or []
        if not isinstance(given, list) or not all(
            isinstance(call, dict) and "id" in call for call in given
        ):
            raise WorkloadError(
                f"{where}: tool_calls must be a list of objects, each with an id."
            )
        calls.update(str(call["id"]) for call in given)
        if role == "tool" and str(message.get("tool_call_id")) not in calls:
            raise WorkloadError(
                f"{where}: a tool's result for {message.get('tool_call_id')!r}, but no answer before it makes that "
                "call. Add the answer with its tool_calls, or delete the result."
            )
        if role in ("system", "developer", "user") and not message.get("content"):
            raise WorkloadError(
                f"{where}: a {role} message is empty. Fill it in or delete it."
            )


def converted(where: str, value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as e:
        raise WorkloadError(
            f"{where}: {e}. Correct the file, or delete the entry."
        ) from None
