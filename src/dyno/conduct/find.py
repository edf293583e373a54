"""Finds the highest load within a target: probes of one server, each as long as it must be, chosen by a search."""

import contextlib
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dyno import secrets
from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.fleet import running
from dyno.conduct.follow import Follower, FollowTask, PlannedLength, judged
from dyno.conduct.outcome import Outcome
from dyno.conduct.prepare import hidden, prepare
from dyno.conduct.session import Session, attach
from dyno.conduct.trial import finish, measure
from dyno.conduct.watcher import Watcher
from dyno.engines.kinds import kind_of
from dyno.errors import TargetError, UsageError
from dyno.facts.find import Ended, FindAnswer, FindSpec, ProbeFacts, SearchTime
from dyno.facts.study import Place
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Progress, Stop
from dyno.measure.judge import FILL_TIMES, Judge, steady_s_of
from dyno.measure.search import Probe, Search
from dyno.measure.search_time import Pace, ProbeSizes, search_time
from dyno.measure.statistics import samples_needed
from dyno.numbers import count, many
from dyno.probe import rig
from dyno.probe.telemetry.sampler import Sampler
from dyno.report.find import time_words
from dyno.store.run import Run, create, make_folder, pretty, read_optional, write
from dyno.study.order import OUTPUT_TOKENS, TOKEN_S
from dyno.units import seconds

PROBES_MOST = 24
ERROR = 0.05  # that the interval doesn't hold the answer
BRIEF_REQUESTS, BRIEF_S = 120, 15.0
_BRIEF_FEWEST = 20
_LONGER = 20  # times as many requests as the percentile needs, at most: then a probe ends undecided
_LONG_FEWEST = 1000
_AGAIN = 2  # times a void probe is repeated
_SHARE_OF_BUDGET = 10  # one probe takes at most this part
_LENGTH_S = 1.0  # of a request, before one is known
_CLIFF = 3.0  # times as much, between the highest load that meets the target and the lowest that misses it
_CLIENT = ("client.limits", "client.unseen_chunks", "client.late_sends", "client.late_loop", "client.busy",
           "client.process_lost")  # fmt: skip


def _sizes(spec: FindSpec) -> ProbeSizes:
    needed = max(samples_needed(limit.percentile or 50.0) for limit in spec.limits)
    return ProbeSizes(needed, BRIEF_REQUESTS, max(_LONG_FEWEST, _LONGER * needed))


def expected(trial: TrialSpec, spec: FindSpec) -> SearchTime:
    """Estimate the time before anything is known of the server."""
    return search_time(spec, Pace((trial.workload.output_len or OUTPUT_TOKENS) * TOKEN_S), _sizes(spec))


class _ProbeWatcher(Watcher):
    """Hands on what happens, and ends the load when it is decided or has taken long enough."""

    def __init__(self, inner: Watcher, stop: Stop, wave: float, most_s: float) -> None:
        self._inner, self._stop, self._wave, self._most_s = inner, stop, wave, most_s
        self.follower: Follower | None = None

    def progress(self, progress: Progress) -> None:
        self._inner.progress(progress)
        late = seconds(progress.elapsed_ns) > self._most_s and progress.ended >= self._wave + _BRIEF_FEWEST
        if self.follower is not None and (late or self.follower.decided()):
            self._stop.decide()

    def sampling(self, sampler: Sampler) -> None:
        self._inner.sampling(sampler)

    def over(self) -> None:
        self._inner.over()


