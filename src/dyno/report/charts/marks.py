"""Marks that every chart with points has: a verdict is a shape, failed requests a count, a failed trial a cross."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from dyno.report.charts.base import CROSS, SHAPES, VERDICTS, Row, expr, let, unit, when
from dyno.report.look import FAILURE, GREY


def points(
    rows: Sequence[Row], *, x: Any, y: Any, color: Any, tooltip: Any, test: str = "isValid(datum.y)"
) -> list[Any]:
    """Shape tells the verdict; what isn't sound is hollow too."""
    unsound = any(row.get("verdict", "sound") != "sound" for row in rows)
    ground = expr(f"datum.value == 'sound' ? '{GREY}' : 'transparent'")
    legend = alt.Legend(title="Verdict", symbolFillColor=ground, symbolStrokeColor=GREY, symbolStrokeWidth=2)
    shape = alt.Shape(
        "verdict",
        type="nominal",
        scale=alt.Scale(domain=list(VERDICTS), range=list(SHAPES)),
        legend=legend if unsound else None,
    )
    where = {"x": x, "y": y, "color": color}
    dot = {"type": "point", "filled": True, "size": 60, "opacity": 1, "clip": True}
    mark = {"type": "point", "size": 60, "strokeWidth": 2, "opacity": 1, "clip": True}
    return [
        unit(dot, where, when(f"{test} && datum.verdict == 'sound'")),
        unit(mark, {**where, "shape": shape, "tooltip": tooltip}, when(test)),
    ]


def headroom(*, x: Any, y: Any) -> Any:
    """Draws nothing, a little above the highest point: else the frame would cut that one in half."""
    return unit(
        {"type": "point", "opacity": 0},
        {"x": x, "y": y},
        let("far", "(datum.high || datum.y) * 1.06"),
        when("isValid(datum.far)"),
    )


def lost(rows: Sequence[Row], *, x: Any, y: Any, tooltip: Any) -> list[Any]:
    """Points with failed requests: a ring, and how many failed."""
    if not any(row.get("failed") for row in rows):
        return []
    test = when("datum.failed > 0 && isValid(datum.y)")
    ring = {"type": "point", "size": 230, "stroke": FAILURE, "strokeWidth": 1.5, "opacity": 1, "clip": True}
    # Above and below in turn, where several have the same load.
    above = expr("datum.lift % 2 ? 17 : -16")
    text = {"type": "text", "fill": FAILURE, "fontSize": 10, "yOffset": above, "clip": True}
    count = alt.Text("lost", type="nominal")
    where = {"x": x, "y": y, "tooltip": tooltip}
    return [
        unit(ring, where, test),
        unit(text, {**where, "text": count}, test, let("lost", "format(datum.failed, ',') + ' failed'")),
    ]


def no_result(rows: Sequence[Row], *, x: Any, color: Any, tooltip: Any, top: bool = False, left: int = 0) -> list[Any]:
    """Trials that failed wholly: a cross on the axis, in a ring of the series' colour; one above the other.

    `top`: at the upper end, where the lines come down to the axis. `left`: so many pixels."""
    if not any("why" in row for row in rows):
        return []
    test = when("isValid(datum.why)")
    lift = expr("9 + 17 * datum.lift" if top else "-9 - 17 * datum.lift")
    at = {"x": x, "y": {"value": 0 if top else "height"}, "tooltip": tooltip}
    cross = {"type": "point", "shape": CROSS, "size": 60, "stroke": FAILURE, "strokeWidth": 2.5}
    ring = {"type": "point", "shape": "circle", "size": 200, "strokeWidth": 1.5}
    more = {"opacity": 1, "yOffset": lift, "xOffset": -left}
    return [unit({**ring, **more}, {**at, "color": color}, test), unit({**cross, **more}, at, test)]


def lift(rows: Sequence[Row], *keys: str, highest: str) -> None:
    """Counts failed trials at the same place, which stand one above the other, and points with failed
    requests, from the highest."""
    seen: dict[tuple[Any, ...], int] = {}
    for row in sorted(rows, key=lambda row: -row.get(highest, 0)):
        if "why" in row or "failed" in row:
            place = ("why" in row, *(row.get(k) for k in keys))
            row["lift"] = seen[place] = seen.get(place, -1) + 1
