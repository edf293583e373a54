"""Finds the highest load within a target: probes of one server, each as long as it must be, chosen by a search."""

import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from dyno import secrets
from dyno.errors import TargetError, UsageError
from dyno.facts.find import (
    Ended,
    FindAnswer,
    FindSpec,
    LimitFigure,
    ProbeFacts,
    ProbeLook,
    SearchTime,
    StoredProbe,
)
from dyno.facts.finding import Finding
from dyno.facts.limits import Limit
from dyno.facts.structured import Forms
from dyno.facts.study import Place
from dyno.facts.summary import Result
from dyno.facts.telemetry import TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Progress, Stop
from dyno.load.sessions import Graph
from dyno.numbers import count, duration, many, number, percent, rough_time
from dyno.probe import rig
from dyno.probe.telemetry.sampler import Sampler
from dyno.report.find import time_words
from dyno.search.follow import Follower, FollowTask, PlannedLength, final_look
from dyno.search.judge import FEWEST, FILL_ENDS, LEAST_S, WAVES
from dyno.search.search import Probe, ProbeStep, Search
from dyno.search.search_time import Pace, search_time
from dyno.store.run import Run, create, make_folder, pretty, read_optional, write
from dyno.study.duration import TOKEN_S, output_tokens
from dyno.trial import answers
from dyno.trial.online import finish, measure
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import check_dataset, hidden, prepare
from dyno.trial.serving import plan_of, serving
from dyno.trial.session import Session
from dyno.trial.watcher import Watcher
from dyno.units import seconds

_FIRST_REQUESTS = 400  # of the first probe: how quick the server is isn't known yet
_PROMPTS_MOST = 20_000  # of one probe
_MAKING = 0.25  # of a probe's time, to make its prompts
_MORE = 1.3  # prompts, times those that are expected to be sent
_AGAIN = 2  # times a void or disturbed probe is repeated
_LEAST_LEFT_S = 1.0
# times as much, between the highest load that meets the target and the lowest that misses it
_CLIFF = 3.0
# of a request's length: later than this, the load is not the one that was asked for
_LATE_SENDS = 0.1
# share of chunks whose arrival isn't known, with a limit of gaps between chunks
_UNSEEN_GAPS = 0.05
# What makes a probe's timings, whatever they are of, worthless. The rest is for the limits to judge: a latency that is
# known within bounds only is judged by its bounds.
_CLIENT = ("client.limits", "client.process_lost", "client.late_loop", "client.busy")
_FAILURES = (
    "requests.failed",
    "requests.none_completed",
    "requests.cut_short",
    "requests.skipped",
)
# kinds of failure by which a server says that a load is too high
_OVERLOADED = ("429", "503", "timeout")
# standard deviation of the log of a figure, between probes of one load, that is worth a remark
_VARIES = 0.1
_OTHERS_CORES = 0.15  # of the cores, used by other programs


def expected(trial: TrialSpec, spec: FindSpec) -> SearchTime:
    """Estimate the time before anything is known of the server."""
    return search_time(spec, Pace(output_tokens(trial) * TOKEN_S))


class _ProbeWatcher(Watcher):
    """Hands on what happens, and ends the load when it has shown enough or has taken long enough."""

    def __init__(self, inner: Watcher, stop: Stop, last_s: float) -> None:
        self._inner, self._stop, self._last_s = inner, stop, last_s
        self.follower: Follower | None = None

    def progress(self, progress: Progress) -> None:
        self._inner.progress(progress)
        late = seconds(progress.elapsed_ns) > self._last_s
        if self.follower is not None and (late or self.follower.decided()):
            self._stop.decide()

    def sampling(self, sampler: Sampler) -> None:
        self._inner.sampling(sampler)

    def over(self) -> None:
        self._inner.over()


