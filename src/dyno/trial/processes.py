"""The client's processes: how many share a load, the load driven by them, their records as those of one client."""

import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from dyno.clock import now_ns
from dyno.facts.client import MOST_PROCESSES, ClientSpec
from dyno.facts.record import ClientFacts
from dyno.load import decoder, slices
from dyno.load.decoder import Decoders, Settled, SpoolSource
from dyno.load.plan import Plan
from dyno.load.process import SliceProcess
from dyno.load.settle import PlannedRequest, Settling, Sums
from dyno.load.wire import Traffic
from dyno.probe import host, peaks, rig
from dyno.remote import on_ray
from dyno.trial.session import Session
from dyno.units import seconds

STREAM_CHUNKS_PER_S = 100.0  # of a fast engine: a token each 10 ms, as in `dyno doctor`
ASSUMED_CHUNKS_PER_S = 25_000.0  # that one process can time, where `dyno doctor` never ran
AHEAD_FROM_CHUNKS = (
    250_000  # below that, one process has decoded it before others have started
)
MOST_SHARES = 8  # of a spool: each process reads all headers


def needed(spec: ClientSpec, plan: Plan, output_tokens: float) -> int:
    """Return how many processes share the load. `output_tokens`: of a request, on average."""
    return busy(
        _enough(spec, plan, output_tokens) if spec.procs == "auto" else spec.procs, plan
    )


def large(plan: Plan, output_tokens: float, spec: ClientSpec) -> bool:
    """Return whether decoding a load takes longer than starting decoders. `output_tokens`: of a request, on average."""
    return spec.on == "here" and plan.requests * output_tokens >= AHEAD_FROM_CHUNKS


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
    ahead: "Ahead | None" = None,
) -> ClientFacts:
    """Put the load on by a process for each spool, here or on Ray's nodes (by `spec`). `ahead`: decodes it meanwhile,
    where it is put on here."""
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
        return slices.drive(
            clients, session.watcher.progress, session.stop, begins=(ahead or Ahead()).begin
        )


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


# ---- what they have read, decoded ----


def sources(
    spools: Sequence[Path],
    requests: list[PlannedRequest],
    api: str,
    client: ClientFacts | None = None,
) -> list[SpoolSource]:
    """Return what is to be decoded of each spool that there is. `client`: None where its facts are lost."""
    return [
        _source(spools, k, requests, api, client)
        for k, spool in enumerate(spools)
        if spool.exists()
    ]


def _source(
    spools: Sequence[Path],
    k: int,
    requests: list[PlannedRequest],
    api: str,
    client: ClientFacts | None,
) -> SpoolSource:
    facts = client
    if client is not None and client.processes:
        facts = client.processes[k]
    zero_ns = client.start_ns if client else None
    clock = facts.clock if facts else None
    if clock and zero_ns is not None:
        zero_ns += clock.before.ahead_ns
    return SpoolSource(
        str(spools[k]),
        api,
        requests,
        part=k,
        parts=len(spools),
        zero_ns=zero_ns,
        unasked=facts.unasked if facts else [],
        clock=clock,
        lost=facts is not None and facts.outcome == "lost",
    )


def shares_of(count: int) -> int:
    """Return how many processes decode each of `count` spools."""
    return min(max(host.cores() // count, 1), MOST_SHARES)


class Ahead:
    """Processes that decode the spools of a load while it runs. A context: when it is left, they have ended.

    They cost the load nothing: they are at idle priority. What they have not done when it ends is done then."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self._decoders: list[Decoders] = []

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(
        self,
        spools: Sequence[Path],
        requests: list[PlannedRequest],
        api: str,
        how: Settling,
    ) -> None:
        """Start them before the load. The spools are empty or not there yet."""
        for k in range(len(spools)):
            source = _source(spools, k, requests, api, None)
            decoders = Decoders(source, how, shares_of(len(spools)), follow=True)
            self._decoders.append(self._running.enter_context(decoders))

    def begin(self, zero_ns: int) -> None:
        """The load begins."""
        for decoders in self._decoders:
            decoders.begin(zero_ns)

    def cpu_s(self) -> float:
        """Return the CPU seconds that they have used."""
        return sum(decoders.cpu_s() for decoders in self._decoders)

    def decoders(self, source: SpoolSource, how: Settling) -> Decoders | None:
        """Return the decoders of a spool, which now finish it. None: there are none, or they took something for
        granted that isn't so."""
        for decoders in self._decoders:
            if decoders.fit(source, how):
                decoders.finish()
                return decoders
            if decoders.spool == source.path:
                decoders.close()
        return None


def settled(
    each: Sequence[SpoolSource],
    how: Settling,
    sums: Sums,
    step: Callable[[int], None],
    ahead: Ahead | None = None,
) -> Iterator[Settled]:
    """Yield the records of all processes in the order in which they ended, and add up those that are settled."""
    with contextlib.ExitStack() as running:
        decoding = [_settled_of(running, source, how, sums, step, ahead) for source in each]
        yield from heapq.merge(*decoding, key=attrgetter("end_ns"))


def _settled_of(
    running: contextlib.ExitStack,
    source: SpoolSource,
    how: Settling,
    sums: Sums,
    step: Callable[[int], None],
    ahead: Ahead | None,
) -> Iterator[Settled]:
    """Return the records of one spool, decoded by others that end with `running`, where that is worth it."""
    # What a crash has left there ends a spool: one process finds it, a share might miss it.
    if source.zero_ns is None or source.lost:
        return decoder.alone(source)
    decoders = None if ahead is None else ahead.decoders(source, how)
    if decoders is None:
        if not decoder.worthwhile(Path(source.path)):
            return decoder.alone(source)
        shares = shares_of(source.parts)
        if shares * source.parts == 1:
            return decoder.alone(source)
        decoders = running.enter_context(Decoders(source, how, shares))
    return decoders.settled(sums, step)
