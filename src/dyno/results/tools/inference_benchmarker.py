"""Hugging Face's inference-benchmarker: one row per load, without the warm-up."""

from collections.abc import Iterator
from typing import Final

from dyno.results.draft import Draft
from dyno.results.json_text import Value

_LATENCIES: Final = {
    "time_to_first_token_ms": "ttft",
    "inter_token_latency_ms": "itl",
    "e2e_latency_ms": "e2el",
}
# Its tokens are those that were generated; those of prompts are 'sent'.
_FIGURES: Final = {
    "successful_requests": "completed",
    "failed_requests": "failed",
    "total_tokens": "total_output_tokens",
    "total_tokens_sent": "total_input_tokens",
    "token_throughput_secs": "output_throughput",
    "request_rate": "request_throughput",
}
_SETTINGS: Final = {
    "config.model_name": "model", "config.tokenizer": "tokenizer", "config.profile": "profile",
    "config.run_id": "run_id", "start_time": "date", "config.prompt_options.num_tokens": "input_len",
    "config.decode_options.num_tokens": "output_len",
}  # fmt: skip


def is_report(value: Value) -> bool:
    first = next(value.each("results"), None)
    return first is not None and first.has("executor_type", "token_throughput_secs")


def reports(value: Value, file: str) -> Iterator[Draft]:
    for result in value.each("results"):
        name = result.text_of("id") or ""
        if name == "warmup":
            continue
        draft = Draft("serve", "inference-benchmarker", file, result)
        draft.label = name
        draft.read_figures(result, _FIGURES)
        draft.figure("duration_s", result.get("duration_ms"), 1e-3)
        draft.read_spreads(result, _LATENCIES)
        draft.read_settings(
            result, {"executor_type": "executor_type", "config.rate": "rate"}
        )
        if result.text_of("executor_type") == "ConstantVUs":
            draft.setting("concurrency", result.find("config.max_vus"))
        draft.read_settings(value, _SETTINGS)
        if (meta := value.find("config.meta")) is not None:
            draft.others(meta, ())
        yield draft
