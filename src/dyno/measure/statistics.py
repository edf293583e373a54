"""Distributions and how many samples a percentile needs; and how far a figure may be off by chance."""

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from dyno.facts.spread import Distribution, Latency

# A figure is known if its bounds are at most this far apart: ± 1 %, or ± 0.05 ms.
KNOWN_WITHIN, KNOWN_WITHIN_MS = 0.02, 0.1
_NORMAL = 1e6  # degrees of freedom from which t is the normal distribution to six digits
_ROWS = 200  # replicates at a time: a matrix of all would be large
_FEWEST_BLOCKS = 4
_MOST_BLOCKS = 500  # more say no more: blocks may be longer than need be
# Of the length with the least mean error: blocks a little too long give an interval a little too wide, blocks too
# short one that is too narrow (of 100 requests with a correlation of 0.5 a mean: 90 % for 95; without this, 86 %).
_LONGER = 1.5
_IN_TAIL = 5  # samples beyond a percentile without which drawing again says nothing of it


def percentile_name(p: float) -> str:
    return f"{p:g}"


def samples_needed(p: float) -> int:
    """At 99 % confidence, after MLPerf's early stopping rule: p99 needs 662, p95 130, p90 64."""
    known = {50.0: 11, 90.0: 64, 95.0: 130, 99.0: 662, 99.9: 6636}
    tail = min(p, 100 - p) / 100
    return known.get(p) or (math.ceil(6.64 / tail) if tail > 0 else 1)


def settled(low: float, high: float, within: float = 0.0) -> float | None:
    """The middle of two bounds, where they are near enough to be one figure."""
    return (low + high) / 2 if high - low <= max(KNOWN_WITHIN * high, within) else None


def distribution_ms(values_ns: Sequence[float] | np.ndarray, percentiles: Sequence[float]) -> Distribution:
    values = np.asarray(values_ns, dtype=np.float64) / 1e6
    if values.size == 0:
        return Distribution(0, 0.0, 0.0, 0.0, {percentile_name(p): 0.0 for p in percentiles})
    return Distribution(
        count=int(values.size),
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles={percentile_name(p): float(np.percentile(values, p)) for p in percentiles},
    )


def bounded_ms(
    low_ns: Sequence[float] | np.ndarray,
    high_ns: Sequence[float] | np.ndarray,
    percentiles: Sequence[float],
    mean_ns: tuple[float, float] | None = None,
) -> Latency:
    """Return bounds of the mean and percentiles of values that are known only between two bounds each.
    `mean_ns`: tighter bounds of the mean, if known."""
    high = distribution_ms(high_ns, percentiles)
    low = high if low_ns is high_ns else distribution_ms(low_ns, percentiles)
    if high == low:
        return Latency(high.count, high.mean, high.median, high.std, {**high.percentiles})
    least, most = _by_name(low), _by_name(high)
    if mean_ns is not None:
        least["mean"], most["mean"] = mean_ns[0] / 1e6, mean_ns[1] / 1e6
    figures = {name: settled(least[name], most[name], KNOWN_WITHIN_MS) for name in most}
    bounds = {name: (least[name], most[name]) for name, value in figures.items() if value is None}
    middles = (np.asarray(low_ns, dtype=np.float64) + np.asarray(high_ns, dtype=np.float64)) / 2e6
    return Latency(
        count=high.count,
        mean=figures.pop("mean"),
        median=figures.pop("median"),
        std=None if bounds else float(middles.std()),
        percentiles=figures,
        bounds=bounds,
    )


def _by_name(d: Distribution) -> dict[str, float]:
    return {"mean": d.mean, "median": d.median, **d.percentiles}


class SpanColumn:
    """One latency, ns, of many requests: the least and the most that each can be."""

    def __init__(self) -> None:
        self.low, self.high = array("d"), array("d")

    def add(self, span: tuple[float, float]) -> None:
        self.low.append(span[0])
        self.high.append(span[1])

    def middles(self) -> np.ndarray:
        middles: np.ndarray = (np.array(self.low) + np.array(self.high)) / 2
        return middles

    def latency(self, percentiles: Sequence[float]) -> Latency:
        return bounded_ms(self.low, self.high, percentiles)


