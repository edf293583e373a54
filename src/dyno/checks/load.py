"""Was the requested load really put on the server, and could the server handle it?"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean

from msgspec.structs import replace

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.names import engine_named
from dyno.facts.finding import Finding, doubt, note
from dyno.facts.imported import Row
from dyno.facts.metric import THROUGHPUTS, words
from dyno.facts.summary import ReplicaSummary
from dyno.measure.points import (
    finite_rate,
    load_of,
    locations,
    output_each,
    requests_per_s,
    settings,
    subject,
    sweeps,
    together,
)
from dyno.numbers import change, count, number
from dyno.workload.request import Dropped

# Where the sum misleads: of two replicas, one that is slower by a quarter makes it a tenth less than twice the other.
# Replicas that are alike have equally many in flight, so that their shares differ by the luck of lengths alone, as
# counts do: three standard deviations of a count are not luck.
FEWER, SLOWER, TPOT_SAMPLES = 0.8, 1.25, 10
MUCH_SLOWER, FEW_TPOTS = 3.0, 3  # three times as slow is not luck of three requests either
# Offline, replicas do the same work: beyond their noise, if that is known, a tenth isn't luck.
UNLIKE, MUCH_UNLIKE = 0.1, 0.25
# of an iteration: how much later than the first one a replica began
LATE, VERY_LATE = 0.01, 0.05
SERVED = 0.9  # of the offered rate
LONGER = 1.25  # times as long as requests were due: more than the last ones need
GAIN, WAIT = 0.03, 1.5  # throughput no longer grows, latency does
# of all requests, in flight on average; of the time in which they were due
CROWD, WAITS = 0.3, 0.1
MANY = 20  # requests: with fewer, a queue looks like a start
FEW_SAMPLES = 10  # fewer say nothing about a mean
# An engine's requests beyond dyno's, as a share of these, that are no sign of others
OTHERS_CLOSED, OTHERS_OPEN = 0.1, 0.3
_WAITS = ("mean_ttft_ms", "mean_latency_ms", "mean_e2el_ms")


def rate(e: Evidence) -> Iterator[Finding]:
    wait, s = e.summary.wait, e.summary
    if e.trial.replays and s.sessions is None:
        yield from _replayed(e)
        return
    if e.trial.load.closed_loop or wait is None:
        return
    # A queue that grows: late requests waited longer than nearly all early ones, by a good part of the run.
    grown_ms = wait.last_median_ms - wait.first_median_ms
    if wait.last_p25_ms > wait.first_p75_ms and grown_ms > 0.1 * 1000 * wait.span_s:
        because = (
            f"From due to last token the first quarter took {number(wait.first_median_ms)} ms, the last "
            f"{number(wait.last_median_ms)} (medians)."
        )
        served = s.sessions.throughput if s.sessions else s.request_throughput
        unit = "sessions" if s.sessions else "requests"
        yield _queue_grows(number(wait.offered_rps), served, because, unit=unit)


def _replayed(e: Evidence) -> Iterator[Finding]:
    """Judge a replay by the time that it took: its requests have any lengths and gaps, so that late ones can't be
    compared with early ones."""
    s, replay = e.summary, e.summary.replay
    if replay is None or s.sent < MANY:
        return
    span_s = (s.sent - 1) / replay.recorded_rps
    if s.duration_s <= LONGER * span_s:
        return
    because = f"The last request was due after {number(span_s)} s, but the run took {number(s.duration_s)} s."
    advice = (
        "The server didn't keep up with the trace, or this part is a burst that is shorter than its answers: latency "
        "includes the queue, and the throughput is not that of the recorded traffic. Lower --speedup, or replay a "
        "longer part."
    )
    yield replace(
        _queue_grows(number(replay.recorded_rps), s.request_throughput, because),
        advice=advice,
    )


def rate_row(row: Row) -> Iterator[Finding]:
    """A run that continues long after the last request was due served less than offered."""
    offered, rps, done = finite_rate(row), requests_per_s(row), row.get("completed")
    took, e2e = row.get("duration_s"), _end_to_end_s(row)
    if not (offered and rps and done and took and e2e) or done < MANY:
        return
    sending = (row.number("num_prompts") or done) / offered
    if rps >= SERVED * offered or took < LONGER * sending:
        return
    cap = row.number("concurrency")
    if cap:
        text = f"{count(offered)} requests/s offered, {number(rps)} served, with at most {count(cap)} in flight."
        advice = "The limit makes this a closed loop, and no latency includes the wait. Report the concurrency."
        yield note(
            "load.rate_not_reached", text, advice, locations([row], "request_throughput")
        )
        return
    # Long answers also extend a run, but less, and without such waits for first tokens.
    crowded = rps * e2e > CROWD * done and _first_token_s(row) > WAITS * sending
    if crowded or took - sending > 2.5 * e2e:
        because = f"The last was due after {number(sending)} s, but the run took {number(took)} s."
        yield _queue_grows(count(offered), rps, because, row)


def _first_token_s(row: Row) -> float:
    """Return the usual time to the first token; 0 where it is unknown."""
    return (row.get("mean_ttft_ms") or row.get("median_ttft_ms") or 0.0) / 1000


def _queue_grows(
    offered: str, rps: float, because: str, row: Row | None = None, unit: str = "requests"
) -> Finding:
    text = f"{offered} {unit}/s offered, {number(rps)} served. {because}"
    lines = locations([row] if row else [], "request_throughput", "mean_ttft_ms")
    return doubt("load.rate_not_reached", text, locations=lines)


def _end_to_end_s(row: Row) -> float | None:
    """Return how long a long request takes."""
    for name in ("p99_e2el_ms", "p95_e2el_ms"):
        latency_ms = row.get(name)
        if latency_ms is not None:
            return latency_ms / 1000
    mean_ms = row.get("mean_e2el_ms")
    if mean_ms is not None:
        return 2 * mean_ms / 1000
    first, each = row.get("mean_ttft_ms"), output_each(row)
    gap = row.get("mean_itl_ms") or row.get("median_tpot_ms")
    return (first + each * gap) / 1000 if first is not None and each and gap else None


def rate_rows(rows: Sequence[Row]) -> Iterator[Finding]:
    """Several rates were served at about the same speed: that is the limit, and a higher rate is a queue."""
    for sweep in sweeps(rows):
        rates = list(_open_loop_rates(sweep))
        if len(rates) < 2:
            continue
        most = max(served for _, served, _ in rates)  # the limit, whatever is offered
        for offered, rps, row in rates:
            if most >= SERVED * offered:
                continue
            others = max(served for other, served, _ in rates if other != offered)
            known = any(f.level == "doubt" for f in rate_row(row))
            if others > 0.8 * most and not known:
                yield _queue_grows(
                    count(offered), rps, f"No rate gave more than {number(most)}.", row
                )


def _open_loop_rates(rows: Sequence[Row]) -> Iterator[tuple[float, float, Row]]:
    """Yield offered and served requests per second of rows without a limit of requests in flight."""
    for row in rows:
        offered, served = finite_rate(row), requests_per_s(row)
        enough = (row.get("completed") or 0) >= MANY
        if offered and served and enough and row.number("concurrency") is None:
            yield offered, served, row


def streams(e: Evidence) -> Iterator[Finding]:
    asked, s = e.trial.load.max_concurrency, e.summary
    if (
        asked is None
        or not e.trial.load.closed_loop
        or s.steady is None
        or e.trial.workload.traits.sessions
    ):
        return  # users think, too
    if s.steady.streams_mean < 0.95 * asked and s.planned >= 2 * asked:
        opened = (
            f"{number(s.steady.streams_mean)} on average (peak {s.client.streams_peak})"
        )
        yield doubt(
            "load.streams_missing",
            f"Concurrency {asked} was requested, but {opened} was reached.",
        )


def replay(e: Evidence) -> Iterator[Finding]:
    """A limit kept requests of a trace back. Where dyno itself was late, client.late_sends reports it."""
    r, cap = e.summary.replay, e.trial.load.max_concurrency
    if (
        r is None
        or cap is None
        or r.late_p99_ms <= max(10.0, 0.02 * (e.summary.e2el.mean or 0.0))
    ):
        return
    text = (
        f"Recorded requests were sent up to {number(r.late_max_ms / 1000)} s late (p99 {number(r.late_p99_ms)} ms), "
        f"with at most {cap:,} in flight: {number(r.recorded_rps)} requests/s recorded, {number(r.sent_rps)} sent."
    )
    yield doubt("load.replay_late", text)


def no_template(e: Evidence) -> Iterator[Finding]:
    if e.template == "missing":
        which = e.trial.workload.dataset
        text = f"The prompts of {which} were sent as they are: dyno found no chat template of the model."
        yield note("load.no_chat_template", text)


def profiled(e: Evidence) -> Iterator[Finding]:
    if e.trial.profile:
        text = "The engine's profiler ran during the load: it slows the engine down."
        yield doubt("load.profiled", text)


def left_out(e: Evidence) -> Iterator[Finding]:
    for reason, lost in e.dropped.items():
        yield note("load.left_out", f"{Dropped(reason, lost)}.")


def repeated_prompts(e: Evidence) -> Iterator[Finding]:
    again = max(e.summary.sent - e.prompts, 0) + e.repeated_prompts
    if again:
        yield doubt(
            "load.repeated_prompts",
            f"{again:,} of {e.summary.sent:,} requests repeated an earlier prompt.",
        )


def replicas(e: Evidence) -> Iterator[Finding]:
    """Copies of a server completed fewer requests than their share, or were slower."""
    several, urls = e.summary.replicas, e.trial.target.urls
    if not several or not e.summary.completed:
        return
    share = e.summary.completed / len(several)
    least = min(several, key=lambda r: r.completed)
    odd = []
    if least.completed < min(FEWER * share, share - 3 * math.sqrt(share)):
        odd.append(
            f"{urls[least.index]} completed {least.completed:,} requests (even share: {share:,.0f})"
        )
    tpots, slower = _mean_tpots(several, TPOT_SAMPLES), SLOWER
    if len(tpots) < 2:
        tpots, slower = _mean_tpots(several, FEW_TPOTS), MUCH_SLOWER
    if len(tpots) > 1:
        slow = max(tpots, key=lambda i: tpots[i])
        others = mean(tpot for i, tpot in tpots.items() if i != slow)
        if tpots[slow] > slower * others:
            odd.append(
                f"{urls[slow]} has a mean TPOT of {number(tpots[slow])} ms, the others {number(others)}"
            )
    if odd:
        yield doubt(
            "load.replicas_uneven", f"The {len(several)} replicas differ: {'; '.join(odd)}."
        )


def _mean_tpots(replicas: Sequence[ReplicaSummary], least: int) -> dict[int, float]:
    """Return the mean TPOT of each replica that completed this many requests."""
    return {
        r.index: r.tpot_mean_ms
        for r in replicas
        if r.tpot_mean_ms is not None and r.completed >= least
    }


def offline_replicas(e: OfflineEvidence) -> Iterator[Finding]:
    several, took_ms = e.offline.replicas, e.offline.latency.mean
    if not several or not e.offline.completed:
        return
    fast, slow = (
        pick(several, key=lambda r: r.total_token_throughput.mean) for pick in (max, min)
    )
    most, least = fast.total_token_throughput.mean, slow.total_token_throughput.mean
    noise = math.sqrt(
        mean(r.total_token_throughput.std**2 for r in several) * 2 / e.offline.iterations
    )
    if most - least > max(UNLIKE * most, 3 * noise):
        text = (
            f"The {len(several)} replicas differ: copy {fast.index + 1} processed {number(most)} tok/s in its own "
            f"time, copy {slow.index + 1} {number(least)} ({change(least / most - 1)})."
        )
        yield Finding(
            "load.replicas_uneven",
            "doubt" if most - least > MUCH_UNLIKE * most else "note",
            text,
        )
    late = max(several, key=lambda r: r.late_ms)
    if late.late_ms > LATE * took_ms:
        text = (
            f"Copy {late.index + 1} began up to {number(late.late_ms)} ms after the first one; an iteration takes "
            f"{number(took_ms)} ms."
        )
        yield Finding(
            "load.replicas_apart",
            "doubt" if late.late_ms > VERY_LATE * took_ms else "note",
            text,
        )


def replicas_on_cpu(e: Circumstances) -> Iterator[Finding]:
    kind = KINDS.get(e.engine.kind) if e.engine is not None else None
    copies = (
        e.engine.launches
        if e.engine is not None and (kind is None or kind.computes)
        else []
    )
    if len(copies) > 1 and not any(launch.devices for launch in copies):
        cores = f" ({e.rig.cores} cores)" if e.rig is not None and e.rig.cores else ""
        yield note(
            "load.replicas_share_cpu",
            f"{len(copies)} replicas shared this machine's CPU{cores}.",
        )


def replicas_gain(rows: Sequence[Row]) -> Iterator[Finding]:
    """Several copies have less throughput than one under the same load."""
    for one, more, copies in _one_and_several(rows):
        speed = _both(one, more, THROUGHPUTS)
        if speed is None:
            continue
        name, (alone, summed) = speed
        if summed < alone:
            text = (
                f"{subject(more)}: {count(copies)} replicas have less {words(name)} than one under the same load "
                f"({number(summed)}, {number(alone)})."
            )
            yield doubt(
                "load.replicas_no_gain", text, locations=locations([one, more], name)
            )


def _one_and_several(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, float]]:
    """Yield rows of one copy and of several that are otherwise alike, and how many these are."""
    for group in together(rows):
        alike: dict[frozenset[tuple[str, object]], dict[float, Row]] = {}
        for row in group:
            own = {
                k: v
                for k, v in settings(row).items()
                if k not in ("replicas", "accelerators", "devices", "series")
            }
            alike.setdefault(frozenset(own.items()), {}).setdefault(
                row.number("replicas") or 1, row
            )
        for by_copies in alike.values():
            if 1 not in by_copies:
                continue
            for copies, row in by_copies.items():
                if copies > 1:
                    yield by_copies[1], row, copies


def slots(e: Evidence | OfflineEvidence | Row) -> Iterator[Finding]:
    """More requests were in flight than the engine processes at once."""
    lines: list[str] = []
    if isinstance(e, Row):
        busiest = e.number("concurrency") if e.kind == "serve" else None
        limit, copies = e.number("max_num_seqs"), e.number("replicas") or 1
        lines = [*locations([e], "mean_ttft_ms"), e.setting_location("max_num_seqs")]
    elif isinstance(e, OfflineEvidence):
        busiest = e.offline.requests if e.offline.kind == "latency" else None
        limit, copies = e.target.slots, len(e.offline.replicas) or 1
    else:
        busiest, limit, copies = (
            e.summary.client.streams_peak,
            e.target.slots,
            len(e.trial.target.urls),
        )
    if busiest and limit and busiest > limit * copies:
        each = f" ({count(copies)} × {count(limit)})" if copies > 1 else ""
        text = (
            f"{count(busiest)} requests were in flight, but the engine processes "
            f"{count(limit * copies)} at once{each}."
        )
        yield doubt("load.slots", text, locations=lines)


def engine_streams(e: Evidence) -> Iterator[Finding]:
    """The client holds streams open on which the engine doesn't work."""
    if e.telemetry is None or e.summary.steady is None or not _streams_are_compared(e):
        return
    running, waiting = e.telemetry.total("running_mean"), e.telemetry.total("waiting_mean")
    if running is None or min(x.samples for x in e.telemetry.engines) < FEW_SAMPLES:
        return
    opened = e.summary.steady.streams_mean
    missing = opened - running
    if missing <= 0.2 * opened:
        return
    queue = "" if waiting is None else f", {number(waiting)} were queued"
    held = f"{number(opened)} requests were open on average"
    text = f"{held}, but by its metrics the engine processed {number(running)}{queue}."
    advice = ""
    if waiting is not None and waiting > 0.5 * missing:
        advice = (
            "The engine's actual concurrency is lower, and TTFT includes the queue. Check its limits: sequences, "
            "batched tokens, KV cache."
        )
    yield note("load.engine_streams", text, advice)


