"""Real Ray clusters: three nodes with networks and clocks of their own, where this system allows it."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.record import ClientFacts, Record
from dyno.store.run import Run
from dyno.units import NS_PER_MS, NS_PER_S
from ray_nodes import ENVIRONMENT, TOKEN, RayNodes, ray_nodes

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"
    ),
]
KEY = "sk-a-very-secret-key"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes(3) as nodes:
        yield nodes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fake]:
    with Fake.start(
        FakeSpec(first_ms=50, gap_ms=10, host="0.0.0.0"), tmp_path / "fake.log"
    ) as fake:
        yield fake


def start(
    folder: Path, base_url: str, *words: str, own: bool = False
) -> subprocess.Popen[str]:
    """`own`: dyno starts the cluster, and so has no token of another one."""
    environment = os.environ if own else ENVIRONMENT
    command = [
        sys.executable,
        "-P",
        "-m",
        "dyno",
        "bench",
        "serve",
        "--backend",
        "openai",
        "--base-url",
        base_url,
    ]
    command += [
        "--model",
        "fake",
        "--dataset-name",
        "random",
        "--random-input-len",
        "8",
        "--random-output-len",
        "50",
    ]
    command += [
        "--runs",
        str(folder / "runs"),
        "--no-correctness-check",
        "--on",
        "ray",
        *words,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "OPENAI_API_KEY": KEY},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def result(folder: Path) -> tuple[Run, ClientFacts, list[Record]]:
    (path,) = (folder / "runs").iterdir()
    run = Run(path)
    client = run.client()
    assert client
    return run, client, list(run.records())


def test_three_nodes_measure_what_the_server_logged(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    url = server.base_url.replace("127.0.0.1", cluster.host)
    server.log()
    load = (
        "--num-prompts",
        "90",
        "--max-concurrency",
        "30",
        "--procs",
        "3",
        "--ray-address",
        cluster.address,
    )
    code, _, err = ended(start(tmp_path, url, *load))
    assert code == 0, err
    run, client, records = result(tmp_path)
    assert sorted(r.index for r in records) == list(range(90)) and not any(
        r.error for r in records
    )

    ahead_s = {node.address: node.ahead_s for node in cluster.nodes}
    for process in client.processes:
        assert process.clock and process.clock.after
        for reading in (process.clock.before, process.clock.after):
            off = abs(reading.ahead_ns - ahead_s[process.node] * NS_PER_S)
            assert off <= reading.uncertainty_ns + 1000, (
                "the true offset is within the uncertainty"
            )
    if len(ahead_s) > 1:
        assert sorted(p.node for p in client.processes) == sorted(ahead_s), (
            "one on each node"
        )

    # without dyno's test request
    log = [stream for stream in server.log()["streams"] if len(stream) > 25]
    sent = np.sort(np.concatenate([stream[1:] for stream in log]))
    arrived = np.sort(np.concatenate([r.chunk_ns for r in records])) + client.start_ns
    assert len(sent) == len(arrived)
    assert float(np.median(np.abs(arrived - sent))) < NS_PER_MS, (
        "all nodes are on one clock, the server's own"
    )
    ttft = np.mean([r.chunk_ns[0] - r.sent_ns for r in records])
    actual = np.mean([stream[1] - stream[0] for stream in log])
    assert abs(ttft - actual) < NS_PER_MS / 2
    itl = np.mean(np.concatenate([np.diff(r.chunk_ns) for r in records]))
    assert (
        abs(itl - np.mean(np.concatenate([np.diff(stream[1:]) for stream in log])))
        < NS_PER_MS / 10
    )
    hits = [
        path
        for path in (*cluster.folder.rglob("*"), *run.path.rglob("*"))
        if path.is_file()
    ]
    assert hits and not [path for path in hits if KEY.encode() in path.read_bytes()], (
        "no file has the key"
    )
    assert not [
        path
        for path in run.path.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]


def test_more_processes_than_the_cluster_has_room_for_are_refused(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    url = server.base_url.replace("127.0.0.1", cluster.host)
    load = ("--num-prompts", "8", "--procs", "4", "--ray-address", cluster.address)
    code, _, err = ended(start(tmp_path, url, *load))
    assert code == 1 and "3 free CPUs" in err and "Traceback" not in err


def test_a_cluster_that_wants_a_token_says_so(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    load = ("--num-prompts", "8", "--procs", "2", "--ray-address", cluster.address)
    code, _, err = ended(start(tmp_path, server.base_url, *load, own=True))
    assert (
        code == 1
        and f"No Ray cluster at {cluster.address}" in err
        and "oken" in err
        and "Traceback" not in err
    )


def test_a_server_on_loopback_is_refused_where_nodes_are_elsewhere(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    if not cluster.nodes[1].ahead_s:
        pytest.skip("needs network namespaces (root and iproute2)")
    load = ("--num-prompts", "8", "--procs", "3", "--ray-address", cluster.address)
    code, _, err = ended(start(tmp_path, server.base_url, *load))
    assert code == 2 and "an address that all nodes can reach" in err.replace("\n", " ")


def test_dyno_that_is_killed_leaves_nothing_running_on_the_nodes(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    url = server.base_url.replace("127.0.0.1", cluster.host)
    load = (
        "--num-prompts",
        "3000",
        "--max-concurrency",
        "30",
        "--procs",
        "3",
        "--ray-address",
        cluster.address,
    )
    process = start(tmp_path, url, *load)
    path = _spools_have_grown(tmp_path / "runs", process)
    assert len(_slices()) == 3
    process.kill()
    process.communicate()
    until = time.monotonic() + 60
    while _slices() and time.monotonic() < until:
        time.sleep(0.2)
    assert not _slices()
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "dyno", "runs", "show", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0 and "Successful requests" in shown.stdout, (
        "what they had sent here is kept"
    )


def _slices() -> list[int]:
    """Processes of the load on this cluster's nodes."""
    ours = []
    for process in psutil.process_iter(["cmdline"]):
        if "dyno.load.process" in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                ours += (
                    [process.pid]
                    if process.environ().get("RAY_AUTH_TOKEN") == TOKEN
                    else []
                )
    return ours


