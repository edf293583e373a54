"""Money, memory, power and energy of results."""

from collections.abc import Iterator, Sequence
from functools import partial

import altair as alt

from dyno.facts.entry import Entry, Number
from dyno.facts.load import KEYS, LOADS
from dyno.facts.report import Chart
from dyno.report.charts import base, vega
from dyno.report.charts.against import Curve, LineChart, against
from dyno.report.charts.bars import bars
from dyno.report.charts.base import Drawing, Row, Select, tips
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
HOW = "Lower is better. Each kind of token is charged the full hourly price; do not add them up."


def cost(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield charts of one currency at a time; mostly there is only one."""
    currencies = dict.fromkeys(e.cost.currency for e in entries if e.cost)
    for i, currency in enumerate(currencies):
        # Trials without a result have no price, and belong to each.
        priced = [
            e for e in entries if (e.cost and e.cost.currency == currency) or e.failure
        ]
        tail = f"-{i + 1}" if i else ""
        kind = LineChart(
            f"cost-{{}}{tail}",
            "Cost",
            "Cost against {}",
            HOW,
            [priced_curve(name, currency) for name in PRICES],
            ("price", "Price of"),
            log=True,
            falling=True,
        )
        for axis in LOADS:
            for chart in against(kind, priced, look, [axis]):
                yield chart
                yield cheapest(
                    [e for e in priced if e.cost and axis in e.axes],
                    axis,
                    look,
                    currency,
                    tail,
                )


def priced_curve(name: str, currency: str) -> Curve:
    return Curve(
        name, PRICES[name], f"{currency}, {PRICES[name]}", currency, partial(price, name)
    )


def price(name: str, entry: Entry) -> Number | None:
    return own(getattr(entry.cost, name, None))


def cheapest(
    entries: Sequence[Entry], axis: str, look: Look, currency: str, tail: str
) -> Chart:
    panels = base.panels(entries, axis, "load", least=1)
    assert panels is not None
    panel, rows = panels
    for entry, row in zip(entries, rows, strict=True):
        row |= {
            name: base.short(cost.value) for name in PRICES if (cost := price(name, entry))
        }
    words = base.present(PRICES, rows)
    drawing = Drawing(
        look,
        rows,
        f"cheapest-{axis}{tail}",
        "Cost",
        f"Cost at the cheapest {KEYS[axis].against}",
    )
    drawing.about = HOW + " A void result is shown only if a series has no other."
    drawing.selects = [Select("price", "Price of", words, next(iter(words))), panel]
    drawing.params = [vega.constant("currency", currency)]
    order = [alt.SortField("bad", order="ascending"), alt.SortField("y", order="ascending")]
    before, after = KEYS[axis].words.split("{}")
    drawing.steps = [
        let("y", "datum[price]"),
        when("isValid(datum.y)"),
        # A void result wins only where there is no other.
        let("bad", "datum.verdict == 'void' ? 1 : 0"),
        vega.window("row_number", "rank", sort=order, by=["series"]),
        when("datum.rank == 1"),
        let("at", f"'{before}' + format(datum.load, ',') + '{after}'"),
        let("text", "format(datum.y, ',.3~r') + ' at ' + datum.at"),
        let("shown", "format(datum.y, ',.4~r') + ' ' + currency"),
    ]
    tooltip = tips(("shown", "Cost"), ("at", "Load"))
    return bars(
        drawing, len(drawing.series), expr("currency + ', ' + price_words[price]"), tooltip
    )


# ---- memory ----

WHAT = {"after": "after loading, before any request", "peak": "peak, under load"}
HOLDERS = {"accelerators": "of accelerators", "processes": "of the engine's processes"}


def memory(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield the largest of a series' trials."""
    rows: list[Row] = []
    for (holder, what, _), (value, entry) in _most_memory(entries).items():
        load = base.load_words(entry.kind, entry.load)
        row = {
            "of": holder,
            "what": WHAT[what],
            "y": base.short(value / 2**30),
            "load": load,
        }
        rows.append(base.entry_row(entry) | row)
    if not rows:
        return
    rows.sort(key=lambda row: (row["what"], look.places[row["series"]]))
    drawing = Drawing(look, rows, "memory", "Memory", "Memory: after loading, peak")
    drawing.about = (
        "All accelerators of a trial together, or the engine's processes; the largest trial of each series. Some "
        "engines reserve all allowed memory at start."
    )
    holders = [row["of"] for row in rows]
    words = {k: w for k, w in HOLDERS.items() if k in holders}
    drawing.selects = [Select("of", "Memory", words, base.commonest(holders))]
    drawing.steps = [
        let("text", "format(datum.y, ',.3~r')"),
        let("shown", "format(datum.y, ',.4~r') + ' GiB'"),
    ]
    tooltip = tips(("what", "When"), ("shown", "Memory"), ("load", "Trial"))
    count = len({row["what"] for row in rows}) * len(drawing.series)
    yield bars(drawing, count, "Memory (GiB)", tooltip, by="what")


def _most_memory(
    entries: Sequence[Entry],
) -> dict[tuple[str, str, str], tuple[float, Entry]]:
    """Return the bytes of the largest trial and that trial, by holder, time and series."""
    most: dict[tuple[str, str, str], tuple[float, Entry]] = {}
    for entry in entries:
        if entry.memory is None:
            continue
        for what, value in (
            ("after", entry.memory.after_load_bytes),
            ("peak", entry.memory.peak_bytes),
        ):
            key = (entry.memory.basis, what, entry.series)
            if value is not None and (key not in most or value > most[key][0]):
                most[key] = (value, entry)
    return most


# ---- power and energy: over a trial's time, and against the load ----

TALL = 360  # pixels of the two panels
LEAST = 40  # moments of a trial, below which a dip can't be seen
JOULES, WATTS = "Energy per output token (J)", "Power (W)"
USED = "Mean over the run, of the accelerators in use."
MEASURES = [
    Curve(
        "joules", "energy per output token", JOULES, "J", lambda e: own(e.joules_per_token)
    ),
    Curve("watts", "power", WATTS, "W", lambda e: own(e.power_w)),
]
ENERGY = LineChart(
    "energy-{}", "Energy", "Energy and power against {}", USED, MEASURES, falling=True
)


def energy(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    yield from power_over_time(entries, look)
    yield from against(ENERGY, entries, look, LOADS)


def power_over_time(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield two panels in one view, so that it is as wide as the page: each has its half of the height."""
    trials = base.OneTrial([e for e in entries if e.moments], LEAST)
    rows = [_moments_row(entry, i, trials.most) for i, entry in enumerate(trials.entries)]
    if not rows:
        return
    drawing = Drawing(
        look,
        rows,
        "power-time",
        "Energy",
        "Power and energy per token over time",
        height=TALL,
    )
    drawing.about = (
        "One trial at a time: power of its accelerators, and energy per output token "
        "in the same slice of time."
    )
    trials.add_to(drawing)
    drawing.resolve = alt.Resolve(scale=alt.ScaleResolveMap(y="independent"))
    drawing.steps = [
        vega.flatten("at", "watts", "joules", "speed"),
        let("when", "format(datum.at, ',') + ' s'"),
    ]
    for name, field, shown_in in (
        ("power", "watts", "W"),
        ("energy", "joules", "J/token"),
        ("output", "speed", "tokens/s"),
    ):
        text = f"isValid(datum.{field}) ? format(datum.{field}, ',') + ' {shown_in}' : 'unknown'"
        drawing.steps.append(let(name, text))
    fields = {
        "series": "Series",
        "when": "Time",
        "power": "Power",
        "energy": "Energy",
        "output": "Output",
    }
    tooltip = [
        tip(field, title) for field, title in {**fields, "verdict": "Verdict"}.items()
    ]
    panels: list[tuple[str, str, list[float]]] = [("watts", WATTS, [TALL, 0])]
    if any(v is not None for row in rows for v in row["joules"]):
        panels = [
            ("watts", WATTS, [TALL / 2 - 14, 0]),
            ("joules", JOULES, [TALL, TALL / 2 + 14]),
        ]
    line, dots = (
        {**vega.LINE, "strokeWidth": 1.5},
        {**vega.POINT, "filled": True, "size": 14},
    )
    place = {
        "x": vega.seconds("at"),
        "color": drawing.colour("" if len(drawing.series) > 1 else "stroke"),
    }
    layers: list[alt.LayerSpec] = []
    for field, title, span in panels:
        axis = alt.Axis(title=title, orient="left", tickCount=4)
        scale = alt.Scale(zero=True, nice=True, range=span)
        where = {**place, "y": alt.Y(f"{field}:Q", scale=scale, axis=axis)}
        valid = when(f"isValid(datum.{field})")
        path = unit(line, where, valid, params=[] if layers else [vega.zoom("x")])
        layers.append(
            alt.LayerSpec(layer=[path, unit(dots, {**where, "tooltip": tooltip}, valid)])
        )
    yield drawing.chart(layers)


def _moments_row(entry: Entry, trial: int, most: int) -> Row:
    moments = base.evenly(entry.moments, most)
    row = base.entry_row(entry) | {
        "trial": trial,
        "at": base.shorts(moments, lambda m: m.at_s),
    }
    row["watts"] = base.shorts(moments, lambda m: m.power_w)
    row["joules"] = base.shorts(moments, lambda m: m.joules_per_token)
    row["speed"] = base.shorts(moments, lambda m: m.tokens_per_s)
    return row
