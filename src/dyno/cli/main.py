"""`dyno`: a table of contents of the commands, and the one place that catches errors."""

import argparse
import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dyno import __version__, plugins, secrets
from dyno.cli import exit_codes
from dyno.cli.parser import Parser
from dyno.cli.terminal import shown
from dyno.errors import DynoError, UsageError, describe_error, limit_advice
from dyno.option import named_by

# Group → name → the function in dyno.cli that adds its flags, and what it does. None is loaded before it is asked for.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "start here": {
        "demo": (
            "run.add_demo",
            "compare formats of a small model that comes with dyno, in a minute",
        ),
    },
    "measure": {
        "bench serve": (
            "serve.add",
            "measure a server, or an engine that dyno starts, under a given load",
        ),
        "bench throughput": (
            "offline.add_throughput",
            "offline: hand all prompts to an engine at once",
        ),
        "bench latency": ("offline.add_latency", "offline: time one batch, many times"),
        "bench micro": (
            "micro.add",
            "speed of prompt processing and generation, as llama-bench measures it",
        ),
        "bench forward": (
            "forward.add",
            "vLLM's own benchmark of its forward passes (vLLM 0.33 and newer)",
        ),
        "eval": (
            "eval.add",
            "score the answers of a server or engine: built-in tasks, lm-evaluation-harness",
        ),
        "find": (
            "find.add",
            "find the highest load that a server carries within a latency target",
        ),
        "tune": (
            "tune.add",
            "find an engine's best settings for a load; repeat the command to resume",
        ),
        "run": ("run.add", "run a study file; repeat the command to resume"),
    },
    "results": {
        "runs": ("runs.add", "list, show, tag, delete and pack runs and studies"),
        "report": ("report.add", "make a page, Markdown, CSV or pictures of results"),
        "compare": ("compare.add", "test whether two results really differ"),
        "explain": (
            "explain.add",
            "split the latency of requests into parts: where the time went",
        ),
        "audit": ("audit.add", "check any tool's results for errors"),
        "import": ("audit.add_import", "store other tools' results beside the runs"),
        "sql": ("sql.add", "query all runs and studies with SQL"),
    },
    "set up": {
        "engines": ("engines.add", "list, install, start and remove engines"),
        "models": (
            "models.add",
            "fetch, convert, quantize and verify models; fetch data sets",
        ),
        "rigs": ("rigs.add", "list what dyno has running on other machines, and stop it"),
        "doctor": (
            "doctor.add",
            "describe this machine; find the load up to which dyno's timings hold",
        ),
        "plugins": ("plugins.add", "list plug-ins and what they add"),
        "completion": ("completion.add", "print a completion script for bash, zsh or fish"),
    },
}
_GROUPS = {"bench": "measure an engine"}
# vLLM's other benchmarks, and what is nearest to them.
_NOT_HERE = {
    "sweep": "write a study with a list for each setting, and run it with `dyno run`.",
    "startup": "`dyno bench serve --engine vllm` reports how long the engine's start took, and its phases.",
    "mm-processor": "dyno sends text only.",
}


