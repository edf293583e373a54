"""The tables of a report as values, which the page, Markdown and CSV share. No speed without failures and a verdict."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dyno.facts.entry import Entry, Number, Quality
from dyno.facts.finding import Finding
from dyno.facts.imported import KINDS, RowKind, Scalar
from dyno.facts.load import KEYS, LOAD, Key
from dyno.facts.metric import METRICS, SAMPLED, TOKEN_THROUGHPUTS, Metric, meanings, metric
from dyno.facts.report import PER, AuthorsTable, Contender, Report, Standing
from dyno.facts.summary import ClassSummary
from dyno.numbers import (
    UNKNOWN,
    count,
    currency,
    money,
    number,
    percent,
    points,
    points_interval,
    score,
    setting,
)
from dyno.report import find, per, searches, short_run
from dyno.report.table import (
    Cell,
    Column,
    Line,
    Table,
    figure_interval,
    figure_text,
    too_wide,
)
from dyno.report.target import limit_words

PLACES = 8  # evidence lines shown of a finding
STATISTICS = ("p50", "mean", "p99")  # that a page lets choose from

_UNKNOWN = Cell(UNKNOWN)


class _Drawn(NamedTuple):
    column: Column
    cells: list[Cell]

    @property
    def known(self) -> bool:
        return any(cell is not _UNKNOWN for cell in self.cells)


# ---- the answer ----


def answers(report: Report) -> list[Table]:
    """Return the contenders with the figures that decide: at one load, and each at its best load where that is
    another table. The first is the one that the answer's sentences are about."""
    words = report.words
    standings = [s for s in (words.standing, words.alternative) if s is not None]
    tables = (_standing(report, s, i) for i, s in enumerate(standings))
    return [table for table in tables if table is not None]


def _standing(report: Report, standing: Standing, index: int) -> Table | None:
    """Return the contenders, each with how far it is behind the best."""
    by_id = {e.id: e for e in report.entries}
    contenders = [c for c in standing.contenders if c.entry in by_id]
    entries = [by_id[c.entry] for c in contenders]
    if not entries:
        return None
    m = metric(standing.metric)
    drawn = [_series(entries), *_deciding(entries, m)]
    if any(c.word for c in contenders):
        drawn.append(
            _Drawn(
                Column("behind the best by", kind="figure"),
                [_behind(c) for c in contenders],
            )
        )
    if m.name != "score":  # a sentence has it
        drawn += _quality(entries, detectable=False)
    if m.kind != "latency":
        drawn += _first_latencies(entries)
    drawn += [
        *_token_prices(entries, ("output", "total"))[:1],
        *_counts(entries)[1:],
        _verdicts(entries),
    ]
    name = "answer-otherwise" if index else "answer"
    title = ", ".join(filter(None, [standing.workload, _loads_words(standing, entries)]))
    more = f"{standing.more} more below." if standing.more else ""
    about = " ".join(filter(None, [more, standing.remark]))
    return _table(name, title or "Contenders", entries, drawn, about)


def brief(report: Report) -> str:
    """Return the notes of short runs as one line, for below the verdict; '' where there are none."""
    return short_run.join(report.findings, trials=len(report.entries)).line


_AT_BEST = "each at its best load"


def _loads_words(standing: Standing, entries: Sequence[Entry]) -> str:
    """Say at which loads the contenders are compared."""
    if standing.loads == "apart":
        return f"no load in common: {_AT_BEST}"
    if standing.loads == "best" and not _one_level(entries):
        return _AT_BEST
    return entries[0].load.level_words if _one_level(entries) else ""


def choices(report: Report) -> list[str]:
    """Return the words of the switch between the answer's tables: at which loads each compares."""
    by_id = {e.id: e for e in report.entries}
    words = []
    for standing in (report.words.standing, report.words.alternative):
        if standing is not None:
            first = by_id[standing.contenders[0].entry]
            one = f"all at {first.load.level_words}"
            words.append(one if standing.loads == "one" else _AT_BEST)
    return words if len(words) > 1 else []


def _deciding(entries: Sequence[Entry], m: Metric) -> list[_Drawn]:
    """Return the figure that decides, after the level of the load where that differs."""
    drawn = []
    if not _one_level(entries):
        axis = entries[0].axis
        key = KEYS[axis]
        drawn.append(
            _count(key.title or axis, key.unit, entries, lambda e: e.axes.get(e.axis))
        )
    unit = "ms" if m.kind == "latency" else ""
    return drawn + _by_meaning(
        m.column or m.name, unit, entries, _picked(m.name), per=m.kind == "rate"
    )


