"""Requests: completed and failed at each load, and those of a trial over time."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.entry import Bar, Entry
from dyno.facts.load import KEYS, LOADS
from dyno.facts.record import CANCELLED
from dyno.facts.report import Chart
from dyno.numbers import count, many
from dyno.report.charts import base, vega
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import constant, expr, let, tip, unit, when
from dyno.report.look import FAILURE, GREY, Look


def requests(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    entries = [
        e for e in entries if e.completed is not None or e.failed is not None or e.failure
    ]
    for axis in LOADS:
        drawn = [e for e in entries if axis in e.axes]
        panels = base.panels(drawn, axis)
        if panels is not None:
            panel, rows = panels
            yield _requests(axis, look, panel, rows)


def _requests(axis: str, look: Look, panel: Select, rows: list[Row]) -> Chart:
    title = f"Requests completed and failed against {KEYS[axis].against}"
    drawing = Drawing(look, rows, f"requests-{axis}", "Requests", title)
    drawing.about = (
        "Failed requests are red, on top of the completed ones. ✕ on the axis: a trial without a result. Above a bar: "
        "? doubtful, ✕ void."
    )
    drawing.selects = [panel]
    drawing.subtitle = [panel.chosen, "'failed requests in red'"]
    total = let("sum", "datum.done + (datum.failed || 0)")
    drawing.steps = [let("done", "datum.completed || 0"), total, base.REQUESTS]
    series = drawing.series
    for row in rows:
        row["slot"] = series.index(row["series"])
    x = alt.X(
        "x:O", axis=alt.Axis(title=KEYS[axis].axis, labelAngle=0, labelOverlap="greedy")
    )
    beside = vega.slot(alt.XOffset, len(series), paddingInner=0.1)
    where = {"x": x, "xOffset": beside, "tooltip": base.tips(("x", KEYS[axis].axis))}
    top = {**where, "y": vega.amount("sum", "Requests")}
    done = {
        **where,
        "y": vega.amount("done", "Requests"),
        "color": drawing.colour("square"),
    }
    failed = when("datum.failed > 0")
    red = {**vega.TEXT, "dy": -6, "fontWeight": "bold", "fill": FAILURE}
    # A count that is wider than its bar would overlap the next one.
    width = 6.5 * max(len(f"{row.get('failed', 0):,}") for row in rows)
    bars = len(series) * len({row["x"] for row in rows})
    counted = {**red, "opacity": expr(f"(room - 90) / {bars} < {width} ? 0 : 1")}
    layers = [
        unit(
            {"type": "bar"},
            done,
            when("isValid(datum.completed)"),
            params=[vega.toggle(series)],
        ),
        unit({"type": "bar", "fill": FAILURE}, {**top, "y2": alt.Y2("done")}, failed),
        unit(counted, {**top, "text": alt.Text("failed:Q", format=",")}, failed),
    ]
    if any("why" in row for row in rows):
        cross = {**red, "text": "✕", "fontSize": 13}
        layers.append(
            unit(cross, {**top, "tooltip": base.FAILED_TIPS}, when("isValid(datum.why)"))
        )
    if any(row["verdict"] != "sound" and "why" not in row for row in rows):
        doubted = when("datum.verdict != 'sound' && !isValid(datum.why)")
        sign = let("sign", "datum.verdict == 'void' ? '✕' : '?'")
        above = {"type": "text", "dy": -18, "fontWeight": "bold", "fontSize": 11}
        layers.append(unit(above, {**top, "text": alt.Text("sign:N")}, doubted, sign))
    return drawing.chart(layers)


# ---- over time: waiting for the first token, then generating ----

LEAST = 30  # requests of a trial
WAITING, FAILED, GENERATING = "waiting for the first token", "failed", "generating: "
GONE, GONE_COLOUR = "cancelled by the client", "#B9A15A"
_LOST = f"(datum.error == '{CANCELLED}' ? '{GONE}' : '{FAILED}')"


def timeline(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    trials = base.OneTrial([e for e in entries if e.bars], LEAST)
    rows: list[Row] = []
    counts = []
    for i, entry in enumerate(trials.entries):
        bars = thinned(sorted(entry.bars, key=lambda b: b.sent_s), trials.most)
        row = base.entry_row(entry)
        row["trial"] = i
        row["sent"] = base.shorts(bars, lambda b: b.sent_s)
        row["end"] = base.shorts(bars, lambda b: b.end_s)
        row["first"] = base.shorts(bars, lambda b: b.first_s)
        row["error"] = [
            CANCELLED if b.error.startswith(CANCELLED) else base.cut(b.error, 80)
            for b in bars
        ]
        rows.append(row)
        counts.append(
            f"{count(len(bars))} of {many(max(entry.bars_of, len(entry.bars)), 'request')}"
        )
    if not rows:
        return
    drawing = Drawing(look, rows, "timeline", "Requests", "Requests over time", height=380)
    drawing.about = (
        "Each bar is a request, from sending to its end. ✕: failed. Long runs are sampled."
    )
    drawing.params = [
        constant("names", [e.series for e in trials.entries]),
        constant("counts", counts),
    ]
    trials.add_to(drawing, "counts[trial]")
    sent, first, end = (
        f"format(datum.{field}, ',') + ' s'" for field in ("sent", "first", "end")
    )
    times = f"'sent ' + {sent} + (isValid(datum.first) ? ', first token ' + {first} : '') + ', end ' + {end}"
    drawing.steps = [
        vega.flatten("sent", "first", "end", "error"),
        vega.window("row_number", "number"),
        let("under", "datum.number + 0.85"),
        let("shown", times),
    ]
    # The part that generates has the colour of the trial's series; the legend has only that one.
    domain = [WAITING, FAILED, GONE, *(f"{GENERATING}{name}" for name in drawing.series)]
    scale = alt.Scale(
        domain=domain, range=[GREY, FAILURE, GONE_COLOUR, *map(look.colour, drawing.series)]
    )
    gone = f", '{GONE}'" if any(CANCELLED in row["error"] for row in rows) else ""
    shown = expr(f"['{WAITING}', '{GENERATING}' + names[trial], '{FAILED}'{gone}]")
    legend = vega.legend(
        "square", "room < 480 ? 1 : 3", "room < 480 ? room - 90 : 260", values=shown
    )
    down = alt.Scale(reverse=True, nice=False, zero=False)
    axis = alt.Axis(title="Requests, in the order of sending", grid=False, tickMinStep=1)
    tooltip = [
        tip("series", "Series"),
        tip("number", "Request"),
        tip("shown", "Time"),
        tip("error", "Error"),
    ]
    where = {
        "x": vega.seconds("from"),
        "x2": alt.X2("to"),
        "y2": alt.Y2("under"),
        "tooltip": tooltip,
        "y": alt.Y("number:Q", scale=down, axis=axis),
        "color": alt.Color("part:N", scale=scale, legend=legend),
    }
    wait = [
        let("from", "datum.sent"),
        let("to", "isValid(datum.first) ? datum.first : datum.end"),
        let("part", f"datum.error != '' && !isValid(datum.first) ? {_LOST} : '{WAITING}'"),
    ]
    generate = [
        when("isValid(datum.first)"),
        let("from", "datum.first"),
        let("to", "datum.end"),
        let("part", f"datum.error != '' ? {_LOST} : '{GENERATING}' + datum.series"),
    ]
    bar = {"type": "rect", "clip": True}
    layers = [unit(bar, where, *wait, params=[vega.zoom()]), unit(bar, where, *generate)]
    if any(error not in ("", CANCELLED) for row in rows for error in row["error"]):
        cross = {
            **vega.TEXT,
            "text": "✕",
            "fill": FAILURE,
            "align": "left",
            "dx": 3,
            "fontWeight": "bold",
        }
        place = {"x": alt.X("end:Q"), "y": alt.Y("middle:Q"), "tooltip": tooltip}
        middle = let("middle", "datum.number + 0.42")
        layers.append(
            unit(
                {**cross, "clip": True},
                place,
                when(f"datum.error != '' && datum.error != '{CANCELLED}'"),
                middle,
            )
        )
    yield drawing.chart(layers)


def thinned(bars: list[Bar], most: int) -> list[Bar]:
    """Return at most `most` bars. Failed ones are never left out for others."""
    if len(bars) <= most:
        return bars
    failed = [b for b in bars if b.error][:most]
    done = [b for b in bars if not b.error]
    room = most - len(failed)
    some = [done[i * len(done) // room] for i in range(room)]
    return sorted([*failed, *some], key=lambda b: b.sent_s)
