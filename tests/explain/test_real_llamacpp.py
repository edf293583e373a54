"""A real llama.cpp, explained: its queue and prefill against its own log, its bound against its own times."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from dyno.cli.main import main
from dyno.explain.bounds import hardware_bound
from dyno.explain.stalls import disturbance
from dyno.store.explained import explained
from dyno.store.run import Run

pytestmark = [pytest.mark.real, pytest.mark.engines]

REQUESTS, OUTPUT = 30, 32
# Two lines that the server logs for each request.
TIMES = re.compile(
    r"prompt eval time = +([\d.]+) ms / +\d+ tokens.*\n.*eval time = +([\d.]+) ms / +(\d+) tokens"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Six requests at a time on two slots."""
    folder = tmp_path_factory.mktemp("runs")
    words = f"bench serve --engine llamacpp --engine-args=-np&2 --max-concurrency 6 --num-prompts {REQUESTS}"
    words += f" --random-input-len 64 --random-output-len {OUTPUT} --disable-tqdm --runs {folder}"
    assert main([word.replace("&", " ") for word in words.split()]) in (0, 1)
    yield from (Run(path.parent) for path in folder.glob("*/summary.json"))


def logged(run: Run) -> list[tuple[float, float]]:
    """Prefill and decode (ms) of each request of the load, by the server's log."""
    found = TIMES.findall((run.path / "engine.log").read_text(errors="replace"))
    mine = [(float(p), float(d)) for p, d, n in found if int(n) == OUTPUT]
    assert len(mine) == REQUESTS
    return mine


def test_queue_and_prefill_are_those_of_the_server_s_log(run: Run) -> None:
    e = explained(run).explanation
    assert sum(p.total_ns for p in e.parts) == e.latency_ns
    times = logged(run)
    prefill = sum(
        p.total_ns
        for p in e.parts
        if {*p.covers} <= {"prefill_bound", "prefill_above"} and p.covers
    )
    assert prefill / 1e6 == pytest.approx(sum(p for p, _ in times), rel=0.01)
    (queue,) = [p for p in e.parts if "queue" in p.covers]
    before = sum(p.total_ns for p in e.parts if {*p.covers} & {"client_wait", "connection"})
    outside_ms = (e.latency_ns - before) / 1e6 - sum(p + d for p, d in times)
    assert queue.total_ns / 1e6 == pytest.approx(outside_ms, abs=0.05 * e.latency_ns / 1e6)
    assert queue.share > 0.3
    assert abs(e.rest.share) < 0.05


def test_no_request_is_faster_than_the_bound(run: Run) -> None:
    manifest = run.manifest()
    bound = hardware_bound(
        manifest.model,
        manifest.trial.engine,
        manifest.target,
        manifest.peaks,
        run.result().telemetry,
    )
    assert bound is not None
    c = explained(run).columns
    prefill, decode = bound.prefill_ns(c), bound.decode_ns(c, disturbance(c).streams)
    assert decode is not None
    assert np.all(prefill > 0) and np.all(decode > 0)
    assert np.all(prefill <= c.prefill)
    assert np.all(decode <= c.decode)
