"""The requests of a probe in the order of sending, ended or not. Times: seconds since the load began."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.facts.limits import Limit
from dyno.facts.record import CANCELLED, Record
from dyno.measure import timing
from dyno.measure.statistics import settled
from dyno.units import NS_PER_MS, seconds

# why open requests were cut off: see load/wire.py
ANSWERED = "the load had answered its question"


class LimitColumn(NamedTuple):
    """A latency of each request: the least and the most that it can be, in ms. NaN: none, or none yet."""

    low: np.ndarray
    high: np.ndarray
    late: np.ndarray | None = None  # itl: share of the request's gaps beyond the limit
    parts: np.ndarray | None = None  # itl: its gaps


class Requests(NamedTuple):
    """Those sent so far. A request may end later than the time at which it is looked at: it is open then."""

    sent: np.ndarray
    first: np.ndarray  # when its first token had come at the latest; infinity: it hasn't
    end: np.ndarray  # infinity: open
    failed: np.ndarray
    columns: dict[str, LimitColumn]  # of each limit, by its metric
    turn: np.ndarray | None = None


class Timeline:
    """Collects requests while a load runs."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = [limit for limit in limits if limit.stem != "failed"]
        self._place: dict[int, int] = {}
        self._sent: list[float] = []
        self._first: list[float] = []
        self._end: list[float] = []
        self._failed: list[bool] = []
        self._turn: list[int] = []
        self._cells: dict[str, list[tuple[float, float, float, float]]] = {
            limit.metric: [] for limit in self._limits
        }

    def __len__(self) -> int:
        return len(self._sent)

    def begin(self, index: int, sent_s: float, turn: int = 0) -> None:
        if index in self._place:  # sent again, on a fresh connection
            return
        self._place[index] = len(self._sent)
        self._sent.append(sent_s)
        self._first.append(math.inf)
        self._end.append(math.inf)
        self._failed.append(False)
        self._turn.append(turn)
        for cells in self._cells.values():
            cells.append(_NONE)

    def first(self, index: int, at_s: float) -> None:
        """Note that the first token of a request has come: it may have come a little earlier."""
        place = self._place[index]
        self._first[place] = min(self._first[place], at_s)

    def finish(self, r: Record, turn: int = 0) -> None:
        """Note the end of a request. One that dyno itself cut off stays open; one that was to be cancelled has no
        latency, and is not a failure."""
        self.begin(r.index, seconds(r.sent_ns), turn)
        place = self._place[r.index]
        if r.chunk_ns:
            self._first[place] = seconds(r.chunk_ns[0])
        if r.error == "interrupted" or (
            r.error == CANCELLED and r.error_detail == ANSWERED
        ):
            return
        self._end[place] = seconds(r.end_ns)
        self._failed[place] = r.error not in (None, CANCELLED)
        if r.error is None:
            for limit in self._limits:
                self._cells[limit.metric][place] = _cell(r, limit)

    def requests(self) -> Requests:
        order = np.argsort(np.array(self._sent), kind="stable")
        columns = {}
        for limit in self._limits:
            table = np.array(self._cells[limit.metric], dtype=float).reshape(-1, 4)[order]
            gaps = (table[:, 2], table[:, 3]) if limit.stem == "itl" else (None, None)
            columns[limit.metric] = LimitColumn(table[:, 0], table[:, 1], *gaps)
        turn = np.array(self._turn)[order] if any(self._turn) else None
        sent, first, end = (
            np.array(each)[order] for each in (self._sent, self._first, self._end)
        )
        return Requests(sent, first, end, np.array(self._failed)[order], columns, turn)


_NONE = (math.nan, math.nan, math.nan, 0.0)


def _cell(r: Record, limit: Limit) -> tuple[float, float, float, float]:
    if limit.stem == "itl":
        return _gaps(r, limit)
    span = timing.JUDGED[limit.stem](r)
    if span is None:
        return _NONE
    known = settled(span.low, span.high)
    low, high = (span.low, span.high) if known is None else (known, known)
    return low / NS_PER_MS, high / NS_PER_MS, math.nan, 1.0


def _gaps(r: Record, limit: Limit) -> tuple[float, float, float, float]:
    """Return the request's own statistic of its gaps, their share beyond the limit, and their number."""
    unseen = set(r.unseen)
    pairs = enumerate(itertools.pairwise(r.chunk_ns))
    gaps = np.array(
        [
            (b - a) / NS_PER_MS
            for i, (a, b) in pairs
            if i not in unseen and i + 1 not in unseen
        ]
    )
    if not len(gaps):
        return _NONE
    value = float(
        gaps.mean() if limit.percentile is None else np.percentile(gaps, limit.percentile)
    )
    return value, value, float((gaps > limit.most).mean()), float(len(gaps))
