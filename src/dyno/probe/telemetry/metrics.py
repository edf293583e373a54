"""An engine's metrics in Prometheus' text format: the few lines of it that are wanted, by one name for all engines.

A scan for names and no parser: of the 600 lines that vLLM writes, ten are wanted (decision 8 has the figures).
"""

import math
from collections.abc import Iterator

# Our name → theirs: vLLM now and before 0.10, SGLang, TGI, llama.cpp (kv_cache_usage_ratio: until the middle of 2025).
# The first that is there counts.
GAUGES = {
    "running_requests": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
    ),
    "waiting_requests": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
    ),
}
SHARES = {
    "kv_used_share": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "accepted_length_tokens": ("sglang:spec_accept_length",),
}
COUNTERS = {
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_queried_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",  # it looks each of them up
    ),
    "prefix_hit_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "output_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "tgi_request_generated_tokens_sum",
        "llamacpp:tokens_predicted_total",
    ),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "tgi_request_skipped_tokens_sum"),
}

_BEYOND = 1e18  # no count or share is: a sum of such values could leave the numbers that JSON has


def read(text: str) -> dict[str, float]:
    """What is there. Over several label sets (data-parallel ranks) counts are summed and shares averaged."""
    text = "\n" + text
    found = {}
    for table in (GAUGES, SHARES, COUNTERS):
        for ours, theirs in table.items():
            values = next((v for name in theirs if (v := list(_values(text, name)))), None)
            if values:
                found[ours] = sum(values) / (len(values) if table is SHARES else 1)
    return found


def _values(text: str, name: str) -> Iterator[float]:
    """Of each label set: `name{label="x"} 12.0`, perhaps with a time behind it."""
    wanted = "\n" + name
    at = text.find(wanted)
    while at >= 0:
        start = at + len(wanted)
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        if line[:1] in ("{", " ") and not _follower(line):
            words = line.rpartition("}")[2].split()
            try:
                value = float(words[0]) if words else math.nan
            except ValueError:
                value = math.nan
            if 0 <= value < _BEYOND:
                yield value
        at = text.find(wanted, start)


def _follower(line: str) -> bool:
    """SGLang's ranks of one replica may each tell of the same requests: the first speaks for all."""
    return any(rank in line and f'{rank}"0"' not in line for rank in ("tp_rank=", "pp_rank="))
