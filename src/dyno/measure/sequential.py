"""A sequential test: is a share below or above a limit? It may be looked at after every request and still errs seldom.

A fixed 95 % interval, looked at again and again, leaves out the truth far more often than in 5 % of cases. Here the
evidence is a likelihood ratio: the share drawn from a beta distribution, against the share at the limit (Robbins 1970).
Were the share at the limit, the ratio would reach 1/α at any time with a probability of at most α (Ville's inequality).
"""

import math
from collections.abc import Sequence

import numpy as np

SPREAD = 0.5  # of the beta distribution: how many events its mean is worth


def evidence(events: float, count: float, share: float) -> float:
    """Return the log of the evidence against `share`, from so many events among `count`."""
    a, b = SPREAD, SPREAD * (1 - share) / share
    others = count - events
    return _log_beta(a + events, b + others) - _log_beta(a, b) - events * math.log(share) - others * math.log1p(-share)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def effective(values: Sequence[float] | np.ndarray) -> float:
    """Return by how many independent values these are worth: requests that wait in one queue are late together."""
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    spread = x.var() if n else 0.0
    if n < 8 or spread == 0:
        return float(n)
    # Sums of neighbours vary more than sums of strangers, by the factor sought. Lengths of blocks up to a tenth of
    # the values; the largest factor counts.
    factor = 1.0
    size = 2
    while n // size >= 10:
        sums = x[: n - n % size].reshape(-1, size).mean(axis=1)
        factor = max(factor, float(sums.var(ddof=1)) * size / float(spread))
        size *= 2
    return n / factor
