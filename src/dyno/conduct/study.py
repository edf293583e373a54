"""A study, from the first of its trials to the last. Stopped at any moment, it resumes there.

The folders alone say what is done: a trial with a summary.json is done, any other is run again from its beginning. So
no state can disagree with the facts.
"""

import contextlib
import datetime
import os
import shutil
import signal
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import plugins, secrets
from dyno.conduct import estimate, study_plan
from dyno.engines.kinds import starts
from dyno.engines.log import excerpt
from dyno.errors import (
    DynoError,
    EngineError,
    NotSummedUp,
    RigError,
    StoreError,
    StudyStopped,
    TargetError,
    UsageError,
    WorkloadError,
)
from dyno.facts.engine import EngineSpec
from dyno.facts.metric import speed_title
from dyno.facts.recipe import ModelOrigin
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, StopRule, Study
from dyno.facts.summary import Result
from dyno.http import check_certificates
from dyno.load.progress import Stop
from dyno.numbers import number
from dyno.probe import rig
from dyno.quality import flow as quality
from dyno.remote import on_ray
from dyno.remote.elsewhere import Elsewhere
from dyno.remote.engine import FarMachine, HeldFleet, engine_there
from dyno.saying import Say
from dyno.search import find
from dyno.search.tune import Watch
from dyno.signals import interrupt, lent
from dyno.store.run import UNSCRUBBED, Run, make_folder, write
from dyno.store.study import Failure, StudyFolder, failure_of, write_failure
from dyno.study import order
from dyno.study.order import sessions
from dyno.trial import weights
from dyno.trial.engine_plan import EnginePlan, ready_api
from dyno.trial.fleet import Fleet, running
from dyno.trial.lifecycle import scrub_all
from dyno.trial.offline import engine_plan, same_engine
from dyno.trial.offline import finish as finish_offline
from dyno.trial.offline import measure as measure_offline
from dyno.trial.offline_engine import Worker, working
from dyno.trial.online import finish, measure
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import Prepared, hidden, prepare
from dyno.trial.processes import Ahead
from dyno.trial.session import Session, attach
from dyno.trial.watcher import StudyWatcher, TrialEnd
from dyno.workload.request import Request
from dyno.workload.tokenizer import choose

_SEEN = 0.02  # of the prompts: fewer that a server's cache may hold move no figure
LONG_S = 1.0  # a shorter steady window counts a wave too many or too few
# keys and other headers: they are in no file
Headers = Callable[[PlannedTrial], dict[str, str]]


class _Attempt(NamedTuple):
    """A trial as it is sent now."""

    planned: PlannedTrial
    cut: str = ""  # the folder of the attempt before, which the same server met
    seen: Set[int] = frozenset()  # its prompts

    def prepare(self, session: Session) -> Prepared:
        prepared = prepare(self.planned.trial, session, place=self.planned.place)
        requests = prepared.prompts.workload.requests
        # A file may have no others.
        same = sum(_key(request) in self.seen for request in requests) > _SEEN * len(
            requests
        )
        return prepared._replace(sent_before=self.cut) if same else prepared


