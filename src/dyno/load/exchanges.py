"""Exchanges: the raw bytes and times of each request, collected from the frames of a spool.

Frames are taken one by one, or a window of blocks at a time: their headers are columns then, and the frames of an
exchange are found by sorting. A window in which anything is unusual (a clock that was set, what a crash left) goes
frame by frame.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dyno.load.spool import (
    CLOCK,
    END,
    READ,
    SENT,
    SINCE,
    TURN,
    Frame,
    FrameWindow,
    frames,
    frames_of,
    in_blocks,
    windows,
)
from dyno.units import NS_PER_MS, NS_PER_S

# The kernel keeps one stamp for a read: the last segment's. A chunk before others in that read arrived after the loop
# had last looked and before that stamp. Within this time the two are one; beyond it the chunk is unseen.
LATE_NS = NS_PER_MS
CLOCK_SLACK_NS = (
    NS_PER_MS // 10
)  # between the kernel's wall clock and our reading of its offset
# NTP bends the wall clock by at most 0.05 %; a larger change between two clock frames is a step.
STEP_NS = NS_PER_MS // 2
STEP_SHARE = 0.001
_CUT = "interrupted: dyno was stopped before the response was complete"
_LARGEST_S = (
    1 << 33
)  # of a stamp: what is larger is no time, and would not fit into a column
_NEVER = 1 << 62


class ReadTimes(NamedTuple):
    """The reads of an exchange, as columns."""

    reads: np.ndarray  # when
    times: np.ndarray  # when the last byte arrived: the kernel's stamp, else the same
    lengths: np.ndarray


class RawExchange:
    """One request and what came back."""

    def __init__(
        self, due_ns: int, sent_ns: int, connecting_ns: int, resent: bool, replica: int
    ) -> None:
        self.due_ns = due_ns
        self.sent_ns = sent_ns
        self.connecting_ns = connecting_ns
        self.resent = resent
        self.replica = replica
        self.window = 0  # the number of the one that has its first frame
        self.pieces: list[bytes] = []  # of one read or of many
        self.count = 0  # of the reads
        self.last_read_ns = 0
        # reads that came late → when the loop had last looked
        self.late: dict[int, int] = {}
        # reads whose stamp a step of the wall clock has spoiled
        self.unstamped = 0
        self._columns: list[ReadTimes] = []
        self._reads: list[int] = []  # these three: taken one by one since
        self._times: list[int] = []
        self._lengths: list[int] = []

    def add(self, payload: bytes, read_ns: int, time_ns: int) -> None:
        """Add a read."""
        self.pieces.append(payload)
        self._reads.append(read_ns)
        self._times.append(time_ns)
        self._lengths.append(len(payload))
        self.count += 1
        self.last_read_ns = read_ns

    def extend(self, payload: bytes, columns: ReadTimes) -> None:
        """Add reads."""
        self._settle()
        self.pieces.append(payload)
        self._columns.append(columns)
        self.count += len(columns.reads)
        self.last_read_ns = int(columns.reads[-1])

    def columns(self) -> ReadTimes:
        self._settle()
        if len(self._columns) != 1:
            empty = np.zeros(0, np.int64)
            parts = [ReadTimes(empty, empty, empty), *self._columns]
            self._columns = [ReadTimes(*map(np.concatenate, zip(*parts, strict=True)))]
        return self._columns[0]

    def _settle(self) -> None:
        if self._reads:
            one_by_one = (self._reads, self._times, self._lengths)
            self._columns.append(ReadTimes(*(np.array(c, np.int64) for c in one_by_one)))
            for column in one_by_one:
                column.clear()

    def distrust(self, since_ns: int = 0) -> None:
        """Use the reads' own times: the wall clock was set, and the kernel's stamps with it."""
        reads, times, lengths = self.columns()
        spoiled = (reads >= since_ns) & (times != reads)
        self.unstamped += int(spoiled.sum())
        self._columns = [ReadTimes(reads, np.where(spoiled, reads, times), lengths)]


class ExchangeShare(NamedTuple):
    """The exchanges that one of several processes decodes: those whose number leaves `rest` when divided by `parts`,
    without those that are done already."""

    rest: int = 0
    parts: int = 1
    done: frozenset[int] = frozenset()

    @property
    def whole(self) -> bool:
        return self.parts == 1 and not self.done

    def mask(self, heads: np.ndarray) -> np.ndarray:
        """Return which frames concern these exchanges. Those of the clock and the loop concern all."""
        common = (heads["kind"] == CLOCK) | (heads["kind"] == TURN)
        own: np.ndarray = heads["exchange"] % self.parts == self.rest
        if self.done:
            own &= ~np.isin(heads["exchange"], list(self.done))
        own |= common
        return own

    def has(self, frame: Frame) -> bool:
        if frame[1] in (CLOCK, TURN):
            return True
        return frame[0] % self.parts == self.rest and frame[0] not in self.done


ALL = ExchangeShare()


class ResumePoint(NamedTuple):
    """A window of a spool from which on all that isn't done can be decoded, with what was known before it."""

    begin: int = 0  # in the spool
    numbered: int = 0  # ends of exchanges before it, of all shares
    looked: int = _NEVER
    # of the wall clock
    offset_ns: int = 0
    spoiled_ns: int | None = None
    clock_read_ns: int = 0


