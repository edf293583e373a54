"""Latencies: against the load, and how they are distributed over requests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from dyno.facts.entry import Entry
from dyno.facts.load import AXES, COUNTED
from dyno.facts.metric import STEMS, definition, meanings
from dyno.facts.metric import latency as parts
from dyno.facts.report import Chart
from dyno.numbers import count
from dyno.report.charts import base, vega
from dyno.report.charts.against import Curve, LineChart, against
from dyno.report.charts.base import Drawing, Row, Select
from dyno.report.charts.vega import let, unit, when
from dyno.report.look import Look

NAMES = {name: stem.charted for name, stem in STEMS.items() if stem.about}
_NO_LINE = ("std", "min", "max")


def latency(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    """Yield one chart a latency and axis."""
    for stem, name in NAMES.items():
        kind = LineChart(
            f"{stem}-{{}}",
            "Latency",
            f"{name} against {{}}",
            f"{STEMS[stem].about} Lower is better. Bars are 95 % intervals where known.",
            [measure(statistic, stem) for statistic in statistics(entries, stem)],
            ("statistic", "Statistic"),
            log=True,
            defined=True,
        )
        yield from against(kind, entries, look, AXES)


def measure(statistic: str, stem: str) -> Curve:
    title = f"{NAMES[stem]}, {statistic} (ms)"
    return Curve(
        statistic, statistic, title, "ms", lambda entry: entry.statistic(statistic, stem)
    )


def statistics(entries: Sequence[Entry], stem: str) -> list[str]:
    """Return the mean, then percentiles as they rise."""
    known = set()
    for name in {name for e in entries for name in e.figures}:
        statistic, its_stem = parts(name) or ("", "")
        if statistic and its_stem == stem and statistic not in _NO_LINE:
            known.add(statistic.replace("median", "p50"))
    return sorted(known, key=lambda s: -1.0 if s == "mean" else float(s[1:]))


class Latencies:
    """Latencies to choose from: one with two definitions is two."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.meanings: dict[tuple[str, str], int] = {}  # of an entry's id and a stem
        self.tools: dict[tuple[str, int], str] = {}  # that mean it, where others don't

    def define(self, stem: str, definitions: Mapping[str, str]) -> None:
        """Number the meanings of a latency. `definitions`: of each entry's id."""
        index = meanings(definitions.values())
        self.meanings |= {(id, stem): index[key] for id, key in definitions.items()}
        different = set(index.values())
        if len(different) < 2:
            return
        for i in different:
            tools = ", ".join(
                key.split(".")[0] or "unknown"
                for key, meaning in index.items()
                if meaning == i
            )
            self.tools[stem, i] = f" (as {tools})"

    def key(self, id: str, stem: str, statistic: str = "") -> str:
        """Return the value of a select, or the field of a row."""
        meaning = self.meanings[id, stem]
        key, name = f"{stem}_{meaning}", NAMES[stem]
        if statistic:
            key, name = f"{statistic}_{key}", f"{statistic} {name}"
        self.words[key] = name + self.tools.get((stem, meaning), "")
        return key


# ---- distribution: the share of requests that took no longer ----

LEAST = 24  # points of a line, below which its tail can't be seen
SIGN = (
    "(datum.verdict == 'sound' ? '' : datum.verdict + (datum.failed > 0 ? ', ' : ''))"
    " + (datum.failed > 0 ? format(datum.failed, ',') + ' failed' : '')"
)


def _definition(entry: Entry, stem: str) -> str:
    """Return the key of what its figures mean, else of what its tool means."""
    for name, number in entry.figures.items():
        _, its_stem = parts(name) or ("", "")
        if its_stem == stem:
            return number.definition
    return definition(entry.tool, stem)


