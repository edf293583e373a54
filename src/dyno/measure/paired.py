"""Two scores of the same items: their difference, how sure it is, and what these items could have shown.

Scores of 0 and 1 are compared by the items that one side alone has right (McNemar's exact test, Tango's interval),
others by drawing the items again (paired bootstrap). METHOD.md, Quality, has the reasons.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from dyno.facts.quality import PairedDifference
from dyno.measure.statistics import quantile, two_sided

ALPHA, POWER = 0.05, 0.8
_Z = quantile(1 - ALPHA / 2, math.inf)
_Z_POWER = quantile(POWER, math.inf)
_FEWEST = 6  # items that the exact test needs, where all differ in one direction
_REPLICATES = 4000
_ROWS = 200  # replicates at a time
_BINARY_WITHIN = 0.02  # a standard error this near to that of a share is one


def paired(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """Compare B with A. Both have the same items in the same order."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} scores are not pairs")
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n, only_a, only_b = len(x), int((x > y).sum()), int((y > x).sum())
    change = float((y - x).mean())
    if np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all():
        rate = (only_a + only_b) / n
        p, (low, high) = mcnemar(only_a, only_b), tango(only_a, only_b, n)
        # With few differing items the exact test is the stricter one: no interval then excludes 0.
        low, high = (low, high) if p <= ALPHA else (min(low, 0.0), max(high, 0.0))
        detectable = smallest_detectable(n, rate)
        needed = items_to_detect(change, rate) if change and p > ALPHA else None
    else:
        p, (low, high) = _bootstrap(y - x)
        spread = float((y - x).std(ddof=1)) if n > 1 else 0.0
        # Items without any difference show no spread: then as of scores of 0 and 1.
        detectable = (_Z + _Z_POWER) * spread / math.sqrt(n) or smallest_detectable(n, 0.0)
        needed = math.ceil(((_Z + _Z_POWER) * spread / change) ** 2) if change and p > ALPHA else None
    return PairedDifference(
        n, float(x.mean()), float(y.mean()), only_a, only_b, change, low, high, p, detectable, needed
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided probability of a split as uneven, where each side is equally likely."""
    n, term, below = only_a + only_b, 1, 1
    for k in range(min(only_a, only_b)):
        term = term * (n - k) // (k + 1)
        below += term
    return min(1.0, 2 * below / (1 << n))


def tango(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of the difference of two paired shares (Tango 1998)."""

    def score(delta: float) -> float:
        """How many standard errors the observed difference is above `delta`."""
        first = 2 * n - only_b + only_a
        half = first * delta - only_b - only_a
        root = math.sqrt(max(half * half + 8 * n * only_a * delta * (1 - delta), 0.0))
        variance = n * (2 * ((root - half) / (4 * n)) + delta * (1 - delta))
        above = only_b - only_a - n * delta
        return above / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, above) if above else 0.0

    change = (only_b - only_a) / n
    return _root(lambda d: score(d) - _Z, -1.0, change), _root(lambda d: score(d) + _Z, change, 1.0)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def items_to_detect(change: float, rate: float) -> int:
    """Return the items with which a difference of this size is found in four of five comparisons (Connor 1987, with
    the continuity correction that the exact test needs). `rate`: share of items on which the two sides differ."""
    size = abs(change)
    rate = max(rate, size)
    items = (_Z * math.sqrt(rate) + _Z_POWER * math.sqrt(rate - size * size)) ** 2 / size**2 + 1 / size
    return max(math.ceil(items), _FEWEST)


def smallest_detectable(items: int, rate: float) -> float:
    """Return the smallest difference for which these items are enough; 1 where none is."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if items_to_detect(middle, rate) <= items else (middle, high)
    return high


def _bootstrap(changes: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Return the two-sided probability and the 95 % interval of a mean. The seed is fixed: the same data give the same
    result. The interval is a percentile one at levels that allow for few items (Hesterberg 2015)."""
    n, rng = len(changes), np.random.default_rng(0)
    if n < 2:
        return 1.0, (-1.0, 1.0)
    means = np.concatenate(
        [changes[rng.integers(n, size=(_ROWS, n))].mean(axis=1) for _ in range(_REPLICATES // _ROWS)]
    )
    tail = two_sided(math.sqrt(n / (n - 1)) * quantile(1 - ALPHA / 2, n - 1), math.inf) / 2
    low, high = (float(v) for v in np.quantile(means, (tail, 1 - tail)))
    fewer = min((means <= 0).sum(), (means >= 0).sum())
    return min(1.0, 2 * (int(fewer) + 1) / (_REPLICATES + 1)), (low, high)


# ---- one score ----


def score_interval(score: float, items: float | None, stderr: float | None) -> tuple[float, float] | None:
    """Return the 95 % interval of a score: Wilson's for a share of right answers, else by its standard error. None:
    unknown."""
    if items and 0 <= score <= 1:
        share = math.sqrt(score * (1 - score) / max(items - 1, 1))
        if stderr is None or abs(stderr - share) <= max(_BINARY_WITHIN * share, 1 / items**2):
            return wilson(score, items)
    if stderr is None:
        return None
    return score - _Z * stderr, score + _Z * stderr


def wilson(share: float, items: float) -> tuple[float, float]:
    z2 = _Z * _Z / items
    middle = share + z2 / 2
    reach = _Z * math.sqrt(share * (1 - share) / items + z2 / items / 4)
    return (middle - reach) / (1 + z2), (middle + reach) / (1 + z2)
