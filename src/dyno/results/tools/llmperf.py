"""LLMPerf's *_summary.json: flat keys, in seconds. Its inter-token latency includes the first token."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from dyno.results.draft import Draft
from dyno.results.json_text import Value

_LATENCY: Final = re.compile(
    r"results_(?P<stem>ttft|end_to_end_latency|inter_token_latency)_s_"
    r"(?:quantiles_(?=p))?(?P<statistic>mean|min|max|stddev|p\d+)"
)
_FIGURES: Final = {
    "results_num_completed_requests": "completed",
    "results_number_errors": "failed",
    "results_mean_output_throughput_token_per_s": "output_throughput",
}
_SETTINGS: Final = {
    "model": "model",
    "num_concurrent_requests": "concurrency",
    "mean_input_tokens": "input_len",
    "mean_output_tokens": "output_len",
}


def is_summary(value: Value) -> bool:
    return value.has("results_ttft_s_mean")


def summary(value: Value, file: str) -> Iterator[Draft]:
    draft = Draft("serve", "llmperf", file, value)
    draft.label = value.text_of("name") or PurePath(file).stem
    draft.read_keys(value, _LATENCY, 1e3)
    draft.read_figures(value, _FIGURES)
    draft.read_settings(value, _SETTINGS)
    yield draft
