"""Distributions and how many samples a percentile needs; and how far a figure may be off by chance."""

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from dyno.facts.spread import Distribution, Latency
from dyno.measure.sums import Summed
from dyno.units import NS_PER_MS

# A figure is known if its bounds are at most this far apart: ± 1 %, or ± 0.05 ms.
KNOWN_WITHIN, KNOWN_WITHIN_MS = 0.02, 0.1
_NORMAL = 1e6  # degrees of freedom from which t is the normal distribution to six digits
_FEWEST = 8  # requests without which a single run says nothing of its error
_FEWEST_SLICES, _MOST_SLICES = 8, 60
_FEWEST_SUMS = 6  # that fit one behind the other
_PARTS = 10_000  # of a longer series, neighbours are added up first
_MOST_ALIKE = 0.99  # correlation of neighbours
_SURE = 1.6  # standard errors by which that of requests may be higher than it seems
# Beyond a percentile: as many values as strangers, by their ranks and by what lies beyond it alone.
_RANKS_IN_TAIL, _CLUSTERS_IN_TAIL = 1.2, 2.0
# the values beyond a percentile: so few that its two sides differ; less than a tenth
_TAIL, _FAR = 0.3, 0.099
_IN_TAIL = 5  # values beyond a percentile, at least


def percentile_name(p: float) -> str:
    return f"{p:g}"


def samples_needed(p: float) -> int:
    """Return how many samples a percentile needs at 99 % confidence, after MLPerf's early stopping rule: p99 needs 662,
    p95 130, p90 64."""
    known = {50.0: 11, 90.0: 64, 95.0: 130, 99.0: 662, 99.9: 6636}
    tail = min(p, 100 - p) / 100
    return known.get(p) or (math.ceil(6.64 / tail) if tail > 0 else 1)


def settled(low: float, high: float, within: float = 0.0) -> float | None:
    """Return the middle of two bounds, where they are near enough to be one figure."""
    return (low + high) / 2 if high - low <= max(KNOWN_WITHIN * high, within) else None


def distribution_ms(
    values_ns: Sequence[float] | np.ndarray, percentiles: Sequence[float]
) -> Distribution:
    # Sorted, so that the last digit of a sum doesn't depend on the order in which processes gave the values.
    values = np.sort(np.asarray(values_ns))
    if values.size == 0:
        return Distribution(
            0, 0.0, 0.0, 0.0, {percentile_name(p): 0.0 for p in percentiles}
        )
    return Distribution(
        count=int(values.size),
        mean=float(values.mean(dtype=np.float64)) / NS_PER_MS,
        median=_of_sorted(values, 50) / NS_PER_MS,
        std=float(values.std(dtype=np.float64)) / NS_PER_MS,
        percentiles={
            percentile_name(p): _of_sorted(values, p) / NS_PER_MS for p in percentiles
        },
    )


def _of_sorted(values: np.ndarray, percentile: float) -> float:
    """Return a percentile, between two values by their distance from it."""
    place = percentile / 100 * (len(values) - 1)
    before = int(place)
    low = float(values[before])
    high = float(values[min(before + 1, len(values) - 1)])
    return low + (high - low) * (place - before)


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
    bounds = {
        name: (least[name], most[name]) for name, value in figures.items() if value is None
    }
    middles = (
        np.asarray(low_ns, dtype=np.float64) + np.asarray(high_ns, dtype=np.float64)
    ) / 2e6
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


