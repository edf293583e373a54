"""The real thing, small: the fake engine on a socket, and a load driven through wire, spool and decoding."""

import fcntl
import functools
import gc
import gettext
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dyno import child
from dyno.engines import process
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts, Record
from dyno.facts.rig import Rig
from dyno.http import Route, Url
from dyno.load import decode, http1, plan, script, wire
from dyno.load.protocols import PROTOCOLS, Asked
from dyno.load.sessions import Graph
from dyno.load.spool import END, READ, SENT, Spool, frames
from dyno.load.wire import Traffic, Wire
from dyno.probe import peaks, rig
from dyno.report import draw
from dyno.transport import Transport
from dyno.units import NS_PER_S
from dyno.workload.request import Request
from nursery import Nursery, forking
from rigs_over_ssh import ssh_rig, ssh_wheels  # noqa: F401  (fixtures)

# Tests share what a test file of another folder has.
sys.path[:0] = [
    str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir()
]

# A shell makes what it runs in the background ignore Ctrl-C, and with it every dyno that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are collected (pytest_collection_finish): a million objects that stay would be searched repeatedly.
gc.disable()

# Every dyno that a test starts would compile all its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A mistake of dyno's own fails the test that met it: one line on stderr might pass for a user's mistake.
os.environ["DYNO_TRACEBACK"] = "1"

# argparse asks for a translation of each of its words, and gettext then looks for files: some seconds of the suite.
os.environ["LANGUAGE"] = "C"
gettext.dgettext = lambda domain, message: message

# Names of the Hub in tests are made up: dyno would fetch them before an engine starts.
os.environ["HF_HUB_OFFLINE"] = "1"

# Folders whose tests a suite of their own runs, and its marker.
SUITES = {
    "real_engines": "engines",
    "hostile": "hostile",
    "house": "house",
    "pages": "pages",
    "tools": "tools",
}
# Suites whose tests, where they are in other folders, carry the marker in their file.
_BY_MARKER = {*SUITES.values(), "docs"}
_ASKED = re.compile(rf"(?<!not )\b(?:{'|'.join(sorted(_BY_MARKER))})\b")
_REAL = re.compile(r"^pytestmark = .*\bpytest\.mark\.real\b", re.MULTILINE)

# Files whose tests, where engines start beside them, are about times: a search's answer is a server's speed.
ALONE = {
    f"test_{name}"
    for name in ("find", "find_servers", "find_studies", "searches", "replicas")
}


def pytest_configure(config: pytest.Config) -> None:
    peaks._test = _once_for_each_size(peaks._test)
    # the process that starts the others: they take over its environment
    if not hasattr(config, "workerinput"):
        cache = os.environ["XDG_CACHE_HOME"] = str(_cache(config.rootpath))
        if not re.search(
            r"(?<!not )\b(?:engines|tools|docs|hostile|nightly)\b", config.option.markexpr
        ):
            # whatever engines and models are installed here
            os.environ["DYNO_HOME"] = f"{cache}/home"
        _keep_the_processors_test()


