"""Two scores of the same items: their difference, how sure it is, and what these items could have shown.

Scores of 0 and 1 are compared by the items that one side alone has right (McNemar's exact test, Tango's interval),
others by flipping the signs of the items' differences (a permutation test, and the interval of all differences that it
doesn't reject). METHOD.md, Quality, has the reasons.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dyno.facts.quality import PairedDifference
from dyno.measure.statistics import beta_share, quantile, two_sided

ALPHA, POWER = 0.05, 0.8
_Z = quantile(1 - ALPHA / 2, math.inf)
_Z_POWER = quantile(POWER, math.inf)
_FEWEST = 6  # items that either test needs, where all differ in one direction
# items up to which all flips are tried; of more, as many as of these are drawn
_ALL_FLIPS = 12
_FLIPS = 1 << _ALL_FLIPS
_ROWS = 256  # flips at a time
# by simulation: exponential changes of 10 to 50 items are then covered as even ones are
_SKEW = 2.5
_TIE, _DIGITS = 1e-12, 12  # means that differ by less are one
_BINARY_WITHIN = 0.02  # a standard error this near to that of a share is one


def paired(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """Compare B with A. Both have the same items in the same order."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} scores are not pairs")
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n = len(x)
    only_a, only_b = int((x > y).sum()), int((y > x).sum())
    change = float((y - x).mean())
    if np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all():
        rate = (only_a + only_b) / n
        p = mcnemar(only_a, only_b)
        low, high = tango(only_a, only_b, n)
        # with few differing items the exact test is the stricter one: no interval then excludes 0
        if p > ALPHA:
            low, high = min(low, 0.0), max(high, 0.0)
        detectable = smallest_detectable(n, rate)
        needed = items_to_detect(change, rate) if change and p > ALPHA else None
    else:
        p, (low, high) = sign_flips(y - x, _limits(x, y))
        detectable, needed = _of_graded(y - x, p)
    mean_a, mean_b = float(x.mean()), float(y.mean())
    return PairedDifference(
        n, mean_a, mean_b, only_a, only_b, change, low, high, p, detectable, needed
    )


def _limits(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the differences that are possible at all: of scores from 0 to 1, those from -1 to 1."""
    both = np.concatenate([x, y])
    return (-1.0, 1.0) if both.min() >= 0 and both.max() <= 1 else (-math.inf, math.inf)


def _of_graded(changes: np.ndarray, p: float) -> tuple[float, int | None]:
    """Return the smallest difference that these items would show, and how many would show the one that there is."""
    n, change = len(changes), float(changes.mean())
    if n < _FEWEST:
        return 1.0, None
    spread = float(changes.std(ddof=1))
    # Items without any difference show no spread: then as of scores of 0 and 1.
    detectable = (
        (quantile(1 - ALPHA / 2, n - 1) + quantile(POWER, n - 1)) * spread / math.sqrt(n)
    )
    if not change or p <= ALPHA:
        return detectable or smallest_detectable(n, 0.0), None
    return detectable, max(math.ceil(((_Z + _Z_POWER) * spread / change) ** 2), n + 1)


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
        """Return how many standard errors the observed difference is above `delta`."""
        first = 2 * n - only_b + only_a
        half = first * delta - only_b - only_a
        root = math.sqrt(max(half * half + 8 * n * only_a * delta * (1 - delta), 0.0))
        variance = n * (2 * ((root - half) / (4 * n)) + delta * (1 - delta))
        above = only_b - only_a - n * delta
        if variance > 1e-12:
            return above / math.sqrt(variance)
        return math.copysign(math.inf, above) if above else 0.0

    change = (only_b - only_a) / n
    return _root(lambda d: score(d) - _Z, -1.0, change), _root(
        lambda d: score(d) + _Z, change, 1.0
    )


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
    items = (
        _Z * math.sqrt(rate) + _Z_POWER * math.sqrt(rate - size * size)
    ) ** 2 / size**2 + 1 / size
    return max(math.ceil(items), _FEWEST)


def smallest_detectable(items: int, rate: float) -> float:
    """Return the smallest difference for which these items are enough; 1 where none is."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if items_to_detect(middle, rate) <= items else (middle, high)
        )
    return high


