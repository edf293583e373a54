"""`dyno find`: the highest load within a target."""

import argparse
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.cli import exit_codes, flags, preparing, serve, settings
from dyno.cli.parser import Parser
from dyno.engines.kinds import starts
from dyno.errors import UsageError
from dyno.facts.find import TARGET, FindAnswer, FindSpec, span_s, spec_of
from dyno.facts.trial import TrialSpec

_AGAIN_S = 120  # of the run that measures the answer again
# Flags that `dyno bench serve` doesn't have, or that change what is printed alone; True: with any number of values.
_SEARCH_FLAGS = {
    "--target": True, "--over": False, "--from": False, "--to": False, "--resolution": False, "--budget": False,
    "--confirm": False, "--price": True, "--prices": False, "--energy-price": False, "--json": False,
    "--disable-tqdm": False,
}  # fmt: skip
_SWITCHES = ("--json", "--disable-tqdm")
_EXAMPLES = """examples:
  dyno find --base-url http://127.0.0.1:8000 --target ttft_p99:500ms tpot_p50:30ms failed:0
  dyno find --engine llamacpp --quantization Q8_0 --target e2el_p90:2s --from 1 --to 32
  dyno find --port 8000 --over rate --target ttft_p95:300 --budget 10m --confirm 2m
  dyno find --port 8000 --dataset-name chat --turns 5 --think-time 2 --target ttft_p90:800

A target is one or more FIGURE:LIMIT: ttft, tpot, itl or e2el with _mean or _p50 to _p99.9 (500, 500ms, 2s; milliseconds
without a unit); failed and invalid, as shares of the requests and of the answers (0.01 or 1%).
All flags of `dyno bench serve` that describe the server, the prompts and the sampling work here.

"""


def add(p: Parser) -> None:
    serve.add(p)
    p.description = (
        "Find the highest load that a server, or an engine that dyno starts, carries within a target. It probes loads "
        "in turn, each only until it has shown enough; the answer has a 95 % interval."
    )
    p.epilog = _EXAMPLES + exit_codes.describe(exit_codes.VOID, exit_codes.UNDECIDED)
    g = p.add_argument_group("search")
    g.add_argument(
        TARGET.flags,
        nargs=TARGET.nargs,
        required=True,
        metavar=TARGET.metavar,
        help=TARGET.help,
    )
    flags.add(g, FindSpec, "over", "least", "most", "resolution")
    for name in ("budget_s", "confirm_s"):
        flags.add(g, FindSpec, name, type=span)
    settings.add_prices(p.add_argument_group("price of the answer"))
    p.set_defaults(command=run)


