"""A check: the slowest of a hundred requests takes more than three times as long as the median."""

from collections.abc import Iterator

from dyno.checks import Check
from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding

_TIMES = 3


def tail(e: Evidence) -> Iterator[Finding]:
    latency = e.summary.e2el
    p99 = latency.percentiles.get("99")
    if p99 is None or not latency.median:
        return
    if p99 > _TIMES * latency.median:
        text = f"The p99 latency is {p99 / latency.median:.1f} times the median."
        yield Finding("tail.long", "doubt", text)


TAIL = Check(
    {
        "tail.long": (
            f"doubt above {_TIMES} times",
            "The p99 end-to-end latency is far above the median.",
            "Look at the slowest requests: dyno.load(RUN)[0].records has each.",
        )
    },
    server=tail,
)