class Finder:
    def __init__(
        self, trial: TrialSpec, spec: FindSpec, folder: Path, watcher: Watcher, stop: Stop
    ) -> None:
        self.trial, self.spec, self.folder, self.watcher, self.stop = (
            trial,
            spec,
            folder,
            watcher,
            stop,
        )
        low, high, start = spec.range
        self.whole = spec.over == "concurrency"
        self.search = Search(
            spec.limits,
            low,
            high,
            whole=self.whole,
            resolution=spec.resolution,
            start=start,
        )
        self.probes: list[ProbeFacts] = []
        self.repeated = 0
        self._findings: dict[str, Finding] = {}  # about the server's answers
        self._checked = False  # the server's answers
        self._why = ""  # the last probe didn't count
        self._tried = self._tried_before = len(list(folder.glob("*/trial.json")))
        self._before_s = 0.0  # of a search that was cut off
        self._stored: list[StoredProbe] = []
        for probe in read_optional(self._probes_path, list[StoredProbe]) or []:
            self._before_s = max(
                self._before_s, probe.facts.began_s + probe.facts.duration_s
            )
            self._learn(probe)
        self._began = time.monotonic()
        self._prompt_s = 0.0  # to make one
        self.estimate: SearchTime | None = None
        percentiles = [limit.percentile or 50.0 for limit in spec.limits]
        self._percentiles = sorted(
            {*trial.percentiles, *(p for p in percentiles if 0 < p < 100)}
        )

    @property
    def _probes_path(self) -> Path:
        return self.folder / "probes.json"

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        return self.spec.budget_s - self.spent_s

    def run(self, session: Session) -> FindAnswer:
        ended: Ended = "narrow"
        try:
            ended = self._search(session)
        except (TargetError, KeyboardInterrupt) as e:  # what was learnt is kept
            if not self.probes:
                raise
            ended = "interrupted" if isinstance(e, KeyboardInterrupt) else "server gone"
            if ended == "interrupted":
                self.stop.request()
        answer = self._answer(ended)
        write(self.folder / "find.json", pretty(answer))
        if (
            self.spec.confirm_s
            and answer.low is not None
            and ended not in ("interrupted", "server gone")
        ):
            answer = self._confirmed(session, answer, answer.low)
            write(self.folder / "find.json", pretty(answer))
        return answer

    def _search(self, session: Session) -> Ended:
        while True:
            step = (
                self.search.next(self.left_s, self.spent_s)
                if self.left_s > _LEAST_LEFT_S
                else None
            )
            if step is None:
                return self._how_it_ended()
            if why := self._try(session, step):
                return why

    def _how_it_ended(self) -> Ended:
        low, high, _ = self.spec.range
        if self.search.missed is None and self.search.met == high:
            return "every load meets"
        if self.search.met is None and self.search.missed == low:
            return "no load meets"
        return "budget" if self.left_s <= _LEAST_LEFT_S else "narrow"

    # ---- a probe ----

    def _try(self, session: Session, step: ProbeStep) -> Ended | None:
        """Probe a load. Return why the search must end; None: it goes on."""
        for _ in range(_AGAIN + 1):
            began_s = self._before_s + self.spent_s
            outcome, look, took_s = self._probe(session, step)
            result = outcome.result
            if self.stop.requested:
                return "interrupted"
            self._note_answers(result)
            if result.served.outcome == "server gone" and not result.served.completed:
                raise TargetError("The server stopped answering.")
            why = self._void(result, look)
            client = "" if why else disturbed(result, self.spec.limits)
            if not why and not client:
                self._add(outcome, look, step, took_s, began_s)
                if self.estimate is None:
                    self._estimate(look)
                return None
            self.repeated += 1
            self._why = why or client
            if self.left_s <= _LEAST_LEFT_S:
                break
        return "client" if client else "void"

    def _note_answers(self, result: Result) -> None:
        """Keep what the correctness check has found: it is about the server, whatever becomes of the probe."""
        self._checked = True
        for finding in result.findings:
            if finding.code.startswith("correctness.") and finding.level != "note":
                self._findings[finding.code] = finding

    def _void(self, result: Result, look: ProbeLook) -> str:
        """Say why a probe doesn't count, whatever its target; '' where it does."""
        if not result.served.completed and not self._overloaded(result):
            return next(
                (f.text for f in result.findings if f.code == "requests.none_completed"),
                "No request completed.",
            )
        void = [f for f in result.findings if f.level == "void" and f.code not in _FAILURES]
        void = [f for f in void if not f.code.startswith(("correctness.", "client."))]
        return f"{void[0].text} {void[0].advice}".strip() if void else ""

    def _overloaded(self, result: Result) -> bool:
        """Return whether all requests failed because the load is too high: a lower one was served, or the server says
        so."""
        served_before = any(p.throughput for p in self.probes)
        kinds = [
            kind
            for kind, failed in result.served.failures.items()
            if failed and kind != "interrupted"
        ]
        return served_before or (
            bool(kinds) and all(any(word in kind for word in _OVERLOADED) for kind in kinds)
        )

    def _probe(
        self, session: Session, step: ProbeStep, confirm_s: float | None = None
    ) -> tuple[Outcome, ProbeLook, float]:
        self._tried += 1
        trial = self._trial(step, confirm_s)
        stop = Stop()
        watcher = _ProbeWatcher(self.watcher, stop, min(step.last_s, max(self.left_s, 1.0)))
        session = replace(
            session, watcher=watcher, stop=stop, tested=self._tried > self._tried_before + 1
        )
        self.watcher.phase(self._words(step, confirm_s))
        began = time.monotonic()
        prepared = prepare(trial, session)
        self._prompt_s = (time.monotonic() - began) / trial.workload.num_prompts
        requests = prepared.prompts.workload.requests
        forms = self._forms(trial, requests)
        run = create(self.folder, f"{self._tried:02d}-{prepared.trial.load.slug}")
        # from its first probe on, the folder is that of a search
        if not self._probes_path.exists():
            write(self._probes_path, pretty(self._stored))
        if session.fleet:
            run.write_engine(session.fleet.facts)
        graph = Graph.from_requests(requests)
        task = FollowTask(
            spool=str(run.spool_path),
            api=trial.api,
            lengths=[PlannedLength(r.prompt_tokens, r.output_tokens) for r in requests],
            limits=self.spec.limits,
            least=self.search.least,
            most=self.search.most,
            whole=self.whole,
            step=step,
            budget_s=self.search.budget_s,
            probes=[] if confirm_s else self.search.probes,
            forms=forms,
            turns=graph.turns() if graph else [],
        )
        load_began = time.monotonic()
        with contextlib.ExitStack() as following:
            if confirm_s is None:
                watcher.follower = following.enter_context(Follower(task))
            measure(run, session, prepared)
        took_s = time.monotonic() - (load_began if confirm_s else began)
        if stop.requested and not stop.decided:
            self.stop.request()
        enough_s = watcher.follower.enough_s if watcher.follower else None
        outcome = finish(run, prepared.prompts.counter, keys_known=True)
        look = final_look(task, run.records(), _looked_at(run, stop, enough_s))
        return outcome, look, took_s

    def _forms(self, trial: TrialSpec, requests: Sequence[object]) -> Forms:
        """Return the forms that answers must have, where a limit is about these."""
        if all(limit.stem != "invalid" for limit in self.spec.limits):
            return Forms()
        forms = answers.forms(trial, requests)
        if not forms.each:
            raise UsageError(answers.no_forms())
        return forms

    def _words(self, step: ProbeStep, confirm_s: float | None) -> str:
        """Describe a probe before it starts: 'Between 16 and 64; trying 32; about 40 s left'."""
        unit = " requests/s" if self.spec.over == "rate" else ""
        if confirm_s:
            return f"Confirming {self.spec.over} {count(step.level)}{unit}"
        low, high = self.search.bracket()
        known = ""
        if low and math.isfinite(high):
            known = f"between {count(low)} and {count(high)}; "
        elif low:
            known = f"above {count(low)}; "
        elif math.isfinite(high):
            known = f"below {count(high)}; "
        left = f"; at most {rough_time(max(self.left_s, 1.0))} left"
        if self.estimate is not None:
            about_s = min(
                max(self.estimate.most_s - self.spent_s, step.most_s), self.left_s
            )
            left = f"; about {rough_time(max(about_s, 1.0))} left"
        again = "again " if self.search.probes_at(step.level) else ""
        text = f"Probe {self._tried}: {known}trying {self.spec.over} {count(step.level)}{unit} {again}".rstrip()
        return f"{text}{left}"

    def _estimate(self, look: ProbeLook) -> None:
        """Estimate the whole search by its first probe."""
        self.estimate = search_time(self.spec, Pace(look.length_s, self._prompt_s))
        self.watcher.phase(time_words(self.estimate, self.spec.budget_s, self.spent_s))

    def _trial(self, step: ProbeStep, confirm_s: float | None) -> TrialSpec:
        """Return the trial at a load, with prompts of its own: those of another probe may be in the server's cache."""
        seed = self.trial.workload.seed + 7919 * self._tried
        first = self._tried == self._tried_before + 1
        requests = self._requests(step, confirm_s)
        warmups = self.trial.workload.num_warmups or 8
        workload = replace(
            self.trial.workload,
            num_prompts=requests,
            seed=seed,
            num_warmups=warmups if first else 0,
        )
        load = replace(self.trial.load, seed=seed, duration_s=confirm_s)
        if self.spec.over == "concurrency":
            load = replace(load, max_concurrency=int(step.level))
        else:
            load = replace(load, request_rate_rps=step.level)
        checked = self.trial.correctness_check and not self._checked
        return replace(
            self.trial,
            workload=workload,
            load=load,
            percentiles=self._percentiles,
            correctness_check=checked,
        )

    def _requests(self, step: ProbeStep, confirm_s: float | None) -> int:
        """Return how many prompts a probe needs: by the rates of those so far, and no more than can be made quickly."""
        level, time_s = step.level, confirm_s or self.search.expected_s(step)
        if not self.whole:
            needed = level * time_s * _MORE + FEWEST
            # fewer would show nothing
            least = level * self.search.ready_s(step) * _MORE + 2 * FEWEST
        else:
            rates = [
                p.look.rate * _faster(level / p.level)
                for p in self.search.probes
                if p.look.rate
            ]
            per_s = max(rates, default=0.0)
            least = max(level * (FILL_ENDS + WAVES + 1) + FEWEST, per_s * 2 * LEAST_S)
            needed = (
                max(per_s * time_s * _MORE, least)
                if per_s
                else max(_FIRST_REQUESTS, 2 * least)
            )
        quickly = time_s * _MAKING / self._prompt_s if self._prompt_s else math.inf
        return int(min(max(min(needed, quickly), least), _PROMPTS_MOST)) + 1

    def _add(
        self,
        outcome: Outcome,
        look: ProbeLook,
        step: ProbeStep,
        took_s: float,
        began_s: float,
    ) -> None:
        self._learn(StoredProbe(self._facts(outcome, look, step, took_s, began_s), look))
        write(self._probes_path, pretty(self._stored))

    def _learn(self, probe: StoredProbe) -> None:
        facts = probe.facts
        self._stored.append(probe)
        self.probes.append(facts)
        self.search.add(
            Probe(facts.level, probe.look, facts.brief, facts.duration_s, facts.began_s)
        )

    def _facts(
        self,
        outcome: Outcome,
        look: ProbeLook,
        step: ProbeStep,
        took_s: float,
        began_s: float,
    ) -> ProbeFacts:
        served = outcome.result.served
        return ProbeFacts(
            level=step.level,
            outcome="undecided",  # the answer knows
            brief=step.brief,
            requests=look.count,
            sent=served.sent,
            duration_s=took_s,
            figures=[
                LimitFigure(limit, _value(look, i), None)
                for i, limit in enumerate(self.spec.limits)
            ],
            run=outcome.run.path.name,
            queue_grew=look.grows,
            length_s=look.length_s,
            throughput=served.speed.value,
            throughput_of=served.speed.metric,
            verdict=outcome.result.verdict,
            began_s=began_s,
            disturbed=others(outcome.result),
            doubts=[f.code for f in outcome.result.findings if f.level == "doubt"],
        )

    def _confirmed(self, session: Session, answer: FindAnswer, level: float) -> FindAnswer:
        """Return the answer with a longer run at its load; without it, where that was cut off."""
        assert self.spec.confirm_s is not None
        step = ProbeStep(level, False, self.spec.confirm_s)
        try:
            outcome, look, took_s = self._probe(
                session, step, confirm_s=self.spec.confirm_s
            )
        except KeyboardInterrupt:
            self.stop.request()
        except TargetError:
            return replace(answer, ended="server gone")
        if self.stop.requested:
            return replace(answer, ended="interrupted")
        alone = self.search.judged_alone(level, look)
        facts = self._facts(outcome, look, step, took_s, self.spent_s)
        return replace(answer, confirmed=_judged(facts, alone))

    # ---- the answer ----

    def _answer(self, ended: Ended) -> FindAnswer:
        known, likely = self.search.interval(), self.search.best()
        self.probes = [_judged(probe, self.search) for probe in self.probes]
        more_s = self.search.time_needed() if self.probes else None
        answer = FindAnswer(
            spec=self.spec,
            ended=ended,
            low=known.low or None,
            high=None if math.isinf(known.high) else known.high,
            probes=self.probes,
            repeated=self.repeated,
            duration_s=self.spent_s,
            estimate=self.estimate,
            findings=list(self._findings.values()),
            void=self._why if ended in ("void", "client") else "",
            varies=self._variation(),
            starts=self._start(),
            line=self._line(),
        )
        if not answer.decided:
            answer = replace(
                answer,
                likely_low=likely.low or None,
                likely_high=None if math.isinf(likely.high) else likely.high,
                confidence=likely.confidence,
                needs_s=None if more_s is None else 1.2 * (self.spent_s + more_s),
            )
        above, below = answer.above, answer.below
        return replace(
            answer,
            limited_by=self._limits(above) if above else [],
            cliff=_cliff(below, above) if below and above else "",
            contradiction=self._contradiction(),
        )

    def _contradiction(self) -> str:
        """Say that loads above one that misses the target meet it; '' where none does."""
        if self.search.slow_below is not None:
            least = count(self.search.slow_below)
            return f"Loads below {least} miss the target: the server is slower with few requests."
        contradictions = self.search.contradictions
        if not contradictions:
            return ""
        return f"{many(len(contradictions), 'load')} above {count(self.search.missed or 0)} met the target."

    def _variation(self) -> str:
        """Say by how much probes of one load differ, where that is much."""
        spread, degrees = self.search.seen_variation()
        if not degrees or spread < _VARIES:
            return ""
        return f"Probes of the same load differ by {percent(math.expm1(spread))} (standard deviation)."

    def _start(self) -> str:
        """Say what is left out of each load, where servers are slower or quicker at first."""
        start_s = self.search.start_nearby(self.search.crossing()) if self.probes else 0.0
        if not start_s:
            return ""
        return f"The first {duration(start_s)} of each load are left out: latencies still changed."

    def _line(self) -> str:
        """Say what the ends rest on, where no probe had their load."""
        known = self.search.interval()
        tried = {probe.level for probe in self.probes}
        between = [
            x for x in (known.low, known.high) if x and math.isfinite(x) and x not in tried
        ]
        if not between:
            return ""
        near = self.search.on_the_line()
        loads = many(len({probe.level for probe in near}), "load")
        ends = " and ".join(count(x) for x in between)
        return f"{ends}: by a line through {many(len(near), 'probe')} of {loads} near the target."

    def _limits(self, above: ProbeFacts) -> list[str]:
        """Return the figures that miss, and what the server was short of there."""
        words = [figure.limit.words for figure in above.figures if figure.within is False]
        if any(probe.queue_grew for probe in self.probes if probe.level == above.level):
            words.append("a queue that grew without end")
        sampled = Run(self.folder / above.run).result().telemetry
        return [*words, *_shortages(sampled)] if sampled else words


