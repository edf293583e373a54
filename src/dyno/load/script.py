"""A script: the bytes of each request. Those of single prompts are made before the load; those of a conversation when
they are due, as they hold the answers to earlier requests."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dyno.facts.record import ABORTS
from dyno.load import decode, http1
from dyno.load.protocols import PROTOCOLS, Asked, WireProtocol, protocol_of
from dyno.workload.request import Answers, Request, Turn

_HOLE = "dyno: the prompt"  # stands for the prompt while the rest of a body is encoded
_encode = msgspec.json.Encoder().encode
# The text of a chunk, escaped.
_TEXTS: dict[str, re.Pattern[bytes]] = {
    backend: re.compile(rb'"%s": ?"([^"\\]*(?:\\.[^"\\]*)*)"' % key.encode())
    for backend, protocol in PROTOCOLS.items()
    if (key := protocol.text_key)
}
_LAST_BYTES = 1_500  # of a response: the finish reason and what follows it
# What shows that a server failed or gave up. Quotes inside a text are escaped, so no text looks like this.
_ERROR = re.compile(rb'(?:"error"|\nerror): ?[{"]')
_REASON = re.compile(rb' ?(?:\{"type": ?)?"([a-z_]+)"')
_REASON_KEYS = (b'"finish_reason":', b'"stop_type":')


class PromptScript(msgspec.Struct, tag=True):
    """Whole requests. Where a load has more, they come round again."""

    payloads: list[bytes]

    def payload(self, exchange: int) -> bytes:
        return self.payloads[exchange % len(self.payloads)]

    def collector(self, exchange: int) -> "AnswerCollector | None":
        """Return what takes in the response, where a later request holds the answer."""
        return None

    def answered(self, exchange: int, text: bytes) -> None:
        """Note an answer, escaped as in JSON."""

    def forget(self, exchanges: Iterable[int]) -> None:
        """Drop answers that no request needs any more."""


class TurnBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request of a conversation: its body has the history between `begin` and `own`."""

    begin: bytes
    own: bytes  # its messages, or the escaped text of its prompt
    end: bytes
    history: int  # the request that comes before; -1: none
    recorded: bytes | None  # the answer that later requests hold; None: the server's
    wanted: bool = False  # a later request holds the server's answer to it
    last: bytes = b""  # a header line of its own


class TurnScript(msgspec.Struct, tag=True):
    """Requests that hold earlier ones and the answers to them."""

    backend: str
    head: bytes  # to the value of the content length
    bodies: list[TurnBody]
    _answers: dict[int, bytes] = {}

    def payload(self, exchange: int) -> bytes:
        bodies = self.bodies
        request = exchange % len(bodies)
        body = bodies[request]
        first = exchange - request
        parts = [body.own]
        before = body.history
        while before >= 0:
            earlier = bodies[before]
            parts.append(
                self._answers[first + before]
                if earlier.recorded is None
                else earlier.recorded
            )
            parts.append(earlier.own)
            before = earlier.history
        middle = (b"," if self.chat else b"").join(reversed(parts))
        length = len(body.begin) + len(middle) + len(body.end)
        length_line = b"%d\r\n%b\r\n" % (length, body.last)
        return b"".join((self.head, length_line, body.begin, middle, body.end))

    @property
    def chat(self) -> bool:
        return protocol_of(self.backend).chat

    def collector(self, exchange: int) -> "AnswerCollector | None":
        return (
            AnswerCollector(self.backend)
            if self.bodies[exchange % len(self.bodies)].wanted
            else None
        )

    def answered(self, exchange: int, text: bytes) -> None:
        if self.chat:
            begin, end = protocol_of(self.backend).answer_around
            text = begin + text + end
        self._answers[exchange] = text

    def forget(self, exchanges: Iterable[int]) -> None:
        for exchange in exchanges:
            self._answers.pop(exchange, None)

    def part(self, requests: Sequence[int]) -> "TurnScript":
        """Return the script of whole sessions, by their requests, numbered anew."""
        number = {-1: -1} | {old: new for new, old in enumerate(requests)}
        bodies = [self.bodies[i] for i in requests]
        moved = [
            msgspec.structs.replace(body, history=number[body.history]) for body in bodies
        ]
        return TurnScript(self.backend, self.head, moved)


