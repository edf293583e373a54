"""Traces: requests with the times at which they came, and prompts that share the prefixes which theirs shared."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.visible import one_line
from dyno.workload.blocks import Blocks
from dyno.workload.datasets.traces import FORMATS, TimedTraceSpec, TraceFormat, TraceSpec
from dyno.workload.recorded import table_rows
from dyno.workload.request import OUT_OF_ORDER, Dropped, Request, Turn
from dyno.workload.tokenizer import Tokenizer

# of all prompts: their texts, and the requests made of them, take about 5 GB then
_MOST_TOKENS = 250_000_000
_LATEST_S = 1e11  # a time after this is one in milliseconds or less
_SHOWN = 12  # columns in a message


class TraceEntry(NamedTuple):
    time_s: float
    input: int
    output: int
    hash_ids: list[int]
    number: int  # of its row


def trace(spec: TraceSpec, tokenizer: Tokenizer) -> Iterator[Request | Dropped]:
    """Yield the requests of a trace, each as a session of its own that begins at its time."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs its file: give it with {setting_name('--dataset-path')}."
        )
    form = trace_format(spec)
    entries, dropped = _chosen(list(_entries(spec, spec.path, form)), spec, form)
    tokens = sum(entry.input for entry in entries)
    if tokens > _MOST_TOKENS:
        raise WorkloadError(
            f"The prompts of {len(entries):,} requests have {tokens:,} tokens. dyno holds at most "
            f"{_MOST_TOKENS:,}. Use a part of the trace: {setting_name('--num-prompts')}, or "
            f"{setting_name('--trace-start')} and {setting_name('--trace-end')}."
        )
    yield from dropped
    blocks, size = Blocks(tokenizer, spec.seed), form.block * spec.trace_length_scale
    for session, entry in enumerate(entries):
        hashes = entry.hash_ids[: math.ceil(entry.input / size)] if size else []
        ends = [min(round(size * i), entry.input) for i in range(1, len(hashes) + 1)]
        # What no hash id stands for is this request's own.
        keys = [*map(str, hashes), f"row {entry.number}"]
        text, count = blocks.prompt(keys, [*ends, entry.input])
        yield Turn(
            text,
            count,
            spec.output_len or entry.output,
            session=session,
            start_s=entry.time_s,
        )


def _chosen(
    entries: list[TraceEntry], spec: TraceSpec, form: TraceFormat
) -> tuple[list[TraceEntry], list[Dropped]]:
    """Return the requests of the window in the order of their times, and what was left out or sorted."""
    if not entries:
        only = f" with {form.only[0]} {form.only[1]}" if form.only else ""
        raise WorkloadError(
            f"{spec.path} has no requests{only}. Check {setting_name('--dataset-path')} and "
            f"{setting_name('--dataset-name')}."
        )
    # A row before is later: exports of several servers have this.
    late = sum(b.time_s < a.time_s for a, b in pairwise(entries))
    entries.sort(key=lambda entry: entry.time_s)
    window = _window(entries, spec)
    sendable = [entry for entry in window if entry.input and entry.output]
    short = _within_limit(sendable, spec)
    reasons = [
        Dropped(OUT_OF_ORDER, late),
        Dropped("requests without input or output tokens", len(window) - len(sendable)),
        Dropped(
            f"requests with more than {spec.trace_max_tokens} tokens (--trace-max-tokens)",
            len(sendable) - len(short),
        ),
    ]
    dropped = [reason for reason in reasons if reason.count]
    if not short:
        why = "; ".join(map(str, dropped))
        raise WorkloadError(f"No request of {spec.path} is left: {why}.")
    return short[: spec.num_prompts or None], dropped


def _within_limit(entries: list[TraceEntry], spec: TraceSpec) -> list[TraceEntry]:
    limit = spec.trace_max_tokens
    if limit is None:
        return entries
    return [
        entry
        for entry in entries
        if entry.input + (spec.output_len or entry.output) <= limit
    ]