class Conductor:
    """Runs the trials of one study."""

    def __init__(
        self,
        study: Study,
        folder: StudyFolder,
        headers: Headers,
        watcher: StudyWatcher | None = None,
        stop: Stop | None = None,
        keep_raw: bool = False,
        far: Mapping[str, FarMachine] | None = None,
        wants: Callable[[PlannedTrial], bool] = lambda _: True,
    ) -> None:
        """`far`: machines by rig, on which engines run while the load comes from here. `wants`: asked when a trial's
        turn has come; one that isn't wanted any more is left out."""
        self.study, self.folder, self.headers, self.far = study, folder, headers, far or {}
        self.watcher, self.stop, self.keep_raw = (
            watcher or StudyWatcher(),
            stop or Stop(),
            keep_raw,
        )
        self.wants = wants
        secrets.learn(secrets.values(os.environ))
        # headers: when they are used
        secrets.learn(secret for p in study.trials for secret in hidden(p.trial, {}))
        self._attempts: Counter[str] = Counter()
        self._first_failure: dict[str, str] = {}  # of a trial that is tried once more
        self._hopeless: set[str] = set()  # would fail the same way again
        self._skipped = folder.skipped()
        self._start: Path | None = None  # the last one's folder
        # of the engine that met a trial's last attempt
        self._last_start: dict[str, Path] = {}
        # tag → the digest that this study's results are by
        self._images: dict[str, str | None] = {}
        # Once: a study may have a thousand trials, and each asks about the others.
        self._same_program: dict[str, list[PlannedTrial]] = {}
        for p in study.trials:
            self._same_program.setdefault(_program(p), []).append(p)
        self._series: dict[tuple[str, ...], list[PlannedTrial]] = {}
        for p in (
            p for p in study.trials if study.stop and not (p.trial.quality or p.trial.find)
        ):
            self._series.setdefault(order.series_key(p), []).append(p)

    def conduct(self, wanted: Sequence[PlannedTrial]) -> None:
        """Run those of them that have no result yet, in the study's order."""
        with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
            # A dyno that was killed couldn't take secrets out of the logs that its engine wrote.
            for mark in self.folder.engines_path.glob(f"*/{UNSCRUBBED}"):
                scrub_all(mark.parent)
            ids = {p.place.id for p in wanted} - self.folder.done()
            for client in {p.trial.client for p in wanted if p.place.id in ids}:
                on_ray.check(client)
            machine = rig.read_machine()
            for group in order.sessions(self.study, ids):
                queue = deque(p for p in group.trials if not self._recovered(p))
                while queue and not self.stop.requested:
                    self._skip(queue)
                    if queue:
                        self._session(group.name, queue, machine)

    def _session(self, name: str, queue: deque[PlannedTrial], machine: Rig) -> None:
        """Run as many trials of the queue as one start of the engine can serve."""
        first = queue[0]
        spec, headers = first.trial.engine, self.headers(first)
        try:
            if spec is None or not starts(spec):
                self._go_through(queue, self._attached)
                return
            self._start = start = self.folder.engine_start(name)
            if first.trial.offline:
                self._offline(queue, start, machine)
                return
            with self._running(first, spec, start, headers, machine) as fleet:
                self._pin(first, fleet.facts.image)
                self._check_version(first, fleet.facts.version)
                self._check_models(first, fleet.facts.models)
                self._go_through(
                    queue, partial(self._on_fleet, fleet, start, _sizes(start)), fleet.death
                )
        except (EngineError, TargetError, UsageError) as e:
            if not queue or self.stop.requested:
                raise
            # It didn't come up, or isn't what was asked for: so it is for all that wait for it.
            self._attempts[queue[0].place.id] += 1
            if self._again(queue[0]):
                self._first_failure[queue[0].place.id] = str(e)
                self.watcher.again(queue[0], str(e))
                return
            while queue:
                if self.wants(planned := queue.popleft()):
                    self._failed(planned, str(e))

    def _running(
        self,
        first: PlannedTrial,
        spec: EngineSpec,
        start: Path,
        headers: dict[str, str],
        machine: Rig,
    ) -> AbstractContextManager[Fleet | HeldFleet]:
        """Start the engine on this machine, or hold it on the rig that the load reaches from here."""
        phase, below = self.watcher.phase, self.watcher.below
        if far := self.far.get(first.place.rig or ""):
            return engine_there(far, far.order(spec, headers), start, phase, below)
        plan = EnginePlan(spec, machine, image=self._pin(first), api=ready_api(first.trial))
        return running(plan, start, headers, phase, Run(start).write_engine, below)

    def _offline(self, queue: deque[PlannedTrial], start: Path, machine: Rig) -> None:
        """Run those trials of the queue that can share one loaded engine."""
        first = queue[0]
        plan = engine_plan(first.trial, machine, image=self._pin(first))
        # Those that share it come first: each load of another may take minutes.
        sharing = [
            p
            for p in queue
            if same_engine(plan, engine_plan(p.trial, machine, image=self._pin(p)))
        ]
        others = [p for p in queue if p not in sharing]
        queue.clear()
        queue.extend([*sharing, *others])
        with working(
            plan, start, self.watcher.phase, Run(start).write_engine, self.watcher.below
        ) as worker:
            self._pin(first, worker.facts.image)
            self._check_version(first, worker.facts.version)
            self._check_models(first, worker.facts.models)
            self._go_through(
                queue,
                partial(self._on_worker, worker),
                worker.death,
                lambda p: p in sharing,
            )

    def _pin(self, planned: PlannedTrial, digest: str | None = None) -> str | None:
        """Return the digest of a container's image in this study: from its first result on, whatever the tag."""
        if (tag := _image(planned)) is None:
            return None
        if tag not in self._images:
            by_tag = (p for p in self.study.trials if _image(p) == tag)
            whole = (run for p in by_tag if (run := self.folder.run(p.place)).whole)
            self._images[tag] = next(
                (e.image for run in whole if (e := run.engine()) and e.image), None
            )
        self._images[tag] = self._images[tag] or digest
        return self._images[tag]

    def _check_version(self, planned: PlannedTrial, version: str | None) -> None:
        """Raise where the study has results by another version: they would be compared as if by one."""
        for other in self._same_program[_program(planned)]:
            run = self.folder.run(other.place)
            if not run.whole:
                continue
            engine = run.engine()
            before = engine.version if engine else run.manifest().target.version
            if before != version:
                raise StudyStopped(
                    f"{planned.place.engine} is version {version} now, but was {before} in {run.path}. "
                    "Use that version again, or start anew with --new or --runs DIR."
                )
            return

    def _check_models(self, planned: PlannedTrial, models: dict[str, ModelOrigin]) -> None:
        """Raise where the study has results of another model by the same name, such as a later revision."""
        for other in self._same_program[_program(planned)]:
            run = self.folder.run(other.place)
            engine = run.engine() if run.whole else None
            before = engine.models if engine else {}
            for name in [
                n for n in models if n in before and before[n].origin != models[n].origin
            ]:
                raise StudyStopped(
                    f"The model {name} is {models[name].origin} now, but was {before[name].origin} in {run.path}. Pin "
                    "its revision with @COMMIT, or start anew with --new or --runs DIR."
                )

    def _go_through(
        self,
        queue: deque[PlannedTrial],
        run_one: Callable[[PlannedTrial], Outcome | None],
        death: Callable[[], str | None] = lambda: None,
        fits: Callable[[PlannedTrial], bool] = lambda _: True,
    ) -> None:
        """Run trials until none is left, the next one needs another engine, this one is dead, or the user stops it."""
        while queue and not self.stop.requested:
            self._skip(queue)
            if not queue or not fits(queue[0]):
                return
            planned = queue[0]
            self.watcher.begins(planned)
            self._attempts[planned.place.id] += 1
            outcome, why = self._try_one(planned, run_one, death)
            if self.stop.requested:
                if outcome is not None and outcome.result.summary is not None:
                    self.watcher.cut(planned, outcome)
                return
            dead = death()
            if dead is None and outcome and outcome.run.whole:
                queue.popleft()
                plugins.deliver(outcome.run.path)
                self.watcher.ended(planned, TrialEnd("done", outcome=outcome))
                continue
            why = why or dead or _ended_early(outcome)
            if self._again(planned):
                self._first_failure[planned.place.id] = why
                self.watcher.again(planned, why)
            else:
                queue.popleft()
                self._failed(planned, why)
            if dead is not None:
                return

    def _try_one(
        self,
        planned: PlannedTrial,
        run_one: Callable[[PlannedTrial], Outcome | None],
        death: Callable[[], str | None],
    ) -> tuple[Outcome | None, str | None]:
        """Return the outcome, or why there is none."""
        try:
            return run_one(planned), None
        except (
            TargetError
        ) as e:  # an engine that died says more than a request that it didn't answer
            return None, death() or str(e)
        except (UsageError, WorkloadError) as e:  # it would be the same again
            self._hopeless.add(planned.place.id)
            return None, str(e)
        except NotSummedUp as e:
            return None, str(e)
        except EngineError as e:  # of one in its own process: it says how it died
            return None, str(e)

    def _again(self, planned: PlannedTrial) -> bool:
        tries = 1 if planned.place.id in self._hopeless else 2
        return self.study.on_failure == "retry" and self._attempts[planned.place.id] < tries

    def _failed(self, planned: PlannedTrial, why: str) -> None:
        """Store why; the folder stays, with the log and the requests that failed."""
        run = self.folder.run(planned.place)
        make_folder(run.path)
        # without a completed one there is no result
        run.summary_path.unlink(missing_ok=True)
        # the engine didn't come up: keep its log
        if self._start is not None and not run.engine_path.exists():
            for path in (self._start / "engine.json", *self._start.glob("engine*.log")):
                if path.exists():
                    shutil.copy(path, run.path)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_failure(run, Failure(why, self._attempts[planned.place.id] or 1, now))
        self.watcher.ended(planned, TrialEnd("failed", why))
        if self.study.on_failure == "stop":
            raise StudyStopped(f"{planned.place.label} failed, so the study stops: {why}")

    def _on_fleet(
        self,
        fleet: Fleet | HeldFleet,
        start: Path,
        ready: dict[str, int],
        planned: PlannedTrial,
    ) -> Outcome | None:
        """Measure on an engine that dyno has started. `ready`: sizes of its logs when it came up."""
        session = Session(
            fleet.target, self.headers(planned), self.watcher, self.stop, fleet
        )
        session.wait_idle(fleet.aim(planned.trial).target)
        attempt = self._attempt(
            planned, again=self._last_start.get(planned.place.id) == start
        )
        self._last_start[planned.place.id] = start
        run = self._fresh(planned)
        run.write_engine(fleet.facts)
        before = _sizes(start)
        prepared = outcome = None
        with Ahead() as ahead:
            try:
                if planned.trial.quality:
                    outcome = quality.measure(run, session, planned.trial, planned.place)
                elif planned.trial.find:
                    outcome = find.measure_trial(run, session, planned.trial, planned.place)
                else:
                    prepared = attempt.prepare(session)
                    measure(run, session, prepared, ahead)
            finally:
                _copy_logs(start, run, ready, before)
            if (died := fleet.death()) is not None:
                run.write_engine(msgspec.structs.replace(fleet.facts, died=died))
                return None
            return self._finish(run, prepared, ahead) if prepared else outcome

    def _on_worker(self, worker: Worker, planned: PlannedTrial) -> Outcome:
        run = self._fresh(planned)
        run.write_engine(worker.facts)
        try:
            measure_offline(run, planned.trial, worker, self.watcher, planned.place)
        finally:
            for log in worker.logs:
                write(run.path / log.name, worker.plan.clean(excerpt(log)).encode())
        return finish_offline(run)

    def _attached(self, planned: PlannedTrial) -> Outcome | None:
        """Measure on a server that dyno hasn't started."""
        trial = planned.trial
        session = attach(trial, self.headers(planned), self.watcher, self.stop)
        session.wait_idle(trial.target)
        self._check_version(planned, session.target.version)
        if planned.trial.quality:
            return quality.measure(self._fresh(planned), session, trial, planned.place)
        if planned.trial.find:
            return find.measure_trial(self._fresh(planned), session, trial, planned.place)
        prepared = self._attempt(planned).prepare(session)
        run = self._fresh(planned)
        with Ahead() as ahead:
            measure(run, session, prepared, ahead)
            return self._finish(run, prepared, ahead)

    def _attempt(self, planned: PlannedTrial, again: bool = True) -> "_Attempt":
        """Return the trial as it is sent now. `again`: the server may have met an attempt that was cut or failed, and
        have its prompts in its cache. Then others are drawn, by a seed that follows from that attempt's."""
        cut = self.folder.run(planned.place)
        if not again or not cut.manifest_path.exists():
            return _Attempt(planned)
        trial = planned.trial
        try:
            seed, seen = (
                cut.manifest().trial.workload.seed,
                {_key(request) for request in cut.requests()},
            )
        except StoreError:  # of another version of dyno
            seed, seen = trial.workload.seed, set()
        following = zlib.crc32(f"{seed} again".encode()) & 0x7FFFFFFF
        trial = msgspec.structs.replace(
            trial, workload=msgspec.structs.replace(trial.workload, seed=following)
        )
        return _Attempt(msgspec.structs.replace(planned, trial=trial), str(cut.path), seen)

    def _fresh(self, planned: PlannedTrial) -> Run:
        """Begin the trial's folder anew; why the first attempt failed goes with the result of the second. What was
        answered in a quality trial stays answered, and a search keeps its probes."""
        run = self.folder.fresh(
            planned.place, keep=bool(planned.trial.quality or planned.trial.find)
        )
        if why := self._first_failure.get(planned.place.id):
            run.write_first_failure(why)
        return run

    def _finish(self, run: Run, prepared: Prepared, ahead: Ahead) -> Outcome | None:
        """Make the result. A load that was cut off has figures, and no result: it is run again, as a whole."""
        if self.stop.requested and not run.client_path.exists():
            return None  # before its load
        self.watcher.phase("Decoding")
        return finish(
            run,
            prepared.prompts.counter,
            self.keep_raw,
            only_whole=True,
            keys_known=True,
            watcher=self.watcher,
            ahead=ahead,
        )

    def _recovered(self, planned: PlannedTrial) -> bool:
        """Sum up a trial that was measured to its end and not summed up yet, instead of running it again."""
        run = self.folder.run(planned.place)
        if planned.trial.find:
            return False  # it continues with its probes
        with contextlib.suppress(DynoError):
            client, engine = run.client(), run.engine()
            if (
                client is None
                or client.outcome != "complete"
                or failure_of(run)
                or (engine and engine.died)
            ):
                return False
            named = weights.tokenizer(run.manifest().trial)
            outcome = finish(
                run,
                choose(named, None, "") if named else None,
                self.keep_raw,
                only_whole=True,
            )
            if not run.whole:
                return False
            plugins.deliver(outcome.run.path)
            self.watcher.ended(planned, TrialEnd("done", "summed up", outcome))
            return True
        return False

    def _skip(self, queue: deque[PlannedTrial]) -> None:
        """Skip trials at the head of the queue that aren't wanted, or whose series is saturated at less load."""
        while queue:
            wanted = self.wants(queue[0])
            why = self._saturated(queue[0]) if wanted else None
            if wanted and why is None:
                return
            planned = queue.popleft()
            if why is not None:
                self._skipped[planned.place.id] = why
                self.folder.write_skipped(self._skipped)
                self.watcher.ended(planned, TrialEnd("skipped", why))

    def _saturated(self, planned: PlannedTrial) -> str | None:
        if self.study.stop is None or planned.trial.quality or planned.trial.find:
            return None
        mine = order.level(planned)
        lower = [
            p for p in self._series[order.series_key(planned)] if order.level(p) < mine
        ]
        levels = []
        for p in sorted(lower, key=order.level):
            run = self.folder.run(p.place)
            if not run.whole:
                continue
            level = _level(run.result())
            if level is not None:
                levels.append(level)
                if why := _saturation(levels, self.study.stop):
                    return why
        return None


