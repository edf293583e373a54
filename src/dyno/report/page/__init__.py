"""The page: one file that needs nothing else, made of a report and its charts."""

import base64
import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup

from dyno.facts.entry import Entry
from dyno.facts.finding import Finding, Level, merged, worst_first
from dyno.facts.metric import STEMS, latency
from dyno.facts.report import Chart, Report, Standing
from dyno.numbers import count, currency, human_bytes, money, number, percent, setting
from dyno.report import per, short_run, tables
from dyno.report.conclusion import counted_results
from dyno.report.draw import drawn
from dyno.report.look import Look
from dyno.report.picture import choose
from dyno.report.table import Table, figure_text, whole_interval
from dyno.report.tables import figure_unit, figure_words, verdict_words
from dyno.visible import plain

# ---- a trial's facts: lines, and its latencies as a table of statistics ----

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
            *_setting_lines(entry),
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
                figure_text(figure), whole_interval(figure), f"{figure.value:.15g}"
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
            f"{figure_text(n)}{figure_unit(name)} {whole_interval(n)}".rstrip(),
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
        ("per hour", cost.hour),
        ("per M input tokens", cost.per_million_input),
        ("per M output tokens", cost.per_million_output),
        ("per M tokens", cost.per_million_total),
        ("per 1,000 requests", cost.per_thousand_requests),
        ("energy per M output tokens", cost.energy_per_million_output),
    ]
    lines = [
        (what, f"{sign} {money(value)}") for what, value in prices if value is not None
    ]
    return [*lines, ("price", cost.source)] if cost.source else lines


def _setting_lines(entry: Entry) -> list[tuple[str, str]]:
    lines = [("measured by", entry.tool)] if entry.tool else []
    return [*lines, *((name, setting(value)) for name, value in entry.settings.items())]


# ---- the page ----

_OPEN = 30  # trials, up to which their list is unfolded
# pixels of the chart that shows the answer, so that all of it fits one screen
_HEIGHT = 210
_MANY = 8  # series: more have no room for a chip each, and a chart of the answer shows the contenders among them
_FAINT = 0.14  # of the opacity, for lines of series that the answer's table doesn't show
_MARKED = "In the chart, the points of this table have a halo."
_LEVELS: tuple[Level, ...] = ("void", "doubt", "note")
_VERDICTS = {
    "sound": "No problems found.",
    "doubtful": "Some figures are doubtful.",
    "void": "Some figures are void: do not quote them.",
}
_COMPARISON_VOID = "Some results can't be compared with others: see the caveats."
# A gauge.
_ICON = "data:image/svg+xml," + quote(
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><g fill='none' stroke-linecap='round'>"
    "<path d='M2 12a6.5 6.5 0 1 1 12 0' stroke='#0072b2' stroke-width='2.5'/>"
    "<path d='M8 11l3-5' stroke='#d55e00' stroke-width='2'/></g></svg>"
)


def _verdict_words(report: Report) -> dict[str, str]:
    """Say what a verdict means. Where each figure may be quoted, a void one is of a comparison."""
    if any(e.verdict == "void" for e in report.entries):
        return _VERDICTS
    return {**_VERDICTS, "void": _COMPARISON_VOID}


class Address(NamedTuple):
    """Where a page will be published, and its picture for link previews."""

    page: str
    picture: str


def page(
    report: Report,
    charts: list[Chart],
    cache_folder: Path | None = None,
    address: Address | None = None,
) -> str:
    """Return the page's HTML. `cache_folder`: keeps the scripts of charts from one page to the next."""
    series = list(dict.fromkeys(e.series for e in report.entries))
    main = main_chart(report, charts)
    groups = _groups(_beside(main, charts))
    scripts = [_text("script.js")]
    if charts:
        scripts.append(bundle(cache_folder))
    levels = _levels(report)
    best = tables.best(report)
    return _template().render(
        report=report,
        policy=_policy(scripts),
        style=Markup(_text("style.css")),
        scripts=[Markup(script) for script in scripts],
        icon=_ICON,
        address=address,
        verdicts=_verdict_words(report),
        series=series,
        number={name: i for i, name in enumerate(series)},
        look=Look(series),
        main_chart=main,
        counted=counted_results(report.entries),
        brief=tables.brief(report),
        answers=_verdicts_last(tables.answers(report)),
        choices=tables.choices(report),
        marked=_MARKED if main is not None and _marks(main) else "",
        setup_links=_setup_links(report),
        many=_MANY,
        results=_verdicts_last(tables.results(report)),
        best=None if best is None else _verdict_last(best),
        cost=_verdicts_last(tables.cost(report)),
        findings=tables.findings(report),
        levels=levels,
        levels_words=", ".join(
            f"{n} {_level_words(level, n)}" for level, n in levels.items()
        ),
        authors=tables.authors(report),
        cost_charts=groups.pop("Cost", []),  # beside their table
        groups=groups,
        statistics=tables.statistics(report),
        modes=per.modes({mode for chart in charts for mode in chart.per}),
        mode_words=per.words(report),
        mode_units=per.units(report),
        trials=_by_series(report),
        unfolded=len(report.entries) <= _OPEN,
        labels={e.id: e.label or e.series for e in report.entries},
    )


