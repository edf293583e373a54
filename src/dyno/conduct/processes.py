"""The client's processes: how many share a load, the load driven by them, their records as those of one client."""

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from operator import attrgetter

from dyno.conduct import on_ray
from dyno.conduct.session import Session
from dyno.facts.client import ClientSpec
from dyno.facts.record import ClientFacts, Record
from dyno.load import decode, slices
from dyno.load.decode import Lengths
from dyno.load.plan import Plan
from dyno.load.process import SliceProcess
from dyno.load.protocols import WireProtocol
from dyno.load.wire import Traffic
from dyno.measure import clocks
from dyno.store.run import Run

_LOST = "a process of dyno's client ended before the response was complete"


def needed(spec: ClientSpec, plan: Plan) -> int:
    """Return how many processes share the load: each has a request to send, and a slot for it."""
    wanted = 1 if spec.procs == "auto" else spec.procs
    return min(wanted, plan.count, plan.in_flight_max or wanted)


def drive(
    run: Run, session: Session, load: Traffic, spec: ClientSpec, count: int, keys: Sequence[bytes]
) -> ClientFacts:
    """Put the load on by `count` processes, here or on Ray's nodes. What they measured is in the run's spools."""
    tasks = slices.cut(load, [run.spool(k) for k in range(count)], keys)
    if spec.on == "ray":
        with on_ray.placed(spec.ray_address, list(tasks)) as nodes:
            session.watcher.phase("Measuring")
            return slices.drive(nodes, session.watcher.progress, session.stop, on_ray.HEAD_START_NS)
    with contextlib.ExitStack() as running:
        clients = [running.enter_context(SliceProcess(f"Process {k + 1} of {count}")) for k in range(count)]
        for client, task in zip(clients, tasks, strict=True):
            client.start(task)
        return slices.drive(clients, session.watcher.progress, session.stop)


def records(
    run: Run, count: int, client: ClientFacts | None, lengths: Sequence[Lengths], protocol: WireProtocol
) -> Iterator[Record]:
    """Yield the records of all processes in the order in which they ended, numbered as in the whole load."""
    each = (client.processes or [client]) if client else [None] * count
    slices_ = [_of_process(run, k, each[k], lengths, protocol, count) for k in range(count) if run.spool(k).exists()]
    yield from heapq.merge(*slices_, key=attrgetter("end_ns"))


def _of_process(
    run: Run, k: int, facts: ClientFacts | None, lengths: Sequence[Lengths], protocol: WireProtocol, count: int
) -> Iterator[Record]:
    own = slices.of_slice(lengths, k, count, len(lengths))
    start, unasked = (facts.start_ns, facts.unasked) if facts else (None, ())
    clock = facts.clock if facts else None
    if clock and start is not None:
        start += clock.before.ahead_ns
    decoded = decode.records(run.spool(k), own, protocol, start, unasked)
    for record in clocks.align(decoded, clock, start or 0) if clock else decoded:
        record.index = record.index * count + k
        if facts and facts.outcome == "lost" and record.error == "interrupted":
            record.error, record.error_detail = "lost", _LOST
        yield record
