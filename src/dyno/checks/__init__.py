"""Findings about a run, from small pure functions. METHOD.md has an entry for each code."""

from collections.abc import Callable, Iterator

from dyno.checks import client, engine, load, model, offline, physics, requests, rig, statistics, telemetry, tokens
from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.finding import Finding, worst_first

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    requests.failed,
    requests.cut_short,
    requests.end_at_once,
    requests.resent,
    requests.unasked,
    requests.unaccounted,
    model.name,
    engine.as_said,
    engine.quantization_named,
    engine.died,
    engine.frozen,
    engine.slots,
    engine.cache_emptied,
    tokens.output_length,
    tokens.output_long,
    tokens.believed,
    tokens.input_length,
    tokens.counting,
    tokens.cached,
    tokens.sent_before,
    tokens.bundled,
    tokens.buffered,
    load.rate,
    load.streams,
    load.repeated_prompts,
    load.replicas,
    client.proxy,
    client.limits,
    client.unseen_chunks,
    client.clock_set,
    client.late_sends,
    client.late_loop,
    client.busy,
    client.others,
    telemetry.preempted,
    telemetry.restarted,
    telemetry.engine_streams,
    telemetry.energy,
    statistics.few_samples,
    statistics.no_steady_window,
    statistics.short,
)


# Of any benchmark; those of a server are among the others.
COMMON: tuple[Callable[[Circumstances], Iterator[Finding]], ...] = (
    engine.second_attempt,
    engine.memory_held,
    engine.generic_build,
    telemetry.throttled,
    telemetry.power_limited,
    telemetry.sparse,
    physics.above_roofline,
    physics.far_below,
    rig.accelerator_shared,
    rig.power_capped,
    rig.numa_balancing,
    rig.governor,
    rig.iommu,
    rig.memory_short,
    statistics.single_run,
)
OFFLINE: tuple[Callable[[OfflineEvidence], Iterator[Finding]], ...] = (
    offline.failed,
    offline.cut_short,
    offline.output_length,
    offline.slots,
    offline.no_drafts,
    offline.cached,
    offline.depth_missed,
    offline.few_iterations,
    offline.first_slow,
    offline.unsteady,
    offline.others,
)


def examine(evidence: Evidence) -> list[Finding]:
    checks = (*CHECKS, *COMMON)
    return worst_first(finding for check in checks for finding in check(evidence))


def examine_offline(evidence: OfflineEvidence) -> list[Finding]:
    checks = (*OFFLINE, *COMMON)
    return worst_first(finding for check in checks for finding in check(evidence))
