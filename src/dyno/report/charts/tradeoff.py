"""Throughput against latency, load by load, with the Pareto front over all that is shown."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.definition import meanings
from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts.against import DASHED, FACTOR, per_of, per_words, put_per
from dyno.report.charts.base import (
    ESTIMATE,
    FAILED_TIPS,
    PLAIN,
    REQUESTS,
    TOGGLED,
    Option,
    Row,
    Select,
    colour,
    constant,
    dashes,
    drawn,
    entry_row,
    expr,
    failed_row,
    finish,
    let,
    short,
    shown,
    tip,
    tips,
    toggle,
    unit,
    value_axis,
    when,
    wide,
    window,
    zoom,
)
from dyno.report.charts.latency import NAMES, definition, statistics
from dyno.report.charts.marks import headroom, lift, lost, no_result, points
from dyno.report.charts.throughput import FIGURES, MEASURES
from dyno.report.charts.workloads import panels, places
from dyno.report.look import GREY, Look

STEMS = ("ttft", "tpot", "e2el", "latency")
FIRST = ("p99 TTFT", "mean TTFT", "p50 TTFT", "mean Batch latency", "mean E2EL", "mean TPOT")
# Fields of a row, one a latency, and their words.
Latencies = dict[Option, str]


def tradeoff(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    whole = [e for e in entries if e.kind in ("serve", "throughput", "latency")]
    words, values = latencies(whole)
    for axis in LOADS:
        kept = [e for e in whole if axis in e.axes and (e.failure or drawable(e, values))]
        panel = panels(kept, axis)
        if panel and any(drawable(e, values) for e in kept):
            yield _chart(kept, axis, look, panel, words, values)


def drawable(entry: Entry, values: dict[str, dict[str, Number]]) -> bool:
    return bool(values[entry.id]) and any(name in entry.figures for name in FIGURES)


def latencies(entries: Sequence[Entry]) -> tuple[Latencies, dict[str, dict[str, Number]]]:
    """Those to choose from, and each entry's. Of two definitions, they are two."""
    words: Latencies = {}
    values: dict[str, dict[str, Number]] = {e.id: {} for e in entries}
    for stem in STEMS:
        told = statistics(entries, stem)
        index = meanings(key for e in entries if (key := definition(e, stem, told)) is not None)
        for entry in entries:
            for statistic in told:
                if (found := entry.statistic(statistic, stem)) is None:
                    continue
                at = index[definition(entry, stem, told) or ""]
                key = f"{statistic}_{stem}_{at}"
                tools = ", ".join(k.split(".")[0] or "not told" for k, i in index.items() if i == at)
                words[key] = f"{statistic} {NAMES[stem]}" + (f" (as {tools})" if len(set(index.values())) > 1 else "")
                values[entry.id][key] = found
    return words, values


