"""The repeats of a trial, taken together, and what they say of one another."""

from collections.abc import Callable, Iterator, Sequence
from statistics import mean, stdev
from typing import Literal

import msgspec

from dyno.facts.finding import Finding
from dyno.facts.offline import OfflineSummary
from dyno.facts.spread import Latency, Spread
from dyno.facts.summary import Result

APART = 0.1  # standard deviation over mean: more than engines vary by themselves on a machine that is left to them


class Repeats(msgspec.Struct, frozen=True):
    """Sums of what was completed and failed, means of the rest. None: no sample."""

    count: int
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    output_apart: float | None  # standard deviation; None: of a single one
    ttft_median_ms: float | None
    ttft_tail_ms: float | None
    tpot_median_ms: float | None


def together(results: Sequence[Result], tail: str | None) -> Repeats:
    """`tail`: the percentile of the time to the first token that is wanted besides the median."""
    of = [r.served for r in results]
    speeds = [s.output_throughput for s in of]
    return Repeats(
        count=len(of),
        completed=sum(s.completed for s in of),
        failed=sum(s.failed for s in of),
        request_throughput=mean(s.request_throughput for s in of),
        output_throughput=mean(speeds),
        output_apart=stdev(speeds) if len(speeds) > 1 else None,
        ttft_median_ms=_mean([s.ttft for s in of], None),
        ttft_tail_ms=_mean([s.ttft for s in of], tail) if tail else None,
        tpot_median_ms=_mean([s.tpot for s in of], None),
    )


def _mean(latencies: Sequence[Latency], percentile: str | None) -> float | None:
    """None, too, where a busy client doesn't know it of one of them: the others may be the quick ones."""
    values = [
        d.median if percentile is None else d.percentiles[percentile]
        for d in latencies
        if not d.empty and (percentile is None or percentile in d.percentiles)
    ]
    known = [v for v in values if v is not None]
    return mean(known) if known and len(known) == len(values) else None


def offline_spread(results: Sequence[Result], value: Callable[[OfflineSummary], Spread | None]) -> Spread | None:
    """The mean; the deviation over the repeats, or over the iterations of a single one. None: no sample."""
    told = [s for r in results if r.offline and (s := value(r.offline))]
    if len(told) < 2:
        return told[0] if told else None
    return Spread(len(told), mean(s.mean for s in told), stdev(s.mean for s in told))


def share(results: Sequence[Result], what: str, of: Literal["bandwidth", "arithmetic"]) -> float | None:
    """Of the machine's peak; the mean of the repeats."""
    told = [v for r in results if r.roofline for s in r.roofline.shares if s.what == what and (v := getattr(s, of))]
    return mean(told) if told else None


def acceptance(results: Sequence[Result]) -> float | None:
    told = [r.offline.speculation.acceptance for r in results if r.offline and r.offline.speculation]
    return mean(told) if told else None


def differing(name: str, results: Sequence[Result]) -> Iterator[Finding]:
    told_ones = (r.offline.speed if r.offline else r.served.output_throughput for r in results)
    yield from apart(name, [speed for speed in told_ones if speed is not None])


def apart(name: str, speeds: Sequence[float]) -> Iterator[Finding]:
    if len(speeds) < 2 or stdev(speeds) <= APART * mean(speeds):
        return
    told = ", ".join(f"{speed:.1f}" for speed in speeds)
    yield Finding(
        "statistics.repeats_differ",
        "doubt",
        f"The {len(speeds)} repeats of {name} lie far apart: {told} tok/s.",
        "Something else moved the figures: look at each repeat's own findings, and repeat it more often.",
    )
