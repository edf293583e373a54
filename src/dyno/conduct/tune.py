"""Tunes an engine's settings: a short load of each that is proposed, a longer one while it is up where it is among the
best, then the best against the default. Each trial has its folder: a search that was stopped resumes with the same
command."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dyno.checks.physics import UNSURE
from dyno.compare.compare import difference
from dyno.compare.scores import score_difference
from dyno.conduct import study_plan
from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.prepare import longest
from dyno.conduct.proposer import Proposer, key_of, possible
from dyno.conduct.study import Conductor, Headers
from dyno.conduct.tune_plan import LONGER, SEARCH, TunePlan
from dyno.conduct.watcher import StudyWatcher
from dyno.engines.launch import shown as shown_launch
from dyno.errors import DynoError, EngineError, UsageError
from dyno.facts.comparison import Estimate
from dyno.facts.find import FindAnswer
from dyno.facts.limits import Limit
from dyno.facts.metric import words as metric_words
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import Setting, TuneAnswer, TuneEnd, TuneGain, TuneTrial
from dyno.load.progress import Stop
from dyno.measure.cost import hour, per_million
from dyno.measure.estimate import error_of_repeats, value_of
from dyno.measure.roofline import as_loaded, bandwidth_at, tokens_per_step
from dyno.numbers import duration, many, number, percent
from dyno.report.find import level_words
from dyno.store.rows import read_row, read_rows
from dyno.store.run import Run, make_folder, pretty, write
from dyno.store.study import StudyFolder, failure_of

_SECOND = 2  # the repeat that is a longer load; the first is the short one
_DISCARDED = 20  # settings for each that is to be started: then the search ends
_PORT = 8000  # in a command to paste


class Tuner:
    def __init__(
        self,
        plan: TunePlan,
        text: str,
        folder: StudyFolder,
        machine: Rig,
        headers: Headers,
        watcher: StudyWatcher,
        budget_s: float = math.inf,
    ) -> None:
        self.plan, self.spec, self.text, self.folder = plan, plan.spec, text, folder
        self.machine, self.headers, self.watcher, self.stop = machine, headers, watcher, Stop()
        self._budget_s, self._began = budget_s, time.monotonic()
        self._planned: dict[str, PlannedTrial] = {}
        self._starts_s: list[float] = []  # what each setting that was started now took beside its load
        self.default = TuneTrial({}, "discarded")
        self.trials: dict[str, TuneTrial] = {}

    def run(self, command: Callable[[TrialSpec], str]) -> TuneAnswer:
        """`command`: makes the command line of a trial."""
        make_folder(self.folder.path)
        proposer = Proposer(  # first: without Optuna nothing is measured
            self.folder.path / "optuna.log", self.spec.settings, lower=self.spec.lower, seed=self.plan.study.seed,
            trials=self.spec.trials,
        )  # fmt: skip
        write(self.folder.path / "search.json", self.plan.identity.encode())
        best, gain = None, None
        ended: TuneEnd
        try:
            ended = self._search(proposer)
            self._longer()
            best = self._best()
            gain = self._confirm(best) if best and best.setting else None
        except KeyboardInterrupt:
            self.stop.requested = True
            ended = "interrupted"
            best = best or next(iter(self._ranked()), None)
        answer = TuneAnswer(
            study=self.plan.study.name,
            engine=self.plan.base.place.engine,
            spec=replace(self.spec, weights={}),
            ended=ended,
            default=self.default,
            trials=list(self.trials.values()),
            best=best,
            duration_s=time.monotonic() - self._began,
            gain=gain,
            commands=self._commands(best, command) if best else [],
            possible=possible(self.spec.settings),
            currency=price.currency if (price := self.plan.base.place.price) else "",
        )
        if ended != "interrupted":
            write(self.folder.path / "tune.json", pretty(answer))
        return answer

    # ---- the steps ----

    def _search(self, proposer: Proposer) -> TuneEnd:
        self.default = self.attempt({})
        waiting = list(proposer.earlier)
        started = 0
        while started < self.spec.trials:
            if self._spent():
                return "budget"
            setting = waiting.pop(0) if waiting else proposer.propose()
            if setting is None:
                return "settings"
            trial = self.attempt(setting)
            self.trials[key_of(setting)] = trial
            proposer.tell(setting, None if trial.objection else trial.value)
            started += trial.state != "discarded"
            if len(self.trials) - started > _DISCARDED * self.spec.trials:  # a wide range may have no end of them
                return "discarded"
        return "trials"

    def _spent(self) -> bool:
        """Whether the time that is left is needed for longer loads and repeats."""
        if not self._starts_s:
            return time.monotonic() - self._began > self._budget_s
        start_s = sum(self._starts_s) / len(self._starts_s)
        to_come = 1 + 2 * self.spec.confirm_repeats  # the next setting, and the repeats
        reserve_s = to_come * (start_s + self._seconds(LONGER)) + self._seconds(1)
        return time.monotonic() - self._began + reserve_s > self._budget_s

    def _seconds(self, times: int) -> float:
        return self.spec.seconds * times * (SEARCH if self.spec.objective == "load" else 1)

    def _ranked(self) -> list[TuneTrial]:
        """The settings that may be best, the best first; those with a longer load before all others."""
        known = [t for t in [self.default, *self.trials.values()] if t.judged is not None and not t.objection]
        return sorted(known, key=lambda t: (t.long_value is None, self._sign * (t.judged or 0.0)))

    @property
    def _sign(self) -> int:
        return 1 if self.spec.lower else -1

    def _promising(self, setting: Setting, value: float | None) -> bool:
        """Whether it is among the best third so far. The default always gets its longer load."""
        others = [t.value for t in self.trials.values() if t.value is not None and not t.objection]
        if not setting or value is None:
            return value is not None
        better = sum(v < value if self.spec.lower else v > value for v in others)
        return better < math.ceil((len(others) + 1) / 3)

    def _longer(self) -> None:
        """Give the best third a longer load, where it had none yet: the first of many short ones is partly luck."""
        if self.plan.search:  # it is as long as it must be
            return
        ranked = sorted((t for t in self._ranked() if t.setting), key=lambda t: (t.value or 0.0) * self._sign)
        for trial in ranked[: math.ceil(len(ranked) / 3)]:
            if trial.long_value is None and not self._spent():
                self.measure(trial.setting, _SECOND)
                self._put(self._with_longer(trial, self.plan.trial(trial.setting, LONGER, _SECOND, _SECOND)))

    def _best(self) -> TuneTrial | None:
        """Return the best setting that keeps the quality of the default."""
        for trial in self._ranked():
            if not trial.setting or self.plan.quality is None:
                return trial
            if not (worse := self._worse(trial.setting)):
                return trial
            self._put(replace(trial, objection=worse))
        return None

    def _put(self, trial: TuneTrial) -> None:
        self.trials[key_of(trial.setting)] = trial

    def _confirm(self, best: TuneTrial) -> TuneGain | None:
        """Measure default and best in turn: default, best, best, default, …"""
        repeats = self.spec.confirm_repeats
        if not repeats or self.default.value is None:
            return None
        values: dict[str, list[float]] = {}
        # The loads that chose the best are partly luck, and no part of this.
        numbers = range(_SECOND + 1, _SECOND + 1 + repeats)
        sides: list[Setting] = [{}, best.setting]
        planned = {key_of(s): [self.plan.trial(s, LONGER, r, numbers[-1]) for r in numbers] for s in sides}
        self._conduct([p for mine in planned.values() for p in mine], numbers[-1])
        for key, mine in planned.items():
            runs = [self.folder.run(p.place) for p in mine]
            each = [self._objective(run, p) for run, p in zip(runs, mine, strict=True) if run.whole]
            values[key] = [v for v in each if v is not None]
        default, tuned = values.get(key_of({}), []), values.get(key_of(best.setting), [])
        if not default or not tuned:
            return None
        d = difference(self.spec.objective, _estimate(default), _estimate(tuned))
        return TuneGain(d.a.value, d.b.value, min(len(default), len(tuned)), d.change, d.low, d.high)

    # ---- one setting ----

    def attempt(self, setting: Setting) -> TuneTrial:
        """Measure a setting, unless that is done or it can't work."""
        short, longer = self.plan.trial(setting), self.plan.trial(setting, LONGER, _SECOND, _SECOND)
        known = self._known(short)
        if not known and (why := self._problem(short)):  # not of one that was measured: the best so far may differ now
            return TuneTrial(setting, "discarded", why)
        wants = partial(self._wants, longer, short, setting)
        if not known or (not self._known(longer) and wants(longer)):
            began = time.monotonic()
            self._conduct([short, longer], _SECOND, wants)
            took_s = time.monotonic() - began - self._seconds(1 + LONGER * self._known(longer))
            self._starts_s += [] if known else [max(took_s, 0.0)]
        return self._with_longer(self._result(short, setting), longer)

    def _known(self, planned: PlannedTrial) -> bool:
        """Whether it was measured or has failed: a resumed search doesn't start it again."""
        run = self.folder.run(planned.place)
        return run.whole or failure_of(run) is not None

    def _wants(self, longer: PlannedTrial, short: PlannedTrial, setting: Setting, planned: PlannedTrial) -> bool:
        """Whether a trial is worth its time: a longer one, where the short one was good."""
        if planned.place.id != longer.place.id:
            return True
        if self.plan.search:  # it is as long as it must be
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
        verdict = again.verdict or trial.verdict
        return replace(trial, long_value=again.value, objection=again.objection or again.why, verdict=verdict)

    def _problem(self, planned: PlannedTrial) -> str:
        """Say why a setting can't work, or can't be the best, before it is started."""
        assert planned.trial.engine is not None
        try:
            plan = EnginePlan(planned.trial.engine, self.machine)
        except (UsageError, EngineError) as e:
            return str(e)
        return " ".join(plan.problems([longest(planned.trial)])) or self._beyond(plan, planned.trial)

    def _beyond(self, plan: EnginePlan, trial: TrialSpec) -> str:
        """Say which bound of the machine the setting would have to break: each step reads all weights once."""
        shape, peaks = plan.shape(), plan.peaks()
        single = tokens_per_step(plan.spec, None) == 1.0
        loaded = as_loaded(shape, plan.spec) if shape and peaks and single else None
        speed = bandwidth_at(peaks, loaded.least_bytes) if loaded and peaks else None
        if not loaded or not peaks or not speed:
            return ""
        speed *= 1 + UNSURE if peaks.measured else 1.0
        step_s = loaded.least_bytes / speed
        reads = f"A step reads {number(loaded.least_bytes / 1e9)} GB of weights at up to {number(speed / 1e9)} GB/s"
        for limit in self.spec.limits:
            if limit.stem == "tpot" and limit.most < step_s * 1000:
                return f"{reads}: at least {number(step_s * 1000)} ms per token, but the target is {limit.words}."
        slots = min((plan.limits.slots or math.inf) * plan.spec.replicas, trial.load.max_concurrency or math.inf)
        best = next((t.judged for t in self._ranked()), None)
        if self.spec.objective == "throughput" and best and slots / step_s < best:
            most, at_once = number(slots / step_s), many(int(slots), "request")
            return f"{reads}, for {at_once} at once: at most {most} tok/s, but another setting has {number(best)}."
        return ""

    def _conduct(
        self, planned: Sequence[PlannedTrial], repeats: int = 1, wants: Callable[[PlannedTrial], bool] = lambda _: True
    ) -> None:
        self._planned |= {p.place.id: p for p in planned}
        whole = replace(self.plan.study, trials=list(self._planned.values()), repeats=repeats, tune=None)
        self.folder.write(*study_plan.public(whole, self.text))
        study = replace(whole, trials=list(planned), on_failure="carry_on", interleave="engines", stop=None)
        Conductor(study, self.folder, self.headers, self.watcher, self.stop, wants=wants).conduct(planned)
        if self.stop.requested:
            raise KeyboardInterrupt

    def _result(self, planned: PlannedTrial, setting: Setting) -> TuneTrial:
        run = self.folder.run(planned.place)
        if not run.whole:
            failure = failure_of(run)
            return TuneTrial(setting, "failed", failure.text if failure else "It has no result.", run=str(run.path))
        row = read_row(run, samples=False)
        value = self._objective(run, planned)
        return TuneTrial(
            setting=setting,
            state="measured",
            value=value,
            objection=self._objection(run) or ("" if value is not None else f"{self.spec.words} is unknown."),
            throughput=row.get("output_throughput"),
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
        throughput = row.get("output_throughput")
        return self._cost(planned, throughput) if spec.objective == "cost" else throughput

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
            findings = [*findings, *(f for p in probes for f in p.findings if f.code.startswith("correctness."))]
        for finding in sorted(findings, key=lambda f: f.level != "void"):
            wrong = finding.code.startswith("correctness.") and finding.level in ("doubt", "void")
            if wrong or finding.level == "void":
                return f"{finding.code}: {finding.text}"
        if result.find:
            return _unmet(result.find)
        row = read_row(run, samples=False)
        return next(
            filter(None, (_missed(limit, row.get, value_of(row, limit.metric)) for limit in self.spec.limits)), ""
        )

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
        if d is None or d.low is None or d.high is None or d.change is None:
            return ""
        worse = d.low > 0 if d.lower else d.high < 0
        return f"Its answers score lower: {number(d.b.value)}, the default's {number(d.a.value)}." if worse else ""

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
        return [command(trial), *(plan.clean(shown_launch(launch)) for launch in plan.launches)]


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
    """'p99 TTFT is 812 ms, but the target is p99 TTFT ≤ 500 ms.'"""
    if limit.stem == "failed":
        failed, done = get("failed") or 0.0, get("completed") or 0.0
        share = failed / max(failed + done, 1.0)
        return (
            f"{percent(share)} of the requests failed, but the target is {limit.words}." if share > limit.most else ""
        )
    if value is None:
        return f"{metric_words(limit.metric)} is unknown, but the target limits it."
    name = limit.words.partition(" ≤")[0]
    return f"{name} is {number(value)} ms, but the target is {limit.words}." if value > limit.most else ""


def stored(folder: Path) -> TuneAnswer:
    return msgspec.json.decode((folder / "tune.json").read_bytes(), type=TuneAnswer)
