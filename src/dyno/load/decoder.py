"""Decoding in several processes, `python -m dyno.load.decoder`, and the side that starts them.

Each process reads the headers of a whole spool and decodes a share of its exchanges. It settles the records, adds them
up, and writes them into a file as portions: lines of records.jsonl, and packed sums. Records that only dyno itself can
settle are in there whole.

A process can begin while the load runs. Then it forks a follower, at idle priority, that takes what the spool has so
far, into a file of its own. When the load is over it kills the follower, which has no claim to a core, not even for
its end, and goes on behind the last whole portion there. So does dyno itself where a process could not be started or
has ended too early.
"""

import contextlib
import ctypes
import heapq
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import psutil

from dyno import child, secrets
from dyno.child import Child
from dyno.facts.clock import NodeClock
from dyno.facts.record import Record
from dyno.load import decode
from dyno.load.exchanges import START, Ended, Exchanges, ExchangeShare, ResumePoint
from dyno.load.protocols import protocol_of
from dyno.load.sessions import Graph
from dyno.load.settle import PlannedRequest, Settling, ShareSettler, Sums
from dyno.load.slices import Numbering, of_slice
from dyno.load.spool import in_blocks, windows
from dyno.measure import clocks

# of a spool: below that, one process has decoded it before others have started
SEVERAL_FROM_BYTES = 64 << 20
PORTION_CHUNKS = 1 << 16
_WAIT_S = 1.0
_LOOK_S = 0.1  # of a follower, for more of the spool
_LENGTH = 8  # bytes, before each portion, and before all of them
_END_S = 0.05  # for a follower, to end
_ROOM_BYTES = 1 << 30  # on the disk: with less, all of it is the spool's
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_LOST = "a process of dyno's client ended before the response was complete"


# ---- the records of one spool ----


class SpoolSource(msgspec.Struct, frozen=True):
    """A spool, and what its exchanges were."""

    path: str
    api: str  # see protocol_of
    requests: list[PlannedRequest]  # of the whole load
    # the client's process that wrote it, of how many
    part: int = 0
    parts: int = 1
    zero_ns: int | None = None  # of all times, on the clock of the machine that wrote it
    unasked: list[int] = []  # see ClientFacts
    clock: NodeClock | None = None
    lost: bool = False  # its process was killed


class SpoolRecords:
    """The records of a spool, numbered as in the whole load and on the clock here."""

    def __init__(
        self,
        source: SpoolSource,
        share: ExchangeShare | None = None,
        start: ResumePoint = START,
    ) -> None:
        self._source = source
        self._protocol = protocol_of(source.api)
        self._graph = graph = Graph.from_requests(source.requests)
        self._turns = graph.turns() if graph else []
        k, n = source.part, source.parts
        self._own = of_slice(source.requests, k, n, len(source.requests), graph)
        self._number = Numbering(graph, k, n)
        self._mixed = frozenset(source.unasked)
        self.exchanges = Exchanges(source.zero_ns, share or ExchangeShare(), start)

    def all(self) -> Iterator[Record]:
        """Yield them in the order in which the exchanges ended. Those that a crash left open come last, as cut."""
        return map(self.record, self.exchanges.ended(Path(self._source.path)))

    def record(self, ended: Ended) -> Record:
        source = self._source
        zero_ns = self.exchanges.zero_ns or 0
        record = decode.record_of(ended, self._own, self._protocol, zero_ns)
        record = decode.marked(record, self._mixed)
        if source.clock:
            clocks.move_here(record, source.clock, source.zero_ns or 0)
        planned = self._own[record.index % len(self._own)]
        record.group = planned.group
        if planned.media_count:
            record.media = planned.media_count
            record.media_tokens = planned.media_tokens
            record.audio_s = planned.audio_s
        if record.results is not None and record.results != planned.results:
            record.error = record.error or "results"
            record.error_detail = record.error_detail or (
                f"the answer has {record.results} results, but {planned.results} were asked for"
            )
        record.index = self._number(record.index)
        if self._graph:
            record.session = self._graph.session_of(record.index)
            record.turn = self._turns[record.index % self._graph.requests]
        if source.lost and record.error == "interrupted":
            record.error = "lost"
            record.error_detail = _LOST
        return record


# ---- a share of them, in portions ----


