"""When more load brings no more: throughput no longer grows, and latency does."""

from collections.abc import Sequence
from typing import NamedTuple

from dyno.facts.study import StopRule
from dyno.facts.summary import Summary


class Level(NamedTuple):
    throughput: float  # output tokens a second
    latency_ms: float  # median, end to end


def level_of(summary: Summary) -> Level | None:
    """None where too little was completed to say anything."""
    if not summary.completed or summary.failed > summary.completed:
        return None
    steady = summary.steady
    return Level(steady.output_throughput if steady else summary.output_throughput, summary.e2el.median)


def saturated(levels: Sequence[Level], rule: StopRule) -> str | None:
    """Of levels of rising load: why the last of them is enough, in words; None where it isn't."""
    if len(levels) < 2:
        return None
    *before, last = levels
    best = max(before, key=lambda level: level.throughput)
    grows = last.throughput > best.throughput * (1 + rule.throughput_gain)
    waits = last.latency_ms > before[-1].latency_ms * (1 + rule.latency_growth)
    if grows or not waits:
        return None
    return (
        f"saturated: {last.throughput:.0f} tok/s after {best.throughput:.0f} at less load, and a median latency of "
        f"{last.latency_ms:.0f} ms after {before[-1].latency_ms:.0f}"
    )
