"""Priority: while the load is on, the wire goes before whatever else wants its core.

Measured beside eight busy loops on two cores (decisions/0013-busy-machines.md): real-time scheduling sees every chunk,
a negative nice value most of them, a shorter slice of the fair scheduler helps nothing.
"""

import contextlib
import os
import sys
import time

from dyno.clock import now_ns
from dyno.units import NS_PER_S

NICE = -10
# The kernel takes a twentieth of each second from a real-time process that would use all of it: 50 ms without a look.
TOO_BUSY = 0.9


class Priority:
    """A context. `facts()`: what the system allowed, in words; '' where nothing."""

    def __init__(self, core: int | None = None) -> None:
        """`core`: kept for the wire; it stays there."""
        self._core = core
        self._levels: list[str] = []
        self._before: tuple[int, set[int]] | None = None
        self._at_ns, self._cpu_s = now_ns(), time.thread_time()

    def __enter__(self) -> "Priority":
        if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return self  # or the user has chosen already
        self._before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
        if self._core is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {self._core})
                self._levels.append(f"core {self._core}")
        # What the wire starts is not to inherit that.
        if _schedule(os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1):
            self._levels.append("SCHED_RR 1")
        else:
            self._nice()
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            nice, cores = self._before
            self._ordinary()
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, nice)
                os.sched_setaffinity(0, cores)

    def ease(self) -> None:
        """Once a second: a wire that is busy all the time is better off without real-time scheduling."""
        now, cpu_s = now_ns(), time.thread_time()
        busy = (cpu_s - self._cpu_s) * NS_PER_S > TOO_BUSY * (now - self._at_ns)
        self._at_ns, self._cpu_s = now, cpu_s
        if busy and self._levels[-1:] == ["SCHED_RR 1"]:
            self._ordinary()
            self._nice()

    def facts(self) -> str:
        return ", ".join(self._levels)

    def _nice(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
            self._levels.append(f"nice {NICE}")

    def _ordinary(self) -> None:
        # Who may not take the flag back keeps it: then children begin with nice 0, and nothing else changes.
        if not _schedule(os.SCHED_OTHER, 0):
            _schedule(os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, 0)


def _schedule(policy: int, priority: int) -> bool:
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True
