"""Distributions, and how many samples a percentile needs."""

import math
from collections.abc import Sequence

import numpy as np

from dyno.facts.spread import Distribution


def percentile_name(p: float) -> str:
    return f"{p:g}"


def samples_needed(p: float) -> int:
    """At 99 % confidence, after MLPerf's early stopping rule: p99 needs 662, p95 130, p90 64."""
    known = {50.0: 11, 90.0: 64, 95.0: 130, 99.0: 662, 99.9: 6636}
    tail = min(p, 100 - p) / 100
    return known.get(p) or (math.ceil(6.64 / tail) if tail > 0 else 1)


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
