"""A latency target, the best load that meets it, and who leads: series under one workload, compared at one load that
all of them were measured under."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import geometric_mean
from typing import NamedTuple

import msgspec

from dyno.facts.entry import Entry, Number
from dyno.facts.limits import SHARES, Limit
from dyno.facts.load import COUNTED, RATES, Load
from dyno.facts.metric import THROUGHPUTS, TOKEN_THROUGHPUTS, better, words
from dyno.facts.metric import latency as parts
from dyno.facts.report import Best
from dyno.numbers import count, number, percent

FEW = 0.01  # of the requests may have failed
ALIKE = 0.02  # of a throughput: as good as the same
FALL = 0.05  # of a throughput: it falls with the load
WAITS = (
    "p99_ttft_ms",
    "median_ttft_ms",
    "mean_ttft_ms",
    "p99_e2el_ms",
    "mean_e2el_ms",
    "mean_latency_ms",
    "median_latency_ms",
)
SMALL = {"micro": "speed", "quality": "score"}  # kinds without a load, and their figure
_PREFERRED = "p99"
UNKNOWN = (
    "silent",
    "unchecked",
)  # why a result can't be the best: a figure of the target isn't there
_NO_LIMIT = ("std", "min", "p100")

# 'p99_ttft_ms' → maximum in milliseconds; a name of SHARES → maximum share
Limits = dict[str, float]


class Target(msgspec.Struct, frozen=True):
    limits: Limits
    words: list[str] = []  # which statistic was taken where none was asked for, and why


def target(entries: Iterable[Entry], wanted: Iterable[Limit]) -> Target:
    """Return the limits by name. Where no statistic is asked for: p99 if all results have it, else the highest
    percentile that they share, else the mean; where they share none, the one that most have."""
    with_figures = [e for e in entries if e.figures]
    named: Limits = {}
    reasons: list[str] = []
    for limit in wanted:
        statistic = limit.statistic
        if limit.is_share:
            named[limit.stem] = limit.most
            continue
        if not statistic:
            statistic, why = _statistic(with_figures, limit.stem)
            reasons.append(f"{limit.stem.upper()} by its {statistic}: {why}.")
        name = f"{statistic}_{limit.stem}_ms"
        named[name] = min(limit.most, named.get(name, math.inf))
    return Target(named, reasons)


def _statistic(entries: Sequence[Entry], stem: str) -> tuple[str, str]:
    """Return the statistic that a limit of a latency applies to, and why that one."""
    each = [_statistics(e, stem) for e in entries]
    # a result without this latency can't meet a limit of it
    each = [names for names in each if names]
    if not each:
        return _PREFERRED, "no result has one"
    shared = set.intersection(*each)
    if _PREFERRED in shared:
        return _PREFERRED, "all results with this latency have it"
    percentiles = [name for name in shared if _percent(name) is not None]
    if percentiles:
        return max(
            percentiles, key=lambda name: _percent(name) or 0.0
        ), "the highest percentile that all results have"
    if "mean" in shared:
        return "mean", "the results share no percentile"
    return _commonest(each)


def _commonest(each: Sequence[set[str]]) -> tuple[str, str]:
    """Return the statistic that most results have, and why that one."""
    counts = Counter(name for names in each for name in names if name != "max")
    if not counts:
        return "max", "the results have nothing else"
    most = max(
        counts,
        key=lambda name: (counts[name], name == _PREFERRED, _percent(name) or 0.0, name),
    )
    return (
        most,
        f"{counts[most]} of {len(each)} results have it, and none is in all of them",
    )


def _statistics(entry: Entry, stem: str) -> set[str]:
    """Return the statistics of a latency that a result has and a limit may apply to."""
    out = set()
    for name in entry.figures:
        statistic, its_stem = parts(name) or ("", "")
        if statistic and its_stem == stem and statistic not in _NO_LIMIT:
            out.add(_one_name(statistic))
    return out


def _percent(name: str) -> float | None:
    if name == "median":
        return 50.0
    return float(name[1:]) if name.startswith("p") else None


def _one_name(statistic: str) -> str:
    return "median" if statistic == "p50" else statistic


def latency(entry: Entry, name: str) -> float | None:
    """Return a figure by its name in a target."""
    statistic, stem = parts(name) or ("", "")
    number = entry.statistic(statistic, stem)
    return None if number is None else number.value


def limit_words(limits: Limits) -> str:
    """Return limits in words: 'p99 TTFT ≤ 500 ms'."""
    each = [Limit(*_parts(name, most)).words for name, most in limits.items()]
    return " and ".join(each)


def _parts(name: str, most: float) -> tuple[str, float, str]:
    statistic, stem = parts(name) or ("", name)
    return stem, most, statistic


def level(entry: Entry) -> str:
    """Describe the load: 'concurrency 8'."""
    return entry.load.level_words


# ---- the best load ----


class _Candidate(NamedTuple):
    entry: Entry
    why: str  # it can't be the best; '' where it can
    missed: float  # its worst latency over that limit; inf: not known


def best(entries: Iterable[Entry], limits: Limits) -> list[Best]:
    """Return the load with the most output for each series and workload. No limits: at any latency."""
    groups: dict[tuple[str, str, Load], list[_Candidate]] = {}
    for entry in entries:
        if entry.kind not in SMALL:
            key = (entry.series, entry.kind, entry.load.workload)
            groups.setdefault(key, []).append(_candidate(entry, limits))
    out = []
    for (series, kind, load), candidates in groups.items():
        chosen = _fastest([c.entry for c in candidates if not c.why])
        named = ", ".join(
            filter(None, [load.words, "" if kind == "serve" else f"offline {kind}"])
        )
        silent = any(c.why in UNKNOWN for c in candidates)
        why = (
            ""
            if chosen is not None and not silent
            else _why(candidates, limits, chosen is not None)
        )
        out.append(Best(series, named, chosen.id if chosen is not None else None, why))
    return out


def why_not(entry: Entry, limits: Limits) -> str:
    """Return why it can't be the best, in a word: '' where it counts and is within the limits."""
    return _candidate(entry, limits).why