def _key(request: Request) -> int:
    return hash(
        request.prompt if isinstance(request.prompt, str) else tuple(request.prompt)
    )


def _ended_early(outcome: Outcome | None) -> str:
    """Say how far a trial without a result got, with the server's first words about a failure."""
    if outcome is None or outcome.result.summary is None:
        return "the load ended early."
    s = outcome.result.summary
    failures = ", ".join(f"{count} {kind}" for kind, count in s.failures.items())
    words = next(
        (f" The server's words: {text[:200]}" for text in s.failure_examples.values()), ""
    )
    return f"the load ended early: {s.completed} of {s.sent} requests were completed ({failures}).{words}"


def _program(planned: PlannedTrial) -> str:
    """Return a key that trials share where one version of one program should measure them."""
    engine = planned.trial.engine
    named = engine and (engine.version, engine.environment, _image(planned))
    return f"{planned.place.rig} {planned.place.engine} {named}"


def _image(planned: PlannedTrial) -> str | None:
    engine = planned.trial.engine
    return engine.container.image if engine and engine.container else None


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("engine*.log")}


def _copy_logs(
    start: Path, run: Run, ready: dict[str, int], before: dict[str, int]
) -> None:
    """Copy what the engine logged when it came up and during this trial: its folder is whole by itself."""
    for name, size in before.items():
        text = excerpt(start / name, end=ready.get(name, 0)) + excerpt(start / name, size)
        write(run.path / name, secrets.public_text(text).encode())


