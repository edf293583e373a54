"""Short names for the parts of a Vega-Lite specification."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from dyno.report.look import WIDTH

PLAIN = ",.7~r"  # a number without an exponent, and not rounded to the ticks' distance
CROSS = "M-1,-1L1,1M-1,1L1,-1"
LINE = {"type": "line", "strokeWidth": 2, "clip": True}
POINT = {"type": "point", "size": 60, "opacity": 1, "clip": True}
TEXT = {"type": "text", "fontSize": 10}
# labels that would overlap on a phone
ROOMY = {"opacity": alt.ExprRef(expr="room < 480 ? 0 : 1")}
_LETTER = 6.2  # pixels of a legend's letter, on average
INVISIBLE = {"type": "point", "opacity": 0}  # to make room
# Pixels there are for all of a chart. Asked once: what depends on the drawn width would change that width.
ROOM = alt.VariableParameter(
    name="room", expr=f"isFinite(containerSize()[0]) ? containerSize()[0] : {WIDTH}"
)
TOGGLED = alt.FilterTransform(filter=alt.ParameterPredicate(param="toggle"))


def constant(name: str, value: Any) -> Any:
    """Return a value that expressions refer to by name."""
    return alt.VariableParameter(name=name, value=value)


def expr(text: str) -> alt.ExprRef:
    return alt.ExprRef(expr=text)


# ---- transforms ----


def when(test: str) -> alt.FilterTransform:
    return alt.FilterTransform(filter=test)


def let(name: str, text: str) -> alt.CalculateTransform:
    return alt.CalculateTransform(calculate=text, **{"as": name})


def flatten(*fields: str) -> alt.FlattenTransform:
    return alt.FlattenTransform(flatten=list(fields))


def window(
    op: Any,
    name: str,
    field: str = "",
    sort: Sequence[alt.SortField] = (),
    by: Sequence[str] = (),
) -> Any:
    """Give each row a value calculated from the rows before it."""
    options: dict[str, Any] = {"op": op, "as": name}
    if field:
        options["field"] = field
    order, groups = list(sort) or alt.Undefined, list(by) or alt.Undefined
    return alt.WindowTransform(
        window=[alt.WindowFieldDef(**options)], sort=order, groupby=groups, ignorePeers=True
    )


def last(*by: str) -> list[Any]:
    """Keep the row with the largest x, of each group."""
    end = alt.JoinAggregateFieldDef(op="max", field="x", **{"as": "end"})
    join = alt.JoinAggregateTransform(
        joinaggregate=[end], groupby=list(by) or alt.Undefined
    )
    return [join, when("datum.x == datum.end")]


# ---- encodings ----


def wide(values: Iterable[float], times: float) -> bool:
    """Return whether the largest is at least `times` the smallest; never where one isn't above zero."""
    known = list(values)
    return bool(known) and min(known) > 0 and max(known) / min(known) >= times


def spread(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], times: float) -> bool:
    """Return whether a workload's values of one field need a logarithmic axis, on which no zero has a place."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for key in (k for k in keys if k in row):
            values.setdefault((key, row["workload"]), []).append(row[key])
    fields = list(values.values())
    return any(wide(each, times) for each in fields) and all(
        min(each) > 0 for each in fields
    )


def from_least(kind: Any, padding: int) -> alt.Scale:
    """Return a scale that need not begin at zero."""
    return alt.Scale(
        type=kind,
        nice=False,
        zero=False if kind == "linear" else alt.Undefined,
        padding=padding,
    )


def amount(
    field: str, title: str | alt.ExprRef, *, log: bool = False, channel: Any = alt.Y
) -> Any:
    """Return a scale from zero, or a logarithmic one."""
    scale = (
        alt.Scale(type="log", nice=False, padding=16)
        if log
        else alt.Scale(zero=True, nice=True)
    )
    axis = alt.Axis(title=title, format=PLAIN, tickCount=5 if log else alt.Undefined)
    # Without stack=None, Vega-Lite would order bars by an expression of the series' names.
    return channel(f"{field}:Q", scale=scale, axis=axis, stack=None)


def milliseconds(field: str, log: bool, padding: int) -> alt.X:
    """Return the horizontal axis of the latency that is selected."""
    title, ticks = expr("latency_words[latency] + ' (ms)'"), 6 if log else alt.Undefined
    scale = from_least("log" if log else "linear", padding)
    return alt.X(
        f"{field}:Q", scale=scale, axis=alt.Axis(title=title, format=PLAIN, tickCount=ticks)
    )


def seconds(field: str) -> alt.X:
    title = "Time since the load began (s)"
    return alt.X(
        f"{field}:Q", scale=alt.Scale(nice=True, zero=True), axis=alt.Axis(title=title)
    )


def slot(channel: Any, count: int, **scale: Any) -> Any:
    """Return a place for each series beside the others. By number: of names, Vega-Lite would make an expression."""
    return channel(
        "slot:O", sort="ascending", scale=alt.Scale(domain=list(range(count)), **scale)
    )


def legend(symbol: str, columns: str, limit: str, **more: Any) -> alt.Legend:
    """Return a legend. `columns`, `limit` (of a label, in pixels): expressions. A name that is too long is cut in its
    middle: series often differ at their ends."""
    # A line's sample shows a whole period of its dashes.
    size = 256 if symbol == "stroke" else 110
    shape: dict[str, Any] = {"symbolType": symbol, "symbolOpacity": 1, "symbolSize": size}
    letters = f"max(8, floor(({limit}) / {_LETTER}))"
    cut = (
        f"length(datum.label) > {letters} ? slice(datum.label, 0, ceil({letters} / 2) - 1) + '…' + "
        f"slice(datum.label, 1 - floor({letters} / 2)) : datum.label"
    )
    return alt.Legend(
        title=None,
        columns=expr(columns),
        labelExpr=cut,
        labelLimit=expr(limit),
        **shape,
        **more,
    )


def tip(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:N", title=title)


# ---- layers, and what a reader does with them ----


def unit(
    mark: Mapping[str, Any],
    encoding: Mapping[str, Any],
    *transform: Any,
    params: Sequence[Any] = (),
) -> Any:
    """Return a layer."""
    return alt.UnitSpec(
        mark=alt.MarkDef(**mark),
        encoding=alt.Encoding(
            **{k: v for k, v in encoding.items() if v is not alt.Undefined}
        ),
        transform=list(transform) or alt.Undefined,
        params=list(params) or alt.Undefined,
    )


def toggle(series: Iterable[str]) -> Any:
    """Let a click on a legend's entry hide or show it. With none left, all are shown again."""
    select = alt.PointSelectionConfig(
        type="point", fields=["series"], toggle="true", clear=False
    )
    value = [{"series": name} for name in series]
    return alt.SelectionParameter(name="toggle", select=select, bind="legend", value=value)


def zoom(*encodings: Any) -> Any:
    """Zoom by wheel with a key pressed, so that the page scrolls; pan with a mouse, so that a finger scrolls."""
    select = alt.IntervalSelectionConfig(
        type="interval",
        encodings=list(encodings) or alt.Undefined,
        zoom="wheel![event.ctrlKey || event.shiftKey || event.metaKey]",
        translate="[pointerdown[event.pointerType != 'touch'], window:pointerup] > window:pointermove!",
    )
    return alt.SelectionParameter(name="zoom", select=select, bind="scales")
