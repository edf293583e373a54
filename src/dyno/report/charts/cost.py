"""What tokens and requests cost: at each load, and at the cheapest."""

from collections.abc import Iterator, Sequence

import altair as alt
import msgspec

from dyno.facts.chart import Chart
from dyno.facts.entry import Cost, Entry, Number
from dyno.facts.load import KEYS, LOADS
from dyno.report.charts.against import Measure, against
from dyno.report.charts.bars import bars, height
from dyno.report.charts.base import (
    REQUESTS,
    Row,
    Select,
    constant,
    drawn,
    entry_row,
    expr,
    finish,
    let,
    short,
    tips,
    when,
    window,
)
from dyno.report.charts.workloads import panels, places
from dyno.report.look import Look

PRICES = {
    "per_million_output": "a million output tokens",
    "per_million_input": "a million input tokens",
    "per_million_total": "a million tokens, input and output",
    "per_thousand_requests": "a thousand requests",
    "energy_per_million_output": "electricity alone, for a million output tokens",
}
HOW = "Lower is better. Each figure bears the whole price: where output tokens are told, their prompts come free."


def cost(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Of one currency at a time; mostly there is but one."""
    currencies = list(dict.fromkeys(e.cost.currency for e in entries if e.cost))
    for i, currency in enumerate(currencies):
        # Trials without a result have no price, and belong to each.
        own = [e for e in entries if (e.cost and e.cost.currency == currency) or e.failure]
        tail = f"-{i + 1}" if i else ""
        for axis in LOADS:
            chart = against(
                own,
                axis,
                look,
                [measure(name, currency) for name in PRICES],
                name=f"cost-{axis.replace('_', '-')}{tail}",
                group="Cost",
                title=f"Cost against {KEYS[axis].against}",
                about=HOW,
                choice="price",
                label="Price of",
                log=True,
                falling=True,
            )
            if chart:
                yield chart
                yield cheapest([e for e in own if e.cost and axis in e.axes], axis, look, currency, tail)


def measure(name: str, currency: str) -> Measure:
    def of(entry: Entry) -> Number | None:
        value: float | None = getattr(entry.cost, name) if isinstance(entry.cost, Cost) else None
        return None if value is None else Number(value)

    return Measure(name, PRICES[name], f"{currency}, {PRICES[name]}", currency, of)


def cheapest(entries: Sequence[Entry], axis: str, look: Look, currency: str, tail: str) -> Chart:
    at = places(entries, axis)
    panel = panels(entries, axis, least=1)
    assert panel is not None
    rows: list[Row] = []
    for entry in entries:
        row = entry_row(entry) | {"load": short(entry.axes[axis]), "workload": at[entry.id]}
        told = msgspec.structs.asdict(entry.cost) if entry.cost else {}
        row |= {name: short(told[name]) for name in PRICES if told.get(name) is not None}
        rows.append(row)
    words = {name: text for name, text in PRICES.items() if any(name in row for row in rows)}
    price = Select("price", "Price of", words, next(iter(words)))
    before, after = KEYS[axis].words.split("{}")
    order = [alt.SortField("bad", order="ascending"), alt.SortField("y", order="ascending")]
    transform = [
        *drawn(panel),
        REQUESTS,
        let("y", "datum[price]"),
        when("isValid(datum.y)"),
        # A void result wins only where there is no other.
        let("bad", "datum.verdict == 'void' ? 1 : 0"),
        window("row_number", "rank", sort=order, by=["series"]),
        when("datum.rank == 1"),
        let("at", f"'{before}' + format(datum.load, ',') + '{after}'"),
        let("text", "format(datum.y, ',.3~r') + ' at ' + datum.at"),
        let("told", "format(datum.y, ',.4~r') + ' ' + currency"),
    ]
    layers = bars(
        rows, look, title=expr("currency + ', ' + price_words[price]"), tooltip=tips(("told", "Cost"), ("at", "Load"))
    )
    return finish(
        layers,
        rows,
        name=f"cheapest-{axis.replace('_', '-')}{tail}",
        group="Cost",
        title=f"Cost at the cheapest {KEYS[axis].against}",
        about=HOW + " A void result stands only where a series has no other.",
        subtitle=[price.told, panel.told],
        selects=[price, panel],
        transform=transform,
        params=[constant("currency", currency)],
        height=height(len({row["series"] for row in rows})),
    )
