"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

import msgspec

from dyno import checks
from dyno.facts.comparison import LEAST_VARIATION
from dyno.facts.entry import Number
from dyno.facts.finding import Finding, verdict, worst_first
from dyno.facts.spread import Distribution, Spread
from dyno.facts.study import PARTS, PlannedTrial, short
from dyno.facts.summary import Result
from dyno.measure.estimate import interval_of_repeats
from dyno.numbers import UNKNOWN, count, deviating, many, number, percent
from dyno.report import find, quality
from dyno.report.table import Cell, Column, Line, Table, figure_interval, terminal
from dyno.screen import styled, verdict_style, wrapped

_NAMES = ("rig", *PARTS)
_SHORT = {
    "max_concurrency": "concurrency", "request_rate_rps": "offered\nreq/s", "input_len": "input",
    "output_len": "output", "tensor_parallel": "TP", "max_num_seqs": "slots",
}  # fmt: skip


class _Row(msgspec.Struct):
    cells: list[str]
    results: list[Result]
    findings: list[Finding]  # of the repeats together


def lines(planned: Sequence[PlannedTrial], results: Mapping[str, Result]) -> Iterator[str]:
    """Return rows of trials with a result; the others also decide the columns."""
    kinds = dict.fromkeys(_kind(p) for p in planned if p.place.id in results)
    for i, kind in enumerate(kinds):
        if i:
            yield ""
        yield from _table(kind, [p for p in planned if _kind(p) == kind], results)
    yield from _findings([results[p.place.id] for p in planned if p.place.id in results])


def _kind(planned: PlannedTrial) -> str:
    return "find" if planned.trial.find else planned.trial.kind


def _table(kind: str, planned: Sequence[PlannedTrial], results: Mapping[str, Result]) -> Iterator[str]:
    """One kind: what serving reports and what an offline benchmark reports are not columns of one table."""
    titles = columns(planned)
    rows = _rows([p for p in planned if p.place.id in results], titles, results)
    groups = [row.results for row in rows]
    all_results = [r for group in groups for r in group]
    columns_of = {"quality": _quality, "find": _searches}.get(kind, _serving)
    figures, about = _OFFLINE.get(kind) or columns_of(all_results)
    verdicts = [verdict([*row.findings, *(f for r in row.results for f in r.findings)]) for row in rows]
    sessions = all(p.place.sessions for p in planned)
    shown = [_setting(title, [row.cells[i] for row in rows], sessions) for i, title in enumerate(titles)]
    cells = [[Cell(text) for text in row.cells] for row in rows]
    if repeats := max(map(len, groups)) > 1:
        figures = [_Figure("n", lambda results: len(results), count), *figures]
    for figure in figures:
        drawn = figure.cells(groups, verdicts)
        # A figure that no trial has, such as drafted tokens without a draft, has no column.
        if kind == "serve" or any(cell.value is not None for cell in drawn):
            shown.append(Column(figure.title, kind="figure", keep=figure.keep))
            cells = [[*row, cell] for row, cell in zip(cells, drawn, strict=True)]
    shown.append(Column("verdict", kind="verdict"))
    lines = [Line([*row, Cell(word)]) for row, word in zip(cells, verdicts, strict=True)]
    yield from terminal(Table(shown, lines), more="`dyno runs show STUDY --json`")
    how = f"95 % confidence interval ({LEAST_VARIATION})" if kind == "serve" else "standard deviation"
    spread = f" Over n repeats: totals of completed, failed and duration, means of the rest, with {how}."
    yield from wrapped(about + (spread if repeats else ""))
    if kind == "find":
        yield from _search_lines(rows)
    for finding in (f for row in rows for f in row.findings):
        yield from _finding(finding)


def _search_lines(rows: Sequence[_Row]) -> Iterator[str]:
    """Say of each search what its numbers leave out: why it ended early, and what limits the load."""
    for row in rows:
        for answer in (r.find for r in row.results if r.find):
            yield from wrapped(f"{', '.join(row.cells)}: {find.remark(answer)}", rest="  ")


