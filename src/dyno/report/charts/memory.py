"""Memory after the model is loaded, and at most."""

from collections.abc import Iterator, Sequence

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
from dyno.report.charts.bars import bars, height
from dyno.report.charts.base import REQUESTS, TOGGLED, Row, Select, drawn, entry_row, finish, let, short, tips
from dyno.report.charts.workloads import load_words
from dyno.report.look import Look

WHAT = {"after": "after load, before any request", "peak": "at most, under load"}
OF = {"accelerators": "of accelerators", "processes": "of the engine's processes"}


def memory(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Of a series' trials, that with the most."""
    most: dict[tuple[str, str, str], tuple[float, Entry]] = {}
    for entry in entries:
        if entry.memory is None:
            continue
        for what, value in (("after", entry.memory.after_load_bytes), ("peak", entry.memory.peak_bytes)):
            key = (entry.memory.basis, what, entry.series)
            if value is not None and (key not in most or value > most[key][0]):
                most[key] = (value, entry)
    rows: list[Row] = []
    for (held, what, _), (value, entry) in most.items():
        load = load_words([("kind", entry.kind), *entry.load.items()])
        rows.append(entry_row(entry) | {"of": held, "what": WHAT[what], "y": short(value / 2**30), "load": load})
    if not rows:
        return
    rows.sort(key=lambda row: (row["what"], look.places[row["series"]]))
    kinds = [row["of"] for row in rows]
    of = Select("of", "Memory", {k: w for k, w in OF.items() if k in kinds}, max(sorted(set(kinds)), key=kinds.count))
    tooltip = tips(("what", "When"), ("told", "Memory"), ("load", "Of the trial with most"))
    count = len({row["what"] for row in rows}) * len({row["series"] for row in rows})
    yield finish(
        bars(rows, look, title="Memory (GiB)", tooltip=tooltip, of="what"),
        rows,
        name="memory",
        group="Memory",
        title="Memory after load, and at most",
        about="Of all accelerators of a trial together, or of the engine's processes; of a series' trials the largest. "
        "Some engines take all that they may at their start, whatever they need.",
        subtitle=[of.told],
        selects=[of],
        height=height(count),
        transform=[
            *drawn(of),
            TOGGLED,
            REQUESTS,
            let("text", "format(datum.y, ',.3~r')"),
            let("told", "format(datum.y, ',.4~r') + ' GiB'"),
        ],
    )