def _beside(main: Chart | None, charts: list[Chart]) -> list[Chart]:
    """Return the charts that stand below the main one."""
    return [chart for chart in charts if main is None or chart.name != main.name]


def _levels(report: Report) -> dict[str, int]:
    """Return the number of shown findings of each level that has any, the worst first."""
    counted = Counter(f.level for f in short_run.join(report.findings).others)
    return {level: counted[level] for level in _LEVELS if counted[level]}


def _level_words(level: str, n: int) -> str:
    return level if n == 1 or level == "void" else f"{level}s"


def _verdict_last(table: Table) -> Table:
    """Move the verdict to the end, where it stays in sight while the rest scrolls."""
    places = range(len(table.columns))
    order = sorted(places, key=lambda i: table.columns[i].kind == "verdict")
    lines = [
        msgspec.structs.replace(line, cells=[line.cells[i] for i in order])
        for line in table.lines
    ]
    return msgspec.structs.replace(
        table, columns=[table.columns[i] for i in order], lines=lines
    )


def _verdicts_last(several: Iterable[Table]) -> list[Table]:
    return [_verdict_last(table) for table in several]


def _setup_links(report: Report) -> list[tuple[str, str]]:
    """Return the sections that say how to measure it again, by their anchors."""
    links = (
        ("machines", "Machines", report.rigs),
        ("engines", "Engines", report.engines),
        ("commands", "Commands", report.commands),
        ("reproduce", "Reproduce this report", report.again),
    )
    return [(id, title) for id, title, known in links if known]


def main_chart(report: Report, charts: list[Chart]) -> Chart | None:
    """Return the chart that shows the answer, with its metric and workload selected."""
    if not charts:
        return None
    standing = report.words.standing
    leader = standing.contenders[0].entry if standing is not None else None
    entry = next((e for e in report.entries if e.id == leader), None)
    if standing is None or entry is None:
        return charts[0]
    by_name = {chart.name: chart for chart in charts}
    wanted = _wanted_charts(entry, standing, single=len(report.entries) == 1)
    chart = next((by_name[name] for name in wanted if name in by_name), charts[0])
    values = _choices(entry, standing)
    params = chart.spec["params"]
    bound = {
        p["name"]: values[p["name"]] for p in params if p["name"] in values and "bind" in p
    }
    height = min(chart.spec.get("height", _HEIGHT), _HEIGHT)
    spec = {**chart.spec, "params": choose(params, bound), "height": height}
    if entry.axis:
        several = len({row["series"] for row in chart.rows}) > _MANY
        spec = _marked(spec, report, several)
    return msgspec.structs.replace(chart, spec=spec)


def _marked(spec: dict[str, Any], report: Report, many: bool) -> dict[str, Any]:
    """Mark the results that the answer's tables show. `many`: of so many series, the others are faint, and not in the
    legend."""
    standings = [report.words.standing, report.words.alternative]
    ids = [[c.entry for c in s.contenders] for s in standings if s is not None]
    series = {e.id: e.series for e in report.entries}
    shown = list(dict.fromkeys(series[id] for some in ids for id in some if id in series))
    layers = [*spec["layer"]]
    drawn = next((i for i, layer in enumerate(layers) if _is_point(layer)), None)
    if drawn is None:
        return spec
    halo = {
        **layers[drawn],
        "mark": {
            "type": "point",
            "filled": True,
            "size": 260,
            "opacity": 0.4,
            "clip": True,
        },
        "transform": [{"filter": "isValid(datum.y) && indexof(marked, datum.entry) >= 0"}],
    }
    params = [*spec["params"], {"name": "marked", "value": ids[0]}]
    if many:
        params.append({"name": "prominent", "value": shown})
        layers = [_faint(layer, shown) for layer in layers]
    return {**spec, "params": params, "layer": [*layers[:drawn], halo, *layers[drawn:]]}


