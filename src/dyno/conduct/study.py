"""A study, from its file to the last of its trials. Stopped at any moment, it goes on where it was.

What is done is known by the folders alone: a trial with a summary.json is done, any other is run again from its
beginning. So there is no state that could disagree with the facts.
"""

import contextlib
import datetime
import os
import shutil
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import secrets
from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.fleet import Fleet, running, scrub_all
from dyno.conduct.idle import until_idle
from dyno.conduct.offline import OfflineOutcome, alike, plan_of
from dyno.conduct.offline import finish as finish_offline
from dyno.conduct.offline import measure as measure_offline
from dyno.conduct.prompts import fitting
from dyno.conduct.signals import interrupt, lent
from dyno.conduct.trial import Outcome, finish, hidden, look_at, on_fleet, on_server
from dyno.conduct.watcher import Watcher
from dyno.conduct.worker import Worker, working
from dyno.engines.kinds import kind_of
from dyno.engines.log import excerpt
from dyno.errors import DynoError, EngineError, NotSummedUp, StudyStopped, TargetError, UsageError, WorkloadError
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, Study
from dyno.load.progress import Stop
from dyno.measure.saturation import level_of, saturated
from dyno.probe import rig
from dyno.store.run import UNSCRUBBED, Run, make_folder, write
from dyno.store.study import Failure, StudyFolder, failure_of, write_failure
from dyno.study import order
from dyno.workload.tokenizer import Tokenizer, choose

AnyOutcome = Outcome | OfflineOutcome
Headers = Callable[[PlannedTrial], dict[str, str]]  # keys and other headers: they are in no file


class StudyWatcher(Watcher):
    """Told of the trials as well; a silent one by default."""

    def begins(self, planned: PlannedTrial) -> None: ...

    def again(self, planned: PlannedTrial, why: str) -> None: ...

    def ended(self, planned: PlannedTrial, told: "Told") -> None: ...


class Told(NamedTuple):
    """What became of a trial."""

    state: str  # done, failed, skipped
    text: str = ""
    outcome: "AnyOutcome | None" = None