class Finder:
    def __init__(self, trial: TrialSpec, spec: FindSpec, folder: Path, watcher: Watcher, stop: Stop) -> None:
        self.trial, self.spec, self.folder, self.watcher, self.stop = trial, spec, folder, watcher, stop
        low, high, start = spec.range
        whole = spec.over == "concurrency"
        self.search = Search(low, high, whole=whole, resolution=spec.resolution, start=start)
        self.probes: list[ProbeFacts] = []
        self.repeated = 0
        self._tried = self._tried_before = len(list(folder.glob("*/trial.json")))
        for probe in read_optional(self._probes_path, list[ProbeFacts]) or []:  # of a search that was cut off
            self._learn(probe)
        self._began = time.monotonic()
        self._length_s = _LENGTH_S  # of a request, while no probe counts
        self._prompt_s = 0.0  # to make one
        self.estimate: SearchTime | None = None
        self._sizes = _sizes(spec)
        percentiles = [limit.percentile or 50.0 for limit in spec.limits]
        self._percentiles = sorted({*trial.percentiles, *(p for p in percentiles if 0 < p < 100)})

    @property
    def _probes_path(self) -> Path:
        return self.folder / "probes.json"

    @property
    def left_s(self) -> float:
        return self.spec.budget_s - (time.monotonic() - self._began)

    def run(self, session: Session) -> FindAnswer:
        ended: Ended = "narrow"
        try:
            while proposed := self.search.next():
                if self.left_s <= 0 or len(self.search.probes) >= PROBES_MOST:
                    ended = "budget"
                    break
                if why := self._try(session, *proposed):
                    ended = why
                    break
        except (TargetError, KeyboardInterrupt) as e:  # what was learnt is kept
            if not self.probes:
                raise
            ended = "interrupted" if isinstance(e, KeyboardInterrupt) else "server gone"
            if ended == "interrupted":
                self.stop.request()
        if ended == "narrow":
            ended = self._how_it_ended()
        answer = self._answer(ended)
        write(self.folder / "find.json", pretty(answer))
        if self.spec.confirm_s and answer.low is not None and ended not in ("interrupted", "server gone"):
            answer = self._confirmed(session, answer, answer.low)
            write(self.folder / "find.json", pretty(answer))
        return answer

    def _how_it_ended(self) -> Ended:
        low, high, _ = self.spec.range
        if self.search.missed is None and self.search.met == high:
            return "every load meets"
        if self.search.met is None and self.search.missed == low:
            return "no load meets"
        return "narrow"

    # ---- a probe ----

    def _try(self, session: Session, level: float, brief: bool) -> Ended | None:
        """Probe a load. Return why the search must end; None: it goes on."""
        for again in range(_AGAIN + 1):
            outcome, judge, took_s = self._probe(session, level, brief)
            result = outcome.result
            if self.stop.requested:
                return "interrupted"
            if result.served.outcome in ("server gone", "all failed") and not judge.requests:
                raise TargetError("The server stopped answering.")
            if not judge.requests:  # they take longer than was expected: none was sent after the server had filled
                self._length_s = judge.length_s or 2 * took_s
                self.repeated += 1
                continue
            client = any(f.code in _CLIENT and f.level != "note" for f in result.findings)
            void = result.verdict == "void" and not result.served.failed  # failures are for the target to judge
            if not client and not void:
                self._add(outcome, judge, level, brief, took_s)
                if self.estimate is None:
                    self._estimate(judge)
                return None
            self.repeated += 1
            if client and again:
                return "client"
        return "void"

    def _probe(
        self, session: Session, level: float, brief: bool, confirm_s: float | None = None
    ) -> tuple[Outcome, Judge, float]:
        self._tried += 1
        open_loop = self.spec.over == "rate"
        length_s = max((p.length_s for p in self.probes if p.length_s), default=self._length_s)
        wave = level * (2 * FILL_TIMES * length_s + 1) if open_loop else level  # requests that don't count
        most_s = BRIEF_S if brief else max(self.spec.budget_s / _SHARE_OF_BUDGET, BRIEF_S)
        most = BRIEF_REQUESTS if brief else self._requests_within(most_s)
        if open_loop and not brief:  # as long as it must last to meet the target, and then some
            steady_s = 1.5 * steady_s_of(length_s)
            most_s, most = max(most_s, steady_s), max(most, math.ceil(level * steady_s))
        trial = self._trial(level, int(wave + most * 1.2) + 1, confirm_s)
        stop = Stop()
        watcher = _ProbeWatcher(self.watcher, stop, wave, min(most_s, max(self.left_s, BRIEF_S)))
        session = replace(session, watcher=watcher, stop=stop, tested=self._tried > self._tried_before + 1)
        words = f"{self.spec.over} {count(level)}" + (" requests/s" if self.spec.over == "rate" else "")
        self.watcher.phase(f"Probe {self._tried}: {words}" + (", briefly" if brief else ", in full"))
        began = time.monotonic()
        prepared = prepare(trial, session)
        self._prompt_s = (time.monotonic() - began) / trial.workload.num_prompts
        run = create(self.folder, f"{self._tried:02d}-{prepared.trial.load.slug}")
        if session.fleet:
            run.write_engine(session.fleet.facts)
        work = prepared.prompts.workload
        lengths = [PlannedLength(r.prompt_tokens, r.output_tokens) for r in work.requests]
        alpha = ERROR / PROBES_MOST * 2  # the bounds rest on a few of them
        task = FollowTask(
            str(run.spool_path), trial.target.backend, lengths, self.spec.limits, alpha, most, brief, open_loop
        )
        began = time.monotonic()
        with contextlib.ExitStack() as following:
            if confirm_s is None:
                watcher.follower = following.enter_context(Follower(task))
            measure(run, session, prepared)
        took_s = time.monotonic() - began
        if stop.requested and not stop.decided:
            self.stop.request()
        outcome = finish(run, prepared.prompts.counter, keys_known=True)
        judge = task.judge()
        if confirm_s is None:
            judged(run.records(), judge, task)
            judge.queue_grows = watcher.follower is not None and watcher.follower.queue_grows
        else:
            for record in run.records():
                judge.add(record)
            judge.outcome()
        return outcome, judge, took_s

    def _estimate(self, judge: Judge) -> None:
        """Estimate the whole search by its first probe."""
        if judge.length_s is None:
            return
        self.estimate = search_time(self.spec, Pace(judge.length_s, self._prompt_s), self._sizes)
        spent_s = time.monotonic() - self._began
        self.watcher.phase(time_words(self.estimate, self.spec.budget_s, spent_s))

    def _requests_within(self, span_s: float) -> int:
        """Return how many requests a long probe has at most, by the fastest so far."""
        per_s = max((p.requests / p.duration_s for p in self.probes if p.duration_s), default=0.0)
        return round(min(self._sizes.long, max(per_s * span_s, _LONG_FEWEST / 2)))

    def _trial(self, level: float, requests: int, confirm_s: float | None) -> TrialSpec:
        """The trial at a load, with prompts of its own: those of another probe may be in the server's cache."""
        seed = self.trial.workload.seed + 7919 * self._tried
        first = self._tried == self._tried_before + 1
        workload = replace(
            self.trial.workload, num_prompts=requests, seed=seed,
            num_warmups=self.trial.workload.num_warmups or 8 if first else 0,
        )  # fmt: skip
        load = replace(self.trial.load, seed=seed, duration_s=confirm_s)
        if self.spec.over == "concurrency":
            load = replace(load, max_concurrency=int(level))
        else:
            load = replace(load, request_rate_rps=level)
            if confirm_s:
                workload = replace(workload, num_prompts=max(requests, int(level * confirm_s) + 1))
        checked = self.trial.correctness_check and first
        return replace(
            self.trial, workload=workload, load=load, percentiles=self._percentiles, correctness_check=checked
        )

    def _add(self, outcome: Outcome, judge: Judge, level: float, brief: bool, took_s: float) -> None:
        self._learn(_facts(outcome, judge, level, brief, took_s))
        write(self._probes_path, pretty(self.probes))

    def _learn(self, probe: ProbeFacts) -> None:
        self.probes.append(probe)
        self.search.add(Probe(probe.level, probe.outcome, probe.margin, probe.brief, probe.requests, probe.duration_s))

    def _confirmed(self, session: Session, answer: FindAnswer, level: float) -> FindAnswer:
        """Return the answer with a longer run at its load; without it, where that was cut off."""
        try:
            outcome, judge, took_s = self._probe(session, level, brief=False, confirm_s=self.spec.confirm_s)
        except KeyboardInterrupt:
            self.stop.request()
        except TargetError:
            return replace(answer, ended="server gone")
        if self.stop.requested:
            return replace(answer, ended="interrupted")
        return replace(answer, confirmed=_facts(outcome, judge, level, False, took_s))

    # ---- the answer ----

    def _answer(self, ended: Ended) -> FindAnswer:
        low, high = self.search.interval()
        answer = FindAnswer(
            spec=self.spec,
            ended=ended,
            low=low or None,
            high=None if high == float("inf") else high,
            probes=self.probes,
            repeated=self.repeated,
            duration_s=time.monotonic() - self._began,
            estimate=self.estimate,
        )
        above, below = answer.at_level(answer.high), answer.at_level(answer.low)
        contradictions = self.search.contradictions
        return replace(
            answer,
            limited_by=self._limits(above) if above else [],
            cliff=_cliff(below, above) if below and above else "",
            contradiction=f"{many(len(contradictions), 'load')} above {count(self.search.missed or 0)} met the target."
            if contradictions
            else "",
        )

    def _limits(self, above: ProbeFacts) -> list[str]:
        """Figures that miss, and what the server was short of there."""
        words = [figure.limit.words for figure in above.figures if figure.within is False]
        if above.queue_grew:
            words.append("a queue that grew without end")
        sampled = Run(self.folder / above.run).result().telemetry
        if sampled is None:
            return words
        for engine in sampled.engines:
            if (engine.kv_peak_share or 0) > 0.95:
                words.append(f"KV cache {engine.kv_peak_share:.0%} full")
            if (engine.waiting_mean or 0) >= 1:
                words.append(f"{count(round(engine.waiting_mean or 0))} requests waiting in the server, on average")
        busy = [a.use_mean_percent for a in sampled.accelerators if a.use_mean_percent is not None]
        if busy and max(busy) > 90:
            words.append(f"accelerators {max(busy):.0f} % busy")
        return words


