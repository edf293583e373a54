"""What vLLM's benchmarks write: of a server, of throughput and of latency offline. dyno writes the same keys."""

from pathlib import PurePath
from typing import Final

from dyno.facts.definition import definition
from dyno.facts.finding import Finding
from dyno.facts.imported import Row, Samples, Unread
from dyno.results import columns
from dyno.results.draft import Draft, errors
from dyno.results.value import Value

Read = tuple[list[Row], list[Unread]]

_SETTINGS: Final = {
    "date": "date", "backend": "backend", "endpoint_type": "backend", "model_id": "model",
    "tokenizer_id": "tokenizer", "num_prompts": "num_prompts", "request_rate": "rate", "burstiness": "burstiness",
    "max_concurrency": "concurrency", "ramp_up_strategy": "ramp_up_strategy",
    "ramp_up_start_rps": "ramp_up_start_rps", "ramp_up_end_rps": "ramp_up_end_rps",
}  # fmt: skip
_FIGURES: Final = (
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "request_goodput:", "input_throughput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
)  # fmt: skip
# Of its own, and no setting.
_LEFT: Final = (
    "label", "dyno", "rtfx", "rps_change_events", "input_lens", "output_lens", "ttfts", "itls", "start_times",
    "generated_texts", "errors", "latencies", "queue_times", "spec_decode_num_drafts", "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens", "spec_decode_per_position_acceptance_rates",
)  # fmt: skip


def is_serve(value: Value) -> bool:
    if value.has("completed", "request_throughput") or value.has("completed", "duration", "num_prompts"):
        return True
    # Broken off before its figures.
    return value.has("model_id", "num_prompts", "request_rate", "date")


def is_throughput(value: Value) -> bool:
    return value.has("elapsed_time", "num_requests", "tokens_per_second")


def is_latency(value: Value) -> bool:
    return value.has("avg_latency") and ("percentiles" in value.fields or "latencies" in value.fields)


def is_dyno(value: Value) -> bool:
    own = value.get("dyno")
    return own is not None and own.has("version")


def serve(values: list[Value], file: str) -> Read:
    return _all([_serve(value, file) for value in values])


def throughput(values: list[Value], file: str) -> Read:
    return _all([_throughput(value, file) for value in values])


def latency(values: list[Value], file: str) -> Read:
    return _all([_latency(value, file) for value in values])


def dyno(values: list[Value], file: str) -> Read:
    """A result file of dyno's own: its kind by its keys."""
    drafts = []
    for value in values:
        read = _latency if is_latency(value) else _throughput if is_throughput(value) else _serve
        drafts.append(read(value, file))
    return _all(drafts)


def _all(drafts: list[tuple[Draft, Samples | None]]) -> Read:
    rows, unread = [], []
    for draft, samples in drafts:
        unread += draft.unread
        if draft.figures:
            rows.append(draft.row(samples))
        else:
            unread.append(Unread(draft.value.line, "a result without a figure"))
    return rows, unread


def _draft(value: Value, file: str, kind: str) -> Draft:
    draft = Draft(kind, "dyno" if is_dyno(value) else "vllm", file, value)  # type: ignore[arg-type]
    label = value.get("label")
    draft.label = (label.text if label else None) or PurePath(file).stem
    _own(draft, value)
    return draft


def _own(draft: Draft, value: Value) -> None:
    """What dyno tells beside vLLM's keys."""
    own = value.get("dyno")
    if own is None:
        return
    draft.setting("tool_version", own.get("version"))
    draft.setting("dataset", own.get("trial", "workload", "dataset"))
    draft.setting("engine", own.get("engine", "kind"))
    if "engine" not in draft.settings:  # as the server says that it is
        draft.setting("engine", own.get("target", "kind"))
    draft.setting("engine_version", own.get("target", "version"))
    for name in ("quantization", "dtype", "kv_cache_dtype", "tensor_parallel", "prefix_caching", "max_model_len"):
        draft.setting(name, own.get("target", name))
    draft.setting("verdict", own.get("verdict"))
    if (found := own.get("findings")) is not None:
        draft.findings = found.decoded(list[Finding]) or []
    draft.figure("cached_input_tokens", own.get("cached_input_tokens"))