START = ResumePoint()


class Ended(NamedTuple):
    number: int
    exchange: RawExchange
    end_ns: int
    reason: str  # why it ended early; '': it did not
    place: int = 0  # among the exchanges of all shares, in the order in which they ended


class _WallClock:
    """The wall clock as the spool's clock frames have it: the kernel's stamps are by it, and it may be set."""

    def __init__(self, start: ResumePoint = START) -> None:
        self.offset_ns = start.offset_ns  # to the clock by which reads are timed
        # stamps of reads since then are of two wall clocks
        self.spoiled_ns = start.spoiled_ns
        self.read_ns = start.clock_read_ns  # when it was last looked at

    def look(self, read_ns: int, offset_ns: int) -> None:
        """Note whether the clock was set since the last frame."""
        allowed_ns = STEP_NS + STEP_SHARE * (read_ns - self.read_ns)
        if self.read_ns and abs(offset_ns - self.offset_ns) > allowed_ns:
            self.spoiled_ns = self.read_ns

    def advance(
        self, read_ns: int, offset_ns: int, exchanges: Iterable[RawExchange]
    ) -> None:
        """Go on from this frame. `exchanges`: those that are open."""
        if self.spoiled_ns is not None:
            for exchange in exchanges:
                exchange.distrust(self.spoiled_ns)
            # A late read after the step may still have a stamp from before it.
            if self.spoiled_ns != self.read_ns:
                self.spoiled_ns = None
        self.offset_ns = offset_ns
        self.read_ns = read_ns

    def steady(self, read_ns: list[int], offsets_ns: list[int]) -> bool:
        """Return whether the clock is not set before or between these frames."""
        times = [self.read_ns, *read_ns]
        offsets = [self.offset_ns, *offsets_ns]
        if self.spoiled_ns is not None:
            return False
        return all(
            not before
            or abs(offset - offset_before) <= STEP_NS + STEP_SHARE * (now - before)
            for (before, now), (offset_before, offset) in zip(
                pairwise(times), pairwise(offsets), strict=True
            )
        )


