"""Measure two settings at several loads, and print one table. A study resumes where it was stopped."""

import sys
from typing import Any

import numpy as np

import dyno

STUDY: dict[str, Any] = {
    "engines": {
        "a": {"kind": "fake", "args": ["gap_ms=2"]},
        "b": {"kind": "fake", "args": ["gap_ms=4"]},
    },
    "workloads": {"short": {"input_len": 16, "output_len": 8}},
    "loads": {"closed": {"max_concurrency": [2, 4], "requests_per_stream": 5}},
    "trial": {"correctness_check": False},
}


def main() -> None:
    try:
        result = dyno.study(STUDY, name="several").run()
    except dyno.Interrupted as e:
        sys.exit(str(e))
    for run in result:
        slowest = np.nanmax(run.records["e2el_ms"])
        print(
            f"{run.label}: {run['output_throughput']:.1f} tok/s, slowest {slowest:.1f} ms, {run.verdict}"
        )


if __name__ == "__main__":
    main()
