"""Which way a figure is better."""

from typing import Literal

Better = Literal["higher", "lower"]

_HIGHER = frozenset(
    {"speed", "score", "acceptance_rate", "acceptance_length", "request_goodput", "request_throughput"}
    | {"input_throughput", "output_throughput", "total_token_throughput", "peak_output_throughput"}
)
_LOWER = frozenset({"duration_s", "failed", "incomplete", "memory_bytes", "power_w", "cost_per_million_tokens"})
_STATISTICS = ("mean_", "median_", "std_", "min_", "max_", "p")


def better(name: str) -> Better | None:
    """Of a figure's name as in facts/imported.py; None of counts, where more is neither better nor worse."""
    if name in _HIGHER or name.endswith("_throughput"):
        return "higher"
    if name in _LOWER or (name.endswith("_ms") and name.startswith(_STATISTICS)):
        return "lower"
    return None


def leads(name: str, one: float, other: float) -> float:
    """By what share of the lesser `one` is better than `other`; negative where it is worse, 0.0 where nothing tells."""
    way, least = better(name), min(abs(one), abs(other))
    if way is None or least == 0:
        return 0.0
    return (one - other if way == "higher" else other - one) / least