class Exchanges:
    """Collects exchanges. `zero_ns`: when the load began; else the first clock frame says it."""

    def __init__(
        self, zero_ns: int | None, share: ExchangeShare = ALL, start: ResumePoint = START
    ) -> None:
        self.zero_ns = zero_ns
        self._share = share
        self._numbered = start.numbered  # ends of exchanges, of all shares
        self._clock = _WallClock(start)
        # newer spools say it where it matters (SINCE)
        self._looked = start.looked
        # windows that a later start may need, the last one is the current one
        self._points: deque[ResumePoint] = deque()
        self._window = -1  # the number of the current one
        self.usual = True  # all windows so far
        self._open: dict[int, RawExchange] = {}
        # since the last clock frame: the next may show a step
        self._ended: list[Ended] = []
        self._settled = 0  # how many of them can't be touched by a step any more
        self._damaged = False

    def ended(self, spool: Path | Iterable[Frame]) -> Iterator[Ended]:
        """Yield the exchanges in the order in which they ended. Those that a crash left open come last, as cut."""
        if isinstance(spool, Path) and in_blocks(spool):
            for batch in self.batches(windows(spool)):
                yield from batch
        else:
            yield from self._follow(frames(spool) if isinstance(spool, Path) else spool)
        yield from self.left_open()

    def left_open(self) -> Iterator[Ended]:
        """Yield the exchanges that have not ended, after all blocks."""
        for number, exchange in self._open.items():
            end_ns = (
                int(exchange.columns().times[-1]) if exchange.count else exchange.sent_ns
            )
            self._ended.append(Ended(number, exchange, end_ns, _CUT))
        yield from self._done()

    def _done(self) -> Iterator[Ended]:
        for ended in self._ended:
            if self._clock.spoiled_ns is not None:
                ended.exchange.distrust(self._clock.spoiled_ns)
            yield ended
        self._ended.clear()

    def batches(self, each: Iterator[FrameWindow]) -> Iterator[Iterable[Ended]]:
        """Yield the exchanges that ended, those of a window at a time."""
        for window in each:
            self._note_point(window.begin)
            self._number_ends(window)
            if self._take(window):
                settled = self._ended[: self._settled]
                del self._ended[: self._settled]
                self._settled = 0
                yield settled
                continue
            self.usual = False
            yield self._follow(filter(self._share.has, frames_of(window)))
            if self._damaged:
                return

    def _note_point(self, begin: int) -> None:
        self._window += 1
        clock = self._clock
        self._points.append(
            ResumePoint(
                begin,
                self._numbered,
                self._looked,
                clock.offset_ns,
                clock.spoiled_ns,
                clock.read_ns,
            )
        )

    def resume_point(self) -> ResumePoint:
        """Return from where another can go on, once all batches so far are done."""
        waiting = [*self._open.values(), *(ended.exchange for ended in self._ended)]
        needed = min((exchange.window for exchange in waiting), default=self._window)
        while self._window - len(self._points) + 1 < needed:
            self._points.popleft()
        return self._points[0]

    def _number_ends(self, window: FrameWindow) -> None:
        """Write the place of each end into its frame, whose stamp says nothing."""
        ends = np.flatnonzero(window.heads["kind"] == END)
        window.heads["a"][ends] = np.arange(self._numbered, self._numbered + len(ends))
        self._numbered += len(ends)

    # ---- frame by frame ----

    def _follow(self, read: Iterable[Frame]) -> Iterator[Ended]:
        clock = self._clock
        open_ = self._open
        looked = self._looked
        offset = self._clock.offset_ns
        known = open_.get
        is_read, late_from, second = READ, LATE_NS, NS_PER_S  # near at hand
        self._damaged = True  # unless all frames make sense
        for number, kind, read_ns, a, b, payload in read:
            if kind == is_read:
                exchange = known(number)
                # this frame, and so what follows, is what a crash has left there
                if exchange is None:
                    break
                exchange.add(payload, read_ns, a * second + b - offset if a else read_ns)
                if read_ns - looked > late_from:
                    exchange.late[exchange.count - 1] = looked
            elif kind == TURN:
                self._looked = looked = a
            elif kind == CLOCK:
                if self.zero_ns is None:
                    self.zero_ns = read_ns
                clock.look(read_ns, a)
                yield from self._done()
                clock.advance(read_ns, a, open_.values())
                offset = a
            elif kind == SENT:
                self._begin(number, read_ns, a, b, payload)
            elif kind == SINCE:
                if not self._last_looked(number, a):
                    break
            elif kind == END:
                if number not in open_:
                    break
                self._end(number, read_ns, a, payload)
        else:
            self._damaged = False

    def _last_looked(self, number: int, looked_ns: int) -> bool:
        """Note when dyno had last looked for an exchange's last read. Return whether there is such a read."""
        exchange = self._open.get(number)
        if exchange is None or not exchange.count:
            return False
        if exchange.last_read_ns - looked_ns > LATE_NS:
            exchange.late[exchange.count - 1] = looked_ns
        return True

    def _begin(
        self, number: int, sent_ns: int, due_ns: int, connecting_ns: int, payload: bytes
    ) -> None:
        """Note that a request was sent; a second time: the first sending doesn't count."""
        replica = int.from_bytes(payload, "little")
        before = self._open.get(number)
        resent = before is not None
        exchange = RawExchange(due_ns, sent_ns, connecting_ns, resent, replica)
        exchange.window = self._window if before is None else before.window
        self._open[number] = exchange

    def _end(self, number: int, end_ns: int, place: int, payload: bytes) -> None:
        reason = payload.decode("utf-8", "replace")
        exchange = self._open.pop(number)
        self._ended.append(Ended(number, exchange, end_ns, reason, place))

    # ---- by columns ----

    def _take(self, window: FrameWindow) -> bool:
        """Take the frames of a window at once. False: something in it is unusual, and nothing was taken."""
        columns = _Columns(window, self._share)
        clocks = columns.of_kind(CLOCK)
        read_ns = columns.read_ns[clocks].tolist()
        offsets = columns.a[clocks].tolist()
        if self.zero_ns is None and not read_ns:
            return False
        if not columns.stamps_fit() or not self._clock.steady(read_ns, offsets):
            return False
        reads = _Reads(columns, self._clock.offset_ns, clocks)
        if not self._as_usual(columns, reads):
            return False
        if self.zero_ns is None:
            self.zero_ns = read_ns[0]
        for place in columns.of_kind(SENT).tolist():
            self._begin(*columns.frame(place))
        before = {number: self._open[number].count for number in reads.groups}
        for number, (begin, end) in reads.groups.items():
            reads.give(begin, end, self._open[number])
        self._note_late(columns, reads, before)
        ends = columns.of_kind(END).tolist()
        for place in ends:
            number, end_ns, among_all, _, payload = columns.frame(place)
            self._end(number, end_ns, among_all, payload)
        if read_ns:
            self._settled = len(self._ended) - sum(place > clocks[-1] for place in ends)
        for at_ns, offset_ns in zip(read_ns, offsets, strict=True):
            self._clock.advance(at_ns, offset_ns, ())
        return True

    def _as_usual(self, columns: "_Columns", reads: "_Reads") -> bool:
        """Return whether each exchange goes its usual way: it is sent, read, and ends."""
        sent = dict(columns.numbered(SENT))
        begun = {*self._open, *sent}
        return (
            len(sent) == len(columns.numbered(SENT))
            and not any(
                self._sent_oddly(number, place, reads) for number, place in sent.items()
            )
            and all(number in begun for number in reads.groups)
            and not any(
                self._late_before_a_read(number, place, reads)
                for number, place in columns.numbered(SINCE)
            )
            and self._ends_as_usual(columns.numbered(END), sent, reads)
        )

    def _sent_oddly(self, number: int, place: int, reads: "_Reads") -> bool:
        """Return whether a request is sent again, or after what was read of it."""
        known = self._open.get(number)
        return bool(known is not None and known.count) or place > reads.first(number)

    def _late_before_a_read(self, number: int, place: int, reads: "_Reads") -> bool:
        known = self._open.get(number)
        return not (known is not None and known.count) and place < reads.first(number)

    def _ends_as_usual(
        self, ended: Sequence[tuple[int, int]], sent: Mapping[int, int], reads: "_Reads"
    ) -> bool:
        """Return whether each exchange that ends was begun, ends once, and after all else of it."""
        if len({number for number, _ in ended}) < len(ended):
            return False
        return all(
            (number in self._open or number in sent)
            and place > max(reads.last(number), sent.get(number, -1))
            for number, place in ended
        )

    def _note_late(
        self, columns: "_Columns", reads: "_Reads", before: dict[int, int]
    ) -> None:
        """Note which reads came late. `before`: how many each exchange had had before this window."""
        turns = columns.of_kind(TURN)
        looked = columns.since_last(turns, self._looked)
        if len(turns):
            self._looked = int(columns.a[turns[-1]])
        for i in np.flatnonzero(reads.read_ns - looked[reads.order] > LATE_NS).tolist():
            number = int(columns.number[reads.order[i]])
            begin, _ = reads.groups[number]
            self._open[number].late[before[number] + i - begin] = int(
                looked[reads.order[i]]
            )
        places = columns.of_kind(SINCE)
        numbers = columns.number[places].tolist()
        since = columns.a[places].tolist()
        for number, since_ns, count in zip(
            numbers, since, reads.before(places), strict=True
        ):
            exchange = self._open[number]
            last = before.get(number, exchange.count) + count - 1
            if reads.read_before(number, count, exchange) - since_ns > LATE_NS:
                exchange.late[last] = since_ns


