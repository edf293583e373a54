"""A run of dyno's own as a row, by the names that other tools' results are read into (facts/imported.py).

It has no lines: they are 0. Samples are in the order of sending, one per request; a failed request has NaN, for which
every comparison is false.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from statistics import stdev
from typing import Any, cast

import msgspec
import numpy as np

from dyno.engines.kinds import is_started
from dyno.errors import StoreError
from dyno.facts.correctness import GreedyAnswer
from dyno.facts.engine import EngineFacts
from dyno.facts.identity import described, settings_of
from dyno.facts.imported import Figure, Row, RowKind, RunFacts, Samples, Scalar, Setting
from dyno.facts.load import LoadSpec
from dyno.facts.metric import METRICS, OWN_TPOT, definition
from dyno.facts.offline import Iteration, OfflineSpec, OfflineSummary
from dyno.facts.quality import ItemAnswer, QualitySpec, QualitySummary, TaskScore
from dyno.facts.record import Record
from dyno.facts.rig import Rig
from dyno.facts.setting import SETTINGS, name_of
from dyno.facts.spread import Distribution, Latency, Spread
from dyno.facts.study import Place, PlannedTrial
from dyno.facts.summary import Result, Summary
from dyno.facts.telemetry import TelemetrySummary
from dyno.facts.trial import TrialSpec, micro_name
from dyno.http import Url
from dyno.measure import timing
from dyno.measure.cost import hour
from dyno.measure.offline import micro_sample, times_ms
from dyno.measure.reuse import reported_share
from dyno.measure.scores import with_total
from dyno.measure.timing import Span
from dyno.option import fields
from dyno.store.run import Manifest, Run
from dyno.units import NS_PER_MS, NS_PER_S, seconds
from dyno.workload.spec import OWN_FIELDS, WorkloadSpec

_TOOL = "dyno"
# Engine settings as the server reports them.
_REPORTED = {
    "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype", "dtype": "dtype", "max_num_seqs": "slots",
    "max_model_len": "max_model_len", "prefix_caching": "prefix_caching", "tensor_parallel": "tensor_parallel",
}  # fmt: skip
# Fields whose settings have other names, or depend on others: the row's kind, one setting for each sampling parameter.
_WRITTEN_OTHERWISE = ("kind", "sampling", "extra_body", "--base-url", "model", "replicas")
# What other kinds of trials than serving don't have, or call otherwise.
_ABSENT = {
    "latency": ("num_prompts",), "micro": ("num_prompts", "dataset", "input_len", "output_len", "ignore_eos"),
}  # fmt: skip

# Latencies of single requests, as rows call them.
_BY_REQUEST = {**timing.JUDGED, "vllm_tpot": timing.tpot_ns}

Settings = dict[str, Scalar | None]


def read_rows(run: Run, samples: bool = True) -> list[Row]:
    """A finished run: one row, or, of a quality test, one of each task and metric."""
    result = run.result()
    if result.quality is None:
        return [read_row(run, samples)]
    answers = run.answers(result.quality.passes[0].concurrency)
    return quality_rows(str(run.path), run.manifest(), result, run.engine(), answers)


def read_row(run: Run, samples: bool = True) -> Row:
    """A finished run with one result. `samples`: with its single requests, where they were stored."""
    manifest, result = run.manifest(), run.result()
    if result.summary is None and result.offline is None:
        raise StoreError(f"{run.summary_path} has no figures: it is damaged.")
    offline = manifest.trial.offline is not None
    records = run.records() if samples and not offline and run.records_path.exists() else ()
    iterations = list(run.iterations()) if offline else ()
    row = row_of(str(run.path), manifest, result, run.engine(), records, iterations)
    known = run.correctness()
    answers = {a.prompt: a for a in known.before if not a.error and not a.replica} if known else {}
    return msgspec.structs.replace(row, answers=answers)


def row_of(
    file: str, manifest: Manifest, result: Result, engine: EngineFacts | None = None, records: Iterable[Record] = (),
    iterations: Sequence[Iteration] = (),
) -> Row:  # fmt: skip
    """`records`: of a serving benchmark, `iterations`: of the others, warm-ups too; without them, no samples."""
    trial, place = manifest.trial, manifest.place
    rig = _rig(manifest)
    measured = [i for i in iterations if not i.warmup]
    settings = {**_load(trial), **_circumstances(manifest, result, engine)}
    if result.offline is not None:
        figures, samples = _of_offline(result.offline, trial, measured), _of_iterations(trial, measured)
    else:
        figures, samples = _of_serving(result.served, result.telemetry), _of_records(records, result.served)
    if result.telemetry is not None and result.telemetry.power_mean_w is not None:
        figures["power_w"] = Figure(result.telemetry.power_mean_w, 0)
    return _row(
        trial, RunFacts(place, result, engine), file, settings, figures=figures, samples=samples,
        findings=result.findings, rig=rig, prompts_sha256=manifest.workload_sha256,
    )  # fmt: skip


def quality_rows(
    file: str, manifest: Manifest, result: Result, engine: EngineFacts | None, answers: Sequence[ItemAnswer]
) -> list[Row]:
    """A row of each score, and one of all tasks. `answers`: of the first pass, which gives the scores."""
    trial, summary = manifest.trial, result.quality
    assert trial.quality is not None and summary is not None
    by_score: dict[tuple[str, str, str], list[ItemAnswer]] = {}
    for answer in answers:
        by_score.setdefault((answer.task, answer.metric, answer.filter), []).append(answer)
    about = {**_circumstances(manifest, result, engine), **_asked(trial.quality, summary)}
    rows = []
    for score in summary.scores:
        items = by_score.get((score.task, score.metric, score.filter), [])
        failed = sum(answer.error is not None for answer in items)
        values = {"score": score.score, "stderr": score.stderr, "completed": score.items - failed, "failed": failed}
        prompts = sha256("".join(sorted(answer.prompt_sha256 for answer in items)).encode()).hexdigest()
        rows.append(_row(
            trial, RunFacts(manifest.place, result, engine), file, about | _task(score, trial.quality),
            figures={name: Figure(float(value), 0) for name, value in values.items() if value is not None},
            samples=Samples(scores={answer.item: answer.score for answer in items}),
            answers={a.item: GreedyAnswer(a.item, a.answer) for a in items if a.error is None and a.answer},
            findings=result.findings, rig=_rig(manifest), prompts_sha256=prompts if items else None,
        ))  # fmt: skip
    return with_total(rows)


def _asked(spec: QualitySpec, summary: QualitySummary) -> Settings:
    return {
        **settings_of(spec),
        "form": summary.form,
        "chat_template_sha": summary.template_sha256,
        "in_flight": summary.passes[0].concurrency,
        "process": summary.process,
        "lm_eval_version": summary.tools.get("lm-eval"),
    }


def _task(score: TaskScore, spec: QualitySpec) -> Settings:
    return {
        "task": score.task,
        "metric": score.metric,
        # Built-in tasks have no filter, and their choices are another test.
        "filter": score.filter or ("choices" if spec.choices else None),
        "n_shot": score.n_shot,
        "task_version": score.version or None,
        "samples": score.items,
        "chance": score.chance,
    }


def row_of_trial(planned: PlannedTrial, result: Result) -> Row:
    """Return the figures of a study's trial alone, without what its folder has."""
    trial = planned.trial
    figures: dict[str, Figure] = {}
    if result.offline is not None:
        figures = _of_offline(result.offline, trial, [])
    elif result.summary is not None:
        figures = _of_serving(result.summary, result.telemetry)
    run = RunFacts(planned.place, result)
    return _row(trial, run, planned.place.id, _load(trial), figures=figures, findings=result.findings)


