"""The page: one file that needs nothing else, made of a report and its charts."""

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec
import vl_convert
from markupsafe import Markup

from dyno.facts.chart import Chart
from dyno.facts.report import Report
from dyno.report import per, tables
from dyno.report.page.trial import Trial, trial
from dyno.report.plain import plain

# Where no chart tells which colour a series has: Okabe and Ito's, which the colour-blind can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_END = "\n// end of the bundle\n"
_OPEN = 30  # trials, up to which their list is unfolded


def page(report: Report, charts: list[Chart], kept: Path | None = None) -> str:
    """`kept`: a folder in which the scripts of charts are kept from one page to the next."""
    series = list(dict.fromkeys(e.series for e in report.entries))
    groups = _groups(charts)
    scripts = [_text("script.js"), *([bundle(kept)] if charts else [])]
    return _template().render(
        report=report,
        policy=_policy(scripts),
        style=Markup(_text("style.css")),
        scripts=[Markup(script) for script in scripts],
        series=series,
        number={name: i for i, name in enumerate(series)},
        looks=_looks(series, charts),
        results=tables.results(report),
        best=tables.best(report),
        cost=tables.cost(report),
        findings=tables.findings(report),
        authors=tables.authors(report),
        cost_charts=groups.pop("Cost", []),  # beside their table
        groups=groups,
        modes=per.modes({mode for chart in charts for mode in chart.per}),
        mode_words=per.WORDS,
        mode_units=per.SHORT,
        trials=_by_series(report),
        unfolded=len(report.entries) <= _OPEN,
        labels={e.id: e.label or e.series for e in report.entries},
    )


@cache
def bundle(kept: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed. To put them together takes three seconds of a processor."""
    path = None if kept is None else kept / f"vega-embed-{version('vl-convert-python')}.js"
    if path is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            script = path.read_text(encoding="utf-8")
            if script.endswith(_END):  # else it was cut off, or is somebody else's
                return script
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    script = re.sub(r"<(?=/script|!--|script)", r"\\x3c", script, flags=re.IGNORECASE) + _END
    if path is not None:
        with contextlib.suppress(OSError):  # a page is made all the same
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_text(script, encoding="utf-8")
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


class _Look(NamedTuple):
    colour: str
    dash: str


def _looks(series: list[str], charts: list[Chart]) -> dict[str, _Look]:
    """Colour and line of each series, as the charts have them."""
    looks = {name: _Look(_COLOURS[i % len(_COLOURS)], "") for i, name in enumerate(series)}
    for chart in charts:
        for channel, scale in _scales(chart.spec):
            for name, value in zip(scale["domain"], scale["range"], strict=False):
                if name in looks and channel == "strokeDash":
                    looks[name] = looks[name]._replace(dash=" ".join(str(float(v)) for v in value))
                elif name in looks and re.match(r"#[0-9a-fA-F]{3,8}\Z", str(value)):
                    looks[name] = looks[name]._replace(colour=value)
    return looks


def _scales(spec: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Scales of the series, wherever in a specification they stand."""
    if isinstance(spec, list):
        for part in spec:
            yield from _scales(part)
    elif isinstance(spec, dict):
        for name, part in spec.items():
            if name in ("color", "strokeDash") and isinstance(part, dict) and part.get("field") == "series":
                scale = part.get("scale") or {}
                if isinstance(scale.get("domain"), list) and isinstance(scale.get("range"), list):
                    yield name, scale
            yield from _scales(part)
