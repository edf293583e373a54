"""An offline trial, from the spec to the result: the engine in its own process, with no server in between."""

import contextlib
import datetime
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import dyno
from dyno import plugins
from dyno.checks import examine
from dyno.checks.evidence import OfflineEvidence
from dyno.errors import EngineError, UsageError
from dyno.facts.finding import verdict
from dyno.facts.offline import OPTIONS, Batch, Iteration, OfflineSpec
from dyno.facts.record import ABORTED, ABORTS
from dyno.facts.rig import Rig
from dyno.facts.study import Place
from dyno.facts.summary import Result
from dyno.facts.telemetry import SamplerSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.measure import offline as measured
from dyno.measure import roofline, telemetry
from dyno.numbers import many
from dyno.option import fields, setting_name
from dyno.probe import rig
from dyno.probe.telemetry.sampler import Sampler
from dyno.store.run import Manifest, Run, create
from dyno.trial import dataset, weights
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.offline_engine import Worker, working
from dyno.trial.online import log_remarks, summarize_samples
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import longest, make_work, public
from dyno.trial.session import others_s
from dyno.trial.watcher import Watcher
from dyno.workload.request import DataFile, Request
from dyno.workload.synthetic import random_lengths
from dyno.workload.tokenizer import choose

# Measured iterations and warm-ups where the trial doesn't say: as vLLM's benchmarks and llama-bench do.
_ITERATIONS = {"throughput": (1, 0), "latency": (30, 10), "micro": (5, 1)}
_SAMPLING = {"temperature": 1.0, "top_p": 1.0}  # as vLLM's offline benchmarks


