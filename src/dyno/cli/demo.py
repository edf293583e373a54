"""`dyno demo`: the main job on the embedded engine, in under a minute."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    p = commands.add_parser("demo", help="start here: a small comparison on an engine that comes with dyno")
    p.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from dyno.cli.progress import Line
    from dyno.experiment.demo import demo
    from dyno.load.progress import Stop
    from dyno.report.table import comparison

    stop, rows = Stop(), []
    try:
        for row in demo(options.runs, Line(), stop):
            rows.append(row)  # one by one: what there is survives a Ctrl-C
    except KeyboardInterrupt:
        stop.requested = True
    comparison(
        ("weights", "streams"),
        [((row.quantization, str(row.concurrency)), row.outcome.result) for row in rows],
        Console(),
    )
    print(f"\nFacts of each run: {options.runs}/ (`dyno runs` lists them, `dyno runs show FOLDER` prints one in full)")
    print("Your own server:   dyno bench serve --base-url http://HOST:PORT --max-concurrency 16 --num-prompts 200")
    return 130 if stop.requested else 0