def row_without(planned: PlannedTrial, file: str, failure: str) -> Row:
    """A trial that has no result: what was asked for, and why it failed."""
    trial = planned.trial
    settings = {**_load(trial), "engine": trial.engine.kind if trial.engine is not None else None}
    return _row(trial, RunFacts(planned.place), file, settings, figures={}, failure=failure)


def _row(trial: TrialSpec, run: RunFacts, file: str, settings: Settings, **more: Any) -> Row:
    place = run.place
    return Row(
        kind=cast("RowKind", trial.kind),  # a trial's kinds are a row's
        tool=_TOOL,
        form="run",
        file=file,
        line=0,
        end=0,
        settings={
            name: Setting(value, 0) for name in sorted(settings, key=_order) if (value := settings[name]) is not None
        },
        label=place.label if place is not None else trial.label or "",
        series=place.engine if place is not None else "",
        run=run,
        **more,
    )


def _order(name: str) -> int:
    """Shared settings come first, in their own order."""
    return SETTINGS.index(name) if name in SETTINGS else len(SETTINGS)


def _load(trial: TrialSpec) -> Settings:
    """Return workload, load and requests as their specs declare them, then what rows call or write otherwise."""
    work, offline = trial.workload, trial.offline is not None
    parts = [trial, work, trial.client] + ([] if offline else [trial.load, trial.target])
    settings: Settings = {name: value for part in parts for name, value in settings_of(part).items()}
    settings |= dict.fromkeys(_WRITTEN_OTHERWISE)
    settings |= _workload(work)
    if not offline:
        settings |= _pace(trial.load, work.traits.sessions)
    if trial.offline is not None:
        settings |= _batches(trial, trial.offline)
    if trial.find is not None:
        settings |= settings_of(trial.find)
    settings |= dict.fromkeys(_ABSENT.get(trial.kind, ()))
    for name, value in (trial.sampling | trial.extra_body).items():
        settings[f"--{name.replace('_', '-')}"] = value if isinstance(value, str | int | float | bool) else str(value)
    return settings