def _serve(value: Value, file: str) -> tuple[Draft, Samples | None]:
    draft = _draft(value, file, "serve")
    for key, name in _SETTINGS.items():
        draft.setting(name, value.get(key))
    for key in _FIGURES:
        column = columns.meaning(key)
        if column is not None and key in value.fields:
            draft.figure(column.name, value.get(key), column.scale or 1.0)
    rest = set(_SETTINGS) | set(_FIGURES) | set(_LEFT)
    for key, field in value.fields.items():
        column = columns.meaning(key) if key.endswith("_ms") else None
        if column is not None and columns.stem_of(column.name):
            draft.figure(column.name, field, column.scale or 1.0, definition(draft.tool, columns.stem_of(column.name)))
        if key.endswith("_ms") or key.startswith("probe_"):
            rest.add(key)
        elif key not in rest and (column := columns.meaning(key)) is not None and not column.figure:
            draft.setting(column.name, field)  # --metadata tp=8
            rest.add(key)
    draft.others(value, rest)
    return draft, _detailed(draft, value)


def _detailed(draft: Draft, value: Value) -> Samples | None:
    if not any(key in value.fields for key in ("input_lens", "ttfts", "itls")):
        return None
    made = draft.samples(list[int], value.get("output_lens"), "output_lens")
    firsts = draft.times_ms(value.get("ttfts"), "ttfts")
    pooled, decoding = draft.gaps_ms(value.get("itls"), "itls")
    ends = draft.times_ms(value.get("latencies"), "latencies")
    if not ends and len(firsts) == len(decoding):  # from first token to last are its gaps
        ends = [first + rest for first, rest in zip(firsts, decoding, strict=True) if first > 0]
    paces = [rest / (n - 1) for n, rest in zip(made, decoding, strict=False) if n > 1 and rest > 0]
    return Samples(
        input_lens=draft.samples(list[int], value.get("input_lens"), "input_lens"),
        output_lens=made,
        ttfts_ms=firsts,
        tpots_ms=paces if len(made) == len(decoding) else [],
        e2els_ms=ends,
        itls_ms=pooled,
        starts_s=draft.samples(list[float], value.get("start_times"), "start_times"),
        errors=errors(draft.samples(list[str | None], value.get("errors"), "errors")),
    )


def _throughput(value: Value, file: str) -> tuple[Draft, Samples | None]:
    draft = _draft(value, file, "throughput")
    draft.figure("duration_s", value.get("elapsed_time"))
    draft.figure("completed", value.get("num_requests"))
    draft.figure("total_tokens", value.get("total_num_tokens"))
    draft.figure("request_throughput", value.get("requests_per_second"))
    draft.figure("total_token_throughput", value.get("tokens_per_second"), means="offline.throughput")
    _rest(
        draft, value, ("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second")
    )
    return draft, None


def _latency(value: Value, file: str) -> tuple[Draft, Samples | None]:
    draft = _draft(value, file, "latency")
    draft.figure("mean_latency_ms", value.get("avg_latency"), 1e3, "offline.latency")
    percentiles = value.get("percentiles")
    for key, field in percentiles.fields.items() if percentiles else ():
        if key.replace(".", "", 1).isdigit() and len(key) <= 6:
            draft.figure(f"p{key}_latency_ms", field, 1e3, "offline.latency")
    _rest(draft, value, ("avg_latency", "percentiles", "latencies"))
    seconds = draft.samples(list[float], value.get("latencies"), "latencies")
    return draft, Samples(latencies_ms=[1e3 * s for s in seconds]) if seconds else None


def _rest(draft: Draft, value: Value, known: tuple[str, ...]) -> None:
    draft.setting("model", value.get("model_id"))
    draft.others(value, {*known, "model_id", "label", "dyno"})
