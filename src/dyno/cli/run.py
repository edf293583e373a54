"""`dyno run`: a study from one file; the same command resumes it. `dyno demo`: the shipped study demo.toml."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dyno import files, secrets
from dyno.api.headers import key_headers, proxied_study
from dyno.cli import exit_codes, flags, preparing, settings
from dyno.errors import UsageError
from dyno.facts.elsewhere import ssh_problem
from dyno.facts.price import PriceRule
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.summary import Result
from dyno.numbers import many, number
from dyno.option import Option
from dyno.screen import wrapped
from dyno.store.study import StudyFolder, failure_of

if TYPE_CHECKING:
    from dyno.conduct.study import StudyRun

_LOOK_S = 1.0  # at what other programs use
Headers = Callable[[PlannedTrial], dict[str, str]]
Show = Callable[[StudyFolder, list[PlannedTrial], dict[str, Result]], None]


def add(p: argparse.ArgumentParser) -> None:
    how = (
        "The format: docs/studies.md. Shipped studies are found by name: dyno run demo.\n\n"
    )
    p.epilog = how + exit_codes.describe(exit_codes.VOID)
    p.add_argument(
        "study", metavar="STUDY.toml", help="a study file, or the name of a shipped study"
    )
    p.add_argument(
        "--dry-run",
        action="store_true",
        help="print trials, commands, what each machine lacks, time and cost; run nothing",
    )
    p.add_argument("--json", action="store_true", help="with --dry-run: print it as JSON")
    p.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only trials whose name has these words, or matches with * and ?; repeatable",
    )
    p.add_argument(
        "--prepare-only",
        action="store_true",
        help="fetch, make and install what is missing, then stop",
    )
    p.add_argument(
        "--no-prepare",
        action="store_true",
        help="refuse a study whose models, data sets or engines are missing",
    )
    flags.number(
        p, int, Option("--limit", "N", "run at most N trials (default: all)", least=1)
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
        help="run only this rig's trials (default: this machine's, and all rigs elsewhere)",
    )
    p.add_argument(
        "--any-rig",
        action="store_true",
        help="run on a machine that the study was not written for",
    )
    p.add_argument(
        "--ssh",
        action="append",
        default=[],
        metavar="RIG=HOST",
        help="run a rig's trials on that machine, as the key ssh does; repeatable",
    )
    p.add_argument(
        "--extend",
        action="store_true",
        help="if the file has changed: continue in the same folder",
    )
    p.add_argument(
        "--new", action="store_true", help="if the file has changed: start a new folder"
    )
    settings.add_runs(p)
    p.add_argument(
        "--keep-raw", action="store_true", help="keep all received bytes with their times"
    )
    p.add_argument(
        "--no-report", action="store_true", help="do not write a report page at the end"
    )
    p.add_argument(
        "--plain", action="store_true", help="plain lines instead of live progress"
    )
    settings.add_prices(p)
    exit_codes.add(p)
    p.set_defaults(command=run, settings="keys")


def add_demo(p: argparse.ArgumentParser) -> None:
    p.epilog = exit_codes.describe(exit_codes.VOID)
    settings.add_runs(p)
    exit_codes.add(p)
    p.set_defaults(
        command=demo,
        settings="keys",
        study="demo",
        set=[],
        only=[],
        limit=None,
        rig=None,
        any_rig=False,
        plain=False,
        keep_raw=False,
        no_report=False,
    )


def demo(options: argparse.Namespace) -> int:
    from dyno.api import studies
    from dyno.conduct import study_plan
    from dyno.probe import rig

    study, text = study_plan.read(studies.study_path(options.study))
    folder = study_plan.folder_for(options.runs, study, again=True)
    with folder.lock():
        machine = rig.read_machine()
        if warning := describe_others(machine):
            print(*wrapped(f"dyno: {warning}"), sep="\n", file=sys.stderr, flush=True)
        code = conduct(study, text, folder, study.trials, machine, options)
    print(
        f"\nResults:             {folder.path}/ (`dyno runs` lists them, `dyno runs show FOLDER` prints one)"
    )
    print(
        "Your own server:     dyno bench serve --base-url http://HOST:PORT --max-concurrency 16 --num-prompts 200"
    )
    print("Your own comparison: dyno run STUDY.toml (docs/studies.md has the format)")
    return code


def describe_others(machine: Rig) -> str:
    """Look at the machine for a moment, and say what other programs use of it; '' where that is little or unknown."""
    from dyno.checks.client import OTHERS_SHARE
    from dyno.probe import host

    cores = host.busy_cores(_LOOK_S)
    if cores is None or cores < OTHERS_SHARE * machine.cores:
        return ""
    used = number(min(cores, machine.cores), digits=2)
    return (
        f"Other programs use {used} of {many(machine.cores, 'core')}: the results will be doubtful. "
        "Stop them for results that hold."
    )


def run(options: argparse.Namespace) -> int:
    from dyno.api import studies
    from dyno.conduct import study_plan
    from dyno.probe import rig
    from dyno.study.prices import price_rules

    _check_options(options)
    rules = price_rules(options.price, options.energy_price, options.prices)
    study, text, ordered = _read_study(options)
    study = proxied_study(study)
    machine = rig.read_machine()
    if options.dry_run:
        name = (
            study_plan.choose_rig(study, machine, options.rig, anyway=True)
            if options.rig
            else None
        )
        wanted = studies.wanted_trials(study, [name] if name else None, options.only)
        return preview(study, wanted, machine, options.runs, rules, options)
    names = study_plan.choose_rigs(study, machine, options.rig, options.any_rig)
    wanted = studies.wanted_trials(study, names, options.only)
    studies.check_elsewhere(study, wanted)
    if options.prepare_only:
        return _prepare_only(study, wanted, machine, options)
    folder = study_plan.folder_for(options.runs, study, options.new, options.extend)
    with (
        folder.lock(),
        _prepared_machine(study, folder, wanted, machine, options) as ready,
    ):
        if ordered:  # the dyno that sent it shows the results
            stopped, _ = _left(study, text, folder, wanted, options, key_headers).here(
                ready
            )
            return exit_codes.INTERRUPTED if stopped else exit_codes.DONE
        return conduct(study, text, folder, wanted, ready, options)


def _check_options(options: argparse.Namespace) -> None:
    if options.prepare_only and options.no_prepare:
        raise UsageError(
            "--prepare-only and --no-prepare exclude each other. Give one of them."
        )
    if options.new and options.extend:
        raise UsageError("--new and --extend exclude each other. Give one of them.")
    if options.json and not options.dry_run:
        raise UsageError(
            "--json prints a dry run. Add --dry-run, or use `dyno report` for results."
        )


def _prepare_only(
    study: Study, wanted: list[PlannedTrial], machine: Rig, options: argparse.Namespace
) -> int:
    """Fetch, make and install what the trials of this machine lack, and print it."""
    from dyno.api import studies

    here = [p for p in wanted if not study.is_elsewhere(p)]
    studies.check_before_fetching(study, here, machine)
    lines = preparing.for_study([p.trial for p in here], options)
    far = dict.fromkeys(p.place.rig for p in wanted if study.is_elsewhere(p))
    lines += [
        f"{name} is another machine: it fetches what it needs when its trials run."
        for name in far
    ]
    print(*(lines or ["Nothing to fetch or install."]), sep="\n")
    return exit_codes.DONE


def _prepared_machine(
    study: Study,
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    machine: Rig,
    options: argparse.Namespace,
) -> contextlib.AbstractContextManager[Rig]:
    """Fetch what this machine's trials lack, run the study's own commands, and yield the machine as it is then."""
    from dyno.api import studies

    def say(text: str) -> None:
        print(f"dyno: {text}", file=sys.stderr, flush=True)

    def prepare(left: list[PlannedTrial]) -> None:
        preparing.for_study([p.trial for p in left], options)

    provide = None if options.no_prepare else prepare
    return studies.prepared_machine(
        study, folder, wanted, machine, provide, say, options.study
    )


def _read_study(options: argparse.Namespace) -> tuple[Study, str, bool]:
    """Read the study, its text, and whether another dyno ordered it on stdin, with the keys that it needs."""
    from dyno.api import studies
    from dyno.conduct import study_plan

    if options.study == "-":
        study, text = _read_order()
        return study, text, True
    study, text = study_plan.read(
        studies.study_path(options.study), given_variables(options.set)
    )
    hosts = flags.pairs(options.ssh, "--ssh")
    for name, host in hosts.items():
        if name not in study.rigs:
            known = ", ".join(study.rigs) or "none"
            raise UsageError(
                f"--ssh {name}=…: the study has no such rig. There are: {known}."
            )
        if why := ssh_problem(host):
            raise UsageError(f"--ssh {name}={host}: {why}")
    return study_plan.placed(study, hosts), text, False


def _read_order() -> tuple[Study, str]:
    from dyno.remote.elsewhere import Order

    try:
        order = msgspec.json.decode(
            files.taken(sys.stdin.buffer, files.FACTS, "stdin"), type=Order
        )
    except (OSError, msgspec.MsgspecError) as e:
        raise UsageError(
            f"`dyno run -` reads what another dyno sends (docs/rigs.md), but got: {e}."
        ) from None
    os.environ.update(order.environ)
    secrets.learn(secrets.values(os.environ))
    return order.study, order.text


def conduct(
    study: Study,
    text: str,
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    machine: Rig,
    options: argparse.Namespace,
    headers: Headers | None = None,
    show: Show | None = None,
) -> int:
    """Run what is left of a study and print the results. `show`: prints them instead of the study's table."""
    from dyno.api import studies

    left = _left(study, text, folder, wanted, options, headers or key_headers)
    end = studies.conduct(left, machine)
    (show or _show)(folder, wanted, end.results)
    code = _conclude(folder, wanted, end.results, end.stopped, end.ran, options)
    for problem in filter(None, end.problems):
        print(f"dyno: {problem}", file=sys.stderr)
        code = exit_codes.FAILED
    return code


