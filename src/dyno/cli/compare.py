"""`dyno compare A B`: test whether two results really differ."""

import argparse
import json

import msgspec

from dyno.cli import exit_codes, settings
from dyno.cli.exit_codes import DONE, UNDECIDED, VOID
from dyno.facts.comparison import Comparison
from dyno.report.compare import as_markdown, gate_line, text

_EXAMPLES = """examples:
  dyno compare runs/before runs/after
  dyno compare my-study:vllm my-study:llamacpp                 two parts of a study, by words of their trials' names
  dyno compare main.json branch.json --gate 'p99_ttft_ms<5%' 'output_throughput>-5%' 'failed<=0'
"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Compare two sides under the same loads: differences, and how certain they are."
    )
    p.epilog = _EXAMPLES + exit_codes.describe(VOID, UNDECIDED)
    sources = "a run, a study, a part of a study (STUDY:WORDS), a folder of runs, or another tool's result file"
    p.add_argument("a", metavar="A", help=f"{sources}: the baseline")
    p.add_argument("b", metavar="B", help="the same, to compare with the baseline")
    p.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="compare these figures (default: throughput, TTFT, TPOT, ITL and E2EL)",
    )
    p.add_argument(
        "--details",
        action="store_true",
        help="show all figures of each load (default: of a single load)",
    )
    p.add_argument(
        "--gate",
        nargs="+",
        action="extend",
        default=[],
        metavar="GATE",
        help="'p99_ttft_ms<5%%': B at most 5 %% above A; 'p99_ttft_ms<200': B's own value; 'score>-1pt': B's score "
        "at most 1 point below A's. Broken if the whole 95 %% interval is beyond the limit, undecided if a part is",
    )
    p.add_argument(
        "--strict", action="store_true", help="an undecided gate counts as broken"
    )
    p.add_argument(
        "--anyway",
        action="store_true",
        help="compare results that are not comparable; the verdict is void",
    )
    exit_codes.add(p)
    settings.add_runs(p)
    how = p.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--markdown", action="store_true", help="print Markdown")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    import dyno
    from dyno.api import results

    comparison = results.compare(
        options.a,
        options.b,
        metrics=options.metric,
        gates=options.gate,
        anyway=options.anyway,
        runs=options.runs,
    ).comparison
    code, state = _decide(comparison, options)
    if options.json:
        code = code or exit_codes.from_verdicts([comparison.verdict], options, "comparison")
        print(
            json.dumps(
                {"dyno": dyno.__version__, **msgspec.to_builtins(comparison), "exit": code},
                allow_nan=False,
            )
        )
        return code
    print((as_markdown if options.markdown else text)(comparison, options.details))
    code = code or exit_codes.from_verdicts([comparison.verdict], options, "comparison")
    if state:
        print(gate_line(comparison, state, code))
    return code


def _decide(comparison: Comparison, options: argparse.Namespace) -> tuple[int, str]:
    """Return the exit code by gates and by requested figures, and the state of a gate that decides it."""
    states = {g.state for g in comparison.gates}
    if "broken" in states:
        return VOID, "broken"
    if comparison.verdict == "void" and not options.allow_void:
        return DONE, ""
    if "undecided" in states:
        return VOID if options.strict else UNDECIDED, "undecided"
    asked = {x.metric for p in comparison.pairings for x in p.left_out} & set(
        options.metric
    )
    if asked:
        return UNDECIDED, ""
    return DONE, "held" if states else ""
