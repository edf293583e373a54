"""Workloads of a chart: what stays the same along a line, in words, and the select of one of them."""

from collections.abc import Iterable, Sequence

from dyno.facts.entry import Entry
from dyno.facts.imported import Scalar
from dyno.facts.load import whole
from dyno.report.charts.base import Select

_KINDS = {"serve": "serving", "throughput": "offline", "latency": "offline batch", "micro": "micro", "quality": "task"}


def workload(entry: Entry, axis: str) -> tuple[tuple[str, Scalar], ...]:
    """The load without what the axis tells. Points of two of them are never on one line."""
    return (("kind", entry.kind), *entry.beside(axis).items())


def load_words(load: Iterable[tuple[str, Scalar]]) -> str:
    """In words, and all of it: two workloads must not read alike."""
    told = dict(load)
    kind = told.pop("kind", "")
    return whole(told) or _KINDS.get(str(kind), "") or "one workload"


def several_words(loads: Sequence[tuple[tuple[str, Scalar], ...]]) -> list[str]:
    """Of workloads, each told apart from the others."""
    told = [load_words(load) for load in loads]
    return [
        f"{text} ({_KINDS[str(dict(load)['kind'])]})" if told.count(text) > 1 else text
        for text, load in zip(told, loads, strict=True)
    ]


def panels(entries: Sequence[Entry], axis: str, least: int = 2) -> Select | None:
    """The workloads that were measured, that with most entries first; None where none has so many loads."""
    found: dict[tuple[tuple[str, Scalar], ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(workload(entry, axis), []).append(entry)
    if not any(len({e.axes[axis] for e in group}) >= least for group in found.values()):
        return None
    most = max(range(len(found)), key=lambda i: (len(list(found.values())[i]), -i))
    return Select("workload", "Workload", dict(enumerate(several_words(list(found)))), most)


def places(entries: Sequence[Entry], axis: str) -> dict[str, int]:
    """Of each entry's id, the index of its workload, as panels() numbers them."""
    index: dict[tuple[tuple[str, Scalar], ...], int] = {}
    return {e.id: index.setdefault(workload(e, axis), len(index)) for e in entries}
