"""`dyno doctor`: what this machine is, the load up to which dyno's timings hold here, and what it lacks for a study."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno import secrets
from dyno.api.vocabulary import keys
from dyno.cli import exit_codes, flags
from dyno.cli.terminal import draw
from dyno.errors import UsageError
from dyno.facts.client import MOST_PROCESSES
from dyno.facts.finding import Finding, worst_first
from dyno.facts.rig import Rig
from dyno.facts.study import RigWanted, Study
from dyno.numbers import UNKNOWN, count, many, number, percent
from dyno.option import Option, named_by
from dyno.report.block import finding_lines
from dyno.report.machine import peak_lines, rig_lines
from dyno.report.table import Cell, terminal, text_table
from dyno.scratch import scratch
from dyno.screen import styled, wrapped

if TYPE_CHECKING:
    from dyno.checks.host import HostSetting
    from dyno.conduct.calibration import Calibration
    from dyno.conduct.readiness import Requirement
    from dyno.probe.peaks import KnownPeaks

LEVELS = (64, 256, 512, 1024, 2048)
_MET = {
    True: Cell("yes", style="good"),
    False: Cell("no", style="bad"),
    None: Cell("unknown"),
}


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Describes this machine, then finds the load up to which dyno's timings hold: it compares what dyno reports "
        "with the fake engine's own log, on the machine as it is and beside busy processes. The fake engine runs on "
        "the same cores; with a server elsewhere, dyno has more room."
    )
    p.epilog = exit_codes.describe(exit_codes.VOID, exit_codes.UNDECIDED)
    p.add_argument(
        "--for",
        dest="study",
        metavar="STUDY",
        help="compare this machine with what a study needs, and print the commands that set it; 3: something is "
        "missing, 4: something is unknown (default: no study)",
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
        help="name of this machine among the study's rigs (default: detected)",
    )
    p.add_argument("--quick", action="store_true", help="describe the machine only")
    levels = " ".join(map(str, LEVELS))
    p.add_argument(
        "--concurrency",
        "--streams",
        dest="levels",
        type=int,
        nargs="+",
        default=list(LEVELS),
        metavar="N",
        help=f"concurrencies to try, until one is not accurate (default: {levels})",
    )
    processes = Option(
        "--procs", "N", "client processes that share the load", least=1, most=MOST_PROCESSES
    )
    flags.number(p, int, processes, 1)
    p.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure the peaks of the processor again",
    )
    p.add_argument("--json", action="store_true", help="print JSON, with full values")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno import checks
    from dyno.probe import rig

    if min(options.levels) < 1:
        raise UsageError("--concurrency must be at least 1.")
    machine = rig.read_machine(record=True)
    if options.study:
        return _for_study(options, machine)
    findings = worst_first(checks.run(rig=machine))
    peaks = _peaks(machine, options.measure_peaks, options.quick)
    if not options.json:
        _print_machine(machine, peaks, findings)
    rows = (
        []
        if options.quick
        else _calibrate(sorted(options.levels), options.procs, options.json)
    )
    _keep_for_auto(machine, rows, options)
    if options.json:
        facts = {
            "rig": machine,
            "peaks": [p.peaks for p in peaks if p.peaks],
            "findings": findings,
        }
        print(
            json.dumps({**msgspec.to_builtins(facts, str_keys=True), "calibration": rows})
        )
    return 0


def _print_machine(
    machine: Rig, peaks: list["KnownPeaks"], findings: list[Finding]
) -> None:
    from dyno.probe import host

    print(*rig_lines(machine, list(host.STATE)), sep="\n")
    print("\nPeaks", *_peak_lines(peaks), sep="\n")
    if findings:
        print(
            "\nBefore you measure here",
            *(n for f in findings for n in finding_lines(f)),
            sep="\n",
        )


def _keep_for_auto(
    machine: Rig, rows: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    """Keep the highest accurate load for --procs auto, if more would not have been accurate."""
    from dyno.probe.peaks import TestedClient, keep_client

    alone = [row for row in rows if not row["busy"]]
    accurate = [row for row in alone if row["accurate"]]
    if not accurate or options.procs != 1:
        return
    if accurate != alone or options.levels[-1] >= LEVELS[-1]:
        keep_client(
            machine,
            TestedClient(accurate[-1]["shape"]["streams"], accurate[-1]["chunks_per_s"]),
        )


def _for_study(options: argparse.Namespace, machine: Rig) -> int:
    """Print what the study wants of this machine, and the commands that set it."""
    from dyno.api.studies import study_path
    from dyno.cli.run import given_variables
    from dyno.conduct import readiness, study_plan

    study, _ = study_plan.read(study_path(options.study), given_variables(options.set))
    asked = options.rig or _only_fitting(study, machine)
    name = study_plan.choose_rig(study, machine, asked, anyway=True)
    mine = [p for p in study.trials if p.place.rig == name]
    with named_by(keys()):
        plans = study_plan.plans(study, mine, machine, dry=False)
        problems = study_plan.problems(plans)
    wanted = study.rigs[name] if name else RigWanted()
    settings, needs = readiness.compared(wanted, machine), readiness.requirements(plans)
    if options.json:
        facts = {
            "study": study.name,
            "rig": name,
            "settings": [setting._asdict() for setting in settings],
            "requirements": [need._asdict() for need in needs],
            "problems": problems,
        }
        print(json.dumps(facts))
    else:
        before = [secrets.public_command(command) for command in wanted.before]
        for block in _readiness(settings, needs, problems, before):
            print(*block, "", sep="\n")
        title = f"{study.name} on {name}" if name else study.name
        print(f"{title}: {_lacks(settings, problems) or 'ready'}")
    return _readiness_code({setting.met for setting in settings}, problems)


def _readiness_code(met: set[bool | None], problems: list[str]) -> int:
    if False in met or problems:
        return exit_codes.VOID
    return exit_codes.UNDECIDED if None in met else exit_codes.DONE


def _lacks(settings: "list[HostSetting]", problems: list[str]) -> str:
    """Describe what this machine lacks; '': nothing."""
    unmet = sum(setting.met is False for setting in settings)
    unknown = sum(setting.met is None for setting in settings)
    parts = []
    if unmet:
        parts.append(f"{many(unmet, 'setting')} not as wanted")
    if problems:
        parts.append(many(len(problems), "problem"))
    if unknown:
        parts.append(f"{many(unknown, 'setting')} unknown")
    return ", ".join(parts)


def _only_fitting(study: Study, machine: Rig) -> str | None:
    """Return the study's rig that this machine can be; None: there are several, or none."""
    from dyno.conduct import study_plan

    fitting = [
        name for name, wanted in study.rigs.items() if study_plan.fits(wanted, machine)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _readiness(
    settings: "list[HostSetting]",
    needs: "list[Requirement]",
    problems: list[str],
    before: list[str],
) -> Iterator[list[str]]:
    """Yield blocks of lines."""
    if settings:
        rows: list[list[str | Cell]] = [
            [s.name, s.wanted, s.actual or UNKNOWN, _MET[s.met]] for s in settings
        ]
        yield [
            "Machine",
            *terminal(
                text_table(["setting", "wanted", "here", "as wanted"], rows), indent="  "
            ),
        ]
    commands = [s.command for s in settings if s.command and not s.met]
    if commands:
        yield ["To set it, until the next boot", *_indented(commands)]
    if before:
        yield ["The study runs these itself, before its first trial", *_indented(before)]
    if needs:
        yield ["Needs", *terminal(text_table(["", "", ""], needs), indent="  ")]
    if problems:
        lines = ["Problems"]
        for problem in problems:
            lines += wrapped(problem, "  - ", "    ")
        yield lines


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _peaks(rig: Rig, anew: bool, quick: bool) -> list["KnownPeaks"]:
    """Return the peaks of one accelerator of each kind, and of the processor."""
    from dyno.probe import peaks

    kinds = {(a.name, a.partition): a for a in reversed(rig.accelerators)}
    accelerators = [peaks.of_accelerators([a]) for a in reversed(kinds.values())]
    return [*accelerators, peaks.of_processor(rig, anew=anew, only_kept=quick and not anew)]


def _peak_lines(peaks: list["KnownPeaks"]) -> list[str]:
    lines: list[str] = []
    for p in peaks:
        lines += (
            peak_lines(p.peaks, "  ")
            if p.peaks
            else wrapped(f"unknown: {p.unknown}", "  ", "    ")
        )
    return lines


def _calibrate(levels: list[int], procs: int, silent: bool) -> list[dict[str, Any]]:
    from dyno.conduct.calibration import busy_processes

    def say(text: str) -> None:
        if not silent:
            print(*wrapped(text), sep="\n")

    with scratch() as folder:
        say("")
        client = f"{procs} processes of dyno's client" if procs > 1 else "dyno's client"
        say(f"Timings of {client} on this machine as it is, reported/actual in ms:")
        idle, safe = _climb(levels, procs, 0, folder, silent)
        with busy_processes(folder) as busy:
            say("")
            say(
                f"The same beside {busy} busy processes, one per core, as beside an engine on the CPU:"
            )
            loaded, safe_beside = _climb(levels, procs, busy, folder, silent)
    rows = [*idle, *loaded]
    say("")
    if safe:
        beside = (
            f"up to {count(safe_beside)} beside a busy engine"
            if safe_beside
            else "and not beside a busy engine"
        )
        limits = (
            "TTFT within 3 ms (p99: 10 ms) and p99 ITL within 1 ms of the server's own log"
        )
        say(
            f"Accurate up to concurrency {count(safe)}, {beside}: {limits}, with the server on the same cores."
        )
    else:
        say(
            "Not accurate even at the lowest concurrency: this machine is too busy. Look at `top`, then try again."
        )
    raised = rows[0]["priority"]
    say(f"Scheduling of dyno's client under load: {raised or 'like any process'}.")
    if "SCHED_RR" not in raised:
        say(
            "Real-time priority is not allowed here (CAP_SYS_NICE, or `ulimit -r 1`). It helps on a busy machine."
        )
    return rows


_HEAD = "concurrency chunks/s   TTFT mean    TTFT p99     ITL p99    CPU  unseen accurate"


def _climb(
    levels: list[int], procs: int, busy: int, folder: Path, silent: bool
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each level until one is not accurate, and the highest that is."""
    from dyno.conduct.calibration import Shape, calibrate

    if not silent:
        print(_HEAD)
    rows, safe = [], 0
    for streams in levels:
        if sys.stderr.isatty():
            draw("", f"concurrency {streams} …", "\r")
        # As many engines as processes: one engine must not be what limits them.
        row = calibrate(Shape(streams, rounds=2, procs=procs, servers=procs), folder)
        rows.append({**msgspec.to_builtins(row), "busy": busy, "accurate": row.holds})
        if not silent:
            print(_row(streams, row))
        if not row.holds:
            break
        safe = streams
    return rows, safe


def _row(streams: int, row: "Calibration") -> str:
    a, b = row.reported, row.actual
    pairs = ((a.ttft_mean, b.ttft_mean), (a.ttft_p99, b.ttft_p99), (a.itl_p99, b.itl_p99))
    cells = [
        count(streams).rjust(11),
        number(row.chunks_per_s).rjust(8),
        *(f"{number(reported)}/{number(actual)}".rjust(11) for reported, actual in pairs),
        percent(row.client_cpu_share).rjust(6),
        percent(row.unseen_share).rjust(7),
        styled("yes", "good") if row.holds else styled("no", "bad"),
    ]
    return " ".join(cells)
