"""Speed, quality and cost of each series in one chart, with the front: nothing else is both faster and better."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.entry import Entry
from dyno.facts.metric import metric
from dyno.facts.report import Chart
from dyno.numbers import currency
from dyno.report.charts import base, vega
from dyno.report.charts.against import points
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import expr, let, unit, when
from dyno.report.front import speed
from dyno.report.look import GREY, Look


def quality_front(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows: list[Row] = []
    names: dict[str, str] = {}
    for entry in entries:
        fast = speed(entry)
        if entry.quality is None or not entry.quality.timed or fast is None:
            continue
        names["speed"] = metric(fast[0]).axis
        row = base.entry_row(entry) | {
            "speed": base.shown(fast[1]),
            "load": entry.load.words,
        }
        base.put(row, "y", entry.quality.score)
        row["loss"] = entry.quality.word or "reference"
        if entry.cost is not None and (
            paid := entry.cost.per_million_output or entry.cost.per_million_total
        ):
            kind = "output tokens" if entry.cost.per_million_output else "tokens"
            names["cost"] = f"Cost of a million {kind} ({currency(entry.cost.currency)})"
            row["cost"] = base.short(paid)
        rows.append(row)
    if len(rows) < 2:
        return
    _mark_front(rows, "speed", -1)
    _mark_front(rows, "cost", 1)
    yield _chart(rows, names, look)


def _mark_front(rows: Sequence[Row], key: str, better: int) -> None:
    """Mark those that have a higher score than all that are as fast, or as cheap, and not void."""
    best = float("-inf")
    usable = [row for row in rows if key in row and row["verdict"] != "void"]
    for row in sorted(usable, key=lambda row: (better * row[key], -row["y"])):
        if row["y"] > best:
            row[f"{key}_front"] = 1
            best = row["y"]


def _chart(rows: list[Row], names: dict[str, str], look: Look) -> Chart:
    drawing = Drawing(
        look, rows, "quality-front", "Quality", "Quality against speed and cost"
    )
    drawing.about = (
        "Up is better; right is faster, or, for cost, left is cheaper. Bars are 95 % intervals of each score. On the "
        "grey line no other series has both a higher score and a higher speed or lower cost. Differences between "
        "scores are surer than the bars suggest: they are paired by item."
    )
    choice = Select("against", "Against", names, "speed")
    drawing.selects = [choice]
    interval = "' (95 %: ' + format(datum.y_low, '.4~r') + ' to ' + format(datum.y_high, '.4~r') + ')'"
    drawing.steps = [
        let("x", "datum[against]"),
        when("isValid(datum.x)"),
        let("shown", f"format(datum.y, '.4~r') + (isValid(datum.y_low) ? {interval} : '')"),
        let("beside", "format(datum.x, ',.4~r')"),
        base.REQUESTS,
    ]
    axis = alt.Axis(title=expr(choice.chosen), format=vega.PLAIN)
    x = alt.X("x:Q", scale=vega.from_least("linear", 40), axis=axis)
    scores = alt.Axis(title="Score", format=vega.PLAIN)
    y = alt.Y("y:Q", scale=vega.from_least("linear", 16), axis=scores)
    where = {"x": x, "y": y, "color": drawing.colour()}
    line = {**vega.LINE, "stroke": GREY, "strokeWidth": 5, "opacity": 0.4}
    tooltip = base.tips(
        ("load", "Load"),
        ("shown", "Score"),
        ("loss", "Against the reference"),
        ("beside", "Value"),
    )
    label = {**vega.TEXT, **vega.ROOMY, "align": "left", "dx": 8, "dy": -8, "limit": 160}
    rule = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.75}
    ends = {**where, "y": alt.Y("y_low:Q", title="Score"), "y2": alt.Y2("y_high")}
    layers = [
        unit(
            line,
            {"x": x, "y": y, "order": alt.Order("x:Q")},
            when("datum[against + '_front'] == 1"),
        ),
        unit(rule, ends, when("isValid(datum.y_low)")),
        *points(rows, where, tooltip),
        unit(
            label,
            {"x": x, "y": y, "text": alt.Text("series:N")},
            params=[vega.toggle(drawing.series)],
        ),
    ]
    return drawing.chart(layers)
