"""Times of earlier runs, fetches and installations on this machine, by which a dry run estimates the next ones."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno.engines import environment
from dyno.errors import DynoError
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Rig
from dyno.facts.trial import TrialSpec
from dyno.models import library as models
from dyno.store import shelf
from dyno.store.run import Run
from dyno.study.duration import EnginePace, output_tokens, trial_s

_MOST_RUNS = 300  # the newest; reading more would take seconds
# of a fetch whose speed counts: a smaller one is mostly questions and checks
_LEAST_BYTES = 100_000_000


class EarlierRun(NamedTuple):
    machine: frozenset[str]  # names of its accelerators, or of its processor
    trial: TrialSpec
    duration_s: float  # of the load
    request_s: float | None  # mean, from sending to the last token
    output_tokens: float | None  # of a request, mean
    ready_s: float | None  # the engine's start
    start: str  # which start of an engine it was


def read(runs: Path) -> list[EarlierRun]:
    """Return the newest whole runs below a folder."""
    here = shelf.look_around(runs)
    folders = [
        *here.runs,
        *(trial for study in here.studies for trial in shelf.trial_folders(study)),
    ]
    dated = sorted(
        (p for p in folders if (p / "summary.json").exists()),
        key=lambda p: p.stat().st_mtime,
    )
    return [run for path in dated[-_MOST_RUNS:] if (run := _read_run(Run(path)))]


def _read_run(run: Run) -> EarlierRun | None:
    try:
        manifest, result, engine = run.manifest(), run.result(), run.engine()
    except DynoError:
        return None
    if manifest.trial.engine is None or result.find:
        return None
    summary = result.summary
    done = summary.completed if summary else 0
    mean_ms = summary.e2el.mean if summary else None
    return EarlierRun(
        machine=machine_names(manifest.rig),
        trial=manifest.trial,
        duration_s=result.duration_s,
        request_s=mean_ms / 1000 if mean_ms else None,
        output_tokens=summary.total_output_tokens / done if summary and done else None,
        ready_s=engine.ready_s if engine else None,
        start=engine.start if engine else "",
    )


def machine_names(rig: Rig) -> frozenset[str]:
    return frozenset(a.name for a in rig.accelerators) or frozenset({rig.cpu})


def alike(
    runs: Sequence[EarlierRun], spec: EngineSpec, machine: frozenset[str]
) -> list[EarlierRun]:
    """Return the runs of the same kind of engine with the same model, over as many accelerators of the same name."""
    wanted = _identity(spec)
    return [
        run
        for run in runs
        if run.trial.engine
        and _identity(run.trial.engine) == wanted
        and _same_machine(run.machine, machine)
    ]


def _identity(spec: EngineSpec) -> bytes:
    recipe = spec.weights.get(spec.model or "")
    return msgspec.json.encode(
        [spec.kind, recipe or spec.model, spec.quantization, spec.world, spec.replicas]
    )


def _same_machine(one: frozenset[str], other: frozenset[str]) -> bool:
    """MI300X, as a study describes it, is a part of 'AMD Instinct MI300X'."""
    return any(a.lower() in b.lower() or b.lower() in a.lower() for a in one for b in other)


def start_s(runs: Sequence[EarlierRun]) -> float | None:
    """Return the mean time of their starts, each once."""
    starts = {run.start: run.ready_s for run in runs if run.ready_s is not None}
    return sum(starts.values()) / len(starts) if starts else None


def same_trial(runs: Sequence[EarlierRun], trial: TrialSpec) -> float | None:
    """Return how long the same load took the last time, with whatever prompts."""
    wanted = _load(trial)
    return next(
        (run.duration_s for run in reversed(runs) if _load(run.trial) == wanted), None
    )


def _load(trial: TrialSpec) -> bytes:
    work = msgspec.structs.replace(trial.workload, seed=0)
    load = msgspec.structs.replace(trial.load, seed=0)
    other = trial.offline or trial.quality or trial.find
    return msgspec.json.encode([trial.kind, work, load, other, trial.ignore_eos])


def pace(
    runs: Sequence[EarlierRun], trial: TrialSpec, assumed: EnginePace
) -> EnginePace | None:
    """Return the pace by the run whose load is nearest. None: none of them shows it."""
    offline = trial.offline is not None
    near = [run for run in runs if (run.trial.offline is not None) == offline]
    factors = {
        _distance(run.trial, trial): factor
        for run in near
        if (factor := _factor(run, assumed))
    }
    return assumed.scaled(factors[min(factors)]) if factors else None


def _distance(one: TrialSpec, other: TrialSpec) -> tuple[float, float]:
    return (
        abs(math.log((one.load.max_concurrency or 1) / (other.load.max_concurrency or 1))),
        abs(math.log(max(one.workload.input_len, 1) / max(other.workload.input_len, 1))),
    )


def _factor(run: EarlierRun, assumed: EnginePace) -> float | None:
    """Return by how much the run was slower than assumed. A load at a rate lasts as long as it lasts: its answers
    count."""
    load = run.trial.load
    if (
        run.trial.offline
        or run.trial.quality
        or (load.max_concurrency and not _paced(run.trial))
    ):
        expected = trial_s(run.trial, assumed)
        return run.duration_s / expected if expected else None
    if run.request_s is None or not run.output_tokens:
        return None
    tokens = output_tokens(run.trial)
    each = run.request_s * tokens / run.output_tokens
    return each / assumed.answer_s(tokens, 1) if tokens else None


def _paced(trial: TrialSpec) -> bool:
    load = trial.load
    return bool(
        load.request_rate_rps
        or load.duration_s
        or load.rates
        or load.arrivals
        or load.ramp_end_rps
    )


# ---- what was fetched, made and installed ----


def fetched_bytes_s() -> float | None:
    """Return the bytes a second of earlier fetches from the Hub. None: nothing was fetched by dyno yet."""
    pulls = [
        e
        for e in models.entries()
        if e.step == "pull" and e.origin.startswith("hub:") and e.took_s > 0
    ]
    large = [e for e in pulls if e.size_bytes >= _LEAST_BYTES]
    return (
        sum(e.size_bytes for e in large) / sum(e.took_s for e in large) if large else None
    )


def made_bytes_s(step: str, tool: str | None) -> float | None:
    """Return the bytes a second of models that were converted or quantized by this tool."""
    models_made = [
        e for e in models.entries() if e.step == step and e.took_s > 0 and _tool(e) == tool
    ]
    took_s = sum(e.took_s for e in models_made)
    return sum(e.size_bytes for e in models_made) / took_s if took_s else None


def _tool(entry: models.ModelEntry) -> str | None:
    return entry.recipe.quantize.partition(":")[0] if entry.recipe.quantize else None


def install_s(kind: str) -> float | None:
    """Return how long its last installation took. None: there is none, or an older dyno installed it."""
    dated = sorted(environment.installed(kind), key=lambda env: env.created)
    return next((env.took_s for env in reversed(dated) if env.took_s), None)
