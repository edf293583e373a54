"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections.abc import Sequence
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

from dyno.facts.finding import Finding, worst_first
from dyno.facts.study import Place, short
from dyno.facts.summary import Distribution, Result

_VERDICTS = ("sound", "doubtful", "void")
_STYLE = {"sound": "green", "doubtful": "yellow", "void": "red"}
_SHORT = {
    "max_concurrency": "streams", "request_rate_rps": "offered/s", "quantization": "weights", "input_len": "input",
    "output_len": "output", "tensor_parallel": "TP", "max_num_seqs": "slots",
}  # fmt: skip
_LATENCIES = ("TTFT\np50", "TTFT\np99", "TPOT\np50")  # narrow: the whole fits a terminal
_NAMES = ("rig", "engine", "workload", "load")


def table(done: Sequence[tuple[Place, Result]], console: Console) -> None:
    if not done:
        return
    titles = columns([place for place, _ in done])
    rows: dict[tuple[str, ...], list[Result]] = {}
    for place, result in done:
        rows.setdefault(tuple(_cell(place, title) for title in titles), []).append(result)
    out = Table(header_style="bold", pad_edge=False, box=None, padding=(0, 1, 0, 0))
    for title in titles:
        key = title.rpartition(".")[2]
        out.add_column(_SHORT.get(key, key), overflow="fold", min_width=min(len(_SHORT.get(key, key)), 12))
    repeats = max(len(row) for row in rows.values()) > 1
    for title in (*(["n"] if repeats else []), "done", "failed", "req/s", "tok/s", *_LATENCIES):
        out.add_column(title, justify="right", no_wrap=True)
    out.add_column("verdict")
    for names, results in rows.items():
        failed = sum(r.summary.failed for r in results)
        verdict = max((r.verdict for r in results), key=_VERDICTS.index)
        out.add_row(
            *names,
            *([str(len(results))] if repeats else []),
            str(sum(r.summary.completed for r in results)),
            f"[red]{failed}[/]" if failed else "0",
            f"{mean(r.summary.request_throughput for r in results):.2f}",
            _spread([r.summary.output_throughput for r in results], 1),
            _latency([r.summary.ttft for r in results], None),
            _latency([r.summary.ttft for r in results], "99"),
            _latency([r.summary.tpot for r in results], None),
            f"[{_STYLE[verdict]}]{verdict}[/]",
        )
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a file has room
    console.print(out)
    console.print(
        "tok/s: output tokens, over the whole run. Latencies in ms, from sending."
        + (
            " Of n repeats: sums of done and failed, mean of the others, ± standard deviation of tok/s."
            if repeats
            else ""
        ),
        style="dim",
    )
    _findings([result for _, result in done], console)


def columns(places: Sequence[Place]) -> list[str]:
    """What tells these trials apart: names, then settings. Of one trial alone, its engine."""
    titles = [name for name in _NAMES if len({getattr(p, name) for p in places}) > 1]
    keys = dict.fromkeys(key for p in places for key in p.settings)
    titles += [key for key in keys if len({_cell(p, key) for p in places}) > 1]
    return sorted(titles or ["engine"], key=lambda t: [*_NAMES, ""].index(t.partition(".")[0]))


def _cell(place: Place, title: str) -> str:
    if title in _NAMES:
        return str(getattr(place, title) or "")
    return short(place.settings[title]) if title in place.settings else "-"


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


def _findings(results: Sequence[Result], console: Console) -> None:
    """Each code once, with how many rows it is about: the same note six times over would hide the one doubt."""
    first: dict[str, Finding] = {}
    count: dict[str, int] = {}
    for result in results:
        for finding in result.findings:
            first.setdefault(finding.code, finding)
            count[finding.code] = count.get(finding.code, 0) + 1
    for finding in worst_first(first.values()):
        rows = f"{count[finding.code]} of {len(results)} rows"
        console.print(f"{finding.level} {finding.code} ({rows}), first: {finding.text}", markup=False, highlight=False)
