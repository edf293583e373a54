"""What AIPerf writes, and GenAI-Perf before it: a block for each metric, in the unit that it names; and its records."""

from pathlib import PurePath
from typing import Any, Final

import msgspec

from dyno.facts.imported import Figure, Row, Samples, Unread
from dyno.results.columns import TO_MS
from dyno.results.draft import Draft, errors
from dyno.results.value import Value

Read = tuple[list[Row], list[Unread]]

# inter_chunk_latency is the gaps between chunks, pooled: vLLM's ITL by another name, and not this tool's.
_LATENCIES: Final = {"time_to_first_token": "ttft", "inter_token_latency": "itl", "request_latency": "e2el"}
_FIGURES: Final = {
    "request_throughput": "request_throughput", "goodput": "request_goodput", "request_goodput": "request_goodput",
    "output_token_throughput": "output_throughput", "total_token_throughput": "total_token_throughput",
    "input_token_throughput": "input_throughput", "request_count": "completed", "error_request_count": "failed",
    "total_isl": "total_input_tokens", "total_osl": "total_output_tokens", "total_output_tokens": "total_output_tokens",
    "effective_concurrency": "concurrency_mean",
}  # fmt: skip
_MODELS: Final[tuple[tuple[str, ...], ...]] = (
    ("models", "items"), ("endpoint", "model_names"), ("model_names",), ("model",),
)  # fmt: skip
_STATISTICS: Final = {"avg": "mean", "std": "std", "min": "min", "max": "max"}
_PATHS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "concurrency": (("loadgen", "concurrency"), ("concurrency",), ("perf_analyzer", "stimulus", "concurrency")),
    "rate": (("loadgen", "request_rate"), ("request_rate",), ("perf_analyzer", "stimulus", "request_rate")),
    "num_prompts": (("loadgen", "request_count"), ("request_count",)),
    "endpoint": (("endpoint", "type"), ("endpoint_type",)),
    "backend": (("backend",), ("endpoint", "backend")),
    "tokenizer": (("tokenizer", "name"), ("tokenizer",)),
    "seed": (("input", "random_seed"), ("random_seed",)),
    "input_len": (("input", "prompt", "input_tokens", "mean"), ("synthetic_input_tokens_mean",)),
    "output_len": (("input", "prompt", "output_tokens", "mean"), ("output_tokens_mean",)),
}


def is_profile(value: Value) -> bool:
    return any((block := value.get(key)) is not None and block.has("unit", "avg") for key in _LATENCIES)


def is_record(value: Value) -> bool:
    return value.has("metadata", "metrics") and (value.get("metadata", "request_start_ns") is not None)


def profiles(values: list[Value], file: str) -> Read:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        draft = Draft("serve", "aiperf", file, value)
        label = value.get("run_info", "run_label")
        draft.label = (label.text if label else None) or PurePath(file).stem
        _figures(draft, value)
        _settings(draft, value)
        rows.append(draft.row())
        unread += draft.unread
    return rows, unread


def _figures(draft: Draft, value: Value) -> None:
    for key, stem in _LATENCIES.items():
        block = value.get(key)
        unit = block.get("unit") if block else None
        scale = TO_MS.get((unit.text or "").lower()) if unit else None
        if block is None:
            continue
        if scale is None:
            draft.unread.append(Unread(block.line, f"{key} is in a unit that isn't a time's", "lines"))
            continue
        for field, found in block.fields.items():
            if field in _STATISTICS:
                draft.latency(_STATISTICS[field], stem, found, scale)
            elif field[:1] == "p" and field[1:].isdigit():
                draft.latency(field, stem, found, scale)
        draft.latency("median", stem, block.get("p50"), scale)
    for key, name in _FIGURES.items():
        draft.figure(name, value.get(key, "avg"))
    duration, unit = value.get("benchmark_duration", "avg"), value.get("benchmark_duration", "unit")
    scale = TO_MS.get((unit.text or "").lower()) if unit else None
    if scale is not None:
        draft.figure("duration_s", duration, scale / 1e3)


