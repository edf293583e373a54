"""Was the requested load really put on the server, and could the server bear it?"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, note
from dyno.facts.imported import Row
from dyno.facts.metric import THROUGHPUTS, words
from dyno.measure.points import finite_rate, load_of, locations, output_each, requests_per_s, subject, sweeps

# Where the sum misleads: of two replicas, one that is slower by a quarter makes it a tenth less than twice the other.
# Replicas that are alike have equally many in flight, so that their shares differ by the luck of lengths alone, as
# counts do: three standard deviations of a count are no luck.
FEWER, SLOWER, TPOT_SAMPLES = 0.8, 1.25, 10
SERVED = 0.9  # of the offered rate
GAIN, WAIT = 0.03, 1.5  # throughput no longer grows, latency does
VLLM_SLOTS = 256  # of vLLM before its first major engine, where nothing else is said
CROWD, WAITS = 0.3, 0.1  # of all requests, in flight on average; of the time in which they were due
MANY = 20  # requests: fewer can't tell a queue from a start
FEW_SAMPLES = 10  # fewer say nothing about a mean
_WAITS = ("mean_ttft_ms", "mean_latency_ms", "mean_e2el_ms")


def rate(e: Evidence) -> Iterator[Finding]:
    wait, s = e.summary.wait, e.summary
    if e.trial.load.closed_loop or wait is None:
        return
    # A queue that grows: whoever came late waited longer than nearly all who came early, by a good part of the run.
    grown_ms = wait.last_median_ms - wait.first_median_ms
    if wait.last_p25_ms > wait.first_p75_ms and grown_ms > 0.1 * 1000 * wait.span_s:
        yield _queue_grows(
            f"{wait.offered_rps:.2f}",
            s.request_throughput,
            f": the first quarter took {wait.first_median_ms:.0f} ms from due to last token, the last "
            f"{wait.last_median_ms:.0f} (medians).",
        )


def rate_row(row: Row) -> Iterator[Finding]:
    """A run that goes on long after the last request was due served less than was offered."""
    offered, rps, done = finite_rate(row), requests_per_s(row), row.get("completed")
    took, e2e = row.get("duration_s"), _end_to_end_s(row)
    if not (offered and rps and done and took and e2e) or done < MANY:
        return
    sending = (row.number("num_prompts") or done) / offered
    waits = (row.get("mean_ttft_ms") or row.get("median_ttft_ms") or 0.0) / 1000
    if rps >= SERVED * offered or took < 1.25 * sending:
        return
    if cap := row.number("concurrency"):
        yield note(
            "load.rate_not_reached",
            f"{offered:g} requests/s were offered and {rps:.2f} served, with no more than {cap:g} let in at once.",
            "This is a closed loop, whatever its rate says: the wait before sending is in no latency. Report it as "
            "a concurrency.",
            locations([row], "request_throughput"),
        )
    # Long answers alone make a run go on: but not for so long, nor with first tokens that wait so.
    elif took - sending > 2.5 * e2e or (rps * e2e > CROWD * done and waits > WAITS * sending):
        because = f". The last was due after {sending:,.1f} s, and the run took {took:,.1f} s."
        yield _queue_grows(f"{offered:g}", rps, because, row)


def _queue_grows(offered: str, rps: float, because: str, row: Row | None = None) -> Finding:
    return doubt(
        "load.rate_not_reached",
        f"{offered} requests/s were offered and {rps:.2f} served{because}",
        "The latency is that of a queue that grows with the length of the run. Offer less, or report this as the "
        "server's limit.",
        locations([row] if row else [], "request_throughput", "mean_ttft_ms"),
    )


def _end_to_end_s(row: Row) -> float | None:
    """Return how long a long request takes."""
    for name in ("p99_e2el_ms", "p95_e2el_ms", "mean_e2el_ms"):
        if (latency_ms := row.get(name)) is not None:
            return latency_ms / 1000 if name != "mean_e2el_ms" else 2 * latency_ms / 1000
    first, each = row.get("mean_ttft_ms"), output_each(row)
    gap = row.get("mean_itl_ms") or row.get("median_tpot_ms")
    return (first + each * gap) / 1000 if first is not None and each and gap else None


def rate_rows(rows: Sequence[Row]) -> Iterator[Finding]:
    """Several rates were served at about the same speed: that is the limit, and more is a queue."""
    for sweep in sweeps(rows):
        rates = [(o, r, row) for row in sweep if (o := finite_rate(row)) and (r := requests_per_s(row))
                and row.number("concurrency") is None and (row.get("completed") or 0) >= MANY]  # fmt: skip
        if len(rates) < 2:
            continue
        most = max(r for _, r, _ in rates)  # what it can bear, whatever is offered
        for offered, rps, row in rates:
            others = [r for o, r, _ in rates if o != offered]
            if most < SERVED * offered and max(others) > 0.8 * most:
                yield _queue_grows(f"{offered:g}", rps, f". The most that was served at any rate is {most:.2f}.", row)


def streams(e: Evidence) -> Iterator[Finding]:
    asked, s = e.trial.load.max_concurrency, e.summary
    if asked is None or not e.trial.load.closed_loop or s.steady is None:
        return
    if s.steady.streams_mean < 0.95 * asked and s.planned >= 2 * asked:
        yield doubt(
            "load.streams_missing",
            f"{asked} streams were asked for and {s.steady.streams_mean:.1f} were open on average "
            f"(peak {s.client.streams_peak}).",
            "The client or the server's connection handling kept slots empty: this is not the load you asked for.",
        )


def repeated_prompts(e: Evidence) -> Iterator[Finding]:
    again = max(e.summary.sent - e.prompts, 0) + e.repeated_prompts
    if again:
        text = f"{again} of {e.summary.sent} requests repeated an earlier prompt."
        advice = "A prefix cache makes repeats faster. Prepare more with --num-prompts, or use a larger dataset."
        yield doubt("load.repeated_prompts", text, advice)


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
        yield doubt(
            "load.replicas_uneven",
            f"The {len(several)} replicas are not alike: {'; '.join(odd)}.",
            f"Their sum is not {len(several)} times one of them. Look for what the odd one shares (a device, cores, a "
            "link), and at its log.",
        )


def slots(e: Evidence) -> Iterator[Finding]:
    copies = len(e.trial.target.urls)
    at_once = e.target.slots and e.target.slots * copies
    busiest = e.summary.client.streams_peak
    if at_once and busiest > at_once:
        yield doubt(
            "load.slots",
            f"Up to {busiest} requests were in flight, and the server works on {at_once} at once"
            f"{f' ({copies} × {e.target.slots})' if copies > 1 else ''}: the others waited in its queue.",
            "Their first token's latency is the queue's. Raise the server's max_num_seqs (slots), or lower the load.",
        )


def slots_offline(e: OfflineEvidence) -> Iterator[Finding]:
    """The engine doesn't process a batch as one."""
    at_once, wanted = e.target.slots, e.offline.requests
    if e.offline.kind == "latency" and at_once and at_once < wanted:
        text = f"A batch of {wanted} was asked for, and the engine works on {at_once} at once: the others waited."
        advice = "The latency is that of several batches. Raise max_num_seqs, or lower the batch."
        yield doubt("load.slots", text, advice)


