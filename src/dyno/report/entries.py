"""Results as a report's entries: repeats together, each figure with its interval, its price and its doubts."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean

import msgspec

from dyno.facts.comparison import Estimate
from dyno.facts.entry import Entry, Memory, Number, Position
from dyno.facts.finding import Finding, Verdict, verdict
from dyno.facts.imported import Row, RowKind
from dyno.facts.load import rank
from dyno.facts.measured import Measured
from dyno.facts.metric import SPEEDS, TOKEN_THROUGHPUTS, latency, metric
from dyno.facts.price import PriceRule
from dyno.facts.summary import Result
from dyno.measure.bootstrap import QUICK
from dyno.measure.cost import Chosen, choose, cost, rates, stated
from dyno.measure.dedupe import once
from dyno.measure.estimate import estimates
from dyno.measure.pairs import Group, groups
from dyno.measure.points import sent
from dyno.measure.repeats import apart, differing
from dyno.measure.student import quantile
from dyno.report import series
from dyno.report.loads import Loads
from dyno.report.timeline import Detail, quantiles

_OWN_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_TIED = 1e-12
_SPEED = (*TOKEN_THROUGHPUTS, "speed")  # the first that is told


class Made(msgspec.Struct, frozen=True):
    """An entry, and what it was made of."""

    entry: Entry
    group: Group
    price: str = ""  # the assumption, in words


def entries(
    measured: Sequence[Measured], found: Sequence[Finding], rules: Sequence[PriceRule],
    detail: Callable[[Measured], Detail | None],
) -> list[Made]:  # fmt: skip
    """`found`: of an audit, each with its places. `detail`: the single requests, read when they are needed and then
    let go: those of a thousand trials would not fit."""
    own = groups([m for m in measured if m.row.form == "run" and not m.why_not])
    others = once([m for m in measured if m.row.form != "run"])
    missing = _missing(measured)
    firsts = [*(group[0] for group in own), *others, *(group[0] for group in missing)]
    loads = Loads(m.row for m in firsts)
    names = series.names(firsts, loads)
    together = _together([*own, *([m] for m in others), *missing], names, loads)
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    ranked = sorted(together, key=lambda pair: (order[pair[0]], _rank(pair[1][0].row, loads)))
    doubts = _by_place([*found, *_failures(measured)], measured)
    return [_made(f"t{i}", name, group, loads, doubts, rules, detail) for i, (name, group) in enumerate(ranked, 1)]


def _together(all_: Sequence[Group], names: Sequence[str], loads: Loads) -> list[tuple[str, Group]]:
    """Results of other tools with one name and one load are repeats: names see to that."""
    out: list[tuple[str, Group]] = []
    at: dict[tuple[object, ...], Group] = {}
    for name, group in zip(names, all_, strict=True):
        row = group[0].row
        key = (name, row.kind, row.tool, *sorted((k, str(v)) for k, v in loads.load(row).items()))
        if row.form != "run" and key in at:
            at[key].extend(group)
            continue
        out.append((name, list(group)))
        if row.form != "run":
            at[key] = out[-1][1]
    return out


def _key(m: Measured) -> tuple[str, str]:
    return (m.place.study if m.place is not None else "", m.row.label)


def _missing(measured: Sequence[Measured]) -> list[Group]:
    """Trials of which no repeat has a result."""
    done = {_key(m) for m in measured if not m.why_not and m.row.form == "run"}
    out: dict[tuple[str, str], Group] = {}
    for m in measured:
        if m.why_not and _key(m) not in done:
            out.setdefault(_key(m), []).append(m)
    return list(out.values())


def _failures(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Repeats that have no result are told at those that have one."""
    done: dict[tuple[str, str], list[Measured]] = {}
    for m in measured:
        if not m.why_not and m.row.form == "run":
            done.setdefault(_key(m), []).append(m)
    for m in measured:
        if m.why_not and (others := done.get(_key(m))):
            yield failed_trials([m], [o.row.location for o in others])


def about_failures(made: Sequence[Made]) -> list[Finding]:
    """Of trials without any result: of all of them, nothing is left that could be sound."""
    lost = [m for m in made if m.entry.failure]
    found = [failed_trials(m.group) for m in lost]
    return [msgspec.structs.replace(f, level="void") for f in found] if len(lost) == len(made) else found


def failed_trials(of: Sequence[Measured], at: Sequence[str] = ()) -> Finding:
    """`at`: results that it casts a doubt on; none: it stands for itself."""
    many = "A trial" if len(of) == 1 else f"{len(of)} trials"
    return Finding(
        "study.failed_trials",
        "doubt",
        f"{many} of {of[0].row.label!r} failed and {'has' if len(of) == 1 else 'have'} no result: {of[0].why_not}",
        "Run the study again: what failed is tried again.",
        list(at) or [m.row.location for m in of],
    )


