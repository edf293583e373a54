"""Several URLs are several engines: each request's stalls, queue and neighbours are those of its own."""

import msgspec
import numpy as np

from dyno.explain.columns import columns
from dyno.explain.explain import RunContext, explain
from dyno.explain.split import split
from dyno.facts.record import Record
from schedulers import Load, Rules, Simulated, simulate


def two() -> tuple[list[Record], list[Simulated]]:
    """Two engines with loads of their own at the same time: long prompts on one, none on the other."""
    runs = [
        simulate(Rules(seed=1), Load(count=100, long_every=10, seed=1)),
        simulate(Rules(seed=2, step_ms=14), Load(count=100, prompt=(8, 16), seed=2)),
    ]
    records = [
        msgspec.structs.replace(record, replica=n, index=1000 * n + record.index)
        for n, run in enumerate(runs)
        for record in run.records
    ]
    return records, runs


def test_parts_of_two_engines_are_the_sums_of_each_ones() -> None:
    records, runs = two()
    both = split(columns(records))
    alone = [split(columns(run.records)) for run in runs]
    (stall,) = [p for p in both.parts if p.covers == ("stall",)]
    own = [p for s in alone for p in s.parts if p.covers == ("stall",)]
    assert stall.value.sum() == sum(p.value.sum() for p in own)
    true_ms = sum(run.truth(["stall"]) for run in runs)
    low, high = (ns / 1e6 for ns in stall.sums)
    assert low <= true_ms <= high
    assert abs(stall.value.sum() / 1e6 - true_ms) <= 0.05 * true_ms


def test_an_engine_s_stalls_are_those_by_its_own_prompts() -> None:
    records, runs = two()
    s = split(columns(records))
    (stall,) = [p for p in s.parts if p.covers == ("stall",)]
    c = columns(records)
    second = c.engine[s.rows] == 1
    own_ms = runs[1].truth(["stall"])
    assert abs(stall.value[second].sum() / 1e6 - own_ms) <= 0.1 * own_ms


def test_neighbours_of_a_request_are_those_of_its_engine() -> None:
    records, _ = two()
    each = explain(records, RunContext("run"))
    for around in each.happenings.neighbourhoods():
        engines = {lane.number // 1000 for lane in around.lanes}
        assert engines == {around.request.index // 1000}


def test_rows_are_taken_out_with_their_chunks() -> None:
    c = columns(two()[0])
    rows = np.flatnonzero(c.engine == 1)
    own = c.only(rows)
    assert (own.first == own.times[own.starts]).all()
    assert (own.last == own.times[own.starts + own.counts - 1]).all()
    assert len(own.times) == own.counts.sum()
