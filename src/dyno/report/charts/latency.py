"""Latencies against the load: one chart a latency and axis."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dyno.facts.chart import Chart
from dyno.facts.definition import meanings
from dyno.facts.entry import Entry
from dyno.facts.load import AXES, KEYS
from dyno.facts.metric import STEMS
from dyno.facts.metric import latency as parts
from dyno.report.charts.against import Measure, against
from dyno.report.charts.base import meaning_words
from dyno.report.look import Look

NAMES = {name: stem.charted for name, stem in STEMS.items() if stem.about}
_NO_LINE = ("std", "min", "max")


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
                title=f"{NAMES[stem]} against {KEYS[axis].against}",
                about=f"{STEMS[stem].about} Lower is better. Bars are 95 % intervals where they are known.",
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
    found = {m[0].replace("median", "p50") for n in names if (m := parts(n)) and m[1] == stem and m[0] not in _NO_LINE}
    return sorted(found, key=lambda s: -1.0 if s == "mean" else float(s[1:]))


def definition(entry: Entry, stem: str, told: Sequence[str]) -> str | None:
    """None: the entry doesn't have this latency."""
    return next((n.definition for s in told if (n := entry.statistic(s, stem)) is not None), None)
