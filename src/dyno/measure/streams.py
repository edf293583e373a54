"""The chunks of all streams: gaps between them, tokens in time. They are added up many thousand at a time."""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyno.facts.record import Record
from dyno.facts.spread import Latency
from dyno.measure import timing
from dyno.measure.freeze import BUCKET_NS
from dyno.measure.statistics import bounded_ms
from dyno.measure.sums import Summed
from dyno.measure.timing import Span

_BATCH = 1 << 16  # chunks


class _Batch:
    """Streams that are to be added up, one after the other."""

    def __init__(self) -> None:
        self.times = array("q")
        self.starts: list[int] = []  # of each stream
        self.unseen: list[int] = []
        self.unseen_since = array("q")
        self.silent: list[int] = []
        self.tokens: list[float | Sequence[int]] = []  # of a chunk, or of each chunk
        self.sharing: list[
            float | Sequence[int]
        ] = []  # the tokens that share a gap, or each

    def add(
        self, r: Record, tokens: float | Sequence[int], sharing: float | Sequence[int]
    ) -> None:
        start = len(self.times)
        self.starts.append(start)
        self.times.extend(r.chunk_ns)
        if r.unseen:
            self.unseen += [start + i for i in r.unseen]
            self.unseen_since.extend(timing.earliest_of_unseen_ns(r))
        if r.silent:
            self.silent += [start + i for i in r.silent]
        self.tokens.append(tokens)
        self.sharing.append(sharing)


class _Arrivals(NamedTuple):
    """Streams one after the other: when each chunk came, at the latest and at the earliest."""

    times: np.ndarray
    early: np.ndarray
    seen: np.ndarray
    starts: np.ndarray

    @classmethod
    def added_up(cls, batch: _Batch) -> "_Arrivals":
        times = np.array(batch.times, dtype=np.int64)
        early = times.copy()
        seen = np.ones(len(times), dtype=bool)
        if batch.unseen:
            early[batch.unseen] = batch.unseen_since
            seen[batch.unseen] = False
        return cls(times, early, seen, np.array(batch.starts))

    def only(self, chosen: np.ndarray) -> "_Arrivals":
        """Return some of the chunks; of each stream at least one."""
        before = np.concatenate([[0], chosen.cumsum()])
        return _Arrivals(
            self.times[chosen], self.early[chosen], self.seen[chosen], before[self.starts]
        )

    @property
    def ends(self) -> np.ndarray:
        """The last chunk of each stream."""
        return np.append(self.starts[1:], len(self.times)) - 1

    @property
    def counts(self) -> np.ndarray:
        return np.diff(np.append(self.starts, len(self.times)))

    def between(self, begin: np.ndarray, end: np.ndarray) -> Span:
        """Return the times from some chunks to others, at least and at most, as columns."""
        low = np.maximum(self.early[end] - self.times[begin], 0).astype(float)
        return Span(low, np.maximum(self.times[end] - self.early[begin], 0).astype(float))


