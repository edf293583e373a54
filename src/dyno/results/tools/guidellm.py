"""What GuideLLM writes as benchmarks.json: a row for each load of it. Figures are of the successful requests."""

import re
from typing import Final, TypeVar

import msgspec

from dyno.facts.imported import Figure, Row, Samples, Unread
from dyno.results.draft import Draft, errors
from dyno.results.value import Value

T = TypeVar("T")
# p001 is the share of a thousandth, p999 all but one.
_PERCENTILES: Final = {
    "p001": "p0.1", "p01": "p1", "p05": "p5", "p10": "p10", "p25": "p25", "p50": "p50", "p75": "p75", "p90": "p90",
    "p95": "p95", "p99": "p99", "p999": "p99.9",
}  # fmt: skip
_LATENCIES: Final = (
    ("time_to_first_token_ms", "ttft", 1.0), ("time_per_output_token_ms", "tpot", 1.0),
    ("inter_token_latency_ms", "itl", 1.0), ("request_latency", "e2el", 1e3),
)  # fmt: skip
_MEANS: Final = {
    "requests_per_second": "request_throughput", "prompt_tokens_per_second": "input_throughput",
    "output_tokens_per_second": "output_throughput", "tokens_per_second": "total_token_throughput",
    "request_concurrency": "concurrency_mean",
}  # fmt: skip
_SUMS: Final = {
    "prompt_token_count": "total_input_tokens", "output_token_count": "total_output_tokens",
    "total_token_count": "total_tokens",
}  # fmt: skip


class _Request(msgspec.Struct):
    """What is kept of one; its texts aren't decoded."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None
    request_latency: float | None = None
    request_start_time: float | None = None
    start_time: float | None = None  # until 0.3


def is_report(value: Value) -> bool:
    listed = value.get("benchmarks")
    first = next(listed.items(), None) if listed is not None else None
    metrics = first.get("metrics") if first is not None else None
    return metrics is not None and any(
        key in metrics.fields for key in ("requests_per_second", "time_to_first_token_ms", "request_totals")
    )


def reports(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        benchmarks = value.get("benchmarks")
        for benchmark in benchmarks.items() if benchmarks else ():
            draft = Draft("serve", "guidellm", file, benchmark)
            _figures(draft, benchmark)
            _settings(draft, benchmark, value)
            samples = _samples(draft, benchmark)
            unread += draft.unread
            if draft.figures:
                rows.append(draft.row(samples))
            else:
                unread.append(Unread(benchmark.line, "a benchmark without a figure"))
    return rows, unread


def _figures(draft: Draft, benchmark: Value) -> None:
    metrics = benchmark.get("metrics")
    if metrics is None:
        return
    made = (
        metrics.get("request_totals")
        or benchmark.get("request_totals")
        or benchmark.get("scheduler_metrics", "requests_made")
        or benchmark.get("run_stats", "requests_made")
    )
    if made is not None:
        for key, name in (("successful", "completed"), ("errored", "failed"), ("incomplete", "incomplete")):
            draft.figure(name, made.get(key))
    _duration(draft, benchmark)
    for key, name in _MEANS.items():
        draft.figure(name, metrics.get(key, "successful", "mean"))
    draft.figure("peak_concurrency", metrics.get("request_concurrency", "successful", "max"))
    for key, name in _SUMS.items():
        draft.figure(name, metrics.get(key, "successful", "total_sum"))
    for key, stem, scale in _LATENCIES:
        spread = metrics.get(key, "successful")
        count = spread.get("count") if spread else None
        if spread is None or (count is not None and count.number == 0):
            continue  # of no request: zeros
        for field, statistic in (
            ("mean", "mean"),
            ("median", "median"),
            ("std_dev", "std"),
            ("min", "min"),
            ("max", "max"),
        ):
            draft.latency(statistic, stem, spread.get(field), scale)
        for field, statistic in _PERCENTILES.items():
            draft.latency(statistic, stem, spread.get("percentiles", field), scale)


def _duration(draft: Draft, benchmark: Value) -> None:
    draft.figure("duration_s", benchmark.get("duration"))
    start, end = benchmark.get("start_time"), benchmark.get("end_time")
    if "duration_s" not in draft.figures and start and end and start.number is not None and end.number is not None:
        draft.figures["duration_s"] = Figure(end.number - start.number, end.line)


def _settings(draft: Draft, benchmark: Value, report: Value) -> None:
    strategy = (
        benchmark.get("config", "strategy")
        or benchmark.get("args", "strategy")
        or benchmark.get("scheduler", "strategy")
    )
    if strategy is not None:
        draft.setting("profile", strategy.get("type_"))
        draft.label = (strategy.text or str(draft.settings["profile"].value)) if "profile" in draft.settings else ""
        kind = strategy.get("type_")
        if kind is not None and kind.text == "synchronous":
            draft.told("concurrency", 1, kind.line)
        draft.setting("concurrency", strategy.get("streams"))
        if kind is not None and kind.text == "throughput":
            draft.setting("concurrency", strategy.get("max_concurrency"))
        draft.setting("rate", strategy.get("rate"))
    for name, paths in _PATHS.items():
        for where, path in paths:
            found = (benchmark if where == "benchmark" else report).get(*path)
            draft.setting(name, found)
    data = report.get("config", "spec", "data")
    for first in data.items() if data else ():
        draft.setting("dataset", first.get("kind"))
        draft.setting("input_len", first.get("prompt_tokens"))
        draft.setting("output_len", first.get("output_tokens"))
        break
    _lengths(draft, benchmark, report)


def _lengths(draft: Draft, benchmark: Value, report: Value) -> None:
    """'prompt_tokens=128,output_tokens=128', as versions before 0.7 keep their data's description."""
    listed = report.get("args", "data")
    told = next(listed.items(), None) if listed is not None else benchmark.get("request_loader", "data")
    for key, name in (("prompt_tokens", "input_len"), ("output_tokens", "output_len")):
        match = re.search(rf"\b{key}\W{{1,3}}(\d{{1,9}})", (told.text or "")[:2000]) if told is not None else None
        if match is not None and told is not None:
            draft.told(name, int(match[1]), told.line)


