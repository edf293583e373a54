"""Throughput against the load; served against offered requests; and throughput against latency."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import msgspec

from dyno.facts.entry import Entry, Number
from dyno.facts.load import AXES, KEYS, LOADS, RATES, Load
from dyno.facts.metric import metric
from dyno.facts.report import Chart
from dyno.report.charts import base, vega
from dyno.report.charts.against import (
    Curve,
    LineChart,
    PerSwitch,
    against,
    count_failed,
    curves,
    first_definitions,
    headroom,
    lift,
    no_result,
    points,
)
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.latency import Latencies, statistics
from dyno.report.charts.vega import expr, let, unit, when
from dyno.report.look import GREY, Look

FIGURES = (
    "output_throughput",
    "total_token_throughput",
    "input_throughput",
    "request_throughput",
    "request_goodput",
)
HOW = "Higher is better. Bars are 95 % intervals where known."
QUEUE = (
    "On the dashed line, every offered request was served. Below it a queue grew, or the run was short: the time "
    "until the last answer counts."
)


def measure(name: str) -> Curve:
    m = metric(name)
    unit = m.axis[0].lower() + m.axis[1:]
    return Curve(name, m.explained, m.axis, unit, lambda entry: entry.figures.get(name))


MEASURES = [measure(name) for name in FIGURES]
THROUGHPUT = LineChart(
    "throughput-{}", "Throughput", "Throughput against {}", HOW, MEASURES, per=True
)
SPEED = LineChart(
    "speed-{}",
    "Throughput",
    "Speed of one request against {}",
    HOW,
    [measure("speed")],
    per=True,
    log=True,
)
SERVED = LineChart(
    "served-{}",
    "Throughput",
    "Served against offered requests",
    QUEUE,
    [measure("request_throughput")],
    equal="served = offered",
)


def throughput(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    yield from against(THROUGHPUT, [e for e in entries if e.kind in base.WHOLE], look, AXES)
    micro = [e for e in entries if e.kind == "micro" and "context" in e.axes]
    # tests that differ in their length alone are one line
    if not any(e.load.get("depth") for e in micro):
        micro = [_without_length(e) for e in micro]
    yield from against(SPEED, micro, look, ["context"])
    yield from against(SERVED, [e for e in entries if e.kind == "serve"], look, RATES)


def _without_length(micro: Entry) -> Entry:
    load = Load({**micro.load.settings, "test": letters(micro)})
    return msgspec.structs.replace(micro, load=load)


def letters(micro: Entry) -> str:
    """Return the kind of a test: 'pp512' → 'pp'."""
    test = str(micro.load.get("test") or "")
    return re.sub(r"\d.*", "", test) or test


# ---- against latency ----

STEMS = ("ttft", "tpot", "e2el", "latency")
FIRST = (
    "p99 TTFT",
    "mean TTFT",
    "p50 TTFT",
    "mean Batch latency",
    "mean E2EL",
    "mean TPOT",
)


def tradeoff(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield throughput against latency, load by load, with the Pareto front over all that is shown."""
    entries = [e for e in entries if e.kind in base.WHOLE]
    latencies = Latencies()
    values = _latency_values(entries, latencies)
    shown = [
        e for e in entries if e.failure or (values[e.id] and e.figures.keys() & {*FIGURES})
    ]
    for axis in LOADS:
        drawn = [e for e in shown if axis in e.axes]
        panels = base.panels(drawn, axis, "load")
        if panels is None:
            continue
        panel, rows = panels
        switch = PerSwitch([e for e in drawn if not e.failure])
        for entry, row in zip(drawn, rows, strict=True):
            row |= values[entry.id]
            row |= _throughputs(entry)
            switch.put(row, entry)
        yield _tradeoff(axis, look, panel, rows, latencies.words, switch)


def _throughputs(entry: Entry) -> Row:
    return {
        name: base.shown(entry.figures[name]) for name in FIGURES if name in entry.figures
    }


def _latency_values(entries: Sequence[Entry], latencies: Latencies) -> dict[str, Row]:
    """Return the latencies of each entry by the keys that `latencies` gives them."""
    values: dict[str, Row] = {e.id: {} for e in entries}
    for stem in STEMS:
        names = statistics(entries, stem)
        numbers = {e.id: _statistics(e, stem, names) for e in entries}
        latencies.define(stem, first_definitions(numbers))
        for id, by_statistic in numbers.items():
            for statistic, number in by_statistic.items():
                values[id][latencies.key(id, stem, statistic)] = base.shown(number)
    return values


