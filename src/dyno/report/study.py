"""A study's results in one table. Repeats are one row: their mean, and how far they lie apart."""

from collections.abc import Sequence
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

from dyno.facts.study import PlannedTrial
from dyno.facts.summary import Distribution, Result
from dyno.report.table import STYLE, findings

_VERDICTS = ("sound", "doubtful", "void")


def table(done: Sequence[tuple[PlannedTrial, Result]], console: Console) -> None:
    rows: dict[tuple[str, str | None], list[tuple[PlannedTrial, Result]]] = {}
    for planned, result in done:
        rows.setdefault((planned.place.label, planned.place.rig), []).append((planned, result))
    if not rows:
        return
    out = Table(header_style="bold", pad_edge=False, box=None, padding=(0, 1, 0, 0))
    out.add_column("trial", overflow="fold")
    repeats = max(len(row) for row in rows.values()) > 1
    for title in (*(["n"] if repeats else []), "done", "failed", "req/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50"):
        out.add_column(title, justify="right", no_wrap=True)
    out.add_column("verdict")
    for (label, rig), row in rows.items():
        results = [result for _, result in row]
        failed = sum(r.summary.failed for r in results)
        verdict = max((r.verdict for r in results), key=_VERDICTS.index)
        out.add_row(
            f"{label} ({rig})" if rig else label,
            *([str(len(row))] if repeats else []),
            str(sum(r.summary.completed for r in results)),
            f"[red]{failed}[/]" if failed else "0",
            _spread([r.summary.request_throughput for r in results], 2),
            _spread([r.summary.output_throughput for r in results], 1),
            _latency([r.summary.ttft for r in results], None),
            _latency([r.summary.ttft for r in results], "99"),
            _latency([r.summary.tpot for r in results], None),
            f"[{STYLE[verdict]}]{verdict}[/]",
        )
    console.width = max(console.width, 140)
    console.print(out)
    console.print(
        "tok/s: output tokens, over the whole run. Latencies in ms, from sending."
        + (" Of repeats: mean ± standard deviation." if repeats else ""),
        style="dim",
    )
    findings([result for _, result in done], console)


def _spread(values: list[float], digits: int) -> str:
    apart = f" ±{stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{apart}"


def _latency(distributions: list[Distribution], percentile: str | None) -> str:
    values = [
        d.median if percentile is None else d.percentiles[percentile]
        for d in distributions
        if not d.empty and (percentile is None or percentile in d.percentiles)
    ]
    return f"{mean(values):.1f}" if values else "-"
