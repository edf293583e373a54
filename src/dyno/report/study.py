"""A study's results in one table: no speed without its failures and its verdict. Repeats are one row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

import msgspec

from dyno.facts.comparison import LEAST_VARIATION
from dyno.facts.entry import Entry, Number
from dyno.facts.find import FindAnswer
from dyno.facts.finding import Finding, worst_first
from dyno.facts.metric import OUTPUTS, better, speed_title
from dyno.facts.quality import TaskScore
from dyno.facts.spread import Distribution, Spread
from dyno.facts.study import PARTS, PlannedTrial, short
from dyno.facts.summary import Result
from dyno.measure.estimate import interval_of_repeats
from dyno.numbers import UNKNOWN, count, many, number, percent
from dyno.report import find, quality, searches, short_run
from dyno.report.entries import of_repeats
from dyno.report.searches import Drawn, Searched, table_of
from dyno.report.table import Cell, Column, figure_interval, terminal, too_wide
from dyno.screen import styled, verdict_style, wrapped
from dyno.store.rows import row_of_trial

_NAMES = ("rig", *PARTS)
_SHORT = {
    "max_concurrency": "concurrency", "request_rate_rps": "offered\nreq/s", "input_len": "input",
    "output_len": "output", "tensor_parallel": "TP", "max_num_seqs": "slots",
}  # fmt: skip

_MOST = 2  # findings of the same kind
_OF_REPEATS = "statistics.repeats_differ"  # about the repeats of a trial together
_SPREAD = (
    " Over n repeats: totals of completed, failed and duration, means of the rest, with 95 % confidence interval "
    f"({LEAST_VARIATION})."
)


class _TrialLine(NamedTuple):
    """A trial with its repeats."""

    cells: list[str]  # of what distinguishes it
    entry: Entry
    results: list[Result]  # of the repeats


def lines(
    planned: Sequence[PlannedTrial], results: Mapping[str, Result], folder: Path
) -> Iterator[str]:
    """Yield rows of trials with a result; the others also decide the columns. `folder`: of the study."""
    name = folder.name if folder.parent == Path("runs") else folder
    kinds = dict.fromkeys(_kind(p) for p in planned if p.place.id in results)
    for i, kind in enumerate(kinds):
        if i:
            yield ""
        mine = [p for p in planned if _kind(p) == kind]
        yield from _table(kind, mine, results, f"`dyno runs show {name} --json`")
    yield from _findings([results[p.place.id] for p in planned if p.place.id in results])


def _kind(planned: PlannedTrial) -> str:
    return "find" if planned.trial.find else planned.trial.kind


def _table(
    kind: str,
    planned: Sequence[PlannedTrial],
    results: Mapping[str, Result],
    more: str,
) -> Iterator[str]:
    """Yield the table of one kind: serving and offline benchmarks report what are not columns of one table. `more`:
    what prints the columns that a terminal has no room for."""
    titles = columns(planned)
    rows = _lines([p for p in planned if p.place.id in results], titles, results)
    figures, about = _figures(kind, rows)
    if max(row.entry.repeats for row in rows) > 1:
        figures = [_REPEATS.drawn(rows), *figures]
        about += _SPREAD
    sessions = all(p.place.sessions for p in planned)
    drawn = [
        _setting(title, [row.cells[i] for row in rows], sessions)
        for i, title in enumerate(titles)
    ]
    verdicts = [Cell(row.entry.verdict) for row in rows]
    table = table_of([*drawn, *figures, (Column("verdict", kind="verdict"), verdicts)])
    yield from terminal(table, more=more)
    yield from wrapped(about)
    yield from wrapped(too_wide(table.lines))
    if kind == "find":
        yield from _search_lines(rows)
    yield from _repeats_differ(rows)


def _figures(kind: str, rows: Sequence[_TrialLine]) -> tuple[list[Drawn], str]:
    """Return the columns of figures, and a line about them."""
    if kind == "find":
        return _searches(rows)
    figures, about = _FIGURES[kind](rows)
    drawn = [figure.drawn(rows) for figure in figures]
    if kind == "serve":
        return drawn, about
    # A figure that no trial has, such as a batch's prefill, has no column.
    return [
        (column, cells)
        for column, cells in drawn
        if any(cell.value is not None for cell in cells)
    ], about


def _repeats_differ(rows: Sequence[_TrialLine]) -> Iterator[str]:
    """Yield the settings whose repeats differ; the page has all."""
    own = [f for row in rows for f in row.entry.findings if f.code == _OF_REPEATS]
    for finding in own[:_MOST]:
        yield from _finding(finding)
    if len(own) > _MOST:
        yield f"  So do those of {many(len(own) - _MOST, 'more setting')}."


def _search_lines(rows: Sequence[_TrialLine]) -> Iterator[str]:
    """Say of each search what its numbers leave out: why it ended early, and what limits the load."""
    for row in rows:
        for answer in _answers([row]):
            yield from wrapped(f"{', '.join(row.cells)}: {find.remark(answer)}", rest="  ")


def _setting(title: str, texts: Sequence[str], sessions: bool) -> Drawn:
    """Return the column of a setting that varies among the trials."""
    word = title.rpartition(".")[2]
    numeric = all(
        text.replace(",", "").replace(".", "").isdigit()
        for text in texts
        if text != UNKNOWN
    )
    title = _SHORT.get(word, word).replace("req/s", "sessions/s" if sessions else "req/s")
    return Column(title, kind="number" if numeric else "text", keep=True), [
        Cell(text) for text in texts
    ]


def _finding(f: Finding, trials: str = "") -> list[str]:
    first, *others = wrapped(f"{f.level} {f.code}{trials}: {f.text}", rest="  ")
    return [styled(f.level, verdict_style(f.level)) + first.removeprefix(f.level), *others]


def _lines(
    done: Sequence[PlannedTrial], titles: Sequence[str], results: Mapping[str, Result]
) -> list[_TrialLine]:
    """Return a line for each trial: its repeats are one entry."""
    repeats: dict[tuple[str, ...], list[PlannedTrial]] = {}
    for p in done:
        settings = tuple(_whole(p, title) for title in titles)
        repeats.setdefault(settings, []).append(p)
    texts = [_cells(same[0], titles) for same in repeats.values()]
    for i in range(len(titles)):  # a path by its last part, where that is unique
        whole = [key[i] for key in repeats]
        if len({cells[i] for cells in texts}) < len(set(whole)):
            for cells, value in zip(texts, whole, strict=True):
                cells[i] = value
    lines = []
    for cells, same in zip(texts, repeats.values(), strict=True):
        its_results = [results[p.place.id] for p in same]
        rows = [
            row_of_trial(p, result) for p, result in zip(same, its_results, strict=True)
        ]
        name = ", ".join(map(_named_cell, titles, cells))
        lines.append(_TrialLine(cells, of_repeats(name, rows), its_results))
    return lines


# ---- columns: their order, and how the terminal shows them ----


class _Figure(NamedTuple):
    """A column."""

    title: str  # in two lines, so that the whole fits a terminal
    value: Callable[[_TrialLine], float | Number | None]
    show: Callable[[float], str] = number
    better: Literal["", "higher", "lower"] = ""
    keep: bool = False  # in a narrow terminal

    def drawn(self, rows: Sequence[_TrialLine]) -> Drawn:
        """Return the column with its cells."""
        return Column(self.title, kind="figure", keep=self.keep), self._cells(rows)

    def _cells(self, rows: Sequence[_TrialLine]) -> list[Cell]:
        values = [_as_number(self.value(row)) for row in rows]
        sound = []
        for value, row in zip(values, rows, strict=True):
            if value is not None and row.entry.verdict != "void":
                sound.append(value.value)
        best = None
        if self.better and len(sound) > 1:
            best = max(sound) if self.better == "higher" else min(sound)
        return [
            self._cell(value, row, best) for value, row in zip(values, rows, strict=True)
        ]

    def _cell(self, value: Number | None, row: _TrialLine, best: float | None) -> Cell:
        if value is None:
            return Cell(UNKNOWN)
        text = f"{self.show(value.value)} {figure_interval(value)}".rstrip()
        bold = value.value == best and row.entry.verdict != "void"
        failed = self.title == "failed" and value.value
        return Cell(text, value.value, bold=bold, style="bad" if failed else "")


def _as_number(value: float | Number | None) -> Number | None:
    return value if value is None or isinstance(value, Number) else Number(value)


# the figures of one kind of benchmark, and a line about them
_Columns = tuple[list[_Figure], str]


def _named(title: str, name: str, keep: bool = False) -> _Figure:
    """Return the column of a figure, by its name in facts/metric.py."""
    return _Figure(
        title,
        lambda row: _shown(row, row.entry.figures.get(name)),
        better=better(name) or "",
        keep=keep,
    )


def _latency(title: str, stem: str, statistic: str = "p50") -> _Figure:
    """Return the column of a latency. `statistic`: mean, p50 or another percentile."""
    return _Figure(
        f"{title}\n{statistic}",
        lambda row: _shown(row, row.entry.statistic(statistic, stem)),
        better="lower",
    )


def _shown(row: _TrialLine, figure: Number | None) -> Number | None:
    """Return a figure of a single run without its interval: a page has room for that and its sources."""
    if figure is None or row.entry.repeats > 1:
        return figure
    return Number(figure.value, deviation=figure.deviation)


_REPEATS = _Figure("n", lambda row: row.entry.repeats, count)
_COMPLETED = _Figure("completed", lambda row: row.entry.completed or 0, count)
_FAILED = _Figure("failed", lambda row: row.entry.failed or 0, count, keep=True)
_DURATION = _Figure("duration\ns", lambda row: sum(r.duration_s for r in row.results))
_ACCEPTED = _Figure("drafts\naccepted", lambda row: _accepted(row), percent)


def _speeds(entries: Sequence[Entry]) -> list[str]:
    """Return the throughputs to show: of output tokens, unless all answers are without text."""
    known = [name for name in OUTPUTS if any(name in e.figures for e in entries)]
    return known or [OUTPUTS[0]]


def _serving(rows: Sequence[_TrialLine]) -> _Columns:
    entries = [row.entry for row in rows]
    figures = [
        _COMPLETED,
        _FAILED,
        *(_named(speed_title(name), name, keep=True) for name in _speeds(entries)),
        _latency("TTFT", "ttft"),
    ]
    tail = _tail([r for row in rows for r in row.results])
    if tail:
        figures.append(_latency("TTFT", "ttft", f"p{tail}"))
    figures += [_latency("TPOT", "tpot"), _named("req/s", "request_throughput")]
    if any("session_throughput" in e.figures for e in entries):
        figures += [
            _named("sessions/s", "session_throughput"),
            _latency("session", "session"),
        ]
        figures.append(_latency("later TTFT", "later_turn_ttft"))
    figures += [_latency("TTFT", "ttft", "mean"), _latency("TPOT", "tpot", "mean")]
    if any("mean_vllm_tpot_ms" in e.figures for e in entries):
        figures.append(
            _Figure(
                "TPOT vLLM\nmean",
                lambda row: _shown(row, row.entry.figures.get("mean_vllm_tpot_ms")),
            )
        )
    if any(_accepted(row) is not None for row in rows):
        figures.append(_ACCEPTED._replace(keep=True))
    about = "Latencies in ms, from sending."
    if OUTPUTS[0] in _speeds(entries):
        about = f"tok/s: output tokens over the whole run. {about}"
    return [*figures, _DURATION], about


def _answers(rows: Sequence[_TrialLine]) -> list[FindAnswer]:
    return [r.find for row in rows for r in row.results if r.find]


def _searches(rows: Sequence[_TrialLine]) -> tuple[list[Drawn], str]:
    """Return the columns of searches, and a line about them."""
    searched = [
        Searched([r.find for r in row.results if r.find], row.entry.verdict) for row in rows
    ]
    targets = find.targets([answer for row in searched for answer in row.answers])
    about = (
        f"Highest load with {targets}. The true one is between the first two columns, with 95 % confidence. "
        "Latencies in ms, at the highest load and at the one above that misses; tok/s at the highest."
    )
    return searches.answers(searched), about


def _quality(rows: Sequence[_TrialLine]) -> _Columns:
    """Return a column for each score: a task may have several metrics."""
    scores = {_score_key(s): s for row in rows for s in _scores(row)}
    titles = Counter(task for task, _, _ in scores)
    figures = []
    if (
        len(titles) > 1
        and len(scores) == len(titles)
        and all(map(quality.is_rate, scores.values()))
    ):
        figures.append(
            _Figure("all", _mean_score(*scores), percent, better="higher", keep=True)
        )
    for key, s in scores.items():
        title = s.task
        if titles[s.task] > 1:
            variant = f"{s.metric} {s.filter}".strip()
            title = f"{s.task}\n{variant}"
        way: Literal["higher", "lower"] = "higher" if s.higher_is_better else "lower"
        figures.append(
            _Figure(
                title,
                _mean_score(key),
                percent if quality.is_rate(s) else number,
                better=way,
            )
        )
    about = "all: mean of the tasks. The engine process that was timed answered, at the first concurrency."
    return [*figures, _DURATION], about


def _scores(row: _TrialLine) -> Iterator[TaskScore]:
    for result in row.results:
        if result.quality:
            yield from result.quality.scores


def _score_key(s: TaskScore) -> tuple[str, str, str]:
    return s.task, s.metric, s.filter


def _mean_score(*keys: tuple[str, str, str]) -> Callable[[_TrialLine], float | None]:
    return lambda row: _mean(s.score for s in _scores(row) if _score_key(s) in keys)


def _iterations(row: _TrialLine) -> float:
    return sum(r.offline.iterations for r in row.results if r.offline)


def _part(name: str) -> Callable[[_TrialLine], Number | None]:
    """Return a part of an offline benchmark that is no figure of its own, with its deviation over the iterations or its
    interval over the repeats."""

    def value(row: _TrialLine) -> Number | None:
        offline = [result.offline for result in row.results if result.offline]
        each: list[Spread | Distribution] = list(
            filter(None, (getattr(summary, name) for summary in offline))
        )
        if not each:
            return None
        if len(each) > 1:
            return interval_of_repeats([s.mean for s in each])
        only = each[0]
        return Number(only.mean, deviation=only.std if only.count > 1 else None)

    return value


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return mean(known) if known else None


def _accepted(row: _TrialLine) -> float | None:
    accepted = row.entry.figures.get("acceptance_rate")
    return None if accepted is None else accepted.value


def _peak(
    what: str, resource: Literal["bandwidth", "arithmetic"]
) -> Callable[[_TrialLine], float | None]:
    """Return a share of the machine's peak; the mean of the repeats."""

    def shares(row: _TrialLine) -> Iterator[float]:
        for result in row.results:
            if result.roofline is None:
                continue
            for share in result.roofline.shares:
                value = getattr(share, resource)
                if share.what == what and value:
                    yield value

    return lambda row: _mean(shares(row))