def _rank(row: Row, loads: Loads) -> tuple[object, ...]:
    return row.kind, *rank(loads.load(row), loads.axes(row))


Doubts = dict[str, list[tuple[int, RowKind, Finding]]]


def _by_place(found: Iterable[Finding], measured: Sequence[Measured]) -> Doubts:
    """File → line (0 of a run's folder), kind, finding. It is about the kind of its first place: others are witnesses,
    as a micro test is that says how long a prompt must take."""
    rows: dict[str, list[Row]] = {}
    for m in measured:
        rows.setdefault(m.row.file, []).append(m.row)
    out: Doubts = {}
    for finding in found:
        places = [_place(at) for at in finding.locations]
        kinds = [row.kind for file, line in places[:1] for row in rows.get(file, ()) if not line or _within(row, line)]
        for file, line in places:
            for kind in kinds[:1]:
                out.setdefault(file, []).append((line, kind, finding))
    return out


def _place(at: str) -> tuple[str, int]:
    file, _, line = at.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (at, 0)


def _within(row: Row, line: int) -> bool:
    return row.line <= line <= row.end


def _made(
    id: str, name: str, group: Group, loads: Loads, doubts: Doubts,
    rules: Sequence[PriceRule], detail: Callable[[Measured], Detail | None],
) -> Made:  # fmt: skip
    first = group[0]
    row = first.row
    findings = _findings(name, group, doubts)
    entry = Entry(
        id=id,
        series=name,
        kind=row.kind,
        load=loads.load(row),
        axes=loads.axes(row),
        verdict="void" if first.why_not else _verdict(findings),
        label=row.label,
        tool=row.tool,
        findings=findings,
        settings={k: s.value for k, s in row.settings.items() if k not in ("verdict", "repeat")},
        repeats=len(group),
        locations=[row.location for m in group for row in (m.row, *m.also)],
        failure=first.why_not,
        accelerator=str(row.setting("accelerator") or ""),
        accelerators=_used(first),
        machine=_machine(first),
    )
    if first.why_not:
        return Made(entry, group)
    deep = detail(first)
    figures = _figures(group, deep.row if deep is not None else row)
    chosen = choose(
        rules, entry.accelerator, name, first.place.price if first.place else None, row.number("price_per_hour")
    )
    results = [m.result for m in group if m.result is not None]
    entry = msgspec.structs.replace(
        entry,
        figures=figures,
        completed=_sum(group, "completed"),
        failed=_failed(group),
        machine=_first(chosen.price.machine_accelerators if chosen else None, entry.machine),
        memory=_memory(results) or _memory_told(row),
        power_w=_mean([r.telemetry.power_mean_w for r in results if r.telemetry]) or row.get("power_w"),
        joules_per_token=_mean([r.telemetry.energy_per_output_token_j for r in results if r.telemetry]),
        **_roofline(results),
        quantiles=quantiles(deep.row) if deep is not None else {},
        bars=deep.bars if deep is not None else [],
        bars_of=deep.bars_of if deep is not None else 0,
        moments=deep.moments if deep is not None else [],
    )
    return Made(_priced(entry, chosen), group, stated(chosen, entry.accelerator) if chosen is not None else "")


def _priced(entry: Entry, chosen: Chosen | None) -> Entry:
    if chosen is None:
        return entry
    test = str(entry.load.get("test", ""))
    of = rates(entry.value, test)
    found = cost(chosen, of, entry.accelerators, entry.machine, entry.power_w, entry.joules_per_token)
    return msgspec.structs.replace(entry, cost=found)