class _Columns:
    """The frames of a window."""

    def __init__(self, window: FrameWindow, share: ExchangeShare) -> None:
        heads = window.heads
        ends = window.ends
        self.data = window.data
        if not share.whole:
            own = share.mask(heads)
            heads, ends = heads[own], ends[own]
        self.end = ends
        self.length = heads["length"].astype(np.int64)
        self.number = np.ascontiguousarray(heads["exchange"])
        self._kind = np.ascontiguousarray(heads["kind"])
        self.read_ns = np.ascontiguousarray(heads["read_ns"])
        self.a, self.b = (np.ascontiguousarray(heads[name]) for name in "ab")

    def of_kind(self, kind: int) -> np.ndarray:
        return np.flatnonzero(self._kind == kind)

    def numbered(self, kind: int) -> list[tuple[int, int]]:
        """Return the exchange and the place of each frame of this kind, in order."""
        places = self.of_kind(kind)
        return list(zip(self.number[places].tolist(), places.tolist(), strict=True))

    def stamps_fit(self) -> bool:
        """Return whether the stamps of reads are times."""
        reads = self._kind == READ
        s = self.a[reads]
        ns = self.b[reads]
        return bool(
            ((s >= 0) & (s < _LARGEST_S)).all() and ((ns >= 0) & (ns < NS_PER_S)).all()
        )

    def since_last(self, changes: np.ndarray, before: int) -> np.ndarray:
        """Return for each frame what the last of `changes` before it says, or `before`."""
        values = np.concatenate([[before], self.a[changes]])
        edges = np.concatenate([[0], changes, [len(self._kind)]])
        return np.repeat(values, np.diff(edges))

    def frame(self, place: int) -> tuple[int, int, int, int, bytes]:
        """Return a frame as `_begin` takes it."""
        end = int(self.end[place])
        payload = self.data[end - int(self.length[place]) : end]
        number = int(self.number[place])
        read_ns = int(self.read_ns[place])
        return number, read_ns, int(self.a[place]), int(self.b[place]), payload


