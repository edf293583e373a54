"""Files that programs write for programs: JSON, JSON lines, CSV and SQL, detected by their content."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from dyno.facts.imported import Document, Row, Unread
from dyno.results import csv_text, json_text
from dyno.results.draft import Draft, rows_of
from dyno.results.json_text import Value
from dyno.results.lines import holds_numbers
from dyno.results.tools import (
    aiperf,
    guidellm,
    inference_benchmarker,
    inference_perf,
    llama_bench,
    llmperf,
    lm_eval,
    mmlu_pro,
    sglang,
    vllm,
)

_PREAMBLE: Final = 64 << 10
_JSON_LINE: Final = re.compile(rb'^(?:\[\s*(?=\{)|\{\s*(?="))', re.M)
_BEHIND: Final = (
    "llama-bench json",
    "llama-batched-bench jsonl",
    "vllm serve json",
    "sglang jsonl",
)
_STRANGE: Final = "JSON from an unknown tool"
_MOST: Final = 100  # remarks on one file that are kept


class Kind(NamedTuple):
    format: str
    is_one: Callable[[Value], bool]
    drafts: Callable[..., Iterator[Draft]]  # from an object and the file's name
    whole: bool = False  # from the list of all objects in the file


# The first that fits. dyno's and SGLang's files have vLLM's keys too.
KINDS: Final = (
    Kind("dyno json", vllm.is_dyno, vllm.dyno),
    Kind("sglang jsonl", sglang.is_serve, sglang.serve),
    Kind("vllm serve json", vllm.is_serve, vllm.serve),
    Kind("vllm throughput json", vllm.is_throughput, vllm.throughput),
    Kind("vllm latency json", vllm.is_latency, vllm.latency),
    Kind("llama-bench json", llama_bench.is_test, llama_bench.tests),
    Kind("llama-batched-bench jsonl", llama_bench.is_batched, llama_bench.batched),
    Kind("aiperf json", aiperf.is_profile, aiperf.profile),
    Kind("aiperf records", aiperf.is_record, aiperf.records, whole=True),
    Kind("guidellm json", guidellm.is_report, guidellm.reports),
    Kind("lm-eval json", lm_eval.is_results, lm_eval.results),
    Kind("lm-eval samples", lm_eval.is_sample, lm_eval.samples, whole=True),
    Kind("mmlu-pro json", mmlu_pro.is_answer, mmlu_pro.answers, whole=True),
    Kind(
        "inference-benchmarker json",
        inference_benchmarker.is_report,
        inference_benchmarker.reports,
    ),
    Kind("inferencex json", vllm.is_inferencex, vllm.inferencex),
    Kind("llmperf json", llmperf.is_summary, llmperf.summary),
    Kind("inference-perf json", inference_perf.is_stage, inference_perf.stages),
    Kind("inference-perf json", inference_perf.is_stages, inference_perf.stages),
)


def read(file: str, data: bytes) -> Document | None:
    """Return None for any other file: plain text, Markdown, something binary."""
    data = _utf8(data)
    if b"\0" in data[:4096]:
        return None
    head = data[:4096].lstrip()[:1]
    if head in (b"{", b"["):
        return _json(file, data)
    if llama_bench.is_sql(data[:4096].decode("utf-8", "replace")):
        rows, unread = llama_bench.sql(data.decode("utf-8", "replace"), file)
        return Document(file, "llama-bench sql", rows, unread=_capped(unread))
    document = csv_text.read(file, data)
    return document if document is not None else _behind(file, data)


def _behind(file: str, data: bytes) -> Document | None:
    """Read JSON of a known kind behind other output of the program, up to the end of the file."""
    match = _JSON_LINE.search(data[:_PREAMBLE])
    if (
        match is None
        or b"\n```" in data[: match.start()]
        or b"Benchmark Result" in data[: match.start()]
    ):
        return None
    blank = b"\n" * data.count(b"\n", 0, match.start())  # its lines keep their numbers
    document = _json(file, blank + data[match.start() :])
    if (
        document is None
        or not document.rows
        or document.format not in _BEHIND
        or len(document.unread) > 2
    ):
        return None
    return document


def _utf8(data: bytes) -> bytes:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # PowerShell's >
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def _json(file: str, data: bytes) -> Document | None:
    """Read a file of JSON. None: it is a log that has objects in it."""
    content = json_text.values(data)
    if content is None:
        return None
    known, strange = _by_kind(content.values)
    if not known and content.broken > max(2, len(content.values)):
        return None
    unread = list(content.unread)
    rows: list[Row] = []
    for kind, values in known.values():
        parts = [values] if kind.whole else values
        more, wrong = rows_of(draft for part in parts for draft in kind.drafts(part, file))
        rows += more
        unread += wrong
    if known:
        unread += [
            Unread(value.line, _STRANGE, "lines") for value in strange if value.size > 2
        ]
    else:
        line = content.values[0].line if content.values else 1
        unread.append(Unread(line, _STRANGE, "file" if holds_numbers(data) else ""))
    rows.sort(key=lambda row: row.line)
    return Document(file, next(iter(known), "json"), rows, unread=_capped(unread))


def _by_kind(
    values: Iterable[Value],
) -> tuple[dict[str, tuple[Kind, list[Value]]], list[Value]]:
    """Return the objects of each kind by its format, and those of no known kind."""
    known: dict[str, tuple[Kind, list[Value]]] = {}
    strange: list[Value] = []
    for value in _objects(values):
        kind = next((kind for kind in KINDS if kind.is_one(value)), None)
        if kind is None:
            strange.append(value)
        else:
            known.setdefault(kind.format, (kind, []))[1].append(value)
    return known, strange


def _objects(values: Iterable[Value]) -> Iterable[Value]:
    """Yield objects, also those of a list such as a sweep's summary.json."""
    for value in values:
        if not value.is_list:
            yield from llama_bench.inner_tests(value)
            continue
        for item in value.items():
            if not item.is_object:
                break  # of numbers or of texts: no result
            yield item


def _capped(unread: list[Unread]) -> list[Unread]:
    unread = sorted(unread, key=lambda u: u.line)
    if len(unread) <= _MOST:
        return unread
    return [
        *unread[:_MOST],
        Unread(unread[_MOST].line, f"and {len(unread) - _MOST} more", "lines"),
    ]
