"""What LLMPerf writes as *_summary.json: flat keys, in seconds. Its inter-token latency has the first token in it."""

import re
from pathlib import PurePath
from typing import Final

from dyno.facts.imported import Row, Unread
from dyno.facts.metric import stem_named
from dyno.results.draft import Draft
from dyno.results.value import Value

_LATENCY: Final = re.compile(
    r"results_(ttft|end_to_end_latency|inter_token_latency)_s_(?:(mean|min|max|stddev)|quantiles_(p\d+))"
)


def is_summary(value: Value) -> bool:
    return value.has("results_ttft_s_mean")


def summaries(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        draft = Draft("serve", "llmperf", file, value)
        name = value.get("name")
        draft.label = (name.text if name else None) or PurePath(file).stem
        for key, field in value.fields.items():
            if match := _LATENCY.fullmatch(key):
                draft.latency(
                    (match[2] or match[3]).replace("stddev", "std"), stem_named(match[1]) or match[1], field, 1e3
                )
        draft.figure("completed", value.get("results_num_completed_requests"))
        draft.figure("failed", value.get("results_number_errors"))
        draft.figure("output_throughput", value.get("results_mean_output_throughput_token_per_s"))
        draft.setting("model", value.get("model"))
        draft.setting("concurrency", value.get("num_concurrent_requests"))
        draft.setting("input_len", value.get("mean_input_tokens"))
        draft.setting("output_len", value.get("mean_output_tokens"))
        rows.append(draft.row())
        unread += draft.unread
    return rows, unread
