"""What accelerators, host and engine did under the load: does it throw doubt on the figures?"""

from collections.abc import Iterator

from dyno.checks.evidence import Circumstances, Evidence
from dyno.facts.finding import Finding
from dyno.facts.telemetry import LIMITS, AcceleratorTelemetry

FEW = 10  # samples: fewer tell nothing of a share
THROTTLED, AT_THE_LIMIT = 0.05, 0.5  # of the samples
GAP_S = 2.0


def _of_the_engine(e: Circumstances) -> list[AcceleratorTelemetry]:
    return [a for a in e.telemetry.accelerators if a.engine and a.samples >= FEW] if e.telemetry else []


def throttled(e: Circumstances) -> Iterator[Finding]:
    held = []
    for a in _of_the_engine(e):
        reasons = {r: share for r, share in a.throttled.items() if r not in LIMITS and share >= THROTTLED}
        if reasons:
            listed = ", ".join(f"{r} in {share:.0%}" for r, share in reasons.items())
            hot = "" if a.temperature_max_c is None else f", up to {a.temperature_max_c:.0f} °C"
            held.append(f"on {a.index} {listed} of the samples{hot}")
    if held:
        yield Finding(
            "telemetry.throttled",
            "doubt",
            f"Accelerators held their clocks down under the load: {'; '.join(held)}.",
            "These are the figures of a machine that is too hot or short of power, and another day's will differ. Look "
            "at cooling and power supply.",
        )


def power_limited(e: Circumstances) -> Iterator[Finding]:
    """A note: accelerators are built to run at their power limit, and a good engine gets them there."""
    capped = {}
    for a in _of_the_engine(e):
        share = max((share for r, share in a.throttled.items() if r in LIMITS), default=0.0)
        if share >= AT_THE_LIMIT:
            mean = "" if a.power_mean_w is None else f", {a.power_mean_w:.0f} W on average"
            capped[a.index] = f"{a.index} in {share:.0%} of the samples{mean}"
    if capped:
        yield Finding(
            "telemetry.power_limited",
            "note",
            f"The power limit held clocks down: on accelerator {'; '.join(capped.values())}.",
            "That is how they are built. Compare with machines of the same limit only.",
        )


def preempted(e: Evidence) -> Iterator[Finding]:
    count = e.telemetry.total("preemptions") if e.telemetry else None
    if count:
        yield Finding(
            "engine.preemptions",
            "doubt" if count > 0.01 * e.summary.sent else "note",
            f"The engine took its KV cache away from running requests {count:.0f} times ({e.summary.sent} were sent), "
            "and worked on them anew later.",
            "Latencies contain that. Lower the load or max_num_seqs, or give the KV cache more memory.",
        )


def restarted(e: Evidence) -> Iterator[Finding]:
    urls = e.trial.target.urls
    which = [urls[x.index] for x in e.telemetry.engines if x.restarted and x.index < len(urls)] if e.telemetry else []
    if which:
        yield Finding(
            "engine.restarted",
            "doubt",
            f"The engine's counters went back under the load ({', '.join(which)}): it was started anew meanwhile, or "
            "several servers answer there.",
            "Look at its log. What its metrics counted isn't given.",
        )


def engine_streams(e: Evidence) -> Iterator[Finding]:
    """Streams that the client holds open, and that the engine doesn't work on."""
    t, s, slots = e.telemetry, e.summary, e.target.slots
    if t is None or s.steady is None or not e.trial.load.closed_loop or e.trial.load.max_concurrency is None:
        return
    running, waiting = t.total("running_mean"), t.total("waiting_mean")
    if running is None or min(x.samples for x in t.engines) < FEW or (s.e2el.mean or 0.0) < 500:
        return  # short requests are on their way for a good part of their lives
    if slots and s.client.streams_peak > slots * len(e.trial.target.urls):
        return  # said by load.slots
    missing = s.steady.streams_mean - running
    if missing > 0.2 * s.steady.streams_mean:
        queued = waiting is not None and waiting > 0.5 * missing
        yield Finding(
            "load.engine_streams",
            "note",  # that is how the engine works; the load is the one that was asked for
            f"{s.steady.streams_mean:.1f} streams were open, and the engine worked on {running:.1f} of them on average "
            f"({'' if waiting is None else f'{waiting:.1f} waited in its queue, '}by its own metrics).",
            "The engine's real concurrency is the smaller figure, and the first token's latency holds the wait. Look "
            "at its limits of sequences, batched tokens and KV cache."
            if queued
            else "The others were on their way: in a gateway, in the server's HTTP or tokenizer, or here.",
        )


def energy(e: Evidence) -> Iterator[Finding]:
    odd = []
    for a in _of_the_engine(e):
        counted, summed = a.energy_j, a.energy_by_power_j
        # Power is an average over the second before: of a short load it is another's.
        if counted and summed and e.summary.duration_s >= 10 and abs(summed / counted - 1) > 0.05:
            odd.append(f"{a.index} counted {counted:.0f} J, and its power over time is {summed:.0f} J")
    if odd:
        yield Finding(
            "telemetry.energy_differs",
            "note",
            f"Energy by counter and by power differ by over 5 %: accelerator {'; '.join(odd)}.",
            "The counter is what is reported. Take joules for each token as good to that difference.",
        )


def sparse(e: Circumstances) -> Iterator[Finding]:
    t = e.telemetry
    if t is not None and t.longest_gap_s > max(GAP_S, 5 * t.interval_s):
        died = next((f" ({why})" for why in t.absent if "sampler" in why), "")
        yield Finding(
            "telemetry.sparse",
            "note",
            f"The machine was not sampled for {t.longest_gap_s:.1f} s of the load{died}.",
            "Peaks of power and memory may be missed. Latencies and throughput are not affected.",
        )
