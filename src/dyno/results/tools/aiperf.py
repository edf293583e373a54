"""AIPerf's and GenAI-Perf's files: one block per metric with its unit, and single records."""

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, Final

import msgspec

from dyno.facts.imported import Figure, Samples, Unread
from dyno.results.columns import TO_MS
from dyno.results.draft import Draft, complete, errors
from dyno.results.json_text import Value

# inter_chunk_latency is the gaps between chunks, pooled: vLLM's ITL by another name, and not this tool's.
_LATENCIES: Final = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "itl",
    "request_latency": "e2el",
}
_FIGURES: Final = {
    "request_throughput.avg": "request_throughput", "goodput.avg": "request_goodput",
    "request_goodput.avg": "request_goodput", "output_token_throughput.avg": "output_throughput",
    "total_token_throughput.avg": "total_token_throughput", "input_token_throughput.avg": "input_throughput",
    "request_count.avg": "completed", "error_request_count.avg": "failed", "total_isl.avg": "total_input_tokens",
    "total_osl.avg": "total_output_tokens", "total_output_tokens.avg": "total_output_tokens",
    "effective_concurrency.avg": "concurrency_mean",
}  # fmt: skip
_READ: Final = {
    *_LATENCIES,
    *(path.partition(".")[0] for path in _FIGURES),
    "benchmark_duration",
}
_SETTINGS: Final = {
    "aiperf_version": "tool_version",
    "start_time": "date",
    "was_cancelled": "was_cancelled",
}
_MODELS: Final = ("models.items", "endpoint.model_names", "model_names", "model")
_PHASE: Final = {
    "concurrency": "concurrency",
    "rate": "rate",
    "request_rate": "rate",
    "requests": "num_prompts",
}
_DATA: Final = {
    "type": "dataset",
    "prompts.isl.mean": "input_len",
    "prompts.osl.mean": "output_len",
}
_CONFIG: Final = {
    "loadgen.concurrency": "concurrency", "concurrency": "concurrency",
    "perf_analyzer.stimulus.concurrency": "concurrency", "loadgen.request_rate": "rate", "request_rate": "rate",
    "perf_analyzer.stimulus.request_rate": "rate", "loadgen.request_count": "num_prompts",
    "request_count": "num_prompts", "endpoint.type": "endpoint", "endpoint_type": "endpoint", "backend": "backend",
    "endpoint.backend": "backend", "tokenizer.name": "tokenizer", "tokenizer": "tokenizer",
    "input.random_seed": "seed", "random_seed": "seed", "input.prompt.input_tokens.mean": "input_len",
    "synthetic_input_tokens_mean": "input_len", "input.prompt.output_tokens.mean": "output_len",
    "output_tokens_mean": "output_len",
}  # fmt: skip


def is_profile(value: Value) -> bool:
    return any(
        (block := value.get(key)) is not None and block.has("unit", "avg")
        for key in _LATENCIES
    )


def is_record(value: Value) -> bool:
    return (
        value.has("metadata", "metrics")
        and value.find("metadata.request_start_ns") is not None
    )


def profile(value: Value, file: str) -> Iterator[Draft]:
    draft = Draft("serve", "aiperf", file, value)
    draft.label = value.text_of("run_info.run_label") or PurePath(file).stem
    for key, stem in _LATENCIES.items():
        if (block := value.get(key)) is None:
            continue
        if (scale := _scale(value, key)) is None:
            draft.unread.append(
                Unread(block.line, f"{key} has an unknown unit of time", "lines")
            )
        else:
            draft.read_spreads(value, {key: stem}, scale)
    draft.read_figures(value, _FIGURES)
    if (scale := _scale(value, "benchmark_duration")) is not None:
        draft.figure("duration_s", value.find("benchmark_duration.avg"), scale / 1e3)
    draft.leave(
        (key, block)
        for key, block in value.fields.items()
        if block.has("unit", "avg") and key not in _READ
    )
    draft.read_settings(value, _SETTINGS)
    if (config := value.get("input_config")) is not None:
        _config(draft, config)
    yield draft


