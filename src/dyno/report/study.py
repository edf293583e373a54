"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, Literal

import msgspec

from dyno.checks.statistics import unlike_repeats
from dyno.facts.finding import Finding, verdict, worst_first
from dyno.facts.spread import Distribution, Spread
from dyno.facts.study import PARTS, PlannedTrial, short
from dyno.facts.summary import Result
from dyno.measure.estimate import half_interval
from dyno.numbers import UNKNOWN, count, deviating, number, percent
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
    """One kind: what serving reports and what an offline benchmark reports are not columns of one table."""
    titles = columns(planned)
    rows = _rows([p for p in planned if p.place.id in results], titles, results)
    groups = [row.results for row in rows]
    figures, about = _OFFLINE[kind] if kind in _OFFLINE else _serving([r for group in groups for r in group])
    drawn = [(title, [*map(value, groups)]) for title, value in figures]
    # A figure that no trial has, such as drafted tokens without a draft, has no column.
    drawn = [(title, cells) for title, cells in drawn if kind == "serve" or {*cells} != {UNKNOWN}]
    if repeats := max(map(len, groups)) > 1:
        drawn.insert(0, ("n", [str(len(group)) for group in groups]))
    drawn.append(("verdict", [verdict([*row.findings, *(f for r in row.results for f in r.findings)]) for row in rows]))
    names = [_SHORT.get(word, word) for title in titles if (word := title.rpartition(".")[2])]
    body = [[*row.cells, *(cells[i] for _, cells in drawn)] for i, row in enumerate(rows)]
    right = range(len(names), len(names) + len(drawn) - 1)
    yield from terminal(text_table([*names, *(title for title, _ in drawn)], body, right))
    how = "95 % confidence interval" if kind == "serve" else "standard deviation"
    yield f"{about}{f' Over n repeats: totals of done and failed, means of the rest, ± {how}.' if repeats else ''}"
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
        speeds = [r.offline.speed if r.offline else r.served.output_throughput for r in row.results]
        row.findings.extend(unlike_repeats(", ".join(row.cells), [s for s in speeds if s is not None]))
    return list(rows.values())


# A column: its title, in two lines so that the whole fits a terminal, and its text for the repeats of one trial.
_Figure = tuple[str, Callable[[Sequence[Result]], str]]
_Columns = tuple[list[_Figure], str]  # the figures of one kind of benchmark, and a line about them


def _serving(results: Sequence[Result]) -> _Columns:
    tail = _tail(results)
    figures: list[_Figure] = [
        ("done", lambda repeats: count(sum(r.served.completed for r in repeats))),
        ("failed", lambda repeats: count(sum(r.served.failed for r in repeats))),
        ("req/s", lambda repeats: number(mean(r.served.request_throughput for r in repeats))),
        ("tok/s", _output_speed),
        ("TTFT\np50", _latency("ttft")),
        *([(f"TTFT\np{tail}", _latency("ttft", tail))] if tail else []),
        ("TPOT\np50", _latency("tpot")),
    ]
    return figures, "tok/s: output tokens, over the whole run. Latencies in ms, from sending."


def _output_speed(repeats: Sequence[Result]) -> str:
    speeds = [r.served.output_throughput for r in repeats]
    return deviating(mean(speeds), half_interval(speeds))


def _latency(stem: str, percentile: str | None = None) -> Callable[[Sequence[Result]], str]:
    def show(repeats: Sequence[Result]) -> str:
        """Unknown, too, where a busy client doesn't know it of one of them: the others may be the quick ones."""
        latencies = [d for r in repeats if not (d := getattr(r.served, stem)).empty]
        if percentile is None:
            values = [d.median for d in latencies]
        else:
            values = [d.percentiles[percentile] for d in latencies if percentile in d.percentiles]
        known = [v for v in values if v is not None]
        return deviating(mean(known), half_interval(known)) if known and None not in values else UNKNOWN

    return show