class DecodeTask(msgspec.Struct, frozen=True):
    source: SpoolSource
    rest: int  # of the share
    shares: int
    results: str  # the file for the portions
    how: Settling
    secrets: list[str]
    # the load has not begun: orders will say when it does, and when it is over
    follow: bool = False

    @property
    def files(self) -> list[Path]:
        """Its file, which begins with how much of the other one counts; and a follower's, if there is one."""
        results = Path(self.results)
        return [results, results.with_suffix(".followed.partial")]


class Portion(msgspec.Struct, frozen=True, array_like=True):
    """Records of a share, in the order in which their exchanges ended."""

    # columns of int64
    numbers: bytes  # of the exchanges, in their spool
    places: bytes  # among the exchanges of all shares
    ends: bytes  # when they ended
    sizes: bytes  # of their lines; 0: the record is among `unsettled`
    lines: bytes
    unsettled: list[Record]
    sums: Any  # of the others
    resume: ResumePoint  # from where the rest can be decoded


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Portion).decode
_line = msgspec.json.Encoder().encode
_numbers = itertools.count()  # of Decoders in this process


class _Gathering:
    """The portion that is being made."""

    def __init__(self, task: DecodeTask) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._lines: list[bytes] = []
        self._unsettled: list[Record] = []
        self._sums = Sums(task.how, task.source.requests)
        self.chunks = 0

    def add(self, ended: Ended, record: Record, settled: bool) -> None:
        self.chunks += 1 + len(record.chunk_ns)
        line = b""
        if settled:
            line = _line(record) + b"\n"
            self._lines.append(line)
            self._sums.add(record)
        else:
            self._unsettled.append(record)
        self._rows.append((ended.number, ended.place, record.end_ns, len(line)))

    def portion(self, resume: ResumePoint) -> Portion:
        columns = np.array(self._rows, np.int64).reshape(-1, 4).T
        numbers, places, ends, sizes = (column.tobytes() for column in columns)
        lines = b"".join(self._lines)
        packed = self._sums.packed()
        return Portion(numbers, places, ends, sizes, lines, self._unsettled, packed, resume)


def portions(results: Path, begin: int = 0, to: int | None = None) -> Iterator[Portion]:
    """Yield the whole portions of a file. `to`: those behind it don't count."""
    if not results.exists():
        return
    with results.open("rb") as file:
        for start, end in _whole(file, begin, to):
            file.seek(start)
            yield _decode(file.read(end - start))


def _whole(file: IO[bytes], begin: int, to: int | None) -> Iterator[tuple[int, int]]:
    """Yield where each whole portion of a file begins and ends. Whoever wrote half a one was killed."""
    size = os.fstat(file.fileno()).st_size if to is None else to
    while begin + _LENGTH <= size:
        file.seek(begin)
        begin += _LENGTH
        end = begin + int.from_bytes(file.read(_LENGTH), "little")
        if end > size:
            return
        yield begin, end
        begin = end


def _end_of_whole(results: Path, begin: int = 0) -> int:
    if not results.exists():
        return begin
    with results.open("rb") as file:
        return max((end for _, end in _whole(file, begin, None)), default=begin)


def decoded(task: DecodeTask) -> Iterator[Portion]:
    """Yield all portions of a share."""
    results, followed = task.files
    yield from portions(followed, to=_counted(task))
    yield from portions(results, _LENGTH)


def _counted(task: DecodeTask) -> int:
    """Return how much of a follower's file counts. It is settled once, as the follower may still write to its file."""
    results, followed = task.files
    if results.exists():
        with results.open("rb") as file:
            head = file.read(_LENGTH)
        if len(head) == _LENGTH:
            return int.from_bytes(head, "little")
    end = _end_of_whole(followed)
    with _appending(results, 0) as file:
        file.write(end.to_bytes(_LENGTH, "little"))
    return end


def work(task: DecodeTask) -> Iterator[int]:
    """Decode what the files of a share haven't yet. Yield how many records they have, now and then."""
    done: set[int] = set()
    resume = START
    for portion in decoded(task):
        done.update(_column(portion.numbers))
        resume = portion.resume
    results, _ = task.files
    end = _end_of_whole(results, _LENGTH)
    yield from _Decoding(task, done, resume).into(results, end)


def follow(task: DecodeTask, wait: Callable[[], None]) -> Iterator[int]:
    """Do the same with a spool that grows, from its beginning. `wait`: what to do where it has no more yet. This ends
    only where something in the spool is unusual."""
    _, followed = task.files
    yield from _Decoding(task, set(), START, wait).into(followed, 0)


