"""Calibration: dyno's own figures against what the fake engine logged in the same run."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.engines.process import EngineProcess
from dyno.facts.client import ClientSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.measure.statistics import distribution_ms
from dyno.store.run import create
from dyno.trial import processes
from dyno.trial.online import finish, measure
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import Prepared, Prompts
from dyno.trial.session import Session
from dyno.units import NS_PER_S
from dyno.workload.request import Request, Turn
from dyno.workload.spec import Workload, WorkloadSpec


class Shape(msgspec.Struct, frozen=True):
    streams: int
    rounds: int = 5
    chunks: int = 100
    first_ms: float = 50.0
    gap_ms: float = 10.0
    procs: int = 1  # of the client
    servers: int = 1  # copies of the fake engine
    # each stream is a conversation of as many turns as rounds, with the server's answers in it
    chat: bool = False


class Times(msgspec.Struct, frozen=True):
    """Times in milliseconds. None: dyno says that it doesn't know."""

    ttft_mean: float | None
    ttft_p99: float | None
    itl_median: float | None
    itl_p99: float | None


class Calibration(msgspec.Struct, frozen=True):
    shape: Shape
    reported: Times  # by dyno
    actual: Times  # by the server's own log
    failed: int
    streams_open: int  # the most that the server had at once
    chunks_per_s: float
    # of the client, for everything: sending, reading, spooling, decoding, saving, summing up
    cpu_us_per_chunk: float
    wire_us_per_chunk: float  # of that, while the load ran
    # of one core, while the load ran: the busiest process of the client
    client_cpu_share: float
    memory_bytes: int  # the process's peak
    server_cpu_share: float  # of one core, while the load ran: the busiest fake engine
    # of the load: a process of the client was ready to run and had no core
    waited_share: float | None
    unseen_share: float
    delay_ms: tuple[float, float]  # from due to sent: mean, p99
    priority: str  # of the wire
    verdict: str
    result_s: float = 0.0  # from the end of the load to the result

    @property
    def holds(self) -> bool:
        """Reported and actual agree as closely as a published figure needs."""
        a = self.reported
        b = self.actual
        pairs = (
            (a.ttft_mean, b.ttft_mean, 3),
            (a.ttft_p99, b.ttft_p99, 10),
            (a.itl_p99, b.itl_p99, 1),
        )
        near = (
            x is not None and y is not None and abs(x - y) < limit for x, y, limit in pairs
        )
        return self.failed == 0 and self.streams_open == self.shape.streams and all(near)


@contextlib.contextmanager
def busy_processes(folder: Path, count: int | None = None) -> Iterator[int]:
    """Keep cores busy, as an engine on the CPU does: by `count` processes, or one for each core. Yield how many."""
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    with contextlib.ExitStack() as running:
        for _ in range(count or cores):
            running.enter_context(EngineProcess(command, None, folder / "busy.log"))
        yield count or cores


def calibrate(
    shape: Shape,
    folder: Path,
    stop: Stop | None = None,
    start: Callable[[FakeSpec, Path], Fake] = Fake.start,
    decode_ahead: bool = True,
) -> Calibration:
    """Measure. `decode_ahead`: also while the load runs."""
    spec = FakeSpec(first_ms=shape.first_ms, gap_ms=shape.gap_ms)
    with contextlib.ExitStack() as running:
        fakes = [
            running.enter_context(start(spec, folder / f"fake-{i}.log"))
            for i in range(shape.servers)
        ]
        before = [fake.log()["cpu_s"] for fake in fakes]
        cpu = time.process_time()
        run = create(folder, "calibration")
        target = TargetFacts(model=spec.model, models_listed=[spec.model])
        session = Session(target, {}, stop=stop or Stop())
        trial = trial_of(shape, [fake.base_url for fake in fakes])
        prepared = Prepared(trial, Prompts(workload_of(shape)))
        with processes.Ahead() as decoders:
            ahead = decoders if decode_ahead else None
            measure(run, session, prepared, ahead)
            cpu_before_finish = _cpu_of_children_s()
            before_finish = time.monotonic()
            outcome = finish(run, ahead=ahead)
            result_s = time.monotonic() - before_finish
        # of those that decoded; the wire's own processes report theirs
        cpu = time.process_time() - cpu + _cpu_of_children_s() - cpu_before_finish
        logs = [fake.log() for fake in fakes]
    server_cpu_s = max(
        log["cpu_s"] - cpu_s for log, cpu_s in zip(logs, before, strict=True)
    )
    return _compare(
        shape,
        outcome,
        [stream for log in logs for stream in log["streams"]],
        cpu,
        server_cpu_s,
        result_s,
    )


