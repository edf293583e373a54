"""Where does the start of a closed loop end? Its requests are sent together, so that they wait for each other, and part
slowly. Until then latencies fall or rise.

Batch means in the order of sending are cut where the error of the mean of the rest is least (White's MSER): a start
that differs from the rest adds more to that error than its requests take away. Where the halves of the rest differ, the
start lasts still.
"""

import math
from typing import NamedTuple

import numpy as np

_LEAST_BATCH, _FEWEST = 5, 8  # requests of a batch, batches
_MOST = 0.5  # of the batches, that a start may take
_LEAST = 1e-6  # ms: a latency of none
# standard errors, and log of a latency, by which halves differ
_DIFFER, _LEAST_DIFFERENCE = 2.0, 0.02


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