def _left(
    study: Study,
    text: str,
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    options: argparse.Namespace,
    headers: Headers,
) -> "StudyRun":
    from dyno.cli.progress import StudyView
    from dyno.conduct.study import StudyChoices, StudyRun

    # else it is made of flags, and has no such flags of its own
    of_file = options.settings == "keys"
    choices = StudyChoices(
        limit=options.limit,
        only=tuple(options.only) if of_file else (),
        any_rig=options.any_rig,
        any_rig_flag="--any-rig continues anyway, " if of_file else "",
        no_prepare=getattr(options, "no_prepare", False),
        keep_raw=options.keep_raw,
    )

    def view(
        trials: Sequence[PlannedTrial], done: int, expected_s: Mapping[str, float]
    ) -> StudyView:
        shown = StudyView(study.name, trials, done, not options.plain, expected_s)
        if len(trials) > 1:
            shown.begins_all()
        return shown

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return StudyRun(study, text, folder, wanted, headers, view, say, choices)


def _show(folder: StudyFolder, wanted: list[PlannedTrial], done: dict[str, Result]) -> None:
    from dyno.report.study import lines

    print(*lines(wanted, done, folder.path), sep="\n")


def _conclude(
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    done: dict[str, Result],
    stopped: bool,
    ran: bool,
    options: argparse.Namespace,
) -> int:
    failed = _print_unmeasured(folder, wanted, done, options)
    print(f"Study: {folder.path}", file=sys.stderr)
    if done and not options.no_report and (ran or _stale(folder.path)):
        _print_answer(folder.path, stopped, options)
    if stopped:
        print(
            f"dyno: interrupted. {len(done)} of {len(wanted)} trials are measured and kept. Resume with:\n"
            f"  {flags.command(options).replace(' --new', '')}",
            file=sys.stderr,
        )
        return exit_codes.INTERRUPTED
    if failed or not done:
        return exit_codes.FAILED
    return exit_codes.from_verdicts(
        [result.verdict for result in done.values()], options, "trial"
    )


