"""Figures against the load: a line for each series, with intervals, verdicts and failures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import msgspec

from dyno.facts.chart import PER, Chart
from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS
from dyno.report.charts.base import (
    ESTIMATE,
    FAILED_TIPS,
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
    interval,
    let,
    load_axis,
    put,
    short,
    tips,
    toggle,
    unit,
    value_axis,
    when,
    wide,
    zoom,
)
from dyno.report.charts.marks import headroom, lift, lost, no_result, points
from dyno.report.charts.workloads import panels, places
from dyno.report.look import GREY, Look
from dyno.report.per import estimated

# What a figure is multiplied by. What isn't known is no number, and isn't drawn.
FACTOR = (
    "(per == 'accelerator' ? 1 / datum.used : per == 'machine' ? datum.machine : per == 'dollar' ? 1 / datum.hour : 1)"
)
DASHED = "(per == 'machine' ? ' (dashed: an estimate, as if nothing were lost)' : '')"
FAINT = 0.3
PER_WORDS = {"measured": "", "accelerator": ", for one accelerator", "machine": ", for one machine"}


class Measure(msgspec.Struct, frozen=True):
    """One of the figures that a chart lets choose from."""

    key: str
    words: str
    axis: str  # title, with its unit
    unit: str
    of: Callable[[Entry], Number | None]


def per_of(entries: Sequence[Entry]) -> list[str]:
    """The ways to tell throughput for which something has what they need."""
    has = {
        "measured": True,
        "accelerator": any(e.accelerators for e in entries),
        "machine": any(e.accelerators and e.machine for e in entries),
        # Euros and dollars don't share an axis.
        "dollar": any(e.cost and e.cost.hour for e in entries)
        and len({e.cost.currency for e in entries if e.cost}) == 1,
    }
    return [p for p in PER if has[p]]


def put_per(row: Row, entry: Entry, per: Sequence[str]) -> None:
    if "accelerator" in per and entry.accelerators:
        row["used"] = short(entry.accelerators)
    if "machine" in per and entry.accelerators and entry.machine:
        row["machine"] = entry.machine / entry.accelerators
        if estimated(entry, "machine"):
            row["part"] = 1
    if "dollar" in per and entry.cost and entry.cost.hour:
        row["hour"] = entry.cost.hour


def per_words(entries: Sequence[Entry]) -> Mapping[str, str]:
    money = next((e.cost.currency for e in entries if e.cost), "")
    named = "dollar" if money.upper() in ("USD", "$") else money
    return {**PER_WORDS, "dollar": f", for each {named} an hour"}


def stretches(rows: Sequence[Row]) -> bool:
    """Numbers the parts of each line between which a load lies that others were measured under, and this one not. A
    line drawn through would look like a measurement. Whether there are such parts."""
    loads: dict[Any, list[Any]] = {}
    lines: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        if "why" not in row:
            loads.setdefault(row["workload"], []).append(row["x"])
            lines.setdefault((row["workload"], row["series"]), []).append(row)
    at = {workload: {x: i for i, x in enumerate(sorted(set(values)))} for workload, values in loads.items()}
    found = False
    for (workload, _), line in lines.items():
        part, last = 0, None
        for row in sorted(line, key=lambda r: r["x"]):
            place = at[workload][row["x"]]
            if last is not None and place > last + 1:
                part, found = part + 1, True
            row["stretch"], last = part, place
    for row in rows if not found else ():
        row.pop("stretch", None)
    return found


def against(
    entries: Sequence[Entry],
    axis: str,
    look: Look,
    measures: Sequence[Measure],
    *,
    name: str,
    group: str,
    title: str,
    about: str,
    choice: str,  # name of the select of measures
    label: str,
    normal: bool = False,  # it follows the switch of what throughput is told for
    log: bool = False,  # where the range asks for it
    falling: bool = False,  # with the load
    meaning: Callable[[Entry], int] | None = None,
    meaning_words: Mapping[Option, str] | None = None,
    equal: str = "",  # what a line through equal values is called; '': there is none
) -> Chart | None:
    """None where there is nothing to draw, or only one load."""
    entries = [e for e in entries if axis in e.axes]
    numbers = {e.id: {m.key: n for m in measures if (n := m.of(e)) is not None} for e in entries}
    kept = [e for e in entries if numbers[e.id] or e.failure]
    panel = panels(kept, axis)
    if panel is None or not any(numbers.values()):
        return None
    at = places(kept, axis)
    per = per_of([e for e in kept if numbers[e.id]]) if normal else []
    rows: list[Row] = []
    for entry in kept:
        row = entry_row(entry) if numbers[entry.id] else failed_row(entry)
        row |= {"x": short(entry.axes[axis]), "workload": at[entry.id]}
        if meaning and numbers[entry.id]:
            row["meaning"] = meaning(entry)
        for key, number in numbers[entry.id].items():
            put(row, key, number)
        put_per(row, entry, per)
        rows.append(row)
    counts = {m.key: sum(m.key in row for row in rows) for m in measures}
    there = [m for m in measures if counts[m.key]]
    first = max(there, key=lambda m: counts[m.key])
    lift(rows, "x", "workload", highest=first.key)
    gaps = stretches(rows)
    picks = Select(choice, label, {m.key: m.words for m in there}, first.key)
    selects = [picks, panel]
    if meaning_words and len(meaning_words) > 1:
        kinds = [row["meaning"] for row in rows if "meaning" in row]
        selects.append(Select("meaning", "As defined by", meaning_words, max(sorted(set(kinds)), key=kinds.count)))

    log = log and any(
        wide([r[m.key] for r in rows if m.key in r and r["workload"] == w], 20) for m in there for w in panel.words
    )
    log = log and all(r[m.key] > 0 for r in rows for m in there if m.key in r)  # a zero has no place on it
    if equal:  # a straight line, where it can be one
        log = wide([row["x"] for row in rows], 16) and all(r[first.key] > 0 for r in rows if first.key in r)
    factor = FACTOR if per else "1"
    series = look.ordered(row["series"] for row in rows)
    x = load_axis(axis, [row["x"] for row in rows])
    heading = f"axes[{choice}]" + (" + per_words[per]" if per else "")
    y = value_axis("y", expr(heading), log=log)
    color = colour(look, series)
    tooltip = tips(("x", KEYS[axis].axis), ("told", "Value"))
    dashed = any("part" in row for row in rows)
    estimate = "per == 'machine' && datum.part == 1"
    line = {"type": "line", "strokeWidth": 2, "clip": True}
    lined = {"x": x, "y": y, "color": color, "strokeDash": dashes(look, series)}
    solid = "isValid(datum.y)" + (f" && !({estimate})" if dashed else "")
    whole = {**lined, "detail": alt.Detail("stretch", type="nominal")} if gaps else lined
    layers = [unit(line, whole, when(solid), params=[toggle(series), zoom()])]
    if gaps:  # underneath, where a load that others have was not measured
        layers.insert(0, unit({**line, "opacity": FAINT}, lined, when(solid)))
    if dashed:
        broken = {**line, "strokeDash": ESTIMATE}
        layers.append(unit(broken, {**lined, "strokeDash": alt.Undefined}, when(f"isValid(datum.y) && {estimate}")))
    if any(key.endswith("_low") for row in rows for key in row):
        low, high = value_axis("low", expr(heading), log=log), alt.Y2("high")
        bars = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.75, "clip": True}
        layers.append(unit(bars, {"x": x, "y": low, "y2": high, "color": color}, when("isValid(datum.low)")))
    if not log:
        layers.append(headroom(x=x, y=value_axis("far", expr(heading))))
    layers += lost(rows, x=x, y=y, tooltip=tooltip)
    layers += points(rows, x=x, y=y, color=color, tooltip=tooltip)
    layers += no_result(rows, x=x, color=color, tooltip=FAILED_TIPS, top=falling)

    if equal:
        layers += diagonal([row["x"] for row in rows], equal, x=x, y=y)

    # A failed trial has no definition, and belongs to each.
    chosen = [
        f"(datum.{s.name} == {s.name} || isValid(datum.why))" if s.name == "meaning" else f"datum.{s.name} == {s.name}"
        for s in selects[1:]
        if len(s.words) > 1
    ]
    print_ = "format({0}, " + ("per == 'measured' ? ',' : ',.4~r'" if per else "','") + ")"
    told = f"{print_.format('datum.y')} + ' ' + units[{choice}]" + (" + per_words[per]" if per else "")
    told += f" + {interval('datum.low', 'datum.high', print_)}" + (
        f" + ({estimate} ? ' – an estimate' : '')" if dashed else ""
    )
    transform = [
        *(when(test) for test in chosen),
        *drawn(),
        TOGGLED,
        let("y", f"datum[{choice}] * {factor}"),
        let("low", f"datum[{choice} + '_low'] * {factor}"),
        let("high", f"datum[{choice} + '_high'] * {factor}"),
        let("told", told),
        REQUESTS,
    ]
    subtitle = [picks.told + (" + per_words[per]" if per else ""), panel.told]
    subtitle += ["'as defined by ' + " + s.told for s in selects if s.name == "meaning"]
    if dashed:
        subtitle[0] += f" + {DASHED}"
    params = [constant("axes", {m.key: m.axis for m in there}), constant("units", {m.key: m.unit for m in there})]
    if per:
        params.append(constant("per_words", per_words(kept)))
    return finish(
        layers,
        rows,
        name=name,
        group=group,
        title=title,
        about=about,
        subtitle=subtitle,
        transform=transform,
        selects=selects,
        params=params,
        per=per,
    )


def diagonal(values: Sequence[float], text: str, *, x: Any, y: Any) -> list[Any]:
    """Many points: with one scale logarithmic, it is a curve."""
    least, most = min(values), max(values)
    at = [short(least + (most - least) * i / 40) for i in range(41)]
    line = unit(
        {"type": "line", "stroke": GREY, "strokeDash": [2, 3], "strokeWidth": 1.5, "clip": True}, {"x": x, "y": y}
    )
    line.data = alt.InlineData(values=[{"x": v, "y": v} for v in at])
    label = {"type": "text", "text": text, "fill": GREY, "align": "right", "dx": -24, "dy": 12}
    name = unit(label, {"x": x, "y": y})
    name.data = alt.InlineData(values=[{"x": at[-1], "y": at[-1]}])
    return [line, name]