def _findings(name: str, group: Group, doubts: Doubts) -> list[Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for m in group:
        told = [(line, kind, f, row) for row in (m.row, *m.also) for line, kind, f in doubts.get(row.file, ())]
        there = [f for line, kind, f, row in told if kind == row.kind and (line == 0 or _within(row, line))]
        for finding in (*m.findings, *there):
            found.setdefault((finding.code, finding.text), finding)
    results = [m.result for m in group if m.result is not None]
    figure = next((n for n in _SPEED if n in group[0].row.figures), "")
    speeds = [v for m in group if (v := m.row.get(figure)) is not None]
    repeated = differing(name, results) if results else apart(name, speeds)
    for finding in repeated:
        found.setdefault((finding.code, finding.text), finding)
    return list(found.values())


def _verdict(findings: Sequence[Finding]) -> Verdict:
    """What is not comparable may be sound by itself: that another one failed is no fault of this."""
    return verdict(f for f in findings if not f.code.startswith("comparability."))


# ---- figures ----


def _figures(group: Group, deep: Row) -> dict[str, Number]:
    """`deep`: the first one's row, with its samples where they are there."""
    rows = [m.row for m in group]
    names = dict.fromkeys(name for row in rows for name in row.figures)
    wanted = [n for n in names if n in SPEEDS or n == "score" or _is_latency(n)]
    if deep.form == "run" and deep.kind == "serve" and deep.samples is not None and len(group) == 1:
        wanted = [n for n in wanted if n in SPEEDS or _worth(n)]
    sides = [msgspec.structs.replace(group[0], row=deep)] if len(group) == 1 else group
    known = estimates(sides, wanted, QUICK)
    return {name: _number(name, rows, known.get(name)) for name in names}


def _is_latency(name: str) -> bool:
    of = latency(name)
    return of is not None and of[0] != "std"


def _worth(name: str) -> bool:
    """An interval of every percentile of every latency would take longer than all the rest of a report."""
    of = latency(name)
    return of is not None and of[0] in _OWN_STATISTICS and of[1] != "queue"


def _number(name: str, rows: Sequence[Row], known: Estimate | None) -> Number:
    told = [row.figures[name] for row in rows if name in row.figures]
    value = mean(f.value for f in told) if len(told) > 1 else told[0].value
    if metric(name).sums and len(rows) > 1:
        value *= len(rows)  # also where one of them doesn't tell it: else it wouldn't fit what the others sum up to
    first = told[0]
    low = high = None
    by = known.by if known is not None else ""
    if known is not None and known.error is not None and known.error > _TIED and value > 0:
        reach = quantile(0.975, known.df) * known.error
        if reach < 3:  # an interval of a factor of 20 says nothing
            low, high = value * math.exp(-reach), value * math.exp(reach)
    return Number(value, low, high, by if low is not None else "", first.half if len(told) == 1 else 0.0,
                  first.definition, first.deviation if len(told) == 1 else None)  # fmt: skip


def _sum(group: Group, name: str) -> float | None:
    told = [v for m in group if (v := m.row.get(name)) is not None]
    return sum(told) if told else None


def _failed(group: Group) -> float | None:
    """As told; else those that were sent and aren't among the completed."""
    lost = [_lost(m.row) for m in group]
    told = [n for n in lost if n is not None]
    return sum(told) if told else None


def _lost(row: Row) -> float | None:
    if (told := row.get("failed")) is not None:
        return told
    done, asked = row.get("completed"), sent(row)
    return asked[0] - done if done is not None and asked is not None and asked[0] >= done else None


def _mean(values: Iterable[float | None]) -> float | None:
    told = [v for v in values if v is not None]
    return mean(told) if told else None


# ---- the machine ----


def _used(m: Measured) -> float | None:
    """Accelerators that bore it. 0: the machine has none; None: not known."""
    if m.rig is not None and not m.rig.accelerators:
        return 0.0
    told = m.row.number("accelerators")
    return told if told is not None else m.row.number("tensor_parallel")


def _machine(m: Measured) -> float | None:
    return float(len(m.rig.accelerators)) if m.rig is not None else None


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


def _memory(results: Sequence[Result]) -> Memory | None:
    told = [r.telemetry for r in results if r.telemetry is not None]
    for t in told:
        its = [a for a in t.accelerators if a.engine]
        after = [a.memory_after_load_bytes for a in its if a.memory_after_load_bytes is not None]
        peak = [a.memory_peak_bytes for a in its if a.memory_peak_bytes is not None]
        if after or peak:
            return Memory(sum(after) if after else None, sum(peak) if peak else None)
    resident = [t.engine_resident_bytes for t in told if t.engine_resident_bytes is not None]
    return Memory(mean(resident), None, "processes") if resident else None


def _memory_told(row: Row) -> Memory | None:
    told = row.get("memory_bytes")
    return Memory(told, None) if told is not None else None


def _roofline(results: Sequence[Result]) -> dict[str, object]:
    """Of the first repeat that has one: the others differ from it by as much as their figures do."""
    roof = next((r.roofline for r in results if r.roofline is not None), None)
    if roof is None:
        return {}
    peak = roof.peaks.flops.get(roof.precision)
    positions = [
        Position(s.what, s.arithmetic * peak / (s.bandwidth * roof.peaks.bandwidth), s.arithmetic * peak, s.bandwidth,
                 s.arithmetic)
        for s in roof.shares
        if peak and s.bandwidth and s.arithmetic
    ]  # fmt: skip
    return {"positions": positions, "peaks": roof.peaks, "precision": roof.precision} if positions else {}
