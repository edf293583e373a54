"""What charts share: a series' colour, marks of verdict and failure, selects, axes, and how layers become a chart.

Names and words of strangers are in rows and in values of parameters alone, never in an expression.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import msgspec

from dyno.facts.chart import DATA, Chart
from dyno.facts.definition import DEFINITIONS
from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS
from dyno.report.look import PALETTE, Look

ESTIMATE = [5, 4]
VERDICTS = ("sound", "doubtful", "void")
CROSS = "M-1,-1L1,1M-1,1L1,-1"
SHAPES = ("circle", "triangle-up", CROSS)
INK = "currentColor"  # the page's, light or dark
PLAIN = ",.7~r"  # a number without an exponent, and not rounded to the ticks' distance
WIDTH = 720  # of a picture
HEIGHT = 300
ROWS_MAX = 12_000  # items of a chart; a page holds many charts


T = TypeVar("T")
Row = dict[str, Any]
Option = str | int


class Select(msgspec.Struct, frozen=True):
    """A box to choose from. Its words are also a parameter, `<name>_words`, for titles."""

    name: str
    label: str
    words: Mapping[Any, str]  # of each option
    value: Option

    def params(self) -> list[Any]:
        options = list(self.words)
        told = [cut(text, 90) for text in self.words.values()]
        bind = alt.BindRadioSelect(input="select", options=options, labels=told, name=f"{self.label} ")
        return [
            alt.VariableParameter(name=self.name, value=self.value, bind=bind if len(options) > 1 else alt.Undefined),
            constant(f"{self.name}_words", {str(k): text for k, text in zip(options, told, strict=True)}),
        ]

    @property
    def told(self) -> str:
        """The expression of what is chosen, in words."""
        return f"{self.name}_words[{self.name}]"


def constant(name: str, value: Any) -> Any:
    """A value that expressions ask by its name."""
    return alt.VariableParameter(name=name, value=value)


def expr(text: str) -> alt.ExprRef:
    return alt.ExprRef(expr=text)


def when(test: str) -> alt.FilterTransform:
    return alt.FilterTransform(filter=test)


def let(name: str, text: str) -> alt.CalculateTransform:
    return alt.CalculateTransform(calculate=text, **{"as": name})


def window(op: Any, name: str, field: str = "", sort: Sequence[alt.SortField] = (), by: Sequence[str] = ()) -> Any:
    """Of each row, something of those before it."""
    told: dict[str, Any] = {"op": op, "as": name, **({"field": field} if field else {})}
    return alt.WindowTransform(
        window=[alt.WindowFieldDef(**told)],
        sort=list(sort) or alt.Undefined,
        groupby=list(by) or alt.Undefined,
        ignorePeers=True,
    )


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- numbers ----


def short(value: float) -> float | int:
    """Five digits, which no eye tells from all of them."""
    if not math.isfinite(value) or value == 0:
        return 0
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def shown(number: Number) -> float | int:
    """What somebody printed stays as it was printed."""
    if number.half:
        return int(number.value) if number.value.is_integer() and abs(number.value) < 1e15 else number.value
    return short(number.value)


def put(row: Row, key: str, number: Number) -> None:
    """A figure with its interval. What is no number has no place."""
    if not math.isfinite(number.value):
        return
    row[key] = shown(number)
    if number.low is not None and number.high is not None:
        row[f"{key}_low"], row[f"{key}_high"] = short(number.low), short(number.high)


def evenly(items: list[T], most: int) -> list[T]:
    """So many of them, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def wide(values: Iterable[float], times: float) -> bool:
    """The largest is so many times the smallest; never where one isn't above zero."""
    told = list(values)
    return bool(told) and min(told) > 0 and max(told) / min(told) >= times


def meaning_words(index: Mapping[str, int]) -> dict[Option, str]:
    out: dict[Option, str] = {}
    for i in sorted(set(index.values())):
        keys = [k for k, at in index.items() if at == i]
        tools = ", ".join(k.split(".")[0] for k in keys if k)
        out[i] = f"{tools}: {DEFINITIONS[keys[0]]}" if tools and keys[0] in DEFINITIONS else tools or "not told"
    return out


# ---- axes ----


