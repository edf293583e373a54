"""`dyno bench forward`: vLLM's own benchmark of its model runner, by an installed vLLM. dyno passes all flags on."""

import argparse
import os
import shlex
import sys
from typing import NoReturn

from dyno.cli import settings
from dyno.cli.parser import Parser
from dyno.engines.kinds import kind_of
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, will_do

_KIND = "vllm"
_SINCE = "0.33"
_EXAMPLES = f"""examples:
  dyno bench forward --model NAME --case decode=32*1@4096 --case mix=2048,32*1@4096
  dyno bench forward --model NAME --case decode=32*1@4096 --output-json forward.json

It needs vLLM {_SINCE} or newer, and CUDA. All flags are vLLM's: `vllm bench forward --help` lists them.
"""


def add(p: Parser) -> None:
    p.description = (
        "Time forward passes of exact batches by vLLM's own benchmark. Its output is vLLM's: dyno checks nothing and "
        "keeps no run."
    )
    p.epilog = _EXAMPLES
    p.passes_on = "always"
    p.set_defaults(engine=_KIND, model=None, command=run)
    p.add_argument(
        "--engine-python",
        metavar="PATH",
        help="Python in which vLLM is installed (default: found by dyno)",
    )
    p.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)


def run(o: argparse.Namespace) -> int:
    from dyno.engines.launch import locate  # here: help would load psutil

    spec = EngineSpec(_KIND, python=o.engine_python)
    program = locate(kind_of(_KIND), spec, o.dry_run)
    old = program.version and not will_do(
        program.version, EngineSpec(_KIND, accepts=f">={_SINCE}")
    )
    if old:
        raise UsageError(
            f"`vllm bench forward` is new in vLLM {_SINCE}, but {program.where} has {program.version}. Name a newer "
            f"one with --engine-python, or install it: `dyno engines install vllm --version {_SINCE}.0`."
        )
    python = program.python or "python3"
    model = ["--model", o.model] if o.model else []
    words = [python, "-m", "vllm.entrypoints.cli.main", "bench", "forward", *model]
    words += o.own_args
    if o.dry_run:
        settings.print_plan([shlex.join(words)])
        return 0
    if program.python is None:
        raise UsageError(
            f"{program.where} names no Python. Name the one that has vLLM with --engine-python."
        )
    print("vLLM's own benchmark: dyno checks nothing, and keeps no run.", file=sys.stderr)
    return _become(words)


def _become(command: list[str]) -> NoReturn:
    """Run a command in place of this process: its signals, output and exit code are the command's."""
    sys.stderr.flush()
    os.execv(command[0], command)
