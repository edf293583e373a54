"""Horizontal bars from zero: series side by side under one load, micro tests, scores."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from dyno.facts.entry import Entry, Number
from dyno.facts.metric import THROUGHPUTS, metric
from dyno.facts.report import Chart
from dyno.report.charts import base, vega
from dyno.report.charts.base import Drawing, Row, Select, Workload, tips
from dyno.report.charts.latency import NAMES
from dyno.report.charts.throughput import letters
from dyno.report.charts.vega import expr, let, unit, when
from dyno.report.look import Look

LEFT = "min(260, room * 0.38)"  # pixels for names; half of a phone is for the bars
SIGN = let(
    "sign",
    "isValid(datum.why) ? '✕ no result' : datum.text"
    " + (datum.verdict == 'doubtful' ? '  ?' : datum.verdict == 'void' ? '  ✕' : '')",
)
FOUR_DIGITS = let("text", "format(datum.y, ',.4~r')")


def bars(
    drawing: Drawing, count: int, title: str | alt.ExprRef, tooltip: Any, by: str = "series"
) -> Chart:
    """Draw `y`, with `low` and `high` where these are known, and `text` beside the bar, with a mark where it isn't
    sound.

    `count`: bars that are visible at once. `by`: the field whose values have places of their own on the vertical axis;
    where that isn't the series, each has a group of bars, one for each series."""
    rows, series = drawing.rows, drawing.series
    alone = by == "series"  # the axis has the names
    places = series if alone else list(dict.fromkeys(row[by] for row in rows))
    # By numbers: of names, Vega-Lite would make an expression.
    for row in rows:
        row |= {"place": places.index(row[by]), "slot": series.index(row["series"])}
    axis = alt.Axis(title=None, labelLimit=expr(LEFT), domain=False, ticks=False)
    sort = alt.EncodingSortField(field="place", op="min")
    scale = alt.Scale(paddingInner=0.3, paddingOuter=0.2)
    y = alt.Y(f"{by}:N", axis=axis, sort=sort, scale=scale)
    beside = alt.Undefined if alone else vega.slot(alt.YOffset, len(series))
    where = {"y": y, "yOffset": beside, "tooltip": tooltip}
    x, low, end, far = (
        vega.amount(field, title, channel=alt.X) for field in ("y", "low", "end", "far")
    )
    mark = {"type": "bar", "height": {"band": 0.85}}
    bar = {**where, "x": x, "color": drawing.colour("" if alone else "square", LEFT)}
    layers = [unit(mark, bar, params=[] if alone else [vega.toggle(series)])]
    if any("low" in row for row in rows):
        rule = {"type": "rule", "strokeWidth": 1.5}
        layers.append(
            unit(
                rule, {**where, "x": low, "x2": alt.X2("high")}, when("isValid(datum.low)")
            )
        )
    ends = [let("end", "isValid(datum.high) ? max(datum.high, datum.y) : datum.y"), SIGN]
    text = {**vega.TEXT, "align": "left", "dx": 4}
    layers.append(unit(text, {**where, "x": end, "text": alt.Text("sign:N")}, *ends))
    # Where the longest text ends: it must not be cut.
    room = let(
        "far",
        f"datum.end * (1 + length(datum.sign) * 6.5 / max(60, room - {LEFT} - length(datum.sign) * 6.5))",
    )
    layers.append(unit(vega.INVISIBLE, {"x": far, "y": y}, *ends, room))
    drawing.toggles, drawing.height = not alone, max(90, 24 * count + 20)
    drawing.steps.insert(0, base.REQUESTS)
    return drawing.chart(layers)


# ---- side by side, where a line would have one point ----

BETTER = "Higher throughput and lower latency are better. Lines on bars are 95 % intervals where known."
STATISTICS = ("mean", "p50", "p99")
FIGURES = {name: metric(name).words for name in THROUGHPUTS}
FIGURES |= {
    f"{s}_{stem}": f"{name} {s}, ms" for stem, name in NAMES.items() for s in STATISTICS
}


def figures(entry: Entry) -> dict[str, Number]:
    numbers = {name: entry.figures.get(name) for name in THROUGHPUTS}
    numbers |= {
        f"{s}_{stem}": entry.statistic(s, stem) for stem in NAMES for s in STATISTICS
    }
    return {name: number for name, number in numbers.items() if number is not None}