def slots_row(row: Row) -> Iterator[Finding]:
    asked, limit = row.number("concurrency"), row.number("max_num_seqs")
    copies = row.number("replicas") or 1
    if row.kind == "serve" and asked and limit and asked > limit * copies:
        yield doubt(
            "load.slots",
            f"{asked:g} requests were kept in flight, and the engine takes {limit:g} at once"
            + (f" in each of {copies:g} copies." if copies > 1 else "."),
            "The others wait, and their wait is in the time to the first token. Raise the limit, or ask for less.",
            [*locations([row], "mean_ttft_ms"), row.setting_location("max_num_seqs")],
        )


def engine_streams(e: Evidence) -> Iterator[Finding]:
    """The client holds streams open on which the engine doesn't work."""
    t, s, slots = e.telemetry, e.summary, e.target.slots
    if t is None or s.steady is None or not e.trial.load.closed_loop or e.trial.load.max_concurrency is None:
        return
    running, waiting = t.total("running_mean"), t.total("waiting_mean")
    if running is None or min(x.samples for x in t.engines) < FEW_SAMPLES or (s.e2el.mean or 0.0) < 500:
        return  # short requests are on their way for a good part of their lives
    if slots and s.client.streams_peak > slots * len(e.trial.target.urls):
        return  # said by load.slots
    missing = s.steady.streams_mean - running
    if missing > 0.2 * s.steady.streams_mean:
        queued = waiting is not None and waiting > 0.5 * missing
        yield Finding(
            "load.engine_streams",
            "note",  # that is how the engine works; the load is the one that was asked for
            f"{s.steady.streams_mean:.1f} streams were open, and the engine worked on {running:.1f} of them on average "
            f"({'' if waiting is None else f'{waiting:.1f} waited in its queue, '}by its own metrics).",
            "The engine's real concurrency is the smaller figure, and the first token's latency holds the wait. Look "
            "at its limits of sequences, batched tokens and KV cache."
            if queued
            else "The others were on their way: in a gateway, in the server's HTTP or tokenizer, or here.",
        )


