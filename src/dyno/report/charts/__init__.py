"""Charts of a report, drawn with Vega-Altair. `base` and `vega` have what they share; `against` and `bars` are the two
shapes that most of them have."""

from collections.abc import Callable, Iterator, Sequence

import altair as alt
import msgspec
from altair.utils.schemapi import debug_mode

from dyno import plugins
from dyno.facts.entry import Entry
from dyno.facts.report import Chart, Report
from dyno.report.charts import vega
from dyno.report.charts.bars import micro, quality, side_by_side
from dyno.report.charts.base import SCHEMA
from dyno.report.charts.explain import parts, slowest
from dyno.report.charts.front import quality_front
from dyno.report.charts.latency import by_turn, distribution, latency
from dyno.report.charts.requests import requests, timeline
from dyno.report.charts.resources import cost, energy, memory
from dyno.report.charts.roofline import roofline
from dyno.report.charts.search import searches
from dyno.report.charts.throughput import throughput, tradeoff
from dyno.report.look import Look, theme

# In the order in which a page shows them. Those without data make none.
MAKERS: tuple[Callable[[Sequence[Entry], Look], Iterator[Chart]], ...] = (
    throughput, side_by_side, micro, searches, latency, by_turn, distribution, tradeoff,
    parts, slowest, requests, timeline, cost, memory, energy, roofline, quality_front, quality,
)  # fmt: skip


def charts(report: Report) -> list[Chart]:
    look = Look(e.series for e in report.entries)
    # Altair would check each part against the schema as it is made, which takes ten times as long as the making.
    with debug_mode(False):
        drawn = [chart for make in MAKERS for chart in make(report.entries, look)]
    for added in plugins.additions("chart"):
        drawn += _of_plugin(added, report, look)
    return drawn


def _of_plugin(added: plugins.Addition, report: Report, look: Look) -> list[Chart]:
    """Return a plug-in's charts. One that fails costs its chart, not the page."""

    def drawn() -> list[Chart]:
        return [_complete(c) for c in plugins.load(added)(report.entries, look)]

    return plugins.guarded(added, drawn, "failed")[0] or []


def _complete(chart: object) -> Chart:
    """Return a plug-in's chart with what all charts have: the page's width and colours."""
    if not isinstance(chart, Chart):
        raise TypeError(f"{type(chart).__name__} is not a Chart")
    with debug_mode(True):
        alt.Chart.from_dict(chart.spec)  # else it would fail where it is drawn
    usual = {
        "$schema": SCHEMA,
        "width": "container",
        "height": 300,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "title": chart.title,
        "config": theme("currentColor"),
    }
    room = [vega.ROOM.to_dict()]
    spec = {**usual, **chart.spec, "params": [*room, *chart.spec.get("params", [])]}
    return msgspec.structs.replace(chart, spec=spec)
