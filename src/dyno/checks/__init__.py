"""The list of checks: each states its findings and the evidence that it needs. METHOD.md describes every code."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

from dyno.checks import client, comparability, consistency, engine, load, machine, physics, requests, statistics, tokens
from dyno.checks.comparability import Objection, Two
from dyno.checks.evidence import Circumstances, Evidence
from dyno.facts.finding import Finding, worst_first
from dyno.facts.rig import Rig
from dyno.http import Url

# server, offline: one of dyno's own runs, with all its records. run: either. rig: the machine on which dyno ran.
# row: a result of another tool. any_row: one of dyno's own too, which was examined as a run when it was measured.
# rows: all results that were read. roofline: these, with the peaks of their machines. duplicates: pairs of them.
# pair: two settings that are compared.
Need = Literal["server", "offline", "run", "rig", "row", "any_row", "rows", "roofline", "duplicates", "pair"]


class Check:
    """The codes of a problem, and a function for each kind of evidence that can show it."""

    def __init__(self, *codes: str, **judges: Callable[[Any], Iterator[Finding | Objection]]) -> None:
        self.codes, self.judges = codes, judges


CHECKS = (
    Check("requests.none_completed", "requests.failed", server=requests.failed, offline=requests.failed_offline,
          row=requests.failed_row, rows=requests.dropped),
    Check("requests.cut_short", server=requests.cut_short, offline=requests.cut_short_offline),
    Check("requests.end_at_once", server=requests.end_at_once),
    Check("requests.resent", server=requests.resent),
    Check("requests.unasked", server=requests.unasked),
    Check("requests.unaccounted", server=requests.unaccounted),
    Check("consistency.command", row=requests.more_than_asked),
    Check("requests.empty", row=requests.empty),
    Check("requests.zeros_in_mean", row=requests.zeros_in_mean),
    Check("requests.errors_counted", row=requests.errors_among_successes),
    Check("model.not_listed", "model.other_answered", server=engine.model_name),
    Check("engine.unverified", "engine.not_as_said", server=engine.as_said),
    Check("engine.quantization", server=engine.quantization_named),
    Check("engine.died", server=engine.died),
    Check("engine.frozen", server=engine.frozen),
    Check("engine.no_drafts", offline=engine.no_drafts),
    Check("cache.not_emptied", server=tokens.cache_emptied),
    Check("tokens.text_differs", row=tokens.counted_again),
    Check("tokens.output_short", server=tokens.output_short, offline=tokens.output_short_offline,
          row=tokens.output_short_row),
    Check("tokens.output_long", server=tokens.output_long),
    Check("tokens.impossible", "tokens.miscounted", server=tokens.believed),
    Check("tokens.input_length", "tokens.input_approximate", server=tokens.input_length, row=tokens.input_length_row),
    Check("tokens.by_tokenizer", "tokens.by_chunks", server=tokens.counting),
    Check("tokens.bundled", server=tokens.bundled),
    Check("stream.buffered", server=tokens.buffered),
    Check("cache.prefix_hits", offline=tokens.cached_offline),
    Check("cache.depth_missed", offline=tokens.depth_missed),
    Check("cache.sent_before", server=tokens.sent_before),
    Check("consistency.sums", any_row=consistency.sums),
    Check("consistency.percentiles", any_row=consistency.percentiles),
    Check("consistency.tail_below_mean", any_row=consistency.tail_below_mean),
    Check("consistency.end_before_first", any_row=consistency.end_before_first),
    Check("consistency.latencies", any_row=consistency.latencies),
    Check("consistency.in_flight", "consistency.mean_tpot", any_row=consistency.in_flight),
    Check("consistency.zero_ttft", any_row=consistency.zero_first_token),
    Check("consistency.peak_below_mean", any_row=consistency.peak),
    Check("consistency.two_runs", any_row=consistency.two_runs),
    Check("consistency.price", any_row=consistency.price),
    Check("consistency.more_than_offered", any_row=consistency.rate_exceeds),
    Check("consistency.beyond_the_run", any_row=consistency.beyond_the_run),
    Check("consistency.tokens", any_row=consistency.batch_counts),
    Check("comparability.work_differs", rows=comparability.work),
    Check("comparability.success_differs", rows=comparability.success),
    Check("comparability.loads_differ", rows=comparability.loads),
    Check("comparability.model_differs", rows=comparability.models),
    Check("comparability.parts_of_a_node", rows=comparability.parts_of_a_node),
    Check("comparability.void_side", "comparability.doubtful_side", pair=comparability.sides),
    Check("comparability.load", pair=comparability.load),
    Check("comparability.requests", pair=comparability.requests),
    Check("comparability.prompts", "comparability.tokenizers", pair=comparability.prompts),
    Check("comparability.output_length", "comparability.input_length", pair=comparability.lengths),
    Check("comparability.failures", pair=comparability.failures),
    Check("comparability.definitions", rows=comparability.definitions_rows, pair=comparability.definitions),
    Check("comparability.subject", "comparability.several_changes", "comparability.nothing_changed",
          pair=comparability.changes),
    Check("comparability.accelerators", pair=comparability.accelerators),
    Check("comparability.single_runs", pair=comparability.single_runs),
    Check("load.rate_not_reached", server=load.rate, row=load.rate_row, rows=load.rate_rows),
    Check("load.not_sent", row=load.not_sent),
    Check("load.queue", row=load.queue),
    Check("load.slots", "load.saturated", "load.fell", server=load.slots, offline=load.slots_offline,
          row=load.slots_row, rows=load.saturated),
    Check("load.streams_missing", server=load.streams),
    Check("load.repeated_prompts", server=load.repeated_prompts),
    Check("load.replicas_uneven", server=load.replicas),
    Check("client.proxy", server=client.proxy),
    Check("client.limits", server=client.limits),
    Check("client.unseen_chunks", server=client.unseen_chunks),
    Check("client.clock_set", server=client.clock_set),
    Check("client.late_sends", server=client.late_sends),
    Check("client.late_loop", server=client.late_loop),
    Check("client.busy", server=client.busy),
    Check("client.others_cpu", server=client.others, offline=client.others_offline),
    Check("engine.preemptions", server=engine.preempted),
    Check("engine.restarted", server=engine.restarted),
    Check("load.engine_streams", server=load.engine_streams),
    Check("telemetry.energy_differs", server=machine.energy),
    Check("statistics.few_samples", server=statistics.few_samples, row=statistics.few_samples_row),
    Check("statistics.ramp_and_drain", server=statistics.ramp, row=statistics.ramp_row),
    Check("statistics.short", server=statistics.short),
    Check("statistics.few_iterations", offline=statistics.few_iterations),
    Check("statistics.first_iteration", offline=statistics.first_iteration, row=statistics.first_iteration_row),
    Check("statistics.unsteady", offline=statistics.unsteady, row=statistics.unsteady_row),
    Check("statistics.drift", row=statistics.drift),
    Check("engine.second_attempt", run=engine.second_attempt),
    Check("engine.memory_held", run=engine.memory_held),
    Check("engine.generic_build", run=engine.generic_build),
    Check("telemetry.throttled", run=machine.throttled),
    Check("telemetry.power_limited", run=machine.power_limited),
    Check("telemetry.sparse", run=machine.sparse),
    Check("physics.above_roofline", "physics.far_below", run=physics.roofline, roofline=physics.roofline_rows),
    Check("rig.accelerator_shared", rig=machine.accelerator_shared),
    Check("rig.power_capped", rig=machine.power_capped),
    Check("rig.numa_balancing", rig=machine.numa_balancing),
    Check("rig.governor", rig=machine.governor),
    Check("rig.iommu", rig=machine.iommu),
    Check("rig.memory_short", rig=machine.memory_short),
    Check("rig.hardware_differs", "rig.software_differs", "rig.settings_differ", "rig.environment_differs",
          pair=comparability.rigs),
    Check("statistics.single_run", run=statistics.single_run, rows=statistics.single_run_rows),
    Check("statistics.repeats_differ", rows=statistics.repeats),
    Check("statistics.within_error", rows=statistics.within_error),
    Check("consistency.copies", rows=consistency.copies),
    Check("consistency.twins", rows=consistency.twins),
    Check("comparability.multiplied", rows=consistency.multiples),
    Check("consistency.reported_twice", duplicates=consistency.reported_twice),
    Check("cache.warm", rows=tokens.warm),
    Check("cache.hits", server=tokens.cached, rows=tokens.cached_rows),
    Check("cache.later_faster", rows=tokens.later_faster),
)  # fmt: skip


def run(**evidence: Any) -> Iterator[Any]:
    """Run all checks for which there is evidence, which is given by its Need."""
    for check in CHECKS:
        for need, judge in check.judges.items():
            if need in evidence:
                yield from judge(evidence[need])


def examine(e: Circumstances) -> list[Finding]:
    """Return the findings about a run of dyno's own."""
    evidence: dict[Need, Circumstances | Rig] = {"run": e, "server" if isinstance(e, Evidence) else "offline": e}
    url = e.trial.target.base_url
    if e.rig is not None and (not url or Url(url).local):  # an engine in dyno's own process has no address
        evidence["rig"] = e.rig
    return worst_first(run(**evidence))


def objections(two: Two) -> list[Objection]:
    return [o if isinstance(o, Objection) else Objection(o) for o in run(pair=two)]
