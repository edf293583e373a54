"""Freezes: moments at which requests are under way and every stream is silent, far longer than its gaps."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from dyno.facts.record import ClientFacts, Record
from dyno.facts.spread import Latency
from dyno.facts.summary import Freeze, Summary, Unfrozen
from dyno.measure import timing
from dyno.measure.sums import Summed
from dyno.units import NS_PER_MS, ns, seconds

BUCKET_NS = 10 * NS_PER_MS  # arrivals are counted in buckets of this length
LEAST_S = 0.3
_BATCH = 1 << 16  # unseen chunks that are counted at once
GAPS = 20  # a freeze is at least this many median gaps
# … and this many times what the prompts that wait meanwhile take at the usual pace
PREFILLS = 3


def ordinary_ms(gaps: Latency) -> float:
    """Return the median gap between chunks; where a busy client doesn't know it, the mean."""
    return gaps.median or gaps.mean or 0.0


class Silences(Summed):
    """Collects records one by one; `freezes()` closes it."""

    SUMMED = (
        "_heard",
        "_perhaps",
        "_early",
        "_late",
        "_sent",
        "_first",
        "_last",
        "_prompt",
    )

    def __init__(self) -> None:
        self._heard = np.zeros(1024)  # chunks of failed requests in each bucket
        # steps of the number of unseen chunks that may have come in a bucket
        self._perhaps = np.zeros(1024)
        # of unseen chunks: when each may have come, and has
        self._early = array("q")
        self._late = array("q")
        self._sent = array("q")
        self._first = array("q")
        self._last = array("q")
        self._prompt = array("q")

    def add(self, r: Record) -> None:
        last = r.chunk_ns[-1] if r.chunk_ns else r.end_ns
        if r.error is not None:
            self._grow(last // BUCKET_NS + 2)
            buckets = np.array(r.chunk_ns, dtype=np.int64) // BUCKET_NS
            np.add.at(self._heard, buckets, 1)
        if r.unseen:
            self._early.extend(timing.earliest_of_unseen_ns(r))
            self._late.extend([r.chunk_ns[i] for i in r.unseen])
            if len(self._early) > _BATCH:
                self._add_up()
        first = r.chunk_ns[0] if r.chunk_ns else last
        self._sent.append(r.sent_ns)
        self._first.append(first)
        self._last.append(last)
        self._prompt.append(r.prompt_tokens or r.prompt_tokens_planned)

    def _add_up(self) -> None:
        """Count the unseen chunks that have been added since the last time."""
        if not self._early:
            return
        early = np.maximum(np.array(self._early, dtype=np.int64) // BUCKET_NS, 0)
        late = np.maximum(np.array(self._late, dtype=np.int64) // BUCKET_NS, 0)
        self._early = array("q")
        self._late = array("q")
        self._grow(int(late.max()) + 2)
        size = len(self._perhaps)
        self._perhaps += np.bincount(early, minlength=size)
        self._perhaps -= np.bincount(late + 1, minlength=size)

    def add_packed(self, sums: dict[str, Any]) -> None:
        super().add_packed(sums)
        self._grow(max(len(self._heard), len(self._perhaps)))

    def _grow(self, size: int) -> None:
        """Let both have so many buckets, and as many."""
        if size > min(len(self._heard), len(self._perhaps)):
            size = max(size, 2 * len(self._heard))
            self._heard = np.pad(self._heard, (0, size - len(self._heard)))
            self._perhaps = np.pad(self._perhaps, (0, size - len(self._perhaps)))

    def freezes(self, gaps: Latency, tokens: np.ndarray) -> list[Freeze]:
        """Return the freezes. `gaps`: between chunks. `tokens`: of completed requests, in each bucket."""
        if not self._sent:
            return []
        columns = (self._sent, self._first, self._last, self._prompt)
        sent, first, last, prompt = map(np.array, columns)
        # of a prompt's token, with its queue
        pace = float(np.median((first - sent) / np.maximum(prompt, 1)))
        freezes = []
        for start, end in self._silent(tokens):
            under_way = (sent <= start) & (last >= end)
            waiting = int(prompt[under_way & (first >= end)].sum())
            needed = max(
                ns(LEAST_S), GAPS * ordinary_ms(gaps) * NS_PER_MS, PREFILLS * pace * waiting
            )
            if under_way.any() and end - start >= needed:
                freezes.append(Freeze(seconds(start), seconds(end - start)))
        return freezes

    def _silent(self, tokens: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield stretches of buckets without a chunk, and without one that may have come then."""
        self._add_up()
        self._grow(len(tokens))
        active = (self._heard > 0) | (self._perhaps.cumsum() > 0.5)
        active[: len(tokens)] |= tokens > 0
        edges = np.flatnonzero(
            np.diff(np.concatenate([[True], active, [True]]).astype(np.int8))
        )
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            if (end - start) * BUCKET_NS >= ns(LEAST_S):
                yield int(start) * BUCKET_NS, int(end) * BUCKET_NS


class Cuts:
    """The load's time with the freezes taken out of it. Each leaves one ordinary gap, or where no stream had begun, one
    ordinary wait for the first chunk."""

    def __init__(self, records: Iterable[Record], s: Summary) -> None:
        middles = [ns(f.at_s + f.length_s / 2) for f in s.freezes]
        before = np.zeros(len(middles))
        after = np.full(len(middles), np.inf)
        keep_ns = np.full(len(middles), (s.ttft.median or 0.0) * NS_PER_MS)
        for r in records:
            times = np.array(r.chunk_ns, dtype=np.float64)
            for i, middle in enumerate(middles):
                earlier = times <= middle
                before[i] = max(before[i], times[earlier].max(initial=0))
                after[i] = min(after[i], times[~earlier].min(initial=np.inf))
                if earlier.any() and not earlier.all():
                    keep_ns[i] = ordinary_ms(s.itl) * NS_PER_MS
        self._from = before + keep_ns
        self._length = np.where(np.isfinite(after), after - self._from, 0.0).clip(min=0)

    def moved(self, time_ns: int) -> int:
        return time_ns - round(float((time_ns - self._from).clip(0, self._length).sum()))

    def record(self, r: Record) -> Record:
        return msgspec.structs.replace(
            r,
            due_ns=self.moved(r.due_ns),
            sent_ns=self.moved(r.sent_ns),
            end_ns=self.moved(r.end_ns),
            chunk_ns=[self.moved(t) for t in r.chunk_ns],
            answered_ns=None if r.answered_ns is None else self.moved(r.answered_ns),
            unseen_since_ns=[self.moved(t) for t in r.unseen_since_ns],
        )

    def client(self, c: ClientFacts) -> ClientFacts:
        return msgspec.structs.replace(
            c, end_ns=c.start_ns + self.moved(c.duration_ns), processes=[]
        )


def unfrozen(s: Summary) -> Unfrozen:
    """Return what is shown of it beside the whole run's figures."""
    return Unfrozen(
        s.duration_s,
        s.request_throughput,
        s.output_throughput,
        s.ttft,
        s.true_tpot,
        s.itl,
        s.e2el,
    )
