"""Several results side by side, in the terminal. No speed without its failures and its verdict."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dyno.facts.finding import Finding, worst_first
from dyno.facts.summary import Distribution, Result

STYLE = {"sound": "green", "doubtful": "yellow", "void": "red"}


def comparison(labels: Sequence[str], rows: Sequence[tuple[Sequence[str], Result]], console: Console) -> None:
    table = Table(header_style="bold", pad_edge=False, box=None, padding=(0, 1, 0, 0))
    for label in labels:
        table.add_column(label, no_wrap=True)
    for title in ("done", "failed", "req/s", "tok/s", "TTFT p50", "TTFT p90", "TPOT p50"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict")
    for names, result in rows:
        s = result.summary
        table.add_row(
            *names,
            str(s.completed),
            f"[red]{s.failed}[/]" if s.failed else "0",
            f"{s.request_throughput:.2f}",
            f"{s.output_throughput:.1f}",
            _median(s.ttft),
            _p90(s.ttft),
            _median(s.tpot),
            f"[{STYLE[result.verdict]}]{result.verdict}[/]",
        )
    console.print(table)
    console.print("tok/s: output tokens, over the whole run. Latencies in ms, from sending.", style="dim")
    findings([result for _, result in rows], console)


def _median(d: Distribution) -> str:
    return "-" if d.empty else f"{d.median:.1f}"


def _p90(d: Distribution) -> str:
    return "-" if d.empty or "90" not in d.percentiles else f"{d.percentiles['90']:.1f}"


def findings(results: Sequence[Result], console: Console) -> None:
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