def other_requests(e: Evidence) -> Iterator[Finding]:
    """The engine had more requests than dyno had open: others use it, too."""
    if e.telemetry is None or e.trial.load.probe_rate_rps:
        return
    running, waiting = e.telemetry.total("running_mean"), e.telemetry.total("waiting_mean")
    if running is None or min(x.samples for x in e.telemetry.engines) < FEW_SAMPLES:
        return
    s = e.summary
    opened = max(s.client.streams_mean, s.steady.streams_mean if s.steady else 0.0)
    # Where requests come at random, samples may meet more of them than there are on average.
    allowed = OTHERS_CLOSED if e.trial.load.closed_loop else OTHERS_OPEN
    had = running + (waiting or 0.0)
    if had <= opened * (1 + allowed) + 1:
        return
    queue = f", {number(waiting)} of them queued" if waiting else ""
    text = (
        f"By its metrics the engine had {number(had)} requests on average{queue}, but dyno had "
        f"{number(opened)} open."
    )
    yield doubt("load.other_requests", text)


def _streams_are_compared(e: Evidence) -> bool:
    """Return whether the engine should work on all streams that the client holds open."""
    load, s, slots = e.trial.load, e.summary, e.target.slots
    if not load.closed_loop or load.max_concurrency is None:
        return False
    if (s.e2el.mean or 0.0) < 500:
        return False  # short requests are on their way for a good part of their lives
    # Of more than the engine's slots, load.slots reports it.
    return not slots or s.client.streams_peak <= slots * len(e.trial.target.urls)


