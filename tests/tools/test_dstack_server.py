"""A real dstack server: it takes what dyno writes, makes plans, runs tasks and services, and is left empty.

`make test-tools`. The server is installed once, outside the project. There is no Docker here: `dstack_machine` plays
dstack's agent on a machine, and its containers are processes.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dstack_machine
from dyno.facts.elsewhere import DstackSpec
from dyno.facts.study import RigWanted
from dyno.remote import dstack

# dstack's ports on a machine are fixed
pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("dstack")]

PACKAGES = Path.home() / ".cache" / "dyno-tests" / "dstack-0.22.5"
TOKEN = "a-token-of-the-tests"


class DstackServer(NamedTuple):
    url: str
    home: Path  # its own, and of the dyno that uses it

    def ask(self, path: str, **body: Any) -> Any:
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, json.dumps(body).encode(), head)
        ) as answer:
            return json.loads(answer.read() or b"null")

    def up(self) -> list[str]:
        """Return what may cost money now."""
        runs = self.ask("/api/runs/list", only_active=True, limit=100)
        fleets = self.ask("/api/project/main/fleets/list")
        return [run["run_spec"]["run_name"] for run in runs] + [
            f"fleet {fleet['name']}" for fleet in fleets
        ]

    def environ(self) -> dict[str, str]:
        [packages] = PACKAGES.glob("lib/python3*/site-packages")
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("DSTACK_", "DYNO_HOME"))
        }
        return {
            **kept,
            "HOME": str(self.home),
            "PYTHONPATH": str(packages),
            "DYNO_HOME": str(self.home / "dyno"),
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DstackServer]:
    if not (PACKAGES / "bin" / "dstack").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PACKAGES)], check=True)
        subprocess.run(
            [str(PACKAGES / "bin" / "pip"), "install", "-q", "dstack[server]==0.22.5"],
            check=True,
        )
    home = tmp_path_factory.mktemp("dstack")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    made = DstackServer(f"http://127.0.0.1:{port}", home)
    command = [
        str(PACKAGES / "bin" / "dstack"),
        "server",
        "--port",
        str(port),
        "--token",
        TOKEN,
        "--yes",
    ]
    environ = {**os.environ, "HOME": str(home), "DO_NOT_TRACK": "1"}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ, cwd=home, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while not (home / ".dstack" / "config.yml").exists():
            assert process.poll() is None and time.monotonic() < deadline, (
                home / "server.log"
            ).read_text()[-3000:]
            time.sleep(0.2)
        while time.monotonic() < deadline:
            with suppress(OSError):
                made.ask("/api/users/get_my_user")
                break
            time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DstackSpec]:
    """A machine that is this one."""
    if dstack_machine.SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd here (Debian: apt-get install openssh-server)")
    with dstack_machine.machine(tmp_path / "machine") as (port, key):
        yield DstackSpec(
            host=f"{dstack_machine.USER}@127.0.0.1", port=port, key_file=str(key)
        )


@pytest.mark.parametrize(
    "wanted",
    [
        RigWanted(
            accelerator="H100",
            accelerators=8,
            dstack=DstackSpec(spot=True, max_price=40.0, regions=["a"]),
        ),
        RigWanted(
            dstack=DstackSpec(
                gpu="24GB..", disk="1TB..", shm_size="16GB", backends=["aws"], cpu="32.."
            )
        ),
        RigWanted(
            dstack=DstackSpec(
                fleet="lab", volumes=["/data:/models"], privileged=True, memory="512GB.."
            )
        ),
        RigWanted(accelerator="A100", client="here", dstack=DstackSpec(max_duration="2h")),
    ],
    ids=["cloud", "sizes", "fleet", "service"],
)
def test_the_server_takes_each_configuration_and_plans_it(
    server: DstackServer, wanted: RigWanted
) -> None:
    *fleets, run = dstack.configurations("dyno-plan", wanted)
    for fleet in fleets:
        plan = server.ask(
            "/api/project/main/fleets/get_plan",
            spec={"configuration": fleet, "profile": {"name": "p"}},
        )
        assert (plan["action"], plan["total_offers"]) == ("create", 0)
    spec = {
        "run_name": run["name"],
        "repo_id": "none",
        "repo_data": {"repo_type": "virtual"},
        "configuration": run,
    }
    plan = server.ask("/api/project/main/runs/get_plan", run_spec=spec)
    assert plan["action"] == "create"
    [job] = plan["job_plans"]
    assert job["total_offers"] == 0  # this server has no cloud
    assert "sleep infinity" in job["job_spec"]["commands"][-1]
    assert job["job_spec"]["max_duration"] == (7200 if wanted.client == "here" else 86400)
    assert server.up() == []


STUDY = """
[rigs.rented]
client = "{client}"
dstack = {{ {spec} }}
[engines.e]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.w]
input_len = 16
output_len = {tokens}
num_prompts = 20
[loads.l]
max_concurrency = [1, 2]
"""


class DynoHere(NamedTuple):
    """dyno on this machine, with a study on one of dstack's."""

    server: DstackServer
    folder: Path

    def write(
        self, spec: DstackSpec, tokens: int = 3, client: str = "rig", more: str = ""
    ) -> None:
        given = (
            f'host = "{spec.host}", port = {spec.port}, key_file = "{spec.key_file}"'
            if spec.host
            else ""
        )
        (self.folder / "s.toml").write_text(
            STUDY.format(spec=given, tokens=tokens, client=client) + more
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "dyno", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.server.environ(), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        with self.start(*words) as process:
            out, _ = process.communicate(timeout=400)
        return process.returncode, out

    def wait_for_run(self, process: "subprocess.Popen[str]") -> str:
        """Return the name of the run that it submits."""
        while not (
            names := [name for name in self.server.up() if not name.startswith("fleet")]
        ):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.2)
        return names[0]

    def newest(self) -> str:
        return str(self.server.ask("/api/runs/list", limit=1)[0]["run_spec"]["run_name"])

    def registered(self) -> list[str]:
        return sorted(
            path.name
            for path in (self.server.home / "dyno" / "rigs").glob("*")
            if path.is_file()
        )

    def done(self) -> int:
        return len(list(self.folder.glob("runs/s/trials/*/summary.json")))


