"""Results of vLLM's benchmarks: serve, throughput and latency. dyno writes the same keys.

InferenceX's agg_*.json are vLLM's results too: latencies in seconds, and throughput by accelerator.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import Final

from dyno.facts import metric
from dyno.facts.comparison import Estimate
from dyno.facts.finding import Finding
from dyno.facts.imported import RowKind, Samples
from dyno.facts.rig import Rig
from dyno.results import columns
from dyno.results.draft import Draft, errors
from dyno.results.json_text import Value

_SETTINGS: Final = {
    "date": "date", "backend": "backend", "endpoint_type": "backend", "model_id": "model",
    "tokenizer_id": "tokenizer", "num_prompts": "num_prompts", "request_rate": "rate", "burstiness": "burstiness",
    "max_concurrency": "concurrency", "ramp_up_strategy": "ramp_up_strategy",
    "ramp_up_start_rps": "ramp_up_start_rps", "ramp_up_end_rps": "ramp_up_end_rps", "best_of": "best_of",
}  # fmt: skip
_FIGURES: Final = {
    "duration": "duration_s", "completed": "completed", "failed": "failed", "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens", "request_throughput": "request_throughput",
    "request_goodput": "request_goodput", "request_goodput:": "request_goodput", "input_throughput": "input_throughput",
    "output_throughput": "output_throughput", "total_token_throughput": "total_token_throughput",
    "max_output_tokens_per_s": "peak_output_throughput", "max_concurrent_requests": "peak_concurrency",
    "spec_decode_acceptance_length": "acceptance_length",
}  # fmt: skip
_THROUGHPUT: Final = {
    "elapsed_time": "duration_s",
    "num_requests": "completed",
    "total_num_tokens": "total_tokens",
    "requests_per_second": "request_throughput",
}
# Its own keys that are not settings.
_LEFT: Final = (
    "label", "dyno", "rtfx", "rps_change_events", "input_lens", "output_lens", "ttfts", "itls", "start_times",
    "generated_texts", "errors", "latencies", "queue_times", "spec_decode_num_drafts", "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens", "spec_decode_acceptance_rate", "spec_decode_per_position_acceptance_rates",
)  # fmt: skip
# What dyno writes beside vLLM's keys. The engine, where dyno started none: as the server calls itself.
_SESSIONS: Final = {
    "dyno.sessions.throughput": "session_throughput",
    "dyno.sessions.completed": "sessions_completed",
    "dyno.sessions.failed": "sessions_failed",
}
_REUSE: Final = {
    "dyno.reuse.most_share": "possible_reuse",
    "dyno.reuse.reported_share": "reported_reuse",
}
_DYNO: Final = {
    "version": "tool_version", "trial.workload.dataset": "dataset", "engine.kind": "engine", "target.kind": "engine",
    "target.version": "engine_version", "target.quantization": "quantization", "target.dtype": "dtype",
    "target.kv_cache_dtype": "kv_cache_dtype", "target.tensor_parallel": "tensor_parallel",
    "target.prefix_caching": "prefix_caching", "target.max_model_len": "max_model_len", "verdict": "verdict",
}  # fmt: skip
_INFERENCEX_KEY: Final = re.compile(
    r"(?P<statistic>mean|median|std|p\d+(?:\.\d+)?)_(?P<stem>ttft|tpot|itl|e2el)"
)
_INFERENCEX: Final = {
    "hw": "accelerator", "conc": "concurrency", "framework": "engine", "precision": "quantization", "model": "model",
    "tp": "tensor_parallel", "isl": "input_len", "osl": "output_len", "image": "image", "ep": "ep",
    "spec_decoding": "speculative", "tput_per_gpu": "tput_per_gpu", "output_tput_per_gpu": "output_tput_per_gpu",
}  # fmt: skip


def is_serve(value: Value) -> bool:
    if value.has("completed", "request_throughput") or value.has(
        "completed", "duration", "num_prompts"
    ):
        return True
    # Broken off before its figures.
    return value.has("model_id", "num_prompts", "request_rate", "date")


def is_throughput(value: Value) -> bool:
    return value.has("elapsed_time", "num_requests", "tokens_per_second")


def is_latency(value: Value) -> bool:
    return value.has("avg_latency") and (
        "percentiles" in value.fields or "latencies" in value.fields
    )


def is_dyno(value: Value) -> bool:
    own = value.get("dyno")
    return own is not None and own.has("version")


def dyno(value: Value, file: str) -> Iterator[Draft]:
    """Read a result file of dyno's own: its kind by its keys."""
    if is_latency(value):
        return latency(value, file)
    if is_throughput(value):
        return throughput(value, file)
    return serve(value, file)


