"""`dyno doctor`: what this machine is, and up to which load dyno's timings are accurate here."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.cli.terminal import draw
from dyno.errors import UsageError
from dyno.facts.finding import worst_first
from dyno.facts.rig import Rig
from dyno.numbers import number, percent
from dyno.report.block import finding_lines
from dyno.report.machine import peak_lines, rig_lines

if TYPE_CHECKING:
    from dyno.probe.peaks import KnownPeaks

LEVELS = (64, 256, 512, 1024, 2048)


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Describes this machine, then compares what dyno reports with the fake engine's own log: on the "
        "machine as it is, and beside busy processes. The fake engine runs on the same cores, so a server elsewhere "
        "leaves dyno more room than is found here."
    )
    p.add_argument("--quick", action="store_true", help="describe the machine, don't calibrate")
    p.add_argument("--streams", type=int, nargs="+", default=list(LEVELS), metavar="N", help=f"default: {LEVELS}")
    p.add_argument("--measure-peaks", action="store_true", help="measure the processor's bandwidth and arithmetic anew")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno import checks
    from dyno.probe import host, rig

    if min(options.streams) < 1:
        raise UsageError("--streams must be at least 1.")
    machine = rig.look()
    findings = worst_first(checks.run(rig=machine))
    peaks = _peaks(machine, options.measure_peaks, options.quick)
    if not options.json:
        print(*rig_lines(machine, list(host.STATE)), sep="\n")
        print("\nAt most", *(f"  {line}" for line in _peak_lines(peaks)), sep="\n")
        if findings:
            print("\nWorth knowing before you measure here", *(n for f in findings for n in finding_lines(f)), sep="\n")
    rows = [] if options.quick else _calibrate(sorted(options.streams), options.json)
    if options.json:
        facts = {"rig": machine, "peaks": [p.peaks for p in peaks if p.peaks], "findings": findings}
        print(json.dumps({**msgspec.to_builtins(facts, str_keys=True), "calibration": rows}))
    return 0


def _peaks(rig: Rig, anew: bool, quick: bool) -> list["KnownPeaks"]:
    """Return the peaks of one accelerator of each kind, and of the processor."""
    from dyno.probe import peaks

    kinds = {(a.name, a.partition): a for a in reversed(rig.accelerators)}
    accelerators = [peaks.of_accelerators([a]) for a in reversed(kinds.values())]
    return [*accelerators, peaks.of_processor(rig, anew=anew, only_kept=quick and not anew)]


def _peak_lines(peaks: list["KnownPeaks"]) -> list[str]:
    return [line for p in peaks for line in (peak_lines(p.peaks) if p.peaks else [f"not known: {p.unknown}"])]


def _calibrate(levels: list[int], silent: bool) -> list[dict[str, Any]]:
    from dyno.conduct.calibration import busy_processes

    def say(text: str) -> None:
        if not silent:
            print(text)

    with tempfile.TemporaryDirectory(prefix="dyno-") as folder:
        say("\nTimings of dyno's client on this machine as it is: reported / actual, ms")
        idle, safe = _climb(levels, 0, Path(folder), say)
        with busy_processes(Path(folder)) as busy:
            say(f"\nThe same beside {busy} busy processes, one a core, as beside an engine on the CPU")
            loaded, safe_beside = _climb(levels, busy, Path(folder), say)
    rows = [*idle, *loaded]
    limit = (
        "TTFT within 3 ms (p99: 10), p99 ITL within 1 ms of the server's own log, with the server on the same cores."
    )
    if safe:
        beside = f"up to {safe_beside} beside a busy engine" if safe_beside else "and not at all beside a busy engine"
        say(f"\nAccurate up to {safe} streams, {beside}. {limit}")
    else:
        say("\nNot even the smallest load was timed accurately: this machine is too busy. Look at `top`, try again.")
    raised = rows[0]["priority"]
    say(f"Scheduling of dyno's client while a load runs: {raised or 'as any process'}.")
    if "SCHED_RR" not in raised:
        say("Real-time priority is not allowed here (CAP_SYS_NICE, or `ulimit -r 1`). It helps on a busy machine.")
    return rows


def _climb(levels: list[int], busy: int, folder: Path, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each level until one is not accurate, and the highest that is."""

    from dyno.conduct.calibration import Shape, calibrate

    say("streams chunks/s       TTFT mean        TTFT p99         ITL p99    CPU  unseen  accurate")
    rows, safe = [], 0
    for streams in levels:
        if sys.stderr.isatty():
            draw("", f"{streams} streams …", "\r")
        row = calibrate(Shape(streams, rounds=2), folder)
        rows.append({**msgspec.to_builtins(row), "busy": busy, "accurate": row.holds})
        a, b = row.reported, row.actual
        say(
            f"{streams:>7} {number(row.chunks_per_s):>8} {_pair(a.ttft_mean, b.ttft_mean)} "
            f"{_pair(a.ttft_p99, b.ttft_p99)} {_pair(a.itl_p99, b.itl_p99)} "
            f"{percent(row.wire_us_per_chunk * row.chunks_per_s / 1e6):>6} {percent(row.unseen_share):>7}  "
            f"{'yes' if row.holds else 'no'}"
        )
        if not row.holds:
            break
        safe = streams
    return rows, safe


def _pair(reported: float | None, actual: float | None) -> str:
    return " / ".join(map(number, (reported, actual))).rjust(15)
