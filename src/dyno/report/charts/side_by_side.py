"""Series beside each other under one load: bars, where a line would have one point."""

from collections.abc import Iterator, Sequence

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry, Number
from dyno.facts.metric import THROUGHPUTS, metric
from dyno.report.charts.bars import bars, height
from dyno.report.charts.base import (
    REQUESTS,
    Row,
    Select,
    constant,
    drawn,
    entry_row,
    expr,
    failed_row,
    finish,
    let,
    put,
    tips,
    when,
)
from dyno.report.charts.latency import NAMES
from dyno.report.charts.workloads import several_words, workload
from dyno.report.look import Look

STATISTICS = ("mean", "p50", "p99")


def side_by_side(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    whole = [e for e in entries if e.kind in ("serve", "throughput", "latency") and (e.figures or e.failure)]
    loads: dict[tuple[tuple[str, object], ...], list[Entry]] = {}
    for entry in whole:
        loads.setdefault(tuple(workload(entry, "")), []).append(entry)
    # Loads that let series be compared; where there are none, all of them.
    compared = {load: of for load, of in loads.items() if len({e.series for e in of}) > 1} or loads
    if not any(figures(e) for of in compared.values() for e in of):
        return
    words = dict(enumerate(several_words(list(compared))))  # type: ignore[arg-type]
    rows: list[Row] = []
    for i, of in enumerate(compared.values()):
        for entry in of:
            told = figures(entry)
            row = (entry_row(entry) if told else failed_row(entry)) | {"load": i, "y": 0}
            for key, number_told in told.items():
                put(row, key, number_told)
            if any(key.endswith("_low") for key in row):
                row["low"] = None
            rows.append(row)
    known = {name: metric(name).words for name in THROUGHPUTS}
    known |= {f"{s}_{stem}": f"{name} {s}, ms" for stem, name in NAMES.items() for s in STATISTICS}
    there = {key: text for key, text in known.items() if any(key in row for row in rows)}
    most = max(words, key=lambda i: (len({row["series"] for row in rows if row["load"] == i}), i))
    load, figure = Select("load", "Load", words, most), Select("figure", "Figure", there, next(iter(there)))
    yield finish(
        bars(rows, look, title=expr("figure_words[figure]"), tooltip=tips(("told", "Value"))),
        rows,
        name="side-by-side",
        group="Throughput",
        title="Side by side under one load",
        about="Of throughputs more is better, of latencies (ms) less. Lines on bars are 95 % intervals where known.",
        subtitle=[figure.told, load.told],
        selects=[figure, load],
        params=[constant("none", None)],
        height=height(max(len({row["series"] for row in rows if row["load"] == i}) for i in words)),
        transform=[
            *drawn(load),
            REQUESTS,
            when("isValid(datum[figure]) || isValid(datum.why)"),
            let("y", "isValid(datum[figure]) ? datum[figure] : 0"),
            let("low", "isValid(datum[figure + '_low']) ? datum[figure + '_low'] : none"),
            let("high", "isValid(datum[figure + '_high']) ? datum[figure + '_high'] : none"),
            let("text", "format(datum.y, ',.4~r')"),
            let("told", "format(datum.y, ',.5~r') + ' ' + figure_words[figure]"),
        ],
    )


def figures(entry: Entry) -> dict[str, Number]:
    found = {name: entry.figures[name] for name in THROUGHPUTS if name in entry.figures}
    for stem in NAMES:
        for statistic in STATISTICS:
            if (told := entry.statistic(statistic, stem)) is not None:
                found[f"{statistic}_{stem}"] = told
    return found