class Conductor:
    def __init__(
        self,
        study: Study,
        folder: StudyFolder,
        headers: Headers,
        watcher: StudyWatcher | None = None,
        stop: Stop | None = None,
        keep_raw: bool = False,
    ) -> None:
        self.study, self.folder, self.headers = study, folder, headers
        self.watcher, self.stop, self.keep_raw = watcher or StudyWatcher(), stop or Stop(), keep_raw
        secrets.learn(secrets.values(os.environ))
        secrets.learn(secret for p in study.trials for secret in hidden(p.trial, {}))  # headers: when they are used
        self._attempts: Counter[str] = Counter()
        self._first_failure: dict[str, str] = {}  # of a trial that is tried once more
        self._hopeless: set[str] = set()  # would fail alike again
        self._skipped = folder.skipped()
        self._start: Path | None = None  # the last one's folder
        # By id, once: a study may have a thousand trials, and each asks about the others.
        self._alike: dict[str, list[PlannedTrial]] = {}
        for p in study.trials:
            self._alike.setdefault(_same_program(p), []).append(p)
        self._series: dict[tuple[str, ...], list[PlannedTrial]] = {}
        for p in study.trials if study.stop else []:
            self._series.setdefault(order.series_key(p), []).append(p)

    def conduct(self, wanted: Sequence[PlannedTrial]) -> None:
        """Runs those of them that have no result yet, in the study's order."""
        with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
            self._scrub()
            self._conduct(wanted)

    def _scrub(self) -> None:
        """A dyno that was killed couldn't take secrets out of the logs that its engine wrote."""
        for mark in self.folder.engines_path.glob(f"*/{UNSCRUBBED}"):
            scrub_all(mark.parent)

    def _conduct(self, wanted: Sequence[PlannedTrial]) -> None:
        ids = {p.place.id for p in wanted} - self.folder.done()
        found = rig.look()
        for session in order.sessions(self.study, ids):
            queue = deque(p for p in session.trials if not self._recovered(p))
            while queue and not self.stop.requested:
                self._leave_out(queue)
                if queue:
                    self._session(session.name, queue, found)

    def _session(self, name: str, queue: deque[PlannedTrial], found: Rig) -> None:
        """As many trials of the queue as one start of the engine is good for."""
        first = queue[0]
        spec, headers = first.trial.engine, self.headers(first)
        assert spec is not None
        try:
            if not kind_of(spec.kind).starts:
                self._go_through(queue, self._attached)
                return
            self._start = start = self.folder.engine_start(name)
            if first.trial.offline:
                self._offline(queue, start, found)
                return
            plan = EnginePlan(spec, found)
            with running(plan, start, headers, self.watcher.phase, Run(start).write_engine) as fleet:
                self._check_version(first, fleet.facts.version)
                ready = _sizes(start)
                self._go_through(queue, lambda p: self._on_fleet(p, fleet, start, ready), fleet.death)
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
                self._failed(queue.popleft(), str(e))

    def _offline(self, queue: deque[PlannedTrial], start: Path, found: Rig) -> None:
        """Those of the queue's head that one loaded engine is good for."""
        first = queue[0]
        plan = plan_of(first.trial, found)
        # Those that it is good for come first: each load of another may take minutes.
        fitting_ones = [p for p in queue if alike(plan, plan_of(p.trial, found))]
        others = [p for p in queue if p not in fitting_ones]
        queue.clear()
        queue.extend([*fitting_ones, *others])
        with working(plan, start, self.watcher.phase, Run(start).write_engine) as worker:
            self._check_version(first, worker.facts.version)
            self._go_through(
                queue,
                lambda p: self._on_worker(p, worker),
                worker.death,
                lambda p: p in fitting_ones,
            )

    def _check_version(self, planned: PlannedTrial, version: str | None) -> None:
        """Trials of one engine by two of its versions would be compared as if they were of one."""
        for other in self._alike[_same_program(planned)]:
            run = self.folder.run(other.place)
            if not run.whole:
                continue
            engine = run.engine()
            before = engine.version if engine else run.manifest().target.version
            if before != version:
                raise StudyStopped(
                    f"{planned.place.engine} is of version {version} now, and was {before} when {run.path} was "
                    "measured. Go on with that version, or begin anew with --new or --runs DIR."
                )
            return

    def _go_through(
        self,
        queue: deque[PlannedTrial],
        run_one: Callable[[PlannedTrial], AnyOutcome | None],
        death: Callable[[], str | None] = lambda: None,
        fits: Callable[[PlannedTrial], bool] = lambda _: True,
    ) -> None:
        """Until nothing is left, the next one needs another engine, this one is dead, or somebody stops it."""
        while queue and not self.stop.requested:
            self._leave_out(queue)
            if not queue or not fits(queue[0]):
                return
            planned = queue[0]
            self.watcher.begins(planned)
            self._attempts[planned.place.id] += 1
            why = None
            outcome = None
            try:
                outcome = run_one(planned)
            except (TargetError, UsageError, WorkloadError, NotSummedUp) as e:
                why = str(e)
                if isinstance(e, UsageError | WorkloadError):  # it would be the same again
                    self._hopeless.add(planned.place.id)
            except EngineError as e:  # of one in its own process: how it died is told by whoever asked it
                why = str(e)
            if self.stop.requested:
                return
            dead = death()
            if dead is None and outcome and outcome.run.whole:
                queue.popleft()
                self.watcher.ended(planned, Told("done", outcome=outcome))
                continue
            completed = outcome.result.completed if outcome else 0
            why = why or dead or f"it was not measured to its end: {completed} requests were completed."
            if self._again(planned):
                self._first_failure[planned.place.id] = why
                self.watcher.again(planned, why)
            else:
                queue.popleft()
                self._failed(planned, why)
            if dead is not None:
                return

    def _again(self, planned: PlannedTrial) -> bool:
        tries = 1 if planned.place.id in self._hopeless else 2
        return self.study.on_failure == "retry" and self._attempts[planned.place.id] < tries

    def _failed(self, planned: PlannedTrial, why: str) -> None:
        """Its folder stays, with what there is: the log, and requests that failed."""
        run = self.folder.run(planned.place)
        make_folder(run.path)
        run.summary_path.unlink(missing_ok=True)  # what none has completed is no result
        if self._start is not None and not run.engine_path.exists():  # the engine didn't come up: its words go with it
            for path in (self._start / "engine.json", *self._start.glob("engine*.log")):
                if path.exists():
                    shutil.copy(path, run.path)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_failure(run, Failure(why, self._attempts[planned.place.id] or 1, now))
        self.watcher.ended(planned, Told("failed", why))
        if self.study.on_failure == "stop":
            raise StudyStopped(f"{planned.place.label} failed, and the study stops there: {why}")

    def _on_fleet(self, planned: PlannedTrial, fleet: Fleet, start: Path, ready: dict[str, int]) -> Outcome | None:
        headers = self.headers(planned)
        until_idle(fleet.urls, headers, cpu_s=fleet.cpu_s)
        run = self.folder.fresh(planned.place)
        run.write_engine(fleet.facts)
        self._tell_first_failure(run, planned)
        before = _sizes(start)
        try:
            tokenizer = on_fleet(run, planned.trial, fleet, headers, self.watcher, self.stop, place=planned.place)
        finally:
            _copy_logs(start, run, ready, before, fleet)
        if (died := fleet.death()) is not None:
            run.write_engine(msgspec.structs.replace(fleet.facts, died=died))
            return None
        return self._finished(run, tokenizer)

    def _on_worker(self, planned: PlannedTrial, worker: Worker) -> OfflineOutcome:
        run = self.folder.fresh(planned.place)
        run.write_engine(worker.facts)
        self._tell_first_failure(run, planned)
        try:
            measure_offline(run, planned.trial, worker, self.watcher, planned.place)
        finally:
            log = worker.engine.process.log
            if log.exists():
                write(run.path / log.name, worker.plan.clean(excerpt(log)).encode())
        return finish_offline(run)

    def _attached(self, planned: PlannedTrial) -> Outcome | None:
        headers = self.headers(planned)
        trial = planned.trial
        target = look_at(trial, headers, self.watcher)
        until_idle(trial.target.urls, headers, trial.target)
        self._check_version(planned, target.version)
        work = fitting(trial, target, headers, self.watcher)
        # What an attempt that was cut has sent may still be in the server's cache.
        cut = self.folder.run(planned.place)
        before = str(cut.path) if cut.manifest_path.exists() else None
        run = self.folder.fresh(planned.place)
        self._tell_first_failure(run, planned)
        tokenizer = on_server(run, trial, target, headers, self.watcher, self.stop, work, before, place=planned.place)
        return self._finished(run, tokenizer)

    def _tell_first_failure(self, run: Run, planned: PlannedTrial) -> None:
        """What went wrong before goes with the result of the second attempt."""
        if why := self._first_failure.get(planned.place.id):
            run.write_first_failure(why)

    def _finished(self, run: Run, tokenizer: Tokenizer | None) -> Outcome | None:
        if self.stop.requested:
            return None  # cut off: it is run again, as a whole
        self.watcher.phase("Decoding")
        return finish(run, tokenizer, self.keep_raw, only_whole=True, keys_known=True)

    def _recovered(self, planned: PlannedTrial) -> bool:
        """A trial that was measured to its end and not summed up yet is summed up, not run again."""
        run = self.folder.run(planned.place)
        with contextlib.suppress(DynoError):
            client, engine = run.client(), run.engine()
            if client is None or client.outcome != "complete" or failure_of(run) or (engine and engine.died):
                return False
            named = run.manifest().trial.tokenizer
            outcome = finish(run, choose(named, None, "") if named else None, self.keep_raw, only_whole=True)
            if not run.whole:
                return False
            self.watcher.ended(planned, Told("done", "summed up", outcome))
            return True
        return False

    def _leave_out(self, queue: deque[PlannedTrial]) -> None:
        """Those at the head of the queue whose series has told all it can."""
        while queue and (why := self._enough(queue[0])):
            planned = queue.popleft()
            self._skipped[planned.place.id] = why
            self.folder.write_skipped(self._skipped)
            self.watcher.ended(planned, Told("skipped", why))

    def _enough(self, planned: PlannedTrial) -> str | None:
        if self.study.stop is None:
            return None
        mine = order.level(planned)
        lower = [p for p in self._series[order.series_key(planned)] if order.level(p) < mine]
        levels = []
        for p in sorted(lower, key=order.level):
            run = self.folder.run(p.place)
            if not run.whole:
                continue
            found = level_of(run.result())
            if found is not None:
                levels.append(found)
                if why := saturated(levels, self.study.stop):
                    return why
        return None


def _same_program(planned: PlannedTrial) -> str:
    """Trials that one version of one program should have measured."""
    engine = planned.trial.engine
    image = engine.container.image if engine and engine.container else None
    return f"{planned.place.rig} {planned.place.engine} {engine and (engine.version, engine.environment, image)}"


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("engine*.log")}


def _copy_logs(start: Path, run: Run, ready: dict[str, int], before: dict[str, int], fleet: Fleet) -> None:
    """What the engine said when it came up, and what it said during this trial: its folder is whole by itself."""
    for name, size in before.items():
        text = excerpt(start / name, end=ready.get(name, 0)) + excerpt(start / name, size)
        write(run.path / name, fleet.plan.clean(text).encode())