def _workload(work: WorkloadSpec) -> Settings:
    ratios = (work.range_ratio_input, work.range_ratio_output)
    foreign = [field for field, datasets in OWN_FIELDS.items() if work.dataset not in datasets]
    settings: Settings = {name_of(fields(WorkloadSpec)[field]): None for field in foreign}
    settings |= {
        "seed": work.seed,
        "num_prompts": None if work.num_sessions else work.num_prompts,
        "--random-range-ratio": f"{ratios[0]:.12g}, {ratios[1]:.12g}" if any(ratios) else None,
        "--class": "; ".join(f"{name}: {described(part)}" for name, part in work.classes.items()) or None,
    }
    if not work.traits.exact and work.input_len == fields(WorkloadSpec)["input_len"].default:
        settings["input_len"] = None  # most other datasets don't use it
    return settings


def _pace(load: LoadSpec, sessions: bool) -> Settings:
    settings: Settings = {
        "rate": None if sessions else load.request_rate_rps,
        "session_rate": load.request_rate_rps if sessions else None,
        "speedup": load.speedup if load.arrivals else None,
        "burstiness": None,
    }
    if not load.closed_loop and not load.arrivals and load.burstiness != 1:
        settings["burstiness"] = load.burstiness or "inf"
    if load.cancel_rate:
        settings["--cancel-after"] = load.cancel_after_s
    return settings


def _batches(trial: TrialSpec, how: OfflineSpec) -> Settings:
    settings: Settings = {**settings_of(how), "kind": None}
    settings["batch_size"] = (how.batch_size or 8) if how.kind == "latency" else None
    if how.kind == "micro":
        settings["test"] = micro_name(trial.workload.input_len, trial.workload.output_len or 0, 0)
        settings["depth"] = how.depth or 0
    return settings