class Streams(Summed):
    """Collects completed requests one by one."""

    SUMMED = ("_gaps", "_tokens", "_earlier")

    def __init__(self) -> None:
        self._batch = _Batch()
        self._gaps = Gaps()
        # None: each gap has one token so far, so they are the same
        self._gaps_per_token: Gaps | None = None
        self._text_gaps: Gaps | None = None  # None: no chunk without text so far
        # arrived in each bucket of 10 ms, at the latest
        self._tokens = np.zeros(1024)
        # to be added to these where all arrived as early as they can have
        self._earlier = np.zeros(1024)

    def add(self, r: Record, sharing: float | Sequence[int]) -> None:
        """Add a stream. `sharing`: the tokens that share its gaps, on average or each."""
        count = len(r.chunk_ns)
        tokens = r.chunk_tokens or (r.output_tokens or count) / count
        self._batch.add(r, tokens, sharing)
        if len(self._batch.times) >= _BATCH:
            self._add_up()

    def packed(self) -> dict[str, Any]:
        self._add_up()
        others = {"per_token": self._gaps_per_token, "text": self._text_gaps}
        present = {name: gaps.packed() for name, gaps in others.items() if gaps is not None}
        return {**super().packed(), **present}

    def add_packed(self, sums: dict[str, Any]) -> None:
        self._add_up()
        per_token = self._gaps_per_token
        text = self._text_gaps
        if "per_token" in sums and per_token is None:
            self._gaps_per_token = per_token = self._gaps.copy()
        if "text" in sums and text is None:
            self._text_gaps = text = self._gaps.copy()
        if per_token is not None:
            per_token.add_packed(sums.get("per_token", sums["_gaps"]))
        if text is not None:
            text.add_packed(sums.get("text", sums["_gaps"]))
        super().add_packed(sums)

    @property
    def gaps(self) -> "Gaps":
        self._add_up()
        return self._gaps

    @property
    def gaps_per_token(self) -> "Gaps":
        self._add_up()
        return self._gaps if self._gaps_per_token is None else self._gaps_per_token

    @property
    def text_gaps(self) -> "Gaps | None":
        self._add_up()
        return self._text_gaps

    @property
    def tokens(self) -> np.ndarray:
        self._add_up()
        return self._tokens

    @property
    def earlier(self) -> np.ndarray:
        self._add_up()
        return self._earlier

    def _add_up(self) -> None:
        batch, self._batch = self._batch, _Batch()
        if not batch.starts:
            return
        arrivals = _Arrivals.added_up(batch)
        if batch.silent and self._text_gaps is None:
            self._text_gaps = self._gaps.copy()
        if self._gaps_per_token is None and not _one_each(batch.sharing):
            self._gaps_per_token = self._gaps.copy()
        known = self._gaps.add(arrivals)
        if self._gaps_per_token is not None:
            self._gaps_per_token.add_shared(arrivals, batch.sharing, known)
        if self._text_gaps is not None:
            with_text = np.ones(len(arrivals.times), dtype=bool)
            with_text[batch.silent] = False
            self._text_gaps.add(arrivals.only(with_text))
        self._add_tokens(arrivals, batch)

    def _add_tokens(self, arrivals: _Arrivals, batch: _Batch) -> None:
        """Count the tokens of each bucket of time."""
        tokens = _each(batch.tokens, arrivals.counts)
        self._tokens = in_buckets(self._tokens, arrivals.times, tokens)
        if batch.unseen:
            late = arrivals.times[batch.unseen]
            early = arrivals.early[batch.unseen]
            shares = tokens[batch.unseen]
            self._earlier = in_buckets(self._earlier, early, shares)
            self._earlier = in_buckets(self._earlier, late, -shares)


def _each(values: list[float | Sequence[int]], counts: np.ndarray) -> np.ndarray:
    """Return the value of each chunk, of streams that have one for all or one for each."""
    if all(isinstance(value, (int, float)) for value in values):
        return np.repeat(np.array(values, dtype=float), counts)
    each = [
        np.full(count, value, dtype=float) if isinstance(value, (int, float)) else value
        for value, count in zip(values, counts.tolist(), strict=True)
    ]
    return np.concatenate(each)


def _one_each(sharing: list[float | Sequence[int]]) -> bool:
    """Return whether no gap of these streams is shared by tokens."""
    return all(isinstance(value, float) and value <= 1 for value in sharing)