class _Decoding:
    """Decodes a share. `done`: exchanges without which it goes on from `resume`."""

    def __init__(
        self,
        task: DecodeTask,
        done: set[int],
        resume: ResumePoint,
        wait: Callable[[], None] | None = None,
    ) -> None:
        self._task = task
        self._count = len(done)
        self._wait = wait
        share = ExchangeShare(task.rest, task.shares, frozenset(done))
        self._records = SpoolRecords(task.source, share, resume)
        self._begin = resume.begin

    def into(self, results: Path, end: int) -> Iterator[int]:
        """Append the portions to a file from `end` on. Yield how many records there are so far."""
        exchanges = self._records.exchanges
        settler = ShareSettler(self._task.how)
        gathering = _Gathering(self._task)
        with _appending(results, end) as file:
            for batch in self._batches():
                for ended in batch:
                    record = self._records.record(ended)
                    gathering.add(ended, record, settler.settled(record))
                    self._count += 1
                if self._wait and not exchanges.usual:
                    return
                if gathering.chunks >= PORTION_CHUNKS:
                    _write(file, gathering.portion(exchanges.resume_point()))
                    gathering = _Gathering(self._task)
                    yield self._count
            _write(file, gathering.portion(exchanges.resume_point()))
        yield self._count

    def _batches(self) -> Iterator[Iterator[Ended]]:
        exchanges = self._records.exchanges
        each = windows(Path(self._task.source.path), self._begin, self._wait)
        yield from map(iter, exchanges.batches(each))
        yield exchanges.left_open()


@contextlib.contextmanager
def _appending(results: Path, end: int) -> Iterator[IO[bytes]]:
    """Open the file of a share behind its last whole portion."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(results, flags, 0o600), "wb", buffering=0) as file:
        file.truncate(end)
        file.seek(end)
        yield file


def _write(file: IO[bytes], portion: Portion) -> None:
    data = _encode(portion)
    left = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
    while left:
        left = left[file.write(left) :]


def _column(data: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(data, np.int64).tolist()
    return numbers


# ---- the process ----


class _Progress(msgspec.Struct, frozen=True, array_like=True):
    """A line that a process writes."""

    count: int
    over: bool = False


_progress = msgspec.json.Decoder(_Progress).decode


def main() -> None:
    parent = os.getppid()
    task = child.task(DecodeTask)
    orders = child.Orders()
    secrets.learn(task.secrets)
    wanted = _followed(task, orders, parent) if task.follow else task
    if wanted is not None:
        _work(wanted, parent)
        orders.next()  # none comes
    # The process that started this is done, or gone, and then nothing else removes them.
    for file in task.files:
        file.unlink(missing_ok=True)


def _work(task: DecodeTask, parent: int) -> None:
    count = 0
    for count in work(task):
        if os.getppid() != parent:
            return
        child.report(_Progress(count))
    child.report(_Progress(count, over=True))


def _followed(task: DecodeTask, orders: child.Orders, parent: int) -> DecodeTask | None:
    """Have the spool followed until the load is over, and return what is left to do. None: nothing."""
    word, _, zero = (orders.next() or b"").partition(b" ")
    if word != b"start":
        return None
    source = msgspec.structs.replace(task.source, zero_ns=int(zero))
    task = msgspec.structs.replace(task, source=source)
    mine = os.getpid()
    follower = os.fork()
    if not follower:
        try:
            _follow(task, mine)
        finally:
            os._exit(0)
    try:
        order = orders.next()
    finally:
        _end(follower)
    return task if order == b"finish" else None


def _end(follower: int) -> None:
    """Kill a follower, and wait a moment. Where other programs have all cores, even its end takes seconds."""
    os.kill(follower, signal.SIGKILL)
    deadline = time.monotonic() + _END_S
    while not os.waitpid(follower, os.WNOHANG)[0] and time.monotonic() < deadline:
        time.sleep(_END_S / 50)


def _follow(task: DecodeTask, parent: int) -> None:
    """Decode the spool as it grows. Ended by its parent, or with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)

    def wait() -> None:
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(_LOOK_S)

    for _ in follow(task, wait):
        if shutil.disk_usage(task.source.path).free < _ROOM_BYTES:
            return


# ---- whoever starts them ----


class Settled(NamedTuple):
    """A record as its line, or where that isn't settled yet, the record."""

    end_ns: int
    line: bytes
    record: Record | None = None


