"""From iterations to figures and findings: by hand-made iterations, whose truth is known."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import offlines
from dyno.checks import CHECKS, client, engine, examine, load, requests, statistics, tokens
from dyno.checks.evidence import OfflineEvidence
from dyno.facts.finding import Finding
from dyno.facts.offline import Answer, Iteration, OfflineSpec, ReplicaFigures, Speculation
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.spread import Spread
from dyno.facts.target import TargetFacts
from dyno.facts.trial import TrialSpec
from dyno.measure import offline as measure

MS = 1_000_000


def answer(
    start: int,
    first: int | None,
    end: int | None,
    tokens: int = 5,
    prompt: int = 100,
    **more: Any,
) -> Answer:
    """In milliseconds since the iteration's begin."""
    times = {
        "start_ns": start * MS,
        "first_ns": first and first * MS,
        "end_ns": end and end * MS,
    }
    return Answer(prompt, tokens, 5, decoded_tokens=max(tokens - 1, 0), **times, **more)


def iteration(took_ms: float, *answers: Answer, index: int = 0, **more: Any) -> Iteration:
    start = 10_000 * MS * (index + 1)
    return Iteration(index, start, start + round(took_ms * MS), list(answers), **more)


def summarized(*iterations: Iteration, trial: TrialSpec | None = None) -> Any:
    return measure.summarize(trial or offlines.trial("latency"), iterations)


def test_prefill_ends_with_the_first_token_and_decode_with_the_last() -> None:
    o = summarized(iteration(200, answer(0, 20, 60), answer(20, 60, 200)))
    assert (o.prefill_ms.mean, o.decode_ms.mean) == (30, 90)
    assert o.tpot_ms.mean == pytest.approx((40 / 4 + 140 / 4) / 2)
    assert o.prefill_speed.mean == pytest.approx(200 / 0.060), (
        "both prompts, by the time in which one was at it"
    )
    assert o.decode_speed.mean == pytest.approx(8 / 0.180)
    assert o.in_flight_mean == pytest.approx((60 + 180) / 200)
    assert o.context_mean == pytest.approx(102.5)


def test_time_in_which_nothing_is_prefilled_does_not_count() -> None:
    o = summarized(iteration(300, answer(0, 20, 60), answer(200, 220, 300)))
    assert o.prefill_speed.mean == pytest.approx(200 / 0.040)


def test_tokens_from_a_cache_are_not_processed_ones() -> None:
    o = summarized(iteration(100, answer(0, 50, 100, prompt=400, cached_tokens=300)))
    assert o.prefill_speed.mean == pytest.approx(100 / 0.050)
    assert (o.input_tokens, o.cached_input_tokens) == (400, 300)


def test_rates_agree_with_their_sums_and_their_deviation_is_a_samples() -> None:
    o = summarized(
        iteration(100, answer(0, 20, 100)), iteration(200, answer(0, 20, 200), index=1)
    )
    assert (o.request_throughput.mean, o.request_throughput.count) == (
        pytest.approx(2 / 0.3),
        2,
    )
    assert o.request_throughput.std == pytest.approx(3.5355, rel=1e-4), "of 10 and 5"
    assert o.output_throughput.mean == pytest.approx(10 / 0.3)
    assert o.total_token_throughput.mean == pytest.approx(210 / 0.3)
    assert (o.latency.mean, o.first_latency_ms) == (150, 100)
    assert o.latency.std == pytest.approx(70.71, rel=1e-4)


def test_what_failed_is_in_no_count_but_its_own() -> None:
    lost = Answer(100, 0, 5, error="the engine returned no answer")
    o = summarized(iteration(100, answer(0, 20, 100), lost))
    assert (o.completed, o.failed, o.output_tokens, o.wanted_output_tokens) == (1, 1, 5, 5)
    assert (
        o.request_throughput.mean == 10
        and o.failure_example == "the engine returned no answer"
    )


def test_token_generation_is_not_a_test_of_prompt_processing() -> None:
    w = msgspec.structs.replace(offlines.trial("micro").workload, input_len=0, output_len=4)
    trial = msgspec.structs.replace(offlines.trial("micro"), workload=w)
    o = summarized(iteration(100, answer(0, 20, 60, prompt=1)), trial=trial)
    assert o.prefill_speed is o.prefill_ms is None
    assert o.speed == o.decode_speed.mean == pytest.approx(100)


def test_others_are_weighed_by_time() -> None:
    its = [
        iteration(100, others_cpu=1.0),
        iteration(300, index=1, others_cpu=0.0),
        iteration(50, index=2),
    ]
    assert measure.others_cpu(its) == pytest.approx(0.25)
    assert measure.others_cpu(its[2:]) is None


