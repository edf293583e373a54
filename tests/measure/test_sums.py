"""Sums of shares, packed and put together, are the sums of all records: in each figure, whoever has which record."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts, Record
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.settle import PlannedRequest, Settling, Sums
from dyno.measure.summary import NAMES_MAX
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.spec import WorkloadSpec

COUNT = 240
TRIAL = TrialSpec(
    TargetSpec(
        "http://127.0.0.1:1", "openai", "/v1/completions", "m", more_urls=["http://[::1]:1"]
    ),
    WorkloadSpec("random"),
    LoadSpec(max_concurrency=8),
    goodput_ms={"ttft": 40, "tpot": 12},
)
HOW = Settling(TRIAL, 2, answers="server")
REQUESTS = [PlannedRequest(8, 20, session=i // 3) for i in range(COUNT)]
FACTS = ClientFacts(0, 70 * NS_PER_S, "complete", COUNT, COUNT, 1.0, 999, [], True)
CLIENT = msgspec.structs.replace(FACTS, processes=[FACTS, FACTS])
SIZES = [3] * (COUNT // 3)


def record(i: int, draw: random.Random, plain: bool) -> Record:
    """A record of any kind; `plain`: one token a chunk, all of them seen, with text."""
    due_ns = round(draw.uniform(0, 60) * NS_PER_S)
    sent_ns = due_ns + draw.randrange(NS_PER_MS)
    count = draw.randrange(1, 20)
    chunks = [sent_ns + 30 * NS_PER_MS]
    for _ in range(count - 1):
        chunks.append(chunks[-1] + draw.randrange(1, 20 * NS_PER_MS))
    r = Record(i, due_ns, sent_ns, chunks[-1] + 1000, 8, 20, chunk_ns=chunks)
    r.session, r.turn, r.replica = i // 3, i % 3, i % 2
    r.output_tokens, r.tokens_by = count, "usage"
    r.text = f"{i} answers"
    r.reads, r.late_ns_max, r.late_ns_sum = count, draw.randrange(NS_PER_MS), NS_PER_MS
    r.finish_reason = draw.choice(("length", "stop"))
    r.model = f"m{draw.randrange(NAMES_MAX // 2)}"
    r.group = draw.choice(("", "a", "b"))
    if not plain:
        _make_odd(r, draw)
    return r


def _make_odd(r: Record, draw: random.Random) -> None:
    count = len(r.chunk_ns)
    r.unseen = sorted(draw.sample(range(count), draw.randrange(count)))
    r.unseen_since_ns = [r.chunk_ns[i] - NS_PER_MS for i in r.unseen]
    r.silent = sorted(draw.sample(range(1, count), draw.randrange(count)))
    r.output_tokens = count + draw.randrange(20)
    r.cached_tokens = draw.choice((None, 3))
    if draw.random() < 0.2:
        r.error = draw.choice(("cancelled", "reset"))
        r.error_detail = f"of {r.index}"
    if draw.random() < 0.2:
        r.chunk_tokens = [1] * count


def added(records: Sequence[Record]) -> Sums:
    sums = Sums(HOW, REQUESTS)
    for r in records:
        sums.add(r)
    return sums


def figures(sums: Sums) -> object:
    return msgspec.to_builtins(sums.tally.summary(CLIENT, SIZES))


def _near(value: object) -> object:
    if isinstance(value, dict):
        return {name: _near(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_near, value)]
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


@pytest.mark.parametrize("odd", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shares", [1, 2, 5])
def test_sums_of_shares_are_those_of_all_records(odd: float, shares: int) -> None:
    draw = random.Random(shares)
    records = [record(i, draw, plain=draw.random() >= odd) for i in range(COUNT)]
    # the last share has plain records alone: it doesn't know what others have
    records.sort(key=lambda r: bool(r.unseen or r.silent or r.error), reverse=True)
    whole = added(records)
    size = -(-COUNT // shares)
    joined = Sums(HOW, REQUESTS)
    for begin in range(0, COUNT, size):
        packed = msgspec.msgpack.encode(added(records[begin : begin + size]).packed())
        joined.add_packed(msgspec.msgpack.decode(packed))
    assert joined.tally.count == COUNT
    assert figures(joined) == _near(figures(whole))
    assert joined.reuse is not None and whole.reuse is not None
    assert sorted(joined.reuse._sent) == sorted(whole.reuse._sent)


def test_a_record_may_be_added_between_shares() -> None:
    draw = random.Random(7)
    records = [record(i, draw, plain=i % 2 == 0) for i in range(COUNT)]
    joined = Sums(HOW, REQUESTS)
    for r in records[:50]:
        joined.add(r)
    joined.add_packed(
        msgspec.msgpack.decode(msgspec.msgpack.encode(added(records[50:200]).packed()))
    )
    for r in records[200:]:
        joined.add(r)
    assert figures(joined) == _near(figures(added(records)))
