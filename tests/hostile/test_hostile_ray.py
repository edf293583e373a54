"""Nodes of a Ray cluster that lie: reports, spools, clocks and errors. A stand-in for Ray; processes are real.

Whoever joins a cluster can run code where it is driven: Ray unpickles. These are nodes that break, or lie in dyno's own
messages.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import StartFake
from dyno.errors import DynoError, TargetError, UsageError
from dyno.facts.record import ClientFacts
from dyno.load import relay
from dyno.load.echo import Asker
from dyno.load.node import NodeSlice
from dyno.load.process import SliceFailure
from dyno.load.progress import Progress, Stop
from dyno.load.spool import CLOCK, END, READ, SENT, SINCE, TURN
from dyno.measure import clocks
from dyno.remote import on_ray
from dyno.units import NS_PER_MS, NS_PER_S
from test_hostile_hub import memory_bytes
from test_on_ray import StandIn, on_nodes, ray

__all__ = ["ray"]  # a fixture

Change = Callable[[Any], Any]
NAN, DAY_NS, MOST = float("nan"), 86_400 * NS_PER_S, 2**63 - 1
ESCAPES = "\x1b[2J\x1b]0;owned\x07 red\r\nSecond line\x00 \u202eabc"


def is_one_safe_sentence(error: DynoError) -> bool:
    words = str(error)
    return words.isprintable() and len(words) <= 2100 and words.endswith(".")


@pytest.fixture
def lie(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Change], None]:
    """`lie(call, change)`: the second node changes what it answers to a call."""

    def lie(name: str, change: Change) -> None:
        honest = getattr(NodeSlice, name)

        def answer(self: NodeSlice, *args: Any) -> Any:
            said = honest(self, *args)
            return (
                change(said)
                if len(ray.actors) > 1 and ray.actors[1].slice is self
                else said
            )

        monkeypatch.setattr(NodeSlice, name, answer)

    return lie


def report(change: Callable[[dict[str, Any]], None]) -> Change:
    """Change a report's fields."""

    def changed(data: bytes) -> bytes:
        fields = msgspec.msgpack.decode(data)
        change(fields)
        return msgspec.msgpack.encode(fields)

    return changed