def side_by_side(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    compared = _comparable(entries)
    rows = [
        _figures_row(entry, i)
        for i, group in enumerate(compared.values())
        for entry in group
    ]
    known, loads = base.present(FIGURES, rows), base.several_words(compared)
    if not known:
        return
    series = {i: len({row["series"] for row in rows if row["load"] == i}) for i in loads}
    drawing = Drawing(look, rows, "side-by-side", "Throughput", "Results at one load")
    drawing.about = BETTER
    drawing.selects = [
        Select("figure", "Figure", known, next(iter(known))),
        Select("load", "Load", loads, max(loads, key=lambda i: (series[i], i))),
    ]
    drawing.params = [vega.constant("none", None)]
    drawing.steps = [
        when("isValid(datum[figure]) || isValid(datum.why)"),
        let("y", "isValid(datum[figure]) ? datum[figure] : 0"),
        let("low", "isValid(datum[figure + '_low']) ? datum[figure + '_low'] : none"),
        let("high", "isValid(datum[figure + '_high']) ? datum[figure + '_high'] : none"),
        FOUR_DIGITS,
        let("shown", "format(datum.y, ',.5~r') + ' ' + figure_words[figure]"),
    ]
    yield bars(
        drawing,
        max(series.values()),
        expr("figure_words[figure]"),
        tips(("shown", "Value")),
    )


def _comparable(entries: Sequence[Entry]) -> dict[Workload, list[Entry]]:
    """Return entries by loads that let series be compared; where there are none, by all loads."""
    groups: dict[Workload, list[Entry]] = {}
    for entry in entries:
        if entry.kind in base.WHOLE and (entry.failure or figures(entry)):
            groups.setdefault(base.workload(entry, ""), []).append(entry)
    compared = {
        load: group for load, group in groups.items() if len({e.series for e in group}) > 1
    }
    return compared or groups


def _figures_row(entry: Entry, load: int) -> Row:
    row = base.entry_row(entry) | {"load": load, "y": 0}
    for key, number in figures(entry).items():
        base.put(row, key, number)
    if any(key.endswith("_low") for key in row):
        row["low"] = None
    return row


# ---- tests and tasks: one figure each ----

TESTS = {
    "pp": "prompt processing (pp)",
    "tg": "token generation (tg)",
    "pg": "prompt and generation (pg)",
}
BOUNDS = "(isValid(datum.low) ? ' (' + format(datum.low, ',.4~r') + ' to ' + format(datum.high, ',.4~r') + "


def put_value(row: Row, number: Number | None, error: float | None) -> None:
    """Put a value into a row, and its interval, else by how much it may be off."""
    base.put(row, "y", number or Number(0.0))
    if "y_low" in row:
        row |= {"low": row.pop("y_low"), "high": row.pop("y_high")}
    elif number is not None and error is not None:
        row["low"] = base.short(max(number.value - error, 0.0))
        row["high"] = base.short(number.value + error)


def micro(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield the speeds of one request: prompt (pp) or tokens (tg)."""
    rows = [
        _speed_row(e)
        for e in entries
        if e.kind == "micro" and (e.figures.get("speed") or e.failure)
    ]
    if all("why" in row for row in rows):
        return
    kinds = [row["kind"] for row in rows]
    words = {k: w for k, w in {**TESTS, "other": "other"}.items() if k in kinds}
    drawing = Drawing(look, rows, "micro", "Micro tests", "Speed of single requests")
    drawing.about = (
        "In the engine's own process, one request at a time. Lines on bars are 95 % intervals, or the deviation (±) "
        "that its source printed."
    )
    drawing.selects = [Select("kind", "Tests", words, next(iter(words)))]
    text = f"isValid(datum.why) ? datum.why : format(datum.y, ',') + ' tokens/s' + {BOUNDS}')' : '')"
    drawing.steps = [FOUR_DIGITS, let("shown", text)]
    tooltip = tips(("test", "Test"), ("shown", "Speed"))
    yield bars(drawing, max(map(kinds.count, kinds)), "Tokens/s", tooltip, by="test")


def _speed_row(entry: Entry) -> Row:
    kind = letters(entry) if letters(entry) in TESTS else "other"
    row = base.entry_row(entry) | {"kind": kind, "test": entry.load.words}
    speed = entry.figures.get("speed")
    deviation = speed.deviation if speed is not None else None
    put_value(row, speed, deviation or None)
    return row


def quality(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield the scores of tasks."""
    metrics: dict[str, int] = {}
    rows = [
        _score_row(e, metrics)
        for e in entries
        if e.kind == "quality" and (e.figures.get("score") or e.failure)
    ]
    if all("why" in row for row in rows):
        return
    kinds = [row["metric"] for row in rows]
    drawing = Drawing(look, rows, "quality", "Quality", "Scores")
    how = " and ".join(sorted({row["by"] for row in rows if "by" in row}))
    drawing.about = f"Lines on the bars: {how}." if how else "No error is known."
    words = {i: text for text, i in metrics.items()}
    drawing.selects = [Select("metric", "Metric", words, base.commonest(kinds))]
    text = f"isValid(datum.why) ? datum.why : format(datum.y, ',') + {BOUNDS}', ' + datum.by + ')' : '')"
    drawing.steps = [FOUR_DIGITS, let("shown", text)]
    tooltip = tips(("task", "Task"), ("shown", "Score"))
    yield bars(drawing, max(map(kinds.count, kinds)), "Score", tooltip, by="task")


def _score_row(entry: Entry, metrics: dict[str, int]) -> Row:
    """Return the row of a score. `metrics`: the numbers of those met so far, to which a new one is added."""
    # Accuracies and perplexities don't share an axis.
    name = entry.load.only(("metric", "filter")).words or "score"
    task = entry.load.without("metric", "filter").words
    row = base.entry_row(entry) | {
        "metric": metrics.setdefault(name, len(metrics)),
        "task": task,
    }
    score = entry.figures.get("score")
    put_value(row, score, entry.value("stderr"))
    if score is not None and "low" in row:
        row["by"] = "± standard error" if score.low is None else "95 % interval"
    return row
