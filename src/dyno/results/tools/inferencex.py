"""What InferenceX writes as agg_*.json: vLLM's latencies in seconds, and throughput by accelerator."""

import re
from pathlib import PurePath
from typing import Final

from dyno.facts.imported import Row, Unread
from dyno.results.draft import Draft
from dyno.results.value import Value

_LATENCY: Final = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)")
_SETTINGS: Final = {
    "hw": "accelerator", "conc": "concurrency", "framework": "engine", "precision": "quantization", "model": "model",
    "tp": "tensor_parallel", "isl": "input_len", "osl": "output_len", "image": "image", "ep": "ep",
    "spec_decoding": "speculative", "tput_per_gpu": "tput_per_gpu", "output_tput_per_gpu": "output_tput_per_gpu",
}  # fmt: skip


def is_aggregate(value: Value) -> bool:
    return value.has("hw", "conc") and any(_LATENCY.fullmatch(key) for key in value.fields)


def aggregates(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        draft = Draft("serve", "inferencex", file, value)
        draft.label = PurePath(file).stem
        for key, field in value.fields.items():
            if match := _LATENCY.fullmatch(key):
                draft.latency(match[1], match[2], field, 1e3)
        for key, name in _SETTINGS.items():
            draft.setting(name, value.get(key))
        draft.figure("power_w", value.get("avg_power_w"))
        draft.series = ", ".join(str(s.value) for k in ("accelerator", "engine") if (s := draft.settings.get(k)))
        rows.append(draft.row())
        unread += draft.unread
    return rows, unread