def _setting(title: str, texts: Sequence[str], sessions: bool) -> Column:
    """Return the column of the settings that vary among the trials."""
    word = title.rpartition(".")[2]
    numeric = all(text.replace(",", "").replace(".", "").isdigit() for text in texts if text != UNKNOWN)
    title = _SHORT.get(word, word).replace("req/s", "sessions/s" if sessions else "req/s")
    return Column(title, kind="number" if numeric else "text", keep=True)


def _finding(f: Finding, trials: str = "") -> list[str]:
    first, *others = wrapped(f"{f.level} {f.code}{trials}: {f.text}", rest="  ")
    return [styled(f.level, verdict_style(f.level)) + first.removeprefix(f.level), *others]


def _rows(done: Sequence[PlannedTrial], titles: Sequence[str], results: Mapping[str, Result]) -> list[_Row]:
    """Repeats are one."""
    rows: dict[tuple[str, ...], _Row] = {}
    for p in done:
        row = rows.setdefault(tuple(_whole(p, title) for title in titles), _Row(_cells(p, titles), [], []))
        row.results.append(results[p.place.id])
    for i in range(len(titles)):  # a path by its last part, where that is unique
        shown = {key[i]: row.cells[i] for key, row in rows.items()}
        if len(set(shown.values())) < len(shown):
            for key, row in rows.items():
                row.cells[i] = key[i]
    for row in rows.values():
        speeds = [r.offline.speed if r.offline else r.served.output_throughput for r in row.results if not r.quality]
        row.findings.extend(checks.run(repeats=(", ".join(row.cells), [s for s in speeds if s is not None])))
    return list(rows.values())


# Of the repeats of one trial: a value, a mean with its standard deviation, or with its interval; None: unknown.
_Shown = float | tuple[float, float] | Number | None
_Value = Callable[[Sequence[Result]], _Shown]


class _Figure(NamedTuple):
    """A column."""

    title: str  # in two lines, so that the whole fits a terminal
    value: _Value
    show: Callable[[float], str] = number
    better: Literal["", "higher", "lower"] = ""
    keep: bool = False  # in a narrow terminal

    def _text(self, value: _Shown) -> str:
        if value is None:
            return UNKNOWN
        if isinstance(value, Number):
            return f"{self.show(value.value)} {figure_interval(value)}".rstrip()
        return deviating(*value) if isinstance(value, tuple) else self.show(value)

    def cells(self, groups: Sequence[Sequence[Result]], verdicts: Sequence[str]) -> list[Cell]:
        values = [self.value(group) for group in groups]
        means = [_middle(v) for v in values]
        known = [m for m, verdict in zip(means, verdicts, strict=True) if m is not None and verdict != "void"]
        best = (max(known) if self.better == "higher" else min(known)) if self.better and len(known) > 1 else None
        texts = [self._text(v) for v in values]
        return [
            Cell(text, mean, bold=mean is not None and mean == best and verdict != "void",
                 style="bad" if self.title == "failed" and mean else "")
            for text, mean, verdict in zip(texts, means, verdicts, strict=True)
        ]  # fmt: skip


def _middle(value: _Shown) -> float | None:
    if isinstance(value, Number):
        return value.value
    return value[0] if isinstance(value, tuple) else value


_DURATION = _Figure("duration\ns", lambda repeats: sum(r.duration_s for r in repeats))
_Columns = tuple[list[_Figure], str]  # the figures of one kind of benchmark, and a line about them


def _serving(results: Sequence[Result]) -> _Columns:
    tail = _tail(results)
    figures = [
        _Figure("completed", lambda repeats: sum(r.served.completed for r in repeats), count),
        _Figure("failed", lambda repeats: sum(r.served.failed for r in repeats), count, keep=True),
        _Figure("tok/s", _output_speed, better="higher", keep=True),
        _Figure("TTFT\np50", _latency("ttft"), better="lower"),
        *([_Figure(f"TTFT\np{tail}", _latency("ttft", tail), better="lower")] if tail else []),
        _Figure("TPOT\np50", _latency("tpot"), better="lower"),
        _Figure("req/s", lambda repeats: mean(r.served.request_throughput for r in repeats), better="higher"),
        *(_session_figures() if any(r.served.sessions for r in results) else []),
        _Figure("TTFT\nmean", _latency("ttft", "mean"), better="lower"),
        _Figure("TPOT\nmean", _latency("tpot", "mean"), better="lower"),
        *(
            [_Figure("TPOT vLLM\nmean", _latency("vllm_tpot", "mean"))]
            if any(r.served.own_tpot for r in results)
            else []
        ),
        *([_Figure("drafts\naccepted", _accepted, percent, keep=True)] if _accepted(results) is not None else []),
        _DURATION,
    ]
    return figures, "tok/s: output tokens over the whole run. Latencies in ms, from sending."


