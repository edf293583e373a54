"""A Ray cluster of several nodes on this machine: each with its raylet, and, where the system allows it, with its own
network and a monotonic clock of its own, known to be ahead."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

AHEAD_S = 1000  # each node's clock is so far ahead of the one before
# A token of its own, in no file: whatever the user's Ray is set to.
TOKEN = secrets.token_hex(32)
ENVIRONMENT = {
    **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN
}  # fmt: skip
_RAY = str(Path(sys.executable).with_name("ray"))


class RayNode(NamedTuple):
    address: str
    ahead_s: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """As if it lost power: all of it at once."""
        with suppress(psutil.NoSuchProcess):
            tree = [psutil.Process(self.process.pid)]
            tree += tree[0].children(recursive=True)
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()  # none sees another one die
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


class RayNodes(NamedTuple):
    address: str  # of the cluster
    host: str  # of this machine, as nodes see it
    nodes: list[RayNode]  # the first is the head, with the clock of this machine
    folder: Path  # its files


def namespaces_work() -> bool:
    """Whether this user may give processes a network and a clock of their own."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        return False
    done = subprocess.run(
        ["unshare", "--net", "--time", "--monotonic", "1", "--fork", "true"],
        capture_output=True,
    )
    return done.returncode == 0


@contextmanager
def ray_nodes(count: int, cpus: int = 1) -> Iterator[RayNodes]:
    own = namespaces_work()  # networks and clocks
    name, net = f"dr{os.getpid() % 100_000}", f"10.213.{os.getpid() % 250}"
    host = f"{net}.1" if own else "127.0.0.1"
    with ExitStack() as last:
        folder = Path(tempfile.mkdtemp(prefix="dyno-rt-", dir="/tmp"))
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        if own:
            _ip(f"link add {name} type bridge")
            last.callback(_ip, f"link del {name}")
            _ip(f"addr add {host}/24 dev {name}")
            _ip(f"link set {name} up")
        nodes: list[RayNode] = []
        cluster = ""
        for k in range(count):
            command = [
                _RAY,
                "start",
                "--block",
                f"--num-cpus={cpus}",
                "--object-store-memory=100000000",
            ]
            address = f"{net}.{k + 1}" if own else host
            if k == 0:
                command += [
                    "--head",
                    f"--node-ip-address={host}",
                    "--port=0",
                    "--include-dashboard=false",
                ]
                command += [f"--temp-dir={folder}"]
            else:
                command += [f"--address={cluster}", f"--node-ip-address={address}"]
                if own:
                    _ip(f"netns add {name}-{k}")
                    last.callback(_ip, f"netns del {name}-{k}")
                    _ip(f"link add {name}-{k} type veth peer name eth0 netns {name}-{k}")
                    _ip(f"link set {name}-{k} master {name} up")
                    for words in (
                        f"addr add {address}/24 dev eth0",
                        "link set eth0 up",
                        "link set lo up",
                    ):
                        _ip(f"-n {name}-{k} {words}")
                    clock = [
                        "unshare",
                        "--time",
                        "--monotonic",
                        str(k * AHEAD_S),
                        "--boottime",
                        str(k * AHEAD_S),
                    ]
                    command = [
                        "ip",
                        "netns",
                        "exec",
                        f"{name}-{k}",
                        *clock,
                        "--fork",
                        "--",
                        *command,
                    ]
            log = folder / f"node-{k}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env=ENVIRONMENT,
                    cwd=folder,
                )
            nodes.append(RayNode(address, k * AHEAD_S * own, process))
            last.callback(nodes[-1].kill)
            _await_started(log, process)
            if k == 0:
                cluster = (folder / "ray_current_cluster").read_text().strip()
        yield RayNodes(cluster, host, nodes, folder)


def _await_started(log: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while "Ray runtime started" not in (text := log.read_text(errors="replace")):
        assert process.poll() is None and time.monotonic() < until, (
            f"a Ray node didn't start: {text[-2000:]}"
        )
        time.sleep(0.1)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)