@pytest.fixture
def dyno(server: DstackServer, tmp_path: Path) -> DynoHere:
    assert server.up() == []
    return DynoHere(server, tmp_path)


def test_a_study_runs_on_a_machine_of_dstacks_and_nothing_is_left(
    dyno: DynoHere, rig: DstackSpec
) -> None:
    dyno.write(rig)
    code, out = dyno.run("run", "s.toml", "--no-report")
    assert code == 0, out
    assert dyno.done() == 2
    assert "dstack has 1 offer for this task" in out
    assert (dyno.server.up(), dyno.registered()) == ([], [])
    private = Path(str(rig.key_file)).read_text().splitlines()[1]
    assert private not in out
    assert not any(
        private.encode() in p.read_bytes()
        for p in dyno.folder.glob("runs/**/*")
        if p.is_file()
    )


def test_without_offers_nothing_is_submitted(dyno: DynoHere) -> None:
    dyno.write(
        DstackSpec(), more='[rigs.rented.price]\naccelerator_hour = 1\nsource = "x"\n'
    )
    text = (dyno.folder / "s.toml").read_text()
    (dyno.folder / "s.toml").write_text(
        text.replace("[rigs.rented]", '[rigs.rented]\naccelerator = "H100"', 1)
    )
    code, out = dyno.run("run", "s.toml", "--no-report")
    assert code == 1, out
    assert 'dstack has no offers for this fleet: {"resources":{"gpu":"H100"}' in out
    assert (dyno.server.up(), dyno.registered()) == ([], [])


