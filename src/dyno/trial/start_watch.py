"""Tells a slow start from a hang, by what the engine's processes do until it is ready."""

import contextlib
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from dyno.engines import container
from dyno.engines.engine import Engine
from dyno.engines.log import tail
from dyno.errors import EngineError
from dyno.numbers import percent
from dyno.option import setting_name
from dyno.saying import Below
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.lifecycle import memory_used

_LOOK_S = 2.0  # the list of all processes is read each time
_WORD_AFTER_S = 20.0  # the first sign of life; the next ones after twice as long each
_IO_BYTES_PER_S = 100 * 1024  # less is a process that polls
_MEMORY_BYTES = 16 * 2**20  # of an accelerator
_CORES = 0.05  # likewise
# Computing alone is progress for so many times the limit. Compilers compute for minutes in silence, but so does a
# collective operation that waits for a lost rank, for ever.
_COMPUTES = 3
# such lines repeat
_WAITS = re.compile(
    r"waiting (?:for|to)\b|no available shared memory broadcast block", re.I
)


class _Use(NamedTuple):
    """Counters of one process."""

    cpu_s: float = 0.0
    io_bytes: int = 0


class StartWatch:
    def __init__(
        self,
        plan: EnginePlan,
        engines: Sequence[Engine],
        below: Below,
        doing: str = "starting",
    ) -> None:
        self._plan, self._engines, self._below, self._doing = plan, engines, below, doing
        self.answer = ""  # of the server so far, in words
        self._began = self._seen = self._moved = self._computed = time.monotonic()
        self._line_at = time.time()
        self._every_s = min(_LOOK_S, plan.spec.ready_stall_s / 10)
        self._word_s = _WORD_AFTER_S
        self._cores = 0.0
        self._pids: list[int] = []  # of the containers' first processes
        self._uses: dict[int, _Use] = {}
        self._log_bytes = [0 for _ in engines]
        self._memory = memory_used(plan)

    def check(self, engine: Engine) -> None:
        """Raise EngineError for a start that hangs, or takes longer than the setting allows. `engine`: the copy that is
        waited for; others may be ready, or make progress."""
        now, spec = time.monotonic(), self._plan.spec
        if now < self._seen + self._every_s:
            return
        self._see(now)
        self._report(engine, now - self._began)
        if spec.ready_timeout_s is not None and now - self._began > spec.ready_timeout_s:
            raise engine.failed(
                f"wasn't ready within {spec.ready_timeout_s:g} s",
                f"{setting_name('--engine-ready-timeout-sec')} limits a start also while it makes progress. Raise "
                "or remove it.",
            )
        if now - max(self._moved, self._computed) > spec.ready_stall_s:
            raise self._stalled(engine, now - self._moved, "")
        if now - self._moved > _COMPUTES * spec.ready_stall_s:
            raise self._stalled(engine, now - self._moved, "it only computes: ")

    def _see(self, now: float) -> None:
        span_s, self._seen = now - self._seen, now
        uses = {process.pid: _use(process) for process in self._processes()}
        added = [(use, self._uses.get(pid, _Use())) for pid, use in uses.items()]
        self._cores = (
            sum(max(use.cpu_s - before.cpu_s, 0) for use, before in added) / span_s
        )
        moved_bytes = sum(max(use.io_bytes - before.io_bytes, 0) for use, before in added)
        self._uses = uses
        if self._cores > _CORES:
            self._computed = now
        memory = memory_used(self._plan)
        grown = any(
            abs(n - self._memory.get(i, 0)) > _MEMORY_BYTES for i, n in memory.items()
        )
        if grown:
            self._memory = memory
        lines = self._new_lines()
        if lines:
            self._line_at = time.time()
        if lines or grown or moved_bytes > _IO_BYTES_PER_S * span_s:
            self._moved = now

    def _processes(self) -> list[psutil.Process]:
        if not self._plan.spec.container:
            return [
                process
                for engine in self._engines
                for process in engine.process.processes()
            ]
        if not self._pids or not all(self._pids):
            self._pids = [container.pid(launch) for launch in self._plan.launches]
        with contextlib.suppress(psutil.Error):
            firsts = [psutil.Process(pid) for pid in self._pids if pid]
            return [
                *firsts,
                *(child for first in firsts for child in first.children(recursive=True)),
            ]
        return []

    def _new_lines(self) -> bool:
        """Return whether a log has a new line that says more than that it waits."""
        new = False
        for i, engine in enumerate(self._engines):
            size, before = engine.process.log.stat().st_size, self._log_bytes[i]
            self._log_bytes[i] = size
            lines = (
                tail(engine.process.log, before, 65_536).splitlines()
                if size > before
                else []
            )
            new |= any(line.strip() and not _WAITS.search(line) for line in lines)
        return new

    def _report(self, engine: Engine, age_s: float) -> None:
        line = self._plan.clean(engine.process.last_line())[:100]
        self._below(line)
        if age_s > self._word_s:
            self._word_s = age_s * 2
            self._below(
                f"Still {self._doing} after {_rounded(age_s)}: {line or 'no log line yet'}",
                stays=True,
            )

    def _stalled(self, engine: Engine, still_s: float, first: str) -> EngineError:
        limit_s = self._plan.spec.ready_stall_s
        seen = [
            f"no new log line since {time.strftime('%H:%M:%S', time.localtime(self._line_at))}",
            f"CPU {percent(self._cores)}" if self._uses else "",
            "no data read or written"
            if any(use.io_bytes for use in self._uses.values())
            else "",
            "accelerator memory unchanged" if self._memory else "",
            self.answer,
        ]
        longer = f", {_COMPUTES} times that while it computes" if first else ""
        return engine.failed(
            f"made no progress for {_rounded(still_s)} while {self._doing}: {first}{', '.join(filter(None, seen))}",
            f"The limit is {limit_s:g} s without progress{longer}. Raise "
            f"{setting_name('--engine-ready-stall-sec')} if it needs more time.",
        )


def _use(process: psutil.Process) -> _Use:
    cpu_s, io_bytes = 0.0, 0
    # it ended, or is another user's; macOS counts no bytes
    with contextlib.suppress(psutil.Error, AttributeError):
        times = process.cpu_times()
        cpu_s = times.user + times.system
        io = process.io_counters()
        # By the calls, and from the disk: a file that is mapped into memory is read without calls.
        io_bytes = (
            getattr(io, "read_chars", 0) + getattr(io, "write_chars", 0) + io.read_bytes
        )
    return _Use(cpu_s, io_bytes)


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