def not_sent(row: Row) -> Iterator[Finding]:
    """The client reports that it sent late."""
    offered, done = finite_rate(row), row.get("sent_rate")
    if not offered or not done or done >= SERVED * offered:
        return
    late = row.get("max_queue_ms") or row.get("p99_queue_ms")
    yield doubt(
        "load.not_sent",
        f"{offered:,.1f} requests/s were to be sent and {done:,.1f} were"
        + (f", up to {late / 1000:,.1f} s after they were due." if late else "."),
        "The client fell behind, and its own wait is in no latency. Use more clients, or report what was sent.",
        locations([row], "sent_rate", "max_queue_ms"),
    )


def queue(row: Row) -> Iterator[Finding]:
    """First tokens wait for a good part of the whole run."""
    first, took, done = row.get("mean_ttft_ms"), row.get("duration_s"), row.get("completed") or 0
    if row.kind == "serve" and first and took and done >= MANY and first / 1000 > 0.2 * took:
        text = f"The first token took {first / 1000:,.1f} s on average, in a run of {took:,.1f} s."
        advice = "Most of that is waiting in a queue: a longer run would give a longer time."
        yield note("load.queue", text, advice, locations([row], "mean_ttft_ms", "duration_s"))


def saturated(rows: Sequence[Row]) -> Iterator[Finding]:
    for sweep in sweeps(rows):
        for before, after in pairwise(sweep):
            yield from _saturated(before, after)


def _saturated(before: Row, after: Row) -> Iterator[Finding]:
    low, high = load_of(before).level, load_of(after).level
    speed, waits = _both(before, after, THROUGHPUTS, 0.01), _both(before, after, _WAITS)
    if not (low and high and speed and waits) or high[1] < 1.3 * low[1]:
        return
    name, (had, has) = speed
    late, (waited, wait) = waits
    if has > had * (1 + GAIN) or wait < WAIT * waited:
        return
    engine, limit = after.setting("engine"), after.number("max_num_seqs")
    at_slots = (
        engine == "vllm" and limit is None and low[0] == high[0] == "concurrency"
        and low[1] <= VLLM_SLOTS < high[1] and wait > 2 * waited and "tensor_parallel" in after.settings
    )  # fmt: skip
    if limit is not None and low[0] == "concurrency":
        at_slots = low[1] <= limit < high[1]
    raised = " → ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in (low, high))
    text = (
        f"{subject(after)}: {raised} brings {has / had - 1:+.1%} {name.replace('_', ' ')} "
        f"({had:,.2f} → {has:,.2f}) and {wait / waited:.1f} times the {words(late)} ({waited:,.0f} → {wait:,.0f} ms)."
    )
    lines = locations([before, after], name, late)
    if at_slots:
        shown = f"{limit:g} are set" if limit is not None else f"{VLLM_SLOTS} was vLLM's default, and none is set"
        text = f"{text} As if the engine took no more at once ({shown} for max-num-seqs)."
        advice = "What waits outside is in the time to the first token. Set --max-num-seqs above the concurrency."
        yield doubt("load.slots", text, advice, lines)
    elif has < 0.95 * had:
        advice = (
            "More load makes it slower: requests are preempted, or the cache is too small. Look at the engine's log."
        )
        yield note("load.fell", text, advice, lines)
    else:
        advice = "From here on more load only adds waiting. Report the knee, not what lies beyond it."
        yield note("load.saturated", text, advice, lines)


def _both(a: Row, b: Row, names: Sequence[str], rounded: float = math.inf) -> tuple[str, tuple[float, float]] | None:
    """Return the first figure that both rows have. `rounded`: to this share of its value at most."""
    for name in names:
        x, y = a.get(name), b.get(name)
        if x and y and a.figures[name].half < rounded * x:
            return name, (x, y)
    return None
