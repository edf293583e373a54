"""Who leads: series under one workload, held together at the loads that all of them were measured under."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from dyno.facts.entry import Entry
from dyno.facts.load import identity, whole
from dyno.facts.metric import THROUGHPUTS, better
from dyno.report.entries import Made
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
    made: list[Made]  # one for each series
    left_out: list[str] = []  # series that have no result that counts under these loads
    partial: bool = False  # some were measured under other loads too
    crossed: tuple[Made, Made] | None = None  # at the lowest load another one leads: that, and the leader there
    beyond: Made | None = None  # it has more, under a load that not all were measured under

    @property
    def lower(self) -> bool:
        return better(self.metric, str(self.made[0].entry.load.get("metric", ""))) == "lower"

    def value(self, m: Made) -> float:
        return m.entry.value(self.metric) or 0.0

    @property
    def ranked(self) -> list[Made]:
        return sorted(self.made, key=self.value, reverse=not self.lower)

    def lead(self) -> float:
        """As a share of the second."""
        first, other = (self.value(m) for m in self.ranked[:2])
        return abs(first - other) / other if other else float(first != other)


def contests(made: Sequence[Made], limits: dict[str, float]) -> Iterator[Contest]:
    """One that was measured under more loads than another has no right to its best of these. A target leaves out what
    misses it, and doesn't change which loads are shared."""
    families: dict[tuple[str, str, str], dict[str, list[Made]]] = {}
    for m in made:
        e = m.entry
        if e.axis and e.kind not in SMALL and counts(e, {}):
            families.setdefault((e.kind, whole(e.workload), e.axis), {}).setdefault(e.series, []).append(m)
    for (kind, words, axis), there in sorted(families.items(), key=lambda pair: _natural(pair[0][1])):
        shared = _sharing(there, axis)
        able = {name: [m for m in of if counts(m.entry, limits)] for name, of in shared.items()}
        held = {name: of for name, of in able.items() if of}
        contest = _contest(kind, words, held, axis) if len(held) > 1 else None
        if contest is not None:
            contest.left_out = [name for name in there if name not in held]
            contest.partial = len({frozenset(m.entry.axes[axis] for m in of) for of in there.values()}) > 1
            contest.crossed = _crossed(contest, held, axis) if not limits else None
            contest.beyond = _beyond(contest, [m for of in there.values() for m in of if counts(m.entry, limits)])
            yield contest


def counts(e: Entry, limits: dict[str, float]) -> bool:
    return why_not(e, limits) in ("", "throughput")


def _beyond(contest: Contest, all_of: Sequence[Made]) -> Made | None:
    """More, under a load that others lack, is no lead."""
    best = max(all_of, key=contest.value)
    more = not contest.lower and contest.value(best) > contest.value(contest.ranked[0]) * (1 + ALIKE)
    return best if more else None


def _crossed(contest: Contest, held: dict[str, list[Made]], axis: str) -> tuple[Made, Made] | None:
    """Who is ahead with few requests at once need not be it with many."""
    low = min(m.entry.axes[axis] for of in held.values() for m in of)
    at = {name: [m for m in of if m.entry.axes[axis] == low] for name, of in held.items()}
    if contest.lower or not all(at.values()):
        return None
    there = {name: _best(of, contest.metric) for name, of in at.items()}
    first, mine = max(there.values(), key=contest.value), there[contest.ranked[0].entry.series]
    return (first, mine) if contest.value(first) > contest.value(mine) * (1 + ALIKE) else None


def _natural(words: str) -> list[tuple[int, str]]:
    """1000 before 10000, as a reader counts."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", words)]


def _sharing(there: dict[str, list[Made]], axis: str) -> dict[str, list[Made]]:
    """Those series, as many as may be and with as many loads as may be, that have loads in common, at these loads."""
    at = {name: {m.entry.axes[axis] for m in of} for name, of in there.items()}

    def sharing(load: float) -> tuple[list[str], set[float]]:
        names = [name for name, values in at.items() if load in values]
        return names, set.intersection(*(at[name] for name in names))

    loads = {v for values in at.values() for v in values}
    names, shared = max(map(sharing, loads), key=lambda found: (len(found[0]), len(found[1]), max(found[1])))
    return {name: [m for m in there[name] if m.entry.axes[axis] in shared] for name in names}


def _contest(kind: str, words: str, held: dict[str, list[Made]], axis: str) -> Contest | None:
    def told(names: Sequence[str]) -> str | None:
        return next((n for n in names if all(m.entry.value(n) is not None for of in held.values() for m in of)), None)

    contest = None
    if (speed := told(THROUGHPUTS)) is not None:
        contest = Contest(speed, kind, words, [_best(of, speed) for of in held.values()])
        if axis != "rate" or contest.lead() >= ALIKE:
            return contest
    # Where all serve what is offered, or tell no speed, who answers sooner leads: at the highest load that all have.
    wait = told(WAITS)
    levels = set.intersection(*({m.entry.axes[axis] for m in of} for of in held.values()))
    if wait is None or not levels:
        return contest
    last = [[m for m in of if m.entry.axes[axis] == max(levels)] for of in held.values()]
    return Contest(wait, kind, words, [_best(of, wait) for of in last])


def _best(of: Sequence[Made], metric: str) -> Made:
    lower = better(metric) == "lower"
    return sorted(of, key=lambda m: m.entry.value(metric) or 0.0, reverse=not lower)[0]


def small_contests(made: Sequence[Made]) -> Iterator[Contest]:
    """Micro tests and scores: at the same test or task."""
    groups: dict[tuple[object, ...], dict[str, list[Made]]] = {}
    for m in made:
        e = m.entry
        if e.kind in SMALL and e.verdict != "void" and e.value(SMALL[e.kind]) is not None:
            key = (e.kind, e.tool, *identity(e.load))
            groups.setdefault(key, {}).setdefault(e.series, []).append(m)
    for held in groups.values():
        if len(held) > 1:
            first = next(iter(held.values()))[0].entry
            metric = SMALL[first.kind]
            one = Contest(metric, first.kind, whole(first.load), [m for of in held.values() for m in of])
            best = {m.entry.series: m for m in reversed(one.ranked)}  # of a series, its best
            yield Contest(metric, first.kind, whole(first.load), list(best.values()))
