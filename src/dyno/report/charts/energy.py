"""Power and energy per token: over a trial's time, and against the load."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts.against import Measure, against
from dyno.report.charts.base import (
    ROWS_MAX,
    Row,
    colour,
    drawn,
    entry_row,
    evenly,
    finish,
    let,
    short,
    tip,
    unit,
    when,
    zoom,
)
from dyno.report.charts.one_trial import signs, trials
from dyno.report.look import Look

TALL = 360  # pixels of the two panels
LEAST = 40  # moments of a trial, below which a dip can't be seen


def energy(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    yield from over_time(entries, look)
    measures = [
        Measure(
            "joules", "energy per output token", "Energy per output token (J)", "J", lambda e: own(e.joules_per_token)
        ),
        Measure("watts", "power", "Power (W)", "W", lambda e: own(e.power_w)),
    ]
    for axis in LOADS:
        chart = against(
            entries,
            axis,
            look,
            measures,
            name=f"energy-{axis.replace('_', '-')}",
            group="Energy",
            title=f"Energy and power against {KEYS[axis].against}",
            about="Of the accelerators that were used, on average.",
            choice="figure",
            label="Figure",
            falling=True,
        )
        if chart:
            yield chart


def own(value: float | None) -> Number | None:
    return None if value is None else Number(value)


def over_time(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Two panels in one view, so that it is as wide as the page: each has its half of the height."""
    there = [e for e in entries if e.moments]
    kept = there[: ROWS_MAX // LEAST]
    if not kept:
        return
    most = max(LEAST, ROWS_MAX // len(kept))
    rows: list[Row] = []
    for i, entry in enumerate(kept):
        moments = evenly(entry.moments, most)
        row = entry_row(entry) | {"trial": i, "at": [short(m.at_s) for m in moments]}
        row["watts"] = [None if m.power_w is None else short(m.power_w) for m in moments]
        row["joules"] = [None if m.joules_per_token is None else short(m.joules_per_token) for m in moments]
        row["speed"] = [None if m.tokens_per_s is None else short(m.tokens_per_s) for m in moments]
        rows.append(row)
    trial = trials(kept)
    series = look.ordered(row["series"] for row in rows)
    tooltip = [
        tip("series", "Series"),
        tip("when", "Time"),
        tip("told", "Power"),
        tip("each", "Energy"),
        tip("made", "Output"),
        tip("verdict", "Verdict"),
    ]
    joules = any(v is not None for row in rows for v in row["joules"])
    x = alt.X(
        "at",
        type="quantitative",
        scale=alt.Scale(nice=True, zero=True),
        axis=alt.Axis(title="Time since the load began (s)"),
    )
    panels = [("watts", "Power (W)", [TALL / 2 - 14, 0] if joules else [TALL, 0])]
    panels += [("joules", "Energy per output token (J)", [TALL, TALL / 2 + 14])] if joules else []
    layers = []
    for i, (field, title, room) in enumerate(panels):
        y = alt.Y(
            field,
            type="quantitative",
            scale=alt.Scale(zero=True, nice=True, range=room),
            axis=alt.Axis(title=title, orient="left", tickCount=4),
        )
        line = {"type": "line", "strokeWidth": 1.5, "clip": True}
        dots = {"type": "point", "filled": True, "size": 14, "opacity": 1, "clip": True}
        where = {"x": x, "y": y, "color": colour(look, series, "" if len(series) > 1 else "stroke")}
        valid = when(f"isValid(datum.{field})")
        params = [zoom("x")] if i == 0 else []
        layers.append(
            alt.LayerSpec(
                layer=[unit(line, where, valid, params=params), unit(dots, {**where, "tooltip": tooltip}, valid)]
            )
        )
    less = f" The first {len(kept)} of {len(there)} trials are kept." if len(kept) < len(there) else ""
    yield finish(
        layers,
        rows,
        name="power-time",
        group="Energy",
        title="Power and energy per token over time",
        about="Of one trial at a time: the power of its accelerators, and that power by the tokens of the same slice "
        "of time." + less,
        subtitle=[trial.told, "trial_signs[trial]"],
        selects=[trial],
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(y="independent")),
        params=[signs(kept)],
        height=TALL,
        transform=[
            *drawn(trial),
            alt.FlattenTransform(flatten=["at", "watts", "joules", "speed"]),
            let("when", "format(datum.at, ',') + ' s'"),
            let("told", "isValid(datum.watts) ? format(datum.watts, ',') + ' W' : 'not known'"),
            let("each", "isValid(datum.joules) ? format(datum.joules, ',') + ' J/token' : 'not known'"),
            let("made", "isValid(datum.speed) ? format(datum.speed, ',') + ' tokens/s' : 'not known'"),
        ],
    )