def _is_point(layer: dict[str, Any]) -> bool:
    """Return whether a layer draws the results of a line chart."""
    mark = layer["mark"]
    if not isinstance(mark, dict) or "x" not in layer.get("encoding", {}):
        return False
    return mark["type"] == "point" and bool(mark.get("filled"))


def _marks(chart: Chart) -> bool:
    return any(p["name"] == "marked" for p in chart.spec["params"])


def _faint(layer: dict[str, Any], prominent: list[str]) -> dict[str, Any]:
    """Return a layer in which other series are faint, and its legend without them."""
    encoding = dict(layer.get("encoding", {}))
    for channel in ("color", "strokeDash"):
        if encoding.get(channel, {}).get("legend"):
            legend = {**encoding[channel]["legend"], "values": prominent}
            encoding[channel] = {**encoding[channel], "legend": legend}
    opacity = layer["mark"].get("opacity", 1)
    if "color" in encoding and opacity:
        test = "indexof(prominent, datum.series) >= 0"
        encoding["opacity"] = {
            "condition": {"test": test, "value": opacity},
            "value": opacity * _FAINT,
        }
    return {**layer, "encoding": encoding}


def _wanted_charts(entry: Entry, standing: Standing, single: bool) -> Iterator[str]:
    """Yield the names of charts that could show the answer, the best first."""
    if entry.axis:
        _, stem = latency(standing.metric) or ("", "throughput")
        yield f"{stem}-{entry.axis}".replace("_", "-")
    if single:
        yield "distribution"
    if entry.kind in ("micro", "quality"):
        yield entry.kind
    yield "side-by-side"


def _choices(entry: Entry, standing: Standing) -> dict[str, str]:
    """Return the values that a chart's menus begin with."""
    statistic, stem = latency(standing.metric) or ("", "throughput")
    if statistic == "median":
        statistic = "p50"
    return {
        "workload": standing.workload,
        "load": entry.load.beside("").words,
        "statistic": statistic,
        "figure": f"{statistic}_{stem}" if statistic else standing.metric,
        "kind": re.sub(r"\d.*", "", str(entry.load.get("test") or "")),
    }


@cache
def bundle(cache_folder: Path | None = None) -> str:
    """Return Vega, Vega-Lite and Vega-Embed. To put them together takes three seconds of a processor."""
    path = (
        None
        if cache_folder is None
        else cache_folder / f"vega-embed-{version('vl-convert-python')}.js"
    )
    if path is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            mark, _, script = path.read_text(encoding="utf-8").partition("\n")
            if mark == _sha256(script):  # else it was cut off, or changed
                return script
    script = drawn("javascript_bundle", "window.vegaEmbed = vegaEmbed;").decode()
    script = re.sub(r"<(?=/script|!--|script)", r"\\x3c", script, flags=re.IGNORECASE)
    if path is not None:
        with contextlib.suppress(OSError):  # a page is made all the same
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_text(f"{_sha256(script)}\n{script}", encoding="utf-8")
            partial.replace(path)
    return script


@cache
def _text(name: str) -> str:
    return resources.files("dyno.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    """Return the page's template. Everything is escaped, whoever wrote it; and nothing that is unknown passes as
    empty."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = embedded
    environment.filters["full"] = lambda value: f"{value:.15g}"
    environment.tests["link"] = lambda words: (
        re.match(r"https?://[^\s<>\"']+\Z", words) is not None
    )
    return environment.get_template("page.html")


def _plain(value: Any) -> Any:
    return plain(value) if type(value) is str else value


def _policy(scripts: list[str]) -> str:
    """Return the page's security policy: only the scripts that dyno wrote may run, and nothing may be fetched."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_ESCAPES = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def embedded(value: Any) -> Markup:
    """Return JSON for a script element: escape characters that could end it."""
    data = msgspec.json.encode(_whole(value))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    return Markup(data.decode())


def _whole(value: Any) -> Any:
    """Return strings without halves of characters, which JSON in UTF-8 can't hold."""
    if isinstance(value, str):
        return value if value.isascii() else plain(value)
    if isinstance(value, dict):
        return {_whole(k): _whole(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(v) for v in value]
    return value


def _groups(charts: list[Chart]) -> dict[str, list[Chart]]:
    groups: dict[str, list[Chart]] = {}
    for chart in charts:
        groups.setdefault(chart.group, []).append(chart)
    return groups


def _by_series(report: Report) -> dict[str, list[Trial]]:
    held: dict[str, list[Trial]] = {}
    varying = tables.varying(report)
    for entry in report.entries:
        held.setdefault(entry.series, []).append(trial(entry, varying[entry.kind]))
    return held
