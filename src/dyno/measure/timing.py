"""Latencies: each a function of one record. METHOD.md has the definitions in words.

A chunk that a late client found together with others arrived between two known times. So does every latency that
depends on it: a `Span`, whose ends are equal where the arrival is known.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dyno.facts.metric import GOODPUT
from dyno.facts.record import Record
from dyno.units import NS_PER_MS


class Span(NamedTuple):
    """The least and the most that a figure can be."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def known(self) -> bool:
        return self.low == self.high

    def __sub__(self, ns: float) -> "Span":
        return Span(self.low - ns, self.high - ns)

    def later_by(self, ns: float) -> "Span":
        return Span(self.low + ns, self.high + ns)

    def since(self, start: "Span", parts: float = 1) -> "Span":
        """Return the time from `start` to here, divided by `parts`. `start` comes first."""
        return Span(
            max(self.low - start.high, 0) / parts, max(self.high - start.low, 0) / parts
        )


NEVER = Span(math.inf, math.inf)


def first(r: Record) -> Span | None:
    """Return when the first chunk arrived, since the load began."""
    if not r.chunk_ns:
        return None
    high = r.chunk_ns[0]
    if r.unseen[:1] != [0]:
        return Span(high, high)
    return Span(r.unseen_since_ns[0] if r.unseen_since_ns else r.sent_ns, high)


def last(r: Record) -> Span | None:
    """Return when the answer was complete."""
    if r.answered_ns is not None:
        return Span(r.answered_ns, r.answered_ns)
    if not r.chunk_ns:
        return None
    high = r.chunk_ns[-1]
    if r.unseen[-1:] != [len(r.chunk_ns) - 1]:
        return Span(high, high)
    return Span(r.unseen_since_ns[-1] if r.unseen_since_ns else r.sent_ns, high)


def ttft_ns(r: Record) -> Span | None:
    arrival = first(r)
    return arrival and arrival - r.sent_ns


def ttfo_ns(r: Record) -> Span | None:
    """Return the time to the first text of the answer. None: there is only reasoning."""
    if not r.reasoning:
        return ttft_ns(r)
    if r.answer_from is None or not r.chunk_ns:
        return None
    high = r.chunk_ns[r.answer_from]
    if r.answer_from not in r.unseen:
        return Span(high, high) - r.sent_ns
    return Span(earliest_ns(r)[r.answer_from], high) - r.sent_ns


def e2el_ns(r: Record) -> Span | None:
    arrival = last(r)
    return arrival and arrival - r.sent_ns


def tpot_ns(r: Record) -> Span | None:
    """Return the time per output token as vLLM calculates it, as if the first chunk had one."""
    begin = first(r)
    end = last(r)
    if begin is None or end is None or not r.output_tokens or r.output_tokens < 2:
        return None
    return end.since(begin, r.output_tokens - 1)


def own_tpot_ns(r: Record) -> Span | None:
    """Return the time for each token after the first chunk. None: the answer came in one chunk."""
    begin = first(r)
    end = last(r)
    if begin is None or end is None or not r.output_tokens or len(r.chunk_ns) < 2:
        return None
    fewest, most = (r.output_tokens - tokens for tokens in reversed(first_tokens(r)))
    if fewest < 1:
        return None
    return Span(end.since(begin, most).low, end.since(begin, fewest).high)


def first_tokens(r: Record) -> tuple[int, int]:
    """Return how many output tokens had come with the first chunk: at least and at most."""
    return (
        possible_first_tokens(r)
        if r.first_tokens is None
        else (r.first_tokens, r.first_tokens)
    )


def possible_first_tokens(r: Record) -> tuple[int, int]:
    """Return the same by the number of events alone: each event of a token has at least one."""
    most = max((r.output_tokens or 0) - len(r.chunk_ns) + 1, 1)
    return min(r.leading_chunks + 1, most), most


def within(
    latencies: Mapping[str, Span], limits_ms: Mapping[str, float]
) -> tuple[bool, bool]:
    """Return whether a request met all limits, and whether it may have."""
    limits = {name: limit * NS_PER_MS for name, limit in limits_ms.items()}
    good = all(latencies[name].high <= limit for name, limit in limits.items())
    return good, good or all(latencies[name].low <= limit for name, limit in limits.items())


def queue_ns(r: Record) -> int:
    return r.sent_ns - r.due_ns


# Latencies of a completed request, by stem (facts/metric.py). None: this request has none.
LATENCIES: dict[str, Callable[[Record], Span | None]] = {
    "ttft": ttft_ns, "ttfo": ttfo_ns, "tpot": tpot_ns, "own_tpot": own_tpot_ns, "e2el": e2el_ns,
}  # fmt: skip
# by which requests are judged: dyno's own time per token
JUDGED = {**LATENCIES, "tpot": own_tpot_ns}
# of an answer without further tokens; of others, what never came
_ABSENT = {"tpot": Span(0, 0)}


def judged(r: Record) -> dict[str, Span]:
    """Return the latencies that a request can be held to."""
    return {stem: JUDGED[stem](r) or _ABSENT.get(stem, NEVER) for stem in GOODPUT}


def end_at_once(r: Record) -> bool:
    # with more tokens than one, decoding calls it failed
    return r.error is None and not r.chunk_ns and r.answered_ns is None


def earliest_ns(r: Record) -> list[int]:
    """Return the earliest moment at which each chunk can have arrived; chunk_ns is the latest."""
    early = list(r.chunk_ns)
    for i, since_ns in zip(r.unseen, earliest_of_unseen_ns(r), strict=True):
        early[i] = since_ns
    return early


def earliest_of_unseen_ns(r: Record) -> list[int]:
    """Return the same of the unseen ones."""
    if r.unseen_since_ns:
        return r.unseen_since_ns
    return [r.chunk_ns[i - 1] if i else r.sent_ns for i in r.unseen]


def likely_ns(r: Record) -> list[int]:
    """Return likely times for pictures: unseen chunks spread evenly over the time in which they can have come."""
    if not r.unseen:
        return r.chunk_ns
    early = earliest_ns(r)
    likely = list(r.chunk_ns)
    runs: dict[tuple[int, int], list[int]] = {}
    for i in r.unseen:
        runs.setdefault((early[i], r.chunk_ns[i]), []).append(i)
    for (low, high), chunks in runs.items():
        for k, i in enumerate(chunks, 1):
            likely[i] = low + (high - low) * k // (len(chunks) + 1)
    return likely
