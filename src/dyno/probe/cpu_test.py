"""Measure how fast the CPU reads memory and multiplies matrices: a small test in its own process.

Run as `python -m dyno.probe.cpu_test CORES FREE_BYTES DYNO`, with one thread for each call into BLAS (the caller sets
that). Each core has a process, and all do the same thing at the same times. Prints JSON. DYNO: the caller's process id.
"""

import contextlib
import ctypes
import functools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MiB = 1 << 20
SIZES = [n * MiB for n in (4, 8, 16, 32, 64, 128, 256, 512)]
LARGE = 2048 * MiB  # many cores come with caches in which the others fit
MANY_CORES = 16
SHARE_MIN = 256 * 1024  # of a process; below, the call itself takes longer than the reading
ROUNDS = 3
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
SIDE = 512  # of the matrices: they fit a core's own cache

# how often, in how many seconds, and how many of them on the processor
Slot = tuple[int, float, float]


def sizes(cores: int, free_bytes: int) -> list[int]:
    wanted = [*SIZES, LARGE] if cores >= MANY_CORES else SIZES
    return [n for n in wanted if n // cores >= SHARE_MIN and n <= free_bytes // 4]


def main() -> None:
    cores, free, dyno = (int(word) for word in sys.argv[1:4])
    die_with(dyno)
    print(json.dumps(measure(cores, sizes(cores, free))))


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies: killed with -9, dyno can't end a load on all cores."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def measure(cores: int, wanted: list[int]) -> dict[str, Any]:
    """Return bytes/s by size, operations/s, and of the time that the processes wanted, the part they were given."""
    context = multiprocessing.get_context("fork")  # with numpy loaded once
    start, queue = context.Barrier(cores), context.SimpleQueue()
    arguments = (cores, wanted, start, queue.put, os.getpid())
    processes = [context.Process(target=_work, args=arguments) for _ in range(cores)]
    for process in processes:
        process.start()
    rows = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return _summarize(rows, cores, wanted)


def _slots(wanted: list[int]) -> list[tuple[int, float]]:
    """Return the size and seconds of each test; size 0: matrices."""
    once = [(size, _seconds(size)) for size in wanted]
    return [*once, (0, 0.1)] * ROUNDS


def _seconds(size: int) -> float:
    """Return the time of a test. The larger, the longer: a few passes at least."""
    if size <= 128 * MiB:
        return 0.04
    return 0.08 if size <= 512 * MiB else 0.15


def _work(
    cores: int,
    wanted: list[int],
    start: Any,
    put: Callable[[list[Slot]], None],
    parent: int,
) -> None:
    die_with(parent)
    # touched here: it is near this core
    memory = np.ones(max(wanted, default=MiB) // cores // 4, dtype=np.float32)
    matrix = np.ones((SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(matrix)
    rows = []
    for size, long_s in _slots(wanted):
        part = memory[: size // cores // 4]
        once: Callable[[], Any] = functools.partial(np.dot, part, part)
        if not size:
            once = functools.partial(np.matmul, matrix, matrix, product)
        start.wait()
        rows.append(_rate(once, long_s))
    put(rows)


def _rate(once: Callable[[], Any], long_s: float) -> Slot:
    count, began, used = 0, time.monotonic(), time.process_time()
    while count == 0 or time.monotonic() < began + long_s:
        once()
        count += 1
    return count, time.monotonic() - began, time.process_time() - used


def _summarize(rows: list[list[Slot]], cores: int, wanted: list[int]) -> dict[str, Any]:
    best: dict[int, float] = {}
    wall_s = used_s = 0.0
    for i, (size, _) in enumerate(_slots(wanted)):
        if size:
            rate = sum(row[i][0] * (size // cores // 4 * 4) / row[i][1] for row in rows)
        else:  # by the time on the processor: what others take away slows no core's arithmetic
            rate = sum(row[i][0] * 2 * SIDE**3 / max(row[i][2], 1e-9) for row in rows)
        best[size] = max(best.get(size, 0.0), rate)
        wall_s += sum(row[i][1] for row in rows)
        used_s += sum(row[i][2] for row in rows)
    flops = best.pop(0)
    return {"bandwidth_by_size": best, "fp32": flops, "given": used_s / wall_s}


if __name__ == "__main__":
    main()
