"""Results as a report's entries: repeats together, each figure with its interval, its price and its doubts."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

import msgspec

from dyno.facts.comparison import Estimate
from dyno.facts.entry import AXES, Entry, Memory, Number, Position
from dyno.facts.finding import Finding, verdict
from dyno.facts.imported import SPEEDS, STEMS, Row, Scalar
from dyno.facts.measured import Measured
from dyno.facts.price import PriceRule
from dyno.facts.summary import Result
from dyno.measure import series
from dyno.measure.audit import without_copies
from dyno.measure.bootstrap import QUICK
from dyno.measure.cost import Chosen, choose, cost, rates, stated
from dyno.measure.direction import latency
from dyno.measure.estimate import estimates
from dyno.measure.pairs import Group, groups
from dyno.measure.points import finite_rate, input_each, point, sent
from dyno.measure.repeats import differing
from dyno.measure.student import quantile
from dyno.measure.timeline import Detail, quantiles

_OWN_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_TIED = 1e-12
_SAME = 0.005
_LIKE = 0.15  # prompts of lengths as near as that are held to be of one workload


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
    together = _groups(measured)
    names = series.names([group[0] for group in together])
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    ranked = sorted(zip(names, together, strict=True), key=lambda pair: (order[pair[0]], _rank(pair[1][0].row)))
    doubts = _by_place(found)
    made = [_made(f"t{i}", name, group, doubts, rules, detail) for i, (name, group) in enumerate(ranked, 1)]
    return _once(_of_like_prompts(made))


def _once(made: list[Made]) -> list[Made]:
    """Two files may tell of one result, each other figures of it: then it is one entry with all of them."""
    kept: dict[tuple[object, ...], Made] = {}
    for m in made:
        e = m.entry
        key: tuple[object, ...] = (e.series, e.kind, tuple(sorted((k, str(v)) for k, v in e.load.items())))
        first = kept.get(key)
        if first is not None and m.group[0].row.form != "run" and _tells_the_same(first.entry, e):
            kept[key] = _both(first, m)
        else:
            kept[key if first is None else (*key, e.id)] = m
    return _under_one_name(list(kept.values()))


def _under_one_name(made: list[Made]) -> list[Made]:
    """A second file may have another name for it: where all that both tell is equal to the last of many digits, and
    the load is, it is one result."""
    out: list[Made] = []
    seen: dict[tuple[object, ...], int] = {}
    for m in made:
        e = m.entry
        marks = [(n, e.figures[n].value) for n in SPEEDS if n in e.figures and _many_digits(e.figures[n])]
        keys = [(e.kind, n, v, *sorted((k, str(w)) for k, w in e.load.items())) for n, v in marks]
        index = next((seen[k] for k in keys if k in seen), None)
        if index is not None and m.group[0].row.form != "run" and _tells_the_same(out[index].entry, e):
            out[index] = _both(out[index], m)
            continue
        for k in keys:
            seen.setdefault(k, len(out))
        out.append(m)
    return out


def _many_digits(number: Number) -> bool:
    return number.half > 0 and number.value / number.half > 1e5


def _tells_the_same(one: Entry, other: Entry) -> bool:
    files = [{at.rpartition(":")[0] for at in e.at} for e in (one, other)]
    shared = [n for n in one.figures if n in other.figures]
    return (
        not files[0] & files[1]
        and bool(shared)
        and all(math.isclose(one.figures[n].value, other.figures[n].value, rel_tol=_SAME) for n in shared)
    )


def _both(one: Made, other: Made) -> Made:
    a, b = one.entry, other.entry
    findings = {(f.code, f.text): f for f in (*a.findings, *b.findings)}
    entry = msgspec.structs.replace(
        a,
        figures=a.figures | {n: v for n, v in b.figures.items() if n not in a.figures},
        completed=_first(a.completed, b.completed),
        failed=_first(a.failed, b.failed),
        settings=b.settings | a.settings,
        findings=list(findings.values()),
        verdict=verdict(findings.values()),
        at=[*a.at, *b.at],
        tool=a.tool or b.tool,
        cost=a.cost if a.cost is not None and a.cost.hour else b.cost,
        quantiles=a.quantiles or b.quantiles,
        bars=a.bars or b.bars,
        bars_of=a.bars_of or b.bars_of,
    )
    return Made(entry, one.group, one.price or other.price)


def _of_like_prompts(made: list[Made]) -> list[Made]:
    """Where only what came tells how long prompts were, lengths that lie close are one: 79.5 and 82.1 are no two
    workloads. If all are alike, they say nothing of the load."""
    told = sorted({m.entry.axes["context"] for m in made if "context" in m.entry.load})
    alike: dict[float, float] = {}
    first = 0.0
    for length in told:
        first = first if first and length <= first * (1 + _LIKE) else length
        alike[length] = first
    if not told:
        return made
    one = len(set(alike.values())) == 1

    def settled(m: Made) -> Made:
        if "context" not in m.entry.load:
            return m
        length = float(f"{alike[m.entry.axes['context']]:.2g}")
        load = {k: v for k, v in m.entry.load.items() if k != "context"} | ({} if one else {"context": length})
        at = {k: v for k, v in m.entry.axes.items() if k != "context"} | ({} if one else {"context": length})
        return msgspec.structs.replace(m, entry=msgspec.structs.replace(m.entry, load=load, axes=at))

    return [settled(m) for m in made]


def _groups(measured: Sequence[Measured]) -> list[Group]:
    """Repeats of dyno's own are one; of others each line is what it is. What is told twice stands once."""
    own = [m for m in measured if m.row.form == "run" and not m.why_not]
    others = [m for m in measured if m.row.form != "run"]
    kept = {id(row) for row in without_copies([m.row for m in others])}
    missing: dict[str, Group] = {}
    for m in measured:
        if m.why_not:
            missing.setdefault(m.row.label, []).append(m)
    return [*groups(own), *([m] for m in others if id(m.row) in kept), *missing.values()]