def _draft(value: Value, file: str, kind: RowKind) -> Draft:
    """Begin a result, with all that dyno adds to vLLM's keys."""
    draft = Draft(kind, "dyno" if is_dyno(value) else "vllm", file, value)
    draft.label = value.text_of("label") or PurePath(file).stem
    _read_row(draft, value)
    draft.read_settings(value.get("dyno"), _DYNO)
    draft.figure("cached_input_tokens", value.find("dyno.cached_input_tokens"))
    for name in ("cancelled", "skipped"):
        count = value.find(f"dyno.{name}")
        if count is not None and count.number:
            draft.figure(name, count)
    sessions = value.find("dyno.sessions")
    if sessions is not None and not sessions.null:
        draft.read_figures(value, _SESSIONS)
        for name, field in sessions.fields.items():
            if parts := metric.latency(name):
                draft.figure(name, field, means=metric.definition("dyno", parts[1]))
    draft.read_figures(value, _REUSE)
    findings = value.find("dyno.findings")
    if findings is not None:
        draft.findings = findings.decoded(list[Finding]) or []
    return draft


def _read_row(draft: Draft, value: Value) -> None:
    """Read the row that dyno stores: its settings, estimates and machine."""
    row = value.find("dyno.row")
    if row is None:
        return
    settings = row.get("settings")
    if settings is not None:
        for name, field in settings.fields.items():
            draft.setting(name, field)
    draft.prompts_sha256 = value.text_of("dyno.workload_sha256") or None
    estimates = row.get("estimates")
    if estimates is not None:
        draft.estimates = estimates.decoded(dict[str, Estimate]) or {}
    rig = row.get("rig")
    if rig is not None:
        draft.rig = rig.decoded(Rig)


def serve(value: Value, file: str) -> Iterator[Draft]:
    draft = _draft(value, file, "serve")
    draft.read_settings(value, _SETTINGS)
    draft.read_figures(value, _FIGURES)
    draft.figure("acceptance_rate", value.get("spec_decode_acceptance_rate"), 0.01)
    own_tpot = value.find("dyno.own_tpot")
    own = own_tpot.fields if own_tpot is not None else {}
    for key, field in own.items():
        draft.figure(key, field, means=metric.OWN_TPOT)
    known = {*_SETTINGS, *_FIGURES, *_LEFT}
    known |= {
        key for key in value.fields if key.startswith("probe_") or "client_queue" in key
    }
    for key, field in value.fields.items():
        if (
            parts := metric.latency(key)
            if key.endswith("_ms") or key.startswith("probe_")
            else None
        ):
            statistic, stem = parts
            draft.latency(statistic, "vllm_tpot" if own and stem == "tpot" else stem, field)
            known.add(key)
    _others(draft, value, known | _read_metadata(draft, value, known))
    if any(key in value.fields for key in ("input_lens", "ttfts", "itls")):
        draft.samples = _samples(draft, value, own=bool(own))
    yield draft


