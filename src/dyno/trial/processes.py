"""The client's processes: how many share a load, the load driven by them, their records as those of one client."""

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from dyno.clock import now_ns
from dyno.facts.client import MOST_PROCESSES, ClientSpec
from dyno.facts.record import ClientFacts, Record
from dyno.load import decode, decoder, slices
from dyno.load.decode import Lengths
from dyno.load.plan import Plan
from dyno.load.process import SliceProcess
from dyno.load.protocols import WireProtocol
from dyno.load.sessions import Graph
from dyno.load.wire import Traffic
from dyno.measure import clocks
from dyno.probe import host, peaks, rig
from dyno.remote import on_ray
from dyno.trial.session import Session
from dyno.units import seconds

STREAM_CHUNKS_PER_S = 100.0  # of a fast engine: a token each 10 ms, as in `dyno doctor`
ASSUMED_CHUNKS_PER_S = 25_000.0  # that one process can time, where `dyno doctor` never ran
_LOST = "a process of dyno's client ended before the response was complete"


def needed(spec: ClientSpec, plan: Plan, output_tokens: float) -> int:
    """Return how many processes share the load. `output_tokens`: of a request, on average."""
    return busy(
        _enough(spec, plan, output_tokens) if spec.procs == "auto" else spec.procs, plan
    )


def busy(count: int, plan: Plan) -> int:
    """Return how many of the processes have a request to send, and a slot for it."""
    return min(count, plan.count, plan.in_flight_max or count)


def _enough(spec: ClientSpec, plan: Plan, output_tokens: float) -> int:
    """Return as many as the load may need, by what one process can time on this machine. One core stays free."""
    chunks_per_s = min(plan.in_flight_max or plan.count, plan.count) * STREAM_CHUNKS_PER_S
    if plan.due_ns:
        chunks_per_s = min(
            chunks_per_s, plan.requests * output_tokens / seconds(max(plan.due_ns[-1], 1))
        )
    machine = rig.read_machine()
    tested = peaks.of_client(machine)
    most = max(machine.cores - 1, 1) if spec.on == "here" else MOST_PROCESSES
    return min(
        math.ceil(chunks_per_s / (tested.chunks_per_s if tested else ASSUMED_CHUNKS_PER_S)),
        most,
    )


def drive(
    session: Session,
    load: Traffic,
    spools: Sequence[Path],
    keys: Sequence[bytes],
    spec: ClientSpec | None = None,
) -> ClientFacts:
    """Put the load on by a process for each spool, here or on Ray's nodes (by `spec`)."""
    tasks = slices.cut(load, spools, keys)
    count = len(spools)
    if spec is not None and spec.on == "ray":
        with on_ray.placed(spec, list(tasks)) as nodes:
            session.watcher.phase("Measuring")
            return slices.drive(
                nodes, session.watcher.progress, session.stop, on_ray.HEAD_START_NS
            )
    with contextlib.ExitStack() as running:
        clients = [
            running.enter_context(SliceProcess(f"Process {k + 1} of {count}"))
            for k in range(count)
        ]
        for client, task in zip(clients, tasks, strict=True):
            client.start(task)
        return slices.drive(clients, session.watcher.progress, session.stop)


@contextlib.contextmanager
def probing(load: Traffic | None, spool: Path, keys: Sequence[bytes]) -> Iterator[None]:
    """Send probes by a process of their own, until the context is left. None: there are none."""
    if load is None:
        yield
        return
    with SliceProcess("The process of the probes") as client:
        [task] = slices.cut(load, [spool], keys)
        client.start(task)
        while not client.ready:
            time.sleep(slices.LOOK_S)
            client.update()
        client.go(now_ns())
        yield
        client.stop()
        while client.facts is None:
            time.sleep(slices.LOOK_S)
            client.update()


def records(
    spools: Sequence[Path],
    lengths: Sequence[Lengths],
    protocol: WireProtocol,
    client: ClientFacts | None = None,
) -> Iterator[Record]:
    """Yield the records of all processes in the order in which they ended, numbered as in the whole load."""
    with contextlib.ExitStack() as running:
        each = [
            _of_process(running, spools, k, lengths, protocol, client)
            for k, spool in enumerate(spools)
            if spool.exists()
        ]
        yield from heapq.merge(*each, key=attrgetter("end_ns"))


def _facts_of_process(client: ClientFacts | None, k: int) -> ClientFacts | None:
    """Return the facts of one process of several; the client's own where it was a single one."""
    if client is None or not client.processes:
        return client
    return client.processes[k]


def _of_process(
    running: contextlib.ExitStack,
    spools: Sequence[Path],
    k: int,
    lengths: Sequence[Lengths],
    protocol: WireProtocol,
    client: ClientFacts | None,
) -> Iterator[Record]:
    """Return the records of one process, decoded by others that end with `running`, where that is worth it."""
    count = len(spools)
    graph = Graph.from_requests(lengths)
    own = slices.of_slice(lengths, k, count, len(lengths), graph)
    facts = _facts_of_process(client, k)
    zero_ns = client.start_ns if client else None
    clock = facts.clock if facts else None
    if clock and zero_ns is not None:
        zero_ns += clock.before.ahead_ns
    # What a crash has left there ends a spool: one process finds it, a share might miss it.
    cut = facts is None or facts.outcome == "lost"
    shares = max(host.cores() // count, 1)
    if cut or shares * count == 1 or not decoder.worthwhile(spools[k]):
        decoded = decode.records(spools[k], own, protocol, zero_ns)
    else:
        decoders = decoder.Decoders(spools[k], own, protocol, zero_ns, shares)
        decoded = running.enter_context(decoders).records()
    decoded = map(decode.marked, decoded, itertools.repeat(_unasked(facts)))
    aligned = clocks.align(decoded, clock, zero_ns or 0) if clock else decoded
    return _numbered(aligned, own, slices.Numbering(graph, k, count), graph, facts)


def _unasked(facts: ClientFacts | None) -> frozenset[int]:
    return frozenset(facts.unasked if facts else ())


def _numbered(
    decoded: Iterator[Record],
    own: Sequence[Lengths],
    number: slices.Numbering,
    graph: Graph | None,
    facts: ClientFacts | None,
) -> Iterator[Record]:
    """Yield the records of a slice as those of the whole load."""
    turns = graph.turns() if graph else []
    for record in decoded:
        record.group = getattr(own[record.index % len(own)], "group", "")
        record.index = number(record.index)
        if graph:
            record.session = graph.session_of(record.index)
            record.turn = turns[record.index % graph.requests]
        if facts and facts.outcome == "lost" and record.error == "interrupted":
            record.error = "lost"
            record.error_detail = _LOST
        yield record