# ---- saturation: throughput no longer grows with load, and latency does ----


class _Level(NamedTuple):
    """How an engine did at one load."""

    throughput: float  # output tokens, vectors or scores a second, over the whole run
    unit: str
    latency_ms: float  # median, end to end
    steady: float | None = None  # the same in the steady window, where that is long enough


def _level(result: Result) -> _Level | None:
    """Return the level, or None where too little was completed or the client itself is in doubt."""
    s = result.served
    if not s.completed or s.failed > s.completed or s.e2el.median is None:
        return None
    if any(f.code.startswith("client.") and f.level != "note" for f in result.findings):
        return None
    long = s.steady and s.steady.end_s - s.steady.start_s >= max(LONG_S, s.duration_s / 2)
    return _Level(
        s.speed.value or 0.0,
        speed_title(s.speed.metric),
        s.e2el.median,
        s.steady.output_throughput if s.steady and long else None,
    )


def _saturation(levels: Sequence[_Level], rule: StopRule) -> str | None:
    """Say why the last of these levels of rising load is saturated; None where it isn't."""
    if len(levels) < 2:
        return None
    steady = [level.steady for level in levels if level.steady is not None]
    # windows are compared with windows, whole runs with whole runs
    alike = len(steady) == len(levels)
    *before, last = steady if alike else [level.throughput for level in levels]
    waits, waited = levels[-1].latency_ms, levels[-2].latency_ms
    if last > max(before) * (1 + rule.throughput_gain) or waits <= waited * (
        1 + rule.latency_growth
    ):
        return None
    where = "steady window" if alike else "whole run"
    return (
        f"saturated at less load: {number(last)} {levels[-1].unit} after {number(max(before))} ({where}), "
        f"median latency {number(waits)} ms after {number(waited)}"
    )