class _Reads:
    """The reads of a window, those of an exchange together."""

    def __init__(self, columns: _Columns, offset_ns: int, clocks: np.ndarray) -> None:
        """`offset_ns`: of the wall clock, before the first clock frame."""
        places = columns.of_kind(READ)
        self._numbers = columns.number  # of all frames
        self.order = order = places[_stable_order(columns.number[places])]
        self.read_ns = columns.read_ns[order]
        offsets = columns.since_last(clocks, offset_ns)[order]
        s = columns.a[order]
        ns = columns.b[order]
        times = np.where(s != 0, s * NS_PER_S + ns - offsets, self.read_ns)
        lengths = columns.length[order]
        ends = columns.end[order]
        self._columns = ReadTimes(self.read_ns, times, lengths)
        self._data = columns.data
        self._begins = (ends - lengths).tolist()
        self._ends = ends.tolist()
        self.groups = self._by_number(columns.number[order])

    @staticmethod
    def _by_number(numbers: np.ndarray) -> dict[int, tuple[int, int]]:
        """Return begin and end of each exchange's reads."""
        if not len(numbers):
            return {}
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        names = numbers[edges[:-1]].tolist()
        return dict(zip(names, pairwise(edges), strict=True))

    def first(self, number: int) -> int:
        """Return the place of an exchange's first read."""
        return int(self.order[self.groups[number][0]]) if number in self.groups else _NEVER

    def last(self, number: int) -> int:
        """Return the place of an exchange's last read; -1: there is none."""
        return int(self.order[self.groups[number][1] - 1]) if number in self.groups else -1

    def before(self, places: np.ndarray) -> list[int]:
        """Return how many reads of the same exchange come before each of these frames."""
        size = len(self._numbers)
        keys = self._numbers[self.order].astype(np.int64) * size + self.order
        numbers = self._numbers[places].astype(np.int64) * size
        counts = np.searchsorted(keys, numbers + places) - np.searchsorted(keys, numbers)
        return [int(count) for count in counts.tolist()]

    def give(self, begin: int, end: int, exchange: RawExchange) -> None:
        """Add these reads to their exchange."""
        data = self._data
        edges = zip(self._begins[begin:end], self._ends[begin:end], strict=True)
        # Copies: a part of an array would keep the whole in memory.
        own = ReadTimes(*(column[begin:end].copy() for column in self._columns))
        exchange.extend(b"".join([data[i:j] for i, j in edges]), own)

    def read_before(self, number: int, count: int, exchange: RawExchange) -> int:
        """Return when the read was that has `count - 1` of its exchange in this window before it."""
        if not count:
            return exchange.last_read_ns
        return int(self.read_ns[self.groups[number][0] + count - 1])


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """Return the order of numbers, equal ones as they come. Those near each other take a fifth of the time."""
    if len(numbers) and numbers.max() - numbers.min() < 1 << 16:
        numbers = (numbers - numbers.min()).astype(np.uint16)
    return np.argsort(numbers, kind="stable")
