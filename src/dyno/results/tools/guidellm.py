"""GuideLLM's benchmarks.json: one row per load. Figures cover the successful requests."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from dyno.facts.imported import Figure, Samples
from dyno.results.draft import Draft, complete, errors
from dyno.results.json_text import Value

# p001 is the share of a thousandth, p999 all but one.
_PERCENTILES: Final = {
    "p001": "p0.1", "p01": "p1", "p05": "p5", "p10": "p10", "p25": "p25", "p50": "p50", "p75": "p75", "p90": "p90",
    "p95": "p95", "p99": "p99", "p999": "p99.9",
}  # fmt: skip
_LATENCIES: Final = (
    ("time_to_first_token_ms", "ttft", 1.0),
    ("time_per_output_token_ms", "tpot", 1.0),
    ("inter_token_latency_ms", "itl", 1.0),
    ("request_latency", "e2el", 1e3),
)
_FIGURES: Final = {
    "requests_per_second.successful.mean": "request_throughput",
    "prompt_tokens_per_second.successful.mean": "input_throughput",
    "output_tokens_per_second.successful.mean": "output_throughput",
    "tokens_per_second.successful.mean": "total_token_throughput",
    "request_concurrency.successful.mean": "concurrency_mean",
    "request_concurrency.successful.max": "peak_concurrency",
    "prompt_token_count.successful.total_sum": "total_input_tokens",
    "output_token_count.successful.total_sum": "total_output_tokens",
    "total_token_count.successful.total_sum": "total_tokens",
}
_READ: Final = {
    *(path.partition(".")[0] for path in _FIGURES),
    *(key for key, _, _ in _LATENCIES),
    "request_totals",
}
_COUNTS: Final = {
    "successful": "completed",
    "errored": "failed",
    "incomplete": "incomplete",
}
# From the newest version to the oldest.
_TOTALS: Final = (
    "metrics.request_totals",
    "request_totals",
    "scheduler_metrics.requests_made",
    "run_stats.requests_made",
)
_STRATEGIES: Final = ("config.strategy", "args.strategy", "scheduler.strategy")
_SETTINGS: Final = {  # of a benchmark
    "config.backend.model": "model",
    "config.backend.kind": "backend",
    "config.backend.request_format": "endpoint",
}
_REPORT: Final = {
    "config.spec.backend.model": "model", "args.backend_kwargs.model": "model", "args.model": "model",
    "config.spec.tokenizer.model": "tokenizer", "args.processor": "tokenizer", "config.spec.seed.value": "seed",
    "args.random_seed": "seed", "metadata.guidellm_version": "tool_version",
}  # fmt: skip
_OLD: Final = {  # of a benchmark, until 0.3
    "worker.backend_model": "model",
    "benchmarker.backend.model": "model",
    "worker.backend_type": "backend",
    "request_loader.processor": "tokenizer",
    "request_loader.data": "data",
}
_DATA: Final = {
    "kind": "dataset",
    "prompt_tokens": "input_len",
    "output_tokens": "output_len",
}


class _Request(msgspec.Struct):
    """The fields of a request that are kept; its texts aren't decoded."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None
    request_latency: float | None = None
    request_start_time: float | None = None
    start_time: float | None = None  # until 0.3

    @property
    def started(self) -> float | None:
        return (
            self.request_start_time
            if self.request_start_time is not None
            else self.start_time
        )


def is_report(value: Value) -> bool:
    first = next(value.each("benchmarks"), None)
    metrics = first.get("metrics") if first is not None else None
    return metrics is not None and any(
        key in metrics.fields
        for key in ("requests_per_second", "time_to_first_token_ms", "request_totals")
    )


def reports(value: Value, file: str) -> Iterator[Draft]:
    for benchmark in value.each("benchmarks"):
        draft = Draft("serve", "guidellm", file, benchmark)
        if (metrics := benchmark.get("metrics")) is not None:
            _figures(draft, benchmark, metrics)
        _read_settings(draft, benchmark, value)
        draft.samples = _samples(draft, benchmark)
        yield draft


