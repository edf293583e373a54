"""Trials under the roofline of their machine."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from dyno.facts.entry import Entry, Position
from dyno.facts.load import AXES, COUNTED
from dyno.facts.report import Chart
from dyno.numbers import number
from dyno.report.charts import base, vega
from dyno.report.charts.against import points
from dyno.report.charts.base import Drawing, Row, short
from dyno.report.charts.vega import TOGGLED, let, tip, unit, when
from dyno.report.look import GREY, Look

Placed = list[tuple[Entry, Position]]


def roofline(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    with_peaks = [e for e in entries if e.peaks]
    placed = [
        (e, p) for e in with_peaks for p in e.positions if p.intensity > 0 and p.flops > 0
    ]
    if not placed:
        return
    rows = _rows(placed)
    roofs = _roofs(placed, [row["x"] for row in rows])
    drawing = Drawing(
        look, [*roofs, *rows], "roofline", "Roofline", "Position under the roofline"
    )
    drawing.about = (
        "The grey line is the machine's limit: memory bandwidth on its slope, arithmetic on its flat part. Points near "
        "the line leave little unused."
    )
    drawing.subtitle = ["'decode, prefill or the whole request, at each load'"]
    drawing.toggles = False  # roofs have no series
    bandwidth, arithmetic = (
        "format(datum.bandwidth, '.1%')",
        "format(datum.arithmetic, '.1%')",
    )
    drawing.steps = [
        base.REQUESTS,
        let(
            "shown",
            "isValid(datum.roof) ? datum.shown : format(datum.y, ',.3~r') + ' T operations/s'",
        ),
        let("shares", f"{bandwidth} + ' of bandwidth, ' + {arithmetic} + ' of arithmetic'"),
    ]
    log = vega.from_least("log", 20)
    ticks: Any = {"format": vega.PLAIN, "tickCount": 6}
    x = alt.X(
        "x:Q",
        scale=log,
        axis=alt.Axis(title="Intensity (operations per byte of memory)", **ticks),
    )
    y = alt.Y("y:Q", scale=log, axis=alt.Axis(title="Speed (T operations/s)", **ticks))
    place = {"x": x, "y": y}
    where = {**place, "color": drawing.colour("circle")}
    own = [when("!isValid(datum.roof)"), TOGGLED]
    roof = [when("isValid(datum.roof)"), vega.flatten("x", "y")]
    tooltip = base.tips(
        ("what", "What"), ("load", "Load"), ("shown", "Speed"), ("shares", "Share of peaks")
    )
    marks = points(rows, where, tooltip)
    for mark in marks:
        mark.transform = [*own, *mark.transform]
    path = {**where, "detail": alt.Detail("line:N"), "order": alt.Order("y:Q")}
    roof_tips = [tip("roof", "Roof"), tip("shown", "Peaks")]
    edge = {
        **place,
        "detail": alt.Detail("roof:N"),
        "order": alt.Order("x:Q"),
        "tooltip": roof_tips,
    }
    name = {
        **vega.TEXT,
        "fill": GREY,
        "align": "right",
        "dy": -8,
        "dx": -4,
        "clip": True,
        "limit": 260,
    }
    part = {"type": "text", "dy": -28, "fontSize": 11, "fontStyle": "italic", "clip": True}
    centre: list[Any] = [
        {"op": "median", "field": "x", "as": "x"},
        {"op": "max", "field": "y", "as": "y"},
    ]
    above = alt.AggregateTransform(aggregate=centre, groupby=["what"])
    thin = {**vega.LINE, "strokeWidth": 1, "opacity": 0.6}
    layers = [
        unit(thin, path, *own, params=[vega.toggle(drawing.series), vega.zoom()]),
        unit({**vega.LINE, "stroke": GREY}, edge, *roof),
        unit(name, {**place, "text": alt.Text("roof:N")}, *roof, *vega.last("roof")),
        *marks,
        unit(part, {**place, "text": alt.Text("what:N")}, *own, above),
    ]
    yield drawing.chart(layers)


def _rows(placed: Placed) -> list[Row]:
    rows: list[Row] = []
    lines: dict[tuple[object, ...], int] = {}
    for entry, place in placed:
        level = next((axis for axis in AXES if axis in entry.axes), None)
        row = base.entry_row(entry)
        row["what"] = place.what
        row["x"] = short(place.intensity)
        row["y"] = short(place.flops / 1e12)
        row["bandwidth"] = short(place.bandwidth_share)
        row["arithmetic"] = short(place.arithmetic_share)
        row["load"] = base.load_words(entry.kind, entry.load.without(COUNTED))
        # A line goes through the loads of one workload.
        workload = base.workload(entry, level) if level else ()
        row["line"] = lines.setdefault((place.what, *workload), len(lines))
        rows.append(row)
    return rows


def _roofs(placed: Placed, intensities: Sequence[float]) -> list[Row]:
    """Return a roof for each machine and precision, from left of the least intensity to right of the largest."""
    least, most = min(intensities) / 2, max(intensities) * 2
    roofs: dict[tuple[object, ...], Row] = {}
    for entry, _ in placed:
        peaks = entry.peaks
        if peaks is None or not (flops := peaks.flops.get(entry.precision)):
            continue
        ridge = flops / peaks.bandwidth
        corners = sorted({min(least, ridge / 2), ridge, max(most, ridge * 4)})
        count = f"{peaks.count} × " if peaks.count > 1 else ""
        name = f"{count}{peaks.name}, {entry.precision}"
        roofs[name, flops, peaks.bandwidth] = {
            "series": "",
            "roof": name,
            "x": [short(v) for v in corners],
            "y": [short(min(v * peaks.bandwidth, flops) / 1e12) for v in corners],
            "shown": f"{number(peaks.bandwidth / 1e9)} GB/s, {number(flops / 1e12)} T operations/s"
            + (", measured here" if peaks.measured else ""),
        }
    return list(roofs.values())
