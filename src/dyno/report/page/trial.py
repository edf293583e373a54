"""A trial's facts as the page shows them: lines, and its latencies as a table of statistics."""

import msgspec

from dyno.facts.entry import Entry
from dyno.facts.finding import Finding, merged, worst_first
from dyno.facts.metric import STEMS, latency
from dyno.numbers import count, currency, human_bytes, money, number, percent, setting
from dyno.report.table import figure_interval, figure_text
from dyno.report.tables import figure_unit, figure_words, verdict_words

_STATS = ("mean", "std", "min", "p50", "p75", "p90", "p95", "p99", "p99.9", "max")
_BY = {
    "repeats": "over repeats", "shared": "from the other side's repeats", "requests": "from the requests",
    "iterations": "from the iterations", "slices": "from slices of time", "deviation": "from the printed deviation",
    "stderr": "from the printed error",
}  # fmt: skip


class ShownFigure(msgspec.Struct, frozen=True):
    text: str
    interval: str = ""
    full: str = ""  # all digits


class Trial(msgspec.Struct, frozen=True):
    id: str
    series: str
    load: str
    verdict: str
    said: str  # the verdict in words
    failure: str
    label: str
    lines: list[tuple[str, str]]
    stats: list[str]  # columns of the latencies
    latencies: list[tuple[str, list[ShownFigure]]]
    by: str  # whence the intervals, in words
    findings: list[Finding]
    locations: list[str]


def trial(entry: Entry, varying: list[str]) -> Trial:
    """Return a trial's facts. `varying`: settings of the load that differ from trial to trial."""
    stats, latencies = _latencies(entry)
    by = dict.fromkeys(
        _BY[n.by] for n in entry.figures.values() if n.low is not None and n.by
    )
    return Trial(
        id=entry.id,
        series=entry.series,
        load=entry.load.only(varying).words,
        verdict=entry.verdict,
        said=verdict_words(entry),
        failure=entry.failure,
        label=entry.label,
        lines=[
            *_load(entry),
            *_speeds(entry),
            *_machine(entry),
            *_cost(entry),
            *_settings(entry),
        ],
        stats=stats,
        latencies=latencies,
        by=", ".join(by),
        findings=worst_first(merged(entry.findings)),
        locations=entry.locations,
    )


def _latencies(entry: Entry) -> tuple[list[str], list[tuple[str, list[ShownFigure]]]]:
    """Return the statistics that it has of any latency, and a line of them for each latency."""
    by_stem: dict[str, dict[str, ShownFigure]] = {}
    for name, figure in entry.figures.items():
        if parts := latency(name):
            stat, stem = parts
            shown = ShownFigure(
                figure_text(figure), figure_interval(figure), f"{figure.value:.15g}"
            )
            by_stem.setdefault(stem, {})["p50" if stat == "median" else stat] = shown
    seen = {stat for row in by_stem.values() for stat in row}
    stats = [*(s for s in _STATS if s in seen), *sorted(seen.difference(_STATS))]
    lines = []
    for name, known in STEMS.items():
        if name in by_stem:
            lines.append(
                (known.words, [by_stem[name].get(s, ShownFigure("")) for s in stats])
            )
    return stats, lines


def _load(entry: Entry) -> list[tuple[str, str]]:
    lines = [("load", entry.load.words)] if entry.load else []
    if entry.completed is not None:
        lines.append(("completed", count(entry.completed)))
    if entry.failed is not None:
        lines.append(("failed", count(entry.failed)))
    if entry.repeats > 1:
        lines.append(("repeats", count(entry.repeats)))
    return lines


def _speeds(entry: Entry) -> list[tuple[str, str]]:
    """Return all figures except latencies and counts."""
    return [
        (
            figure_words(name),
            f"{figure_text(n)}{figure_unit(name)} {figure_interval(n)}".rstrip(),
        )
        for name, n in entry.figures.items()
        if name not in ("completed", "failed") and not name.endswith("_ms")
    ]


def _machine(entry: Entry) -> list[tuple[str, str]]:
    lines = []
    if entry.accelerator or entry.accelerators:
        used = f"{count(entry.accelerators)} × " if entry.accelerators else ""
        whole_machine = (
            f", of {count(entry.machine)} in the machine" if entry.machine else ""
        )
        lines.append(
            ("accelerators", f"{used}{entry.accelerator or 'unknown'}{whole_machine}")
        )
    if entry.memory is not None:
        sizes = [
            ("after loading", entry.memory.after_load_bytes),
            ("peak", entry.memory.peak_bytes),
        ]
        words = ", ".join(f"{human_bytes(n)} {when}" for when, n in sizes if n is not None)
        lines.append((f"memory ({entry.memory.basis})", words))
    if entry.power_w is not None:
        lines.append(("power", f"{number(entry.power_w)} W"))
    if entry.joules_per_token is not None:
        lines.append(("energy", f"{number(entry.joules_per_token)} J/token"))
    precision = f" ({entry.precision})" if entry.precision else ""
    for p in entry.positions:
        words = f"{percent(p.bandwidth_share)} of the bandwidth, {percent(p.arithmetic_share)} of the arithmetic"
        lines.append((f"roofline, {p.what}", words + precision))
    return lines


def _cost(entry: Entry) -> list[tuple[str, str]]:
    cost = entry.cost
    if cost is None:
        return []
    sign = currency(cost.currency)
    prices = [
        ("per hour", cost.hour), ("per M input tokens", cost.per_million_input),
        ("per M output tokens", cost.per_million_output), ("per M tokens", cost.per_million_total),
        ("per 1,000 requests", cost.per_thousand_requests),
        ("energy per M output tokens", cost.energy_per_million_output),
    ]  # fmt: skip
    lines = [
        (what, f"{sign} {money(value)}") for what, value in prices if value is not None
    ]
    return [*lines, ("price", cost.source)] if cost.source else lines


def _settings(entry: Entry) -> list[tuple[str, str]]:
    lines = [("measured by", entry.tool)] if entry.tool else []
    return [*lines, *((name, setting(value)) for name, value in entry.settings.items())]
