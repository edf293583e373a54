"""Follows a load while it runs and ends it when it has shown what it can: `python -m dyno.search.follow`, and the side
that starts it. A process of its own: decoding must not delay the wire.

stdin: the task as a line of JSON; its end means that the load is over. stdout: a line when the load has shown enough:
how many seconds it had run then.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.find import ProbeLook
from dyno.facts.limits import Limit
from dyno.facts.record import Record
from dyno.load import decode
from dyno.load.protocols import PROTOCOLS
from dyno.load.spool import CLOCK, READ, SENT, Frame, frames
from dyno.search.judge import Judge
from dyno.search.search import Probe, ProbeStep, Search, enough, looks
from dyno.search.timeline import Timeline
from dyno.units import seconds

_LOOK_S = 0.1
_END_S = 5.0
_EVENT = b"data:"
_FIRST_EVENTS = 2  # the first may carry a role alone


class PlannedLength(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int
    output_tokens: int


class FollowTask(msgspec.Struct, frozen=True):
    """A probe, and what its search knows."""

    spool: str
    backend: str
    lengths: list[PlannedLength]
    limits: list[Limit]
    least: float
    most: float
    whole: bool
    step: ProbeStep
    budget_s: float
    probes: list[Probe] = []
    turns: list[int] = []  # of each request of the workload; []: there are no sessions

    def search(self) -> Search:
        search = Search(self.limits, self.least, self.most, whole=self.whole)
        search.budget_s = self.budget_s
        for probe in self.probes:
            search.add(probe)
        return search

    def judge(self, search: Search) -> Judge:
        wave = int(self.step.level) if self.whole else 0
        return Judge(self.limits, wave, turn_shares(self.turns), search.alike_nearby(self.step.level))

    def turn(self, index: int) -> int:
        return self.turns[index % len(self.turns)] if self.turns else 0


def turn_shares(turns: Sequence[int]) -> list[float]:
    """Return each turn's share of the whole load."""
    if not any(turns):
        return []
    return [turns.count(turn) / len(turns) for turn in range(max(turns) + 1)]


class Following:
    """A probe as it goes on: takes in frames and records, and looks at them now and then."""

    def __init__(self, task: FollowTask) -> None:
        self.task, self.timeline = task, Timeline(task.limits)
        self._search = task.search()
        self._judge = task.judge(self._search)
        self._zero_ns: int | None = None
        self._events: dict[int, int] = {}  # of open requests
        self._looks = looks(task.step)
        self._next_s = next(self._looks)
        self._clock_s = 0.0
        self.now_s = 0.0  # one clock frame behind: until then, all records are in

    def frames(self, read: Iterator[Frame]) -> Iterator[Frame]:
        """Note when requests are sent and when their first tokens come, and hand the frames on."""
        for frame in read:
            exchange, kind, at_ns, _, _, payload = frame
            if kind == CLOCK:
                self._zero_ns = at_ns if self._zero_ns is None else self._zero_ns
                self.now_s, self._clock_s = self._clock_s, seconds(at_ns - self._zero_ns)
            elif kind == SENT and self._zero_ns is not None:
                self.timeline.begin(exchange, seconds(at_ns - self._zero_ns), self.task.turn(exchange))
                self._events[exchange] = 0
            elif kind == READ and exchange in self._events and self._zero_ns is not None:
                self._events[exchange] += payload.count(_EVENT)
                if self._events[exchange] >= _FIRST_EVENTS:
                    self.timeline.first(exchange, seconds(at_ns - self._zero_ns))
                    del self._events[exchange]
            yield frame

    def take(self, record: Record) -> None:
        self._events.pop(record.index, None)
        self.timeline.finish(record, self.task.turn(record.index))

    def enough(self) -> bool:
        """ProbeLook, if it is time to."""
        if self.now_s < self._next_s:
            return False
        while self._next_s <= self.now_s:
            self._next_s = next(self._looks, float("inf"))
        if not len(self.timeline):
            return False
        return enough(self.task.step, self.look())

    def look(self) -> ProbeLook:
        return self._judge.look(self.timeline.requests(), self.now_s)


def final_look(task: FollowTask, records: Iterator[Record], now_s: float) -> ProbeLook:
    """Return what a probe shows, by its records, at the time when it was enough."""
    timeline = Timeline(task.limits)
    for record in records:
        timeline.finish(record, task.turn(record.index))
    if not len(timeline):
        return ProbeLook(now_s, now_s, now_s, 0, 0.0, False)
    return task.judge(task.search()).look(timeline.requests(), now_s)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=FollowTask)
    with contextlib.suppress(OSError):
        os.nice(10)  # the wire comes first
    following = Following(task)

    def more_to_come() -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        return not ready  # its end: the load is over, or whoever started this is gone

    path = Path(task.spool)
    while not path.exists():
        if not more_to_come():
            return
    read = following.frames(frames(path, more_to_come=more_to_come))
    # Records of requests that ended come with the next clock frame; those that are open never come.
    for record in decode.records(_ticking(read, following), task.lengths, PROTOCOLS[task.backend]):
        following.take(record)


def _ticking(read: Iterator[Frame], following: Following) -> Iterator[Frame]:
    """ProbeLook at each clock frame; end when that is enough."""
    for frame in read:
        if frame[1] == CLOCK and following.enough():
            print(following.now_s, flush=True)
            return
        yield frame


class Follower:
    """The process, from the other side. A context: when it is left, the process has ended."""

    def __init__(self, task: FollowTask) -> None:
        # A session of its own: Ctrl-C is dyno's. -P: a folder named dyno where dyno runs is not this package.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dyno.search.follow"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert self._child.stdin and self._child.stdout
        self.enough_s: float | None = None  # when it had shown enough
        self._said = b""
        os.set_blocking(self._child.stdout.fileno(), False)
        with contextlib.suppress(OSError):
            self._child.stdin.write(msgspec.json.encode(task) + b"\n")
            self._child.stdin.flush()

    def decided(self) -> bool:
        assert self._child.stdout
        self._said += self._child.stdout.read() or b""
        if self.enough_s is None and self._said.endswith(b"\n"):
            self.enough_s = float(self._said)
        return self.enough_s is not None

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