def _read_metadata(draft: Draft, value: Value, known: Collection[str]) -> set[str]:
    """Read --metadata tp=8 as the setting that it is. Return the keys that were."""
    read = set()
    for key, field in value.fields.items():
        column = None if key in known or key.endswith("_ms") else columns.meaning(key)
        if column is not None and not column.figure:
            draft.setting(column.name, field)
            read.add(key)
    return read


def _others(draft: Draft, value: Value, known: Collection[str]) -> None:
    """Read --metadata, whose values are texts, and the parameters of a sweep. Other numbers are metrics of another
    version, which nothing here checks."""
    if "run_number" not in value.fields:
        draft.leave(
            (key, field)
            for key, field in value.fields.items()
            if key not in known and field.digits
        )
    draft.others(value, known)


def _samples(draft: Draft, value: Value, own: bool) -> Samples:
    """Return the lists of single requests. `own`: dyno's own times per token are others, which the file's lists don't
    have."""
    lengths = draft.decoded(list[int], value.get("output_lens"), "output_lens")
    firsts = draft.times_ms(value.get("ttfts"), "ttfts")
    pooled, decoding = draft.gaps_ms(value.get("itls"), "itls")
    ends = draft.times_ms(value.get("latencies"), "latencies")
    if not ends and len(firsts) == len(decoding):  # from first token to last are its gaps
        ends = [
            first + rest for first, rest in zip(firsts, decoding, strict=True) if first > 0
        ]
    paces = [
        rest / (n - 1)
        for n, rest in zip(lengths, decoding, strict=False)
        if n > 1 and rest > 0
    ]
    paces = paces if len(lengths) == len(decoding) else []
    return Samples(
        input_lens=draft.decoded(list[int], value.get("input_lens"), "input_lens"),
        output_lens=lengths,
        times_ms={
            "ttft": firsts,
            "vllm_tpot" if own else "tpot": paces,
            "e2el": ends,
            "itl": pooled,
        },
        starts_s=draft.decoded(list[float], value.get("start_times"), "start_times"),
        errors=errors(draft.decoded(list[str | None], value.get("errors"), "errors")),
    )


def throughput(value: Value, file: str) -> Iterator[Draft]:
    draft = _draft(value, file, "throughput")
    draft.read_figures(value, _THROUGHPUT)
    draft.figure(
        "total_token_throughput", value.get("tokens_per_second"), means="offline.throughput"
    )
    draft.setting("model", value.get("model_id"))
    _others(draft, value, {*_THROUGHPUT, "tokens_per_second", "model_id", "label", "dyno"})
    yield draft


def latency(value: Value, file: str) -> Iterator[Draft]:
    draft = _draft(value, file, "latency")
    draft.figure("mean_latency_ms", value.get("avg_latency"), 1e3, "offline.latency")
    percentiles = value.get("percentiles")
    for key, field in percentiles.fields.items() if percentiles else ():
        if key.replace(".", "", 1).isdigit() and len(key) <= 6:
            draft.figure(f"p{key}_latency_ms", field, 1e3, "offline.latency")
    draft.setting("model", value.get("model_id"))
    _others(
        draft,
        value,
        {"avg_latency", "percentiles", "latencies", "model_id", "label", "dyno"},
    )
    if seconds := draft.decoded(list[float], value.get("latencies"), "latencies"):
        draft.samples = Samples(times_ms={"latency": [1e3 * s for s in seconds]})
    yield draft


def is_inferencex(value: Value) -> bool:
    return value.has("hw", "conc") and any(
        _INFERENCEX_KEY.fullmatch(key) for key in value.fields
    )


def inferencex(value: Value, file: str) -> Iterator[Draft]:
    draft = Draft("serve", "inferencex", file, value)
    draft.label = PurePath(file).stem
    draft.read_keys(value, _INFERENCEX_KEY, 1e3)
    draft.read_settings(value, _INFERENCEX)
    draft.figure("power_w", value.get("avg_power_w"))
    draft.series = ", ".join(
        str(s.value) for k in ("accelerator", "engine") if (s := draft.settings.get(k))
    )
    yield draft
