"""Engines that flee, hang, flood and lie about their port, and a dyno that is killed or runs out of memory: nobody is
left behind, nothing is lost, and no key goes astray."""

import contextlib
import errno
import itertools
import json
import os
import random
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Scripted, StartFake, answer, drive, receive_request, requests
from dyno.engines import port as ports
from dyno.engines import process as engine_process
from dyno.engines.log import excerpt
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, limit_advice
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.rig import Rig
from dyno.http import Route, Url
from dyno.load import connection, pool
from dyno.load.wire import REFUSED_PAUSE_NS
from dyno.trial import lifecycle
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are looked at in /proc"
)

RIG = Rig("test", "0", "any", "cpu", 2, memory_free_bytes=8 * 2**30)
KEY = {"Authorization": "Bearer sk-thisisthekeyofthetest"}

# Processes that leave the engine's session, are forked twice, change their name and ignore what is polite.
FLEES = """
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
folder = Path({folder!r})
folder.mkdir(exist_ok=True)

def stay(name):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
    (folder / str(os.getpid())).touch()
    time.sleep(300)
    os._exit(0)

if not os.fork():
    os.setsid()
    stay("kworker/0:1")
if not os.fork():
    os.setsid()
    if not os.fork():
        os.setsid()
        os.closerange(0, 64)
        stay("systemd")
    os._exit(0)
subprocess.Popen(["setsid", "sh", "-c", "touch " + str(folder) + "/$$; (sleep 300 & sleep 300)"])
while len(list(folder.iterdir())) < 3:
    time.sleep(0.01)
"""
SERVES = """
port = int(sys.argv[sys.argv.index("--port") + 1])
from dyno.engines.fake.server import serve
from dyno.engines.fake import FakeSpec
serve(FakeSpec(first_ms=2, gap_ms=1, model="m"), port)
"""


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def noted(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()] if folder.exists() else []


def survivors(folder: Path) -> list[int]:
    return [pid for pid in noted(folder) if lives(pid)]


def living_in(folder: Path) -> list[int]:
    """Whatever was started there, by anybody: dyno, its keepers, its sampler, engines."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.fixture
def spared() -> Iterator[list[int]]:
    """Pids that a failed test doesn't leave behind."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---- whoever flees is found ----


def fleeing(tmp_path: Path, then: str = "time.sleep(300)\n") -> list[str]:
    text = FLEES.replace("{folder!r}", repr(str(tmp_path / "pids"))) + then
    return [script(tmp_path / "engine", text)]


def test_stop_ends_workers_of_their_own_session_daemons_and_those_of_another_name(
    tmp_path: Path, spared: list[int]
) -> None:
    with EngineProcess(fleeing(tmp_path), None, tmp_path / "log") as process:
        wait_for(lambda: len(noted(tmp_path / "pids")) == 3)
        spared += noted(tmp_path / "pids")
        everybody = [p.pid for p in process.processes()]
        assert {*spared, process.pid} < set(everybody), "and the shell's own children"
        process.stop(timeout=1)
    assert not [pid for pid in everybody if psutil.pid_exists(pid)], (
        "nor is one left as a zombie"
    )


def test_a_crash_of_the_engine_leaves_none_of_them_either(
    tmp_path: Path, spared: list[int]
) -> None:
    process = EngineProcess(fleeing(tmp_path, "os._exit(7)\n"), None, tmp_path / "log")
    wait_for(lambda: not process.alive())
    spared += noted(tmp_path / "pids")
    assert process.exit_code == 7
    assert len(survivors(tmp_path / "pids")) == 3
    process.stop()
    assert not survivors(tmp_path / "pids")


