"""A search for the highest load within a target: each figure of the target against the load, its limit, the answer."""

from collections.abc import Iterator, Sequence

import altair as alt
from altair.utils.schemapi import debug_mode

from dyno.facts.entry import Entry
from dyno.facts.find import RANGES, FindAnswer
from dyno.facts.limits import Limit
from dyno.facts.report import Chart
from dyno.report.charts import base, vega
from dyno.report.charts.against import headroom, load_axis, points
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import expr, let, unit, when
from dyno.report.look import GREY, Look
from dyno.report.searches import WITHIN, limit_title


def searches(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield one chart for concurrency and one for the rate."""
    for over in RANGES:
        answers = [
            (e.series, e.search) for e in entries if e.search and e.search.spec.over == over
        ]
        if chart := _chart(over, answers, look):
            yield chart


def search(answer: FindAnswer, series: str) -> Chart | None:
    """Return the chart of one search alone."""
    with debug_mode(False):
        return _chart(answer.spec.over, [(series, answer)], Look([series]))


def _chart(
    over: str, answers: Sequence[tuple[str, FindAnswer]], look: Look
) -> Chart | None:
    rows = [
        row
        for i, (series, answer) in enumerate(answers)
        for row in _rows(i, series, answer)
    ]
    if not rows:
        return None
    drawing = Drawing(
        look, rows, f"search-{over}", "Latency", "Highest load within the target"
    )
    drawing.about = (
        "Each point is a load that was tried. The dashed line is the limit. Between the bounds of the shaded area "
        "is the highest load that keeps it, with 95 % confidence."
    )
    names = [row["figure"] for row in rows]
    figure = Select("figure", "Figure", {name: name for name in names}, names[0])
    drawing.selects = [figure]
    drawing.steps = [let("shown", "format(datum.y, ',.4~r') + ' ms, ' + datum.within")]
    log = vega.wide([row["y"] for row in rows], 20)
    x = load_axis(over, rows)
    heading = f"{figure.chosen} + ' (ms)'"
    y = vega.amount("y", expr(heading), log=log)
    where = {"x": x, "y": y, "color": drawing.colour()}
    limit = {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.5, "stroke": GREY}
    area = {"type": "rect", "opacity": 0.15, "clip": True}
    bounds = {"x": alt.X("bound:Q"), "x2": alt.X2("upper"), "color": drawing.colour()}
    layers = [
        unit(area, bounds, when("isValid(datum.bound) && isValid(datum.upper)")),
        unit(limit, {"y": alt.Y("limit:Q")}, when("isValid(datum.limit)")),
        unit(
            vega.LINE,
            {**where, "detail": alt.Detail("search:N")},
            params=[vega.toggle(drawing.series)],
        ),
    ]
    if not log:
        layers.append(headroom(x, heading))
    layers += points(rows, where, base.tips(("x", over), ("shown", "Value")))
    return drawing.chart(layers)


def _rows(index: int, series: str, answer: FindAnswer) -> Iterator[Row]:
    """Yield a row for each load and figure: of a load that was tried twice, the longer probe."""
    first = {limit_title(limit) for limit in answer.spec.limits}
    for level in sorted({probe.level for probe in answer.probes}):
        probe = answer.at_level(level)
        assert probe is not None
        for figure in probe.figures:
            if figure.value is None or figure.limit.is_share:
                continue
            name = limit_title(figure.limit)
            row: Row = {
                "search": index,
                "series": series,
                "verdict": probe.verdict,
                "figure": name,
                "x": level,
                "y": base.short(figure.value),
                "within": f"within the target: {WITHIN[probe.outcome]}",
            }
            if name in first:  # drawn once
                first.remove(name)
                row |= _limit(figure.limit, answer)
            yield row


def _limit(limit: Limit, answer: FindAnswer) -> Row:
    row: Row = {"limit": limit.most}
    if answer.low is not None:
        row["bound"] = answer.low
    if answer.high is not None:
        row["upper"] = answer.high
    return row
