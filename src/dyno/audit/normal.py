"""Rows brought to one measure: per request, per accelerator, per node, per million tokens."""

from collections.abc import Sequence

import msgspec

from dyno.facts.imported import Row
from dyno.facts.load import words
from dyno.facts.price import PriceRule
from dyno.measure.cost import choose, cost, rates
from dyno.measure.points import input_each, output_each, point, requests_per_s, sent, subject

LATENCIES = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms",
             "mean_latency_ms")  # fmt: skip
NODE = 8  # accelerators of the machines that are rented as one


class Normal(msgspec.Struct, frozen=True):
    location: str = msgspec.field(name="at")  # file:line
    subject: str
    load: str
    kind: str
    tool: str
    completed: float | None
    sent: float | None
    input_each: float | None  # tokens of a request
    output_each: float | None
    requests_per_s: float | None
    output_per_s: float | None  # tokens
    total_per_s: float | None
    accelerators: float | None
    per_accelerator: float | None  # tokens/s: output, or of prompts and outputs where only that is told
    per_accelerator_of: str  # output or total
    per_node: float | None  # tokens/s of eight accelerators
    per_node_estimated: bool  # reckoned from fewer or more, as if nothing were lost
    latencies: dict[str, tuple[float, str]]  # 'mean_ttft_ms' → milliseconds, and by which definition
    speed: str = ""  # of a micro test, or a score, as it is printed
    price_per_hour: float | None = None  # of all accelerators of the row
    cost_per_million: float | None = None  # tokens, as above


def normal(row: Row, prices: Sequence[PriceRule] = ()) -> Normal:
    """`prices`: they go before what the row itself tells."""
    out, total = row.get("output_throughput"), row.get("total_token_throughput")
    count = row.number("accelerators") or row.number("tensor_parallel")
    best, of = (out, "output") if out is not None else (total, "total")
    named = str(row.setting("accelerator") or "")
    chosen = choose(prices, named, subject(row), told_hour=row.number("price_per_hour"))
    # Where nobody tells how many accelerators there were, a price of one is taken as it stands.
    paid = cost(chosen, rates(row.get), count or 1)
    per_million = None
    if paid is not None:
        per_million = paid.per_million_output if of == "output" else paid.per_million_total
    asked = sent(row)
    return Normal(
        location=row.location,
        subject=subject(row),
        load=words(point(row)),
        kind=row.kind,
        tool=row.tool,
        completed=row.get("completed"),
        sent=asked[0] if asked else None,
        input_each=input_each(row),
        output_each=output_each(row),
        requests_per_s=_rate(row),
        output_per_s=out,
        total_per_s=total,
        accelerators=count,
        per_accelerator=best / count if best is not None and count else None,
        per_accelerator_of=of if best is not None else "",
        per_node=best / count * NODE if best is not None and count else None,
        per_node_estimated=count != NODE,
        latencies={
            name: (row.figures[name].value, row.figures[name].definition)
            for name in LATENCIES
            if name in row.figures
        },
        speed=_speed(row),
        price_per_hour=paid.hour or None if paid is not None else None,
        cost_per_million=per_million if best is not None else None,
    )  # fmt: skip


def _rate(row: Row) -> float | None:
    """As it is told, unless so few digits are that the count and the duration say more."""
    told = row.figures.get("request_throughput")
    return told.value if told is not None and told.half < 0.002 * told.value else requests_per_s(row)


def _speed(row: Row) -> str:
    for name in ("speed", "score"):
        if (figure := row.figures.get(name)) is not None:
            error = figure.deviation if figure.deviation is not None else row.get("stderr")
            shown = f"{figure.value:,.2f}" if name == "speed" else f"{figure.value:.4g}"
            return shown + (f" ± {error:.3g}" if error is not None else "")
    return ""
