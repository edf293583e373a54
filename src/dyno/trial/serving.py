"""The server that a trial is measured on: an engine that dyno starts for it, or one that runs already."""

import contextlib
from collections.abc import Iterator, Sequence

from dyno.engines.kinds import starts
from dyno.errors import UsageError
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.probe import rig
from dyno.store.run import Run
from dyno.trial.engine_plan import EnginePlan, ready_api
from dyno.trial.fleet import running
from dyno.trial.session import Session, attach
from dyno.trial.watcher import Watcher


def plan_of(trial: TrialSpec, lengths: Sequence[int] = ()) -> EnginePlan | None:
    """Plan the engine that is started for a trial, and refuse what can't work with requests of these lengths. None: the
    trial has a server that runs already."""
    if trial.engine is None or not starts(trial.engine):
        return None
    plan = EnginePlan(trial.engine, rig.read_machine(), api=ready_api(trial))
    refuse(plan.problems(lengths))
    return plan


def refuse(problems: Sequence[str]) -> None:
    if problems:
        raise UsageError(" ".join(problems))


@contextlib.contextmanager
def serving(
    trial: TrialSpec,
    plan: EnginePlan | None,
    run: Run | None,
    headers: dict[str, str],
    watcher: Watcher,
    stop: Stop,
) -> Iterator[Session]:
    """Start the planned engine and stop it on leaving, or attach to the trial's server. `run`: the folder of the
    engine's log and facts."""
    if plan is None:
        session = attach(trial, headers, watcher, stop)
        if unlisted := session.unlisted:
            watcher.phase(f"Doubtful before it begins: {unlisted}")
        yield session
        return
    assert run is not None
    with running(
        plan, run.path, headers, watcher.phase, run.write_engine, watcher.below
    ) as fleet:
        yield Session(fleet.target, headers, watcher, stop, fleet)