def _print_answer(study: Path, stopped: bool, options: argparse.Namespace) -> None:
    """Write the study's page, and print its answer, if the study is whole."""
    from dyno.cli.report import STUDY_PAGE, study_page

    report = study_page(study, options)
    if report is None:
        return
    if not stopped:
        print("Answer:", file=sys.stderr)
        for sentence in report.words.answer:
            print(*wrapped(sentence, "  ", "    "), sep="\n", file=sys.stderr)
    print(f"Page: {study / STUDY_PAGE}", file=sys.stderr)


def _print_unmeasured(
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    done: dict[str, Result],
    options: argparse.Namespace,
) -> bool:
    """Print the trials that failed or were skipped, and return whether one failed."""
    file = sys.stderr if getattr(options, "json", False) else sys.stdout
    failed = [(p, failure) for p in wanted if (failure := failure_of(folder.run(p.place)))]
    for p, failure in failed:
        print(f"failed {p.place.label}: {failure.text}", file=file)
    skipped = folder.skipped()
    for p in wanted:
        if p.place.id in skipped and p.place.id not in done:
            print(f"skipped {p.place.label}: {skipped[p.place.id]}", file=file)
    return bool(failed)


def given_variables(words: list[str]) -> dict[str, str]:
    """Read variables from the command line. A relative path there starts in the working folder."""
    given = flags.pairs(words, "--set")
    return {k: _absolute(v) for k, v in given.items()}


def _absolute(value: str) -> str:
    scheme = "file:" if value.startswith("file:") else ""
    path = value.removeprefix(scheme)
    return f"{scheme}{Path(path).absolute()}" if path.startswith(("./", "../")) else value


# ---- --dry-run ----


def preview(
    study: Study,
    wanted: list[PlannedTrial],
    machine: Rig,
    runs: Path,
    rules: Sequence[PriceRule] = (),
    options: argparse.Namespace | None = None,
) -> int:
    """Print what the study would run, and what it takes: machines, sizes, time, cost, problems."""
    from dyno.conduct import dry_run
    from dyno.report.dry_run import lines

    dry = dry_run.make(
        study, wanted, machine, runs, rules, anew=options is not None and options.new
    )
    if options and options.json:
        print(msgspec.json.format(msgspec.json.encode(dry), indent=2).decode())
    else:
        print(*lines(dry), sep="\n")
    return settings.report_problems(dry.problems)


def _stale(folder: Path) -> bool:
    """Return whether the page lacks a trial: one was measured after it, or there is no page."""
    page = folder / "report.html"
    written = page.stat().st_mtime if page.exists() else 0.0
    return any(
        summary.stat().st_mtime > written
        for summary in folder.glob("trials/*/summary.json")
    )
