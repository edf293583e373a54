"""The result file of an offline benchmark: vLLM's keys, in seconds as there, and everything else under `dyno`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import dyno
from dyno.facts.engine import EngineFacts
from dyno.facts.offline import Iteration
from dyno.facts.summary import Result
from dyno.store.run import Manifest
from dyno.units import seconds


def build(
    result: Result, manifest: Manifest, iterations: Sequence[Iteration], run: Path, engine: EngineFacts | None
) -> dict[str, Any]:
    s, trial = result.offline, manifest.trial
    assert s is not None
    measured = [i.end_ns - i.start_ns for i in iterations if not i.warmup]
    out: dict[str, Any] = {"model_id": trial.target.model or manifest.target.model}
    if s.kind == "latency":
        out |= {
            "avg_latency": s.latency.mean / 1e3,
            "latencies": [seconds(ns) for ns in measured],
            "percentiles": {p: ms / 1e3 for p, ms in s.latency.percentiles.items()},
        }
    else:
        # Of an iteration, mean over them: vLLM knows but one.
        count = max(s.iterations, 1)
        out |= {
            "elapsed_time": s.duration_s / count,
            "num_requests": s.requests,
            "total_num_tokens": round((s.input_tokens + s.output_tokens) / count),
            "requests_per_second": s.request_throughput.mean,
            "tokens_per_second": s.total_token_throughput.mean,
        }
    out["dyno"] = {
        "version": dyno.__version__,
        "verdict": result.verdict,
        "findings": msgspec.to_builtins(result.findings),
        "summary": msgspec.to_builtins(s),
        "roofline": msgspec.to_builtins(result.roofline),
        "telemetry": msgspec.to_builtins(result.telemetry),
        "trial": msgspec.to_builtins(trial),
        "target": msgspec.to_builtins(manifest.target),
        "engine": msgspec.to_builtins(engine),
        "model": msgspec.to_builtins(manifest.model),
        "rig": msgspec.to_builtins(manifest.rig),
        "workload_sha256": manifest.workload_sha256,
        "started": manifest.started,
        "run": str(run),
    }
    if s.kind == "latency":
        out["dyno"]["warmup_latencies"] = [seconds(i.end_ns - i.start_ns) for i in iterations if i.warmup]
    return out
