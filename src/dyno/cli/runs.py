"""`dyno runs`: what was measured here; shows a run again, also one that was cut off."""

import argparse
from pathlib import Path
from typing import Any

from dyno.errors import StoreError


def add(commands: Any) -> None:
    p = commands.add_parser("runs", help="list runs, or show one again")
    p.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    p.set_defaults(command=list_)
    verbs = p.add_subparsers(metavar="VERB")
    show = verbs.add_parser("show", help="a run's result; decodes it first if dyno was killed while it ran")
    show.add_argument("run", type=Path, help="its folder")
    show.add_argument("--json", action="store_true")
    show.set_defaults(command=show_)


def list_(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from dyno.store.run import listed, not_begun

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, side in (
        ("run", "left"),
        ("done", "right"),
        ("failed", "right"),
        ("tok/s", "right"),
        ("verdict", "left"),
    ):
        table.add_column(title, justify=side, overflow="fold")  # type: ignore[arg-type]
    runs = listed(options.runs)
    for run in not_begun(options.runs):
        table.add_row(str(run.path), "-", "-", "-", "no measurement: see its engine.log")
    for run in runs:
        if run.whole:
            result = run.result()
            s = result.summary
            table.add_row(str(run.path), str(s.completed), str(s.failed), f"{s.output_throughput:,.1f}", result.verdict)
        else:
            cut = "cut off: `dyno runs show` decodes it" if run.spool_path.exists() else "no measurement"
            state = "running" if run.running() else cut
            table.add_row(str(run.path), "-", "-", "-", state)
    if table.row_count:
        console = Console()
        console.width = max(console.width, 160)  # a folder's name that is broken over lines can't be copied
        console.print(table)
    else:
        print(f"No runs in {options.runs}. `dyno bench serve` and `dyno demo` make some; --runs DIR looks elsewhere.")
    return 0


def show_(options: argparse.Namespace) -> int:
    from dyno.cli.serve import result_file
    from dyno.cli.values import METRICS
    from dyno.experiment.trial import Outcome, finish
    from dyno.report.block import block
    from dyno.store.run import Run

    run = Run(options.run)
    if not run.manifest_path.exists() and run.engine_path.exists():
        raise StoreError(
            f"{options.run} holds no measurement: its engine didn't come up, or was not what was asked for. "
            "engine.json there has the command, engine.log what came of it."
        )
    if not run.manifest_path.exists():
        raise StoreError(f"{options.run} is no run folder: it has no trial.json. `dyno runs` lists those there are.")
    if run.whole:
        outcome = Outcome(run, run.manifest(), run.result())
    elif run.running():
        raise StoreError(f"{options.run} is still running. It shows its result when it ends; Ctrl-C there ends it now.")
    elif run.spool_path.exists():
        outcome = finish(run, keep_raw=True)
    else:
        raise StoreError(f"{options.run} holds no measurement: dyno was stopped before the load began.")
    if options.json:
        import json

        print(json.dumps(result_file(outcome, detailed=False)))
    else:
        print(block(outcome.result, outcome.manifest.trial, list(METRICS[:4])))
    return 0
