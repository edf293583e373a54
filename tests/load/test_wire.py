"""The wire on real sockets: the load it puts on, the times it tells, and what it does when things break."""

import contextlib
import resource
import socket
import ssl
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme

from conftest import (
    STREAM_HEAD,
    Driven,
    Scripted,
    StartFake,
    answer,
    chunked,
    drive,
    receive_request,
    requests,
    tokens,
)
from dyno.clock import now_ns
from dyno.errors import StoreError, TargetError, UsageError
from dyno.facts.load import LoadSpec
from dyno.http import Route, Url
from dyno.load import decode, wire
from dyno.load.plan import Plan
from dyno.load.progress import Progress, Stop
from dyno.load.protocols import PROTOCOLS
from dyno.load.script import PromptScript
from dyno.load.spool import END, SENT, Spool
from dyno.load.wire import Traffic, Wire
from dyno.measure import timing
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.request import Turn

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

Serve = Callable[..., Scripted]
SLACK_NS = 300_000  # between the readings of two clocks


def most_at_once(spans: list[tuple[int, int]]) -> int:
    marks = sorted([(a, 1) for a, _ in spans] + [(b, -1) for _, b in spans])
    now = most = 0
    for _, step in marks:
        now += step
        most = max(most, now)
    return most


def spans_of(log: dict[str, Any]) -> list[tuple[int, int]]:
    return [(stream[0], stream[-1]) for stream in log["streams"]]


