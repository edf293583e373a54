"""Speeds of micro tests: one request, prompt (pp) or tokens (tg)."""

from collections.abc import Iterator, Sequence

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry, Number
from dyno.report.charts.bars import bars, height
from dyno.report.charts.base import (
    REQUESTS,
    TOGGLED,
    Row,
    Select,
    drawn,
    entry_row,
    failed_row,
    finish,
    let,
    put,
    short,
    tips,
)
from dyno.report.charts.throughput import letters
from dyno.report.charts.workloads import load_words
from dyno.report.look import Look

KINDS = {"pp": "prompt processing (pp)", "tg": "token generation (tg)", "pg": "prompt and generation (pg)"}


def micro(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows: list[Row] = []
    for entry in entries:
        speed = entry.figures.get("speed")
        if entry.kind != "micro" or (speed is None and not entry.failure):
            continue
        kind = letters(str(entry.load.get("test", "")))
        row = (entry_row(entry) if speed else failed_row(entry)) | {
            "kind": kind if kind in KINDS else "other",
            "test": load_words(entry.load.items()),
        }
        put(row, "y", speed or Number(0.0))
        if "y_low" in row:
            row |= {"low": row.pop("y_low"), "high": row.pop("y_high")}
        elif speed is not None and speed.deviation:
            row |= {"low": short(speed.value - speed.deviation), "high": short(speed.value + speed.deviation)}
        rows.append(row)
    if all("why" in row for row in rows):
        return
    words = {k: w for k, w in {**KINDS, "other": "other"}.items() if any(row["kind"] == k for row in rows)}
    kind_select = Select("kind", "Tests", words, next(iter(words)))
    most = max(sum(row["kind"] == k for row in rows) for k in words)
    yield finish(
        bars(rows, look, title="Tokens/s", tooltip=tips(("test", "Test"), ("told", "Speed")), of="test"),
        rows,
        name="micro",
        group="Micro tests",
        title="Speed of single requests",
        about="In the engine's own process, one request at a time. Lines on bars are 95 % "
        "intervals, or the deviation (±) that somebody printed.",
        subtitle=[kind_select.told],
        selects=[kind_select],
        height=height(most),
        transform=[
            *drawn(kind_select),
            TOGGLED,
            REQUESTS,
            let("text", "format(datum.y, ',.4~r')"),
            let(
                "told",
                "isValid(datum.why) ? datum.why : format(datum.y, ',') + ' tokens/s'"
                " + (isValid(datum.low) ? ' (' + format(datum.low, ',.4~r') + "
                "' to ' + format(datum.high, ',.4~r') + ')' : '')",
            ),
        ],
    )
