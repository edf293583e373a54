"""Did the client keep up? Otherwise its own slowness is in the figures. Of several processes, the worst one counts."""

from collections.abc import Callable, Iterator

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, Level, doubt, note
from dyno.facts.metric import LATENCIES
from dyno.facts.summary import ClientSummary, Summary
from dyno.numbers import number, percent
from dyno.units import NS_PER_MS

LATE_SEND_MS = 10.0
UNSEEN_NOTE = 0.01
CLOCK_SHARE = 0.01  # of a latency, or of the load's time
DRIFT = 500e-6  # more than NTP ever bends a clock
OTHERS_SHARE = (
    0.15  # of the cores, that other processes use: from there on, results are doubtful
)
WAITED = 0.02  # of the load's time: more than an ordinary wait for a core
_RATES = {
    "goodput": "goodput (req/s)", "peak_output_tokens_per_s": "peak tok/s", "steady_output_throughput": "steady tok/s",
}  # fmt: skip


def _worst(
    s: Summary, figure: Callable[[ClientSummary], float]
) -> tuple[ClientSummary, str]:
    """Return the process with the largest figure, and its name in a sentence."""
    each = s.client.processes or [s.client]
    worst = max(each, key=figure)
    where = f" on node {worst.node}" if worst.node else ""
    if len(each) > 1:
        return worst, f"Process {each.index(worst) + 1} of {len(each)}{where}"
    return worst, f"dyno{where}"


def proxy(e: Evidence) -> Iterator[Finding]:
    if e.trial.target.proxy:
        yield note(
            "client.proxy", f"All requests went through the proxy {e.trial.target.proxy}."
        )


