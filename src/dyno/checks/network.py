"""Is a network in the latencies? It is where the engine runs on another machine and the load comes from here."""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding
from dyno.numbers import number, percent
from dyno.units import NS_PER_MS

# of the median time to the first token: above that, the network is a part of the result
NETWORK_SHARE = 0.05


def round_trip(e: Evidence) -> Iterator[Finding]:
    if not e.round_trips_ns:
        return
    before, after = (
        trip / NS_PER_MS for trip in (e.round_trips_ns[0], e.round_trips_ns[-1])
    )
    worst, median = max(before, after), e.summary.ttft.median
    share = worst / median if median else 0.0
    of_ttft = f", {percent(share)} of the median TTFT" if median else ""
    text = (
        f"The network is in the latencies: a round trip to the engine took {number(before)} ms before the load and "
        f"{number(after)} ms after it{of_ttft}."
    )
    yield Finding("client.network", "doubt" if share > NETWORK_SHARE else "note", text)