class AnswerCollector:
    """Takes in a response. Streams of one length end together, and all that is done then makes the next requests late:
    so a read is only put aside, and `digest` finds the texts in a quiet moment before the end."""

    __slots__ = ("_backend", "_head", "_last", "_plain", "_text", "add", "reads")

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.reads: list[bytes] = []  # not digested
        self.add = self.reads.append
        self._head = b""
        self._text = b""  # as the server escaped it
        self._last = b""  # bytes that were digested
        # each HTTP chunk so far ends with an event, and the pattern finds texts
        self._plain = backend in _TEXTS

    def digest(self) -> None:
        """Replace the reads that have come by the text in them."""
        if not self._plain:
            return
        data = b"".join(self.reads)
        self._last = (data if len(data) >= _LAST_BYTES else self._last + data)[
            -_LAST_BYTES:
        ]
        if not self._head:
            head, blank, data = data.partition(b"\r\n\r\n")
            if not blank:
                return
            self._head = head + blank
        end = data.rfind(b"\n\r\n") + 3
        if end < 3:  # not one whole chunk
            self.reads[:] = [data]
            return
        texts = _TEXTS[self._backend].findall(data, 0, end)
        # A chunk has two line ends, one after its size and one after its last event.
        self._plain = 2 * data.count(b"\n\r\n", 0, end) == data.count(
            b"\r\n", 0, end
        ) and bool(texts or self._text)
        if self._plain:
            self._text += b"".join(texts)
            data = data[end:]
        self.reads[:] = [data] if data else []

    def last(self) -> bytes:
        """Return the last bytes of the response, in one piece however they were read."""
        return b"".join((self._last, *self.reads))[-_LAST_BYTES:]

    def text(self) -> bytes:
        """Return the text of the whole response, escaped as in JSON, without what the model thought before it."""
        self.digest()
        if not self.reads:
            return self._text
        response = self._head + b"".join(self.reads)
        protocol = protocol_of(self._backend)
        head = http1.head(response)
        rest = "" if head is None else protocol.read(decode.events(response, head)).answer
        return self._text + _encode(rest)[1:-1]


Script = PromptScript | TurnScript


def gave_up(data: bytes) -> bool:
    """Return whether the last bytes of a response say that the server failed, without decoding them. The usual end,
    with a finish reason, is found first: this is done between an answer's end and the next request."""
    for key in _REASON_KEYS:
        start = data.rfind(key)
        if start >= 0 and (reason := _REASON.match(data, start + len(key))):
            return reason[1].decode() in ABORTS
    return b"error" in data and _ERROR.search(data) is not None


def make(
    requests: Iterable[Request],
    backend: str,
    asked: Asked,
    head: bytes,
    answers: Answers = "server",
    id_prefix: str | None = None,
) -> Script:
    """Make the script. `head`: of each request, to the value of its content length. `id_prefix`: of their numbers."""
    protocol = protocol_of(backend)
    wholes = []
    turns = []
    for number, request in enumerate(requests):
        if isinstance(request, Turn):
            turns.append(request)
        else:
            body = protocol.encode(protocol.body(request, asked))
            wholes.append(http1.payload(head, body, _id_line(id_prefix, number)))
    if not turns:
        return PromptScript(wholes)
    followed = {turn.history for turn in turns}
    # those of a trace: whole before the load, so that sending them is all that is left
    if followed == {None}:
        bodies = (_body(turn, backend, asked, answers, False, {}) for turn in turns)
        return PromptScript(
            [
                http1.payload(
                    head, b"".join((b.begin, b.own, b.end)), _id_line(id_prefix, i)
                )
                for i, b in enumerate(bodies)
            ]
        )
    shared = _shared_fields(turns, protocol)
    return TurnScript(
        backend,
        head,
        [
            msgspec.structs.replace(
                _body(turn, backend, asked, answers, i in followed, shared[i]),
                last=_id_line(id_prefix, i),
            )
            for i, turn in enumerate(turns)
        ],
    )


def _id_line(prefix: str | None, number: int) -> bytes:
    """Return the header by which a server names the request; empty: it chooses a name itself."""
    return b"" if prefix is None else f"x-request-id: {prefix}{number}\r\n".encode("ascii")


def _shared_fields(turns: Sequence[Turn], protocol: WireProtocol) -> list[dict[str, Any]]:
    """Return for each request the fields that its history's messages make: a system prompt that is no message."""
    fields: list[dict[str, Any]] = []
    for turn in turns:
        before = {} if turn.history is None else fields[turn.history]
        system = [m for m in turn.messages if m.get("role") in ("system", "developer")]
        fields.append({**protocol.messages(system)[1], **before})
    return fields


def _body(
    turn: Turn,
    backend: str,
    asked: Asked,
    answers: Answers,
    followed: bool,
    shared: dict[str, Any],
) -> TurnBody:
    protocol = protocol_of(backend)
    whole = protocol.body(Request(_HOLE, turn.prompt_tokens, turn.output_tokens), asked)
    hole = (
        _encode({"role": "user", "content": _HOLE})
        if protocol.chat
        else _encode(_HOLE)[1:-1]
    )
    recorded = None
    own_fields: dict[str, Any] = {}
    if protocol.chat:
        messages = turn.messages or [{"role": "user", "content": turn.prompt}]
        written, own_fields = protocol.messages(messages)
        own = b",".join(map(_encode, written))
        if answers == "recorded":
            answer = turn.answer or {"role": "assistant", "content": ""}
            recorded = b",".join(map(_encode, protocol.messages([answer])[0]))
    else:
        own = _encode(turn.prompt)[1:-1]
        if answers == "recorded":
            recorded = _encode((turn.answer or {}).get("content") or "")[1:-1]
    body = protocol.translated(whole | own_fields | shared | turn.body)
    begin, _, end = _encode(body).partition(hole)
    history = -1 if turn.history is None else turn.history
    return TurnBody(begin, own, end, history, recorded, followed and recorded is None)