def _session_figures() -> list[_Figure]:
    def rate(repeats: Sequence[Result]) -> float | None:
        return _mean(r.served.sessions.throughput for r in repeats if r.served.sessions)

    return [
        _Figure("sessions/s", rate, better="higher"),
        _Figure("session\np50", _latency("session"), better="lower"),
        _Figure("later TTFT\np50", _latency("later_turn_ttft"), better="lower"),
    ]


def _searches(results: Sequence[Result]) -> _Columns:
    """Return columns for the highest load within a target, the lowest that misses it, and the figures between."""
    answers = [r.find for r in results if r.find]

    def level(name: str) -> _Value:
        return lambda results: _mean(x for r in results if r.find and (x := getattr(r.find, name)) is not None)

    def figure(metric: str) -> _Value:
        def value(results: Sequence[Result]) -> float | None:
            best = [r.find.at_level(r.find.low) for r in results if r.find]
            each = [f for probe in best if probe for f in probe.figures if f.limit.metric == metric]
            return _mean(f.value for f in each if f.value is not None)

        return value

    def speed(results: Sequence[Result]) -> float | None:
        return _mean(r.served.output_throughput for r in results if r.find and r.find.low is not None)

    limits = {limit.metric: limit for answer in answers for limit in answer.spec.limits}
    overs = {answer.spec.over for answer in answers}
    unit = "concurrency" if overs == {"concurrency"} else "req/s" if overs == {"rate"} else "load"
    figures = [
        _Figure(f"highest\n{unit}", level("low"), count, better="higher", keep=True),
        _Figure("misses\nat", level("high"), count, keep=True),
        *(_Figure(find.limit_title(limit), figure(name), percent if name == "failed" else number)
          for name, limit in limits.items()),
        _Figure("tok/s", speed, better="higher", keep=True),
        _Figure("requests", lambda rs: sum(p.sent for r in rs if r.find for p in r.find.probes), count),
        _Figure("search\ns", lambda rs: _mean(r.find.duration_s for r in rs if r.find)),
    ]  # fmt: skip
    target = "; ".join(dict.fromkeys(find.target_words(answer.spec) for answer in answers))
    about = (
        f"Highest load with {target}. The true one is between the first two columns, with 95 % confidence. Latencies "
        "in ms and tok/s are of the highest load."
    )
    return figures, about


def _quality(results: Sequence[Result]) -> _Columns:
    """Return a column for each score: a task may have several metrics."""
    scores = {(s.task, s.metric, s.filter): s for r in results if r.quality for s in r.quality.scores}
    titles = Counter(task for task, _, _ in scores)

    def mean_of(*keys: tuple[str, str, str]) -> _Value:
        def value(results: Sequence[Result]) -> float | None:
            each = (s for r in results if r.quality for s in r.quality.scores)
            return _mean(s.score for s in each if (s.task, s.metric, s.filter) in keys)

        return value

    figures = []
    if len(titles) > 1 and len(scores) == len(titles) and all(map(quality.is_rate, scores.values())):
        figures.append(_Figure("all", mean_of(*scores), percent, better="higher", keep=True))
    for key, s in scores.items():
        title = "\n".join([s.task, *([f"{s.metric} {s.filter}".strip()] if titles[s.task] > 1 else [])])
        better: Literal["higher", "lower"] = "higher" if s.higher_is_better else "lower"
        figures.append(_Figure(title, mean_of(key), percent if quality.is_rate(s) else number, better=better))
    about = "all: mean of the tasks. The start of the engine that was timed answered; the first concurrency counts."
    return [*figures, _DURATION], about


def _output_speed(repeats: Sequence[Result]) -> Number:
    return interval_of_repeats([r.served.output_throughput for r in repeats])