class Gaps(Summed):
    """Gaps between chunks, ns. Where chunks were not seen, only the sum of some gaps is known."""

    SUMMED = ("_known", "_low", "_high", "_sum_low", "_sum_high")

    def __init__(self) -> None:
        self._known: list[np.ndarray] = []
        self._low: list[np.ndarray] = []
        self._high: list[np.ndarray] = []
        self._sum_low = self._sum_high = 0.0

    def copy(self) -> "Gaps":
        """Return a copy that shares the arrays."""
        copy = Gaps()
        copy._known = [*self._known]
        copy._low = [*self._low]
        copy._high = [*self._high]
        copy._sum_low = self._sum_low
        copy._sum_high = self._sum_high
        return copy

    @property
    def total(self) -> Span:
        """Return the sum of all gaps."""
        return Span(self._sum_low, self._sum_high)

    def add(self, arrivals: _Arrivals) -> np.ndarray:
        """Add the gaps of streams. Return those that are known."""
        gaps, both_seen, inside = _differences(arrivals)
        known: np.ndarray = gaps[both_seen]
        begin, end, counts = _blind(arrivals, inside & ~both_seen)
        self._add(arrivals, known, (begin, end), counts)
        return known

    def add_shared(
        self, arrivals: _Arrivals, sharing: list[float | Sequence[int]], known: np.ndarray
    ) -> None:
        """Add gaps that tokens share. One sample for each token: else a chunk of one would weigh as much as a chunk of
        four. `known`: the gaps as they are."""
        gaps, both_seen, inside = _differences(arrivals)
        begin, end, counts = _blind(arrivals, inside & ~both_seen)
        if _one_each(sharing):
            self._add(arrivals, known, (begin, end), counts)
            return
        # of a stream with n chunks n - 1 gaps, and one to the next stream, which counts for nothing
        each = np.zeros(len(arrivals.times))
        each[np.append(inside, False)] = _each(sharing, arrivals.counts - 1)
        one_by_one = np.repeat(
            [not isinstance(value, (int, float)) for value in sharing], arrivals.counts
        )
        before = np.concatenate([[0.0], each.cumsum()])
        # Halves are halves, whatever was added up before.
        shared = np.rint(np.round(before[end] - before[begin], 6)).astype(int)
        tokens = each[:-1][both_seen]
        whole = one_by_one[:-1][both_seen]
        times = np.where(
            whole, tokens.astype(int), np.maximum(np.rint(tokens), 1).astype(int)
        )
        parts = np.where(
            whole,
            gaps[both_seen] / np.maximum(tokens, 1),
            gaps[both_seen] / tokens.astype(np.float32),
        ).astype(np.float32)
        self._add(arrivals, np.repeat(parts, times), (begin, end), shared)

    def _add(
        self,
        arrivals: _Arrivals,
        known: np.ndarray,
        blind: tuple[np.ndarray, np.ndarray],
        counts: np.ndarray,
    ) -> None:
        """`blind`: first and last chunks of stretches; `counts`: how many gaps each has."""
        whole = arrivals.between(arrivals.starts, arrivals.ends)
        self._sum_low, self._sum_high = (
            float(np.cumsum(np.append(before, each))[-1])
            for before, each in zip(self.total, whole, strict=True)
        )
        self._known.append(known)
        if not len(counts):
            return
        total = arrivals.between(*blind)
        # Gaps with a known sum: the k-th largest is at most sum ÷ k; the largest is at least sum ÷ count.
        firsts = counts.cumsum() - counts
        rank = np.arange(counts.sum()) - np.repeat(firsts, counts) + 1
        self._high.append((np.repeat(total.high, counts) / rank).astype(np.float32))
        low = np.zeros(len(rank), dtype=np.float32)
        some = counts > 0
        low[firsts[some]] = (total.low / np.maximum(counts, 1))[some]
        self._low.append(low)

    def latency(self, percentiles: Sequence[float]) -> Latency:
        high = np.concatenate([*self._known, *self._high]) if self._known else np.array([])
        if not self._high:
            return bounded_ms(high, high, percentiles)
        low = np.concatenate([*self._known, *self._low])
        count = max(len(high), 1)
        return bounded_ms(
            low, high, percentiles, (self._sum_low / count, self._sum_high / count)
        )


def _differences(arrivals: _Arrivals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the time from each chunk to the next; whether both were seen; whether they are of one stream."""
    inside = np.ones(max(len(arrivals.times) - 1, 0), dtype=bool)
    inside[arrivals.starts[1:] - 1] = False
    seen = arrivals.seen
    return np.diff(arrivals.times).astype(np.float32), seen[1:] & seen[:-1] & inside, inside


def _blind(
    arrivals: _Arrivals, blind: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first and the last chunk of each stretch whose gaps are not known one by one, and their number: the
    seen ones around unseen ones. `blind`: the gaps that such a chunk begins or ends."""
    gaps = np.flatnonzero(blind)
    opens = arrivals.seen[gaps]
    opens |= np.isin(gaps, arrivals.starts)
    first = np.flatnonzero(opens)
    counts = np.diff(np.append(first, len(gaps)))
    begin = gaps[first]
    return begin, begin + counts, counts


def in_buckets(buckets: np.ndarray, times: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Add `tokens` to the buckets of `times`, which grow where they must."""
    numbers = np.maximum(times // BUCKET_NS, 0)
    first = int(numbers.min())
    last = int(numbers.max())
    if last >= len(buckets):
        buckets = np.concatenate([buckets, np.zeros(max(last + 1, len(buckets)))])
    buckets[first : last + 1] += np.bincount(numbers - first, tokens)
    return buckets
