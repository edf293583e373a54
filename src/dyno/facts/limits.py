"""A target: figures of a load and the most that each may be, such as `ttft_p99:500 tpot_p50:30 failed:0`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from dyno.errors import UsageError
from dyno.facts.metric import STEMS

LATENCIES = ("ttft", "tpot", "itl", "e2el")
_STATISTIC = re.compile(r"mean|median|p\d{1,2}(?:\.\d+)?")


class Limit(msgspec.Struct, frozen=True):
    """The most that one figure may be: of a latency in ms, of failed requests a share."""

    name: str  # ttft, tpot, itl, e2el or failed
    most: float
    percentile: float | None = None  # None: the mean, or a share

    @property
    def text(self) -> str:
        return f"{self.key}:{self.most:g}"

    @property
    def key(self) -> str:
        if self.name == "failed":
            return self.name
        return f"{self.name}_{'mean' if self.percentile is None else f'p{self.percentile:g}'}"

    @property
    def metric(self) -> str:
        """The name of the figure in results."""
        if self.name == "failed":
            return "failed"
        if self.percentile is None:
            return f"mean_{self.name}_ms"
        return f"median_{self.name}_ms" if self.percentile == 50 else f"p{self.percentile:g}_{self.name}_ms"

    @property
    def words(self) -> str:
        if self.name == "failed":
            return "no failed request" if not self.most else f"failed requests ≤ {100 * self.most:g} %"
        statistic = "mean" if self.percentile is None else f"p{self.percentile:g}"
        return f"{statistic} {STEMS[self.name].words} ≤ {self.most:g} ms"


def parse(texts: Sequence[str], flag: str = "--target") -> list[Limit]:
    """Read limits; several may be in one text, with spaces or commas between them."""
    words = [word for text in texts for word in re.split(r"[\s,]+", text) if word]
    limits = [_one(word, flag) for word in words]
    if not limits:
        raise UsageError(f"{flag} is empty. Give figures and their limits, such as ttft_p99:500 tpot_p50:30 failed:0.")
    keys = [limit.key for limit in limits]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"{flag} has {twice} twice. Give each figure one limit.")
    return limits


def _one(word: str, flag: str) -> Limit:
    name, colon, value = word.partition(":")
    try:
        most = float(value)
    except ValueError:
        most = -1.0
    if not colon or not 0 <= most < float("inf"):
        raise UsageError(f"{flag} {word}: write FIGURE:LIMIT, such as ttft_p99:500 (ms) or failed:0.01 (a share).")
    if name == "failed":
        if most >= 1:
            raise UsageError(f"{flag} {word}: the limit is a share of the requests, such as failed:0 or failed:0.01.")
        return Limit("failed", most)
    parts = name.lower().removesuffix("_ms").split("_")
    stem = next((part for part in parts if part in LATENCIES), "")
    statistic = next((part for part in parts if _STATISTIC.fullmatch(part)), "")
    if len(parts) != 2 or not stem or not statistic:
        known = [*(f"{n}_{s}" for n in LATENCIES for s in ("mean", "p50", "p90", "p95", "p99")), "failed"]
        near = get_close_matches(name, known, n=1)
        hint = (
            f"Did you mean {near[0]}?"
            if near
            else f"Known: {', '.join(LATENCIES)} with _mean or _p50 … _p99, and failed."
        )
        raise UsageError(f"{flag} {word}: there is no figure {name!r}. {hint}")
    percentile = {"mean": None, "median": 50.0}.get(statistic, float(statistic[1:]) if statistic[0] == "p" else None)
    if not most or percentile == 0:
        raise UsageError(f"{flag} {word}: the limit and the percentile must be above 0.")
    return Limit(stem, most, percentile)
