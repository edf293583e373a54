"""Requests: completed and failed at each load, and those of a trial over time."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Bar, Entry
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts import vega
from dyno.report.charts.base import (
    FAILED_TIPS,
    REQUESTS,
    Drawing,
    OneTrial,
    Row,
    cut,
    entry_row,
    panels,
    short,
    shorts,
    tips,
)
from dyno.report.charts.vega import constant, expr, let, tip, unit, when
from dyno.report.look import FAILURE, GREY, Look


def requests(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    for axis in LOADS:
        counted = {e.id for e in entries if e.completed is not None or e.failed is not None}
        own = [e for e in entries if axis in e.axes and (e.id in counted or e.failure)]
        workloads = panels(own, axis) if any(e.id in counted for e in own) else None
        if workloads is None:
            continue
        panel, options = workloads
        rows = [
            entry_row(e, failed=bool(e.failure)) | {"x": short(e.axes[axis]), "workload": options[e.id]} for e in own
        ]
        drawing = Drawing(
            name=f"requests-{axis.replace('_', '-')}",
            group="Requests",
            title=f"Requests completed and failed against {KEYS[axis].against}",
            about="Failed requests stand on the completed ones, with their count; ✕ on the axis: a trial without a "
            "result. Above a bar, ? is a doubtful and ✕ a void result.",
            look=look,
            rows=rows,
            selects=[panel],
            subtitle=[panel.chosen, "'failed: red, with their number'"],
            steps=[let("done", "datum.completed || 0"), let("sum", "datum.done + (datum.failed || 0)"), REQUESTS],
        )
        series = drawing.series
        for row in rows:
            row["slot"] = series.index(row["series"])
        x = alt.X("x", type="ordinal", axis=alt.Axis(title=KEYS[axis].axis, labelAngle=0, labelOverlap="greedy"))
        beside = vega.slot(alt.XOffset, len(series), paddingInner=0.1)
        where = {"x": x, "xOffset": beside, "tooltip": tips(("x", KEYS[axis].axis))}
        top = {**where, "y": vega.amount("sum", "Requests")}
        done = {**where, "y": vega.amount("done", "Requests"), "color": drawing.colour("square")}
        failed = when("datum.failed > 0")
        count = alt.Text("failed", type="quantitative", format=",")
        text = {**vega.TEXT, "dy": -6, "fontWeight": "bold"}
        red = {**text, "fill": FAILURE}
        layers = [
            unit({"type": "bar"}, done, when("isValid(datum.completed)"), params=[vega.toggle(series)]),
            unit({"type": "bar", "fill": FAILURE}, {**top, "y2": alt.Y2("done")}, failed),
            unit(red, {**top, "text": count}, failed),
        ]
        if any("why" in row for row in rows):
            cross = {**red, "text": "✕", "fontSize": 13}
            layers.append(unit(cross, {**top, "tooltip": FAILED_TIPS}, when("isValid(datum.why)")))
        if any(row["verdict"] != "sound" and "why" not in row for row in rows):
            doubted = when("datum.verdict != 'sound' && !isValid(datum.why)")
            sign = let("sign", "datum.verdict == 'void' ? '✕' : '?'")
            above = {**text, "dy": -18, "fontSize": 11}
            layers.append(unit(above, {**top, "text": vega.text("sign")}, doubted, sign))
        yield drawing.chart(layers)


# ---- over time: waiting for the first token, then generating ----

LEAST = 30  # requests of a trial
WAITING, FAILED, GENERATING = "waiting for its first token", "failed", "generating: "


def timeline(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    trials = OneTrial([e for e in entries if e.bars], LEAST)
    rows: list[Row] = []
    counts = []
    for i, entry in enumerate(trials.entries):
        bars = thinned(sorted(entry.bars, key=lambda b: b.sent_s), trials.most)
        row = entry_row(entry) | {"trial": i}
        row |= {"sent": shorts(bars, lambda b: b.sent_s), "end": shorts(bars, lambda b: b.end_s)}
        row |= {"first": shorts(bars, lambda b: b.first_s), "error": [cut(b.error, 80) for b in bars]}
        rows.append(row)
        counts.append(f"{len(bars):,} of {max(entry.bars_of, len(entry.bars)):,} requests")
    if not rows:
        return
    drawing = Drawing(
        name="timeline",
        group="Requests",
        title="Requests over time",
        about="Each bar is a request, from its sending to its end; ✕: it failed. Of many, some are shown."
        + trials.less,
        look=look,
        rows=rows,
        selects=[trials.select()],
        subtitle=[trials.select().chosen, "counts[trial]", "trial_signs[trial]"],
        toggles=False,
        height=380,
        params=[constant("names", [e.series for e in trials.entries]), constant("counts", counts), trials.signs()],
        steps=[
            vega.flatten("sent", "first", "end", "error"),
            vega.window("row_number", "number"),
            let("under", "datum.number + 0.85"),
            let(
                "told",
                "'sent ' + format(datum.sent, ',') + ' s' + (isValid(datum.first) ? ', first token ' + "
                "format(datum.first, ',') + ' s' : '') + ', end ' + format(datum.end, ',') + ' s'",
            ),
        ],
    )
    # The part that generates has the colour of the trial's series; the legend has only that one.
    domain = [WAITING, FAILED, *(f"{GENERATING}{name}" for name in drawing.series)]
    legend = alt.Legend(
        title=None,
        values=expr(f"['{WAITING}', '{GENERATING}' + names[trial], '{FAILED}']"),
        columns=expr("room < 480 ? 1 : 3"),
        labelLimit=expr("room < 480 ? room - 90 : 260"),
        symbolType="square",
        symbolOpacity=1,
        symbolSize=110,
    )
    scale = alt.Scale(domain=domain, range=[GREY, FAILURE, *map(look.colour, drawing.series)])
    color = alt.Color("part", type="nominal", scale=scale, legend=legend)
    title = "Requests that are shown, in the order of sending"
    down = alt.Scale(reverse=True, nice=False, zero=False)
    y = vega.quantity(alt.Y, "number", title, down, grid=False, tickMinStep=1)
    tooltip = [tip("series", "Series"), tip("number", "Request"), tip("told", "Time"), tip("error", "Error")]
    bar = {"type": "rect", "clip": True}
    where = {"x": vega.seconds("from"), "x2": alt.X2("to"), "y": y, "y2": alt.Y2("under"), "color": color}
    wait = [
        let("from", "datum.sent"),
        let("to", "isValid(datum.first) ? datum.first : datum.end"),
        let("part", f"datum.error != '' && !isValid(datum.first) ? '{FAILED}' : '{WAITING}'"),
    ]
    generate = [
        when("isValid(datum.first)"),
        let("from", "datum.first"),
        let("to", "datum.end"),
        let("part", f"datum.error != '' ? '{FAILED}' : '{GENERATING}' + datum.series"),
    ]
    where["tooltip"] = tooltip
    layers = [unit(bar, where, *wait, params=[vega.zoom()]), unit(bar, where, *generate)]
    if any(error for row in rows for error in row["error"]):
        cross = {**vega.TEXT, "text": "✕", "fill": FAILURE, "align": "left", "dx": 3, "fontWeight": "bold"}
        end = {"x": alt.X("end", type="quantitative"), "y": alt.Y("middle", type="quantitative"), "tooltip": tooltip}
        middle = let("middle", "datum.number + 0.42")
        layers.append(unit({**cross, "clip": True}, end, when("datum.error != ''"), middle))
    yield drawing.chart(layers)


def thinned(bars: list[Bar], most: int) -> list[Bar]:
    """Failed ones are never left out for others."""
    if len(bars) <= most:
        return bars
    failed = [b for b in bars if b.error][:most]
    done = [b for b in bars if not b.error]
    room = most - len(failed)
    return sorted([*failed, *(done[i * len(done) // room] for i in range(room))], key=lambda b: b.sent_s)
