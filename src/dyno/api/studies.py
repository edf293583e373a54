"""`dyno.study("x.toml").run()`: a study from a file or from tables, run, resumed and read."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dyno import secrets
from dyno.api import html
from dyno.api.headers import key_headers, proxied_study
from dyno.api.measuring import prepare_study
from dyno.api.progress import OnProgress, Reporter
from dyno.api.runs import RUNS, MeasuredRun, MeasuredRuns
from dyno.conduct import study_plan
from dyno.conduct.study import StudyChoices, StudyRun, check_keys, refuse
from dyno.errors import Interrupted, StudyStopped, UsageError
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, RigWanted, Study, label_matches, unmatched
from dyno.facts.summary import Result
from dyno.http import check_certificates
from dyno.probe import rig as rig_probe
from dyno.saying import Say
from dyno.store.study import StudyFolder, failure_of
from dyno.trial.prepare import check_dataset
from dyno.trial.watcher import StudyWatcher

Prepare = Callable[[list[PlannedTrial]], object]


class StudyResult(MeasuredRuns):
    """The results of a study, in its order. `failed` has each trial without one, and why."""

    def __init__(
        self, study: Study, path: Path, runs: Sequence[MeasuredRun], failed: dict[str, str]
    ) -> None:
        super().__init__(runs, [f"{label}: {why}" for label, why in failed.items()])
        self.study, self.path, self.failed = study, path, failed

    def part(self, words: str) -> MeasuredRuns:
        """Return the trials whose name has these words, or matches with * and ?."""
        runs = [run for run in self if label_matches(run.label, words)]
        if not runs:
            raise UsageError(unmatched(words, [run.label for run in self]))
        return MeasuredRuns(runs)

    @property
    def text(self) -> str:
        """Return the table that the command prints."""
        from dyno.report.study import lines

        wanted = self.study.trials
        results = {run.facts.place.id: run.result for run in self if run.facts.place}
        return "\n".join(lines(wanted, results, self.path))

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<study {self.study.name}: {len(self)} runs{failed}, {self.path}>"


class PlannedStudy:
    """A study that was read and checked. `run` measures what is left of it."""

    def __init__(self, study: Study, text: str) -> None:
        self.study, self._text = study, text

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def trials(self) -> list[str]:
        """Return the name of each trial, repeats once."""
        return list(dict.fromkeys(p.place.label for p in self.study.trials))

    def run(
        self,
        *,
        only: Sequence[str] = (),
        limit: int | None = None,
        rig: str | None = None,
        any_rig: bool = False,
        new: bool = False,
        extend: bool = False,
        keep_raw: bool = False,
        install: bool = True,
        runs: str | os.PathLike[str] = RUNS,
        progress: OnProgress | None = None,
    ) -> StudyResult:
        """Run the trials that have no result yet, as `dyno run` does, and return all results.

        Interrupted, it raises `Interrupted`; the same call resumes it. `only`: words of trials' names. `limit`: run at
        most so many. `new`, `extend`: what to do where an earlier version of the study has results. `install`: fetch,
        make and install what is missing; False: that is an error.
        """
        secrets.learn(secrets.values(os.environ))
        reporter = Reporter(progress)
        study, machine = proxied_study(self.study), rig_probe.read_machine()
        names = study_plan.choose_rigs(study, machine, rig, any_rig)
        wanted = wanted_trials(study, names, only)
        check_elsewhere(study, wanted)
        folder = study_plan.folder_for(Path(runs), study, new, extend)
        choices = StudyChoices(limit, tuple(only), any_rig, "", not install, keep_raw)

        def prepare(planned: list[PlannedTrial]) -> None:
            prepare_study([p.trial for p in planned], reporter)

        def view(*_: object) -> StudyWatcher:
            return reporter

        job = StudyRun(
            study, self._text, folder, wanted, key_headers, view, reporter.remark, choices
        )
        provide = prepare if install else None
        with (
            folder.lock(),
            prepared_machine(
                study, folder, wanted, machine, provide, reporter.remark
            ) as ready,
        ):
            end = conduct(job, ready)
        if end.stopped:
            raise Interrupted(
                f"interrupted. {len(end.results)} of {len(wanted)} trials are measured and kept. The same call resumes "
                "the study.",
                folder.path,
            )
        if problems := list(filter(None, end.problems)):
            raise StudyStopped(" ".join(problems))
        return result_of(study, folder, wanted)

    def __repr__(self) -> str:
        return f"<study {self.name}: {len(self.study.trials)} trials>"

    def _repr_html_(self) -> str:
        return html.table(["trial"], [[label] for label in self.trials], repr(self))


def study(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str = "study",
    variables: Mapping[str, Any] | None = None,
) -> PlannedStudy:
    """Read a study: a file, the name of a shipped study, or its tables as dictionaries.

        dyno.study("fp8.toml").run()
        dyno.study({"engines": {"a": {"kind": "fake"}}, "workloads": …, "loads": …}, name="mine").run()

    `name`: of a study from tables; its folder of results has this name. `variables`: of the file, by name.
    """
    given = {key: _as_toml(value) for key, value in (variables or {}).items()}
    secrets.learn(secrets.values(os.environ))
    if isinstance(source, Mapping):
        read, text = study_plan.read_tables(source, name, given)
    else:
        read, text = study_plan.read(study_path(os.fspath(source)), given)
    return PlannedStudy(read, text)


def _as_toml(value: Any) -> str:
    """Return a variable's value as a command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return msgspec.json.encode(value).decode() if isinstance(value, list) else str(value)