def _cache(root: Path) -> Path:
    """What dyno keeps between commands, apart from the user's. pip's downloads stay where they were."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    os.environ.setdefault("PIP_CACHE_DIR", str(users / "pip"))
    folder = root / "build" / "test-cache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # a checkout that can only be read
        return Path(tempfile.mkdtemp(prefix="dyno-test-cache-"))


# A processor's test beside other tests is disturbed, so dyno doesn't keep it: each engine that a test starts would wait
# two seconds for a test of its own.


def _keep_the_processors_test() -> None:
    """For this machine and the programs that tests start. `given` stays with it: dyno corrects what was disturbed."""
    here = rig.read_machine()
    kept = peaks.of_processor(here, only_kept=True).peaks
    if kept is None or "corrected for" in kept.source:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peaks, "UNDISTURBED", 0.0)
            peaks.of_processor(here, anew=True)


def _once_for_each_size(
    test: Callable[[Rig], peaks.Tested],
) -> Callable[[Rig], peaks.Tested]:
    """For rigs that tests make up."""
    known: dict[tuple[int, int | None], peaks.Tested] = {}

    def tested(of: Rig) -> peaks.Tested:
        key = of.cores, of.memory_free_bytes or of.memory_bytes
        if key not in known:
            known[key] = test(of)
        return known[key]

    return tested


@functools.cache
def _is_real(path: Path) -> bool:
    """Whether all tests of a file are marked so. It is read, not imported: `make test-fast` imports none of these."""
    return path.parent.name in SUITES or bool(
        path.suffix == ".py" and _REAL.search(path.read_text())
    )


def _keeps_cores_busy(item: pytest.Item) -> bool:
    """By loops of its own: no other test that measures runs beside it."""
    return "busy" in getattr(item, "fixturenames", ())


@functools.cache
def _marks(path: Path) -> set[str]:
    """Which suites a file's tests may belong to: by its folder, or by a marker that it names. It isn't imported."""
    named = {suite for suite in _BY_MARKER if f"mark.{suite}" in path.read_text()}
    return named | {SUITES.get(path.parent.name, "")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests that the markers leave out aren't even imported: each process of a suite would take seconds for them."""
    chosen, folder = config.option.markexpr, collection_path.parent.name
    whole = folder in SUITES and f"not {SUITES[folder]}" in chosen
    is_test = collection_path.is_file() and collection_path.name.startswith("test_")
    real = chosen == "not real" and is_test and _is_real(collection_path)
    asked = set() if " or " in chosen else set(_ASKED.findall(chosen))
    other = bool(asked) and is_test and not asked & _marks(collection_path)
    return True if whole or real or other else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In a clean checkout pytest rewrites the assertions of each file, for seconds in all: one worker does, the others
    wait for that file and read what is stored."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_real(item.path):
            item.add_marker("real")
        if item.path.stem in ALONE and not _keeps_cores_busy(item):
            item.add_marker("alone")
        if item.path.parent.name in ("hostile", "house"):
            item.add_marker(item.path.parent.name)


def pytest_collection_finish() -> None:
    """Before each load the wire collects garbage: it needn't search 300,000 objects of pytest's own, nor count them."""
    gc.enable()
    gc.collect()
    gc.freeze()
    count = gc.get_freeze_count()
    gc.get_freeze_count = lambda: count


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else nanobind takes what is frozen for leaks


