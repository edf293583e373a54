"""`dyno`: a table of contents of the commands, and the one place that catches errors."""

import argparse
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dyno import __version__, secrets
from dyno.cli.terminal import shown
from dyno.errors import DynoError, UsageError, limit_advice

# Name → the function in dyno.cli that adds its flags, and what it does. None is loaded before it is asked for.
COMMANDS = {
    "demo": ("run.add_demo", "start here: a small comparison on an engine that comes with dyno"),
    "bench": ("", "measure an engine"),
    "bench serve": ("serve.add", "an online serving benchmark: of a URL, or of an engine that dyno starts"),
    "bench throughput": (
        "offline.add_throughput", "an offline benchmark: all prompts at once, how many tokens a second"
    ),
    "bench latency": ("offline.add_latency", "an offline benchmark: one batch, again and again, how long it takes"),
    "bench micro": ("micro.add", "prompt processing and token generation of one request, as llama-bench measures them"),
    "run": ("run.add", "a whole comparison from one file; stopped, it goes on with the same command"),
    "runs": ("runs.add", "list, show, tag, delete and pack runs and studies"),
    "sql": ("sql.add", "query all runs and studies with SQL"),
    "report": ("report.add", "a page, Markdown, CSV or pictures of runs, studies and imported results"),
    "compare": ("compare.add", "is the difference between two runs, studies or result files real"),
    "audit": ("audit.add", "read anybody's results, say what they are worth"),
    "import": ("audit.add_import", "read other tools' results and keep them beside the runs"),
    "engines": ("engines.add", "list, install and remove engines; start one in the foreground"),
    "doctor": ("doctor.add", "describe this machine; find the load up to which dyno's timings are accurate"),
}  # fmt: skip


@shown()
def main(argv: Sequence[str] | None = None) -> int:
    try:
        top = parser()
        words = _dashed(sys.argv[1:] if argv is None else argv)
        options, rest = top.parse_known_args(words)
        if rest and not getattr(options, "hands_on", False):  # on to an engine, whose own parser checks them
            raise UsageError(_unrecognized(top, rest))
        options.rest, options.words = rest, words
        secrets.forget()
        secrets.learn(secrets.values(os.environ))
        command: Callable[[argparse.Namespace], int] = options.command
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
        print(f"dyno: {e}. {limit_advice(e) or ''}".rstrip(), file=sys.stderr)
        return 1
    except Exception as e:  # a bug: one line with its place, no page of frames
        if os.environ.get("DYNO_TRACEBACK"):
            raise
        frames = traceback.extract_tb(e.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        what = f"{type(e).__name__}: {e}. Please report it, with what it prints if DYNO_TRACEBACK=1 is set."
        print(f"dyno: this is a bug in dyno, at {place}: {what}", file=sys.stderr)
        return 1


def _unrecognized(parser: "Parser", words: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(words[0].partition("=")[0], _flags(parser), n=1, cutoff=0.75)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"unrecognized arguments: {' '.join(secrets.without((), words))}. {hint}--help lists what there is."


def _flags(parser: "Parser") -> list[str]:
    """Return all flags of all commands."""
    parser.fill()
    flags: list[str] = []
    for action in parser._actions:
        flags += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            flags += [flag for inner in action.choices.values() for flag in _flags(inner)]
    return flags


def _dashed(argv: Sequence[str]) -> list[str]:
    """Read --num_prompts as --num-prompts: vLLM takes both. A dot begins a key of the engine's own."""
    out = []
    for word in argv:
        name = re.match(r"--[^=.]*", word)
        out.append(name[0].replace("_", "-") + word[name.end() :] if name else word)
    return out


class Parser(argparse.ArgumentParser):
    """Gets its flags when it parses: a list of the commands needs none."""

    where = ""

    def fill(self) -> None:
        module, _, function = self.where.partition(".")
        self.where = ""
        if module:
            getattr(importlib.import_module(f"dyno.cli.{module}"), function)(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)


def parser() -> Parser:
    top = Parser(
        prog="dyno",
        description="A dynamometer for LLM inference engines: known load in, checked numbers out.",
        epilog="Start with `dyno demo`; then `dyno bench serve --base-url http://HOST:PORT`.",
    )
    top.add_argument("--version", action="version", version=f"dyno {__version__}")
    groups = {"": top.add_subparsers(title="commands", required=True, metavar="COMMAND")}
    for name, (where, about) in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        p = groups[group].add_parser(word, help=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        p.where = where
        if not where:
            groups[name] = p.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    return top
