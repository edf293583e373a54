"""Are there samples enough for what is claimed?"""

import math
from collections.abc import Iterator

from dyno.checks.evidence import Circumstances, Evidence
from dyno.facts.finding import Finding
from dyno.measure.statistics import samples_needed

SHORT_S, ENOUGH_S = 5.0, 30.0


def few_samples(e: Evidence) -> Iterator[Finding]:
    count = e.summary.ttft.count
    short = [(p, samples_needed(p)) for p in e.trial.percentiles if 0 < count < samples_needed(p)]
    if short:
        p, needed = max(short, key=lambda s: s[1])
        names = ", ".join(f"p{p:g}" for p, _ in short)
        yield Finding(
            "statistics.few_samples",
            "note",
            f"{names} of {count} requests {'is an estimate' if len(short) == 1 else 'are estimates'}: p{p:g} needs "
            f"{needed} samples at 99 % confidence.",
            f"Send at least {needed} requests (--num-prompts {needed}).",
        )


def short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed and s.duration_s < SHORT_S:
        enough = math.ceil(s.sent * ENOUGH_S / max(s.duration_s, 0.01) / 10) * 10
        yield Finding(
            "statistics.short",
            "note",
            f"The load lasted {s.duration_s:.1f} s ({s.sent} requests): too short to average out what a machine does "
            "from one second to the next.",
            f"Send more (--num-prompts {enough}), or for longer (--duration {ENOUGH_S:.0f}).",
        )


def no_steady_window(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed < 2:
        return
    share = (s.steady.end_s - s.steady.start_s) / s.duration_s if s.steady else 0.0
    if share < 0.5:
        yield Finding(
            "statistics.ramp_and_drain",
            "note",
            f"Only {share:.0%} of the run was at steady load; the rest was start and drain, which lower the throughput "
            "over the whole run.",
            "Send several times as many requests as are in flight.",
        )


def single_run(e: Circumstances) -> Iterator[Finding]:
    if e.completed and e.repeats < 2:
        yield Finding(
            "statistics.single_run",
            "note",
            "This is a single run: what differs by chance from run to run is not known.",
            "Repeat it before you call a small difference real.",
        )
