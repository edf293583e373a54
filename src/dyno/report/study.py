"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from dyno.facts.finding import Finding, worst_first
from dyno.facts.study import Place, short
from dyno.facts.summary import Distribution, Result
from dyno.report.columns import aligned

_VERDICTS = ("sound", "doubtful", "void")
_NAMES = ("rig", "engine", "workload", "load")
_SHORT = {
    "max_concurrency": "streams", "request_rate_rps": "offered/s", "quantization": "weights", "input_len": "input",
    "output_len": "output", "tensor_parallel": "TP", "max_num_seqs": "slots",
}  # fmt: skip
# The latencies' titles in two lines: the whole fits a terminal.
_NUMBERS = (
    ("", "done"),
    ("", "failed"),
    ("", "req/s"),
    ("", "tok/s"),
    ("TTFT", "p50"),
    ("TTFT", "p99"),
    ("TPOT", "p50"),
)


def lines(done: Sequence[tuple[Place, Result]]) -> Iterator[str]:
    if not done:
        return
    titles = columns([place for place, _ in done])
    rows: dict[tuple[str, ...], list[Result]] = {}
    for place, result in done:
        rows.setdefault(tuple(_cell(place, title) for title in titles), []).append(result)
    repeats = max(len(row) for row in rows.values()) > 1
    numbers = [("", "n"), *_NUMBERS] if repeats else list(_NUMBERS)
    names = [("", _SHORT.get(key, key)) for title in titles if (key := title.rpartition(".")[2])]
    heads = [[head[i] for head in (*names, *numbers, ("", "verdict"))] for i in (0, 1)]
    body = [[*cells, *([str(len(results))] if repeats else []), *_row(results)] for cells, results in rows.items()]
    yield from aligned([*heads, *body], right=range(len(names), len(names) + len(numbers)))
    spread = " Of n repeats: sums of done and failed, means of the others, ± standard deviation." if repeats else ""
    yield f"tok/s: output tokens, over the whole run. Latencies in ms, from sending.{spread}"
    yield from _findings([result for _, result in done])


def _row(results: list[Result]) -> list[str]:
    of = [r.summary for r in results]
    speeds = [s.output_throughput for s in of]
    apart = f" ±{stdev(speeds):.1f}" if len(speeds) > 1 else ""
    return [
        str(sum(s.completed for s in of)),
        str(sum(s.failed for s in of)),
        f"{mean(s.request_throughput for s in of):.2f}",
        f"{mean(speeds):.1f}{apart}",
        _latency([s.ttft for s in of], None),
        _latency([s.ttft for s in of], "99"),
        _latency([s.tpot for s in of], None),
        max((r.verdict for r in results), key=_VERDICTS.index),
    ]


def columns(places: Sequence[Place]) -> list[str]:
    """What tells these trials apart: names, then settings. Of one trial alone, its engine."""
    titles = [name for name in _NAMES if len({getattr(p, name) for p in places}) > 1]
    keys = dict.fromkeys(key for p in places for key in p.settings)
    titles += [key for key in keys if len({_cell(p, key) for p in places}) > 1]
    return sorted(titles or ["engine"], key=lambda title: _NAMES.index(title.partition(".")[0]))


def _cell(place: Place, title: str) -> str:
    if title in _NAMES:
        return str(getattr(place, title) or "")
    return short(place.settings[title]) if title in place.settings else "-"


def _latency(distributions: list[Distribution], percentile: str | None) -> str:
    values = [
        d.median if percentile is None else d.percentiles[percentile]
        for d in distributions
        if not d.empty and (percentile is None or percentile in d.percentiles)
    ]
    return f"{mean(values):.1f}" if values else "-"


def _findings(results: Sequence[Result]) -> Iterator[str]:
    """Each code once, with how many rows it is about: the same note six times over would hide the one doubt."""
    first: dict[str, Finding] = {}
    count: dict[str, int] = {}
    for result in results:
        for finding in result.findings:
            first.setdefault(finding.code, finding)
            count[finding.code] = count.get(finding.code, 0) + 1
    for finding in worst_first(first.values()):
        of = f"{count[finding.code]} of {len(results)} trials"
        yield f"{finding.level} {finding.code} ({of}), first: {finding.text}"
