"""Decoding: turns a spool's raw exchanges and their server-sent events into records. Never runs while the wire does."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Protocol

from dyno.facts.record import Record
from dyno.load import http1
from dyno.load.protocols import StreamReading, WireProtocol
from dyno.load.spool import CLOCK, END, READ, READ_BYTES, SENT, SINCE, TURN, Frame, frames
from dyno.units import NS_PER_MS, NS_PER_S

# The kernel keeps one stamp for a read: the last segment's. A chunk before others in that read arrived after the loop
# had last looked and before that stamp. Within this time the two are one; beyond it the chunk is unseen.
LATE_NS = NS_PER_MS
NAME_MAX = 300  # of a name that a server gives
DETAIL_MAX = 4_000  # of a server's message, before keys are removed
# between the kernel's wall clock and our reading of its offset
CLOCK_SLACK_NS = NS_PER_MS // 10
# NTP bends the wall clock by at most 0.05 %; a larger change between two clock frames is a step.
STEP_NS, STEP_SHARE = NS_PER_MS // 2, 0.001
# Events of one HTTP chunk were sent together. Without such chunks, nothing says so.
_MORE_CHUNKS, _MORE_BYTES = (
    re.compile(rb"\r\n[0-9a-fA-F]{1,8}(\r|$)"),
    re.compile(rb"[^\r\n]"),
)
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


class _Exchange:
    """The raw bytes and times of one request, as the spool has them."""

    __slots__ = (
        "add_piece", "add_read", "add_time", "connecting_ns", "due_ns", "late", "pieces", "reads", "replica", "resent",
        "sent_ns", "times", "unstamped",
    )  # fmt: skip

    def __init__(
        self, due_ns: int, sent_ns: int, connecting_ns: int, resent: bool, replica: int
    ) -> None:
        self.due_ns = due_ns
        self.sent_ns = sent_ns
        self.connecting_ns = connecting_ns
        self.resent = resent
        self.replica = replica
        self.pieces: list[bytes] = []
        self.reads: list[int] = []  # when each piece was read
        # when its last byte arrived: the kernel's stamp, else the same
        self.times: list[int] = []
        self.add_piece, self.add_read, self.add_time = (
            self.pieces.append,
            self.reads.append,
            self.times.append,
        )
        # reads that came late → when the loop had last looked
        self.late: dict[int, int] = {}
        # reads whose stamp a step of the wall clock has spoiled
        self.unstamped: set[int] = set()

    def distrust(self, since_ns: int = 0) -> None:
        """Use the reads' own times: the wall clock was set, and the kernel's stamps with it."""
        for i in range(len(self.reads) - 1, -1, -1):
            if self.reads[i] < since_ns:
                return
            if self.times[i] != self.reads[i]:
                self.times[i] = self.reads[i]
                self.unstamped.add(i)

    def in_order(self) -> bool:
        return self.times[0] > self.sent_ns - CLOCK_SLACK_NS and self.times == sorted(
            self.times
        )


class _WallClock:
    """The wall clock as the spool's clock frames have it: the kernel's stamps are by it, and it may be set."""

    def __init__(self) -> None:
        self.offset_ns = 0  # to the clock by which reads are timed
        # stamps of reads since then are of two wall clocks
        self.spoiled_ns: int | None = None
        self._read_ns = 0

    def look(self, read_ns: int, offset_ns: int) -> None:
        """Note whether the clock was set since the last frame."""
        allowed_ns = STEP_NS + STEP_SHARE * (read_ns - self._read_ns)
        if self._read_ns and abs(offset_ns - self.offset_ns) > allowed_ns:
            self.spoiled_ns = self._read_ns

    def advance(self, read_ns: int, offset_ns: int, exchanges: Iterable[_Exchange]) -> None:
        """Go on from this frame. `exchanges`: those that are open."""
        if self.spoiled_ns is not None:
            for raw in exchanges:
                raw.distrust(self.spoiled_ns)
            # A late read after the step may still have a stamp from before it.
            if self.spoiled_ns != self._read_ns:
                self.spoiled_ns = None
        self.offset_ns, self._read_ns = offset_ns, read_ns


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
    clock = _WallClock()
    offset = clock.offset_ns
    looked = 1 << 62  # newer spools say it where it matters (SINCE)
    open_: dict[int, _Exchange] = {}
    known = open_.get
    # since the last clock frame: the next may show a step
    ended: list[tuple[int, _Exchange, int, str]] = []
    # near at hand: this loop turns once for each chunk
    is_read, late_from, second = READ, LATE_NS, NS_PER_S

    def done() -> Iterator[Record]:
        for exchange, raw, end_ns, reason in ended:
            if clock.spoiled_ns is not None:
                raw.distrust(clock.spoiled_ns)
            record = _record(
                raw, exchange, end_ns, reason, lengths, protocol, start_ns or 0
            )
            if exchange in mixed and record.error is None:
                record.error, record.error_detail = "unasked", _UNASKED
            yield record
        ended.clear()

    for exchange, kind, read_ns, a, b, payload in (
        frames(spool) if isinstance(spool, Path) else spool
    ):
        if kind == is_read:
            raw = known(exchange)
            # this frame, and so what follows, is what a crash has left there
            if raw is None:
                break
            raw.add_piece(payload)
            raw.add_read(read_ns)
            raw.add_time(a * second + b - offset if a else read_ns)
            if read_ns - looked > late_from:
                raw.late[len(raw.reads) - 1] = looked
        elif kind == TURN:
            looked = a
        elif kind == CLOCK:
            if start_ns is None:
                start_ns = read_ns  # the first clock reading is the load's beginning
            clock.look(read_ns, a)
            yield from done()
            clock.advance(read_ns, a, open_.values())
            offset = a
        elif kind == SENT:
            replica = int.from_bytes(payload, "little")
            open_[exchange] = _Exchange(
                a, read_ns, connecting_ns=b, resent=exchange in open_, replica=replica
            )
        elif kind == SINCE:
            raw = known(exchange)
            if raw is None or not raw.reads:
                break
            if raw.reads[-1] - a > late_from:
                raw.late[len(raw.reads) - 1] = a
        elif kind == END:
            if exchange not in open_:
                break
            ended.append(
                (exchange, open_.pop(exchange), read_ns, payload.decode("utf-8", "replace"))
            )
    for exchange, raw in open_.items():
        end_ns = raw.times[-1] if raw.times else raw.sent_ns
        ended.append(
            (
                exchange,
                raw,
                end_ns,
                "interrupted: dyno was stopped before the response was complete",
            )
        )
    yield from done()


def _record(
    exchange: _Exchange,
    index: int,
    end_ns: int,
    reason: str,
    lengths: Sequence[Lengths],
    protocol: WireProtocol,
    zero_ns: int,
) -> Record:
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
        reads=len(exchange.reads),
    )
    late = [*map(sub, exchange.reads, exchange.times)]
    if late and (min(late) < -CLOCK_SLACK_NS or not exchange.in_order()):
        exchange.distrust()
        late = [0] * len(late)
    record.late_ns_sum, record.late_ns_max = sum(late), max(late, default=0)
    record.unstamped = len(exchange.unstamped)
    if record.late_ns_max > LATE_NS:  # older spools don't record how long such bytes waited
        for i, late_ns in enumerate(late):
            if late_ns > LATE_NS:
                exchange.late.setdefault(i, 0)
    if exchange.pieces:
        try:
            if _read_response(exchange, record, protocol, zero_ns, whole=not reason):
                reason = ""  # it came to its end, and only dyno didn't come to note it
        except (ValueError, RecursionError) as e:
            record.error, record.error_detail = "garbage", str(e)
    _settle_error(record, reason, answered=bool(exchange.pieces))
    return record


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
        record.error, record.error_detail = "empty", "the server closed without an answer"
    elif not (record.done or record.finish_reason):
        record.error = "cut"
        record.error_detail = "the stream ended without a finish reason or an end mark"


def _read_response(
    exchange: _Exchange, record: Record, protocol: WireProtocol, zero_ns: int, whole: bool
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
    exchange: _Exchange,
    raw: bytes,
    head: http1.Head,
    record: Record,
    protocol: WireProtocol,
    zero_ns: int,
    whole: bool,
) -> None:
    record.status = head.status
    if (refused := _not_a_stream(raw, head)) is not None:
        record.error, record.error_detail = refused
        return
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
    record.error, record.error_detail = reading.error, reading.error_detail
    if record.error is None and not record.chunk_ns:
        _note_silence(reading, record)


def _not_a_stream(raw: bytes, head: http1.Head) -> tuple[str, str] | None:
    """Return the error and its detail of an answer that has no events to read."""
    if head.status != 200:
        return f"http_{head.status}", http1.body(raw, head)[:DETAIL_MAX].decode(
            "utf-8", "replace"
        ).strip()
    if head.encoding:
        return (
            "encoded",
            f"the answer is encoded ({head.encoding}), although dyno asked for plain text",
        )
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
    record.first_tokens, record.leading_chunks = reading.first_tokens, reading.leading
    record.reasoning_tokens = reading.reasoning_tokens
    record.prompt_tokens = reading.prompt_tokens
    record.cached_tokens = reading.cached_tokens
    record.output_tokens = reading.output_tokens
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
    exchange: _Exchange,
    raw: bytes,
    chunk_ends: list[int],
    more: re.Pattern[bytes],
    record: Record,
    zero_ns: int,
) -> None:
    """Note when each chunk arrived, by the read that holds its end, and for which of them that is only a bound.

    `more`: what after a chunk's end shows that the read's stamp is another one's."""
    read_ends = list(accumulate(map(len, exchange.pieces)))
    times, append, i = exchange.times, record.chunk_ns.append, 0
    for end in chunk_ends:
        while read_ends[i] < end:
            i += 1
        append(times[i] - zero_ns)
    if not exchange.late:
        return
    i = 0
    for chunk, end in enumerate(chunk_ends):
        while read_ends[i] < end:
            i += 1
        if i not in exchange.late:
            continue
        stamped = times[i] != exchange.reads[i]
        alone = stamped and not more.search(raw, end, read_ends[i])
        # The read before left nothing behind, unless its buffer was full.
        emptied = i > 0 and len(exchange.pieces[i - 1]) < READ_BYTES
        since_ns = max(
            exchange.late[i], exchange.reads[i - 1] if emptied else exchange.sent_ns
        )
        if not alone and times[i] - since_ns > LATE_NS:
            record.unseen.append(chunk)
            record.unseen_since_ns.append(since_ns - zero_ns)


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
