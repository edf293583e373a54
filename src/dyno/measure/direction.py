"""Which way a figure is better, and what it is called in a sentence."""

import re
from typing import Literal

from dyno.facts.imported import COUNTS, SPEEDS, STEMS

Better = Literal["higher", "lower"]

_HIGHER = frozenset(
    {"speed", "score", "acceptance_rate", "acceptance_length", "request_goodput", "request_throughput"}
    | {"input_throughput", "output_throughput", "total_token_throughput", "peak_output_throughput"}
)
_LOWER = frozenset({"duration_s", "failed", "incomplete", "memory_bytes", "power_w", "cost_per_million_tokens"})
_LATENCY = re.compile(rf"(mean|median|std|min|max|p\d+(?:\.\d+)?)_({'|'.join(STEMS)})_ms")
_LOSS = re.compile(r"perplexity|ppl|loss|bits_per_byte|wer\b|error")
_WORDS = {
    "request_throughput": "requests/s", "output_throughput": "output tokens/s", "request_goodput": "goodput",
    "total_token_throughput": "total tokens/s", "input_throughput": "input tokens/s", "speed": "tokens/s",
    "peak_output_throughput": "peak output tokens/s", "duration_s": "duration", "power_w": "power",
    "memory_bytes": "memory",
}  # fmt: skip
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ntpot": "NTPOT"}


def better(name: str, metric: str = "") -> Better | None:
    """Of a figure's name as in facts/imported.py; None of counts and deviations. `metric`: what a score is of."""
    if name == "score" and _LOSS.search(metric):
        return "lower"
    if name in _HIGHER or name.endswith("_throughput"):
        return "higher"
    if name in _LOWER or (_LATENCY.fullmatch(name) and not name.startswith("std_")):
        return "lower"
    return None


def leads(name: str, one: float, other: float) -> float:
    """By what share of the lesser `one` is better than `other`; negative where it is worse, 0.0 where nothing tells."""
    way, least = better(name), min(abs(one), abs(other))
    if way is None or least == 0:
        return 0.0
    return (one - other if way == "higher" else other - one) / least


def latency(name: str) -> tuple[str, str] | None:
    """p99_ttft_ms → (p99, ttft)."""
    found = _LATENCY.fullmatch(name)
    return (found[1], found[2]) if found else None


def known(name: str) -> bool:
    return latency(name) is not None or name in COUNTS or name in SPEEDS


def words(name: str) -> str:
    """p99_ttft_ms → p99 TTFT."""
    if (of := latency(name)) is not None:
        return f"{of[0]} {_SHORT.get(of[1], of[1])}"
    return _WORDS.get(name, name.replace("_", " "))
