"""A chart as a picture, without a browser or a network."""

import json
from collections.abc import Mapping
from typing import Any

import vl_convert

from dyno.facts.report import DATA, Chart
from dyno.report.look import WIDTH, theme

VEGA_LITE = "6.4"
# Text and ground, on paper and on a dark slide.
_INKS = {False: ("#1A1A1A", "#FFFFFF"), True: ("#E8E8E8", "#121212")}


def complete(
    chart: Chart, *, width: int | None = None, dark: bool | None = None, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The specification with its data. `width`: pixels, else the container's. `dark`: on a ground of its own, else the
    page's. `values`: of parameters, by name; a select takes an option or its words."""
    spec = {**chart.spec, "datasets": {DATA: chart.rows}}
    if width is not None:
        spec["width"] = width
        spec["params"] = [{"name": "room", "value": width} if p["name"] == "room" else p for p in spec["params"]]
    if dark is not None:
        ink, ground = _INKS[dark]
        spec["config"] = {**theme(ink), "background": ground}
        spec["padding"] = 12
    if values:
        known = {p["name"] for p in spec["params"]}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"{chart.name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(known))}")
        spec["params"] = [
            {**p, "value": _option(p, values[p["name"]])} if p["name"] in values else p for p in spec["params"]
        ]
    return spec


def _option(param: dict[str, Any], value: Any) -> Any:
    """The option of a select, given that or its words."""
    bind = param.get("bind", {})
    options, labels = bind.get("options", []), bind.get("labels", [])
    if value in options or value not in labels:
        return value
    return options[labels.index(value)]


def png(
    chart: Chart, *, width: int = WIDTH, dark: bool = False, values: Mapping[str, Any] | None = None, scale: float = 2
) -> bytes:
    spec = complete(chart, width=width, dark=dark, values=values)
    return vl_convert.vegalite_to_png(json.dumps(spec), vl_version=VEGA_LITE, scale=scale)


def svg(chart: Chart, *, width: int = WIDTH, dark: bool = False, values: Mapping[str, Any] | None = None) -> str:
    spec = complete(chart, width=width, dark=dark, values=values)
    return vl_convert.vegalite_to_svg(json.dumps(spec), vl_version=VEGA_LITE)
