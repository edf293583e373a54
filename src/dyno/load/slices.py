"""A load cut into slices, each sent by a client of its own, and what these clients report put together again.

Slice k of n has the sessions k, k + n, k + 2n, … of the plan: its session j is the whole's j × n + k.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec.structs import replace

from dyno.clock import now_ns
from dyno.facts.record import ClientFacts
from dyno.load.plan import Plan
from dyno.load.process import SliceTask
from dyno.load.progress import RECENT, Progress, Stop
from dyno.load.script import PromptScript, Script
from dyno.load.sessions import Graph
from dyno.load.wire import Traffic
from dyno.transport import Transport
from dyno.units import NS_PER_MS

T = TypeVar("T")
HEAD_START_NS = 100 * NS_PER_MS  # from the last one's being ready to the agreed instant
LOOK_S = 0.05
# Worst first. A process that was lost is a finding: the others' figures stay.
_OUTCOMES = ("interrupted", "server gone", "all failed", "complete", "lost")


class SliceClient(Protocol):
    """A client that runs one slice, wherever it is. None of these calls waits."""

    def update(self) -> None:
        """Take in what it has reported. Raise DynoError where it can't begin."""

    ready: bool  # its connections are open
    progress: Progress
    facts: ClientFacts | None  # when it has ended

    def go(self, at_ns: int) -> None:
        """Begin at this moment of this machine's monotonic clock."""

    def stop(self) -> None:
        """Ask it to end: what it measured is kept."""


def share(plan: Plan, k: int, n: int) -> Plan:
    most = plan.in_flight_max
    count = len(range(k, plan.count, n))
    return Plan(
        count=count,
        due_ns=None if plan.due_ns is None else plan.due_ns[k::n],
        in_flight_max=None if most is None else _part(most, k, n),
        stop_sending_ns=plan.stop_sending_ns,
        graph=plan.graph and plan.graph.part(sessions_of(plan.graph.sessions, k, n, count)),
        steps=[(at_ns, _part(slots, k, n)) for at_ns, slots in plan.steps],
        cancelling=plan.cancelling
        and replace(plan.cancelling, seed=plan.cancelling.seed * n + k),
    )


def _part(slots: int, k: int, n: int) -> int:
    return slots // n + (k < slots % n)


def sessions_of(size: int, k: int, n: int, count: int) -> list[int]:
    """Return which of `size` sessions a slice of `count` has. Where they are fewer than the load has, they come round
    again in the order in which one client would begin them."""
    return [(j * n + k) % size for j in range(min(size // math.gcd(n, size), count))]


def of_slice(
    values: Sequence[T], k: int, n: int, count: int, graph: Graph | None = None
) -> list[T]:
    """Return what goes with each request of a slice of `count` sessions."""
    chosen = sessions_of(graph.sessions if graph else len(values), k, n, count)
    return [values[i] for i in (graph.requests_of(chosen) if graph else chosen)]


class Numbering:
    """Numbers a slice's exchanges as in the whole load."""

    def __init__(self, graph: Graph | None, k: int, n: int) -> None:
        self._graph = graph
        self._k = k
        self._n = n
        if graph is not None:
            self._sessions = sessions_of(graph.sessions, k, n, graph.sessions)
            self._part = graph.part(self._sessions)

    def __call__(self, exchange: int) -> int:
        if self._graph is None:
            return exchange * self._n + self._k
        members = self._part.beside(exchange)
        session = self._part.session_of(exchange) * self._n + self._k
        return self._graph.members(session).start + exchange - members.start


def cut(
    traffic: Traffic, spools: Sequence[Path], secrets: Sequence[bytes]
) -> Iterator[SliceTask]:
    """Yield the task of each process; as many as there are spools to write."""
    n = len(spools)
    first = traffic.routes[0]
    via = Transport(
        **{name: getattr(first.via, name) for name in Transport.__struct_fields__}
    )
    for k, spool in enumerate(spools):
        plan = share(traffic.plan, k, n)
        yield SliceTask(
            urls=[str(route.url) for route in traffic.routes],
            via=via,
            login=first.login,
            fronts=list(traffic.fronts),
            script=_script(traffic, k, n, plan.count),
            plan=plan,
            timeout_s=traffic.timeout_s,
            response_max=traffic.response_max,
            spool=str(spool),
            secrets=list(secrets),
        )


def _script(traffic: Traffic, k: int, n: int, count: int) -> Script:
    script = traffic.script
    graph = traffic.plan.graph
    if isinstance(script, PromptScript):
        return PromptScript(of_slice(script.payloads, k, n, count, graph))
    return script.part(of_slice(range(len(script.bodies)), k, n, count, graph))


def drive(
    clients: Sequence[SliceClient],
    watch: Callable[[Progress], None],
    stop: Stop,
    head_start_ns: int = HEAD_START_NS,
    begins: Callable[[int], None] = lambda at_ns: None,
) -> ClientFacts:
    """Start all at one instant, when all are ready, and wait for their end. `begins` hears of the instant."""
    begun = stopping = False
    while not all(client.facts for client in clients):
        time.sleep(LOOK_S)
        for client in clients:
            client.update()
        if stop.requested and not stopping:
            stopping = True
            for client in clients:
                client.stop()
        if not begun and all(client.ready for client in clients):
            begun = True
            at_ns = now_ns() + head_start_ns
            for client in clients:
                client.go(at_ns)
            begins(at_ns)
        if begun:
            watch(joined([client.progress for client in clients]))
    return merged([client.facts for client in clients if client.facts])


def joined(each: Sequence[Progress]) -> Progress:
    """Return the progress of all processes as that of one client."""
    sums = (
        "count",
        "sent",
        "ended",
        "failed",
        "in_flight",
        "reads",
        "firsts",
        "first_ns",
        "bytes",
        "events",
    )
    last = max(RECENT // len(each), 1)
    tokens = sum(p.events * p.tokens_per_event for p in each)
    events = sum(p.events for p in each)
    return Progress(
        **{name: sum(getattr(p, name) for p in each) for name in sums},
        until_s=each[0].until_s,
        elapsed_ns=max(p.elapsed_ns for p in each),
        tokens_per_event=tokens / events if events else 1.0,
        recent_ns=deque((t for p in each for t in list(p.recent_ns)[-last:]), RECENT),
    )


def merged(each: Sequence[ClientFacts]) -> ClientFacts:
    """Return the facts of all processes as those of one client. What has no sum is in `processes`."""
    if len(each) == 1:
        return replace(each[0], processes=list(each))
    waited = [facts.waited_s for facts in each if facts.waited_s is not None]
    outcomes = {facts.outcome for facts in each}

    def total(count: Callable[[ClientFacts], int]) -> int:
        return sum(count(facts) for facts in each)

    return ClientFacts(
        start_ns=each[0].start_ns,
        end_ns=each[0].start_ns + max(facts.duration_ns for facts in each),
        outcome=next(outcome for outcome in _OUTCOMES if outcome in outcomes),
        planned=total(lambda facts: facts.planned),
        sent=total(lambda facts: facts.sent),
        skipped=total(lambda facts: facts.skipped),
        cpu_s=sum(facts.cpu_s for facts in each),
        reads=total(lambda facts: facts.reads),
        ticks_late_ns=[],
        kernel_stamps=all(facts.kernel_stamps for facts in each),
        priority="; ".join(dict.fromkeys(facts.priority for facts in each)),
        waited_s=sum(waited) if waited else None,
        processes=list(each),
    )