# ---- what is left of a study: on this machine, then on the rigs elsewhere ----


class StudyChoices(msgspec.Struct, frozen=True):
    """What a command chooses about the conduct of a study."""

    limit: int | None = None  # trials, at most
    only: tuple[str, ...] = ()  # patterns of their names
    # also on a machine that the study was not written for, or that has changed
    any_rig: bool = False
    any_rig_flag: str = ""  # words about how that is asked for; '': this command can't
    no_prepare: bool = False
    keep_raw: bool = False

    def words(self) -> list[str]:
        """Return them as flags of `dyno run` on another machine."""
        switches = {
            "--any-rig": self.any_rig,
            "--no-prepare": self.no_prepare,
            "--keep-raw": self.keep_raw,
        }
        words = [flag for flag, given in switches.items() if given]
        words += ["--limit", str(self.limit)] if self.limit else []
        return words + [word for pattern in self.only for word in ("--only", pattern)]


# of trials to run, and how many were done before
# of the trials to run, how many were done before, and how long each takes, where that is known
Views = Callable[[Sequence[PlannedTrial], int, Mapping[str, float]], StudyWatcher]


def conduct_part(
    text: str,
    folder: StudyFolder,
    headers: Headers,
    whole: Study,
    planned: Sequence[PlannedTrial],
    watch: Watch,
) -> None:
    """Store a study as far as it is known, and run these trials of it: `dyno tune` plans while it measures."""
    folder.write(*study_plan.public(whole, text))
    study = msgspec.structs.replace(
        whole, trials=list(planned), on_failure="carry_on", interleave="engines", stop=None
    )
    Conductor(study, folder, headers, watch.watcher, watch.stop, wants=watch.wants).conduct(
        planned
    )


