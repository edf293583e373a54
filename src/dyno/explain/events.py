"""What else happened while a request was open, by the records, dyno's own delays and the engine's metrics."""

from collections.abc import Iterator, Sequence

import numpy as np

from dyno.explain.columns import NONE
from dyno.explain.split import Split
from dyno.explain.stalls import Disturbance
from dyno.facts.explanation import (
    Incident,
    IncidentKind,
    Lane,
    Neighbourhood,
    RequestParts,
    Segment,
)
from dyno.facts.record import ClientFacts
from dyno.facts.telemetry import Sample
from dyno.numbers import count, duration, many, percent
from dyno.units import NS_PER_MS, NS_PER_S, seconds

SLOWEST = 10
DRAWN = 5  # requests that a page draws, each among NEIGHBOURS
NEIGHBOURS = 15
MOST_STRETCHES = 8  # gaps of one request in a timeline
WAITED, BEFORE_FIRST = "client's wait", "until the first token"
UNSEEN = "until the answer"  # in one piece
QUEUED, PREFILL, DECODE = "queue, network and front end", "prefill", "decode"
HELD_UP, PAUSED = "long gap", "pause"
STRETCHES = (WAITED, BEFORE_FIRST, UNSEEN, QUEUED, PREFILL, DECODE, HELD_UP, PAUSED)
MOST = 4  # events of one request
_LONG = 2.0  # times its steps: a gap that is an event
_LONG_NS = 20 * NS_PER_MS
_TICK_NS = NS_PER_S // 10  # of the client's loop
_CLIENT_LATE_NS = 50 * NS_PER_MS
_CACHE_FULL = 0.95
_PARTS_WITHIN = 0.1  # of the longer latency: each part
_EVENTS_WITHIN = 0.5  # of the longer event: begin and end


