"""Latencies: against the load, and how they are distributed over requests."""

from collections.abc import Iterator, Mapping, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.definition import definition, meanings
from dyno.facts.entry import Entry
from dyno.facts.load import AXES, COUNTED
from dyno.facts.metric import STEMS
from dyno.facts.metric import latency as parts
from dyno.report.charts import vega
from dyno.report.charts.against import LineChart, Measure, against
from dyno.report.charts.base import REQUESTS, ROWS_MAX, Drawing, Row, Select, entry_row, evenly, load_words, short, tips
from dyno.report.charts.vega import let, unit, when
from dyno.report.look import Look

NAMES = {name: stem.charted for name, stem in STEMS.items() if stem.about}
_NO_LINE = ("std", "min", "max")


def latency(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """One chart a latency and axis."""
    for stem, name in NAMES.items():
        if names := statistics(entries, stem):
            chart = LineChart(
                name=f"{stem}-{{}}",
                group="Latency",
                title=f"{name} against {{}}",
                about=f"{STEMS[stem].about} Lower is better. Bars are 95 % intervals where they are known.",
                measures=[measure(statistic, stem) for statistic in names],
                choice=("statistic", "Statistic"),
                log=True,
                defined=True,
            )
            yield from against(chart, entries, look, AXES)


def measure(statistic: str, stem: str) -> Measure:
    title = f"{NAMES[stem]}, {statistic} (ms)"
    return Measure(statistic, statistic, title, "ms", lambda entry: entry.statistic(statistic, stem))


def statistics(entries: Sequence[Entry], stem: str) -> list[str]:
    """Mean, then percentiles as they rise."""
    names = {name for e in entries for name in e.figures}
    known = {m[0].replace("median", "p50") for n in names if (m := parts(n)) and m[1] == stem and m[0] not in _NO_LINE}
    return sorted(known, key=lambda s: -1.0 if s == "mean" else float(s[1:]))


def first_definition(entry: Entry, stem: str, statistics: Sequence[str]) -> str | None:
    """None: the entry doesn't have this latency."""
    return next((n.definition for s in statistics if (n := entry.statistic(s, stem)) is not None), None)


def as_defined(index: Mapping[str, int], meaning: int) -> str:
    """The tools that mean this by a latency's name; '' where all mean the same."""
    tools = ", ".join(k.split(".")[0] or "not told" for k, i in index.items() if i == meaning)
    return f" (as {tools})" if len(set(index.values())) > 1 else ""


# ---- distribution: the share of requests that took no longer ----

LEAST = 24  # points of a line, below which its tail can't be seen


def distribution(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    entries = [e for e in entries if any(stem in e.quantiles for stem in NAMES)]
    if not entries:
        return
    load_names, loads = _loads(entries)
    names, keys = _latencies(entries)
    # Those that let series be compared come first, where not all fit.
    if len(entries) < 400:
        entries = sorted(entries, key=lambda e: -len({k.series for k in entries if loads[k.id] == loads[e.id]}))
    lines = [(e, stem) for e in entries for stem in NAMES if e.quantiles.get(stem)]
    drawn = lines[: ROWS_MAX // LEAST]
    rows: list[Row] = []
    for entry, stem in drawn:
        points = evenly(entry.quantiles[stem], max(LEAST, ROWS_MAX // len(drawn)))
        row = entry_row(entry) | {"load": loads[entry.id], "latency": keys[entry.id, stem]}
        row |= {"share": [short(s) for s, _ in points], "ms": [short(ms) for _, ms in points]}
        rows.append(row)
    counts = {i: len({row["series"] for row in rows if row["load"] == i}) for i in {row["load"] for row in rows}}
    most = max(sorted(counts, reverse=True), key=counts.__getitem__)
    stems = [row["latency"] for row in rows]
    less = f" {len(drawn):,} of {len(lines):,} lines are kept." if len(drawn) < len(lines) else ""
    drawing = Drawing(
        name="distribution",
        group="Latency",
        title="Distribution of latencies",
        about="Each line: the share of requests (of gaps, for ITL) that took no longer than so many milliseconds. "
        "Further left is better. Failed requests are not in it." + less,
        look=look,
        rows=rows,
        selects=[
            Select("latency", "Latency", {k: w for k, w in names.items() if k in stems}, stems[0]),
            Select("load", "Load", {i: w for i, w in load_names.items() if i in counts}, most),
        ],
        steps=[
            REQUESTS,
            vega.flatten("share", "ms"),
            let("told", "format(datum.share, '.1%') + ' within ' + format(datum.ms, ',') + ' ms'"),
        ],
    )
    log = any(vega.wide([v for v in row["ms"] if v > 0], 50) for row in rows)
    log = log and all(v > 0 for row in rows for v in row["ms"])
    y = vega.quantity(alt.Y, "share", "Share of requests", alt.Scale(domain=[0, 1]), format="%")
    where = {"x": vega.milliseconds("ms", log, 8), "y": y, "color": drawing.colour()}
    path = {**where, "strokeDash": drawing.dashes(), "detail": vega.detail("entry")}
    dots = {"type": "point", "filled": True, "size": 60, "opacity": 0, "clip": True}
    layers = [
        unit(vega.LINE, path, params=[vega.toggle(drawing.series), vega.zoom()]),
        unit(dots, {**where, "tooltip": tips(("told", "Share"))}),
    ]
    if any(row["verdict"] != "sound" or "failed" in row for row in rows):
        end = {**vega.TEXT, "align": "right", "dx": -4, "dy": 12, "clip": True}
        sign = (
            "(datum.verdict == 'sound' ? '' : datum.verdict + (datum.failed > 0 ? ', ' : ''))"
            " + (datum.failed > 0 ? format(datum.failed, ',') + ' failed' : '')"
        )
        doubted = [when("datum.share == 1"), when("datum.verdict != 'sound' || datum.failed > 0"), let("sign", sign)]
        layers.append(unit(end, {**where, "text": vega.text("sign")}, *doubted))
    yield drawing.chart(layers)


def _loads(entries: Sequence[Entry]) -> tuple[dict[int, str], dict[str, int]]:
    """Loads in words, and the number of each entry's. Series can be compared under the same one."""
    index: dict[tuple[object, ...], int] = {}
    words: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for entry in entries:
        load = [("kind", entry.kind), *((k, v) for k, v in entry.load.items() if k not in COUNTED)]
        numbers[entry.id] = i = index.setdefault(tuple(load), len(index))
        words.setdefault(i, load_words(load))
    return words, numbers


def _latencies(entries: Sequence[Entry]) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Latencies in words, and the key of each entry's. One with two definitions is two."""
    words: dict[str, str] = {}
    keys: dict[tuple[str, str], str] = {}
    for stem, name in NAMES.items():
        own = [e for e in entries if stem in e.quantiles]
        index = meanings(definition(e.tool, stem) for e in own)
        for entry in own:
            i = index[definition(entry.tool, stem)]
            keys[entry.id, stem] = f"{stem}_{i}"
            words[f"{stem}_{i}"] = name + as_defined(index, i)
    return words, keys