class SpanColumn(Summed):
    """One latency, ns, of many requests: the least and the most that each can be."""

    SUMMED = ("low", "high")

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
    """Return the probability of a value as far from zero as `t`, where there is nothing but chance."""
    if math.isinf(t):
        return 0.0
    if df >= _NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    return beta_share(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def quantile(p: float, df: float) -> float:
    """Return the t below which a share `p` of the values is, from one half to below one."""
    t = 0.0
    # Newton's steps: right of zero they come from below and never go too far
    for _ in range(100):
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


def beta_share(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the other side converges fast
        return 1 - beta_share(b, a, 1 - x)
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_scale + a * math.log(x) + b * math.log1p(-x)) / a
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


# ---- the error of a figure of one run: how much its requests differ, neighbours together ----
#
# Requests that are in flight together wait for the same steps of the engine, so neighbours are alike, and a thousand of
# them say less than a thousand strangers. Sums of consecutive ones show how much less: of strangers, the variance of a
# sum grows as its length; of neighbours that are alike, faster. METHOD.md, Comparing, has the rules and their coverage.


class Error(msgspec.Struct, frozen=True):
    """The error of a figure as a share of it, with the degrees of freedom."""

    error: float
    df: float


class TooAlike(msgspec.Struct, frozen=True):
    """Neighbours are so alike that a run of this length says nothing about a figure."""

    needed: int | None  # requests that would do; None: unknown


class _Spread(NamedTuple):
    """The variance of a series, neighbours counted together, and the length of the sums that show it."""

    variance: float
    df: float


def errors_of_requests(
    values: np.ndarray, statistics: Sequence[str]
) -> dict[str, Error | TooAlike]:
    """Return the error of each statistic. `values`: in the order of sending, all above zero; `statistics`: mean,
    median, p99. Absent are those for which there are too few values."""
    n = len(values)
    wanted = [
        s for s in statistics if (s == "mean" or _share(s) is not None) and n >= needs(s)
    ]
    if n < _FEWEST or not wanted:
        return {}
    ordered = np.sort(values)
    if ordered[0] == ordered[-1]:
        return {s: Error(0.0, n - 1) for s in wanted}
    ranks = _ranks(values, ordered)
    allowance = _allowance(ranks, _SURE)
    if allowance is None:
        return {s: TooAlike(None) for s in wanted}
    alike = allowance * _spread(ranks).variance / float((ranks * ranks).mean())
    out: dict[str, Error | TooAlike] = {}
    for s in wanted:
        share = _share(s)
        if share is None:
            out[s] = _error_of_mean(values, allowance)
        else:
            out[s] = _error_of_quantile(values, ordered, share, alike, allowance)
    return out


def needs(statistic: str) -> int:
    """Return how many samples say how far it may be off: a p99 of a hundred is their largest one."""
    share = _share(statistic)
    return _FEWEST if share is None else math.ceil(_IN_TAIL / min(share, 1 - share) - 1e-9)


def _share(statistic: str) -> float | None:
    if statistic == "median":
        return 0.5
    share = float(statistic[1:]) / 100 if statistic.startswith("p") else 0.0
    return share if 0 < share < 1 else None


def _ranks(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return the rank of each value, from their mean; ties are even."""
    ranks = (
        np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    ) / 2
    centred: np.ndarray = ranks - ranks.mean()
    return centred


def _allowance(series: np.ndarray, sure: float = 1.0) -> float | None:
    """Return by how much the likeness of neighbours may be larger than it seems: a short series shows too little of it.
    As of a series whose correlation is higher by its bias and `sure` standard errors. None: it may be endless."""
    n = len(series)
    whole = float(series @ series)
    seen = max(float(series[1:] @ series[:-1]) / whole, 0.0) if whole > 0 else 0.0
    highest = seen + sure * math.sqrt(max(1 - seen * seen, 0.0) / n) + (1 + 3 * seen) / n
    if highest >= _MOST_ALIKE:
        return None
    return (1 + highest) / (1 - highest) * (1 - seen) / (1 + seen)


def _spread(series: np.ndarray) -> _Spread:
    """`series`: deviations from their mean, in order. Return the largest variance of sums of consecutive ones, per one,
    over all lengths up to a sixth of the series, with what longer sums would add (lugsail, Vats and Flegal)."""
    each = -(-len(series) // _PARTS)
    parts = np.add.reduceat(series, np.arange(0, len(series), each)) if each > 1 else series
    sums = np.concatenate([[0.0], np.cumsum(parts)])
    count = len(parts)

    def variance(length: int) -> float:
        total = sums[length:] - sums[:-length]
        return float(total @ total) / len(total) / length / (1 - length / count)

    lengths = [1]
    while (longer := max(lengths[-1] + 1, int(1.5 * lengths[-1]))) <= count // _FEWEST_SUMS:
        lengths.append(longer)
    variances = [variance(length) for length in lengths]
    largest = max(variances)
    longest = lengths[variances.index(largest)]
    # The degrees of freedom go by the shortest sums that show nearly all of it. Those that overlap say half more.
    length = next(b for b, v in zip(lengths, variances, strict=True) if v >= 0.8 * largest)
    df = 1.5 * count / length - 1 if length > 1 else count - 1
    if longest > 1:
        largest = max(largest, 2 * largest - variance(longest // 2))
    return _Spread(largest / each, max(df, 3.0))


def _error_of_mean(values: np.ndarray, allowance: float) -> Error:
    mean = float(values.mean())
    spread = _spread(values / mean - 1)
    return Error(math.sqrt(allowance * spread.variance / len(values)), spread.df)


def _near(share: float) -> list[float]:
    """Return the shares at which the likeness of requests is looked at, to know it at one of them. In a tail, half as
    far, a slow spell stands out that is too short to reach the share itself. Of a few values beyond it, also twice as
    many."""
    tail = min(share, 1 - share)
    tails = [tail]
    if tail < _FAR:
        tails.append(2 * tail)
    elif tail < _TAIL:
        tails.append(tail / 2)
    return [1 - each if share > 0.5 else each for each in tails]


def _error_of_quantile(
    values: np.ndarray, ordered: np.ndarray, share: float, alike: float, allowance: float
) -> Error | TooAlike:
    """Return the error of a quantile: by how much the share of values below it may be off, and what lies there.
    `alike`: how many requests are worth one stranger, by their ranks."""
    n, tail = len(values), min(share, 1 - share)
    below = max(
        (_below(values, ordered, near) for near in _near(share)),
        key=lambda spread: spread.variance,
    )
    clusters = allowance * max(below.variance, 1.0)
    needed = math.ceil(max(_RANKS_IN_TAIL * alike, _CLUSTERS_IN_TAIL * clusters) / tail)
    if needed > n:
        return TooAlike(needed)
    t = quantile(0.975, below.df)
    reach = t * math.sqrt(clusters * share * (1 - share) / n)
    ends = np.clip([share - reach, share, share + reach], 0.5 / n, 1 - 0.5 / n)
    low, middle, high = np.log(np.interp(ends * n - 0.5, np.arange(n), ordered))
    above, under = float(high - middle), float(middle - low)
    # In a tail, values may lie far apart on one side: the longer side decides.
    side = max(above, under) if tail < _TAIL else math.sqrt((above**2 + under**2) / 2)
    return Error(side / t, below.df)


def _below(values: np.ndarray, ordered: np.ndarray, share: float) -> _Spread:
    """Return the spread of the share of values below a quantile, as a multiple of that of strangers."""
    beyond = (values > np.quantile(ordered, share)).astype(np.float64)
    spread = _spread(beyond - beyond.mean())
    return _Spread(spread.variance / (share * (1 - share)), spread.df)


def error_of_slices(
    starts_s: np.ndarray, firsts_s: np.ndarray, ends_s: np.ndarray, tokens: np.ndarray
) -> Error | None:
    """Return the error of a run's throughput from slices of its steady window. A slice is as long as a request takes on
    average, or longer, and tokens are laid out evenly from a request's first to its last. None: too short."""
    if len(starts_s) < _FEWEST:
        return None
    begin, end = float(ends_s.min()), float(starts_s.max())
    took = float((ends_s - starts_s).mean())
    if took <= 0 or end <= begin:
        return None
    count = min(int((end - begin) / took), _MOST_SLICES)
    if count < _FEWEST_SLICES:
        return None
    lasted = np.maximum(ends_s - firsts_s, 1e-6)
    edges = np.linspace(begin, end, count + 1)
    # tokens that have come
    by_edge = [float(np.clip((edge - firsts_s) / lasted, 0, 1) @ tokens) for edge in edges]
    each = np.diff(by_edge)
    mean = float(each.mean())
    if mean <= 0:
        return None
    deviations = each / mean - 1
    allowance, spread = _allowance(deviations), _spread(deviations)
    if allowance is None:
        return None
    # And when the last request ends, which is in no slice, moves the whole run's length.
    drain = float((ends_s - starts_s).std()) / float(ends_s.max() - starts_s.min())
    return Error(
        math.hypot(math.sqrt(allowance * spread.variance / count), drain), spread.df
    )


def error_of_mean(values: Sequence[float]) -> Error | None:
    """Return the error of a mean of independent values: repeats, iterations."""
    if len(values) < 2:
        return None
    each = np.asarray(values, dtype=np.float64)
    mean = float(each.mean())
    return (
        Error(float(each.std(ddof=1)) / abs(mean) / math.sqrt(len(each)), len(each) - 1)
        if mean
        else None
    )
