"""Was the load borne, or is the latency that of a queue?"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.metric import THROUGHPUTS, words
from dyno.measure.points import at, finite_rate, level, output_each, requests_per_s, subject, sweeps

SERVED = 0.9  # of the offered rate
GAIN, WAIT = 0.03, 1.5  # throughput no longer grows, latency does
VLLM_SLOTS = 256  # of vLLM before its first major engine, where nothing else is said
CROWD, WAITS = 0.3, 0.1  # of all requests, in flight on average; of the time in which they were due
MANY = 20  # requests, that a queue can be told from a start


def rate(row: Row) -> Iterator[Finding]:
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
        yield Finding(
            "load.rate_not_reached",
            "note",
            f"{offered:g} requests/s were offered and {rps:.2f} served, with no more than {cap:g} let in at once.",
            "This is a closed loop, whatever its rate says: the wait before sending is in no latency. Report it as "
            "a concurrency.",
            at([row], "request_throughput"),
        )
    # Long answers alone make a run go on: but not for so long, nor with first tokens that wait so.
    elif took - sending > 2.5 * e2e or (rps * e2e > CROWD * done and waits > WAITS * sending):
        yield _overload(row, offered, rps, f"The last was due after {sending:,.1f} s, and the run took {took:,.1f} s.")


def _overload(row: Row, offered: float, rps: float, because: str) -> Finding:
    return Finding(
        "load.rate_not_reached",
        "doubt",
        f"{offered:g} requests/s were offered and {rps:.2f} served. {because}",
        "The latency is that of a queue that grows with the length of the run. Offer less, or report this as the "
        "server's limit.",
        at([row], "request_throughput", "mean_ttft_ms"),
    )


def _end_to_end_s(row: Row) -> float | None:
    """Of a long request: when the last one is over."""
    for name in ("p99_e2el_ms", "p95_e2el_ms", "mean_e2el_ms"):
        if (told := row.get(name)) is not None:
            return told / 1000 if name != "mean_e2el_ms" else 2 * told / 1000
    first, each = row.get("mean_ttft_ms"), output_each(row)
    gap = row.get("mean_itl_ms") or row.get("median_tpot_ms")
    return (first + each * gap) / 1000 if first is not None and each and gap else None


def not_sent(row: Row) -> Iterator[Finding]:
    """A client that tells how fast it sent, and how late."""
    offered, done = finite_rate(row), row.get("sent_rate")
    if not offered or not done or done >= SERVED * offered:
        return
    late = row.get("max_queue_ms") or row.get("p99_queue_ms")
    yield Finding(
        "load.not_sent",
        "doubt",
        f"{offered:,.1f} requests/s were to be sent and {done:,.1f} were"
        + (f", up to {late / 1000:,.1f} s after they were due." if late else "."),
        "The client fell behind, and its own wait is in no latency. Use more clients, or report what was sent.",
        at([row], "sent_rate", "max_queue_ms"),
    )


def queue(row: Row) -> Iterator[Finding]:
    """A first token that waits for a good part of the whole run."""
    first, took, done = row.get("mean_ttft_ms"), row.get("duration_s"), row.get("completed") or 0
    if row.kind == "serve" and first and took and done >= MANY and first / 1000 > 0.2 * took:
        yield Finding(
            "load.queue",
            "note",
            f"The first token took {first / 1000:,.1f} s on average, in a run of {took:,.1f} s.",
            "Most of that is waiting in a queue: a longer run would give a longer time.",
            at([row], "mean_ttft_ms", "duration_s"),
        )


def slots(row: Row) -> Iterator[Finding]:
    asked, limit = row.number("concurrency"), row.number("max_num_seqs")
    copies = row.number("replicas") or 1
    if row.kind == "serve" and asked and limit and asked > limit * copies:
        yield Finding(
            "load.slots",
            "doubt",
            f"{asked:g} requests were kept in flight, and the engine takes {limit:g} at once"
            + (f" in each of {copies:g} copies." if copies > 1 else "."),
            "The others wait, and their wait is in the time to the first token. Raise the limit, or ask for less.",
            [*at([row], "mean_ttft_ms"), row.setting_location("max_num_seqs")],
        )


# ---- rows under rising load ----


def overload(rows: Sequence[Row]) -> Iterator[Finding]:
    """At several rates about as much was served: that is what can be borne, and all above it is a queue."""
    for sweep in sweeps(rows):
        told = [(o, r, row) for row in sweep if (o := finite_rate(row)) and (r := requests_per_s(row))
                and row.number("concurrency") is None and (row.get("completed") or 0) >= MANY]  # fmt: skip
        if len(told) < 2:
            continue
        most = max(r for _, r, _ in told)  # what it can bear, whatever is offered
        for offered, rps, row in told:
            others = [r for o, r, _ in told if o != offered]
            if most < SERVED * offered and max(others) > 0.8 * most:
                yield _overload(row, offered, rps, f"The most that was served at any rate is {most:.2f}.")


def saturated(rows: Sequence[Row]) -> Iterator[Finding]:
    for sweep in sweeps(rows):
        for before, after in pairwise(sweep):
            yield from _saturated(before, after)


def _saturated(before: Row, after: Row) -> Iterator[Finding]:
    low, high = level(before), level(after)
    speed, waits = _speed(before, after), _wait(before, after)
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
    text = (
        f"{subject(after)}: {_what(low)} → {_what(high)} brings {has / had - 1:+.1%} {name.replace('_', ' ')} "
        f"({had:,.2f} → {has:,.2f}) and {wait / waited:.1f} times the {words(late)} ({waited:,.0f} → {wait:,.0f} ms)."
    )
    lines = at([before, after], name, late)
    if at_slots:
        shown = f"{limit:g} are set" if limit is not None else f"{VLLM_SLOTS} was vLLM's default, and none is set"
        yield Finding(
            "load.slots",
            "doubt",
            f"{text} As if the engine took no more at once ({shown} for max-num-seqs).",
            "What waits outside is in the time to the first token. Set --max-num-seqs above the concurrency.",
            lines,
        )
    elif has < 0.95 * had:
        yield Finding(
            "load.fell",
            "note",
            text,
            "More load makes it slower: requests are preempted, or the cache is too small. Look at the engine's log.",
            lines,
        )
    else:
        yield Finding(
            "load.saturated",
            "note",
            text,
            "From here on more load only adds waiting. Report the knee, not what lies beyond it.",
            lines,
        )


_WAITS = ("mean_ttft_ms", "mean_latency_ms", "mean_e2el_ms")


def _what(at_level: tuple[str, float]) -> str:
    name, value = at_level
    return f"{name.replace('_', ' ')} {value:g}"


def _speed(a: Row, b: Row) -> tuple[str, tuple[float, float]] | None:
    for name in THROUGHPUTS:
        x, y = a.get(name), b.get(name)
        if x and y and a.figures[name].half < 0.01 * x:
            return name, (x, y)
    return None


def _wait(a: Row, b: Row) -> tuple[str, tuple[float, float]] | None:
    for name in _WAITS:
        x, y = a.get(name), b.get(name)
        if x and y:
            return name, (x, y)
    return None
