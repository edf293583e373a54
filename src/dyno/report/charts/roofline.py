"""Where trials stand under the roofline of what they ran on."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
from dyno.facts.load import AXES
from dyno.report.charts.base import (
    PLAIN,
    REQUESTS,
    TOGGLED,
    Row,
    colour,
    drawn,
    entry_row,
    finish,
    let,
    short,
    tip,
    tips,
    toggle,
    unit,
    when,
    zoom,
)
from dyno.report.charts.marks import lost, points
from dyno.report.charts.workloads import load_words, workload
from dyno.report.look import GREY, Look


def roofline(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows: list[Row] = []
    roofs: dict[tuple[object, ...], Row] = {}
    placed = [(e, p) for e in entries for p in e.positions if e.peaks and p.intensity > 0 and p.flops > 0]
    lines: dict[tuple[object, ...], int] = {}
    for entry, place in placed:
        level = next((axis for axis in AXES if axis in entry.axes), None)
        row = entry_row(entry) | {"what": place.what, "x": short(place.intensity), "y": short(place.flops / 1e12)}
        row |= {"bandwidth": short(place.bandwidth_share), "arithmetic": short(place.arithmetic_share)}
        row["load"] = load_words((k, v) for k, v in entry.load.items() if k != "num_prompts")
        # A line goes through the loads of one workload.
        row["line"] = lines.setdefault((place.what, *(workload(entry, level) if level else ())), len(lines))
        rows.append(row)
    if not rows:
        return
    least, most = min(row["x"] for row in rows) / 2, max(row["x"] for row in rows) * 2
    for entry, _ in placed:
        peaks = entry.peaks
        if peaks is None or not (flops := peaks.flops.get(entry.precision)):
            continue
        ridge = flops / peaks.bandwidth
        at = sorted({min(least, ridge / 2), ridge, max(most, ridge * 4)})
        count = f"{peaks.count} × " if peaks.count > 1 else ""
        name = f"{count}{peaks.name}, {entry.precision}"
        roofs[name, flops, peaks.bandwidth] = {
            "series": "",
            "roof": name,
            "x": [short(v) for v in at],
            "y": [short(min(v * peaks.bandwidth, flops) / 1e12) for v in at],
            "told": f"{peaks.bandwidth / 1e9:,.4g} GB/s, {flops / 1e12:,.4g} T operations/s"
            + (", measured here" if peaks.measured else ""),
        }
    series = look.ordered(row["series"] for row in rows)
    log = alt.Scale(type="log", nice=False, padding=20)
    x = alt.X(
        "x",
        type="quantitative",
        scale=log,
        axis=alt.Axis(title="Intensity (operations for each byte of memory)", format=PLAIN, tickCount=6),
    )
    y = alt.Y(
        "y", type="quantitative", scale=log, axis=alt.Axis(title="Done (T operations/s)", format=PLAIN, tickCount=6)
    )
    where: dict[str, Any] = {"x": x, "y": y}
    color = colour(look, series, "circle")
    own = [when("!isValid(datum.roof)"), TOGGLED]
    roof = [when("isValid(datum.roof)"), alt.FlattenTransform(flatten=["x", "y"])]
    tooltip = tips(("what", "What"), ("load", "Load"), ("told", "Done"), ("shares", "Of the peaks"))
    line = {"type": "line", "stroke": GREY, "strokeWidth": 2, "clip": True}
    label = {
        "type": "text",
        "fill": GREY,
        "align": "right",
        "dy": -8,
        "dx": -4,
        "fontSize": 10,
        "clip": True,
        "limit": 260,
    }
    part = {"type": "text", "dy": -28, "fontSize": 11, "fontStyle": "italic", "clip": True}
    centre = [
        alt.AggregatedFieldDef(op="median", field="x", **{"as": "x"}),
        alt.AggregatedFieldDef(op="max", field="y", **{"as": "y"}),
    ]
    thin = {"type": "line", "strokeWidth": 1, "opacity": 0.6, "clip": True}
    marks = [*lost(rows, **where, tooltip=tooltip), *points(rows, **where, color=color, tooltip=tooltip)]
    for mark in marks:
        mark.transform = [*own, *mark.transform]
    layers = [
        unit(
            thin,
            {
                **where,
                "color": color,
                "detail": alt.Detail("line", type="nominal"),
                "order": alt.Order("y", type="quantitative"),
            },
            *own,
            params=[toggle(series), zoom()],
        ),
        unit(
            line,
            {
                **where,
                "detail": alt.Detail("roof", type="nominal"),
                "order": alt.Order("x", type="quantitative"),
                "tooltip": [tip("roof", "Roof"), tip("told", "Peaks")],
            },
            *roof,
        ),
        unit(
            label,
            {**where, "text": alt.Text("roof", type="nominal")},
            *roof,
            alt.JoinAggregateTransform(
                joinaggregate=[alt.JoinAggregateFieldDef(op="max", field="x", **{"as": "end"})], groupby=["roof"]
            ),
            when("datum.x == datum.end"),
        ),
        *marks,
        unit(
            part,
            {**where, "text": alt.Text("what", type="nominal")},
            *own,
            alt.AggregateTransform(aggregate=centre, groupby=["what"]),
        ),
    ]
    yield finish(
        layers,
        [*roofs.values(), *rows],
        name="roofline",
        group="Roofline",
        title="Position under the roofline",
        about="The grey line is what the machine could do at most: on its slope the memory's bandwidth holds, on "
        "its flat the arithmetic. The nearer a point is to it, the less is left.",
        subtitle=["'decode, prefill, or the whole of it, at each load'"],
        transform=[
            *drawn(),
            REQUESTS,
            let("told", "isValid(datum.roof) ? datum.told : format(datum.y, ',.3~r') + ' T operations/s'"),
            let(
                "shares",
                "format(datum.bandwidth, '.1%') + ' of bandwidth, ' + format(datum.arithmetic, '.1%') "
                "+ ' of arithmetic'",
            ),
        ],
    )
