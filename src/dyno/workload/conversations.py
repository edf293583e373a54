"""Conversations: synthetic ones with drawn turns, lengths and think times, and those of a file."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.datasets.chat import ChatSpec
from dyno.workload.datasets.conversations import ConversationsSpec
from dyno.workload.draw import Draw
from dyno.workload.recorded import read
from dyno.workload.request import Dropped, Request, Turn
from dyno.workload.synthetic import RANDOM_OUTPUT_LEN, synthesize
from dyno.workload.tokenizer import Tokenizer, special_ids

CHAT_TURNS = "5"
# tokens to generate where the file has no answer: vLLM's default for prompts of one's own
UNKNOWN_ANSWER = "256"
_ANSWERS = 1 << 31  # number of the first synthetic answer, far from those of questions
_SEED = 0xC4A7  # apart from the other generators of the same seed
_FORMS = (
    'ShareGPT\'s {"conversations": [{"from": "human", "value": "…"}, …]}, MT-Bench\'s {"turns": ["…", …]} or '
    'OpenAI\'s {"messages": [{"role": "user", "content": "…"}, …]}'
)
_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    "tool": "tool",
}

Message = dict[str, Any]  # in OpenAI's form


class Exchange(NamedTuple):
    """A turn of a conversation: messages, and the recorded answer to them."""

    messages: list[Message]
    answer: Message | None = None
    output_tokens: int | None = None  # None: as long as the recorded answer


class Dialogue(NamedTuple):
    exchanges: list[Exchange]
    location: str
    body: dict[str, Any]


class DrawnNumbers:
    """Draws the numbers of each conversation. They depend on the seed and its number alone."""

    def __init__(self, spec: ChatSpec | ConversationsSpec, inputs: str = "1") -> None:
        self._seed = spec.seed
        self._turns = _parse("--turns", spec.turns or CHAT_TURNS)
        self._waits = _parse("--think-time", spec.think_time_s)
        self._inputs = _parse("--turn-input-len", inputs)
        outputs = spec.turn_output_len or (
            str(spec.output_len) if spec.output_len else None
        )
        self.output_given = outputs is not None
        self._outputs = _parse("--turn-output-len", outputs or str(RANDOM_OUTPUT_LEN))

    def turns(self, session: int) -> int:
        return self._turns.counts(self._rng(session, 0), 1)[0]

    def waits_s(self, session: int, turns: int) -> list[float]:
        """Return the time before each turn; the first one begins the conversation."""
        return [0.0, *self._waits.numbers(self._rng(session, 1), turns - 1)]

    def inputs(self, session: int, turns: int) -> list[int]:
        return self._inputs.counts(self._rng(session, 2), turns)

    def outputs(self, session: int, turns: int) -> list[int]:
        return self._outputs.counts(self._rng(session, 3), turns)

    def _rng(self, session: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, _SEED, purpose, session])


def _parse(flag: str, text: str) -> Draw:
    try:
        return Draw.parse(text)
    except ValueError as e:
        raise WorkloadError(f"{setting_name(flag)} {e}.") from None


class TurnCounter:
    """Numbers the turns of conversations and counts their tokens, one conversation after the other."""

    def __init__(self, tokenizer: Tokenizer, recorded: bool) -> None:
        """`recorded`: the history has the recorded answers, else those of the server."""
        self._tokenizer, self._recorded = tokenizer, recorded
        self.special = len(special_ids(tokenizer))
        self.requests = self.sessions = 0

    def turns(self, dialogue: Dialogue, waits_s: list[float]) -> Iterator[Turn]:
        before = 0
        for i, (exchange, wait_s) in enumerate(
            zip(dialogue.exchanges, waits_s, strict=True)
        ):
            text = _text(exchange.messages, later=i > 0)
            tokens = before + self._tokenizer.count(text) - (self.special if i else 0)
            counts = self._recorded or exchange.output_tokens is None
            answer_tokens = self._answer_tokens(exchange.answer) if counts else 0
            output_tokens = exchange.output_tokens or max(answer_tokens, 1)
            previous = self.requests - 1 if i else None
            yield Turn(
                prompt=text,
                prompt_tokens=tokens,
                output_tokens=output_tokens,
                session=self.sessions,
                after=[] if previous is None else [previous],
                wait_s=wait_s,
                history=previous,
                messages=exchange.messages,
                answer=exchange.answer,
                body=dialogue.body,
            )
            before = tokens + (answer_tokens if self._recorded else output_tokens)
            self.requests += 1
        self.sessions += 1

    def _answer_tokens(self, answer: Message | None) -> int:
        text = _content(answer) if answer else ""
        return self._tokenizer.count(text) - self.special if text else 0


def _text(messages: list[Message], later: bool) -> str:
    """Return the messages as plain text, for a server without a chat template: each on a line of its own."""
    text = "\n".join(map(_content, messages)) + "\n"
    return f"\n{text}" if later else text


def _content(message: Message) -> str:
    """Return what a message says; calls of tools as they are counted: as JSON."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(
            part["text"] for part in content if isinstance(part, dict) and part.get("text")
        )
    calls = message.get("tool_calls")
    return f"{content}{msgspec.json.encode(calls).decode()}" if calls else str(content)