def not_sent(row: Row) -> Iterator[Finding]:
    """The client reports that it sent late."""
    offered, done = finite_rate(row), row.get("sent_rate")
    if not offered or not done or done >= SERVED * offered:
        return
    late = row.get("max_queue_ms") or row.get("p99_queue_ms")
    behind = f", up to {number(late / 1000)} s late" if late else ""
    text = f"{number(offered)} requests/s were planned, {number(done)} were sent{behind}."
    yield doubt(
        "load.not_sent", text, locations=locations([row], "sent_rate", "max_queue_ms")
    )


def queue(row: Row) -> Iterator[Finding]:
    """First tokens wait for a good part of the whole run."""
    first, took, done = (
        row.get("mean_ttft_ms"),
        row.get("duration_s"),
        row.get("completed") or 0,
    )
    if (
        row.kind == "serve"
        and first
        and took
        and done >= MANY
        and first / 1000 > 0.2 * took
    ):
        text = f"The mean TTFT is {number(first / 1000)} s, in a run of {number(took)} s."
        yield note(
            "load.queue", text, locations=locations([row], "mean_ttft_ms", "duration_s")
        )


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
    raised = f"{low[0].replace('_', ' ')} {count(low[1])} → {count(high[1])}"
    text = (
        f"{subject(after)}, {raised}: {words(name)} {change(has / had - 1)} ({number(had)} → {number(has)}), "
        f"{words(late)} × {number(wait / waited, digits=2)} ({number(waited)} → {number(wait)} ms)."
    )
    lines = locations([before, after], name, late)
    if limit := _limit_between(low, high, after, waits_twice=wait > 2 * waited):
        text = f"{text} The engine probably processes no more at once ({limit})."
        advice = "Queued requests inflate TTFT. Set --max-num-seqs above the concurrency."
        yield doubt("load.slots", text, advice, lines)
    else:
        yield note(
            "load.fell" if has < 0.95 * had else "load.saturated", text, locations=lines
        )


def _limit_between(
    low: tuple[str, float], high: tuple[str, float], row: Row, waits_twice: bool
) -> str:
    """Return which limit of requests at once is between two loads, in words. '': none that is known."""
    if low[0] != "concurrency":
        return ""
    limit = row.number("max_num_seqs")
    if limit is not None:
        return f"max-num-seqs is {count(limit)}" if low[1] <= limit < high[1] else ""
    # A row with this setting has the engine's command, which would have the limit.
    has_command = "tensor_parallel" in row.settings
    engine = engine_named(str(row.setting("engine")))
    if engine is None or engine.default_slots is None or not (has_command and waits_twice):
        return ""
    reached = high[0] == "concurrency" and low[1] <= engine.default_slots < high[1]
    return f"{engine.title}'s default was {engine.default_slots}" if reached else ""


def _both(
    a: Row, b: Row, names: Sequence[str], rounded: float = math.inf
) -> tuple[str, tuple[float, float]] | None:
    """Return the first figure that both rows have. `rounded`: to this share of its value at most."""
    for name in names:
        x, y = a.get(name), b.get(name)
        if x and y and a.figures[name].half < rounded * x:
            return name, (x, y)
    return None
