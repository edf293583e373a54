"""Clocks of other machines: read over a socket, and records moved onto the clock here."""

import contextlib
import socket

import msgspec
import pytest

from dyno.clock import now_ns
from dyno.facts.clock import ClockReading, NodeClock
from dyno.facts.record import Record
from dyno.load import echo
from dyno.load.echo import Asker, Echo
from dyno.measure import clocks
from dyno.units import NS_PER_S

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

TOKEN = b"0123456789abcdef"
AHEAD_NS = 5000 * NS_PER_S


def test_a_clock_that_is_ahead_is_read_within_its_uncertainty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(echo, "now_ns", lambda: now_ns() + AHEAD_NS)
    server = Echo("127.0.0.1", TOKEN)
    with contextlib.closing(Asker("127.0.0.1", server.port, TOKEN)) as asker:
        reading = clocks.read(asker, 100)
    assert abs(reading.ahead_ns - AHEAD_NS) <= reading.uncertainty_ns
    assert 0 < reading.uncertainty_ns < NS_PER_S // 100


def test_the_shortest_round_trip_is_the_reading() -> None:
    # sent, shown, back
    trips = iter([(100, 9_100, 400), (1_000, 10_010, 1_030), (2_000, 12_000, 2_900)])
    times: list[int] = []

    def ask() -> int:
        return shown.pop(0)

    shown = []
    for sent, other, back in trips:
        times += [sent, back]
        shown.append(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "now_ns", lambda: times.pop(0))
        assert clocks.read(ask, 3) == ClockReading(
            at_ns=10_010, ahead_ns=8_995, round_trip_ns=30
        )


def test_the_time_is_given_to_whoever_has_the_token_only() -> None:
    server = Echo("127.0.0.1", TOKEN)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as stranger:
        stranger.sendall(b"x" * len(TOKEN) + b"?")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(8) == b""


def test_a_node_without_an_echo_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError):
        Asker("127.0.0.1", port, TOKEN)


def test_records_of_a_clock_that_runs_fast_come_to_the_times_here() -> None:
    """It is 5,000 s ahead when the load begins, gains 200 ppm, and is read 2 s before and 3 s after 100 s of load."""
    gain = 200e-6

    def node_ns(here_ns: int) -> int:
        return here_ns + AHEAD_NS + round(gain * here_ns)

    def reading(here_ns: int) -> ClockReading:
        return ClockReading(node_ns(here_ns), node_ns(here_ns) - here_ns, 40_000)

    zero = 2 * NS_PER_S  # on the clock here, whose 0 is the first reading
    clock = NodeClock(reading(0), reading(105 * NS_PER_S))
    assert clock.drift == pytest.approx(gain, rel=1e-3)
    assert clock.uncertainty_ns == 20_000
    node_zero = zero + clock.before.ahead_ns
    true = [0, 1 * NS_PER_S, 50 * NS_PER_S, 100 * NS_PER_S]
    due, sent, chunk, end = (node_ns(zero + t) - node_zero for t in true)
    record = Record(
        0, due, sent, end, 1, 1, chunk_ns=[chunk], unseen=[0], unseen_since_ns=[sent]
    )
    moved = msgspec.structs.replace(record)
    clocks.move_here(moved, clock, node_zero)
    assert chunk - true[2] > 10_000_000  # uncorrected, it would be 10 ms off
    times = [moved.due_ns, moved.sent_ns, moved.chunk_ns[0], moved.end_ns]
    assert times == pytest.approx(true, abs=10)
    assert moved.unseen_since_ns == [moved.sent_ns]


def test_a_clock_that_was_read_once_has_no_drift() -> None:
    clock = NodeClock(ClockReading(10, 7, 2))
    assert clock.drift == 0.0
    assert clock.ahead_ns(10**15) == 7
