"""Scheduling: the wire's priority while the load is on, and how long it waited for a core.

Measured beside eight busy loops on two cores (decisions/0013-busy-machines.md): with real-time scheduling every chunk
is seen. Where that is not allowed, a short slice of the fair scheduler makes turns come sooner; Linux 6.12 and newer
ask no permission for it.
"""

import contextlib
import os
import platform
import signal
import struct
import sys
import threading
import time
from types import FrameType
from typing import NamedTuple

from dyno.clock import now_ns
from dyno.units import NS_PER_MS, NS_PER_S

SLICE_NS = 100_000  # the shortest that the scheduler takes
# size, policy, flags, nice, priority, runtime (the slice), deadline, period
_SCHED_ATTR = struct.Struct("<IIQiIQQQ")
_SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
# Of a core. A wire that needs more would take it from a server on the same cores; and from a real-time process that
# uses all of a core the kernel takes 50 ms in each second.
TOO_BUSY = 0.3
SLEPT_NS = 100_000  # a poll that took so much longer than its work has slept
EVENT_NS = 2_000  # to hand over one event, at most
# CPU time, time spent runnable without a core, turns
_SCHEDSTAT = "/proc/thread-self/schedstat"
_SHORT = f"slice {SLICE_NS / NS_PER_MS:g} ms"


class Priority:
    """A context that raises the thread's priority. `facts()` says what the system allowed; '' where nothing."""

    def __init__(self, core: int | None = None) -> None:
        """`core` is reserved for the wire, which is pinned to it."""
        self._core = core
        self._levels: list[str] = []
        self._before: set[int] | None = None
        self._at_ns = now_ns()
        self._cpu_s = time.thread_time()
        # asked for while the load runs: loading ctypes then would cost it 10 ms
        self._slice = _Slice()

    def __enter__(self) -> "Priority":
        if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return self  # or the user has chosen already
        self._before = os.sched_getaffinity(0)
        if self._core is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {self._core})
                self._levels.append(f"core {self._core}")
        # What the wire starts is not to inherit that.
        if _schedule(os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1):
            self._levels.append("SCHED_RR 1")
        else:
            self._shorten()
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._ordinary()
            if self._levels[-1:] == [_SHORT]:
                self._slice.set(0)
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._before)

    def ease(self) -> None:
        """Give up real-time priority when busy; called every tick."""
        now = now_ns()
        cpu_s = time.thread_time()
        busy = (cpu_s - self._cpu_s) * NS_PER_S > TOO_BUSY * (now - self._at_ns)
        self._at_ns = now
        self._cpu_s = cpu_s
        if busy and self._levels[-1:] == ["SCHED_RR 1"]:
            self._ordinary()
            self._shorten()

    def facts(self) -> str:
        return ", ".join(self._levels)

    def _shorten(self) -> None:
        if self._slice.set(SLICE_NS):
            self._levels.append(_SHORT)

    def _ordinary(self) -> None:
        # Who may not take the flag back keeps it: then children begin with nice 0, and nothing else changes.
        if not _schedule(os.SCHED_OTHER, 0):
            _schedule(os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, 0)


def raises_itself() -> bool:
    """Return whether the wire may come before other processes here. Asked in a thread of its own: what it leaves behind
    goes with it."""
    answers: list[bool] = []

    def ask() -> None:
        if sys.platform == "linux" and os.sched_getscheduler(0) != os.SCHED_OTHER:
            answers.append(True)  # the user has chosen already
            return
        with Priority() as priority:
            answers.append(bool(priority.facts()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers == [True]


def _schedule(policy: int, priority: int) -> bool:
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


class _Slice:
    """The fair scheduler's slice of this thread."""

    def __init__(self) -> None:
        import ctypes

        self._calls = _SYSCALLS.get(platform.machine())
        self._libc = ctypes.CDLL(None)
        self._buffer = ctypes.create_string_buffer

    def set(self, length_ns: int) -> bool:
        """Set it; 0: the usual one. Return False where the kernel has no such thing."""
        if self._calls is None:
            return False
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        asked = self._buffer(
            _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, length_ns, 0, 0)
        )
        if self._libc.syscall(self._calls[0], 0, asked, 0) != 0:
            return False
        # older kernels take it and do nothing
        got = self._buffer(_SCHED_ATTR.size)
        self._libc.syscall(self._calls[1], 0, got, _SCHED_ATTR.size, 0)
        return bool(length_ns) and _SCHED_ATTR.unpack(got.raw)[5] == length_ns


class Poll(NamedTuple):
    asked_ns: int
    returned_ns: int
    events: int
    nap_ns: int = 0

    @property
    def cost_ns(self) -> int:
        """Return the most that it can have taken after it was woken: a list of its events, and a nap."""
        return SLEPT_NS + self.events * EVENT_NS + self.nap_ns


class Stalls:
    """Times when this thread wanted to run and had no core. A context: while it is open, SIGCONT is noticed and the
    scheduler's own count can be read. `delay_ns()` covers the time since the last `mark()` but two.
    """

    def __init__(self) -> None:
        self.continued_ns = 0  # when this process last continued after SIGSTOP
        self._stat = -1
        self._start = 0
        self._marks = (0, 0, 0)
        self._handler: object = None

    def __enter__(self) -> "Stalls":
        with contextlib.suppress(OSError):  # not Linux, or a sandbox
            self._stat = os.open(_SCHEDSTAT, os.O_RDONLY)
            # no CPU time at all: this kernel doesn't count
            if os.pread(self._stat, 96, 0).startswith(b"0 "):
                self._close()
        self._start = self._waited_ns()
        self._marks = (self._start,) * 3
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, self._handler or signal.SIG_DFL)  # type: ignore[arg-type]

    def mark(self) -> None:
        self._marks = (*self._marks[1:], self._waited_ns())

    def delay_ns(self) -> int | None:
        """Return the time spent waiting for a core; None: this system does not count it."""
        return None if self._stat < 0 else self._waited_ns() - self._marks[0]

    def since_ns(self, before: Poll, now: Poll) -> int:
        """Return the earliest moment at which what this poll found can have been there.

        Since the poll before, at the earliest. If this poll slept, nothing had come before it slept, and the first byte
        woke it as soon as there was a core; the scheduler knows how long there was none.
        """
        since = before.asked_ns
        if now.returned_ns - since > NS_PER_MS and self.continued_ns < since:
            delay = self.delay_ns()
            if delay is not None:
                since = max(since, before.returned_ns - before.cost_ns - delay)
                awake_ns = delay + now.cost_ns
                if now.returned_ns - now.asked_ns > awake_ns + SLEPT_NS:
                    since = max(since, now.asked_ns, now.returned_ns - awake_ns)
        return since

    def total_ns(self) -> int | None:
        return None if self._stat < 0 else self._waited_ns() - self._start

    def _close(self) -> None:
        if self._stat >= 0:
            os.close(self._stat)
            self._stat = -1

    def _waited_ns(self) -> int:
        return 0 if self._stat < 0 else int(os.pread(self._stat, 96, 0).split()[1])

    def _continued(self, _signal: int, _frame: FrameType | None) -> None:
        self.continued_ns = now_ns()
