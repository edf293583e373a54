"""Processes of dyno's that start at once: each is forked from one that has imported what they need.

A test that conducts trials starts a fake engine below its keeper, and a sampler for each trial: 0.3 s of the processor
to import the same again. A forked one runs the same program, in a process and a session of its own, with the same
pipes, signals, exit code and environment. Tests of these processes themselves, and every dyno that a test starts as a
process, have the real start.
"""

import contextlib
import fcntl
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from dyno.engines import keeper

# A module that is run here, and what it imports. huggingface_hub reads the environment when it is imported: not here.
MODULES = {
    "dyno.engines.fake": ["dyno.engines.fake.server"],
    "dyno.load.process": ["dyno.load.process"],
    "dyno.models.fetch": [
        "dyno.models.messages",
        "dyno.models.cache",
        "httpx2",
        "tqdm.auto",
        "yaml",
        "filelock",
    ],
    "dyno.probe.telemetry.loop": ["dyno.probe.telemetry.loop"],
    "dyno.search.follow": ["dyno.search.follow"],
}
_REQUEST_MAX = 1 << 20  # an environment may be large


# ---- the process that others are forked from ----


def _serve() -> None:
    """Fork a process for each request, or say with which code one ended."""
    os.execvp = _execute  # type: ignore[assignment]
    asked = socket.socket(fileno=0)
    imported: set[str] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(asked, _REQUEST_MAX, 16)
        if not data:
            return
        request = json.loads(data)
        if "ended" in request:
            number = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            _import(request["command"], imported)
            number = _fork(request, fds)
        for fd in fds:
            os.close(fd)
        asked.sendall(number.to_bytes(4, "little", signed=True))


def _import(command: list[str], imported: set[str]) -> None:
    """What this command needs, once."""
    for name in (name for name in MODULES if name in command and name not in imported):
        imported.add(name)
        for module in MODULES[name]:
            with contextlib.suppress(ImportError):  # the program itself reports it
                __import__(module)
        sys.modules.pop(name, None)  # it is run as the main module


def _fork(request: dict[str, Any], fds: Sequence[int]) -> int:
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            _place(fds, request["numbers"])
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["env"])
            _become(request["command"])
        finally:
            os._exit(127)
    return pid


def _place(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each file the number that it has in the process that asks, and close all others."""
    above = max(*fds, *numbers) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    os.closerange(0, above)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _become(command: Sequence[str]) -> NoReturn:
    """Run what Python would run, and end as Python would."""
    name, words = _program(command)
    sys.argv = [name, *words]
    code = 1
    try:
        if name == keeper.__file__:
            keeper._main(*words)
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _program(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return a module's name or a script's path, and its arguments. ("", ()): one that needs a start of its own."""
    if command[:4] == [sys.executable, "-I", "-S", keeper.__file__]:
        return keeper.__file__, command[4:]
    if command[:3] == [sys.executable, "-P", "-m"] and command[3] in MODULES:
        return command[3], command[4:]
    return "", ()


_execvp = os.execvp


def _execute(file: str, command: list[str]) -> NoReturn:
    """In place of os.execvp, for a keeper: an engine of dyno's own needs no new Python."""
    if not _program(command)[0]:
        _execvp(file, command)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does at its start
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _become(command)


# ---- whoever asks for one ----


class Nursery:
    """The process that others are forked from. It ends with the one that started it."""

    def __init__(self) -> None:
        self._ask, answer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        command = [sys.executable, "-P", __file__]
        self._process = subprocess.Popen(
            command,
            stdin=answer,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        answer.close()

    def fork(
        self, command: Sequence[str], env: Mapping[str, str], files: Mapping[int, int]
    ) -> int:
        """Return the pid. `files`: the number that a file has there → its number here."""
        request = {
            "command": command,
            "env": dict(env),
            "folder": str(Path.cwd()),
            "numbers": list(files),
        }
        return self._answer(request, files.values())

    def exit_code(self, pid: int) -> int:
        """Wait for the end of a process, and return its code."""
        return self._answer({"ended": pid}, ())

    def _answer(self, request: Mapping[str, Any], fds: Iterable[int]) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._ask, [json.dumps(request).encode()], list(fds))
            number = self._ask.recv(4)
        if not number:
            raise OSError("the nursery has ended")
        return int.from_bytes(number, "little", signed=True)

    def close(self) -> None:
        self._ask.close()
        self._process.wait(20)


class _Forked:
    """As much of subprocess.Popen as dyno uses for its own processes."""

    def __init__(
        self,
        nursery: Nursery,
        command: Sequence[str],
        stdin: Any,
        stdout: Any,
        stderr: Any,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.stdin: Any = None
        self.stdout: Any = None
        self.returncode: int | None = None
        self._nursery = nursery
        with contextlib.ExitStack() as started:
            files = {fd: fd for fd in pass_fds}
            for number, given in enumerate((stdin, stdout, stderr)):
                if given == subprocess.PIPE:
                    files[number] = self._pipe(number, started)
                elif given == subprocess.DEVNULL:
                    files[number] = os.open(os.devnull, os.O_RDWR)
                    started.callback(os.close, files[number])
                else:
                    files[number] = given.fileno()
            self.pid = nursery.fork(command, os.environ if env is None else env, files)
        self._ended = os.pidfd_open(self.pid)  # a zombie has one, too

    def _pipe(self, number: int, started: contextlib.ExitStack) -> int:
        """Open a pipe; return its other end, which is closed here once the process has it."""
        read, write = os.pipe()
        started.callback(os.close, write if number else read)
        if number:
            self.stdout = os.fdopen(read, "rb", buffering=0)
            return write
        self.stdin = os.fdopen(write, "wb", buffering=0)
        return read

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._ended, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            os.close(self._ended)
            self.returncode = self._nursery.exit_code(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forking(nursery: Nursery) -> Any:
    """Return what dyno's modules that start its processes need of the module subprocess."""

    def start(command: list[str], **how: Any) -> Any:
        if not _program(command)[0]:
            return subprocess.Popen(command, **how)
        del how["bufsize"], how["start_new_session"]  # as every forked process has them
        return _Forked(nursery, command, **how)

    names = {
        name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")
    }
    return SimpleNamespace(Popen=start, **names)


if __name__ == "__main__":
    _serve()