def _figures(draft: Draft, benchmark: Value, metrics: Value) -> None:
    if (totals := benchmark.first(_TOTALS)) is not None:
        draft.read_figures(totals, _COUNTS)
    draft.figure("duration_s", benchmark.get("duration"))
    if "duration_s" not in draft.figures:
        _duration(draft, benchmark)
    draft.read_figures(metrics, _FIGURES)
    draft.leave(
        (key, metric)
        for key, metric in metrics.fields.items()
        if key not in _READ and _measured(metric)
    )
    for key, stem, scale in _LATENCIES:
        count = metrics.get(key, "successful", "count")
        if count is not None and count.number == 0:
            continue  # of no request: zeros
        draft.read_spreads(metrics, {f"{key}.successful": stem}, scale)
        for field, statistic in _PERCENTILES.items():
            draft.latency(
                statistic, stem, metrics.get(key, "successful", "percentiles", field), scale
            )


def _duration(draft: Draft, benchmark: Value) -> None:
    """Calculate the duration from start and end, if both are known."""
    start, end = benchmark.get("start_time"), benchmark.get("end_time")
    if start and end and start.number is not None and end.number is not None:
        draft.figures["duration_s"] = Figure(end.number - start.number, end.line)


def _measured(metric: Value) -> bool:
    """Zeros of requests that there were none of are not figures."""
    mean, count = metric.find("successful.mean"), metric.find("successful.count")
    return (
        mean is not None
        and mean.number is not None
        and count is not None
        and bool(count.number)
    )


def _read_settings(draft: Draft, benchmark: Value, report: Value) -> None:
    if (strategy := benchmark.first(_STRATEGIES)) is not None:
        kind = strategy.get("type_")
        draft.setting("profile", kind)
        draft.label = (
            (strategy.text or str(draft.settings["profile"].value))
            if "profile" in draft.settings
            else ""
        )
        if kind is not None and kind.text == "synchronous":
            draft.set("concurrency", 1, kind.line)
        draft.setting("concurrency", strategy.get("streams"))
        if kind is not None and kind.text == "throughput":
            draft.setting("concurrency", strategy.get("max_concurrency"))
        draft.setting("rate", strategy.get("rate"))
    draft.read_settings(benchmark, _SETTINGS)
    draft.read_settings(report, _REPORT)
    draft.read_settings(benchmark, _OLD)
    draft.setting("backend", report.find("args.backend"))
    draft.read_settings(next(report.each("config.spec.data"), None), _DATA)
    # 'prompt_tokens=128,output_tokens=128', as versions before 0.7 keep their data's description.
    listed = report.find("args.data")
    data = (
        next(listed.items(), None)
        if listed is not None
        else benchmark.find("request_loader.data")
    )
    for key, name in (("prompt_tokens", "input_len"), ("output_tokens", "output_len")):
        match = (
            re.search(rf"\b{key}\W{{1,3}}(\d{{1,9}})", (data.text or "")[:2000])
            if data is not None
            else None
        )
        if match is not None and data is not None:
            draft.set(name, int(match[1]), data.line)


def _samples(draft: Draft, benchmark: Value) -> Samples | None:
    listed = benchmark.find("requests.successful")
    if listed is None:
        return None
    requests = draft.decoded(list[_Request], listed, "requests")
    failed = [
        request.first(("info.error", "error"))
        for request in benchmark.each("requests.errored")
    ]
    if not requests and not failed:
        return None
    return Samples(
        input_lens=complete([r.prompt_tokens for r in requests]),
        output_lens=complete([r.output_tokens for r in requests]),
        times_ms={
            "ttft": complete([r.time_to_first_token_ms for r in requests]),
            "tpot": complete([r.time_per_output_token_ms for r in requests]),
            "e2el": [1e3 * s for s in complete([r.request_latency for r in requests])],
        },
        starts_s=complete([r.started for r in requests]),
        errors=[""] * len(requests)
        + errors((e.text if e else None) or "unknown error" for e in failed),
    )