def counts(entry: Entry, limits: Limits) -> bool:
    return why_not(entry, limits) in ("", "throughput")


def _candidate(entry: Entry, limits: Limits) -> _Candidate:
    values = {name: latency(entry, name) for name in _latencies(limits)}
    over = [
        math.inf if v is None or math.isnan(v) else v / limits[name]
        for name, v in values.items()
    ]
    missed = max(over, default=0.0)
    invalid = SHARES["invalid"].read(entry.value)
    reasons = {
        "failed": entry.failure or not entry.figures,
        "void": entry.verdict == "void",
        "requests": failed_share(entry) > limits.get("failed", FEW),
        "silent": math.isinf(missed),
        "unchecked": "invalid" in limits and invalid is None,
        "answers": (invalid or 0.0) > limits.get("invalid", 1.0),
        "slow": missed > 1,
        "throughput": all(entry.value(name) is None for name in TOKEN_THROUGHPUTS),
    }
    return _Candidate(
        entry, next((why for why, holds in reasons.items() if holds), ""), missed
    )


def _latencies(limits: Limits) -> list[str]:
    return [name for name in limits if name not in SHARES]


def failed_share(entry: Entry) -> float:
    """Return the share of sent requests that failed; where failures are unknown, of requested ones."""
    done, failed = entry.completed, entry.failed
    asked = entry.load.number(COUNTED)
    if failed is None and done is not None and asked is not None:
        failed = max(asked * entry.repeats - done, 0.0)
    sent = (done or 0.0) + (failed or 0.0)
    return (failed or 0.0) / sent if sent else 0.0


