"""An engine's metrics in Prometheus' text format: the few that are wanted, by one name for all engines.

A scan for names and no parser: of the 600 lines that vLLM writes, ten are wanted (decision 8 has the figures).
"""

import math
from collections.abc import Iterator

# Our name → theirs: vLLM now and before 0.10, SGLang, TGI, llama.cpp (kv_cache_usage_ratio: until the middle of 2025).
# The first in the text counts.
GAUGES = {
    "running_requests": ("vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size",
                         "llamacpp:requests_processing"),
    "waiting_requests": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size",
                         "llamacpp:requests_deferred"),
}  # fmt: skip
SHARES = {
    "kv_used_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
                      "llamacpp:kv_cache_usage_ratio"),
    "accepted_length_tokens": ("sglang:spec_accept_length",),
}  # fmt: skip
COUNTERS = {
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    # SGLang looks up each token of a prompt.
    "prefix_queried_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total",
                              "sglang:prompt_tokens_total"),
    "prefix_hit_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
                          "sglang:cached_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total",
                      "tgi_request_generated_tokens_sum", "llamacpp:tokens_predicted_total"),
    "drafts": ("vllm:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_drafts_total"),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total",
                        "tgi_request_skipped_tokens_sum"),
}  # fmt: skip

_BEYOND = 1e18  # no count or share is: a sum of such values could leave the numbers that JSON has


def read(text: str) -> dict[str, float]:
    """The wanted values. Over several label sets (data-parallel ranks) counts are summed and shares averaged."""
    text = "\n" + text
    metrics = {}
    for name, theirs in (GAUGES | SHARES | COUNTERS).items():
        values = next((values for other in theirs if (values := list(_values(text, other)))), None)
        if values:
            metrics[name] = sum(values) / (len(values) if name in SHARES else 1)
    return metrics


def _values(text: str, name: str) -> Iterator[float]:
    """Those of each label set: `name{label="x"} 12.0`, perhaps with a time behind it."""
    wanted = "\n" + name
    place = text.find(wanted)
    while place >= 0:
        start = place + len(wanted)
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
        place = text.find(wanted, start)


def _follower(line: str) -> bool:
    """SGLang's ranks of one replica may each report the same requests: the first speaks for all."""
    return any(rank in line and f'{rank}"0"' not in line for rank in ("tp_rank=", "pp_rank="))