@shown()
def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        secrets.forget()
        secrets.learn(secrets.values(os.environ))
        command: Callable[[argparse.Namespace], int] = options.command
        with named_by(_study_keys(options)), _with_plugin_problems():
            return command(options)
    except DynoError as e:
        # Indent further lines: a server's text can't look like dyno's.
        print("dyno: " + str(e).replace("\n", "\n  "), file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("\ndyno: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away: `dyno runs | head`
        sys.stderr.close()
        return 1
    except MemoryError:
        print(
            "dyno: out of memory. Free some, or raise the limit (`ulimit -v`).",
            file=sys.stderr,
        )
        return 1
    except OSError as e:  # wherever it wasn't foreseen
        # Python asks whether such a file is there, and gets an error for an answer
        if e.errno == errno.ENAMETOOLONG:
            print(
                f"dyno: The file name is too long: {str(e.filename)[:60]}….",
                file=sys.stderr,
            )
            return UsageError.exit_code
        print(
            f"dyno: {describe_error(e)}. {limit_advice(e) or ''}".rstrip(), file=sys.stderr
        )
        return 1
    except Exception as e:  # a bug: one line with its place, no page of frames
        if os.environ.get("DYNO_TRACEBACK"):
            raise
        frames = traceback.extract_tb(e.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        what = f"{type(e).__name__}: {e}. Please report it, with what it prints if DYNO_TRACEBACK=1 is set."
        print(f"dyno: this is a bug in dyno, at {place}: {what}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _with_plugin_problems() -> Iterator[None]:
    """Print what went wrong with plug-ins, which fails no command."""
    try:
        yield
    finally:
        for problem in plugins.take_problems():
            print(f"dyno: {problem} `dyno plugins` lists them.", file=sys.stderr)


def _study_keys(options: argparse.Namespace) -> Mapping[str, str]:
    """Return flag → key where the command's settings are those of a study: messages name them by their keys."""
    if getattr(options, "settings", "") != "keys":
        return {}
    from dyno.api.vocabulary import keys

    return keys()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    top, words = parser(), _dashed(argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    _check_order(top, words)
    options: argparse.Namespace
    options, rest = top.parse_known_args(words)
    options.words = words
    if getattr(options, "passes_on", False):
        from dyno.cli.settings import pass_on

        pass_on(rest, options)
    elif rest:
        raise UsageError(options.parser.unrecognized(rest, top))
    if ignored := getattr(options, "ignored", []):
        from dyno.cli.flags import report_ignored

        report_ignored(ignored)
    return options


def _check_order(top: Parser, words: list[str]) -> None:
    """Refuse a flag before its command: it would be skipped, and its value be taken for the command."""
    p = top
    for word in words:
        if not p.group or word in p.flags:
            return
        if word.startswith("-"):
            raise UsageError(f"{p.unrecognized([word], top)} Flags follow the command.")
        if word not in p.commands():
            return
        p = p.commands()[word]


def _dashed(argv: Sequence[str]) -> list[str]:
    """Read --num_prompts as --num-prompts: vLLM takes both. A dot begins a key of the engine's own."""
    out = []
    for word in argv:
        name = re.match(r"--[\w-]+(?=[=.]|$)", word)
        out.append(name[0].replace("_", "-") + word[name.end() :] if name else word)
    return out


def parser() -> Parser:
    parts = ["Measure LLM inference engines under a known load, and check the numbers."]
    for title, commands in COMMANDS.items():
        parts.append(
            "\n".join(
                [
                    f"{title}:",
                    *(f"  {name:<17} {about}" for name, (_, about) in commands.items()),
                ]
            )
        )
    top = Parser(
        prog="dyno",
        usage="dyno COMMAND …",
        description="\n\n".join(parts),
        epilog="`dyno help COMMAND` shows a command's flags and examples.\n\n"
        + exit_codes.describe(3, 4, 5),
    )
    top.add_argument(
        "--version",
        action="version",
        version=f"dyno {__version__}",
        help="show the version and exit",
    )
    groups = {
        "": top.add_subparsers(
            required=True, metavar="COMMAND", prog="dyno", help=argparse.SUPPRESS
        )
    }
    for name, (where, about) in (
        item for commands in COMMANDS.values() for item in commands.items()
    ):
        group, _, word = name.rpartition(" ")
        if group not in groups:
            about_group = _GROUPS[group]
            inner = groups[""].add_parser(
                group, help=about_group, description=_sentence(about_group)
            )
            inner.lacks = {"": _NOT_HERE}
            groups[group] = inner.add_subparsers(
                title="benchmarks", required=True, metavar="BENCHMARK"
            )
        p = groups[group].add_parser(word, help=about, description=_sentence(about))
        p.where = where
    return top


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
