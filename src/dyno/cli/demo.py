"""`dyno demo`: the main job on the embedded engine, in under a minute."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    p = commands.add_parser("demo", help="start here: a small comparison on an engine that comes with dyno")
    p.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno.cli.progress import Line
    from dyno.experiment.demo import demo
    from dyno.report.table import comparison

    rows = demo(options.runs, Line())
    comparison(rows)
    return 0