def test_replicas_are_one_iteration_from_the_first_begin_to_the_last_end() -> None:
    early = iteration(
        100, answer(0, 20, 100), answer(0, 30, 90), drafted_tokens=4, accepted_tokens=1
    )
    late = iteration(150, answer(0, 20, 150), drafted_tokens=2, accepted_tokens=2)
    late = msgspec.structs.replace(
        late, start_ns=late.start_ns + 10 * MS, end_ns=late.end_ns + 10 * MS
    )
    whole = measure.joined([late, early])
    assert (whole.start_ns, whole.end_ns) == (early.start_ns, late.end_ns)
    assert [a.end_ns for a in whole.answers] == [160 * MS, 100 * MS, 90 * MS]
    assert (whole.drafts, whole.drafted_tokens, whole.accepted_tokens) == (None, 6, 3)
    o = summarized(whole, whole)
    assert o.output_throughput.mean == pytest.approx(15 / 0.160)
    assert [r.output_throughput.mean for r in o.replicas] == [
        pytest.approx(5 / 0.150),
        pytest.approx(10 / 0.100),
    ]
    assert [(r.completed, r.late_ms) for r in o.replicas] == [(2, 10), (4, 0)]
    assert measure.joined([early]) is early


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [
        ([], 0),
        ([(0, 5)], 5),
        ([(0, 5), (3, 8)], 8),
        ([(0, 10), (2, 4)], 10),
        ([(6, 9), (0, 2)], 5),
    ],
)
def test_a_union_counts_no_time_twice(
    intervals: list[tuple[int, int]], covered: int
) -> None:
    assert measure.union_ns(intervals) == covered


# ---- findings ----

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0]


def evidence(
    summary: dict[str, Any] | None = None, trial: TrialSpec | None = None, **fields: Any
) -> OfflineEvidence:
    """Without blemish, but for these."""
    its = [iteration(ms, answer(0, 20, 90), index=i) for i, ms in enumerate(STEADY)]
    trial = trial or msgspec.structs.replace(offlines.trial("latency"), ignore_eos=True)
    o = msgspec.structs.replace(measure.summarize(trial, its), **(summary or {}))
    values: dict[str, Any] = {
        "trial": trial, "target": TargetFacts("m"), "offline": o, "latencies_ms": STEADY, "wanted_iterations": 6,
        "repeats": 2,
    }  # fmt: skip
    return OfflineEvidence(**{**values, **fields})


def rig(*accelerators: Accelerator) -> Rig:
    return Rig("Debian", "6", "x86_64", "cpu", 16, accelerators=list(accelerators))


def deep(depth: int = 512) -> TrialSpec:
    trial = offlines.trial("micro")
    w = msgspec.structs.replace(trial.workload, input_len=100, output_len=0)
    return msgspec.structs.replace(
        trial, workload=w, offline=OfflineSpec("micro", depth=depth)
    )


def copies(*speeds: float, late_ms: float = 0.0, std: float = 1.0) -> dict[str, Any]:
    spreads = [Spread(6, speed, std) for speed in speeds]
    figures = [
        ReplicaFigures(i, 6, 0, 600, 30, 0.6, s, s, i * late_ms)
        for i, s in enumerate(spreads)
    ]
    return {"replicas": figures}


