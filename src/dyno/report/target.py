"""A latency target, and the best load that meets it: of each series and workload, the one with the most output."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dyno.errors import UsageError
from dyno.facts.entry import Entry
from dyno.facts.load import whole
from dyno.facts.load import words as in_words
from dyno.facts.metric import STEMS, TOKEN_THROUGHPUTS, words
from dyno.facts.metric import latency as parts
from dyno.facts.report import Best

FEW = 0.01  # of the requests may have failed
_WORD = re.compile(r"(?:(p\d{1,2}(?:\.\d+)?|mean|median|max)_)?([a-z0-9]+?)(?:_ms)?")
_PREFERRED = "p99"
_NO_LIMIT = ("std", "min", "p100")


class Limit(msgspec.Struct, frozen=True):
    stem: str  # ttft, tpot, itl, e2el, …
    ms: float  # at most
    statistic: str = ""  # p99, median, mean; '': whichever the results share


class Target(msgspec.Struct, frozen=True):
    """Limits by the names of figures, as facts.report.Report keeps them."""

    limits: dict[str, float]  # 'p99_ttft_ms' → at most so many milliseconds
    words: list[str] = []  # which statistic was taken where none was asked for, and why


def limits(pairs: Iterable[str]) -> list[Limit]:
    """ttft:500, p99_ttft:500, mean_itl:20, as --goodput writes them."""
    found: list[Limit] = []
    for pair in pairs:
        name, _, text = pair.partition(":")
        known = _WORD.fullmatch(name.strip().lower())
        try:
            ms = float(text)
        except ValueError:
            raise UsageError(f"--target {pair!r}: write NAME:MILLISECONDS, such as ttft:500 or p99_ttft:500.") from None
        if known is None or known[2] not in STEMS:
            raise UsageError(
                f"--target {pair!r}: there is no {name!r}. Known: {', '.join(STEMS)}, with p99_, mean_ or max_ "
                "before it where that one is meant."
            )
        if not 0 < ms < math.inf:
            raise UsageError(f"--target {pair!r}: a limit is a number of milliseconds above 0.")
        limit = Limit(known[2], ms, _one_name(known[1] or ""))
        if any((other.stem, other.statistic) == (limit.stem, limit.statistic) for other in found):
            raise UsageError(f"--target {pair!r}: there are two limits of {name}.")
        found.append(limit)
    return found


def target(entries: Iterable[Entry], wanted: Iterable[Limit]) -> Target:
    """Where no statistic is asked for: p99 if all results have it, else the highest percentile that they share, else
    the mean; where they share none, the one that most have."""
    there = [e for e in entries if e.figures]
    found: dict[str, float] = {}
    told: list[str] = []
    for limit in wanted:
        statistic = limit.statistic
        if not statistic:
            statistic, why = _statistic(there, limit.stem)
            told.append(f"{limit.stem.upper()} by its {statistic}: {why}.")
        name = f"{statistic}_{limit.stem}_ms"
        found[name] = min(limit.ms, found.get(name, math.inf))
    return Target(found, told)


def _statistic(entries: Sequence[Entry], stem: str) -> tuple[str, str]:
    """And why that one."""
    told = [{_one_name(m[0]) for name in e.figures if (m := parts(name)) and m[1] == stem and m[0] not in _NO_LIMIT}
            for e in entries]  # fmt: skip
    told = [names for names in told if names]  # who doesn't tell this latency at all can't meet a limit of it
    if not told:
        return _PREFERRED, "no result tells one"
    shared = set.intersection(*told)
    if _PREFERRED in shared:
        return _PREFERRED, "all results that tell this latency have it"
    if percentiles := [name for name in shared if _percent(name) is not None]:
        return max(percentiles, key=lambda name: _percent(name) or 0.0), "the highest percentile that all results have"
    if "mean" in shared:
        return "mean", "the results share no percentile"
    counts = Counter(name for names in told for name in names if name != "max")
    if not counts:
        return "max", "the results tell nothing else"
    most = max(counts, key=lambda name: (counts[name], name == _PREFERRED, _percent(name) or 0.0, name))
    return most, f"{counts[most]} of {len(told)} results have it, and none is in all of them"


def _percent(name: str) -> float | None:
    return 50.0 if name == "median" else float(name[1:]) if name.startswith("p") else None


def _one_name(statistic: str) -> str:
    return "median" if statistic == "p50" else statistic


def latency(entry: Entry, name: str) -> float | None:
    """By the name that a target has for it."""
    statistic, _, stem = name.removesuffix("_ms").rpartition("_")
    number = entry.statistic(statistic, stem)
    return None if number is None else number.value


# ---- the best load ----


class _Load(NamedTuple):
    """An entry as a candidate. Why it is none: '' where it is one."""

    entry: Entry
    why: str
    missed: float  # its worst latency over that limit; inf: not known


def best(entries: Iterable[Entry], limits: dict[str, float]) -> list[Best]:
    """`limits`: as Target has them; empty: the highest throughput at any latency."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        if entry.kind not in ("micro", "quality"):
            groups.setdefault((entry.series, entry.kind, whole(entry.workload)), []).append(entry)
    out = []
    for (series, kind, load), there in groups.items():
        candidates = [_candidate(entry, limits) for entry in there]
        chosen = _fastest([c.entry for c in candidates if not c.why])
        named = ", ".join(filter(None, [load, "" if kind == "serve" else f"offline {kind}"]))
        why = "" if chosen is not None and not _silent(candidates) else _why(candidates, limits, chosen is not None)
        out.append(Best(series, named, chosen.id if chosen is not None else None, why))
    return out


