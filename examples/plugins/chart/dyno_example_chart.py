"""A chart of a report, in Vega-Lite: requests that completed and that failed, a bar for each result."""

from collections.abc import Iterator, Sequence

from dyno.facts.entry import Entry
from dyno.facts.report import DATA, Chart
from dyno.report.look import Look


def failures(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows = [
        {
            "result": f"{entry.series} {entry.label}",
            "outcome": outcome,
            "requests": figure.value,
        }
        for entry in entries
        for outcome in ("completed", "failed")
        if (figure := entry.figures.get(outcome)) is not None
    ]
    if not rows:
        return
    spec = {
        "data": {"name": DATA},
        "mark": "bar",
        "encoding": {
            "y": {"field": "result", "type": "nominal", "title": None},
            "x": {"field": "requests", "type": "quantitative"},
            "color": {"field": "outcome", "type": "nominal"},
        },
    }
    about = "Failed requests are in no latency."
    yield Chart("outcomes", "Failures", "Requests by outcome", about, spec, rows)
