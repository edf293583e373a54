"""A child process of dyno's own: it gets a task, takes orders, writes reports, and ends when dyno ends.

    with Child("dyno.load.process") as child:        task = child.task(SliceTask)
        child.give(task)                             child.report(Ready())
        child.order(b"start 123")                    child.Orders().next()
        for line in child.hear(): …

stdin: the task (its length in eight bytes, then msgpack: nothing of it is in a list of processes), then orders, a line
each. The end of the input means: end. stdout: reports, a line of JSON each. A child that doesn't end is killed.

Programs in other environments (`engines/process.py`) may not import dyno, and have a keeper and a log.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import Any, TypeVar

import msgspec

_END_S = 5.0
_READ = 1 << 20  # bytes
# NumPy starts a thread for each core, to multiply matrices: none is multiplied there, and processes may fork.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
T = TypeVar("T")


# ---- in the child ----


def task(kind: type[T]) -> T:
    """Return what this process is to do. Where whoever started it is gone already, end."""
    length = int.from_bytes(_exactly(8), "little")
    return msgspec.msgpack.decode(_exactly(length), type=kind)


def _exactly(count: int) -> bytes:
    """Read so many bytes and not one more: orders follow."""
    data = bytearray()
    while len(data) < count:
        more = os.read(0, min(count - len(data), _READ))
        if not more:
            raise SystemExit(0)
        data += more
    return bytes(data)


class Orders:
    """Orders as they come, waited for with a limit."""

    def __init__(self) -> None:
        self._data = b""
        self._closed = False

    def next(self, timeout_s: float | None = None) -> bytes | None:
        """Return the next order. None: not yet. `end`: whoever started this process ends it, or is gone."""
        while b"\n" not in self._data and not self._closed:
            if timeout_s is not None and not select.select([0], [], [], timeout_s)[0]:
                return None
            more = os.read(0, _READ)
            self._closed = not more
            self._data += more
        line, newline, rest = self._data.partition(b"\n")
        if not newline:
            return b"end"
        self._data = rest
        return line


def report(value: Any) -> None:
    """Write a report. Where the reader has gone, nothing happens."""
    write(msgspec.json.encode(value))


def write(line: bytes) -> None:
    data = line + b"\n"
    # the pipe is closed; or full, and not to be waited for
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


# ---- in dyno ----


class Child:
    """A context: when it is left, the process has ended."""

    def __init__(self, module: str, end_s: float = _END_S) -> None:
        """`end_s`: how long it may take to end. Raise OSError where it can't be started."""
        # A session of its own: Ctrl-C is dyno's. -P: a folder named dyno where dyno runs is not this package.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD},
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._end_s = end_s
        self._rest = b""  # the beginning of a line
        self.gone = False  # it writes no more

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def give(self, task: msgspec.Struct) -> None:
        """Hand over the task."""
        data = msgspec.msgpack.encode(task)
        self._send(len(data).to_bytes(8, "little") + data)

    def order(self, line: bytes) -> None:
        self._send(line + b"\n")

    def hear(self, within_s: float = 0.0) -> list[bytes]:
        """Return the reports that have come since the last time; wait up to `within_s` for the first one."""
        deadline = time.monotonic() + within_s
        while True:
            lines = self._read_lines()
            left = deadline - time.monotonic()
            if lines or self.gone or left <= 0:
                return lines
            select.select([self._out], [], [], left)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """Return its exit code, once it has ended by itself."""
        return self._process.wait()

    def end(self, within_s: float | None = None) -> int | None:
        """End it. Return its exit code; None: it had to be killed. Never hangs."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            return self._process.wait(self._end_s if within_s is None else within_s)
        except BaseException as e:  # also Ctrl-C: nothing is left behind
            self._process.kill()
            self._process.wait()
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            return None
        finally:
            self._out.close()

    def _read_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while not self.gone:
            try:
                data = os.read(self._out.fileno(), _READ)
            except BlockingIOError:
                break
            self.gone = not data
            *whole, self._rest = (self._rest + data).split(b"\n")
            lines += whole
        return lines

    def _send(self, data: bytes) -> None:
        # it is dead, or has ended: its reports show it
        with contextlib.suppress(OSError, ValueError):
            while data:
                data = data[self._in.write(data) or 0 :]