DYNO = """
import json, sys, time
from pathlib import Path
from dyno.engines.process import EngineProcess
from dyno.signals import interrupt, lent
import signal
with lent((signal.SIGTERM, signal.SIGHUP), interrupt):
    with EngineProcess(json.loads(sys.argv[1]), None, Path(sys.argv[2])) as process:
        print(process.pid, flush=True)
        time.sleep(300)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
)
def test_none_of_them_outlives_a_dyno_that_is_ended(
    tmp_path: Path, number: signal.Signals, spared: list[int]
) -> None:
    words = [json.dumps(fleeing(tmp_path)), str(tmp_path / "log")]
    with subprocess.Popen(
        [sys.executable, "-c", DYNO, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as dyno:
        wait_for(lambda: len(noted(tmp_path / "pids")) == 3)
        spared += noted(tmp_path / "pids")
        dyno.send_signal(number)
    wait_for(lambda: not survivors(tmp_path / "pids"))


def test_a_dyno_that_is_killed_while_it_stops_the_engine_leaves_none(
    tmp_path: Path, spared: list[int]
) -> None:
    words = [json.dumps(fleeing(tmp_path, "stay('engine')\n")), str(tmp_path / "log")]
    with subprocess.Popen(
        [sys.executable, "-c", DYNO, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as dyno:
        wait_for(lambda: len(noted(tmp_path / "pids")) == 4)
        spared += noted(tmp_path / "pids")
        dyno.send_signal(signal.SIGINT)
        time.sleep(0.2)
        dyno.kill()
    wait_for(lambda: not survivors(tmp_path / "pids"))


CHAIN = """
import os, time
end = time.monotonic() + 40
while time.monotonic() < end:  # each generation is in a session of its own and dies at once
    if os.fork():
        os._exit(0)
    os.setsid()
    with open({mark!r}, "w") as file:
        file.write(str(os.getpid()))
"""
BOMB = """
import os, time
from pathlib import Path
for _ in range(7):  # 2 to the 7th at most
    os.fork()
    os.setsid() if os.getpid() % 2 and os.getpid() != os.getsid(0) and os.getpgid(0) != os.getpid() else None
    Path({mark!r}, str(os.getpid())).touch()
time.sleep(300)
"""


def test_one_that_forks_on_and_on_is_caught_up_with(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    binary = script(tmp_path / "engine", CHAIN.replace("{mark!r}", repr(str(mark))))
    process = EngineProcess([binary], None, tmp_path / "log")
    first = wait_for(lambda: mark.exists() and mark.read_text())
    wait_for(lambda: mark.read_text() not in ("", first))  # it moves
    process.stop(timeout=0)
    assert not process.processes()
    last = mark.read_text()
    time.sleep(0.3)
    assert mark.read_text() == last


def test_a_flood_of_processes_is_ended_whole(tmp_path: Path, spared: list[int]) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    binary = script(tmp_path / "engine", BOMB.replace("{mark!r}", repr(str(pids))))
    process = EngineProcess([binary], None, tmp_path / "log")
    wait_for(lambda: len(noted(pids)) > 60)
    process.stop(timeout=0)
    spared += noted(pids)
    assert not survivors(pids)


def test_an_engine_that_kills_its_keeper_dies_with_it_and_is_reported(
    tmp_path: Path, spared: list[int]
) -> None:
    text = (
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    )
    binary = script(
        tmp_path / "engine", text + "os.kill(os.getppid(), 9)\ntime.sleep(300)\n"
    )
    process = EngineProcess([binary], None, tmp_path / "log")
    assert wait_for(lambda: process.exit_code) == -signal.SIGKILL
    spared.append(int((tmp_path / "pid").read_text()))
    wait_for(lambda: not lives(spared[0]))
    process.stop()


def test_an_engine_that_stops_its_keeper_is_ended_all_the_same(tmp_path: Path) -> None:
    text = f"import os, time\nos.kill(os.getppid(), 19)\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    process = EngineProcess(
        [script(tmp_path / "engine", text + "time.sleep(300)\n")], None, tmp_path / "log"
    )
    pid = int(
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    )
    process.stop(timeout=0)
    assert not lives(pid)


def test_an_object_that_is_lost_takes_its_engine_along(tmp_path: Path) -> None:
    process: EngineProcess | None = EngineProcess(["sleep", "300"], None, tmp_path / "log")
    assert process
    pid, keeper = process.pid, process._keeper
    with pytest.warns(ResourceWarning):
        process = None
    wait_for(lambda: not lives(pid))
    keeper.wait(10)


# ---- a log of any size ----

READS = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
from dyno.engines.process import EngineProcess
log = Path(sys.argv[1])
with EngineProcess(["sh", "-c", "echo first; exit 3"], None, log, secrets=["sk-thisisasecret"]) as process:
    while process.alive():
        pass
    with log.open("r+b") as file:  # a hole of a gigabyte, as a flood would be
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\\nRuntimeError: sk-thisisasecret broke\\n")
    assert process.text().startswith("first")
    print(process.last_lines())
    print(process.last_line())
"""


