"""How charts look: a series' colour and line, the same everywhere in a report, and the theme."""

from collections.abc import Iterable
from typing import Any

# Okabe and Ito's, without black and yellow, which a dark or a white page swallows. Vermillion is for failures alone.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8B5A2B", "#999933")
FAILURE = "#D55E00"
GREY = "#8A8A8A"  # seen on white and on near-black
# More series than colours: the same ones again, with another line. Plain dashes are for estimates.
DASHES = ((1, 0), (6, 2, 1, 2), (2, 3), (7, 2, 1, 2, 1, 2))
WIDTH = 720  # of a picture, in pixels


class Look:
    """Colour and line of each series."""

    def __init__(self, series: Iterable[str]) -> None:
        self.places = {name: i for i, name in enumerate(dict.fromkeys(series))}

    def colour(self, series: str) -> str:
        return PALETTE[self.places[series] % len(PALETTE)]

    def dash(self, series: str) -> list[int]:
        return list(DASHES[self.places[series] // len(PALETTE) % len(DASHES)])

    def ordered(self, series: Iterable[str]) -> list[str]:
        return sorted(set(series), key=self.places.__getitem__)


def theme(ink: str) -> dict[str, Any]:
    """Draw text and lines in one colour. 'currentColor': the page's, light or dark."""
    text = {
        "labelColor": ink,
        "titleColor": ink,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "axis": {
            **text,
            "tickColor": ink,
            "domainColor": ink,
            "gridColor": ink,
            "gridOpacity": 0.12,
            "tickOpacity": 0.5,
            "domainOpacity": 0.5,
            "labelOverlap": "greedy",
            "labelSeparation": 8,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "direction": "horizontal",
            "rowPadding": 4,
            "columnPadding": 14,
            "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 6}},
        },
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "anchor": "start",
            "fontSize": {"expr": "room < 480 ? 13 : 15"},
            "subtitleFontSize": 12,
            "subtitlePadding": 5,
            "offset": 12,
            "frame": "bounds",
            "limit": {"expr": "room - 20"},
        },
        "text": {"fill": ink},
        "rule": {"color": ink},
        "view": {"stroke": None},
    }
