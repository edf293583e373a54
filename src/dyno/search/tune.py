"""Tunes an engine's settings: a short load of each that is proposed, a longer one while it is up where it is among the
best, then repeats of the best against the default. Repeats decide: a setting whose repeats are void or miss the target
gives way to the next. Each trial has its folder: a search that was stopped resumes with the same command."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dyno.checks.physics import UNSURE
from dyno.compare.compare import difference
from dyno.compare.scores import score_difference
from dyno.engines.launch import shown as shown_launch
from dyno.errors import DynoError, EngineError, UsageError
from dyno.facts.comparison import Difference, Estimate
from dyno.facts.find import FindAnswer
from dyno.facts.imported import Row
from dyno.facts.limits import SHARES, Limit
from dyno.facts.metric import OUTPUTS
from dyno.facts.metric import words as metric_words
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import Setting, TuneAnswer, TuneEnd, TuneGain, TuneRepeat, TuneTrial
from dyno.load.progress import Stop
from dyno.measure.cost import hour, per_million
from dyno.measure.estimate import error_of_repeats, value_of
from dyno.measure.roofline import as_loaded, bandwidth_at, tokens_per_step
from dyno.numbers import duration, many, number, percent
from dyno.report.find import level_words
from dyno.search.proposer import Proposer, key_of, possible
from dyno.search.tune_budget import TuneBudget
from dyno.search.tune_plan import LONGER, TunePlan
from dyno.store.rows import read_row, read_rows
from dyno.store.run import Run, make_folder, pretty, write
from dyno.store.study import StudyFolder, failure_of
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.prepare import longest
from dyno.trial.watcher import StudyWatcher

_SECOND = 2  # the repeat that is a longer load; the first is the short one
_DISCARDED = 20  # settings for each that is to be started: then the search ends
_PORT = 8000  # in a command to paste


class Watch(NamedTuple):
    """Who watches trials that are run, and who may end or refuse them."""

    watcher: StudyWatcher
    stop: Stop
    wants: Callable[[PlannedTrial], bool]  # asked when a trial's turn has come


# Stores a study as far as it is planned, and runs these trials of it.
Conduct = Callable[[Study, Sequence[PlannedTrial], Watch], None]


class Tuner:
    def __init__(
        self,
        plan: TunePlan,
        folder: StudyFolder,
        machine: Rig,
        conduct: Conduct,
        watcher: StudyWatcher,
        budget_s: float = math.inf,
    ) -> None:
        self.plan, self.spec, self.folder, self.machine = plan, plan.spec, folder, machine
        self.conduct, self.watcher, self.stop = conduct, watcher, Stop()
        self.budget = TuneBudget(self.spec, budget_s)
        self._planned: dict[str, PlannedTrial] = {}
        self._ended: TuneEnd = "interrupted"
        self._next_repeat = _SECOND + 1
        self._gains: dict[str, TuneGain] = {}
        self.default = TuneTrial({}, "discarded")
        self.trials: dict[str, TuneTrial] = {}

    def run(self, command: Callable[[TrialSpec], str]) -> TuneAnswer:
        """Search, and return the answer. `command`: makes the command line of a trial."""
        make_folder(self.folder.path)
        proposer = Proposer(  # first: without Optuna nothing is measured
            self.folder.path / "optuna.log",
            self.spec.settings,
            lower=self.spec.lower,
            seed=self.plan.study.seed,
            trials=self.spec.trials,
        )
        write(self.folder.path / "search.json", self.plan.identity.encode())
        best = None
        try:
            best = self._steps(proposer)
        except KeyboardInterrupt:
            self.stop.requested = True
            self._ended = "interrupted"
            best = next(iter(self._ranked()), None)
        answer = TuneAnswer(
            study=self.plan.study.name,
            engine=self.plan.base.place.engine,
            spec=replace(self.spec, weights={}),
            ended=self._ended,
            default=self.default,
            trials=list(self.trials.values()),
            best=best,
            duration_s=self.budget.spent_s,
            gain=self._gains.get(key_of(best.setting)) if best else None,
            commands=self._commands(best, command) if best else [],
            possible=possible(self.spec.settings),
            currency=price.currency if (price := self.plan.base.place.price) else "",
            budget_s=self.budget.total_s if math.isfinite(self.budget.total_s) else None,
        )
        if self._ended != "interrupted":
            write(self.folder.path / "tune.json", pretty(answer))
        return answer

    # ---- the steps ----

    def _steps(self, proposer: Proposer) -> TuneTrial | None:
        self.default = self.attempt({})
        if math.isfinite(self.budget.total_s):
            self.watcher.remark(
                f"Time left: {self.budget.words(possible(self.spec.settings))}"
            )
        waiting = list(proposer.earlier)
        self._ended = self._explore(proposer, waiting)
        self._longer()
        best = self._recommended()
        # No setting to repeat: the time that was kept for repeats is for more settings, one after the other.
        self.budget.release(repeats=bool(self.trials))
        while (
            self._ended == "budget"
            and not (best and best.setting)
            and self._time_for_setting()
        ):
            self._ended = self._explore(proposer, waiting, most=1)
            best = self._recommended()
        return best

    def _time_for_setting(self) -> bool:
        """Return whether there is time for a setting: with its longer load, where it would be compared by that."""
        longer = any(trial.long_value is not None for trial in self.trials.values())
        return self.budget.allows_setting(longer=longer and self.budget.released)

    def _explore(
        self, proposer: Proposer, waiting: list[Setting], most: float = math.inf
    ) -> TuneEnd:
        """Try settings as long as there is time. `waiting`: those that were proposed before a resume. `most`: settings
        to start now."""
        started = sum(trial.state != "discarded" for trial in self.trials.values())
        while started < self.spec.trials:
            if most <= 0 or not self._time_for_setting():
                return "budget"
            setting = waiting.pop(0) if waiting else proposer.propose()
            if setting is None:
                return "settings"
            trial = self.attempt(setting)
            self.trials[key_of(setting)] = trial
            proposer.tell(setting, None if trial.objection else trial.value)
            started += trial.state != "discarded"
            most -= trial.state != "discarded"
            # a wide range may have no end of them
            if len(self.trials) - started > _DISCARDED * self.spec.trials:
                return "discarded"
        return "trials"

    def _ranked(self) -> list[TuneTrial]:
        """Return the settings that may be best, the best first; those with a longer load before all others."""
        known = [
            t
            for t in [self.default, *self.trials.values()]
            if t.judged is not None and not t.objection
        ]
        # the default's alone compares with nothing
        if not any(t.setting and t.long_value is not None for t in known):
            return sorted(known, key=lambda t: self._sign * (t.value or 0.0))
        return sorted(
            known, key=lambda t: (t.long_value is None, self._sign * (t.judged or 0.0))
        )

    @property
    def _sign(self) -> int:
        return 1 if self.spec.lower else -1

    def _promising(self, setting: Setting, value: float | None) -> bool:
        """Return whether it is among the best third so far. The default always gets its longer load."""
        others = [
            t.value for t in self.trials.values() if t.value is not None and not t.objection
        ]
        if not setting or value is None:
            return value is not None
        better = sum(v < value if self.spec.lower else v > value for v in others)
        return better < math.ceil((len(others) + 1) / 3)

    def _longer(self) -> None:
        """Give the best third a longer load, where it had none yet: the first of many short ones is partly luck."""
        if self.plan.search:  # it is as long as it must be
            return
        ranked = sorted(
            (t for t in self._ranked() if t.setting),
            key=lambda t: (t.value or 0.0) * self._sign,
        )
        for trial in ranked[: math.ceil(len(ranked) / 3)]:
            if trial.long_value is None and self.budget.allows_second_start():
                self.measure(trial.setting, _SECOND)
                self._put(
                    self._with_longer(
                        trial, self.plan.trial(trial.setting, LONGER, _SECOND, _SECOND)
                    )
                )

    def _recommended(self) -> TuneTrial | None:
        """Return the best setting that keeps the quality of the default, and the target in its repeats."""
        for trial in self._ranked():
            if (
                trial.setting
                and self.plan.quality
                and (worse := self._worse(trial.setting))
            ):
                self._put(replace(trial, objection=worse))
                continue
            confirmed = self._confirm(trial)
            self._put(confirmed)
            if not confirmed.objection:
                return confirmed
        return None

    def _put(self, trial: TuneTrial) -> None:
        if trial.setting:
            self.trials[key_of(trial.setting)] = trial
        else:
            self.default = trial

    # ---- repeats ----

    def _confirm(self, trial: TuneTrial) -> TuneTrial:
        """Measure default and setting in turn: default, setting, setting, default, … The setting comes back with its
        repeats, and with an objection where they refuse it."""
        if not self._wants_repeats(trial):
            return trial
        compared = bool(trial.setting) and self.default.value is not None
        mine: list[PlannedTrial] = []
        default: list[PlannedTrial] = []
        number, times = self.budget.repeats()
        while number:
            # The loads that chose the best are partly luck, and no part of this.
            numbers = range(self._next_repeat, self._next_repeat + number)
            self._next_repeat = numbers.stop
            mine += self._planned_repeats(trial.setting, times, numbers)
            default += self._planned_repeats({}, times, numbers) if compared else []
            self._conduct(
                [*default[-number:], *mine[-number:]],
                numbers[-1],
                partial(self._unrefuted, mine),
            )
            trial = self._judged(trial, mine)
            number = int(not trial.objection and self._time_for_repeat(len(mine), times))
        if not trial.objection and (gain := self._gain(default, trial)):
            self._gains[key_of(trial.setting)] = gain
        return trial

    def _wants_repeats(self, trial: TuneTrial) -> bool:
        """Return whether it was not repeated yet, and is more than a default without a target that nothing beats."""
        refused = any(other.refused_in_repeats for other in self.trials.values())
        return not trial.repeats and bool(trial.setting or self.spec.limits or refused)

    def _planned_repeats(
        self, setting: Setting, times: int, numbers: range
    ) -> list[PlannedTrial]:
        return [self.plan.trial(setting, times, repeat, numbers[-1]) for repeat in numbers]

    def _time_for_repeat(self, repeats: int, times: int) -> bool:
        """Return whether a search that its budget has ended has time for one more repeat."""
        wanted = repeats < 2 * self.spec.confirm_repeats
        return self._ended == "budget" and wanted and self.budget.allows_pair(times)

    def _unrefuted(self, planned: Sequence[PlannedTrial], _: PlannedTrial) -> bool:
        """Return whether the next repeat is worth its time: after one that misses the target, none is."""
        return not any(
            repeat.counts and repeat.objection for repeat in self._repeats(planned)
        )

    def _repeats(self, planned: Sequence[PlannedTrial]) -> list[TuneRepeat]:
        results = [self._result(p, {}) for p in planned if self._known(p)]
        return [
            TuneRepeat(r.run, r.value, r.verdict or "void", r.objection or r.why)
            for r in results
        ]

    def _judged(self, trial: TuneTrial, planned: Sequence[PlannedTrial]) -> TuneTrial:
        """Judge a setting by its repeats, as far as they were measured."""
        measured = [p for p in planned if self._known(p)]
        repeats = self._repeats(measured)
        missed = next(
            (i for i, repeat in enumerate(repeats) if repeat.counts and repeat.objection),
            None,
        )
        trial = replace(trial, repeats=repeats)
        if missed is None and (trial.counted or not repeats):
            return trial
        # The figures of its row are those of the repeat that the reason is about.
        which = missed or 0
        result = self._result(measured[which], trial.setting)
        if missed is None:
            why = f"None of its {many(len(repeats), 'repeat')} counts. {repeats[which].objection}"
        else:
            why = f"Repeat {which + 1} of {len(planned)}: {repeats[which].objection}"
        return replace(
            trial,
            objection=why,
            load="repeat",
            repeat_value=result.value,
            throughput=result.throughput,
            p99_ttft_ms=result.p99_ttft_ms,
            cost=result.cost,
            verdict=result.verdict,
            run=result.run,
        )

    def _gain(self, default: Sequence[PlannedTrial], trial: TuneTrial) -> TuneGain | None:
        """Return the gain, by the repeats that count. The default's count though they miss the target."""
        before = [
            r.value for r in self._repeats(default) if r.counts and r.value is not None
        ]
        after = [r.value for r in trial.counted if r.value is not None]
        if not before or not after:
            return None
        d = difference(self.spec.objective, _estimate(before), _estimate(after))
        return TuneGain(
            d.a.value,
            d.b.value,
            min(len(before), len(after)),
            d.change,
            d.low,
            d.high,
            d.enough_repeats,
        )

    # ---- one setting ----

    def attempt(self, setting: Setting) -> TuneTrial:
        """Measure a setting, unless that is done or it can't work."""
        short, longer = (
            self.plan.trial(setting),
            self.plan.trial(setting, LONGER, _SECOND, _SECOND),
        )
        known = self._known(short)
        # not of one that was measured: the best so far may differ now
        if not known and (why := self._problem(short)):
            return TuneTrial(setting, "discarded", why)
        wants = partial(self._wants, longer, short, setting)
        if not known or (not self._known(longer) and wants(longer)):
            began = self.budget.spent_s
            self._conduct([short, longer], _SECOND, wants)
            if not known:
                self.budget.started(
                    self.budget.spent_s - began, 1 + LONGER * self._known(longer)
                )
        return self._with_longer(self._result(short, setting), longer)

    def _known(self, planned: PlannedTrial) -> bool:
        """Return whether it was measured or has failed: a resumed search doesn't start it again."""
        run = self.folder.run(planned.place)
        return run.whole or failure_of(run) is not None

    def _wants(
        self,
        longer: PlannedTrial,
        short: PlannedTrial,
        setting: Setting,
        planned: PlannedTrial,
    ) -> bool:
        """Return whether a trial is worth its time: a longer one, where the short one was good."""
        if planned.place.id != longer.place.id:
            return True
        # a search is as long as it must be
        if self.plan.search or not self.budget.allows_longer():
            return False
        result = self._result(short, setting)
        return not result.objection and self._promising(setting, result.value)

    def measure(self, setting: Setting, repeat: int) -> TuneTrial:
        """Measure a setting with a longer load, unless that is done."""
        planned = self.plan.trial(setting, LONGER, repeat, repeat)
        if not self._known(planned):
            self._conduct([planned], repeat)
        return self._result(planned, setting)

    def _with_longer(self, trial: TuneTrial, planned: PlannedTrial) -> TuneTrial:
        if not self._known(planned):
            return trial
        again = self._result(planned, trial.setting)
        if again.state != "measured":
            return replace(trial, objection=again.why)
        return replace(again, value=trial.value, long_value=again.value, load="longer")

    def _problem(self, planned: PlannedTrial) -> str:
        """Say why a setting can't work, or can't be the best, before it is started."""
        assert planned.trial.engine is not None
        try:
            plan = EnginePlan(planned.trial.engine, self.machine)
        except (UsageError, EngineError) as e:
            return str(e)
        return " ".join(plan.problems([longest(planned.trial)])) or self._beyond(
            plan, planned.trial
        )

    def _beyond(self, plan: EnginePlan, trial: TrialSpec) -> str:
        """Say which bound of the machine the setting would have to break: each step reads all weights once."""
        step = _weights_read(plan)
        if step is None:
            return ""
        reads = f"A step reads {number(step.size_bytes / 1e9)} GB of weights at up to {number(step.speed / 1e9)} GB/s"
        step_s = step.size_bytes / step.speed
        for limit in self.spec.limits:
            if limit.stem == "tpot" and limit.most < step_s * 1000:
                return f"{reads}: at least {number(step_s * 1000)} ms per token, but the target is {limit.words}."
        slots = min(
            (plan.limits.slots or math.inf) * plan.spec.replicas,
            trial.load.max_concurrency or math.inf,
        )
        best = next((t.judged for t in self._ranked()), None)
        if self.spec.objective == "throughput" and best and slots / step_s < best:
            most, at_once = number(slots / step_s), many(int(slots), "request")
            return f"{reads}, for {at_once} at once: at most {most} tok/s, but another setting has {number(best)}."
        return ""

    def _conduct(
        self,
        planned: Sequence[PlannedTrial],
        repeats: int = 1,
        wants: Callable[[PlannedTrial], bool] = lambda _: True,
    ) -> None:
        self._planned |= {p.place.id: p for p in planned}
        whole = replace(
            self.plan.study, trials=list(self._planned.values()), repeats=repeats, tune=None
        )
        self.conduct(whole, planned, Watch(self.watcher, self.stop, wants))
        if self.stop.requested:
            raise KeyboardInterrupt

    def _result(self, planned: PlannedTrial, setting: Setting) -> TuneTrial:
        run = self.folder.run(planned.place)
        if not run.whole:
            failure = failure_of(run)
            return TuneTrial(
                setting,
                "failed",
                failure.text if failure else "It has no result.",
                run=str(run.path),
            )
        row = read_row(run, samples=False)
        value = self._objective(run, planned)
        return TuneTrial(
            setting=setting,
            state="measured",
            value=value,
            objection=self._objection(run)
            or ("" if value is not None else f"{self.spec.words} is unknown."),
            throughput=row.get(_output(row)),
            throughput_of=_output(row),
            p99_ttft_ms=value_of(row, "p99_ttft_ms"),
            cost=self._cost(planned, row.get("output_throughput")),
            verdict=run.result().verdict,
            run=str(run.path),
        )

    def _objective(self, run: Run, planned: PlannedTrial) -> float | None:
        row, spec = read_row(run, samples=False), self.spec
        if spec.latency:
            return value_of(row, spec.latency.metric)
        if spec.objective == "load":
            answer = run.result().find
            return answer.low if answer else None
        if spec.objective == "energy":
            sampled = run.result().telemetry
            return sampled.energy_per_output_token_j if sampled else None
        if spec.objective == "cost":
            return self._cost(planned, row.get("output_throughput"))
        return row.get(_output(row))

    def _cost(self, planned: PlannedTrial, throughput: float | None) -> float | None:
        """Return the cost per million output tokens; None without a price."""
        price, engine = planned.place.price, planned.trial.engine
        if price is None or engine is None or throughput is None:
            return None
        machine = len(self.machine.accelerators)
        paid = hour(price, min(engine.world * engine.replicas, machine), machine)
        return per_million(paid[0], throughput) if paid else None

    def _objection(self, run: Run) -> str:
        """Say why a measured setting can't be the best: wrong answers, void figures, a missed target."""
        result = run.result()
        findings = result.findings
        if result.find:  # the answers were checked in its first probe
            probes = [Run(run.path / probe.run).result() for probe in result.find.probes]
            findings = [
                *findings,
                *(
                    f
                    for p in probes
                    for f in p.findings
                    if f.code.startswith("correctness.")
                ),
            ]
        for finding in sorted(findings, key=lambda f: f.level != "void"):
            wrong = finding.code.startswith("correctness.") and finding.level in (
                "doubt",
                "void",
            )
            if wrong or finding.level == "void":
                return f"{finding.code}: {finding.text}"
        if result.find:
            return _unmet(result.find)
        row = read_row(run, samples=False)
        for limit in self.spec.limits:
            if missed := _missed(limit, row.get, value_of(row, limit.metric)):
                return missed
        return ""

    def _worse(self, setting: Setting) -> str:
        """Say by how much its answers score lower than the default's; '' where they don't."""
        sides = [self.plan.quality_trial(s) for s in ({}, setting)]
        self._conduct([p for p in sides if not self.folder.run(p.place).whole])
        runs = [self.folder.run(p.place) for p in sides]
        if not runs[0].whole:
            return ""
        if not runs[1].whole:
            return "Its quality could not be measured."
        default, mine = (read_rows(run)[-1:] for run in runs)  # of all tasks
        d = score_difference(default, mine)
        if d is None or not _shown_worse(d):
            return ""
        return f"Its answers score lower: {number(d.b.value)}, the default's {number(d.a.value)}."

    def _commands(self, best: TuneTrial, command: Callable[[TrialSpec], str]) -> list[str]:
        engine, load = self.plan.trial(best.setting).trial.engine, self.plan.base.trial.load
        assert engine is not None
        if self.plan.search and best.judged:  # at its highest load
            if self.plan.search.over == "concurrency":
                load = replace(load, max_concurrency=int(best.judged))
            else:
                load = replace(load, request_rate_rps=best.judged)
        trial = replace(self.plan.base.trial, engine=engine, load=load, find=None)
        try:
            plan = EnginePlan(engine, self.machine, port=_PORT)
        except DynoError:
            return [command(trial)]
        return [
            command(trial),
            *(plan.clean(shown_launch(launch)) for launch in plan.launches),
        ]