def load_axis(axis: str, values: Iterable[float]) -> alt.X:
    """Ticks stand at the loads that were measured."""
    at = sorted(set(values))
    kind: Any = "log" if wide(at, 16) else "linear"
    if at[0] <= 0 and wide([v for v in at if v > 0], 16):
        kind = "symlog"
    ticks = [short(v) for v in at] if len(at) <= 40 else alt.Undefined
    return alt.X(
        "x",
        type="quantitative",
        scale=alt.Scale(type=kind, nice=False, zero=False if kind == "linear" else alt.Undefined, padding=22),
        axis=alt.Axis(title=KEYS[axis].axis, values=ticks, format=PLAIN),
    )


def value_axis(field: str, title: str | alt.ExprRef, *, log: bool = False, channel: Any = alt.Y) -> Any:
    """From zero, or logarithmic."""
    scale = alt.Scale(type="log", nice=False, padding=16) if log else alt.Scale(zero=True, nice=True)
    ticks = alt.Axis(title=title, format=PLAIN, tickCount=5 if log else alt.Undefined)
    # Without stack=None, Vega-Lite would order bars by an expression of the series' names.
    return channel(field, type="quantitative", scale=scale, axis=ticks, stack=None)


def _legend(symbol: str, left: str) -> alt.Legend:
    """As many columns as there is room for: a phone has one. `left`: pixels of what stands left of the plot."""
    columns = f"max(1, floor((room - {left}) / 210))"
    limit = expr(f"(room - {left}) / {columns} - 34")
    return alt.Legend(
        title=None,
        columns=expr(columns),
        labelLimit=limit,
        symbolType=symbol,
        symbolOpacity=1,
        symbolSize=110,
        symbolStrokeWidth=2.5,
    )


def colour(look: Look, series: Iterable[str], symbol: str = "stroke", left: str = "80") -> alt.Color:
    """`symbol`: of the legend; '': it has none."""
    names = look.ordered(series)
    scale = alt.Scale(domain=names, range=[look.colour(n) for n in names])
    return alt.Color("series", type="nominal", scale=scale, legend=_legend(symbol, left) if symbol else None)


def dashes(look: Look, series: Iterable[str]) -> Any:
    """Undefined where colours alone tell all series apart."""
    names = look.ordered(series)
    if all(look.places[n] < len(PALETTE) for n in names):
        return alt.Undefined
    scale = alt.Scale(domain=names, range=[look.dash(n) for n in names])
    return alt.StrokeDash("series", type="nominal", scale=scale, legend=_legend("stroke", "80"))


# ---- marks ----


def unit(mark: Mapping[str, Any], encoding: Mapping[str, Any], *transform: Any, params: Sequence[Any] = ()) -> Any:
    """A layer."""
    return alt.UnitSpec(
        mark=alt.MarkDef(**mark),
        encoding=alt.Encoding(**{k: v for k, v in encoding.items() if v is not alt.Undefined}),
        transform=list(transform) or alt.Undefined,
        params=list(params) or alt.Undefined,
    )


# ---- rows and tooltips ----


def entry_row(entry: Entry) -> Row:
    """What every row of an entry has. Verdicts that are sound are told too: the shape asks."""
    row: Row = {"entry": entry.id, "series": entry.series, "verdict": entry.verdict}
    if entry.completed is not None:
        row["completed"] = short(entry.completed)
    if entry.failed:
        row["failed"] = short(entry.failed)
    return row


def failed_row(entry: Entry) -> Row:
    return {**entry_row(entry), "why": cut(re.sub(r"\s+", " ", entry.failure), 160)}