def _cpu_of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def trial_of(shape: Shape, urls: list[str]) -> TrialSpec:
    """Return the trial of a shape against these servers."""
    first, *more = urls
    backend, endpoint = (
        ("openai-chat", "/v1/chat/completions")
        if shape.chat
        else ("openai", "/v1/completions")
    )
    return TrialSpec(
        target=TargetSpec(
            first, backend=backend, endpoint=endpoint, model="fake", more_urls=more
        ),
        workload=WorkloadSpec(
            dataset="calibration", num_prompts=shape.streams * shape.rounds
        ),
        load=LoadSpec(max_concurrency=shape.streams),
        client=ClientSpec(shape.procs),
        ignore_eos=True,
        correctness_check=False,
    )


def workload_of(shape: Shape) -> Workload:
    """Return the requests of a shape."""
    request = Request("to be or not to be " * 8, 48, shape.chunks)
    requests = [request] * (shape.streams * shape.rounds)
    if shape.chat:
        requests = [_turn(request, i, shape.rounds) for i in range(len(requests))]
    return Workload(WorkloadSpec("calibration"), requests, [], "fake", "server", "")


def _turn(like: Request, number: int, turns: int) -> Turn:
    session, turn = divmod(number, turns)
    before = [number - 1] if turn else []
    tokens = like.prompt_tokens + turn * (like.prompt_tokens + like.output_tokens)
    history = number - 1 if turn else None
    return Turn(
        like.prompt,
        tokens,
        like.output_tokens,
        session=session,
        after=before,
        history=history,
    )


def _compare(
    shape: Shape,
    outcome: Outcome,
    log: list[list[int]],
    cpu_s: float,
    server_cpu_s: float,
    result_s: float,
) -> Calibration:
    s = outcome.result.served
    client = outcome.run.client()
    queue = s.latencies["queue"]
    chunks = max(s.chunks, 1)
    wire_s = client.cpu_s if client else 0.0
    cpu_s += wire_s if client and client.processes else 0.0  # they are not this process
    first = min(entry[1] for entry in log)
    last = max(entry[-1] for entry in log)
    return Calibration(
        shape=shape,
        reported=Times(
            s.ttft.mean, s.ttft.percentiles["99"], s.itl.median, s.itl.percentiles["99"]
        ),
        actual=server_times(log),
        failed=s.failed,
        streams_open=server_streams(log),
        chunks_per_s=sum(len(entry) - 1 for entry in log)
        / max((last - first) / NS_PER_S, 1e-9),
        cpu_us_per_chunk=cpu_s / chunks * 1e6,
        wire_us_per_chunk=wire_s / chunks * 1e6,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        client_cpu_share=s.client.cpu_share or 0.0,
        server_cpu_share=server_cpu_s / s.duration_s,
        waited_share=s.client.waited_share,
        unseen_share=s.client.unseen_share,
        delay_ms=(queue.mean or 0.0, queue.percentiles.get("99") or 0.0),
        priority=s.client.priority,
        verdict=outcome.result.verdict,
        result_s=result_s,
    )


def server_times(log: list[list[int]]) -> Times:
    """Return the times by the server's log: from a request's arrival to its first send, and between sends."""
    ttft = distribution_ms([entry[1] - entry[0] for entry in log], [99.0])
    itl = distribution_ms(np.concatenate([np.diff(entry[1:]) for entry in log]), [99.0])
    return Times(ttft.mean, ttft.percentiles["99"], itl.median, itl.percentiles["99"])


def server_streams(log: list[list[int]]) -> int:
    """Return the most streams that were open at once, from a request's arrival to its last send."""
    marks = sorted([(entry[0], 1) for entry in log] + [(entry[-1], -1) for entry in log])
    return int(np.cumsum([step for _, step in marks]).max())
