"""Did the client keep up? Otherwise its own slowness is in the figures."""

from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.facts.rig import Rig
from dyno.measure.evidence import Evidence

LATE_SEND_MS = 10.0
UNSEEN_NOTE, UNSEEN_DOUBT = 0.01, 0.05


def unseen_chunks(e: Evidence) -> Iterator[Finding]:
    share = e.summary.client.unseen_share
    if share > UNSEEN_NOTE:
        yield Finding(
            "client.unseen_chunks",
            "doubt" if share > UNSEEN_DOUBT else "note",
            f"{share:.1%} of the chunks were read late and together with a later one (reads came up to "
            f"{e.summary.client.read_late_max_ms:.0f} ms late): their own arrival is not known, and TTFT and ITL leave "
            "them out.",
            "TPOT, E2EL and throughput are not affected. Run dyno on cores of its own, or with fewer streams (`dyno "
            "doctor` says how many are safe here).",
        )


def late_sends(e: Evidence) -> Iterator[Finding]:
    late = e.summary.client.send_late
    worst = max(late.percentiles.values(), default=late.mean)
    # In a closed loop a late sending leaves a slot empty for so long: what counts is how much on average. In an open
    # one each request has its time.
    closed = e.trial.load.closed_loop
    judged, limit_ms = (late.mean, 1.0) if closed else (worst, LATE_SEND_MS)
    if judged > limit_ms and judged > 0.02 * e.summary.e2el.mean:
        yield Finding(
            "client.late_sends",
            "doubt",
            f"The client sent requests up to {worst:.1f} ms after they were due (mean {late.mean:.2f} ms), by its own "
            "fault.",
            "Service latency (from sent) is right; the load came late. Run dyno on a less busy machine.",
        )


def late_loop(e: Evidence) -> Iterator[Finding]:
    client = e.summary.client
    if client.kernel_stamps:
        return  # times are the kernel's: a late loop delays no figure
    if client.loop_late_p99_ms > max(1.0, 0.1 * e.summary.itl.median):
        yield Finding(
            "client.late_loop",
            "doubt",
            f"The client's loop came up to {client.loop_late_p99_ms:.1f} ms late (p99), and this system has no kernel "
            "receive stamps: TTFT and ITL contain that.",
            "Measure from Linux, or with fewer streams.",
        )


def others(e: Evidence) -> Iterator[Finding]:
    """Of an engine that dyno started: what else ran on its cores meanwhile."""
    if e.summary.duration_s >= 0.2:
        yield from others_busy(e.rig, e.summary.client.others_cpu, e.summary.duration_s)


def others_busy(rig: Rig | None, used: float | None, duration_s: float) -> Iterator[Finding]:
    """`used`: cores, by others than dyno and the engine."""
    cores = rig.cores if rig else 0
    share = 0.15 if duration_s >= 1 else 0.3  # the kernel counts in hundredths of a second
    if used is None or not cores or used < share * cores:
        return
    on_cpu = rig is not None and not rig.accelerators
    yield Finding(
        "client.others_cpu",
        "doubt" if on_cpu else "note",
        f"Other processes kept {used:.1f} of {cores} cores busy while the load ran.",
        "The engine had less of the machine than these figures suggest. Stop what else runs, and measure again."
        if on_cpu
        else "Client and engine shared the host with them. Stop what else runs where latencies matter.",
    )


def busy(e: Evidence) -> Iterator[Finding]:
    client = e.summary.client
    if client.cpu_share > 0.9 and e.summary.duration_s > 1:
        yield Finding(
            "client.busy",
            "doubt" if client.cpu_share > 0.97 or not client.kernel_stamps else "note",
            f"The client used {client.cpu_share:.0%} of a core: it is near the most that one process can receive.",
            "A faster server would not show as such. Use fewer streams, or a faster machine for the client.",
        )