def tip(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(field, type="nominal", title=title)


def tips(*more: tuple[str, str]) -> list[alt.Tooltip]:
    return [
        tip("series", "Series"),
        *(tip(f, t) for f, t in more),
        tip("requests", "Requests"),
        tip("verdict", "Verdict"),
    ]


FAILED_TIPS = [tip("series", "Series"), tip("why", "No result"), tip("verdict", "Verdict")]
REQUESTS = let(
    "requests",
    "(isValid(datum.completed) ? format(datum.completed, ',') + ' completed' : 'completed: not told')"
    " + (datum.failed > 0 ? ', ' + format(datum.failed, ',') + ' failed' : '')",
)


def interval(low: str, high: str, as_: str) -> str:
    """The expression of an interval in words; '' where it isn't known."""
    return f"(isValid({low}) ? ' (95 %: ' + {as_.format(low)} + ' to ' + {as_.format(high)} + ')' : '')"


# ---- the whole ----


def drawn(*selects: Select) -> list[Any]:
    """Filters: what is chosen, and what isn't hidden."""
    chosen = [when(f"datum.{s.name} == {s.name}") for s in selects if len(s.words) > 1]
    return [*chosen, when("indexof(hidden, datum.series) < 0")]


def toggle(series: Iterable[str]) -> Any:
    """A click on a legend's entry hides or shows it. With none left, all are shown again."""
    select = alt.PointSelectionConfig(type="point", fields=["series"], toggle="true", clear=False)
    value = [{"series": name} for name in series]
    return alt.SelectionParameter(name="toggle", select=select, bind="legend", value=value)


# Pixels there are for all of it. Asked once: what hangs on the drawn width would change that width.
ROOM = alt.VariableParameter(name="room", expr=f"isFinite(containerSize()[0]) ? containerSize()[0] : {WIDTH}")
TOGGLED = alt.FilterTransform(filter=alt.ParameterPredicate(param="toggle"))


def zoom(*encodings: Any) -> Any:
    """By wheel with a key held, so that the page scrolls; by drag with a mouse, so that a finger scrolls."""
    keys = "event.ctrlKey || event.shiftKey || event.metaKey"
    select = alt.IntervalSelectionConfig(
        type="interval",
        encodings=list(encodings) or alt.Undefined,
        zoom=f"wheel![{keys}]",
        translate="[pointerdown[event.pointerType != 'touch'], window:pointerup] > window:pointermove!",
    )
    return alt.SelectionParameter(name="zoom", select=select, bind="scales")


def finish(
    layers: Sequence[Any],
    rows: list[Row],
    *,
    name: str,
    group: str,
    title: str,
    about: str,
    subtitle: Sequence[str] = (),  # expressions
    transform: Sequence[Any] = (),
    selects: Sequence[Select] = (),
    params: Sequence[Any] = (),
    per: Sequence[str] = (),
    height: Any = HEIGHT,
    resolve: Any = alt.Undefined,
) -> Chart:
    switch = [constant("per", "measured")] if per else []
    told = f"[{', '.join(subtitle)}]"
    # A phone shows them one below the other.
    lines = f"room < 480 ? {told} : join({told}, ' · ')"
    spec = alt.TopLevelLayerSpec(
        layer=list(layers),
        data=alt.NamedData(name=DATA),
        transform=list(transform) or alt.Undefined,
        params=[constant("hidden", []), ROOM, *switch, *params, *(p for s in selects for p in s.params())],
        title=alt.TitleParams(text=title, subtitle=expr(lines) if subtitle else alt.Undefined),
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        resolve=resolve,
    ).to_dict(validate=False)
    spec["$schema"] = "https://vega.github.io/schema/vega-lite/v6.json"
    spec["config"] = theme(INK)
    return Chart(name=name, group=group, title=title, about=about, spec=spec, rows=rows, per=list(per))


def theme(ink: str) -> dict[str, Any]:
    """Text and lines in one colour, whichever the page has."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "axis": {
            **text,
            "tickColor": ink,
            "domainColor": ink,
            "gridColor": ink,
            "gridOpacity": 0.12,
            "tickOpacity": 0.5,
            "domainOpacity": 0.5,
            "labelOverlap": "greedy",
            "labelSeparation": 8,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "direction": "horizontal",
            "rowPadding": 4,
            "columnPadding": 14,
            "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 6}},
        },
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "anchor": "start",
            "fontSize": {"expr": "room < 480 ? 13 : 15"},
            "subtitleFontSize": 12,
            "subtitlePadding": 5,
            "offset": 12,
            "frame": "bounds",
            "limit": {"expr": "room - 20"},
        },
        "text": {"fill": ink},
        "rule": {"color": ink},
        "view": {"stroke": None},
    }
