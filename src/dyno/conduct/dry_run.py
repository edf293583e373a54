"""Makes the dry run of a study: nothing is started, fetched or written."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import files, secrets
from dyno.conduct import earlier, estimate, provide, study_plan
from dyno.conduct.study_plan import SettingPlan
from dyno.errors import EngineError, UsageError
from dyno.facts.dry_run import (
    Basis,
    CommandBlock,
    DiskNeed,
    DryRun,
    KnownBy,
    Needed,
    RigNeeds,
    SessionLine,
    TrialLine,
)
from dyno.facts.price import PriceRule
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, RigWanted, Study
from dyno.facts.trial import TrialSpec, micro_name
from dyno.models import hub
from dyno.numbers import human_bytes, many
from dyno.quality.ask import describe, other_tasks
from dyno.remote import dstack
from dyno.remote.ssh import RigStock, ask_stock
from dyno.report.find import describe_search
from dyno.store.study import StudyFolder
from dyno.study.order import TrialGroup, sessions
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.offline import counts

_PHASES = ("fetch", "install", "convert", "quantize", "start", "load", "search", "quality")


def make(
    study: Study,
    wanted: Sequence[PlannedTrial],
    machine: Rig,
    runs: Path,
    rules: Sequence[PriceRule],
    anew: bool = False,
) -> DryRun:
    """`runs`: results of earlier runs are below it. `rules`: prices.
    `anew`: trials that are done are run again, in another folder."""
    groups = sessions(study, {p.place.id for p in wanted})
    names = list(dict.fromkeys(p.place.rig for p in wanted))
    places = {name: _placed(study, name, machine) for name in names}
    missing = {
        name: _missing(places[name], [p for p in wanted if p.place.rig == name])
        for name in names
    }
    plans = [
        _as_provided(plan, missing[plan.trials[0].place.rig])
        for plan in study_plan.plans(study, wanted, machine, dry=True)
    ]
    folder = None if anew else study_plan.begun(runs, study)
    done = _done(folder, wanted)
    asked = _StudyFacts(study, plans, _left(groups, done), earlier.read(runs), rules)
    times: dict[str, tuple[float, Basis]] = {}
    rigs: list[RigNeeds] = []
    problems: list[str] = []
    for name in names:
        needs, own_times, own_problems = _rig_needs(
            asked, places[name], name, missing[name]
        )
        rigs.append(needs)
        times |= own_times
        problems += own_problems
    return DryRun(
        study=study.name,
        trials=len(wanted),
        starts=len(groups),
        done=len(done),
        folder=str(folder.path) if folder and done else "",
        sessions=_sessions(study, groups, times),
        commands=[*_around(study, wanted), *_commands(plans)],
        rigs=rigs,
        token=hub.has_token(),
        seconds=sum(rig.seconds for rig in rigs),
        unknown_phases=_unknown_phases(rigs),
        cost=_total_cost(rigs),
        problems=[*study_plan.problems(plans), *problems, *_unprovided(rigs)],
    )


def _done(folder: StudyFolder | None, wanted: Sequence[PlannedTrial]) -> set[str]:
    """Return the ids of the wanted trials that have a result."""
    if folder is None:
        return set()
    return folder.done() & {p.place.id for p in wanted}


def _as_provided(plan: SettingPlan, missing: Sequence[provide.Need]) -> SettingPlan:
    """Return the plan as it will be started: in a container, where an image is how its engine is provided."""
    engine = plan.engine
    boxes = {need.name: need.box for need in missing if need.what == "engine" and need.box}
    box = (
        boxes.get(provide.engine_name(engine.spec))
        if engine and engine.spec.container is None
        else None
    )
    if engine is None or box is None:
        return plan
    asked = plan.trials[0].trial.engine
    assert asked is not None
    try:
        contained = EnginePlan(
            msgspec.structs.replace(asked, container=box),
            engine.rig,
            dry=True,
            batch=engine.batch,
        )
    except (UsageError, EngineError) as e:
        return plan._replace(engine=None, refused=str(e))
    return plan._replace(engine=contained)


class _StudyFacts(NamedTuple):
    """What is the same for all machines of a study."""

    study: Study
    plans: Sequence[SettingPlan]
    left: list[list[PlannedTrial]]  # trials that share a start, without those that are done
    runs: Sequence[earlier.EarlierRun]
    rules: Sequence[PriceRule]


def _left(groups: Sequence[TrialGroup], done: set[str]) -> list[list[PlannedTrial]]:
    rest = ([p for p in group.trials if p.place.id not in done] for group in groups)
    return [trials for trials in rest if trials]


def _unknown_phases(rigs: Sequence[RigNeeds]) -> list[str]:
    unknown = {phase.name for rig in rigs for phase in rig.phases if phase.seconds is None}
    return [name for name in _PHASES if name in unknown]


# ---- machines ----


class _Place(NamedTuple):
    """A machine of the study, as far as it is known."""

    machine: Rig  # this one, or one with the accelerators that the study describes
    words: str
    known_by: KnownBy
    here: bool
    note: str = ""
    stock: RigStock | None = None
    advice: str = ""


def _placed(study: Study, name: str | None, machine: Rig) -> _Place:
    wanted = study.rigs[name] if name else RigWanted()
    names = [a.name for a in machine.accelerators]
    cards = (
        ", ".join(f"{names.count(n)} × {n}" for n in dict.fromkeys(names))
        or f"{machine.cpu}, no accelerator"
    )
    if not wanted.elsewhere and study_plan.fits(wanted, machine):
        return _Place(_partitioned(machine, wanted), cards, "looked", here=True)
    assumed = _partitioned(study_plan.assumed(wanted, machine), wanted)
    number = f"{wanted.accelerators} × " if wanted.accelerators else ""
    described = f"{number}{wanted.accelerator or 'any accelerator'}"
    if wanted.ssh:
        stock = ask_stock(wanted.ssh)
        if isinstance(stock, str):
            return _Place(
                assumed,
                f"{described}, over SSH on {wanted.ssh.host}",
                "described",
                False,
                stock,
            )
        return _Place(
            assumed,
            f"{described}, over SSH on {wanted.ssh.host}",
            "asked",
            False,
            stock=stock,
        )
    if wanted.dstack:
        return _Place(
            assumed, f"{described}, rented through dstack, bare", "described", False
        )
    advice = f"Run its trials on that machine with --rig {name}, or from here with --ssh {name}=USER@HOST."
    return _Place(
        assumed, f"{described}, another machine", "described", False, advice=advice
    )


def _partitioned(machine: Rig, wanted: RigWanted) -> Rig:
    """Return the machine with its accelerators cut into the parts that the study wants (AMD's CPX)."""
    host = wanted.host
    if host is None or not host.compute_partition:
        return machine
    partition = "/".join(filter(None, (host.compute_partition, host.memory_partition)))
    cards = [
        msgspec.structs.replace(card, partition=partition) for card in machine.accelerators
    ]
    return msgspec.structs.replace(machine, accelerators=cards)


def _rig_needs(
    asked: _StudyFacts, place: _Place, name: str | None, missing: Sequence[provide.Need]
) -> tuple[RigNeeds, dict[str, tuple[float, Basis]], list[str]]:
    """Return what one machine needs, the time of each of its trials, and what can't work there."""
    plans = [plan for plan in asked.plans if plan.trials[0].place.rig == name]
    mine = [planned for plan in plans for planned in plan.trials]
    expected = estimate.RigEstimate(plans, place.machine, missing, asked.runs, place.here)
    times = {p.place.id: expected.trial_s(p) for p in mine}
    left = [trials for trials in asked.left if trials[0].place.rig == name]
    phases = expected.phases(left, {id: seconds for id, (seconds, _) in times.items()})
    seconds = sum(phase.seconds or 0.0 for phase in phases)
    needs = RigNeeds(
        rig=name,
        machine=place.words,
        known_by=place.known_by,
        note=place.note,
        advice=place.advice,
        missing=[needed(need) for need in missing],
        disks=_disks(missing, place),
        phases=phases,
        seconds=seconds,
        cost=estimate.cost(asked.rules, asked.study, mine, place.machine, seconds),
    )
    tools = study_plan.missing_tools(plans) if place.here else []
    too_large = dict.fromkeys(filter(None, map(expected.too_large, plans)))
    return needs, times, [*tools, *too_large]


def _missing(place: _Place, trials: Sequence[PlannedTrial]) -> list[provide.Need]:
    specs = [p.trial.engine for p in trials if p.trial.engine]
    works = [p.trial.workload for p in trials]
    tests = [p.trial.quality for p in trials if p.trial.quality]
    bare = None if place.here else _bare(place.machine)
    missing = provide.needs(specs, works, dry=True, tests=tests, bare=bare)
    if place.stock:
        missing = [need for need in missing if not _in_stock(need, place.stock)]
    return provide.with_sizes(missing, bare=bare is not None, registries=True)


def _bare(machine: Rig) -> provide.Bare:
    first = machine.accelerators[0] if machine.accelerators else None
    variant = {"nvidia": "cuda", "amd": "rocm"}.get(first.vendor, "cpu") if first else "cpu"
    return provide.Bare(variant, first.architecture if first else None)


def _in_stock(need: provide.Need, stock: RigStock) -> bool:
    if need.recipe:
        return need.recipe.name in stock.models
    if need.what not in ("engine", "tool"):
        return False
    kind, _, version = need.name.partition(" ")
    return stock.has_engine(kind, version or None)


def needed(need: provide.Need) -> Needed:
    return Needed(
        what=need.what,
        name=need.name,
        how=need.how,
        size_bytes=need.size_bytes,
        about=need.about,
        unknown=need.unknown,
        gated=need.gated,
        refused=need.refused,
    )


def _disks(missing: Sequence[provide.Need], place: _Place) -> list[DiskNeed]:
    if not missing:
        return []
    if place.here:
        return disks_here(missing)
    if place.stock:
        return [_disk(place.stock.home, missing, place.stock.free_bytes)]
    return [_disk("", missing, None)]


def disks_here(missing: Sequence[provide.Need]) -> list[DiskNeed]:
    disks = []
    for mine in provide.by_disk(missing):
        folder = mine[0][0]
        disks.append(
            _disk(str(folder), [need for _, need in mine], files.free_bytes(folder))
        )
    images = [need for need in missing if need.folder is None]
    if images:
        disks.append(_disk("the container tool's storage", images, None))
    return disks


def _disk(folder: str, needs: Sequence[provide.Need], free: int | None) -> DiskNeed:
    unknown = sum(need.size_bytes is None for need in needs)
    return DiskNeed(folder, sum(need.size_bytes or 0 for need in needs), unknown, free)


def _unprovided(rigs: Iterable[RigNeeds]) -> Iterable[str]:
    """Say what can't be provided, and which disks are too small."""
    for rig in rigs:
        where = f" on {rig.rig}" if rig.rig else ""
        yield from (
            f"{n.what} {n.name}{where} can't be provided: {n.refused}"
            for n in rig.missing
            if n.refused
        )
        for disk in rig.disks:
            if disk.short:
                yield (
                    f"{human_bytes(disk.needed_bytes)} are needed at {disk.folder}{where}, but "
                    f"{human_bytes(disk.free_bytes)} are free. Free some space, or set HF_HOME and DYNO_HOME to a "
                    "larger disk."
                )


def _total_cost(rigs: Iterable[RigNeeds]) -> dict[str, float]:
    total: dict[str, float] = {}
    for rig in rigs:
        if rig.cost.amount is not None:
            total[rig.cost.currency] = total.get(rig.cost.currency, 0.0) + rig.cost.amount
    return total


# ---- trials and commands ----


def _sessions(
    study: Study, groups: Sequence[TrialGroup], times: dict[str, tuple[float, Basis]]
) -> list[SessionLine]:
    """Fold repeats: starts with the same setting are one, and trials that differ in the repeat alone. Rigs, settings
    and trials are in the order of the file, by which a grid can be checked; they run in another."""
    rank = {planned.place.id: i for i, planned in enumerate(study.trials)}
    rigs = list(study.rigs)
    folded: dict[tuple[str | None, str], list[list[PlannedTrial]]] = {}
    for group in groups:
        folded.setdefault((group.trials[0].place.rig, group.name), []).append(group.trials)
    out: list[tuple[tuple[int, int], SessionLine]] = []
    for (rig, name), starts in folded.items():
        mine = sorted(
            (p for trials in starts for p in trials),
            key=lambda p: (p.trial.quality is not None, rank[p.place.id]),
        )
        place = rigs.index(rig) if rig else 0, rank[mine[0].place.id]
        out.append((place, SessionLine(rig, name, len(starts), _trial_lines(mine, times))))
    return [line for _, line in sorted(out, key=lambda each: each[0])]


def _trial_lines(
    trials: Sequence[PlannedTrial], times: dict[str, tuple[float, Basis]]
) -> list[TrialLine]:
    lines: dict[tuple[str, str], list[PlannedTrial]] = {}
    for planned in trials:
        lines.setdefault((planned.place.label, load_words(planned.trial)), []).append(
            planned
        )
    return [
        TrialLine(label, asked, len(mine), *times[mine[0].place.id])
        for (label, asked), mine in lines.items()
    ]


def _around(study: Study, wanted: Sequence[PlannedTrial]) -> Iterable[CommandBlock]:
    """Yield what is done on each rig around its trials."""
    for name in dict.fromkeys(p.place.rig for p in wanted if p.place.rig):
        rig = study.rigs[name]
        if rig.ssh:
            load = (
                "the load comes from here"
                if rig.client == "here"
                else "load and engine run there"
            )
            yield CommandBlock(f"{name}: over SSH on {rig.ssh.host}; {load}", [])
        if rig.dstack:
            text = dstack.as_yaml(
                dstack.configurations(dstack.run_name(name, "dry-run"), rig)
            )
            yield CommandBlock(f"{name}: submitted to dstack", text.splitlines())
        for when, commands in (("before", rig.before), ("after", rig.after)):
            if commands:
                yield CommandBlock(
                    f"{name}: {when} the study", [*map(secrets.public_command, commands)]
                )


def _commands(plans: Sequence[SettingPlan]) -> Iterable[CommandBlock]:
    for setting in plans:
        mine, plan = setting.trials, setting.engine
        lines: list[str] = []
        if plan:
            notes = dict.fromkeys(
                n for p in mine for n in plan.notes(p.trial.load.max_concurrency)
            )
            lines = [
                *plan.lines(),
                *(f"# {note}" for note in (*_slot_notes(plan, mine), *notes)),
            ]
        elif not setting.refused:
            lines = [f"# already running at {', '.join(mine[0].trial.target.urls)}"]
        yield CommandBlock(
            f"{mine[0].place.label.partition(',')[0]}: {many(len(mine), 'trial')}", lines
        )


def _slot_notes(plan: EnginePlan, trials: Sequence[PlannedTrial]) -> Iterable[str]:
    """Say where an engine that would have one slot got as many as its load needs."""
    slots, highest = (
        plan.spec.max_num_seqs,
        max(p.trial.load.max_concurrency or 1 for p in trials),
    )
    unset = msgspec.structs.replace(plan.spec, max_num_seqs=None)
    if (
        slots
        and slots > 1
        and slots * plan.spec.replicas >= highest > 1
        and plan.kind.one_slot(unset)
    ):
        each = (
            f", each with a context of {plan.spec.max_model_len} tokens"
            if plan.spec.max_model_len
            else ""
        )
        yield f"{slots} slots for concurrency {highest}{each}"


def load_words(t: TrialSpec) -> str:
    """Describe the load in a few words."""
    w, load = t.workload, t.load
    lengths = f"{w.input_len}/{w.output_len}" if w.traits.exact else w.dataset
    if t.quality:
        return f"{describe(t.quality)}{'; lm-eval fetches their data' if other_tasks(t.quality) else ''}"
    if t.find:
        return describe_search(t.find)
    if t.offline:
        measured, before = counts(t)
        warm = f" after {before} to warm up" if before else ""
        return f"{t.offline.kind}, {_offline_words(t, lengths)}, {many(measured, 'iteration')}{warm}"
    size, pace = f"{w.num_prompts or 'all'} × {lengths}", load.words
    if w.traits.sessions:
        size = f"{w.num_sessions} sessions of {w.dataset}" if w.num_sessions else size
        pace = pace.replace("requests/s", "sessions/s")
    return f"{size}, {pace}, {w.num_warmups} to warm up"


def _offline_words(t: TrialSpec, lengths: str) -> str:
    assert t.offline is not None
    if t.offline.kind == "micro":
        return micro_name(
            t.workload.input_len, t.workload.output_len or 0, t.offline.depth or 0
        )
    batch = f"{t.workload.num_prompts} × {lengths}"
    return f"a batch of {batch}" if t.offline.kind == "latency" else batch
