"""An engine's process: started below a keeper, ended with everything it started."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from dyno.engines import keeper
from dyno.engines.keeper import CLEANUP_S, GRACE_S, KILL, TERM, WILL
from dyno.engines.log import excerpt, last_line, last_lines, private, scrub

_LINE_BYTES = 256 << 20  # the longest line of one that talks


class CpuShare(NamedTuple):
    """The part of the CPU that a process gets."""

    nice: int = 0  # added to dyno's own
    cores: Collection[int] = ()  # empty: dyno's own


_ALL_CPU = CpuShare()


class EngineProcess:
    def __init__(
        self,
        command: list[str],
        env: dict[str, str] | None,
        log: Path,
        cleanup: list[str] | None = None,
        secrets: Sequence[str] = (),
        after: list[str] | None = None,
        talks: bool = False,
        cpu: CpuShare = _ALL_CPU,
    ) -> None:
        """Start `command`, and append to `log`.

        `env`: the whole environment; None: dyno's own. `cleanup` ends what doesn't descend from the engine, such as its
        container, whose parent is a daemon; the keeper runs it once the engine is dead. `secrets`: values that must not
        stay in the log. `after`: what the keeper runs last where dyno was killed, and so can't run it after the stop.
        `talks`: by lines, over stdin and stdout; the log then has its stderr only.
        """
        self.command = command
        self.log = log
        self._secrets = secrets
        self._started = time.monotonic()
        self._stopped = self._asked = False
        self._unread, self._report = bytearray(), b""
        with contextlib.ExitStack() as start:
            # closed here only where the start fails
            mine = start.enter_context(contextlib.ExitStack())
            # As files: closed with this object where an exception loses it, which the keeper takes for dyno's end.
            orders = _pipe(start, 0)
            self._orders = mine.enter_context(FileIO(orders[1], "w"))
            status = _pipe(start, 1)
            self._status = mine.enter_context(FileIO(status[0]))
            out = start.enter_context(open(log, "ab", opener=private))
            self._log_start = out.tell()  # an earlier engine may have written before
            its = [
                str(orders[0]),
                str(status[1]),
                str(cpu.nice),
                ",".join(map(str, cpu.cores)),
            ]
            will = json.dumps([cleanup or [], after or []])
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, *its, *command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else out,
                stderr=out,
                env={**(os.environ if env is None else env), WILL: will},
                bufsize=0,
                pass_fds=[orders[0], status[1]],
                # Ctrl-C reaches dyno, and neither the keeper nor the engine
                start_new_session=True,
            )
            mine.pop_all()

    def send_line(self, line: bytes) -> None:
        """Send a line to one that talks."""
        assert self._keeper.stdin is not None
        rest = memoryview(line + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it is dead, as `hear` will find
            while rest:
                rest = rest[self._keeper.stdin.write(rest) or 0 :]

    def hear(self, timeout_s: float) -> bytes | None:
        """Return its next line, or the first part of one that is too long. None: no line yet, or no more lines."""
        assert self._keeper.stdout is not None
        out, deadline = self._keeper.stdout.fileno(), time.monotonic() + timeout_s
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0 and len(
            self._unread
        ) < _LINE_BYTES:
            searched = len(self._unread)
            left = deadline - time.monotonic()
            if left <= 0 or not _readable(out, left):
                return None
            piece = os.read(out, 1 << 16)
            if not piece:
                # its end is near: it is waited for outside
                time.sleep(min(0.05, max(deadline - time.monotonic(), 0)))
                return None
            self._unread += piece
        line = bytes(self._unread[: end if end >= 0 else None])
        del self._unread[: len(line) + 1]
        return line

    @property
    def pid(self) -> int:
        """The engine's pid, which is also its session and group."""
        return (self._known(1, GRACE_S) or [self._keeper.pid])[0]

    @property
    def exit_code(self) -> int | None:
        """The engine's exit code: None while it runs; −15 where a TERM ended it."""
        return self._exit_code(0)

    def _exit_code(self, timeout_s: float) -> int | None:
        known = self._known(2, timeout_s)
        if len(known) > 1:
            return known[1]
        # the keeper was killed, and the engine with it
        return self._keeper.poll() if self._status.closed else None

    def _known(self, count: int, timeout_s: float) -> list[int]:
        """Return what the keeper has reported: the engine's pid, then its exit code."""
        deadline = time.monotonic() + timeout_s
        while (
            len(known := self._report.split(b"\n")[:-1]) < count and not self._status.closed
        ):
            if not _readable(self._status.fileno(), max(deadline - time.monotonic(), 0)):
                break
            piece = os.read(self._status.fileno(), 64)
            self._report += piece
            if not piece:
                self._status.close()
        return [int(number) for number in known]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def alive(self) -> bool:
        return self.exit_code is None

    def processes(self) -> list[psutil.Process]:
        """Return the engine and all its descendants."""
        with contextlib.suppress(psutil.Error):
            return [*psutil.Process(self._keeper.pid).children(recursive=True)]
        return []

    def cpu_s(self) -> float:
        """Return the CPU time that its processes have used so far."""
        used = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def written_bytes(self) -> int:
        """Return the bytes that its running processes have written; 0 where the system doesn't count them."""
        written = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error, AttributeError):
                written += getattr(process.io_counters(), "write_chars", 0)
        return written

    def resident_bytes(self) -> int:
        """Return the memory of its processes; what they share is counted once where the system reports that."""
        held = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                info = process.memory_full_info()
                held += getattr(info, "pss", info.rss)
        return held

    def terminate(self) -> None:
        """Ask it to end without waiting, so that several engines can end at the same time."""
        # a second signal makes llama-server exit at once
        if not self._stopped and not self._asked:
            self._asked = True
            self._order(TERM)

    def stop(self, timeout: float = GRACE_S) -> None:
        """End it with all its descendants, and wait until they are gone. Also after a crash: workers may live."""
        if self._stopped:
            return
        self.terminate()
        self._exit_code(timeout)
        self._order(KILL)
        # the keeper keeps trying to kill it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(GRACE_S + CLEANUP_S)
        self._exit_code(0)  # before its pipe is closed
        self._stopped = True
        for pipe in (self._orders, self._status, self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        scrub(self.log, self._secrets)

    def _order(self, order: bytes) -> None:
        # the keeper was killed, and the engine with it
        with contextlib.suppress(BrokenPipeError):
            self._orders.write(order)
        self._keeper.send_signal(signal.SIGCONT)

    def last_lines(self, count: int = 5) -> list[str]:
        scrub(self.log, self._secrets)
        return last_lines(self.log, self._log_start, count)

    def last_line(self) -> str:
        return last_line(self.log, self._log_start)

    def text(self) -> str:
        """Return its part of the log."""
        scrub(self.log, self._secrets)
        return excerpt(self.log, self._log_start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _pipe(start: contextlib.ExitStack, end: int) -> tuple[int, int]:
    """Return a pipe. One end is the keeper's, and is closed here once the keeper has it."""
    pipe = os.pipe()
    start.callback(os.close, pipe[end])
    return pipe


def _readable(fd: int, timeout_s: float) -> bool:
    ready = select.poll()  # `select` takes no numbers above 1023
    ready.register(fd, select.POLLIN)
    return bool(ready.poll(timeout_s * 1000))
