"""Results as a report's entries: repeats together, each figure with its interval, its price and its doubts."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean

import msgspec
from msgspec.structs import replace

from dyno import checks
from dyno.facts.comparison import Estimate
from dyno.facts.engine import EngineFacts, Launch
from dyno.facts.entry import Entry, Memory, Number, Position
from dyno.facts.finding import Finding, Verdict, verdict
from dyno.facts.imported import Document, Row, RowKind
from dyno.facts.load import Load
from dyno.facts.metric import SPEEDS, TOKEN_THROUGHPUTS, better, latency, metric
from dyno.facts.price import PriceRule
from dyno.facts.report import CommandText, Sheet
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.summary import Result
from dyno.facts.telemetry import TelemetrySummary
from dyno.measure.cost import Chosen, choose, cost, rates, stated
from dyno.measure.estimate import estimates, with_interval
from dyno.measure.paired import score_interval
from dyno.measure.pairs import Group, groups, once
from dyno.measure.points import ENGINE, sent
from dyno.numbers import human_bytes, setting
from dyno.report.series import Loads, names
from dyno.report.timeline import Detail, quantiles

_OWN_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_TIED = 1e-12
_SPEED = (*TOKEN_THROUGHPUTS, "speed")  # the first that there is


def entries(
    rows: Sequence[Row],
    findings: Sequence[Finding],
    rules: Sequence[PriceRule],
    detail: Callable[[Row], Detail | None],
) -> list[Entry]:
    """Return the entries of all results. `findings`: of an audit, each with its places. `detail`: the single requests,
    read when they are needed and then let go: those of a thousand trials would not fit."""
    own = groups([row for row in rows if row.form == "run" and not row.failure])
    others = once([row for row in rows if row.form != "run"])
    lost, doubts = _failures(rows)
    all_groups = [*own, *([row] for row in others), *lost]
    firsts = [group[0] for group in all_groups]
    loads = Loads(firsts)
    series = names(firsts, loads)
    order = {name: i for i, name in enumerate(dict.fromkeys(series))}
    together = _together(all_groups, series, loads)
    ranked = sorted(together, key=lambda pair: (order[pair[0]], _rank(pair[1][0], loads)))
    by_file = _by_file([*findings, *doubts], rows)
    out = []
    for i, (name, group) in enumerate(ranked, 1):
        entry = Entry(
            f"t{i}", name, group[0].kind, loads.load(group[0]), "void", rows=group
        )
        out.append(_entry(entry, _findings(name, group, by_file), rules, detail))
    return out


def _together(
    all_groups: Sequence[Group], series: Sequence[str], loads: Loads
) -> list[tuple[str, Group]]:
    """Join results of other tools with one name and one load, which are repeats: names see to that."""
    out: list[tuple[str, Group]] = []
    seen: dict[tuple[object, ...], Group] = {}
    for name, group in zip(series, all_groups, strict=True):
        key = (name, *loads.key(group[0]))
        if group[0].form != "run" and key in seen:
            seen[key].extend(group)
            continue
        out.append((name, list(group)))
        if group[0].form != "run":
            seen[key] = out[-1][1]
    return out


def _rank(row: Row, loads: Loads) -> tuple[object, ...]:
    return row.kind, *loads.load(row).rank


def of_repeats(name: str, rows: Sequence[Row]) -> Entry:
    """Return the repeats of one trial as an entry: figures, counts, findings and verdict, and no load."""
    entry = Entry(rows[0].file, name, rows[0].kind, Load({}), "void", rows=[*rows])
    return _entry(entry, _findings(name, [*rows], {}), (), lambda _: None)


# ---- findings ----


def _failures(rows: Sequence[Row]) -> tuple[list[Group], list[Finding]]:
    """Return trials of which no repeat has a result; and for repeats that have none, a doubt about those that have
    one."""
    trials: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.form == "run":
            trials.setdefault(_trial(row), []).append(row)
    lost, doubts = [], []
    for repeats in trials.values():
        failed = [row for row in repeats if row.failure]
        done = [row.location for row in repeats if not row.failure]
        if done:
            doubts += [failed_trials([row], done) for row in failed]
        elif failed:
            lost.append(failed)
    return lost, doubts


def _trial(row: Row) -> tuple[str, ...]:
    """Return a key that the repeats of a trial share."""
    if row.place is None:
        return (row.label,)
    return (row.place.study, row.place.rig or "", *row.place.key, row.label)


def about_failures(shown: Sequence[Entry]) -> list[Finding]:
    """Return findings about trials without a result; void where no trial has one."""
    lost = [e for e in shown if e.failure]
    findings = [failed_trials(e.rows) for e in lost]
    if len(lost) == len(shown):
        return [msgspec.structs.replace(f, level="void") for f in findings]
    return findings


def failed_trials(rows: Sequence[Row], locations: Sequence[str] = ()) -> Finding:
    """Return a finding about failed trials. `locations`: results that it makes doubtful; none: the failed trials
    themselves."""
    trials, have = ("A trial", "has") if len(rows) == 1 else (f"{len(rows)} trials", "have")
    return Finding(
        "study.failed_trials",
        "doubt",
        f"{trials} of {rows[0].label!r} failed and {have} no result: {rows[0].failure}",
        "Run the study again: failed trials are retried.",
        list(locations) or [row.location for row in rows],
    )


Doubts = dict[str, list[tuple[int, RowKind, Finding]]]


def _by_file(findings: Iterable[Finding], rows: Sequence[Row]) -> Doubts:
    """Return file → line (0 of a run's folder), kind, finding. It is about the kind of its first place: others are
    witnesses, as a micro test is that says how long a prompt must take."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        by_file.setdefault(row.file, []).append(row)
    out: Doubts = {}
    for finding in findings:
        places = [_place(location) for location in finding.locations]
        if not places:
            continue
        file, line = places[0]
        kind = next((row.kind for row in by_file.get(file, ()) if _within(row, line)), None)
        if kind is not None:
            for file, line in places:
                out.setdefault(file, []).append((line, kind, finding))
    return out


def _place(location: str) -> tuple[str, int]:
    file, _, line = location.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (location, 0)


def _within(row: Row, line: int) -> bool:
    return not line or row.line <= line <= row.end


def _findings(name: str, group: Group, doubts: Doubts) -> list[Finding]:
    findings = []
    for row in group:
        findings += row.findings
        for copy in (row, *row.also):
            for line, kind, finding in doubts.get(copy.file, ()):
                if kind == copy.kind and _within(copy, line):
                    findings.append(finding)
    figure = next((n for n in _SPEED if n in group[0].figures), "")
    values = [value for row in group if (value := row.get(figure)) is not None]
    findings += checks.run(repeats=(name, values))
    unique: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        unique.setdefault((finding.code, finding.text), finding)
    return list(unique.values())


def _verdict(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict of a result alone: findings about comparability don't count."""
    return verdict(f for f in findings if not f.code.startswith("comparability."))


# ---- entries ----


def _entry(
    entry: Entry,
    findings: list[Finding],
    rules: Sequence[PriceRule],
    detail: Callable[[Row], Detail | None],
) -> Entry:
    group, row = entry.rows, entry.rows[0]
    entry = msgspec.structs.replace(
        entry,
        label=row.label,
        tool=row.tool,
        findings=findings,
        settings={
            k: s.value for k, s in row.settings.items() if k not in ("verdict", "repeat")
        },
        repeats=len(group),
        locations=[copy.location for one in group for copy in (one, *one.also)],
        failure=row.failure,
        accelerator=str(row.setting("accelerator") or ""),
        accelerators=_used(row),
        machine=float(len(row.rig.accelerators)) if row.rig is not None else None,
    )
    if row.failure:
        return entry
    entry = _measured(entry, detail(row) or Detail(row))
    study = row.place.price if row.place else None
    chosen = choose(
        rules, entry.accelerator, entry.series, study, row.number("price_per_hour")
    )
    return entry if chosen is None else _priced(entry, chosen)


def _measured(entry: Entry, deep: Detail) -> Entry:
    """Return the entry with all that was measured. `deep`: the first repeat with its single requests."""
    group, row = entry.rows, entry.rows[0]
    results = [one.result for one in group if one.result is not None]
    telemetry = [r.telemetry for r in results if r.telemetry is not None]
    return msgspec.structs.replace(
        entry,
        verdict=_verdict(entry.findings),
        figures=_figures(group, deep.row),
        completed=_sum(one.get("completed") for one in group),
        failed=_sum(_lost(one) for one in group),
        search=next((r.find for r in results if r.find), None),
        memory=_memory(telemetry, row.get("memory_bytes")),
        power_w=_mean(t.power_mean_w for t in telemetry) or row.get("power_w"),
        joules_per_token=_mean(t.energy_per_output_token_j for t in telemetry),
        **_roofline(results),
        quantiles=quantiles(deep.row),
        bars=deep.bars,
        bars_of=deep.bars_of,
        moments=deep.moments,
        parts=deep.parts,
        slowest=deep.slowest,
        **_sessions(results),
    )


def _sessions(results: Sequence[Result]) -> dict[str, object]:
    first = next((r.summary for r in results if r.summary is not None), None)
    if first is None:
        return {}
    return {
        "turns": first.sessions.turns if first.sessions else [],
        "classes": first.classes,
    }


def _priced(entry: Entry, chosen: Chosen) -> Entry:
    machine = chosen.price.machine_accelerators
    entry = msgspec.structs.replace(
        entry, machine=entry.machine if machine is None else machine
    )
    done = rates(entry.value, str(entry.load.get("test") or ""))
    paid = cost(
        chosen,
        done,
        entry.accelerators,
        entry.machine,
        entry.power_w,
        entry.joules_per_token,
    )
    return msgspec.structs.replace(
        entry, cost=paid, price=stated(chosen, entry.accelerator)
    )


# ---- figures ----


def _figures(group: Group, deep: Row) -> dict[str, Number]:
    """Return all figures. `deep`: the first one's row, with its samples where they were stored."""
    names = list(_known_figures(group))
    single = len(group) == 1
    # An interval of every percentile of every latency would take longer than all the rest of a report.
    few = (
        single and deep.form == "run" and deep.kind == "serve" and deep.samples is not None
    )
    wanted = [name for name in names if _has_interval(name, few)]
    known = estimates([deep] if single else group, wanted)
    return {name: _number(name, group, known.get(name)) for name in names}


def _known_figures(group: Group) -> Iterator[str]:
    """Yield the names of figures that the client knows of every repeat."""
    for name in dict.fromkeys(name for row in group for name in row.figures):
        if not any(_client_lost(row, name) for row in group):
            yield name


def _has_interval(name: str, few: bool) -> bool:
    if name in SPEEDS:
        return True
    return not few if name == "score" else _is_latency(name, few)


def _client_lost(row: Row, name: str) -> bool:
    """Return whether a busy client doesn't know this figure of one repeat: the others may be the quick ones."""
    summary = row.result.summary if row.result is not None else None
    if summary is None:
        return False
    parts = latency(name)
    if parts is None:
        return metric(name).field in summary.bounds
    statistic, stem = parts
    d = summary.figures.get(stem)
    if d is None or d.empty:
        return False
    if statistic in ("mean", "median", "std"):
        return getattr(d, statistic) is None
    return d.percentiles.get(statistic[1:], 0.0) is None


def _is_latency(name: str, few: bool) -> bool:
    parts = latency(name)
    if parts is None or parts[0] == "std":
        return False
    return not few or (parts[0] in _OWN_STATISTICS and parts[1] != "queue")


def _number(name: str, rows: Sequence[Row], known: Estimate | None) -> Number:
    figures = [row.figures[name] for row in rows if name in row.figures]
    first = figures[0]
    single = len(figures) == 1
    value = first.value if single else mean(f.value for f in figures)
    if metric(name).sums and len(rows) > 1:
        # also where one of them lacks it: else it wouldn't fit what the others sum up to
        value *= len(rows)
    ends = _score_interval(rows[0], value) if name == "score" and single else None
    number = _with_ends(value, ends, known)
    if not single:
        return replace(number, half=0.0, definition=first.definition, deviation=None)
    return replace(
        number, half=first.half, definition=first.definition, deviation=first.deviation
    )


def _with_ends(
    value: float, ends: tuple[float, float] | None, known: Estimate | None
) -> Number:
    """Return a value with its own interval where that is known, else with the estimated one."""
    if ends is not None:
        return Number(value, *ends, by=known.by if known is not None else "")
    if known is not None and known.error is not None and known.error > _TIED:
        return with_interval(replace(known, value=value))
    return Number(value)


def _score_interval(row: Row, value: float) -> tuple[float, float] | None:
    # A score that is better when it is lower, such as bits per byte, has no highest value.
    most = math.inf if better("score", str(row.setting("metric") or "")) == "lower" else 1.0
    return score_interval(value, row.number("samples"), row.get("stderr"), most)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return mean(known) if known else None


def _lost(row: Row) -> float | None:
    """Return requests that failed, as reported; else those that were sent and aren't among the completed."""
    failed = row.get("failed")
    if failed is not None:
        return failed
    done, asked = row.get("completed"), sent(row)
    if done is not None and asked is not None and asked[0] >= done:
        return asked[0] - done
    return None


# ---- the machine ----


def _used(row: Row) -> float | None:
    """Return the number of accelerators used. 0: the machine has none; None: unknown."""
    if row.rig is not None and not row.rig.accelerators:
        return 0.0
    used = row.number("accelerators")
    return used if used is not None else row.number("tensor_parallel")


def _memory(telemetry: Sequence[TelemetrySummary], reported: float | None) -> Memory | None:
    """Return the memory of the engine. `reported`: by the result itself, where nothing was sampled."""
    for t in telemetry:
        cards = [a for a in t.accelerators if a.engine]
        after, peak = (
            _sum(a.memory_after_load_bytes for a in cards),
            _sum(a.memory_peak_bytes for a in cards),
        )
        if after is not None or peak is not None:
            return Memory(after, peak)
    resident = _mean(t.engine_resident_bytes for t in telemetry)
    if resident is not None:
        return Memory(resident, None, "processes")
    return Memory(reported, None) if reported is not None else None


def _roofline(results: Sequence[Result]) -> dict[str, object]:
    """Return the roofline of the first repeat that has one: others differ from it as their figures do."""
    roof = next((r.roofline for r in results if r.roofline is not None), None)
    if roof is None:
        return {}
    peak = roof.peaks.flops.get(roof.precision)
    positions = []
    for share in roof.shares:
        if peak and share.bandwidth and share.arithmetic:
            flops = share.arithmetic * peak
            intensity = flops / (share.bandwidth * roof.peaks.bandwidth)
            positions.append(
                Position(share.what, intensity, flops, share.bandwidth, share.arithmetic)
            )
    if not positions:
        return {}
    return {"positions": positions, "peaks": roof.peaks, "precision": roof.precision}


# ---- sheets: machines, engines and commands behind the entries, which a reader needs to run it again ----

_COMMANDS = 60  # of one document
_ROLES = {"server": "server", "client": "client", "offline": "offline benchmark", "micro": "micro test",
          "quality": "accuracy test", "other": "command"}  # fmt: skip
# Settings that describe an engine, in the order of a sheet.
_NOT_SHOWN = ("revision", "enforce_eager", "accelerator", "accelerators")
_ENGINE = [
    name
    for name in dict.fromkeys(("engine", "engine_version", *ENGINE))
    if name not in _NOT_SHOWN
]


Facts = list[tuple[str, str]]  # lines of name and value


def rig_sheets(entries: Sequence[Entry], documents: Iterable[Document]) -> list[Sheet]:
    each = (
        (e, _machine_facts(row.rig))
        for e in entries
        for row in e.rows
        if row.rig is not None
    )
    return [
        *_sheets((_machine_name(facts), facts, e) for e, facts in each),
        *_environments(documents),
    ]


def _sheets(each: Iterable[tuple[str, Facts, Entry]]) -> list[Sheet]:
    """Return one sheet for all that have the same name and facts."""
    ids: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, None]] = {}
    for name, facts, entry in each:
        ids.setdefault((name, tuple(facts)), {})[entry.id] = None
    return [Sheet(name, list(facts), list(some)) for (name, facts), some in ids.items()]


