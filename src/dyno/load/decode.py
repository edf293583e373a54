"""Decoding: a spool's raw exchanges become records. Never runs while the wire does."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import sub
from pathlib import Path
from typing import Protocol

from dyno.facts.record import Record
from dyno.load import http1, sse
from dyno.load.protocols import WireProtocol
from dyno.load.spool import CLOCK, READ, SENT, TURN, frames
from dyno.units import NS_PER_MS, NS_PER_S

# Two chunks in one read bear the later one's stamp. If the loop had looked within this time, that is the earlier
# one's arrival too, as closely; if not, the earlier one's is not known.
LATE_NS = NS_PER_MS
DETAIL_MAX = 4_000  # of what a server said, before keys are taken out of it
CLOCK_SLACK_NS = NS_PER_MS // 10  # between the kernel's wall clock and our reading of its offset


class Lengths(Protocol):
    """Of a request, as wanted."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...


class _Exchange:
    """The raw bytes and times of one request, as the spool has them."""

    __slots__ = (
        "add_piece",
        "add_read",
        "add_time",
        "connecting_ns",
        "due_ns",
        "late",
        "pieces",
        "reads",
        "replica",
        "resent",
        "sent_ns",
        "times",
    )

    def __init__(self, due_ns: int, sent_ns: int, connecting_ns: int, resent: bool, replica: int) -> None:
        self.due_ns = due_ns
        self.sent_ns = sent_ns
        self.connecting_ns = connecting_ns
        self.resent = resent
        self.replica = replica
        self.pieces: list[bytes] = []
        self.reads: list[int] = []  # when each piece was read
        self.times: list[int] = []  # when it arrived: the kernel's stamp, else the same
        self.add_piece, self.add_read, self.add_time = self.pieces.append, self.reads.append, self.times.append
        self.late: set[int] = set()  # the times of reads before which the loop hadn't looked for LATE_NS


def records(
    spool: Path, lengths: Sequence[Lengths], protocol: WireProtocol, start_ns: int | None = None
) -> Iterator[Record]:
    """One record for each exchange that was begun, in the order in which they ended. Exchanges that a crash left
    open come last, as cut."""
    offset = looked = 0
    open_: dict[int, _Exchange] = {}
    is_read, late_from, second = READ, LATE_NS, NS_PER_S  # near at hand: this loop turns once for each chunk
    for exchange, kind, read_ns, a, b, payload in frames(spool):
        if kind == is_read:
            raw = open_[exchange]
            raw.add_piece(payload)
            raw.add_read(read_ns)
            raw.add_time(time := a * second + b - offset if a else read_ns)
            if read_ns - looked > late_from:
                raw.late.add(time)
        elif kind == TURN:
            looked = a
        elif kind == CLOCK:
            offset = a
            start_ns = start_ns or read_ns  # the first clock reading is the load's beginning
        elif kind == SENT:
            replica = int.from_bytes(payload, "little")
            open_[exchange] = _Exchange(a, read_ns, connecting_ns=b, resent=exchange in open_, replica=replica)
        else:
            raw = open_.pop(exchange)
            yield _record(raw, exchange, read_ns, payload.decode("utf-8", "replace"), lengths, protocol, start_ns or 0)
    for exchange, raw in open_.items():
        end_ns = raw.times[-1] if raw.times else raw.sent_ns
        why = "interrupted: dyno itself was stopped before the response was whole"
        yield _record(raw, exchange, end_ns, why, lengths, protocol, start_ns or 0)


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
    if late and (min(late) < -CLOCK_SLACK_NS or not _in_order(exchange)):
        # Somebody set the wall clock while it ran, and the kernel's stamps with it. The reads' times remain.
        exchange.times, late = exchange.reads, [0] * len(late)
    record.late_ns_sum, record.late_ns_max = sum(late), max(late, default=0)
    if record.late_ns_max > LATE_NS:
        exchange.late.update(t for t, n in zip(exchange.times, late, strict=True) if n > LATE_NS)
    if exchange.pieces:
        try:
            _read_response(exchange, record, protocol, zero_ns, whole=not reason)
        except ValueError as e:
            record.error, record.error_detail = "garbage", str(e)
    if reason and not (record.error is None and (record.done or record.finish_reason)):
        # What happened on the wire, unless the answer was whole and only the connection's end was untidy. An
        # error that the server put into the stream before it closed says more than the close does.
        if record.error is None or record.error == "empty":
            record.error, _, record.error_detail = reason.partition(": ")
    elif record.error is None and exchange.pieces and not (record.done or record.finish_reason):
        record.error = "cut"
        record.error_detail = "the stream ended without a finish reason or an end mark"
    elif not exchange.pieces and record.error is None:
        record.error, record.error_detail = "empty", "the server closed without an answer"
    return record


def _in_order(exchange: _Exchange) -> bool:
    return exchange.times[0] > exchange.sent_ns - CLOCK_SLACK_NS and exchange.times == sorted(exchange.times)


def _read_response(exchange: _Exchange, record: Record, protocol: WireProtocol, zero_ns: int, whole: bool) -> None:
    raw = b"".join(exchange.pieces)
    head = http1.head(raw)
    if head is None:
        return
    record.status = head.status
    if head.status != 200:
        record.error = f"http_{head.status}"
        record.error_detail = http1.body(raw, head)[:DETAIL_MAX].decode("utf-8", "replace").strip()
        return
    if "event-stream" not in head.content_type:
        body = http1.body(raw, head)
        if not body.lstrip().startswith(b"data:"):
            record.error = "not_a_stream"
            record.error_detail = (
                f"{head.content_type or 'no content type'}: {body[:DETAIL_MAX].decode('utf-8', 'replace')}"
            )
            return
    ends = list(accumulate(map(len, exchange.pieces)))
    reading = protocol.read(sse.events(raw, head.length, head.chunked, ends, exchange.times, whole))
    times = reading.chunk_ns
    record.chunk_ns = [t - zero_ns for t in times]
    if exchange.late and len(set(times)) < len(times):
        record.unseen = [i for i, (a, b) in enumerate(pairwise(times)) if a == b and a in exchange.late]
    record.chunk_tokens = reading.chunk_tokens or None
    record.empty_chunks = reading.empty_chunks
    record.text = "".join(reading.texts)
    record.reasoning = reading.reasoning
    record.prompt_tokens = reading.prompt_tokens
    record.cached_tokens = reading.cached_tokens
    record.output_tokens = reading.output_tokens
    record.tokens_by = None if reading.output_tokens is None else "usage"
    record.finish_reason = reading.finish_reason
    record.done = reading.done
    record.model = reading.model
    record.error, record.error_detail = reading.error, reading.error_detail
    if record.error is None and not times and not reading.output_tokens:
        record.error = "empty"
        record.error_detail = "the answer held neither text nor tokens"
    elif record.error is None and not times and (reading.output_tokens or 0) > 1:
        record.error = "no_text"
        record.error_detail = f"the server counts {reading.output_tokens} tokens, and none of their text was found"
