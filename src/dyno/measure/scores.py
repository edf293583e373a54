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
    return [_total(tasks), *rows]


def _total(tasks: Sequence[Row]) -> Row:
    first = tasks[0]
    scores = {
        f"{row.setting('task')}/{item}": score
        for row in tasks
        for item, score in items_of(row).items()
    }
    answers = {
        f"{row.setting('task')}/{item}": answer
        for row in tasks
        for item, answer in row.answers.items()
    }
    named: dict[str, Scalar] = {
        "task": f"all {len(tasks)} tasks",
        "samples": len(scores),
        "group": True,
    }
    named |= _common(tasks, ("metric", "filter", "n_shot"))
    shared = {n: s for n, s in first.settings.items() if n not in _OF_A_TASK}
    figures = {
        "score": fmean(scores.values()),
        "stderr": stdev(scores.values()) / math.sqrt(len(scores)),
    }
    figures |= _sums(tasks, ("completed", "failed"))
    return msgspec.structs.replace(
        first,
        figures={name: Figure(value, first.line) for name, value in figures.items()},
        settings=shared
        | {name: Setting(value, first.line) for name, value in named.items()},
        samples=Samples(scores=scores),
        answers=answers,
        label=first.label if first.form == "run" else str(named["task"]),
        prompts_sha256=None,
    )


def _common(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Scalar]:
    """Return the settings that all rows have alike."""
    common = {}
    for name in names:
        values = {row.setting(name) for row in rows}
        value = values.pop()
        if not values and value is not None:
            common[name] = value
    return common


def _sums(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """Return the sums of those figures that all rows have."""
    sums = {}
    for name in names:
        if all(name in row.figures for row in rows):
            sums[name] = sum(row.figures[name].value for row in rows)
    return sums


def _tasks(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the first metric from 0 to 1 of each task, if its items are known."""
    seen = set()
    for row in rows:
        task, scores = row.setting("task"), items_of(row)
        if not scores or task in seen or row.setting("group"):
            continue
        if all(0 <= s <= 1 for s in scores.values()):
            seen.add(task)
            yield row
