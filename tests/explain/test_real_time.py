"""The whole way: a scheduler in real time behind a socket, dyno's client, records, and `dyno explain`."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dyno.cli.main import main
from dyno.engines.port import free_port
from dyno.store.run import Run

# Real engines would take time from the server.
pytestmark = [pytest.mark.real, pytest.mark.engines, pytest.mark.alone]

WITHIN, WIDEST = 0.1, 0.15  # the machine is busy with other things, too
CLAIMS = ["queue_time_ms", "time_to_first_token_ms", "generation_time_ms"]
# Slow steps: what the machine adds to them is small beside them.
RULES = {"step_ms": 40.0, "token_ms": 0.5, "stream_ms": 0.5, "noise": 0.01}


@contextlib.contextmanager
def serving(rules: dict[str, Any], claims: list[str]) -> Iterator[int]:
    port = free_port()
    program = Path(__file__).with_name("scheduled_server.py")
    command = [
        sys.executable,
        str(program),
        str(port),
        json.dumps(rules),
        json.dumps(claims),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            yield port
        finally:
            server.terminate()


def measured(port: int, folder: Path, concurrency: int, prompts: int) -> Run:
    words = f"bench serve --port {port} --max-concurrency {concurrency} --num-prompts {prompts} --random-input-len 100"
    words += " --random-range-ratio 0.5 --random-output-len 12 --disable-tqdm"
    assert main([*words.split(), "--runs", str(folder)]) == 0
    (run,) = [Run(path) for path in folder.iterdir() if (path / "trial.json").exists()]
    return run


def truth(port: int) -> dict[str, dict[str, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/truth") as answer:
        times: dict[str, dict[str, float]] = json.load(answer)
    return times


def times_of(run: Run, server: dict[str, dict[str, float]]) -> dict[str, float]:
    """The true time (ms) of each atom, over all requests. What the client measures exactly is by its records."""
    client = run.client()
    assert client is not None
    prompts = [request.prompt for request in run.requests()]
    out = dict.fromkeys(("client_wait", "connection", "front_end", "queue", "prefill_above", "decode_above",
                         "stall", "preemption", "first_delivery", "later_delivery"), 0.0)  # fmt: skip
    for r in run.records():
        t = server[str(prompts[r.index])]
        sent, first, last = (
            (client.start_ns + ns) / 1e6
            for ns in (r.sent_ns, r.chunk_ns[0], r.chunk_ns[-1])
        )
        out["client_wait"] += (r.sent_ns - r.due_ns - r.connecting_ns) / 1e6
        out["connection"] += r.connecting_ns / 1e6
        out["front_end"] += t["arrived"] - sent
        out["queue"] += t["queue"]
        out["prefill_above"] += t["prefill"]
        out["first_delivery"] += first - t["first"]
        out["decode_above"] += t["decode"]
        out["stall"] += t["stall"]
        out["preemption"] += t["preemption"]
        out["later_delivery"] += (last - t["last"]) - (first - t["first"])
    return out


@pytest.mark.parametrize(
    ("rules", "claims", "concurrency"),
    [
        ({}, [], 6),
        ({"slots": 4}, CLAIMS, 10),
        ({"chunk": 64, "slots": 4}, [], 8),
        ({"kv_tokens": 700, "prefills_at_once": 4}, CLAIMS, 10),
    ],
    ids=[
        "no word of the server",
        "a queue, by its word",
        "chunks in an overload",
        "preemption, by its word",
    ],
)
def test_what_explain_prints_is_what_the_server_did(
    rules: dict[str, Any],
    claims: list[str],
    concurrency: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving({**RULES, **rules}, claims) as port:
        run = measured(port, tmp_path / "runs", concurrency, 5 * concurrency)
        true = times_of(run, truth(port))
    capsys.readouterr()
    assert main(["explain", str(run.path), "--json"]) == 0
    (e,) = json.loads(capsys.readouterr().out)["runs"]
    latency_ms = e["latency_ns"] / 1e6
    assert sum(p["total_ns"] for p in e["parts"]) == e["latency_ns"]
    *parts, rest = e["parts"]
    assert abs(rest["share"]) < WITHIN
    for part in parts:
        actual = sum(true.get(atom, 0.0) for atom in part["covers"])
        value, low, high = (part[f"{name}_ns"] / 1e6 for name in ("total", "low", "high"))
        near = abs(value - actual) <= max(WITHIN * actual, 0.01 * latency_ms)
        inside = high - low <= WIDEST * latency_ms and low <= actual <= high
        assert near or inside, (
            f"{part['title']}: {value:.0f} ({low:.0f} to {high:.0f}), actual {actual:.0f} ms"
        )
    if claims:
        assert {"queue", "claimed"} <= {
            p for part in parts for p in (*part["covers"], *part["sources"])
        }