def _throughput(_: Sequence[_TrialLine]) -> _Columns:
    figures = [
        _COMPLETED,
        _FAILED,
        _named("output\ntok/s", "output_throughput", keep=True),
        _named("total\ntok/s", "total_token_throughput"),
        _named("req/s", "request_throughput"),
        _ACCEPTED,
        _Figure("FLOPS\nused", _peak("whole", "arithmetic"), percent),
        _DURATION,
    ]
    about = "All prompts at once. total: input and output tokens. FLOPS used: share of the machine's peak arithmetic."
    return figures, about


def _batches(_: Sequence[_TrialLine]) -> _Columns:
    figures = [
        _Figure("iterations", _iterations, count),
        _Figure("batch\nms", _part("latency"), better="lower", keep=True),
        _Figure("prefill\nms", _part("prefill_ms"), better="lower"),
        _Figure("TPOT\nms", _part("tpot_ms"), better="lower"),
        _named("output\ntok/s", "output_throughput"),
        _ACCEPTED,
        _Figure("BW\nused", _peak("decode", "bandwidth"), percent),
        _DURATION,
    ]
    about = (
        "One batch, repeated. prefill, TPOT: per request. BW used: share of the peak "
        "memory bandwidth, while decoding."
    )
    return figures, about


def _micro(_: Sequence[_TrialLine]) -> _Columns:
    figures = [
        _Figure("tests", _iterations, count),
        _Figure("pp\ntok/s", _part("prefill_speed"), better="higher", keep=True),
        _Figure("tg\ntok/s", _part("decode_speed"), better="higher", keep=True),
        _Figure("pp FLOPS\nused", _peak("prefill", "arithmetic"), percent),
        _Figure("tg BW\nused", _peak("decode", "bandwidth"), percent),
    ]
    about = "One request at a time: prompt processing (pp), token generation (tg), their shares of the machine's peaks."
    return figures, about