@pytest.fixture(autouse=True)
def _nothing_real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the list above complete."""
    if request.node.get_closest_marker("real") is None:
        popen = subprocess.Popen

        def refuse(command: Any = (), *rest: Any, **how: Any) -> Any:
            if command == draw.PROCESS:  # a library in a process of its own, started once
                return popen(command, *rest, **how)
            pytest.fail(
                f"starts a process or uses a socket: mark {request.path.stem} with pytest.mark.real"
            )

        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr(socket, "socket", refuse)


# Files that test a process of dyno's own, from its start.
STARTS = {
    child: ("test_telemetry", "test_time_left", "test_processes"),
    process: (
        "test_embedded",
        "test_container",
        "test_hostile_processes",
        "test_real_engines",
    ),
}
nursery = functools.cache(Nursery)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where a process of dyno's own isn't what is tested, it is forked, also in the fixtures of a test."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("real"):
            quick = forking(nursery())
            for module in (
                module for module, files in STARTS.items() if item.path.stem not in files
            ):
                patch.setattr(module, "subprocess", quick)
        return (yield)


def pytest_sessionfinish() -> None:
    if nursery.cache_info().currsize:
        nursery().close()


@contextmanager
def turn(folder: Path, alone: bool) -> Iterator[None]:
    """On the cores, among the workers of a run, who share a folder: what measures has them alone, the rest shares them.
    Who waits for being alone holds the door, else those who share would go on for ever."""
    with (folder / "cores.lock").open("a") as cores:
        with (folder / "door.lock").open("a") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(cores, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def workers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


Built = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def built_once(workers_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`built_once(name, build)`: a copy, for this worker, of a folder that the first of them builds."""

    def copy(name: str, build: Callable[[Path], None]) -> Path:
        original, own = workers_folder / "built" / name, tmp_path_factory.mktemp(name)
        original.parent.mkdir(exist_ok=True)
        with original.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not original.exists():
                build(own)
                shutil.copytree(own, original.with_suffix(".part"))
                original.with_suffix(".part").rename(original)
            else:
                shutil.copytree(original, own, dirs_exist_ok=True)
        return own

    return copy


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where engines start, whole cores are busy: a test that measures waits for them."""
    if request.node.get_closest_marker("engines") is None:
        yield
    else:
        alone = request.node.get_closest_marker("alone") is not None or _keeps_cores_busy(
            request.node
        )
        # no test of this run starts an engine
        only_such = "engines and alone" in request.config.option.markexpr
        with (
            nullcontext()
            if only_such
            else turn(request.getfixturevalue("workers_folder"), alone)
        ):
            yield


ExpectDecided = Callable[[bool], None]


@pytest.fixture
def expect_decided() -> ExpectDecided:
    """`expect_decided(is_decided)`: a search beside programs that take the cores may stay undecided. Then the test ends
    there, and says why. Where the cores were free, it fails."""
    began = _core_times()

    def expect(is_decided: bool) -> None:
        if is_decided:
            return
        passed = [now - before for now, before in zip(_core_times(), began, strict=True)]
        whole, idle, stolen = max(sum(passed), 1), passed[3] + passed[4], passed[7]
        used, taken = 1 - idle / whole, stolen / whole
        words = f"undecided: {used:.0%} of the cores' time was used, {taken:.0%} by other machines"
        assert used > 0.5 or taken > 0.05, words
        pytest.skip(words)

    return expect


def _core_times() -> list[int]:
    """Return the ticks of all cores: user, nice, system, idle, waiting, two kinds of interrupts, stolen."""
    return [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]


@pytest.fixture(scope="module")
def no_collector() -> Iterator[None]:
    """For syntax trees of the whole source: their 800,000 nodes have no cycles, but would be searched for some."""
    gc.disable()
    yield
    gc.freeze()  # they stay for the next file
    gc.enable()


StartFake = Callable[..., Fake]  # takes FakeSpec's fields


class Driven(NamedTuple):
    records: list[Record]  # in the order of the requests
    client: ClientFacts
    # (kind, exchange) of what was sent, read and ended, in that order
    frames: list[tuple[int, int]]


def requests(count: int, output_tokens: int = 4, prompt: str = "a b c") -> list[Request]:
    return [Request(prompt, len(prompt.split()), output_tokens)] * count


def ends_ms(result: dict[str, Any], key: str) -> tuple[float, float]:
    """Return a latency of a result file, 'mean_ttft_ms', twice; or its bounds, where a busy client knew no more."""
    if result[key] is not None:
        return result[key], result[key]
    name, _, stem = key.removesuffix("_ms").partition("_")
    of = {"probe": "probe_"}.get(name, "")
    if of:
        name, _, stem = stem.partition("_")
    low, high = result["dyno"]["bounds"][of + stem][name.removeprefix("p")]
    return low, high


def drive(
    base_urls: str | Sequence[str],
    wanted: Sequence[Request],
    load: LoadSpec | None = None,
    *,
    backend: str = "openai",
    count: int | None = None,
    plan_: plan.Plan | None = None,
    insecure: bool = False,
    **options: Any,
) -> Driven:
    """A load on one server or on copies of it, as trial/online.py drives it. One request at a time unless `load`
    says otherwise."""
    protocol = PROTOCOLS[backend]
    via, headers = (
        options.pop("via", Transport(insecure=insecure)),
        options.pop("headers", None),
    )
    urls = [Url(u) for u in ([base_urls] if isinstance(base_urls, str) else base_urls)]
    fronts = [http1.front("POST", u.prefix + protocol.path, u.netloc) for u in urls]
    whole, fronts = (fronts[0], [b""]) if len(fronts) == 1 else (b"", fronts)
    limits = {
        name: options.pop(name) for name in ("timeout_s", "response_max") if name in options
    }
    head, asked = {"content-type": "application/json"}, Asked("fake", ignore_eos=True)
    bytes_ = script.make(
        wanted,
        backend,
        asked,
        whole + http1.head_before_length(head),
        options.pop("answers", "server"),
    )
    graph = Graph.from_requests(wanted)
    sessions = count or (graph.sessions if graph else len(wanted))
    the_plan = plan_ or plan.make(
        load or LoadSpec(max_concurrency=1), sessions, graph, options.pop("starts_s", None)
    )
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "exchanges.spool")
        try:
            traffic = Traffic(
                [Route(u, via, headers) for u in urls], fronts, bytes_, the_plan, **limits
            )
            client = Wire(traffic, spool, **options).drive()
        finally:
            spool.close()
        records = list(
            decode.records(spool.path, wanted, protocol, client.start_ns, client.unasked)
        )
        order = [
            (kind, exchange)
            for exchange, kind, *_ in frames(spool.path)
            if kind in (SENT, READ, END)
        ]
    return Driven(sorted(records, key=lambda r: r.index), client, order)


@contextmanager
def _fakes(folder: Path) -> Iterator[StartFake]:
    """Starts fake engines on demand, one for each spec, and stops them all at the end."""
    running: dict[bytes, Fake] = {}
    with ExitStack() as stack:

        def start(**fields: Any) -> Fake:
            spec = FakeSpec(**{"first_ms": 5.0, "gap_ms": 1.0, **fields})
            key = msgspec.json.encode(spec)
            if key not in running:
                running[key] = stack.enter_context(
                    Fake.start(spec, folder / f"fake-{len(running)}.log")
                )
            return running[key]

        yield start


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[StartFake]:
    """`fake(first_ms=…, gap_ms=…, faults={…})`: an engine for this test alone."""
    with _fakes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def shared_fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFake]:
    """The same, kept for the whole file: for tests that don't look at the engine's log or count."""
    with _fakes(tmp_path_factory.mktemp("fakes")) as start:
        yield start


@pytest.fixture
def soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead server is given up after one second instead of three."""
    monkeypatch.setattr(wire, "GONE_AFTER_NS", NS_PER_S)


