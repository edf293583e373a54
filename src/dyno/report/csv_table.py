"""A report as CSV: a line for each entry, with its load, its figures and their intervals."""

from dyno.facts.entry import Entry, Number, Quality
from dyno.facts.imported import Scalar
from dyno.facts.report import Report
from dyno.numbers import decimals
from dyno.report.table import csv_text
from dyno.visible import one_line

_COST = (
    "hour",
    "per_million_input",
    "per_million_output",
    "per_million_total",
    "per_thousand_requests",
    "energy_per_million_output",
)


def csv(report: Report) -> str:
    lines = [_line(entry) for entry in report.entries]
    known = {name for line in lines for name in line}
    names = [name for name in _columns(report) if name in known]
    rows = [[line.get(name, "") for name in names] for line in lines]
    return csv_text([[one_line(name) for name in names], *rows])


def _columns(report: Report) -> list[str]:
    """Return columns in a fixed order: identity, outcome, then figures."""
    loads = dict.fromkeys(
        f"load.{name}" for e in report.entries for name in e.load.settings
    )
    settings = dict.fromkeys(
        f"setting.{name}" for e in report.entries for name in e.settings
    )
    quality = _QUALITY if any(e.quality for e in report.entries) else ()
    return [
        *(
            "id",
            "series",
            "label",
            "kind",
            "tool",
            *loads,
            "repeats",
            "completed",
            "failed",
            "verdict",
            "findings",
        ),
        *("failure", *_figure_columns(report)),
        *(
            "accelerator",
            "accelerators",
            "machine_accelerators",
            "power_w",
            "joules_per_token",
        ),
        *(
            "memory_after_load_bytes",
            "memory_peak_bytes",
            "currency",
            *(f"cost_{name}" for name in _COST),
        ),
        *("price_source", *quality, *settings, "at"),
    ]


def _figure_columns(report: Report) -> list[str]:
    names = dict.fromkeys(
        name for e in report.entries for name in e.figures if name not in _SUMS
    )
    return list(dict.fromkeys(f"{name}{end}" for name in names for end in _ENDS))


_QUALITY = (
    "quality_score",
    "quality_low",
    "quality_high",
    "quality_items",
    "quality_reference",
    "quality_change",
    "quality_change_low",
    "quality_change_high",
    "quality_detectable",
    "quality_word",
)
_SUMS = ("completed", "failed")  # over all repeats, and no figure of one
_ENDS = ("", ".low", ".high", ".definition")


def _line(e: Entry) -> dict[str, str]:
    """Return the known values by column."""
    values: dict[str, Scalar | None] = {
        "id": e.id,
        "series": e.series,
        "label": e.label,
        "kind": e.kind,
        "tool": e.tool,
        "repeats": e.repeats,
        "completed": e.completed,
        "failed": e.failed,
        "verdict": e.verdict,
        "failure": e.failure,
        "findings": " ".join(dict.fromkeys(f.code for f in e.findings)),
        "accelerator": e.accelerator,
        "accelerators": e.accelerators,
        "machine_accelerators": e.machine,
        "power_w": e.power_w,
        "joules_per_token": e.joules_per_token,
        "at": " ".join(e.locations),
    }
    values |= {f"load.{name}": value for name, value in e.load.settings.items()}
    values |= {f"setting.{name}": value for name, value in e.settings.items()}
    if e.memory is not None:
        values |= {
            "memory_after_load_bytes": e.memory.after_load_bytes,
            "memory_peak_bytes": e.memory.peak_bytes,
        }
    if e.cost is not None:
        values |= {"currency": e.cost.currency, "price_source": e.cost.source}
        values |= {f"cost_{name}": getattr(e.cost, name) for name in _COST}
    if e.quality is not None:
        values |= _quality(e.quality)
    figures = {name: number for name, number in e.figures.items() if name not in _SUMS}
    for name, number in figures.items():
        values |= {
            f"{name}.low": number.low,
            f"{name}.high": number.high,
            f"{name}.definition": number.definition,
        }
    out = {
        name: _text(value)
        for name, value in values.items()
        if value is not None and value != ""
    }
    return out | {name: _digits(number) for name, number in figures.items()}


def _quality(q: Quality) -> dict[str, Scalar | None]:
    score, change = q.score, q.change
    changes = (
        (None, None, None) if change is None else (change.value, change.low, change.high)
    )
    values = (
        score.value,
        score.low,
        score.high,
        q.items,
        q.reference,
        *changes,
        q.detectable,
        q.word,
    )
    return dict(zip(_QUALITY, values, strict=True))


def _text(value: Scalar) -> str:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if value == value // 1 and abs(value) < 1e15 else repr(value)


def _digits(number: Number) -> str:
    """Return an imported figure as it was printed; dyno's own in full."""
    return (
        f"{number.value:.{decimals(number.half)}f}"
        if number.half > 0
        else _text(number.value)
    )
