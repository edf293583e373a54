"""Measure how fast an accelerator reads memory and multiplies matrices, where dyno has no data sheet for it.

Run by path with an interpreter that has torch, such as the engine's own: it needs nothing else. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable

ROUNDS = 5
LONG_S = 0.15
SIDE = 8192  # of the matrices


def main() -> None:
    import torch

    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 1 << 28
    count = min(free // 8, 1 << 31) // 4
    side = SIDE if free > 1 << 30 else 512
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    x, y = (torch.ones(count, device=device) for _ in range(2))
    moved = max(
        rate(lambda: y.copy_(x), wait) * 8 * count,  # what is read and what is written
        rate(lambda: torch.dot(x, y), wait) * 8 * count,
    )
    flops = {}
    for name, kind in (
        ("fp32", torch.float32),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
    ):
        a = torch.ones(side, side, device=device, dtype=kind)
        out = torch.empty_like(a)
        flops[name] = rate(lambda: torch.mm(a, a, out=out), wait) * 2 * side**3  # noqa: B023 (called at once)
    print(json.dumps({"bandwidth": moved, "flops": flops}))


def rate(once: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return how many times a second it runs, the best of several."""
    once()
    wait()
    best = 0.0
    for _ in range(ROUNDS):
        count, began = 0, time.monotonic()
        while count == 0 or time.monotonic() < began + LONG_S:
            for _ in range(4):  # the call may return before the work is done
                once()
            wait()
            count += 4
        best = max(best, count / (time.monotonic() - began))
    return best


if __name__ == "__main__":
    main()