def why_not(entry: Entry, limits: dict[str, float]) -> str:
    """In a word, why it can't be the best: '' where it has a result that counts, and keeps the limits."""
    return _candidate(entry, limits).why


def level(entry: Entry) -> str:
    """In words: 'concurrency 8'."""
    told = ((entry.axis, entry.axes[entry.axis]),) if entry.axis else ()
    return in_words(tuple(("num_prompts" if name == "requests" else name, v) for name, v in told))


def _candidate(entry: Entry, limits: dict[str, float]) -> _Load:
    values = {name: latency(entry, name) for name in limits}
    over = [math.inf if v is None or math.isnan(v) else v / limits[name] for name, v in values.items()]
    missed = max(over, default=0.0)
    if entry.failure or not entry.figures:
        return _Load(entry, "failed", missed)
    if entry.verdict == "void":
        return _Load(entry, "void", missed)
    if failed_share(entry) > FEW:
        return _Load(entry, "requests", missed)
    if math.isinf(missed):
        return _Load(entry, "silent", missed)
    if missed > 1:
        return _Load(entry, "slow", missed)
    return _Load(entry, "throughput" if all(entry.value(name) is None for name in TOKEN_THROUGHPUTS) else "", missed)


def failed_share(entry: Entry) -> float:
    """Of the requests that were sent; by what was asked for where failures aren't told."""
    done, failed = entry.completed, entry.failed
    asked = entry.load.get("num_prompts", entry.settings.get("num_prompts"))
    if failed is None and done is not None and isinstance(asked, int | float) and not isinstance(asked, bool):
        failed = max(asked * entry.repeats - done, 0.0)
    sent = (done or 0.0) + (failed or 0.0)
    return (failed or 0.0) / sent if sent else 0.0


def _fastest(entries: Sequence[Entry]) -> Entry | None:
    """By output tokens; by all tokens where some tell no other speed."""
    speeds = [[entry.value(name) for entry in entries] for name in TOKEN_THROUGHPUTS]
    told = next((s for s in speeds if None not in s), next((s for s in speeds if any(s)), []))
    known = [(speed, entry) for speed, entry in zip(told, entries, strict=False) if speed is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _silent(candidates: Sequence[_Load]) -> bool:
    return any(c.why == "silent" for c in candidates)


def _why(candidates: Sequence[_Load], limits: dict[str, float], found: bool) -> str:
    """What came nearest, and what was left out of account; of one that was found, only who doesn't tell."""
    parts = []
    slow = [c for c in candidates if c.why == "slow"]
    if slow and not found:
        near = min(slow, key=lambda c: c.missed)
        told = ", ".join(_against(near.entry, limits))
        parts.append(f"Nearest: {level(near.entry)} with {told}")
    counts = Counter(c.why for c in candidates)
    latencies = " or ".join(words(name) for name in limits)
    reasons = {
        "silent": f"no {latencies} told at {{}}",
        "void": "void at {}",
        "requests": f"over {FEW:.0%} of the requests failed at {{}}",
        "failed": "no result at {}",
        "throughput": "no throughput told at {}",
    }
    for why, text in reasons.items():
        if counts[why] and (not found or why == "silent"):
            there = [level(c.entry) for c in candidates if c.why == why]
            parts.append(text.format(", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")))
    return "; ".join(part[:1].upper() + part[1:] if i == 0 else part for i, part in enumerate(parts)) + "."


def _against(entry: Entry, limits: dict[str, float]) -> Iterator[str]:
    for name, limit in limits.items():
        value = latency(entry, name)
        if value is not None and not value <= limit:
            yield f"{words(name)} {value:,.4g} ms, {limit:,.4g} allowed"


def kept(limits: dict[str, float]) -> str:
    """A target in words: 'p99 TTFT ≤ 500 ms'."""
    return " and ".join(f"{words(name)} ≤ {limit:g} ms" for name, limit in limits.items())
