"""Decoding: turns a spool's raw exchanges and their server-sent events into records. Never runs while the wire does."""

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from dyno.facts.record import Record
from dyno.load import http1
from dyno.load.exchanges import (
    CLOCK_SLACK_NS,
    LATE_NS,
    Ended,
    Exchanges,
    RawExchange,
)
from dyno.load.protocols import StreamReading, WireProtocol
from dyno.load.protocols.base import times_of_head
from dyno.load.spool import READ_BYTES, Frame

NAME_MAX = 300  # of a name that a server gives
DETAIL_MAX = 4_000  # of a server's message, before keys are removed
_PLAIN = re.compile(rb"[0-9a-fA-F]{1,8}\r\ndata: ([^\n]*)\n\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_UNASKED = "the connection carried more answers than requests, so it is unknown which request this answers"


class Lengths(Protocol):
    """The planned lengths of a request."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...


def records(
    spool: Path | Iterable[Frame],
    lengths: Sequence[Lengths],
    protocol: WireProtocol,
    start_ns: int | None = None,
    unasked: Iterable[int] = (),
) -> Iterator[Record]:
    """Yield a record of each exchange that was begun, in the order in which they ended. Those that a crash left open
    come last, as cut. `unasked`: see ClientFacts."""
    mixed = frozenset(unasked)
    exchanges = Exchanges(start_ns)
    for ended in exchanges.ended(spool):
        record = record_of(ended, lengths, protocol, exchanges.zero_ns or 0)
        yield marked(record, mixed)


def marked(record: Record, mixed: Container[int]) -> Record:
    """Return the record. `mixed`: exchanges whose answers may be another's: theirs is a failure."""
    if record.index in mixed and record.error is None:
        record.error = "unasked"
        record.error_detail = _UNASKED
    return record


def record_of(
    ended: Ended, lengths: Sequence[Lengths], protocol: WireProtocol, zero_ns: int
) -> Record:
    index, exchange, end_ns, reason, _ = ended
    wanted = lengths[index % len(lengths)]
    record = Record(
        index=index,
        due_ns=exchange.due_ns - zero_ns,
        sent_ns=exchange.sent_ns - zero_ns,
        end_ns=end_ns - zero_ns,
        prompt_tokens_planned=wanted.prompt_tokens,
        output_tokens_wanted=wanted.output_tokens,
        connecting_ns=exchange.connecting_ns,
        resent=exchange.resent,
        replica=exchange.replica,
        reads=exchange.count,
    )
    _note_lateness(exchange, record)
    if exchange.count:
        try:
            if _read_response(exchange, record, protocol, zero_ns, whole=not reason):
                # it came to its end, and only dyno didn't come to note it
                reason = ""
        except (ValueError, RecursionError) as e:
            record.error = "garbage"
            record.error_detail = str(e)
    _settle_error(record, reason, answered=exchange.count > 0)
    return record


def _note_lateness(exchange: RawExchange, record: Record) -> None:
    """Note how long bytes had waited before they were read. Stamps that can't be are replaced by the reads' times."""
    if not exchange.count:
        return
    reads, times, _ = exchange.columns()
    late = reads - times
    if late.min() < -CLOCK_SLACK_NS or not _in_order(times, exchange.sent_ns):
        exchange.distrust()
        late = np.zeros_like(late)
    record.late_ns_sum = int(late.sum())
    record.late_ns_max = int(late.max())
    record.unstamped = exchange.unstamped
    if record.late_ns_max > LATE_NS:  # older spools don't record how long such bytes waited
        for i in np.flatnonzero(late > LATE_NS).tolist():
            exchange.late.setdefault(i, 0)


def _in_order(times: np.ndarray, sent_ns: int) -> bool:
    after_sending = int(times[0]) > sent_ns - CLOCK_SLACK_NS
    return after_sending and bool((times[1:] >= times[:-1]).all())


def _settle_error(record: Record, reason: str, answered: bool) -> None:
    """Note why an exchange failed. `reason`: why it ended early; empty: it did not."""
    if reason:
        # HTTP says that something is missing, also where a finish reason or an end mark has come. An error that the
        # server put into the stream before it closed says more than the close does.
        if record.error is None or record.error == "empty":
            record.error, _, record.error_detail = reason.partition(": ")
    elif record.error is not None:
        return
    elif not answered:
        record.error = "empty"
        record.error_detail = "the server closed without an answer"
    elif not (record.done or record.finish_reason):
        record.error = "cut"
        record.error_detail = "the stream ended without a finish reason or an end mark"


def _read_response(
    exchange: RawExchange, record: Record, protocol: WireProtocol, zero_ns: int, whole: bool
) -> bool:
    """Read the response into the record. Return whether it is complete."""
    raw = b"".join(exchange.pieces)
    head = http1.head(raw)
    if head is None:
        return False
    whole = whole or http1.complete(raw, head)
    _read_answer(exchange, raw, head, record, protocol, zero_ns, whole)
    return whole


def _read_answer(
    exchange: RawExchange,
    raw: bytes,
    head: http1.Head,
    record: Record,
    protocol: WireProtocol,
    zero_ns: int,
    whole: bool,
) -> None:
    record.status = head.status
    refused = _not_read(raw, head) or (
        _not_a_stream(raw, head) if protocol.streams else None
    )
    if refused is not None:
        record.error, record.error_detail = refused
        return
    if not protocol.streams:
        if whole:
            _read_object(exchange, raw, head, record, protocol, zero_ns)
        return
    reading = protocol.read_plain(raw, head.length) if head.chunked else None
    if reading is None:
        reading = protocol.read(events(raw, head, whole))
    if reading.finish_end is not None:
        reading.chunk_ends.append(reading.finish_end)
        reading.texts.append("")
    _place(
        exchange,
        raw,
        reading.chunk_ends,
        _MORE_CHUNKS if head.chunked else _MORE_BYTES,
        record,
        zero_ns,
    )
    if (
        reading.finish_end is not None
        and record.chunk_ns[-1] - record.chunk_ns[-2] <= LATE_NS
    ):
        _drop_last(reading, record)
    _note_text(reading, record)
    _note_counts(reading, record)
    record.error = reading.error
    record.error_detail = reading.error_detail
    if record.error is None and not record.chunk_ns:
        _note_silence(reading, record)


def read_reply(protocol: WireProtocol, answer: Any) -> StreamReading:
    """Read an answer as the control client has it: JSON is decoded, anything else is a text."""
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    body = text.encode("utf-8", "surrogatepass")
    if not protocol.streams:
        return _a_stream("", body) or protocol.read_whole(body)
    if text is answer:
        return protocol.read(body_events(body))
    detail = body[:DETAIL_MAX].decode("utf-8", "replace")
    return StreamReading([], [], error="not_a_stream", error_detail=detail)


def _a_stream(content_type: str, body: bytes) -> StreamReading | None:
    """Return the error of a stream that is answered where one piece was asked for; None: it isn't one."""
    if "event-stream" not in content_type and not body.startswith((b"data:", b"event:")):
        return None
    detail = "the server streams, although dyno asked for the answer in one piece"
    return StreamReading([], [], error="a_stream", error_detail=detail)


def _read_object(
    exchange: RawExchange,
    raw: bytes,
    head: http1.Head,
    record: Record,
    protocol: WireProtocol,
    zero_ns: int,
) -> None:
    """Read an answer in one piece. It has no first token: only its end is known."""
    body = http1.body(raw, head)
    if refused := _a_stream(head.content_type, body):
        record.error, record.error_detail = refused.error, refused.error_detail
        return
    reading = protocol.read_whole(body)
    reading.times = reading.times or times_of_head(raw[: head.length])
    _, times, _ = exchange.columns()
    record.answered_ns = int(times[-1]) - zero_ns
    record.text = "".join(reading.texts)
    record.reasoning = bool(reading.thoughts)
    record.results = reading.results
    _note_counts(reading, record)
    record.error = reading.error
    record.error_detail = reading.error_detail
    if record.error is None and not (record.text or reading.results):
        _note_silence(reading, record)


def _not_read(raw: bytes, head: http1.Head) -> tuple[str, str] | None:
    """Return the error and its detail of an answer that can't be read at all."""
    if head.status != 200:
        return f"http_{head.status}", http1.body(raw, head)[:DETAIL_MAX].decode(
            "utf-8", "replace"
        ).strip()
    if head.encoding:
        return (
            "encoded",
            f"the answer is encoded ({head.encoding}), although dyno asked for plain text",
        )
    return None


def _not_a_stream(raw: bytes, head: http1.Head) -> tuple[str, str] | None:
    """Return the error and its detail of an answer that has no events to read."""
    if "event-stream" in head.content_type:
        return None
    body = http1.body(raw, head)
    if body.lstrip().startswith(b"data:"):
        return None
    return (
        "not_a_stream",
        f"{head.content_type or 'no content type'}: {body[:DETAIL_MAX].decode('utf-8', 'replace')}",
    )


def _note_text(reading: StreamReading, record: Record) -> None:
    if "" in reading.texts:
        record.silent = [i for i, text in enumerate(reading.texts) if not text]
    record.first_chars = len(reading.texts[0]) if reading.texts else 0
    record.empty_chunks = reading.empty_chunks
    record.text = "".join(reading.texts)
    if (answers := reading.answer_chunks()) is not None:
        record.reasoning = True
        record.answer_from = answers.index(True) if True in answers else None
        record.reasoning_chunks = sum(
            bool(text) and not own for text, own in zip(reading.texts, answers, strict=True)
        )


def _note_counts(reading: StreamReading, record: Record) -> None:
    """Note what the server reports: tokens, and how the answer ended."""
    record.chunk_tokens = reading.chunk_tokens or None
    if reading.calls:
        record.calls = reading.calls
    record.first_tokens = reading.first_tokens
    record.leading_chunks = reading.leading
    record.reasoning_tokens = reading.reasoning_tokens
    record.prompt_tokens = reading.prompt_tokens
    record.cached_tokens = reading.cached_tokens
    record.output_tokens = reading.output_tokens
    if reading.times is not None:
        record.server_queue_ns = reading.times.queue_ns
        record.server_prefill_ns = reading.times.prefill_ns
        record.server_decode_ns = reading.times.decode_ns
        record.server_work_ns = reading.times.work_ns
    record.tokens_by = None if reading.output_tokens is None else "usage"
    record.finish_reason = reading.finish_reason and reading.finish_reason[:NAME_MAX]
    record.done = reading.done
    record.model = reading.model and reading.model[:NAME_MAX]


def _note_silence(reading: StreamReading, record: Record) -> None:
    """Note an answer without a chunk: it is empty, or has tokens that nothing shows. A single token may be the
    end's."""
    tokens = reading.output_tokens or 0
    if tokens <= 0:
        record.error = "empty"
        record.error_detail = "the answer contained neither text nor tokens"
    elif tokens > 1:
        record.error = "no_text"
        record.error_detail = (
            f"the server reports {reading.output_tokens} tokens but sent no text"
        )


def _drop_last(reading: StreamReading, record: Record) -> None:
    """Leave out the finish reason: it came with the chunk before it, not with a token of its own."""
    for values in (reading.chunk_ends, reading.texts, record.chunk_ns):
        values.pop()
    if record.unseen[-1:] == [len(record.chunk_ns)]:
        record.unseen.pop()
        record.unseen_since_ns.pop()


def _place(
    exchange: RawExchange,
    raw: bytes,
    chunk_ends: list[int],
    follows: "_Follows",
    record: Record,
    zero_ns: int,
) -> None:
    """Note when each chunk arrived, by the read that holds its end, and for which of them that is only a bound."""
    if not chunk_ends:
        return
    reads, times, lengths = exchange.columns()
    ends = np.array(chunk_ends)
    read_ends = lengths.cumsum()
    which = read_ends.searchsorted(ends)  # of the reads
    record.chunk_ns += (times[which] - zero_ns).tolist()
    if not exchange.late:
        return
    since_ns = _since(exchange)
    unseen = (times - since_ns > LATE_NS)[which]
    # A stamp is the last chunk's of its read.
    last = (times != reads)[which]
    last &= ~follows.several(raw, ends, read_ends[which], unseen & last)
    chunks = np.flatnonzero(unseen & ~last)
    record.unseen += chunks.tolist()
    record.unseen_since_ns += (since_ns[which[chunks]] - zero_ns).tolist()


def _since(exchange: RawExchange) -> np.ndarray:
    """Return for each read since when its bytes can have been there. Of one that came in time: since its own time."""
    reads, times, lengths = exchange.columns()
    since_ns = times.copy()
    count = len(exchange.late)
    late = np.fromiter(exchange.late, np.int64, count)
    looked_ns = np.fromiter(exchange.late.values(), np.int64, count)
    # The read before left nothing behind, unless its buffer was full.
    emptied = (late > 0) & (lengths[late - 1] < READ_BYTES)
    before_ns = np.where(emptied, reads[late - 1], exchange.sent_ns)
    since_ns[late] = np.maximum(looked_ns, before_ns)
    return since_ns


class _Follows(NamedTuple):
    """What after a chunk's end shows that its read's stamp is another chunk's."""

    pattern: re.Pattern[bytes]
    shortest: int  # of what can fit the pattern

    def several(
        self, raw: bytes, ends: np.ndarray, read_ends: np.ndarray, asked: np.ndarray
    ) -> np.ndarray:
        """Return after which of the chunks there is such a thing, where it is asked."""
        several = np.zeros(len(ends), bool)
        search = self.pattern.search
        chosen = np.flatnonzero(asked & (read_ends - ends >= self.shortest))
        bounds = zip(ends[chosen].tolist(), read_ends[chosen].tolist(), strict=True)
        several[chosen] = [search(raw, *each) is not None for each in bounds]
        return several


# Events of one HTTP chunk were sent together. Without such chunks, nothing says so.
_MORE_CHUNKS = _Follows(re.compile(rb"\r\n[0-9a-fA-F]{1,8}(\r|$)"), len("\r\n0"))
_MORE_BYTES = _Follows(re.compile(rb"[^\r\n]"), 1)


def events(raw: bytes, head: http1.Head, whole: bool = True) -> list[tuple[int, bytes]]:
    """Return (end, data) of each server-sent event in the response's body; `raw[:end]` holds its closing blank line. A
    last event without that line counts if the response is `whole`, and is half an event if the response was cut."""
    plain = _one_in_each_chunk(raw, head.length) if head.chunked else None
    return (
        list(_events_anyhow(raw, http1.body_spans(raw, head), whole))
        if plain is None
        else plain
    )


def body_events(body: bytes) -> list[tuple[int, bytes]]:
    """Return the same of a body alone."""
    return list(_events_anyhow(body, [(0, len(body))], whole=True))


def _one_in_each_chunk(raw: bytes, start: int) -> list[tuple[int, bytes]] | None:
    """Read the usual case: every HTTP chunk is one whole event of one line. One regular expression finds them all in
    half the time of a loop. None where they don't fill the body without a gap."""
    plain: list[tuple[int, bytes]] = []
    append = plain.append
    position = start
    for data in _PLAIN.findall(raw, start):
        length = len(data) + 8
        # the size line has no leading zeros
        position += ((length.bit_length() + 3) >> 2) + length + 4
        append((position - 2, data))
    return plain if raw[position:] == b"0\r\n\r\n" else None


def _events_anyhow(
    raw: bytes, spans: list[tuple[int, int]], whole: bool
) -> Iterator[tuple[int, bytes]]:
    """Read events however cut and joined, with any line ends, comments, several data lines, a last event left open."""
    body = b"".join(raw[begin:end] for begin, end in spans)
    piece_ends = list(accumulate(end - begin for begin, end in spans))

    def in_raw(position: int) -> int:
        piece = bisect_left(piece_ends, position)
        return spans[piece][1] - (piece_ends[piece] - position)

    data: list[bytes] = []
    position = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    for line_end in _LINE_END.finditer(body):
        line, position = body[position : line_end.start()], line_end.end()
        if not line:
            if data:
                yield in_raw(position), b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(
            b"error:"
        ):  # llama.cpp up to 2025: an error object in a field of its own
            data.append(b'{"error":%s}' % line[6:])
    if not whole:
        return
    rest = body[position:]
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:  # the server forgot the blank line
        yield len(raw), b"\n".join(data)
