"""Latencies against the load: one chart a latency and axis."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dyno.facts.chart import Chart
from dyno.facts.definition import meanings
from dyno.facts.entry import AXES, Entry
from dyno.report.charts.against import Measure, against
from dyno.report.charts.base import meaning_words
from dyno.report.charts.throughput import AGAINST
from dyno.report.look import Look

NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "ntpot": "NTPOT",
    "latency": "Batch latency",
}
WHOLE = {
    "ttft": "Time to the first token.",
    "tpot": "Time per output token after the first.",
    "itl": "Gaps between chunks, which the reader of a stream sees.",
    "e2el": "End to end: from sending to the last token.",
    "ntpot": "End to end, for each output token.",
    "latency": "Of a whole batch, offline.",
}
_NAMED = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_([a-z0-9]+)_ms")


def latency(entries: Sequence[Entry], look: Look) -> Iterator[Chart]:
    for stem in NAMES:
        told = statistics(entries, stem)
        if not told:
            continue
        index = meanings(key for e in entries if (key := definition(e, stem, told)) is not None)
        measures = [measure(statistic, stem) for statistic in told]
        for axis in AXES:
            chart = against(
                entries,
                axis,
                look,
                measures,
                name=f"{stem}-{axis.replace('_', '-')}",
                group="Latency",
                title=f"{NAMES[stem]} against {AGAINST[axis]}",
                about=f"{WHOLE[stem]} Lower is better. Bars are 95 % intervals where they are known.",
                choice="statistic",
                label="Statistic",
                log=True,
                meaning=partial(meaning, stem, told, index),
                meaning_words=meaning_words(index),
            )
            if chart:
                yield chart


def measure(statistic: str, stem: str) -> Measure:
    title = f"{NAMES[stem]}, {statistic} (ms)"
    return Measure(statistic, statistic, title, "ms", lambda entry: entry.statistic(statistic, stem))


def meaning(stem: str, told: Sequence[str], index: Mapping[str, int], entry: Entry) -> int:
    return index[definition(entry, stem, told) or ""]


def statistics(entries: Sequence[Entry], stem: str) -> list[str]:
    """Mean, then percentiles as they rise."""
    names = {name for e in entries for name in e.figures}
    found = {m[1].replace("median", "p50") for n in names if (m := _NAMED.fullmatch(n)) and m[2] == stem}
    return sorted(found, key=lambda s: -1.0 if s == "mean" else float(s[1:]))


def definition(entry: Entry, stem: str, told: Sequence[str]) -> str | None:
    """None: the entry doesn't have this latency."""
    return next((n.definition for s in told if (n := entry.statistic(s, stem)) is not None), None)
