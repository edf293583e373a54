"""Results of inference-perf, per stage and in total: seconds."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from dyno.results.draft import Draft
from dyno.results.json_text import Value

_LATENCIES: Final = {
    "successes.latency.request_latency": "e2el",
    "successes.latency.time_to_first_token": "ttft",
    "successes.latency.time_per_output_token": "tpot",
    "successes.latency.inter_token_latency": "itl",
    "successes.latency.normalized_time_per_output_token": "ntpot",
}
_FIGURES: Final = {
    "successes.count": "completed", "failures.count": "failed", "benchmark_time_seconds": "duration_s",
    "successes.prompt_tokens.total": "total_input_tokens", "successes.prompt_tokens.cached": "cached_input_tokens",
    "successes.output_tokens.total": "total_output_tokens", "load_summary.achieved_rate": "sent_rate",
    "successes.throughput.requests_per_sec": "request_throughput",
    "successes.throughput.input_tokens_per_sec": "input_throughput",
    "successes.throughput.output_tokens_per_sec": "output_throughput",
    "successes.throughput.total_tokens_per_sec": "total_token_throughput",
}  # fmt: skip
_SETTINGS: Final = {
    "load_summary.requested_rate": "rate",
    "load_summary.concurrency": "concurrency",
}


def is_stage(value: Value) -> bool:
    """Its *_prometheus_metrics.json are the server's own, and look alike but for `latency`."""
    successes = value.get("successes")
    return successes is not None and successes.has("count", "latency")


def is_stages(value: Value) -> bool:
    """Return whether it has several stages: some collect the stages of a run in one object."""
    return any(is_stage(field) for field in value.fields.values() if field.is_object)


def stages(value: Value, file: str) -> Iterator[Draft]:
    named = {PurePath(file).stem: value} if is_stage(value) else value.fields
    for name, stage in named.items():
        if not is_stage(stage):
            continue
        draft = Draft("serve", "inference-perf", file, stage)
        draft.label = name
        draft.read_figures(stage, _FIGURES)
        for statistic in ("mean", "median", "p99", "max"):
            draft.latency(
                statistic,
                "queue",
                stage.find(f"load_summary.schedule_delay.{statistic}"),
                1e3,
            )
        draft.read_spreads(stage, _LATENCIES, 1e3)
        draft.read_settings(stage, _SETTINGS)
        yield draft
