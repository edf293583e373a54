"""Follows a load while it runs and ends it when it has shown what it can: `python -m dyno.search.follow`, and the side
that starts it. A process of its own: decoding must not delay the wire.

The end of its input means that the load is over. It reports once, when the load has shown enough: how many seconds it
had run then.
"""

import contextlib
import os
import select
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno import child
from dyno.child import Child
from dyno.facts.find import ProbeLook
from dyno.facts.limits import Limit
from dyno.facts.record import Record
from dyno.facts.structured import Forms
from dyno.load import decode
from dyno.load.protocols import protocol_of
from dyno.load.spool import CLOCK, READ, SENT, Frame, frames
from dyno.search.judge import Judge
from dyno.search.search import Probe, ProbeStep, Search, enough, looks
from dyno.search.timeline import Timeline
from dyno.units import seconds

_LOOK_S = 0.1
_EVENT = b"data:"


class PlannedLength(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int
    output_tokens: int


class FollowTask(msgspec.Struct, frozen=True):
    """A probe, and what its search knows."""

    spool: str
    api: str
    lengths: list[PlannedLength]
    limits: list[Limit]
    least: float
    most: float
    whole: bool
    step: ProbeStep
    budget_s: float
    probes: list[Probe] = []
    forms: Forms = Forms()  # of answers, where a limit is about these
    turns: list[int] = []  # of each request of the workload; []: there are no sessions

    def search(self) -> Search:
        search = Search(self.limits, self.least, self.most, whole=self.whole)
        search.budget_s = self.budget_s
        for probe in self.probes:
            search.add(probe)
        return search

    def judge(self, search: Search) -> Judge:
        wave = int(self.step.level) if self.whole else 0
        level = self.step.level
        return Judge(
            self.limits,
            wave,
            turn_shares(self.turns),
            search.alike_nearby(level),
            search.start_nearby(level),
        )

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
        self.task, self.timeline = task, Timeline(task.limits, task.forms)
        self._protocol = protocol_of(task.api)
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
                self.timeline.begin(
                    exchange, seconds(at_ns - self._zero_ns), self.task.turn(exchange)
                )
                self._events[exchange] = 0
            elif kind == READ and exchange in self._events and self._zero_ns is not None:
                self._events[exchange] += payload.count(_EVENT)
                if self._has_token(self._events[exchange], payload):
                    self.timeline.first(exchange, seconds(at_ns - self._zero_ns))
                    del self._events[exchange]
            yield frame

    def _has_token(self, events: int, payload: bytes) -> bool:
        """Return whether a token has come, of a stream of so many events, the last of them in this read."""
        enough = self._protocol.token_event
        if enough is not None and events >= enough:
            return True
        return self._protocol.text_mark.search(payload) is not None

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
    timeline = Timeline(task.limits, task.forms)
    for record in records:
        timeline.finish(record, task.turn(record.index))
    if not len(timeline):
        return ProbeLook(now_s, now_s, now_s, 0, 0.0, False)
    return task.judge(task.search()).look(timeline.requests(), now_s)


def main() -> None:
    task = child.task(FollowTask)
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
    for record in decode.records(
        _ticking(read, following), task.lengths, protocol_of(task.api)
    ):
        following.take(record)


def _ticking(read: Iterator[Frame], following: Following) -> Iterator[Frame]:
    """ProbeLook at each clock frame; end when that is enough."""
    for frame in read:
        if frame[1] == CLOCK and following.enough():
            child.report(following.now_s)
            return
        yield frame


class Follower:
    """The process, from the other side. A context: when it is left, the process has ended."""

    def __init__(self, task: FollowTask) -> None:
        self._child = Child("dyno.search.follow")
        self._child.give(task)
        self.enough_s: float | None = None  # when it had shown enough

    def decided(self) -> bool:
        for line in self._child.hear():
            self.enough_s = float(line)
        return self.enough_s is not None

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: Any) -> None:
        self._child.end()


if __name__ == "__main__":
    main()