# From the newest version to the oldest.
_PATHS: Final[dict[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    "model": (
        ("benchmark", ("config", "backend", "model")), ("report", ("config", "spec", "backend", "model")),
        ("report", ("args", "backend_kwargs", "model")), ("report", ("args", "model")),
        ("benchmark", ("worker", "backend_model")), ("benchmark", ("benchmarker", "backend", "model")),
    ),
    "backend": (
        ("benchmark", ("config", "backend", "kind")), ("benchmark", ("worker", "backend_type")),
        ("report", ("args", "backend")),
    ),
    "endpoint": (("benchmark", ("config", "backend", "request_format")),),
    "tokenizer": (
        ("report", ("config", "spec", "tokenizer", "model")), ("report", ("args", "processor")),
        ("benchmark", ("request_loader", "processor")),
    ),
    "seed": (("report", ("config", "spec", "seed", "value")), ("report", ("args", "random_seed"))),
    "tool_version": (("report", ("metadata", "guidellm_version")),),
    "data": (("benchmark", ("request_loader", "data")),),
}  # fmt: skip


def _samples(draft: Draft, benchmark: Value) -> Samples | None:
    listed = benchmark.get("requests", "successful")
    if listed is None:
        return None
    requests = draft.samples(list[_Request], listed, "requests")
    failed = benchmark.get("requests", "errored")
    told = [request.get("info", "error") or request.get("error") for request in failed.items()] if failed else []
    if not requests and not told:
        return None
    return Samples(
        input_lens=_each([r.prompt_tokens for r in requests]),
        output_lens=_each([r.output_tokens for r in requests]),
        ttfts_ms=_each([r.time_to_first_token_ms for r in requests]),
        tpots_ms=_each([r.time_per_output_token_ms for r in requests]),
        e2els_ms=[1e3 * s for s in _each([r.request_latency for r in requests])],
        starts_s=_each([r.request_start_time if r.request_start_time is not None else r.start_time for r in requests]),
        errors=[""] * len(requests) + errors((e.text if e else None) or "not told" for e in told),
    )


def _each(found: list[T | None]) -> list[T]:
    """All, or none: a list with holes no longer lies beside the others."""
    sound = [x for x in found if x is not None]
    return sound if len(sound) == len(found) else []
