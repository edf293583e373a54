"""The wire: sends each request when it is due and keeps the time and bytes of every read. The hot path.

One process, one thread, one epoll loop over non-blocking sockets. A read costs one system call, one clock
reading and two list appends; nothing is decoded here. Linux stamps each segment as it arrives
(SO_TIMESTAMPNS), so what this loop does between two reads delays no measured time. That also lets it nap for
a third of a millisecond when reads come thick: one wake-up then serves many streams.
"""

import contextlib
import errno
import gc
import resource
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from dyno.clock import now_ns, wall_offset_ns
from dyno.facts.record import ClientFacts
from dyno.http import Route
from dyno.load import http1
from dyno.load.connection import ERROR, IN, OUT, Connection, Replica, failure
from dyno.load.http1 import ONE, OVER
from dyno.load.plan import Plan
from dyno.load.pool import AHEAD_NS, Pool
from dyno.load.progress import Progress, Stop, TokenPace
from dyno.load.scheduling import Poll, Priority, Stalls
from dyno.load.script import AnswerCollector, Script, gave_up
from dyno.load.sessions import Sessions
from dyno.load.spool import (
    CLOCK,
    END,
    NO_STAMP,
    READ,
    READ_BYTES,
    SENT,
    SINCE,
    TIMES,
    TURN,
    Spool,
    pack,
)
from dyno.numbers import count
from dyno.units import NS_PER_MS, NS_PER_S, ns

FLUSH_BYTES = 131_072
NO_BEGIN: tuple[bytes, ...] = ()  # nothing begins so
NEVER_NS = 1 << 62
TICK_NS = 100 * NS_PER_MS
SENDS_A_TURN = 32  # then look at the sockets again
# A closed loop sends as soon as an answer has ended. Where hundreds end together, only for this long: then ends, sends
# and reads take turns, and the first chunks of the next answers are read in time.
TURN_NS = 4 * NS_PER_MS
DIGEST_READS = 8  # of an answer that a later request holds
EVENTS_MAX = 1023  # of one poll: what Python asks the kernel for
NAP_S = 0.0003
# … where fewer sockets than these are ready, and nothing is due within this time
NAP_BELOW = 32
NAP_FROM_NS = 2 * NS_PER_MS
REST_NS = 200_000  # at once, where the next thing is due in less than a millisecond
STARVED_NS = TICK_NS // 20  # waited for a core in a tick: who naps then may wait again
NAP_NS = 500_000  # at most, with what waking up takes
# after a longer sleep there is time to ask the scheduler how long it let us wait
MARK_FROM_NS = 2 * NS_PER_MS
# 10,000 reads/s
NAP_FROM_READS_PER_TICK = 1_000
# From 1,500 reads/s on, where a nap costs nothing: the reads of a stream are far apart, few answers end (a nap makes
# the next request late), and few reads hold several chunks: where more do, not for a second.
CALM_FROM_READS_PER_TICK = 150
CALM_GAP_NS = 3 * NS_PER_MS
CALM_READS_PER_END = 20
CALM_READS_PER_JOINT = 20
CALM_AGAIN_NS = NS_PER_S
FADE_PER_TICK = 0.9
# The server is gone: no byte for this long, and this many connections refused in a row, by every replica.
GONE_AFTER_NS = 3 * NS_PER_S
GONE_REFUSED = 8
HOPELESS = 50  # failures, and no success: the load ends
REFUSED_PAUSE_NS = 50 * NS_PER_MS
FRAME_BYTES = 128  # that a read costs in spool and memory besides its own, at least
RESPONSE_MAX = 1 << 26
# Wait after the last answer for others that weren't asked for: as long as two answers take to begin, within these.
LINGER_NS = 20 * NS_PER_MS
LINGER_MAX_NS = 250 * NS_PER_MS
_INTERRUPTED = "interrupted: dyno was stopped while it ran"
_DECIDED = "cancelled: the load had answered its question"
# a round trip and some: a connection closed before the request came shows by then
CLOSED_WITHIN_NS = NS_PER_S // 2


class Traffic(NamedTuple):
    """The requests of one load, when they are due, and where they go."""

    # to copies of one server; each request goes to the one with the least in flight
    routes: Sequence[Route]
    # what a request to each of them begins with; of a single one, empty: the script has it
    fronts: Sequence[bytes]
    script: Script
    plan: Plan
    timeout_s: float = 6 * 3600  # of a request
    response_max: int = RESPONSE_MAX  # bytes