class StudyRun(msgspec.Struct, frozen=True):
    """A study with its folder, and the trials of it that are wanted."""

    study: Study
    text: str
    folder: StudyFolder
    wanted: list[PlannedTrial]
    headers: Headers
    views: Views
    say: Say
    choices: StudyChoices = StudyChoices()

    def here(self, machine: Rig) -> tuple[bool, bool]:
        """Run what is left on this machine. Return whether it was interrupted, and whether anything was left at all."""
        done = self.folder.done()
        mine = [p for p in self.wanted if not self.study.is_elsewhere(p)]
        left = self._left(mine, done)
        plans = study_plan.plans(self.study, left, machine, dry=False)
        refuse(study_plan.problems(plans), "nothing was started")
        check_keys((p for p in self.wanted if p.place.id not in done), self.headers)
        check_certificates(p.trial.target for p in left)
        if (
            left
            and not self.choices.any_rig
            and (changes := study_plan.moved(self.folder, mine, machine))
        ):
            raise UsageError(
                f"{self.folder.path} was started on another machine, or this machine has changed: {' '.join(changes)} "
                f"The trials would not be comparable. {self.choices.any_rig_flag}--runs DIR starts elsewhere."
            )
        self.folder.write(*study_plan.public(self.study, self.text))
        before = sum(p.place.id in done for p in self.wanted)
        self._say_where(before)
        stop = Stop()
        try:
            expected_s = estimate.trials_s(self.study, plans, machine, self._loads_s(done))
            with closing(self.views(left, before, expected_s)) as view:
                Conductor(
                    self.study, self.folder, self.headers, view, stop, self.choices.keep_raw
                ).conduct(left)
        except KeyboardInterrupt:
            stop.requested = True
        return stop.requested, before < len(self.wanted)

    def _loads_s(self, done: Set[str]) -> dict[str, float]:
        """Return how long the loads of finished trials took, by the label that repeats share."""
        took_s = {}
        for planned in self.wanted:
            if planned.place.id in done:
                with contextlib.suppress(DynoError):
                    result = self.folder.run(planned.place).result()
                    took_s[planned.place.label] = result.duration_s
        return took_s

    def elsewhere(self) -> list[str | None]:
        """Run the trials of rigs that are elsewhere. Return what went wrong; None: Ctrl-C."""
        problems: list[str | None] = []
        for name in dict.fromkeys(
            p.place.rig for p in self.wanted if self.study.is_elsewhere(p)
        ):
            assert name is not None
            stop = Stop()
            try:
                with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
                    self._on_rig(name, stop)
            except RigError as e:
                problems.append(str(e))
            except KeyboardInterrupt:
                stop.requested = True
            if stop.requested:
                return [*problems, None]
        return problems

    def _on_rig(self, name: str, stop: Stop) -> None:
        mine = [p for p in self.wanted if p.place.rig == name]
        far = Elsewhere(
            self.study,
            self.text,
            self.folder,
            name,
            lambda text: self.say(f"[{name}] {text}"),
            study_plan.public,
        )
        if self.study.rigs[name].client == "rig":
            far.conduct(mine, self.choices.words())
        elif {p.place.id for p in mine} - self.folder.done():
            far.from_here(
                mine, lambda machine: self._from_here(mine, stop, {name: machine})
            )

    def _from_here(
        self, mine: Sequence[PlannedTrial], stop: Stop, far: dict[str, FarMachine]
    ) -> None:
        """Run trials whose engines are on another machine, with the load from here."""

        def with_address(planned: PlannedTrial) -> dict[str, str]:
            """Keys of the engine, and of the address by which its machine publishes it."""
            published = far[planned.place.rig or ""].published
            return {**self.headers(planned), **(published.headers if published else {})}

        done = self.folder.done()
        before = sum(p.place.id in done for p in self.wanted)
        left = self._left(mine, done)
        with closing(self.views(left, before, {})) as view:
            Conductor(
                self.study,
                self.folder,
                with_address,
                view,
                stop,
                self.choices.keep_raw,
                far,
            ).conduct(left)

    def _left(self, trials: Sequence[PlannedTrial], done: set[str]) -> list[PlannedTrial]:
        ids = {p.place.id for p in trials} - done
        return [p for session in sessions(self.study, ids) for p in session.trials][
            : self.choices.limit
        ]

    def _say_where(self, before: int) -> None:
        if before == len(self.wanted):
            return
        path = self.folder.path
        if before:
            self.say(f"{before} of {len(self.wanted)} trials are done; resuming in {path}.")
        elif path.name != self.study.name and not self.choices.limit:
            self.say(
                f"{path.with_name(self.study.name)} keeps its results; the new ones go to {path}."
            )


def refuse(problems: Sequence[str], so: str) -> None:
    if problems:
        raise UsageError("\n".join([f"The study has problems; {so}:", *problems]))


def check_keys(planned: Iterable[PlannedTrial], headers: Headers) -> None:
    for each in planned:
        headers(each)  # a missing key is an error before anything starts
