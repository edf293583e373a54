"""`dyno doctor`: what this machine is, and up to which load this client's numbers are true here."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno.errors import UsageError

if TYPE_CHECKING:
    from dyno.facts.rig import Rig
    from dyno.probe.peaks import Found

LEVELS = (64, 256, 512, 1024, 2048)


def add(commands: Any) -> None:
    p = commands.add_parser(
        "doctor",
        help="what this machine is, and what load this client can truthfully put on",
        description="Describes this machine, then calibrates the client against the fake engine's own log. The fake "
        "engine runs on the same cores, so a server elsewhere leaves the client more room than is found here.",
    )
    p.add_argument("--quick", action="store_true", help="describe the machine, don't calibrate")
    p.add_argument("--streams", type=int, nargs="+", default=list(LEVELS), metavar="N", help=f"default: {LEVELS}")
    p.add_argument("--measure-peaks", action="store_true", help="measure the processor's bandwidth and arithmetic anew")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    import msgspec

    from dyno.measure.checks.rig import examine
    from dyno.probe import host, rig
    from dyno.report.block import finding_lines
    from dyno.report.rig import lines

    if min(options.streams) < 1:
        raise UsageError("--streams must be at least 1.")
    found = rig.look()
    findings = examine(found)
    peaks = _peaks(found, options.measure_peaks, options.quick)
    if not options.json:
        print(*lines(found, list(host.STATE)), sep="\n")
        print("\nAt most", *(f"  {line}" for line in _peak_lines(peaks)), sep="\n")
        if findings:
            print("\nWorth knowing before you measure here", *(n for f in findings for n in finding_lines(f)), sep="\n")
    rows = [] if options.quick else _calibrate(sorted(options.streams), options.json)
    if options.json:
        told = {"rig": found, "peaks": [p.peaks for p in peaks if p.peaks], "findings": findings}
        print(json.dumps({**msgspec.to_builtins(told, str_keys=True), "calibration": rows}))
    return 0


def _peaks(rig: "Rig", anew: bool, quick: bool) -> list["Found"]:
    """Of one accelerator of each kind, and of the processor."""
    from dyno.probe import peaks

    kinds = {(a.name, a.partition): a for a in reversed(rig.accelerators)}
    found = [peaks.of_accelerators([a]) for a in reversed(kinds.values())]
    return [*found, peaks.of_processor(rig, anew=anew, only_kept=quick and not anew)]


def _peak_lines(found: list["Found"]) -> list[str]:
    from dyno.report.roofline import peak_lines

    return [line for p in found for line in (peak_lines(p.peaks) if p.peaks else [f"not known: {p.unknown}"])]


def _calibrate(levels: list[int], silent: bool) -> list[dict[str, Any]]:
    import msgspec

    from dyno.experiment.calibration import Shape, calibrate

    def say(text: str) -> None:
        if not silent:
            print(text)

    say("\ntold / true, ms\nstreams chunks/s       TTFT mean        TTFT p99         ITL p99  CPU  holds")
    rows, safe, rate = [], 0, 0.0
    for streams in levels:
        if not silent and sys.stderr.isatty():
            print(f"{streams} streams …", end="\r", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="dyno-") as folder:
            row = calibrate(Shape(streams, rounds=2), Path(folder))
        rows.append({**msgspec.to_builtins(row), "holds": row.holds})
        told, true = row.told, row.true
        say(
            f"{streams:>7} {row.chunks_per_s:>8,.0f} {_pair(told.ttft_mean, true.ttft_mean)} "
            f"{_pair(told.ttft_p99, true.ttft_p99)} {_pair(told.itl_p99, true.itl_p99)} "
            f"{row.wire_us_per_chunk * row.chunks_per_s / 1e6:>4.0%}  {'yes' if row.holds else 'no'}"
        )
        if not row.holds:
            break
        safe, rate = streams, row.chunks_per_s
    if safe:
        say(f"\nThis client's figures are true here up to {safe} streams, {rate:,.0f} chunks/s, with the server on the "
            "same cores.\nTTFT within 3 ms (p99: 10), p99 ITL within 1 ms of the server's own log.")  # fmt: skip
    else:
        say("\nNot even the smallest load was measured truthfully: this machine is too busy. Look at `top`, try again.")
    return rows


def _pair(told: float | None, true: float | None) -> str:
    return " / ".join("-" if ms is None else f"{ms:.2f}" for ms in (told, true)).rjust(15)