def _shortages(sampled: TelemetrySummary) -> Iterator[str]:
    """Yield what a server was short of: memory for its cache, slots, accelerators."""
    for engine in sampled.engines:
        if (engine.kv_peak_share or 0) > 0.95:
            yield f"KV cache {engine.kv_peak_share:.0%} full"
        waiting = engine.waiting_mean or 0
        if waiting >= 1:
            yield f"{count(round(waiting))} requests waiting in the server, on average"
    busy = [
        a.use_mean_percent for a in sampled.accelerators if a.use_mean_percent is not None
    ]
    if busy and max(busy) > 90:
        yield f"accelerators {max(busy):.0f} % busy"


def disturbed(result: Result, limits: Sequence[Limit]) -> str:
    """Say what spoiled the figures that these limits have; '' where nothing did."""
    for finding in result.findings:
        if finding.code in _CLIENT and finding.level != "note":
            return f"{finding.text} {finding.advice}".strip()
    client, served = result.served.client, result.served
    length_ms = served.e2el.mean or 0.0
    if client.send_late.mean > max(1.0, _LATE_SENDS * length_ms):
        return f"dyno sent late: {number(client.send_late.mean)} ms on average. {others(result)}".strip()
    gaps = any(limit.stem == "itl" for limit in limits)
    if gaps and client.unseen_share > _UNSEEN_GAPS:
        return f"dyno could not time {percent(client.unseen_share)} of the chunks. {others(result)}".strip()
    return ""