def _one_level(entries: Sequence[Entry]) -> bool:
    return len({e.load.level for e in entries}) == 1


def _first_latencies(entries: Sequence[Entry]) -> list[_Drawn]:
    """Return the time to the first token, or else the whole latency."""
    for stem in ("ttft", "latency"):
        if drawn := _latencies(entries, stem):
            return drawn
    return []


def _token_prices(entries: Sequence[Entry], titles: Sequence[str]) -> list[_Drawn]:
    """Return the prices of tokens of these kinds, each under the title of cost."""
    drawn = []
    for column, cells in _prices(entries):
        if column.title in titles and "/M" in column.unit:
            unit = f"{column.unit.split()[0]} {column.title}"
            drawn.append(_Drawn(Column("cost", unit, "figure"), cells))
    return drawn


def _behind(c: Contender) -> Cell:
    """Return by what share of the best a contender is behind it; of scores, by how many points."""
    if not c.word:
        return _UNKNOWN
    if c.lead is None:
        return Cell(UNKNOWN, interval=c.word)
    share = abs(c.lead if c.points else 1 / (1 + c.lead) - 1)
    return Cell(points(share) if c.points else percent(share), share, c.word)


# ---- results ----


# Titles of the figures that a table of results begins with, after what says how far they count.
_FIRST = ("output tok/s", "TTFT", "TPOT")


def results(report: Report) -> list[Table]:
    """Return tables for each kind: serving and micro tests share no columns."""
    tables = _searches([e for e in report.entries if e.search])
    for kind, kind_words in KINDS.items():
        entries = [e for e in report.entries if e.kind == kind]
        if not entries:
            continue
        figures, asides = _figures(entries), [*_counts(entries), _verdicts(entries)]
        if kind == "quality":
            drawn = [*_who(entries), *asides, *figures, *_quality(entries)]
        else:  # what is read first fits on a screen; other latencies are many
            first = [d for d in figures if d.column.title.endswith(_FIRST)]
            others = [d for d in figures if d not in first]
            drawn = [*_who(entries), *asides, *first, *_quality(entries), *others]
        about = f"{_in_common(entries)} {_why_unknown(entries, drawn)}".strip()
        tables.append(_table(f"results-{kind}", kind_words.title, entries, drawn, about))
        tables += [*_sessions(entries), *_classes(entries)]
    return tables


def _searches(entries: Sequence[Entry]) -> list[Table]:
    """Return the answers of searches, one line each."""
    if not entries:
        return []
    rows = [searches.of_entry(e) for e in entries]
    drawn = [_series(entries)]
    workloads = [e.load.workload.words for e in entries]
    if len(set(workloads)) > 1:
        drawn.append(_texts("workload", workloads))
    drawn += [_Drawn(*each) for each in searches.answers(rows)]
    drawn += [*_token_prices(entries, ("output",)), _verdicts(entries)]
    words = (" ".join(map(find.remark, row.answers)) for row in rows)
    about = f"Target: {find.targets([answer for row in rows for answer in row.answers])}."
    return [
        _table(
            "searches",
            "Highest load within the target",
            entries,
            [*drawn, _texts("in words", words)],
            about,
        )
    ]


_SESSIONS = (
    "session_throughput",
    "median_session_ms",
    "p99_session_ms",
    "median_session_busy_ms",
    "median_first_turn_ttft_ms",
    "median_later_turn_ttft_ms",
    "p99_later_turn_ttft_ms",
)


def _sessions(entries: Sequence[Entry]) -> list[Table]:
    """Return the figures of whole sessions, of conversations and agents."""
    own = [e for e in entries if "session_throughput" in e.figures]
    if not own:
        return []
    drawn = [
        *_who(own),
        _count("completed", "sessions", own, lambda e: e.value("sessions_completed")),
        _count("failed", "sessions", own, lambda e: e.value("sessions_failed")),
        _verdicts(own),
    ]
    for name in _SESSIONS:
        m = metric(name)
        drawn += _by_meaning(
            m.column or m.words, m.unit if m.kind == "latency" else "", own, _picked(name)
        )
    for name, title in (("possible_reuse", "possible"), ("reported_reuse", "reported")):
        cells = [_cell(e.value(name), percent) for e in own]
        drawn.append(_Drawn(Column("prefix reuse", title, "number"), cells))
    about = "From a session's first sending to its last token. In requests: without think and tool times."
    return [_table("sessions", "Sessions", own, [d for d in drawn if d.known], about)]