def sign_flips(
    changes: np.ndarray, limits: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Return the two-sided probability of a mean as far from 0, where the sign of each change is chance alone; and the
    95 % interval: all differences that this test doesn't reject. So p is at most 5 % exactly where the interval
    excludes 0, and fewer than six changes other than 0 never show anything. The seed is fixed."""
    mean = float(changes.mean())
    # If the true difference is d, a flip's mean is as far from d as the changes' own is, exactly where d is between the
    # means of its two parts: the changes that it keeps and those that it flips.
    lows, highs = _part_means(changes)
    wider = _skew_allowance(changes)
    # flips that a rejected difference may have
    most = int((math.erfc(wider * _Z / math.sqrt(2)) + _TIE) * len(lows))
    low = max(float(np.partition(lows, most)[most]), limits[0])
    high = min(float(-np.partition(-highs, most)[most]), limits[1])
    as_far = (lows <= 0) if mean > 0 else (highs >= 0)
    share = float(as_far.mean()) if mean else 1.0
    return min(1.0, two_sided(quantile(1 - share / 2, math.inf) / wider, math.inf)), (
        low,
        high,
    )


def _part_means(changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the higher mean of the two parts of each flip: of all flips of few items, else of as many as
    are drawn. The first flips nothing: its parts have no bounds, and no probability is 0."""
    n = len(changes)
    lows, highs = [np.array([-math.inf])], [np.array([math.inf])]
    for same in _flips(n):
        count = same.sum(axis=1)
        total = same @ changes
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.stack([total / count, (changes.sum() - total) / (n - count)])
        whole = (count == 0) | (count == n)
        means = np.round(means, _DIGITS)  # sums that should be equal are
        lows.append(np.where(whole, -math.inf, means.min(axis=0)))
        highs.append(np.where(whole, math.inf, means.max(axis=0)))
    return np.concatenate(lows), np.concatenate(highs)


def _flips(n: int) -> Iterator[np.ndarray]:
    """Yield which changes each flip keeps."""
    if n <= _ALL_FLIPS:
        yield (np.arange(1, 1 << n)[:, None] >> np.arange(n) & 1).astype(np.float64)
        return
    rng = np.random.default_rng(0)
    for _ in range(_FLIPS // _ROWS):
        yield rng.integers(0, 2, size=(_ROWS, n), dtype=np.int8).astype(np.float64)


def _skew_allowance(changes: np.ndarray) -> float:
    """Return by how many times an interval must be wider where the changes lean to one side: flipping signs takes them
    to be even. 1 of even ones; ten with a skew of 2 need twice as much."""
    changes = changes[changes != 0]
    spread = float(changes.std()) if len(changes) else 0.0
    if spread < _TIE:
        return 1.0
    skew = float((((changes - changes.mean()) / spread) ** 3).mean())
    return 1 + _SKEW * skew * skew / len(changes)


# ---- one score ----


def score_interval(
    score: float, items: float | None, stderr: float | None, most: float = 1.0
) -> tuple[float, float] | None:
    """Return the 95 % interval of a score: exact for a share of right answers, else by its standard error. None:
    unknown. `most`: the highest score there is, of those that begin below it; no score is below 0."""
    if items and 0 <= score <= 1:
        share = math.sqrt(score * (1 - score) / max(items - 1, 1))
        if stderr is None or abs(stderr - share) <= max(
            _BINARY_WITHIN * share, 1 / items**2
        ):
            return share_interval(score, items)
    if stderr is None:
        return None
    low, high = score - _Z * stderr, score + _Z * stderr
    return (max(low, 0.0) if score >= 0 else low), (
        min(high, most) if score <= most else high
    )


def share_interval(share: float, items: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a share of right answers (Clopper and Pearson). Shorter ones, such as Wilson's,
    miss the truth too often where nearly all answers are right: at 99 % of 100 items in 8 of 100 tests."""
    right, wrong = share * items, (1 - share) * items
    low, high = 0.0, 1.0
    if right > 0:
        low = _root(lambda x: ALPHA / 2 - beta_share(right, wrong + 1, x), 0.0, share)
    if wrong > 0:
        high = _root(lambda x: 1 - ALPHA / 2 - beta_share(right + 1, wrong, x), share, 1.0)
    return low, high