def _engine(manifest: Manifest, engine: EngineFacts | None) -> Settings:
    """Return engine settings as reported, else from its files, else as requested."""
    trial, target, model, spec = manifest.trial, manifest.target, manifest.model, manifest.trial.engine
    settings: Settings = {**settings_of(spec)} if spec is not None else {}
    # Two models may be served under one name.
    attached = spec is not None and not is_started(spec.kind)
    started = spec.model if spec is not None and not attached else None
    settings |= {
        "model": started or trial.target.model or (spec.model if spec is not None else None) or target.model,
        "engine": (engine.kind if engine is not None else None) or target.kind or (spec.kind if spec else None),
        "engine_version": (engine.version if engine is not None else None) or target.version,
        # Of a server that was there before: one that dyno starts gets any free port.
        "--base-url": (trial.target.base_url or None) if spec is None or attached else None,
    }
    if len(trial.target.urls) > 1:
        settings["replicas"] = len(trial.target.urls)
    reported = {name: getattr(target, attribute) for name, attribute in _REPORTED.items()}
    if model is not None:
        reported["quantization"] = reported["quantization"] or model.quantization
        reported |= {"model_bytes": model.weights_bytes, "parameters": model.parameters}
    settings |= {name: value for name, value in reported.items() if value is not None}
    if engine is not None and spec is not None and (origin := engine.models.get(spec.model or "")):
        settings["origin"] = origin.describe()  # a study's name for a model doesn't say which one it is
    if spec is not None:
        settings |= dict.fromkeys(("--engine-args", "--engine-env"))
        settings["speculative"] = f"{spec.draft_model or ''} {spec.draft_tokens or ''}".strip() or None
        settings |= _flags(spec.args)
        settings |= spec.env
    return settings


def _flags(args: Sequence[str]) -> dict[str, Scalar]:
    """--swap-space 16 --enforce-eager → by their names; what is no flag, together."""
    out: dict[str, Scalar] = {}
    loose, name = [], ""
    for arg in args:
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            out[name] = value if equals else True
            name = "" if equals else name
        elif name:
            out[name], name = arg, ""
        else:
            loose.append(arg)
    return out | ({"args": " ".join(loose)} if loose else {})


def _circumstances(manifest: Manifest, result: Result, engine: EngineFacts | None) -> Settings:
    place = manifest.place
    return {
        **_engine(manifest, engine),
        **_machine(_rig(manifest), result, place),
        "tokenizer": manifest.tokenizer or manifest.trial.tokenizer,
        "tool_version": manifest.dyno or None,
        "date": manifest.started or None,
        "verdict": result.verdict,
        "repeat": place.repeat if place is not None and place.repeats > 1 else None,
    }


def _rig(manifest: Manifest) -> Rig | None:
    url = manifest.trial.target.base_url
    return manifest.rig if not url or Url(url).local else None  # else the server runs elsewhere


def _machine(rig: Rig | None, result: Result, place: Place | None) -> Settings:
    cards = [] if rig is None else rig.accelerators
    if result.telemetry is not None and (used := [a.index for a in result.telemetry.accelerators if a.engine]):
        cards = [a for a in cards if a.index in used]
    else:
        cards = [a for a in cards if a.engine] or cards
    price = place.price if place is not None else None
    # The number of accelerators of a remote machine is unknown.
    paid = hour(price, len(cards) if rig else None, len(rig.accelerators) if rig else None) if price else None
    return {
        "accelerator": ", ".join(dict.fromkeys(a.name for a in cards)) or None,
        "accelerators": len(cards) or None,
        "price_per_hour": paid[0] if paid is not None else None,
    }


def _of_serving(s: Summary, telemetry: TelemetrySummary | None) -> dict[str, Figure]:
    values = {name: s.figure(m) for name, m in METRICS.items() if m.field}
    if telemetry is not None:
        values |= {"acceptance_rate": telemetry.acceptance, "acceptance_length": telemetry.accepted_length}
    if s.reuse is not None:
        values["reported_reuse"] = reported_share(s, telemetry)
    figures = _figures(values)
    for stem, latency in s.figures.items():
        own = stem == "tpot" and s.own_tpot is not None
        figures |= _distribution(stem, latency, OWN_TPOT if own else definition(_TOOL, stem))
    return figures


def _figures(values: Mapping[str, float | None]) -> dict[str, Figure]:
    """Return those that are known, in the order of the list."""
    return {name: Figure(float(value), 0) for name in METRICS if (value := values.get(name)) is not None}


