"""`dyno plugins`: the plug-ins that are installed, and what they add."""

import argparse
import json
import os

from dyno import plugins
from dyno.cli import exit_codes
from dyno.report.table import terminal, text_table


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "List installed plug-ins and what they add: data sets, protocols, engines, checks, sinks and charts. Each is "
        "loaded once, so that one that can't be used shows why."
    )
    p.epilog = (
        f"{plugins.SWITCH}=off turns all plug-ins off, {plugins.SWITCH}=NAME,NAME all others. docs/plugins.md says how "
        "to write one.\n\n" + exit_codes.describe()
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    rows = [
        {
            "plugin": added.plugin,
            "version": added.version,
            "adds": added.kind,
            "name": added.name,
            "object": added.value,
            "problem": plugins.problem_of(added),
        }
        for added in plugins.additions()
    ]
    plugins.take_problems()  # they are in the table
    if options.json:
        print(json.dumps(rows))
    elif rows:
        cells = [[*map(str, [*row.values()][:4]), row["problem"] or "ok"] for row in rows]
        print(
            *terminal(text_table(["plug-in", "version", "adds", "name", "state"], cells)),
            sep="\n",
        )
    elif os.environ.get(plugins.SWITCH):
        print(f"No plug-ins: {plugins.SWITCH} is {os.environ[plugins.SWITCH]}.")
    else:
        print("No plug-ins are installed.")
    return exit_codes.FAILED if any(row["problem"] for row in rows) else exit_codes.DONE