class Happenings:
    """Finds what happened around single requests of a run."""

    def __init__(
        self,
        split: Split,
        client: ClientFacts | None,
        telemetry: Sequence[Sample] = (),
    ) -> None:
        c = self._c = split.columns
        self._split = split
        self._client = client
        zero = client.start_ns if client is not None else 0
        self._engines: dict[int, list[tuple[int, dict[str, float]]]] = {}
        for s in telemetry:
            if s.source == "engine":
                self._engines.setdefault(s.index, []).append((s.at_ns - zero, s.values))
        engines = np.repeat(c.engine, c.counts)
        self._every = {
            each: np.sort(c.times[engines == each]) for each in np.unique(c.engine).tolist()
        }
        # The server says when it began to work on a prompt.
        self._timed = any(
            "prefill_above" in p.covers and p.sources == ("claimed",) for p in split.parts
        )

    def slowest(self, most: int = SLOWEST) -> list[RequestParts]:
        order = np.argsort(-self._split.latency, kind="stable")[:most]
        return [self.request(int(place)) for place in order]

    def neighbourhoods(self, most: int = DRAWN) -> list[Neighbourhood]:
        order = np.argsort(-self._split.latency, kind="stable")[:most]
        return [self._neighbourhood(int(place)) for place in order]

    def _neighbourhood(self, place: int) -> Neighbourhood:
        """Return a request with those that were open at the same time, and sent nearest to it."""
        c = self._c
        row = int(self._split.rows[place])
        open_then = self._beside(row) & (c.sent < c.last[row]) & (c.last > c.sent[row])
        near = np.flatnonzero(open_then & c.completed)
        nearest = near[np.argsort(np.abs(near - row), kind="stable")][:NEIGHBOURS]
        lanes = [self._lane(int(each)) for each in np.sort(nearest)]
        return Neighbourhood(self.request(place), lanes)

    def _beside(self, row: int) -> np.ndarray:
        """Return which requests were sent to the same engine."""
        same: np.ndarray = self._c.engine == self._c.engine[row]
        return same

    def _lane(self, row: int) -> Lane:
        c = self._c
        segments = [
            Segment(what, _short_s(begin), _short_s(end))
            for what, begin, end in self._stretches(row)
            if end > begin
        ]
        return Lane(int(c.number[row]), int(c.prompt[row]), int(c.output[row]), segments)

    def _stretches(self, row: int) -> Iterator[tuple[str, int, int]]:
        """Yield what a request did, one after the other. What the server doesn't separate is one stretch."""
        c, gaps, d = self._c, self._split.disturbance.gaps, self._split.disturbance
        due, sent, first, last = (int(t[row]) for t in (c.due, c.sent, c.first, c.last))
        yield WAITED, due, sent
        if c.without_first[row]:
            yield UNSEEN, sent, last
            return
        prefill = int(c.prefill[row])
        begun = max(first - prefill, sent) if self._timed and prefill != NONE else first
        yield (QUEUED if self._timed else BEFORE_FIRST), sent, begun
        yield PREFILL, begun, first
        decoding = first
        mine = np.flatnonzero(gaps.row == row)
        for i in mine[gaps.length[mine] > _LONG * d.step[mine]][:MOST_STRETCHES].tolist():
            begin, end = int(gaps.begin[i]), int(gaps.end[i])
            yield DECODE, decoding, begin
            yield (PAUSED if gaps.pause[i] >= 2 else HELD_UP), begin, end
            decoding = end
        yield DECODE, decoding, last

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

    def _events(self, row: int) -> list[Incident]:
        events = [
            *self._before(row),
            *self._gaps(row, self._split.disturbance),
            *self._client_delays(row),
            *self._metrics(row),
        ]
        longest = sorted(events, key=lambda e: -e.length_s)[:MOST]
        return sorted(longest, key=lambda e: e.at_s)

    def _before(self, row: int) -> Iterator[Incident]:
        """Yield what was ahead of it when it was sent."""
        c = self._c
        sent, first = c.sent[row], c.first[row]
        beside = self._beside(row)
        done = beside & c.answered & (c.first > sent) & (c.first < first)
        if not done.any():
            return
        describe = self._ended_before if c.without_first[row] else self._first_before
        length = seconds(int(first - sent))
        yield Incident("queue", seconds(int(sent)), length, describe(row, done))

    def _ended_before(self, row: int, done: np.ndarray) -> str:
        """Say how many answers came meanwhile, where nothing shows whose prompts were processed first."""
        c = self._c
        sent = c.sent[row]
        others = self._beside(row) & ~c.refused & (c.sent < sent) & (c.last > sent)
        return (
            f"{many(int(done.sum()), 'answer')} came meanwhile; when it was sent, "
            f"{many(int(others.sum()), 'request')} were open"
        )

    def _first_before(self, row: int, done: np.ndarray) -> str:
        c = self._c
        sent = c.sent[row]
        beside = self._beside(row)
        ahead = beside & (c.sent < sent) & (c.open_until > sent)
        running = beside & c.answered & (c.first <= sent) & (c.last > sent)
        tokens = many(int(c.prompt[done].sum()), "token")
        return (
            f"{many(int(done.sum()), 'prompt')} of {tokens} had a first token before it; when it was sent, "
            f"{many(int(running.sum()), 'request')} generated and {count(int(ahead.sum()))} waited"
        )

    def _gaps(self, row: int, d: Disturbance) -> Iterator[Incident]:
        gaps = d.gaps
        mine = np.flatnonzero(gaps.row == row)
        length = gaps.length[mine]
        long = mine[(length > _LONG * d.step[mine]) & (length > _LONG_NS)]
        longest = long[np.argsort(-gaps.length[long], kind="stable")][:MOST]
        for i in longest.tolist():
            kind, text = self._gap(row, i, d)
            begin, end = int(gaps.begin[i]), int(gaps.end[i])
            yield Incident(kind, seconds(begin), seconds(end - begin), text)

    def _gap(self, row: int, i: int, d: Disturbance) -> tuple[IncidentKind, str]:
        """Say what else happened during a gap."""
        c, gaps = self._c, d.gaps
        begin, end = gaps.begin[i], gaps.end[i]
        if gaps.pause[i] >= 2:
            return "pause", "paused while the other streams progressed (preempted?)"
        others = self._beside(row) & (np.arange(len(c.number)) != row)
        seen = c.answered & ~c.without_first
        done = np.flatnonzero(seen & (c.first > begin) & (c.first <= end) & others)
        if len(done):
            return "prefill", self._prefills(done)
        waiting = np.flatnonzero((c.sent < end) & (c.open_until > begin) & others)
        every = self._every[int(c.engine[row])]
        after = np.searchsorted(every, begin, "right")
        heard = np.searchsorted(every, end, "left") > after
        if not heard and gaps.streams[i] > 1:
            return "silence", f"no chunk of any of {many(int(gaps.streams[i]), 'stream')}"
        if len(waiting):
            tokens = many(int(c.prompt[waiting].sum()), "token")
            return "stall", f"{many(len(waiting), 'prompt')} of {tokens} waited"
        return "silence", "no chunk, and no other prompt was open"

    def _prefills(self, rows: np.ndarray) -> str:
        c = self._c
        longest = rows[int(np.argmax(c.prompt[rows]))]
        one = f"prefill of {many(int(c.prompt[longest]), 'token')} (request {c.number[longest]})"
        if len(rows) == 1:
            return f"a {one}"
        tokens = many(int(c.prompt[rows].sum()), "token")
        return f"{many(len(rows), 'prefill')} of {tokens}, the longest a {one}"

    def _client_delays(self, row: int) -> Iterator[Incident]:
        """Yield dyno's own delays: a collection, a busy machine. They delay sending, and no measured arrival."""
        if self._client is None:
            return
        due, last = int(self._c.due[row]), int(self._c.last[row])
        begin = max(due // _TICK_NS - 1, 0)
        ticks = self._client.ticks_late_ns[begin : last // _TICK_NS + 1]
        if ticks and max(ticks) >= _CLIENT_LATE_NS:
            tick = begin + ticks.index(max(ticks))
            late = seconds(max(ticks))
            yield Incident(
                "client",
                seconds(tick * _TICK_NS),
                late,
                f"dyno's own loop was late by {duration(late)}",
            )

    def _metrics(self, row: int) -> Iterator[Incident]:
        """Yield what the metrics of its engine say of that time."""
        begin, end = int(self._c.sent[row]), int(self._c.last[row])
        mine = self._engines.get(int(self._c.engine[row]), [])
        before = [values for at_ns, values in mine if at_ns <= begin][-1:]
        inside = [(at_ns, values) for at_ns, values in mine if begin < at_ns <= end]
        counted = [
            v["preemptions"]
            for v in (*before, *(v for _, v in inside))
            if "preemptions" in v
        ]
        if counted and counted[-1] > counted[0]:
            text = (
                f"the engine counted {many(round(counted[-1] - counted[0]), 'preemption')}"
            )
            yield Incident("preemption", seconds(begin), seconds(end - begin), text)
        full = [
            (at_ns, v["kv_used_share"])
            for at_ns, v in inside
            if v.get("kv_used_share", 0) >= _CACHE_FULL
        ]
        if full:
            text = f"the KV cache was {percent(max(share for _, share in full))} full"
            yield Incident("preemption", seconds(full[0][0]), 0.0, text)


def _short_s(ns: int) -> float:
    return round(seconds(ns), 4)


# ---- slow requests of one wave: the same parts, the same neighbours ----


def groups(requests: Sequence[RequestParts]) -> list[list[RequestParts]]:
    """Return the requests in groups, each led by its slowest one, in the order of these."""
    out: list[list[RequestParts]] = []
    for each in sorted(requests, key=lambda r: -r.latency_ms):
        mine = next((group for group in out if are_alike(group[0], each)), None)
        if mine is None:
            out.append([each])
        else:
            mine.append(each)
    return out


def are_alike(a: RequestParts, b: RequestParts) -> bool:
    """Return whether two requests have the same parts, and events at the same time."""
    near = _PARTS_WITHIN * max(a.latency_ms, b.latency_ms)
    names = {*a.parts_ms, *b.parts_ms}
    parts = (abs(a.parts_ms.get(n, 0.0) - b.parts_ms.get(n, 0.0)) for n in names)
    if max(parts, default=0.0) > near or len(a.events) != len(b.events):
        return False
    return all(map(_same_event, a.events, b.events))


def _same_event(a: Incident, b: Incident) -> bool:
    near = _EVENTS_WITHIN * max(a.length_s, b.length_s)
    begin, end = a.at_s - b.at_s, a.at_s + a.length_s - b.at_s - b.length_s
    return a.kind == b.kind and max(abs(begin), abs(end)) <= near