# ---- Student's t: numpy doesn't have it, and scipy is much for two functions ----


def two_sided(t: float, df: float) -> float:
    """The probability of a value as far from zero as `t`, where there is nothing but chance."""
    if math.isinf(t):
        return 0.0
    if df >= _NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    return _beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def quantile(p: float, df: float) -> float:
    """Return the t below which a share `p` of the values is, from one half to below one."""
    t = 0.0
    for _ in range(100):  # Newton's steps: right of zero they come from below and never go too far
        step = (p - 1 + two_sided(t, df) / 2) / _density(t, df)
        t += step
        if step <= 1e-9 * t:
            break
    return t


def welch_df(a: float, a_df: float, b: float, b_df: float) -> float:
    """Return the degrees of freedom of the sum of two squared errors (Welch and Satterthwaite)."""
    below = a * a / a_df + b * b / b_df
    return (a + b) ** 2 / below if below > 0 else a_df + b_df


def _density(t: float, df: float) -> float:
    if df >= _NORMAL:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    log = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log - (df + 1) / 2 * math.log1p(t * t / df))


def _beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the other side converges fast
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    f, c, d = 1.0, 1.0, 0.0
    for i in range(500):
        m = i // 2
        if i == 0:
            step = 1.0
        elif i % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + step * d)
        c = 1 + step / c
        f *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return front * (f - 1)


# ---- the error of a figure of one run: its requests drawn again, in blocks ----
#
# Requests that are in flight together wait for the same steps of the engine, so neighbours are alike, and drawn one by
# one they would seem to say more than they do. They are drawn in blocks of consecutive ones instead, as long as their
# likeness reaches. The seed is fixed: the same data give the same interval.


class Effort(msgspec.Struct, frozen=True):
    replicates: int = 600
    values: int = 6_000  # of more, every n-th in order of size represents its neighbours


WHOLE = Effort()
# For bars in a chart: a twelfth of the work, and an error that is itself off by 6 %.
QUICK = Effort(150, 2_000)


class Error(msgspec.Struct, frozen=True):
    """The error of a figure as a share of it, with the degrees of freedom."""

    error: float
    df: float