def batch_of(trial: TrialSpec) -> Batch:
    assert trial.offline is not None
    o, w = trial.offline, trial.workload
    if o.kind == "micro":
        return Batch("micro", 1, longest(trial), o.depth or 0, o.by)
    # Replicas share the prompts of a throughput trial; of a latency trial each has a batch of its own.
    shared = replicas(trial) if o.kind == "throughput" else 1
    if w.num_prompts < shared:
        raise UsageError(
            f"{many(w.num_prompts, 'prompt')} can't be shared by {many(shared, 'replica')}. Give at least {shared}."
        )
    return Batch(o.kind, -(-w.num_prompts // shared), longest(trial) or 2048)


def replicas(trial: TrialSpec) -> int:
    return trial.engine.replicas if trial.engine else 1


def engine_plan(
    trial: TrialSpec,
    machine: Rig,
    dry: bool = False,
    batch: Batch | None = None,
    image: str | None = None,
) -> EnginePlan:
    assert trial.engine is not None
    return EnginePlan(
        trial.engine, machine, dry=dry, batch=batch or batch_of(trial), image=image
    )


def _widest(trials: Sequence[TrialSpec]) -> list[Batch]:
    """Return what each trial needs. Micro tests of one setting get the context of the longest, so that they share one
    loaded engine and keep their order."""
    needed = [batch_of(trial) for trial in trials]
    most: dict[bytes, int] = {}
    keys = [msgspec.json.encode([trial.engine, trial.kind]) for trial in trials]
    for key, batch in zip(keys, needed, strict=True):
        most[key] = max(most.get(key, 0), batch.tokens)
    return [
        msgspec.structs.replace(batch, tokens=most[key]) if batch.kind == "micro" else batch
        for key, batch in zip(keys, needed, strict=True)
    ]


def lines(trial: TrialSpec, machine: Rig | None = None) -> Iterator[str]:
    """Yield the lines of a dry run."""
    yield from engine_plan(trial, machine or rig.read_machine(), dry=True).lines()
    iterations, warmups = counts(trial)
    yield f"# {iterations} measured iterations after {warmups} to warm up"
    if (copies := replicas(trial)) > 1:
        yield f"# {copies} copies begin each iteration together, with up to {batch_of(trial).requests} prompts each"


def problems(trial: TrialSpec, machine: Rig | None = None) -> list[str]:
    plan = engine_plan(trial, machine or rig.read_machine(), dry=True)
    return [*_unable(trial, plan), *plan.problems([longest(trial)])]


def _unable(trial: TrialSpec, plan: EnginePlan) -> Iterator[str]:
    """Yield what the engine's worker can't do."""
    o = trial.offline
    known = fields(OfflineSpec)
    asked = [name for name in OPTIONS if getattr(o, name) != known[name].default]
    names = {name: known[name].option.flag for name in asked}
    if trial.profile:
        names["profile"] = "--profile"
    for name, flag in names.items():
        if name not in plan.kind.offline_options:
            yield f"{plan.title} can't do what {setting_name(flag)} asks for. Remove it, or use vLLM."


def counts(trial: TrialSpec) -> tuple[int, int]:
    """Return the iterations that are measured, and the warm-ups before them."""
    o = trial.offline
    assert o is not None
    measured, before = _ITERATIONS[o.kind]
    if o.kind == "throughput" and trial.workload.num_warmups:
        before = 1
    return (
        measured if o.iterations is None else o.iterations,
        before if o.warmup_iterations is None else o.warmup_iterations,
    )


def conduct(
    trials: Sequence[TrialSpec],
    *,
    runs: Path,
    watcher: Watcher | None = None,
    stop: Stop | None = None,
) -> Iterator[Outcome]:
    """Measure each trial in a run folder of its own; yield each as it is done. Trials that need the same engine, loaded
    the same way, share it."""
    watcher, stop = watcher or Watcher(), stop or Stop()
    machine = rig.read_machine()
    waiting = [
        (t, engine_plan(t, machine, batch=b))
        for t, b in zip(trials, _widest(trials), strict=True)
    ]
    for trial, plan in waiting:
        _refuse_problems(trial, plan)
    while waiting and not stop.requested:
        plan = waiting[0][1]
        mine = [trial for trial, other in waiting if same_engine(plan, other)]
        waiting = [
            (trial, other) for trial, other in waiting if not same_engine(plan, other)
        ]
        run = create(runs, _name(mine[0], plan))
        with working(
            plan, run.path, watcher.phase, run.write_engine, watcher.below
        ) as worker:
            for i, trial in enumerate(mine):
                if i:
                    run = create(runs, _name(trial, plan))
                    run.write_engine(worker.facts)
                cut = _measure_until_cut(run, trial, worker, watcher)
                if cut:
                    stop.requested = True
                yield finish(run, cut)
                if cut:
                    return


def _refuse_problems(trial: TrialSpec, plan: EnginePlan) -> None:
    if wrong := [*_unable(trial, plan), *plan.problems([longest(trial)])]:
        raise UsageError(" ".join(wrong))


def _measure_until_cut(
    run: Run, trial: TrialSpec, worker: Worker, watcher: Watcher
) -> bool:
    """Measure a trial. Return whether Ctrl-C has cut it, after at least one iteration that counts."""
    try:
        measure(run, trial, worker, watcher)
    except KeyboardInterrupt:
        if all(it.warmup for it in run.iterations()):
            raise
        return True
    return False


def same_engine(plan: EnginePlan, other: EnginePlan) -> bool:
    """Return whether one loaded engine serves both."""

    def loaded(p: EnginePlan) -> tuple[Any, ...]:
        # others each time
        own = {*(str(launch.port) for launch in p.launches), *p.containers}
        copies = [
            ([w for w in one.argv if w not in own], one.env, one.devices)
            for one in p.launches
        ]
        return copies, p.spec.before, p.spec.after

    return loaded(plan) == loaded(other)


class Batches:
    """The prompts of each iteration: other ones each time, so that no cache can help."""

    def __init__(self, trial: TrialSpec, worker: Worker, watcher: Watcher) -> None:
        self._trial = trial
        self._copies = replicas(trial)
        w = trial.workload
        self._fixed: list[Request] | None = None
        self.file: DataFile | None = None
        if not w.traits.exact:
            named = (
                weights.tokenizer(trial) or worker.plan.tokenizer or worker.plan.spec.model
            )
            w, self.file = dataset.located(w, watcher.phase, watcher.below)
            watcher.phase(f"Generating {w.num_prompts} prompts ({w.dataset})")
            variables = trial.chat_template_kwargs
            tokenizer = choose(named, None, "")
            self._fixed = make_work(w, tokenizer, variables=variables).requests
        elif worker.ready.vocab is None:
            raise UsageError(
                f"{worker.plan.title} doesn't report its vocabulary size, so dyno can't make prompts."
            )
        else:
            special = {*worker.ready.special}
            self._ids = np.array(
                [i for i in range(worker.ready.vocab) if i not in special], dtype=np.int64
            )

    def ids(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn: list[int] = self._ids[rng.integers(0, len(self._ids), size=count)].tolist()
        return drawn

    def requests(self, index: int, count: int | None = None) -> list[Request]:
        w = self._trial.workload
        if self._fixed is not None:
            return self._fixed[:count]
        rng = np.random.default_rng([w.seed, 3, index])
        prefix = self.ids(np.random.default_rng([w.seed, 4]), w.prefix_len)
        # Lengths are the same in each iteration: else they would differ by what was asked for.
        pairs = random_lengths(w)[:count] * (
            self._copies if self._trial.kind == "latency" else 1
        )
        return [
            Request([*prefix, *self.ids(rng, n)], w.prefix_len + n, output)
            for n, output in pairs
        ]

    def job(self, index: int, warmup: bool) -> dict[str, Any]:
        t, o = self._trial, self._trial.offline
        assert o is not None
        if o.kind == "micro":
            return self._micro(index, o)
        few = t.workload.num_warmups if warmup and o.kind == "throughput" else 0
        requests = self.requests(index, max(few, self._copies) if few else None)
        return {
            "do": "generate",
            "prompts": [r.prompt for r in requests],
            "wanted": [r.output_tokens for r in requests],
            "ignore_eos": t.ignore_eos,
            "sampling": t.sampling or _SAMPLING,
            "together": o.kind == "latency",
            "reset": True,
            "detokenize": o.detokenize,
            **self._asked(o),
        }

    def _asked(self, o: OfflineSpec) -> dict[str, Any]:
        """Return what only some workers can do, where it was asked for."""
        w = self._trial.workload
        asked: dict[str, Any] = {}
        if o.sequences > 1 or o.beam_search:
            asked |= {"n": o.sequences, "beam": o.beam_search}
        if o.prequeue:
            asked["prequeue"] = True
        if o.lora_path:
            asked["lora"] = {
                "path": o.lora_path,
                "in_turn": w.lora_assignment == "round-robin",
                "seed": w.seed,
            }
        return asked

    def shares(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the part of each replica."""
        if self._copies == 1:
            return [job]
        lists = [
            {name: job[name][i :: self._copies] for name in ("prompts", "wanted")}
            for i in range(self._copies)
        ]
        return [{**job, **own} for own in lists]

    def _micro(self, index: int, o: OfflineSpec) -> dict[str, Any]:
        w = self._trial.workload
        rng = np.random.default_rng([w.seed, 5, index])
        return {
            "do": "micro",
            "depth": self.ids(rng, o.depth or 0),
            "prompt": self.ids(rng, w.input_len),
            "generate": w.output_len or 0,
            # token generation from an empty context begins with something
            "start": self.ids(rng, 1),
            "repetitions": counts(self._trial)[0],
            "warm": counts(self._trial)[1] > 0,
        }


def measure(
    run: Run, trial: TrialSpec, worker: Worker, watcher: Watcher, place: Place | None = None
) -> None:
    """Warm up and measure. The run's folder has the iterations then, one by one."""
    batches = Batches(trial, worker, watcher)
    iterations, warmups = counts(trial)
    if worker.ready.repeats:
        iterations, warmups = 1, 0
    first = batches.job(warmups, False)
    run.write_manifest(
        Manifest(
            dyno=dyno.__version__,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            trial=public(msgspec.structs.replace(trial, engine=worker.plan.stored)),
            target=worker.target,
            tokenizer=None,
            counted_by="tokenizer",
            workload_sha256=sha256(msgspec.json.encode(first)).hexdigest(),
            prompts=len(first.get("prompts", [0])),
            repeated_prompts=0,
            sent_before=None,
            rig=worker.plan.seen(rig.read_machine(record=True)),
            place=place,
            model=worker.plan.shape(),
            peaks=worker.peaks,
            dataset=batches.file,
            plugins=plugins.active(),
        )
    )
    with contextlib.ExitStack() as last:
        sampling = Sampler(SamplerSpec(str(run.telemetry_path), [], {}, accelerators=True))
        last.callback(watcher.over)
        last.callback(sampling.end)
        append = last.enter_context(run.appending())
        for i in range(warmups + iterations):
            if i == warmups:
                _profile(trial, worker, batches, watcher)
                sampling.begin()
                watcher.sampling(sampling)
            job = first if i == warmups else batches.job(i, i < warmups)
            before, began = others_s(worker.cpu_s), time.monotonic()
            limit_s, count = (
                trial.offline.timeout_s if trial.offline else 0.0,
                len(job.get("prompts", [0])),
            )
            each = worker.ask(
                batches.shares(job),
                limit_s,
                lambda done: watcher.within(done, count),  # noqa: B023
            )
            after, took_s = others_s(worker.cpu_s), time.monotonic() - began
            # of a child that has ended
            own_s = sum(it.pop("cpu_s", 0.0) for iterations in each for it in iterations)
            others = (
                None
                if before is None or after is None
                else max(after - before - own_s, 0.0) / took_s
            )
            if each and each[0]:
                worker.is_build(each[0][0].get("told", {}).get("build_number"))
            for n, parts in enumerate(zip(*each, strict=True)):
                fields = {"index": i + n, "warmup": i < warmups, "others_cpu": others}
                append(
                    measured.joined(
                        [
                            _judged(msgspec.convert({**part, **fields}, Iteration))
                            for part in parts
                        ]
                    )
                )
            watcher.iteration(i + 1, warmups, iterations, took_s)


def _profile(trial: TrialSpec, worker: Worker, batches: Batches, watcher: Watcher) -> None:
    """Run one more iteration, in no figure, with the engine's profiler on, if that is asked for."""
    if not trial.profile:
        return
    watcher.phase("Running an iteration with the engine's profiler")
    job = {**batches.job(sum(counts(trial)), False), "profile": True}
    worker.ask(batches.shares(job), trial.offline.timeout_s if trial.offline else 0.0)


def _judged(iteration: Iteration) -> Iteration:
    """Return it, with answers that the engine gave up as failed."""
    for answer in iteration.answers:
        if answer.error is None and answer.finish_reason in ABORTS:
            answer.error = f"{ABORTED}: the engine ended the answer with the finish reason {answer.finish_reason}"
    return iteration


def finish(run: Run, interrupted: bool = False) -> Outcome:
    """Make the result from the run's folder."""
    manifest, iterations = run.manifest(), list(run.iterations())
    chosen = [it for it in iterations if not it.warmup]
    if not chosen:
        raise EngineError(f"No iteration was completed in {run.path}.")
    summary, engine = measured.summarize(manifest.trial, chosen), run.engine()
    window = telemetry.Window(chosen[0].start_ns, chosen[-1].end_ns)
    sampled = summarize_samples(run, manifest, window, summary.output_tokens)
    shape, peaks, spec = manifest.model, manifest.peaks, manifest.trial.engine
    roof = None
    if shape is not None and peaks is not None:
        prefix = manifest.trial.workload.prefix_len
        roof = roofline.of_offline(summary, shape, spec, manifest.target, peaks, prefix)
    findings = examine(
        OfflineEvidence(
            trial=manifest.trial,
            target=manifest.target,
            rig=manifest.rig,
            host=manifest.place.host if manifest.place else None,
            engine=engine,
            repeats=manifest.place.repeats if manifest.place else 1,
            first_failure=run.first_failure(),
            telemetry=sampled,
            roofline=roof,
            remarks=log_remarks(run),
            offline=summary,
            latencies_ms=measured.times_ms(manifest.trial, chosen),
            others_cpu=measured.others_cpu(chosen),
            wanted_iterations=counts(manifest.trial)[0],
            reported=next((it.reported for it in chosen if it.reported), {}),
        )
    )
    result = Result(
        None, findings, verdict(findings), sampled, offline=summary, roofline=roof
    )
    # In a study what was cut is run again as a whole, and without a completed iteration there is no result.
    if manifest.place is None or (summary.completed and not interrupted):
        run.write_result(result)
    return Outcome(run, manifest, result, iterations, interrupted)


def reopened(run: Run) -> Outcome:
    """Return the outcome of an earlier run; summed up first, where dyno was stopped before that."""
    if not run.whole:
        return finish(run, interrupted=True)
    return Outcome(run, run.manifest(), run.result(), list(run.iterations()))


def _name(trial: TrialSpec, plan: EnginePlan) -> str:
    o, w = trial.offline, trial.workload
    assert o is not None
    sizes = {"latency": f"b{w.num_prompts}", "throughput": str(w.num_prompts)}
    size = sizes.get(o.kind, "")
    lengths = f"{w.input_len}-{w.output_len}" if w.traits.exact else w.dataset
    lengths += f"-d{o.depth}" if o.depth else ""
    return "-".join(filter(None, (o.kind, Path(plan.served_name).name, size, lengths)))
