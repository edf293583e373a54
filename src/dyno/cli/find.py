"""`dyno find`: the highest load within a target."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dyno.cli import exit_codes, flags, preparing, serve
from dyno.cli.parser import Parser
from dyno.errors import UsageError
from dyno.facts.find import TARGET, FindSpec, span_s, spec_of
from dyno.numbers import duration

_EXAMPLES = """examples:
  dyno find --base-url http://127.0.0.1:8000 --target ttft_p99:500 tpot_p50:30 failed:0
  dyno find --engine llamacpp --quantization Q8_0 --target e2el_p90:2000 --from 1 --to 32
  dyno find --port 8000 --over rate --target ttft_p95:300 --budget 10m --confirm 2m
  dyno find --port 8000 --dataset-name chat --turns 5 --think-time 2 --target ttft_p90:800

A target is one or more FIGURE:LIMIT: ttft, tpot, itl or e2el with _mean or _p50 to _p99, in milliseconds; failed, as
a share of the requests.
All flags of `dyno bench serve` that describe the server, the prompts and the sampling work here.

"""


def add(p: Parser) -> None:
    serve.add(p)
    p.description = (
        "Find the highest load that a server, or an engine that dyno starts, carries within a target. It probes loads "
        "in turn, each only until it is decided; the answer has a 95 % interval."
    )
    p.epilog = _EXAMPLES + exit_codes.describe(exit_codes.VOID)
    g = p.add_argument_group("search")
    g.add_argument(TARGET.flags, nargs=TARGET.nargs, required=True, metavar=TARGET.metavar, help=TARGET.help)
    flags.add(g, FindSpec, "over", "least", "most", "resolution")
    for name in ("budget_s", "confirm_s"):
        flags.add(g, FindSpec, name, type=span)
    p.set_defaults(command=run)


def span(text: str) -> float:
    if (value := span_s(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write seconds, or 5m, or 2h")
    return value


def run(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct.find import find
    from dyno.load.progress import Stop
    from dyno.report import find as text
    from dyno.store.run import create

    flags.check_refused(options)
    spec = spec_of(options.target, flags.values(options, FindSpec))
    for flag, value in (("--max-concurrency", options.max_concurrency), ("--duration", options.duration)):
        if value and not (flag == "--max-concurrency" and spec.over == "rate"):
            raise UsageError(f"{flag}: `dyno find` chooses the load itself. Remove it, or use --from and --to.")
    each = list(serve.loads(options))
    if len(each) > 1 or options.repeats > 1:
        raise UsageError("`dyno find` chooses the loads itself: give it one setting, without --repeats.")
    trial, headers = serve.spec(each[0][1])
    preparing.for_engines([trial], options)
    folder = create(options.runs, f"find-{trial.label or options.engine or 'server'}").path
    stop = Stop()
    with ProgressLine(bar=not options.disable_tqdm) as watcher:
        watcher.phase(_beforehand(spec))
        answer = find(trial, spec, folder=folder, headers=headers, watcher=watcher, stop=stop)
    show(answer, text.lines(answer), folder, as_json=options.json)
    if answer.ended == "interrupted":
        return exit_codes.INTERRUPTED
    if answer.confirmed is not None and answer.confirmed.outcome == "misses":
        return exit_codes.VOID
    return exit_codes.FAILED if answer.low is None else 0


def show(answer: msgspec.Struct, lines: Iterable[str], folder: Path, *, as_json: bool) -> None:
    """Print the answer of a search, and where its results are."""
    print(msgspec.json.encode(answer).decode() if as_json else "\n".join(lines))
    print(f"Search: {folder}", file=sys.stderr)


def _beforehand(spec: FindSpec) -> str:
    target = ", ".join(limit.words for limit in spec.limits)
    return f"Searching for the highest load with {target}, in 5 to 20 probes and at most {duration(spec.budget_s)}"
