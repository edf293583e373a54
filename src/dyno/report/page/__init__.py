"""The page: one file that needs nothing else, made of a report and its charts."""

import base64
import contextlib
import hashlib
import os
import re
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup

from dyno.facts.metric import latency
from dyno.facts.report import Chart, Report
from dyno.report import per, tables
from dyno.report.draw import drawn
from dyno.report.look import Look
from dyno.report.page.trial import Trial, trial
from dyno.report.picture import choose
from dyno.visible import plain

_OPEN = 30  # trials, up to which their list is unfolded
_HEIGHT = 210  # pixels of the chart that shows the answer, so that all of it fits one screen
_VERDICTS = {
    "sound": "No problems found.",
    "doubtful": "Some figures are doubtful.",
    "void": "Some figures are void: do not quote them.",
}
# A gauge.
_ICON = "data:image/svg+xml," + quote(
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><g fill='none' stroke-linecap='round'>"
    "<path d='M2 12a6.5 6.5 0 1 1 12 0' stroke='#0072b2' stroke-width='2.5'/>"
    "<path d='M8 11l3-5' stroke='#d55e00' stroke-width='2'/></g></svg>"
)


class Address(NamedTuple):
    """Where a page will be published, and its picture for link previews."""

    page: str
    picture: str


def page(report: Report, charts: list[Chart], cache_folder: Path | None = None, address: Address | None = None) -> str:
    """`cache_folder`: keeps the scripts of charts from one page to the next."""
    series = list(dict.fromkeys(e.series for e in report.entries))
    main = main_chart(report, charts)
    groups = _groups([chart for chart in charts if main is None or chart.name != main.name])
    scripts = [_text("script.js"), *([bundle(cache_folder)] if charts else [])]
    levels = {level: n for level in ("void", "doubt", "note") if (n := sum(f.level == level for f in report.findings))}
    return _template().render(
        report=report,
        policy=_policy(scripts),
        style=Markup(_text("style.css")),
        scripts=[Markup(script) for script in scripts],
        icon=_ICON,
        address=address,
        verdicts=_VERDICTS,
        series=series,
        number={name: i for i, name in enumerate(series)},
        look=Look(series),
        main_chart=main,
        answer=tables.answer(report),
        results=tables.results(report),
        best=tables.best(report),
        cost=tables.cost(report),
        findings=tables.findings(report),
        levels=levels,
        levels_words=", ".join(f"{n} {level}{'' if n == 1 or level == 'void' else 's'}" for level, n in levels.items()),
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


def main_chart(report: Report, charts: list[Chart]) -> Chart | None:
    """The chart that shows the answer, with its metric and workload selected."""
    standing, by_name = report.words.standing, {chart.name: chart for chart in charts}
    entry = next((e for e in report.entries if standing and e.id == standing.contenders[0].entry), None)
    if standing is None or entry is None:
        return charts[0] if charts else None
    statistic, stem = latency(standing.metric) or ("", "throughput")
    statistic = "p50" if statistic == "median" else statistic
    wanted = [f"{stem}-{entry.axis}".replace("_", "-")] if entry.axis else []
    wanted += ["distribution"] if len(report.entries) == 1 else []
    wanted += [{"micro": "micro", "quality": "quality"}.get(entry.kind, "side-by-side"), "side-by-side"]
    chart = next((by_name[name] for name in wanted if name in by_name), charts[0] if charts else None)
    if chart is None:
        return None
    values = {"workload": standing.workload, "load": entry.load.beside("").words, "statistic": statistic,
              "figure": f"{statistic}_{stem}" if statistic else standing.metric}  # fmt: skip
    values["kind"] = re.sub(r"\d.*", "", str(entry.load.get("test") or ""))
    params = chart.spec["params"]
    bound = {p["name"]: values[p["name"]] for p in params if p["name"] in values and "bind" in p}
    height = min(chart.spec.get("height", _HEIGHT), _HEIGHT)
    return msgspec.structs.replace(chart, spec={**chart.spec, "params": choose(params, bound), "height": height})


@cache
def bundle(cache_folder: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed. To put them together takes three seconds of a processor."""
    path = None if cache_folder is None else cache_folder / f"vega-embed-{version('vl-convert-python')}.js"
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
    """Everything is escaped, whoever wrote it; and nothing that is unknown passes as empty."""
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
    environment.tests["link"] = lambda words: re.match(r"https?://[^\s<>\"']+\Z", words) is not None
    return environment.get_template("page.html")


def _plain(value: Any) -> Any:
    return plain(value) if type(value) is str else value


def _policy(scripts: list[str]) -> str:
    """Only the scripts that dyno wrote may run, and nothing may be fetched: whatever slips in stays dead."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026", "\u2028".encode(): b"\\u2028",
            "\u2029".encode(): b"\\u2029"}  # fmt: skip


def embedded(value: Any) -> Markup:
    """Return JSON for a script element: escape characters that could end it."""
    data = msgspec.json.encode(_whole(value))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    return Markup(data.decode())


def _whole(value: Any) -> Any:
    """Strings without halves of characters, which JSON in UTF-8 can't hold."""
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
