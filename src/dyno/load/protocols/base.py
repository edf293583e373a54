"""A protocol: a path, a request body, and a way to read the answer: the events of its stream, or one JSON object."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from dyno.facts.record import ABORTED, ABORTS, ToolCall
from dyno.http import EncodedBody
from dyno.units import NS_PER_MS
from dyno.workload.request import Request

# What decoding an event may raise: it is not JSON, not of the expected form, not text, or nested without end.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


_encode = msgspec.json.Encoder().encode
_BEGIN = "<think>"
_END = "</think>"


class Asked(msgspec.Struct, frozen=True):
    """Fields of every request of a run besides its prompt."""

    model: str
    ignore_eos: bool = False
    sampling: dict[str, Any] = {}  # temperature, top_p, top_k, min_p, seed … where given
    extra_body: dict[str, Any] = {}
    stream: bool = True  # False: the answer in one piece


class ServerTimes(msgspec.Struct, frozen=True, gc=False):
    """What a server says of the time that it spent on a request. None: it doesn't say so."""

    queue_ns: int | None = None  # before it began to work on it
    prefill_ns: int | None = None  # from there to the first token
    decode_ns: int | None = None  # from the first token to the last
    work_ns: int | None = None  # prefill and decode, where they aren't told apart


_LONGEST_MS = 1e9  # of a time that a server reports: eleven days


def reported_ns(milliseconds: Any) -> int | None:
    """Return a time that a server reports; None: it is not a number, or not one of a request's length."""
    if type(milliseconds) not in (int, float) or not 0 <= milliseconds <= _LONGEST_MS:
        return None
    return round(float(milliseconds) * NS_PER_MS)


# TGI's, with answers in one piece: whole milliseconds, rounded down.
_HEADER_OF_TIME = re.compile(rb"(?im)^x-(queue|inference)-time: *(\d{1,9})\r$")


def times_of_head(head: bytes) -> ServerTimes | None:
    """Return what the headers of an answer say of the server's time; None: nothing."""
    said = {name.lower(): int(value) for name, value in _HEADER_OF_TIME.findall(head)}
    if not said:
        return None
    queue, work = (said.get(name) for name in (b"queue", b"inference"))
    return ServerTimes(queue_ns=reported_ns(queue), work_ns=reported_ns(work))


class StreamReading(msgspec.Struct):
    """An answer, read: a stream's events, or one JSON object. What can't be read ends it with an error."""

    chunk_ends: list[int]  # where each chunk's event ends in the response
    texts: list[str]
    chunk_tokens: list[int] | None = None
    empty_chunks: int = 0
    # up to the end of the first chunk, where the server says so
    first_tokens: int | None = None
    # of the empty ones, events before the first chunk that may be tokens: not a role
    leading: int = 0
    # a finish reason without text: a token only if it came later than the last chunk
    finish_end: int | None = None
    # end of a chunk with reasoning → characters of that, before other text
    thoughts: dict[int, int] = {}
    reasoning_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    times: ServerTimes | None = None
    finish_reason: str | None = None
    model: str | None = None
    calls: list[ToolCall] = []
    results: int | None = None  # vectors or scores, of an answer that has no text
    done: bool = False
    error: str | None = None
    error_detail: str = ""

    @property
    def answer(self) -> str:
        """Return the text that a client shows and sends back as history."""
        if not self.thoughts:
            return "".join(self.texts)
        ends = zip(self.chunk_ends, self.texts, strict=True)
        return "".join(text[self.thoughts.get(end, 0) :] for end, text in ends)

    def answer_chunks(self) -> list[bool] | None:
        """Return for each chunk whether it has text of the answer; None: no reasoning came.

        Without a reasoning parser a server sends the model's own marks: what begins with <think> is reasoning up to
        </think>. Blank text after it is not an answer yet."""
        if self.thoughts:
            chunks = zip(self.chunk_ends, self.texts, strict=True)
            return [len(text) > self.thoughts.get(end, 0) for end, text in chunks]
        text = "".join(self.texts)
        if not text.lstrip().startswith(_BEGIN):
            return None
        _, mark, answer = text.partition(_END)
        begin = len(text) - len(answer.lstrip()) if mark else len(text)
        ends = accumulate(map(len, self.texts))
        return [
            bool(said) and end > begin for end, said in zip(ends, self.texts, strict=True)
        ]


class StreamEvent(Protocol):
    error: Any


Event = TypeVar("Event", bound=StreamEvent)


# What a protocol's answers are. text: tokens of a model. scores: numbers about the request, such as an embedding.
# Only a stream of text has a first token and gaps between tokens.
Output = Literal["text", "scores"]


