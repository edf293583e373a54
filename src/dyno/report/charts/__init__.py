"""Charts of a report, drawn with Vega-Altair. One file a family; `base.py` has what they share."""

from collections.abc import Callable, Iterator, Sequence

from altair.utils.schemapi import debug_mode

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
from dyno.facts.report import Report
from dyno.report.charts.cost import cost
from dyno.report.charts.distribution import distribution
from dyno.report.charts.energy import energy
from dyno.report.charts.latency import latency
from dyno.report.charts.memory import memory
from dyno.report.charts.micro import micro
from dyno.report.charts.quality import quality
from dyno.report.charts.requests import requests
from dyno.report.charts.roofline import roofline
from dyno.report.charts.side_by_side import side_by_side
from dyno.report.charts.throughput import served, throughput
from dyno.report.charts.timeline import timeline
from dyno.report.charts.tradeoff import tradeoff
from dyno.report.look import Look

# In the order in which a page shows them. What has no data makes none.
MAKERS: tuple[Callable[[Sequence[Entry], Look], Iterator[Chart]], ...] = (
    throughput,
    served,
    side_by_side,
    micro,
    latency,
    distribution,
    tradeoff,
    requests,
    timeline,
    cost,
    memory,
    energy,
    roofline,
    quality,
)


def charts(report: Report) -> list[Chart]:
    look = Look(e.series for e in report.entries)
    # Altair would check each part against the schema as it is made, which takes ten times as long as the making.
    with debug_mode(False):
        return [chart for make in MAKERS for chart in make(report.entries, look)]
