"""What a chunk costs dyno, beside a bare reader in C on the same machine in the same run.

The reader (bench/reader.c) opens the same connections to the same fake engine, reads and drops. Each figure is CPU time
of the client alone. `prompt`: the reader with real-time priority, which the wire asks for, too. It is woken for each
chunk, where the other one waits for a core and then finds several. `wire`: while the load runs. `in all`: with
decoding, records and figures. `result after`: from the last byte to the result. The Rust clients of vLLM and SGLang run
under the same load where `make bench-peers` installed them; theirs is the whole command.

    python bench/speed.py                    64, 256, 1,024 and 10,000 streams
    python bench/speed.py --pairs 5          also without decoding while the load runs, in turn
    python bench/speed.py --spool 10000000   the result of a spool of so many chunks, that no load has written
    python bench/speed.py --streams 64

Server and client are two processes. 10,000 streams need 10,100 open files each (`ulimit -Hn`): where the system allows
fewer, they are left out.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import peers

from dyno.conduct.calibration import Shape, calibrate, trial_of, workload_of
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.target import TargetFacts
from dyno.http import Url
from dyno.load.spool import CLOCK, COLUMNS, END, READ, SENT, TIMES, Spool, frames
from dyno.store.run import Run, create
from dyno.trial import processes
from dyno.trial.online import finish, follow, measure
from dyno.trial.prepare import Prepared, Prompts
from dyno.trial.session import Session

# Goals, µs of CPU for each chunk on an x86 of 2.5 GHz; and against the reader. All and result: of 1,024 streams.
WIRE_US, ALL_US, TIMES_READER = 8.0, 14.0, 1.5
RESULT_S = 2.0  # for 512,000 chunks
SPOOL_MB = 500  # for 10,000,000 chunks
# Many streams at 10 ms would be more chunks/s than one core can send, or read.
MANY = Shape(streams=10_000, rounds=2, chunks=20, first_ms=1000, gap_ms=100)
FILES_BESIDE = 100  # open files besides the connections
_HEAD = (
    f"{'streams':>7} {'chunks/s':>9} {'C reader':>9} {'chunks a read':>13} {'prompt':>7} {'wire':>6} {'in all':>7} "
    f"{'wire / C':>9} {'result after':>13} {'unseen':>7} {'MB':>5}"
)


class Read(NamedTuple):
    """What the reader in C needed."""

    us_per_chunk: float
    chunks_per_read: float
    prompt_us: float | None  # per chunk, with real-time priority; None: not allowed here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 1024, 10_000])
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--spool", type=int, metavar="CHUNKS")
    parser.add_argument("--sum-up", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--after", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        shape = Shape(**json.loads(options.one))
        print(json.dumps(_one(shape, ahead=not options.after)))
        return 0
    if options.sum_up:
        print(json.dumps(_sum_up(options.sum_up, followed=not options.after)))
        return 0
    if options.spool:
        return _spool(options.spool)
    files = _open_files()
    print("CPU of the client, us for each chunk\n" + _HEAD)
    kept = []
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        reader = _compiled(Path(folder))
        for streams in options.streams:
            if streams + FILES_BESIDE > files:
                kept.append(f"{streams:,} streams: left out, {files:,} files may be open")
                continue
            shape = Shape(streams, rounds=options.rounds, gap_ms=options.gap_ms)
            if streams >= MANY.streams:
                shape = msgspec.structs.replace(MANY, streams=streams)
            read = _read(reader, shape, Path(folder)) if reader else None
            if options.pairs:
                kept.append(_pairs(shape, read, options.pairs))
            else:
                kept.append(_judged(shape, read, _row(shape, read)))
            _print_peers(shape, Path(folder))
    print("\n" + "\n".join(kept))
    return int(any("NOT KEPT" in line for line in kept))


def _open_files() -> int:
    """Return how many files each process may open, after asking for as many as the system gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _compiled(folder: Path) -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        print("There is no C compiler (cc) here: dyno is measured without the reader.")
        return None
    program = folder / "reader"
    source = Path(__file__).with_name("reader.c")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    return program


def _read(reader: Path, shape: Shape, folder: Path) -> Read:
    ordinary = _run_reader(reader, shape, folder)
    if ordinary is None:
        raise SystemExit("The reader in C failed.")
    prompt = _run_reader(reader, shape, folder, "prompt")
    cpu_s, reads = ordinary
    chunks = shape.streams * shape.rounds * shape.chunks
    prompt_us = None if prompt is None else prompt[0] / chunks * 1e6
    return Read(cpu_s / chunks * 1e6, chunks / reads, prompt_us)