def errors_of_requests(
    values: np.ndarray, statistics: Sequence[str], blocks: int | None = None, effort: Effort = WHOLE
) -> dict[str, Error]:
    """`values` in the order of sending, all above zero; `statistics`: mean, median, p99. Those that the data can't
    answer for are absent. `blocks`: how many, where something else than the values decides."""
    n = len(values)
    if n < 2 * _FEWEST_BLOCKS:
        return {}
    count = min(blocks or max(n // block_length(values), _FEWEST_BLOCKS), n, _MOST_BLOCKS)
    block = np.arange(n) * count // n
    drawn = _drawn(count, effort.replicates)
    # With few blocks the spread of what is drawn falls short, by this factor.
    few = math.sqrt(count / (count - 1))

    def error(values: np.ndarray) -> Error:
        return Error(float(np.log(values).std()) * few, count - 1)

    out = {}
    if "mean" in statistics:
        sums, counts = np.bincount(block, values), np.bincount(block)
        out["mean"] = error((drawn @ sums) / (drawn @ counts))
    shares = {s: share for s in statistics if (share := _share(s)) is not None and n >= needs(s)}
    if shares:
        columns = _quantiles(values, block, drawn, list(shares.values()), effort.values).T
        out |= {name: error(column) for name, column in zip(shares, columns, strict=True)}
    return out


def _drawn(count: int, replicates: int) -> np.ndarray:
    """How often each block is drawn, in each replicate."""
    chosen = np.random.default_rng(0).integers(count, size=(replicates, count))
    chosen += np.arange(replicates)[:, None] * count
    return np.bincount(chosen.ravel(), minlength=replicates * count).reshape(replicates, count).astype(np.int32)


def needs(statistic: str) -> int:
    """How many samples say how far it may be off: a p99 of a hundred is their largest one."""
    share = _share(statistic)
    return 2 * _FEWEST_BLOCKS if share is None else math.ceil(_IN_TAIL / min(share, 1 - share) - 1e-9)


def _share(statistic: str) -> float | None:
    if statistic == "median":
        return 0.5
    share = float(statistic[1:]) / 100 if statistic.startswith("p") else 0.0
    return share if 0 < share < 1 else None


def _quantiles(
    values: np.ndarray, block: np.ndarray, drawn: np.ndarray, shares: Sequence[float], most: int
) -> np.ndarray:
    """Return a percentile of each replicate. A value counts as often as its block was drawn: sorting once is enough."""
    order = np.argsort(values, kind="stable")
    if len(order) > most:
        order = order[((np.arange(most) + 0.5) * (len(order) / most)).astype(np.int64)]
    ordered, blocks = values[order], block[order]
    out = np.empty((len(drawn), len(shares)))
    for start in range(0, len(drawn), _ROWS):
        below = np.cumsum(drawn[start : start + _ROWS][:, blocks], axis=1, dtype=np.int32)
        for i, share in enumerate(shares):
            reached = np.argmax(below >= (share * below[:, -1])[:, None], axis=1)
            out[start : start + _ROWS, i] = ordered[reached]
    return out


def block_length(values: np.ndarray) -> int:
    """After Politis and White (2004, corrected 2009): by how far the autocorrelation of the ranks reaches."""
    n = len(values)
    ordered = np.sort(values)
    ranks = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2  # ties are even
    ranks -= ranks.mean()
    reach = max(5, math.ceil(math.log10(n)))  # as many must be small in a row
    most = min(math.ceil(math.sqrt(n)) + reach, n - 1)
    spectrum = np.fft.rfft(ranks, 2 * n)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[: most + 1] / n
    if covariance[0] <= 0:
        return 1
    correlation = covariance[1:] / covariance[0]
    small = np.abs(correlation) < 2 * math.sqrt(math.log10(n) / n)
    run = np.convolve(small, np.ones(reach), "valid") >= reach
    last = int(np.argmax(run)) if run.any() else most
    if last == 0:
        return 1
    lags = np.arange(1, min(2 * last, most) + 1)
    window = np.clip(2 * (1 - lags / (2 * last)), 0, 1)  # flat to the half, then down to zero
    whole = covariance[0] + 2 * float(window @ covariance[lags])
    slope = 2 * float((window * lags) @ covariance[lags])
    if whole <= 0:  # neighbours differ more than strangers: single ones are on the safe side
        return 1
    length = _LONGER * (slope**2 / whole**2) ** (1 / 3) * n ** (1 / 3)
    return int(max(1, min(math.ceil(length), n // _FEWEST_BLOCKS)))


def error_of_slices(starts_s: np.ndarray, firsts_s: np.ndarray, ends_s: np.ndarray, tokens: np.ndarray) -> Error | None:
    """Return the error of a run's throughput from slices of its steady window (batch means). A slice is as long as two
    requests take on average (one in short runs), and tokens are laid out evenly from a request's first to its last.
    None: too short."""
    if len(starts_s) < 2 * _FEWEST_BLOCKS:
        return None
    begin, end = float(ends_s.min()), float(starts_s.max())
    took = float((ends_s - starts_s).mean())
    if took <= 0 or end <= begin:
        return None
    lives = (end - begin) / took
    count = max(min(int(lives / 2), 20), min(int(lives), 8))
    if count < _FEWEST_BLOCKS:
        return None
    edges = np.linspace(begin, end, count + 1)
    lasted = np.maximum(ends_s - firsts_s, 1e-6)
    before = np.clip((edges[:, None] - firsts_s) / lasted, 0, 1) @ tokens  # tokens that have come by each edge
    each = np.diff(before)
    mean = float(each.mean())
    if mean <= 0:
        return None
    # And when the last request ends, which is in no slice, moves the whole run's length.
    drain = float((ends_s - starts_s).std()) / float(ends_s.max() - starts_s.min())
    return Error(math.hypot(float(each.std(ddof=1)) / mean / math.sqrt(count), drain), count - 1)


def error_of_mean(values: Sequence[float]) -> Error | None:
    """Return the error of a mean of independent values: repeats, iterations."""
    if len(values) < 2:
        return None
    each = np.asarray(values, dtype=np.float64)
    mean = float(each.mean())
    return Error(float(each.std(ddof=1)) / abs(mean) / math.sqrt(len(each)), len(each) - 1) if mean else None
