"""`dyno compare A B`: is the difference real?"""

import argparse
import json

import msgspec

from dyno.cli import settings
from dyno.facts.comparison import Comparison
from dyno.report.compare import as_markdown, text

GATE = 3  # exit code: a gate is broken, or what should be compared isn't comparable

_EXAMPLES = """examples:
  dyno compare runs/before runs/after
  dyno compare my-study:vllm my-study:llamacpp                 two parts of a study, by words of their trials' names
  dyno compare main.json branch.json --gate 'p99_ttft_ms<5%' 'output_throughput>-5%' 'failed<=0'
exit codes: 0 done, 1 it failed, 2 wrong usage, 3 a gate is broken, or the two are not comparable"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Pair what two sides measured under the same load, and tell what differs, how sure that is, and "
        "what would be needed to tell."
    )
    p.epilog = _EXAMPLES
    sources = "a run, a study, a part of one (STUDY:WORDS), a folder of runs, or another tool's result file"
    p.add_argument("a", metavar="A", help=f"{sources}; the baseline")
    p.add_argument("b", metavar="B", help="the same, to compare with A")
    p.add_argument("--metric", nargs="+", action="extend", default=[], metavar="NAME", help="instead of the usual ones")
    p.add_argument(
        "--gate", nargs="+", action="extend", default=[], metavar="GATE",
        help="'p99_ttft_ms<5%%': B at most 5 %% above A; 'p99_ttft_ms<200': B's own value. Broken where the whole "
        "interval is beyond the limit",
    )  # fmt: skip
    p.add_argument("--strict", action="store_true", help="a gate that isn't surely held is broken too")
    p.add_argument("--anyway", action="store_true", help="compare what isn't comparable, and mark it")
    settings.add_runs(p)
    how = p.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--markdown", action="store_true", help="print Markdown")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    import dyno
    from dyno.compare.gate import check_metric, parse, stops
    from dyno.conduct.read import compare_words

    gates = [parse(gate) for gate in options.gate]
    for name in options.metric:
        check_metric(name, "--metric")
    comparison = compare_words((options.a, options.b), options.runs, options.metric, gates, options.anyway)
    code = GATE if _refused(comparison, options) or stops(comparison.gates, options.strict) else 0
    if options.json:
        print(json.dumps({"dyno": dyno.__version__, **msgspec.to_builtins(comparison), "exit": code}, allow_nan=False))
    else:
        print((as_markdown if options.markdown else text)(comparison))
    return code


def _refused(comparison: Comparison, options: argparse.Namespace) -> bool:
    """Also a figure that was asked for and is none of both sides. What is compared anyway is marked, and no refusal."""
    asked = {x.metric for p in comparison.pairings for x in p.left_out} & set(options.metric)
    return not comparison.pairings or any(p.refused for p in comparison.pairings) or bool(asked)
