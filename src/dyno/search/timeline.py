"""The requests of a probe in the order of sending, ended or not, and whether they pile up.

Times are seconds since the load began.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.facts.limits import Limit
from dyno.facts.record import CANCELLED, Record
from dyno.facts.structured import Forms
from dyno.measure import timing
from dyno.measure.statistics import settled
from dyno.measure.structured import FormChecker
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
    # of each limit, by its metric: latencies, and 1 where an answer is invalid
    columns: dict[str, LimitColumn]
    turn: np.ndarray | None = None


class Timeline:
    """Collects requests while a load runs."""

    def __init__(self, limits: Sequence[Limit], forms: Forms | None = None) -> None:
        """`forms`: of the answers, where a limit is about these."""
        self._limits = [limit for limit in limits if not limit.is_share]
        judged = any(limit.stem == "invalid" for limit in limits)
        self._forms = forms if judged else None
        self._checker = FormChecker()
        self._invalid: list[float] = []
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
        self._invalid.append(math.nan)
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
        if self._forms is not None and r.error != CANCELLED:
            self._invalid[place] = self._has_no_form(r, self._forms)
        if r.error is None:
            for limit in self._limits:
                self._cells[limit.metric][place] = _cell(r, limit)

    def _has_no_form(self, r: Record, forms: Forms) -> float:
        """Return whether an answer lacks the form that was asked for; NaN: none was. A failed request has none."""
        form = forms[r.index]
        if form is None:
            return math.nan
        return float(r.error is not None or self._checker.problem(form, r) is not None)

    def requests(self) -> Requests:
        order = np.argsort(np.array(self._sent), kind="stable")
        columns = {}
        for limit in self._limits:
            table = np.array(self._cells[limit.metric], dtype=float).reshape(-1, 4)[order]
            gaps = (table[:, 2], table[:, 3]) if limit.stem == "itl" else (None, None)
            columns[limit.metric] = LimitColumn(table[:, 0], table[:, 1], *gaps)
        if self._forms is not None:
            invalid = np.array(self._invalid)[order]
            columns["invalid"] = LimitColumn(invalid, invalid)
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


# ---- does an open loop send more than the server serves? Then requests pile up, and no later figure has a meaning ----

_PARTS = 24  # of the time: how much the backlog grows in each
_SURE, _MAYBE = 4.5, 2.0  # standard errors
_LEAST = 0.04  # of what is sent, that must pile up
_LONGER = 3.0  # standard errors by which later requests take longer than earlier ones


def in_flight(requests: Requests, times: np.ndarray) -> np.ndarray:
    """Return how many were open at these times."""
    sent = np.searchsorted(requests.sent, times, side="right")
    ended = np.searchsorted(np.sort(requests.end), times, side="right")
    return sent - ended


def grows(requests: Requests, from_s: float, now_s: float) -> bool:
    """Return whether the backlog grows without end: more and more in flight, because requests take longer and longer.

    In a server that only fills, requests take as long as before: lengths that vary never count as growth."""
    return (
        _growth(requests, from_s, now_s) > _SURE
        and longer(requests, from_s, now_s) > _LONGER
    )


def swells(requests: Requests, from_s: float, now_s: float) -> bool:
    """Return whether it may grow: then a rate is not shown to be served."""
    return (
        _growth(requests, from_s, now_s) > _MAYBE and longer(requests, from_s, now_s) > 1.0
    )


def _growth(requests: Requests, from_s: float, now_s: float) -> float:
    """Return by how many standard errors more was sent than served, throughout: in all of the time, and in its second
    half."""
    if now_s <= from_s:
        return 0.0
    open_ = in_flight(requests, np.linspace(from_s, now_s, _PARTS + 1))
    sent = int(
        np.searchsorted(requests.sent, now_s) - np.searchsorted(requests.sent, from_s)
    )
    more = np.diff(open_).astype(float)
    if more.sum() < _LEAST * sent:
        return 0.0
    # By how much neighbouring parts differ: a server that fills at first, then serves more, is no noise.
    # arrivals and ends at random, at least
    each = max(float((np.diff(more) ** 2).mean()) / 2, 2 * sent / _PARTS)
    half = more[_PARTS // 2 :]
    throughout = more.sum() / np.sqrt(_PARTS * each)
    later = np.sqrt(2) * half.sum() / np.sqrt(len(half) * each)
    return float(min(throughout, later))


def longer(requests: Requests, from_s: float, now_s: float) -> float:
    """Return by how many standard errors the requests sent last take longer than the ones sent first."""
    a, d = from_s + (now_s - from_s) / 3, from_s + 2 * (now_s - from_s) / 3
    early = (requests.sent >= from_s) & (requests.sent < a)
    if early.sum() < 8:
        return 0.0
    took = np.minimum(requests.end, now_s) - requests.sent
    usual = float(np.median(took[early]))
    late = (requests.sent >= d) & (requests.sent <= now_s - usual)
    if late.sum() < 8:  # what is open is older than usual
        late = (
            (requests.sent >= d - usual)
            & (requests.sent <= now_s - usual)
            & (requests.sent >= a)
        )
    if late.sum() < 8:
        return 0.0
    x, y = (took[early] > usual).mean(), (took[late] > usual).mean()
    count = min(early.sum(), late.sum()) / 4  # neighbours in a queue take long together
    return float((y - x) / np.sqrt(0.5 / count))
