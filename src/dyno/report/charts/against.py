"""Figures against the load: a line for each series, with intervals, verdicts and failures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import altair as alt
import msgspec

from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS
from dyno.facts.metric import DEFINITIONS, meanings
from dyno.facts.report import PER, Chart
from dyno.numbers import many
from dyno.report.charts import base, vega
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import LINE, constant, expr, let, unit, when
from dyno.report.look import FAILURE, GREY, Look
from dyno.report.per import estimated

ESTIMATE = "per == 'machine' && datum.part == 1"
VERDICTS = {"sound": "circle", "doubtful": "triangle-up", "void": vega.CROSS}


class Curve(msgspec.Struct, frozen=True):
    """One of the figures that a chart lets choose from, drawn as a line for each series."""

    key: str
    words: str
    axis: str  # title, with its unit
    unit: str
    number: Callable[[Entry], Number | None]


class LineChart(msgspec.Struct, frozen=True):
    """The parameters of one such chart."""

    name: str  # {}: the axis
    group: str
    title: str  # {}: what it is against
    about: str
    measures: Sequence[Curve]
    # name and label of the select of measures
    choice: tuple[str, str] = ("figure", "Figure")
    # it follows the switch between throughput as measured, for one accelerator, …
    per: bool = False
    log: bool = False  # where the range asks for it
    falling: bool = False  # with the load
    defined: bool = False  # figures of two definitions are shown one at a time
    equal: str = ""  # what a line through equal values is called; '': there is none


class PerSwitch:
    """Throughput as measured, per accelerator, per machine or per dollar: the modes that a page switches between."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        money = list(dict.fromkeys(e.cost.currency for e in entries if e.cost))
        self.modes = [mode for mode in PER if self._available(mode, entries, money)]
        self.money = money[0] if money else ""
        if self.money.upper() in ("USD", "$"):
            self.money = "dollar"
        self.estimates = False  # some figures of whole machines are estimates
        # The end of an expression that names a figure.
        self.words = " + per_words[per]" if self.modes else ""
        # The template of an expression that prints one.
        digits = "per == 'measured' ? ',' : ',.4~r'" if self.modes else "','"
        self.format = f"format({{0}}, {digits})"

    @staticmethod
    def _available(mode: str, entries: Sequence[Entry], money: Sequence[str]) -> bool:
        if mode == "accelerator":
            return any(e.accelerators for e in entries)
        if mode == "machine":
            return any(e.accelerators and e.machine for e in entries)
        if mode == "dollar":  # euros and dollars don't share an axis
            return len(money) == 1 and any(e.cost and e.cost.hour for e in entries)
        return bool(entries)

    def put(self, row: Row, entry: Entry) -> None:
        if "accelerator" in self.modes and entry.accelerators:
            row["used"] = base.short(entry.accelerators)
        if "machine" in self.modes and entry.accelerators and entry.machine:
            row["machine"] = entry.machine / entry.accelerators
            if estimated(entry, "machine"):
                row["part"], self.estimates = 1, True
        if "dollar" in self.modes and entry.cost and entry.cost.hour:
            row["hour"] = entry.cost.hour

    @property
    def factor(self) -> str:
        """Return the factor of a figure. An unknown factor is NaN, and nothing is drawn."""
        if not self.modes:
            return "1"
        known = (
            "per == 'accelerator' ? 1 / datum.used : per == 'machine' ? datum.machine : "
        )
        return f"({known}per == 'dollar' ? 1 / datum.hour : 1)"

    def subtitle(self, words: str) -> str:
        dashed = " + (per == 'machine' ? ' (dashed: estimate without losses)' : '')"
        return words + dashed if self.estimates else words

    def value(self, choice: str, interval: str = "") -> str:
        """Return the expression of a figure with its unit."""
        note = f" + ({ESTIMATE} ? ', estimate' : '')" if self.estimates else ""
        return f"{self.format.format('datum.y')} + ' ' + units[{choice}]{self.words}{interval}{note}"

    def params(self, measures: Sequence[Curve]) -> list[Any]:
        """Return values that expressions refer to."""
        titles = {m.key: m.axis for m in measures}
        units = {m.key: m.unit for m in measures}
        params = [constant("axes", titles), constant("units", units)]
        if self.modes:
            words = {
                "measured": "",
                "accelerator": " per accelerator",
                "machine": " per machine",
            }
            words["dollar"] = f" per {self.money} per hour"
            params.append(constant("per_words", words))
        return params