def others(result: Result) -> str:
    """Name who else used the machine."""
    used = result.served.client.others_cpu
    cores = rig.read_machine().cores
    if used is None or not cores or used < _OTHERS_CORES * cores:
        return ""
    return f"Other programs used {number(min(used, cores), digits=2)} of {cores} cores."


def _looked_at(run: Run, stop: Stop, enough_s: float | None) -> float:
    """Return at which second of the load its requests are judged."""
    if enough_s is not None:
        return enough_s
    client = run.client()
    end_s = seconds(client.duration_ns) if client else 0.0
    if stop.decided:
        return end_s
    # All was sent: the load fades out from the last sending on.
    return max((seconds(r.sent_ns) for r in run.records()), default=end_s)


def _faster(times: float) -> float:
    """Return how many times as many requests end each second, at most, with so many times the concurrency."""
    return times if times > 1 else math.sqrt(times)


def _value(look: ProbeLook, i: int) -> float | None:
    return look.weighed[i].value if look.weighed else None


def _judged(probe: ProbeFacts, search: Search) -> ProbeFacts:
    """Return the probe with what all probes of its load show."""
    sides = search.sides(probe.level)
    figures = [
        LimitFigure(f.limit, f.value, side)
        for f, side in zip(probe.figures, sides, strict=True)
    ]
    return replace(probe, outcome=search.outcome(probe.level), figures=figures)


