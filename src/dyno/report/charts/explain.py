"""Where the time went: a stacked bar for each result, and a slow request among its neighbours."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.explain.events import (
    BEFORE_FIRST,
    DECODE,
    HELD_UP,
    PAUSED,
    PREFILL,
    QUEUED,
    STRETCHES,
    UNSEEN,
    WAITED,
)
from dyno.facts.entry import Entry
from dyno.facts.explanation import ATOMS, Neighbourhood, Part
from dyno.facts.report import Chart
from dyno.numbers import many, number, percent
from dyno.report.charts import base, vega
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import constant, expr, let, tip, unit, when
from dyno.report.look import FAILURE, GREY, PALETTE, Look

GROUP = "Where the time went"
_SHOWN = 0.001  # share from which a part has a place in a bar
_BAR = 26  # pixels
_COLOURS = {
    "client_wait": "#8B5A2B",
    "connection": "#B9A15A",
    "network": GREY,
    "front_end": "#A08C8C",
    "queue": "#D55E00",
    "prefill_bound": "#6BAED6",
    "prefill_above": "#0072B2",
    "first_delivery": "#999999",
    "decode_bound": "#74C69D",
    "decode_above": "#009E73",
    "stall": "#E69F00",
    "preemption": "#CC79A7",
    "later_delivery": "#BBBBBB",
    "rest": "#444444",
}
# A part of several takes the colour of the first of these that it has.
_LEADING = (
    "queue",
    "decode_above",
    "prefill_above",
    "network",
    "front_end",
    "later_delivery",
)


def parts(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    explained = [e for e in entries if e.parts]
    if not explained:
        return
    rows = [row for place, entry in enumerate(explained) for row in _rows(place, entry)]
    title = "Where the time of requests went"
    drawing = Drawing(look, rows, "parts", GROUP, title, toggles=False)
    drawing.about = (
        "Mean latency from due to the last token, in parts that add up to it. A part with bounds is not exact. "
        "METHOD.md defines each."
    )
    drawing.height = max(90, _BAR * len(explained) + 20)
    unit_ = Select(
        "unit", "Show", {"ms": "milliseconds", "share": "percent of the latency"}, "ms"
    )
    drawing.selects = [unit_]
    drawing.params = [constant("bars", [_name(e) for e in explained])]
    drawing.steps = [
        let("from", "datum[unit + '_from']"),
        let("to", "datum[unit + '_to']"),
    ]
    titles = list(dict.fromkeys(row["part"] for row in rows))
    colours = {row["part"]: row["colour"] for row in rows}
    scale = alt.Scale(domain=titles, range=[colours[title] for title in titles])
    legend = vega.legend("square", "room < 480 ? 1 : 3", "room < 480 ? room - 90 : 230")
    axis = alt.Axis(
        title=None, labelExpr="bars[datum.value]", labelLimit=expr("room * 0.3")
    )
    tooltip = [
        tip("series", "Series"),
        tip("part", "Part"),
        tip("shown", "Time"),
        tip("bounds", "Bounds"),
        tip("source", "Source"),
        tip("about", "How"),
    ]
    where = {
        "x": alt.X(
            "from:Q",
            scale=alt.Scale(zero=True, nice=True),
            axis=alt.Axis(title=expr("unit_words[unit]"), format=vega.PLAIN),
        ),
        "x2": alt.X2("to"),
        "y": alt.Y("bar:O", axis=axis),
        "color": alt.Color("part:N", scale=scale, legend=legend),
        "tooltip": tooltip,
    }
    yield drawing.chart([unit({"type": "bar", "height": {"band": 0.8}}, where)])


def _name(entry: Entry) -> str:
    return entry.label or f"{entry.series}: {entry.load.words}"


def _rows(place: int, entry: Entry) -> Iterator[Row]:
    done_ms = done = 0.0
    for part in entry.parts:
        if part.share < _SHOWN:
            continue
        row = base.entry_row(entry)
        row |= {
            "bar": place,
            "part": part.title,
            "colour": _colour(part),
            "source": ", ".join(part.sources),
            "about": part.about,
            "shown": f"{number(part.mean_ms)} ms, {percent(part.share)}",
            "bounds": _bounds(part),
            "ms_from": base.short(done_ms),
            "share_from": base.short(100 * done),
        }
        done_ms += part.mean_ms
        done += part.share
        row |= {"ms_to": base.short(done_ms), "share_to": base.short(100 * done)}
        yield row


def _bounds(part: Part) -> str:
    if part.low_ns == part.high_ns or not part.total_ns:
        return "exact" if "claimed" not in part.sources else "as the server says"
    scale = part.mean_ms / part.total_ns
    return f"{number(part.low_ns * scale)} to {number(part.high_ns * scale)} ms"


def _colour(part: Part) -> str:
    if not part.covers:
        return _COLOURS["rest"]
    atom = next((atom for atom in _LEADING if atom in part.covers), part.covers[0])
    if len(part.covers) == 1:
        atom = part.covers[0]
    return _COLOURS[atom if atom in ATOMS else "rest"]


# ---- one request among its neighbours ----

_OF_STRETCHES = {
    WAITED: "#8B5A2B",
    BEFORE_FIRST: GREY,
    UNSEEN: GREY,
    QUEUED: FAILURE,
    PREFILL: PALETTE[0],
    DECODE: PALETTE[2],
    HELD_UP: PALETTE[1],
    PAUSED: PALETTE[3],
}
_ITEMS = 600  # of a trial, about


def slowest(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    trials = base.OneTrial([e for e in entries if e.slowest], _ITEMS)
    rows: list[Row] = []
    most = max((len(e.slowest) for e in trials.entries), default=0)
    for i, entry in enumerate(trials.entries):
        for pick, each in enumerate(entry.slowest):
            rows.append({**base.entry_row(entry), "trial": i, "pick": pick, **_lanes(each)})
    if not rows:
        return
    title = "A slow request among its neighbours"
    drawing = Drawing(look, rows, "slow-request", GROUP, title, height=380)
    drawing.about = (
        "Each bar is a request that was open at the same time; ▶ marks the chosen one. Long gaps are gaps of more than "
        "twice a step."
    )
    words = [[_request_words(each) for each in e.slowest] for e in trials.entries]
    drawing.params = [constant("requests_words", words)]
    trials.add_to(drawing, "requests_words[trial][pick]")
    ranks = {i: f"{'the slowest' if not i else f'number {i + 1}'}" for i in range(most)}
    drawing.selects.append(Select("pick", "Request", ranks, 0))
    drawing.steps = [
        vega.flatten("lane", "number", "tokens", "what", "begin", "end"),
        let("top", "datum.lane + 0.08"),
        let("under", "datum.lane + 0.92"),
        let("shown", "format((datum.end - datum.begin) * 1000, ',.4~r') + ' ms'"),
    ]
    used = [what for what in STRETCHES if any(what in row["what"] for row in rows)]
    scale = alt.Scale(domain=used, range=[_OF_STRETCHES[what] for what in used])
    legend = vega.legend("square", "room < 480 ? 1 : 4", "room < 480 ? room - 90 : 160")
    down = alt.Scale(reverse=True, nice=False, zero=False)
    axis = alt.Axis(
        title="Requests, in the order of sending", labels=False, ticks=False, grid=False
    )
    tooltip = [
        tip("number", "Request"),
        tip("tokens", "Tokens"),
        tip("what", "Part"),
        tip("shown", "Time"),
    ]
    where = {
        "x": alt.X(
            "begin:Q",
            scale=alt.Scale(nice=False, zero=False),
            axis=alt.Axis(title="Time since the load began (s)"),
        ),
        "x2": alt.X2("end"),
        "y": alt.Y("top:Q", scale=down, axis=axis),
        "y2": alt.Y2("under"),
        "color": alt.Color("what:N", scale=scale, legend=legend),
        "tooltip": tooltip,
    }
    mark = {**vega.TEXT, "text": "▶", "align": "right", "dx": -3, "fontSize": 12}
    chosen = [when("datum.number == datum.chosen"), when("datum.what == datum.first_what")]
    beside = {"x": alt.X("begin:Q"), "y": alt.Y("middle:Q")}
    middle = let("middle", "datum.lane + 0.5")
    yield drawing.chart(
        [
            unit({"type": "rect", "clip": True}, where, params=[vega.zoom()]),
            unit(mark, beside, *chosen, middle),
        ]
    )


def _lanes(each: Neighbourhood) -> Row:
    """Return the stretches of all lanes, as columns of equal length."""
    own = next(lane for lane in each.lanes if lane.number == each.request.index)
    row: Row = {key: [] for key in ("lane", "number", "tokens", "what", "begin", "end")}
    for place, lane in enumerate(each.lanes):
        tokens = f"{many(lane.prompt_tokens, 'token')} in, {lane.output_tokens:,} out"
        for segment in lane.segments:
            row["lane"].append(place)
            row["number"].append(lane.number)
            row["tokens"].append(tokens)
            row["what"].append(segment.what)
            row["begin"].append(segment.begin_s)
            row["end"].append(segment.end_s)
    row["chosen"] = each.request.index
    row["first_what"] = own.segments[0].what if own.segments else ""
    return row


def _request_words(each: Neighbourhood) -> str:
    r = each.request
    return f"request {r.index}: {number(r.latency_ms)} ms"
