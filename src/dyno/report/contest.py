"""Who leads: series under one workload, held together at the loads that all of them were measured under."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from dyno.facts.entry import Entry
from dyno.facts.load import identity, whole
from dyno.facts.metric import THROUGHPUTS, better
from dyno.report.target import why_not

ALIKE = 0.02  # of a throughput: as good as the same
WAITS = ("p99_ttft_ms", "median_ttft_ms", "mean_ttft_ms", "p99_e2el_ms", "mean_e2el_ms", "mean_latency_ms",
         "median_latency_ms")  # fmt: skip
SMALL = {"micro": "speed", "quality": "score"}  # kinds without a load, and their figure


class Contest(msgspec.Struct):
    """Series under one workload, the best first, each at the best of the loads that all of them were measured under."""

    metric: str
    kind: str
    about: str  # the workload, in words
    entries: list[Entry]  # one for each series
    left_out: list[str] = []  # series that have no result that counts under these loads
    partial: bool = False  # some were measured under other loads too
    crossed: tuple[Entry, Entry] | None = None  # at the lowest load another one leads: that, and the leader there
    beyond: Entry | None = None  # it has more, under a load that not all were measured under

    @property
    def lower(self) -> bool:
        return better(self.metric, str(self.entries[0].load.get("metric", ""))) == "lower"

    def value(self, e: Entry) -> float:
        return e.value(self.metric) or 0.0

    @property
    def ranked(self) -> list[Entry]:
        return sorted(self.entries, key=self.value, reverse=not self.lower)

    def lead(self) -> float:
        """As a share of the second."""
        first, other = (self.value(e) for e in self.ranked[:2])
        return abs(first - other) / other if other else float(first != other)


def contests(entries: Sequence[Entry], limits: dict[str, float]) -> Iterator[Contest]:
    """One that was measured under more loads than another has no right to its best of these. A target leaves out what
    misses it, and doesn't change which loads are shared."""
    families: dict[tuple[str, str, str], dict[str, list[Entry]]] = {}
    for e in entries:
        if e.axis and e.kind not in SMALL and counts(e, {}):
            families.setdefault((e.kind, whole(e.workload), e.axis), {}).setdefault(e.series, []).append(e)
    for (kind, words, axis), there in sorted(families.items(), key=lambda pair: _natural(pair[0][1])):
        shared = _sharing(there, axis)
        able = {name: [e for e in of if counts(e, limits)] for name, of in shared.items()}
        held = {name: of for name, of in able.items() if of}
        contest = _contest(kind, words, held, axis) if len(held) > 1 else None
        if contest is not None:
            contest.left_out = [name for name in there if name not in held]
            contest.partial = len({frozenset(e.axes[axis] for e in of) for of in there.values()}) > 1
            contest.crossed = _crossed(contest, held, axis) if not limits else None
            contest.beyond = _beyond(contest, [e for of in there.values() for e in of if counts(e, limits)])
            yield contest


def counts(e: Entry, limits: dict[str, float]) -> bool:
    return why_not(e, limits) in ("", "throughput")


def _beyond(contest: Contest, all_of: Sequence[Entry]) -> Entry | None:
    """More, under a load that others lack, is no lead."""
    best = max(all_of, key=contest.value)
    more = not contest.lower and contest.value(best) > contest.value(contest.ranked[0]) * (1 + ALIKE)
    return best if more else None


def _crossed(contest: Contest, held: dict[str, list[Entry]], axis: str) -> tuple[Entry, Entry] | None:
    """Who is ahead with few requests at once need not be it with many."""
    low = min(e.axes[axis] for of in held.values() for e in of)
    at = {name: [e for e in of if e.axes[axis] == low] for name, of in held.items()}
    if contest.lower or not all(at.values()):
        return None
    there = {name: _best(of, contest.metric) for name, of in at.items()}
    first, mine = max(there.values(), key=contest.value), there[contest.ranked[0].series]
    return (first, mine) if contest.value(first) > contest.value(mine) * (1 + ALIKE) else None


def _natural(words: str) -> list[tuple[int, str]]:
    """1000 before 10000, as a reader counts."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", words)]


def _sharing(there: dict[str, list[Entry]], axis: str) -> dict[str, list[Entry]]:
    """Those series, as many as may be and with as many loads as may be, that have loads in common, at these loads."""
    at = {name: {e.axes[axis] for e in of} for name, of in there.items()}

    def sharing(load: float) -> tuple[list[str], set[float]]:
        names = [name for name, values in at.items() if load in values]
        return names, set.intersection(*(at[name] for name in names))

    loads = {v for values in at.values() for v in values}
    names, shared = max(map(sharing, loads), key=lambda found: (len(found[0]), len(found[1]), max(found[1])))
    return {name: [e for e in there[name] if e.axes[axis] in shared] for name in names}


def _contest(kind: str, words: str, held: dict[str, list[Entry]], axis: str) -> Contest | None:
    def told(names: Sequence[str]) -> str | None:
        return next((n for n in names if all(e.value(n) is not None for of in held.values() for e in of)), None)

    contest = None
    if (speed := told(THROUGHPUTS)) is not None:
        contest = Contest(speed, kind, words, [_best(of, speed) for of in held.values()])
        if axis != "rate" or contest.lead() >= ALIKE:
            return contest
    # Where all serve what is offered, or tell no speed, who answers sooner leads: at the highest load that all have.
    wait = told(WAITS)
    levels = set.intersection(*({e.axes[axis] for e in of} for of in held.values()))
    if wait is None or not levels:
        return contest
    last = [[e for e in of if e.axes[axis] == max(levels)] for of in held.values()]
    return Contest(wait, kind, words, [_best(of, wait) for of in last])


def _best(of: Sequence[Entry], metric: str) -> Entry:
    lower = better(metric) == "lower"
    return sorted(of, key=lambda e: e.value(metric) or 0.0, reverse=not lower)[0]


def small_contests(entries: Sequence[Entry]) -> Iterator[Contest]:
    """Micro tests and scores: at the same test or task."""
    groups: dict[tuple[object, ...], dict[str, list[Entry]]] = {}
    for e in entries:
        if e.kind in SMALL and e.verdict != "void" and e.value(SMALL[e.kind]) is not None:
            key = (e.kind, e.tool, *identity(e.load))
            groups.setdefault(key, {}).setdefault(e.series, []).append(e)
    for held in groups.values():
        if len(held) > 1:
            first = next(iter(held.values()))[0]
            metric = SMALL[first.kind]
            one = Contest(metric, first.kind, whole(first.load), [e for of in held.values() for e in of])
            best = {e.series: e for e in reversed(one.ranked)}  # of a series, its best
            yield Contest(metric, first.kind, whole(first.load), list(best.values()))
