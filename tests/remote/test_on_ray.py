"""Slices on Ray's nodes, with a stand-in for Ray: its calls run here, but processes, sockets and clocks are real.

tests/tools/test_ray.py has the same on real clusters.
"""

import socket
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import test_processes
from conftest import StartFake
from dyno.checks import client as checks
from dyno.errors import TargetError, UsageError
from dyno.facts.client import ClientSpec
from dyno.facts.clock import ClockReading, NodeClock
from dyno.facts.load import LoadSpec
from dyno.load import node
from dyno.remote import on_ray
from dyno.trial.online import Outcome
from dyno.units import NS_PER_MS, NS_PER_S
from test_processes import outcome
from test_wire import refused_port

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

KEY = b"a-very-secret-key"


class _RayError(Exception):
    pass


class _Died(_RayError):
    pass


class _Unavailable(_RayError):
    pass


class StandIn:
    """Ray's calls that dyno uses. Each call of an actor runs at once; `fail(name, calls)` may raise instead."""

    exceptions = types.SimpleNamespace(
        RayError=_RayError,
        ActorUnavailableError=_Unavailable,
        GetTimeoutError=type("_", (_RayError, TimeoutError), {}),
    )
    util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self) -> None:
        self.objects: list[bytes] = []
        self.calls: list[str] = []
        self.caller: Any = None  # the actor of the last one
        self.actors: list[Any] = []
        self.failure: Any = lambda name, calls: None
        self.address = "127.0.0.1"

    def put(self, data: bytes) -> bytes:
        self.objects.append(data)
        return data

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return refs, []

    def get(self, ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, Exception):
            raise ref
        return ref

    def kill(self, actor: Any) -> None:
        if process := getattr(actor.slice, "_process", None):
            process.__exit__()
            if actor.slice._spool:
                actor.slice._spool.close()
            actor.slice._folder.remove()

    def remote(self, kind: type) -> Any:
        def start() -> Any:
            actor = _Actor(self, kind())
            self.actors.append(actor)
            return actor

        return types.SimpleNamespace(
            options=lambda **_: types.SimpleNamespace(remote=start)
        )


class _Actor:
    def __init__(self, ray: StandIn, made: Any) -> None:
        self.ray, self.slice = ray, made

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.ray.calls.append(name)
            self.ray.caller = self
            error = self.ray.failure(name, self.ray.calls.count(name))
            return error or getattr(self.slice, name)(*args)

        return types.SimpleNamespace(remote=call)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()

    @contextmanager
    def cluster(address: str | None, processes: int) -> Iterator[StandIn]:
        yield stand_in

    util = types.SimpleNamespace(get_node_ip_address=lambda: stand_in.address)
    monkeypatch.setattr(test_processes, "TWO", ClientSpec(procs=2, on="ray"))
    monkeypatch.setattr(on_ray, "_cluster", cluster)
    monkeypatch.setattr(on_ray, "check", lambda spec: None)
    monkeypatch.setattr(on_ray, "HEAD_START_NS", 50 * NS_PER_MS)
    monkeypatch.setattr(on_ray, "_LOOK_NS", 50 * NS_PER_MS)
    monkeypatch.setattr(
        node.importlib, "import_module", lambda name: types.SimpleNamespace(util=util)
    )
    return stand_in


def on_nodes(folder: Path, base_url: str, count: int = 12, **more: Any) -> Outcome:
    return outcome(folder, base_url, count, LoadSpec(max_concurrency=4), **more)


