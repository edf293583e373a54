"""Where does the start of a load end? Until then latencies fall or rise.

In a closed loop, requests are sent together, so that they wait for each other, and part slowly; caches fill, programs
are compiled, clocks rise. A probe's batch means in the order of sending are cut where the error of the mean of the rest
is least (White's MSER): a start that differs from the rest adds more to that error than its requests take away. Where
the halves of the rest differ, the start lasts still.

One short probe can't show a start that is longer than itself, or small. So a search looks at all its long probes
together: what differs from the rest in each of them, up to the same time, is a start, and none of them counts it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_LEAST_BATCH, _FEWEST = 5, 8  # requests of a batch, batches
_MOST = 0.5  # of the batches, that a start may take
_LEAST = 1e-6  # ms: a latency of none
# standard errors, and log of a latency, by which halves differ
_DIFFER, _LEAST_DIFFERENCE = 2.0, 0.02


# parts of a profile at most, and at least
_PARTS, _FEWEST_PARTS = 24, 8
_ALIKE = 0.5  # of the longest probe: those that last so long are compared
_LATEST = 0.6  # of the longest probe: what a start takes at most
# standard errors, and log of a latency, by which a start differs from what follows
_SURE, _SLIGHT = 3.5, 0.015

Profile = list[tuple[float, float]]  # s since the load began, mean log of a latency


class Start(NamedTuple):
    ends_s: float
    lasts: bool


def ends(sent_s: np.ndarray, latencies_ms: np.ndarray, wave: int) -> Start:
    """Return when the start ends. `sent_s`: in order. `wave`: requests in flight."""
    known = ~np.isnan(latencies_ms)
    sent_s, latencies_ms = sent_s[known], latencies_ms[known]
    size = max(wave, _LEAST_BATCH)
    count = len(latencies_ms) // size
    if count < _FEWEST:
        return Start(-math.inf, lasts=False)
    means = (
        np.log(np.maximum(latencies_ms[: count * size], _LEAST))
        .reshape(count, size)
        .mean(axis=1)
    )
    last = int(_MOST * count)
    cut = int(np.argmin(_errors_of_rests(means, last)))
    ends_s = float(sent_s[cut * size]) if cut else -math.inf
    return Start(ends_s, lasts=cut == last or _halves_differ(means[cut:]))


def _errors_of_rests(means: np.ndarray, last: int) -> np.ndarray:
    """Return the squared error of the mean without the first batch, the first two, …"""
    off = means - means.mean()
    counts = len(means) - np.arange(last + 1)
    sums, squares = (np.cumsum(each[::-1])[::-1][: last + 1] for each in (off, off**2))
    errors: np.ndarray = (squares - sums**2 / counts) / counts**2
    return errors


def _halves_differ(means: np.ndarray) -> bool:
    half = len(means) // 2
    a, b = means[:half], means[half:]
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return abs(float(a.mean() - b.mean())) > max(_DIFFER * error, _LEAST_DIFFERENCE)


def profile(sent_s: np.ndarray, latencies_ms: np.ndarray) -> Profile:
    """Return how latencies change with the time since the load began. []: there are too few."""
    known = ~np.isnan(latencies_ms)
    sent_s, latencies_ms = sent_s[known], latencies_ms[known]
    size = max(len(sent_s) // _PARTS, _LEAST_BATCH)
    count = len(sent_s) // size
    if count < _FEWEST_PARTS:
        return []
    logs = np.log(np.maximum(latencies_ms[: count * size], _LEAST))
    means = logs.reshape(count, size).mean(axis=1)
    at_s = sent_s[: count * size].reshape(count, size).mean(axis=1)
    return [
        (round(a, 3), round(b, 4))
        for a, b in zip(at_s.tolist(), means.tolist(), strict=True)
    ]


def length(profiles: Sequence[Profile]) -> float:
    """Return after how many seconds the latencies of these probes no longer fall or rise, in all of those that last
    long."""
    known = [each for each in profiles if len(each) >= _FEWEST_PARTS]
    longest_s = max((each[-1][0] for each in known), default=0.0)
    long = [each for each in known if each[-1][0] >= _ALIKE * longest_s]
    if not long:
        return 0.0
    edges = np.linspace(0.0, longest_s, _PARTS + 1)
    usual = _usual(long, edges)
    cut = int(np.argmin(_errors_of_rests(usual, int(_LATEST * len(usual)))))
    ends_s = float(edges[cut])
    if not cut or not _differ(long, 0.0, ends_s):
        ends_s = 0.0
    middle_s = (ends_s + longest_s) / 2
    if _differ(long, ends_s, middle_s):
        return max(_LATEST * longest_s, ends_s)
    return ends_s


def _usual(profiles: Sequence[Profile], edges: np.ndarray) -> np.ndarray:
    """Return the mean of these profiles in parts of the time, each without the level of its own."""
    middles = (edges[1:] + edges[:-1]) / 2
    each_one = []
    for each in profiles:
        at_s, means = np.array(each).T
        own = np.interp(middles, at_s, means, left=means[0], right=np.nan)
        each_one.append(own - means[len(means) // 2 :].mean())
    usual = np.nanmean(np.array(each_one), axis=0)
    known: np.ndarray = usual[~np.isnan(usual)]
    return known


def _differ(profiles: Sequence[Profile], from_s: float, to_s: float) -> bool:
    """Return whether latencies in this time differ from those that follow: alike in each probe, beyond chance."""
    differences, variances = [], []
    for each in profiles:
        first = np.array([mean for at_s, mean in each if from_s <= at_s < to_s])
        rest = np.array([mean for at_s, mean in each if at_s >= to_s])
        if not len(first) or len(rest) < _FEWEST_PARTS // 2:
            continue
        differences.append(float(first.mean() - rest.mean()))
        share = 1 / len(first) + 1 / len(rest)
        variances.append(float(rest.var(ddof=1)) * share)
    count = len(differences)
    if not count:
        return False
    difference = sum(differences) / count
    within = sum(variances) / count**2
    between = float(np.var(differences, ddof=1)) / count if count > 1 else 0.0
    return abs(difference) > max(_SURE * math.sqrt(max(within, between)), _SLIGHT)