def hold_up_reads(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The client loses its core for so long before each turn of reads."""
    read = Wire._read

    def late(self: Wire, events: Any) -> None:
        time.sleep(seconds)
        read(self, events)

    if seconds:
        monkeypatch.setattr(Wire, "_read", late)


def refused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


# ---- the load ----


class Together:
    """A server that answers none of its requests before `count` of them are open: with fewer it would wait forever."""

    def __init__(self, scripted: Serve, count: int, answer_after_s: float = 0.0) -> None:
        self.most_open = self.answered = 0
        self._open = 0
        self._count = threading.Lock()
        self._all_here = threading.Barrier(count, timeout=60)
        self._answer_after_s = answer_after_s
        self.base_url = scripted(self._talk).base_url

    def _talk(self, sock: Any, _: int) -> None:
        while receive_request(sock):
            with self._count:
                self._open += 1
                self.most_open = max(self.most_open, self._open)
            self._all_here.wait()
            time.sleep(self._answer_after_s)
            with self._count:
                self._open -= 1
                self.answered += 1
            sock.sendall(answer(2))


@pytest.mark.parametrize("streams", [1, 8])
def test_a_closed_loop_keeps_exactly_as_many_open_as_asked(
    scripted: Serve, streams: int
) -> None:
    server = Together(scripted, streams)
    driven = drive(
        server.base_url, requests(streams * 4), LoadSpec(max_concurrency=streams)
    )
    assert [r.error for r in driven.records] == [None] * streams * 4
    # never more, and as many each time
    assert (server.answered, server.most_open) == (streams * 4, streams)
    assert most_at_once([(r.sent_ns, r.end_ns) for r in driven.records]) == streams
    # Every slot is busy from the first to the last sending: a response's end is followed by the next request, before
    # the client reads anything else.
    after_an_end = [b for (a, _), (b, _) in pairwise(driven.frames) if a == END]
    assert after_an_end[: streams * 3] == [SENT] * streams * 3


def test_a_slow_answer_keeps_its_own_slot_and_no_other(scripted: Serve) -> None:
    others_done = threading.Event()
    answered = []

    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 1:
                others_done.wait(60)
            sock.sendall(answer(2))
            answered.append(number)
            if len(answered) == 15:
                others_done.set()

    driven = drive(scripted(talk).base_url, requests(16), LoadSpec(max_concurrency=4))
    assert [r.error for r in driven.records] == [None] * 16
    assert answered[-1] == 1 and answered.count(1) == 1


# ---- many that end together: the wire closes them after the reads of a turn ----


@pytest.fixture
def all_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "TURN_NS", 0)


@pytest.mark.usefixtures("all_later")
def test_the_last_answer_on_a_connection_costs_no_other_connection(scripted: Serve) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 1:
                sock.sendall(
                    answer(2).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
                )
                return
            sock.sendall(answer(2))

    server = scripted(talk)
    driven = drive(server.base_url, requests(24), LoadSpec(max_concurrency=3))
    assert [r.error for r in driven.records] == [None] * 24
    assert server.connections <= 5  # three, one for the closed one, and perhaps one more


@pytest.mark.usefixtures("all_later")
def test_a_response_that_ends_as_it_gets_too_large_is_counted_once(scripted: Serve) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            first, *rest = tokens(30)
            sock.sendall(STREAM_HEAD + chunked(first).removesuffix(b"0\r\n\r\n"))
            time.sleep(0.005)
            sock.sendall(chunked(*rest))

    driven = drive(
        scripted(talk).base_url, requests(12), LoadSpec(max_concurrency=3), response_max=800
    )
    assert len(driven.records) == driven.client.sent == 12
    assert [
        sum(kind == END and x == e for kind, x in driven.frames) for e in range(12)
    ] == [1] * 12


@pytest.mark.parametrize("turn_ns", [0, 4 * NS_PER_MS])
def test_an_answer_that_cant_be_read_fails_and_its_conversation_ends(
    turn_ns: int, scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "TURN_NS", turn_ns)
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'

    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            sock.sendall(STREAM_HEAD + chunked(event).removesuffix(b"0\r\n\r\n"))
            time.sleep(0.005)
            # a chunk longer than it says
            sock.sendall(chunked(event).replace(b"\n\n\r\n", b"\n\nXX"))

    turns = [Turn("x", 1, 2, session=i // 2, after=[i - 1] if i % 2 else [], history=i - 1 if i % 2 else None)
             for i in range(6)]  # fmt: skip
    driven = drive(
        scripted(talk).base_url, turns, LoadSpec(max_concurrency=3), backend="openai-chat"
    )
    assert [r.error for r in driven.records] == ["garbage"] * 3
    assert (driven.client.sent, driven.client.skipped) == (3, 3)


def test_without_a_cap_all_are_sent_at_once(scripted: Serve) -> None:
    server = Together(scripted, 50)
    driven = drive(server.base_url, requests(50), LoadSpec())
    assert [r.error for r in driven.records] == [None] * 50
    assert (
        server.most_open
        == most_at_once([(r.sent_ns, r.end_ns) for r in driven.records])
        == 50
    )


def test_in_a_closed_loop_a_request_is_due_when_its_slot_became_free(
    fake: StartFake,
) -> None:
    records = drive(fake().base_url, requests(6)).records
    assert [r.due_ns for r in records[1:]] == [r.end_ns for r in records[:-1]]
    assert all(timing.queue_ns(r) >= 0 for r in records)


@pytest.mark.parametrize("ahead_s", [86_400, -86_400])
def test_a_wall_clock_that_was_set_by_a_day_moves_no_end(
    fake: StartFake, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    real = wire.TIMES

    class Set:
        """The kernel's stamps, by another wall clock than the one that was looked at."""

        pack = real.pack

        def unpack(self, stamp: bytes) -> tuple[int, int]:
            seconds, ns = real.unpack(stamp)
            return seconds + ahead_s if seconds else 0, ns

    monkeypatch.setattr(wire, "TIMES", Set())
    records = drive(fake(first_ms=20, gap_ms=5).base_url, requests(6)).records
    assert len(records) == 6
    for record in records:
        assert record.sent_ns < record.end_ns < record.sent_ns + 60 * NS_PER_S


@pytest.mark.parametrize("burstiness", [1.0, None])
def test_an_open_loop_sends_by_the_plan_whatever_the_server_does(
    scripted: Serve, burstiness: float | None
) -> None:
    server = Together(scripted, 20)  # it answers none before it has them all
    load = LoadSpec(request_rate_rps=200, burstiness=burstiness, seed=5)
    driven = drive(server.base_url, requests(20), load)
    records = driven.records
    assert [r.error for r in records] == [None] * 20
    assert [r.sent_ns for r in records] == sorted(r.sent_ns for r in records)
    assert records[-1].due_ns == 20 / 200 * NS_PER_S
    # On time, as far as the machine let the loop run: its ticks tell by how much it was held up.
    held_up = sum(driven.client.ticks_late_ns)
    assert all(0 <= timing.queue_ns(r) < 250 * NS_PER_MS + held_up for r in records)
    assert server.most_open == most_at_once([(r.sent_ns, r.end_ns) for r in records]) == 20


def test_a_rate_with_a_cap_keeps_the_cap_and_the_planned_times(scripted: Serve) -> None:
    server = Together(scripted, 3, answer_after_s=0.04)
    load = LoadSpec(request_rate_rps=200, burstiness=None, max_concurrency=3)
    records = drive(server.base_url, requests(24), load).records
    assert [r.error for r in records] == [None] * 24
    assert server.most_open == most_at_once([(r.sent_ns, r.end_ns) for r in records]) == 3
    assert [r.due_ns for r in records] == [(i + 1) * 5 * NS_PER_MS for i in range(24)]
    queue = [timing.queue_ns(r) for r in records]
    # 3 at a time of over 40 ms each, one due every 5 ms: each wave waits longer than the one before.
    assert queue[3] < queue[9] < queue[15] < queue[23]
    assert queue[23] > 150 * NS_PER_MS


def test_a_stall_is_felt_by_every_request_that_was_due_during_it(scripted: Serve) -> None:
    """Coordinated omission: a client that waits with the server would show one slow request, not twenty-five."""
    before_the_stall = 5
    thawed = threading.Event()
    thawed_ns: list[int] = []
    received = []

    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            received.append(number)
            if len(received) > before_the_stall:
                thawed.wait(60)
            sock.sendall(answer(2))

    def watch(progress: Progress) -> None:
        if progress.elapsed_ns > 600 * NS_PER_MS and not thawed_ns:
            thawed_ns.append(now_ns())
            thawed.set()

    load = LoadSpec(request_rate_rps=50, burstiness=None, max_concurrency=4)
    driven = drive(scripted(talk).base_url, requests(50), load, watch=watch)
    records, thaw = driven.records, thawed_ns[0] - driven.client.start_ns
    assert all(r.error is None for r in records)
    assert [r.due_ns for r in records] == [(i + 1) * 20 * NS_PER_MS for i in range(50)]
    due = [r for r in records if r.due_ns < thaw]
    felt = [r for r in due if r.end_ns >= thaw - NS_PER_MS]
    assert len(due) >= 30 and len(felt) == len(due) - before_the_stall
    assert sum(r.sent_ns < thaw for r in felt) <= 4  # all others were sent only after it


@pytest.mark.parametrize("burstiness", [None, 1.0])
@pytest.mark.parametrize(("rate", "count"), [(20, 10), (21, 11)])
def test_a_rate_for_a_duration_sends_all_that_are_due_in_it(
    fake: StartFake, rate: float, count: int, burstiness: float | None
) -> None:
    load = LoadSpec(request_rate_rps=rate, burstiness=burstiness, duration_s=0.5)
    driven = drive(fake().base_url, requests(count), load)
    assert len(driven.records) == driven.client.sent == count


def test_a_duration_ends_the_sending_and_finishes_what_is_in_flight(
    fake: StartFake,
) -> None:
    # Half-way between two ticks: a loop that looked at its ticks only would send another twenty.
    load = LoadSpec(max_concurrency=2, duration_s=0.95)
    driven = drive(fake().base_url, requests(1), load, count=1_000_000)
    assert driven.client.outcome == "complete"
    assert driven.client.sent == len(driven.records) >= 2
    assert all(r.error is None for r in driven.records)
    # A loop that is held up may hand on each slot in the turn in which time runs out, and after the reads of that turn.
    assert sum(r.sent_ns > 0.95 * NS_PER_S for r in driven.records) <= 4


# ---- the times ----


@pytest.mark.parametrize(
    "held_up_s", [0.0, 0.012], ids=["prompt", "held up before each read"]
)
def test_the_reported_times_are_those_of_the_servers_own_log(
    fake: StartFake, held_up_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client does meanwhile: the kernel stamps what arrives."""
    hold_up_reads(monkeypatch, held_up_s)
    server = fake(first_ms=30, gap_ms=4)
    driven = drive(server.base_url, requests(24, 20), LoadSpec(max_concurrency=4))
    records = sorted(driven.records, key=lambda r: r.sent_ns)
    streams = sorted(server.log()["streams"])  # by arrival, which is the order of sending
    assert driven.client.kernel_stamps
    assert all(r.error is None and len(r.chunk_ns) == 20 for r in records)

    start = driven.client.start_ns
    sending = [
        arrived - (r.sent_ns + start)
        for r, (arrived, *_) in zip(records, streams, strict=True)
    ]
    arriving = []
    for r, (_, *sends) in zip(records, streams, strict=True):
        chunks = [t + start for t in r.chunk_ns]
        assert all(
            chunk > sent - SLACK_NS for chunk, sent in zip(chunks, sends, strict=True)
        )
        # Of chunks in one read the kernel tells only the last one's arrival.
        last = [i for i, (a, b) in enumerate(pairwise([*chunks, 0])) if a != b]
        assert all(chunks[i] < sends[i + 1] + SLACK_NS for i in last[:-1])
        arriving += [chunks[i] - sends[i] for i in last]
    assert min(sending) > -SLACK_NS
    # The fake engine takes its times just before it sends: what remains is the way, but for a process that lost its
    # core in just that moment.
    assert (
        statistics.median(sending) < NS_PER_MS and statistics.median(arriving) < NS_PER_MS
    )


def test_a_client_that_went_away_does_not_hasten_the_fake_engines_next_answer(
    fake: StartFake,
) -> None:
    """The next connection has the file number of the one that was closed, and once had its send times too."""
    server = fake(first_ms=400)
    stop = Stop()

    def watch(progress: Progress) -> None:
        stop.requested = progress.sent == 2

    drive(server.base_url, requests(2), LoadSpec(), watch=watch, stop=stop)
    driven = drive(server.base_url, requests(2), LoadSpec())
    assert [r.error for r in driven.records] == [None, None]
    streams = server.log()["streams"]
    assert len(streams) >= 2
    assert all(stream[1] - stream[0] >= 399 * NS_PER_MS for stream in streams)


def test_the_order_of_events_in_a_record_holds(fake: StartFake) -> None:
    driven = drive(fake().base_url, requests(10), LoadSpec(max_concurrency=3))
    for r in driven.records:
        assert (
            0
            <= r.due_ns
            <= r.sent_ns
            < r.chunk_ns[0]
            <= r.chunk_ns[-1]
            <= r.end_ns
            <= driven.client.duration_ns
        )
        assert r.reads >= 1 and r.late_ns_max >= 0


# ---- connections ----


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close counts as crossed by the request however late a busy machine comes to see it."""
    monkeypatch.setattr("dyno.load.wire.CLOSED_WITHIN_NS", 60 * NS_PER_S)


def test_connections_are_kept_and_used_again(fake: StartFake) -> None:
    server = fake()
    before = server.log()["connections"]
    drive(server.base_url, requests(40), LoadSpec(max_concurrency=4))
    # and the one that asked for the log
    assert server.log()["connections"] - before == 4 + 1


def test_a_server_that_says_close_gets_a_connection_for_each_request(
    scripted: Serve,
) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(answer(2).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    server = scripted(talk)
    driven = drive(server.base_url, requests(6))
    assert [r.error for r in driven.records] == [None] * 6
    assert server.connections == 6


def test_a_body_that_ends_with_the_connection_is_whole(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(
            b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
            + b"".join(tokens(3))
        )

    driven = drive(scripted(talk).base_url, requests(3))
    assert [(r.error, r.text, r.output_tokens) for r in driven.records] == [
        (None, " tok" * 3, 3)
    ] * 3


def test_a_body_of_known_length_is_whole_and_keeps_its_connection(scripted: Serve) -> None:
    body = b"".join(tokens(3))
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )

    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(head + body[:50])
            sock.sendall(body[50:])

    server = scripted(talk)
    driven = drive(server.base_url, requests(4))
    assert [(r.error, r.text) for r in driven.records] == [(None, " tok" * 3)] * 4
    assert server.connections == 1


def test_a_server_that_closes_idle_connections_costs_no_request(
    scripted: Serve, no_hurry: None
) -> None:
    """It closes each one after its first answer, without a word; the next request crosses that on its way."""
    served = []

    def talk(sock: Any, number: int) -> None:
        if receive_request(sock):
            served.append(number)
            sock.sendall(answer(2))

    driven = drive(scripted(talk).base_url, requests(12))
    assert [r.error for r in driven.records] == [None] * 12
    assert len(served) == 12  # each one was answered once and none twice


def test_a_request_is_sent_again_only_once(scripted: Serve, no_hurry: None) -> None:
    seen = []

    def talk(sock: Any, number: int) -> None:
        if number == 1:  # the first is answered, and its connection kept
            receive_request(sock)
            sock.sendall(answer(2))
        if receive_request(sock):
            # and closed without an answer, on whatever connection it comes
            seen.append(number)

    driven = drive(scripted(talk).base_url, requests(2))
    assert [r.error for r in driven.records] == [None, "cut"]
    assert seen == [1, 2]


def test_a_request_that_the_server_gave_up_after_a_while_is_not_sent_again(
    scripted: Serve,
) -> None:
    seen = []

    def talk(sock: Any, number: int) -> None:
        if number == 1:
            receive_request(sock)
            sock.sendall(answer(2))
        if receive_request(sock):
            seen.append(number)
            time.sleep(0.7)  # it works on it, and dies of it

    driven = drive(scripted(talk).base_url, requests(2))
    assert [r.error for r in driven.records] == [None, "cut"]
    assert seen == [1]


def test_a_large_prompt_goes_out_in_pieces(scripted: Serve) -> None:
    prompt = "word " * 400_000
    got = []

    def talk(sock: Any, _: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        time.sleep(0.05)  # so that the client's first piece fills the socket
        while body := receive_request(sock):
            got.append(len(body))
            sock.sendall(answer(2))

    driven = drive(scripted(talk).base_url, requests(3, prompt=prompt))
    assert [r.error for r in driven.records] == [None] * 3
    assert len(got) == 3 and min(got) > len(prompt)


def test_more_connections_than_open_files_are_refused_before_anything_is_sent(
    fake: StartFake,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard > 9_000_000:
        pytest.skip("this system allows so many open files that the test would open them")
    server = fake()
    with pytest.raises(UsageError, match="open files"):
        drive(server.base_url, requests(1), plan_=Plan(10_000_000, None, 10_000_000))
    assert server.log()["streams"] == []


# ---- when it breaks ----


def test_nothing_listening_is_an_error_before_anything_is_measured() -> None:
    with pytest.raises(TargetError, match=r"Nothing listens at http://127\.0\.0\.1:\d+"):
        drive(f"http://127.0.0.1:{refused_port()}", requests(3))


def test_an_unknown_host_is_an_error_that_names_it() -> None:
    with pytest.raises(TargetError, match=r"no-such-host\.invalid"):
        drive("http://no-such-host.invalid:8000", requests(1))


def test_a_server_that_speaks_no_http_is_reported_so(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    (record,) = drive(scripted(talk).base_url, requests(1)).records
    assert record.error == "garbage" and "not an HTTP response" in record.error_detail


def test_a_part_of_a_chunk_that_looks_like_a_whole_one_is_a_part(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyno.load.progress.FOLLOWED", 0)  # those are read chunk by chunk
    event, *_, last, usage, done = tokens(1)
    piece = b"%x\r\n%s\r\n" % (len(event), event)
    large = event + piece + event
    parts = [STREAM_HEAD, piece, piece, b"%x\r\n" % len(large) + event, piece]
    parts += [event + b"\r\n", piece, chunked(last, usage, done)]
    connections = []

    def talk(sock: Any, number: int) -> None:
        connections.append(number)
        while receive_request(sock):
            for part in parts:
                sock.sendall(part)
                time.sleep(0.01)

    driven = drive(scripted(talk).base_url, requests(3), timeout_s=5)
    assert [r.error for r in driven.records] == [None] * 3
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("reads", "in_flight", "ended", "joint", "thick"),
    [
        (640, 64, 0, 0, True),
        (100, 64, 0, 0, False),
        (640, 8, 0, 0, False),  # a stream's next chunk may come within a nap
        (640, 64, 64, 0, False),  # many requests wait to be sent
        (640, 64, 0, 64, False),
        (2_000, 8, 500, 500, True),
    ],
)
def test_a_short_nap_is_taken_where_it_costs_nothing(
    tmp_path: Path, reads: int, in_flight: int, ended: int, joint: int, thick: bool
) -> None:
    traffic = Traffic([Route(Url("http://x"))], [b""], PromptScript([]), Plan(1, None, 1))
    loop = Wire(traffic, spool := Spool(tmp_path / "s"))
    spool.close()
    loop.progress.reads = reads
    loop.progress.in_flight = in_flight
    loop.progress.ended = ended
    loop._joint = joint
    assert loop._is_thick(NS_PER_S) is thick
    if joint and not ended:  # not again at once
        loop.progress.reads += reads
        assert not loop._is_thick(NS_PER_S + 1)
        loop.progress.reads += reads
        assert loop._is_thick(3 * NS_PER_S)


def test_broken_framing_fails_one_request_and_not_the_run(scripted: Serve) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 1:
                sock.sendall(STREAM_HEAD + b"data: oh\r\n\r\n")
            sock.sendall(answer(2))

    driven = drive(scripted(talk).base_url, requests(3))
    assert [r.error for r in driven.records] == ["garbage", None, None]


@pytest.mark.parametrize(
    ("load", "least"),
    # The thirtieth kills it, with at most three others in flight; without a cap they may all be.
    [(LoadSpec(max_concurrency=4), 26), (LoadSpec(request_rate_rps=100, seed=1), 0)],
    ids=["closed loop", "open loop"],
)
def test_a_server_that_dies_in_the_middle_ends_the_run_and_what_was_measured_is_kept(
    fake: StartFake, soon_gone: None, load: LoadSpec, least: int
) -> None:
    server = fake(faults={"die": 30})
    driven = drive(server.base_url, requests(5000), load)
    done = [r for r in driven.records if r.error is None]
    assert driven.client.outcome == "server gone"
    assert least <= len(done) < 30
    # the rest was not sent: some 100 are due in a second
    assert driven.client.sent == len(driven.records) < 2000
    assert {r.error for r in driven.records} <= {None, "refused", "cut", "reset"}
    assert all(r.output_tokens == 4 for r in done)


def test_a_load_ends_where_streams_break_while_others_are_under_way(
    scripted: Serve,
) -> None:
    """Each breaks after its begin, once another one has begun: at no time is none of them being answered."""
    begun = threading.Semaphore(0)

    def talk(sock: Any, number: int) -> None:
        if receive_request(sock):
            sock.sendall(STREAM_HEAD + chunked(*tokens(1)[:1])[: -len(b"0\r\n\r\n")])
            if number > 1:
                begun.release()
            begun.acquire(timeout=5)

    driven = drive(scripted(talk).base_url, requests(200), LoadSpec(max_concurrency=4))
    begun.release(8)  # those that still wait
    assert driven.client.outcome == "all failed"
    assert 50 <= driven.client.sent < 60


@pytest.mark.parametrize("fault", ["500", "cut", "said in the stream"])
def test_a_load_ends_after_fifty_failures_without_a_success(
    fake: StartFake, scripted: Serve, fault: str
) -> None:
    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(
                STREAM_HEAD
                + chunked(
                    b'data: {"error":{"message":"out of memory"}}\n\n', b"data: [DONE]\n\n"
                )
            )

    server = scripted(talk) if " " in fault else fake(faults={fault: 1})
    driven = drive(server.base_url, requests(1000), LoadSpec(max_concurrency=4))
    assert driven.client.outcome == "all failed"
    errors = [r.error for r in driven.records]
    assert 50 <= len(errors) == driven.client.sent < 60
    assert None not in errors
    assert errors.count("interrupted") <= 4  # in flight at that moment


def test_one_success_or_an_answer_that_has_begun_keeps_a_failing_load_going(
    fake: StartFake, scripted: Serve
) -> None:
    driven = drive(
        fake(faults={"500": 2}).base_url, requests(200), LoadSpec(max_concurrency=4)
    )
    assert driven.client.outcome == "complete"
    assert sum(r.error is None for r in driven.records) == 100

    begun, over = threading.Event(), threading.Event()

    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 1:
                sock.sendall(STREAM_HEAD)
                begun.set()
                over.wait(60)
                sock.sendall(chunked(*tokens(2)))
            else:
                begun.wait(60)
                sock.sendall(b"HTTP/1.1 429 Busy\r\ncontent-length: 0\r\n\r\n")
                asked.append(1)
                if len(asked) == 99:
                    over.set()

    asked: list[int] = []
    driven = drive(scripted(talk).base_url, requests(100), LoadSpec(max_concurrency=2))
    assert driven.client.outcome == "complete"
    assert [r.error for r in driven.records].count(None) == 1


def test_a_stop_keeps_the_finished_and_marks_those_in_flight(fake: StartFake) -> None:
    stop = Stop()

    def watch(progress: Progress) -> None:
        if progress.ended >= 5:
            stop.requested = True

    server = fake(first_ms=30, gap_ms=10)
    driven = drive(
        server.base_url,
        requests(1000, 5),
        LoadSpec(max_concurrency=3),
        watch=watch,
        stop=stop,
    )
    kinds = [r.error for r in driven.records]
    assert driven.client.outcome == "interrupted"
    assert kinds.count(None) >= 5 and kinds.count("interrupted") == 3
    assert driven.client.sent == len(driven.records) == kinds.count(None) + 3 < 1000


def test_a_stop_after_the_last_was_sent_is_still_an_interruption(fake: StartFake) -> None:
    """Everything was sent, but not everything was answered: such a run is not complete."""
    stop = Stop()

    def watch(progress: Progress) -> None:
        stop.requested = progress.sent == 4

    driven = drive(
        fake(first_ms=20_000).base_url, requests(4), LoadSpec(), watch=watch, stop=stop
    )
    assert driven.client.outcome == "interrupted"
    assert [r.error for r in driven.records] == ["interrupted"] * 4


def test_a_stop_before_the_first_is_sent_sends_none(fake: StartFake) -> None:
    stop = Stop()
    stop.requested = True
    server = fake()
    driven = drive(server.base_url, requests(50), LoadSpec(max_concurrency=2), stop=stop)
    assert driven.records == [] and driven.client.sent == 0
    assert driven.client.outcome == "interrupted"
    assert server.log()["streams"] == []


def test_a_request_that_takes_too_long_fails_and_the_next_one_is_sent(
    scripted: Serve,
) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 1:
                sock.recv(1)  # until the client has had enough
                return
            sock.sendall(answer(2))

    driven = drive(scripted(talk).base_url, requests(3), timeout_s=0.9)
    assert [r.error for r in driven.records] == ["timeout", None, None]
    assert driven.records[0].end_ns - driven.records[0].sent_ns >= 0.9 * NS_PER_S


FRONT, PAYLOAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
    b"content-length: 0\r\n\r\n",
)


def test_a_full_disk_is_an_error_that_says_so(fake: StartFake) -> None:
    traffic = Traffic(
        [Route(Url(fake().base_url))],
        [b""],
        PromptScript([FRONT + PAYLOAD]),
        Plan(20, None, 1),
    )
    wire = Wire(traffic, spool := Spool(Path("/dev/full")))
    with (
        contextlib.closing(spool),
        pytest.raises(StoreError, match="No space left on device"),
    ):
        wire.drive()


def test_what_a_full_disk_took_half_of_is_not_written_twice(
    fake: StartFake, tmp_path: Path
) -> None:
    batches: list[bytes] = []  # the one of which half was written, and all after it

    class FullForAMoment(Spool):
        def write(self, parts: list[bytes]) -> None:
            data = b"".join(parts)
            full = not batches and len(data) > 100  # something was read
            if full or batches:
                batches.append(data)
            super().write([data[: len(data) // 2] if full else data])
            if full:
                raise StoreError("full")

    traffic = Traffic(
        [Route(Url(fake().base_url))],
        [b""],
        PromptScript([FRONT + PAYLOAD]),
        Plan(20, None, 1),
    )
    wire = Wire(traffic, spool := FullForAMoment(tmp_path / "s"))
    with contextlib.closing(spool), pytest.raises(StoreError, match="full"):
        wire.drive()
    assert all(batches[0] not in later for later in batches[1:])
    # and the half is read
    assert list(decode.records(spool.path, requests(1), PROTOCOLS["openai"]))


def test_a_reset_in_the_middle_of_one_stream_leaves_the_others_alone(
    scripted: Serve,
) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            if number == 2:
                sock.sendall(STREAM_HEAD + chunked(*tokens(3))[:200])
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                return
            sock.sendall(answer(3))

    driven = drive(scripted(talk).base_url, requests(12), LoadSpec(max_concurrency=3))
    assert sorted(str(r.error) for r in driven.records) == ["None"] * 11 + ["reset"]


# ---- TLS ----


def https(scripted: Serve, talk: Callable[[Any, int], None]) -> tuple[Scripted, trustme.CA]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return scripted(
        talk, wrap=lambda sock: context.wrap_socket(sock, server_side=True)
    ), authority


def answer_all(sock: Any, _: int) -> None:
    while receive_request(sock):
        whole = answer(6)
        for at in range(0, len(whole), 100):  # records that know nothing of events
            sock.sendall(whole[at : at + 100])


def drive_https(server: Scripted, count: int, streams: int = 1, **options: Any) -> Driven:
    return drive(
        server.base_url, requests(count), LoadSpec(max_concurrency=streams), **options
    )


def test_https_is_read_like_http_and_its_connections_are_kept(scripted: Serve) -> None:
    server, _ = https(scripted, answer_all)
    driven = drive_https(server, 12, streams=3, insecure=True)
    assert [(r.error, r.text, r.output_tokens) for r in driven.records] == [
        (None, " tok" * 6, 6)
    ] * 12
    assert server.connections == 3


def test_a_session_ticket_does_not_cost_a_connection_that_was_opened_ahead(
    scripted: Serve,
) -> None:
    """TLS 1.3 sends tickets after the handshake: an idle connection that gets one has not been closed."""
    server, _ = https(scripted, answer_all)
    load = LoadSpec(request_rate_rps=20, burstiness=None)
    driven = drive(server.base_url, requests(6), load, insecure=True)
    assert [r.error for r in driven.records] == [None] * 6
    assert server.connections <= 6


def test_a_handshake_that_never_ends_is_a_timeout(scripted: Serve) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def talk(sock: Any, number: int) -> None:
        if number > 1:
            while sock.recv(65536):
                pass
            return
        with context.wrap_socket(sock, server_side=True) as tls:
            receive_request(tls)
            tls.sendall(answer(2).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    url = scripted(talk).base_url.replace("http:", "https:")
    driven = drive(url, requests(2), insecure=True, timeout_s=0.9)
    assert [r.error for r in driven.records] == [None, "timeout"]


def test_a_certificate_without_an_issuer_is_refused_in_words(scripted: Serve) -> None:
    server, _ = https(scripted, answer_all)
    with pytest.raises(TargetError, match="certificate"):
        drive_https(server, 8, streams=8)
    mine = psutil.Process().net_connections("tcp")
    assert not [
        c
        for c in mine
        if c.raddr and c.raddr.port == server.port and c.status == "ESTABLISHED"
    ]


def test_a_certificate_of_a_known_authority_is_accepted(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, authority = https(scripted, answer_all)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(authority.cert_pem.bytes())
        file.flush()
        monkeypatch.setenv("SSL_CERT_FILE", file.name)
        driven = drive_https(server, 2)
    assert [r.error for r in driven.records] == [None, None]


def test_a_large_prompt_over_tls(scripted: Serve) -> None:
    server, _ = https(scripted, answer_all)
    driven = drive(server.base_url, requests(2, prompt="word " * 400_000), insecure=True)
    assert [r.error for r in driven.records] == [None, None]


def test_https_asked_of_an_http_server_is_an_error_that_names_tls(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    with pytest.raises(TargetError, match="TLS"):
        drive(
            scripted(talk).base_url.replace("http:", "https:"), requests(1), insecure=True
        )


class Idle:
    """A server whose idle connections the test ends, between bursts of requests.

    `watch` runs in the client's own thread, ten times a second. While no request is in flight it ends all connections,
    and when a burst is answered it sets when the next one is due: `wait_ns` later, for each. So no machine is too slow.
    """

    def __init__(
        self,
        scripted: Serve,
        bursts: list[int],
        wait_ns: list[int],
        end: Callable[[Any], None],
    ) -> None:
        self._server = scripted(self._talk)
        self.base_url = self._server.base_url
        self._ends = list(accumulate(bursts))
        self._wait_ns = wait_ns
        self._end = end
        self._due = [0] * bursts[0] + [3600 * NS_PER_S] * sum(bursts[1:])
        self.plan = Plan(sum(bursts), self._due, None)
        self.ended: list[Any] = []

    def _talk(self, sock: Any, _: int) -> None:
        while receive_request(sock):
            # ended, and this request crossed that: it is read and dropped
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(answer(1))

    def watch(self, progress: Progress) -> None:
        if progress.in_flight or not progress.ended:
            return
        for sock in [s for s in self._server.sockets if s not in self.ended]:
            self.ended.append(sock)
            with contextlib.suppress(OSError):  # the client has closed it
                self._end(sock)
        if progress.ended == self._ends[0] and len(self._ends) > 1:
            begin, end, *_ = self._ends
            self._due[begin:end] = [progress.elapsed_ns + self._wait_ns.pop(0)] * (
                end - begin
            )
            del self._ends[0]


def test_idle_connections_that_the_server_closes_cost_no_request_and_no_hang(
    scripted: Serve, no_hurry: None
) -> None:
    """A file number of a closed connection is soon another's: the dead one must not be taken for it."""
    # The next burst crosses the close; comes after it; after one more, of connections that were opened ahead for it.
    bursts, wait_ms = [6, 3, 8, 3, 8, 3], [0, 150, 0, 600, 0]
    server = Idle(
        scripted,
        bursts,
        [ms * NS_PER_MS for ms in wait_ms],
        lambda sock: sock.shutdown(socket.SHUT_WR),
    )
    driven = drive(
        server.base_url, requests(sum(bursts), 1), plan_=server.plan, watch=server.watch
    )
    assert driven.client.outcome == "complete"
    assert [r.error for r in driven.records] == [None] * sum(bursts)
    assert len(server.ended) >= 6


def _is_established(port: int) -> bool:
    """Return whether the kernel has a connection from this port of loopback."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return any(
        own.endswith(f":{port:04X}") and state == "01" for _, own, _, state, *_ in fields
    )


def test_idle_connections_that_the_server_resets_are_not_used_again(
    scripted: Serve,
) -> None:
    def reset(sock: Any) -> None:
        port = sock.getpeername()[1]
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)  # its thread sees an end and closes it
        while _is_established(port):
            time.sleep(0.001)

    # Due in the next turn of the loop at the earliest, which first sees what has become of its connections.
    server = Idle(scripted, [4, 4], [NS_PER_MS], reset)
    driven = drive(server.base_url, requests(8, 1), plan_=server.plan, watch=server.watch)
    assert [(r.error, r.resent) for r in driven.records] == [(None, False)] * 8
    assert len(server.ended) >= 4


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_an_answer_that_ends_tidily_in_http_and_not_in_the_stream_is_cut(
    scripted: Callable[..., Scripted], framing: str
) -> None:
    event = b'data: {"choices":[{"text":" a"}]}\n\n'

    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        if framing == "chunked":
            sock.sendall(STREAM_HEAD + chunked(event, event))
        else:
            sock.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
                + event
                + event
            )

    (record,) = drive(scripted(talk).base_url, requests(1, 128)).records
    assert record.error == "cut"
    assert len(record.chunk_ns) == 2


def test_tokens_without_any_text_that_can_be_found_are_a_failure(
    scripted: Callable[..., Scripted],
) -> None:
    events = [b'data: {"choices":[{"delta":{"odd_field":" a"}}]}\n\n'] * 3
    events += [
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":3}}\n\n'
    ]

    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + chunked(*events))

    (record,) = drive(
        scripted(talk).base_url, requests(1, 3), backend="openai-chat"
    ).records
    assert record.error == "no_text"
    assert "3 tokens" in record.error_detail


def test_a_hundred_continue_is_not_the_answer(scripted: Callable[..., Scripted]) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.02)
        sock.sendall(answer(1))

    (record,) = drive(scripted(talk).base_url, requests(1, 1)).records
    assert (record.error, record.status, record.text) == (None, 200, record.text)


def test_a_late_client_is_reported_by_how_late_it_sends_in_a_closed_loop_too(
    fake: StartFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot is free when the response has arrived, not when a slow loop comes to see it."""
    hold_up_reads(monkeypatch, 0.05)
    driven = drive(fake().base_url, requests(6, 1), LoadSpec(max_concurrency=1))
    assert all(timing.queue_ns(r) > 45 * NS_PER_MS for r in driven.records[1:])