def against(
    kind: LineChart, entries: Sequence[Entry], look: Look, axes: Sequence[str]
) -> Iterator[Chart]:
    """Yield a chart for each axis along which a workload was measured at two loads or more."""
    numbers = {e.id: _numbers(kind, e) for e in entries}
    definitions = first_definitions(numbers) if kind.defined else {}
    index = meanings(definitions.values())
    for axis in axes:
        drawn = [e for e in entries if axis in e.axes and (numbers[e.id] or e.failure)]
        panels = base.panels(drawn, axis)
        if panels is None:
            continue
        panel, rows = panels
        measured = [e for e in drawn if not e.failure]
        switch = PerSwitch(measured if kind.per else [])
        for entry, row in zip(drawn, rows, strict=True):
            if entry.id in definitions:
                row["meaning"] = index[definitions[entry.id]]
            for key, number in numbers[entry.id].items():
                base.put(row, key, number)
            switch.put(row, entry)
        yield _chart(kind, axis, rows, look, switch, [panel, *_definitions(rows, index)])


def first_definitions(numbers: Mapping[str, Mapping[str, Number]]) -> dict[str, str]:
    """Return the definition of each entry's figures, by its id; those without figures have none."""
    return {
        id: next(iter(each.values())).definition for id, each in numbers.items() if each
    }


def _numbers(kind: LineChart, entry: Entry) -> dict[str, Number]:
    """Return those of a chart's figures that an entry has."""
    return {
        measure.key: number
        for measure in kind.measures
        if (number := measure.number(entry)) is not None
    }


def _definitions(rows: Sequence[Row], index: Mapping[str, int]) -> list[Select]:
    """Return the select of a definition, where there are several."""
    by_meaning: dict[int, list[str]] = {}
    for key, meaning in index.items():
        by_meaning.setdefault(meaning, []).append(key)
    if len(by_meaning) < 2:
        return []
    words = {
        meaning: _definition_words(by_meaning[meaning]) for meaning in sorted(by_meaning)
    }
    first = base.commonest([row["meaning"] for row in rows if "meaning" in row])
    # A failed trial has no definition, and belongs to each.
    return [Select("meaning", "As defined by", words, first, also="isValid(datum.why)")]


def _definition_words(keys: Sequence[str]) -> str:
    """Return the tools that define a figure so, and how."""
    tools = ", ".join(key.split(".")[0] for key in keys if key)
    if tools and keys[0] in DEFINITIONS:
        return f"{tools}: {DEFINITIONS[keys[0]]}"
    return tools or "unknown"


def _chart(
    kind: LineChart,
    axis: str,
    rows: list[Row],
    look: Look,
    switch: PerSwitch,
    selects: list[Select],
) -> Chart:
    counts = {m.key: sum(m.key in row for row in rows) for m in kind.measures}
    measures = [m for m in kind.measures if counts[m.key]]
    first = max(measures, key=lambda m: counts[m.key]).key
    lift(rows, "x", "workload")
    gaps, log = stretches(rows), _logarithmic(kind, rows, [m.key for m in measures], first)
    name, title = kind.name.format(axis), kind.title.format(KEYS[axis].against)
    drawing = Drawing(look, rows, name, kind.group, title, kind.about, per=switch.modes)
    choice, label = kind.choice
    picks = Select(choice, label, {m.key: m.words for m in measures}, first)
    drawing.selects = [picks, *selects]
    drawing.subtitle = [switch.subtitle(picks.chosen + switch.words)]
    drawing.subtitle += [
        f"'as defined by ' + {s.chosen}" if s.name == "meaning" else s.chosen
        for s in selects
    ]
    drawing.params = switch.params(measures)
    count_failed(drawing)
    low, high = switch.format.format("datum.low"), switch.format.format("datum.high")
    drawing.steps = [
        let("y", f"datum[{choice}] * {switch.factor}"),
        let("low", f"datum[{choice} + '_low'] * {switch.factor}"),
        let("high", f"datum[{choice} + '_high'] * {switch.factor}"),
        let(
            "shown",
            switch.value(
                choice,
                f" + (isValid(datum.low) ? ' (95 %: ' + {low} + ' to ' + {high} + ')' : '')",
            ),
        ),
        base.REQUESTS,
    ]
    heading, x, color = (
        f"axes[{choice}]{switch.words}",
        load_axis(axis, rows),
        drawing.colour(),
    )
    where = {"x": x, "y": vega.amount("y", expr(heading), log=log), "color": color}
    layers = curves(drawing, where, switch, gaps)
    if any(key.endswith("_low") for row in rows for key in row):
        bars = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.75, "clip": True}
        span = {
            **where,
            "y": vega.amount("low", expr(heading), log=log),
            "y2": alt.Y2("high"),
        }
        layers.append(unit(bars, span, when("isValid(datum.low)")))
    if not log:
        layers.append(headroom(x, heading))
    layers += points(rows, where, base.tips(("x", KEYS[axis].axis), ("shown", "Value")))
    layers += no_result(rows, {"x": x, "color": color}, top=kind.falling)
    if kind.equal:
        layers += diagonal(
            [row["x"] for row in rows], kind.equal, {"x": x, "y": where["y"]}
        )
    return drawing.chart(layers)


