"""Which way a figure is better, and what it is called in a sentence."""

import re
from typing import Literal

from dyno.facts.imported import COUNTS, SPEEDS, STEMS

Direction = Literal["higher", "lower"]
_LATENCY = re.compile(rf"(mean|median|std|min|max|p\d+(?:\.\d+)?)_({'|'.join(STEMS)})_ms")
_LOWER = {"failed", "incomplete", "duration_s", "cost_per_million_tokens", "memory_bytes", "power_w"}
_HIGHER = {"completed", "score", "acceptance_rate", "acceptance_length", *SPEEDS}
_WORDS = {
    "request_throughput": "requests/s", "output_throughput": "output tokens/s", "request_goodput": "goodput",
    "total_token_throughput": "total tokens/s", "input_throughput": "input tokens/s", "speed": "tokens/s",
    "peak_output_throughput": "peak output tokens/s", "duration_s": "duration", "power_w": "power",
    "memory_bytes": "memory",
}  # fmt: skip
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ntpot": "NTPOT"}


def better(metric: str) -> Direction | None:
    """None: neither way, as with a count of tokens."""
    if _LATENCY.fullmatch(metric) or metric in _LOWER:
        return "lower"
    return "higher" if metric in _HIGHER else None


def latency(metric: str) -> tuple[str, str] | None:
    """p99_ttft_ms → (p99, ttft)."""
    found = _LATENCY.fullmatch(metric)
    return (found[1], found[2]) if found else None


def known(metric: str) -> bool:
    return latency(metric) is not None or metric in COUNTS or metric in SPEEDS


def words(metric: str) -> str:
    """p99_ttft_ms → p99 TTFT."""
    if (of := latency(metric)) is not None:
        return f"{of[0]} {_SHORT.get(of[1], of[1])}"
    return _WORDS.get(metric, metric.replace("_", " "))
