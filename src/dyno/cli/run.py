"""`dyno run`: a study from one file; the same command resumes it. `dyno demo`: the shipped study demo.toml."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dyno import files, secrets
from dyno.cli import exit_codes, flags, preparing, settings
from dyno.errors import UsageError
from dyno.facts.elsewhere import ssh_problem
from dyno.facts.price import PriceRule
from dyno.facts.rig import Rig
from dyno.facts.study import PlannedTrial, RigWanted, Study, label_matches, unmatched
from dyno.facts.summary import Result
from dyno.http import check_certificates
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
    from dyno.conduct import study_plan
    from dyno.probe import rig

    study, text = study_plan.read(study_path(options.study))
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
    from dyno.conduct import study_plan
    from dyno.probe import rig
    from dyno.study.prices import price_rules

    _check_options(options)
    rules = price_rules(options.price, options.energy_price, options.prices)
    study, text, ordered = _read_study(options)
    study = _proxied(study)
    machine = rig.read_machine()
    if options.dry_run:
        name = (
            study_plan.choose_rig(study, machine, options.rig, anyway=True)
            if options.rig
            else None
        )
        wanted = _wanted(study, [name] if name else None, options)
        return preview(study, wanted, machine, options.runs, rules, options)
    names = study_plan.choose_rigs(study, machine, options.rig, options.any_rig)
    wanted = _wanted(study, names, options)
    _check_elsewhere(study, wanted)
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
    here = [p for p in wanted if not study.is_elsewhere(p)]
    _check_before_fetching(study, here, machine)
    lines = preparing.for_study([p.trial for p in here], options)
    far = dict.fromkeys(p.place.rig for p in wanted if study.is_elsewhere(p))
    lines += [
        f"{name} is another machine: it fetches what it needs when its trials run."
        for name in far
    ]
    print(*(lines or ["Nothing is missing."]), sep="\n")
    return exit_codes.DONE


@contextlib.contextmanager
def _prepared_machine(
    study: Study,
    folder: StudyFolder,
    wanted: list[PlannedTrial],
    machine: Rig,
    options: argparse.Namespace,
) -> Iterator[Rig]:
    """Fetch what this machine's trials lack, run the study's own commands, and yield the machine as it is then."""
    from dyno.checks.host import unmet
    from dyno.conduct.readiness import prepared
    from dyno.probe import rig

    def say(text: str) -> None:
        print(f"dyno: {text}", file=sys.stderr, flush=True)

    here = [p for p in wanted if not study.is_elsewhere(p)]
    done = folder.done()
    left = [p for p in here if p.place.id not in done]
    if left and not options.no_prepare:
        _check_before_fetching(study, left, machine)
        preparing.for_study([p.trial for p in left], options)
    local = study.rigs[here[0].place.rig] if left and here[0].place.rig else RigWanted()
    with prepared(local, say):
        if local.before:
            machine = rig.read_machine()
        differs = unmet(local.host, machine) if local.host else None
        if differs:
            say(
                f"{differs} `dyno doctor --for {options.study}` prints the commands that set it."
            )
        yield machine


def _read_study(options: argparse.Namespace) -> tuple[Study, str, bool]:
    """Read the study, its text, and whether another dyno ordered it on stdin, with the keys that it needs."""
    from dyno.conduct import study_plan

    if options.study == "-":
        study, text = _read_order()
        return study, text, True
    study, text = study_plan.read(study_path(options.study), given_variables(options.set))
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


def _check_elsewhere(study: Study, wanted: list[PlannedTrial]) -> None:
    """Refuse what can't be measured from here (an offline run has no client) or can't run there."""
    from dyno.conduct import study_plan

    for p in wanted:
        if why := study_plan.no_docker(study, p):
            raise UsageError(why)
        if p.place.rig and p.trial.offline and study.rigs[p.place.rig].client == "here":
            raise UsageError(
                f'[rigs.{p.place.rig}] client = "here" is for serving; {p.place.label} is an offline benchmark, in the '
                'engine\'s own process. Use client = "rig".'
            )


def _check_before_fetching(study: Study, planned: list[PlannedTrial], machine: Rig) -> None:
    """Refuse what can be known to fail, before gigabytes are fetched for it."""
    from dyno.conduct import study_plan
    from dyno.conduct.study import check_keys, refuse

    refuse(
        study_plan.problems_before_fetching(study, planned, machine),
        "nothing was fetched or started",
    )
    check_keys(planned, key_headers)
    check_certificates(each.trial.target for each in planned)


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
    left = _left(study, text, folder, wanted, options, headers or key_headers)
    stopped, ran = left.here(machine)
    problems = [] if stopped else left.elsewhere()
    stopped = stopped or None in problems
    results = {
        p.place.id: run.result() for p in wanted if (run := folder.run(p.place)).whole
    }
    (show or _show)(folder, wanted, results)
    code = _conclude(folder, wanted, results, stopped, ran, options)
    for problem in filter(None, problems):
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


def _show(_: StudyFolder, wanted: list[PlannedTrial], done: dict[str, Result]) -> None:
    from dyno.report.study import lines

    print(*lines(wanted, done), sep="\n")


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


def study_path(name: str) -> Path:
    """Find a study's file: as named, or one that comes with dyno."""
    import dyno

    path = Path(name)
    if path.exists() or "/" in name or path.suffix:
        return path
    shipped = Path(dyno.__file__).parent / "studies"
    if (shipped / f"{name}.toml").exists():
        return shipped / f"{name}.toml"
    names = ", ".join(sorted(p.stem for p in shipped.glob("*.toml")))
    raise UsageError(
        f"There is no file {name} and no shipped study of that name. Shipped studies: {names}."
    )


def _wanted(
    study: Study, rigs: Sequence[str] | None, options: argparse.Namespace
) -> list[PlannedTrial]:
    """Return the chosen trials of these rigs; None: of all."""
    trials = [p for p in study.trials if rigs is None or p.place.rig in rigs]
    if not options.only:
        return trials

    def is_chosen(planned: PlannedTrial) -> bool:
        return any(label_matches(planned.place.label, pattern) for pattern in options.only)

    chosen = [planned for planned in trials if is_chosen(planned)]
    if not chosen:
        labels = [planned.place.label for planned in study.trials]
        raise UsageError(
            f"--only: {unmatched(options.only[0], labels)} --dry-run lists all."
        )
    return chosen


def key_headers(planned: PlannedTrial) -> dict[str, str]:
    """Return the headers with a key from the environment. A key goes nowhere but into requests."""
    if planned.api_key_env and planned.api_key_env not in os.environ:
        raise UsageError(
            f"api_key_env = {planned.api_key_env!r}: this environment variable is not set."
        )
    key = os.environ.get(planned.api_key_env or "OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    settings.check_headers(headers)
    return headers | settings.proxied(planned.trial.target)[1]


def _proxied(study: Study) -> Study:
    """Give its running servers the proxies that the environment names."""

    def through(planned: PlannedTrial) -> PlannedTrial:
        if study.is_elsewhere(planned):  # that machine's environment names its own
            return planned
        target, _ = settings.proxied(planned.trial.target)
        return msgspec.structs.replace(
            planned, trial=msgspec.structs.replace(planned.trial, target=target)
        )

    return msgspec.structs.replace(
        study, trials=[through(planned) for planned in study.trials]
    )


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
