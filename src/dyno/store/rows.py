"""A run of dyno's own as a row, by the names that other tools' results are read into (facts/imported.py).

It has no lines: they are 0. Samples are in the order of sending, one per request; a failed request has NaN, for which
every comparison is false.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
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
from dyno.facts.quality import (
    FORM_METRICS,
    RIGHT,
    ItemAnswer,
    QualitySpec,
    QualitySummary,
    TaskScore,
)
from dyno.facts.record import Record
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.setting import SETTINGS, name_of
from dyno.facts.spread import Distribution, Latency, Spread
from dyno.facts.study import Place, PlannedTrial
from dyno.facts.summary import Result, Summary, reported_share
from dyno.facts.telemetry import TelemetrySummary
from dyno.facts.trial import TrialSpec, micro_name
from dyno.http import Url
from dyno.measure import timing
from dyno.measure.cost import hour
from dyno.measure.offline import micro_sample, times_ms
from dyno.measure.scores import with_total
from dyno.measure.telemetry import queue_share
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
    "latency": ("num_prompts",),
    "micro": ("num_prompts", "dataset", "input_len", "output_len", "ignore_eos"),
}

# Latencies of single requests, as rows call them.
_BY_REQUEST = {**timing.JUDGED, "vllm_tpot": timing.tpot_ns}

Settings = dict[str, Scalar | None]


def read_rows(run: Run, samples: bool = True) -> list[Row]:
    """Return the rows of a finished run: one, or one for each task and metric of a quality test."""
    result = run.result()
    if result.quality is None:
        return [read_row(run, samples)]
    answers = run.answers(result.quality.passes[0].concurrency)
    return quality_rows(str(run.path), run.manifest(), result, run.engine(), answers)


def read_row(
    run: Run, samples: bool = True, records: Iterable[Record] | None = None
) -> Row:
    """Return the row of a finished run with one result. `samples`: with its single requests, where they were stored.
    `records`: of these, where they are read already."""
    manifest, result = run.manifest(), run.result()
    if result.summary is None and result.offline is None:
        raise StoreError(f"{run.summary_path} has no figures: it is damaged.")
    offline = manifest.trial.offline is not None
    if records is None:
        stored = samples and not offline and run.records_path.exists()
        records = run.records() if stored else ()
    iterations = list(run.iterations()) if offline else ()
    row = row_of(str(run.path), manifest, result, run.engine(), records, iterations)
    known = run.correctness()
    answers = (
        {a.prompt: a for a in known.before if not a.error and not a.replica}
        if known
        else {}
    )
    return msgspec.structs.replace(row, answers=answers)


def row_of(
    file: str,
    manifest: Manifest,
    result: Result,
    engine: EngineFacts | None = None,
    records: Iterable[Record] = (),
    iterations: Sequence[Iteration] = (),
) -> Row:
    """Return the row of a result. Samples come from `records` in a serving benchmark, from `iterations` (warm-ups
    included) in the others; without them there are none."""
    trial, telemetry = manifest.trial, result.telemetry
    settings = {**_load(trial), **_circumstances(manifest, result, engine)}
    if result.offline is not None:
        measured = [i for i in iterations if not i.warmup]
        figures = _of_offline(result.offline, trial, measured)
        samples = _of_iterations(trial, measured)
    else:
        figures = _of_serving(result.served, telemetry)
        samples = _of_records(records, result.served)
    if telemetry is not None and telemetry.power_mean_w is not None:
        figures["power_w"] = Figure(telemetry.power_mean_w, 0)
    return _row(
        trial,
        RunFacts(manifest.place, result, engine),
        file,
        settings,
        figures=figures,
        samples=samples,
        findings=result.findings,
        rig=_rig(manifest),
        prompts_sha256=manifest.workload_sha256,
    )


def quality_rows(
    file: str,
    manifest: Manifest,
    result: Result,
    engine: EngineFacts | None,
    answers: Sequence[ItemAnswer],
) -> list[Row]:
    """Return a row for each score, and one for all tasks. `answers`: from the first pass, which gives the scores."""
    trial, summary = manifest.trial, result.quality
    assert trial.quality is not None and summary is not None
    by_score: dict[tuple[str, str, str], list[ItemAnswer]] = {}
    for answer in answers:
        by_score.setdefault((answer.task, answer.metric, answer.filter), []).append(answer)
    about = {**_circumstances(manifest, result, engine), **_asked(trial.quality, summary)}
    rows = []
    for score in summary.scores:
        metric = RIGHT if score.metric in FORM_METRICS else score.metric
        items = by_score.get((score.task, metric, score.filter), [])
        row = _row(
            trial,
            RunFacts(manifest.place, result, engine),
            file,
            about | _task(score, trial.quality),
            figures=_of_score(score, items),
            samples=Samples(scores={a.item: a.score_by(score.metric) for a in items}),
            answers={
                a.item: GreedyAnswer(a.item, a.answer)
                for a in items
                if a.error is None and a.answer
            },
            findings=result.findings,
            rig=_rig(manifest),
            prompts_sha256=_digest(items) if items else None,
        )
        rows.append(row)
    return with_total(rows)


def _of_score(score: TaskScore, items: Sequence[ItemAnswer]) -> dict[str, Figure]:
    failed = sum(answer.error is not None for answer in items)
    values = {
        "score": score.score,
        "stderr": score.stderr,
        "completed": score.items - failed,
        "failed": failed,
    }
    return {
        name: Figure(float(value), 0) for name, value in values.items() if value is not None
    }


def _digest(items: Sequence[ItemAnswer]) -> str:
    """Return a digest of the prompts, whatever their order."""
    prompts = "".join(sorted(answer.prompt_sha256 for answer in items))
    return sha256(prompts.encode()).hexdigest()


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
    return _row(
        trial,
        run,
        planned.place.id,
        _load(trial),
        figures=figures,
        findings=result.findings,
    )


def row_without(planned: PlannedTrial, file: str, failure: str) -> Row:
    """Return the row of a trial that has no result: the requested settings, and why it failed."""
    trial = planned.trial
    settings = {
        **_load(trial),
        "engine": trial.engine.kind if trial.engine is not None else None,
    }
    return _row(trial, RunFacts(planned.place), file, settings, figures={}, failure=failure)


def _row(
    trial: TrialSpec, run: RunFacts, file: str, settings: Settings, **more: Any
) -> Row:
    place = run.place
    known: dict[str, Setting] = {}
    for name in sorted(settings, key=_order):
        value = settings[name]
        if value is not None:
            known[name] = Setting(value, 0)
    return Row(
        kind=cast("RowKind", trial.kind),  # a trial's kinds are a row's
        tool=_TOOL,
        form="run",
        file=file,
        line=0,
        end=0,
        settings=known,
        label=place.label if place is not None else trial.label or "",
        series=place.engine if place is not None else "",
        run=run,
        **more,
    )


def _order(name: str) -> int:
    """Return a sort key: shared settings come first, in their own order."""
    return SETTINGS.index(name) if name in SETTINGS else len(SETTINGS)


def _load(trial: TrialSpec) -> Settings:
    """Return workload, load and requests as their specs declare them, then what rows call or write otherwise."""
    work, offline = trial.workload, trial.offline
    settings: Settings = {
        **settings_of(trial),
        **settings_of(work),
        **settings_of(trial.client),
    }
    if offline is None:
        settings |= settings_of(trial.load)
        settings |= settings_of(trial.target)
    settings |= dict.fromkeys(_WRITTEN_OTHERWISE)
    settings |= _workload(work)
    if offline is None:
        settings |= _pace(trial.load, work.traits.sessions)
    else:
        settings |= _batches(trial, offline)
    if trial.find is not None:
        settings |= settings_of(trial.find)
    settings |= dict.fromkeys(_ABSENT.get(trial.kind, ()))
    for name, value in (trial.sampling | trial.extra_body).items():
        settings[f"--{name.replace('_', '-')}"] = (
            value if isinstance(value, str | int | float | bool) else str(value)
        )
    return settings


def _workload(work: WorkloadSpec) -> Settings:
    ratios = (work.range_ratio_input, work.range_ratio_output)
    foreign = [
        field for field, datasets in OWN_FIELDS.items() if work.dataset not in datasets
    ]
    settings: Settings = {name_of(fields(WorkloadSpec)[field]): None for field in foreign}
    settings |= {
        "seed": work.seed,
        "num_prompts": None if work.num_sessions else work.num_prompts,
        "--random-range-ratio": f"{ratios[0]:.12g}, {ratios[1]:.12g}"
        if any(ratios)
        else None,
        "--class": "; ".join(
            f"{name}: {described(part)}" for name, part in work.classes.items()
        )
        or None,
    }
    if (
        not work.traits.exact
        and work.input_len == fields(WorkloadSpec)["input_len"].default
    ):
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
        settings["test"] = micro_name(
            trial.workload.input_len, trial.workload.output_len or 0, 0
        )
        settings["depth"] = how.depth or 0
    return settings


def _engine(manifest: Manifest, engine: EngineFacts | None) -> Settings:
    """Return engine settings as reported, else from its files, else as requested."""
    trial, spec = manifest.trial, manifest.trial.engine
    settings: Settings = {**settings_of(spec)} if spec is not None else {}
    settings |= _server(manifest, engine)
    if len(trial.target.urls) > 1:
        settings["replicas"] = len(trial.target.urls)
    settings |= _reported(manifest)
    if spec is None:
        return settings
    origin = engine.models.get(spec.model or "") if engine is not None else None
    if origin:
        # a study's name for a model doesn't say which one it is
        settings["origin"] = origin.describe()
    settings |= dict.fromkeys(("--engine-args", "--engine-env"))
    settings["speculative"] = (
        f"{spec.draft_model or ''} {spec.draft_tokens or ''}".strip() or None
    )
    settings |= _flags(spec.args)
    settings |= spec.env
    return settings


def _server(manifest: Manifest, engine: EngineFacts | None) -> Settings:
    """Return the names of model and engine, and the URL of a server that dyno didn't start."""
    target, spec = manifest.target, manifest.trial.engine
    kind = version = requested = None
    if engine is not None:
        kind, version = engine.kind, engine.version
    if spec is not None:
        requested = spec.kind
    # Of a server that was there before: one that dyno starts gets any free port.
    attached = spec is None or not is_started(spec.kind)
    return {
        "model": _model_name(manifest),
        "engine": kind or target.kind or requested,
        "engine_version": version or target.version,
        "--base-url": (manifest.trial.target.base_url or None) if attached else None,
    }