class Wire:
    """Drives one load: `Wire(…).drive()`. What it measured is in the spool."""

    def __init__(
        self,
        traffic: Traffic,
        spool: Spool,
        *,
        watch: Callable[[Progress], None] | None = None,
        stop: Stop | None = None,
        core: int | None = None,
        gate: Callable[[], int] | None = None,
    ) -> None:
        """`gate`: waits, when the connections are open, and returns the instant at which the load begins."""
        self._routes = traffic.routes
        self._fronts = traffic.fronts
        self._script = traffic.script
        self._plan = plan = traffic.plan
        self._sessions = None if plan.graph is None else Sessions(plan.graph)
        self._spool = spool
        self._timeout_ns = ns(traffic.timeout_s)
        self._response_max = traffic.response_max
        self._watch = watch
        self._stop = stop or Stop()
        self._gate = gate or now_ns
        self._check_ns = 0  # when time-outs are looked at next
        self._next = 0  # the next session of the plan
        # When the next request is due, unless a slot becomes free before; in a load with times it is asked each time.
        self._due_ns = 0
        self._open = 0  # sessions that have begun and aren't over
        # Exchanges to close, whose responses are whole: their last read, and when it arrived.
        self._complete: dict[Connection, tuple[bytes, int]] = {}
        # Requests of sessions that are due later; those that are due soon, for which connections are opened.
        self._later: list[tuple[int, int]] = []
        self._soon: list[tuple[int, int]] = []
        # when the client cancels, and which exchange
        self._cancels: list[tuple[int, int]] = []
        self._undigested: deque[AnswerCollector] = deque()  # for when nothing else is to do
        self._steps = deque(plan.steps)
        # when slots became free, in order: the due times of a closed loop
        self._free: deque[int] = deque()
        self._slots = 0  # of a closed loop, free or not
        self._surplus = 0  # slots that end with their session, as there are fewer now
        # slots held back after a refused connection, until these times
        self._paused: deque[int] = deque()
        self._last_byte_ns = 0
        self._outcome = "complete"
        # exchanges on connections on which the server sent more than requested
        self._unasked: list[int] = []
        self._interrupted = False
        self._broken_bodies = 0  # responses that began and broke
        # the kernel's receive stamps do come: some sandboxes take the option and give none
        self._stamped = False
        self._offset_ns = 0
        # The last poll, and the one whose events are being read, each as the fields of Poll: a tuple is made in a
        # seventh of the time.
        self._before = self._now = (0, 0, 0, 0)
        # a poll, and since when what it found can have been there
        self._since: tuple[tuple[int, int, int, int] | None, int] = None, 0
        self._left_over = False  # a socket was not read to its end
        self._stalls = Stalls()
        # no core for a good part of the last tick; for how long in all
        self._starved = False
        self._waited_ns = 0
        self._ticks_late_ns: list[int] = []
        self._tick_ns = self._stop_ns = 0  # the next tick; the end of sending
        self._napping = False
        # all reads, those of several chunks, and ended exchanges, at the last tick
        self._at_tick = 0, 0, 0
        self._joint = 0  # reads that hold several chunks
        self._recent_reads = self._recent_ends = 0.0  # older ones fade
        self._calm_ns = 0  # since then few reads are joint
        self._priority = Priority(core)
        until_s = None if plan.stop_sending_ns is None else plan.stop_sending_ns / NS_PER_S
        self.progress = Progress(plan.requests, until_s)
        self._pace = TokenPace()

    # ---- the loop ----

    def drive(self) -> ClientFacts:
        count = self._plan.count
        timed = self._plan.due_ns is not None
        spool = self._spool
        with self._connected():
            self._aim()
            while True:
                now = now_ns()
                if now >= self._tick_ns:
                    self._come_to_tick(now)
                if now >= self._stop_ns:
                    self._send_last()
                if self._complete:
                    self._settle(now + TURN_NS // 2)
                if timed or now >= self._due_ns:
                    self._due_ns = self._send_due(now)
                due = self._due_ns
                if self._next >= count and (self._open == 0 or self._interrupted):
                    break
                if self._cancels:
                    due = min(due, self._cancel_due(now))
                asleep = now_ns()
                events = self._wait(asleep, due)
                if events is None:
                    continue
                if events:
                    if not self._stamped and self.progress.reads:
                        self._note_turn(asleep)
                    self._read(events)
                if len(events) < EVENTS_MAX and not self._left_over:
                    self._before = self._now
                else:  # not all was looked at: the next reads may find bytes from before
                    self._left_over = False
                if spool.size > FLUSH_BYTES:
                    spool.flush()
        return self._facts

    def _aim(self) -> None:
        """Set the first tick, and when sending ends."""
        self._tick_ns = self._start_ns + TICK_NS
        length_ns = self._plan.stop_sending_ns
        self._stop_ns = NEVER_NS if length_ns is None else self._start_ns + length_ns

    def _come_to_tick(self, now: int) -> None:
        self._ticks_late_ns.append(now - self._tick_ns)
        thick = self._is_thick(now)
        self._tick_ns = max(self._tick_ns + TICK_NS, now)
        self._due_ns = 0
        self._tick(now)
        self._napping = self._stamped and thick and not self._starved

    def _is_thick(self, now: int) -> bool:
        """Return whether reads came so thick in the last tick that one wake-up is to serve several."""
        progress = self.progress
        reads_before, joint_before, ended_before = self._at_tick
        self._at_tick = progress.reads, self._joint, progress.ended
        reads = progress.reads - reads_before
        self._recent_reads = self._recent_reads * FADE_PER_TICK + reads
        self._recent_ends = (
            self._recent_ends * FADE_PER_TICK + progress.ended - ended_before
        )
        if (self._joint - joint_before) * CALM_READS_PER_JOINT > reads:
            self._calm_ns = now + CALM_AGAIN_NS
        if reads >= NAP_FROM_READS_PER_TICK:
            return True
        return (
            reads >= CALM_FROM_READS_PER_TICK
            and reads * CALM_GAP_NS <= progress.in_flight * TICK_NS
            and self._recent_ends * CALM_READS_PER_END <= self._recent_reads
            and now >= self._calm_ns
        )

    def _send_last(self) -> None:
        """Send what is due at the very end of sending; nothing after it."""
        if self._plan.due_ns is not None:
            self._send_due(self._stop_ns)
        self._stop_sending("complete")

    def _wait(self, asleep: int, due: int) -> list[tuple[int, int]] | None:
        """Wait for the sockets until the next thing is due. None: there was only time for something else."""
        poll = self._poll
        wait_ns = 0 if self._complete else min(self._tick_ns, due) - asleep
        if wait_ns <= 0:
            events = poll(0)
        elif wait_ns < NS_PER_MS or self._undigested:
            # epoll counts in milliseconds; a shorter wait is slept, and the stamps show what arrived meanwhile.
            events = poll(0)
            if not events:
                self._rest(asleep, min(wait_ns, REST_NS))
                return None
        else:
            events = poll(wait_ns // NS_PER_MS / 1000)
            if self._napping and len(events) < NAP_BELOW and wait_ns > NAP_FROM_NS:
                time.sleep(NAP_S)
                events = poll(0)
        returned = now_ns()
        self._now = asleep, returned, len(events), NAP_NS if self._napping else 0
        if returned - asleep > MARK_FROM_NS:
            self._stalls.mark()
        return events

    def _rest(self, asleep: int, rest_ns: int) -> None:
        """Read in answers that later requests hold; else sleep."""
        if not self._digest(asleep + rest_ns):
            time.sleep(rest_ns / NS_PER_S)
        self._before = asleep, asleep, 0, 0

    def _note_turn(self, asleep: int) -> None:
        """Note when all sockets were last looked at: the kernel gives no stamps."""
        self._spool.note(TURN, 0, asleep, TIMES.pack(self._before[1], 0))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Around the loop: connections are open, the thread has priority, and no garbage is collected. Then
        `_facts` are known."""
        pool = self._pool = Pool(self._routes, self._fronts)
        self._poll = pool.poller.poll
        plan = self._plan
        progress = self.progress
        thaw = not gc.get_freeze_count()  # what a caller froze stays frozen
        try:
            pool.open_first(plan, lambda: self._stop.requested, self._read)
            gc.collect()
            gc.freeze()
            gc.disable()
            self._start_ns = self._last_byte_ns = start = self._gate()
            pool.touch()
            usage_before = resource.getrusage(resource.RUSAGE_SELF)
            self._before = self._now = (start, start, 0, 0)
            self._note_clock()
            self._steps = deque((start + offset, slots) for offset, slots in plan.steps)
            if plan.due_ns is None and not self._steps:
                self._resize(min(plan.in_flight_max or plan.count, plan.count), start)
            if self._stop.requested:  # while the connections were opened
                self._give_up("interrupted", _INTERRUPTED)
            with self._priority, self._stalls:
                yield
                waited_ns = self._stalls.total_ns()
            end = now_ns()
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._note_clock()  # what the clock did since the last tick
            self._linger()
        finally:
            gc.enable()
            if thaw:
                gc.unfreeze()
            pool.close()
            self._spool.flush()
        skipped = self._sessions.skipped if self._sessions else 0
        self._facts = ClientFacts(
            start_ns=start,
            end_ns=end,
            outcome=self._outcome,
            planned=plan.requests
            if plan.stop_sending_ns is None and not self._stop.decided
            else progress.sent + skipped,
            sent=progress.sent,
            skipped=skipped,
            cpu_s=usage.ru_utime
            + usage.ru_stime
            - usage_before.ru_utime
            - usage_before.ru_stime,
            reads=progress.reads,
            ticks_late_ns=self._ticks_late_ns,
            kernel_stamps=self._stamped,
            priority=self._priority.facts(),
            waited_s=None if waited_ns is None else waited_ns / NS_PER_S,
            unasked=sorted(self._unasked),
        )

    def _read(self, events: list[tuple[int, int]]) -> None:
        streams = self._pool.connections
        free = self._free
        soon = self._soon
        clock = now_ns
        note = self._spool.heads.append
        append = self._spool.parts.append
        frame = FRAME_BYTES
        begins = http1.BEGINS.get
        size = reads = 0
        began = clock()
        until = began + TURN_NS
        for fd, event in events:
            stream = streams.get(fd)
            if stream is None:
                continue
            take = stream.take
            if take is None or event != IN:
                waiting = len(free) + len(soon)
                if stream in self._complete:
                    self._ended(stream, *self._complete.pop(stream))
                if streams.get(fd) is not stream:  # it was the last on its connection
                    pass
                elif stream.ready:
                    self._attend(stream, event)
                else:
                    self._connect(stream, event)
                # sent at once, not when the reads of this turn are done
                if len(free) + len(soon) > waiting:
                    self._send_due(clock())
                continue
            try:
                data, extra, _, _ = stream.recv(READ_BYTES, 64)
            except BlockingIOError:
                continue
            except OSError as e:
                self._broken(stream, e)
                continue
            if not data:
                self._closed(stream)
                continue
            length = len(data)
            stamp = extra[0][2] if extra else NO_STAMP
            note(pack(stream.exchange, READ, length, clock(), stamp))
            append(data)
            size += length
            reads += 1
            stream.room = room = stream.room - length - frame
            # Most reads are one whole chunk, and begin like another one of this length.
            if not (stream.between and data.startswith(begins(length, NO_BEGIN))):
                self._take(stream, take, data, stamp, until)
            if room < 0 and stream not in self._complete:
                self._too_large(stream)
            if length == READ_BYTES:
                self._left_over = True
        self._spool.size += size
        self.progress.bytes += size
        self.progress.reads += reads
        if reads:
            self._last_byte_ns = began

    def _take(
        self,
        stream: Connection,
        take: Callable[[bytes], int],
        data: bytes,
        stamp: bytes,
        until: int,
    ) -> None:
        """Take a read that may be more, or less, than one chunk. After `until` an exchange that has ended waits."""
        try:
            held = take(data)
        except ValueError as e:
            self._fail(stream, f"garbage: {e}")
            return
        framing = stream.framing
        stream.between = stream.skips and framing is not None and framing.between
        if held == ONE:
            return
        self._note_since(stream)
        if held != OVER:
            self._joint += 1
            return
        if (now := now_ns()) < until:
            self._ended(stream, data, self._arrival(stream, stamp))
            if self._free or self._soon:
                self._send_due(now)
        else:
            stream.take = None
            self._complete[stream] = data, self._arrival(stream, stamp)

    def _send_due(self, now: int) -> int:
        """Send what is due; return when the next request is (a far time if none is)."""
        plan = self._plan
        soon = self._soon
        if self._paused and self._paused[0] <= now:
            self._free.append(self._paused.popleft())
        while self._steps and self._steps[0][0] <= now:
            at_ns, slots = self._steps.popleft()
            self._resize(slots, at_ns)
        far = self._approach(now) if self._later else now + NS_PER_S
        for _ in range(SENDS_A_TURN):
            if soon and soon[0][0] <= now:
                due, exchange = heappop(soon)
                if self._sessions is not None and not self._sessions.sends(exchange):
                    continue
            else:
                if soon:
                    far = min(far, soon[0][0])
                if self._next >= plan.count:
                    return far
                if plan.due_ns is None:
                    if not self._free:
                        return min(
                            self._paused[0] if self._paused else far,
                            self._steps[0][0] if self._steps else far,
                        )
                    due = self._free.popleft()
                else:
                    due = self._start_ns + plan.due_ns[self._next]
                    self._pool.open_ahead(
                        plan, self._next, self._open, now + AHEAD_NS - self._start_ns
                    )
                    if due > now:
                        return min(due, far)
                    if plan.in_flight_max is not None and self._open >= plan.in_flight_max:
                        return far
                exchange = self._next
                self._next += 1
                self._open += 1
                if self._sessions is not None:
                    for at_ns, first in self._sessions.begin(exchange, due):
                        self._put(at_ns, first, now)
                    continue
            self.progress.sent += 1
            self.progress.in_flight += 1
            stream = self._assign(exchange, due)
            if stream is not None and stream.ready:
                self._send(stream)
        return now

    # ---- sessions, and the requests that wait in them ----

    def _put(self, due: int, exchange: int, now: int) -> None:
        heappush(self._soon if due - AHEAD_NS <= now else self._later, (due, exchange))

    def _approach(self, now: int) -> int:
        """Open connections for requests that are due soon; return when to look again."""
        later = self._later
        while later and later[0][0] - AHEAD_NS <= now:
            heappush(self._soon, heappop(later))
            self._pool.open_for(len(self._soon))
        return later[0][0] - AHEAD_NS if later else now + NS_PER_S

    def _resize(self, slots: int, now: int) -> None:
        """Have this many slots from now on. A session that has begun keeps its slot to its end."""
        more = slots - self._slots
        self._slots = slots
        while more < 0:
            if self._free:
                self._free.pop()
            else:
                self._surplus += 1
            more += 1
        used = min(more, self._surplus)  # a slot that was to end goes on instead
        self._surplus -= used
        self._free.extend([now] * (more - used))

    def _cancel_due(self, now: int) -> int:
        """Cancel requests whose time has come; return when the next is."""
        cancels = self._cancels
        while cancels and cancels[0][0] <= now:
            _, exchange = heappop(cancels)
            for stream in list(self._pool.connections.values()):
                if stream.exchange == exchange and stream not in self._complete:
                    self._fail(stream, "cancelled: by the client, as planned")
        return cancels[0][0] if cancels else now + NS_PER_S

    # ---- an exchange: start, end, fail ----

    def _assign(self, exchange: int, due: int) -> Connection | None:
        """Give the request a connection, idle or just begun. None: it failed for want of one."""
        pool = self._pool
        replica = pool.only or pool.choose()
        replica.in_flight += 1
        stream = pool.take(replica)
        if stream is None:
            try:
                stream = pool.open(replica)
            except OSError as e:
                pool.hold(replica, e)
                self._failed(exchange, replica, failure(e), unsent_due=due)
                return None
        stream.exchange = exchange
        stream.due_ns = due
        return stream

    def _send(self, stream: Connection) -> None:
        exchange = stream.exchange
        replica = stream.replica
        front = replica.front
        payload = self._script.payload(exchange)
        stream.clear()
        stream.answer = self._script.collector(exchange)
        stream.followed = self._pace.follow()
        stream.history.append(exchange)
        stream.room = self._response_max
        stream.sent_ns = sent = now_ns()
        # Opened for this request: the time that took is not the client's delay.
        connecting = 0 if stream.waited else sent - stream.idle_ns
        self._spool.note(
            SENT, exchange, sent, TIMES.pack(stream.due_ns, connecting), replica.mark
        )
        try:
            if stream.tls is not None:
                stream.tls.object.write(front + payload)
                front = b""
                payload = stream.tls.outgoing.read()
            done = (
                stream.socket.sendmsg((front, payload))
                if front
                else stream.socket.send(payload)
            )
        except BlockingIOError:
            done = 0
        except OSError as e:  # ssl.SSLError is one too
            self._broken(stream, e)
            return
        if done < len(front) + len(payload):
            stream.out = (front + payload)[done:]
            self._pool.poller.modify(stream.fd, IN | OUT)
        if (
            self._plan.cancelling
            and (after_ns := self._plan.cancelling.after(exchange)) is not None
        ):
            heappush(self._cancels, (sent + after_ns, exchange))

    def _head_or_length(self, stream: Connection, data: bytes, stamp: bytes) -> None:
        """Read the head, and bodies that aren't chunked: the slower part."""
        if not stream.body:
            stream.silent = False
            raw = stream.head + data
            try:
                head = http1.head(raw)
            except ValueError as e:
                self._fail(stream, f"garbage: {e}")
                return
            if head is None:
                stream.head = raw
                return
            stream.body = True
            stream.head = b""
            stream.keep_alive = head.keep_alive
            data = raw[head.length :]
            if head.status != 200:
                stream.failing = True
                # it says that of itself, not of the request
                if head.status == 429 or head.status >= 500:
                    self._pool.hold(stream.replica)
            if head.chunked:
                stream.framing = http1.Chunked()
                if stream.tls is None:
                    stream.take = (
                        self._taking(stream)
                        if data
                        else partial(self._first_of_body, stream)
                    )
                if data:
                    self._count_first(stream, stamp)
                try:
                    if data and stream.framing.take(data) == OVER:
                        self._ended(stream, data, self._arrival(stream, stamp))
                except ValueError as e:
                    self._fail(stream, f"garbage: {e}")
                return
            if head.content_length is None and head.status not in (204, 304):
                stream.keep_alive = False
                return
            stream.left = head.content_length or 0
        if stream.left >= 0:
            stream.left -= len(data)
            if stream.left <= 0:
                self._ended(stream, data, self._arrival(stream, stamp))

    def _first_of_body(self, stream: Connection, data: bytes) -> int:
        """Note the first bytes of a body, for the live figure: a server may send its head long before."""
        stream.take = self._taking(stream)
        self._count_first(stream, NO_STAMP)
        return stream.take(data)

    def _taking(self, stream: Connection) -> Callable[[bytes], int]:
        """Return what takes the reads of a body. Those of an answer that a later request holds are collected."""
        assert stream.framing is not None
        take: Callable[[bytes], int] = stream.framing.take
        answer = stream.answer
        if stream.followed is not None:
            take = _followed(take, stream.followed.add)
        if answer is None:
            stream.skips = stream.followed is None
            return take
        add = answer.add
        reads = answer.reads
        put = self._undigested.append

        def collect(data: bytes) -> int:
            add(data)
            if len(reads) == DIGEST_READS:
                put(answer)
            return take(data)

        return collect

    def _digest(self, until: int) -> bool:
        """Read in what has come of answers, for a while. False: there was nothing."""
        undigested = self._undigested
        if not undigested:
            return False
        while undigested and now_ns() < until:
            undigested.popleft().digest()
        return True

    def _count_first(self, stream: Connection, stamp: bytes) -> None:
        if not stream.failing:
            took_ns = self._arrival(stream, stamp) - stream.sent_ns
            self.progress.firsts += 1
            self.progress.first_ns += took_ns
            self.progress.recent_ns.append(took_ns)

    def _arrival(self, stream: Connection, stamp: bytes) -> int:
        """By the kernel's stamp. Without one, and where the wall clock was set since it was last looked at: now."""
        now = now_ns()
        seconds, ns = TIMES.unpack(stamp)
        at_ns = seconds * NS_PER_S + ns - self._offset_ns
        return at_ns if stream.sent_ns <= at_ns <= now else now

    def _ended(self, stream: Connection, data: bytes, now: int) -> None:
        """Close an exchange whose response is whole; the connection is free for the next one. `now`: when the response
        arrived, not when this loop came to it: the slot has been free since then."""
        answer = b""
        if stream.answer is not None and not stream.failing:
            try:
                answer = stream.answer.text()
            except ValueError as e:
                self._fail(stream, f"garbage: {e}")
                return
        self._spool.note(END, stream.exchange, now)
        if (
            excess := stream.framing.excess
            if stream.framing
            else data[stream.left :]
            if stream.left < 0
            else b""
        ):
            self._out_of_turn(stream, excess)
            stream.keep_alive = False
        exchange = stream.exchange
        failed = stream.failing or gave_up(
            stream.answer.last() if stream.answer is not None else data
        )
        self._leave(stream, whole=not failed)
        stream.replica.refused = 0
        self.progress.ended += 1
        if stream.answer is not None and not failed:
            self._script.answered(exchange, answer)
        stream.exchange = -1
        stream.take = stream.framing = stream.answer = None
        stream.body = False
        self._pool.give_back(stream)
        self._release(exchange, stream.replica, now, failed)
        if failed:
            self._count_failure()

    def _leave(self, stream: Connection, whole: bool) -> None:
        self._pace.leave(stream.followed, whole)
        stream.followed = None

    def _settle(self, until: int = NEVER_NS) -> None:
        """Close exchanges whose responses are whole, for a while."""
        complete = self._complete
        while complete:
            stream = next(iter(complete))
            self._ended(stream, *complete.pop(stream))
            if now_ns() >= until:
                return

    def _out_of_turn(self, stream: Connection, data: bytes) -> None:
        """Note bytes that no request asked for: whose answers came on this connection is unknown then."""
        # A line end too many does no harm; and 408 is how some close a connection that was idle for long.
        if data.strip(b"\r\n") and not data.startswith((b"HTTP/1.1 408", b"HTTP/1.0 408")):
            self._unasked.extend(stream.history)

    def _too_large(self, stream: Connection) -> None:
        # else it ended with these bytes, and the next one has begun
        if stream.exchange >= 0 and stream.room < 0:
            self._fail(
                stream,
                f"too_large: the response was not complete after {self._response_max} bytes",
            )

    def _fail(self, stream: Connection, reason: str) -> None:
        exchange = stream.exchange
        if exchange < 0:
            self._pool.lost(stream)
            return
        self._leave(stream, whole=False)
        self._pool.drop(stream)
        self._broken_bodies += stream.body
        if stream.silent:
            self._pool.hold(stream.replica)
        self._failed(
            exchange,
            stream.replica,
            reason,
            unsent_due=None if stream.sent_ns else stream.due_ns,
        )

    def _failed(
        self, exchange: int, replica: Replica, reason: str, unsent_due: int | None
    ) -> None:
        now = now_ns()
        if unsent_due is not None:  # it never got as far as sending
            self._spool.note(SENT, exchange, now, TIMES.pack(unsent_due, 0), replica.mark)
        self._spool.note(END, exchange, now, payload=reason.encode()[:1000])
        self.progress.ended += 1
        # a limit of this machine: the server may still answer the others
        own = reason.startswith("client")
        self._release(
            exchange,
            replica,
            now,
            failed=True,
            refused=reason.startswith("refused"),
            pause=own,
        )
        if reason.startswith("cancelled"):
            return
        if own:
            self.progress.failed += 1
        else:
            self._count_failure()

    def _count_failure(self) -> None:
        """Count it, and end the load if all requests so far have failed and no response is likely to succeed: none is
        arriving, or as many have broken off."""
        progress = self.progress
        progress.failed += 1
        if progress.failed < max(progress.ended, HOPELESS) or self._interrupted:
            return
        arriving = any(
            s.exchange >= 0 and s.body and not s.failing
            for s in self._pool.connections.values()
        )
        if not arriving or self._broken_bodies >= HOPELESS:
            self._give_up(
                "all failed", f"interrupted: dyno ended the load after {HOPELESS} failures"
            )

    def _release(
        self,
        exchange: int,
        replica: Replica,
        now: int,
        failed: bool,
        refused: bool = False,
        pause: bool = False,
    ) -> None:
        """Let those that waited for this exchange follow; where its session is over, its slot is free."""
        replica.in_flight -= 1
        self.progress.in_flight -= 1
        self._due_ns = 0
        if refused:
            replica.refused += 1
        if self._sessions is not None:
            following, over = self._sessions.ended(exchange, now, failed)
            for due, following_exchange in following:
                self._put(due, following_exchange, now)
            if not over:
                return
            assert self._plan.graph is not None
            self._script.forget(self._plan.graph.beside(exchange))
        self._open -= 1
        if self._plan.due_ns is not None:
            return
        if self._surplus:
            self._surplus -= 1
        elif refused or pause:
            self._paused.append(now + REFUSED_PAUSE_NS)
        else:
            self._free.append(now)

    def _closed(self, stream: Connection) -> None:
        """Handle a connection that the server closed."""
        if (
            stream.exchange >= 0
            and stream.body
            and stream.framing is None
            and stream.left < 0
        ):
            stream.keep_alive = False
            self._ended(stream, b"", now_ns())  # a body without a length ends so
        elif not self._sent_again(stream):
            self._fail(
                stream,
                "cut: the server closed the connection before the response was complete",
            )

    def _broken(self, stream: Connection, error: OSError) -> None:
        # A reset on a connection that never carried an answer is what the server thinks of this request: to send it
        # again would hide a failure.
        if (error.errno == errno.ECONNRESET and not stream.carried) or not self._sent_again(
            stream
        ):
            self._fail(stream, failure(error))

    def _sent_again(self, stream: Connection) -> bool:
        """Send the request once more, on a fresh connection, if a kept-alive one was closed under our feet: as soon as
        the request came. A server that closes later had the request and gave it up."""
        exchange = stream.exchange
        if not (stream.waited and stream.silent and stream.ready and exchange >= 0):
            return False
        if stream.sent_ns < now_ns() - CLOSED_WITHIN_NS:
            return False
        self._pool.learn_to_reconnect(stream)
        self._leave(stream, whole=False)
        self._pool.drop(stream)
        try:
            fresh = self._pool.open(stream.replica)
        except OSError:
            return False
        fresh.exchange = exchange
        fresh.due_ns = stream.due_ns
        return True

    def _attend(self, stream: Connection, event: int) -> None:
        """Handle what isn't a plain read: TLS, the rest of a request, a head, a close."""
        if event & OUT and stream.out and not self._send_rest(stream):
            return
        if not event & (IN | ERROR):
            return
        try:
            data, extra, _, _ = stream.recv(READ_BYTES, 64)
        except BlockingIOError:
            return
        except OSError as e:
            self._broken(stream, e)
            return
        read_ns = now_ns()
        plain = self._plain(stream, data)
        if plain is None:
            return
        if stream.exchange < 0:  # idle: the server closed it, or talks out of turn
            self._out_of_turn(stream, plain)
            self._pool.lost(stream)
            return
        if not plain:
            self._closed(stream)
            return
        self._stamped = self._stamped or bool(extra)
        stamp = extra[0][2] if extra else NO_STAMP
        self._note_read(stream, plain, read_ns, stamp)
        if len(data) == READ_BYTES:
            self._left_over = True
        if stream.room < 0:
            self._too_large(stream)
        elif stream.framing is None:
            self._note_since(stream)
            self._head_or_length(stream, plain, stamp)
        else:
            self._take_framed(stream, stream.framing, plain, stamp)

    def _send_rest(self, stream: Connection) -> bool:
        """Send more of a request that didn't fit. False: the connection broke."""
        try:
            stream.out = stream.out[stream.socket.send(stream.out) :]
        except BlockingIOError:
            pass
        except OSError as e:
            self._broken(stream, e)
            return False
        if not stream.out:
            self._pool.poller.modify(stream.fd, IN)
        return True

    def _plain(self, stream: Connection, data: bytes) -> bytes | None:
        """Return what was read, decrypted. None: part of a record, a session ticket (which comes on idle connections
        too), or an error of TLS."""
        if not data or stream.tls is None:
            return data
        try:
            return stream.tls.plain(data) or None
        except ssl.SSLError as e:  # also that it wants a certificate, in TLS 1.3
            if stream.exchange < 0:
                self._pool.lost(stream, e)
            else:
                self._fail(stream, failure(e))
            return None

    def _note_read(
        self, stream: Connection, plain: bytes, read_ns: int, stamp: bytes
    ) -> None:
        self.progress.reads += 1
        self.progress.bytes += len(plain)
        self._last_byte_ns = read_ns
        if stream.followed is not None:
            stream.followed.add(plain)
        if stream.answer is not None:
            stream.answer.add(plain)
        for start in range(0, len(plain), READ_BYTES):
            part = plain[start : start + READ_BYTES]
            self._spool.note(READ, stream.exchange, read_ns, stamp, part)
        stream.room -= len(plain) + FRAME_BYTES

    def _take_framed(
        self, stream: Connection, framing: http1.Chunked, plain: bytes, stamp: bytes
    ) -> None:
        """Take a part of a chunked body."""
        try:
            if held := framing.take(plain):
                self._note_since(stream)
                if held == OVER:
                    self._ended(stream, plain, self._arrival(stream, stamp))
        except ValueError as e:
            self._fail(stream, f"garbage: {e}")

    def _connect(self, stream: Connection, event: int) -> None:
        try:
            ready = stream.advance(event)
        except BlockingIOError:
            return
        except OSError as e:  # ssl.SSLError is one too
            if stream.exchange < 0:
                self._pool.not_opened(stream, e)
            else:
                self._fail(stream, failure(e))
            return
        self._pool.poller.modify(stream.fd, IN)
        if ready:
            stream.replica.refused = 0
            stream.replica.held = False
        if ready and stream.exchange >= 0:
            self._send(stream)
        elif ready:
            self._pool.opened(stream)

    def _linger(self) -> None:
        """Wait for answers that no request asked for: one too many, earlier on, shifts all that follow it on its
        connection, and the last is still to come."""
        progress = self.progress
        pool = self._pool
        end = now_ns() + min(
            LINGER_NS + 2 * progress.first_ns // (progress.firsts or 1), LINGER_MAX_NS
        )
        while self._outcome == "complete" and any(
            s.carried for s in pool.connections.values()
        ):
            left_ns = end - now_ns()
            if left_ns <= 0:
                return
            self._read(pool.poller.poll(left_ns / NS_PER_S))

    # ---- ten times a second ----

    def _tick(self, now: int) -> None:
        self._note_clock()
        self._stalls.mark()
        waited = self._stalls.total_ns() or 0
        self._starved, self._waited_ns = waited - self._waited_ns > STARVED_NS, waited
        self._priority.ease()
        self._spool.flush()
        progress = self.progress
        progress.elapsed_ns = now - self._start_ns
        self._pace.note(progress)
        if self._stop.requested:
            self._give_up(
                *(
                    ("complete", _DECIDED)
                    if self._stop.decided
                    else ("interrupted", _INTERRUPTED)
                )
            )
        elif (
            now - self._last_byte_ns > GONE_AFTER_NS
            and min(r.refused for r in self._pool.replicas) >= GONE_REFUSED
        ):
            self._stop_sending("server gone")
        if now >= self._check_ns:
            self._check_ns = now + NS_PER_S
            self._pool.try_held()
            self._time_out(now)
        if self._watch is not None:
            self._watch(progress)

    def _time_out(self, now: int) -> None:
        pool = self._pool
        via = self._routes[0].via
        pool.give_up(now)
        self._fail_in_flight(
            f"timeout: not connected within {count(via.connect_timeout_s)} s (--connect-timeout)",
            lambda s: pool.connects_late(s, now),
        )
        if via.read_timeout_s is not None:
            silent = now - ns(via.read_timeout_s)
            self._fail_in_flight(
                f"timeout: no byte for {count(via.read_timeout_s)} s (--read-timeout)",
                lambda s: s.sent_ns and max(s.sent_ns, s.read_ns) < silent,
            )
        too_old = now - self._timeout_ns
        self._fail_in_flight(
            f"timeout: not finished {count(self._timeout_ns / NS_PER_S)} s after it was sent (--request-timeout-sec)",
            lambda s: (s.sent_ns or s.idle_ns) < too_old,  # not sent: still connecting
        )

    def _give_up(self, outcome: str, reason: str) -> None:
        """End the load at once; `reason` becomes the failure of what is in flight."""
        self._interrupted = True
        self._settle()
        if self.progress.in_flight:
            self._outcome = outcome
        self._stop_sending(outcome)
        self._fail_in_flight(reason, lambda _: True)

    def _fail_in_flight(self, reason: str, which: Callable[[Connection], object]) -> None:
        for stream in list(self._pool.connections.values()):
            if stream.exchange >= 0 and stream not in self._complete and which(stream):
                self._fail(stream, reason)

    def _stop_sending(self, outcome: str) -> None:
        if self._next < self._plan.count:
            self._next = self._plan.count
            self._outcome = outcome
        if self._sessions is not None and self._sessions.unsent:
            self._open -= self._sessions.stop()
            self._later.clear()
            self._soon.clear()
            self._outcome = outcome

    # ---- the spool ----

    def _note_since(self, stream: Connection) -> None:
        """Note since when the chunks of a read can have been there, if it may hold several."""
        poll, since = self._since
        if poll is not self._now:  # the scheduler is asked once for the events of a poll
            since = self._stalls.since_ns(Poll(*self._before), Poll(*self._now))
            self._since = self._now, since
        self._spool.note(SINCE, stream.exchange, since, TIMES.pack(since, 0))

    def _note_clock(self) -> None:
        self._offset_ns = wall_offset_ns()
        self._spool.note(CLOCK, 0, now_ns(), TIMES.pack(self._offset_ns, 0))


def _followed(
    take: Callable[[bytes], int], add: Callable[[bytes], None]
) -> Callable[[bytes], int]:
    def follow(data: bytes) -> int:
        add(data)
        return take(data)

    return follow
