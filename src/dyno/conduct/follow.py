"""Follows a load while it runs and ends it when it has shown whether it meets its target: `python -m
dyno.conduct.follow`, and the side that starts it. A process of its own: decoding must not delay the wire.

stdin: the task as a line of JSON; its end means that the load is over. stdout: a line when the load is decided: queue
where its queue grows, else decided.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.limits import Limit
from dyno.facts.record import Record
from dyno.load import decode
from dyno.load.protocols import PROTOCOLS
from dyno.load.spool import CLOCK, END, SENT, Frame, frames
from dyno.measure.judge import Judge

_LOOK_S = 0.1
_END_S = 5.0


class PlannedLength(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int
    output_tokens: int


class FollowTask(msgspec.Struct, frozen=True):
    spool: str
    backend: str
    lengths: list[PlannedLength]
    limits: list[Limit]
    alpha: float
    most: int  # requests that are judged
    brief: bool  # `most` are enough, decided or not
    open_loop: bool

    def judge(self) -> Judge:
        return Judge(self.limits, self.alpha, self.open_loop)


def judged(records: Iterator[Record], judge: Judge, task: FollowTask) -> bool:
    """Take in records until the load is decided. False: they ended before."""
    for record in records:
        judge.add(record)
        if judge.outcome() != "undecided" or judge.requests >= task.most:
            return True
        if judge.promising if task.brief else judge.hopeless(task.most):
            return True
    return False


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=FollowTask)
    with contextlib.suppress(OSError):
        os.nice(10)  # the wire comes first

    def more_to_come() -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        return not ready  # its end: the load is over, or whoever started this is gone

    path, judge = Path(task.spool), task.judge()
    while not path.exists():
        if not more_to_come():
            return
    seen = _counting(frames(path, more_to_come=more_to_come), judge)
    if judged(decode.records(seen, task.lengths, PROTOCOLS[task.backend]), judge, task):
        print("queue" if judge.queue_grows else "decided", flush=True)


def _counting(read: Iterator[Frame], judge: Judge) -> Iterator[Frame]:
    """Note how many requests are open, ten times a second."""
    open_ = 0
    for frame in read:
        kind = frame[1]
        if kind == SENT:
            open_ += 1
        elif kind == END:
            open_ -= 1
        elif kind == CLOCK:
            judge.in_flight(open_)
        yield frame


class Follower:
    """The process, from the other side. A context: when it is left, the process has ended."""

    def __init__(self, task: FollowTask) -> None:
        # A session of its own: Ctrl-C is dyno's. -P: a folder named dyno where dyno runs is not this package.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dyno.conduct.follow"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert self._child.stdin and self._child.stdout
        self.queue_grows = False
        os.set_blocking(self._child.stdout.fileno(), False)
        with contextlib.suppress(OSError):
            self._child.stdin.write(msgspec.json.encode(task) + b"\n")
            self._child.stdin.flush()

    def decided(self) -> bool:
        assert self._child.stdout
        line = self._child.stdout.read() or b""
        self.queue_grows = self.queue_grows or b"queue" in line
        return bool(line)

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._child.stdin and self._child.stdout
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        deadline = time.monotonic() + _END_S
        while self._child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._child.kill()
        self._child.wait()
        self._child.stdout.close()


if __name__ == "__main__":
    main()