def _model_name(manifest: Manifest) -> str | None:
    trial, spec = manifest.trial, manifest.trial.engine
    # Two models may be served under one name.
    if spec is not None and spec.model and is_started(spec.kind):
        return spec.model
    requested = spec.model if spec is not None else None
    return trial.target.model or requested or manifest.target.model


def _reported(manifest: Manifest) -> Settings:
    """Return the settings that the server reports, and those that the model's files have."""
    model = manifest.model
    values: Settings = {
        name: getattr(manifest.target, attribute) for name, attribute in _REPORTED.items()
    }
    if model is not None:
        values["quantization"] = values["quantization"] or model.quantization
        values["model_bytes"] = model.weights_bytes
        values["parameters"] = model.parameters
    return {name: value for name, value in values.items() if value is not None}


def _flags(args: Sequence[str]) -> dict[str, Scalar]:
    """Return the flags by name (--swap-space 16 --enforce-eager), and the other arguments together."""
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
    if loose:
        out["args"] = " ".join(loose)
    return out


def _circumstances(
    manifest: Manifest, result: Result, engine: EngineFacts | None
) -> Settings:
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
    # else the server runs elsewhere
    return manifest.rig if not url or Url(url).local else None


def _machine(rig: Rig | None, result: Result, place: Place | None) -> Settings:
    used = _accelerators(rig, result.telemetry) if rig is not None else []
    paid = None
    if place is not None and place.price:
        # The number of accelerators of a remote machine is unknown.
        count, all_ = (
            (len(used), len(rig.accelerators)) if rig is not None else (None, None)
        )
        paid = hour(place.price, count, all_)
    return {
        "accelerator": ", ".join(dict.fromkeys(a.name for a in used)) or None,
        "accelerators": len(used) or None,
        "price_per_hour": paid[0] if paid is not None else None,
    }


