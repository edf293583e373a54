"""A machine before a study: whether it has what the study needs, and the commands that prepare it."""

import contextlib
import signal
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from dyno import secrets
from dyno.checks.host import HostSetting, settings
from dyno.conduct import provide
from dyno.conduct.study_plan import SettingPlan, fits
from dyno.engines import image
from dyno.errors import EngineError
from dyno.facts.rig import Rig
from dyno.facts.study import RigWanted
from dyno.numbers import human_bytes
from dyno.saying import Say
from dyno.scratch import scratch
from dyno.signals import interrupt, lent
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.lifecycle import run_command


@contextlib.contextmanager
def prepared(wanted: RigWanted, say: Say) -> Iterator[None]:
    """Run the commands of a study's rig before the study; on leaving, whatever happened, those after it."""
    with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
        try:
            _run(wanted.before, "before", say)
            yield
        except BaseException:  # that one is reported, not a failure of those after it
            with contextlib.suppress(EngineError):
                _run(wanted.after, "after", say)
            raise
        _run(wanted.after, "after", say)


def _run(commands: Sequence[str], when: str, say: Say) -> None:
    def below(text: str, stays: bool = False) -> None:
        say(f"  {text}")

    with scratch() as folder:
        for command in commands:
            shown = secrets.public_command(command)
            say(f"Running {shown!r} ({when} the study)")
            if failed := run_command(command, folder / "log", secrets.public_text, below):
                raise EngineError(f"The command {shown!r} ({when} the study) {failed}")


def compared(wanted: RigWanted, machine: Rig) -> list[HostSetting]:
    """Return the accelerators and the settings of the machine beside those that the study wants."""
    rows = list(settings(wanted.host, machine)) if wanted.host else []
    if wanted.accelerator or wanted.accelerators:
        asked = f"{wanted.accelerators or 1} × {wanted.accelerator or 'any'}"
        names = [a.name for a in machine.accelerators]
        here = ", ".join(f"{names.count(n)} × {n}" for n in dict.fromkeys(names)) or "none"
        rows.insert(0, HostSetting("accelerators", asked, here, fits(wanted, machine), ""))
    return rows


class Requirement(NamedTuple):
    what: str  # data set, tool, model, engine, image, disk
    name: str
    state: str


def requirements(plans: Sequence[SettingPlan]) -> list[Requirement]:
    """Return what the trials need and where it is. What dyno can't provide is a problem of its plan."""
    trials = [planned.trial for setting in plans for planned in setting.trials]
    missing = provide.needs(
        [t.engine for t in trials if t.engine], [t.workload for t in trials], dry=True
    )
    names = {need.name for need in missing}
    rows: list[Requirement] = []
    for setting in plans:
        if setting.engine is not None:
            rows += _present(setting.engine, names)
    rows += [Requirement(need.what, need.name, _provision(need)) for need in missing]
    rows += [
        Requirement("disk", str(folder), f"{human_bytes(free)} free")
        for folder, free in provide.room(missing)
    ]
    return list(dict.fromkeys(rows))


def _present(plan: EnginePlan, missing: Collection[str]) -> Iterator[Requirement]:
    """Yield what an engine needs and is here. `missing`: the names of what isn't."""
    version, spec = plan.program.version or "of unknown version", plan.stored
    yield Requirement("engine", f"{plan.kind.title} {version}", plan.program.where)
    box = spec.container
    if box and plan.tool and box.image not in missing:
        yield Requirement("image", box.image, image.digest(plan.tool, box.image) or "")
    for name in (spec.model, spec.draft_model):
        if name and name not in missing:
            yield Requirement("model", name, "here")


def _provision(need: provide.Need) -> str:
    return (
        f"not here: {need.refused}"
        if need.refused
        else f"not here; `dyno run` will {need.how}"
    )
