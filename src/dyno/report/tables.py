"""The tables of a report as values, which the page, Markdown and CSV share. No speed without failures and a verdict."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from dyno.facts.entry import Entry, Number, Quality
from dyno.facts.find import FindAnswer
from dyno.facts.finding import Finding
from dyno.facts.imported import RowKind, Scalar
from dyno.facts.load import KEYS, LOAD, Key
from dyno.facts.metric import METRICS, SAMPLED, TOKEN_THROUGHPUTS, meanings, metric
from dyno.facts.report import PER, AuthorsTable, Contender, Report
from dyno.numbers import (
    UNKNOWN,
    change,
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
from dyno.report import find, per
from dyno.report.table import Cell, Column, Line, Table, figure_interval, figure_text
from dyno.report.target import limit_words

PLACES = 8  # evidence lines shown of a finding
STATISTICS = ("p50", "mean", "p99")  # that a page lets choose from

KINDS: dict[RowKind, str] = {
    "serve": "Serving", "throughput": "Offline throughput", "latency": "Offline latency", "micro": "Micro tests",
    "quality": "Quality",
}  # fmt: skip
_UNKNOWN = Cell(UNKNOWN)


class _Drawn(NamedTuple):
    column: Column
    cells: list[Cell]

    @property
    def known(self) -> bool:
        return any(cell is not _UNKNOWN for cell in self.cells)


# ---- the answer ----


def answer(report: Report) -> Table | None:
    """The contenders with the figures that decide, each with the leader's margin over it."""
    standing, by_id = report.words.standing, {e.id: e for e in report.entries}
    rows = [(c, by_id[c.entry]) for c in standing.contenders if c.entry in by_id] if standing is not None else []
    if standing is None or not rows:
        return None
    entries = [e for _, e in rows]
    drawn = [_Drawn(Column("series"), [Cell(e.series) for e in entries])]
    if len({e.load.level for e in entries}) > 1:
        key = KEYS[entries[0].axis]
        drawn.append(_count(key.title or entries[0].axis, key.unit, entries, lambda e: e.axes.get(e.axis)))
    m = metric(standing.metric)
    drawn += _by_meaning(m.column or m.name, "ms" if m.kind == "latency" else "", entries,
                         lambda e: e.figures.get(m.name), per=m.kind == "rate")  # fmt: skip
    if any(c.word for c, _ in rows):
        drawn.append(_Drawn(Column("leader ahead", kind="figure"), [_lead(c) for c, _ in rows]))
    drawn += _quality(entries, detectable=False) if m.name != "score" else []  # a sentence has it
    if m.kind != "latency":
        stem = next((s for s in ("ttft", "latency") if any(_latencies([e], s) for e in entries)), "")
        drawn += _latencies(entries, stem) if stem else []
    prices = [(c, cells) for c, cells in _prices(entries) if c.title in ("output", "total") and "/M" in c.unit]
    drawn += [_Drawn(Column("cost", f"{c.unit.split()[0]} {c.title}", "figure"), cells) for c, cells in prices[:1]]
    drawn += [*_counts(entries)[1:], _verdicts(entries)]
    same = entries[0].load.level_words if len({e.load.level for e in entries}) == 1 else ""
    title = ", ".join(filter(None, [standing.workload, same])) or "Contenders"
    more = f"{standing.more} more below." if standing.more else ""
    return _table("answer", title, entries, drawn, more)


def _lead(c: Contender) -> Cell:
    return _UNKNOWN if not c.word else Cell(points(c.lead, signed=True) if c.points else change(c.lead), c.lead, c.word)


# ---- results ----


def results(report: Report) -> list[Table]:
    """One for each kind: serving and micro tests share no columns."""
    tables = _searches([e for e in report.entries if e.search])
    for kind, title in KINDS.items():
        if entries := [e for e in report.entries if e.kind == kind]:
            figures = [_figures(entries), _quality(entries)]
            first, then = figures if kind == "quality" else reversed(figures)  # latencies are many
            drawn = [*_who(entries), *_counts(entries), _verdicts(entries), *first, *then]
            tables.append(_table(f"results-{kind}", title, entries, drawn, _in_common(entries)))
            tables += [*_sessions(entries), *_classes(entries)]
    return tables