def _accelerators(rig: Rig, telemetry: TelemetrySummary | None) -> list[Accelerator]:
    """Return the accelerators that the engine used: as sampled, else as planned, else all of them."""
    if telemetry is not None:
        sampled = {a.index for a in telemetry.accelerators if a.engine}
        if sampled:
            return [a for a in rig.accelerators if a.index in sampled]
    return [a for a in rig.accelerators if a.engine] or rig.accelerators


def _of_serving(s: Summary, telemetry: TelemetrySummary | None) -> dict[str, Figure]:
    values = {
        name: s.figure(m) for name, m in METRICS.items() if m.field and name not in s.absent
    }
    if telemetry is not None:
        values |= {
            "acceptance_rate": telemetry.acceptance,
            "acceptance_length": telemetry.accepted_length,
        }
    values["queue_share"] = queue_share(s, telemetry)
    if s.reuse is not None:
        values["reported_reuse"] = reported_share(s, telemetry)
    figures = _figures(values)
    for stem, latency in s.figures.items():
        own = stem == "tpot" and s.own_tpot is not None
        figures |= _distribution(
            stem, latency, OWN_TPOT if own else definition(_TOOL, stem)
        )
    return figures


def _figures(values: Mapping[str, float | None]) -> dict[str, Figure]:
    """Return those that are known, in the order of the list."""
    return {
        name: Figure(float(value), 0)
        for name in METRICS
        if (value := values.get(name)) is not None
    }