def _fastest(entries: Sequence[Entry]) -> Entry | None:
    """Return the fastest by output tokens; by all tokens where some have no other speed."""
    speeds = [[entry.value(name) for entry in entries] for name in TOKEN_THROUGHPUTS]
    by_all = [s for s in speeds if None not in s]
    by_some = [s for s in speeds if any(s)]
    usable = [*by_all, *by_some]
    if not usable:
        return None
    known = [
        (speed, entry)
        for speed, entry in zip(usable[0], entries, strict=True)
        if speed is not None
    ]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _why(candidates: Sequence[_Candidate], limits: Limits, chosen: bool) -> str:
    """Return the nearest load, and the excluded ones; where one was chosen, only results without the latency."""
    out = []
    slow = [c for c in candidates if c.why == "slow"]
    if slow and not chosen:
        near = min(slow, key=lambda c: c.missed).entry
        out.append(f"Nearest: {level(near)} with {', '.join(_exceeded(near, limits))}")
    for why, text in _exclusions(limits).items():
        levels = [level(c.entry) for c in candidates if c.why == why]
        if levels and (not chosen or why in UNKNOWN):
            out.append(text.format(_first_levels(levels)))
    sentence = "; ".join(out)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _first_levels(levels: Sequence[str]) -> str:
    first = ", ".join(levels[:3])
    return f"{first} and {len(levels) - 3} more" if len(levels) > 3 else first


def _exceeded(entry: Entry, limits: Limits) -> Iterator[str]:
    """Yield the latencies over their limits."""
    for name, limit in limits.items():
        value = latency(entry, name) if name not in SHARES else None
        if value is not None and value > limit:
            yield f"{words(name)} {number(value)} ms, {count(limit)} allowed"


def _exclusions(limits: Limits) -> dict[str, str]:
    """Return why a result can't be the best, in words with a place for its load."""
    latencies = [words(name) for name in _latencies(limits)]
    return {
        "silent": f"no {' or '.join(latencies)} at {{}}",
        "unchecked": "no check of answers at {}",
        "void": "void at {}",
        "requests": f"over {percent(limits.get('failed', FEW))} {SHARES['failed'].over} at {{}}",
        "answers": f"over {percent(limits.get('invalid', 0.0))} {SHARES['invalid'].over} at {{}}",
        "failed": "no result at {}",
        "throughput": "no throughput at {}",
    }


# ---- who leads ----


class Contest(msgspec.Struct):
    """Series under one workload, compared at one load that all of them were measured under. Under a target, each is at
    the best of these loads that meets it: the target is what they have in common."""

    metric: str
    kind: str
    about: str  # the workload, in words
    entries: list[Entry]  # one for each series
    # the same series the other way round: each at its best load, or at one load; []: there is no other way
    alternative: list[Entry] = []
    left_out: list[str] = []  # series that have no result that counts under these loads
    partial: bool = False  # some were measured under other loads too
    # at the lowest load another one leads: that, and the leader there
    crossed: tuple[Entry, Entry] | None = None
    # it has more, under a load that not all were measured under
    beyond: Entry | None = None

    @property
    def lower(self) -> bool:
        return better(self.metric, str(self.entries[0].load.get("metric") or "")) == "lower"

    def value(self, e: Entry) -> float:
        return e.value(self.metric) or 0.0

    @property
    def ranked(self) -> list[Entry]:
        """Return the entries, the best first."""
        return sorted(self.entries, key=self.value, reverse=not self.lower)

    def other_way(self) -> "Contest | None":
        """Return the same contest with the other choice of loads; None: there is none."""
        if not self.alternative:
            return None
        return msgspec.structs.replace(
            self, entries=self.alternative, alternative=self.entries
        )

    @property
    def one_load(self) -> bool:
        return len({e.load.level for e in self.entries}) == 1

    def lead(self) -> float:
        """Return the difference as a share of the second."""
        first, other = (self.value(e) for e in self.ranked[:2])
        return abs(first - other) / other if other else float(first != other)


BySeries = dict[str, list[Entry]]


