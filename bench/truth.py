"""Compare what dyno and its peers report with the fake engine's own log of the same run.

Server and client share this machine's cores, perhaps with other processes. So no figure is compared with the nominal
times: each cell is reported / actual, and the actual figure comes from the log of that run.

    python bench/truth.py                    the table, peers included where `make bench-peers` installed them
    python bench/truth.py --streams 64 256   other loads
    python bench/truth.py --no-peers
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import peers

from dyno.conduct.calibration import (
    Shape,
    busy_processes,
    calibrate,
    server_streams,
    server_times,
)
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake

# What issue and README promise, by streams: (TTFT mean, TTFT p99, ITL p99) in ms off the truth at most.
PROMISED = {64: (2, 2, 0.3), 256: (4, 4, 0.5), 1024: (3, 10, 1.0)}
# else 10: with that, 1,024 streams are 100,000 chunks/s, and two cores carry no server beside
GAPS_MS = {1024: 20}
MANY = Shape(streams=10_000, rounds=2, chunks=20, first_ms=1000, gap_ms=100)
MEMORY_MAX_MB, CPU_MAX_US = 600, 20.0
CHAT_CPU_MAX_US = 25.0  # of conversations, which hold their answers
# busy loops beside a load, and the share of chunks unseen at most
BUSY, BUSY_STREAMS, UNSEEN_MAX = 8, 64, 0.01

_HEAD = (
    f"{'client':<16} {'asked':>6} {'open':>6} {'failed':>6} {'chunks/s':>9} {'TTFT mean':>17} {'TTFT p99':>17} "
    f"{'ITL p50':>15} {'ITL p99':>17} {'CPU us/chunk':>13} {'MB':>5}"
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_one(Shape(**json.loads(options.one)))))
        return 0
    print(
        "reported / actual, in ms; actual: from the server's log of the same run\n" + _HEAD
    )
    kept = []
    for streams in options.streams:
        shape = Shape(streams, rounds=options.rounds, gap_ms=GAPS_MS.get(streams, 10))
        row = _in_its_own_process(shape)
        _print("dyno", shape, row)
        kept.append(_judge(streams, row))
        chat = msgspec.structs.replace(shape, chat=True)
        row = _in_its_own_process(chat)
        _print("dyno, chat", chat, row)
        kept.append(_judge(streams, row, " in conversations", CHAT_CPU_MAX_US))
        if not options.no_peers:
            _print_peers(list(peers.PEERS), shape)
    row = _in_its_own_process(MANY)
    _print("dyno", MANY, row)
    if not options.no_peers:
        _print_peers([name for name, peer in peers.PEERS.items() if peer.many], MANY)
    good = row["failed"] == 0 and row["open"] == MANY.streams and row["mb"] <= MEMORY_MAX_MB
    word = "kept" if good else "NOT KEPT"
    kept.append(
        f"{MANY.streams} streams: {word} (none failed, all open, ≤ {MEMORY_MAX_MB} MB)"
    )
    with (
        tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder,
        busy_processes(Path(folder), BUSY),
    ):
        print(f"beside {BUSY} busy loops")
        shape = Shape(BUSY_STREAMS, rounds=options.rounds)
        row = _in_its_own_process(shape)
        _print("dyno", shape, row)
        kept.append(_judge(BUSY_STREAMS, row, f" beside {BUSY} busy loops"))
        if not options.no_peers:
            _print_peers([name for name, peer in peers.PEERS.items() if peer.many], shape)
    kept.append(_help_starts_fast())
    print("\n" + "\n".join(kept))
    return int(any("NOT KEPT" in line for line in kept))


def _in_its_own_process(shape: Shape) -> dict[str, Any]:
    """So that peak memory and CPU are this run's alone."""
    spec = json.dumps({name: getattr(shape, name) for name in shape.__struct_fields__})
    done = subprocess.run(
        [sys.executable, __file__, "--one", spec],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _one(shape: Shape) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        c = calibrate(shape, Path(folder))
    return {
        "open": c.streams_open,
        "failed": c.failed,
        "chunks_per_s": c.chunks_per_s,
        "ttft_mean": (c.reported.ttft_mean, c.actual.ttft_mean),
        "ttft_p99": (c.reported.ttft_p99, c.actual.ttft_p99),
        "itl_p50": (c.reported.itl_median, c.actual.itl_median),
        "itl_p99": (c.reported.itl_p99, c.actual.itl_p99),
        "cpu_us": c.cpu_us_per_chunk,
        "wire_us": c.wire_us_per_chunk,
        "mb": c.memory_bytes / 1e6,
        "unseen": c.unseen_share,
        "delay": c.delay_ms,
        "verdict": c.verdict,
    }


def _print_peers(names: list[str], shape: Shape) -> None:
    for name in names:
        if row := _peer(name, shape):
            _print(name, shape, row)


def _peer(name: str, shape: Shape) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as text:
        folder = Path(text)
        with Fake.start(
            FakeSpec(first_ms=shape.first_ms, gap_ms=shape.gap_ms), folder / "fake.log"
        ) as fake:
            report = peers.run(
                name, fake.base_url, shape.streams, shape.rounds, shape.chunks, folder
            )
            if report is None:
                return None
            log = [
                entry for entry in fake.log()["streams"] if len(entry) > shape.chunks // 2
            ]
    if report.error or not log:
        print(f"{name:<16} {shape.streams:>6} failed: {report.error}")
        return None
    actual = server_times(log)
    chunks = sum(len(entry) - 1 for entry in log)
    first, last = min(entry[1] for entry in log), max(entry[-1] for entry in log)
    return {
        "open": server_streams(log),
        "failed": report.failed,
        "chunks_per_s": chunks / ((last - first) / 1e9),
        "ttft_mean": (report.ttft_mean_ms, actual.ttft_mean),
        "ttft_p99": (report.ttft_p99_ms, actual.ttft_p99),
        "itl_p50": (report.itl_median_ms, actual.itl_median),
        "itl_p99": (report.itl_p99_ms, actual.itl_p99),
        "cpu_us": report.cpu_s / chunks * 1e6,
        "mb": None,
    }


def _print(name: str, shape: Shape, row: dict[str, Any]) -> None:
    def pair(values: tuple[float | None, float], width: int) -> str:
        reported, actual = values
        return (
            f"{'-' if reported is None else format(reported, '.2f')} / {actual:.2f}".rjust(
                width
            )
        )

    memory = "" if row["mb"] is None else f"{row['mb']:.0f}"
    print(
        f"{name:<16} {shape.streams:>6} {row['open']:>6} {row['failed']:>6} {row['chunks_per_s']:>9,.0f} "
        f"{pair(row['ttft_mean'], 17)} {pair(row['ttft_p99'], 17)} "
        f"{pair(row['itl_p50'], 15)} {pair(row['itl_p99'], 17)} "
        f"{row['cpu_us']:>13.1f} {memory:>5}",
        flush=True,
    )


def _judge(
    streams: int, row: dict[str, Any], where: str = "", cpu_max_us: float = CPU_MAX_US
) -> str:
    pairs = {name: row[name] for name in ("ttft_mean", "ttft_p99", "itl_p99")}
    off = {
        name: math.inf if reported is None else abs(reported - actual)
        for name, (reported, actual) in pairs.items()
    }
    limits = dict(zip(off, PROMISED.get(streams, PROMISED[1024]), strict=True))
    good = (
        row["failed"] == 0
        and row["open"] == streams
        and all(off[n] <= limits[n] for n in off)
    )
    if where:
        good = good and row["unseen"] <= UNSEEN_MAX
    if streams == 1024:
        good = (
            good
            and row["chunks_per_s"] >= 45_000
            and row["cpu_us"] <= cpu_max_us
            and row["mb"] <= MEMORY_MAX_MB
        )
    errors = ", ".join(f"{n} off by {off[n]:.3f} ms (≤ {limits[n]})" for n in off)
    return (
        f"{streams} streams{where}: {'kept' if good else 'NOT KEPT'} ({errors}; "
        f"{row['wire_us']:.1f} us a chunk on the wire, {row['unseen']:.2%} of chunks unseen, verdict {row['verdict']})"
    )


def _help_starts_fast() -> str:
    best = 9.9
    for _ in range(5):
        before = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "dyno", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        best = min(best, time.perf_counter() - before)
    return f"dyno --help: {'kept' if best < 0.3 else 'NOT KEPT'} ({best:.2f} s, best of 5; ≤ 0.3 s)"


if __name__ == "__main__":
    raise SystemExit(main())
