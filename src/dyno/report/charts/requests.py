"""Completed and failed requests at each load."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts.base import (
    FAILED_TIPS,
    REQUESTS,
    TOGGLED,
    Row,
    colour,
    drawn,
    entry_row,
    failed_row,
    finish,
    let,
    short,
    tips,
    toggle,
    unit,
    value_axis,
    when,
)
from dyno.report.charts.workloads import panels, places
from dyno.report.look import FAILURE, Look


def requests(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    for axis in LOADS:
        kept = [e for e in entries if axis in e.axes and (e.completed is not None or e.failed is not None or e.failure)]
        panel = panels(kept, axis)
        if panel is None or all(e.completed is None and e.failed is None for e in kept):
            continue
        at = places(kept, axis)
        rows: list[Row] = []
        for entry in kept:
            row = failed_row(entry) if entry.failure else entry_row(entry)
            row |= {"x": short(entry.axes[axis]), "workload": at[entry.id]}
            rows.append(row)
        series = look.ordered(row["series"] for row in rows)
        # A number, and sorted: of names, Vega-Lite would make an expression.
        for row in rows:
            row["slot"] = series.index(row["series"])
        x = alt.X("x", type="ordinal", axis=alt.Axis(title=KEYS[axis].axis, labelAngle=0, labelOverlap="greedy"))
        beside = alt.XOffset(
            "slot", type="ordinal", sort="ascending", scale=alt.Scale(domain=list(range(len(series))), paddingInner=0.1)
        )
        color = colour(look, series, "square")
        where = {"x": x, "xOffset": beside}
        tooltip = tips(("x", KEYS[axis].axis))
        title = "Requests"
        top = value_axis("sum", title)
        bar = {"type": "bar"}
        text = {"type": "text", "dy": -6, "fontSize": 10}
        layers = [
            unit(
                bar,
                {**where, "y": value_axis("done", title), "color": color, "tooltip": tooltip},
                when("isValid(datum.completed)"),
                params=[toggle(series)],
            ),
            unit(
                {**bar, "fill": FAILURE},
                {**where, "y": top, "y2": alt.Y2("done"), "tooltip": tooltip},
                when("datum.failed > 0"),
            ),
            unit(
                {**text, "fill": FAILURE, "fontWeight": "bold"},
                {**where, "y": top, "tooltip": tooltip, "text": alt.Text("failed", type="quantitative", format=",")},
                when("datum.failed > 0"),
            ),
        ]
        if any("why" in row for row in rows):
            cross = {**text, "text": "✕", "fill": FAILURE, "fontWeight": "bold", "fontSize": 13}
            layers.append(unit(cross, {**where, "y": top, "tooltip": FAILED_TIPS}, when("isValid(datum.why)")))
        if any(row["verdict"] != "sound" and "why" not in row for row in rows):
            sign = {**text, "dy": -18, "fontWeight": "bold", "fontSize": 11}
            layers.append(
                unit(
                    sign,
                    {**where, "y": top, "text": alt.Text("sign", type="nominal"), "tooltip": tooltip},
                    when("datum.verdict != 'sound' && !isValid(datum.why)"),
                    let("sign", "datum.verdict == 'void' ? '✕' : '?'"),
                )
            )
        yield finish(
            layers,
            rows,
            name=f"requests-{axis.replace('_', '-')}",
            group="Requests",
            title=f"Requests completed and failed against {KEYS[axis].against}",
            about="Failed requests stand on the completed ones, with their count; ✕ on the axis: a trial without a "
            "result. Above a bar, ? is a doubtful and ✕ a void result.",
            subtitle=[panel.told, "'failed: red, with their number'"],
            selects=[panel],
            transform=[
                *drawn(panel),
                TOGGLED,
                let("done", "datum.completed || 0"),
                let("sum", "datum.done + (datum.failed || 0)"),
                REQUESTS,
            ],
        )
