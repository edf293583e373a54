"""Figures of sessions and of classes of traffic, from the same records as those of single requests."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dyno.facts.record import CANCELLED, Record
from dyno.facts.spread import Latency
from dyno.facts.summary import ClassSummary, SessionSummary, TurnSummary
from dyno.measure import counting, timing
from dyno.measure.statistics import SpanColumn, bounded_ms, settled
from dyno.measure.sums import Summed
from dyno.measure.timing import Span

TURNS_MAX = 50  # places in a session with figures of their own
_UNKNOWN = Span(np.nan, np.nan)


class SessionTally(Summed):
    """Collects the requests of sessions, one by one and in any order."""

    SUMMED = ("_session", "_turn", "_sent", "_input", "_outcome", "_end", "_ttft", "_e2el")

    def __init__(self) -> None:
        self._session = array("q")
        self._turn = array("q")
        self._sent = array("q")
        self._input = array("q")
        # 0: completed, 1: cancelled, 2: failed, 3: interrupted with the load
        self._outcome = array("b")
        self._end = SpanColumn()
        self._ttft = SpanColumn()
        self._e2el = SpanColumn()

    def __len__(self) -> int:
        return len(self._session)

    def add(self, r: Record) -> None:
        assert r.session is not None
        outcomes = {None: 0, CANCELLED: 1, "interrupted": 3}
        self._outcome.append(outcomes.get(r.error, 2))
        self._session.append(r.session)
        self._turn.append(r.turn)
        self._sent.append(r.sent_ns)
        self._input.append(counting.input_tokens(r))
        self._end.add(timing.last(r) or Span(r.end_ns, r.end_ns))
        self._ttft.add(timing.ttft_ns(r) or _UNKNOWN)
        self._e2el.add(timing.e2el_ns(r) or _UNKNOWN)

    def summary(
        self, sizes: Sequence[int], duration_s: float, percentiles: Sequence[float]
    ) -> SessionSummary:
        """Sum up sessions. `sizes`: how many requests each session has. Later rounds have the same ones."""
        session = np.array(self._session)
        turn = np.array(self._turn)
        outcome = np.array(self._outcome)
        numbers, place, count = np.unique(session, return_inverse=True, return_counts=True)
        worst = np.zeros(len(numbers), dtype=np.int8)
        np.maximum.at(worst, place, np.where(outcome == 3, 0, outcome))
        ended = np.bincount(place, outcome == 3, len(numbers)) == 0
        whole = (worst == 0) & ended & (count == np.array(sizes)[numbers % len(sizes)])
        done = outcome == 0
        first = done & (turn == 0)
        later = done & (turn > 0)

        def latency(column: SpanColumn, chosen: np.ndarray) -> Latency:
            return _latency(
                [np.array(column.low)[chosen], np.array(column.high)[chosen]], percentiles
            )

        turns = []
        for i in range(min(int(turn.max(initial=-1)) + 1, TURNS_MAX)):
            chosen = done & (turn == i)
            if chosen.any():
                input_mean = float(np.array(self._input)[chosen].mean())
                turns.append(
                    TurnSummary(
                        i + 1, int(chosen.sum()), input_mean, latency(self._ttft, chosen)
                    )
                )
        spans, busy = self._durations(place, whole)
        return SessionSummary(
            begun=len(numbers),
            completed=int(whole.sum()),
            failed=int((worst == 2).sum()),
            cancelled=int((worst == 1).sum()),
            unfinished=int(((worst == 0) & ~whole).sum()),
            throughput=float(whole.sum()) / duration_s,
            turn_throughput=float(done.sum()) / duration_s,
            turns_mean=float(count[whole].mean()) if whole.any() else 0.0,
            session=_latency(spans, percentiles),
            session_busy=_latency(busy, percentiles),
            first_turn_ttft=latency(self._ttft, first),
            later_turn_ttft=latency(self._ttft, later),
            first_turn_e2el=latency(self._e2el, first),
            later_turn_e2el=latency(self._e2el, later),
            turns=turns,
        )

    def _durations(
        self, place: np.ndarray, whole: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the least and the most that each completed session can have taken: in all, and with a request open."""
        mine = whole[place]
        order = np.lexsort((np.array(self._sent)[mine], place[mine]))
        which = place[mine][order]
        sent = np.array(self._sent)[mine][order]
        if not len(which):
            return [np.array([])] * 2, [np.array([])] * 2
        edges = np.flatnonzero(np.diff(which, prepend=-1))
        last = np.append(edges[1:], len(which)) - 1
        begin = np.repeat(sent[edges], last - edges + 1)
        spans = []
        busy = []
        for ends in (self._end.low, self._end.high):
            end = np.array(ends)[mine][order] - begin
            # Each session after the one before on a common axis: then one running maximum serves all.
            shift = np.cumsum(np.diff(which, prepend=-1) > 0) * (end.max() + 1)
            start = sent - begin + shift
            stop = np.maximum.accumulate(end + shift)
            before = np.concatenate([[0], stop[:-1]])
            spans.append(stop[last] - start[edges])
            busy.append(
                np.add.reduceat(np.maximum(stop - np.maximum(start, before), 0), edges)
            )
        return spans, busy


_CLASS_LATENCIES = ("ttft", "tpot", "e2el")


class ClassTally(Summed):
    """Collects the requests of one class of traffic."""

    SUMMED = ("_n", "_columns")

    def __init__(self, name: str, limits_ms: Mapping[str, float]) -> None:
        self._name = name
        self._limits_ms = limits_ms
        self._n: Counter[str] = Counter()
        self._columns = {stem: SpanColumn() for stem in _CLASS_LATENCIES}

    def add(self, r: Record) -> None:
        n = self._n
        n["sent"] += 1
        if r.error is not None:
            n["cancelled"] += r.error == CANCELLED
            return
        n["completed"] += 1
        n["input"] += counting.input_tokens(r)
        n["output"] += r.output_tokens or 0
        for stem, column in self._columns.items():
            if (span := timing.JUDGED[stem](r)) is not None:
                column.add(span)
        if timing.last(r) is not None:
            good, perhaps = timing.within(timing.judged(r), self._limits_ms)
            n["good"] += good
            n["perhaps_good"] += perhaps

    def summary(self, duration_s: float, percentiles: Sequence[float]) -> ClassSummary:
        n = self._n
        good = n["good"] / duration_s
        perhaps = n["perhaps_good"] / duration_s
        goodput = settled(good, perhaps) if self._limits_ms else None
        return ClassSummary(
            name=self._name,
            sent=n["sent"],
            completed=n["completed"],
            failed=n["sent"] - n["completed"] - n["cancelled"],
            cancelled=n["cancelled"],
            input_tokens=n["input"],
            output_tokens=n["output"],
            request_throughput=n["completed"] / duration_s,
            output_throughput=n["output"] / duration_s,
            goodput=goodput,
            goodput_bounds=(good, perhaps) if self._limits_ms and goodput is None else None,
            **{stem: column.latency(percentiles) for stem, column in self._columns.items()},
        )


def _latency(bounds: Sequence[np.ndarray], percentiles: Sequence[float]) -> Latency:
    """Return the distribution. `bounds`: the least and the most that each value can be."""
    low, high = bounds
    known = ~np.isnan(high)  # without those whose only token is the end token
    return bounded_ms(low[known], high[known], percentiles)
