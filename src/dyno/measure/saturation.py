"""Saturation: throughput no longer grows with load, and latency does."""

from collections.abc import Sequence
from typing import NamedTuple

from dyno.facts.study import StopRule
from dyno.facts.summary import Result

LONG_S = 1.0  # a shorter steady window counts a wave too many or too few


class Level(NamedTuple):
    throughput: float  # output tokens a second, over the whole run
    latency_ms: float  # median, end to end
    steady: float | None = None  # the same in the steady window, where that is long enough


def level_of(result: Result) -> Level | None:
    """Return the level, or None where too little was completed or the client itself is in doubt."""
    s = result.served
    if not s.completed or s.failed > s.completed or s.e2el.median is None:
        return None
    if any(f.code.startswith("client.") and f.level != "note" for f in result.findings):
        return None
    long = s.steady and s.steady.end_s - s.steady.start_s >= max(LONG_S, s.duration_s / 2)
    return Level(s.output_throughput, s.e2el.median, s.steady.output_throughput if s.steady and long else None)


def saturated(levels: Sequence[Level], rule: StopRule) -> str | None:
    """Say why the last of these levels of rising load is saturated; None where it isn't."""
    if len(levels) < 2:
        return None
    steady = [level.steady for level in levels if level.steady is not None]
    alike = len(steady) == len(levels)  # windows are compared with windows, whole runs with whole runs
    *before, last = steady if alike else [level.throughput for level in levels]
    waits, waited = levels[-1].latency_ms, levels[-2].latency_ms
    if last > max(before) * (1 + rule.throughput_gain) or waits <= waited * (1 + rule.latency_growth):
        return None
    where = "steady window" if alike else "whole run"
    return (
        f"saturated at less load: {last:.0f} tok/s after {max(before):.0f} ({where}), and a median latency of "
        f"{waits:.0f} ms after {waited:.0f}"
    )