def _picked(name: str) -> Callable[[Entry], Number | None]:
    return lambda e: e.figures.get(name)


def _classes(entries: Sequence[Entry]) -> list[Table]:
    """Return one line per class of traffic, of the first repeat."""
    lines = [(e, c) for e in entries for c in e.classes]
    if not lines:
        return []
    own = [e for e, _ in lines]
    classes = [c for _, c in lines]

    def counts(title: str, pick: Callable[[ClassSummary], float | None]) -> _Drawn:
        return _Drawn(
            Column(title, "requests", "number"), [_cell(pick(c), count) for c in classes]
        )

    def figures(
        title: str, unit: str, pick: Callable[[ClassSummary], float | None]
    ) -> _Drawn:
        return _Drawn(
            Column(title, unit, "figure"), [_cell(pick(c), number) for c in classes]
        )

    drawn = [
        *_who(own),
        _texts("class", [c.name for c in classes]),
        counts("completed", lambda c: c.completed),
        counts("failed", lambda c: c.failed),
        _verdicts(own),
        figures("req/s", "", lambda c: c.request_throughput),
        figures("goodput req/s", "", lambda c: c.goodput),
        figures("output tok/s", "", lambda c: c.output_throughput),
        figures("p50 TTFT", "ms", lambda c: c.ttft.median),
        figures("p99 TTFT", "ms", lambda c: c.ttft.percentiles.get("99")),
        figures("p50 TPOT", "ms", lambda c: c.tpot.median),
        figures("p50 E2EL", "ms", lambda c: c.e2el.median),
    ]
    about = "The first repeat of each." if any(e.repeats > 1 for e in own) else ""
    return [_table("classes", "Traffic classes", own, [d for d in drawn if d.known], about)]


def _table(
    name: str,
    title: str,
    entries: Sequence[Entry],
    drawn: Sequence[_Drawn],
    about: str = "",
) -> Table:
    lines = []
    for i, entry in enumerate(entries):
        cells = [d.cells[i] for d in drawn]
        lines.append(Line(cells, entry.id, entry.series, entry.verdict))
    notes = f"{about} {too_wide(lines)}".strip()
    return Table([d.column for d in drawn], lines, name, title, notes)


def _series(entries: Sequence[Entry]) -> _Drawn:
    return _texts("series", [e.series for e in entries])


def _texts(title: str, texts: Iterable[str]) -> _Drawn:
    return _Drawn(Column(title), [Cell(text) for text in texts])


def _who(entries: Sequence[Entry]) -> list[_Drawn]:
    """Return the series and its load. A setting that all share is named below the table instead."""
    drawn = [_series(entries), *(_setting(name, entries) for name in _varying(entries))]
    if len({e.accelerators for e in entries}) > 1:
        drawn.append(_count("accelerators", "", entries, lambda e: e.accelerators))
    if any(e.repeats > 1 for e in entries):
        drawn.append(_count("repeats", "", entries, lambda e: e.repeats))
    return drawn


def _setting(name: str, entries: Sequence[Entry]) -> _Drawn:
    key = KEYS.get(name, Key())
    cells = [_scalar(e.load.get(name)) for e in entries]
    numeric = all(cell.value is not None for cell in cells if cell is not _UNKNOWN)
    return _Drawn(
        Column(key.title or name, key.unit, "number" if numeric else "text"), cells
    )


def _names(entries: Iterable[Entry]) -> list[str]:
    """Return keys in LOAD's order."""
    names = dict.fromkeys(name for e in entries for name in e.load.settings)
    return [*(n for n in LOAD if n in names), *(n for n in names if n not in LOAD)]


def varying(report: Report) -> dict[RowKind, list[str]]:
    """Return the load settings in which entries of each kind differ."""
    return {kind: _varying([e for e in report.entries if e.kind == kind]) for kind in KINDS}


def _varying(entries: Sequence[Entry]) -> list[str]:
    return [
        name
        for name in _names(entries)
        if len({str(e.load.get(name)) for e in entries}) > 1
    ]