def test_a_node_that_dies_loses_only_its_open_requests(
    cluster: RayNodes, server: Fake, tmp_path: Path
) -> None:
    """The last test with this cluster: one of its nodes is gone then."""
    url = server.base_url.replace("127.0.0.1", cluster.host)
    load = (
        "--num-prompts",
        "360",
        "--max-concurrency",
        "30",
        "--procs",
        "3",
        "--ray-address",
        cluster.address,
    )
    process = start(tmp_path, url, *load)
    path = _spools_have_grown(tmp_path / "runs", process)
    cluster.nodes[2].kill()
    code, out, err = ended(process)
    assert code == 0, err
    _, client, records = result(tmp_path)
    (lost,) = (k for k, p in enumerate(client.processes) if p.outcome == "lost")
    own = [r for r in records if r.index % 3 == lost]
    others = [r for r in records if r.index % 3 != lost]
    assert len(others) == 240 and not any(r.error for r in others), "the others complete"
    done = [r for r in own if r.error is None]
    assert done and {r.error for r in own} == {None, "lost"} and len(own) < 120
    assert len(own) - len(done) <= 10, "its open requests, and no more"
    assert "client.process_lost" in out and client.processes[lost].node in out
    assert path.exists()


def _spools_have_grown(runs: Path, process: subprocess.Popen[str]) -> Path:
    """Wait until each node has finished some requests; return a spool's folder."""
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        spools = list(runs.glob("*/exchanges*.spool"))
        if len(spools) == 3 and all(spool.stat().st_size > 300_000 for spool in spools):
            return spools[0].parent
        time.sleep(0.1)
    raise AssertionError(
        f"no load within 90 s: {process.communicate(timeout=5) if process.poll() else ''}"
    )


def test_a_cluster_started_here_is_stopped_again(server: Fake, tmp_path: Path) -> None:
    left = [*Path("/tmp").glob("dyno-ray-*"), *Path.home().glob(".ray/*")]
    code, out, err = ended(
        start(tmp_path, server.base_url, "--num-prompts", "20", "--procs", "2", own=True)
    )
    assert code == 0, err
    _, client, records = result(tmp_path)
    assert [p.sent for p in client.processes] == [10, 10] and not any(
        r.error for r in records
    )
    assert "Serving Benchmark Result" in out.splitlines()[0], "Ray prints nothing between"
    assert [*Path("/tmp").glob("dyno-ray-*"), *Path.home().glob(".ray/*")] == left, (
        "nor does it leave a file"
    )