def _scale(value: Value, key: str) -> float | None:
    return TO_MS.get((value.text_of(f"{key}.unit") or "").lower())


def _config(draft: Draft, config: Value) -> None:
    for path in _MODELS:
        named = config.find(path)
        first = next(named.items(), named) if named is not None else None
        if first is not None:
            draft.setting("model", first.get("name") or first)
    for phase in config.each("phases"):
        if not _warms_up(phase):
            draft.read_settings(phase, _PHASE)
    draft.read_settings(next(config.each("datasets"), None), _DATA)
    for path, name in _CONFIG.items():
        item = config.find(path)
        if item is not None and item.number != 0:  # 0 requests: as many as the time allows
            draft.setting(name, item)


def _warms_up(phase: Value) -> bool:
    """Versions differ in the field that says so: kind, name or type."""
    names = [phase.text_of(key) or "" for key in ("kind", "name", "type")]
    if "profiling" in names:
        return False
    return any("warm" in name.lower() for name in names) or names[0] not in (
        "",
        "profiling",
    )


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
    credit_phase: str | None = None  # its name in other versions


class _Record(msgspec.Struct):
    metadata: _About
    metrics: _Metrics
    error: Any = None


def records(values: list[Value], file: str) -> Iterator[Draft]:
    """Yield one row: all requests of the measured phase are its samples, their counts are its figures."""
    draft = Draft("serve", "aiperf", file, values[0])
    draft.label, draft.end = PurePath(file).stem, values[-1].end
    measured: list[_Record] = []
    for value in values:
        record = value.decoded(_Record)
        if record is None:
            draft.unread.append(Unread(value.line, "not an AIPerf record", "lines"))
        elif (record.metadata.benchmark_phase or record.metadata.credit_phase) in (
            None,
            "profiling",
        ):
            measured.append(record)
    good = [r for r in measured if r.error is None]
    failed = [r for r in measured if r.error is not None]
    draft.samples = _samples(good, failed)
    if measured:
        draft.figures["completed"] = Figure(float(len(good)), draft.line)
        draft.figures["failed"] = Figure(float(len(failed)), draft.line)
    yield draft


def _samples(good: list[_Record], failed: list[_Record]) -> Samples:
    """Return the samples of requests: first those that completed, then the errors of others."""
    metrics = [record.metrics for record in good]
    return Samples(
        input_lens=_whole_numbers(m.input_sequence_length for m in metrics),
        output_lens=_whole_numbers(m.output_sequence_length for m in metrics),
        times_ms={
            "ttft": complete([_time_ms(m.time_to_first_token) for m in metrics]),
            "e2el": complete([_time_ms(m.request_latency) for m in metrics]),
            "itl": [gap for m in metrics for gap in _gaps_ms(m.inter_chunk_latency)],
        },
        starts_s=[record.metadata.request_start_ns / 1e9 for record in good],
        errors=[""] * len(good) + errors(_described(record.error) for record in failed),
    )


def _whole_numbers(metrics: Iterable[_Metric | None]) -> list[int]:
    numbers = complete([_number(metric) for metric in metrics])
    return [int(number) for number in numbers]


def _number(metric: _Metric | None) -> float | None:
    return (
        float(metric.value)
        if metric is not None and isinstance(metric.value, int | float)
        else None
    )


def _time_ms(metric: _Metric | None) -> float | None:
    number, scale = _number(metric), TO_MS.get(metric.unit.lower()) if metric else None
    return None if number is None or scale is None else number * scale


def _gaps_ms(metric: _Metric | None) -> list[float]:
    scale = TO_MS.get(metric.unit.lower()) if metric else None
    return (
        [scale * v for v in metric.value]
        if metric and scale and isinstance(metric.value, list)
        else []
    )


def _described(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return (
        f"{error.get('type') or error.get('code') or 'error'}: {error.get('message') or ''}"
    )