def _facts(outcome: Outcome, judge: Judge, level: float, brief: bool, took_s: float) -> ProbeFacts:
    served = outcome.result.served
    return ProbeFacts(
        level=level,
        outcome=judge.outcome(),
        brief=brief,
        requests=judge.requests,
        sent=served.sent,
        duration_s=took_s,
        figures=judge.figures(),
        run=outcome.run.path.name,
        queue_grew=judge.queue_grows,
        length_s=judge.length_s,
        throughput=served.output_throughput,
        verdict=outcome.result.verdict,
    )


def _cliff(below: ProbeFacts, above: ProbeFacts) -> str:
    """Describe a jump of a figure between two loads that are near each other."""
    if above.level / below.level > 1.5:
        return ""
    for one, other in zip(below.figures, above.figures, strict=True):
        if one.value and other.value and other.value > _CLIFF * one.value and other.within is False:
            times = f"{other.value / one.value:.0f} times"
            where = f"between {count(below.level)} and {count(above.level)}"
            return f"{one.limit.words.partition(' ≤')[0]} jumps to {times} its value {where}"
    return ""


@contextlib.contextmanager
def server(trial: TrialSpec, folder: Path, headers: dict[str, str], watcher: Watcher, stop: Stop) -> Iterator[Session]:
    """Start the trial's engine, or attach to its server."""
    secrets.learn(hidden(trial, headers))
    if trial.engine is None or not kind_of(trial.engine.kind).starts:
        yield attach(trial, headers, watcher, stop)
        return
    plan = EnginePlan(trial.engine, rig.look())
    if problems := plan.problems([]):
        raise UsageError(" ".join(problems))
    start = folder / "engines" / trial.engine.kind
    make_folder(start)
    with running(plan, start, headers, watcher.phase, Run(start).write_engine, watcher.below) as fleet:
        yield Session(fleet.target, headers, watcher, stop, fleet)