def _machine_facts(rig: Rig) -> Facts:
    """Return facts that stay the same between trials: not free memory or load average."""
    sockets = f", {rig.sockets} sockets" if rig.sockets and rig.sockets > 1 else ""
    facts = [
        ("system", rig.system),
        ("kernel", f"{rig.kernel} ({rig.machine})"),
        ("cpu", rig.cpu),
        ("cores", f"{rig.cores} usable{sockets}"),
    ]
    if rig.memory_bytes is not None:
        facts.append(("memory", human_bytes(rig.memory_bytes)))
    alike = Counter(map(_accelerator, rig.accelerators))
    facts += [("accelerators", f"{count} × {words}") for words, count in alike.items()]
    if rig.topology and len(rig.topology) > 1:
        links = sorted(
            {link for row in rig.topology for link in row if link and link != "X"}
        )
        facts.append(("links", ", ".join(links)))
    if rig.container:
        facts.append(("container", rig.container))
    facts += [(name.replace("_", " "), value) for name, value in rig.state.items()]
    return [*facts, *rig.environment.items()]


def _accelerator(a: Accelerator) -> str:
    parts = [a.name]
    if a.memory_bytes is not None:
        parts.append(human_bytes(a.memory_bytes))
    if a.driver:
        parts.append(f"driver {a.driver}")
    if a.power_cap_w is not None:
        parts.append(f"power cap {setting(a.power_cap_w)} W")
    parts += filter(None, [a.partition, a.link])
    return ", ".join(parts)