def _sum(name: str) -> Callable[[Sequence[Result]], str]:
    return lambda results: count(sum(getattr(r.offline, name) for r in results if r.offline))


def _spread(name: str) -> Callable[[Sequence[Result]], str]:
    def show(results: Sequence[Result]) -> str:
        """The mean; the deviation over the repeats, or over the iterations of a single one."""
        each: list[Spread | Distribution] = [s for r in results if r.offline and (s := getattr(r.offline, name))]
        if not each:
            return UNKNOWN
        deviation = each[0].std if len(each) == 1 else stdev(s.mean for s in each)
        shown = len(each) > 1 or each[0].count > 1
        return deviating(mean(s.mean for s in each), deviation if shown else None)

    return show


def _percent(values: Iterable[float]) -> str:
    known = list(values)
    return percent(mean(known)) if known else UNKNOWN


def _accepted(results: Sequence[Result]) -> str:
    return _percent(r.offline.speculation.acceptance for r in results if r.offline and r.offline.speculation)


def _peak(what: str, resource: Literal["bandwidth", "arithmetic"]) -> Callable[[Sequence[Result]], str]:
    def show(results: Sequence[Result]) -> str:
        """Its share of the machine's peak; the mean of the repeats."""
        shares = (s for r in results if r.roofline for s in r.roofline.shares if s.what == what)
        return _percent(share for s in shares if (share := getattr(s, resource)))

    return show


_OFFLINE: dict[str, _Columns] = {
    "throughput": (
        [("done", _sum("completed")), ("failed", _sum("failed")), ("req/s", _spread("request_throughput")),
         ("output\ntok/s", _spread("output_throughput")), ("total\ntok/s", _spread("total_token_throughput")),
         ("drafts\ntaken", _accepted), ("of\nFLOPS", _peak("whole", "arithmetic"))],
        "Everything handed over at once. total: prompts and outputs. of FLOPS: share of the machine's peak arithmetic.",
    ),
    "latency": (
        [("iterations", _sum("iterations")), ("batch\nms", _spread("latency")), ("prefill\nms", _spread("prefill_ms")),
         ("TPOT", _spread("tpot_ms")), ("output\ntok/s", _spread("output_throughput")), ("drafts\ntaken", _accepted),
         ("of\nBW", _peak("decode", "bandwidth"))],
        "One batch, again and again. prefill, TPOT: of a request. of BW: of the memory's bandwidth, while it decodes.",
    ),
    "micro": (
        [("tests", _sum("iterations")), ("pp\ntok/s", _spread("prefill_speed")),
         ("tg\ntok/s", _spread("decode_speed")), ("pp of\nFLOPS", _peak("prefill", "arithmetic")),
         ("tg of\nBW", _peak("decode", "bandwidth"))],
        "One request alone: prompt processing and token generation, and their shares of the machine's peaks.",
    ),
}  # fmt: skip


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
    return [UNKNOWN if v is None else v if t in _NAMES else short(v) for t, v in zip(titles, values, strict=True)]


def _tail(results: Sequence[Result]) -> str | None:
    """The highest percentile that all of them have, above the median."""
    had = [{*r.served.ttft.percentiles} for r in results if not r.served.ttft.empty]
    common = set.intersection(*had) if had else set()
    return max((p for p in common if float(p) > 50), key=float, default=None)


def _findings(results: Sequence[Result]) -> Iterator[str]:
    """Each code once, with how many trials it is about: the same note six times over would hide the one doubt."""
    first: dict[str, Finding] = {}
    times: dict[str, int] = {}
    for result in results:
        for finding in result.findings:
            first.setdefault(finding.code, finding)
            times[finding.code] = times.get(finding.code, 0) + 1
    for finding in worst_first(first.values()):
        trials = f"{times[finding.code]} of {len(results)} trials"
        yield f"{finding.level} {finding.code} ({trials}), first: {finding.text}"
