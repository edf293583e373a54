"""How the client scales: N processes against N fake engines, beside one against one.

Each level puts the same concurrency on every process. Chunks/s and errors come from the engines' own logs. Where there
are CPUs enough for the most processes asked for, each client and each engine has one of its own, in every row, and a
client shares a physical core with an engine if the core has two threads. Else none is pinned: a pinned row and one that
is not can't be compared (one pinned process needs half the CPU per chunk at 6,000 chunks/s).

    python bench/processes.py --procs 1 8              under two minutes
    python bench/processes.py --procs 1 2 --streams 512
    python bench/processes.py --procs 1 8 --streams 768 --rounds 57   a minute of 600,000 chunks/s (16 cores)
    python bench/processes.py --many 20000 --procs 2   that many streams open at once
"""

import argparse
import math
import os
import tempfile
from pathlib import Path

from dyno.conduct.calibration import Calibration, Shape, calibrate
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.numbers import count

LEVELS = (256, 512, 768)  # streams of each process: 25,000, 50,000 and 75,000 chunks/s
LINEAR = 0.9  # of N times one process's chunks/s
CLOSE_MS = 0.1  # a mean or median, reported against actual
SATURATED = 0.95  # of a core
WAITED = 0.05  # of the load, for a core
_HEAD = (
    f"{'procs':>5} {'engines':>7} {'streams':>8} {'open':>7} {'failed':>6} {'chunks/s':>10} {'x one':>6} "
    f"{'us/chunk: wire':>14} {'in all':>7} {'CPU: client':>11} {'engine':>7} "
    f"{'off by, ms: TTFT mean':>21} {'p99':>7} {'ITL p50':>8} {'p99':>7} {'unseen':>7} "
    f"{'result after':>12} {'limit':>7}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--procs", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--streams", type=int, nargs="+", default=LEVELS, help="of each process"
    )
    parser.add_argument(
        "--many", type=int, help="this many streams in all, with long gaps, instead"
    )
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    cpus = _pairs()
    cpus = cpus if len(cpus) >= max(options.procs) else []
    how = (
        "each client and each engine on its own"
        if cpus
        else "too few for one each: nothing is pinned"
    )
    print(f"{len(os.sched_getaffinity(0))} CPUs, {how}")
    print(
        "us/chunk: CPU of all client processes while the load runs (wire), and with decoding and summing up (in all)"
    )
    print(
        "CPU: of one core, by the busiest client process and engine. off by: reported against the engines' logs\n"
        + _HEAD
    )
    kept = []
    if options.many:
        for procs in options.procs:
            shape = Shape(
                options.many,
                rounds=2,
                chunks=20,
                first_ms=2000,
                gap_ms=200,
                procs=procs,
                servers=procs,
            )
            row = _run(shape, cpus)
            good = row.failed == 0 and row.streams_open == options.many
            kept.append(
                f"{count(options.many)} streams, {procs} processes: {'kept' if good else 'NOT KEPT'} (all open at once)"
            )
    for streams in () if options.many else options.streams:
        one = 0.0
        for procs in options.procs:
            shape = Shape(
                streams * procs, rounds=options.rounds, procs=procs, servers=procs
            )
            row = _run(shape, cpus, one)
            one = one or row.chunks_per_s / procs
            if procs > options.procs[0]:
                kept.append(_judge(shape, row, one))
    print("\n" + "\n".join(kept))
    return int(any("NOT KEPT" in line for line in kept))


def _pairs() -> list[tuple[int, int]]:
    """Return pairs of CPUs: the two threads of a core where it has two, else neighbours."""
    free, twins, lone = sorted(os.sched_getaffinity(0)), [], []
    while free:
        cpu = free.pop(0)
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = (
            path.read_text().strip().replace("-", ",").split(",") if path.exists() else []
        )
        twin = next((int(word) for word in siblings if int(word) in free), None)
        if twin is None:
            lone.append(cpu)
        else:
            free.remove(twin)
            twins.append((cpu, twin))
    return twins + list(zip(lone[::2], lone[1::2], strict=False))


def _run(shape: Shape, cpus: list[tuple[int, int]], one: float = 0.0) -> Calibration:
    everywhere = os.sched_getaffinity(0)
    own = cpus[: shape.procs]

    def start(spec: FakeSpec, log: Path) -> Fake:
        """On the engines' CPUs, which it inherits."""
        os.sched_setaffinity(0, {engine for _, engine in own} or everywhere)
        try:
            return Fake.start(spec, log)
        finally:
            os.sched_setaffinity(0, {client for client, _ in own} or everywhere)

    try:
        with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
            row = calibrate(shape, Path(folder), start=start)
    finally:
        os.sched_setaffinity(0, everywhere)
    offs = [_off(row, name) for name in ("ttft_mean", "ttft_p99", "itl_median", "itl_p99")]
    print(
        f"{shape.procs:>5} {shape.servers:>7} {shape.streams:>8,} {row.streams_open:>7,} {row.failed:>6} "
        f"{row.chunks_per_s:>10,.0f} {row.chunks_per_s / one if one else shape.procs:>6.2f} "
        f"{row.wire_us_per_chunk:>14.1f} {row.cpu_us_per_chunk:>7.1f} "
        f"{row.client_cpu_share:>11.0%} {row.server_cpu_share:>7.0%} "
        + " ".join(
            f"{'-' if off is None else format(off, '.3f'):>{width}}"
            for off, width in zip(offs, (21, 7, 8, 7), strict=True)
        )
        + f" {row.unseen_share:>7.2%} {row.result_s:>10.1f} s {_limit(row):>7}",
        flush=True,
    )
    return row


def _off(row: Calibration, name: str) -> float | None:
    """How far the reported figure is off the actual one; None: dyno says that it doesn't know it."""
    reported, actual = getattr(row.reported, name), getattr(row.actual, name)
    return None if reported is None else abs(reported - actual)


def _limit(row: Calibration) -> str:
    """Name what was at its limit: a client process, an engine, or the number of cores; none where all had room."""
    shares = {"client": row.client_cpu_share, "engine": row.server_cpu_share}
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] > SATURATED:
        return busiest
    return "cores" if (row.waited_share or 0.0) > WAITED else "none"


def _judge(shape: Shape, row: Calibration, one: float) -> str:
    share = row.chunks_per_s / shape.procs / one
    off = max(
        math.inf if (off := _off(row, name)) is None else off
        for name in ("ttft_mean", "itl_median")
    )
    good = (
        share >= LINEAR
        and row.failed == 0
        and row.streams_open == shape.streams
        and off <= CLOSE_MS
    )
    return (
        f"{shape.procs} processes, {shape.streams // shape.procs} streams each: {'kept' if good else 'NOT KEPT'} "
        f"({share:.3f} of {shape.procs} times one's chunks/s, ≥ {LINEAR}; mean TTFT and median ITL off by {off:.3f} "
        f"ms, ≤ {CLOSE_MS}; verdict {row.verdict}; limit: {_limit(row)})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