class WireProtocol:
    """What a backend must say: a path and a body. The rest is what most have."""

    path: str
    takes_token_ids = False
    takes_stop = False  # dyno may name texts that end an answer in the field `stop`
    chat = False  # takes messages, else one text
    # the JSON key of a chunk's text, where a chunk has no other one of this name
    text_key: str | None = None
    # what encloses an answer's escaped text in the history of a chat
    answer_around = (b'{"role":"assistant","content":"', b'"}')
    # all that sampling and extra_body may hold; None: that is between user and server
    fields: frozenset[str] | None = None
    output: Output = "text"
    streams = True  # answers are streams of events; False: one JSON object
    whole = False  # … where the request asks for it
    whole_path: str | None = None  # of those, where it is another one
    batched = False  # several texts in a request
    prompted = True  # a text is all that a request needs
    media: frozenset[str] = frozenset()  # image, audio, video: what a request may hold
    # what a stream's bytes contain as soon as a text has come, for one who can't wait for the whole answer
    text_mark = re.compile(
        rb'"(?:text|content|reasoning|reasoning_content)"\s*:\s*"(?!")', re.ASCII
    )
    # the event by which a token has come in any case, counted from 1; None: events announce an answer, however many
    token_event: int | None = 2
    content_type = "application/json"  # of a request's body
    headers: Mapping[str, str] = {}  # that each request has, unless the user gives others

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        """Return the fields of a request."""
        raise NotImplementedError

    @property
    def path_in_one_piece(self) -> str:
        return self.whole_path or self.path

    def translated(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with tools and a response format of OpenAI's chat in this API's form."""
        return body

    def encode(self, body: dict[str, Any]) -> bytes:
        """Return the fields as they are sent."""
        return _encode(body)

    def request(self, request: Request, asked: Asked) -> EncodedBody:
        """Return a request's body as it is sent, with what it needs in its head."""
        data = self.encode(self.body(request, asked))
        return EncodedBody(data, self.content_type, self.headers)

    def messages(
        self, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return messages of OpenAI's chat in this API's form, and the fields that hold what none of them may."""
        return list(messages), {}

    def read(self, events: list[tuple[int, bytes]]) -> StreamReading:
        raise NotImplementedError

    def read_plain(self, raw: bytes, start: int) -> StreamReading | None:
        """Read a body of HTTP chunks from `start` on in long steps; None: it can't be read so."""
        return None

    def read_whole(self, body: bytes) -> StreamReading:
        """Read an answer in one piece."""
        raise NotImplementedError


class InOnePiece(WireProtocol):
    """A protocol that is asked for whole answers instead of streams. Everything else is as there."""

    def __init__(self, protocol: WireProtocol) -> None:
        for name in dir(protocol):
            if not name.startswith("_") and name not in _OF_STREAMS:
                setattr(self, name, getattr(protocol, name))
        self.streams = False
        self.path = protocol.path_in_one_piece
        self._protocol = protocol

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        return self._protocol.body(request, msgspec.structs.replace(asked, stream=False))


_OF_STREAMS = ("body", "path_in_one_piece", "request", "read", "read_plain", "text_key")


_FINISH: dict[str | None, str | None] = {
    "": None,
    "eos_token": "stop",
    "stop_sequence": "stop",
}


def finish(reading: StreamReading, reason: Any) -> None:
    """Note why the answer ended, in OpenAI's words; by some reasons the server says that it gave up.

    TGI has words of its own, and "" with each token but the last. SGLang's reason may be an object with a message."""
    detail = ""
    if isinstance(reason, dict):
        detail, reason = str(reason.get("message") or ""), reason.get("type")
    reading.finish_reason = (
        _FINISH.get(reason, reason)
        if reason is None or isinstance(reason, str)
        else str(reason)
    )
    if reading.finish_reason in ABORTS and reading.error is None:
        reading.error = ABORTED
        reading.error_detail = f"the server ended the answer with the finish reason {reason}. {detail}".rstrip()


def several_choices(reading: StreamReading, index: int) -> StreamReading:
    reading.error = "choices"
    reading.error_detail = f"the stream has several answers (an event of choice {index}); dyno times one per request"
    return reading


def decoded(
    events: list[tuple[int, bytes]],
    decode: Callable[[bytes], Event],
    reading: StreamReading,
) -> Iterator[tuple[int, Event]]:
    """Yield events of a protocol of one's own, to the first that can't be read or reports an error."""
    for end, data in events:
        if data == b"[DONE]":
            reading.done = True
            continue
        try:
            event = decode(data)
        except UNREADABLE as e:
            garbage(reading, data, e)
            return
        if event.error is not None:
            stream_error(reading, event.error)
            return
        yield end, event


def read_object(
    body: bytes, decode: Callable[[bytes], Event], reading: StreamReading
) -> Event | None:
    """Decode an answer in one piece. None: it can't be read, or reports an error; then the reading says so."""
    try:
        answer = decode(body)
    except UNREADABLE as e:
        reading.error = "garbage"
        reading.error_detail = (
            f"an answer that can't be read ({e}): {body[:2000].decode('utf-8', 'replace')}"
        )
        return None
    if answer.error is not None:
        stream_error(reading, answer.error)
        return None
    reading.done = True
    return answer


def note_one_text(reading: StreamReading, text: str, thought: str = "") -> None:
    """Note the text of an answer in one piece. `thought`: the reasoning before it."""
    if not (text or thought):
        return
    reading.texts = [thought + text]
    reading.chunk_ends = [0]  # it has no place in a stream
    if thought:
        reading.thoughts[0] = len(thought)


def note_text(reading: StreamReading, end: int, text: str) -> None:
    """Note an event of tokens. One without text before the first text may have a token, and is no first token."""
    if text or reading.chunk_ends:
        reading.chunk_ends.append(end)
        reading.texts.append(text)
    else:
        reading.empty_chunks += 1
        reading.leading += 1


class CallParts:
    """Tool calls, put together from the parts in which a stream brings them."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[object, list[str]] = {}  # number → name and arguments

    def add(self, parts: Iterable[Any]) -> None:
        """Take parts as OpenAI's chat has them."""
        for number, part in enumerate(parts):
            function = part.get("function") if isinstance(part, dict) else None
            if isinstance(function, dict):
                self.extend(
                    part.get("index", number),
                    function.get("name"),
                    function.get("arguments"),
                )

    def extend(self, number: object, name: object, arguments: object) -> None:
        known = self._parts.setdefault(number, ["", ""])
        for i, text in enumerate((name, arguments)):
            if isinstance(text, str):
                known[i] += text

    def calls(self) -> list[ToolCall]:
        return [ToolCall(*parts) for parts in self._parts.values()]


def garbage(reading: StreamReading, data: bytes, error: Exception) -> StreamReading:
    reading.error = "garbage"
    reading.error_detail = (
        f"an event that can't be read ({error}): {data[:2000].decode('utf-8', 'replace')}"
    )
    return reading


def stream_error(reading: StreamReading, error: Any) -> StreamReading:
    reading.error = "stream_error"
    message = error.get("message", error) if isinstance(error, dict) else error
    reading.error_detail = str(message)[:4000]
    return reading


def settle_silent(reading: StreamReading, last_end: int | None) -> None:
    """Decide which events without text were tokens, by the server's own count.

    vLLM sends an event for each token, also for one without text, and the finish reason with the last; where its client
    is slow, one event has the tokens of several steps. llama.cpp sends the finish reason in an event of its own.
    So an event without text is a token, unless those with text account for all tokens already. Chunks stay in order,
    wherever the finish reason came.
    """
    if not reading.chunk_ends:
        return
    tokens = reading.output_tokens
    count = len(reading.chunk_ends)
    spoken = sum(map(bool, reading.texts))
    if tokens is not None and spoken >= tokens:
        if spoken < count:
            _leave_out_silent(reading)
    elif last_end is None or (tokens is not None and count >= tokens):
        return
    elif tokens is not None and tokens - reading.leading <= count + 1:
        position = bisect_right(reading.chunk_ends, last_end)
        reading.chunk_ends.insert(position, last_end)
        reading.texts.insert(position, "")
    elif last_end > reading.chunk_ends[-1]:
        reading.finish_end = last_end


def _leave_out_silent(reading: StreamReading) -> None:
    spoken = [
        (end, text)
        for end, text in zip(reading.chunk_ends, reading.texts, strict=True)
        if text
    ]
    reading.empty_chunks += len(reading.texts) - len(spoken)
    reading.chunk_ends = [end for end, _ in spoken]
    reading.texts = [text for _, text in spoken]


def tokens_between(ends: list[int], so_far: dict[int, int]) -> list[int] | None:
    """Return the tokens of each chunk, from the counts at their ends; None where one of them is unknown."""
    if not so_far or any(end not in so_far for end in ends):
        return None
    counts = [so_far[end] for end in ends]
    return list(map(sub, counts, [0, *counts]))
