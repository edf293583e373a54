"""A load cut into slices, each sent by a client of its own, and what these clients report put together again.

Slice k of n has the requests k, k + n, k + 2n, … of the plan: its requests are local × n + k of the whole.
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

    def look(self) -> None:
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
    return Plan(
        count=len(range(k, plan.count, n)),
        due_ns=None if plan.due_ns is None else plan.due_ns[k::n],
        in_flight_max=None if most is None else most // n + (k < most % n),
        stop_sending_ns=plan.stop_sending_ns,
    )


def of_slice(values: Sequence[T], k: int, n: int, count: int) -> list[T]:
    """Return the prompts, or what goes with them, of a slice of `count` requests. Where they are fewer than the
    requests, they come round again in the order in which one client would send them."""
    size = len(values)
    return [values[(j * n + k) % size] for j in range(min(size // math.gcd(n, size), count))]


def cut(traffic: Traffic, spools: Sequence[Path], secrets: Sequence[bytes]) -> Iterator[SliceTask]:
    """Yield the task of each process; as many as there are spools to write."""
    payloads, n, first = list(traffic.payloads), len(spools), traffic.routes[0]
    via = Transport(**{name: getattr(first.via, name) for name in Transport.__struct_fields__})
    for k, spool in enumerate(spools):
        plan = share(traffic.plan, k, n)
        yield SliceTask(
            urls=[str(route.url) for route in traffic.routes],
            via=via,
            login=first.login,
            fronts=list(traffic.fronts),
            payloads=of_slice(payloads, k, n, plan.count),
            plan=plan,
            timeout_s=traffic.timeout_s,
            response_max=traffic.response_max,
            spool=str(spool),
            secrets=list(secrets),
        )


def drive(
    clients: Sequence[SliceClient],
    watch: Callable[[Progress], None],
    stop: Stop,
    head_start_ns: int = HEAD_START_NS,
) -> ClientFacts:
    """Start all at one instant, when all are ready, and wait for their end."""
    begun = stopping = False
    while not all(client.facts for client in clients):
        time.sleep(LOOK_S)
        for client in clients:
            client.look()
        if stop.requested and not stopping:
            stopping = True
            for client in clients:
                client.stop()
        if not begun and all(client.ready for client in clients):
            begun, at_ns = True, now_ns() + head_start_ns
            for client in clients:
                client.go(at_ns)
        if begun:
            watch(joined([client.progress for client in clients]))
    return merged([client.facts for client in clients if client.facts])


def joined(each: Sequence[Progress]) -> Progress:
    """Return the progress of all processes as that of one client."""
    sums = ("count", "sent", "ended", "failed", "in_flight", "reads", "firsts", "first_ns", "tokens_ended")
    last = max(RECENT // len(each), 1)
    return Progress(
        **{name: sum(getattr(p, name) for p in each) for name in sums},
        until_s=each[0].until_s,
        elapsed_ns=max(p.elapsed_ns for p in each),
        recent_ns=deque((t for p in each for t in list(p.recent_ns)[-last:]), RECENT),
    )


def merged(each: Sequence[ClientFacts]) -> ClientFacts:
    """Return the facts of all processes as those of one client. What has no sum is in `processes`."""
    if len(each) == 1:
        return replace(each[0], processes=list(each))
    waited = [facts.waited_s for facts in each if facts.waited_s is not None]
    outcomes = {facts.outcome for facts in each}
    return ClientFacts(
        start_ns=each[0].start_ns,
        end_ns=each[0].start_ns + max(facts.duration_ns for facts in each),
        outcome=next(outcome for outcome in _OUTCOMES if outcome in outcomes),
        planned=sum(facts.planned for facts in each),
        sent=sum(facts.sent for facts in each),
        cpu_s=sum(facts.cpu_s for facts in each),
        reads=sum(facts.reads for facts in each),
        ticks_late_ns=[],
        kernel_stamps=all(facts.kernel_stamps for facts in each),
        priority="; ".join(dict.fromkeys(facts.priority for facts in each)),
        waited_s=sum(waited) if waited else None,
        processes=list(each),
    )