def _in_common(entries: Sequence[Entry]) -> str:
    sentences = []
    shared = entries[0].load.without(*_varying(entries))
    if shared:
        sentences.append(f"All rows: {shared.words}.")
    if any(e.repeats > 1 for e in entries):
        sentences.append("Completed, failed and duration are totals over repeats.")
    return " ".join(sentences)


def _why_unknown(entries: Sequence[Entry], drawn: Sequence[_Drawn]) -> str:
    """Say why latencies are missing, where a busy client is the reason."""
    unseen = [
        i
        for i, e in enumerate(entries)
        if any(f.code == "client.unseen_chunks" for f in e.findings)
    ]
    latencies = [d.cells for d in drawn if d.column.unit == "ms"]
    if not any(cells[i] is _UNKNOWN for cells in latencies for i in unseen):
        return ""
    return (
        "–: in one run at least, a client without a free core knew this within bounds only."
    )


def _counts(entries: Sequence[Entry]) -> list[_Drawn]:
    unit = "items" if all(e.kind == "quality" for e in entries) else "requests"
    drawn = [
        _count("completed", unit, entries, lambda e: e.completed),
        _count("failed", unit, entries, lambda e: e.failed),
    ]
    return drawn if any(d.known for d in drawn) else []


def _verdicts(entries: Sequence[Entry]) -> _Drawn:
    return _Drawn(
        Column("verdict", kind="verdict"), [Cell(verdict_words(e)) for e in entries]
    )


def verdict_words(entry: Entry) -> str:
    return (
        f"{entry.verdict}, no result"
        if entry.failure and not entry.figures
        else entry.verdict
    )


def _figures(entries: Sequence[Entry]) -> list[_Drawn]:
    """Return the duration and speeds, then latencies. A figure without values has no column."""
    drawn: list[_Drawn] = []
    for m in METRICS.values():
        if m.column:
            rate = m.kind == "rate"  # its title has its unit
            drawn += _by_meaning(
                m.column, "" if rate else m.unit, entries, _picked(m.name), rate
            )
    drawn += _by_meaning("score", "", entries, _picked("score"))
    for stem in SAMPLED:
        drawn += _latencies(entries, stem)
    return drawn


def _quality(entries: Sequence[Entry], detectable: bool = True) -> list[_Drawn]:
    """Return the score of each series over all tasks, beside its speed, and its difference from the reference."""
    known = [e.quality for e in entries if e.quality is not None]

    def column(title: str, cell: Callable[[Quality], Cell]) -> _Drawn:
        cells = [_UNKNOWN if e.quality is None else cell(e.quality) for e in entries]
        return _Drawn(Column(title, kind="figure"), cells)

    drawn = []
    if any(e.quality is not None and e.kind != "quality" for e in entries):
        drawn.append(column("score", _score))
    for reference in dict.fromkeys(q.reference for q in known):
        if reference:
            drawn.append(column(f"against {reference}", _loss))
    if detectable and any(q.detectable is not None for q in known):
        drawn.append(column("detectable", lambda q: _cell(q.detectable, points)))
    return drawn


def _score(q: Quality) -> Cell:
    n, interval = q.score, ""
    if n.low is not None and n.high is not None:
        interval = f"{score(n.low).removesuffix(' %')} to {score(n.high)}"
    return Cell(score(n.value), n.value, interval)


def _loss(q: Quality) -> Cell:
    if not q.reference:
        return _UNKNOWN
    if q.change is None:
        return Cell(q.word)
    interval = (
        f"({points_interval(q.change.low, q.change.high)}), "
        if q.change.low is not None
        else ""
    )
    return Cell(points(q.change.value, signed=True), q.change.value, f"{interval}{q.word}")


def statistics(report: Report) -> list[str]:
    """Return those to choose from, the commonest first."""

    def results(name: str) -> int:
        return sum(
            e.statistic(name, stem) is not None for e in report.entries for stem in SAMPLED
        )

    counts = {name: results(name) for name in STATISTICS}
    return [
        name for name in sorted(STATISTICS, key=lambda name: -counts[name]) if counts[name]
    ]