def contests(entries: Sequence[Entry], limits: Limits) -> Iterator[Contest]:
    """Yield one for each workload. Who was measured under more loads than another has no right to its best of these. A
    target leaves out what misses it, and doesn't change which loads are shared."""
    families: dict[tuple[str, Load, str], BySeries] = {}
    measured: dict[tuple[str, Load, str], list[str]] = {}
    for e in entries:
        if not e.axis or e.kind in SMALL:
            continue
        key = (e.kind, e.load.workload, e.axis)
        measured.setdefault(key, []).append(e.series)
        if counts(e, {}):
            families.setdefault(key, {}).setdefault(e.series, []).append(e)
    for (kind, load, axis), family in sorted(
        families.items(), key=lambda pair: _natural(pair[0][1].words)
    ):
        shared = _sharing(family, axis)
        able = _able(shared, limits)
        contest = None
        if len(able) > 1:
            contest = _contest(kind, load.words, able, axis, bool(limits))
        if contest is not None:
            every = dict.fromkeys(measured[kind, load, axis])
            contest.left_out = [name for name in every if name not in able]
            contest.partial = (
                len({frozenset(e.axes[axis] for e in some) for some in family.values()}) > 1
            )
            contest.crossed = _crossed(contest, able, axis) if not limits else None
            everywhere = _able(family, limits).values()
            contest.beyond = _beyond(contest, chain.from_iterable(everywhere), shared)
            yield contest


def _able(family: BySeries, limits: Limits) -> BySeries:
    """Return the entries that count, of the series that have any."""
    out = {}
    for name, some in family.items():
        able = [e for e in some if counts(e, limits)]
        if able:
            out[name] = able
    return out


def _beyond(contest: Contest, entries: Iterable[Entry], shared: BySeries) -> Entry | None:
    """Return the entry with clearly more throughput under a load that others lack: it doesn't lead. `shared`: the
    entries under loads that all have."""
    if contest.lower:
        return None
    in_common = {e.id for some in shared.values() for e in some}
    compared = [*contest.entries, *contest.alternative]
    best_in_common = max(map(contest.value, compared))
    alone = [e for e in entries if e.id not in in_common]
    most = max(alone, key=contest.value, default=None)
    if most is None or contest.value(most) <= best_in_common * (1 + ALIKE):
        return None
    return most


def _crossed(contest: Contest, able: BySeries, axis: str) -> tuple[Entry, Entry] | None:
    """Return who leads at the lowest load, and the leader there: who is ahead with few requests at once need not be it
    with many."""
    low = min(e.axes[axis] for some in able.values() for e in some)
    lowest = {name: [e for e in some if e.axes[axis] == low] for name, some in able.items()}
    if contest.lower or not all(lowest.values()):
        return None
    leaders = {name: _leader(some, contest.metric) for name, some in lowest.items()}
    first, mine = (
        max(leaders.values(), key=contest.value),
        leaders[contest.ranked[0].series],
    )
    return (
        (first, mine) if contest.value(first) > contest.value(mine) * (1 + ALIKE) else None
    )


class Fall(NamedTuple):
    """A throughput that is lower at the highest load than at a lower one."""

    best: Entry
    highest: Entry
    metric: str


def falls(entries: Iterable[Entry]) -> Iterator[Fall]:
    """Yield each series and workload whose throughput falls with the load."""
    lines: dict[tuple[str, str, Load, str], list[Entry]] = {}
    for e in entries:
        if e.axis and e.kind not in SMALL and counts(e, {}):
            key = (e.series, e.kind, e.load.workload, e.axis)
            lines.setdefault(key, []).append(e)
    for (*_, axis), line in lines.items():
        speed = _shared_figure({"": line}, THROUGHPUTS)
        if speed is not None:
            best = _leader(line, speed)
            highest = max(line, key=lambda e: e.axes[axis])
            if _falls(best.figures[speed], highest.figures[speed]):
                yield Fall(best, highest, speed)


def _falls(best: Number, highest: Number) -> bool:
    """Return whether one throughput is clearly below another: by 5 %, and beyond their intervals, if it has one."""
    if highest.value >= best.value * (1 - FALL):
        return False
    if best.low is None or highest.high is None:
        return True
    return highest.high < best.low


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts 1000 before 10000, as a reader counts."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", text)
    ]