def _window(entries: list[TraceEntry], spec: TraceSpec) -> list[TraceEntry]:
    first, last = entries[0].time_s, entries[-1].time_s
    start, end = (
        spec.trace_start_s,
        math.inf if spec.trace_end_s is None else spec.trace_end_s,
    )
    if end <= start:
        raise WorkloadError(
            f"The window of the trace is empty: it ends at {end:g} s and starts at {start:g} s."
        )
    window = [entry for entry in entries if start <= entry.time_s - first < end]
    if not window:
        raise WorkloadError(
            f"{spec.path} has no request from {start:g} to {end:g} s: it has {len(entries):,} requests within "
            f"{last - first:,.0f} s. Change {setting_name('--trace-start')} or {setting_name('--trace-end')}."
        )
    return window


def _entries(spec: TraceSpec, path: str, form: TraceFormat) -> Iterator[TraceEntry]:
    wanted = [form.time, form.input, form.output, *(form.only[:1] if form.only else ())]
    for number, place, row in table_rows(path):
        where = f"{path}, {place}"
        if missing := [name for name in wanted if row.get(name) is None]:
            advice = f"Check {setting_name('--dataset-name')}: timed_trace reads columns of any name."
            if isinstance(spec, TimedTraceSpec):
                label = setting_name("--timed-trace-label-timestamp")
                advice = f"Name its columns with {label}, -input-length, -output-length."
            seen = one_line(", ".join(list(row)[:_SHOWN]))
            raise WorkloadError(
                f"{where}: no {' or '.join(missing)}. It has {seen}. {advice}"
            )
        if form.only and row[form.only[0]] != form.only[1]:
            continue
        lengths = [
            _length(row[name], f"{where}: {name}") for name in (form.input, form.output)
        ]
        prompt, answer = (
            max(1, round(n * spec.trace_length_scale)) if n else 0 for n in lengths
        )
        time_s = _time_s(row[form.time], form.unit_s, f"{where}: {form.time}")
        yield TraceEntry(
            time_s, prompt, answer, _hash_ids(row.get(form.hash_ids), where), number
        )


def trace_format(spec: TraceSpec) -> TraceFormat:
    if not isinstance(spec, TimedTraceSpec):
        return FORMATS[spec.dataset]
    return TraceFormat(
        spec.timed_trace_label_timestamp,
        spec.timed_trace_label_input_length,
        spec.timed_trace_label_output_length,
        spec.timed_trace_label_hash_ids,
        spec.timed_trace_sec_multiplier,
        spec.timed_trace_chunk_hash_size,
    )


# ---- values of a row ----


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise WorkloadError(
            f"{where} is {value!r:.80}, not a number. Correct or delete it."
        )
    if number < 0:
        raise WorkloadError(
            f"{where} is {value}; it can't be negative. Correct or delete it."
        )
    return number


def _length(value: Any, where: str) -> int:
    number = _number(value, where)
    if not number.is_integer() or number > _MOST_TOKENS:
        why = (
            "not a whole number of tokens"
            if number <= _MOST_TOKENS
            else "more than a request can have"
        )
        raise WorkloadError(f"{where} is {value}, {why}. Correct or delete it.")
    return int(number)


def _time_s(value: Any, unit_s: float, where: str) -> float:
    """Read seconds, or a date and time."""
    if isinstance(value, str) and "-" in value[1:] and ":" in value:
        try:
            moment = datetime.fromisoformat(value.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise WorkloadError(
                f"{where} is {value!r:.80}, not a date and time. Correct or delete it."
            ) from None
    seconds = _number(value, where) * unit_s
    if seconds > _LATEST_S:
        raise WorkloadError(
            f"{where} is {value}, which isn't in seconds. Use {setting_name('--dataset-name')} timed_trace with "
            f"{setting_name('--timed-trace-sec-multiplier', 0.001)} for milliseconds, 1e-6 for microseconds."
        )
    return seconds


def _hash_ids(value: Any, where: str) -> list[int]:
    if value is None:
        return []
    try:
        if isinstance(value, str):
            return msgspec.json.decode(value or "[]", type=list[int])
        return [int(id) for id in value]
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError(
            f"{where}: the hash ids are {str(value)[:40]!r}, not a list of whole numbers."
        ) from None