def _of_offline(
    s: OfflineSummary, trial: TrialSpec, measured: Sequence[Iteration]
) -> dict[str, Figure]:
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
        values |= {
            "acceptance_rate": s.speculation.acceptance,
            "acceptance_length": s.speculation.tokens_per_step,
        }
    figures = _figures(values)
    if s.kind == "micro":
        # llama-bench's own figure where it ran, dyno's (with the choice of a token) where it didn't.
        tool = "llama-bench" if any(i.reported for i in measured) else _TOOL
        speeds = _speeds(trial, measured)
        if s.speed is not None:
            deviation = stdev(speeds) if len(speeds) > 1 else None
            figures["speed"] = Figure(
                s.speed, 0, definition=definition(tool, "speed"), deviation=deviation
            )
        return figures
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        figures[name] = _spread(
            getattr(s, name), definition("offline", "throughput") if name[0] == "t" else ""
        )
    if s.tpot_ms is not None:
        figures["mean_tpot_ms"] = _spread(s.tpot_ms)
    if s.kind == "latency":
        figures |= _distribution("latency", s.latency, definition("offline", "latency"))
    return figures


def _distribution(stem: str, d: Distribution | Latency, meaning: str) -> dict[str, Figure]:
    if d.empty:
        return {}
    values = {"mean": d.mean, "median": d.median, "std": d.std}
    values |= {f"p{p}": value for p, value in d.percentiles.items()}
    return {
        f"{name}_{stem}_ms": Figure(v, 0, definition=meaning)
        for name, v in values.items()
        if v is not None
    }


def _spread(s: Spread, meaning: str = "") -> Figure:
    return Figure(s.mean, 0, definition=meaning, deviation=s.std if s.count > 1 else None)


def _of_records(records: Iterable[Record], s: Summary) -> Samples | None:
    """Return the samples, without those of a latency that a busy client knows in part: it has seen the quick ones."""
    rows = sorted(records, key=lambda r: r.sent_ns)
    if not rows:
        return None
    known = [
        stem
        for stem, latency in s.figures.items()
        if stem in _BY_REQUEST and not latency.bounds
    ]
    times_ms = {stem: _each_ms(rows, _BY_REQUEST[stem]) for stem in known}
    times_ms["itl"] = [] if s.itl.bounds else _gaps_ms(rows)
    return Samples(
        input_lens=[_input_tokens(r) for r in rows],
        output_lens=[_output_tokens(r) for r in rows],
        times_ms=times_ms,
        starts_s=[seconds(r.sent_ns) for r in rows],
        errors=[r.error or "" for r in rows],
    )


def _input_tokens(record: Record) -> int:
    return (
        record.prompt_tokens
        if record.prompt_tokens is not None
        else record.prompt_tokens_planned
    )


def _output_tokens(record: Record) -> int:
    return (record.output_tokens or 0) if record.error is None else 0


def _each_ms(
    rows: Sequence[Record], latency: Callable[[Record], Span | None]
) -> list[float]:
    """Return the latency of each request; NaN: it failed, or its latency is unknown."""
    spans = [latency(r) if r.error is None else None for r in rows]
    return [math.nan if span is None else span.middle / NS_PER_MS for span in spans]


def _gaps_ms(rows: Sequence[Record]) -> list[float]:
    """Return the times between the tokens of completed requests."""
    streams = [timing.likely_ns(r) for r in rows if r.error is None and r.chunk_ns]
    if not streams:
        return []
    between = np.cumsum([*map(len, streams)])[:-1] - 1  # the end of one and the next
    gaps = np.diff(np.array([*chain.from_iterable(streams)])) / NS_PER_MS
    inside: list[float] = np.delete(gaps, between).tolist()
    return inside


def _of_iterations(trial: TrialSpec, measured: Sequence[Iteration]) -> Samples | None:
    if not measured:
        return None
    return Samples(
        times_ms={"latency": times_ms(trial, measured)}, speeds=_speeds(trial, measured)
    )


def _speeds(trial: TrialSpec, measured: Sequence[Iteration]) -> list[float]:
    """Return the tokens/s of each test of a micro benchmark, else the output tokens/s of each iteration."""
    if trial.kind == "micro":
        tests = [
            t
            for i in measured
            for a in i.answers
            if (t := micro_sample(trial, a)) is not None
        ]
        return [count * NS_PER_S / took for count, took in tests]
    speeds = []
    for iteration in measured:
        count = sum(
            answer.output_tokens for answer in iteration.answers if answer.error is None
        )
        took = iteration.end_ns - iteration.start_ns
        if took > 0:
            speeds.append(count * NS_PER_S / took)
    return speeds
