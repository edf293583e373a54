"""What a server says of its times: it is used where it fits what was measured, and moves nothing where it doesn't."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from dyno.explain.columns import columns
from dyno.explain.difference import difference
from dyno.explain.explain import RunContext, explain
from dyno.explain.split import Split, split
from dyno.facts.record import Record
from dyno.facts.telemetry import EngineTelemetry, TelemetrySummary
from kinds import ALL, WIDEST, explained, wrong_parts
from schedulers import Load, Rules, Simulated, simulate

Change = Callable[[Record], dict[str, object]]


def changed(run: Simulated, change: Change) -> list[Record]:
    return [msgspec.structs.replace(r, **change(r)) for r in run.records]


def covered(s: Split) -> list[tuple[str, ...]]:
    return [p.covers for p in s.parts]


def absurd(ns: int | None) -> int:
    return 3 * (ns or 0) + 10**9


def looked_late(record: Record, every_ns: int = 120_000_000) -> dict[str, object]:
    """Return the times of a client that looks at its sockets this often."""
    looks = [-(-at // every_ns) * every_ns for at in record.chunk_ns]
    since = [max(look - every_ns, record.sent_ns) for look in looks]
    chunks = [*range(len(looks))]
    return {
        "chunk_ns": looks,
        "end_ns": looks[-1],
        "unseen": chunks,
        "unseen_since_ns": since,
    }


# ---- judged ----


def test_a_server_that_reports_more_than_was_measured_is_not_believed() -> None:
    run = simulate(Rules(slots=8), Load(), ("queue",))
    s = split(
        columns(changed(run, lambda r: {"server_queue_ns": absurd(r.server_queue_ns)}))
    )
    assert not any("claimed" in p.sources for p in s.parts)
    assert s.notes == [
        "The server's time of queue is longer than what was measured in 100 % of the answers: it is not used."
    ]


@pytest.mark.parametrize("name", ALL)
def test_one_wrong_time_condemns_no_right_one(name: str) -> None:
    run = simulate(Rules(slots=8), Load(), ALL)
    field = f"server_{name}_ns"
    s = split(columns(changed(run, lambda r: {field: absurd(getattr(r, field))})))
    atoms = {"queue": "queue", "prefill": "prefill_above", "decode": "decode_above"}
    for other in ALL:
        (part,) = [p for p in s.parts if atoms[other] in p.covers]
        alone = not {"front_end", "later_delivery"} & {*part.covers}
        assert alone == (other != name), part.title
    (note,) = s.notes
    assert f"time of {name} is longer than what was measured" in note
    assert not wrong_parts(run, s)


def test_a_queue_and_a_prefill_that_fit_alone_and_not_together_are_both_dropped() -> None:
    run = simulate(Rules(slots=8), Load(), ALL)
    first = {r.index: r.chunk_ns[0] - r.sent_ns for r in run.records}
    most = {"server_queue_ns", "server_prefill_ns"}
    s = split(
        columns(changed(run, lambda r: dict.fromkeys(most, first[r.index] * 9 // 10)))
    )
    assert ("queue",) not in covered(s)
    assert any(
        "The server's times of queue and prefill are longer than what was measured" in note
        and "they are not used" in note
        for note in s.notes
    )


def test_a_claim_that_makes_the_rest_large_is_not_used() -> None:
    """1.9 ms too much for each of short answers: each alone could be an inexact clock."""
    rules = Rules(step_ms=1, overhead_ms=0.1, token_ms=0.01, stream_ms=0.01)
    run = simulate(
        rules, Load(count=50, concurrency=1, prompt=(16, 32), output=(1, 2)), ALL
    )
    said = changed(
        run, lambda r: {"server_prefill_ns": (r.server_prefill_ns or 0) + 1_900_000}
    )
    s = split(columns(said))
    assert abs(int(s.parts[-1].value.sum())) <= 0.05 * int(s.latency.sum())
    assert any("of the latency: it is not used" in note for note in s.notes)


# ---- what they narrow ----


def test_what_is_not_believed_moves_no_measured_time() -> None:
    """A busy client knows each arrival within 120 ms."""
    run = simulate(Rules(slots=8), Load())
    silent = split(columns(changed(run, looked_late)))
    said = split(
        columns(changed(run, lambda r: looked_late(r) | {"server_queue_ns": 10**12}))
    )
    assert (silent.latency == said.latency).all()
    for one, other in zip(silent.parts, said.parts, strict=True):
        assert (one.covers, one.sums) == (other.covers, other.sums)
        assert (one.value == other.value).all()


def test_a_side_whose_claims_are_left_out_is_as_if_it_had_none() -> None:
    run = simulate(Rules(slots=8), Load(), ALL)
    speaking = explain(changed(run, looked_late), RunContext("a"))
    none = dict.fromkeys(("server_queue_ns", "server_prefill_ns", "server_decode_ns"))
    silent = explain(changed(run, lambda r: looked_late(r) | none), RunContext("b"))
    d = difference([speaking], [silent], ("a", "b"))
    assert [p.change_ms for p in (*d.parts, d.change)] == [0.0] * (len(d.parts) + 1)


# ---- missing ----


def test_a_time_that_one_answer_in_two_hundred_lacks_is_used_with_bounds_for_that_one() -> (
    None
):
    run = simulate(Rules(slots=8), Load(), ALL)
    run.records[3].server_queue_ns = None
    s = split(columns(run.records))
    (queue,) = [p for p in s.parts if p.covers == ("queue",)]
    assert not wrong_parts(run, s)
    (row,) = np.flatnonzero(queue.high > queue.low)
    number = run.records[3].index
    assert s.columns.number[s.rows][row] == number
    true_ns = next(j.truth["queue"] for j in run.jobs if j.index == number) * 1e6
    assert queue.low[row] <= true_ns <= queue.high[row]
    assert (sum(p.value for p in s.parts) == s.latency).all()
    assert any("1 of 200 answers without the server's time of queue" in n for n in s.notes)


def test_times_that_only_some_answers_have_are_not_used() -> None:
    run = simulate(Rules(), Load(), ALL)
    for record in run.records[::20]:
        record.server_queue_ns = None
    s = split(columns(run.records))
    assert ("queue",) not in covered(s)
    assert ("prefill_bound", "prefill_above") in covered(s)
    assert "Not all answers have the server's time of queue: it is not used." in s.notes


# ---- what is left beside them ----


def test_the_front_end_is_as_uncertain_as_the_network_beside_it() -> None:
    """A round trip of 5 to 14 ms beside the load says how the 20 ms before the queue were spent."""
    rules, load = Rules(slots=16, network_ms=20), Load(concurrency=16, output=(16, 32))
    run = simulate(rules, load, ("queue", "prefill"))
    trips = [5_000_000, 10_000_000, 10_000_000, 14_000_000]
    s = split(columns(run.records), round_trips_ns=trips)
    network = next(p for p in s.parts if p.covers == ("network",))
    front = next(p for p in s.parts if "front_end" in p.covers)
    both = int((network.value + front.value).sum())
    assert front.sums == (both - network.sums[1], both - network.sums[0])


def test_a_network_that_varies_too_much_is_one_part_with_the_front_end() -> None:
    load = Load(concurrency=16, prompt=(20, 60), output=(4, 8))
    run = simulate(Rules(slots=16, network_ms=20), load, ALL)
    s = split(columns(run.records), round_trips_ns=[5_000_000, 10_000_000, 40_000_000])
    latency = int(s.latency.sum())
    assert all(p.sums[1] - p.sums[0] <= WIDEST * latency for p in s.parts)
    assert not any(p.covers == ("network",) for p in s.parts)


@pytest.mark.parametrize("rules", [Rules(slots=32, slower=0.5), Rules(context_ms=1.0)])
def test_decoding_by_a_histogram_is_as_uncertain_as_the_stalls_in_it(rules: Rules) -> None:
    run = simulate(rules, Load(count=300))
    decode_s = sum(job.made[-1] - job.made[0] for job in run.jobs) / 1e3
    engine = EngineTelemetry(0, 5, decode_s=decode_s, timed_requests=300)
    telemetry = TelemetrySummary(0.2, 1.0, 0.0, 0.2, engines=[engine])
    e = explain(run.records, RunContext("run", telemetry=telemetry)).explanation
    decode = next(p for p in e.parts if p.covers == ["decode_bound", "decode_above"])
    stall = next(p for p in e.parts if p.covers == ["stall"])
    assert decode.sources == ["claimed", "calculated"]
    assert decode.low_ns <= run.truth(decode.covers) * 1e6 <= decode.high_ns
    width = stall.high_ns - stall.low_ns
    assert decode.high_ns - decode.low_ns == pytest.approx(width, rel=0.01)
    assert sum(p.total_ns for p in e.parts) == e.latency_ns


# ---- answers without a first token of their own ----


@pytest.mark.parametrize("chunks", [1, 1000])
def test_answers_at_one_moment_have_their_decoding_in_the_part_before(chunks: int) -> None:
    """A proxy collects whole answers: nothing shows when the first token was there."""
    run = simulate(Rules(proxy_chunks=1000), Load(count=60, concurrency=8))
    s = split(columns(changed(run, lambda r: {"chunk_ns": r.chunk_ns[-chunks:]})))
    (whole,) = [p for p in s.parts if "queue" in p.covers]
    assert {"decode_above", "stall", "later_delivery"} <= {*whole.covers}
    assert any("all tokens at one moment" in note for note in s.notes)


def test_a_server_behind_a_proxy_that_collects_still_says_its_times() -> None:
    run = simulate(Rules(slots=4, proxy_chunks=1000), Load(count=60, concurrency=8), ALL)
    s = split(columns(changed(run, lambda r: {"chunk_ns": r.chunk_ns[-1:]})))
    for atom in ("queue", "decode_above"):
        (part,) = [p for p in s.parts if atom in p.covers]
        truth = run.truth(part.covers) * 1e6
        assert part.value.sum() == pytest.approx(truth, rel=1e-4), part.title


def test_answers_of_one_token_are_split_as_streams() -> None:
    s = explained(simulate(Rules(slots=8), Load(concurrency=32, output=(1, 1))))
    (first,) = [p for p in s.parts if "queue" in p.covers]
    assert "decode_above" not in first.covers
