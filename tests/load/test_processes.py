"""A load shared by several processes: who sends what, and that the merged records are as those of one client."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from conftest import StartFake
from dyno.errors import TargetError
from dyno.facts.client import ClientSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load import slices
from dyno.load.plan import Plan
from dyno.load.progress import Progress, Stop
from dyno.load.spool import END, frames
from dyno.probe import peaks, rig
from dyno.store.run import Run, create
from dyno.trial import processes
from dyno.trial.online import Outcome, finish, measure
from dyno.trial.prepare import Prepared, Prompts
from dyno.trial.session import Session, Watcher
from dyno.units import NS_PER_S
from dyno.workload.request import Request
from dyno.workload.spec import Workload, WorkloadSpec
from test_wire import refused_port

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

TWO = ClientSpec(procs=2)


def outcome(
    folder: Path,
    base_url: str,
    count: int,
    load: LoadSpec,
    output_tokens: int = 4,
    warmups: int = 0,
    watch: Callable[[Progress], None] | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """A trial of `count` requests, each with a prompt of its own length."""
    trial = TrialSpec(
        target=TargetSpec(base_url, "openai", "/v1/completions", "fake"),
        workload=WorkloadSpec("random", num_prompts=count),
        load=load,
        ignore_eos=True,
        correctness_check=False,
        client=TWO,
    )
    wanted = [Request("a " * (i + 1), i + 1, output_tokens) for i in range(count)]
    work = Workload(trial.workload, wanted, wanted[:warmups], "fake", "server", "")
    watcher = Watcher()
    if watch is not None:
        watcher.progress = watch  # type: ignore[method-assign]
    session = Session(TargetFacts(model="fake"), {}, watcher, stop or Stop())
    run = create(folder, "processes")
    measure(run, session, Prepared(trial, Prompts(work)))
    return finish(run, keep_raw=True, keys_known=True)


# ---- slices ----


@pytest.mark.parametrize(("count", "n"), [(10, 3), (3, 3), (7, 2), (1000, 7)])
def test_slices_hold_each_request_once(count: int, n: int) -> None:
    plan = Plan(
        count, list(range(0, 10 * count, 10)), in_flight_max=n + 1, stop_sending_ns=99
    )
    each = [slices.share(plan, k, n) for k in range(n)]
    assert sum(p.count for p in each) == count
    assert sum(p.in_flight_max or 0 for p in each) == n + 1 and each[0].in_flight_max == 2
    assert {p.stop_sending_ns for p in each} == {99}
    for k, p in enumerate(each):
        assert p.due_ns == [(plan.due_ns or [])[j * n + k] for j in range(p.count)]


@pytest.mark.parametrize(
    ("prompts", "n", "count"),
    [(6, 4, 30), (5, 3, 100), (4, 2, 4), (1, 3, 9), (12, 8, 2**31)],
)
def test_prompts_come_round_as_from_one_client(prompts: int, n: int, count: int) -> None:
    for k in range(n):
        share = slices.share(Plan(count, None, n), k, n).count
        own = slices.of_slice(range(prompts), k, n, share)
        for j in range(min(share, 3 * prompts)):
            assert own[j % len(own)] == (j * n + k) % prompts


def test_no_process_is_without_a_slot_or_a_request() -> None:
    assert processes.needed(ClientSpec(8), Plan(100, None, 3), 10) == 3
    assert processes.needed(ClientSpec(8), Plan(2, None, None), 10) == 2
    assert processes.needed(ClientSpec(8), Plan(100, [0] * 100, None), 10) == 8


@pytest.mark.parametrize(
    ("plan", "tokens", "wanted"),
    [
        (Plan(1000, None, 64), 128, 1),
        (Plan(10_000, None, 1024), 128, 3),  # 102,400 chunks/s by streams of a fast engine
        (Plan(10_000, None, 10_000), 128, 15),  # one of 16 cores stays free
        (Plan(2**31, None, 512), 128, 2),  # goes round its prompts until time is up
        # 100 requests/s of 1,000 tokens
        (Plan(1000, [i * NS_PER_S // 100 for i in range(1, 1001)], None), 1000, 3),
        (Plan(1000, [i * NS_PER_S // 100 for i in range(1, 1001)], None), 10, 1),
        # a cap bounds it, too
        (Plan(1000, [i * NS_PER_S // 100 for i in range(1, 1001)], 64), 1000, 1),
    ],
)
def test_auto_is_by_what_the_doctor_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan, tokens: float, wanted: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = msgspec.structs.replace(rig.read_machine(), cores=16)
    monkeypatch.setattr(rig, "read_machine", lambda: machine)
    peaks.keep_client(machine, peaks.TestedClient(512, 40_000.0))
    assert processes.needed(ClientSpec("auto"), plan, tokens) == wanted
    (tmp_path / "dyno/peaks.json").unlink()  # the doctor never ran here
    assert processes.needed(ClientSpec("auto"), Plan(1000, None, 500), 1) == 2


# ---- a load ----


@pytest.mark.parametrize(
    ("load", "warmups"),
    [(LoadSpec(max_concurrency=4), 3), (LoadSpec(request_rate_rps=200, seed=3), 0)],
    ids=["closed", "rate"],
)
def test_two_processes_are_as_one_client(
    fake: StartFake, tmp_path: Path, load: LoadSpec, warmups: int
) -> None:
    server = fake(first_ms=5, gap_ms=1)
    done = outcome(tmp_path, server.base_url, 21, load, warmups=warmups)
    records = sorted(done.run.records(), key=lambda r: r.index)
    assert [r.index for r in records] == list(range(21))
    # The prompt of each request is its own, by its length, and so is the server's count of it.
    assert [(r.prompt_tokens_planned, r.prompt_tokens) for r in records] == [
        (i + 1, i + 1) for i in range(21)
    ]
    s, client = done.result.served, done.run.client()
    assert (s.planned, s.sent, s.completed, s.failed, s.outcome) == (
        21,
        21,
        21,
        0,
        "complete",
    )
    assert (
        client
        and [p.sent for p in client.processes] == [11, 10]
        and client.reads == sum(r.reads for r in records)
    )
    assert len({p.start_ns for p in client.processes}) == 1, "they agreed on an instant"
    log = server.log()["streams"]
    assert len(log) == 21 + warmups, "warm-ups came from both, too"
    assert not [*tmp_path.rglob("warmup*")]
    # One zero for all: chunks arrive when the server sends them, the warm-ups' before it.
    sent = sorted(t for stream in log for t in stream[1:] if stream[0] > client.start_ns)
    arrived = sorted(t + client.start_ns for r in records for t in r.chunk_ns)
    off_ms = sorted(abs(a - b) / 1e6 for a, b in zip(arrived, sent, strict=True))
    assert off_ms[len(off_ms) // 2] < 1.0
    assert done.manifest.processes == 2 and len(done.run.spools()) == 2


def test_a_duration_ends_all_processes(fake: StartFake, tmp_path: Path) -> None:
    server = fake(first_ms=5, gap_ms=1)
    done = outcome(
        tmp_path, server.base_url, 7, LoadSpec(max_concurrency=2, duration_s=0.3)
    )
    s = done.result.served
    assert s.outcome == "complete" and s.planned == s.sent == s.completed > 7, (
        "prompts come round again"
    )
    assert {r.prompt_tokens_planned for r in done.run.records()} == {1, 2, 3, 4, 5, 6, 7}
    assert all(r.prompt_tokens == r.prompt_tokens_planned for r in done.run.records())


def test_a_stop_reaches_every_process_and_keeps_what_was_measured(
    fake: StartFake, tmp_path: Path
) -> None:
    stop = Stop()

    def watch(progress: Progress) -> None:
        if progress.ended >= 4:
            stop.request()

    load = LoadSpec(max_concurrency=2, duration_s=600)
    done = outcome(
        tmp_path, fake(first_ms=5, gap_ms=1).base_url, 4, load, watch=watch, stop=stop
    )
    client = done.run.client()
    assert client and {p.outcome for p in client.processes} == {"interrupted"}
    assert done.result.served.outcome == "interrupted" and done.result.served.completed >= 4


@pytest.fixture
def half_killed(
    fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    """A load by two processes, of which the second is killed."""
    started: list[int] = []
    original = processes.SliceProcess.__init__

    def start(self: Any, name: str) -> None:
        original(self, name)
        started.append(self._child._process.pid)

    def watch(_: Progress) -> None:
        path = next(tmp_path.rglob("exchanges-1.spool"))
        if len(started) == 2 and sum(kind == END for _, kind, *_ in frames(path)) >= 2:
            os.kill(started.pop(), signal.SIGKILL)

    monkeypatch.setattr(processes.SliceProcess, "__init__", start)
    return outcome(
        tmp_path,
        fake(first_ms=100, gap_ms=1).base_url,
        40,
        LoadSpec(max_concurrency=4),
        watch=watch,
    )


def test_a_process_that_dies_loses_only_its_open_requests(half_killed: Outcome) -> None:
    done = half_killed
    client, s = done.run.client(), done.result.served
    assert client and [p.outcome for p in client.processes] == ["complete", "lost"]
    ended = {k: [r for r in done.run.records() if r.index % 2 == k] for k in (0, 1)}
    assert len(ended[0]) == 20 and all(r.error is None for r in ended[0])
    assert sum(r.error is None for r in ended[1]) >= 2 and {r.error for r in ended[1]} == {
        None,
        "lost",
    }
    assert (
        s.completed + s.failed == s.sent == len(ended[0]) + len(ended[1]) < s.planned == 40
    )


def test_requests_that_a_killed_client_process_loses_are_not_blamed_on_the_server(
    half_killed: Outcome,
) -> None:
    s, findings = (
        half_killed.result.served,
        {f.code: f for f in half_killed.result.findings},
    )
    assert "requests.failed" not in findings and "requests.none_completed" not in findings
    lost = findings["client.process_lost"]
    assert lost.level == "doubt" and "the client's fault, not the server's" in lost.text
    assert (
        f"{s.failures['lost']} open requests were lost" in lost.text
        and "server" not in (lost.advice or "")
    )


def test_a_server_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="Nothing listens at"):
        outcome(
            tmp_path, f"http://127.0.0.1:{refused_port()}", 4, LoadSpec(max_concurrency=2)
        )


def test_a_parent_that_is_gone_stops_its_processes(fake: StartFake, tmp_path: Path) -> None:
    from dyno.http import Route, Url
    from dyno.load import http1
    from dyno.load.process import SliceProcess
    from dyno.load.script import PromptScript
    from dyno.load.wire import Traffic

    url = Url(fake(first_ms=1000, gap_ms=1000).base_url)
    payload = http1.payload(
        http1.head_before_length({}),
        msgspec.json.encode({"prompt": "a", "max_tokens": 600, "stream": True}),
    )
    front = http1.front("POST", "/v1/completions", url.netloc)
    traffic = Traffic(
        [Route(url)], [b""], PromptScript([front + payload]), Plan(2, None, 2)
    )
    [task] = slices.cut(traffic, [tmp_path / "exchanges.spool"], [])
    with SliceProcess("It") as process:
        process.start(task)
        deadline = time.monotonic() + 60
        while not process.ready and time.monotonic() < deadline:
            process.update()
            time.sleep(0.01)
        process.go(time.monotonic_ns())
        process._child._in.close()  # as the system does for one that is killed
        while process.facts is None and time.monotonic() < deadline:
            process.update()
            time.sleep(0.01)
    assert process.facts and process.facts.outcome == "interrupted"
    assert process._child._process.returncode == 0


# ---- the command ----


def start(folder: Path, base_url: str) -> "subprocess.Popen[str]":
    """A load without end by two processes, begun when both have answers."""
    words = [
        "bench",
        "serve",
        "--base-url",
        base_url,
        "--max-concurrency",
        "4",
        "--duration",
        "600",
        "--procs",
        "2",
    ]
    words += [
        "--num-prompts",
        "8",
        "--random-input-len",
        "4",
        "--random-output-len",
        "4",
        "--no-correctness-check",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-m", "dyno", *words], cwd=folder, **pipes
    )
    wait_for(
        lambda: (
            sum(p.stat().st_size > 20_000 for p in folder.rglob("exchanges*.spool")) == 2
        )
    )
    return process


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


@pytest.mark.hostile
def test_a_dyno_that_is_killed_leaves_no_process_and_a_run_that_can_be_decoded(
    fake: StartFake, tmp_path: Path
) -> None:
    process = start(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    children = [
        p
        for p in psutil.Process(process.pid).children()
        if "dyno.load.process" in p.cmdline()
    ]
    process.kill()
    process.communicate()
    assert len(children) == 2
    wait_for(
        lambda: (
            not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in children)
        )
    )
    [path] = (tmp_path / "runs").iterdir()
    done = finish(Run(path))
    records = list(done.run.records())
    assert {r.index % 2 for r in records} == {0, 1} and len(
        {r.index for r in records}
    ) == len(records) > 20
    assert done.result.served.outcome == "interrupted" and {r.error for r in records} <= {
        None,
        "interrupted",
    }


@pytest.mark.hostile
def test_ctrl_c_stops_both_and_keeps_what_was_measured_even_if_one_hangs(
    fake: StartFake, tmp_path: Path
) -> None:
    process = start(tmp_path, fake(first_ms=5, gap_ms=1).base_url)
    children = [
        p
        for p in psutil.Process(process.pid).children()
        if "dyno.load.process" in p.cmdline()
    ]
    children[1].suspend()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "client.process_lost: Process 2 of 2 ended before the load was over" in out
    assert not any(p.is_running() for p in children)


# ---- what they have read, decoded while the load runs ----


@pytest.mark.parametrize("spec", [ClientSpec(procs=1), TWO], ids=["one", "two"])
def test_a_large_load_is_decoded_while_it_runs(
    tmp_path: Path, fake: StartFake, monkeypatch: pytest.MonkeyPatch, spec: ClientSpec
) -> None:
    monkeypatch.setattr(processes, "AHEAD_FROM_CHUNKS", 0)
    monkeypatch.setattr(processes.decoder, "SEVERAL_FROM_BYTES", 0)
    used: list[bool] = []
    decoders = processes.Ahead.decoders

    def spied(*arguments: Any) -> Any:
        found = decoders(*arguments)
        used.append(found is not None)
        return found

    monkeypatch.setattr(processes.Ahead, "decoders", spied)
    target = TargetSpec(fake().base_url, "openai", "/v1/completions", "fake")
    trial = TrialSpec(
        target=target,
        workload=WorkloadSpec("random", num_prompts=24),
        load=LoadSpec(max_concurrency=8),
        ignore_eos=True,
        correctness_check=False,
        client=spec,
    )
    wanted = [Request("a " * (i + 1), i + 1, 6) for i in range(24)]
    work = Workload(trial.workload, wanted, [], "fake", "server", "")
    run = create(tmp_path, "ahead")
    with processes.Ahead() as ahead:
        measure(
            run,
            Session(TargetFacts(model="fake"), {}),
            Prepared(trial, Prompts(work)),
            ahead,
        )
        done = finish(run, keep_raw=True, keys_known=True, ahead=ahead)
    assert used == [True] * (2 if spec is TWO else 1)
    lines = run.records_path.read_bytes()
    again = finish(run, keep_raw=True, keys_known=True)  # by one process of each spool
    assert run.records_path.read_bytes() == lines
    assert again.result.served.ttft == done.result.served.ttft
    assert done.result.served.completed == 24