def span(text: str) -> float:
    if (value := span_s(text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write seconds, or 5m, or 2h"
        )
    return value


def run(options: argparse.Namespace) -> int:
    from dyno.api.searching import cost_of
    from dyno.report import find as text
    from dyno.search.find import expected
    from dyno.study.prices import price_rules

    flags.check_refused(options)
    rules = price_rules(options.price, options.energy_price, options.prices)
    spec = spec_of(options.target, flags.values(options, FindSpec))
    _check(options, spec)
    each = list(serve.loads(options))
    if len(each) > 1 or options.repeats > 1:
        raise UsageError(
            "`dyno find` chooses the loads itself: give it one setting, without --repeats."
        )
    trial, headers = serve.spec(each[0][1])
    time_needed = text.time_words(
        expected(trial, spec), spec.budget_s, confirm_s=spec.confirm_s
    )
    announcement = f"Highest load with {text.target_words(spec)}: {time_needed}"
    if options.dry_run:
        print(announcement)
        return serve.dry_run(trial) if starts(trial.engine) else 0
    preparing.for_engines([trial], options)
    series = trial.label or options.engine or "server"
    answer, folder = _search(trial, spec, series, headers, announcement, options)
    cost = cost_of(answer, folder, rules) if rules else None
    whole = answer if cost is None else {**msgspec.to_builtins(answer), "cost": cost}
    show(whole, text.lines(answer, cost), folder, as_json=options.json)
    if (
        rules
        and answer.low is not None
        and (cost is None or cost.per_million_output is None)
    ):
        print(
            "dyno: the cost is unknown: no price fits this machine. Give --price machine=DOLLARS.",
            file=sys.stderr,
        )
    if picture := _picture(answer, folder, series):
        print(f"Chart: {picture}", file=sys.stderr)
    return _exit_code(answer)


def _search(
    trial: TrialSpec,
    spec: FindSpec,
    series: str,
    headers: dict[str, str],
    announcement: str,
    options: argparse.Namespace,
) -> tuple[FindAnswer, Path]:
    """Search in a folder of its own; return the answer and the folder."""
    from dyno.api import searching
    from dyno.cli.progress import ProgressLine

    with ProgressLine(bar=not options.disable_tqdm) as watcher:
        watcher.phase(announcement)
        answer, folder = searching.highest(
            trial, spec, runs=options.runs, series=series, headers=headers, watcher=watcher
        )
    return msgspec.structs.replace(answer, command=_again(answer, options)), folder


def _exit_code(answer: FindAnswer) -> int:
    """Return 0: answered; 4: not decided; 3: void, or the confirming run missed the target."""
    if answer.ended == "interrupted":
        return exit_codes.INTERRUPTED
    missed = answer.confirmed is not None and answer.confirmed.outcome == "misses"
    if (
        missed
        or answer.verdict == "void"
        or (answer.ended == "void" and not answer.decided)
    ):
        return exit_codes.VOID
    if answer.ended == "server gone":
        return exit_codes.FAILED
    return exit_codes.DONE if answer.decided else exit_codes.UNDECIDED


def _again(answer: FindAnswer, options: argparse.Namespace) -> str:
    """Return the `dyno bench serve` that measures the answer: the command's own flags, without those of the search.
    Of an undecided search, return the same one with the time that it needs."""
    level = answer.low
    if answer.ended in ("interrupted", "server gone"):
        return ""
    if not answer.decided and answer.needs_s:
        words = _without(options.words[1:], {"--budget": False})
        minutes = math.ceil(answer.needs_s / 60)
        return _shown(["dyno", "find", *words, "--budget", f"{minutes}m"])
    if level is None:
        return ""
    words = _without(options.words[1:], _SEARCH_FLAGS)
    concurrency = answer.spec.over == "concurrency"
    load = (
        ["--max-concurrency", f"{level:g}"]
        if concurrency
        else ["--request-rate", f"{level:g}"]
    )
    return _shown(["dyno", "bench", "serve", *words, *load, "--duration", f"{_AGAIN_S}"])


def _shown(command: list[str]) -> str:
    """Return a command without its secrets."""
    return secrets.clean(shlex.join(secrets.without(secrets.values({}, command), command)))


def _without(words: Sequence[str], flags_of_search: Mapping[str, bool]) -> list[str]:
    """Return a command's words without these flags and their values. True: a flag takes any number of values."""
    remaining: list[str] = []
    skip = several = False
    for word in words:
        name = word.partition("=")[0]
        if name in flags_of_search:
            several = flags_of_search[name]
            skip = "=" not in word and name not in _SWITCHES
        elif word.startswith("--") or not skip:
            skip = False
            remaining.append(word)
        else:
            skip = several
    return remaining


def show(answer: object, lines: Iterable[str], folder: Path, *, as_json: bool) -> None:
    """Print the answer of a search, and where its results are."""
    print(msgspec.json.encode(answer).decode() if as_json else "\n".join(lines))
    print(f"Search: {folder}", file=sys.stderr)


def _check(options: argparse.Namespace, spec: FindSpec) -> None:
    """Refuse what a search chooses itself."""
    chosen = {
        "--max-concurrency": spec.over != "rate" and options.max_concurrency,
        "--request-rate": any(math.isfinite(rate) for rate in options.request_rate),
        "--duration": options.duration,
        "--ramp-up-strategy": options.ramp_up_strategy,
        "--rate-schedule": options.rate_schedule,
        "--concurrency-schedule": options.concurrency_schedule,
        "--num-prompts": options.num_prompts,
        "--num-sessions": options.num_sessions,
    }
    for flag, given in chosen.items():
        if given:
            raise UsageError(
                f"{flag}: `dyno find` chooses the load itself. Remove it, or use --over, --from and --to."
            )
    if options.save_result:
        raise UsageError(
            "--save-result: a search has no such file. --json prints its answer."
        )


def _picture(answer: FindAnswer, folder: Path, series: str) -> Path | None:
    """Draw the search. A drawing that fails costs the picture, never the answer or its exit code."""
    from dyno.api.searching import draw

    path = folder / "find.svg"
    try:
        drawn = draw(answer, path, series)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as e:  # also SystemExit and the panic of a library in Rust, which is no Exception
        why = secrets.clean(f"{type(e).__name__}: {e}".rstrip(": ")).partition("\n")[0]
        print(
            f"dyno: the picture {path} is missing ({why}). The answer is complete without it.",
            file=sys.stderr,
        )
        return None
    return path if drawn else None
