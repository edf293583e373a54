"""Scores of tasks."""

from collections.abc import Iterator, Sequence

from dyno.facts.chart import Chart
from dyno.facts.entry import Entry
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
    short,
    shown,
    tips,
)
from dyno.report.charts.workloads import load_words
from dyno.report.look import Look


def quality(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    rows: list[Row] = []
    metrics: dict[str, int] = {}
    for entry in entries:
        score = entry.figures.get("score")
        if entry.kind != "quality" or (score is None and not entry.failure):
            continue
        # Accuracies and perplexities don't share an axis.
        metric = ", ".join(str(entry.load[k]) for k in ("metric", "filter") if k in entry.load) or "score"
        rest = [(k, v) for k, v in entry.load.items() if k not in ("metric", "filter")]
        row = (entry_row(entry) if score else failed_row(entry)) | {
            "metric": metrics.setdefault(metric, len(metrics)),
            "task": load_words(rest),
            "y": shown(score) if score else 0,
        }
        error = entry.value("stderr")
        if score is None:
            pass
        elif score.low is not None and score.high is not None:
            row |= {"low": short(score.low), "high": short(score.high), "by": "95 % interval"}
        elif error is not None:
            row |= {"low": short(score.value - error), "high": short(score.value + error), "by": "± standard error"}
        rows.append(row)
    if all("why" in row for row in rows):
        return
    kinds = [row["metric"] for row in rows]
    metric_select = Select(
        "metric", "Metric", {i: text for text, i in metrics.items()}, max(sorted(set(kinds)), key=kinds.count)
    )
    most = max(kinds.count(i) for i in set(kinds))
    how = " and ".join(sorted({row["by"] for row in rows if "by" in row}))
    yield finish(
        bars(rows, look, title="Score", tooltip=tips(("task", "Task"), ("told", "Score")), of="task"),
        rows,
        name="quality",
        group="Accuracy",
        title="Scores",
        about=f"Lines on the bars: {how}." if how else "How sure they are isn't told.",
        subtitle=[metric_select.told],
        selects=[metric_select],
        height=height(most),
        transform=[
            *drawn(metric_select),
            TOGGLED,
            REQUESTS,
            let("text", "format(datum.y, ',.4~r')"),
            let(
                "told",
                "isValid(datum.why) ? datum.why : format(datum.y, ',')"
                " + (isValid(datum.low) ? ' (' + format(datum.low, ',.4~r') + ' to ' + "
                "format(datum.high, ',.4~r') + ', ' + datum.by + ')' : '')",
            ),
        ],
    )