def _searches(entries: Sequence[Entry]) -> list[Table]:
    """Answers of searches, one line each."""
    pairs = [(e, answer) for e in entries if (answer := e.search)]
    if not pairs:
        return []
    answers = [answer for _, answer in pairs]
    drawn = [_Drawn(Column("series"), [Cell(e.series) for e in entries])]
    workloads = [e.load.workload.words for e in entries]
    if len(set(workloads)) > 1:
        drawn.append(_Drawn(Column("workload"), [Cell(words) for words in workloads]))
    drawn.append(
        _Drawn(Column("highest load", find.load_unit(answers), "figure"), [_highest(answer) for answer in answers])
    )
    at_low = [answer.at_level(answer.low) for answer in answers]
    at_high = [answer.at_level(answer.high) for answer in answers]
    for where, probes in (("there", at_low), ("above", at_high)):
        texts = [_UNKNOWN if probe is None else Cell(find.figures(probe, speed=False)) for probe in probes]
        drawn.append(_Drawn(Column(f"figures {where}"), texts))
    drawn.append(_Drawn(Column("limited by"), [Cell("; ".join(a.limited_by) or UNKNOWN) for a in answers]))
    speeds = [None if probe is None else probe.throughput for probe in at_low]
    drawn.append(_Drawn(Column("output tok/s", kind="number"), [_cell(speed, number) for speed in speeds]))
    prices = [(c, cells) for c, cells in _prices(entries) if c.title == "output" and "/M" in c.unit]
    drawn += [_Drawn(Column("cost", f"{c.unit.split()[0]} output", "figure"), cells) for c, cells in prices]
    drawn.append(_verdicts(entries))
    about = f"Target: {find.targets(answers)}."
    return [_table("searches", "Highest load within the target", entries, drawn, about)]


def _highest(answer: FindAnswer) -> Cell:
    if answer.low is None:
        return Cell(find.headline(answer))
    interval = f"({count(answer.low)} to {count(answer.high)})" if answer.high is not None else "or more"
    return Cell(count(answer.low), answer.low, interval)


_SESSIONS = ("session_throughput", "median_session_ms", "p99_session_ms", "median_session_busy_ms",
             "median_first_turn_ttft_ms", "median_later_turn_ttft_ms", "p99_later_turn_ttft_ms")  # fmt: skip


def _sessions(entries: Sequence[Entry]) -> list[Table]:
    """Conversations and agents: figures of whole sessions."""
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
        drawn += _by_meaning(m.column or m.words, m.unit if m.kind == "latency" else "", own, _picked(name))
    for name, title in (("possible_reuse", "possible"), ("reported_reuse", "reported")):
        cells = [_cell(e.value(name), percent) for e in own]
        drawn.append(_Drawn(Column("prefix reuse", title, "number"), cells))
    about = "From a session's first sending to its last token. In requests: without think and tool times."
    return [_table("sessions", "Sessions", own, [d for d in drawn if d.known], about)]


def _picked(name: str) -> Callable[[Entry], Number | None]:
    return lambda e: e.figures.get(name)