def _rank(row: Row) -> tuple[object, ...]:
    """By workload, then by load."""
    at = axes(row)
    loads = [at.get(name, math.inf) for name in AXES]
    rest = [(k, str(v)) for k, v in load_of(row).items() if k not in AXES and k not in ("num_prompts", "completed")]
    return row.kind, rest, loads


def load_of(row: Row) -> dict[str, Scalar]:
    load = dict(point(row))
    if "input_len" not in load and (context := axes(row).get("context")) is not None and row.kind != "micro":
        load["context"] = context
    return load


def axes(row: Row) -> dict[str, float]:
    told: dict[str, float | None] = {
        "concurrency": row.number("concurrency"),
        "rate": finite_rate(row),
        "batch_size": row.number("batch_size"),
        "context": _context(row),
    }
    found = {name: value for name, value in told.items() if value is not None}
    if row.kind in ("serve", "throughput") and not found.keys() & {"concurrency", "rate", "batch_size"}:
        count = row.number("num_prompts") or row.get("completed")
        if count is not None:
            found["requests"] = count
    return found


def _context(row: Row) -> float | None:
    """Tokens of a prompt, as it was asked for; where no workload is told, as it was on average."""
    if row.kind == "micro":
        return row.number("depth") or 0.0
    if (length := row.number("input_len")) is not None:
        return length + (row.number("--random-prefix-len") or 0.0)
    each = input_each(row) if row.told("dataset") is None and row.form != "run" else None
    return float(f"{each:.3g}") if each is not None else None


def _by_place(found: Iterable[Finding]) -> dict[str, list[tuple[int, Finding]]]:
    """File → (line, finding); 0 of a run's folder."""
    out: dict[str, list[tuple[int, Finding]]] = {}
    for finding in found:
        for at in finding.at:
            file, _, line = at.rpartition(":")
            known = (file, int(line)) if file and line.isdigit() else (at, 0)
            out.setdefault(known[0], []).append((known[1], finding))
    return out


def _made(
    id: str, name: str, group: Group, doubts: dict[str, list[tuple[int, Finding]]], rules: Sequence[PriceRule],
    detail: Callable[[Measured], Detail | None],
) -> Made:  # fmt: skip
    first = group[0]
    row = first.row
    findings = _findings(name, group, doubts)
    entry = Entry(
        id=id,
        series=name,
        kind=row.kind,
        load=load_of(row),
        axes=axes(row),
        verdict="void" if first.why_not else verdict(findings),
        label=row.label,
        tool=row.tool,
        findings=findings,
        settings={k: s.value for k, s in row.settings.items() if k not in ("verdict", "repeat")},
        repeats=len(group),
        at=[m.row.at for m in group],
        failure=first.why_not,
        accelerator=str(row.told("accelerator") or ""),
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


def _findings(name: str, group: Group, doubts: dict[str, list[tuple[int, Finding]]]) -> list[Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for m in group:
        row = m.row
        there = [f for line, f in doubts.get(row.file, ()) if line == 0 or row.line <= line <= row.end]
        for finding in (*m.findings, *there):
            found.setdefault((finding.code, finding.text), finding)
    results = [m.result for m in group if m.result is not None]
    if len(results) > 1:
        for finding in differing(name, results):
            found.setdefault((finding.code, finding.text), finding)
    return list(found.values())


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
    return of is not None and of[1] in STEMS and of[0] != "std"


def _worth(name: str) -> bool:
    """An interval of every percentile of every latency would take longer than all the rest of a report."""
    of = latency(name)
    return of is not None and of[0] in _OWN_STATISTICS and of[1] != "queue"


def _number(name: str, rows: Sequence[Row], known: Estimate | None) -> Number:
    told = [row.figures[name] for row in rows if name in row.figures]
    value = mean(f.value for f in told) if len(told) > 1 else told[0].value
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
    if (told := _sum(group, "failed")) is not None:
        return told
    row = group[0].row
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