def _run_reader(
    reader: Path, shape: Shape, folder: Path, *more: str
) -> tuple[float, float] | None:
    """Return its CPU seconds and reads. None: it failed, or may not have the priority that it asked for."""
    spec = FakeSpec(first_ms=shape.first_ms, gap_ms=shape.gap_ms)
    requests = shape.streams * shape.rounds
    with Fake.start(spec, folder / "fake.log") as fake:
        url = Url(fake.base_url)
        command = [str(reader), str(url.port), str(shape.streams), str(requests), *more]
        done = subprocess.run(command, input=_request(shape), stdout=subprocess.PIPE)
    if done.returncode:
        return None
    cpu_s, reads, _, _ = map(float, done.stdout.split())
    return cpu_s, reads


def _request(shape: Shape) -> bytes:
    asked = {
        "model": "fake",
        "prompt": "to be or not to be " * 8,
        "max_tokens": shape.chunks,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _one(shape: Shape, ahead: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        c = calibrate(shape, Path(folder), decode_ahead=ahead)
    return {
        "chunks_per_s": c.chunks_per_s,
        "wire_us": c.wire_us_per_chunk,
        "cpu_us": c.cpu_us_per_chunk,
        "result_s": c.result_s,
        "unseen": c.unseen_share,
        "mb": c.memory_bytes / 1e6,
    }


def _pairs(shape: Shape, read: Read | None, count: int) -> str:
    """Measure with and without decoding while the load runs, in turn, and return the ratio of each figure."""
    ratios = []
    for i in range(count):
        rows = {}
        for ahead in (True, False) if i % 2 else (False, True):
            rows[ahead] = _row(shape, read, ahead)
        ratios.append(
            [rows[True][name] / rows[False][name] for name in ("wire_us", "result_s")]
        )
    wire, result = (sorted(each) for each in zip(*ratios, strict=True))
    return (
        f"{shape.streams:,} streams, decoded while the load runs / after it, {count} pairs, median (least to most): "
        f"wire {_spread(wire)}, result after {_spread(result)}"
    )


def _spread(ratios: list[float]) -> str:
    middle = ratios[len(ratios) // 2]
    return f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _row(shape: Shape, read: Read | None, ahead: bool = True) -> dict[str, float]:
    """Measure dyno in a process of its own, print the row and return it."""
    spec = json.dumps({name: getattr(shape, name) for name in shape.__struct_fields__})
    done = subprocess.run(
        [sys.executable, __file__, "--one", spec, *([] if ahead else ["--after"])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row = json.loads(done.stdout.splitlines()[-1])
    times = row["wire_us"] / read.us_per_chunk if read else None
    print(
        f"{shape.streams:>7,} {row['chunks_per_s']:>9,.0f} "
        f"{format(read.us_per_chunk, '.1f') if read else '-':>9} "
        f"{format(read.chunks_per_read, '.2f') if read else '-':>13} "
        f"{format(read.prompt_us, '.1f') if read and read.prompt_us else '-':>7} "
        f"{row['wire_us']:>6.1f} {row['cpu_us']:>7.1f} "
        f"{format(times, '.2f') if times else '-':>9} {row['result_s']:>11.2f} s "
        f"{row['unseen']:>7.2%} {row['mb']:>5.0f}{'' if ahead else '  decoded after the load'}",
        flush=True,
    )
    return dict(row)


def _print_peers(shape: Shape, folder: Path) -> None:
    """Print what the Rust clients need for the same load."""
    requests = shape.streams * shape.rounds
    for name in (name for name, peer in peers.PEERS.items() if peer.many):
        spec = FakeSpec(first_ms=shape.first_ms, gap_ms=shape.gap_ms)
        with Fake.start(spec, folder / "fake.log") as fake:
            size = (shape.streams, shape.rounds, shape.chunks)
            report = peers.run(name, fake.base_url, *size, folder)
        if report is None:
            continue
        us = report.cpu_s / (requests * shape.chunks) * 1e6
        text = f"{shape.streams:>7,} {name:>37} {us:>7.1f}"
        print(report.error or text + f"  ({report.failed:,} failed)", flush=True)


def _judged(shape: Shape, read: Read | None, row: dict[str, float]) -> str:
    """Return the verdict on a row."""
    times = row["wire_us"] / read.us_per_chunk if read else None
    good = row["wire_us"] <= WIRE_US and (times is None or times <= TIMES_READER)
    goals = f"wire ≤ {WIRE_US:g} us and ≤ {TIMES_READER:g} times the reader"
    if shape.streams == 1024:
        good = good and row["cpu_us"] <= ALL_US and row["result_s"] <= RESULT_S
        goals += f", in all ≤ {ALL_US:g} us, result after ≤ {RESULT_S:g} s"
    return f"{shape.streams:,} streams: {'kept' if good else 'NOT KEPT'} ({goals})"


# ---- a spool that no load has written ----


def _spool(chunks: int) -> int:
    shape = Shape(1024, rounds=max(chunks // 102_400, 1))
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        path = _written(shape, Path(folder))
        kept = [_summed_up(path, *more) for more in (["--after"], [])]
    return int(not all(kept))


def _summed_up(path: Path, *more: str) -> bool:
    """Sum up a spool in a process of its own, print how long it took, and return whether it took little memory."""
    run = Run(path)
    kept = path / "kept"  # the spool goes with its result
    if not kept.exists():
        kept.hardlink_to(run.spool_path)
    run.spool_path.unlink(missing_ok=True)
    run.spool_path.hardlink_to(kept)
    words = [sys.executable, __file__, "--sum-up", str(path), *more]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    good = row["mb"] <= SPOOL_MB and row["child_mb"] <= SPOOL_MB
    print(
        f"a spool of {row['chunks']:,.0f} chunks, decoded {'after' if more else 'while'} the load: "
        f"{'kept' if good else 'NOT KEPT'} ({row['mb']:.0f} MB, {row['child_mb']:.0f} MB in each process that decodes; "
        f"≤ {SPOOL_MB} MB; result after {row['s']:.1f} s, {row['cpu_s'] / row['chunks'] * 1e6:.1f} us of CPU a chunk)",
        flush=True,
    )
    return bool(good)


def _written(shape: Shape, folder: Path) -> Path:
    """Write the run folder of a load: the reads of one real answer, for each of its requests. Streams run in step."""
    with Fake.start(FakeSpec(first_ms=5, gap_ms=1), folder / "fake.log") as fake:
        run = create(folder, "spool")
        trial = trial_of(shape, [fake.base_url])
        one = msgspec.structs.replace(shape, streams=1, rounds=1)
        session = Session(TargetFacts("fake", ["fake"]), {})
        measure(run, session, Prepared(trial, Prompts(workload_of(one))))
    client = run.client()
    assert client is not None
    reads = [frame[5] for frame in frames(run.spool_path) if frame[1] == READ]
    work = workload_of(shape)
    run.write_manifest(run.manifest(), work.requests)
    end_ns = _write_spool(run.spool_path, shape, reads, client.start_ns)
    count = len(work.requests)
    facts = msgspec.structs.replace(client, end_ns=end_ns, planned=count, sent=count)
    run.write_client(facts)
    return run.path


def _write_spool(path: Path, shape: Shape, reads: list[bytes], start_ns: int) -> int:
    """Write the frames of a load, and return when it ends."""
    spool = Spool(path)
    at_ns = start_ns
    offset_ns = 10**18  # of the wall clock
    heads = np.zeros(shape.streams, COLUMNS)
    for i in range(shape.rounds):
        heads["exchange"] = np.arange(shape.streams) + i * shape.streams
        spool.note(CLOCK, 0, at_ns, TIMES.pack(offset_ns, 0))
        for kind, payload in ((SENT, b""), *((READ, read) for read in reads), (END, b"")):
            at_ns += 10_000_000
            heads["kind"] = kind
            heads["length"] = len(payload)
            heads["read_ns"] = at_ns + np.arange(shape.streams)
            heads["a"], heads["b"] = divmod(at_ns + offset_ns, 10**9)
            if kind == SENT:
                heads["a"], heads["b"] = at_ns, 0
            spool.heads.append(heads.tobytes())
            spool.parts.append(payload * shape.streams)
            _flush(spool)
    spool.note(CLOCK, 0, at_ns, TIMES.pack(offset_ns, 0))
    spool.flush()
    spool.close()
    return at_ns


def _flush(spool: Spool) -> None:
    """Write a block of as many frames as its heads have."""
    heads = b"".join(spool.heads)
    spool.heads[:] = [heads[i : i + 32] for i in range(0, len(heads), 32)]
    spool.flush()


def _sum_up(path: Path, followed: bool) -> dict[str, float]:
    """Make the result. `followed`: the spool was decoded while the load ran, as far as that goes."""
    run = Run(path)
    with processes.Ahead() as ahead:
        if followed:
            client = run.client()
            assert client is not None
            follow(run, ahead)
            ahead.begin(client.start_ns)
            _wait_until_done(run.path)
        before = time.perf_counter()
        cpu_s = time.process_time()
        outcome = finish(run, ahead=ahead)
        took_s = time.perf_counter() - before
        summary = outcome.result.served
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "chunks": summary.chunks,
        "s": took_s,
        "cpu_s": time.process_time() - cpu_s + children.ru_utime + children.ru_stime,
        "mb": own.ru_maxrss * 1024 / 1e6,
        "child_mb": children.ru_maxrss * 1024 / 1e6,
    }


def _wait_until_done(folder: Path) -> None:
    """Return when followers have written nothing for some seconds."""
    sizes: list[int] = []
    while len(sizes) < 8 or len({*sizes[-4:]}) > 1:
        time.sleep(1)
        sizes.append(sum(p.stat().st_size for p in folder.glob("*.partial")))


if __name__ == "__main__":
    raise SystemExit(main())
