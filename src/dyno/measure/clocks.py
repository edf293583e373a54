"""Clocks of other machines: read by an echo of their time, and records aligned with the clock here."""

from collections.abc import Callable

from dyno.clock import now_ns
from dyno.facts.clock import ClockReading, NodeClock
from dyno.facts.record import Record
from dyno.units import NS_PER_S

# for one reading: a node may answer each question as late as it likes
LONGEST_NS = 10 * NS_PER_S


def read(
    ask: Callable[[], int], round_trips: int, longest_ns: int = LONGEST_NS
) -> ClockReading:
    """Return the reading of the shortest round trip. `ask` returns the other clock's time. `longest_ns`: no further
    round trip begins after this time."""
    best: ClockReading | None = None
    spent_ns = 0
    for _ in range(round_trips):
        before = now_ns()
        shown = ask()
        after = now_ns()
        if best is None or after - before < best.round_trip_ns:
            best = ClockReading(shown, shown - (before + after) // 2, after - before)
        spent_ns += after - before
        if spent_ns > longest_ns:
            break
    assert best is not None
    return best


def move_here(record: Record, clock: NodeClock, zero_ns: int) -> None:
    """Put a node's record on the clock here. `zero_ns`: the zero of its times, on the node's clock."""
    ahead = clock.before.ahead_ns  # the zero here is zero_ns less this

    def here(t: int) -> int:
        return t + ahead - clock.ahead_ns(zero_ns + t)

    record.due_ns, record.sent_ns, record.end_ns = (
        here(record.due_ns),
        here(record.sent_ns),
        here(record.end_ns),
    )
    record.chunk_ns = [*map(here, record.chunk_ns)]
    if record.answered_ns is not None:
        record.answered_ns = here(record.answered_ns)
    record.unseen_since_ns = [*map(here, record.unseen_since_ns)]