def test_without_a_server_the_sentence_says_which_settings_are_missing(
    dyno: DynoHere,
) -> None:
    dyno.write(DstackSpec())
    nowhere = DynoHere(dyno.server._replace(home=dyno.folder), dyno.folder)
    code, out = nowhere.run("run", "s.toml", "--no-report")
    assert code == 1, out
    assert (
        "dstack is not configured here: No default project" in out and "DSTACK_TOKEN" in out
    )
    assert nowhere.registered() == []


def test_a_killed_submission_is_listed_and_taken_down(
    dyno: DynoHere, rig: DstackSpec
) -> None:
    dyno.write(rig)
    process = dyno.start("run", "s.toml", "--no-report")
    name = dyno.wait_for_run(process)
    process.kill()
    process.communicate()
    code, out = dyno.run("rigs")
    assert code == 0 and name in out and "rented" in out, out
    assert dyno.server.up() == [name, f"fleet {name}"]
    code, out = dyno.run("rigs", "down")
    assert code == 0, out
    assert (dyno.server.up(), dyno.registered()) == ([], [])
    assert "Nothing runs on other machines." in dyno.run("rigs")[1]


def test_a_killed_submission_is_continued(dyno: DynoHere, rig: DstackSpec) -> None:
    dyno.write(rig)
    process = dyno.start("run", "s.toml", "--no-report")
    name = dyno.wait_for_run(process)
    process.kill()
    process.communicate()
    code, out = dyno.run("run", "s.toml", "--no-report")
    assert code == 0, out
    assert (dyno.done(), dyno.newest()) == (2, name)
    assert (dyno.server.up(), dyno.registered()) == ([], [])


def test_ctrl_c_gives_the_machine_back(dyno: DynoHere, rig: DstackSpec) -> None:
    dyno.write(rig)
    process = dyno.start("run", "s.toml", "--no-report")
    dyno.wait_for_run(process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 130, out
    assert (dyno.server.up(), dyno.registered()) == ([], [])


def test_a_killed_dyno_continues_with_the_same_machine(
    dyno: DynoHere, rig: DstackSpec
) -> None:
    dyno.write(rig, tokens=300)
    process = dyno.start("run", "s.toml", "--no-report")
    name = dyno.wait_for_run(process)
    while not dyno.done():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    process.kill()
    process.communicate()
    code, out = dyno.run("run", "s.toml", "--no-report")
    assert code == 0, out
    assert dyno.done() == 2
    assert dyno.newest() == name
    assert (dyno.server.up(), dyno.registered()) == ([], [])


def test_a_machine_that_dstack_takes_away_is_an_error_and_leaves_nothing(
    dyno: DynoHere, rig: DstackSpec
) -> None:
    dyno.write(rig, tokens=3000)
    process = dyno.start("run", "s.toml", "--no-report")
    assert process.stdout is not None
    name = dyno.wait_for_run(process)
    said = ""
    while "Ready" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    dyno.server.ask("/api/project/main/runs/stop", runs_names=[name], abort=True)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 1, out
    assert f"dstack ended {name}: " in out
    assert (dyno.server.up(), dyno.registered()) == ([], [])


def test_a_load_from_here_goes_through_the_service(dyno: DynoHere, rig: DstackSpec) -> None:
    dyno.write(rig, client="here")
    code, out = dyno.run("run", "s.toml", "--no-report")
    assert code == 0, out
    assert "dstack has 1 offer for this service" in out
    folders = list(dyno.folder.glob("runs/s/trials/*"))
    targets = [
        json.loads((path / "trial.json").read_text())["trial"]["target"]["base_url"]
        for path in folders
    ]
    assert len(targets) == dyno.done() == 2
    assert all(
        url.startswith(f"{dyno.server.url}/proxy/services/main/dyno-rented-")
        for url in targets
    )
    assert "The network is in the latencies" in dyno.run("runs", "show", str(folders[0]))[1]
    assert not any(
        TOKEN.encode() in p.read_bytes()
        for p in dyno.folder.glob("runs/**/*")
        if p.is_file()
    )
    assert TOKEN not in out
    assert (dyno.server.up(), dyno.registered()) == ([], [])
