"""`dyno tune STUDY.toml`: an engine's best settings for a load; the same command resumes it."""

import argparse
import math
import sys
from typing import TYPE_CHECKING

import msgspec

from dyno.cli import exit_codes, flags, preparing, settings
from dyno.cli.find import show, span
from dyno.cli.run import given_variables
from dyno.facts.tune import TuneSpec
from dyno.screen import wrapped

if TYPE_CHECKING:
    from dyno.facts.tune import TuneAnswer
    from dyno.search.tune_budget import TuneBudget
    from dyno.search.tune_plan import TunePlan

_EXAMPLE = """examples:
  dyno tune study.toml
  dyno tune study.toml --trials 30 --budget 1h
  dyno tune study.toml --budget 1h --dry-run

The study's [tune] says which settings may change and what is best; docs/tune.md has the format.

"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Find the settings with which an engine is best for a load. It measures settings that Optuna proposes under "
        "short loads and the best ones longer, then repeats the best against the default. A setting whose repeats are "
        "void or miss the target gives way to the next. Repeat the command to resume."
    )
    p.epilog = _EXAMPLE + exit_codes.describe(exit_codes.VOID, exit_codes.UNDECIDED)
    p.add_argument("study", metavar="STUDY.toml", help="a study file with [tune]")
    flags.add(
        p,
        TuneSpec,
        "trials",
        default=None,
        help="settings to start, besides the default (default: the study's)",
    )
    p.add_argument(
        "--budget",
        type=span,
        metavar="S",
        default=math.inf,
        help="time for loads, starts and repeats; 20m and 2h work (default: no limit)",
    )
    p.add_argument(
        "--dry-run",
        action="store_true",
        help="print what may change, what the budget buys, the default's command and its problems",
    )
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable of the study",
    )
    p.add_argument(
        "--rig",
        metavar="NAME",
        help="the rig that this machine is (default: the one that matches)",
    )
    p.add_argument(
        "--any-rig",
        action="store_true",
        help="run on a machine that the study was not written for",
    )
    p.add_argument(
        "--plain", action="store_true", help="plain lines instead of live progress"
    )
    p.add_argument("--json", action="store_true", help="print the answer as JSON")
    settings.add_runs(p)
    p.set_defaults(command=run, settings="keys")


def run(options: argparse.Namespace) -> int:
    from dyno.api.searching import tuned
    from dyno.api.studies import study_path
    from dyno.cli.progress import TuneView
    from dyno.conduct import study_plan
    from dyno.probe import rig
    from dyno.report import tune as text
    from dyno.search.proposer import possible
    from dyno.search.tune_budget import TuneBudget
    from dyno.search.tune_plan import TunePlan, folder_for

    study, source = study_plan.read(study_path(options.study), given_variables(options.set))
    if options.trials and study.tune:
        study = msgspec.structs.replace(
            study, tune=msgspec.structs.replace(study.tune, trials=options.trials)
        )
    machine = rig.read_machine()
    name = study_plan.choose_rig(
        study, machine, options.rig, anyway=options.any_rig or options.dry_run
    )
    plan = TunePlan(study, name)
    folder, budget = folder_for(options.runs, plan), TuneBudget(plan.spec, options.budget)
    if not folder.exists:  # a search that resumes may have measured all that it needs
        budget.check()
    if options.dry_run:
        return _preview(plan, budget)
    preparing.for_study(plan.models(), options)
    if math.isfinite(options.budget):
        print(
            *wrapped(f"--budget {budget.words(possible(plan.spec.settings))}"),
            sep="\n",
            file=sys.stderr,
        )

    def view() -> TuneView:
        return TuneView(study.name, plan.spec.trials, live=not options.plain)

    answer = tuned(plan, source, folder, machine, view, options.budget)
    show(answer, text.lines(answer), folder.path, as_json=options.json)
    return _exit_code(answer)


def _exit_code(answer: "TuneAnswer") -> int:
    if answer.ended == "interrupted":
        return exit_codes.INTERRUPTED
    if answer.best is not None:
        return exit_codes.UNDECIDED if answer.unconfirmed else exit_codes.DONE
    measured = [
        trial for trial in [answer.default, *answer.trials] if trial.state == "measured"
    ]
    if not measured:
        return exit_codes.FAILED
    if answer.refused_in_repeats or all(trial.verdict == "void" for trial in measured):
        return exit_codes.VOID
    return exit_codes.UNDECIDED


def _preview(plan: "TunePlan", budget: "TuneBudget") -> int:
    from dyno.conduct.study_plan import plans, problems
    from dyno.facts.tune import shown
    from dyno.numbers import count, duration, many
    from dyno.probe import rig
    from dyno.search.proposer import possible
    from dyno.search.tune_plan import SEARCH

    spec, default = plan.spec, plan.trial({})
    total = possible(spec.settings)
    print(f"# {plan.study.name}: tune {default.place.engine} for {spec.words}")
    for key, axis in spec.settings.items():
        if axis.values:
            choices = ", ".join(map(shown, axis.values))
        else:
            choices = f"{axis.least:g} to {axis.most:g}"
            if axis.log:
                choices += " (log)"
        print(f"#   {key}: {choices}")
    each = (
        f"a search of up to {duration(spec.seconds * SEARCH)}"
        if plan.search
        else f"a load of {spec.seconds:g} s"
    )
    print(
        f"# {count(total) if total else 'Any number of'} settings; {many(spec.trials, 'trial')}, each with {each}"
    )
    longer = "" if plan.search else "longer loads for the best third, and "
    print(f"# then {longer}{many(spec.confirm_repeats, 'repeat')} of best and default")
    if math.isfinite(budget.total_s):
        print(f"# --budget {budget.words(total)}")
    print(f"# {default.place.label}: {default.trial.load.words}")
    known = plans(plan.study, [default], rig.read_machine(), dry=True)
    for setting in known:
        if setting.engine:
            settings.print_plan(setting.engine.lines())
    return settings.report_problems(problems(known))