def _settings(draft: Draft, value: Value) -> None:
    draft.setting("tool_version", value.get("aiperf_version"))
    draft.setting("date", value.get("start_time"))
    draft.setting("was_cancelled", value.get("was_cancelled"))
    config = value.get("input_config")
    if config is None:
        return
    for path in _MODELS:
        named = config.get(*path)
        first = next(named.items(), named) if named is not None else None
        if first is not None:
            draft.setting("model", first.get("name") or first)
    phases = config.get("phases")
    for phase in phases.items() if phases else ():
        kind = phase.get("kind")
        if kind is None or kind.text in ("profiling", None):
            draft.setting("concurrency", phase.get("concurrency"))
            draft.setting("rate", phase.get("rate") or phase.get("request_rate"))
            draft.setting("num_prompts", phase.get("requests"))
    sets = config.get("datasets")
    for first in sets.items() if sets else ():
        draft.setting("dataset", first.get("type"))
        draft.setting("input_len", first.get("prompts", "isl", "mean"))
        draft.setting("output_len", first.get("prompts", "osl", "mean"))
        break
    for name, paths in _PATHS.items():
        for path in paths:
            found = config.get(*path)
            if found is not None and found.number != 0:  # 0 requests: as many as the time allows
                draft.setting(name, found)


class _Metric(msgspec.Struct):
    value: float | int | list[float] | None = None
    unit: str = ""


class _Metrics(msgspec.Struct):
    input_sequence_length: _Metric | None = None
    output_sequence_length: _Metric | None = None
    time_to_first_token: _Metric | None = None
    request_latency: _Metric | None = None
    inter_chunk_latency: _Metric | None = None


class _About(msgspec.Struct):
    request_start_ns: int
    benchmark_phase: str | None = None


class _Record(msgspec.Struct):
    metadata: _About
    metrics: _Metrics
    error: Any = None


def records(values: list[Value], file: str) -> Read:
    """All requests of the measured phase are one row's samples; their counts are its figures."""
    draft = Draft("serve", "aiperf", file, values[0])
    draft.label = PurePath(file).stem
    kept: list[_Record] = []
    for value in values:
        record = value.decoded(_Record)
        if record is None:
            draft.unread.append(Unread(value.line, "a record that isn't as AIPerf writes them", "lines"))
        elif record.metadata.benchmark_phase in (None, "profiling"):
            kept.append(record)
    good = [r for r in kept if r.error is None]
    samples = Samples(
        input_lens=[int(n) for n in _numbers([r.metrics.input_sequence_length for r in good])],
        output_lens=[int(n) for n in _numbers([r.metrics.output_sequence_length for r in good])],
        ttfts_ms=_times([r.metrics.time_to_first_token for r in good]),
        e2els_ms=_times([r.metrics.request_latency for r in good]),
        itls_ms=[s for r in good for s in _gaps(r.metrics.inter_chunk_latency)],
        starts_s=[r.metadata.request_start_ns / 1e9 for r in good],
        errors=[""] * len(good) + errors(_said(r.error) for r in kept if r.error is not None),
    )
    draft.figures["completed"] = Figure(float(len(good)), values[0].line)
    draft.figures["failed"] = Figure(float(len(kept) - len(good)), values[0].line)
    row = draft.row(samples)
    return [msgspec.structs.replace(row, end=values[-1].end)] if kept else [], draft.unread


def _numbers(metrics: list[_Metric | None]) -> list[float]:
    """All, or none: a list with holes no longer lies beside the others."""
    found = [m.value for m in metrics if m is not None and isinstance(m.value, int | float)]
    return [float(x) for x in found] if len(found) == len(metrics) else []


def _times(metrics: list[_Metric | None]) -> list[float]:
    scales = [TO_MS.get(m.unit.lower()) if m else None for m in metrics]
    values = _numbers(metrics)
    return [v * s for v, s in zip(values, scales, strict=False) if s is not None] if None not in scales else []


def _gaps(metric: _Metric | None) -> list[float]:
    scale = TO_MS.get(metric.unit.lower()) if metric else None
    if metric is None or scale is None or not isinstance(metric.value, list):
        return []
    return [scale * v for v in metric.value]


def _said(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return f"{error.get('type') or error.get('code') or 'error'}: {error.get('message') or ''}"
