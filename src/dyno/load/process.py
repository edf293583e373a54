"""One slice of a load in a process of its own: `python -m dyno.load.process`, and the side that starts it.

Its orders are `start NANOSECONDS` (of its monotonic clock) and `stop`. The end of its input means stop, too: whoever
started it is gone. Its reports are `SliceReport`.
"""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dyno import child, errors, secrets
from dyno.child import Child
from dyno.clock import now_ns
from dyno.errors import DynoError
from dyno.facts.record import ClientFacts
from dyno.http import Route, Url
from dyno.load.plan import Plan
from dyno.load.progress import RECENT, Progress, Stop
from dyno.load.script import Script
from dyno.load.spool import SENT, Spool, frames
from dyno.load.wire import TICK_NS, Traffic, Wire
from dyno.transport import Transport
from dyno.units import NS_PER_S, ns

_STOPPED_S = 5.0  # after it was asked to stop; then it is killed
_SPIN_NS = 200_000  # sleeping is as exact as this


class SliceTask(msgspec.Struct, frozen=True):
    """All that a process needs to send its slice."""

    urls: list[str]
    via: Transport
    login: dict[str, str]  # to a proxy
    fronts: list[bytes]
    script: Script
    plan: Plan
    timeout_s: float
    response_max: int
    spool: str
    secrets: list[bytes]
    core: int | None = None

    def traffic(self) -> Traffic:
        routes = [Route(Url(url), self.via, self.login) for url in self.urls]
        return Traffic(
            routes, self.fronts, self.script, self.plan, self.timeout_s, self.response_max
        )


class SliceFailure(msgspec.Struct, frozen=True):
    kind: str  # of the errors in dyno.errors
    text: str

    def error(self) -> DynoError:
        kind = getattr(errors, self.kind, DynoError)
        known = isinstance(kind, type) and issubclass(kind, DynoError)
        return kind(self.text) if known else DynoError(self.text)


class SliceReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that it writes. The last one has its facts, or why it failed."""

    ready: bool = False  # the connections are open
    progress: Progress | None = None
    facts: ClientFacts | None = None
    failure: SliceFailure | None = None


_encode = msgspec.json.Encoder(enc_hook=list).encode
_decode = msgspec.json.Decoder(
    SliceReport, dec_hook=lambda _, times: deque(times, RECENT)
).decode


# ---- the process ----


class _Orders:
    """Lines from stdin, read by a thread that sleeps between them: the wire's loop is not concerned."""

    def __init__(self, lines: BinaryIO) -> None:
        self.stop = Stop()
        self._lines = lines
        self._start_ns = 0
        self._news = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            word, _, value = line.partition(b" ")
            if word != b"start":
                break
            self._start_ns = int(value)
            self._news.set()
        self.stop.request()
        self._news.set()

    def agreed_ns(self) -> int:
        """Wait for the instant at which all begin, and return it."""
        _say(SliceReport(ready=True))
        self._news.wait()
        if self.stop.requested:
            return now_ns()
        time.sleep(max(self._start_ns - now_ns() - _SPIN_NS, 0) / NS_PER_S)
        while now_ns() < self._start_ns:
            pass
        return self._start_ns


def _tell(progress: Progress) -> None:
    """Report every second tick. If the pipe is full, it is left out: the wire never waits."""
    if progress.elapsed_ns // TICK_NS % 2:
        os.set_blocking(sys.stdout.fileno(), False)
        _say(SliceReport(progress=progress))


def _say(report: SliceReport) -> None:
    child.write(_encode(report))


def main() -> None:
    try:
        task = child.task(SliceTask)
        secrets.learn([secret.decode("latin-1") for secret in task.secrets])
        orders = _Orders(sys.stdin.buffer)
        with contextlib.closing(Spool(Path(task.spool), task.secrets)) as spool:
            wire = Wire(
                task.traffic(),
                spool,
                watch=_tell,
                stop=orders.stop,
                core=task.core,
                gate=orders.agreed_ns,
            )
            last = SliceReport(facts=wire.drive())
    except Exception as e:  # also dyno's own mistake: whoever started it must hear of it
        known = isinstance(e, DynoError)
        last = SliceReport(
            failure=SliceFailure(
                type(e).__name__, str(e) if known else f"{type(e).__name__}: {e}"
            )
        )
    os.set_blocking(sys.stdout.fileno(), True)
    _say(last)


# ---- whoever starts it ----


class SliceProcess:
    """A slice that runs on this machine. A context: when it is left, the process has ended."""

    def __init__(self, name: str) -> None:
        """`name` is used in messages."""
        self._name = name
        self.ready = False
        self.progress = Progress(0)
        self.facts: ClientFacts | None = None
        self._start_ns = self._stop_ns = 0
        self._child = Child("dyno.load.process", _STOPPED_S)

    def __enter__(self) -> "SliceProcess":
        return self

    def __exit__(self, *_: Any) -> None:
        self._child.end()

    def start(self, task: SliceTask) -> None:
        """Hand over its task. Apart from the making: many processes import dyno at the same time."""
        self._spool = Path(task.spool)
        stop_ns = task.plan.stop_sending_ns
        self.progress = Progress(
            task.plan.requests, None if stop_ns is None else stop_ns / NS_PER_S
        )
        self._child.give(task)

    def go(self, at_ns: int) -> None:
        self._start_ns = at_ns
        self._child.order(b"start %d" % at_ns)

    def stop(self) -> None:
        self._stop_ns = now_ns()
        self._child.order(b"stop")

    def update(self) -> None:
        """Take in what it has reported. Raise DynoError where it can't begin."""
        if self.facts is not None:
            return
        for line in self._child.hear():
            self._take(_decode(line))
        if self.facts is None and self._child.gone:
            self._ended()
        elif self._stop_ns and now_ns() - self._stop_ns > ns(_STOPPED_S):
            self._child.kill()  # `look` finds it gone

    def _take(self, report: SliceReport) -> None:
        if report.failure is not None:
            raise report.failure.error()
        self.ready = self.ready or report.ready
        self.progress = report.progress or self.progress
        self.facts = report.facts

    def _ended(self) -> None:
        """It has ended without its facts: what its spool has is all there is."""
        code = self._child.wait()
        if not self._start_ns:
            raise DynoError(f"{self._name} ended before the load began ({_how(code)}).")
        self.facts = lost(self._spool, self._start_ns, self.progress)


def lost(spool: Path, start_ns: int, progress: Progress) -> ClientFacts:
    """Return the facts of a process that can't report them any more, from its spool and its last report."""
    sent = min(
        len({exchange for exchange, kind, *_ in frames(spool) if kind == SENT}),
        progress.count,
    )
    planned = progress.count if progress.until_s is None else sent
    end_ns = start_ns + progress.elapsed_ns
    return ClientFacts(
        start_ns, end_ns, "lost", planned, sent, 0.0, progress.reads, [], kernel_stamps=True
    )


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: Python aborts at its end while a thread waits for stdin
