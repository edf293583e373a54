"""`dyno doctor`: what this machine is, and up to which load this client's numbers are true here."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    p = commands.add_parser("doctor", help="what this machine is, and what load this client can truthfully put on")
    p.add_argument("--quick", action="store_true", help="describe the machine, don't calibrate")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno.probe import host
    from dyno.units import human_bytes

    facts = host.describe()
    if not options.json:
        for name, value in facts.items():
            print(f"{name.replace('_', ' '):<20} {human_bytes(value) if name.endswith('bytes') else value}")
    return 0
