"""What results take: money, memory, power and energy."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts import vega
from dyno.report.charts.against import LineChart, Measure, against
from dyno.report.charts.bars import bars, height
from dyno.report.charts.base import (
    REQUESTS,
    Drawing,
    OneTrial,
    Row,
    Select,
    commonest,
    entry_row,
    evenly,
    load_words,
    panels,
    present,
    short,
    shorts,
    tips,
)
from dyno.report.charts.vega import expr, let, tip, unit, when
from dyno.report.look import Look


def own(value: float | None) -> Number | None:
    return None if value is None else Number(value)


# ---- cost: at each load, and at the cheapest ----

PRICES = {
    "per_million_output": "a million output tokens",
    "per_million_input": "a million input tokens",
    "per_million_total": "a million tokens, input and output",
    "per_thousand_requests": "a thousand requests",
    "energy_per_million_output": "electricity alone, for a million output tokens",
}
HOW = "Lower is better. Each figure bears the whole price: where output tokens are told, their prompts come free."


def cost(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """One currency at a time; mostly there is only one."""
    currencies = dict.fromkeys(e.cost.currency for e in entries if e.cost)
    for i, currency in enumerate(currencies):
        # Trials without a result have no price, and belong to each.
        priced = [e for e in entries if (e.cost and e.cost.currency == currency) or e.failure]
        tail = f"-{i + 1}" if i else ""
        chart = LineChart(
            name=f"cost-{{}}{tail}",
            group="Cost",
            title="Cost against {}",
            about=HOW,
            measures=[
                Measure(name, words, f"{currency}, {words}", currency, lambda e, name=name: price(e, name))  # type: ignore[misc]
                for name, words in PRICES.items()
            ],
            choice=("price", "Price of"),
            log=True,
            falling=True,
        )
        for axis in LOADS:
            for drawn in against(chart, priced, look, [axis]):
                yield drawn
                yield cheapest([e for e in priced if e.cost and axis in e.axes], axis, look, currency, tail)


def price(entry: Entry, name: str) -> Number | None:
    return own(getattr(entry.cost, name, None))


def cheapest(entries: Sequence[Entry], axis: str, look: Look, currency: str, tail: str) -> Chart:
    workloads = panels(entries, axis, least=1)
    assert workloads is not None
    rows: list[Row] = []
    for entry in entries:
        row = entry_row(entry) | {"load": short(entry.axes[axis]), "workload": workloads[1][entry.id]}
        rows.append(row | {name: short(p.value) for name in PRICES if (p := price(entry, name))})
    words = present(PRICES, rows)
    order = [alt.SortField("bad", order="ascending"), alt.SortField("y", order="ascending")]
    before, after = (f"'{text}'" for text in KEYS[axis].words.split("{}"))
    drawing = Drawing(
        name=f"cheapest-{axis.replace('_', '-')}{tail}",
        group="Cost",
        title=f"Cost at the cheapest {KEYS[axis].against}",
        about=HOW + " A void result stands only where a series has no other.",
        look=look,
        rows=rows,
        selects=[Select("price", "Price of", words, next(iter(words))), workloads[0]],
        params=[vega.constant("currency", currency)],
        height=height(len({row["series"] for row in rows})),
        steps=[
            REQUESTS,
            let("y", "datum[price]"),
            when("isValid(datum.y)"),
            # A void result wins only where there is no other.
            let("bad", "datum.verdict == 'void' ? 1 : 0"),
            vega.window("row_number", "rank", sort=order, by=["series"]),
            when("datum.rank == 1"),
            let("at", f"{before} + format(datum.load, ',') + {after}"),
            let("text", "format(datum.y, ',.3~r') + ' at ' + datum.at"),
            let("told", "format(datum.y, ',.4~r') + ' ' + currency"),
        ],
    )
    return bars(drawing, expr("currency + ', ' + price_words[price]"), tips(("told", "Cost"), ("at", "Load")))


# ---- memory ----

WHAT = {"after": "after load, before any request", "peak": "at most, under load"}
HOLDERS = {"accelerators": "of accelerators", "processes": "of the engine's processes"}


def memory(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """The most that a trial of a series held."""
    most: dict[tuple[str, str, str], tuple[float, Entry]] = {}
    for entry in entries:
        if entry.memory is None:
            continue
        for what, value in (("after", entry.memory.after_load_bytes), ("peak", entry.memory.peak_bytes)):
            key = (entry.memory.basis, what, entry.series)
            if value is not None and (key not in most or value > most[key][0]):
                most[key] = (value, entry)
    rows: list[Row] = []
    for (holder, what, _), (value, entry) in most.items():
        load = load_words([("kind", entry.kind), *entry.load.items()])
        rows.append(entry_row(entry) | {"of": holder, "what": WHAT[what], "y": short(value / 2**30), "load": load})
    if not rows:
        return
    rows.sort(key=lambda row: (row["what"], look.places[row["series"]]))
    holders = [row["of"] for row in rows]
    words = {k: w for k, w in HOLDERS.items() if k in holders}
    drawing = Drawing(
        name="memory",
        group="Memory",
        title="Memory after load, and at most",
        about="Of all accelerators of a trial together, or of the engine's processes; of a series' trials the largest. "
        "Some engines take all that they may at their start, whatever they need.",
        look=look,
        rows=rows,
        selects=[Select("of", "Memory", words, commonest(holders))],
        height=height(len({row["what"] for row in rows}) * len({row["series"] for row in rows})),
        steps=[
            REQUESTS,
            let("text", "format(datum.y, ',.3~r')"),
            let("told", "format(datum.y, ',.4~r') + ' GiB'"),
        ],
    )
    tooltip = tips(("what", "When"), ("told", "Memory"), ("load", "Of the trial with most"))
    yield bars(drawing, "Memory (GiB)", tooltip, by="what")


# ---- power and energy: over a trial's time, and against the load ----

TALL = 360  # pixels of the two panels
LEAST = 40  # moments of a trial, below which a dip can't be seen
ENERGY = LineChart(
    name="energy-{}",
    group="Energy",
    title="Energy and power against {}",
    about="Of the accelerators that were used, on average.",
    measures=[
        Measure(
            "joules", "energy per output token", "Energy per output token (J)", "J", lambda e: own(e.joules_per_token)
        ),
        Measure("watts", "power", "Power (W)", "W", lambda e: own(e.power_w)),
    ],
    falling=True,
)


def energy(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    yield from power_over_time(entries, look)
    yield from against(ENERGY, entries, look, LOADS)


def power_over_time(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Two panels in one view, so that it is as wide as the page: each has its half of the height."""
    trials = OneTrial([e for e in entries if e.moments], LEAST)
    rows: list[Row] = []
    for i, entry in enumerate(trials.entries):
        moments = evenly(entry.moments, trials.most)
        row = entry_row(entry) | {"trial": i, "at": shorts(moments, lambda m: m.at_s)}
        row["watts"] = shorts(moments, lambda m: m.power_w)
        row["joules"] = shorts(moments, lambda m: m.joules_per_token)
        row["speed"] = shorts(moments, lambda m: m.tokens_per_s)
        rows.append(row)
    if not rows:
        return
    units = {"told": ("watts", "W"), "each": ("joules", "J/token"), "made": ("speed", "tokens/s")}
    drawing = Drawing(
        name="power-time",
        group="Energy",
        title="Power and energy per token over time",
        about="Of one trial at a time: the power of its accelerators, and that power by the tokens of the same slice "
        "of time." + trials.less,
        look=look,
        rows=rows,
        selects=[trials.select()],
        subtitle=[trials.select().chosen, "trial_signs[trial]"],
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(y="independent")),
        params=[trials.signs()],
        toggles=False,
        height=TALL,
        steps=[
            vega.flatten("at", "watts", "joules", "speed"),
            let("when", "format(datum.at, ',') + ' s'"),
            *(
                let(name, f"isValid(datum.{field}) ? format(datum.{field}, ',') + ' {unit}' : 'not known'")
                for name, (field, unit) in units.items()
            ),
        ],
    )
    fields = {"series": "Series", "when": "Time", "told": "Power", "each": "Energy", "made": "Output"}
    tooltip = [tip(field, title) for field, title in {**fields, "verdict": "Verdict"}.items()]
    joules = any(v is not None for row in rows for v in row["joules"])
    x = vega.seconds("at")
    panels = [("watts", "Power (W)", [TALL / 2 - 14, 0] if joules else [TALL, 0])]
    panels += [("joules", "Energy per output token (J)", [TALL, TALL / 2 + 14])] if joules else []
    line = {**vega.LINE, "strokeWidth": 1.5}
    dots = {"type": "point", "filled": True, "size": 14, "opacity": 1, "clip": True}
    color = drawing.colour("" if len(drawing.series) > 1 else "stroke")
    layers: list[alt.LayerSpec] = []
    for field, title, span in panels:
        scale = alt.Scale(zero=True, nice=True, range=span)
        where = {"x": x, "y": vega.quantity(alt.Y, field, title, scale, orient="left", tickCount=4), "color": color}
        valid = when(f"isValid(datum.{field})")
        path = unit(line, where, valid, params=[] if layers else [vega.zoom("x")])
        layers.append(alt.LayerSpec(layer=[path, unit(dots, {**where, "tooltip": tooltip}, valid)]))
    yield drawing.chart(layers)
