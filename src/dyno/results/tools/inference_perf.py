"""What inference-perf writes of each stage and of all: seconds."""

from pathlib import PurePath
from typing import Final

from dyno.facts.imported import Row, Unread
from dyno.results.draft import Draft
from dyno.results.value import Value

_LATENCIES: Final = {
    "request_latency": "e2el", "time_to_first_token": "ttft", "time_per_output_token": "tpot",
    "inter_token_latency": "itl", "normalized_time_per_output_token": "ntpot",
}  # fmt: skip
_THROUGHPUT: Final = {
    "requests_per_sec": "request_throughput", "input_tokens_per_sec": "input_throughput",
    "output_tokens_per_sec": "output_throughput", "total_tokens_per_sec": "total_token_throughput",
}  # fmt: skip


def is_stage(value: Value) -> bool:
    """Its *_prometheus_metrics.json are the server's own, and look alike but for `latency`."""
    successes = value.get("successes")
    return successes is not None and successes.has("count", "latency")


def is_stages(value: Value) -> bool:
    """Some collect the stages of a run in one object."""
    return any(is_stage(field) for field in value.fields.values() if field.is_object)


def stages(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        named = {PurePath(file).stem: value} if is_stage(value) else value.fields
        for name, stage in named.items():
            if not is_stage(stage):
                continue
            draft = Draft("serve", "inference-perf", file, stage)
            draft.label = name
            _figures(draft, stage)
            draft.setting("rate", stage.get("load_summary", "requested_rate"))
            draft.setting("concurrency", stage.get("load_summary", "concurrency"))
            rows.append(draft.row())
            unread += draft.unread
    return rows, unread


def _figures(draft: Draft, stage: Value) -> None:
    successes = stage.get("successes")
    if successes is None:
        return
    draft.figure("completed", successes.get("count"))
    draft.figure("failed", stage.get("failures", "count"))
    draft.figure("duration_s", stage.get("benchmark_time_seconds"))
    draft.figure("total_input_tokens", successes.get("prompt_tokens", "total"))
    draft.figure("cached_input_tokens", successes.get("prompt_tokens", "cached"))
    draft.figure("total_output_tokens", successes.get("output_tokens", "total"))
    draft.figure("sent_rate", stage.get("load_summary", "achieved_rate"))
    late = stage.get("load_summary", "schedule_delay")
    for field in ("mean", "median", "p99", "max"):
        draft.latency(field, "queue", late.get(field) if late else None, 1e3)
    for key, name in _THROUGHPUT.items():
        draft.figure(name, successes.get("throughput", key))
    for key, stem in _LATENCIES.items():
        spread = successes.get("latency", key)
        for field, found in spread.fields.items() if spread else ():
            if field in ("mean", "median", "min", "max", "std") or field[:1] == "p":
                draft.latency(field, stem, found, 1e3)