def _latencies(entries: Sequence[Entry], stem: str) -> list[_Drawn]:
    """Return a column for each statistic. Where a result lacks the chosen one, its nearest is shown beside."""
    shown: dict[str, set[str]] = {}
    for e in entries:
        for chosen, name in _nearest(e, stem).items():
            shown.setdefault(name, set()).add(chosen)
    drawn = []
    for name in sorted(shown, key=lambda s: 50.5 if s == "mean" else float(s[1:])):
        title = metric(f"{name}_{stem}_ms").column
        for column, cells in _by_meaning(title, "ms", entries, _statistic(name, stem)):
            drawn.append(
                _Drawn(msgspec.structs.replace(column, shown=sorted(shown[name])), cells)
            )
    return drawn


def _nearest(e: Entry, stem: str) -> dict[str, str]:
    """Return the statistic that a result has in place of each that a page lets choose from."""
    tails = [f"p{p:g}" for p in reversed(_percentiles(e, stem))]
    candidates = {
        "p50": ("p50", "mean"),
        "mean": ("mean", "p50"),
        "p99": ("p99", *tails, "mean", "p50"),
    }
    out = {}
    for chosen, names in candidates.items():
        name = next((n for n in names if e.statistic(n, stem) is not None), None)
        if name is not None:
            out[chosen] = name
    return out


def _statistic(name: str, stem: str) -> Callable[[Entry], Number | None]:
    return lambda e: e.statistic(name, stem)


def _percentiles(entry: Entry, stem: str) -> list[float]:
    """Return the percentiles above the middle that it has."""
    end = f"_{stem}_ms"
    percentiles = [
        n[1 : -len(end)] for n in entry.figures if n.startswith("p") and n.endswith(end)
    ]
    return sorted(
        float(p) for p in percentiles if p.replace(".", "", 1).isdigit() and float(p) > 50
    )


def _by_meaning(
    title: str,
    unit: str,
    entries: Sequence[Entry],
    pick: Callable[[Entry], Number | None],
    per: bool = False,
) -> list[_Drawn]:
    """Give each definition its own column, named for its tools."""
    numbers = [pick(e) for e in entries]
    index = meanings(n.definition for n in numbers if n is not None)
    groups: dict[int, list[str]] = {}
    for definition, group in index.items():
        groups.setdefault(group, []).append(definition)
    drawn = []
    for _, definitions in sorted(groups.items()):
        cells = [
            _figure(e, n, per)
            if n is not None and n.definition in definitions
            else _UNKNOWN
            for e, n in zip(entries, numbers, strict=True)
        ]
        whose = f" ({_tools(definitions)})" if len(groups) > 1 else ""
        drawn.append(_Drawn(Column(title + whose, unit, "figure", per), cells))
    return drawn


def _tools(definitions: Iterable[str]) -> str:
    """Name the tools of definitions: 'vllm.ttft' is vllm's."""
    return ", ".join(
        sorted(definition.split(".")[0] or "unknown" for definition in definitions)
    )


def _figure(entry: Entry, figure: Number, follows: bool) -> Cell:
    shares: dict[str, str] = {}
    if follows:
        for mode in PER[1:]:
            value = per.per(entry, figure.value, mode)
            if value is not None:
                shares[mode] = f"{_per_text(entry, value, mode)} {value!r}"
    return Cell(figure_text(figure), figure.value, figure_interval(figure), per=shares)


def _per_text(entry: Entry, value: float, mode: str) -> str:
    sign = "≈" if per.estimated(entry, mode) else ""
    return f"{sign}{number(value)}"


def _count(
    title: str, unit: str, entries: Sequence[Entry], pick: Callable[[Entry], float | None]
) -> _Drawn:
    return _Drawn(Column(title, unit, "number"), [_cell(pick(e), count) for e in entries])


def _cell(value: float | None, show: Callable[[float], str]) -> Cell:
    return _UNKNOWN if value is None else Cell(show(value), value)


def _scalar(value: Scalar | None) -> Cell:
    if value is None:
        return _UNKNOWN
    if isinstance(value, str | bool):
        return Cell(setting(value))
    return Cell(count(value), float(value))


# ---- cost ----


def cost(report: Report) -> list[Table]:
    """Return one table for each currency."""
    by_currency = _by_currency(report.entries)
    tables = []
    for i, (name, entries) in enumerate(by_currency.items()):
        drawn = [d for d in _costs(entries, currency(name)) if d.known]
        if entries and drawn:
            title = (
                f"Cost and energy, in {name}" if len(by_currency) > 1 else "Cost and energy"
            )
            shown = [*_who(entries), *_counts(entries), _verdicts(entries), *drawn]
            tables.append(
                _table(f"cost-{i}" if i else "cost", title, entries, shown, _COST_ABOUT)
            )
    return tables