def limits(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if count := s.failures.get("client", 0):
        text = (
            f"{count:,} of {s.sent:,} requests ({percent(count / s.sent)}) failed at a limit of the client machine "
            "(open files, local ports or memory) and never reached the server."
        )
        yield Finding(
            "client.limits",
            "void" if 2 * count >= s.sent or not s.completed else "doubt",
            text,
        )


def unseen_chunks(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    (worst, who), unknown = _worst(s, lambda client: client.unseen_share), _unknown(s)
    if worst.unseen_share <= UNSEEN_NOTE and not unknown:
        return
    of_all = f" ({percent(s.client.unseen_share)} of all)"  # the whole run's
    first = (
        f" ({percent(s.client.unseen_first / s.completed)} of the first ones)"
        if s.completed
        else ""
    )
    which = f"its chunks{of_all}" if s.client.processes else f"the chunks{first}"
    reason, advice = _limit(e, worst)
    effect = (
        f"Known only within bounds: {'; '.join(unknown)}."
        if unknown
        else "All figures are still known to ± 1 %."
    )
    text = f"{who} was too busy to time {percent(worst.unseen_share)} of {which}: {reason}. {effect}"
    yield Finding("client.unseen_chunks", "doubt" if unknown else "note", text, advice)


def _unknown(s: Summary) -> list[str]:
    """Describe figures that the client knows only within bounds: of each latency the mean, else the first."""
    late = {name: latency.bounds for name, latency in s.latencies.items() if latency.bounds}
    rates = dict(s.bounds)
    # the first chunk's tokens aren't known: tokens.bundled says so
    if "own_tpot" in late and "tpot" not in late:
        for name in ("own_tpot", "itl_per_token"):
            late.pop(name, None)
        rates.pop("goodput", None)
    unknown = [
        f"{_RATES[name]} {number(low)} to {number(high)}"
        for name, (low, high) in rates.items()
    ]
    for name, bounds in late.items():
        figure, (low, high) = next(iter(bounds.items()))
        if figure[0].isdigit():
            figure = f"p{figure}"
        more = f" and {len(bounds) - 1} more" if len(bounds) > 1 else ""
        unknown.append(
            f"{figure} {LATENCIES[name].words} {number(low)} to {number(high)} ms{more}"
        )
    return unknown


def _limit(e: Evidence, client: ClientSummary) -> tuple[str, str]:
    """Return why the client couldn't read its sockets in time, and what helps."""
    cores = e.rig.cores if e.rig else 0
    if client.waited_share is not None and client.waited_share > WAITED:
        others = e.summary.client.others_cpu
        shared = f" of {cores}" if cores else ""
        busy = others is not None and others > 0.1
        who = (
            f"; other processes used {number(others, digits=2)} cores{shared}"
            if busy
            else ""
        )
        return (
            f"it had no free core for {percent(client.waited_share)} of the load{who}",
            "Give dyno a free core, run it on another machine, or let it raise its priority (CAP_SYS_NICE or "
            "`ulimit -r`).",
        )
    if client.cpu_share is not None and client.cpu_share > 0.9:
        return (
            f"it used {percent(client.cpu_share)} of the one core it can use",
            "Share the load among more processes (--procs), or lower the concurrency. `dyno doctor` finds the load up "
            "to which timings hold.",
        )
    return (
        f"it was paused (its loop ran {number(client.loop_late_p99_ms)} ms late, p99)",
        "Look for the cause: Ctrl-Z, a debugger, a sleeping machine, a container's CPU limit.",
    )


def clock_set(e: Evidence) -> Iterator[Finding]:
    if reads := e.summary.client.unstamped:
        text = f"The wall clock was set during the load: dyno's own clock timed {reads:,} reads, not the kernel's."
        yield note("client.clock_set", text)


def late_sends(e: Evidence) -> Iterator[Finding]:
    # In a closed loop a late sending leaves a slot empty that long: the average counts. In an open
    # one each request has its time.
    closed = e.trial.load.closed_loop

    def judged(client: ClientSummary) -> float:
        late = client.send_late
        return late.mean if closed else max(late.percentiles.values(), default=late.mean)

    client, who = _worst(e.summary, judged)
    if judged(client) > (1.0 if closed else LATE_SEND_MS) and judged(client) > 0.02 * (
        e.summary.e2el.mean or 0.0
    ):
        late, (reason, advice) = client.send_late, _limit(e, client)
        worst = max(late.percentiles.values(), default=late.mean)
        text = f"{who} itself sent late: mean {number(late.mean)} ms, worst {number(worst)} ms. Reason: {reason}."
        advice = f"Service latency (from sent) is right, but the load came late. {advice}"
        yield doubt("client.late_sends", text, advice)


def late_loop(e: Evidence) -> Iterator[Finding]:
    # Where times are the kernel's, a late loop delays no figure.
    client, who = _worst(
        e.summary, lambda client: 0.0 if client.kernel_stamps else client.loop_late_p99_ms
    )
    if not client.kernel_stamps and client.loop_late_p99_ms > max(
        1.0, 0.1 * (e.summary.itl.median or 0.0)
    ):
        late = f"{number(client.loop_late_p99_ms)} ms late (p99)"
        text = f"The loop of {who} ran up to {late}, and this system has no kernel receive timestamps."
        yield doubt("client.late_loop", text)


def busy(e: Evidence) -> Iterator[Finding]:
    client, who = _worst(e.summary, lambda client: client.cpu_share or 0.0)
    if client.cpu_share is not None and client.cpu_share > 0.9 and e.summary.duration_s > 1:
        text = f"{who} used {percent(client.cpu_share)} of a core, close to the most that one process can receive."
        level: Level = (
            "doubt" if client.cpu_share > 0.97 or not client.kernel_stamps else "note"
        )
        yield Finding("client.busy", level, text)


def lost(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    each = s.client.processes or [s.client]
    if numbers := [
        f"{k + 1} (node {client.node})" if client.node else str(k + 1)
        for k, client in enumerate(each)
        if client.lost
    ]:
        which = (
            f"Process {numbers[0]}"
            if len(numbers) == 1
            else f"Processes {', '.join(numbers)}"
        )
        unsent = f" and {s.planned - s.sent:,} were not sent" if s.planned > s.sent else ""
        text = (
            f"{which} of {len(each)} ended before the load was over: {s.failures.get('lost', 0):,} open requests were "
            f"lost{unsent}. That is the client's fault, not the server's."
        )
        void = len(numbers) == len(each) or not s.completed
        yield Finding("client.process_lost", "void" if void else "doubt", text)


def clocks(e: Evidence) -> Iterator[Finding]:
    """Compare the clocks of Ray's nodes with the one here."""
    s = e.summary
    read = [(client.node, client.clock) for client in s.client.processes if client.clock]
    if not read:
        return
    node, clock = max(read, key=lambda pair: pair[1].uncertainty_ns)
    off_ms = clock.uncertainty_ns / NS_PER_MS
    medians = {"TTFT": s.ttft.median, "TPOT": s.true_tpot.median}
    short = [
        f"{name} ({number(ms)} ms)"
        for name, ms in medians.items()
        if ms and off_ms > CLOCK_SHARE * ms
    ]
    if short:
        text = f"The clock of node {node} is known to ± {number(off_ms)} ms, over 1 % of the median {', '.join(short)}."
        doubt_from_ms = CLOCK_SHARE * s.duration_s * 1000
        yield Finding(
            "client.clock_uncertain", "doubt" if off_ms > doubt_from_ms else "note", text
        )
    node, clock = max(read, key=lambda pair: abs(pair[1].drift))
    if abs(clock.drift) > DRIFT and clock.gain_ns > 2 * clock.uncertainty_ns:
        gain, way = number(clock.gain_ns / NS_PER_MS), "fast" if clock.drift > 0 else "slow"
        text = f"The clock of node {node} ran {number(abs(clock.drift) * 1e6)} ppm {way}: {gain} ms during the load."
        yield doubt("client.clock_drift", text)


def others(e: Evidence | OfflineEvidence) -> Iterator[Finding]:
    """Processes other than dyno and its engine kept cores busy."""
    if isinstance(e, Evidence):
        used, took, least_s = e.summary.client.others_cpu, e.summary.duration_s, 0.2
    else:
        used, took, least_s = e.others_cpu, e.offline.duration_s, 0.05
    cores = e.rig.cores if e.rig else 0
    share = (
        OTHERS_SHARE if took >= 1 else 2 * OTHERS_SHARE
    )  # the kernel counts in hundredths of a second
    if used is None or not e.rig or not cores or took < least_s or used < share * cores:
        return
    text = f"Other processes used {number(min(used, cores), digits=2)} of {cores} cores during the load."
    if e.rig.accelerators:
        advice = (
            "They shared the host with dyno and the engine. Stop them if latencies matter."
        )
        yield note("client.others_cpu", text, advice)
    else:
        yield doubt("client.others_cpu", text)
