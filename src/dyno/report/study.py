"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dyno.facts.finding import Finding, verdict, worst_first
from dyno.facts.offline import OfflineSummary
from dyno.facts.spread import Spread
from dyno.facts.study import PARTS, PlannedTrial, short
from dyno.facts.summary import Result
from dyno.measure.repeats import acceptance, differing, offline_spread, share, together
from dyno.report.table import terminal, text_table

_NAMES = ("rig", *PARTS)
_SHORT = {
    "max_concurrency": "streams", "request_rate_rps": "offered/s", "quantization": "weights", "input_len": "input",
    "output_len": "output", "tensor_parallel": "TP", "max_num_seqs": "slots",
}  # fmt: skip


class _Row(msgspec.Struct):
    cells: list[str]
    results: list[Result]
    findings: list[Finding]  # of the repeats together


def lines(planned: Sequence[PlannedTrial], results: Mapping[str, Result]) -> Iterator[str]:
    """Of the trials that have a result; the others decide with them which columns there are."""
    kinds = dict.fromkeys(p.trial.kind for p in planned if p.place.id in results)
    for i, kind in enumerate(kinds):
        if i:
            yield ""
        yield from _table(kind, [p for p in planned if p.trial.kind == kind], results)
    yield from _findings([results[p.place.id] for p in planned if p.place.id in results])


def _table(kind: str, planned: Sequence[PlannedTrial], results: Mapping[str, Result]) -> Iterator[str]:
    """Of one kind: what serving tells and what an offline benchmark tells are no columns of one table."""
    titles = columns(planned)
    rows = _rows([p for p in planned if p.place.id in results], titles, results)
    figures_of = _OFFLINE[kind] if kind in _OFFLINE else _serving([r for row in rows for r in row.results])
    figures = [figures_of.cells(row.results) for row in rows]
    # A figure that no trial has, such as drafted tokens without a draft, is no column.
    has = [i for i in range(len(figures_of.heads)) if kind == "serve" or any(cells[i] != "-" for cells in figures)]
    repeats = max(len(row.results) for row in rows) > 1
    names = [("", _SHORT.get(word, word)) for title in titles if (word := title.rpartition(".")[2])]
    heads = [*([("", "n")] if repeats else []), *(figures_of.heads[i] for i in has)]
    titles = ["\n".join(head) for head in (*names, *heads, ("", "verdict"))]
    body = [
        [
            *row.cells,
            *([str(len(row.results))] if repeats else []),
            *(cells[i] for i in has),
            verdict([*row.findings, *(f for r in row.results for f in r.findings)]),
        ]
        for row, cells in zip(rows, figures, strict=True)
    ]
    yield from terminal(text_table(titles, body, right=range(len(names), len(names) + len(heads))))
    spread = " Of n repeats: sums of done and failed, means of the others, ± standard deviation." if repeats else ""
    yield f"{figures_of.about}{spread}"
    yield from (f"{f.level} {f.code}: {f.text}" for row in rows for f in row.findings)


def _rows(done: Sequence[PlannedTrial], titles: Sequence[str], results: Mapping[str, Result]) -> list[_Row]:
    """Repeats are one."""
    rows: dict[tuple[str, ...], _Row] = {}
    for p in done:
        row = rows.setdefault(tuple(_whole(p, title) for title in titles), _Row(_cells(p, titles), [], []))
        row.results.append(results[p.place.id])
    for i in range(len(titles)):  # a path by its last part, where that is enough to tell it from others
        shown = {key[i]: row.cells[i] for key, row in rows.items()}
        if len(set(shown.values())) < len(shown):
            for key, row in rows.items():
                row.cells[i] = key[i]
    for row in rows.values():
        row.findings.extend(differing(", ".join(row.cells), row.results))
    return list(rows.values())


class _Columns(NamedTuple):
    """The figures of one kind of benchmark."""

    heads: list[tuple[str, str]]  # in two lines: the whole fits a terminal
    cells: Callable[[Sequence[Result]], list[str]]  # of the repeats of one trial
    about: str


def _serving(results: Sequence[Result]) -> _Columns:
    tail = _tail(results)

    def cells(repeats: Sequence[Result]) -> list[str]:
        mean = together(repeats, tail)
        deviation = "" if mean.output_apart is None else f" ±{mean.output_apart:.1f}"
        return [
            str(mean.completed),
            str(mean.failed),
            f"{mean.request_throughput:.2f}",
            f"{mean.output_throughput:.1f}{deviation}",
            _ms(mean.ttft_median_ms),
            *([_ms(mean.ttft_tail_ms)] if tail else []),
            _ms(mean.tpot_median_ms),
        ]

    heads = [("", t) for t in ("done", "failed", "req/s", "tok/s")]
    heads += [("TTFT", "p50"), *([("TTFT", f"p{tail}")] if tail else []), ("TPOT", "p50")]
    return _Columns(heads, cells, "tok/s: output tokens, over the whole run. Latencies in ms, from sending.")