def _machine_name(facts: Facts) -> str:
    values = dict(facts)
    return (values.get("accelerators") or values["cpu"]).split(",")[0]


def _environments(documents: Iterable[Document]) -> Iterator[Sheet]:
    """Yield machines as a dump of an environment describes them."""
    for d in documents:
        for i, settings in enumerate(d.environments):
            line = min((s.line for s in settings.values()), default=0)
            if settings:
                facts = [
                    (name.replace("_", " "), setting(s.value))
                    for name, s in settings.items()
                ]
                yield Sheet(f"{d.file}:{line}" if line else f"{d.file} ({i + 1})", facts)


def engine_sheets(entries: Sequence[Entry]) -> list[Sheet]:
    each = []
    for e in entries:
        for row in e.rows:
            facts = _engine_facts(row.engine) if row.engine else _reported_settings(e)
            if facts:
                each.append((e.series, facts, e))
    return _sheets(each)


def _engine_facts(e: EngineFacts) -> Facts:
    facts = [("engine", e.kind), ("version", e.version or "unknown")]
    if e.program:
        facts.append(("program", e.program))
    if e.image:
        facts.append(("image", e.image))
    facts += [(f"model {name}", model.describe()) for name, model in e.models.items()]
    if e.withheld:
        facts.append(("variables not passed", ", ".join(e.withheld)))
    return [*facts, *e.software.items()]


