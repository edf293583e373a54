"""What Hugging Face's inference-benchmarker writes: a row for each load of it, the warm-up left out."""

from typing import Final

from dyno.facts.imported import Row, Unread
from dyno.results.draft import Draft
from dyno.results.value import Value

_LATENCIES: Final = {"time_to_first_token_ms": "ttft", "inter_token_latency_ms": "itl", "e2e_latency_ms": "e2el"}
# Its tokens are those that were generated; those of prompts are 'sent'.
_FIGURES: Final = {
    "successful_requests": ("completed", 1.0), "failed_requests": ("failed", 1.0), "duration_ms": ("duration_s", 1e-3),
    "total_tokens": ("total_output_tokens", 1.0), "total_tokens_sent": ("total_input_tokens", 1.0),
    "token_throughput_secs": ("output_throughput", 1.0), "request_rate": ("request_throughput", 1.0),
}  # fmt: skip


def is_report(value: Value) -> bool:
    listed = value.get("results")
    first = next(listed.items(), None) if listed is not None else None
    return first is not None and first.has("executor_type", "token_throughput_secs")


def reports(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        listed = value.get("results")
        for result in listed.items() if listed else ():
            name = result.get("id")
            if name is not None and name.text == "warmup":
                continue
            draft = Draft("serve", "inference-benchmarker", file, result)
            draft.label = (name.text if name else None) or ""
            for key, (figure, scale) in _FIGURES.items():
                draft.figure(figure, result.get(key), scale)
            for key, stem in _LATENCIES.items():
                spread = result.get(key)
                for field, found in spread.fields.items() if spread else ():
                    if field == "avg" or (field[:1] == "p" and field[1:].isdigit()):
                        draft.latency("mean" if field == "avg" else field, stem, found)
                if spread is not None:
                    draft.latency("median", stem, spread.get("p50"))
            _settings(draft, result, value)
            rows.append(draft.row())
            unread += draft.unread
    return rows, unread


def _settings(draft: Draft, result: Value, report: Value) -> None:
    executor = result.get("executor_type")
    draft.setting("executor_type", executor)
    draft.setting("rate", result.get("config", "rate"))
    if executor is not None and executor.text == "ConstantVUs":
        draft.setting("concurrency", result.get("config", "max_vus"))
    draft.setting("model", report.get("config", "model_name"))
    draft.setting("tokenizer", report.get("config", "tokenizer"))
    draft.setting("profile", report.get("config", "profile"))
    draft.setting("run_id", report.get("config", "run_id"))
    draft.setting("date", report.get("start_time"))
    draft.setting("input_len", report.get("config", "prompt_options", "num_tokens"))
    draft.setting("output_len", report.get("config", "decode_options", "num_tokens"))
    meta = report.get("config", "meta")
    if meta is not None:
        draft.others(meta, ())
