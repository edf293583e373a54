"""llama.cpp, by the real llama-bench."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from . import FailedError, Job, RefusedError, WorkerEngine, iteration, now_ns


class LlamaBenchWorker(WorkerEngine):
    """One call of llama-bench for each test."""

    def __init__(self, flags: list[str]) -> None:
        self.binary, *self.flags = flags

    def facts(self) -> dict[str, Any]:
        return {"vocab": 1, "special": [], "target": {}, "repeats": True}

    def micro(self, job: Job) -> list[dict[str, Any]]:
        """Run all repetitions at once: it warms up itself before them."""
        d, p, n = len(job["depth"]), len(job["prompt"]), job["generate"]
        command = [self.binary, *self.flags]
        if p and n:
            command += ["-pg", "%d,%d" % (p, n), "-p", "0", "-n", "0"]
        else:
            command += ["-p", str(p), "-n", str(n)]
        if d:
            command += ["-d", str(d)]  # not in every build
        command += ["-r", str(job["repetitions"])]
        if not job["warm"]:
            command.append("--no-warmup")
        used = _children_s()
        done = subprocess.run(
            [*command, "-o", "jsonl"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise FailedError("llama-bench exited with code %d" % done.returncode)
        lines = [
            json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")
        ]
        result = next((t for t in lines if (t["n_prompt"], t["n_gen"]) == (p, n)), None)
        if result is None:
            raise FailedError("llama-bench reported nothing for this test")
        samples = result.pop("samples_ns")
        # It reports how long they took and not when: they came last, one after the other.
        start = now_ns() - sum(samples)
        result.pop("samples_ts", None)
        iterations = []
        for took in samples:
            first = None  # a mixed test has one time for both parts
            if not n:
                first = took
            elif not p:
                first = 0
            answer = {
                "prompt_tokens": d + p,
                "cached_tokens": d,
                "output_tokens": n,
                "wanted_tokens": n,
                "decoded_tokens": n,
                "start_ns": 0,
                "first_ns": first,
                "end_ns": took,
            }
            iterations.append({**iteration(start, start + took, [answer]), "told": result})
            start += took
        # it has exited: only this process can measure that
        iterations[0]["cpu_s"] = _children_s() - used
        return iterations

    def generate(self, job: Job) -> dict[str, Any]:
        raise RefusedError("llama-bench has no such test")


def _children_s() -> float:
    """Return the CPU seconds of the children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


ENGINE = LlamaBenchWorker