def _reported_settings(entry: Entry) -> Facts:
    """Return settings of a running server, or of another tool's result."""
    return [
        (name.replace("_", " "), setting(entry.settings[name]))
        for name in _ENGINE
        if name in entry.settings
    ]


def commands(
    entries: Sequence[Entry],
    documents: Iterable[Document],
    studies: Iterable[tuple[str, str]],
) -> list[CommandText]:
    """Return commands to run it again. `studies`: names and the text of their files."""
    out = [
        CommandText(f"study {name}: its file, for `dyno run`", text)
        for name, text in studies
    ]
    servers: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        for engine in (row.engine for row in entry.rows if row.engine is not None):
            for launch in engine.launches:
                servers.setdefault((entry.series, _server_line(launch)), {})[entry.id] = (
                    None
                )
    out += [
        CommandText(f"server of {series}", text, list(ids))
        for (series, text), ids in servers.items()
    ]
    for d in documents:
        out += [
            CommandText(f"{_ROLES[c.role]}, {d.file}:{c.line}", c.text)
            for c in d.commands[:_COMMANDS]
        ]
    return out


def _server_line(launch: Launch) -> str:
    """Return a server's command without its ports, which differ from start to start and say nothing."""
    port = str(launch.port)
    words = [
        "PORT" if word == port else word.replace(f":{port}", ":PORT")
        for word in launch.argv
    ]
    env = [f"{k}={shlex.quote(v)}" for k, v in launch.env.items()]
    return " ".join([*env, shlex.join(words)])
