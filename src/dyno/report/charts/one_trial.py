"""The select of one trial, for charts that show one at a time."""

from collections.abc import Sequence

import altair as alt

from dyno.facts.entry import Entry
from dyno.report.charts.base import Select
from dyno.report.charts.workloads import load_words


def trials(entries: Sequence[Entry]) -> Select:
    """One at a time; at first that with most requests."""
    first = max(range(len(entries)), key=lambda i: (entries[i].completed or 0.0, -i))
    told = {i: e.label or f"{e.series}: {load_words(e.load.items())}" for i, e in enumerate(entries)}
    return Select("trial", "Trial", told, first)


def signs(entries: Sequence[Entry]) -> alt.VariableParameter:
    """What must be seen beside a trial's name."""
    told = []
    for e in entries:
        parts = [f"verdict: {e.verdict}"] if e.verdict != "sound" else []
        parts += [f"{e.failed:,.0f} requests failed"] if e.failed else []
        told.append(", ".join(parts) or "sound")
    return alt.VariableParameter(name="trial_signs", value=told)
