"""Horizontal bars from zero: a group of bars for each of a few things, a bar for each series."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from dyno.report.charts.base import Row, colour, expr, let, toggle, unit, value_axis, when
from dyno.report.look import Look

LEFT = "min(260, room * 0.38)"  # pixels for names; half of a phone is for the bars
SIGN = let(
    "sign",
    "isValid(datum.why) ? '✕ no result' : datum.text"
    " + (datum.verdict == 'doubtful' ? '  ?' : datum.verdict == 'void' ? '  ✕' : '')",
)


def bars(
    rows: Sequence[Row],
    look: Look,
    *,
    title: str | alt.ExprRef,
    tooltip: Any,
    of: str = "series",  # field of what has a place of its own on the vertical axis
) -> list[Any]:
    """Layers, and where each row stands.

    They draw `y`, with `low` and `high` where these are known, and write `text` beside the bar, with a mark where it
    isn't sound. A series has a bar of its own where `of` isn't the series."""
    series = look.ordered(row["series"] for row in rows)
    order = series if of == "series" else list(dict.fromkeys(row[of] for row in rows))
    axis = alt.Axis(title=None, labelLimit=expr(LEFT), domain=False, ticks=False)
    # By numbers: of names, Vega-Lite would make an expression.
    for row in rows:
        row |= {"place": order.index(row[of]), "slot": series.index(row["series"])}
    sort = alt.EncodingSortField(field="place", op="min")
    y = alt.Y(of, type="nominal", axis=axis, sort=sort, scale=alt.Scale(paddingInner=0.3, paddingOuter=0.2))
    beside = (
        alt.YOffset("slot", type="ordinal", sort="ascending", scale=alt.Scale(domain=list(range(len(series)))))
        if of != "series"
        else alt.Undefined
    )
    x = value_axis("y", title, channel=alt.X)
    alone = of == "series"  # the axis has the names
    color = colour(look, series, "" if alone else "square", LEFT)
    where = {"y": y, "yOffset": beside, "tooltip": tooltip}
    layers = [
        unit(
            {"type": "bar", "height": {"band": 0.85}},
            {**where, "x": x, "color": color},
            params=[] if alone else [toggle(series)],
        )
    ]
    if any("low" in row for row in rows):
        low = value_axis("low", title, channel=alt.X)
        layers.append(
            unit(
                {"type": "rule", "strokeWidth": 1.5},
                {**where, "x": low, "x2": alt.X2("high")},
                when("isValid(datum.low)"),
            )
        )
    end = value_axis("end", title, channel=alt.X)
    ends = [let("end", "isValid(datum.high) ? max(datum.high, datum.y) : datum.y"), SIGN]
    text = {"type": "text", "align": "left", "dx": 4, "fontSize": 10}
    layers.append(unit(text, {**where, "x": end, "text": alt.Text("sign", type="nominal")}, *ends))
    # Draws nothing, where the longest text ends: it must not be cut.
    room = let("far", f"datum.end * (1 + length(datum.sign) * 6.5 / max(60, room - {LEFT} - length(datum.sign) * 6.5))")
    layers.append(
        unit({"type": "point", "opacity": 0}, {"x": value_axis("far", title, channel=alt.X), "y": y}, *ends, room)
    )
    return layers


def height(count: int) -> int:
    """Of so many bars."""
    return max(90, 24 * count + 20)
