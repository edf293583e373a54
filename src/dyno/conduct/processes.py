"""The client's processes: how many share a load, the load driven by them, their records as those of one client."""

import contextlib
import heapq
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from dyno.conduct.session import Session
from dyno.facts.client import MOST_PROCESSES, ClientSpec
from dyno.facts.record import ClientFacts, Record
from dyno.load import decode, slices
from dyno.load.decode import Lengths
from dyno.load.plan import Plan
from dyno.load.process import SliceProcess
from dyno.load.protocols import WireProtocol
from dyno.load.wire import Traffic
from dyno.probe import peaks, rig
from dyno.store.run import Run
from dyno.units import seconds

STREAM_CHUNKS_PER_S = 100.0  # of a fast engine: a token each 10 ms, as in `dyno doctor`
ANYWHERE_CHUNKS_PER_S = 25_000.0  # one process can time so many on any machine: used where `dyno doctor` never ran
_LOST = "a process of dyno's client ended before the response was complete"


def needed(spec: ClientSpec, plan: Plan, output_tokens: float) -> int:
    """Return how many processes share the load: each has a request to send, and a slot for it.

    `output_tokens`: of a request, on average."""
    wanted = _enough(spec, plan, output_tokens) if spec.procs == "auto" else spec.procs
    return min(wanted, plan.count, plan.in_flight_max or wanted)


def _enough(spec: ClientSpec, plan: Plan, output_tokens: float) -> int:
    """Return as many as the load may need, by what one process can time on this machine. One core stays free."""
    chunks_per_s = min(plan.in_flight_max or plan.count, plan.count) * STREAM_CHUNKS_PER_S
    if plan.due_ns:
        chunks_per_s = min(chunks_per_s, plan.count * output_tokens / seconds(max(plan.due_ns[-1], 1)))
    machine = rig.look()
    tested = peaks.of_client(machine)
    most = max(machine.cores - 1, 1) if spec.on == "here" else MOST_PROCESSES
    return min(math.ceil(chunks_per_s / (tested.chunks_per_s if tested else ANYWHERE_CHUNKS_PER_S)), most)


def drive(run: Run, session: Session, load: Traffic, count: int, keys: Sequence[bytes]) -> ClientFacts:
    """Put the load on by `count` processes on this machine. What they measured is in the run's spools."""
    tasks = slices.cut(load, [run.spool(k) for k in range(count)], keys)
    with contextlib.ExitStack() as running:
        clients = [running.enter_context(SliceProcess(f"Process {k + 1} of {count}")) for k in range(count)]
        for client, task in zip(clients, tasks, strict=True):
            client.start(task)
        return slices.drive(clients, session.watcher.progress, session.stop)


def records(
    run: Run, count: int, client: ClientFacts | None, lengths: Sequence[Lengths], protocol: WireProtocol
) -> Iterator[Record]:
    """Yield the records of all processes in the order in which they ended, numbered as in the whole load."""
    if count == 1:
        start, unasked = (client.start_ns, client.unasked) if client else (None, ())
        yield from decode.records(run.spool(0), lengths, protocol, start, unasked)
        return
    each = client.processes if client else [None] * count
    slices_ = [_of_process(run, k, each[k], lengths, protocol, count) for k in range(count) if run.spool(k).exists()]
    yield from heapq.merge(*slices_, key=attrgetter("end_ns"))


def _of_process(
    run: Run, k: int, facts: ClientFacts | None, lengths: Sequence[Lengths], protocol: WireProtocol, count: int
) -> Iterator[Record]:
    own = slices.of_slice(lengths, k, count, len(lengths))
    start, unasked = (facts.start_ns, facts.unasked) if facts else (None, ())
    for record in decode.records(run.spool(k), own, protocol, start, unasked):
        record.index = record.index * count + k
        if facts and facts.outcome == "lost" and record.error == "interrupted":
            record.error, record.error_detail = "lost", _LOST
        yield record