class Scripted:
    """A server of a few lines: each connection is handed to `talk(socket, number of the connection)` in a thread."""

    def __init__(
        self,
        talk: Callable[[Any, int], None],
        wrap: Callable[[socket.socket], Any] | None = None,
        port: int = 0,
    ) -> None:
        self._talk = talk
        self._wrap = wrap
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self.sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self.port: int = self._listener.getsockname()[1]
        self.base_url = f"{'https' if wrap else 'http'}://127.0.0.1:{self.port}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            self.connections += 1
            self.sockets.append(sock)
            thread = threading.Thread(
                target=self._serve, args=(sock, self.connections), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: Any, number: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._wrap is not None:
                sock = self._wrap(sock)
                self.sockets.append(sock)
            self._talk(sock, number)
        except OSError:  # the client went, or the test is over
            pass
        finally:
            sock.close()

    def close(self) -> None:
        with suppress(OSError):  # closed before, by the test
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(5)
        self._listener.close()
        for sock in self.sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """`scripted(talk)`: a server that says what the fake engine doesn't."""
    with ExitStack() as stack:

        def start(*args: Any, **fields: Any) -> Scripted:
            server = Scripted(*args, **fields)
            stack.callback(server.close)
            return server

        yield start


def receive_request(sock: Any) -> bytes:
    """One whole request's body; b"" where the client closed instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    parts, size = [body], len(body)
    while size < length:
        more = sock.recv(1 << 20)
        if not more:
            return b""
        parts.append(more)
        size += len(more)
    return b"".join(parts)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(*events: bytes) -> bytes:
    """Each as one HTTP chunk, and the end of the body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


def tokens(count: int, model: str = "fake") -> list[bytes]:
    """The events of a plain completions stream."""
    text = (
        b'data: {"model":"%s","choices":[{"index":0,"text":" tok","finish_reason":null}]}\n\n'
        % model.encode()
    )
    usage = (
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n'
        % count
    )
    last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    return [text] * count + [last, usage, b"data: [DONE]\n\n"]


def answer(count: int) -> bytes:
    return STREAM_HEAD + chunked(*tokens(count))
