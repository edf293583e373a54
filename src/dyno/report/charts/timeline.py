"""Requests of a trial over time: waiting for the first token, then generating."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Bar, Entry
from dyno.report.charts.base import (
    ROWS_MAX,
    Row,
    constant,
    cut,
    drawn,
    entry_row,
    expr,
    finish,
    let,
    short,
    tip,
    unit,
    when,
    window,
    zoom,
)
from dyno.report.charts.one_trial import signs, trials
from dyno.report.look import FAILURE, GREY, Look

LEAST = 30  # requests of a trial
WAITING, FAILED, GENERATING = "waiting for its first token", "failed", "generating: "


def timeline(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    there = [e for e in entries if e.bars]
    kept = there[: ROWS_MAX // LEAST]
    if not kept:
        return
    most = max(LEAST, ROWS_MAX // len(kept))
    rows: list[Row] = []
    told = []
    for i, entry in enumerate(kept):
        bars = thinned(sorted(entry.bars, key=lambda b: b.sent_s), most)
        row = entry_row(entry) | {
            "trial": i,
            "sent": [short(b.sent_s) for b in bars],
            "end": [short(b.end_s) for b in bars],
        }
        row["first"] = [None if b.first_s is None else short(b.first_s) for b in bars]
        row["error"] = [cut(b.error, 80) for b in bars]
        rows.append(row)
        told.append(f"{len(bars):,} of {max(entry.bars_of, len(entry.bars)):,} requests")
    trial = trials(kept)
    # The part that generates has the colour of the trial's series; the legend tells of that one alone.
    series = look.ordered(e.series for e in kept)
    domain = [WAITING, FAILED, *(f"{GENERATING}{name}" for name in series)]
    scale = alt.Scale(domain=domain, range=[GREY, FAILURE, *(look.colour(name) for name in series)])
    shown = expr(f"['{WAITING}', '{GENERATING}' + names[trial], '{FAILED}']")
    legend = alt.Legend(
        title=None,
        values=shown,
        columns=expr("room < 480 ? 1 : 3"),
        labelLimit=expr("room < 480 ? room - 90 : 260"),
        symbolType="square",
        symbolOpacity=1,
        symbolSize=110,
    )
    color = alt.Color("part", type="nominal", scale=scale, legend=legend)
    x = alt.X(
        "from",
        type="quantitative",
        scale=alt.Scale(nice=True, zero=True),
        axis=alt.Axis(title="Time since the load began (s)"),
    )
    y = alt.Y(
        "number",
        type="quantitative",
        scale=alt.Scale(reverse=True, nice=False, zero=False),
        axis=alt.Axis(title="Requests that are shown, in the order of sending", grid=False, tickMinStep=1),
    )
    tooltip = [tip("series", "Series"), tip("number", "Request"), tip("told", "Time"), tip("error", "Error")]
    bar = {"type": "rect", "clip": True}
    where = {"x": x, "x2": alt.X2("to"), "y": y, "y2": alt.Y2("under"), "color": color, "tooltip": tooltip}
    wait = [
        let("from", "datum.sent"),
        let("to", "isValid(datum.first) ? datum.first : datum.end"),
        let("part", f"datum.error != '' && !isValid(datum.first) ? '{FAILED}' : '{WAITING}'"),
    ]
    made = [
        when("isValid(datum.first)"),
        let("from", "datum.first"),
        let("to", "datum.end"),
        let("part", f"datum.error != '' ? '{FAILED}' : '{GENERATING}' + datum.series"),
    ]
    cross = {
        "type": "text",
        "text": "✕",
        "fill": FAILURE,
        "align": "left",
        "dx": 3,
        "fontSize": 10,
        "fontWeight": "bold",
        "clip": True,
    }
    end = {"x": alt.X("end", type="quantitative"), "y": alt.Y("middle", type="quantitative"), "tooltip": tooltip}
    layers = [unit(bar, where, *wait, params=[zoom()]), unit(bar, where, *made)]
    if any(error for row in rows for error in row["error"]):
        layers.append(unit(cross, end, when("datum.error != ''"), let("middle", "datum.number + 0.42")))
    less = f" The first {len(kept)} of {len(there)} trials are kept." if len(kept) < len(there) else ""
    yield finish(
        layers,
        rows,
        name="timeline",
        group="Requests",
        title="Requests over time",
        about="Each bar is a request, from its sending to its end; ✕: it failed. Of many, some are shown." + less,
        subtitle=[trial.told, "counts[trial]", "trial_signs[trial]"],
        selects=[trial],
        height=380,
        params=[constant("names", [e.series for e in kept]), constant("counts", told), signs(kept)],
        transform=[
            *drawn(trial),
            alt.FlattenTransform(flatten=["sent", "first", "end", "error"]),
            window("row_number", "number"),
            let("under", "datum.number + 0.85"),
            let(
                "told",
                "'sent ' + format(datum.sent, ',') + ' s' + (isValid(datum.first) ? ', first token ' + "
                "format(datum.first, ',') + ' s' : '') + ', end ' + format(datum.end, ',') + ' s'",
            ),
        ],
    )


def thinned(bars: list[Bar], most: int) -> list[Bar]:
    """Failed ones are never left out for others."""
    if len(bars) <= most:
        return bars
    failed = [b for b in bars if b.error][:most]
    done = [b for b in bars if not b.error]
    room = most - len(failed)
    return sorted([*failed, *(done[i * len(done) // room] for i in range(room))], key=lambda b: b.sent_s)
