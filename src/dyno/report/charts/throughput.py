"""Throughput against the load; served against offered requests; and throughput against latency."""

import re
from collections.abc import Iterator, Sequence

import altair as alt
import msgspec

from dyno.facts.chart import Chart
from dyno.facts.definition import meanings
from dyno.facts.entry import Entry, Number
from dyno.facts.load import AXES, KEYS, LOADS
from dyno.facts.metric import metric
from dyno.report.charts import vega
from dyno.report.charts.against import LineChart, Measure, PerSwitch, against, curves, headroom, lift, no_result, points
from dyno.report.charts.base import (
    REQUESTS,
    WHOLE,
    Drawing,
    Row,
    Select,
    entry_row,
    panels,
    present,
    short,
    shown,
    tips,
)
from dyno.report.charts.latency import NAMES, as_defined, first_definition, statistics
from dyno.report.charts.vega import expr, let, unit, when
from dyno.report.look import GREY, Look

FIGURES = ("output_throughput", "total_token_throughput", "input_throughput", "request_throughput", "request_goodput")
HOW = "Higher is better. Bars are 95 % intervals where they are known."
STEMS = ("ttft", "tpot", "e2el", "latency")
FIRST = ("p99 TTFT", "mean TTFT", "p50 TTFT", "mean Batch latency", "mean E2EL", "mean TPOT")


def measure(name: str) -> Measure:
    m = metric(name)
    return Measure(name, m.explained, m.axis, m.axis[0].lower() + m.axis[1:], lambda entry: entry.figures.get(name))


MEASURES = [measure(name) for name in FIGURES]
THROUGHPUT = LineChart(
    name="throughput-{}",
    group="Throughput",
    title="Throughput against {}",
    about=HOW,
    measures=MEASURES,
    per=True,
)
SPEED = LineChart(
    name="speed-{}",
    group="Throughput",
    title="Speed of a single request against {}",
    about=HOW,
    measures=[measure("speed")],
    per=True,
    log=True,
)
# Below the diagonal, a queue grows.
SERVED = LineChart(
    name="served-{}",
    group="Throughput",
    title="Served against offered requests",
    about="On the dashed line all that was offered was served. Below it a queue grew, or the run was short and the "
    "time until its last answer counts in.",
    measures=[measure("request_throughput")],
    equal="served = offered",
)


