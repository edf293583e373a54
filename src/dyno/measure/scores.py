"""Scores of several tasks together: the mean over all items."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

import msgspec

from dyno.facts.imported import Figure, Row, Samples, Scalar, Setting

# Settings of a single task.
_OF_A_TASK = ("task", "metric", "filter", "task_version", "samples", "chance", "n_shot")


def items_of(row: Row) -> dict[str, float]:
    return row.samples.scores if row.samples is not None else {}


def with_total(rows: Sequence[Row]) -> list[Row]:
    """Put a row of all tasks before the rows of one test, where it has several tasks and knows their items."""
    tasks = list(_tasks(rows))
    if len(tasks) < 2 or any(row.setting("group") and items_of(row) for row in rows):
        return list(rows)
    first = tasks[0]
    scores = {f"{row.setting('task')}/{item}": score for row in tasks for item, score in items_of(row).items()}
    figures = {"score": fmean(scores.values()), "stderr": stdev(scores.values()) / math.sqrt(len(scores))}
    for name in ("completed", "failed"):
        if all(name in row.figures for row in tasks):
            figures[name] = sum(row.figures[name].value for row in tasks)
    shared = {n: s for n, s in first.settings.items() if n not in _OF_A_TASK}
    named: dict[str, Scalar] = {"task": f"all {len(tasks)} tasks", "samples": len(scores), "group": True}
    for name in ("metric", "filter", "n_shot"):
        if len(values := {row.setting(name) for row in tasks}) == 1 and (value := values.pop()) is not None:
            named[name] = value
    total = msgspec.structs.replace(
        first,
        figures={name: Figure(value, first.line) for name, value in figures.items()},
        settings=shared | {name: Setting(value, first.line) for name, value in named.items()},
        samples=Samples(scores=scores),
        answers={f"{row.setting('task')}/{item}": answer for row in tasks for item, answer in row.answers.items()},
        label=first.label if first.form == "run" else str(named["task"]),
        prompts_sha256=None,
    )
    return [total, *rows]


def _tasks(rows: Sequence[Row]) -> Iterator[Row]:
    """Of each task the first metric from 0 to 1 whose items are known."""
    seen = set()
    for row in rows:
        task, scores = row.setting("task"), items_of(row)
        if scores and task not in seen and not row.setting("group") and all(0 <= s <= 1 for s in scores.values()):
            seen.add(task)
            yield row
