"""What repeats of a load say together: the mean of each figure, and how far it may be off."""

from collections.abc import Iterable, Iterator

from dyno.facts.imported import Row
from dyno.facts.load import LEVELS
from dyno.measure.estimate import estimates
from dyno.measure.points import load_of
from dyno.measure.statistics import quantile
from dyno.numbers import number
from dyno.report.table import terminal, text_table
from dyno.store.rows import read_row
from dyno.store.run import Run

_FIGURES = {
    "request_throughput": "req/s",
    "output_throughput": "output tok/s",
    "median_ttft_ms": "TTFT p50 (ms)",
    "p99_ttft_ms": "TTFT p99 (ms)",
    "median_tpot_ms": "TPOT p50 (ms)",
    "median_e2el_ms": "E2EL p50 (ms)",
}


def lines(runs: Iterable[Run]) -> Iterator[str]:
    """Describe each load that was measured more than once; nothing where none was."""
    groups: dict[str, list[Row]] = {}
    for run in runs:
        row = read_row(run, samples=False)
        groups.setdefault(load_of(row).only(LEVELS).words or "all at once", []).append(row)
    table = [
        [load, _FIGURES[name], number(e.value), f"{number(e.value - half)} to {number(e.value + half)}"]
        for load, rows in groups.items()
        if len(rows) > 1
        for name, e in estimates(rows, list(_FIGURES)).items()
        if (half := e.value * (e.error or 0.0) * quantile(0.975, e.df)) > 0
    ]
    if table:
        yield ""
        yield from terminal(text_table(["load", "figure", "mean", "95 % interval"], table, (2, 3)))
        yield f"Means over {max(map(len, groups.values()))} repeats, with 95 % confidence intervals of the mean."