def _output(row: Row) -> str:
    """Return the name of the throughput that a result has."""
    return next((name for name in OUTPUTS if row.get(name) is not None), OUTPUTS[0])


class _WeightsRead(NamedTuple):
    """The bytes that each step reads at least, and the bytes per second at most."""

    size_bytes: float
    speed: float


def _weights_read(plan: EnginePlan) -> _WeightsRead | None:
    """Return how fast a step can read the weights; None where that is unknown, or a step makes several tokens."""
    shape, peaks = plan.shape(), plan.peaks()
    if not shape or not peaks or tokens_per_step(plan.spec, None) != 1.0:
        return None
    loaded = as_loaded(shape, plan.spec)
    speed = bandwidth_at(peaks, loaded.least_bytes) if loaded else None
    if not loaded or not speed:
        return None
    if peaks.measured:
        speed *= 1 + UNSURE
    return _WeightsRead(loaded.least_bytes, speed)


def _shown_worse(d: Difference) -> bool:
    """Return whether the whole interval of a difference is on the worse side."""
    if d.low is None or d.high is None or d.change is None:
        return False
    return d.low > 0 if d.lower else d.high < 0


def _estimate(values: Sequence[float]) -> Estimate:
    mean, error = sum(values) / len(values), error_of_repeats(values)
    if error is None:
        return Estimate(mean, len(values), why="only one repeat")
    return Estimate(mean, len(values), error.error, error.df, "repeats")


def _unmet(answer: FindAnswer) -> str:
    """Say that a search has no load as its answer; '' where it has one."""
    if answer.low is not None:
        return ""
    if answer.high is None:
        return f"No load is shown to meet the target in {duration(answer.duration_s)}: raise seconds."
    return f"No load meets the target, not even {level_words(answer, answer.high)}."


def _missed(limit: Limit, get: Callable[[str], float | None], value: float | None) -> str:
    """Say that a figure misses its limit: 'p99 TTFT is 812 ms, but the target is p99 TTFT ≤ 500 ms.'"""
    if limit.is_share:
        value = SHARES[limit.stem].read(get)
    if value is None:
        name = SHARES[limit.stem].words if limit.is_share else metric_words(limit.metric)
        return f"The target limits {name}, but the result has no such figure."
    if value <= limit.most:
        return ""
    if limit.is_share:
        return (
            f"{percent(value)} {SHARES[limit.stem].over}, but the target is {limit.words}."
        )
    name = limit.words.partition(" ≤")[0]
    return f"{name} is {number(value)} ms, but the target is {limit.words}."


def stored(folder: Path) -> TuneAnswer:
    return msgspec.json.decode((folder / "tune.json").read_bytes(), type=TuneAnswer)