def _logarithmic(
    kind: LineChart, rows: Sequence[Row], keys: Sequence[str], first: str
) -> bool:
    if kind.equal:  # a straight line, where it can be one
        values = [row[first] for row in rows if first in row]
        return vega.wide([row["x"] for row in rows], 16) and all(v > 0 for v in values)
    return kind.log and vega.spread(rows, keys, 20)


def load_axis(axis: str, rows: Sequence[Row]) -> alt.X:
    """Place ticks at the measured loads."""
    levels = sorted({row["x"] for row in rows})
    kind = "log" if vega.wide(levels, 16) else "linear"
    if levels[0] <= 0 and vega.wide([v for v in levels if v > 0], 16):
        kind = "symlog"
    ticks = levels if len(levels) <= 40 else alt.Undefined
    labels = alt.Axis(title=KEYS[axis].axis, values=ticks, format=vega.PLAIN)
    return alt.X("x:Q", scale=vega.from_least(kind, 22), axis=labels)


def stretches(rows: Sequence[Row]) -> bool:
    """Number the parts of each line between loads at which others were measured, and this one was not: a line drawn
    through would look like a measurement. Return whether there are such parts."""
    lines: dict[Any, dict[Any, list[Row]]] = {}
    for row in rows:
        if "why" not in row:
            lines.setdefault(row["workload"], {}).setdefault(row["series"], []).append(row)
    parts: list[tuple[Row, int]] = []
    for series in lines.values():
        loads = {row["x"] for line in series.values() for row in line}
        levels = {load: i for i, load in enumerate(sorted(loads))}
        for line in series.values():
            line.sort(key=lambda row: row["x"])
            steps = [levels[b["x"]] - levels[a["x"]] for a, b in pairwise(line)]
            parts += zip(
                line, accumulate((step > 1 for step in steps), initial=0), strict=True
            )
    gaps = any(part for _, part in parts)
    if gaps:
        for row, part in parts:
            row["stretch"] = part
    return gaps


def diagonal(values: Sequence[float], words: str, where: Mapping[str, Any]) -> list[Any]:
    """Return a line through equal values, of many points: with one scale logarithmic, it is a curve."""
    least, most = min(values), max(values)
    places = [base.short(least + (most - least) * i / 40) for i in range(41)]
    each = [{"x": place, "y": place} for place in places]
    line = unit({**LINE, "stroke": GREY, "strokeDash": [2, 3], "strokeWidth": 1.5}, where)
    name = unit(
        {
            "type": "text",
            "text": words,
            "fill": GREY,
            "align": "right",
            "dx": -24,
            "dy": 12,
        },
        where,
    )
    line.data, name.data = alt.InlineData(values=each), alt.InlineData(values=each[-1:])
    return [line, name]


# ---- marks: a verdict is a shape, failed requests a count, a failed trial a cross ----


