"""A chart as a picture, without a browser or a network."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from dyno.facts.record import Record
from dyno.facts.report import DATA, Chart
from dyno.measure.timing import likely_ns
from dyno.report.draw import drawn
from dyno.report.look import FAILURE, GREY, PALETTE, WIDTH, theme
from dyno.units import NS_PER_MS, seconds

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


# ---- the pictures of --plot-timeline and --plot-dataset-stats ----

_TIMELINE_WIDTH, _ROW, _TALLEST = 1100, 6, 4000  # pixels
_BINS = 40


def timeline_html(records: Iterable[Record], thresholds_ms: Sequence[float]) -> str:
    """Return a page with a bar for each request: the time to the first token, then ITLs by two thresholds."""
    records = sorted((r for r in records if r.chunk_ns), key=lambda r: r.sent_ns)
    low, high = (f"{limit:g}" for limit in thresholds_ms)
    names = ["TTFT", f"ITL < {low} ms", f"{low} ms ≤ ITL < {high} ms", f"ITL ≥ {high} ms"]
    rows = [
        {
            "request": i,
            "from": seconds(begin),
            "to": seconds(end),
            "part": names[part],
            "prompt": r.prompt_tokens_planned,
            "output": r.output_tokens,
        }
        for i, r in enumerate(records)
        for begin, end, part in _segments(r, thresholds_ms)
    ]
    ink, ground = _INKS[False]
    spec = {
        "data": {"values": rows},
        "width": _TIMELINE_WIDTH,
        "height": min(max(_ROW * len(records), 200), _TALLEST),
        "mark": {"type": "bar", "height": {"band": 0.8}},
        "params": [
            {"name": "room", "value": _TIMELINE_WIDTH},
            {
                "name": "zoom",
                "select": {"type": "interval", "encodings": ["x"]},
                "bind": "scales",
            },
        ],
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "title": "Time (s)"},
            "x2": {"field": "to"},
            "y": {
                "field": "request",
                "type": "ordinal",
                "title": "Requests, in the order of sending",
                "axis": {"labelOverlap": "greedy", "ticks": False},
            },
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "scale": {
                    "domain": names,
                    "range": [GREY, PALETTE[2], PALETTE[1], FAILURE],
                },
            },
            "tooltip": [
                {"field": name, "title": title}
                for name, title in (
                    ("request", "Request"),
                    ("part", "Part"),
                    ("from", "From (s)"),
                    ("to", "To (s)"),
                    ("prompt", "Prompt tokens"),
                    ("output", "Output tokens"),
                )
            ],
        },
        "config": {**theme(ink), "background": ground},
    }
    return drawn(
        "vegalite_to_html", json.dumps(spec), vl_version=VEGA_LITE, bundle=True
    ).decode()


def _segments(r: Record, thresholds_ms: Sequence[float]) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and kind of the parts of a request; neighbours of one kind are one part."""
    times = likely_ns(r)
    yield r.sent_ns, times[0], 0
    low, high = (limit * NS_PER_MS for limit in thresholds_ms)
    begin, kind = times[0], 0
    for before, after in pairwise(times):
        gap = after - before
        own = 1 + (gap >= low) + (gap >= high)
        if own != kind and kind:
            yield begin, before, kind
            begin = before
        kind = own
    if kind:
        yield begin, times[-1], kind


def lengths_png(records: Iterable[Record]) -> bytes:
    """Return a picture with the distributions of prompt tokens, output tokens and their sums."""
    counts = [(r.prompt_tokens_planned, r.output_tokens or 0) for r in records]
    rows = [
        {"Prompt tokens": prompt, "Output tokens": output, "Both": prompt + output}
        for prompt, output in counts
    ]
    ink, ground = _INKS[False]
    bars = [
        {
            "width": WIDTH // 2,
            "mark": {"type": "bar", "color": PALETTE[i]},
            "encoding": {
                "x": {
                    "field": name,
                    "bin": {"maxbins": _BINS, "minstep": 1},
                    "title": name,
                    "axis": {"format": ",d"},
                },
                "y": {"aggregate": "count", "title": "Requests"},
            },
        }
        for i, name in enumerate(("Prompt tokens", "Output tokens", "Both"))
    ]
    spec = {
        "data": {"values": rows},
        "params": [{"name": "room", "value": WIDTH}],
        "hconcat": bars,
        "config": {**theme(ink), "background": ground},
        "padding": 12,
    }
    return drawn("vegalite_to_png", json.dumps(spec), vl_version=VEGA_LITE, scale=2)
