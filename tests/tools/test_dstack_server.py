"""A real dstack server: it takes what dyno writes, makes plans, runs tasks and services, and is left empty.

`make test-tools`. The server is installed once, outside the project. There is no Docker here: `dstack_machine` plays
dstack's agent on a machine, and its containers are processes.
"""

import json
import os
import shutil
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
from dyno.rigs import dstack

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("dstack")]  # dstack's ports on a machine are fixed

PACKAGES = Path.home() / ".cache" / "dyno-tests" / "dstack-0.22.5"
TOKEN = "a-token-of-the-tests"


class DstackServer(NamedTuple):
    url: str
    home: Path  # its own, and of the dyno that uses it

    def ask(self, path: str, **body: Any) -> Any:
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, json.dumps(body).encode(), head)) as answer:
            return json.load(answer)

    def up(self) -> list[str]:
        """Return what may cost money now."""
        runs = self.ask("/api/runs/list", only_active=True, limit=100)
        fleets = self.ask("/api/project/main/fleets/list")
        return [run["run_spec"]["run_name"] for run in runs] + [f"fleet {fleet['name']}" for fleet in fleets]

    def environ(self) -> dict[str, str]:
        [packages] = PACKAGES.glob("lib/python3*/site-packages")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DSTACK_", "DYNO_HOME"))}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(packages), "DYNO_HOME": str(self.home / "dyno")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DstackServer]:
    if not (PACKAGES / "bin" / "dstack").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PACKAGES)], check=True)
        subprocess.run([str(PACKAGES / "bin" / "pip"), "install", "-q", "dstack[server]==0.22.5"], check=True)
    home = tmp_path_factory.mktemp("dstack")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    made = DstackServer(f"http://127.0.0.1:{port}", home)
    command = [str(PACKAGES / "bin" / "dstack"), "server", "--port", str(port), "--token", TOKEN, "--yes"]
    environ = {**os.environ, "HOME": str(home), "DO_NOT_TRACK": "1"}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, cwd=home, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while not (home / ".dstack" / "config.yml").exists():
            assert process.poll() is None and time.monotonic() < deadline, (home / "server.log").read_text()[-3000:]
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
        yield DstackSpec(host=f"{dstack_machine.USER}@127.0.0.1", port=port, key_file=str(key))


@pytest.mark.parametrize(
    "wanted",
    [
        RigWanted(accelerator="H100", accelerators=8, dstack=DstackSpec(spot=True, max_price=40.0, regions=["a"])),
        RigWanted(dstack=DstackSpec(gpu="24GB..", disk="1TB..", shm_size="16GB", backends=["aws"], cpu="32..")),
        RigWanted(dstack=DstackSpec(fleet="lab", volumes=["/data:/models"], privileged=True, memory="512GB..")),
        RigWanted(accelerator="A100", client="here", dstack=DstackSpec(max_duration="2h")),
    ],
    ids=["cloud", "sizes", "fleet", "service"],
)
def test_the_server_takes_each_configuration_and_plans_it(server: DstackServer, wanted: RigWanted) -> None:
    *fleets, run = dstack.configurations("dyno-plan", wanted)
    for fleet in fleets:
        plan = server.ask("/api/project/main/fleets/get_plan", spec={"configuration": fleet, "profile": {"name": "p"}})
        assert (plan["action"], plan["total_offers"]) == ("create", 0)
    spec = {"run_name": run["name"], "repo_id": "none", "repo_data": {"repo_type": "virtual"}, "configuration": run}
    plan = server.ask("/api/project/main/runs/get_plan", run_spec=spec)
    assert plan["action"] == "create"
    [job] = plan["job_plans"]
    assert job["total_offers"] == 0  # this server has no cloud
    assert "sleep infinity" in job["job_spec"]["commands"][-1]
    assert job["job_spec"]["max_duration"] == (7200 if wanted.client == "here" else 86400)
    assert server.up() == []
