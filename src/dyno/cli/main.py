"""`dyno`: a table of contents of the commands, and the one place that catches errors."""

import argparse
import sys
from collections.abc import Callable, Sequence

from dyno import __version__
from dyno.cli import demo, doctor, engines, run, runs, serve
from dyno.errors import DynoError

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(_dashed(sys.argv[1:] if argv is None else argv))
    command: Command = options.command
    try:
        return command(options)
    except DynoError as e:
        print(f"dyno: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("\ndyno: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away: `dyno runs | head`
        sys.stderr.close()
        return 1


def _dashed(argv: Sequence[str]) -> list[str]:
    """--num_prompts is --num-prompts, as vLLM takes both."""
    out = []
    for word in argv:
        name, equals, value = word.partition("=")
        out.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
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
    run.add(commands)
    runs.add(commands)
    engines.add(commands)
    doctor.add(commands)
    return parser