def _spread(results: Sequence[Result], value: Callable[[OfflineSummary], Spread | None], digits: int = 1) -> str:
    spread = offline_spread(results, value)
    if spread is None:
        return "-"
    return f"{spread.mean:,.{digits}f}" + (f" ±{spread.std:,.{digits}f}" if spread.count > 1 else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _latency(o: OfflineSummary) -> Spread:
    return Spread(o.latency.count, o.latency.mean, o.latency.std)


def _throughput_cells(results: Sequence[Result]) -> list[str]:
    summaries = [r.offline for r in results if r.offline]
    return [
        str(sum(o.completed for o in summaries)),
        str(sum(o.failed for o in summaries)),
        _spread(results, lambda o: o.request_throughput, 2),
        _spread(results, lambda o: o.output_throughput),
        _spread(results, lambda o: o.total_token_throughput),
        _percent(acceptance(results)),
        _percent(share(results, "whole", "arithmetic")),
    ]


def _latency_cells(results: Sequence[Result]) -> list[str]:
    return [
        str(sum(r.offline.iterations for r in results if r.offline)),
        _spread(results, _latency),
        _spread(results, lambda o: o.prefill_ms),
        _spread(results, lambda o: o.tpot_ms, 2),
        _spread(results, lambda o: o.output_throughput),
        _percent(acceptance(results)),
        _percent(share(results, "decode", "bandwidth")),
    ]


def _micro_cells(results: Sequence[Result]) -> list[str]:
    return [
        str(sum(r.offline.iterations for r in results if r.offline)),
        _spread(results, lambda o: o.prefill_speed, 2),
        _spread(results, lambda o: o.decode_speed, 2),
        _percent(share(results, "prefill", "arithmetic")),
        _percent(share(results, "decode", "bandwidth")),
    ]


_OFFLINE = {
    "throughput": _Columns(
        [("", "done"), ("", "failed"), ("", "req/s"), ("output", "tok/s"), ("total", "tok/s"), ("drafts", "taken"),
         ("of", "FLOPS")],
        _throughput_cells,
        "Everything handed over at once. total: prompts and outputs. of FLOPS: share of the machine's peak arithmetic.",
    ),
    "latency": _Columns(
        [("", "iterations"), ("batch", "ms"), ("prefill", "ms"), ("", "TPOT"), ("output", "tok/s"), ("drafts", "taken"),
         ("of", "BW")],
        _latency_cells,
        "One batch, again and again. prefill, TPOT: of a request. of BW: of the memory's bandwidth, while it decodes.",
    ),
    "micro": _Columns(
        [("", "tests"), ("pp", "tok/s"), ("tg", "tok/s"), ("pp of", "FLOPS"), ("tg of", "BW")],
        _micro_cells,
        "One request alone: prompt processing and token generation, and their shares of the machine's peaks.",
    ),
}  # fmt: skip


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def columns(planned: Sequence[PlannedTrial]) -> list[str]:
    """What tells these trials apart: names, then settings. Of one trial alone, its engine."""
    titles = [name for name in _NAMES if len({getattr(p.place, name) for p in planned}) > 1]
    keys = dict.fromkeys(key for p in planned for key in p.place.settings)
    titles += [key for key in keys if len({_whole(p, key) for p in planned}) > 1]
    return sorted(titles or ["engine"], key=lambda title: [*_NAMES, "trial"].index(title.partition(".")[0]))


def _value(planned: PlannedTrial, title: str) -> Any:
    place = planned.place
    if title in _NAMES:
        return getattr(place, title) or ""
    if title in place.settings:
        return place.settings[title]
    part, _, key = title.partition(".")  # one that doesn't vary here, and does elsewhere
    return getattr(planned.trial if part == "trial" else getattr(planned.trial, part), key, None)


def _whole(planned: PlannedTrial, title: str) -> str:
    value = _value(planned, title)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cells(planned: PlannedTrial, titles: Sequence[str]) -> list[str]:
    values = [_value(planned, title) for title in titles]
    return ["-" if v is None else v if t in _NAMES else short(v) for t, v in zip(titles, values, strict=True)]


def _tail(results: Sequence[Result]) -> str | None:
    """The highest percentile that all of them have, above the median."""
    had = [{*r.served.ttft.percentiles} for r in results if not r.served.ttft.empty]
    common = set.intersection(*had) if had else set()
    return max((p for p in common if float(p) > 50), key=float, default=None)


def _findings(results: Sequence[Result]) -> Iterator[str]:
    """Each code once, with how many trials it is about: the same note six times over would hide the one doubt."""
    first: dict[str, Finding] = {}
    count: dict[str, int] = {}
    for result in results:
        for finding in result.findings:
            first.setdefault(finding.code, finding)
            count[finding.code] = count.get(finding.code, 0) + 1
    for finding in worst_first(first.values()):
        trials = f"{count[finding.code]} of {len(results)} trials"
        yield f"{finding.level} {finding.code} ({trials}), first: {finding.text}"