def find(
    trial: TrialSpec, spec: FindSpec, *, folder: Path, headers: dict[str, str], watcher: Watcher, stop: Stop
) -> FindAnswer:
    with server(trial, folder, headers, watcher, stop) as session:
        return Finder(trial, spec, folder, watcher, stop).run(session)


def measure_trial(run: Run, session: Session, trial: TrialSpec, place: Place) -> Outcome | None:
    """Search in a study's trial. Its result is that of the run at the highest load within the target. None: it was cut
    off, and continues with what its probes have shown."""
    assert trial.find is not None
    answer = Finder(replace(trial, find=None), trial.find, run.path, session.watcher, session.stop).run(session)
    if answer.ended in ("interrupted", "server gone") or session.stop.requested:
        return None
    best = answer.confirmed or answer.at_level(answer.low) or min(answer.probes, key=lambda p: p.level, default=None)
    if best is None:
        raise TargetError("No load could be measured: each probe was void. `dyno runs show` on one of them says why.")
    probe = Run(run.path / best.run)
    for path in probe.path.iterdir():
        if path.is_file() and path not in (probe.manifest_path, probe.summary_path):
            shutil.copy2(path, run.path)
    manifest = replace(probe.manifest(), trial=replace(probe.manifest().trial, find=trial.find), place=place)
    run.write_manifest(manifest)
    result = replace(probe.result(), find=answer)
    run.write_result(result)
    return Outcome(run, manifest, result)