def test_slices_on_nodes_are_merged_as_those_here(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    server = fake(first_ms=5, gap_ms=1)
    done = on_nodes(tmp_path, server.base_url)
    assert sorted(r.index for r in done.run.records()) == list(range(12))
    assert (done.result.served.completed, done.result.served.failed) == (12, 0)
    client = done.run.client()
    assert client and [p.node for p in client.processes] == ["127.0.0.1"] * 2
    for process in client.processes:
        assert (
            process.clock
            and process.clock.after
            and abs(process.clock.before.ahead_ns) < 10 * NS_PER_MS
        )
    assert len(ray.objects) == 2, "each slice's prompts are shipped once"


def test_a_node_that_no_connection_reaches_shows_its_clock_through_ray(
    ray: StandIn, fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.NodeSlice, "echo", lambda self, host, token: refused_port())
    done = on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    client = done.run.client()
    assert client and all(p.clock and p.clock.after for p in client.processes)
    assert ray.calls.count("clock") == 4 * on_ray._ROUND_TRIPS_RAY


@pytest.mark.hostile
def test_a_lost_node_keeps_what_it_finished(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    """The second node answers no more once both have sent their first requests."""
    server = fake(first_ms=20, gap_ms=20)
    seen: list[Any] = []

    def dies(name: str, calls: int) -> Exception | None:
        if seen:
            return None
        for actor in ray.actors[1:]:
            process = getattr(actor.slice, "_process", None)
            if process and process.progress.ended >= 2:
                seen.append(actor)
                process._child.kill()  # with its machine
                actor.slice.relay = lambda position: _Died("the node died")
        return None

    ray.failure = dies
    done = on_nodes(tmp_path, server.base_url, count=24)
    assert seen
    client, s = done.run.client(), done.result.served
    assert client and [p.outcome for p in client.processes] == ["complete", "lost"]
    records = list(done.run.records())
    assert sum(r.error is None for r in records if r.index % 2 == 0) == 12, (
        "the other one completes"
    )
    lost = [r for r in records if r.index % 2]
    assert s.sent == len(records) and s.sent == 12 + len(lost) and len(lost) < 12
    assert {r.error for r in lost} <= {None, "lost"}
    (finding,) = (f for f in done.result.findings if f.code == "client.process_lost")
    assert (
        "(node 127.0.0.1)" in finding.text
        and f"{24 - s.sent} were not sent" in finding.text
    )


@pytest.mark.hostile
def test_a_broken_connection_is_not_a_lost_node(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    ray.failure = lambda name, calls: (
        _Unavailable("retry") if name == "relay" and calls % 3 == 0 else None
    )
    done = on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    assert done.result.served.completed == 12


@pytest.mark.hostile
def test_a_connection_that_stays_broken_is_a_lost_node(
    ray: StandIn, fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "_SILENT_NS", NS_PER_S // 4)

    def breaks(name: str, calls: int) -> Exception | None:
        broken = name == "relay" and "go" in ray.calls and ray.caller is ray.actors[1]
        return _Unavailable("retry") if broken else None

    ray.failure = breaks
    done = on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    client = done.run.client()
    assert client and [p.outcome for p in client.processes] == ["complete", "lost"]


@pytest.mark.hostile
def test_a_slice_that_dies_before_the_load_is_placed_again(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    ray.failure = lambda name, calls: (
        _Died("no such node") if name == "begin" and calls == 1 else None
    )
    done = on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    assert done.result.served.completed == 12 and ray.calls.count("begin") == 3


def test_a_node_that_never_works_is_an_error_with_its_reason(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    ray.failure = lambda name, calls: (
        _Died("Traceback\nNo module named 'msgspec'") if name == "begin" else None
    )
    with pytest.raises(TargetError, match="No module named 'msgspec'"):
        on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)


def test_keys_are_not_in_what_ray_may_write_to_disk() -> None:
    task = msgspec.msgpack.encode([b"Authorization: Bearer " + KEY, KEY, "and a prompt"])
    data, masks = on_ray._masked(task, [b"Bearer " + KEY, KEY])
    assert KEY not in data and msgspec.msgpack.decode(data)[2] == "and a prompt", (
        "its lengths still hold"
    )
    for mask, word in masks:
        data = data.replace(mask, word)
    assert data == task


def test_a_loopback_url_is_refused_on_another_node(
    ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    ray.address = "192.0.2.7"
    with pytest.raises(UsageError, match=r"192\.0\.2\.7.*--base-url"):
        on_nodes(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    assert "clean_up" in ray.calls and not any(
        actor.slice._folder.path.exists() for actor in ray.actors
    )


# ---- the cluster ----


def test_ray_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[ray\]'"):
        on_ray.check(ClientSpec(on="ray"))
    on_ray.check(ClientSpec())


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "ray://host:10001"])
def test_what_is_not_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(on_ray.importlib.util, "find_spec", lambda name: True)
    with pytest.raises(UsageError, match="HOST:PORT"):
        on_ray.check(ClientSpec(on="ray", ray_address=address))


def test_an_address_where_nothing_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray.importlib.util, "find_spec", lambda name: True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(TargetError, match="No Ray cluster answers"):
        on_ray.check(ClientSpec(on="ray", ray_address=address))


# ---- findings about clocks ----


def _evidence(
    clocks: list[NodeClock],
    ttft_ms: float = 50.0,
    tpot_ms: float = 10.0,
    duration_s: float = 10.0,
) -> Any:
    processes = [
        types.SimpleNamespace(node=f"10.0.0.{k}", clock=clock)
        for k, clock in enumerate(clocks)
    ]
    summary = types.SimpleNamespace(
        client=types.SimpleNamespace(processes=processes),
        ttft=types.SimpleNamespace(median=ttft_ms),
        true_tpot=types.SimpleNamespace(median=tpot_ms),
        duration_s=duration_s,
    )
    return types.SimpleNamespace(summary=summary)


def _clock(uncertainty_ms: float, gain_ms: float = 0.0, apart_s: float = 10.0) -> NodeClock:
    trip = round(2 * uncertainty_ms * NS_PER_MS)
    after = ClockReading(round(apart_s * NS_PER_S), round(gain_ms * NS_PER_MS), trip)
    return NodeClock(ClockReading(0, 0, trip), after)


def test_a_clock_known_within_a_hundredth_of_each_latency_is_not_a_finding() -> None:
    assert list(checks.clocks(_evidence([_clock(0.02), _clock(0.09)]))) == []
    assert list(checks.clocks(_evidence([]))) == []


def test_a_clock_known_less_exactly_names_the_node_and_the_latencies() -> None:
    (finding,) = checks.clocks(_evidence([_clock(0.02), _clock(0.2)]))
    assert (finding.code, finding.level) == ("client.clock_uncertain", "note")
    assert (
        "node 10.0.0.1 is known to ± 0.2000 ms" in finding.text
        and "TPOT (10" in finding.text
    )
    assert "TTFT" not in finding.text
    (both,) = checks.clocks(_evidence([_clock(0.6)]))
    assert "TTFT (50" in both.text and "TPOT (10" in both.text


def test_a_clock_unknown_to_a_hundredth_of_the_load_is_a_doubt() -> None:
    (finding,) = checks.clocks(_evidence([_clock(200.0)]))
    assert finding.level == "doubt"


def test_a_clock_that_drifts_more_than_ntp_bends_it_is_a_doubt() -> None:
    (finding,) = checks.clocks(_evidence([_clock(0.02), _clock(0.02, gain_ms=-20.0)]))
    assert (
        finding.code == "client.clock_drift"
        and "node 10.0.0.1 ran 2,000 ppm slow: 20" in finding.text
    )
    assert list(checks.clocks(_evidence([_clock(0.02, gain_ms=0.5)]))) == [], (
        "50 ppm is an ordinary clock"
    )
    assert (
        list(checks.clocks(_evidence([_clock(0.05, gain_ms=0.09, apart_s=0.1)]))) == []
    ), "within its uncertainty"


@pytest.mark.hostile
def test_the_folder_of_a_node_that_lost_power_is_swept_by_its_next_slice(
    ray: StandIn, fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its spool has prompts and answers."""
    (tmp_path / "tmp" / "dyno-slice-dead").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    on_nodes(tmp_path, fake(first_ms=1, gap_ms=1).base_url)
    assert not list((tmp_path / "tmp").glob("dyno-slice-*"))