def curves(
    drawing: Drawing, path: Mapping[str, Any], switch: PerSwitch, gaps: bool = False
) -> list[Any]:
    """Return the lines: faint where a load that others have was not measured, dashed where they are estimates."""
    valid = "isValid(datum.y)"
    solid = when(f"{valid} && !({ESTIMATE})" if switch.estimates else valid)
    line = {**path, "strokeDash": drawing.dashes()}
    whole = {**line, "detail": alt.Detail("stretch:N")} if gaps else line
    layers = [unit({**LINE, "opacity": 0.3}, line, solid)] if gaps else []
    layers.append(
        unit(LINE, whole, solid, params=[vega.toggle(drawing.series), vega.zoom()])
    )
    if switch.estimates:
        layers.append(
            unit({**LINE, "strokeDash": [5, 4]}, path, when(f"{valid} && {ESTIMATE}"))
        )
    return layers


def points(rows: Sequence[Row], where: Mapping[str, Any], tooltip: Any) -> list[Any]:
    """Return points whose shape shows the verdict; what isn't sound is hollow too. Those with failed requests have a
    ring."""
    unsound = any(row["verdict"] != "sound" for row in rows)
    ground = expr(f"datum.value == 'sound' ? '{GREY}' : 'transparent'")
    legend = alt.Legend(
        title="Verdict", symbolFillColor=ground, symbolStrokeColor=GREY, symbolStrokeWidth=2
    )
    scale = alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values()))
    shape = {
        "shape": alt.Shape("verdict:N", scale=scale, legend=legend if unsound else None),
        "tooltip": tooltip,
    }
    layers = [
        unit(
            {**vega.POINT, "filled": True},
            where,
            when("isValid(datum.y) && datum.verdict == 'sound'"),
        ),
        unit(
            {**vega.POINT, "strokeWidth": 2}, {**where, **shape}, when("isValid(datum.y)")
        ),
    ]
    if not any(row.get("failed") for row in rows):
        return layers
    failed = when("datum.failed > 0 && isValid(datum.y)")
    place = {"x": where["x"], "y": where["y"], "tooltip": tooltip}
    ring = {**vega.POINT, "size": 230, "stroke": FAILURE, "strokeWidth": 1.5}
    return [unit(ring, place, failed), *layers]


def headroom(x: Any, heading: str) -> Any:
    """Draw nothing, a little above the highest point: else the frame would cut that one in half."""
    far = let("far", "(datum.high || datum.y) * 1.06")
    where = {"x": x, "y": vega.amount("far", expr(heading))}
    return unit(vega.INVISIBLE, where, far, when("isValid(datum.far)"))


def no_result(
    rows: Sequence[Row],
    where: Mapping[str, Any],
    tooltip: Sequence[Any] = (),
    top: bool = False,
    left: int = 0,
) -> list[Any]:
    """Mark trials that failed wholly: a cross on the axis, in a ring of the series' colour; one above the other.

    `top`: at the upper end, where falling lines leave room. `left`: pixels."""
    if not any("why" in row for row in rows):
        return []
    failed = when("isValid(datum.why)")
    lift = expr("9 + 17 * datum.lift" if top else "-9 - 17 * datum.lift")
    ringed = {
        **where,
        "y": {"value": 0 if top else "height"},
        "tooltip": [*tooltip, *base.FAILED_TIPS],
    }
    point = {"type": "point", "opacity": 1, "yOffset": lift, "xOffset": -left}
    ring = {**point, "shape": "circle", "size": 200, "strokeWidth": 1.5}
    cross = {
        **point,
        "shape": vega.CROSS,
        "size": 60,
        "stroke": FAILURE,
        "strokeWidth": 2.5,
    }
    return [
        unit(ring, ringed, failed),
        unit(cross, {**ringed, "color": alt.Undefined}, failed),
    ]


def lift(rows: Sequence[Row], *keys: str) -> None:
    """Count failed trials in the same place, which are stacked."""
    seen: dict[tuple[Any, ...], int] = {}
    for row in (row for row in rows if "why" in row):
        place = tuple(row.get(k) for k in keys)
        row["lift"] = seen[place] = seen.get(place, -1) + 1


def count_failed(drawing: Drawing) -> None:
    """Say below the title how many requests failed: counts beside the points would overlap."""
    lost: dict[str, float] = {}
    for row in drawing.rows:
        workload = str(row["workload"])
        lost[workload] = lost.get(workload, 0) + row.get("failed", 0)
    if any(lost.values()):
        words = {
            k: f"{many(n, 'request')} failed (ringed)" if n else "no request failed"
            for k, n in lost.items()
        }
        drawing.params.append(constant("lost", words))
        drawing.subtitle.append("lost[workload]")