def _classes(entries: Sequence[Entry]) -> list[Table]:
    """One line per class of traffic, of the first repeat."""
    lines = [(e, c) for e in entries for c in e.classes]
    if not lines:
        return []
    own = [e for e, _ in lines]
    classes = [c for _, c in lines]

    def figures(title: str, unit: str, values: Iterable[float | None]) -> _Drawn:
        return _Drawn(Column(title, unit, "figure"), [_cell(v, number) for v in values])

    drawn = [
        *_who(own),
        _Drawn(Column("class"), [Cell(c.name) for c in classes]),
        _Drawn(Column("completed", "requests", "number"), [_cell(c.completed, count) for c in classes]),
        _Drawn(Column("failed", "requests", "number"), [_cell(c.failed, count) for c in classes]),
        _verdicts(own),
        figures("req/s", "", (c.request_throughput for c in classes)),
        figures("goodput req/s", "", (c.goodput for c in classes)),
        figures("output tok/s", "", (c.output_throughput for c in classes)),
        figures("p50 TTFT", "ms", (c.ttft.median for c in classes)),
        figures("p99 TTFT", "ms", (c.ttft.percentiles.get("99") for c in classes)),
        figures("p50 TPOT", "ms", (c.tpot.median for c in classes)),
        figures("p50 E2EL", "ms", (c.e2el.median for c in classes)),
    ]
    about = "The first repeat of each." if any(e.repeats > 1 for e in own) else ""
    return [_table("classes", "Traffic classes", own, [d for d in drawn if d.known], about)]


def _table(name: str, title: str, entries: Sequence[Entry], drawn: Sequence[_Drawn], about: str = "") -> Table:
    lines = [
        Line([d.cells[i] for d in drawn], entry.id, entry.series, entry.verdict) for i, entry in enumerate(entries)
    ]
    return Table([d.column for d in drawn], lines, name, title, about)


def _who(entries: Sequence[Entry]) -> list[_Drawn]:
    """The series and its load. A setting that all share is named below the table instead."""
    drawn = [_Drawn(Column("series"), [Cell(e.series) for e in entries])]
    for name in _varying(entries):
        key = KEYS.get(name, Key())
        values = [e.load.get(name) for e in entries]
        cells = [_scalar(v) for v in values]
        numeric = all(c.value is not None for c in cells if c is not _UNKNOWN)
        drawn.append(_Drawn(Column(key.title or name, key.unit, "number" if numeric else "text"), cells))
    if len({e.accelerators for e in entries}) > 1:
        drawn.append(_count("accelerators", "", entries, lambda e: e.accelerators))
    if any(e.repeats > 1 for e in entries):
        drawn.append(_count("repeats", "", entries, lambda e: e.repeats))
    return drawn


def _names(entries: Iterable[Entry]) -> list[str]:
    """Return keys in LOAD's order."""
    names = dict.fromkeys(name for e in entries for name in e.load.settings)
    return [*(n for n in LOAD if n in names), *(n for n in names if n not in LOAD)]


def varying(report: Report) -> dict[RowKind, list[str]]:
    """Return the load settings in which entries of each kind differ."""
    return {kind: _varying([e for e in report.entries if e.kind == kind]) for kind in KINDS}


def _varying(entries: Sequence[Entry]) -> list[str]:
    return [name for name in _names(entries) if len({str(e.load.get(name)) for e in entries}) > 1]


def _in_common(entries: Sequence[Entry]) -> str:
    varying = set(_varying(entries))
    shared = entries[0].load.without(*varying)
    totals = "Completed, failed and duration are totals over repeats." if any(e.repeats > 1 for e in entries) else ""
    return " ".join(filter(None, [f"All rows: {shared.words}." if shared else "", totals]))


def _counts(entries: Sequence[Entry]) -> list[_Drawn]:
    unit = "items" if all(e.kind == "quality" for e in entries) else "requests"
    drawn = [
        _count("completed", unit, entries, lambda e: e.completed),
        _count("failed", unit, entries, lambda e: e.failed),
    ]
    return drawn if any(d.known for d in drawn) else []


def _verdicts(entries: Sequence[Entry]) -> _Drawn:
    return _Drawn(Column("verdict", kind="verdict"), [Cell(verdict_words(e)) for e in entries])


def verdict_words(entry: Entry) -> str:
    return f"{entry.verdict}, no result" if entry.failure and not entry.figures else entry.verdict


def _figures(entries: Sequence[Entry]) -> list[_Drawn]:
    """The duration and speeds, then latencies. A figure without values has no column."""
    drawn: list[_Drawn] = []
    for m in METRICS.values():
        if m.column:
            rate = m.kind == "rate"  # its title has its unit
            drawn += _by_meaning(m.column, "" if rate else m.unit, entries, lambda e, n=m.name: e.figures.get(n), rate)  # type: ignore[misc]
    drawn += _by_meaning("score", "", entries, lambda e: e.figures.get("score"))
    return drawn + [column for stem in SAMPLED for column in _latencies(entries, stem)]


