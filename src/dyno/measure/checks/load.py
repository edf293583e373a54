"""Was the load that was asked for really put on the server?"""

from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.measure.evidence import Evidence


def rate(e: Evidence) -> Iterator[Finding]:
    wait, s = e.summary.wait, e.summary
    if e.trial.load.closed_loop or wait is None:
        return
    # A queue that grows: whoever came late waited longer than nearly all who came early, by a good part of the run.
    grown_ms = wait.last_median_ms - wait.first_median_ms
    if wait.last_p25_ms > wait.first_p75_ms and grown_ms > 0.1 * 1000 * wait.span_s:
        yield Finding(
            "load.rate_not_reached",
            "doubt",
            f"{wait.offered_rps:.2f} requests/s were offered and {s.request_throughput:.2f} served: the first quarter "
            f"took {wait.first_median_ms:.0f} ms from due to last token, the last {wait.last_median_ms:.0f} (medians).",
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
    again = max(e.summary.sent - e.prompts, 0) + e.repeated_prompts
    if again:
        yield Finding(
            "load.repeated_prompts",
            "doubt",
            f"{again} of {e.summary.sent} requests repeated an earlier prompt.",
            "A prefix cache makes repeats faster. Prepare more with --num-prompts, or use a larger dataset.",
        )