def _of_offline(s: OfflineSummary, trial: TrialSpec, measured: Sequence[Iteration]) -> dict[str, Figure]:
    values: dict[str, float | None] = {
        "completed": s.completed,
        "failed": s.failed,
        "duration_s": s.duration_s,
        "total_input_tokens": s.input_tokens,
        "total_output_tokens": s.output_tokens,
        "total_tokens": s.input_tokens + s.output_tokens,
        "concurrency_mean": s.in_flight_mean,
        "cached_input_tokens": s.cached_input_tokens,
    }
    if s.speculation is not None:
        values |= {"acceptance_rate": s.speculation.acceptance, "acceptance_length": s.speculation.tokens_per_step}
    figures = _figures(values)
    if s.kind == "micro":
        # llama-bench's own figure where it ran, dyno's (with the choice of a token) where it didn't.
        tool = "llama-bench" if any(i.reported for i in measured) else _TOOL
        speeds = _speeds(trial, measured)
        if s.speed is not None:
            deviation = stdev(speeds) if len(speeds) > 1 else None
            figures["speed"] = Figure(s.speed, 0, definition=definition(tool, "speed"), deviation=deviation)
        return figures
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        figures[name] = _spread(getattr(s, name), definition("offline", "throughput") if name[0] == "t" else "")
    if s.tpot_ms is not None:
        figures["mean_tpot_ms"] = _spread(s.tpot_ms)
    if s.kind == "latency":
        figures |= _distribution("latency", s.latency, definition("offline", "latency"))
    return figures


def _distribution(stem: str, d: Distribution | Latency, meaning: str) -> dict[str, Figure]:
    if d.empty:
        return {}
    values = {"mean": d.mean, "median": d.median, "std": d.std, **{f"p{p}": v for p, v in d.percentiles.items()}}
    return {f"{name}_{stem}_ms": Figure(v, 0, definition=meaning) for name, v in values.items() if v is not None}


def _spread(s: Spread, meaning: str = "") -> Figure:
    return Figure(s.mean, 0, definition=meaning, deviation=s.std if s.count > 1 else None)


def _of_records(records: Iterable[Record], s: Summary) -> Samples | None:
    """Without the samples of a latency that a busy client knows in part: those it has seen are the quick ones."""
    rows = sorted(records, key=lambda r: r.sent_ns)
    if not rows:
        return None
    completed = [] if s.itl.bounds else [r for r in rows if r.error is None]

    def each(latency: Callable[[Record], Span | None]) -> list[float]:
        spans = [latency(r) if r.error is None else None for r in rows]
        return [math.nan if span is None else span.middle / NS_PER_MS for span in spans]

    known = [stem for stem, latency in s.figures.items() if stem in _BY_REQUEST and not latency.bounds]
    times_ms = {stem: each(_BY_REQUEST[stem]) for stem in known}
    times_ms["itl"] = [ms for r in completed for ms in (np.diff(timing.likely_ns(r)) / NS_PER_MS).tolist()]
    return Samples(
        input_lens=[r.prompt_tokens if r.prompt_tokens is not None else r.prompt_tokens_planned for r in rows],
        output_lens=[(r.output_tokens or 0) if r.error is None else 0 for r in rows],
        times_ms=times_ms,
        starts_s=[seconds(r.sent_ns) for r in rows],
        errors=[r.error or "" for r in rows],
    )


def _of_iterations(trial: TrialSpec, measured: Sequence[Iteration]) -> Samples | None:
    if not measured:
        return None
    return Samples(times_ms={"latency": times_ms(trial, measured)}, speeds=_speeds(trial, measured))


def _speeds(trial: TrialSpec, measured: Sequence[Iteration]) -> list[float]:
    """Tokens/s of each: of a micro test its own, else of outputs."""
    if trial.kind == "micro":
        tests = [t for i in measured for a in i.answers if (t := micro_sample(trial, a)) is not None]
        return [count * NS_PER_S / took for count, took in tests]
    done = ((sum(a.output_tokens for a in i.answers if a.error is None), i.end_ns - i.start_ns) for i in measured)
    return [count * NS_PER_S / took for count, took in done if took > 0]
