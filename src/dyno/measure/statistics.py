"""Distributions, and how many samples a percentile needs."""

import math
from collections.abc import Sequence

import numpy as np

from dyno.facts.spread import Distribution, Latency

# A figure whose bounds are no further apart than this is known: ± 1 %, or ± 0.05 ms.
KNOWN_WITHIN, KNOWN_WITHIN_MS = 0.02, 0.1


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
    """Of values each of which lies between two: a mean or percentile of them lies between those of the two sets.
    `mean_ns`: where the mean's bounds are known better than by that."""
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