def throughput(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    yield from against(THROUGHPUT, [e for e in entries if e.kind in WHOLE], look, AXES)
    micro = [e for e in entries if e.kind == "micro" and "context" in e.axes]
    if not any(e.load.get("depth") for e in micro):  # tests that differ in their length alone are one line
        micro = [msgspec.structs.replace(e, load={**e.load, "test": letters(e)}) for e in micro]
    yield from against(SPEED, micro, look, ["context"])
    yield from against(SERVED, [e for e in entries if e.kind == "serve"], look, ["rate"])


def letters(micro: Entry) -> str:
    """'pp512' → 'pp'."""
    test = str(micro.load.get("test", ""))
    return re.sub(r"\d.*", "", test) or test


# ---- against latency ----

Numbers = dict[str, dict[str, Number]]  # of each entry's id: its latencies


def tradeoff(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Load by load, with the Pareto front over all that is shown."""
    entries = [e for e in entries if e.kind in WHOLE]
    words, values = latencies(entries)
    drawable = {e.id for e in entries if values[e.id] and any(name in e.figures for name in FIGURES)}
    for axis in LOADS:
        own = [e for e in entries if axis in e.axes and (e.failure or e.id in drawable)]
        if any(e.id in drawable for e in own) and (workloads := panels(own, axis)):
            switch = PerSwitch([e for e in own if e.id in drawable])
            rows: list[Row] = []
            for entry in own:
                row = entry_row(entry, failed=entry.id not in drawable)
                row |= {"load": short(entry.axes[axis]), "workload": workloads[1][entry.id]}
                row |= {key: shown(number) for key, number in values[entry.id].items()}
                row |= {name: shown(entry.figures[name]) for name in FIGURES if name in entry.figures}
                switch.put(row, entry)
                rows.append(row)
            yield _tradeoff(rows, axis, look, workloads[0], words, switch)


def latencies(entries: Sequence[Entry]) -> tuple[dict[str, str], Numbers]:
    """Fields of rows with their words, and each entry's values. A latency with two definitions is two."""
    words: dict[str, str] = {}
    values: Numbers = {e.id: {} for e in entries}
    for stem in STEMS:
        names = statistics(entries, stem)
        definitions = {e.id: key for e in entries if (key := first_definition(e, stem, names)) is not None}
        index = meanings(definitions.values())
        for entry in entries:
            for statistic in names:
                if (number := entry.statistic(statistic, stem)) is not None:
                    meaning = index[definitions[entry.id]]
                    key = f"{statistic}_{stem}_{meaning}"
                    words[key] = f"{statistic} {NAMES[stem]}{as_defined(index, meaning)}"
                    values[entry.id][key] = number
    return words, values


def _tradeoff(rows: list[Row], axis: str, look: Look, panel: Select, words: dict[str, str], switch: PerSwitch) -> Chart:
    lift(rows, "workload", highest="load")
    known = present(words, rows)
    figures = present({m.key: m.words for m in MEASURES}, rows)
    counts = {key: sum(key in row for row in rows) for key in (*known, *figures)}
    rank = {text: -i for i, text in enumerate(FIRST)}
    latency = max(known, key=lambda k: (counts[k], rank.get(known[k], -len(FIRST))))
    figure = max(figures, key=counts.__getitem__)
    drawing = Drawing(
        name=f"tradeoff-{axis.replace('_', '-')}",
        group="Throughput and latency",
        title=f"Throughput against latency, by {KEYS[axis].against}",
        about=f"Up and to the left is better. Numbers at the points are the {KEYS[axis].against}. On the Pareto front "
        "nothing else that is shown has more throughput at as little latency; void points don't count for it. "
        "✕ in the corner: a trial without a result.",
        look=look,
        rows=rows,
        selects=[Select("latency", "Latency", known, latency), Select("figure", "Throughput", figures, figure), panel],
        subtitle=[
            f"figure_words[figure]{switch.words} + ' against ' + latency_words[latency]"
            + switch.subtitle.removeprefix(switch.words),
            panel.chosen,
        ],
        steps=[
            let("x", "datum[latency]"),
            let("y", f"datum[figure] * {switch.factor}"),
            when("isValid(datum.why) || isValid(datum.x) && isValid(datum.y)"),
            let("told", switch.value("figure")),
            let("late", "format(datum.x, ',') + ' ms'"),
            REQUESTS,
        ],
        params=switch.params(MEASURES),
        per=switch.modes,
    )
    above = all(r[k] > 0 for r in rows for k in known if k in r)  # a zero has no place on a logarithmic axis
    log = above and any(
        vega.wide([r[k] for r in rows if k in r and r["workload"] == w], 16) for k in known for w in panel.words
    )
    heading, color = f"axes[figure]{switch.words}", drawing.colour()
    place = {"x": vega.milliseconds("x", log, 24), "y": vega.amount("y", expr(heading))}
    where = {**place, "color": color}
    tooltip = tips(("load", KEYS[axis].axis), ("told", "Throughput"), ("late", "Latency"))
    label = {**vega.TEXT, "align": "left", "dx": 7, "dy": 7, "clip": True}
    number = alt.Text("load", type="quantitative", format=vega.PLAIN)
    load = vega.tip("load", KEYS[axis].axis)
    return drawing.chart([
        *curves(drawing, {**where, "order": vega.order("load")}, switch),
        headroom(place["x"], heading),
        *front(place),
        *points(rows, where, tooltip),
        unit(label, {**place, "text": number}, when("isValid(datum.y)")),
        *no_result(rows, {"x": {"value": "width"}, "color": color}, [load], left=14),
    ])  # fmt: skip


def front(where: dict[str, alt.X | alt.Y]) -> list[alt.UnitSpec]:
    """From the left: each point that has more throughput than all before it."""
    sort = [alt.SortField("x", order="ascending"), alt.SortField("y", order="descending")]
    best = [
        when("datum.verdict != 'void' && isValid(datum.y)"),
        vega.window("max", "top", "y", sort),
        vega.window("lag", "before", "top", sort),
        when("!isValid(datum.before) || datum.y > datum.before"),
    ]
    line = {**vega.LINE, "interpolate": "step-after", "stroke": GREY, "strokeWidth": 5, "opacity": 0.4}
    name = {"type": "text", "text": "Pareto front", "fill": GREY, "align": "right", "baseline": "top", "clip": True}
    return [
        unit(line, {**where, "order": vega.order("x")}, *best),
        unit({**name, "dx": -12, "dy": 8}, where, *best, *vega.last()),
    ]
