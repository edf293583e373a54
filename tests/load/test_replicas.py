"""Several copies of a server at once: who gets which request, and what happens when a copy is slow, broken or dead."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import Driven, Scripted, answer, drive, receive_request, requests
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.errors import TargetError
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.load.progress import Progress, Stop
from dyno.load.spool import END, SENT
from dyno.probe import server
from dyno.store.run import create
from dyno.trial.online import finish, measure
from dyno.trial.prepare import Prepared, Prompts
from dyno.trial.session import Session
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.spec import Workload, WorkloadSpec
from test_wire import https, most_at_once, refused_port, spans_of

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

Copies = Callable[..., list[Fake]]
Serve = Callable[..., Scripted]


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    """`copies({}, {"gap_ms": 5})`: a fake engine for each, with these fields of FakeSpec."""
    with ExitStack() as stack:

        def start(*specs: dict[str, Any]) -> list[Fake]:
            return [
                stack.enter_context(
                    Fake.start(
                        FakeSpec(**{"first_ms": 5.0, "gap_ms": 1.0, **spec}),
                        tmp_path / f"{i}",
                    )
                )
                for i, spec in enumerate(specs)
            ]

        yield start


def urls(servers: list[Fake] | list[Scripted]) -> list[str]:
    return [server.base_url for server in servers]


def shares(driven: Driven, copies: int = 2) -> list[int]:
    """Completed, of each replica."""
    counts = Counter(r.replica for r in driven.records if r.error is None)
    return [counts[i] for i in range(copies)]


def most_in_flight(driven: Driven) -> list[int]:
    """At a time on each replica, by the order of what the client sent and what had ended."""
    now, most = Counter[int](), Counter[int]()
    for kind, exchange in driven.frames:
        replica = driven.records[exchange].replica
        now[replica] += {SENT: 1, END: -1}.get(kind, 0)
        most[replica] = max(most[replica], now[replica])
    return [most[i] for i in sorted(most)]


# ---- the spread ----


def test_equal_copies_get_equal_shares_and_equally_many_at_once(copies: Copies) -> None:
    servers = copies({"first_ms": 50.0}, {"first_ms": 50.0})
    driven = drive(urls(servers), requests(80, 10), LoadSpec(max_concurrency=8))
    logs = [server.log() for server in servers]
    assert shares(driven) == [len(log["streams"]) for log in logs]  # shown as it was
    # 40 each, but for a busy machine
    assert sum(shares(driven)) == 80 and min(shares(driven)) >= 16
    assert most_in_flight(driven) == [4, 4]
    assert max(most_at_once(spans_of(log)) for log in logs) <= 4
    # kept, and those that asked for health and log
    assert [log["connections"] for log in logs] == [4 + 2, 4 + 2]


def test_a_slow_copy_gets_fewer(scripted: Serve) -> None:
    answered: list[int] = []
    most_are_done = threading.Event()

    def fast(sock: Any, number: int) -> None:
        while receive_request(sock):
            answered.append(number)
            if len(answered) == 90:
                most_are_done.set()
            sock.sendall(answer(2))

    def slow(sock: Any, _: int) -> None:
        while receive_request(sock):
            most_are_done.wait(120)
            sock.sendall(answer(2))

    driven = drive(
        urls([scripted(fast), scripted(slow)]), requests(100), LoadSpec(max_concurrency=8)
    )
    assert sum(shares(driven)) == 100
    # half of the slots, and of the last ten requests perhaps more
    assert 4 <= shares(driven)[1] <= 10


def test_one_at_a_time_takes_turns(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    # however long the others take
    monkeypatch.setattr("dyno.load.pool.IDLE_MAX_NS", 3600 * NS_PER_S)
    driven = drive(urls(copies({}, {}, {})), requests(9))
    assert [r.replica for r in driven.records] == [0, 1, 2] * 3
    # each had its connection before the clock started
    assert all(r.connecting_ns == 0 for r in driven.records)


@pytest.mark.parametrize(
    ("load", "count"),
    [
        (LoadSpec(request_rate_rps=200, seed=3), 100),
        (LoadSpec(max_concurrency=4, duration_s=1.0), 1_000_000),
    ],
    ids=["rate", "duration"],
)
def test_other_loads_are_spread_too(copies: Copies, load: LoadSpec, count: int) -> None:
    servers = copies({"first_ms": 20.0}, {"first_ms": 20.0})
    driven = drive(urls(servers), requests(100), load, count=count)
    assert driven.client.outcome == "complete"
    assert all(r.error is None for r in driven.records)
    one, other = shares(driven)
    assert one + other == driven.client.sent >= 4
    assert abs(one - other) <= 0.4 * driven.client.sent  # even, but for a busy machine


# ---- what each is sent ----


def test_each_copy_is_asked_by_its_own_name_and_path(scripted: Serve) -> None:
    heads: dict[int, set[bytes]] = {0: set(), 1: set()}

    def server(index: int) -> Scripted:
        def talk(sock: Any, _: int) -> None:
            while data := sock.recv(65536):  # a small request comes in one piece
                heads[index].add(data.partition(b"\r\ncontent-type")[0])
                sock.sendall(answer(2))

        return scripted(talk)

    servers = [server(0), server(1)]
    driven = drive(
        [servers[0].base_url, servers[1].base_url + "/second"],
        requests(6),
        LoadSpec(max_concurrency=2),
    )
    assert [r.error for r in driven.records] == [None] * 6
    ports = [str(server.port).encode() for server in servers]
    assert heads[0] == {b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:" + ports[0]}
    assert heads[1] == {
        b"POST /second/v1/completions HTTP/1.1\r\nhost: 127.0.0.1:" + ports[1]
    }


def test_large_prompts_reach_each_copy_whole(scripted: Serve) -> None:
    prompt = "word " * 400_000
    got = []

    def talk(sock: Any, _: int) -> None:
        time.sleep(0.05)  # so that the client's first piece fills the socket
        while body := receive_request(sock):
            got.append(body)
            sock.sendall(answer(2))

    driven = drive(
        [scripted(talk).base_url, scripted(talk).base_url], requests(4, prompt=prompt)
    )
    assert [(r.error, r.replica) for r in driven.records] == [(None, 0), (None, 1)] * 2
    assert len(got) == 4 and len(set(got)) == 1 and len(got[0]) > len(prompt)


def test_copies_behind_tls(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(answer(2))

    servers = [https(scripted, talk)[0] for _ in range(2)]
    driven = drive(urls(servers), requests(6), insecure=True)
    assert [(r.error, r.replica) for r in driven.records] == [(None, 0), (None, 1)] * 3


# ---- when one breaks ----


@pytest.mark.hostile
@pytest.mark.parametrize(
    "load",
    [
        LoadSpec(max_concurrency=8),
        LoadSpec(request_rate_rps=400, max_concurrency=16, seed=1),
        LoadSpec(max_concurrency=8, duration_s=2),
    ],
    ids=["closed loop", "rate", "duration"],
)
def test_when_one_dies_its_requests_fail_and_the_others_continue(
    copies: Copies, load: LoadSpec
) -> None:
    servers = copies({"first_ms": 10.0}, {"first_ms": 10.0, "faults": {"die": 8}})
    driven = drive(
        urls(servers),
        requests(600),
        load,
        count=600 if load.duration_s is None else 1_000_000,
    )
    failed = [r for r in driven.records if r.error is not None]
    living, dead = shares(driven)
    assert driven.client.outcome == "complete"
    assert {r.replica for r in failed} == {1}
    assert {r.error for r in failed} <= {"refused", "reset", "cut"}
    # What was in flight there, and what was sent before its death was known: all slots, twice. None is thrown after.
    assert 1 <= len(failed) <= 2 * (load.max_concurrency or 0)
    assert dead < 8 and living == driven.client.sent - dead - len(failed)
    assert any(r.index > failed[-1].index for r in driven.records)


def test_a_copy_that_refuses_every_request_is_not_sent_everything(copies: Copies) -> None:
    """It fails in no time, so it always has the least in flight."""
    servers = copies({"first_ms": 20.0}, {"faults": {"500": 1}})
    driven = drive(urls(servers), requests(300), LoadSpec(max_concurrency=8))
    failed = [r for r in driven.records if r.error is not None]
    assert {(r.replica, r.error) for r in failed} == {(1, "http_500")}
    # it is tried once a second
    assert 4 <= len(failed) <= 8 * (2 + driven.client.duration_ns / NS_PER_S)


def test_a_copy_that_breaks_a_stream_now_and_then_keeps_its_share(copies: Copies) -> None:
    servers = copies({"first_ms": 20.0}, {"first_ms": 20.0, "faults": {"cut": 25}})
    driven = drive(urls(servers), requests(300), LoadSpec(max_concurrency=8))
    failed = [r for r in driven.records if r.error is not None]
    assert {(r.replica, r.error) for r in failed} == {(1, "cut")}
    assert min(shares(driven)) > 75


def test_a_copy_that_comes_back_is_used_again(scripted: Serve) -> None:
    stop = Stop()
    answered_again: list[int] = []

    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            time.sleep(0.01)
            sock.sendall(answer(2))

    def talk_again(sock: Any, number: int) -> None:
        while receive_request(sock):
            time.sleep(0.01)
            answered_again.append(number)
            sock.sendall(answer(2))

    servers = [scripted(talk), scripted(talk)]
    back_ns: list[int] = []

    def fail_and_return() -> None:
        servers[1].close()
        time.sleep(0.5)
        servers.append(scripted(talk_again, port=servers[1].port))
        back_ns.append(time.monotonic_ns())

    def watch(progress: Progress) -> None:
        if progress.elapsed_ns > 300 * NS_PER_MS and thread.ident is None:
            thread.start()
        stop.requested = len(answered_again) >= 20 or progress.elapsed_ns > 120 * NS_PER_S

    thread = threading.Thread(target=fail_and_return)
    load = LoadSpec(max_concurrency=4)
    driven = drive(
        urls(servers), requests(10), load, count=1_000_000, watch=watch, stop=stop
    )
    thread.join()
    failed = [r for r in driven.records if r.error not in (None, "interrupted")]
    assert {r.replica for r in failed} == {1} and len(failed) <= 8
    back = back_ns[0] - driven.client.start_ns
    again = [r for r in driven.records if r.replica == 1 and r.sent_ns > back]
    assert len(again) >= 20 and not [r for r in again if r in failed]
    since = min(r.sent_ns for r in again)
    # It is tried once a second; a loop that comes over a tenth of a second late misses one time.
    assert since - back < 2 * NS_PER_S + 10 * sum(driven.client.ticks_late_ns)
    assert len(again) > 0.2 * sum(r.sent_ns >= since for r in driven.records)


@pytest.mark.parametrize(
    ("load", "least"),
    # One slot or another is in flight when each of them dies; without a cap it may be all.
    [(LoadSpec(max_concurrency=4), 40), (LoadSpec(request_rate_rps=100, seed=1), 0)],
    ids=["closed loop", "rate"],
)
def test_the_server_is_gone_when_all_copies_are(
    copies: Copies, soon_gone: None, load: LoadSpec, least: int
) -> None:
    servers = copies({"faults": {"die": 20}}, {"faults": {"die": 30}})
    driven = drive(urls(servers), requests(20_000), load)
    assert driven.client.outcome == "server gone"
    assert least <= sum(shares(driven)) < 50
    assert driven.client.sent == len(driven.records) < 3000  # a second, and not all of them


def test_a_copy_that_is_not_there_is_named_before_anything_is_sent(copies: Copies) -> None:
    (server,) = copies({})
    port = refused_port()
    with pytest.raises(TargetError, match=f"Nothing listens at http://127.0.0.1:{port}"):
        drive([server.base_url, f"http://127.0.0.1:{port}"], requests(1))
    assert server.log()["streams"] == []


def test_copies_of_two_versions_are_refused_by_name(scripted: Serve) -> None:
    def client(version: bytes) -> Client:
        def talk(sock: Any, _: int) -> None:
            while asked := sock.recv(65536):
                known = {
                    b"/v1/models": b'{"data": [{"id": "m"}]}',
                    b"/version": b'{"version": "%s"}' % version,
                }
                said = known.get(asked.split(b" ")[1])
                status = b"404 none" if said is None else b"200 OK"
                sock.sendall(
                    b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s"
                    % (status, len(said or b""), said or b"")
                )

        return Client(Url(scripted(talk).base_url), {})

    clients = [client(b"0.24"), client(b"0.24"), client(b"0.32")]
    spec = TargetSpec("", "openai", "/v1/completions")
    try:
        assert server.read_targets(clients[:2], spec).version == "0.24"
        with pytest.raises(
            TargetError,
            match=rf"{clients[0].url} and {clients[2].url} are not .* version 0\.24.*0\.32",
        ):
            server.read_targets(clients, spec)
    finally:
        for each in clients:
            each.close()


# ---- what is reported ----


@pytest.mark.engines  # slow
def test_a_replica_that_is_slower_than_the_others_is_a_finding(
    copies: Copies, tmp_path: Path
) -> None:
    base_url, *more_urls = urls(copies({"gap_ms": 10.0}, {"gap_ms": 200.0}))
    trial = TrialSpec(
        target=TargetSpec(
            base_url, "openai", "/v1/completions", "fake", more_urls=more_urls
        ),
        workload=WorkloadSpec("custom", num_prompts=40),
        load=LoadSpec(max_concurrency=8),
    )
    work = Workload(trial.workload, requests(40), [], "fake", "server", "")
    run = create(tmp_path, "replicas")
    measure(run, Session(TargetFacts("fake"), {}), Prepared(trial, Prompts(work)))
    result = finish(run).result
    reported = result.served.replicas
    assert [r.index for r in reported] == [0, 1]
    assert sum(r.completed for r in reported) == sum(r.sent for r in reported) == 40
    assert sum(r.output_tokens for r in reported) == result.served.total_output_tokens
    found = [f for f in result.findings if f.code == "load.replicas_uneven"]
    assert [f.level for f in found] == ["doubt"]
    assert more_urls[0] in found[0].text
