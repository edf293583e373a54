"""Throughput against the load, and what was served of what was offered."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
from dyno.facts.load import AXES, KEYS
from dyno.facts.metric import metric
from dyno.report.charts.against import Measure, against
from dyno.report.look import Look

FIGURES = ("output_throughput", "total_token_throughput", "input_throughput", "request_throughput", "request_goodput")
HOW = "Higher is better. Bars are 95 % intervals where they are known."


def measure(name: str) -> Measure:
    m = metric(name)
    return Measure(name, m.explained, m.axis, m.axis[0].lower() + m.axis[1:], lambda entry: entry.figures.get(name))


MEASURES = [measure(name) for name in FIGURES]
SPEED = measure("speed")


def throughput(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    whole = [e for e in entries if e.kind in ("serve", "throughput", "latency")]
    for axis in AXES:
        chart = against(
            whole,
            axis,
            look,
            MEASURES,
            name=f"throughput-{axis.replace('_', '-')}",
            group="Throughput",
            title=f"Throughput against {KEYS[axis].against}",
            about=HOW,
            choice="figure",
            label="Figure",
            normal=True,
        )
        if chart:
            yield chart
    yield from speed(entries, look)


def speed(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Of micro tests, against the context. Tests that differ in their length alone are one line."""
    micro = [e for e in entries if e.kind == "micro" and "context" in e.axes]
    if not any(e.load.get("depth") for e in micro):
        micro = [
            msgspec.structs.replace(e, load={**e.load, "test": letters(str(e.load.get("test", "")))}) for e in micro
        ]
    chart = against(
        micro,
        "context",
        look,
        [SPEED],
        name="speed-context",
        group="Throughput",
        title="Speed of a single request against context length",
        about=HOW,
        choice="figure",
        label="Figure",
        normal=True,
        log=True,
    )
    if chart:
        yield chart


def letters(test: str) -> str:
    """'pp512' → 'pp'."""
    return re.sub(r"\d.*", "", test) or test


def served(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Requests/s that were served, of those that were offered. Below the diagonal, a queue grows."""
    own = [e for e in entries if e.kind == "serve"]
    chart = against(
        own,
        "rate",
        look,
        [measure("request_throughput")],
        name="served-rate",
        group="Throughput",
        title="Served against offered requests",
        about="On the dashed line all that was offered was served. Below it a queue grew, or the run was short and the "
        "time until its last answer counts in.",
        choice="figure",
        label="Figure",
        equal="served = offered",
    )
    if chart:
        yield chart
