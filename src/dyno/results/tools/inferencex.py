"""What InferenceX writes as agg_*.json: vLLM's latencies in seconds, and throughput by accelerator."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from dyno.results.draft import Draft
from dyno.results.json_text import Value

_LATENCY: Final = re.compile(r"(?P<statistic>mean|median|std|p\d+(?:\.\d+)?)_(?P<stem>ttft|tpot|itl|e2el)")
_SETTINGS: Final = {
    "hw": "accelerator", "conc": "concurrency", "framework": "engine", "precision": "quantization", "model": "model",
    "tp": "tensor_parallel", "isl": "input_len", "osl": "output_len", "image": "image", "ep": "ep",
    "spec_decoding": "speculative", "tput_per_gpu": "tput_per_gpu", "output_tput_per_gpu": "output_tput_per_gpu",
}  # fmt: skip


def is_aggregate(value: Value) -> bool:
    return value.has("hw", "conc") and any(_LATENCY.fullmatch(key) for key in value.fields)


def aggregate(value: Value, file: str) -> Iterator[Draft]:
    draft = Draft("serve", "inferencex", file, value)
    draft.label = PurePath(file).stem
    draft.read_keys(value, _LATENCY, 1e3)
    draft.read_settings(value, _SETTINGS)
    draft.figure("power_w", value.get("avg_power_w"))
    draft.series = ", ".join(str(s.value) for k in ("accelerator", "engine") if (s := draft.settings.get(k)))
    yield draft
