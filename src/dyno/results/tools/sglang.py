"""Results of SGLang's bench_serving: one JSON object per line, appended with each run."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from dyno.facts.imported import Samples
from dyno.results.draft import Draft, errors
from dyno.results.json_text import Value

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
_LENGTHS: Final = {"random_input_len": "input_len", "random_output_len": "output_len"}
# Of the server, as it reported to the client.
_SERVER: Final = {
    "model_path": "model", "version": "engine_version", "tp_size": "tensor_parallel", "pp_size": "pipeline_parallel",
    "dp_size": "replicas", "dtype": "dtype", "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype",
    "mem_fraction_static": "memory_fraction", "max_running_requests": "max_num_seqs",
    "context_length": "max_model_len", "chunked_prefill_size": "chunked_prefill_size",
    "disable_radix_cache": "disable_radix_cache", "speculative_algorithm": "speculative",
    "attention_backend": "attention_backend", "disable_cuda_graph": "disable_cuda_graph",
}  # fmt: skip
_LATENCY: Final = re.compile(
    r"(?P<statistic>mean|median|std|min|max|p\d+(?:\.\d+)?)_(?P<stem>e2e_latency|ttft|tpot|itl)_ms"
)
_LEFT: Final = (
    "tag", "server_info", "cache_report", "input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors",
    "cached_tokens", "total_input_text_tokens", "total_input_vision_tokens",
    "output_throughput_retokenized", "total_throughput_retokenized",
)  # fmt: skip


def is_serve(value: Value) -> bool:
    if not value.has("duration", "completed"):
        return False
    own = (
        "mean_e2e_latency_ms",
        "total_throughput",
        "server_info",
        "sharegpt_output_len",
        "random_range_ratio",
    )
    return any(key in value.fields for key in own)


def serve(value: Value, file: str) -> Iterator[Draft]:
    draft = Draft("serve", "sglang", file, value)
    draft.label = value.text_of("tag") or PurePath(file).stem
    draft.read_figures(value, _FIGURES)
    draft.read_keys(value, _LATENCY)
    draft.read_settings(value, _SETTINGS)
    dataset, backend = draft.settings.get("dataset"), draft.settings.get("backend")
    if dataset is not None and str(dataset.value).startswith(
        ("random", "generated-shared-prefix")
    ):
        # Their defaults are written too where another data set was sent.
        draft.read_settings(value, _LENGTHS)
    draft.read_settings(value.get("server_info"), _SERVER)
    if backend is not None and str(backend.value).startswith("sglang"):
        draft.set("engine", "sglang", backend.line)
    times = {key for key in value.fields if key.endswith("_ms")}
    draft.others(value, {*_FIGURES, *_SETTINGS, *_LENGTHS, *_LEFT, *times})
    if any(key in value.fields for key in ("input_lens", "ttfts", "itls")):
        draft.samples = Samples(
            input_lens=draft.decoded(list[int], value.get("input_lens"), "input_lens"),
            output_lens=draft.decoded(list[int], value.get("output_lens"), "output_lens"),
            times_ms={
                "ttft": draft.times_ms(value.get("ttfts"), "ttfts"),
                "itl": draft.gaps_ms(value.get("itls"), "itls")[0],
            },
            errors=errors(draft.decoded(list[str | None], value.get("errors"), "errors")),
        )
    yield draft