_FIGURES: dict[str, Callable[[Sequence[_TrialLine]], _Columns]] = {
    "serve": _serving, "quality": _quality, "throughput": _throughput, "latency": _batches,
    "micro": _micro,
}  # fmt: skip


# ---- what distinguishes trials ----


def columns(planned: Sequence[PlannedTrial]) -> list[str]:
    """Return what distinguishes these trials: names, then settings; for a single trial, its engine."""
    titles = []
    for name in _NAMES:
        if len({getattr(p.place, name) for p in planned}) > 1:
            titles.append(name)
    for key in dict.fromkeys(key for p in planned for key in p.place.settings):
        if len({_whole(p, key) for p in planned}) > 1:
            titles.append(key)
    order = [*_NAMES, "trial"]
    return sorted(
        titles or ["engine"], key=lambda title: order.index(title.partition(".")[0])
    )


def _named_cell(title: str, text: str) -> str:
    """Return a cell as a sentence needs it: 'concurrency 4'. A name says by itself what it is."""
    if title in _NAMES:
        return text
    word = title.rpartition(".")[2]
    return f"{_SHORT.get(word, word)} {text}".replace("\n", " ")


def _value(planned: PlannedTrial, title: str) -> Any:
    place = planned.place
    if title in _NAMES:
        return getattr(place, title) or ""
    if title in place.settings:
        return place.settings[title]
    part, _, key = title.partition(".")  # one that doesn't vary here, and does elsewhere
    return getattr(
        planned.trial if part == "trial" else getattr(planned.trial, part), key, None
    )


