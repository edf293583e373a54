"""Parts against engines that know where each request's time went. None of these schedulers is known to dyno."""

import dataclasses
import functools
import itertools

import msgspec
import numpy as np
import pytest

from dyno.explain.columns import columns
from dyno.explain.explain import totals
from dyno.explain.split import PartColumn, split
from dyno.facts.record import Record
from kinds import (
    ALL,
    CLAIMS,
    WIDEST,
    WITHIN,
    explained,
    far_behind,
    growing,
    in_blocks,
    jittery,
    some_late,
    wrong_parts,
)
from matrix import sampled
from schedulers import Load, Rules, Simulated, simulate, true_part

LONG = (500, 2000)
MIXES: dict[str, tuple[Rules, Load]] = {
    "one request at a time": (Rules(), Load(count=40, concurrency=1)),
    "a low load": (Rules(), Load(concurrency=4)),
    "overload in a closed loop": (Rules(slots=16), Load(count=400, concurrency=64)),
    "overload at a rate": (Rules(slots=32), Load(count=500, concurrency=None, rate=30)),
    "bursts": (Rules(slots=32), Load(count=400, concurrency=None, rate=10, burst=40)),
    "long prefills among decodes": (Rules(), Load(long_every=10)),
    "long prefills in chunks": (Rules(chunk=512), Load(long_every=10)),
    "chunks without end": (
        Rules(chunk=256, slots=32, prefills_at_once=8),
        Load(count=400, concurrency=128, prompt=LONG),
    ),
    "a slow client": (Rules(delivery=growing), Load()),
    "answers in blocks": (Rules(delivery=in_blocks), Load()),
    "jittery delivery": (Rules(delivery=jittery), Load()),
    "some tokens late": (Rules(delivery=some_late), Load()),
    "delivery far behind": (Rules(delivery=far_behind), Load()),
    "preemption": (
        Rules(kv_tokens=6000, prefills_at_once=4),
        Load(count=400, concurrency=64, prompt=(50, 150), output=(100, 300)),
    ),
    "decodes first": (Rules(decode_first=True, slots=16), Load(concurrency=32)),
    "shortest first": (
        Rules(order="shortest", slots=16),
        Load(count=300, concurrency=48, prompt=(32, 2000)),
    ),
    "priorities": (
        Rules(order="priority", slots=16),
        Load(count=300, concurrency=48, priorities=3),
    ),
    "last come, first served": (
        Rules(order="last", slots=16),
        Load(count=300, concurrency=48),
    ),
    "prefills on another machine": (
        Rules(apart=True),
        Load(count=300, concurrency=32, prompt=(200, 800)),
    ),
    "batches of a fixed size": (
        Rules(batch=16, prefills_at_once=16),
        Load(count=320, concurrency=48),
    ),
    "streams in turns": (Rules(turns=8), Load(concurrency=32)),
    "a far network": (Rules(network_ms=10), Load(connect_ms=20)),
    "answers of one token": (Rules(slots=8), Load(concurrency=32, output=(1, 1))),
}
# What is delivered long after it was made says little about single requests.
BLURRED = ("answers in blocks", "jittery delivery", "some tokens late")


@functools.cache
def simulated(mix: str, claims: tuple[str, ...] = ()) -> Simulated:
    return simulate(*MIXES[mix], claims)


SAID = [*itertools.product(CLAIMS, [False, True])]  # of each request, and of preemptions


@sampled(mix=MIXES, said=SAID)
def test_each_part_is_true_or_within_bounds(
    mix: str, said: tuple[tuple[str, ...], bool]
) -> None:
    claims, counted = said
    run = simulated(mix, claims)
    s = explained(run, counted)
    assert len(s.parts) > 1, "no part"
    assert not wrong_parts(run, s)


@pytest.mark.parametrize("mix", [mix for mix in MIXES if mix not in BLURRED])
def test_parts_of_single_requests_are_true_or_within_bounds(mix: str) -> None:
    run = simulated(mix, ALL)
    s = explained(run)
    jobs = {job.index: job for job in run.jobs}
    mine = [
        jobs[record.index]
        for record in sorted(run.records, key=lambda r: (r.sent_ns, r.index))
    ]
    latency_ms = s.latency / 1e6
    for part in s.parts[:-1]:
        truth = np.array([true_part(job, part.covers) for job in mine])
        right = _right(part, truth)
        assert right.mean() > 0.85, part.title
        assert (np.abs(part.value / 1e6 - truth) <= WIDEST * latency_ms).all(), part.title