def _chart(
    entries: Sequence[Entry],
    axis: str,
    look: Look,
    panel: Select,
    words: Latencies,
    values: dict[str, dict[str, Number]],
) -> Chart:
    at, per = places(entries, axis), per_of(entries)
    rows: list[Row] = []
    for entry in entries:
        row = entry_row(entry) if drawable(entry, values) else failed_row(entry)
        row |= {"load": short(entry.axes[axis]), "workload": at[entry.id]}
        for key, found in values[entry.id].items():
            row[key] = shown(found)
        row |= {name: shown(entry.figures[name]) for name in FIGURES if name in entry.figures}
        put_per(row, entry, per)
        rows.append(row)
    lift(rows, "workload", highest="load")
    counts = {key: sum(key in row for row in rows) for key in words}
    there = {key: text for key, text in words.items() if counts[key]}
    rank = {text: -i for i, text in enumerate(FIRST)}
    latency = max(there, key=lambda k: (counts[str(k)], rank.get(there[k], -len(FIRST))))
    figures = {m.key: m.words for m in MEASURES if any(m.key in row for row in rows)}
    figure = max(figures, key=lambda name: sum(name in row for row in rows))
    selects = [Select("latency", "Latency", there, latency), Select("figure", "Throughput", figures, figure), panel]

    above = all(r[str(k)] > 0 for r in rows for k in there if str(k) in r)  # a zero has no place on a logarithmic one
    log = above and any(
        wide([r[str(k)] for r in rows if k in r and r["workload"] == w], 16) for k in there for w in panel.words
    )
    factor, heading = (FACTOR, " + per_words[per]") if per else ("1", "")
    series = look.ordered(row["series"] for row in rows)
    x = alt.X(
        "x",
        type="quantitative",
        scale=alt.Scale(type="log" if log else "linear", zero=alt.Undefined if log else False, nice=False, padding=24),
        axis=alt.Axis(
            title=expr("latency_words[latency] + ' (ms)'"), format=PLAIN, tickCount=6 if log else alt.Undefined
        ),
    )
    y = value_axis("y", expr(f"axes[figure]{heading}"))
    color = colour(look, series)
    tooltip = tips(("load", KEYS[axis].axis), ("told", "Throughput"), ("late", "Latency"))
    dashed = any("part" in row for row in rows)
    estimate = "per == 'machine' && datum.part == 1"
    line = {"type": "line", "strokeWidth": 2, "clip": True}
    path = {"x": x, "y": y, "color": color, "order": alt.Order("load", type="quantitative")}
    layers = [
        unit(
            line,
            {**path, "strokeDash": dashes(look, series)},
            when(f"isValid(datum.y) && !({estimate})" if dashed else "isValid(datum.y)"),
            params=[toggle(series), zoom()],
        ),
    ]
    if dashed:
        layers.append(unit({**line, "strokeDash": ESTIMATE}, path, when(f"isValid(datum.y) && {estimate}")))
    layers.append(headroom(x=x, y=value_axis("far", expr(f"axes[figure]{heading}"))))
    layers += front(x, y)
    layers += lost(rows, x=x, y=y, tooltip=tooltip)
    layers += points(rows, x=x, y=y, color=color, tooltip=tooltip)
    label = {"type": "text", "align": "left", "dx": 7, "dy": 7, "fontSize": 10, "clip": True}
    layers.append(
        unit(
            label,
            {"x": x, "y": y, "text": alt.Text("load", type="quantitative", format=PLAIN)},
            when("isValid(datum.y)"),
        )
    )
    corner = no_result(
        rows, x={"value": "width"}, color=color, tooltip=[tip("load", KEYS[axis].axis), *FAILED_TIPS], left=14
    )
    layers += corner
    print_ = "',.4~r'" if per else "','"
    told = f"format(datum.y, per == 'measured' ? ',' : {print_}) + ' ' + units[figure]{heading}"
    transform = [
        *drawn(panel),
        TOGGLED,
        let("x", "datum[latency]"),
        let("y", f"datum[figure] * {factor}"),
        when("isValid(datum.why) || isValid(datum.x) && isValid(datum.y)"),
        let("told", told + (f" + ({estimate} ? ' – an estimate' : '')" if dashed else "")),
        let("late", "format(datum.x, ',') + ' ms'"),
        REQUESTS,
    ]
    subtitle = [f"figure_words[figure]{heading} + ' against ' + latency_words[latency]", panel.told]
    if dashed:
        subtitle[0] += f" + {DASHED}"
    return finish(
        layers,
        rows,
        name=f"tradeoff-{axis.replace('_', '-')}",
        group="Throughput and latency",
        title=f"Throughput against latency, by {KEYS[axis].against}",
        about=f"Up and to the left is better. Numbers at the points are the {KEYS[axis].against}. On the Pareto front "
        "nothing else that is shown has more throughput at as little latency; void points don't count for it. "
        "✕ in the corner: a trial without a result.",
        subtitle=subtitle,
        transform=transform,
        selects=selects,
        per=per,
        params=[
            constant("axes", {m.key: m.axis for m in MEASURES}),
            constant("units", {m.key: m.unit for m in MEASURES}),
            *([constant("per_words", per_words(entries))] if per else []),
        ],
    )


def front(x: alt.X, y: alt.Y) -> list[alt.UnitSpec]:
    """From the left: each point that has more throughput than all before it."""
    sort = [alt.SortField("x", order="ascending"), alt.SortField("y", order="descending")]
    best = [
        when("datum.verdict != 'void' && isValid(datum.y)"),
        window("max", "top", "y", sort),
        window("lag", "before", "top", sort),
        when("!isValid(datum.before) || datum.y > datum.before"),
    ]
    line = {"type": "line", "interpolate": "step-after", "stroke": GREY, "strokeWidth": 5, "opacity": 0.4, "clip": True}
    text = {
        "type": "text",
        "text": "Pareto front",
        "fill": GREY,
        "align": "right",
        "baseline": "top",
        "dx": -12,
        "dy": 8,
        "clip": True,
    }
    last = [
        alt.JoinAggregateTransform(joinaggregate=[alt.JoinAggregateFieldDef(op="max", field="x", **{"as": "end"})]),
        when("datum.x == datum.end"),
    ]
    where = {"x": x, "y": y}
    return [unit(line, {**where, "order": alt.Order("x", type="quantitative")}, *best), unit(text, where, *best, *last)]