MICRO = offlines.micro_trial(8, 0)  # with --threads 2
GPU = Accelerator(0, "NVIDIA H200", "nvidia")
SLOW = [150.0, 100.0, 101.0, 99.0, 100.0, 100.5]
CASES: list[
    tuple[
        Callable[[OfflineEvidence], Iterator[Finding]],
        OfflineEvidence,
        str | None,
        str | None,
    ]
] = [
    (load.offline_replicas, evidence(), None, None),
    (load.offline_replicas, evidence(copies(1000.0, 950.0)), None, None),
    # within their noise
    (load.offline_replicas, evidence(copies(1000.0, 850.0, std=200.0)), None, None),
    (
        load.offline_replicas,
        evidence(copies(1000.0, 850.0)),
        "load.replicas_uneven",
        "note",
    ),
    (
        load.offline_replicas,
        evidence(copies(1000.0, 700.0)),
        "load.replicas_uneven",
        "doubt",
    ),
    (load.offline_replicas, evidence(copies(1000.0, 1000.0, late_ms=0.5)), None, None),
    (
        load.offline_replicas,
        evidence(copies(1000.0, 1000.0, late_ms=2.0)),
        "load.replicas_apart",
        "note",
    ),
    (
        load.offline_replicas,
        evidence(copies(1000.0, 1000.0, late_ms=8.0)),
        "load.replicas_apart",
        "doubt",
    ),
    (requests.failed, evidence(), None, None),
    (requests.failed, evidence({"failed": 1}), "requests.failed", "doubt"),
    (requests.failed, evidence({"failed": 60, "completed": 6}), "requests.failed", "void"),
    (requests.cut_short, evidence(), None, None),
    (requests.cut_short, evidence(wanted_iterations=30), "requests.cut_short", "doubt"),
    (tokens.output_short, evidence(), None, None),
    (tokens.output_short, evidence({"output_tokens": 20}), "tokens.output_short", "doubt"),
    (
        tokens.output_short,
        evidence(
            {"output_tokens": 20},
            trial=msgspec.structs.replace(offlines.trial("latency"), ignore_eos=False),
        ),
        "tokens.output_short",
        "note",
    ),
    (load.slots, evidence({"requests": 8}, target=TargetFacts("m", slots=8)), None, None),
    (
        load.slots,
        evidence({"requests": 8}, target=TargetFacts("m", slots=4)),
        "load.slots",
        "doubt",
    ),
    (
        load.slots,
        evidence({"requests": 8, "kind": "throughput"}, target=TargetFacts("m", slots=4)),
        None,
        None,
    ),
    (
        engine.as_asked,
        evidence(trial=MICRO, reported={"n_threads": 2, "n_depth": 0}),
        None,
        None,
    ),
    (
        engine.as_asked,
        evidence(trial=MICRO, reported={"n_threads": 4}),
        "engine.not_as_said",
        "void",
    ),
    (
        engine.as_asked,
        evidence(trial=MICRO, reported={"n_depth": 64}),
        "engine.not_as_said",
        "void",
    ),
    (engine.no_drafts, evidence({"speculation": Speculation(9, 27, 3)}), None, None),
    (
        engine.no_drafts,
        evidence({"speculation": Speculation(0, 0, 0)}),
        "engine.no_drafts",
        "doubt",
    ),
    (tokens.cached, evidence({"cached_input_tokens": 5}), None, None),
    (tokens.cached, evidence({"cached_input_tokens": 300}), "cache.prefix_hits", "doubt"),
    (tokens.cached, evidence({"cached_input_tokens": 300}, trial=deep()), None, None),
    (
        tokens.depth_missed,
        evidence({"cached_input_tokens": 3072, "input_tokens": 3672}, trial=deep()),
        None,
        None,
    ),
    (
        tokens.depth_missed,
        evidence({"cached_input_tokens": 0, "input_tokens": 3672}, trial=deep()),
        "cache.depth_missed",
        "void",
    ),
    (statistics.few_iterations, evidence(), None, None),
    (
        statistics.few_iterations,
        evidence({"iterations": 1}),
        "statistics.few_iterations",
        "note",
    ),
    (statistics.first_iteration, evidence(), None, None),
    (
        statistics.first_iteration,
        evidence(latencies_ms=SLOW),
        "statistics.first_iteration",
        "doubt",
    ),
    (
        statistics.first_iteration,
        evidence(latencies_ms=[103.0, 100, 100, 100.1, 100]),
        "statistics.first_iteration",
        "note",
    ),
    (
        statistics.first_iteration,
        evidence(latencies_ms=[101.0, 100, 100, 100.1, 100]),
        None,
        None,
    ),
    # too few others to know their deviation
    (statistics.first_iteration, evidence(latencies_ms=SLOW[:4]), None, None),
    (statistics.unsteady, evidence(), None, None),
    (
        statistics.unsteady,
        evidence(latencies_ms=[100.0, 150.0, 80.0]),
        "statistics.unsteady",
        "doubt",
    ),
    (statistics.unsteady, evidence(latencies_ms=[100.0, 150.0]), None, None),
    (client.others, evidence(rig=rig(), others_cpu=0.5), None, None),
    (
        client.others,
        evidence({"duration_s": 5.0}, rig=rig(), others_cpu=4.0),
        "client.others_cpu",
        "doubt",
    ),
    (
        client.others,
        evidence({"duration_s": 5.0}, rig=rig(GPU), others_cpu=4.0),
        "client.others_cpu",
        "note",
    ),
    (
        client.others,
        evidence({"duration_s": 0.2}, rig=rig(), others_cpu=4.0),
        None,
        None,
    ),  # too short to be sure
    (
        client.others,
        evidence({"duration_s": 0.2}, rig=rig(), others_cpu=8.0),
        "client.others_cpu",
        "doubt",
    ),
]


@pytest.mark.parametrize(("check", "of", "code", "level"), CASES)
def test_a_check_speaks_when_it_should_and_is_silent_otherwise(
    check: Callable[[OfflineEvidence], Iterator[Finding]],
    of: OfflineEvidence,
    code: str | None,
    level: str | None,
) -> None:
    found = list(check(of))
    assert [(f.code, f.level) for f in found] == ([(code, level)] if code else [])
    assert all(f.text.endswith((".", ")")) for f in found)


def test_every_check_of_an_offline_trial_is_tested_speaking_and_silent() -> None:
    every = {check.judges["offline"] for check in CHECKS if "offline" in check.judges}
    assert (
        {c for c, _, code, _ in CASES if code}
        == {c for c, _, code, _ in CASES if code is None}
        == every
    )


def test_a_measurement_without_blemish_has_no_findings() -> None:
    assert examine(evidence(rig=rig(GPU))) == []