def _whole(planned: PlannedTrial, title: str) -> str:
    value = _value(planned, title)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cells(planned: PlannedTrial, titles: Sequence[str]) -> list[str]:
    return [_cell(title, _value(planned, title)) for title in titles]


def _cell(title: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if title in _NAMES:
        return str(value)
    amount = (
        title.startswith(("load.", "workload."))
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    )
    return count(value) if amount else short(value)


def _tail(results: Sequence[Result]) -> str | None:
    """Return the highest percentile that all of them have, above the median."""
    had = [{*r.served.ttft.percentiles} for r in results if not r.served.ttft.empty]
    common = set.intersection(*had) if had else set()
    return max((p for p in common if float(p) > 50), key=float, default=None)


def _findings(results: Sequence[Result]) -> Iterator[str]:
    """Yield each code once, with how many trials it is about: the same note six times over would hide the one doubt."""
    first: dict[str, Finding] = {}
    times: Counter[str] = Counter()
    for result in results:
        for finding in result.findings:
            first.setdefault(finding.code, finding)
            times[finding.code] += 1
    short = short_run.join(list(first.values()), times, len(results))
    yield from wrapped(short.line)
    for finding in worst_first(short.others):
        yield from _finding(
            finding, f" ({times[finding.code]} of {many(len(results), 'trial')})"
        )