def _quality(entries: Sequence[Entry], detectable: bool = True) -> list[_Drawn]:
    """The score of each series over all tasks, beside its speed, and its difference from the reference."""
    known = [e.quality for e in entries]
    drawn = []
    if any(e.quality and e.kind != "quality" for e in entries):
        drawn.append(_Drawn(Column("score", kind="figure"), [_UNKNOWN if q is None else _score(q) for q in known]))
    for reference in dict.fromkeys(q.reference for q in known if q and q.reference):
        cells = [_UNKNOWN if q is None or not q.reference else _loss(q) for q in known]
        drawn.append(_Drawn(Column(f"against {reference}", kind="figure"), cells))
    if detectable and any(q and q.detectable is not None for q in known):
        least = [
            _UNKNOWN if q is None or q.detectable is None else Cell(points(q.detectable), q.detectable) for q in known
        ]
        drawn.append(_Drawn(Column("detectable", kind="figure"), least))
    return drawn


def _score(q: Quality) -> Cell:
    n, interval = q.score, ""
    if n.low is not None and n.high is not None:
        interval = f"{score(n.low).removesuffix(' %')} to {score(n.high)}"
    return Cell(score(n.value), n.value, interval)


def _loss(q: Quality) -> Cell:
    if q.change is None:
        return Cell(q.word)
    interval = f"({points_interval(q.change.low, q.change.high)}), " if q.change.low is not None else ""
    return Cell(points(q.change.value, signed=True), q.change.value, f"{interval}{q.word}")


def statistics(report: Report) -> list[str]:
    """Those to choose from, the commonest first."""
    counts = {
        name: sum(e.statistic(name, s) is not None for e in report.entries for s in SAMPLED) for name in STATISTICS
    }
    return [name for name in sorted(STATISTICS, key=lambda name: -counts[name]) if counts[name]]


def _latencies(entries: Sequence[Entry], stem: str) -> list[_Drawn]:
    """A column for each statistic. Where a result lacks the chosen one, its nearest is shown beside."""
    shown: dict[str, set[str]] = {}
    for e in entries:
        tails = [f"p{p:g}" for p in reversed(_percentiles(e, stem))]
        nearest = {"p50": ("p50", "mean"), "mean": ("mean", "p50"), "p99": ("p99", *tails, "mean", "p50")}
        for chosen, names in nearest.items():
            if name := next((n for n in names if e.statistic(n, stem) is not None), ""):
                shown.setdefault(name, set()).add(chosen)
    drawn = []
    for name in sorted(shown, key=lambda s: 50.5 if s == "mean" else float(s[1:])):
        title = metric(f"{name}_{stem}_ms").column
        for column, cells in _by_meaning(title, "ms", entries, lambda e, n=name: e.statistic(n, stem)):  # type: ignore[misc]
            drawn.append(_Drawn(msgspec.structs.replace(column, shown=sorted(shown[name])), cells))
    return drawn


def _percentiles(entry: Entry, stem: str) -> list[float]:
    """Those above the middle that it has."""
    end = f"_{stem}_ms"
    percentiles = [n[1 : -len(end)] for n in entry.figures if n.startswith("p") and n.endswith(end)]
    return sorted(float(p) for p in percentiles if p.replace(".", "", 1).isdigit() and float(p) > 50)


def _by_meaning(
    title: str, unit: str, entries: Sequence[Entry], pick: Callable[[Entry], Number | None], per: bool = False
) -> list[_Drawn]:
    """Give each definition its own column, named for its tools."""
    numbers = [pick(e) for e in entries]
    index = meanings(n.definition for n in numbers if n is not None)
    groups = [{key for key, number in index.items() if number == i} for i in sorted(set(index.values()))]
    drawn = []
    for group in groups:
        cells = [_UNKNOWN if n is None or n.definition not in group else _figure(e, n, per)
                 for e, n in zip(entries, numbers, strict=True)]  # fmt: skip
        whose = f" ({', '.join(sorted(k.split('.')[0] or 'unknown' for k in group))})" if len(groups) > 1 else ""
        drawn.append(_Drawn(Column(title + whose, unit, "figure", per), cells))
    return drawn


