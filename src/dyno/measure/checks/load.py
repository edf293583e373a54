"""Was the load that was asked for really put on the server?"""

import math
from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.measure.evidence import Evidence


def rate(e: Evidence) -> Iterator[Finding]:
    window = e.summary.steady
    if e.trial.load.closed_loop or window is None:
        return
    length_s = window.end_s - window.start_s
    offered, served = window.offered_throughput, window.request_throughput
    # Served less than offered, by more than arrivals scatter.
    if served < 0.9 * offered and (offered - served) * length_s > 3 * math.sqrt(offered * length_s):
        waited = e.summary.queue.median
        cap = e.trial.load.max_concurrency
        yield Finding(
            "load.rate_not_reached",
            "doubt",
            f"{offered:.2f} requests/s were offered and {served:.2f} served"
            + (f"; a request waited {waited:.0f} ms (median) for one of {cap} slots." if cap and waited > 1 else "."),
            "The latency is that of a queue that grows with the length of the run. Offer less, or report this as the "
            "server's limit.",
        )


def streams(e: Evidence) -> Iterator[Finding]:
    asked, s = e.trial.load.max_concurrency, e.summary
    if asked is None or not e.trial.load.closed_loop or s.steady is None:
        return
    if s.steady.streams_mean < 0.95 * asked and s.planned >= 2 * asked:
        yield Finding(
            "load.streams_missing",
            "doubt",
            f"{asked} streams were asked for and {s.steady.streams_mean:.1f} were open on average "
            f"(peak {s.client.streams_peak}).",
            "The client or the server's connection handling kept slots empty: this is not the load you asked for.",
        )


def repeated_prompts(e: Evidence) -> Iterator[Finding]:
    again = max(e.summary.sent - e.trial.workload.num_prompts, 0) + e.repeated_prompts
    if again:
        yield Finding(
            "load.repeated_prompts",
            "doubt",
            f"{again} of {e.summary.sent} requests repeated an earlier prompt.",
            "A prefix cache makes repeats faster. Prepare more with --num-prompts, or use a larger dataset.",
        )
