"""A chart as a picture, without a browser or a network."""

import json
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from dyno.facts.report import DATA, Chart
from dyno.report.draw import drawn
from dyno.report.look import WIDTH, theme

VEGA_LITE = "6.4"
CARD = 600, 315  # pixels of a link preview, drawn at twice the scale
CARD_LEGEND = 290  # its legend has one column, as on a phone
# Text and ground, on paper and on a dark slide.
_INKS = {False: ("#1A1A1A", "#FFFFFF"), True: ("#E8E8E8", "#121212")}


def complete(
    chart: Chart,
    *,
    width: int | None = None,
    dark: bool | None = None,
    values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the specification with its data. `width`: pixels, else the container's. `dark`: on a ground of its own,
    else the page's. `values`: of parameters, by name; a select takes an option or its words."""
    spec = {**chart.spec, "datasets": {DATA: chart.rows}}
    if width is not None:
        spec["width"] = width
        spec["params"] = [
            {"name": "room", "value": width} if p["name"] == "room" else p
            for p in spec["params"]
        ]
    if dark is not None:
        ink, ground = _INKS[dark]
        spec["config"] = {**theme(ink), "background": ground}
        spec["padding"] = 12
    if values:
        known = {p["name"] for p in spec["params"]}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"{chart.name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
        spec["params"] = choose(spec["params"], values)
    return spec


def choose(params: list[dict[str, Any]], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Select options, given themselves or their words. What a select doesn't offer changes nothing."""
    out = []
    for param in params:
        if param["name"] in values:
            param = {**param, "value": _option(param, values[param["name"]])}
        out.append(param)
    return out


def _option(param: dict[str, Any], value: Any) -> Any:
    bind = param.get("bind", {})
    options, labels = bind.get("options", [value]), bind.get("labels", [])
    if value in labels:
        return options[labels.index(value)]
    return value if value in options else param["value"]


def png(
    chart: Chart,
    *,
    width: int = WIDTH,
    dark: bool = False,
    values: Mapping[str, Any] | None = None,
    scale: float = 2,
) -> bytes:
    spec = complete(chart, width=width, dark=dark, values=values)
    return drawn("vegalite_to_png", json.dumps(spec), vl_version=VEGA_LITE, scale=scale)


def svg(
    chart: Chart,
    *,
    width: int = WIDTH,
    dark: bool = False,
    values: Mapping[str, Any] | None = None,
) -> str:
    spec = complete(chart, width=width, dark=dark, values=values)
    return drawn("vegalite_to_svg", json.dumps(spec), vl_version=VEGA_LITE).decode()


def card(chart: Chart, title: str, words: str) -> bytes:
    """Return a chart as the picture of a link preview, 1200 × 630 pixels."""
    spec = complete(chart, width=CARD_LEGEND, dark=False) | {
        "width": CARD[0],
        "height": CARD[1],
        "padding": 24,
    }
    spec["autosize"] = {"type": "fit", "contains": "padding"}
    legend = {
        "orient": "right",
        "direction": "vertical",
        "layout": {"right": {"anchor": "middle"}},
    }
    spec["config"]["legend"] |= legend
    text = {
        "text": wrap(title, 54)[:2],
        "subtitle": wrap(words, 84)[:4],
        "fontSize": 20,
        "subtitleFontSize": 13,
    }
    spec["title"] = {
        **text,
        "anchor": "start",
        "frame": "bounds",
        "offset": 12,
        "limit": CARD[0] - 48,
    }
    return drawn("vegalite_to_png", json.dumps(spec), vl_version=VEGA_LITE, scale=2)