def _figure(entry: Entry, figure: Number, follows: bool) -> Cell:
    shares: dict[str, str] = {}
    for mode in PER[1:] if follows else ():
        if (value := per.per(entry, figure.value, mode)) is not None:
            shares[mode] = f"{'≈' if per.estimated(entry, mode) else ''}{number(value)} {value!r}"
    return Cell(figure_text(figure), figure.value, figure_interval(figure), per=shares)


def _count(title: str, unit: str, entries: Sequence[Entry], pick: Callable[[Entry], float | None]) -> _Drawn:
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
    """One for each currency."""
    able = [e for e in report.entries if e.figures and e.kind != "quality"]
    known = [e for e in able if e.cost is not None or e.accelerators or e.joules_per_token]
    names = dict.fromkeys(e.cost.currency for e in known if e.cost is not None) or {"": None}
    tables = []
    for i, name in enumerate(names):
        entries = [e for e in known if (e.cost is None and i == 0) or (e.cost is not None and e.cost.currency == name)]
        if entries and (drawn := [d for d in _costs(entries, currency(name)) if d.known]):
            title = "Cost and energy" + (f", in {name}" if len(names) > 1 else "")
            shown = [*_who(entries), *_counts(entries), _verdicts(entries), *drawn]
            tables.append(_table(f"cost-{i}" if i else "cost", title, entries, shown, _COST_ABOUT))
    return tables


_COST_ABOUT = (
    "Each column charges the full hourly price to that kind of token; do not add them up. ≈ is an estimate: a whole "
    "machine scaled up from the part that was measured, without losses."
)


def _costs(entries: Sequence[Entry], sign: str) -> list[_Drawn]:
    def column(title: str, unit: str, values: Iterable[float | None], show: Callable[[float], str]) -> _Drawn:
        return _Drawn(Column(title, unit, "figure"), [_cell(v, show) for v in values])

    def priced(title: str, field: str, unit: str) -> _Drawn:
        values = (getattr(e.cost, field) if e.cost else None for e in entries)
        return column(title, unit, (v or None for v in values), money)  # an hour of 0: energy alone has a price

    drawn = []
    for mode, unit in (("accelerator", "per accelerator"), ("machine", "per machine")):
        for name in TOKEN_THROUGHPUTS:
            drawn.append(_Drawn(Column(METRICS[name].column, unit, "figure"), [_each(e, name, mode) for e in entries]))
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
    return Cell(("≈" if per.estimated(entry, mode) else "") + number(value), value)


# ---- the best load ----


def figure_words(name: str) -> str:
    """'p99_ttft_ms' → 'p99 TTFT'."""
    return metric(name).column or name.removesuffix("_s").replace("_", " ")


def figure_unit(name: str) -> str:
    return " ms" if name.endswith("_ms") else " s" if name.endswith("_s") else ""


def best(report: Report) -> Table | None:
    """The highest throughput within the target, for each series and workload."""
    if not report.best:
        return None
    entries = {e.id: e for e in report.entries}
    chosen = [entries.get(b.entry or "") for b in report.best]
    known = [e for e in chosen if e is not None]
    drawn = [
        _Drawn(Column("series"), [Cell(b.series) for b in report.best]),
        _Drawn(Column("workload"), [Cell(b.workload) for b in report.best]),
        _Drawn(Column("best load"), [_best_load(e, b.why) for e, b in zip(chosen, report.best, strict=True)]),
    ]
    for column, cells in [*_counts(known), _verdicts(known), *_figures(known), *_prices(known)] if known else []:
        left = iter(cells)
        drawn.append(_Drawn(column, [_UNKNOWN if e is None else next(left) for e in chosen]))
    lines = [
        Line([d.cells[i] for d in drawn], e.id if e else "", report.best[i].series, e.verdict if e else "")
        for i, e in enumerate(chosen)
    ]
    title = f"Best load with {limit_words(report.target)}" if report.target else "Best load"
    about = " ".join([_BEST_ABOUT, *report.target_words]) if report.target else ""
    return Table([d.column for d in drawn], lines, "best", title, about)


