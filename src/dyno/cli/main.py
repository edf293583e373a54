"""`dyno`: a table of contents of the commands, and the one place that catches errors."""

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from dyno import __version__, limits, secrets
from dyno.cli import audit, compare, demo, doctor, engines, micro, offline, report, run, runs, serve, sql
from dyno.cli.terminal import shown
from dyno.errors import DynoError, UsageError

Command = Callable[[argparse.Namespace], int]


@shown()
def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(_dashed(sys.argv[1:] if argv is None else argv))
    if rest and not getattr(options, "hands_on", False):  # on to an engine, whose own parser checks them
        near = get_close_matches(rest[0].partition("=")[0], _flags(parser), n=1, cutoff=0.75)
        hint = f"Did you mean {near[0]}? " if near else ""
        print(
            f"dyno: unrecognized arguments: {' '.join(secrets.without((), rest))}. {hint}--help lists what there is.",
            file=sys.stderr,
        )
        return UsageError.exit_code
    options.rest = rest
    secrets.forget()
    secrets.learn(secrets.values(os.environ))
    command: Command = options.command
    try:
        return command(options)
    except DynoError as e:
        # Further lines stand back: a server's words can't look like dyno's own.
        print("dyno: " + str(e).replace("\n", "\n  "), file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("\ndyno: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away: `dyno runs | head`
        sys.stderr.close()
        return 1
    except MemoryError:
        print("dyno: memory ran out. Free some, raise the limit (`ulimit -v`), or ask for less.", file=sys.stderr)
        return 1
    except OSError as e:  # wherever it wasn't foreseen
        if e.errno == errno.ENAMETOOLONG:  # Python asks whether such a file is there, and gets an error for an answer
            print(f"dyno: No file has so long a name: {str(e.filename)[:60]}….", file=sys.stderr)
            return UsageError.exit_code
        print(f"dyno: {e}. {limits.advice(e) or ''}".rstrip(), file=sys.stderr)
        return 1
    except Exception as e:  # a bug: one line with its place, no page of frames
        if os.environ.get("DYNO_TRACEBACK"):
            raise
        frames = traceback.extract_tb(e.__traceback__)
        at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        print(f"dyno: this is a bug in dyno, at {at}: {type(e).__name__}: {e}. Please report it, with what it prints "
            "if DYNO_TRACEBACK=1 is set.", file=sys.stderr)  # fmt: skip
        return 1


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """Of all commands."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            found += [flag for inner in action.choices.values() for flag in _flags(inner)]
    return found


def _dashed(argv: Sequence[str]) -> list[str]:
    """--num_prompts is --num-prompts, as vLLM takes both. What follows a dot is a key of the engine's own."""
    out = []
    for word in argv:
        name = re.match(r"--[^=.]*", word)
        out.append(name[0].replace("_", "-") + word[name.end() :] if name else word)
    return out


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dyno",
        description="A dynamometer for LLM inference engines: known load in, checked numbers out.",
        epilog="Start with `dyno demo`; then `dyno bench serve --base-url http://HOST:PORT`.",
    )
    parser.add_argument("--version", action="version", version=f"dyno {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo.add(commands)
    bench = commands.add_parser("bench", help="measure an engine").add_subparsers(
        title="benchmarks", required=True, metavar="WHAT"
    )
    serve.add(bench)
    offline.add(bench)
    micro.add(bench)
    run.add(commands)
    runs.add(commands)
    sql.add(commands)
    report.add(commands)
    compare.add(commands)
    audit.add(commands)
    engines.add(commands)
    doctor.add(commands)
    return parser