def test_a_gigabyte_of_log_costs_no_gigabyte_of_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READS, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "RuntimeError: **************** broke" in done.stdout
    assert "thisisasecret" not in done.stdout


def test_of_a_flood_the_first_and_the_last_part_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\nfirst\n")
    assert excerpt(log, 4) == "first\n"
    assert excerpt(log, 0, 4) == "old\n"
    with log.open("ab") as file:
        file.truncate(1 << 30)
    with log.open("ab") as file:
        file.write(b"last")
    text = excerpt(log, 4)
    assert text.startswith("first\n") and text.endswith("last")
    assert " omitted …" in text and len(text) < 17 << 20


def test_a_line_without_end_is_not_waited_for_until_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "_LINE_BYTES", 1 << 20)
    command = ["sh", "-c", "echo one; echo two; exec tr '\\0' x < /dev/zero"]
    with EngineProcess(command, None, tmp_path / "log", talks=True) as process:
        assert [process.hear(30), process.hear(30)] == [b"one", b"two"]
        line = process.hear(30)
        assert line is not None and 1 << 20 <= len(line) < 2 << 20


# ---- the port ----


def a_plan(
    tmp_path: Path, text: str, port: int | None = None, timeout_s: float = 60
) -> EnginePlan:
    binary = script(tmp_path / "vllm", text)
    return EnginePlan(
        EngineSpec("vllm", model="m", binary=binary, ready_timeout_s=timeout_s),
        RIG,
        port=port,
    )


def start(
    plan: EnginePlan, tmp_path: Path, say: Callable[[str], None] = lambda _: None
) -> Any:
    (tmp_path / "e").mkdir(exist_ok=True)
    return running(plan, tmp_path / "e", KEY, say, lambda _: None)


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_held_by_a_mute_program_is_reported_before_the_start(
    tmp_path: Path, listens: bool
) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if listens:
            mute.listen()
        port = mute.getsockname()[1]
        plan = a_plan(tmp_path, f"open({str(tmp_path / 'started')!r}, 'w')\n", port)
        who = rf"\(pid {os.getpid()}\)" if listens else "another program"
        with (
            pytest.raises(EngineError, match=rf"Port {port} is in use by .*{who}"),
            start(plan, tmp_path),
        ):
            pass
        assert not (tmp_path / "started").exists()
        mute.listen()
        assert not select.select([mute], [], [], 0)[0], "nobody has knocked"


def test_a_program_that_takes_the_port_during_the_start_is_named_and_sent_nothing(
    tmp_path: Path,
) -> None:
    started, thief = tmp_path / "started", socket.socket()
    plan = a_plan(tmp_path, f"import time\nopen({str(started)!r}, 'w')\ntime.sleep(300)\n")
    port = plan.launches[0].port

    def steal() -> None:
        wait_for(started.exists)
        thief.bind(("127.0.0.1", port))
        thief.listen()

    thread = threading.Thread(target=steal)
    thread.start()
    with thief:
        with (
            pytest.raises(
                EngineError, match=rf"lost port {port} to .*\(pid {os.getpid()}\)"
            ),
            start(plan, tmp_path),
        ):
            pass
        thread.join()
        thief.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                sock, _ = thief.accept()
                sock.settimeout(0.2)
                assert sock.recv(1 << 16) == b"", (
                    "it may be knocked at, but it hears nothing"
                )
                sock.close()