def _statistics(entry: Entry, stem: str, names: Sequence[str]) -> dict[str, Number]:
    """Return those of these statistics that an entry has."""
    return {
        name: number
        for name in names
        if (number := entry.statistic(name, stem)) is not None
    }


def _tradeoff(
    axis: str,
    look: Look,
    panel: Select,
    rows: list[Row],
    words: Mapping[str, str],
    switch: PerSwitch,
) -> Chart:
    lift(rows, "workload")
    known = base.present(words, rows)
    figures = base.present({m.key: m.words for m in MEASURES}, rows)
    counts = {key: sum(key in row for row in rows) for key in (*known, *figures)}
    rank = {text: -i for i, text in enumerate(FIRST)}
    latency = max(known, key=lambda k: (counts[k], rank.get(known[k], -len(FIRST))))
    figure = max(figures, key=counts.__getitem__)
    level = KEYS[axis]
    title = f"Throughput against latency, by {level.against}"
    drawing = Drawing(
        look, rows, f"tradeoff-{axis}", "Throughput and latency", title, per=switch.modes
    )
    drawing.about = (
        f"Up and to the left is better. Numbers at the points: {level.against}. Points on the Pareto front have the "
        "highest throughput at their latency; void points are excluded. ✕ in the corner: a trial without a result."
    )
    picks = (
        Select("latency", "Latency", known, latency),
        Select("figure", "Throughput", figures, figure),
    )
    drawing.selects = [*picks, panel]
    both = f"figure_words[figure]{switch.words} + ' against ' + latency_words[latency]"
    drawing.subtitle = [switch.subtitle(both), panel.chosen]
    drawing.params = switch.params(MEASURES)
    count_failed(drawing)
    drawing.steps = [
        let("x", "datum[latency]"),
        let("y", f"datum[figure] * {switch.factor}"),
        when("isValid(datum.why) || isValid(datum.x) && isValid(datum.y)"),
        let("shown", switch.value("figure")),
        let("late", "format(datum.x, ',') + ' ms'"),
        base.REQUESTS,
    ]
    heading, color = f"axes[figure]{switch.words}", drawing.colour()
    log = vega.spread(rows, [*known], 16)
    place = {"x": vega.milliseconds("x", log, 24), "y": vega.amount("y", expr(heading))}
    where = {**place, "color": color}
    tooltip = base.tips(("load", level.axis), ("shown", "Throughput"), ("late", "Latency"))
    label = {**vega.TEXT, **vega.ROOMY, "align": "left", "dx": 7, "dy": 7, "clip": True}
    number = {"text": alt.Text("load:Q", format=vega.PLAIN)}
    corner = {"x": {"value": "width"}, "color": color}
    layers = curves(drawing, {**where, "order": alt.Order("load:Q")}, switch)
    layers += [headroom(place["x"], heading), *front(place), *points(rows, where, tooltip)]
    layers.append(unit(label, {**place, **number}, when("isValid(datum.y)")))
    layers += no_result(rows, corner, [vega.tip("load", level.axis)], left=14)
    return drawing.chart(layers)


def front(where: Mapping[str, Any]) -> list[Any]:
    """Return each point, from the left, with more throughput than all before it."""
    sort = [alt.SortField("x", order="ascending"), alt.SortField("y", order="descending")]
    best = [
        when("datum.verdict != 'void' && isValid(datum.y)"),
        vega.window("max", "top", "y", sort),
        vega.window("lag", "before", "top", sort),
        when("!isValid(datum.before) || datum.y > datum.before"),
    ]
    line = {
        **vega.LINE,
        "interpolate": "step-after",
        "stroke": GREY,
        "strokeWidth": 5,
        "opacity": 0.4,
    }
    name = {
        **vega.TEXT,
        **vega.ROOMY,
        "text": "Pareto front",
        "fill": GREY,
        "align": "right",
        "baseline": "top",
        "clip": True,
        "dx": -12,
        "dy": 8,
    }
    path = {**where, "order": alt.Order("x:Q")}
    return [unit(line, path, *best), unit(name, where, *best, *vega.last())]
