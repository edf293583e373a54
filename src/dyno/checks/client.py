"""Did the client keep up? Otherwise its own slowness is in the figures."""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, note
from dyno.facts.metric import STEMS
from dyno.facts.rig import Rig
from dyno.facts.summary import Summary

LATE_SEND_MS = 10.0
UNSEEN_NOTE = 0.01
WAITED = 0.02  # of the load's time: more than that is no ordinary wait for a core
_NAMES = {name: stem.words for name, stem in STEMS.items()} | {
    "itl_per_token": "ITL per token", "response_ttft": "TTFT from due", "response_e2el": "E2EL from due",
}  # fmt: skip
_RATES = {
    "goodput": "goodput (req/s)", "peak_output_tokens_per_s": "peak tok/s", "steady_output_throughput": "steady tok/s",
}  # fmt: skip


def proxy(e: Evidence) -> Iterator[Finding]:
    if e.trial.target.proxy:
        text = f"All requests went through the proxy {e.trial.target.proxy}."
        advice = "It adds to every latency and may hold streams back. To measure the server alone, name it in no_proxy."
        yield note("client.proxy", text, advice)


def limits(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if count := s.failures.get("client", 0):
        share = count / s.sent
        yield Finding(
            "client.limits",
            "void" if share >= 0.5 or not s.completed else "doubt",
            f"{count} of {s.sent} requests ({share:.1%}) failed at a limit of the client's own machine: open files, "
            "local ports or memory. The server never answered for them, and the load was lower than planned.",
            "Raise the limit that error_detail in records.jsonl names (`ulimit -n`, net.ipv4.ip_local_port_range, "
            "`ulimit -v`), or lower the load.",
        )


def unseen_chunks(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    share, unknown = s.client.unseen_share, _unknown(s)
    if share <= UNSEEN_NOTE and not unknown:
        return
    first = f", of the first ones {s.client.unseen_first / s.completed:.0%}" if s.completed else ""
    reason, advice = _limit(e)
    yield Finding(
        "client.unseen_chunks",
        "doubt" if unknown else "note",
        f"dyno was too busy to time {share:.1%} of the chunks{first}: {reason}. "
        + (f"Known only within bounds: {'; '.join(unknown)}." if unknown else "All figures are still known to ± 1 %."),
        advice,
    )


def _unknown(s: Summary) -> list[str]:
    """Describe figures that are known only within bounds: of each latency the mean, else the first."""
    unknown = [f"{_RATES[name]} {low:,.1f} to {high:,.1f}" for name, (low, high) in s.bounds.items()]
    for name, latency in s.latencies.items():
        for figure, (low, high) in list(latency.bounds.items())[:1]:
            more = f" and {len(latency.bounds) - 1} more" if len(latency.bounds) > 1 else ""
            figure = f"p{figure}" if figure[0].isdigit() else figure
            unknown.append(f"{figure} {_NAMES[name]} {low:,.2f} to {high:,.2f} ms{more}")
    return unknown


def _limit(e: Evidence) -> tuple[str, str]:
    """Return why the client couldn't read its sockets in time, and what helps."""
    client, cores = e.summary.client, e.rig.cores if e.rig else 0
    if client.waited_share is not None and client.waited_share > WAITED:
        others = client.others_cpu
        shared = f" of {cores}" if cores else ""
        who = f"; other processes used {others:.1f} cores{shared}" if others is not None and others > 0.1 else ""
        return (
            f"it was ready to run but had no core for {client.waited_share:.0%} of the load{who}",
            "Leave it a core, run it on another machine, or let it raise its priority (CAP_SYS_NICE, or `ulimit -r`).",
        )
    if client.cpu_share > 0.9:
        return (
            f"it used {client.cpu_share:.0%} of the one core that it can use",
            "Use fewer streams, or a faster machine for the client (`dyno doctor` measures how much is accurate here).",
        )
    return (
        f"it was stopped for a while (its loop came {client.loop_late_p99_ms:.0f} ms late, p99)",
        "Look for what stops it: Ctrl-Z, a debugger, a machine that sleeps, a CPU limit of the container.",
    )


def clock_set(e: Evidence) -> Iterator[Finding]:
    if reads := e.summary.client.unstamped:
        yield note(
            "client.clock_set",
            f"The wall clock was set while the load ran: {reads} reads were timed by dyno's own clock, not by the "
            "kernel's stamps.",
            "Their times contain dyno's own delay. Let the clock settle (NTP) before you measure small latencies.",
        )


def late_sends(e: Evidence) -> Iterator[Finding]:
    late = e.summary.client.send_late
    worst = max(late.percentiles.values(), default=late.mean)
    # In a closed loop a late sending leaves a slot empty for so long: what counts is how much on average. In an open
    # one each request has its time.
    closed = e.trial.load.closed_loop
    judged, limit_ms = (late.mean, 1.0) if closed else (worst, LATE_SEND_MS)
    if judged > limit_ms and judged > 0.02 * (e.summary.e2el.mean or 0.0):
        reason, advice = _limit(e)
        yield doubt(
            "client.late_sends",
            f"dyno itself sent late: mean {late.mean:.2f} ms, worst {worst:.1f} ms. The reason: {reason}.",
            f"Service latency (from sent) is right; the load came late. {advice}",
        )


def late_loop(e: Evidence) -> Iterator[Finding]:
    client = e.summary.client
    if client.kernel_stamps:
        return  # times are the kernel's: a late loop delays no figure
    if client.loop_late_p99_ms > max(1.0, 0.1 * (e.summary.itl.median or 0.0)):
        yield doubt(
            "client.late_loop",
            f"The client's loop came up to {client.loop_late_p99_ms:.1f} ms late (p99), and this system has no kernel "
            "receive stamps: TTFT and ITL contain that.",
            "Measure from Linux, or with fewer streams.",
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


def others(e: Evidence) -> Iterator[Finding]:
    if e.summary.duration_s >= 0.2:
        yield from _others(e.rig, e.summary.client.others_cpu, e.summary.duration_s)


def others_offline(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.duration_s >= 0.05:
        yield from _others(e.rig, e.others_cpu, e.offline.duration_s)


def _others(rig: Rig | None, used: float | None, duration_s: float) -> Iterator[Finding]:
    """`used`: cores that processes other than dyno and its engine kept busy."""
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
