"""A target: figures and the most that each may be, such as `ttft_p99:500 tpot_p50:30 failed:0`."""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from dyno.errors import UsageError
from dyno.facts.metric import STEMS, words
from dyno.numbers import count, percent

_NAME = re.compile(r"(?:(?P<before>p\d{1,2}(?:\.\d+)?|mean|median|max)_)?(?P<stem>[a-z0-9_]+?)"
                   r"(?:_(?P<after>p\d{1,2}(?:\.\d+)?|mean|median|max))?(?:_ms)?")  # fmt: skip
EXAMPLE = "ttft_p99:500 tpot_p50:30 failed:0"


class Limit(msgspec.Struct, frozen=True):
    stem: str  # ttft, tpot, itl, e2el, …; or failed
    most: float  # milliseconds; of failed requests a share
    statistic: str = ""  # p99, median, mean; '': none was asked for

    @property
    def metric(self) -> str:
        """The name of the figure in results: p99_ttft_ms."""
        return self.stem if self.stem == "failed" else f"{self.statistic}_{self.stem}_ms"

    @property
    def percentile(self) -> float | None:
        if self.statistic == "median":
            return 50.0
        return float(self.statistic[1:]) if self.statistic.startswith("p") else None

    @property
    def words(self) -> str:
        """'p99 TTFT ≤ 500 ms'."""
        if self.stem == "failed":
            return f"failed requests ≤ {percent(self.most)}" if self.most else "no failed request"
        return f"{words(self.metric)} ≤ {count(self.most)} ms"


def parse(pairs: Iterable[str], flag: str = "--target", stems: Sequence[str] = tuple(STEMS)) -> list[Limit]:
    """Read limits: ttft:500, ttft_p99:500 or p99_ttft:500, mean_itl:20, failed:0.01. `stems`: those that may be."""
    out: list[Limit] = []
    for pair in pairs:
        limit = _one(pair, flag, stems)
        if any((other.stem, other.statistic) == (limit.stem, limit.statistic) for other in out):
            raise UsageError(f"{flag} {pair!r}: {pair.partition(':')[0]} has two limits.")
        out.append(limit)
    return out


def with_statistic(limits: Iterable[Limit]) -> list[Limit]:
    """Return them with p99 where a latency has no statistic."""
    return [x if x.statistic or x.stem == "failed" else msgspec.structs.replace(x, statistic="p99") for x in limits]


def _one(pair: str, flag: str, stems: Sequence[str]) -> Limit:
    name, _, text = pair.partition(":")
    name = name.strip().lower()
    try:
        most = float(text)
    except ValueError:
        raise UsageError(f"{flag} {pair!r}: write NAME:MILLISECONDS, such as ttft:500 or ttft_p99:500.") from None
    if name == "failed":
        if not 0 <= most < 1:
            raise UsageError(f"{flag} {pair!r}: the limit is a share of the requests, such as failed:0 or failed:0.01.")
        return Limit("failed", most)
    match = _NAME.fullmatch(name)
    if match is None or match["stem"] not in stems or (match["before"] and match["after"]):
        statistics = "_p99, _mean or _max" if len(stems) == len(STEMS) else "_p99 or _mean"
        near = get_close_matches(name, [*stems, *(f"{stem}_p99" for stem in stems), "failed"], n=1)
        raise UsageError(
            f"{flag} {pair!r}: unknown latency {name!r}. " + (f"Did you mean {near[0]}? " if near else "")
            + f"Known: {', '.join(stems)}, optionally with {statistics} after it, and failed."
        )  # fmt: skip
    if not 0 < most < math.inf:
        raise UsageError(f"{flag} {pair!r}: the limit must be above 0 milliseconds.")
    statistic = match["before"] or match["after"] or ""
    return Limit(match["stem"], most, "median" if statistic == "p50" else statistic)
