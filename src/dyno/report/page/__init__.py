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
from typing import Any

import jinja2
import msgspec
import vl_convert
from markupsafe import Markup

from dyno.facts.report import Chart, Report
from dyno.report import per, tables
from dyno.report.look import Look
from dyno.report.page.trial import Trial, trial
from dyno.visible import plain

_OPEN = 30  # trials, up to which their list is unfolded


def page(report: Report, charts: list[Chart], cache_folder: Path | None = None) -> str:
    """`kept`: a folder in which the scripts of charts are kept from one page to the next."""
    series = list(dict.fromkeys(e.series for e in report.entries))
    groups = _groups(charts)
    scripts = [_text("script.js"), *([bundle(cache_folder)] if charts else [])]
    return _template().render(
        report=report,
        policy=_policy(scripts),
        style=Markup(_text("style.css")),
        scripts=[Markup(script) for script in scripts],
        series=series,
        number={name: i for i, name in enumerate(series)},
        look=Look(series),
        results=tables.results(report),
        best=tables.best(report),
        cost=tables.cost(report),
        findings=tables.findings(report),
        authors=tables.authors(report),
        cost_charts=groups.pop("Cost", []),  # beside their table
        groups=groups,
        modes=per.modes({mode for chart in charts for mode in chart.per}),
        mode_words=per.words(report),
        mode_units=per.units(report),
        trials=_by_series(report),
        unfolded=len(report.entries) <= _OPEN,
        labels={e.id: e.label or e.series for e in report.entries},
    )


@cache
def bundle(cache_folder: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed. To put them together takes three seconds of a processor."""
    path = None if cache_folder is None else cache_folder / f"vega-embed-{version('vl-convert-python')}.js"
    if path is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            mark, _, script = path.read_text(encoding="utf-8").partition("\n")
            if mark == _sha256(script):  # else it was cut off, or changed
                return script
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
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
    """As JSON inside a script element, which these characters could end."""
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
