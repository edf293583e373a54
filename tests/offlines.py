"""Hand-made offline outcomes: known iterations, and the summary that goes with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.engine import EngineFacts, EngineSpec
from dyno.facts.finding import Finding, verdict
from dyno.facts.load import LoadSpec
from dyno.facts.model import ModelShape
from dyno.facts.offline import Answer, Iteration, OfflineSpec, OfflineSummary
from dyno.facts.rig import Peaks, Rig, Roofline, Share
from dyno.facts.spread import Spread
from dyno.facts.summary import Result
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.measure.statistics import distribution_ms
from dyno.store.run import Manifest, Run
from dyno.trial.online import Outcome
from dyno.workload.spec import WorkloadSpec

PERCENTILES = [10.0, 25.0, 50.0, 75.0, 90.0, 99.0]
MODEL = ModelShape(
    "tiny.gguf",
    "gguf",
    "llama",
    quantization="F16",
    weights_bytes=10494976,
    parameters=5245184,
    context=512,
)
RIG = Rig("Debian", "6.1", "aarch64", "CPU", 2)
STARTED = "2026-11-15T01:26:32.250+00:00"


def manifest(trial: TrialSpec, **more: Any) -> Manifest:
    fields: dict[str, Any] = {
        "dyno": "0.1.0",
        "started": STARTED,
        "trial": trial,
        "target": TargetFacts("tiny.gguf"),
        "tokenizer": None,
        "counted_by": "tokenizer",
        "workload_sha256": "0",
        "prompts": 1,
        "repeated_prompts": 0,
        "sent_before": None,
        "rig": RIG,
        "model": MODEL,
    }
    return Manifest(**{**fields, **more})


def trial(
    kind: str, engine: EngineSpec | None = None, num_warmups: int = 0, **how: Any
) -> TrialSpec:
    return TrialSpec(
        TargetSpec("", "openai", "", model="M"),
        WorkloadSpec("random", num_prompts=how.get("batch_size") or 10, input_len=32, output_len=128,
                     num_warmups=num_warmups),
        LoadSpec(),
        percentiles=PERCENTILES,
        kind=kind,
        offline=OfflineSpec(kind, **how),  # type: ignore[arg-type]
        engine=engine or EngineSpec("vllm", model="M"),
    )  # fmt: skip


def iterations(
    latencies_ns: Sequence[int], warmups_ns: Sequence[int] = (), requests: int = 8
) -> list[Iteration]:
    out, at = [], 1_000
    for i, took in enumerate([*warmups_ns, *latencies_ns]):
        out.append(
            Iteration(
                i,
                at,
                at + took,
                [Answer(32, 128, 128)] * requests,
                warmup=i < len(warmups_ns),
            )
        )
        at += took + 5
    return out


def summary(kind: str, measured: Sequence[Iteration], **more: Any) -> OfflineSummary:
    took = [i.end_ns - i.start_ns for i in measured]
    count, requests = len(took), len(measured[0].answers)
    rates = [requests * 1e9 / t for t in took]

    def spread(factor: float) -> Spread:
        mean = sum(rates) / count
        deviation = (
            (sum((r - mean) ** 2 for r in rates) / (count - 1)) ** 0.5 if count > 1 else 0.0
        )
        return Spread(count, mean * factor, deviation * factor)

    fields: dict[str, Any] = {
        "kind": kind,
        "iterations": count,
        "requests": requests,
        "duration_s": sum(took) / 1e9,
        "completed": count * requests,
        "failed": 0,
        "failure_example": None,
        "input_tokens": 32 * count * requests,
        "cached_input_tokens": 0,
        "output_tokens": 128 * count * requests,
        "wanted_output_tokens": 128 * count * requests,
        "latency": distribution_ms(took, PERCENTILES),
        "first_latency_ms": took[0] / 1e6,
        "request_throughput": spread(1),
        "output_throughput": spread(128),
        "total_token_throughput": spread(160),
    }
    return OfflineSummary(**{**fields, **more})


def outcome(
    path: Path, the_trial: TrialSpec, its: list[Iteration], result: Result | None = None
) -> Outcome:
    path.mkdir(parents=True, exist_ok=True)
    if result is None:
        measured = [i for i in its if not i.warmup]
        result = Result(None, [], "sound", offline=summary(the_trial.kind, measured))
    return Outcome(Run(path), manifest(the_trial), result, its)


# ---- a micro benchmark's ----


def micro_trial(
    prompt: int, generated: int, depth: int = 0, engine: EngineSpec | None = None
) -> TrialSpec:
    return TrialSpec(
        TargetSpec("", "openai", "", model=None),
        WorkloadSpec("random", num_prompts=1, input_len=prompt, output_len=generated),
        LoadSpec(),
        kind="micro",
        offline=OfflineSpec("micro", iterations=3, warmup_iterations=1, depth=depth),
        engine=engine or EngineSpec("llamacpp", model="tiny.gguf", args=["--threads", "2"]),
    )


def micro_iterations(the_trial: TrialSpec, samples_ns: Sequence[int]) -> list[Iteration]:
    """Each took exactly so long; a slow one to warm up, which counts for nothing."""
    prompt, generated = the_trial.workload.input_len, the_trial.workload.output_len or 0
    assert the_trial.offline is not None
    depth = the_trial.offline.depth or 0
    out = []
    for i, took in enumerate([10 * samples_ns[0], *samples_ns]):
        start, first = (
            50,
            50 + (took if not generated else 7_000 if not prompt else took // 2),
        )
        end = first + took if not prompt else 50 + took if generated else first
        answer = Answer(
            depth + prompt,
            generated,
            generated,
            depth,
            start,
            first,
            end,
            decoded_tokens=generated,
        )
        out.append(Iteration(i, 0, end, [answer], warmup=i == 0))
    return out


def micro_result(
    shares: list[Share] | None = None, findings: list[Finding] | None = None
) -> Result:
    peaks = Peaks("Neoverse-N1, 2 cores", 1, 20e9, {"fp16": 1e11}, "a test", measured=True)
    roofline = Roofline(peaks, "fp16", 1e7, 100.0, 5e6, shares) if shares else None
    return Result(None, findings or [], verdict(findings or []), roofline=roofline)


def micro_outcome(path: Path, the_trial: TrialSpec, samples_ns: Sequence[int]) -> Outcome:
    return Outcome(
        Run(path),
        manifest(the_trial),
        micro_result(),
        micro_iterations(the_trial, samples_ns),
        interrupted=False,
    )


def engine_facts(version: str | None, kind: str = "llamacpp") -> EngineFacts:
    return EngineFacts(kind, version, [])


def changed(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)