def _right(part: PartColumn, truth: np.ndarray) -> np.ndarray:
    near = np.abs(part.value / 1e6 - truth) <= WITHIN * truth
    right: np.ndarray = near | (
        (part.low / 1e6 - 1e-3 <= truth) & (truth <= part.high / 1e6 + 1e-3)
    )
    return right


@sampled(mix=MIXES, claims=[(), ALL])
def test_parts_add_up_to_the_latency_to_the_nanosecond(
    mix: str, claims: tuple[str, ...]
) -> None:
    run = simulated(mix, claims)
    s = explained(run)
    assert (sum(p.value for p in s.parts) == s.latency).all()
    measured = sum(r.chunk_ns[-1] - r.due_ns for r in run.records)
    assert sum(p.total_ns for p in totals(s.parts, s.latency)) == measured


def seen_every(ms: float, record: Record) -> Record:
    """Return the record of a client that looks at its sockets this often."""
    looks = [-(-at // round(ms * 1e6)) * round(ms * 1e6) for at in record.chunk_ns]
    since = [look - round(ms * 1e6) for look in looks]
    late = [max(s, record.sent_ns) for s in since]
    chunks = list(range(len(looks)))
    return msgspec.structs.replace(
        record,
        chunk_ns=looks,
        end_ns=looks[-1],
        unseen=chunks,
        unseen_since_ns=late,
    )


@pytest.mark.parametrize("mix", ["overload at a rate", "a low load", "bursts"])
def test_what_the_server_says_holds_where_a_busy_client_looked_late(mix: str) -> None:
    run = simulated(mix, ALL)
    late = dataclasses.replace(run, records=[seen_every(120, r) for r in run.records])
    s = explained(late)
    assert not any("longer than what was measured" in note for note in s.notes)
    queue = next(p for p in s.parts if p.covers == ("queue",))
    assert queue.value.sum() / 1e6 == pytest.approx(run.truth(["queue"]), rel=1e-6)
    assert not wrong_parts(late, s)
    rest = s.parts[-1]
    assert abs(int(rest.value.sum())) < 0.001 * int(s.latency.sum())


def test_queue_and_prefill_are_one_part_unless_the_server_separates_them() -> None:
    silent, speaking = (
        explained(simulate(Rules(slots=4), Load(), claims)) for claims in ((), ALL)
    )
    assert not any(p.covers == ("queue",) for p in silent.parts)
    (both,) = [p for p in silent.parts if "queue" in p.covers]
    assert {"queue", "prefill_bound", "prefill_above"} <= {*both.covers}
    assert both.title == "queue, prefill, network and front end"
    assert any(p.covers == ("queue",) for p in speaking.parts)


def test_stalls_are_separated_from_decoding_only_where_delivery_is_in_time() -> None:
    """Chunks that come half a second late say nothing about what ran when they were made."""
    prompt, late = (
        explained(simulate(Rules(delivery=delivery), Load()))
        for delivery in (lambda *_: 0.2, far_behind)
    )
    assert any(p.covers == ("stall",) for p in prompt.parts)
    assert not any(p.covers == ("stall",) for p in late.parts)
    assert any("can't be separated from decoding" in note for note in late.notes)


def test_pauses_are_preemptions_if_the_server_counts_as_many() -> None:
    """Streams of several engines behind one address pause, too, while those of the others progress."""
    run = simulated("preemption")
    c = columns(run.records)
    (part,) = [
        p for p in split(c, preemptions=run.preemptions).parts if "preemption" in p.covers
    ]
    assert part.covers == ("preemption",)
    (joined,) = [p for p in split(c).parts if "preemption" in p.covers]
    assert {"decode_above", "stall"} <= {*joined.covers}
    assert not any("preemption" in p.covers for p in split(c, preemptions=0).parts)