# ---- what the command calls, too ----


class StudyEnd(NamedTuple):
    """How far a study came."""

    results: dict[str, Result]  # by the trial's id
    stopped: bool  # by the user
    ran: bool  # something was left to measure
    problems: list[str | None]  # of rigs elsewhere; None: the user stopped it there


def conduct(job: StudyRun, machine: Rig) -> StudyEnd:
    """Run what is left of a study, here and then elsewhere, and read the results."""
    stopped, ran = job.here(machine)
    problems = [] if stopped else job.elsewhere()
    results = {
        p.place.id: run.result()
        for p in job.wanted
        if (run := job.folder.run(p.place)).whole
    }
    return StudyEnd(results, stopped or None in problems, ran, problems)


def result_of(
    study: Study, folder: StudyFolder, wanted: Sequence[PlannedTrial]
) -> StudyResult:
    """Return the results in a study's folder."""
    runs = [(p, folder.run(p.place)) for p in wanted]
    failed = {p.place.label: f.text for p, run in runs if (f := failure_of(run))}
    whole = [MeasuredRun(run.path) for _, run in runs if run.whole]
    return StudyResult(study, folder.path, whole, failed)


def study_path(name: str) -> Path:
    """Find a study's file: as named, or one that comes with dyno."""
    import dyno

    path = Path(name)
    if path.exists() or "/" in name or path.suffix:
        return path
    shipped = Path(dyno.__file__).parent / "studies"
    if (shipped / f"{name}.toml").exists():
        return shipped / f"{name}.toml"
    names = ", ".join(sorted(p.stem for p in shipped.glob("*.toml")))
    raise UsageError(
        f"There is no file {name} and no shipped study of that name. Shipped studies: {names}."
    )


def wanted_trials(
    study: Study, rigs: Sequence[str] | None, only: Sequence[str]
) -> list[PlannedTrial]:
    """Return the chosen trials of these rigs; None: of all."""
    trials = [p for p in study.trials if rigs is None or p.place.rig in rigs]
    if not only:
        return trials

    def is_chosen(planned: PlannedTrial) -> bool:
        return any(label_matches(planned.place.label, pattern) for pattern in only)

    chosen = [planned for planned in trials if is_chosen(planned)]
    if not chosen:
        labels = [planned.place.label for planned in study.trials]
        raise UsageError(f"--only: {unmatched(only[0], labels)} --dry-run lists all.")
    return chosen


def check_elsewhere(study: Study, wanted: Sequence[PlannedTrial]) -> None:
    """Refuse what can't be measured from here (an offline run has no client) or can't run there."""
    for p in wanted:
        if why := study_plan.no_docker(study, p):
            raise UsageError(why)
        if p.place.rig and p.trial.offline and study.rigs[p.place.rig].client == "here":
            raise UsageError(
                f'[rigs.{p.place.rig}] client = "here" is for serving; {p.place.label} is an offline benchmark, in the '
                'engine\'s own process. Use client = "rig".'
            )


def check_before_fetching(
    study: Study, planned: Sequence[PlannedTrial], machine: Rig
) -> None:
    """Refuse what can be known to fail, before gigabytes are fetched for it."""
    refuse(
        study_plan.problems_before_fetching(study, planned, machine),
        "nothing was fetched or started",
    )
    check_keys(planned, key_headers)
    check_certificates(each.trial.target for each in planned)
    for each in planned:
        check_dataset(each.trial.workload)


@contextlib.contextmanager
def prepared_machine(
    study: Study,
    folder: StudyFolder,
    wanted: Sequence[PlannedTrial],
    machine: Rig,
    prepare: Prepare | None,
    say: Say,
    named: str = "STUDY.toml",
) -> Iterator[Rig]:
    """Fetch what this machine's trials lack, run the study's own commands, and yield the machine as it is then.

    `prepare`: None: nothing may be fetched. `named`: the study, for a command in a message."""
    from dyno.checks.host import unmet
    from dyno.conduct.readiness import prepared

    here = [p for p in wanted if not study.is_elsewhere(p)]
    done = folder.done()
    left = [p for p in here if p.place.id not in done]
    if left and prepare is not None:
        check_before_fetching(study, left, machine)
        prepare(left)
    local = study.rigs[here[0].place.rig] if left and here[0].place.rig else RigWanted()
    with prepared(local, say):
        if local.before:
            machine = rig_probe.read_machine()
        differs = unmet(local.host, machine) if local.host else None
        if differs:
            say(f"{differs} `dyno doctor --for {named}` prints the commands that set it.")
        yield machine