def test_after_a_death_in_a_study_the_next_trial_is_not_sent_to_whoever_took_the_port(
    tmp_path: Path,
) -> None:
    plan = a_plan(tmp_path, "import os, sys\n" + SERVES)
    with start(plan, tmp_path) as up, socket.socket() as thief:
        port = plan.launches[0].port
        os.kill(up.engines[0].process.pid, signal.SIGKILL)
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def stolen() -> bool:
            with contextlib.suppress(OSError):
                thief.bind(("127.0.0.1", port))
                thief.listen()
                return True
            return False

        wait_for(stolen)
        with pytest.raises(EngineError, match=rf"lost port {port}"):
            up.check_ports()


def test_an_engine_that_dies_while_its_worker_holds_the_port_in_silence_is_reported_at_once(
    tmp_path: Path,
) -> None:
    text = """
        import os, socket, sys, time
        listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
        if not os.fork():
            sock, _ = listener.accept()  # and not a word
            open(WHERE, "w")
            time.sleep(300)
        while not os.path.exists(WHERE):
            time.sleep(0.01)
        print("RuntimeError: the engine core failed", flush=True)
        os._exit(3)
    """.replace("WHERE", repr(str(tmp_path / "asked")))
    plan = a_plan(tmp_path, text, timeout_s=3600)
    began = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"exited with code 3 .*the engine core failed"),
        start(plan, tmp_path),
    ):
        pass
    assert time.monotonic() - began < 60


def test_a_connection_reaches_the_socket_that_is_bound_to_its_address_before_one_that_is_bound_to_any() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        assert ports.belongs(port, [os.getpid()]) is True
        assert ports.belongs(port, [os.getppid()]) is False
        assert ports.belongs(port, []) is False
        assert f"(pid {os.getpid()})" in ports.holder(port)
    assert ports.belongs(port, [os.getpid()]) is None
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True):
        assert ports.belongs(port, [os.getpid()]) is True
        assert ports.in_use(port)
    assert ports.in_use(port) is None


# ---- dyno runs out of something ----

HUNGRY = """
import contextlib, os, resource, sys, time
from pathlib import Path
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Rig
folder = Path(sys.argv[1])
plan = EnginePlan(EngineSpec("vllm", model="m", binary=sys.argv[2], replicas=2), Rig("t", "0", "a", "cpu", 2))
with contextlib.suppress(MemoryError), running(plan, folder, {}, lambda _: None, lambda _: None) as fleet:
    (folder / "keepers").write_text(" ".join(str(e.process._keeper.pid) for e in fleet.engines))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
    eaten = []
    while True:
        eaten.append(bytearray(1 << 12))
"""


def test_memory_that_runs_out_ends_every_engine(tmp_path: Path, spared: list[int]) -> None:
    text = FLEES.replace(
        "{folder!r}", f'{str(tmp_path / "pids")!r} + sys.argv[sys.argv.index("--port") + 1]'
    )
    binary = script(tmp_path / "vllm", text + SERVES)
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, str(tmp_path), binary],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    folders = list(tmp_path.glob("pids*"))
    spared += [pid for folder in folders for pid in noted(folder)]
    assert len(spared) == 6, done.stderr
    keepers = [int(pid) for pid in (tmp_path / "keepers").read_text().split()]
    wait_for(lambda: not [pid for pid in [*spared, *keepers] if lives(pid)])


