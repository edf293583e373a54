"""`dyno explain RUN`: where the time of a run's requests went; `dyno explain A B`: which part of it differs."""

import argparse
import json

import msgspec

from dyno.cli import settings

_EXAMPLES = """examples:
  dyno explain runs/20261119-chat            parts of the latency, and the ten slowest requests
  dyno explain my-study:vllm                 each run of a study's part
  dyno explain my-study:bf16 my-study:fp8    which part changed, by how much
"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Split the latency of each request into parts that add up to it: queue, prefill, decode, stalls and others. "
        "Each part says where it comes from, and has bounds where it is not exact. With two sides, print which part "
        "differs."
    )
    p.epilog = _EXAMPLES
    sources = "a run, a study, or a part of a study (STUDY:WORDS)"
    p.add_argument("a", metavar="RUN", help=sources)
    p.add_argument("b", metavar="B", nargs="?", help="the same, to compare with RUN")
    p.add_argument(
        "--request",
        type=int,
        metavar="N",
        help="show this request, by its number; with --json as tail (default: the slowest ones)",
    )
    settings.add_runs(p)
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno.conduct.explain import explain_two, explain_word
    from dyno.errors import UsageError
    from dyno.report.explain import difference_text, run_text, with_request

    if options.b is not None:
        if options.request is not None:
            raise UsageError(
                f"--request {options.request} shows a request of one run. Leave out {options.b}."
            )
        differences = explain_two((options.a, options.b), options.runs)
        if options.json:
            _print_json({"differences": msgspec.to_builtins(differences)})
        else:
            print("\n\n".join(map(difference_text, differences)))
        return 0
    explained = list(explain_word(options.a, options.runs))
    if options.json:
        shown = [with_request(e, options.request) for e in explained]
        _print_json({"runs": [msgspec.to_builtins(each) for each in shown]})
        return 0
    print("\n\n".join(run_text(e, options.request) for e in explained))
    return 0


def _print_json(value: dict[str, object]) -> None:
    import dyno

    print(json.dumps({"dyno": dyno.__version__, **value}, allow_nan=False))
