"""A sink: a line per run in the file that DYNO_EXAMPLE_SINK names. It runs in a process of its own."""

import json
import os
from pathlib import Path

import dyno


def append(folder: Path) -> None:
    run = dyno.MeasuredRun(folder)
    line = {"run": str(folder), "verdict": run.verdict, "figures": run.figures}
    path = os.environ.get("DYNO_EXAMPLE_SINK")
    if path is None:
        print("DYNO_EXAMPLE_SINK is not set.")  # nobody sees it
        return
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