def _prices(entries: Sequence[Entry]) -> list[_Drawn]:
    """Two currencies don't share a column."""
    names = {e.cost.currency for e in entries if e.cost}
    sign = currency(names.pop()) if len(names) == 1 else ""
    return [d for d in _costs(entries, sign) if d.known and sign and d.column.unit.startswith(sign)]


_BEST_ABOUT = "The load with the highest throughput, of those that meet the target."


def _best_load(entry: Entry | None, why: str) -> Cell:
    """The level of the load; the workload has a column."""
    if entry is None:
        return Cell(f"none: {why}" if why else "none")
    return Cell(entry.load.level_words if entry.load.paced else entry.load.words)


# ---- findings ----


def findings(report: Report) -> Table | None:
    if not report.findings:
        return None
    columns = [Column("level", kind="level"), Column("code", kind="code"), Column("finding"),
               Column("advice"), Column("where", kind="places"), Column("trials", kind="trials")]  # fmt: skip
    # A run's folder is named by its trial, which links to it.
    own = {location for e in report.entries if e.tool == "dyno" for location in e.locations}
    lines = [Line(_finding(f, _affected(f, report.entries), own)) for f in report.findings]
    return Table(columns, lines, "findings", "Findings")


def _affected(f: Finding, entries: Sequence[Entry]) -> list[str]:
    """The entries that it is about."""
    locations = set(f.locations)
    return [
        e.id
        for e in entries
        if locations & set(e.locations)
        or any(o.code == f.code and (o.text == f.text or locations & set(o.locations)) for o in e.findings)
    ]


def _finding(f: Finding, trials: list[str], own: set[str]) -> list[Cell]:
    where = _first(_by_file([place for place in f.locations if place not in own]))
    rank = {"void": 0.0, "doubt": 1.0, "note": 2.0}[f.level]
    return [Cell(f.level, rank), Cell(f.code), Cell(f.text), Cell(f.advice), Cell(where),
            Cell(_first(trials), float(len(trials)), trials=trials)]  # fmt: skip


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:PLACES]) + (f" and {len(names) - PLACES} more" if len(names) > PLACES else "")


def _by_file(locations: Iterable[str]) -> list[str]:
    """The lines of each file together: 'a.csv:76-83,90'."""
    files: dict[str, list[int]] = {}
    for location in locations:
        file, _, line = location.rpartition(":")
        name, number = (file, [int(line)]) if file and line.isdigit() else (location, [])
        files.setdefault(name, []).extend(number)
    return [f"{file}:{_ranges(sorted(set(lines)))}" if lines else file for file, lines in files.items()]


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
    """To the letter. Rows that are shorter or longer than the header stay so in number of filled cells."""
    table = theirs.table
    width = max([len(table.header), *(len(row) for row in table.rows)])
    rows = [[Cell(c.text, bold=c.bold) for c in row] + [Cell("")] * (width - len(row)) for row in table.rows]
    header = table.header + [""] * (width - len(table.header))
    columns = [Column(h, kind="number" if _numeric(row[i].text for row in rows) else "text")
               for i, h in enumerate(header)]  # fmt: skip
    where = f"{theirs.file}:{table.line}" if table.line else theirs.file
    title = f"{table.section}, {where}" if table.section else where
    return Table(columns, [Line(row) for row in rows], f"authors-{index + 1}", title)


def _numeric(texts: Iterable[str]) -> bool:
    filled = [t.strip() for t in texts if t.strip()]
    return bool(filled) and all(t.lstrip("~≈<>$€+-–− ")[:1].isdigit() for t in filled)