def test_an_engine_starts_and_ends_under_a_tight_limit_of_memory(tmp_path: Path) -> None:
    limit = ["prlimit", f"--as={700 << 20}"]
    command = [
        *limit,
        sys.executable,
        "-c",
        DYNO,
        json.dumps(fleeing(tmp_path)),
        str(tmp_path / "log"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dyno:
        wait_for(lambda: len(noted(tmp_path / "pids")) == 3)
        dyno.send_signal(signal.SIGTERM)
    wait_for(lambda: not survivors(tmp_path / "pids"))


def test_one_engine_that_cannot_be_stopped_does_not_keep_the_others_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [EngineProcess(["sleep", "300"], None, tmp_path / f"log{i}") for i in range(3)]
    engines = [lifecycle.Engine(process, "", "") for process in plans]
    whole = EngineProcess.stop

    def stop(self: EngineProcess, timeout: float = 5.0) -> None:
        if self is plans[0]:
            raise MemoryError
        whole(self, timeout)

    monkeypatch.setattr(EngineProcess, "stop", stop)
    with pytest.raises(MemoryError):
        lifecycle.stop(engines)
    assert not plans[1].alive() and not plans[2].alive()
    whole(plans[0])


def test_too_many_open_files_at_the_start_are_reported_and_leave_none(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(Path("/proc/self/fd").iterdir())
    held = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 3, hard))  # too few for two pipes
    try:
        with pytest.raises(OSError, match="Too many open files"):
            EngineProcess(["sleep", "300"], None, tmp_path / "log")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held)
    assert sorted(Path("/proc/self/fd").iterdir()) == before, "no file stays open"