def distribution(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    entries = [e for e in entries if NAMES.keys() & e.quantiles.keys()]
    if not entries:
        return
    words, loads = _loads(entries)
    latencies = Latencies()
    keys = _keys(entries, latencies)
    # Those that let series be compared come first, where not all fit.
    if len(entries) < 400:
        compared = Counter(load for load, _ in {(loads[e.id], e.series) for e in entries})
        entries = sorted(entries, key=lambda e: -compared[loads[e.id]])
    lines = [(e, stem) for e in entries for stem in NAMES if e.quantiles.get(stem)]
    drawn = lines[: base.ROWS_MAX // LEAST]
    rows: list[Row] = []
    for entry, stem in drawn:
        points = base.evenly(entry.quantiles[stem], max(LEAST, base.ROWS_MAX // len(drawn)))
        row = base.entry_row(entry) | {
            "load": loads[entry.id],
            "latency": keys[entry.id, stem],
        }
        row["share"] = base.shorts(points, lambda p: p[0])
        row["ms"] = base.shorts(points, lambda p: p[1])
        rows.append(row)
    drawing = Drawing(look, rows, "distribution", "Latency", "Latency distribution")
    drawing.about = (
        "Share of requests (for ITL: of gaps) that took at most this long. Further left is better. Failed requests "
        "are excluded."
    )
    if len(drawn) < len(lines):
        drawing.about += f" {count(len(drawn))} of {count(len(lines))} lines are shown."
    drawing.selects = _selects(rows, latencies.words, words)
    share = let(
        "shown", "format(datum.share, '.1%') + ' within ' + format(datum.ms, ',') + ' ms'"
    )
    drawing.steps = [base.REQUESTS, vega.flatten("share", "ms"), share]
    yield drawing.chart(_lines(drawing))


def _keys(entries: Sequence[Entry], latencies: Latencies) -> dict[tuple[str, str], str]:
    """Return the key of each entry's latencies, by its id and the stem."""
    keys: dict[tuple[str, str], str] = {}
    for stem in NAMES:
        own = [e for e in entries if stem in e.quantiles]
        latencies.define(stem, {e.id: _definition(e, stem) for e in own})
        keys |= {(e.id, stem): latencies.key(e.id, stem) for e in own}
    return keys


def _selects(
    rows: Sequence[Row], latencies: Mapping[str, str], loads: Mapping[int, str]
) -> list[Select]:
    """Return the selects of a latency, and of a load, at first that with most series."""
    seen = [row["latency"] for row in rows]
    series = Counter(load for load, _ in {(row["load"], row["series"]) for row in rows})
    most = max(sorted(series, reverse=True), key=series.__getitem__)
    return [
        Select(
            "latency",
            "Latency",
            {key: text for key, text in latencies.items() if key in seen},
            seen[0],
        ),
        Select("load", "Load", {i: text for i, text in loads.items() if i in series}, most),
    ]


def _lines(drawing: Drawing) -> list[Any]:
    """Return lines with words at their points, and a sign at the end of those that are doubted."""
    rows = drawing.rows
    log = any(vega.wide([v for v in row["ms"] if v > 0], 50) for row in rows)
    log = log and all(v > 0 for row in rows for v in row["ms"])
    shares = alt.Axis(title="Share of requests", format="%")
    y = alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=shares)
    where = {"x": vega.milliseconds("ms", log, 8), "y": y, "color": drawing.colour()}
    path = {**where, "strokeDash": drawing.dashes(), "detail": alt.Detail("entry:N")}
    dots = {**vega.POINT, "filled": True, "opacity": 0}
    layers = [
        unit(vega.LINE, path, params=[vega.toggle(drawing.series), vega.zoom()]),
        unit(dots, {**where, "tooltip": base.tips(("shown", "Share"))}),
    ]
    if any(row["verdict"] != "sound" or "failed" in row for row in rows):
        end = {**vega.TEXT, "align": "right", "dx": -4, "dy": 12, "clip": True}
        doubted = [
            when("datum.share == 1"),
            when("datum.verdict != 'sound' || datum.failed > 0"),
            let("sign", SIGN),
        ]
        layers.append(unit(end, {**where, "text": alt.Text("sign:N")}, *doubted))
    return layers


# ---- by turn: later requests of a session have longer prompts, and more of them in a cache ----


def by_turn(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows: list[Row] = []
    entries = [e for e in entries if len(e.turns) > 1]
    words, loads = _loads(entries)
    for entry in entries[: base.ROWS_MAX // LEAST]:
        known = [t for t in entry.turns if t.ttft.median is not None and not t.ttft.empty]
        row = base.entry_row(entry)
        row["load"] = loads[entry.id]
        row["turn"] = [t.turn for t in known]
        row["tokens"] = base.shorts(known, lambda t: t.input_tokens_mean)
        row["ms"] = base.shorts(known, lambda t: t.ttft.median)
        rows.append(row)
    if not rows:
        return
    drawing = Drawing(look, rows, "ttft-by-turn", "Latency", "TTFT by turn")
    drawing.about = (
        "Median time to the first token by place in the session. Lower is better."
    )
    shown = [row["load"] for row in rows]
    options = {i: words[i] for i in dict.fromkeys(shown)}
    drawing.selects = [Select("load", "Load", options, shown[0])]
    each = "format(datum.ms, ',') + ' ms, ' + format(datum.tokens, ',') + ' prompt tokens'"
    drawing.steps = [vega.flatten("turn", "ms", "tokens"), let("shown", each)]
    scale = alt.Scale(nice=False, zero=False, padding=12)
    x = alt.X("turn:Q", scale=scale, axis=alt.Axis(title="Turn", tickMinStep=1, format="d"))
    where = {"x": x, "y": vega.amount("ms", "Median TTFT (ms)"), "color": drawing.colour()}
    path = {**where, "strokeDash": drawing.dashes(), "detail": alt.Detail("entry:N")}
    dots = {**vega.POINT, "filled": True}
    tips = base.tips(("turn", "Turn"), ("shown", "TTFT"))
    line = unit(vega.LINE, path, params=[vega.toggle(drawing.series), vega.zoom()])
    yield drawing.chart([line, unit(dots, {**where, "tooltip": tips})])


def _loads(entries: Sequence[Entry]) -> tuple[dict[int, str], dict[str, int]]:
    """Return loads in words, and the number of each entry's. Series can be compared under the same one."""
    loads = {e.id: (e.kind, e.load.without(COUNTED)) for e in entries}
    numbers = {load: i for i, load in enumerate(dict.fromkeys(loads.values()))}
    words = {i: base.load_words(*load) for load, i in numbers.items()}
    return words, {id: numbers[load] for id, load in loads.items()}
