"""The dry run of a study as text: trials and commands first, what a person decides by last."""

from collections.abc import Iterator, Sequence

from dyno.facts.dry_run import (
    DiskNeed,
    DryRun,
    Needed,
    Phase,
    RigNeeds,
    SessionLine,
    TrialLine,
)
from dyno.numbers import clock, human_bytes, many, price
from dyno.report.table import terminal, text_table


def lines(dry: DryRun) -> Iterator[str]:
    yield f"# {dry.study}: {many(dry.trials, 'trial')}, {many(dry.starts, 'engine start')}"
    if dry.trials > 1:
        yield "# Sorted here; they run in a shuffled order."
    for number, session in enumerate(dry.sessions, 1):
        yield from _session(number, session)
    remote = any(rig.known_by != "looked" for rig in dry.rigs)
    yield (
        "\n# The commands, with the paths of this machine" if remote else "\n# The commands"
    )
    for block in dry.commands:
        yield f"\n# {block.title}"
        yield from block.lines
    yield "\n# What it takes"
    for rig in dry.rigs:
        yield from _rig(rig)
    if any(need.gated for rig in dry.rigs for need in rig.missing):
        yield f"\n# Token of the Hub for gated models: {'set' if dry.token else 'not set (HF_TOKEN)'}"
    yield f"\n# {_total(dry)}"


def _session(number: int, session: SessionLine) -> Iterator[str]:
    starts = f" ({session.starts} starts)" if session.starts > 1 else ""
    where = f" on {session.rig}" if session.rig else ""
    yield f"\n{number}. {session.name}{where}{starts}"
    yield from (f"   {_trial(trial)}" for trial in session.trials)


def _trial(trial: TrialLine) -> str:
    time = f"~{clock(trial.seconds)}"
    if trial.repeats > 1:
        time = f"{trial.repeats} repeats, {time} each"
    return f"{trial.label}: {trial.asked}, {time}"


# ---- one machine ----


_MISSING = {
    "looked": "Missing on this machine; provided before the first trial:",
    "asked": "Missing there; provided before the first trial:",
    "described": "What a bare machine needs; provided there before the first trial:",
}


def _rig(rig: RigNeeds) -> Iterator[str]:
    name = rig.rig or "this machine"
    yield f"#\n# {name} ({rig.machine})"
    if rig.advice:
        yield f"#   {rig.advice}"
    if rig.note:
        yield f"#   Not asked: {rig.note}"
    if rig.missing:
        yield f"#   {_MISSING[rig.known_by]}"
        yield from (f"#     {line}" for line in missing_lines(rig.missing))
    else:
        yield "#   Nothing to fetch or install."
    yield from (f"#   Disk: {disk_line(disk)}" for disk in rig.disks)
    yield from (f"#   {line}" for line in _times(rig.phases))
    yield f"#   Cost: {_cost(rig)}"


def missing_lines(missing: Sequence[Needed]) -> Iterator[str]:
    """Yield what is missing, with sizes, in columns."""
    rows = [(need.what, need.name, need.how, _size(need)) for need in missing]
    yield from terminal(text_table(("",) * 4, rows, keep=range(4)))


def _size(need: Needed) -> str:
    if need.refused:
        known = f"{human_bytes(need.size_bytes)}; " if need.size_bytes else ""
        gated = "gated; " if need.gated else ""
        return f"{known}{gated}can't be provided"
    access = _access(need) if need.gated else ""
    if need.size_bytes is None:
        return f"size unknown: {need.unknown}{access}"
    if need.size_bytes == 0:
        return f"nothing more{access}"
    about = "about " if need.about else ""
    return f"{about}{human_bytes(need.size_bytes)}{access}"


def _access(need: Needed) -> str:
    """Say whether the Hub would send a gated model: it was asked, unless that failed."""
    return (
        f"; gated, access unknown: {need.unknown}"
        if need.unknown
        else "; gated, access granted"
    )


def disk_line(disk: DiskNeed) -> str:
    if disk.unknown and not disk.needed_bytes:
        what = f" of what goes to {disk.folder}" if disk.folder else ""
        return f"unknown; no size is known{what}"
    needed = human_bytes(disk.needed_bytes)
    if disk.unknown:
        needed += f" and {many(disk.unknown, 'thing')} of unknown size"
    where = f" at {disk.folder}" if disk.folder else ""
    if disk.free_bytes is None:
        return f"{needed} needed{where}"
    short = ": too little" if disk.short else ""
    return f"{needed} needed; {human_bytes(disk.free_bytes)} free{where}{short}"


def _times(phases: Sequence[Phase]) -> Iterator[str]:
    if not phases:
        return
    width = max(len(phase.name) for phase in phases)
    times = [
        "unknown" if phase.seconds is None else clock(phase.seconds) for phase in phases
    ]
    wide = max(map(len, times))
    for phase, time in zip(phases, times, strict=True):
        basis = "" if phase.basis == "unknown" else f"{phase.basis}: "
        yield f"Time: {phase.name.ljust(width)}  {time.rjust(wide)}  {basis}{phase.about}"


def _cost(rig: RigNeeds) -> str:
    cost = rig.cost
    if cost.amount is None or cost.hour is None:
        return cost.about
    an_hour = f"{price(cost.hour)} {cost.currency} an hour"
    return f"about {cost.amount:,.2f} {cost.currency}: {clock(rig.seconds)} at {an_hour} ({cost.about})"


def _total(dry: DryRun) -> str:
    sentences = []
    if dry.done:
        sentences.append(
            f"{many(dry.done, 'trial')} {'is' if dry.done == 1 else 'are'} done in {dry.folder}."
        )
    left = " left" if dry.done else ""
    together = f" on {len(dry.rigs)} machines together" if len(dry.rigs) > 1 else ""
    unknown = (
        f", and an unknown time to {_in_words(dry.unknown_phases)}"
        if dry.unknown_phases
        else ""
    )
    sentences.append(f"About {clock(dry.seconds)}{left}{together}{unknown}.")
    paid = " and ".join(
        f"{amount:,.2f} {currency}" for currency, amount in dry.cost.items()
    )
    if paid:
        sentences.append(f"Cost of the known time: about {paid}.")
    if not dry.done:
        sentences.append("Finished trials make this more exact.")
    return " ".join(sentences)


def _in_words(names: Sequence[str]) -> str:
    """Join names as a sentence does: fetch, install and quantize."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