def facts(**lies: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields["facts"].update(lies) if fields["facts"] else None


@contextlib.contextmanager
def nothing_beside(folder: Path) -> Iterator[Path]:
    """Nothing is written beside the folder of runs, and no gigabytes are held."""
    runs = folder / "runs"
    runs.mkdir()
    before = memory_bytes()
    yield runs
    assert {path.name for path in folder.iterdir()} <= {"runs", "fake-0.log"}
    assert memory_bytes() - before < 500 << 20


# ---- one report ----


def honest(**lies: Any) -> dict[str, Any]:
    done = ClientFacts(5, 9, "complete", 6, 6, 0.1, 30, [1, 2], kernel_stamps=True)
    said = relay.Relay(True, Progress(6, elapsed_ns=4), done, None, b"")
    return msgspec.msgpack.decode(relay.encoded(said)) | lies


def said(**lies: Any) -> bytes:
    return msgspec.msgpack.encode(honest(**lies))


def with_facts(**lies: Any) -> bytes:
    return said(facts=honest()["facts"] | lies)


def with_progress(**lies: Any) -> bytes:
    return said(progress=honest()["progress"] | lies)


class Hides:
    """Its own methods fail."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __len__ = __iter__ = __bool__ = __index__ = __lt__ = __gt__ = __str__  # type: ignore[assignment]


class Bytes(bytes):
    def __len__(self) -> int:
        return 5


NESTED: Any = []
for _ in range(500):
    NESTED = [NESTED]
NOT_REPORTS: dict[str, Any] = {
    "an object that hides": Hides(), "a kind of bytes": Bytes(said()), "none": None, "a text": "10.0.0.7", "a list": [],
    "an exception": ValueError("x"), "a relay": relay.Relay(True, Progress(6), None, None, b""),
    "an iterator": iter(b""),
    "nothing": b"", "garbage": b"\xc1\xff" * 99, "a cut one": said()[:-5], "more behind it": said() + b"x",
    "a claim of 4 GiB": b"\xc6\xff\xff\xff\xff", "a claim of 4 G entries": b"\xdd\xff\xff\xff\xff",
    "a pickle": b"cos\nsystem\n(S'touch /tmp/owned'\ntR.", "deep": b"\x91" * 10**6, "too long": bytes(100 << 20),
    "no fields": b"\x80", "text as spool": said(spool="x"), "a long spool": said(spool=bytes((16 << 20) + 1)),
    "ready as text": said(ready="yes"), "facts as text": said(facts="none"), "failure as text": said(failure="x"),
    "facts nested": with_facts(processes=NESTED), "half a character": with_facts(outcome="x")[:-1] + b"\xff",
    "an outcome of its own": with_facts(outcome=ESCAPES), "an early end": with_facts(start_ns=9, end_ns=5),
    "a time below zero": with_facts(start_ns=-5), "the last time": with_facts(end_ns=MOST),
    "more than 63 bits": with_facts(end_ns=2**64 - 1), "a time as a text": with_facts(end_ns="9"),
    "a time as NaN": with_facts(end_ns=NAN), "processor time NaN": with_facts(cpu_s=NAN),
    "processor time without end": with_facts(cpu_s=float("inf")), "processor time below zero": with_facts(cpu_s=-1.0),
    "waited NaN": with_facts(waited_s=NAN), "more sent than asked for": with_facts(sent=7),
    "fewer than none": with_facts(planned=-1), "skipped": with_facts(skipped=10**9), "reads": with_facts(reads=-1),
    "late by 2**63": with_facts(ticks_late_ns=[0, 2**63]), "a tick as a text": with_facts(ticks_late_ns=["0"]),
    "requests of others": with_facts(unasked=[6]), "requests below zero": with_facts(unasked=[-1]),
    "progress NaN": with_progress(events=NAN), "progress of 2**63": with_progress(elapsed_ns=2**63),
    "recent times as a text": with_progress(recent_ns="12345"), "recent texts": with_progress(recent_ns=["1"]),
    "recent times of 2**63": with_progress(recent_ns=[2**63]), "no list of times": with_progress(recent_ns=5),
    "tokens without end": with_progress(tokens_per_event=float("-inf")),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_REPORTS)
def test_what_is_not_a_report_is_refused_in_words_that_can_be_printed(name: str) -> None:
    with pytest.raises(relay.NotUnderstood) as refused:
        relay.decoded(NOT_REPORTS[name], 6)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 600


def test_an_honest_report_is_read_and_knows_only_of_itself() -> None:
    lies = {
        "node": "10.0.0.9",
        "processes": [honest()["facts"]],
        "round_trips_ns": [1],
        "priority": ESCAPES * 99,
    }
    read = relay.decoded(with_facts(**lies), 6).facts
    assert read and (
        read.sent,
        read.node,
        read.clock,
        read.processes,
        read.round_trips_ns,
    ) == (6, "", None, [], [])
    assert read.priority.isprintable() and len(read.priority) <= 300
    assert (
        relay.decoded(with_progress(count=10**9, recent_ns=[7] * 10**5), 6).progress.count
        == 6
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_a_reports_bytes_is_read_or_refused(data: st.DataObject) -> None:
    report = bytearray(said())
    for _ in range(data.draw(st.integers(1, 4))):
        report[data.draw(st.integers(0, len(report) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(relay.NotUnderstood):
        relay.decoded(bytes(report), 6)


KINDS = [
    "errno",
    "secrets",
    "limit_advice",
    "_ADVICE",
    "__name__",
    "DynoError",
    "",
    "a\0b",
    "__class__",
    "Interrupted",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_any_kind_is_an_error_of_dynos(kind: str) -> None:
    assert isinstance(SliceFailure(kind, "x").error(), DynoError)


# ---- a load ----

LIES: dict[str, tuple[str, Change]] = {
    "no address": ("begin", lambda said: None), "an address with lines": ("begin", lambda said: f"{said}\n{ESCAPES}"),
    "a long address": ("begin", lambda said: "1" * 10**6), "an object as its address": ("begin", lambda said: Hides()),
    "a report as its address": ("begin", lambda said_: said()),
    "its address again": ("relay", lambda said: "127.0.0.1"),
    "an object": ("relay", lambda said: Hides()), "garbage": ("relay", lambda said: b"\xff" * 1000),
    "a failure with escapes": ("relay", report(lambda f: f.update(failure={"kind": "errno", "text": ESCAPES * 99}))),
    "the end before the start": ("relay", lambda _: with_facts()),
    "the end before it is ready": ("relay", lambda _: said(ready=False)),
    "a load yesterday": ("relay", report(lambda f: facts(start_ns=max(f["facts"]["start_ns"] - DAY_NS, 0))(f)
                                        if f["facts"] else None)),
    "a load tomorrow": ("relay", report(lambda f: facts(start_ns=f["facts"]["start_ns"] + DAY_NS,
                                                       end_ns=f["facts"]["end_ns"] + DAY_NS)(f)
                                       if f["facts"] else None)),
    "an end tomorrow": ("relay", report(lambda f: facts(end_ns=f["facts"]["end_ns"] + DAY_NS)(f)
                                       if f["facts"] else None)),
    "more than it was given": ("relay", report(facts(sent=7, planned=7))),
    "no port": ("echo", lambda said: 0), "a port beyond": ("echo", lambda said: 10**9),
    "a text as a port": ("echo", str),
    "NaN as a port": ("echo", lambda said: NAN), "true as a port": ("echo", lambda said: True),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_node_that_lies_ends_the_load_in_one_sentence(
    name: str, lie: Callable[..., None], fake: StartFake, tmp_path: Path
) -> None:
    lie(*LIES[name])
    begun = time.monotonic()
    with nothing_beside(tmp_path) as runs, pytest.raises(DynoError) as refused:
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)
    assert is_one_safe_sentence(refused.value) or name == "a failure with escapes"
    assert str(refused.value).isprintable() and len(str(refused.value)) <= 2100
    assert time.monotonic() - begun < 60


TIMES = ["x", NAN, -1, MOST, 2**62, None, Hides(), True, 1.5]


@pytest.mark.parametrize("k", range(len(TIMES)))
def test_a_clock_that_shows_no_time_is_refused(
    k: int, lie: Callable[..., None], fake: StartFake, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lie("echo", lambda said: port)  # nothing listens: Ray is asked
    lie("clock", lambda said: TIMES[k])
    with (
        nothing_beside(tmp_path) as runs,
        pytest.raises(TargetError, match="clock shows no time"),
    ):
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)


@pytest.mark.parametrize("jump_ns", [DAY_NS, -DAY_NS])
def test_a_clock_that_jumps_by_a_day_during_the_load_is_refused(
    jump_ns: int, ray: StandIn, lie: Callable[..., None], fake: StartFake, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lie("echo", lambda said: port)
    lie("clock", lambda said: max(said + jump_ns * ("go" in ray.calls), 0))
    with (
        nothing_beside(tmp_path) as runs,
        pytest.raises(TargetError, match=r"clock moved|ran from") as refused,
    ):
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)
    assert is_one_safe_sentence(refused.value)


def test_a_clock_that_answers_slowly_is_not_asked_for_ever() -> None:
    """Each answer comes within its time; all of them would take hours."""
    asked = []

    def slow() -> int:
        asked.append(time.sleep(0.02))
        return 5

    clocks.read(slow, 400, longest_ns=100 * NS_PER_MS)
    assert 1 < len(asked) <= 6


@pytest.mark.parametrize("answer", [b"", b"abc", b"\xff" * 8, struct.pack("<q", -1)])
def test_a_clock_behind_a_connection_is_read_or_refused(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(17)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            contextlib.closing(
                Asker("127.0.0.1", server.getsockname()[1], b"t" * 16)
            ) as asker,
            pytest.raises((OSError, relay.NotUnderstood)),
        ):
            on_ray._time(asker())
        thread.join()


# ---- spools ----


def frame(
    exchange: int, kind: int, at_ns: int, a: int = 0, b: int = 0, payload: bytes = b""
) -> bytes:
    return struct.pack("<IBxHqqq", exchange, kind, len(payload), at_ns, a, b) + payload


ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: "
    b'{"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
)


def exchange(
    number: int, due: int, sent: int, read: int, end: int, stamp: int = 0
) -> bytes:
    return (
        frame(number, SENT, sent, due)
        + frame(number, READ, read, stamp, 0, ANSWER)
        + frame(number, SINCE, read, due)
        + frame(number, END, end)
    )


SPOOLS: dict[str, bytes] = {
    "garbage": bytes(range(256)) * 40, "zeros": bytes(4096), "cut": exchange(0, 1, 2, 3, 4)[:-7],
    "a claim of 64 KiB": frame(0, SENT, 5) + struct.pack("<IBxHqqq", 0, READ, 65535, 5, 0, 0),
    "a request of nobody": exchange(2**32 - 1, 1, 2, 3, 4), "all at once": exchange(0, 1, 1, 1, 1) * 2000,
    "the last times": exchange(0, MOST, MOST, MOST, MOST, MOST),
    "the first times": exchange(0, -MOST, -MOST, -MOST, -MOST),
    "from first to last": exchange(0, -MOST, MOST, -MOST, MOST, -MOST),
    "a stamp of 2**63 s": exchange(0, 1, 2, 3, 4, MOST),
    "a clock of 2**63": frame(0, CLOCK, MOST, MOST, MOST) + exchange(0, 1, 2, 3, 4, 5) + frame(0, CLOCK, 1, -MOST),
    "a turn of 2**63": frame(0, TURN, 1, -MOST) + exchange(0, 1, 2, 3, 4),
    "a replica of nobody": frame(0, SENT, 5, 5, 5, b"\xff" * 9) + frame(0, END, 9),
    "a replica of 64 KB": frame(0, SENT, 5, 5, 5, b"\xff" * 65535) + frame(0, END, 9),
    "an end with escapes": frame(0, SENT, 5) + frame(0, END, 9, payload=f"boom: {ESCAPES}".encode()),
    "an end that isn't text": frame(0, SENT, 5) + frame(0, END, 9, payload=b"\xff\xfe" * 999),
    "names that lead out": frame(0, SENT, 5) + frame(0, END, 9, payload=b"../../x: /etc/passwd\0"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOOLS)
def test_a_spool_of_any_bytes_is_read_or_refused(
    name: str, lie: Callable[..., None], fake: StartFake, tmp_path: Path
) -> None:
    sent: list[int] = []

    def instead(fields: dict[str, Any]) -> None:
        fields["spool"] = SPOOLS[name] if fields["ready"] and not sent else b""
        sent.extend([1] if fields["ready"] else [])

    lie("relay", report(instead))
    with nothing_beside(tmp_path) as runs:
        try:
            done = on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)
        except DynoError as e:
            assert is_one_safe_sentence(e)
        else:
            assert done.result.served.completed >= 6, "the other node's"
            assert len(list(done.run.records())) >= 6
    assert sent


def test_a_spool_without_end_fills_no_disk(
    lie: Callable[..., None],
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "_SPOOL_MORE", 1 << 20)
    part = bytes(relay.RELAY_BYTES)
    lie("relay", report(lambda fields: fields.update(spool=part, facts=None)))
    with (
        nothing_beside(tmp_path) as runs,
        pytest.raises(TargetError, match="more than 6 responses can have"),
    ):
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)
    assert (
        sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        < 128 << 20
    )


# ---- times and errors ----


def test_a_node_that_never_becomes_ready_is_given_up(
    lie: Callable[..., None],
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "_READY_NS", 2 * NS_PER_S)
    lie("relay", lambda _: said(ready=False, facts=None))
    with (
        nothing_beside(tmp_path) as runs,
        pytest.raises(TargetError, match="not ready after 2 s"),
    ):
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)


def test_a_node_that_never_ends_is_lost_after_a_stop(
    lie: Callable[..., None],
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "_STOPPED_NS", NS_PER_S // 2)
    lie("relay", report(lambda fields: fields.update(facts=None)))
    stop = Stop()

    looks: list[Progress] = []

    def watch(progress: Progress) -> None:
        looks.append(progress)
        if len(looks) >= 20:
            stop.request()

    done = on_nodes(tmp_path, fake(first_ms=1, gap_ms=1).base_url, watch=watch, stop=stop)
    client = done.run.client()
    assert client and [p.outcome for p in client.processes] == ["complete", "lost"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


ERRORS: dict[str, Exception] = {
    "escapes and lines": StandIn.exceptions.RayError(f"Traceback\n{ESCAPES}"), "no words": Unprintable(),
    "a megabyte": StandIn.exceptions.RayError("x" * 10**6), "of no kind of Ray's": AttributeError(ESCAPES),
    "as a module that is missing": ModuleNotFoundError("evil"), "deep": RecursionError(), "memory": MemoryError(),
    "as if it were dyno's": UsageError(ESCAPES), "a wrong unpickling": EOFError("Ran out of input"),
}  # fmt: skip


@pytest.mark.parametrize("call", ["begin", "relay", "echo", "clock"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_of_a_node_is_one_sentence(
    name: str, call: str, ray: StandIn, fake: StartFake, tmp_path: Path
) -> None:
    ray.failure = lambda called, calls: ERRORS[name] if called == call else None
    if call == "clock":
        ray.failure = lambda called, calls: (
            ERRORS[name] if called in ("echo", "clock") else None
        )
    with nothing_beside(tmp_path) as runs, pytest.raises(TargetError) as refused:
        on_nodes(runs, fake(first_ms=1, gap_ms=1).base_url)
    assert is_one_safe_sentence(refused.value)
