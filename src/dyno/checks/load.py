"""Was the load that was asked for really put on the server?"""

import math
from collections.abc import Iterator
from statistics import mean

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding

# Where the sum misleads: of two replicas, one that is slower by a quarter makes it a tenth less than twice the other.
# Replicas that are alike have equally many in flight, so that their shares differ by the luck of lengths alone, as
# counts do: three standard deviations of a count are no luck.
FEWER, SLOWER, TPOT_SAMPLES = 0.8, 1.25, 10


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


def replicas(e: Evidence) -> Iterator[Finding]:
    several, urls = e.summary.replicas, e.trial.target.urls
    if not several or not e.summary.completed:
        return
    share = e.summary.completed / len(several)
    least = min(several, key=lambda r: r.completed)
    odd = []
    if least.completed < min(FEWER * share, share - 3 * math.sqrt(share)):
        odd.append(f"{urls[least.index]} completed {least.completed} requests, where an even share is {share:.0f}")
    tpots = {r.index: r.tpot_mean_ms for r in several if r.tpot_mean_ms is not None and r.completed >= TPOT_SAMPLES}
    if len(tpots) > 1:
        slow = max(tpots, key=lambda i: tpots[i])
        others = mean(tpot for i, tpot in tpots.items() if i != slow)
        if tpots[slow] > SLOWER * others:
            odd.append(f"{urls[slow]} took {tpots[slow]:.2f} ms for each token (TPOT), the others {others:.2f}")
    if odd:
        text = "; ".join(odd)
        yield Finding(
            "load.replicas_uneven",
            "doubt",
            f"The {len(several)} replicas are not alike: {text}.",
            f"Their sum is not {len(several)} times one of them. Look for what the odd one shares (a device, cores, a "
            "link), and at its log.",
        )