def _sharing(family: BySeries, axis: str) -> BySeries:
    """Return as many series as may be, with as many loads as may be, that have loads in common, at these loads."""
    levels = {name: {e.axes[axis] for e in some} for name, some in family.items()}

    def sharing(load: float) -> tuple[list[str], set[float]]:
        names = [name for name, values in levels.items() if load in values]
        return names, set.intersection(*(levels[name] for name in names))

    loads = {v for values in levels.values() for v in values}
    names, shared = max(
        map(sharing, loads), key=lambda pair: (len(pair[0]), len(pair[1]), max(pair[1]))
    )
    return {name: [e for e in family[name] if e.axes[axis] in shared] for name in names}


def _contest(
    kind: str, about: str, able: BySeries, axis: str, within_target: bool
) -> Contest | None:
    contest = None
    speed = _shared_figure(able, THROUGHPUTS)
    if speed is not None:
        contest = _by_speed(kind, about, able, axis, speed, within_target)
        if axis not in RATES or contest.lead() >= ALIKE:
            return contest
    # Where all serve what is offered, or none has a speed, who answers sooner leads: at the highest load that all have.
    wait = _shared_figure(able, WAITS)
    levels = _levels_of_all(able, axis)
    if wait is None or not levels:
        return contest
    return Contest(wait, kind, about, _at_level(able, axis, max(levels), wait))


def _by_speed(
    kind: str, about: str, able: BySeries, axis: str, speed: str, within_target: bool
) -> Contest:
    """Return the contest at one load, with each at its best as the other way; under a target the other way round."""
    at_best = [_leader(some, speed) for some in able.values()]
    at_one_load = _at_one_load(able, axis, speed)
    if not at_one_load or [e.id for e in at_one_load] == [e.id for e in at_best]:
        return Contest(speed, kind, about, at_best)
    if within_target:
        return Contest(speed, kind, about, at_best, at_one_load)
    return Contest(speed, kind, about, at_one_load, at_best)


def _levels_of_all(able: BySeries, axis: str) -> set[float]:
    return set.intersection(*({e.axes[axis] for e in some} for some in able.values()))


def _at_level(able: BySeries, axis: str, level: float, metric: str) -> list[Entry]:
    return [
        _leader([e for e in some if e.axes[axis] == level], metric)
        for some in able.values()
    ]


def _at_one_load(able: BySeries, axis: str, speed: str) -> list[Entry]:
    """Return each series at the load that suits all of them most: the one with the highest geometric mean of their
    throughputs, so that no single series chooses it. []: they share none."""
    each = [
        (level, _at_level(able, axis, level, speed)) for level in _levels_of_all(able, axis)
    ]

    def suits(pair: tuple[float, list[Entry]]) -> tuple[float, float]:
        level, some = pair
        speeds = [e.value(speed) or 0.0 for e in some]
        return (geometric_mean(speeds) if all(speeds) else 0.0), level

    return max(each, key=suits)[1] if each else []


def _shared_figure(able: BySeries, names: Sequence[str]) -> str | None:
    """Return the first of these figures that all entries have."""
    entries = list(chain.from_iterable(able.values()))
    return next(
        (name for name in names if all(e.value(name) is not None for e in entries)), None
    )


def _leader(entries: Sequence[Entry], metric: str) -> Entry:
    return sorted(
        entries, key=lambda e: e.value(metric) or 0.0, reverse=better(metric) != "lower"
    )[0]


def small_contests(entries: Sequence[Entry]) -> Iterator[Contest]:
    """Yield contests of micro tests and scores: at the same test or task."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for e in entries:
        if e.kind in SMALL and e.verdict != "void" and e.value(SMALL[e.kind]) is not None:
            groups.setdefault((e.kind, e.tool, e.load), []).append(e)
    for some in groups.values():
        contest = Contest(SMALL[some[0].kind], some[0].kind, some[0].load.words, some)
        # of a series, its best
        contest.entries = list({e.series: e for e in reversed(contest.ranked)}.values())
        if len(contest.entries) > 1:
            yield contest
