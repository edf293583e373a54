"""How a latency is spread over requests: the share that took no longer."""

from collections.abc import Iterator, Sequence

import altair as alt

from dyno.facts.chart import Chart
from dyno.facts.definition import definition, meanings
from dyno.facts.entry import Entry
from dyno.report.charts.base import (
    PLAIN,
    REQUESTS,
    ROWS_MAX,
    TOGGLED,
    Option,
    Row,
    Select,
    colour,
    dashes,
    drawn,
    entry_row,
    evenly,
    expr,
    finish,
    let,
    short,
    tips,
    toggle,
    unit,
    when,
    wide,
    zoom,
)
from dyno.report.charts.latency import NAMES
from dyno.report.charts.workloads import load_words
from dyno.report.look import Look

LEAST = 24  # points of a line, below which its tail can't be seen


def distribution(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    kept = [e for e in entries if any(stem in e.quantiles for stem in NAMES)]
    if not kept:
        return
    loads, at = _loads(kept)
    latencies, keys = _latencies(kept)
    # Those that let series be compared come first, where not all fit.
    several = (
        sorted(kept, key=lambda e: -len({k.series for k in kept if at[k.id] == at[e.id]})) if len(kept) < 400 else kept
    )
    lines = [(e, stem) for e in several for stem in NAMES if e.quantiles.get(stem)]
    shown = lines[: ROWS_MAX // LEAST]
    most = max(LEAST, ROWS_MAX // len(shown))
    rows: list[Row] = []
    for entry, stem in shown:
        points = evenly(entry.quantiles[stem], most)
        row = entry_row(entry) | {"load": at[entry.id], "latency": keys[entry.id, stem]}
        row |= {"share": [short(s) for s, _ in points], "ms": [short(ms) for _, ms in points]}
        rows.append(row)
    used = {row["load"] for row in rows}
    counts = {i: len({row["series"] for row in rows if row["load"] == i}) for i in used}
    load = Select(
        "load",
        "Load",
        {i: w for i, w in loads.items() if i in used},
        max(sorted(used, reverse=True), key=lambda i: counts[i]),
    )
    stems = [str(row["latency"]) for row in rows]
    latency = Select("latency", "Latency", {k: w for k, w in latencies.items() if k in stems}, stems[0])

    log = any(wide([v for v in row["ms"] if v > 0], 50) for row in rows) and all(
        v > 0 for row in rows for v in row["ms"]
    )
    series = look.ordered(row["series"] for row in rows)
    x = alt.X(
        "ms",
        type="quantitative",
        scale=alt.Scale(type="log" if log else "linear", zero=alt.Undefined if log else False, nice=False, padding=8),
        axis=alt.Axis(
            title=expr("latency_words[latency] + ' (ms)'"), format=PLAIN, tickCount=6 if log else alt.Undefined
        ),
    )
    y = alt.Y(
        "share",
        type="quantitative",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(title="Share of requests", format="%"),
    )
    where = {"x": x, "y": y, "color": colour(look, series)}
    tooltip = tips(("told", "Share"))
    line = {"type": "line", "strokeWidth": 2, "clip": True}
    dots = {"type": "point", "filled": True, "size": 60, "opacity": 0, "clip": True}
    layers = [
        unit(
            line,
            {**where, "strokeDash": dashes(look, series), "detail": alt.Detail("entry", type="nominal")},
            params=[toggle(series), zoom()],
        ),
        unit(dots, {**where, "tooltip": tooltip}),
    ]
    signs = [row for row in rows if row["verdict"] != "sound" or "failed" in row]
    if signs:
        # At the end of its line.
        text = {"type": "text", "align": "right", "dx": -4, "dy": 12, "fontSize": 10, "clip": True}
        layers.append(
            unit(
                text,
                {**where, "text": alt.Text("sign", type="nominal")},
                when("datum.share == 1"),
                when("datum.verdict != 'sound' || datum.failed > 0"),
                let(
                    "sign",
                    "(datum.verdict == 'sound' ? '' : datum.verdict + (datum.failed > 0 ? ', ' : ''))"
                    " + (datum.failed > 0 ? format(datum.failed, ',') + ' failed' : '')",
                ),
            )
        )
    less = f" {len(shown):,} of {len(lines):,} lines are kept." if len(shown) < len(lines) else ""
    yield finish(
        layers,
        rows,
        name="distribution",
        group="Latency",
        title="Distribution of latencies",
        about="Each line: the share of requests (of gaps, for ITL) that took no longer than so many milliseconds. "
        "Further left is better. Failed requests are not in it." + less,
        subtitle=[latency.told, load.told],
        selects=[latency, load],
        transform=[
            *drawn(latency, load),
            TOGGLED,
            REQUESTS,
            alt.FlattenTransform(flatten=["share", "ms"]),
            let("told", "format(datum.share, '.1%') + ' within ' + format(datum.ms, ',') + ' ms'"),
        ],
    )


def _loads(entries: Sequence[Entry]) -> tuple[dict[int, str], dict[str, int]]:
    """Loads in words, and which one each entry had. Series can be compared under the same one."""
    index: dict[tuple[object, ...], int] = {}
    told: dict[int, str] = {}
    at: dict[str, int] = {}
    for entry in entries:
        load = [(k, v) for k, v in entry.load.items() if k not in ("num_prompts", "completed")]
        i = index.setdefault((entry.kind, *load), len(index))
        told.setdefault(i, load_words([("kind", entry.kind), *load]))
        at[entry.id] = i
    return told, at


def _latencies(entries: Sequence[Entry]) -> tuple[dict[Option, str], dict[tuple[str, str], str]]:
    """Of two definitions, they are two."""
    words: dict[Option, str] = {}
    keys: dict[tuple[str, str], str] = {}
    for stem, name in NAMES.items():
        own = [e for e in entries if stem in e.quantiles]
        index = meanings(definition(e.tool, stem) for e in own)
        for entry in own:
            i = index[definition(entry.tool, stem)]
            keys[entry.id, stem] = f"{stem}_{i}"
            tools = ", ".join(k.split(".")[0] or "not told" for k, at in index.items() if at == i)
            words[f"{stem}_{i}"] = f"{name} (as {tools})" if len(set(index.values())) > 1 else name
    return words, keys
