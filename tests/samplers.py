"""Samplers of telemetry that start at once: each is forked from a process that has imported what one needs.

A test that conducts trials starts a sampler for each: 0.15 s of the processor to import the same. Tests of telemetry
itself, and every dyno that a test starts as a process, have the real start.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _fork_on_demand() -> None:
    """The nursery's own program: for each folder and pair of pipes that it receives, a sampler in that folder."""
    from dyno.probe.telemetry import loop

    running: set[int] = set()
    asked = socket.socket(fileno=0)
    while True:
        folder, pipes, _, _ = socket.recv_fds(asked, 4096, 2)
        if not folder:
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                os.chdir(folder)
                for i, pipe in enumerate(pipes):
                    os.dup2(pipe, i)
                    os.close(pipe)
                loop.main()
                code = 0
            finally:
                os._exit(code)
        for pipe in pipes:
            os.close(pipe)
        asked.sendall(pid.to_bytes(4, "little"))
        running = {other for other in running if os.waitpid(other, os.WNOHANG) == (0, 0)} | {pid}


class Nursery:
    """The process that samplers are forked from. It ends with the one that started it."""

    def __init__(self) -> None:
        self._ask, answer = socket.socketpair()
        command = [sys.executable, "-P", __file__]
        self._process = subprocess.Popen(
            command, stdin=answer, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        answer.close()

    def fork(self, *pipes: int) -> int:
        socket.send_fds(self._ask, [os.fsencode(Path.cwd())], pipes)
        return int.from_bytes(self._ask.recv(4), "little")

    def close(self) -> None:
        self._ask.close()
        self._process.wait(20)


class _Forked:
    """As much of subprocess.Popen as a Sampler uses."""

    def __init__(self, nursery: Nursery) -> None:
        ordered, orders = os.pipe()
        words, said = os.pipe()
        self._pid = nursery.fork(ordered, said)
        os.close(ordered)
        os.close(said)
        self.stdin, self.stdout = os.fdopen(orders, "wb", buffering=0), os.fdopen(words, "rb", buffering=0)
        try:
            self._ended: int | None = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._ended = None

    def wait(self, timeout: float | None = None) -> int:
        if self._ended is not None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("sampler", timeout or 0.0)
            os.close(self._ended)
            self._ended = None
        return 0

    def kill(self) -> None:
        if self._ended is not None:
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


def forking(nursery: Nursery) -> Any:
    """Return what `dyno.probe.telemetry.sampler` needs of the module subprocess."""

    def start(*_: Any, **__: Any) -> _Forked:
        return _Forked(nursery)

    names = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    return SimpleNamespace(Popen=start, **names)


if __name__ == "__main__":
    _fork_on_demand()
