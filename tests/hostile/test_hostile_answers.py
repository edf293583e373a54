"""100,000 mutated answers, through the wire and through every protocol's decoder: a record for each, and no more."""

import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conftest import requests
from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts, Record
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Route, Url
from dyno.load import decode, http1, plan
from dyno.load.protocols import PROTOCOLS
from dyno.load.script import PromptScript
from dyno.load.spool import END, NO_STAMP, READ, SENT, TIMES, Spool, pack
from dyno.load.wire import Traffic, Wire
from dyno.measure.counting import Counting
from dyno.measure.summary import Tally
from dyno.workload.spec import WorkloadSpec
from mutants import mutant

ON_THE_WIRE, DECODED = 20_000, 20_000  # the second for each of four protocols
TRIAL = TrialSpec(
    TargetSpec("http://h:1", "openai", "/v1/completions"),
    WorkloadSpec("random"),
    LoadSpec(),
)
WANTED = requests(1, output_tokens=8)
MEMORY_MORE = 300 << 20
KINDS = {
    None, "garbage", "cut", "empty", "reset", "not_a_stream", "stream_error", "no_text", "encoded", "unasked", "http",
    "interrupted", "choices",
}  # fmt: skip


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def summed_up(records: Iterator[Record], client: ClientFacts) -> Counter[str | None]:
    """As a trial does it, with every record written and read back. Returns how many there are of each kind."""
    tally = Tally(TRIAL)
    settling = Counting(lambda text: len(text) // 4, True, True)
    kinds: Counter[str | None] = Counter()
    for record in records:
        settling.settle(record)
        tally.add(msgspec.json.decode(msgspec.json.encode(record), type=Record))
        kinds[
            record.error
            if record.error is None or not record.error.startswith("http_")
            else "http"
        ] += 1
    summary = tally.summary(client)
    msgspec.json.encode(summary)
    assert summary.completed + summary.failed == kinds.total()
    assert 0 <= summary.total_output_tokens <= summary.completed * 2000
    assert 0 <= summary.total_input_tokens <= summary.completed * 20_000
    return kinds


def spooled(path: Path, backend: str, count: int) -> None:
    rng = random.Random(backend)
    spool = Spool(path)
    for i in range(count):
        raw = mutant(rng, backend)
        cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(6)))
        parts = [pack(i, SENT, 0, i * 100, TIMES.pack(i * 100, 0))]
        for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            for at in range(a, b, 32_768):
                piece = raw[at : min(b, at + 32_768)]
                parts += [pack(i, READ, len(piece), i * 100 + at + 1, NO_STAMP), piece]
        reason = b"cut: the server closed" if rng.random() < 0.3 else b""
        spool.write(
            [*parts, pack(i, END, len(reason), i * 100 + len(raw) + 9, NO_STAMP), reason]
        )
    spool.close()


@pytest.mark.parametrize(
    "count", [DECODED // 5, pytest.param(DECODED, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("backend", ["openai", "openai-chat", "tgi", "llama.cpp"])
def test_every_mutated_answer_is_decoded_to_a_record(
    backend: str, count: int, tmp_path: Path
) -> None:
    spooled(tmp_path / "s", backend, count)
    before, started = peak_bytes(), time.process_time()
    client = ClientFacts(
        0, 10**9, "complete", count, count, 0.0, 0, [], kernel_stamps=False
    )
    kinds = summed_up(decode.records(tmp_path / "s", WANTED, PROTOCOLS[backend], 0), client)
    print(backend, dict(kinds), f"{(peak_bytes() - before) >> 20} MB")
    assert kinds.total() == count
    assert kinds.keys() <= KINDS
    # mutated neither too little nor too much
    assert kinds[None] > count // 50 and kinds["garbage"] > count // 20
    assert peak_bytes() - before < MEMORY_MORE
    assert time.process_time() - started < 120


@pytest.mark.parametrize(
    "count", [ON_THE_WIRE // 5, pytest.param(ON_THE_WIRE, marks=pytest.mark.nightly)]
)
def test_every_mutated_answer_on_the_wire_ends_its_request_and_no_other(
    count: int, tmp_path: Path
) -> None:
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "mutants.py"), "16"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = Url(f"http://127.0.0.1:{int(server.stdout.readline())}")
        spool = Spool(tmp_path / "s")
        front = http1.front("POST", "/v1/completions", url.netloc)
        before = peak_bytes()
        the_plan = plan.make(LoadSpec(max_concurrency=16), count)
        traffic = Traffic(
            [Route(url)],
            [b""],
            PromptScript([front + http1.payload(http1.head_before_length({}), b"{}")]),
            the_plan,
            timeout_s=60,
        )
        client = Wire(traffic, spool).drive()
        spool.close()
        assert (client.outcome, client.sent) == ("complete", count)
        records = decode.records(
            tmp_path / "s", WANTED, PROTOCOLS["openai"], client.start_ns, client.unasked
        )
        kinds = summed_up(records, client)
    finally:
        server.kill()
        server.wait()
        server.stdout and server.stdout.close()
    print("wire", dict(kinds), f"{(peak_bytes() - before) >> 20} MB")
    assert kinds.total() == count
    assert kinds.keys() <= KINDS
    assert kinds[None] > count // 50
    assert peak_bytes() - before < MEMORY_MORE
