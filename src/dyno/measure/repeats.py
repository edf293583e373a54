"""What the repeats of a trial say of one another."""

from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from dyno.facts.finding import Finding
from dyno.facts.summary import Result

APART = 0.1  # standard deviation over mean: more than engines vary by themselves on a machine that is left to them


def differing(name: str, results: Sequence[Result]) -> Iterator[Finding]:
    speeds = [r.summary.output_throughput for r in results]
    if len(speeds) < 2 or not mean(speeds) or stdev(speeds) <= APART * mean(speeds):
        return
    yield Finding(
        "statistics.repeats_differ",
        "doubt",
        f"The {len(speeds)} repeats of {name} lie far apart: {', '.join(f'{s:.1f}' for s in speeds)} tok/s.",
        "Something else moved the figures: look at each repeat's own findings, and repeat it more often.",
    )
