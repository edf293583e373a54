"""A stand-in until the reader of all formats is here: result files of `vllm bench serve`, one object or one a line."""

import json
from pathlib import Path

from dyno.errors import StoreError
from dyno.facts.definition import definition
from dyno.facts.imported import Document, Figure, Row, Samples, Scalar, Setting

_FIGURES = {"duration": "duration_s"}
_SETTINGS = {"max_concurrency": "concurrency", "request_rate": "rate", "num_prompts": "num_prompts",
             "model_id": "model", "tokenizer_id": "tokenizer", "backend": "backend"}  # fmt: skip


def read(path: Path) -> Document:
    try:
        objects = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as e:
        raise StoreError(f"{path} can't be read: {e}.") from None
    return Document(str(path), "vllm serve json", rows=[_row(str(path), i + 1, o) for i, o in enumerate(objects)])


def _row(file: str, line: int, told: dict[str, object]) -> Row:
    figures = {}
    for key, value in told.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in _SETTINGS:
            stem = key.split("_")[1] if key.endswith("_ms") else ""
            figures[_FIGURES.get(key, key)] = Figure(float(value), line, definition=definition("vllm", stem))
    settings: dict[str, Setting] = {}
    for key, name in _SETTINGS.items():
        value = told.get(key)
        if isinstance(value, Scalar):
            settings[name] = Setting(value, line)
    columns: dict[str, list[float]] = {k: v for k, v in told.items() if isinstance(v, list)}
    samples = None
    if "ttfts" in columns:
        samples = Samples(
            ttfts_ms=[1e3 * v for v in columns["ttfts"]],
            starts_s=columns.get("start_times", []),
            e2els_ms=[1e3 * v for v in columns.get("latencies", [])],
            output_lens=[int(v) for v in columns.get("output_lens", [])],
        )
    return Row("serve", "vllm", "json", file, line, line, figures, settings, samples=samples)
