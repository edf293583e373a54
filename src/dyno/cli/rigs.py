"""`dyno rigs`: what dyno has running on other machines, since when, and how to stop it."""

import argparse
import sys

import msgspec

from dyno.cli import exit_codes
from dyno.errors import RigError, UsageError
from dyno.facts.elsewhere import RigEntry
from dyno.report.table import terminal, text_table

_EXAMPLES = """examples:
  dyno rigs                 list machines, studies and their states
  dyno rigs down h100       stop what runs on a rig; finished trials come home first
  dyno rigs down            stop everything"""

_NOTHING = "Nothing runs on other machines."


def add(p: argparse.ArgumentParser) -> None:
    p.epilog = _EXAMPLES
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(command=list_)
    verbs = p.add_subparsers(title="verbs", metavar="VERB")
    does = "stop what runs on a rig, fetch what is finished, and clean up"
    down = verbs.add_parser("down", help=does, description=f"{does[0].upper()}{does[1:]}.")
    down.add_argument(
        "names",
        nargs="*",
        metavar="RIG",
        help="names of rigs (default: all that are listed)",
    )
    down.add_argument(
        "--forget",
        action="store_true",
        help="only remove them from the list; nothing is stopped",
    )
    down.set_defaults(command=stop)


def list_(options: argparse.Namespace) -> int:
    from dyno.remote import elsewhere

    entries = elsewhere.register().entries()
    states = {entry.id: elsewhere.state(entry) for entry in entries}
    if options.json:
        rows = [
            {**msgspec.to_builtins(entry), "state": states[entry.id]} for entry in entries
        ]
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    elif not entries:
        print(_NOTHING)
    else:
        titles = ["rig", "study", "machine", "since (UTC)", "state"]
        lines = [[e.rig, e.study, _where(e), _time(e), states[e.id]] for e in entries]
        print(*terminal(text_table(titles, lines, keep=(0, 4))), sep="\n")
    return exit_codes.DONE


def _where(entry: RigEntry) -> str:
    if entry.dstack_run:
        return f"dstack {entry.dstack_run}"
    return entry.ssh.host if entry.ssh else "unknown"


def _time(entry: RigEntry) -> str:
    return entry.since[:16].replace("T", " ")


def stop(options: argparse.Namespace) -> int:
    from dyno.remote import elsewhere

    register = elsewhere.register()
    entries = register.entries()
    names = [entry.rig for entry in entries]
    if unknown := [name for name in options.names if name not in names]:
        raise UsageError(
            f"Nothing runs on {unknown[0]}. Running now: {', '.join(names) or 'nothing'}."
        )
    if not entries:
        print(_NOTHING)
    failed = False
    for entry in (e for e in entries if not options.names or e.rig in options.names):
        if options.forget:
            register.remove(entry)
            continue

        def say(text: str, rig: str = entry.rig) -> None:
            print(f"[{rig}] {text}", file=sys.stderr, flush=True)

        try:
            elsewhere.take_down(entry, say)
            print(f"{entry.rig}: stopped and cleaned up ({entry.study} on {_where(entry)})")
        except RigError as e:
            print(f"dyno: {e} It stays in the list; --forget removes it.", file=sys.stderr)
            failed = True
    return exit_codes.FAILED if failed else exit_codes.DONE
