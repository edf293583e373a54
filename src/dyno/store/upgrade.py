"""Files that earlier versions wrote, as this one writes them. Nothing on the disk is changed."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

Upgrade = Callable[[dict[str, Any]], None]

# Latencies were fields of the summary and lists of the samples; they are entries of a mapping now.
_MAPPED = re.compile(rb'"latencies":\s*\{')
_SUMMARY_LATENCIES = (
    "ttft", "ttfo", "tpot", "own_tpot", "itl", "itl_per_token", "itl_text", "e2el", "response_ttft", "response_e2el",
    "queue",
)  # fmt: skip
_SAMPLE_LISTS = {
    "ttfts_ms": "ttft", "ttfos_ms": "ttfo", "tpots_ms": "tpot", "vllm_tpots_ms": "vllm_tpot", "itls_ms": "itl",
    "e2els_ms": "e2el", "latencies_ms": "latency",
}  # fmt: skip
_LISTED = re.compile(
    rb'"(?:%s)":\s*\[' % b"|".join(name.encode() for name in _SAMPLE_LISTS)
)


def result(data: bytes) -> bytes:
    """Return a summary.json with its latencies in one mapping."""
    return (
        data
        if _MAPPED.search(data) or b'"response_ttft"' not in data
        else _changed(data, result_fields)
    )


def result_fields(values: dict[str, Any]) -> None:
    summary = values.get("summary")
    if isinstance(summary, dict) and "latencies" not in summary:
        known = {
            name: summary.pop(name)
            for name in _SUMMARY_LATENCIES
            if summary.get(name) is not None
        }
        summary["latencies"] = known


def imported(data: bytes) -> bytes:
    """Return an import with the samples of its rows in one mapping."""
    return _changed(data, _imported) if _LISTED.search(data) else data


def _imported(values: dict[str, Any]) -> None:
    for row in values["document"].get("rows", []):
        _samples(row)


def _samples(row: dict[str, Any]) -> None:
    samples = row.get("samples")
    if samples:
        lists = {
            stem: samples.pop(name)
            for name, stem in _SAMPLE_LISTS.items()
            if name in samples
        }
        samples["times_ms"] = lists
    for other in row.get("also", []):
        _samples(other)


def _changed(data: bytes, change: Upgrade) -> bytes:
    values = msgspec.json.decode(data)
    if isinstance(values, dict):
        change(values)
    return msgspec.json.encode(values)