# ---- synthetic ----


def chat(spec: ChatSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield conversations of prose. Their first turns have different beginnings, after the system prompt that all
    have where prefix_len isn't 0."""
    drawn, recorded = DrawnNumbers(spec, spec.turn_input_len), spec.answers == "recorded"
    counter = TurnCounter(tokenizer, recorded)
    special = counter.special
    first_end, later_end = (
        tokenizer.count(line) - tokenizer.count("the") for line in ("the\n", "\nthe\n")
    )

    def message(role: str, number: int, tokens: int) -> Message:
        return {
            "role": role,
            "content": synthesize(tokenizer, spec.seed, number, special + max(tokens, 1))[
                0
            ],
        }

    system = [message("system", -1, spec.prefix_len - first_end)] if spec.prefix_len else []
    for session in count():
        turns = drawn.turns(session)
        exchanges, number = [], counter.requests
        lengths = zip(
            drawn.inputs(session, turns), drawn.outputs(session, turns), strict=True
        )
        for i, (input_tokens, output_tokens) in enumerate(lengths):
            line_end = later_end if i else first_end  # the line's own tokens
            question = message("user", number + i, input_tokens - line_end)
            needed = recorded and i + 1 < turns
            answer = (
                message("assistant", _ANSWERS + number + i, output_tokens)
                if needed
                else None
            )
            exchanges.append(
                Exchange([question] if i else [*system, question], answer, output_tokens)
            )
        yield from counter.turns(Dialogue(exchanges, "", {}), drawn.waits_s(session, turns))


# ---- from a file ----


def conversations(
    spec: ConversationsSpec, tokenizer: Tokenizer
) -> Iterator[Request | Dropped]:
    """Yield the conversations of a file in one of `_FORMS`, recognized entry by entry."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset conversations needs its file: give it with {setting_name('--dataset-path')}. It has "
            f"{_FORMS}."
        )
    drawn = DrawnNumbers(spec)
    entries = list(_entries(spec.path))
    if spec.shuffle:
        # vLLM's generator: the same seed gives the same order
        Random(spec.seed).shuffle(entries)
    dropped: Counter[str] = Counter()
    each = [_conversation(entry, location, dropped) for location, entry in entries]
    counter = TurnCounter(tokenizer, _recorded_answers(spec, each))
    for reason, number in dropped.items():
        if number:
            yield Dropped(reason, number)
    for dialogue in each:
        if not dialogue.exchanges:
            yield Dropped("conversations without a question")
            continue
        chosen = _chosen(dialogue, spec, drawn, counter.sessions)
        yield from counter.turns(
            chosen, drawn.waits_s(counter.sessions, len(chosen.exchanges))
        )
    if not counter.sessions:
        raise WorkloadError(
            f"{spec.path} has no conversation with a question. Each must be {_FORMS}."
        )


def _recorded_answers(spec: ConversationsSpec, dialogues: list[Dialogue]) -> bool:
    """Return whether the history has the recorded answers: results of tools belong to them."""
    if spec.answers is not None:
        return spec.answers == "recorded"
    exchanges = [exchange for dialogue in dialogues for exchange in dialogue.exchanges]
    return any(
        message["role"] == "tool" for exchange in exchanges for message in exchange.messages
    )


def _chosen(
    dialogue: Dialogue, spec: ConversationsSpec, drawn: DrawnNumbers, session: int
) -> Dialogue:
    """Return its first turns, as many as wanted, with answers as long as wanted."""
    exchanges = dialogue.exchanges[: drawn.turns(session) if spec.turns else None]
    if spec.answers == "recorded" and any(
        exchange.answer is None for exchange in exchanges[:-1]
    ):
        raise WorkloadError(
            f"{dialogue.location}: a turn has no recorded answer, which {setting_name('--answers')} recorded needs "
            f"for the history of the next one. Use {setting_name('--answers')} server."
        )
    lengths = drawn.outputs(session, len(exchanges))
    if not drawn.output_given:
        lengths = [
            int(UNKNOWN_ANSWER) if exchange.answer is None else 0 for exchange in exchanges
        ]
    exchanges = [
        e._replace(output_tokens=n or None) for e, n in zip(exchanges, lengths, strict=True)
    ]
    return dialogue._replace(exchanges=exchanges)


class _ShareGptMessage(msgspec.Struct):
    value: str = ""
    role: str = msgspec.field(name="from", default="")


class _FileEntry(msgspec.Struct):
    conversations: list[_ShareGptMessage] | None = None
    turns: list[str] | None = None
    messages: list[Message] | None = None
    tools: list[Message] = []


def _entries(path: str) -> Iterator[tuple[str, _FileEntry]]:
    """Yield each conversation with its location: those of a JSON list, or one a line."""
    data = read(path)
    try:
        if data.lstrip()[:1] == b"[":
            listed = msgspec.json.decode(data, type=list[msgspec.Raw])
            pieces = [(f"{path}, entry {n}", bytes(raw)) for n, raw in enumerate(listed, 1)]
        else:
            pieces = [
                (f"{path}, line {n}", raw)
                for n, raw in enumerate(data.splitlines(), 1)
                if raw.strip()
            ]
    except files.BROKEN as e:
        raise WorkloadError(
            f"{path} is not a JSON list of conversations: {e}. Was its download cut off?"
        ) from None
    for location, raw in pieces:
        try:
            entry = msgspec.json.decode(raw, type=_FileEntry)
        except files.BROKEN as e:
            raise WorkloadError(
                f"{location}: {e}. Each conversation must be {_FORMS}."
            ) from None
        if entry.conversations is None and entry.turns is None and entry.messages is None:
            raise WorkloadError(f"{location}: no conversation. Each must be {_FORMS}.")
        yield location, entry


def _conversation(entry: _FileEntry, location: str, dropped: Counter[str]) -> Dialogue:
    if entry.turns is not None:
        questions = [
            {"role": "user", "content": text} for text in entry.turns if text.strip()
        ]
        dropped["messages that are empty"] += len(entry.turns) - len(questions)
        return Dialogue([Exchange([question]) for question in questions], location, {})
    messages = entry.messages
    if messages is None:
        messages = [{"role": m.role, "content": m.value} for m in entry.conversations or []]
    body = {"tools": entry.tools} if entry.tools else {}
    return Dialogue(_exchanges(messages, dropped), location, body)


def _exchanges(messages: list[Message], dropped: Counter[str]) -> list[Exchange]:
    """Cut the messages after each answer. Several in a row that aren't answers are sent together."""
    exchanges: list[Exchange] = []
    own: list[Message] = []
    for message in messages:
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            dropped["messages with an unknown role"] += 1
        elif not _content(message).strip():
            dropped["messages that are empty"] += 1
        elif role != "assistant":
            own.append({**message, "role": role})
        elif any(m["role"] != "system" for m in own):
            exchanges.append(Exchange(own, {**message, "role": role}))
            own = []
        else:
            dropped["answers without a question"] += 1
    if any(m["role"] != "system" for m in own):
        exchanges.append(Exchange(own))
    return exchanges
