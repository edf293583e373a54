"""What else happened while a request was open, by the records, dyno's own delays and the engine's metrics."""

from collections.abc import Iterator, Sequence

import numpy as np

from dyno.explain.columns import Columns
from dyno.explain.gaps import Disturbance
from dyno.explain.split import Split
from dyno.facts.explanation import Event, RequestParts
from dyno.facts.record import ClientFacts
from dyno.facts.telemetry import Sample
from dyno.numbers import count, duration, many, percent
from dyno.units import NS_PER_MS, NS_PER_S, seconds

SLOWEST = 10
MOST = 4  # events of one request
_LONG = 2.0  # times its steps: a gap that is an event
_LONG_NS = 20 * NS_PER_MS
_TICK_NS = NS_PER_S // 10  # of the client's loop
_CLIENT_LATE_NS = 50 * NS_PER_MS
_CACHE_FULL = 0.95


class Happenings:
    """Finds what happened around single requests of a run."""

    def __init__(
        self,
        c: Columns,
        split: Split,
        client: ClientFacts | None,
        telemetry: Sequence[Sample] = (),
    ) -> None:
        self._c = c
        self._split = split
        self._client = client
        zero = client.start_ns if client is not None else 0
        self._engine = [
            (s.at_ns - zero, s.values) for s in telemetry if s.source == "engine"
        ]
        self._every = np.sort(c.times)

    def slowest(self, most: int = SLOWEST) -> list[RequestParts]:
        order = np.argsort(-self._split.latency, kind="stable")[:most]
        return [self.request(int(place)) for place in order]

    def request(self, place: int) -> RequestParts:
        """Return one of the explained requests, by its place in the split."""
        c = self._c
        row = int(self._split.rows[place])
        parts = {p.name: float(p.value[place]) / NS_PER_MS for p in self._split.parts}
        return RequestParts(
            index=int(c.number[row]),
            due_s=seconds(int(c.due[row])),
            sent_s=seconds(int(c.sent[row])),
            first_s=seconds(int(c.first[row])),
            last_s=seconds(int(c.last[row])),
            prompt_tokens=int(c.prompt[row]),
            output_tokens=int(c.output[row]),
            latency_ms=float(self._split.latency[place]) / NS_PER_MS,
            parts_ms=parts,
            events=self._events(row),
        )

    def _events(self, row: int) -> list[Event]:
        events = [
            *self._before(row),
            *self._gaps(row, self._split.disturbance),
            *self._client_delays(row),
            *self._metrics(row),
        ]
        longest = sorted(events, key=lambda e: -e.length_s)[:MOST]
        return sorted(longest, key=lambda e: e.at_s)

    def _before(self, row: int) -> Iterator[Event]:
        """Yield what was ahead of it when it was sent."""
        c = self._c
        sent, first = c.sent[row], c.first[row]
        ahead = (c.sent < sent) & (c.first > sent)
        running = (c.first <= sent) & (c.last > sent)
        done = (c.first > sent) & (c.first < first)
        if not done.any():
            return
        text = (
            f"{many(int(running.sum()), 'request')} generated and {count(int(ahead.sum()))} waited when it was sent; "
            f"{many(int(done.sum()), 'prompt')} of {many(int(c.prompt[done].sum()), 'token')} got "
            f"{'its' if done.sum() == 1 else 'their'} first token before it"
        )
        yield Event("queue", seconds(int(sent)), seconds(int(first - sent)), text)

    def _gaps(self, row: int, d: Disturbance) -> Iterator[Event]:
        gaps = d.gaps
        mine = np.flatnonzero(gaps.row == row)
        length = gaps.length[mine]
        long = mine[(length > _LONG * d.step[mine]) & (length > _LONG_NS)]
        longest = long[np.argsort(-gaps.length[long], kind="stable")][:MOST]
        for i in longest.tolist():
            kind, text = self._gap(row, i, d)
            begin, end = int(gaps.begin[i]), int(gaps.end[i])
            yield Event(kind, seconds(begin), seconds(end - begin), text)

    def _gap(self, row: int, i: int, d: Disturbance):  # type: ignore[no-untyped-def]
        c, gaps = self._c, d.gaps
        begin, end = gaps.begin[i], gaps.end[i]
        if gaps.pause[i] >= 2:
            return "pause", "paused while the other streams went on (preempted?)"
        mine = np.arange(len(c.number)) == row
        done = (c.first > begin) & (c.first <= end) & ~mine
        if done.any():
            longest = int(np.argmax(np.where(done, c.prompt, -1)))
            text = f"a prefill of {many(int(c.prompt[longest]), 'token')} (request {c.number[longest]})"
            if done.sum() > 1:
                text = f"{many(int(done.sum()), 'prefill')} of {many(int(c.prompt[done].sum()), 'token')}, the longest {text[2:]}"
            return "prefill", text
        waiting = (c.sent < end) & (c.first > begin) & ~mine
        between = np.searchsorted(self._every, end, "left") - np.searchsorted(
            self._every, begin, "right"
        )
        if not between and gaps.streams[i] > 1:
            return "silence", f"no chunk of any of {many(int(gaps.streams[i]), 'stream')}"
        if waiting.any():
            return (
                "stall",
                f"{many(int(waiting.sum()), 'prompt')} of {many(int(c.prompt[waiting].sum()), 'token')} waited",
            )
        return "silence", "no chunk, and no other prompt was open"

    def _client_delays(self, row: int) -> Iterator[Event]:
        """Yield dyno's own delays: a collection, a busy machine. They delay sending, and no measured arrival."""
        if self._client is None:
            return
        due, last = int(self._c.due[row]), int(self._c.last[row])
        begin = max(due // _TICK_NS - 1, 0)
        ticks = self._client.ticks_late_ns[begin : last // _TICK_NS + 1]
        if ticks and max(ticks) >= _CLIENT_LATE_NS:
            at = begin + ticks.index(max(ticks))
            late = seconds(max(ticks))
            yield Event(
                "client",
                seconds(at * _TICK_NS),
                late,
                f"dyno's own loop was late by {duration(late)}",
            )

    def _metrics(self, row: int) -> Iterator[Event]:
        """Yield what the engine's metrics say of that time."""
        begin, end = int(self._c.sent[row]), int(self._c.last[row])
        before = [values for at, values in self._engine if at <= begin][-1:]
        inside = [(at, values) for at, values in self._engine if begin < at <= end]
        counted = [
            v["preemptions"]
            for v in (*before, *(v for _, v in inside))
            if "preemptions" in v
        ]
        if counted and counted[-1] > counted[0]:
            text = (
                f"the engine counted {many(round(counted[-1] - counted[0]), 'preemption')}"
            )
            yield Event("preemption", seconds(begin), seconds(end - begin), text)
        full = [
            (at, v["kv_used_share"])
            for at, v in inside
            if v.get("kv_used_share", 0) >= _CACHE_FULL
        ]
        if full:
            text = f"the KV cache was {percent(max(share for _, share in full))} full"
            yield Event("preemption", seconds(full[0][0]), 0.0, text)
