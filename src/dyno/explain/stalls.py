"""Stalls: by how much gaps are longer while another request waits for its first token; and pauses.

A gap is quiet if no other request waited for its first token during it. Quiet gaps show how long a step takes
(`steps`). By how much the other gaps are longer is the stall, within bounds of all that may have made them so long.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from dyno.explain.columns import Columns
from dyno.explain.gaps import StreamGaps, find_gaps, in_groups, is_little, together
from dyno.explain.steps import LONG, Steps, StepsThen, settled_steps, steps_then

_UNSEEN = 1.1  # pauses of less than two steps aren't seen
Unknown = Literal["", "few", "groups", "apart"]


_BY_ROW = (
    "stall",
    "stall_low",
    "stall_high",
    "pause",
    "pause_low",
    "pause_high",
    "streams",
)


class Disturbance(NamedTuple):
    """What other requests added to each request's time between tokens, ns, by rows of the columns."""

    stall: np.ndarray
    stall_low: np.ndarray
    stall_high: np.ndarray
    stall_total: tuple[float, float]  # bounds of the sum, narrower than the sums of bounds
    alone: bool  # no two requests were open at the same time
    unknown: Unknown  # why stalls aren't known; '': they are
    pause: np.ndarray
    pause_low: np.ndarray
    pause_high: np.ndarray
    streams: np.ndarray  # mean over the request's gaps
    gaps: StreamGaps
    step: np.ndarray  # likely length of each gap without the others


def disturbance(c: Columns) -> Disturbance:
    """Return the same of all engines. Each address is one: its streams have nothing to do with those of the others."""
    engines = [np.flatnonzero(c.engine == each) for each in np.unique(c.engine)]
    if len(engines) < 2:
        return _of_engine(c)
    return _joined(c, [(rows, _of_engine(c.only(rows))) for rows in engines])


def _joined(c: Columns, parts: Sequence[tuple[np.ndarray, Disturbance]]) -> Disturbance:
    def by_row(name: str) -> np.ndarray:
        column = np.zeros(len(c.number))
        for rows, part in parts:
            column[rows] = getattr(part, name)
        return column

    gaps = [part.gaps._replace(row=rows[part.gaps.row]) for rows, part in parts]
    totals = [part.stall_total for _, part in parts]
    why: list[Unknown] = [part.unknown for _, part in parts if part.unknown]
    return Disturbance(
        **{name: by_row(name) for name in _BY_ROW},
        stall_total=(sum(low for low, _ in totals), sum(high for _, high in totals)),
        alone=all(part.alone for _, part in parts),
        unknown=max(why, key=why.count) if why else "",
        gaps=StreamGaps(*(np.concatenate(column) for column in zip(*gaps, strict=True))),
        step=np.concatenate([part.step for _, part in parts]),
    )


def _of_engine(c: Columns) -> Disturbance:
    gaps, rate = find_gaps(c)
    size = len(c.number)
    length = gaps.length
    alone = _is_alone(c)
    steps, quiet = settled_steps(gaps, rate)
    hit = ~quiet & ~gaps.paused & (not alone)
    step = np.full(len(length), float(np.median(length)) if len(length) else 0.0)
    unknown: Unknown = "few" if hit.any() else ""
    if not alone and in_groups(gaps):
        unknown, steps = "groups", None
    stall, low, high, total = _unknown_stalls(gaps, hit, c)
    if steps is not None:
        then = steps_then(gaps, (quiet, hit), steps, rate)
        step = then.likely
        unknown = "" if alone or together(gaps, hit, length - step) else "apart"
        if not unknown:
            stall, low, high, total = _stalls(gaps, hit, then, steps, c)

    def pauses(level: int, steps_less: int) -> np.ndarray:
        inside = np.where(gaps.pause >= level, length - steps_less * step, 0)
        summed: np.ndarray = np.bincount(gaps.row, np.maximum(inside, 0), size)
        return summed

    return Disturbance(
        stall=stall,
        stall_low=low,
        stall_high=high,
        stall_total=total,
        alone=alone,
        unknown=unknown,
        pause=pauses(2, 1),
        pause_low=np.zeros(size) if unknown else pauses(3, 2),
        pause_high=_UNSEEN * pauses(1, 0),
        streams=_mean_streams(gaps, size),
        gaps=gaps,
        step=step,
    )


def _is_alone(c: Columns) -> bool:
    """Return whether no two requests were ever open at the same time."""
    return not (c.sent[1:] < np.maximum.accumulate(c.end)[:-1]).any()


def _mean_streams(gaps: StreamGaps, size: int) -> np.ndarray:
    counts = np.maximum(np.bincount(gaps.row, minlength=size), 1)
    return np.bincount(gaps.row, gaps.streams, size) / counts


def _around_pauses(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> float:
    """Return the excess of gaps in which another stream's pause began or ended: the server may have moved its cache."""
    paused = gaps.paused
    moments = np.sort(np.concatenate([gaps.begin[paused], gaps.end[paused]]))
    inside = np.searchsorted(moments, gaps.end, "right") > np.searchsorted(
        moments, gaps.begin, "left"
    )
    return float(np.maximum(excess[hit & inside], 0).sum())


_Stalls = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]


def _unknown_stalls(gaps: StreamGaps, hit: np.ndarray, c: Columns) -> _Stalls:
    """Return bounds alone: nothing, or all gaps if some may have stalls: which of them, too few quiet ones say."""
    may_be = gaps.length if hit.any() else np.zeros(len(gaps.row))
    most = np.bincount(gaps.row, may_be, len(c.number))
    none = np.zeros(len(c.number))
    return none, none, most, (0.0, float(most[c.completed].sum()))


def _stalls(
    gaps: StreamGaps, hit: np.ndarray, then: StepsThen, steps: Steps, c: Columns
) -> _Stalls:
    """Return each request's excess over its steps, with bounds, and bounds of the sum."""
    size = len(c.number)
    length = gaps.length
    mine = c.completed

    def by_request(values: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.bincount(gaps.row, values, size)
        return summed

    most, likely, least = (
        by_request(np.where(hit, length - step, 0))
        for step in (then.low, then.likely, then.high)
    )
    usual = LONG * gaps.chunks * steps.usual(gaps.streams)
    perhaps = by_request(np.where(hit | gaps.paused, 0, np.maximum(length - usual, 0)))
    most = most + perhaps
    low, whole, high = (float(each[mine].sum()) for each in (least, likely, most))
    low -= then.chance + then.halts_most + _around_pauses(gaps, hit, length - then.likely)
    high += then.chance
    if is_little(whole, length):
        low = 0.0
    whole = max(whole - then.halts, 0.0)
    # Chance makes some gaps shorter than their steps: the sum over all requests must not have the longer ones alone.
    positive = np.maximum(likely, 0)
    above = float(positive[mine].sum())
    stall = positive * (whole / above if above > 0 else 0.0)
    noise = 2 * steps.noise * np.sqrt(by_request(np.where(hit, then.likely**2, 0)))
    return (
        stall,
        np.minimum(np.maximum(least - noise, 0), stall),
        np.maximum(np.maximum(most + noise, 0), stall),
        (max(min(low, whole), 0.0), max(high, whole)),
    )