class Decoders:
    """The processes that decode a spool. A context: when it is left, they have ended, and their files are gone.

    These have the number of this process in their names: another dyno may sum up the same run, or have been killed."""

    def __init__(
        self, source: SpoolSource, how: Settling, shares: int, follow: bool = False
    ) -> None:
        self.spool = source.path
        results = f"{Path(self.spool).with_suffix('')}.{os.getpid()}-{next(_numbers)}"
        self._tasks = [
            DecodeTask(
                source,
                rest,
                shares,
                f"{results}-{rest}.partial",
                how,
                secrets.learned(),
                follow,
            )
            for rest in range(shares)
        ]
        self._running = contextlib.ExitStack()
        self._children: list[Child | None] = []

    def __enter__(self) -> "Decoders":
        for file in itertools.chain.from_iterable(task.files for task in self._tasks):
            file.unlink(missing_ok=True)
            self._running.callback(file.unlink, missing_ok=True)
        self._children += [self._start() for _ in self._tasks]
        for task, process in zip(self._tasks, self._children, strict=True):
            if process is not None:
                process.give(task)
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._running.close()

    def begin(self, zero_ns: int) -> None:
        """The load begins: follow the spool."""
        self._order(b"start %d" % zero_ns)
        source = msgspec.structs.replace(self._tasks[0].source, zero_ns=zero_ns)
        self._tasks = [
            msgspec.structs.replace(task, source=source, follow=False)
            for task in self._tasks
        ]

    def finish(self) -> None:
        """The load is over: decode what is left."""
        self._order(b"finish")

    def cpu_s(self) -> float:
        """Return the CPU seconds that they and their followers have used."""
        return sum(map(_cpu_s, filter(None, self._children)))

    def fit(self, source: SpoolSource, how: Settling) -> bool:
        """Return whether this is what they decode, and how."""
        return all(task.source == source and task.how == how for task in self._tasks)

    def settled(self, sums: Sums, step: Callable[[int], None]) -> Iterator[Settled]:
        """Yield the records in the order in which their exchanges ended, and add up those that are settled. `step`
        hears how many there are."""
        try:
            self._wait(step)
        except OSError:  # the disk is too full for portions
            self.close()
            yield from alone(self._tasks[0].source)
            return
        shares = [_share(task, sums) for task in self._tasks]
        for _, settled in heapq.merge(*shares, key=itemgetter(0)):
            yield settled

    def _start(self) -> Child | None:
        try:
            return self._running.enter_context(Child("dyno.load.decoder", end_s=0))
        except OSError:
            return None

    def _order(self, line: bytes) -> None:
        for process in filter(None, self._children):
            process.order(line)

    def _wait(self, step: Callable[[int], None]) -> None:
        """Return when all shares are decoded; here, where a process has died."""
        counts = [0] * len(self._tasks)
        for rest, (task, process) in enumerate(
            zip(self._tasks, self._children, strict=True)
        ):
            over = False
            while process is not None and not over:
                for line in process.hear(_WAIT_S):
                    counts[rest], over = _heard(line, counts[rest])
                    step(sum(counts))
                if process.gone:
                    break
            if not over:
                for counts[rest] in work(task):
                    step(sum(counts))


def _cpu_s(process: Child) -> float:
    used = 0.0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        for each in (parent, *parent.children()):
            used += sum(each.cpu_times()[:2])
    return used


def _heard(line: bytes, before: int) -> tuple[int, bool]:
    """Return how many records a process reports, and whether that is all."""
    try:
        progress = _progress(line)
    except msgspec.MsgspecError:  # half a line: it was killed
        return before, False
    return progress.count, progress.over


def _share(task: DecodeTask, sums: Sums) -> Iterator[tuple[int, Settled]]:
    for portion in decoded(task):
        sums.add_packed(portion.sums)
        unsettled = iter(portion.unsettled)
        lines = portion.lines
        position = 0
        columns = map(_column, (portion.places, portion.ends, portion.sizes))
        for place, end_ns, size in zip(*columns, strict=True):
            line = lines[position : position + size]
            position += size
            yield place, Settled(end_ns, line, None if size else next(unsettled))


def worthwhile(spool: Path) -> bool:
    """Return whether other processes decode a spool sooner than this one does."""
    try:
        large = spool.stat().st_size >= SEVERAL_FROM_BYTES
    except OSError:
        return False
    return large and in_blocks(spool)


def alone(source: SpoolSource) -> Iterator[Settled]:
    """Yield the records of a spool, decoded here, none of them settled."""
    for record in SpoolRecords(source).all():
        yield Settled(record.end_ns, b"", record)


if __name__ == "__main__":
    main()
    os._exit(0)
