"""What SGLang's bench_serving writes: a JSON object a line, appended with each run."""

import re
from pathlib import PurePath
from typing import Final

from dyno.facts.imported import Row, Samples, Unread
from dyno.results.draft import Draft, errors
from dyno.results.value import Value

_FIGURES: Final = {
    "duration": "duration_s", "completed": "completed", "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens", "request_throughput": "request_throughput",
    "input_throughput": "input_throughput", "output_throughput": "output_throughput",
    "total_throughput": "total_token_throughput", "concurrency": "concurrency_mean",
    "accept_length": "acceptance_length", "max_output_tokens_per_s": "peak_output_throughput",
    "max_concurrent_requests": "peak_concurrency", "total_output_tokens_retokenized": "retokenized_output_tokens",
}  # fmt: skip
_SETTINGS: Final = {
    "backend": "backend", "dataset_name": "dataset", "request_rate": "rate", "max_concurrency": "concurrency",
    "num_prompts": "num_prompts", "model_id": "model", "model": "model",
}  # fmt: skip
# Of the server, as it told the client.
_SERVER: Final = {
    "model_path": "model", "version": "engine_version", "tp_size": "tensor_parallel", "pp_size": "pipeline_parallel",
    "dp_size": "replicas", "dtype": "dtype", "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype",
    "mem_fraction_static": "memory_fraction", "max_running_requests": "max_num_seqs",
    "context_length": "max_model_len", "chunked_prefill_size": "chunked_prefill_size",
    "disable_radix_cache": "disable_radix_cache", "speculative_algorithm": "speculative",
    "attention_backend": "attention_backend", "disable_cuda_graph": "disable_cuda_graph",
}  # fmt: skip
_LATENCY: Final = re.compile(r"(mean|median|std|min|max|p\d+(?:\.\d+)?)_(e2e_latency|ttft|tpot|itl)_ms")
_LEFT: Final = (
    "tag", "server_info", "cache_report", "input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors",
    "cached_tokens", "total_input_text_tokens", "total_input_vision_tokens",
    "output_throughput_retokenized", "total_throughput_retokenized",
)  # fmt: skip


def is_serve(value: Value) -> bool:
    if not value.has("duration", "completed"):
        return False
    own = ("mean_e2e_latency_ms", "total_throughput", "server_info", "sharegpt_output_len", "random_range_ratio")
    return any(key in value.fields for key in own)


def serve(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows, unread = [], []
    for value in values:
        draft = _draft(value, file)
        rows.append(draft.row(_detailed(draft, value)))
        unread += draft.unread
    return rows, unread


def _draft(value: Value, file: str) -> Draft:
    draft = Draft("serve", "sglang", file, value)
    tag = value.get("tag")
    draft.label = (tag.text if tag else None) or PurePath(file).stem
    for key, name in _FIGURES.items():
        draft.figure(name, value.get(key))
    rest = {*_FIGURES, *_SETTINGS, *_LEFT, "random_input_len", "random_output_len"}
    for key, field in value.fields.items():
        if match := _LATENCY.fullmatch(key):
            draft.latency(match[1], {"e2e_latency": "e2el"}.get(match[2], match[2]), field)
        if key.endswith("_ms"):
            rest.add(key)
    for key, name in _SETTINGS.items():
        draft.setting(name, value.get(key))
    dataset = draft.settings.get("dataset")
    if dataset is not None and str(dataset.value).startswith(("random", "generated-shared-prefix")):
        # Their defaults are written too where another data set was sent.
        draft.setting("input_len", value.get("random_input_len"))
        draft.setting("output_len", value.get("random_output_len"))
    for key, name in _SERVER.items():
        draft.setting(name, value.get("server_info", key))
    if draft.settings.get("backend") and str(draft.settings["backend"].value).startswith("sglang"):
        draft.told("engine", "sglang", draft.settings["backend"].line)
    draft.others(value, rest)
    return draft


def _detailed(draft: Draft, value: Value) -> Samples | None:
    if not any(key in value.fields for key in ("input_lens", "ttfts", "itls")):
        return None
    return Samples(
        input_lens=draft.samples(list[int], value.get("input_lens"), "input_lens"),
        output_lens=draft.samples(list[int], value.get("output_lens"), "output_lens"),
        ttfts_ms=draft.times_ms(value.get("ttfts"), "ttfts"),
        itls_ms=draft.gaps_ms(value.get("itls"), "itls")[0],
        errors=errors(draft.samples(list[str | None], value.get("errors"), "errors")),
    )
