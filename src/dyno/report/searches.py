"""The tables of searches. Each column is declared here, once, whatever its rows are.

`dyno find` shows the loads that it tried, `dyno tune` the settings, a study, a report's page and Markdown the answers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import mean
from typing import Literal, NamedTuple

from dyno.facts.entry import Entry
from dyno.facts.find import FindAnswer, ProbeFacts
from dyno.facts.finding import Verdict
from dyno.facts.limits import Limit
from dyno.facts.metric import OUTPUTS, speed_title
from dyno.facts.tune import TuneAnswer, TuneTrial, words
from dyno.numbers import UNKNOWN, count, number, percent
from dyno.report.table import Cell, Column, Line, Table

Drawn = tuple[Column, list[Cell]]
End = Literal["low", "high"]  # of the interval that the highest load is in
WITHIN = {"meets": "yes", "misses": "no", "undecided": "undecided"}
_P99_TTFT = "ttft_p99"


class Searched(NamedTuple):
    """A setting with the answers of its searches: its repeats, of which numbers are means."""

    answers: Sequence[FindAnswer]
    verdict: Verdict

    def load(self, end: End) -> float | None:
        return _mean(getattr(answer, end) for answer in self.answers)

    def figure(self, limit: Limit, end: End) -> float | None:
        return _mean(_figure_of(probe, limit) for probe in self._probes(end))

    def speed(self, name: str) -> float | None:
        """Return a throughput at the highest load, by its metric."""
        probes = (p for p in self._probes("low") if p.throughput_of == name)
        return _mean(probe.throughput for probe in probes)

    @property
    def sent(self) -> int:
        return sum(probe.sent for answer in self.answers for probe in answer.probes)

    @property
    def duration_s(self) -> float | None:
        return _mean(answer.duration_s for answer in self.answers)

    def _probes(self, end: End) -> Iterator[ProbeFacts]:
        for answer in self.answers:
            probe = answer.below if end == "low" else answer.above
            if probe is not None:
                yield probe


def of_entry(entry: Entry) -> Searched:
    repeats = [row.result.find for row in entry.rows if row.result and row.result.find]
    return Searched(repeats or [entry.search] if entry.search else [], entry.verdict)


# ---- the tables ----


def probes(answer: FindAnswer) -> Table:
    """Return the loads that a search tried, from the lowest."""
    tried = sorted(answer.probes, key=lambda p: (p.level, p.requests))
    drawn = [
        _numbers(answer.spec.over, [p.level for p in tried], keep=True),
        _texts("within", map(_within, tried), keep=True),
    ]
    for limit in answer.spec.limits:
        drawn.append(_limit(limit, [_figure_of(p, limit) for p in tried], keep=True))
    return table_of(
        [
            *drawn,
            _numbers("requests", [p.requests for p in tried]),
            _figures("s", "", [p.duration_s for p in tried], _three_digits),
            *(
                _speed([p.throughput for p in tried], name)
                for name in _throughputs([answer])
            ),
            _verdicts([p.verdict for p in tried]),
        ]
    )


def answers(rows: Sequence[Searched]) -> list[Drawn]:
    """Return the columns of what searches found: the interval of the highest load, and the figures at both ends."""
    every = [answer for row in rows for answer in row.answers]
    limits = limits_of(every)
    loads = _numbers(
        "highest load", [r.load("low") for r in rows], load_unit(every), keep=True
    )
    return [
        _best(loads, rows),
        _numbers("misses at", [row.load("high") for row in rows], keep=True),
        *(_limit(each, [r.figure(each, "low") for r in rows]) for each in limits),
        *(
            _limit(each, [r.figure(each, "high") for r in rows], " above")
            for each in limits
        ),
        *(
            _best(_speed([row.speed(name) for row in rows], name), rows)
            for name in _throughputs(every)
        ),
        _numbers("requests", [row.sent for row in rows]),
        _figures("search", "s", [row.duration_s for row in rows]),
    ]


def settings(answer: TuneAnswer, trials: Sequence[TuneTrial]) -> Table:
    """Return the settings that a search tried. All figures of a row are of one load."""
    objective = answer.spec.objective
    values = [trial.shown for trial in trials]
    drawn = [
        _texts("setting", (words(trial.setting) for trial in trials), keep=True),
        _texts("result", (_result(answer, trial) for trial in trials), keep=True),
        _figures(answer.unit, "", values, partial(objective_text, answer), keep=True),
        _texts("load", (_load(answer, trial) for trial in trials)),
    ]
    if objective != "throughput":
        drawn.append(_tuned_speed(trials))
    if objective != _P99_TTFT:
        drawn.append(_p99_ttft(trials))
    if answer.currency and objective != "cost":
        unit = f"{answer.currency} per M tokens"
        drawn.append(_figures("cost", unit, [trial.cost for trial in trials]))
    return table_of([*drawn, _verdicts([trial.verdict for trial in trials])])


def front(trials: Sequence[TuneTrial]) -> Table:
    """Return the settings of which none is better in both throughput and latency."""
    return table_of(
        [
            _texts("setting", (words(trial.setting) for trial in trials), keep=True),
            _tuned_speed(trials),
            _p99_ttft(trials),
            _texts("load", (trial.load for trial in trials)),
        ]
    )


def effects(
    answer: TuneAnswer, by_setting: dict[str, dict[str, tuple[float, int]]]
) -> Table:
    """Return the median of the objective by the values of each setting."""
    rows = [
        (key if i == 0 else "", value, *by_value[value])
        for key, by_value in by_setting.items()
        for i, value in enumerate(sorted(by_value, key=_order))
    ]
    median = [median for _, _, median, _ in rows]
    return table_of(
        [
            _texts("setting", (row[0] for row in rows), keep=True),
            _texts("value", (row[1] for row in rows), keep=True),
            _figures(
                f"median {answer.unit}",
                "",
                median,
                partial(objective_text, answer),
                keep=True,
            ),
            _numbers("settings", [row[3] for row in rows]),
        ]
    )


def table_of(drawn: Iterable[Drawn]) -> Table:
    columns, cells = zip(*drawn, strict=True)
    return Table(list(columns), [Line(list(row)) for row in zip(*cells, strict=True)])


# ---- the columns ----


def _texts(title: str, texts: Iterable[str], keep: bool = False) -> Drawn:
    return Column(title, keep=keep), [Cell(text) for text in texts]


def _numbers(
    title: str, values: Iterable[float | None], unit: str = "", keep: bool = False
) -> Drawn:
    """Return a column of counts, or of loads."""
    return Column(title, unit, "number", keep=keep), [_cell(v, count) for v in values]


def _figures(
    title: str,
    unit: str,
    values: Iterable[float | None],
    show: Callable[[float], str] = number,
    keep: bool = False,
) -> Drawn:
    return Column(title, unit, "figure", keep=keep), [_cell(v, show) for v in values]


def _limit(
    limit: Limit, values: Iterable[float | None], where: str = "", keep: bool = False
) -> Drawn:
    """Return the column of a target's figure."""
    share = limit.is_share
    title = f"{limit_title(limit)}{where}"
    return _figures(
        title, "" if share else "ms", values, percent if share else number, keep
    )