def _latency(stem: str, statistic: str = "median") -> _Value:
    """`statistic`: mean, median or a percentile."""

    def value(repeats: Sequence[Result]) -> Number | None:
        """Unknown, too, where a busy client doesn't know it of one of them: the others may be the quick ones."""
        known = [r.served.figures for r in repeats]
        latencies = [named[stem] for named in known if stem in named and not named[stem].empty]
        if statistic in ("mean", "median"):
            values = [getattr(d, statistic) for d in latencies]
        else:
            values = [d.percentiles[statistic] for d in latencies if statistic in d.percentiles]
        return interval_of_repeats(values) if values and None not in values else None

    return value


def _sum(name: str) -> _Value:
    return lambda results: sum(getattr(r.offline, name) for r in results if r.offline)


def _spread(name: str) -> _Value:
    def value(results: Sequence[Result]) -> float | tuple[float, float] | None:
        """The mean; the deviation over the repeats, or over the iterations of a single one."""
        each: list[Spread | Distribution] = [s for r in results if r.offline and (s := getattr(r.offline, name))]
        if not each:
            return None
        if len(each) == 1 and each[0].count <= 1:
            return each[0].mean
        return mean(s.mean for s in each), each[0].std if len(each) == 1 else stdev(s.mean for s in each)

    return value


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return mean(known) if known else None


def _accepted(results: Sequence[Result]) -> float | None:
    offline = [r.offline.speculation.acceptance for r in results if r.offline and r.offline.speculation]
    served = [r.telemetry.acceptance for r in results if r.telemetry]
    return _mean(share for share in [*offline, *served] if share is not None)


def _peak(what: str, resource: Literal["bandwidth", "arithmetic"]) -> _Value:
    def value(results: Sequence[Result]) -> float | None:
        """Its share of the machine's peak; the mean of the repeats."""
        shares = (s for r in results if r.roofline for s in r.roofline.shares if s.what == what)
        return _mean(share for s in shares if (share := getattr(s, resource)))

    return value


def _speed(title: str, name: str, keep: bool = False) -> _Figure:
    return _Figure(title, _spread(name), better="higher", keep=keep)


_OFFLINE: dict[str, _Columns] = {
    "throughput": (
        [_Figure("completed", _sum("completed"), count), _Figure("failed", _sum("failed"), count, keep=True),
         _speed("output\ntok/s", "output_throughput", keep=True), _speed("total\ntok/s", "total_token_throughput"),
         _speed("req/s", "request_throughput"), _Figure("drafts\naccepted", _accepted, percent),
         _Figure("FLOPS\nused", _peak("whole", "arithmetic"), percent), _DURATION],
        "All prompts at once. total: input and output tokens. FLOPS used: share of the machine's peak arithmetic.",
    ),
    "latency": (
        [_Figure("iterations", _sum("iterations"), count),
         _Figure("batch\nms", _spread("latency"), better="lower", keep=True),
         _Figure("prefill\nms", _spread("prefill_ms"), better="lower"),
         _Figure("TPOT\nms", _spread("tpot_ms"), better="lower"), _speed("output\ntok/s", "output_throughput"),
         _Figure("drafts\naccepted", _accepted, percent), _Figure("BW\nused", _peak("decode", "bandwidth"), percent),
         _DURATION],
        "One batch, repeated. prefill, TPOT: per request. BW used: share of the peak memory bandwidth, while decoding.",
    ),
    "micro": (
        [_Figure("tests", _sum("iterations"), count), _speed("pp\ntok/s", "prefill_speed", keep=True),
         _speed("tg\ntok/s", "decode_speed", keep=True),
         _Figure("pp FLOPS\nused", _peak("prefill", "arithmetic"), percent),
         _Figure("tg BW\nused", _peak("decode", "bandwidth"), percent)],
        "One request at a time: prompt processing (pp), token generation (tg), their shares of the machine's peaks.",
    ),
}  # fmt: skip


def columns(planned: Sequence[PlannedTrial]) -> list[str]:
    """Return what distinguishes these trials: names, then settings; for a single trial, its engine."""
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
    return [_cell(title, _value(planned, title)) for title in titles]


def _cell(title: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    amount = title.startswith(("load.", "workload.")) and isinstance(value, int | float) and not isinstance(value, bool)
    return value if title in _NAMES else count(value) if amount else short(value)


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
        yield from _finding(finding, f" ({times[finding.code]} of {many(len(results), 'trial')})")
