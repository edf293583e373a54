"""A target: figures and the most that each may be, such as `ttft_p99:500 tpot_p50:30 failed:0`. Limits may have units:
`ttft_p99:500ms`, `e2el:2s`, `failed:1%`."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from dyno.errors import UsageError
from dyno.facts.metric import STEMS, words
from dyno.numbers import count, percent

_PERCENTILE = re.compile(r"p[\d.]+")  # of which latency?
_NAME = re.compile(
    r"(?:(?P<before>p\d{1,2}(?:\.\d+)?|mean|median|max)_)?(?P<stem>[a-z0-9_]+?)"
    r"(?:_(?P<after>p\d{1,2}(?:\.\d+)?|mean|median|max))?(?:_ms)?"
)
_NUMBER = re.compile(
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf)) ?(?P<unit>[a-zµ%]*)"
)
_TIMES = {"": Decimal(1), "ms": Decimal(1), "s": Decimal(1000)}  # milliseconds of a unit
_SHARES = {"": Decimal(1), "%": Decimal("0.01")}
EXAMPLE = "ttft_p99:500ms tpot_p50:30ms failed:0"
Read = Callable[[str], float | None]  # a figure of a result, by its name


class ShareFigure(NamedTuple):
    """What can be limited to a share of the requests. Not a latency: no request has more of it than another."""

    words: str
    none: str  # where the limit is 0
    over: str  # behind the share of a result
    read: Callable[[Read], float | None]  # the share, by the figures of a result


def _failed(read: Read) -> float:
    failed, completed = read("failed") or 0.0, read("completed") or 0.0
    return failed / max(failed + completed, 1.0)


def _invalid(read: Read) -> float | None:
    valid = read("valid_share")
    # 1 - 0.95 is more than 0.05, by the last digit
    return None if valid is None else round(1 - valid, 12)


SHARES = {
    "failed": ShareFigure(
        "failed requests", "no failed request", "of the requests failed", _failed
    ),
    "invalid": ShareFigure(
        "invalid answers", "no invalid answer", "of the answers are invalid", _invalid
    ),
}


class Limit(msgspec.Struct, frozen=True):
    stem: str  # ttft, tpot, itl, e2el, …; or one of SHARES
    most: float  # milliseconds; or a share of the requests
    statistic: str = ""  # p99, median, mean; '': none was asked for

    @property
    def metric(self) -> str:
        """Return the name of the figure in results: p99_ttft_ms."""
        return self.stem if self.is_share else f"{self.statistic}_{self.stem}_ms"

    @property
    def is_share(self) -> bool:
        """Return whether it is a share of the requests, not a latency."""
        return self.stem in SHARES

    @property
    def percentile(self) -> float | None:
        if self.statistic == "median":
            return 50.0
        return float(self.statistic[1:]) if self.statistic.startswith("p") else None

    @property
    def words(self) -> str:
        """Describe the limit: 'p99 TTFT ≤ 500 ms'."""
        if self.is_share:
            share = SHARES[self.stem]
            return f"{share.words} ≤ {percent(self.most)}" if self.most else share.none
        return f"{words(self.metric)} ≤ {count(self.most)} ms"


def parse(
    pairs: Iterable[str], flag: str = "--target", stems: Sequence[str] = tuple(STEMS)
) -> list[Limit]:
    """Read limits: ttft:500, ttft_p99:500 or p99_ttft:500, mean_itl:20, failed:0.01; also with units.

    `stems`: the latencies that may be limited.
    """
    out: list[Limit] = []
    for pair in pairs:
        limit = _one(pair, flag, stems)
        if any(
            (other.stem, other.statistic) == (limit.stem, limit.statistic) for other in out
        ):
            raise UsageError(f"{flag} {pair!r}: {pair.partition(':')[0]} has two limits.")
        out.append(limit)
    return out


def with_statistic(limits: Iterable[Limit]) -> list[Limit]:
    """Return them with p99 where a latency has no statistic."""
    return [
        x if x.statistic or x.is_share else msgspec.structs.replace(x, statistic="p99")
        for x in limits
    ]


def latency_ms(text: str, subject: str) -> float:
    """Read a latency: 500, 500ms or 2s. `subject`: what a message is about, such as `--target 'ttft:5x'`."""
    return _parse_limit(
        text, subject, _TIMES, "A latency is in ms, or in s: 500, 500ms or 2s"
    )


def _share(text: str, subject: str) -> float:
    return _parse_limit(
        text,
        subject,
        _SHARES,
        "A share of the requests has no unit, or is in %: 0.01 or 1%",
    )


def _parse_limit(
    text: str, subject: str, units: Mapping[str, Decimal], known: str
) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"{subject}: write NAME:LIMIT, such as ttft:500, ttft_p99:500ms or failed:1%."
        )
    if match["unit"] not in units:
        raise UsageError(f"{subject}: the unit {match['unit']!r} does not fit. {known}.")
    return float(Decimal(match["number"]) * units[match["unit"]])  # decimal: 7% is 0.07


def _one(pair: str, flag: str, stems: Sequence[str]) -> Limit:
    name, _, text = pair.partition(":")
    name, subject = name.strip().lower(), f"{flag} {pair!r}"
    if name in SHARES:
        share = _share(text, subject)
        if not 0 <= share < 1:
            raise UsageError(
                f"{subject}: the limit is a share of the requests, such as {name}:0, {name}:0.01 or 1%."
            )
        return Limit(name, share)
    most = latency_ms(text, subject)
    match = _NAME.fullmatch(name)
    if match is None or match["stem"] not in stems or (match["before"] and match["after"]):
        statistics = "_p99, _mean or _max" if len(stems) == len(STEMS) else "_p99 or _mean"
        near = get_close_matches(
            name, [*stems, *(f"{stem}_p99" for stem in stems), *SHARES], n=1
        )
        hint = f"Did you mean {near[0]}? " if near else ""
        if _PERCENTILE.fullmatch(name):
            hint = f"Of which latency? Such as {stems[0]}_{name}. "
        raise UsageError(
            f"{subject}: unknown latency {name!r}. {hint}"
            f"Known: {', '.join(stems)}, optionally with {statistics} after it, and {' and '.join(SHARES)}."
        )
    if not 0 < most < math.inf:
        raise UsageError(f"{subject}: the limit must be above 0 milliseconds.")
    statistic = match["before"] or match["after"] or ""
    return Limit(match["stem"], most, "median" if statistic == "p50" else statistic)