def _speed(values: Iterable[float | None], name: str = OUTPUTS[0]) -> Drawn:
    return _figures(speed_title(name), "", values, keep=True)


def _tuned_speed(trials: Sequence[TuneTrial]) -> Drawn:
    names = [t.throughput_of for t in trials if t.throughput is not None] or OUTPUTS
    return _speed([trial.throughput for trial in trials], names[0])


def _p99_ttft(trials: Iterable[TuneTrial]) -> Drawn:
    return _figures("p99 TTFT", "ms", [trial.p99_ttft_ms for trial in trials])


def _verdicts(verdicts: Iterable[str]) -> Drawn:
    return Column("verdict", kind="verdict"), [Cell(verdict) for verdict in verdicts]


def _best(drawn: Drawn, rows: Sequence[Searched]) -> Drawn:
    """Return the column with its highest value in bold. A void row has none."""
    column, cells = drawn
    sound = [
        cell.value
        for cell, row in zip(cells, rows, strict=True)
        if cell.value is not None and row.verdict != "void"
    ]
    best = max(sound) if len(sound) > 1 else None
    marked = [
        Cell(cell.text, cell.value, bold=cell.value == best and row.verdict != "void")
        if cell.value is not None
        else cell
        for cell, row in zip(cells, rows, strict=True)
    ]
    return column, marked


def _cell(value: float | None, show: Callable[[float], str]) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(show(value), value)


# ---- what their titles and cells show ----


def load_unit(answers: Sequence[FindAnswer]) -> str:
    """Return what the loads of these answers are counted in."""
    overs = {answer.spec.over for answer in answers}
    if len(overs) > 1:
        return "load"
    return "req/s" if overs == {"rate"} else "concurrency"


def limits_of(answers: Sequence[FindAnswer]) -> list[Limit]:
    """Return the limits of their targets, one for each figure that they are about."""
    by_figure = {limit.metric: limit for answer in answers for limit in answer.spec.limits}
    return list(by_figure.values())


def _throughputs(answers: Sequence[FindAnswer]) -> list[str]:
    """Return the throughputs that their probes have: answers without text have no output tokens/s."""
    names = dict.fromkeys(p.throughput_of for answer in answers for p in answer.probes)
    return list(names) or [OUTPUTS[0]]


def limit_title(limit: Limit) -> str:
    """Return the title of a limit's column: 'p99 TTFT', 'failed', 'invalid'."""
    return limit.stem if limit.is_share else limit.words.partition(" ≤")[0]


def _within(probe: ProbeFacts) -> str:
    return WITHIN[probe.outcome] + (" (queue grew)" if probe.queue_grew else "")


def _figure_of(probe: ProbeFacts, limit: Limit) -> float | None:
    """Return the figure of a limit in a probe."""
    return next((f.value for f in probe.figures if f.limit.metric == limit.metric), None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _three_digits(value: float) -> str:
    return number(value, digits=3)


def objective_text(answer: TuneAnswer, value: float | None) -> str:
    """Return a value of the objective: a load is a count."""
    whole = answer.spec.objective == "load" and value is not None and value == round(value)
    return count(value) if whole else number(value)


def _result(answer: TuneAnswer, trial: TuneTrial) -> str:
    if trial.objection:
        return "refused"
    return "best" if trial == answer.best else ""


def _load(answer: TuneAnswer, trial: TuneTrial) -> str:
    """Return the load that all figures of a row are of."""
    searched = answer.spec.objective == "load" and trial.load == "short"
    return "search" if searched else trial.load


def _order(value: str) -> tuple[float, str]:
    try:
        return float(value.replace(",", "")), ""
    except ValueError:
        return float("inf"), value