def _by_currency(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the timed entries of each currency; those without a price are with the first."""
    known = [e for e in entries if e.figures and e.kind != "quality" and _has_cost(e)]
    names = list(dict.fromkeys(e.cost.currency for e in known if e.cost is not None)) or [
        ""
    ]
    out: dict[str, list[Entry]] = {name: [] for name in names}
    for e in known:
        name = names[0] if e.cost is None else e.cost.currency
        out[name].append(e)
    return out


def _has_cost(e: Entry) -> bool:
    return e.cost is not None or bool(e.accelerators) or bool(e.joules_per_token)


_COST_ABOUT = (
    "Each column charges the full hourly price to that kind of token; do not add them up. ≈ is an estimate: a whole "
    "machine scaled up from the part that was measured, without losses."
)


def _costs(entries: Sequence[Entry], sign: str) -> list[_Drawn]:
    def column(
        title: str, unit: str, values: Iterable[float | None], show: Callable[[float], str]
    ) -> _Drawn:
        return _Drawn(Column(title, unit, "figure"), [_cell(v, show) for v in values])

    def priced(title: str, field: str, unit: str) -> _Drawn:
        values = (getattr(e.cost, field) if e.cost else None for e in entries)
        # an hour of 0: energy alone has a price
        return column(title, unit, (v or None for v in values), money)

    drawn = []
    for mode, unit in (("accelerator", "per accelerator"), ("machine", "per machine")):
        for name in TOKEN_THROUGHPUTS:
            cells = [_each(e, name, mode) for e in entries]
            drawn.append(_Drawn(Column(METRICS[name].column, unit, "figure"), cells))
    return [
        priced("price", "hour", f"{sign}/hour"),
        priced("input", "per_million_input", f"{sign}/M tokens"),
        priced("output", "per_million_output", f"{sign}/M tokens"),
        priced("total", "per_million_total", f"{sign}/M tokens"),
        priced("requests", "per_thousand_requests", f"{sign}/1000"),
        priced("energy", "energy_per_million_output", f"{sign}/M output"),
        *drawn,
        column("power", "W", (e.power_w for e in entries), number),
        column("energy", "J/token", (e.joules_per_token for e in entries), number),
    ]


def _each(entry: Entry, name: str, mode: str) -> Cell:
    speed = entry.value(name)
    value = None if speed is None else per.per(entry, speed, mode)
    if value is None:
        return _UNKNOWN
    return Cell(_per_text(entry, value, mode), value)


# ---- the best load ----


def figure_words(name: str) -> str:
    """Return a figure's name as people write it: 'p99_ttft_ms' → 'p99 TTFT'."""
    return metric(name).column or name.removesuffix("_s").replace("_", " ")


def figure_unit(name: str) -> str:
    if name.endswith("_ms"):
        return " ms"
    return " s" if name.endswith("_s") else ""


def best(report: Report) -> Table | None:
    """Return the highest throughput within the target, for each series and workload."""
    if not report.best:
        return None
    entries = {e.id: e for e in report.entries}
    chosen = [entries.get(b.entry or "") for b in report.best]
    loads = [_best_load(e, b.why) for e, b in zip(chosen, report.best, strict=True)]
    drawn = [
        _texts("series", [b.series for b in report.best]),
        _texts("workload", [b.workload for b in report.best]),
        _Drawn(Column("best load"), loads),
        *_where_chosen(chosen),
    ]
    lines = []
    for i, e in enumerate(chosen):
        cells = [d.cells[i] for d in drawn]
        series = report.best[i].series
        lines.append(
            Line(cells, series=series)
            if e is None
            else Line(cells, e.id, series, e.verdict)
        )
    title, about = "Best load", ""
    if report.target:
        title = f"Best load with {limit_words(report.target)}"
        about = " ".join([_BEST_ABOUT, *report.target_words])
    notes = f"{about} {too_wide(lines)}".strip()
    return Table([d.column for d in drawn], lines, "best", title, notes)


def _where_chosen(chosen: Sequence[Entry | None]) -> Iterator[_Drawn]:
    """Yield the columns of figures, with unknown cells where no load was chosen."""
    known = [e for e in chosen if e is not None]
    if not known:
        return
    for column, cells in [
        *_counts(known),
        _verdicts(known),
        *_figures(known),
        *_prices(known),
    ]:
        left = iter(cells)
        yield _Drawn(column, [_UNKNOWN if e is None else next(left) for e in chosen])


def _prices(entries: Sequence[Entry]) -> list[_Drawn]:
    """Return the columns of prices, none where entries have several currencies: two don't share a column."""
    names = {e.cost.currency for e in entries if e.cost}
    sign = currency(names.pop()) if len(names) == 1 else ""
    if not sign:
        return []
    return [d for d in _costs(entries, sign) if d.known and d.column.unit.startswith(sign)]


_BEST_ABOUT = "The load with the highest throughput, of those that meet the target."


def _best_load(entry: Entry | None, why: str) -> Cell:
    """Return the level of the load; the workload has a column."""
    if entry is None:
        return Cell(f"none: {why}" if why else "none")
    return Cell(entry.load.level_words if entry.load.paced else entry.load.words)


# ---- findings ----


def findings(report: Report) -> Table | None:
    """Return all findings but the notes of short runs, which the line below the verdict has."""
    shown = short_run.join(report.findings).others
    if not shown:
        return None
    columns = [
        Column("level", kind="level"),
        Column("code", kind="code"),
        Column("finding"),
        Column("advice"),
        Column("where", kind="places"),
        Column("trials", kind="trials"),
    ]
    # A run's folder is named by its trial, which links to it.
    own = {location for e in report.entries if e.tool == "dyno" for location in e.locations}
    lines = [Line(_finding(f, _affected(f, report.entries), own)) for f in shown]
    return Table(columns, lines, "findings", "Findings")


def _affected(f: Finding, entries: Sequence[Entry]) -> list[str]:
    """Return the ids of the entries that it is about."""
    locations = set(f.locations)

    def same(own: Finding) -> bool:
        return own.code == f.code and (
            own.text == f.text or bool(locations & set(own.locations))
        )

    return [
        e.id for e in entries if locations & set(e.locations) or any(map(same, e.findings))
    ]


def _finding(f: Finding, trials: list[str], own: set[str]) -> list[Cell]:
    where = _first(_by_file([place for place in f.locations if place not in own]))
    rank = {"void": 0.0, "doubt": 1.0, "note": 2.0}[f.level]
    return [
        Cell(f.level, rank),
        Cell(f.code),
        Cell(f.text),
        Cell(f.advice),
        Cell(where),
        Cell(_first(trials), float(len(trials)), trials=trials),
    ]


def _first(names: Sequence[str]) -> str:
    first = ", ".join(names[:PLACES])
    return f"{first} and {len(names) - PLACES} more" if len(names) > PLACES else first


def _by_file(locations: Iterable[str]) -> list[str]:
    """Gather the lines of each file: 'a.csv:76-83,90'."""
    files: dict[str, list[int]] = {}
    for location in locations:
        file, _, line = location.rpartition(":")
        if file and line.isdigit():
            files.setdefault(file, []).append(int(line))
        else:
            files.setdefault(location, [])
    return [
        f"{file}:{_ranges(sorted(set(lines)))}" if lines else file
        for file, lines in files.items()
    ]


def _ranges(lines: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in spans)


# ---- tables of a report's authors ----


def authors(report: Report) -> list[Table]:
    return [_authors(i, t) for i, t in enumerate(report.tables)]


def _authors(index: int, theirs: AuthorsTable) -> Table:
    """Copy a table to the letter. Rows that are shorter or longer than the header keep their number of filled cells."""
    table = theirs.table
    width = max([len(table.header), *(len(row) for row in table.rows)])
    rows = []
    for row in table.rows:
        cells = [Cell(c.text, bold=c.bold) for c in row]
        rows.append(cells + [Cell("")] * (width - len(row)))
    columns = []
    for i, title in enumerate(table.header + [""] * (width - len(table.header))):
        numeric = _numeric(row[i].text for row in rows)
        columns.append(Column(title, kind="number" if numeric else "text"))
    where = f"{theirs.file}:{table.line}" if table.line else theirs.file
    title = f"{table.section}, {where}" if table.section else where
    return Table(columns, [Line(row) for row in rows], f"authors-{index + 1}", title)


def _numeric(texts: Iterable[str]) -> bool:
    filled = [t.strip() for t in texts if t.strip()]
    return bool(filled) and all(t.lstrip("~≈<>$€+-–− ")[:1].isdigit() for t in filled)