def limited(tmp_path: Path, url: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """`dyno bench serve` by a client that may open 40 files."""
    command = [
        "prlimit",
        "--nofile=40:40",
        sys.executable,
        "-m",
        "dyno",
        "bench",
        "serve",
        "--base-url",
        url,
        "--json",
    ]
    asked = ["--num-prompts", "100", "--input-len", "4", "--output-len", "4", *words]
    return subprocess.run(
        [*command, *asked],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_files_that_run_out_under_load_are_the_client_s_failure_and_not_the_server_s(
    tmp_path: Path, fake: StartFake
) -> None:
    words = ("--request-rate", "30", "--no-correctness-check")
    done = limited(tmp_path, fake(first_ms=3000.0).base_url, *words)
    reported = json.loads(done.stdout)
    assert (
        reported["completed"] + reported["failed"] == 100
        and reported["completed"]
        and reported["failed"]
    )
    assert reported["dyno"]["failures"] == {"client": reported["failed"]}
    codes = {finding["code"]: finding for finding in reported["dyno"]["findings"]}
    assert "requests.failed" not in codes
    assert "ulimit -n" in codes["client.limits"]["advice"]
    (records,) = tmp_path.glob("runs/*/records.jsonl")
    assert "Too many open files" in records.read_text()


def test_files_that_run_out_before_the_load_are_reported_as_the_client_s_limit(
    tmp_path: Path, fake: StartFake
) -> None:
    done = limited(tmp_path, fake(first_ms=50.0).base_url, "--request-rate", "1000")
    assert done.returncode == 1
    assert "couldn't open a connection" in done.stderr and "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_without_files_does_not_burn_its_requests(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a closed loop each failure would be followed by the next request at once."""

    def once(sock: Any, _: int) -> None:
        if receive_request(sock):
            sock.sendall(
                answer(2).replace(
                    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
                )
            )

    begun, calls = pool.begin, itertools.count()

    def begin(replica: Any) -> Any:
        if 10 <= next(calls) < 20:
            raise OSError(errno.EMFILE, "Too many open files")
        return begun(replica)

    monkeypatch.setattr(pool, "begin", begin)
    began = time.monotonic()
    driven = drive(
        [scripted(once).base_url for _ in range(2)],
        requests(60),
        LoadSpec(max_concurrency=2),
    )
    errors = [record.error for record in driven.records]
    assert set(errors) == {None, "client"} and errors.count("client") <= 10
    assert time.monotonic() - began > errors.count("client") / 2 * REFUSED_PAUSE_NS / 1e9, (
        "each was paused for"
    )
    served = {record.replica for record in driven.records if record.error is None}
    assert len(served) == 2, "and no replica is blamed"


@pytest.mark.parametrize(
    "number", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EADDRNOTAVAIL"]
)
def test_each_limit_of_the_machine_is_the_client_s(number: str) -> None:
    error = OSError(getattr(errno, number), os.strerror(getattr(errno, number)))
    assert connection.failure(error) == f"client: {error.strerror}"
    said = Route(Url("http://127.0.0.1:8000")).unreachable(error)
    assert "127.0.0.1:8000" in said and str(limit_advice(error)) in said
    assert connection.failure(ConnectionRefusedError(111, "Connection refused")).startswith(
        "refused"
    )


# ---- kills at any moment ----

STUDY = """
repeats = 2
[engines.mine]
kind = "vllm"
model = "m"
binary = {binary!r}
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = [1, 2, 3]
requests_per_stream = 4
"""


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_study_killed_at_any_moment_loses_nothing_repeats_nothing_and_leaves_no_process(
    tmp_path: Path, spared: list[int], kills: int
) -> None:
    pids = tmp_path / "pids"
    engine = FLEES.replace("{folder!r}", repr(str(pids))).replace("< 3", "< 1")
    binary = script(
        tmp_path / "vllm",
        f"import os\nif '--version' in os.sys.argv: os._exit(1)\n{engine}{SERVES}",
    )
    study = tmp_path / "s.toml"
    study.write_text(STUDY.replace("{binary!r}", json.dumps(binary)))
    command = [sys.executable, "-m", "dyno", "run", str(study), "--no-report"]
    trials = tmp_path / "runs" / "s" / "trials"
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    kept: dict[str, int] = {}
    rounds = 0
    for _ in range(kills):
        if len(kept) >= 5:  # it must not end before the kills do
            rounds += 1
            trials = tmp_path / f"runs{rounds}" / "s" / "trials"
            kept = {}
        words = [*command, "--runs", str(trials.parent.parent)]
        with (tmp_path / "out").open("wb") as out:
            process = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=out)
        how = rng.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        # before that, Python itself may still be starting, and prints a traceback
        if how == signal.SIGINT:
            said = tmp_path / "out"
            wait_for(lambda: said.stat().st_size or process.poll() is not None)  # noqa: B023
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.5, 4.0))
        process.send_signal(how)
        process.wait(120)
        assert b"Traceback" not in (tmp_path / "out").read_bytes(), f"seed {seed}"
        wait_for(lambda: not survivors(pids) and not living_in(tmp_path))
        now = {
            path.parent.name: path.stat().st_mtime_ns
            for path in trials.glob("*/summary.json")
        }
        assert kept.items() <= now.items(), (
            f"a finished trial was lost or run again (seed {seed})"
        )
        kept = now
    spared += noted(pids)
    done = subprocess.run(
        [*command, "--runs", str(trials.parent.parent)],
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}"
    summaries = {
        path.parent.name: json.loads(path.read_text())["summary"]
        for path in trials.glob("*/summary.json")
    }
    assert len(summaries) == 6, f"seed {seed}"
    for name, summary in summaries.items():
        records = (trials / name / "records.jsonl").read_text().splitlines()
        assert len(records) == summary["completed"] == summary["planned"], f"seed {seed}"
    assert (
        kept.items()
        <= {
            p.parent.name: p.stat().st_mtime_ns for p in trials.glob("*/summary.json")
        }.items()
    )
    print(
        f"{kills} kills, seed {seed}: {len(noted(pids))} processes fled, {len(survivors(pids))} live"
    )
