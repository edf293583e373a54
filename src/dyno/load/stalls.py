"""Stalls: when the thread on the wire wanted to run and was not let."""

import contextlib
import os
import signal
import threading
from types import FrameType

from dyno.clock import now_ns

_SCHEDSTAT = "/proc/thread-self/schedstat"  # CPU time, time spent runnable without a core, turns


class Stalls:
    """A context: while it is open, SIGCONT is noticed and the scheduler's own count can be asked for.

    `delay_ns()` covers the time since the last `mark()` but two.
    """

    def __init__(self) -> None:
        self.continued_ns = 0  # when this process was last let on after SIGSTOP
        self._stat = -1
        self._start = 0
        self._marks = (0, 0, 0)
        self._handler: object = None

    def __enter__(self) -> "Stalls":
        with contextlib.suppress(OSError):  # not Linux, or a sandbox
            self._stat = os.open(_SCHEDSTAT, os.O_RDONLY)
            if os.pread(self._stat, 96, 0).startswith(b"0 "):  # no CPU time at all: this kernel doesn't count
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
        """None: this system does not count it."""
        return None if self._stat < 0 else self._waited_ns() - self._marks[0]

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
