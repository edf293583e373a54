"""`dyno eval`: how well a server, or an engine that dyno starts, answers."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.cli import exit_codes, flags, preparing, serve, settings
from dyno.cli.parser import Parser
from dyno.errors import UsageError
from dyno.facts.load import LoadSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.trial import TrialSpec

if TYPE_CHECKING:
    from dyno.trial.outcome import Outcome

_EXAMPLES = """examples:
  dyno eval --engine llamacpp --quantization Q4_0
  dyno eval --base-url http://127.0.0.1:8000 --tasks builtin --concurrency 1 64
  dyno eval --base-url http://127.0.0.1:8000 --tasks gsm8k --limit 200 --form chat --apply-chat-template
  dyno eval --engine vllm --model FOLDER|NAME --tasks my_task --include-path tasks/
  dyno eval --write-tasks tasks/

Built-in tasks: arithmetic, copy, recall, sort, count. They need no download. All other names are tasks of
lm-evaluation-harness, which dyno installs into its own environment: `dyno engines install lm-eval`.
An interrupted test continues where it stopped: run the command again.
The API key is read from OPENAI_API_KEY and written to no file.

"""


def add(p: Parser) -> None:
    p.passes_on = "--engine"
    p.description = (
        "Ask a server questions with known answers, and score what it says: built-in tasks, or those of "
        "lm-evaluation-harness. With several concurrencies it also shows whether load changes the answers."
    )
    passed_on = settings.PASSED_ON[0].lower() + settings.PASSED_ON[1:]
    p.epilog = (
        _EXAMPLES + "With --engine: " + passed_on + exit_codes.describe(exit_codes.VOID)
    )
    g = p.add_argument_group("questions")
    flags.add_list(g, QualitySpec, "tasks")
    flags.add(g, QualitySpec, "limit", "num_fewshot", "form", "choices", "answer_form")
    flags.add_list(g, QualitySpec, "concurrency")
    flags.add(
        g,
        QualitySpec,
        "max_tokens",
        "seed",
        "chat_template",
        "system",
        "include_path",
        "allow_task_code",
    )
    g.add_argument(
        "--gen-kwargs",
        metavar="JSON",
        help="sampling parameters for lm-eval (default: the task's)",
    )
    g = p.add_argument_group("server")
    serve.target_flags(g)
    flags.add(g, LoadSpec, "request_timeout_s")
    settings.add_engine(p.add_argument_group("engine settings (with --engine)"))
    g = p.add_argument_group("result")
    flags.add(g, TrialSpec, "metadata", "label")
    settings.add_runs(g)
    g.add_argument(
        "--new",
        action="store_true",
        help="start anew instead of continuing an interrupted test",
    )
    g.add_argument(
        "--write-tasks",
        type=Path,
        metavar="DIR",
        help="write the built-in tasks as task files of lm-eval into DIR, and stop (default: don't)",
    )
    g.add_argument("--json", action="store_true", help="print the result as JSON")
    exit_codes.add(g)
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    spec = _quality(options)
    if options.write_tasks:
        from dyno.quality.lm_eval import write_tasks

        print(*write_tasks(options.write_tasks, spec), sep="\n")
        return exit_codes.DONE
    trial, headers = _trial(options, spec)
    if options.dry_run:
        return _dry_run(trial)

    from dyno.cli.progress import ProgressLine
    from dyno.quality.flow import evaluate

    preparing.for_engines([trial], options)
    with ProgressLine() as watcher:
        outcome = evaluate(
            trial, runs=options.runs, headers=headers, watcher=watcher, new=options.new
        )
    print(json.dumps(result_file(outcome)) if options.json else printed(outcome))
    print(f"Run: {outcome.run.path}", file=sys.stderr)
    return exit_codes.from_verdicts([outcome.result.verdict], options)


def _quality(o: argparse.Namespace) -> QualitySpec:
    from dyno.quality.ask import problem

    extra = flags.json_object(o.gen_kwargs, "--gen-kwargs")
    spec = QualitySpec(**{**flags.values(o, QualitySpec), "gen_kwargs": extra})
    if why := problem(spec):
        raise UsageError(f"--{why[0].replace('_', '-')}: {why[1]}")
    return spec


def _trial(o: argparse.Namespace, spec: QualitySpec) -> tuple[TrialSpec, dict[str, str]]:
    from dyno.quality.ask import workload

    serve.starting(o)
    target, headers = serve.target(o)
    own = {
        "target": target,
        "workload": workload(spec),
        "load": LoadSpec(request_timeout_s=o.request_timeout_sec),
        "kind": "quality",
        "quality": spec,
        "engine": settings.engine(o.engine, o) if o.engine else None,
    }
    return TrialSpec(**{**flags.values(o, TrialSpec), **own}), headers


def _dry_run(trial: TrialSpec) -> int:
    from dyno.engines.kinds import starts
    from dyno.probe import rig
    from dyno.quality.ask import describe
    from dyno.trial.engine_plan import EnginePlan

    assert trial.quality is not None
    problems = []
    if trial.engine is not None and starts(trial.engine):
        plan = EnginePlan(trial.engine, rig.read_machine(), dry=True)
        settings.print_plan(plan.lines())
        problems = plan.problems([])
    else:
        print(f"# already running at {', '.join(trial.target.urls)}")
    print(f"# {describe(trial.quality)}")
    for line in preparing.listing([trial]):
        print(f"# {line}")
    return settings.report_problems(problems)


def printed(outcome: "Outcome") -> str:
    from dyno.report import quality

    return "\n".join(quality.lines(outcome.result))


def result_file(outcome: "Outcome") -> dict[str, Any]:
    manifest, result = outcome.manifest, outcome.result
    return {
        "model_id": manifest.trial.target.model or manifest.target.model,
        "quality": msgspec.to_builtins(result.quality),
        "dyno": {
            "version": manifest.dyno,
            "verdict": result.verdict,
            "findings": msgspec.to_builtins(result.findings),
            "trial": msgspec.to_builtins(manifest.trial),
            "target": msgspec.to_builtins(manifest.target),
            "engine": msgspec.to_builtins(outcome.run.engine()),
            "started": manifest.started,
            "run": str(outcome.run.path),
        },
    }