def _cliff(below: ProbeFacts, above: ProbeFacts) -> str:
    """Describe a jump of a figure between two loads that are near each other."""
    if above.level / below.level > 1.5:
        return ""
    for one, other in zip(below.figures, above.figures, strict=True):
        if (
            one.value
            and other.value
            and other.value > _CLIFF * one.value
            and other.within is False
        ):
            times = f"{other.value / one.value:.0f} times"
            where = f"between {count(below.level)} and {count(above.level)}"
            return (
                f"{one.limit.words.partition(' ≤')[0]} jumps to {times} its value {where}"
            )
    return ""


def find(
    trial: TrialSpec,
    spec: FindSpec,
    *,
    folder: Path,
    headers: dict[str, str],
    watcher: Watcher,
    stop: Stop,
) -> FindAnswer:
    secrets.learn(hidden(trial, headers))
    answers.check(trial, [limit.stem for limit in spec.limits])
    check_dataset(trial.workload)
    plan = plan_of(trial)
    start = None
    if plan is not None:
        start = Run(folder / "engines" / plan.spec.kind)
        make_folder(start.path)
    with serving(trial, plan, start, headers, watcher, stop) as session:
        return Finder(trial, spec, folder, watcher, stop).run(session)


def measure_trial(
    run: Run, session: Session, trial: TrialSpec, place: Place
) -> Outcome | None:
    """Search in a study's trial. Its result is that of the run at the highest load within the target. None: it was cut
    off, and continues with what its probes have shown."""
    assert trial.find is not None
    answer = Finder(
        replace(trial, find=None), trial.find, run.path, session.watcher, session.stop
    ).run(session)
    if answer.ended in ("interrupted", "server gone") or session.stop.requested:
        return None
    best = (
        answer.confirmed
        or answer.below
        or min(answer.probes, key=lambda p: p.level, default=None)
    )
    if best is None:
        raise TargetError(
            f"No load could be measured: {answer.void or 'no probe was completed.'}"
        )
    probe = Run(run.path / best.run)
    for path in probe.path.iterdir():
        if path.is_file() and path not in (probe.manifest_path, probe.summary_path):
            shutil.copy2(path, run.path)
    manifest = replace(
        probe.manifest(),
        trial=replace(probe.manifest().trial, find=trial.find),
        place=place,
    )
    run.write_manifest(manifest)
    result = replace(probe.result(), find=answer)
    run.write_result(result)
    return Outcome(run, manifest, result)
