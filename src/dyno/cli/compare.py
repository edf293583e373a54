"""`dyno compare A B`: is the difference real?"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dyno.cli import settings
from dyno.compare.gate import check_metric, judge, parse, stops
from dyno.errors import StoreError, UsageError
from dyno.facts.comparison import Comparison
from dyno.report.compare import as_markdown, text

if TYPE_CHECKING:
    from dyno.conduct.sources import Source

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
    p.add_argument("a", metavar="A", help=f"{sources}: what B is held against")
    p.add_argument("b", metavar="B")
    p.add_argument("--metric", nargs="+", action="extend", default=[], metavar="NAME", help="instead of the usual ones")
    p.add_argument(
        "--gate", nargs="+", action="extend", default=[], metavar="GATE",
        help="'p99_ttft_ms<5%%': B at most 5 %% above A; 'p99_ttft_ms<200': B's own value. Broken where the whole "
        "interval is beyond the limit",
    )  # fmt: skip
    p.add_argument("--strict", action="store_true", help="a gate that isn't surely held is broken too")
    p.add_argument("--anyway", action="store_true", help="compare what isn't comparable, and mark it")
    settings.add_runs(p, "default: runs")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true")
    how.add_argument("--markdown", action="store_true")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    import dyno
    from dyno.compare.compare import compare
    from dyno.conduct.sources import read

    gates = [parse(gate) for gate in options.gate]
    for name in options.metric:
        check_metric(name, "--metric")
    a, b = read(options.a, options.runs), read(options.b, options.runs)
    _check_distinct(a, b)
    comparison = compare(
        a.measured, b.measured, (_name(a), _name(b)), options.metric, [g.metric for g in gates], options.anyway
    )  # fmt: skip
    comparison = msgspec.structs.replace(
        comparison, gates=[judge(gate, p, i) for i, p in enumerate(comparison.pairings) for gate in gates]
    )
    code = GATE if _refused(comparison, options) or stops(comparison.gates, options.strict) else 0
    if options.json:
        print(json.dumps({"dyno": dyno.__version__, **msgspec.to_builtins(comparison), "exit": code}, allow_nan=False))
    else:
        print((as_markdown if options.markdown else text)(comparison))
    return code


def _name(source: "Source") -> str:
    """Return its path, and the part of it that is compared."""
    _, colon, part = source.word.rpartition(":")
    return f"{source.path}:{part}" if colon and source.document.format == "dyno study" else str(source.path)


def _check_distinct(a: "Source", b: "Source") -> None:
    """Refuse to compare a thing with itself."""
    if not a.measured or not b.measured:
        empty = a if not a.measured else b
        why = f": {empty.document.unread[0].why}" if empty.document.unread else "."
        raise StoreError(f"In {empty.word} ({empty.document.format}) no result was found{why}")
    one, other = (
        {s.path.resolve()} if s.path.is_file() else {Path(m.row.file).resolve() for m in s.measured} for s in (a, b)
    )
    shared = one & other
    if shared and one == other:
        what = f"{a.word} and {b.word}" if a.word != b.word else a.word
        raise UsageError(f"{what}: A and B are the same. Name two that differ.")
    if shared:
        raise UsageError(
            f"{min(shared)} is on both sides. Name two without a run in common: STUDY:WORDS takes a part of a study."
        )


def _refused(comparison: Comparison, options: argparse.Namespace) -> bool:
    """Whether nothing can be compared, or a metric that was asked for can't. --anyway marks it instead."""
    asked = {x.metric for p in comparison.pairings for x in p.left_out} & set(options.metric)
    return not comparison.pairings or any(p.refused for p in comparison.pairings) or bool(asked)
