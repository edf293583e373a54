"""`dyno find`: the highest load within a target."""

import argparse
import re
import sys

import msgspec

from dyno.cli import exit_codes, flags, preparing, serve
from dyno.cli.parser import Parser
from dyno.errors import UsageError
from dyno.facts import limits
from dyno.facts.find import FindSpec

_EXAMPLES = """examples:
  dyno find --base-url http://127.0.0.1:8000 --target ttft_p99:500 tpot_p50:30 failed:0
  dyno find --engine llamacpp --quantization Q8_0 --target e2el_p90:2000 --from 1 --to 32
  dyno find --port 8000 --over rate --target ttft_p95:300 --budget 10m --confirm 2m
  dyno find --port 8000 --dataset-name chat --turns 5 --think-time 2 --target ttft_p90:800

A target is one or more FIGURE:LIMIT: ttft, tpot, itl or e2el with _mean or _p50 to _p99, in milliseconds; failed, as
a share of the requests.
All flags of `dyno bench serve` that describe the server, the prompts and the sampling work here.

"""
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")


def add(p: Parser) -> None:
    serve.add(p)
    p.description = (
        "Find the highest load that a server, or an engine that dyno starts, carries within a target. It probes loads "
        "in turn, each only until it is decided; the answer has a 95 % interval."
    )
    p.epilog = _EXAMPLES + exit_codes.describe(exit_codes.VOID)
    g = p.add_argument_group("search")
    g.add_argument(
        "--target", nargs="+", required=True, metavar="FIGURE:LIMIT",
        help=f"what the load must keep, such as {limits.EXAMPLE}",
    )  # fmt: skip
    flags.add(g, FindSpec, "over", "least", "most", "resolution")
    for name in ("budget_s", "confirm_s"):
        flags.add(g, FindSpec, name, type=span)
    p.set_defaults(command=run)


def span(text: str) -> float:
    match = _SPAN.fullmatch(text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write seconds, or 5m, or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def run(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct.find import find
    from dyno.load.progress import Stop
    from dyno.report import find as text
    from dyno.store.run import create

    flags.check_refused(options)
    spec = _spec(options)
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
    if options.json:
        print(msgspec.json.encode(answer).decode())
    else:
        print("\n".join(text.lines(answer)))
    print(f"Search: {folder}", file=sys.stderr)
    if answer.ended == "interrupted":
        return exit_codes.INTERRUPTED
    if answer.confirmed is not None and answer.confirmed.outcome == "misses":
        return exit_codes.VOID
    return exit_codes.FAILED if answer.low is None else 0


def _beforehand(spec: FindSpec) -> str:
    minutes = spec.budget_s / 60
    return (
        f"Searching for the highest load with {', '.join(x.words for x in spec.limits)}; at most {minutes:.0f} minutes"
    )


def _spec(options: argparse.Namespace) -> FindSpec:
    wanted = limits.parse(options.target)
    for limit in wanted:
        if limit.stem not in ("ttft", "tpot", "itl", "e2el", "failed") or limit.statistic == "max":
            raise UsageError(
                f"--target {limit.stem}: a search takes ttft, tpot, itl or e2el with _mean or a percentile."
            )
    wanted = [x if x.statistic or x.stem == "failed" else msgspec.structs.replace(x, statistic="p99") for x in wanted]
    values = {name: value for name, value in flags.values(options, FindSpec).items() if name != "limits"}
    spec = FindSpec(limits=wanted, **values)
    low, high, _ = spec.range
    if low > high:
        raise UsageError(f"--from {low:g} is above --to {high:g}.")
    return spec
