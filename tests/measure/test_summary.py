"""Records with known times give exact numbers, and each check speaks when it should and only then."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from dyno.audit.document import read_bytes as imported
from dyno.checks import (
    CHECKS,
    answers,
    client,
    correctness,
    engine,
    examine,
    load,
    machine,
    network,
    physics,
    statistics,
    tokens,
)
from dyno.checks import requests as requests_check
from dyno.checks.evidence import Evidence
from dyno.facts.clock import ClockReading, NodeClock
from dyno.facts.correctness import PROMPTS, Correctness, GreedyAnswer
from dyno.facts.engine import EngineFacts, EngineSpec, Launch, Misspelt, Remark
from dyno.facts.finding import Finding, verdict
from dyno.facts.load import LoadSpec
from dyno.facts.metric import LATENCIES
from dyno.facts.recipe import ModelOrigin
from dyno.facts.record import ClientFacts, Record
from dyno.facts.rig import Accelerator, Peaks, Rig, Roofline, Share
from dyno.facts.structured import StructuredSummary
from dyno.facts.summary import (
    CancelSummary,
    Counts,
    Freeze,
    MediaSummary,
    ReplaySummary,
    ReplicaSummary,
    Result,
    ReuseSummary,
    SessionSummary,
    Steady,
    Summary,
    Wait,
)
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.telemetry import AcceleratorTelemetry, EngineTelemetry, TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.measure import timing
from dyno.measure.freeze import Cuts, unfrozen
from dyno.measure.statistics import distribution_ms, samples_needed
from dyno.measure.summary import Tally
from dyno.report import result_json
from dyno.report.timeline import bars_of_records
from dyno.store.rows import row_of
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.spec import WorkloadSpec
from offlines import manifest

MS = NS_PER_MS
TRIAL = TrialSpec(
    target=TargetSpec("http://localhost:8000", "openai", "/v1/completions", "m"),
    workload=WorkloadSpec("random", num_prompts=10),
    load=LoadSpec(max_concurrency=2),
    percentiles=[50.0, 90.0],
)

GOOD = msgspec.structs.replace(TRIAL, goodput_ms={"ttft": 80, "e2el": 900})


def record(
    index: int = 0,
    sent_ms: float = 0,
    first_ms: float = 100,
    gaps_ms: list[float] | None = None,
    due_ms: float | None = None,
    **fields: Any,
) -> Record:
    """First token `first_ms` after sending, the others after these gaps; over a millisecond after the last."""
    times = [sent_ms + first_ms]
    for gap in [10.0] * 4 if gaps_ms is None else gaps_ms:
        times.append(times[-1] + gap)
    values: dict[str, Any] = {
        "index": index,
        "due_ns": int((sent_ms if due_ms is None else due_ms) * MS),
        "sent_ns": int(sent_ms * MS),
        "end_ns": int((times[-1] + 1) * MS),
        "prompt_tokens_planned": 7,
        "output_tokens_wanted": len(times),
        "status": 200,
        "chunk_ns": [int(t * MS) for t in times],
        "prompt_tokens": 8,
        "output_tokens": len(times),
        "tokens_by": "usage",
        "finish_reason": "length",
        "model": "m",
        "reads": len(times),
    }
    return Record(**{**values, **fields})


def failed(kind: str, **fields: Any) -> Record:
    return record(error=kind, error_detail=f"{kind}, in words", **fields)


def client_facts(duration_s: float = 1.0, sent: int = 1, **fields: Any) -> ClientFacts:
    values: dict[str, Any] = {
        "start_ns": 5 * NS_PER_S,
        "end_ns": int((5 + duration_s) * NS_PER_S),
        "outcome": "complete",
        "planned": sent,
        "sent": sent,
        "cpu_s": 0.1,
        "reads": 5,
        "ticks_late_ns": [0],
        "kernel_stamps": True,
    }
    return ClientFacts(**{**values, **fields})


def summarize(
    records: list[Record], duration_s: float = 1.0, trial: TrialSpec = TRIAL, **facts: Any
) -> Summary:
    tally = Tally(trial)
    for r in records:
        tally.add(r)
    return tally.summary(client_facts(duration_s, **{"sent": len(records), **facts}))


def with_(trial: TrialSpec = TRIAL, **changes: Any) -> TrialSpec:
    return msgspec.structs.replace(trial, **changes)


def test_a_server_that_gives_each_answer_another_name_fills_no_memory() -> None:
    summary = summarize(
        [record(i, model=f"m{i}", finish_reason=f"f{i}") for i in range(200)]
    )
    assert len(summary.models_answered) == len(summary.finish_reasons) == 51
    assert summary.models_answered["others"] == summary.finish_reasons["others"] == 150


# ---- latencies ----


def test_a_very_short_load_has_no_cpu_share() -> None:
    assert summarize([record()], 1.0).client.cpu_share == pytest.approx(0.1)
    assert summarize([record()], 0.01).client.cpu_share is None


def test_the_latencies_of_one_request() -> None:
    r = record(sent_ms=50, first_ms=100, gaps_ms=[10, 20, 30], due_ms=30)
    assert timing.ttft_ns(r) == (100 * MS, 100 * MS)
    # to the last token, not to the end of the exchange
    assert timing.e2el_ns(r) == (160 * MS, 160 * MS)
    assert timing.tpot_ns(r) == (20 * MS, 20 * MS)
    assert timing.queue_ns(r) == 20 * MS


def test_tpot_is_by_tokens_and_not_by_chunks() -> None:
    r = record(gaps_ms=[30], output_tokens=7)
    assert timing.tpot_ns(r) == (5 * MS, 5 * MS)


@pytest.mark.parametrize("output_tokens", [None, 0, 1])
def test_a_single_token_has_no_tpot(output_tokens: int | None) -> None:
    assert timing.tpot_ns(record(gaps_ms=[], output_tokens=output_tokens)) is None


def test_a_latency_with_an_unseen_end_lies_between_the_earliest_and_the_latest_it_can_be() -> (
    None
):
    late = record(
        sent_ms=50,
        first_ms=100,
        gaps_ms=[0, 0, 40],
        unseen=[0, 1],
        unseen_since_ns=[60 * MS, 60 * MS],
    )
    assert timing.ttft_ns(late) == (10 * MS, 100 * MS)
    assert timing.tpot_ns(late) == (40 * MS / 3, 130 * MS / 3)
    assert timing.e2el_ns(late) == (140 * MS, 140 * MS)
    cut = record(gaps_ms=[10, 20], unseen=[2], unseen_since_ns=[115 * MS])
    assert (timing.ttft_ns(cut), timing.e2el_ns(cut)) == (
        (100 * MS, 100 * MS),
        (115 * MS, 130 * MS),
    )
    assert timing.tpot_ns(cut) == (15 * MS / 2, 30 * MS / 2)


def test_bounds_of_the_own_tpot_are_by_the_tokens_after_the_first_chunk_too() -> None:
    """Twelve tokens in the first chunk, eight in 20 ms: 2.5 ms a token, whatever the late client knows of it."""
    prompt = record(gaps_ms=[10, 10], output_tokens=20, first_tokens=12)
    late = record(
        gaps_ms=[10, 10],
        output_tokens=20,
        first_tokens=12,
        unseen=[2],
        unseen_since_ns=[118 * MS],
    )
    assert summarize([prompt]).true_tpot.mean == 2.5
    own, vllms = summarize([late]).true_tpot, summarize([late]).tpot
    assert own.bounds["mean"] == pytest.approx((18 / 8, 20 / 8)) and own.mean is None
    assert vllms.bounds["mean"] == pytest.approx((18 / 19, 20 / 19))


def test_records_that_do_not_say_since_when_are_bounded_by_what_came_before() -> None:
    assert timing.ttft_ns(record(sent_ms=50, unseen=[0])) == (0, 100 * MS)
    assert timing.ttft_ns(record(unseen=[1])) == (100 * MS, 100 * MS)
    assert timing.earliest_ns(record(gaps_ms=[10, 10], unseen=[1])) == [
        100 * MS,
        100 * MS,
        120 * MS,
    ]


def test_unseen_chunks_lie_evenly_in_their_time_where_they_are_drawn() -> None:
    r = record(gaps_ms=[40, 0, 0, 10], unseen=[1, 2], unseen_since_ns=[110 * MS, 110 * MS])
    assert timing.likely_ns(r) == [100 * MS, 120 * MS, 130 * MS, 140 * MS, 150 * MS]


def test_the_latencies_of_a_run_are_exact() -> None:
    s = summarize(
        [
            record(i, sent_ms=10 * i, first_ms=100 + 10 * i, gaps_ms=[10, 30])
            for i in range(5)
        ]
    )
    assert (s.ttft.count, s.ttft.mean, s.ttft.median) == (5, 120.0, 120.0)
    assert s.ttft.std == pytest.approx(14.142135, rel=1e-6)
    # linear between samples, as numpy and vLLM do
    assert s.ttft.percentiles == {"50": 120.0, "90": 136.0}
    assert (s.tpot.count, s.tpot.mean) == (5, 20.0)
    assert (s.itl.count, s.itl.mean) == (10, pytest.approx(20.0))  # pooled
    assert s.itl.percentiles == {"50": pytest.approx(20.0), "90": pytest.approx(30.0)}
    assert (s.e2el.count, s.e2el.mean) == (5, 160.0)
    assert "itl_per_token" not in s.latencies


def test_response_latency_counts_from_due_and_service_latency_from_sent() -> None:
    s = summarize([record(sent_ms=300, due_ms=100)])
    assert (s.ttft.mean, s.latencies["response_ttft"].mean) == (100.0, 300.0)
    assert (s.e2el.mean, s.latencies["response_e2el"].mean) == (140.0, 340.0)
    assert s.latencies["queue"].mean == 200.0


def test_where_chunks_carry_several_tokens_the_gap_is_reported_for_each_token_too() -> None:
    s = summarize([record(gaps_ms=[10, 10], chunk_tokens=[1, 1, 4], output_tokens=6)])
    assert (s.itl.count, s.itl.mean) == (2, pytest.approx(10.0))
    assert "itl_per_token" in s.latencies
    # Five tokens came in 20 ms after the first: one after 10 ms, four in the next 10.
    assert s.latencies["itl_per_token"].count == 5
    assert s.latencies["itl_per_token"].mean == pytest.approx(4.0)


def test_without_a_count_for_each_chunk_the_tokens_after_the_first_are_taken_as_even() -> (
    None
):
    s = summarize([record(gaps_ms=[12, 12], output_tokens=12, first_tokens=4)])
    assert "itl_per_token" in s.latencies and s.latencies[
        "itl_per_token"
    ].mean == pytest.approx(3.0)


def test_without_a_count_of_the_first_chunk_the_time_for_each_token_has_bounds() -> None:
    s = summarize([record(gaps_ms=[12, 12], output_tokens=12)])
    assert "itl_per_token" in s.latencies and s.latencies["itl_per_token"].bounds[
        "mean"
    ] == pytest.approx((24 / 11, 24 / 2))


def test_gaps_around_an_unseen_chunk_are_bounded_by_their_sum() -> None:
    # 100 ms, then one somewhere in the 30 ms before 130, then 140: the two unknown gaps add up to 30 ms.
    s = summarize([record(gaps_ms=[30, 0, 10], unseen=[1], unseen_since_ns=[100 * MS])])
    assert s.itl.count == 3
    assert s.itl.mean == pytest.approx(40 / 3)  # needs the first and the last only
    assert s.tpot.mean == pytest.approx(40 / 3)
    # 0, 10, 30 and 10, 15, 15 are possible
    assert (s.itl.median, s.itl.bounds["median"]) == (None, (10.0, 15.0))
    assert s.itl.bounds["90"] == (pytest.approx(14.0), pytest.approx(27.0))
    assert s.itl.std is None
    assert s.client.unseen_share == pytest.approx(1 / 4)


def truth_and_blindness(rng: np.random.Generator) -> tuple[Record, Record]:
    """A request as it was, and as a client that looks at random moments sees it."""
    times = np.cumsum(rng.integers(1, 60 * MS, 30)) + 50 * MS
    looks = np.sort(
        np.append(rng.integers(20 * MS, times[-1], rng.integers(2, 20)), times[-1] + 1)
    )
    seen, unseen, since = times.copy(), [], []
    for before, look in zip([0, *looks], looks, strict=False):
        (found,) = np.nonzero((times > before) & (times <= look))
        for i in found[:-1]:
            seen[i] = times[found[-1]]
            unseen.append(int(i))
            since.append(int(before))
    facts = {"gaps_ms": [0.0] * 29, "end_ns": int(times[-1])}
    late = {"chunk_ns": seen.tolist(), "unseen": unseen, "unseen_since_ns": since}
    return record(chunk_ns=times.tolist(), **facts), record(**facts, **late)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_late_client_misses_the_truth_is_within_its_bounds_or_its_figure(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    pairs = [truth_and_blindness(rng) for _ in range(40)]
    true, seen = (
        summarize(list(records), duration_s=3.0, trial=GOOD)
        for records in zip(*pairs, strict=True)
    )
    bounded = 0
    for name, latency in seen.latencies.items():
        actual = true.latencies[name]
        figures = {"mean": actual.mean, "median": actual.median, **actual.percentiles}
        reported = {"mean": latency.mean, "median": latency.median, **latency.percentiles}
        assert latency.count == actual.count
        for figure, value in figures.items():
            low, high = latency.bounds.get(figure, (0, 0))
            bounded += reported[figure] is None
            assert value is not None
            known = reported[figure]
            assert (
                low <= value + 1e-3 and value <= high + 1e-3
                if known is None
                else abs(known - value) <= 0.011 * value
            )
    for name in ("goodput", "peak_output_tokens_per_s"):
        low, high = seen.bounds.get(name, (0, 0))
        value, known = getattr(true, name), getattr(seen, name)
        assert (
            low <= value <= high if known is None else abs(known - value) <= 0.011 * value
        )
    assert bounded > 5  # else nothing was tried


def test_an_answer_that_a_late_client_read_in_one_piece_is_not_called_buffered() -> None:
    whole = record(gaps_ms=[0.0] * 4)
    late = record(gaps_ms=[0.0] * 4, unseen=[0, 1, 2, 3], unseen_since_ns=[0] * 4)
    assert (summarize([whole]).at_once, summarize([late]).at_once) == (1, 0)


def test_goodput_is_not_known_where_a_late_client_does_not_know_which_requests_were_good() -> (
    None
):
    trial = msgspec.structs.replace(TRIAL, goodput_ms={"ttft": 90})
    good, bad = record(first_ms=50), record(first_ms=95)
    perhaps = record(first_ms=100, unseen=[0], unseen_since_ns=[80 * MS])
    certainly = record(first_ms=100, unseen=[0], unseen_since_ns=[95 * MS])
    assert summarize([good, bad, certainly], trial=trial).goodput == 1.0
    s = summarize([good, bad, perhaps], trial=trial)
    assert (s.goodput, s.bounds["goodput"]) == (None, (1.0, 2.0))


def test_steady_throughput_is_not_known_where_too_many_chunks_may_lie_on_either_side_of_its_edge() -> (
    None
):
    edge = [record(i, sent_ms=0, first_ms=100, gaps_ms=[10] * 3) for i in range(2)]
    rest = [
        record(i, sent_ms=140 + 10 * i, first_ms=60, gaps_ms=[10] * 20) for i in range(20)
    ]
    assert summarize([*edge, *rest]).bounds == {}
    late = [
        record(
            i,
            sent_ms=140 + 10 * i,
            first_ms=460,
            gaps_ms=[0] * 20,
            unseen=[*range(20)],
            unseen_since_ns=[150 * MS] * 20,
        )
        for i in range(20)
    ]
    s = summarize([*edge, *late])
    assert (
        s.steady is not None
        and s.steady.output_throughput is None
        and s.steady.request_throughput is None
    )
    assert "steady_output_throughput" in s.bounds


def file_of(result: Result, records: list[Record] | None = None) -> dict[str, Any]:
    facts = manifest(TRIAL, target=TargetFacts("m"))
    return result_json.build(
        result,
        facts,
        row_of("runs/x", facts, result, records=records or []),
        records=records,
        detailed=True,
    )


def half_seen() -> tuple[list[Record], Result]:
    """Of four requests two were read late: their first chunks came anywhere in 90 ms."""
    late = {"unseen": [0], "unseen_since_ns": [10 * MS]}
    records = [record(i, gaps_ms=[10] * 4, **(late if i % 2 else {})) for i in range(4)]
    return records, Result(summarize(records), [], "doubtful")


def test_what_a_late_client_does_not_know_is_null_in_the_result_file_and_read_back_as_unknown() -> (
    None
):
    records, result = half_seen()
    built = file_of(result, records)
    assert built["mean_ttft_ms"] is None and built["dyno"]["bounds"]["ttft"]["mean"] == (
        55.0,
        100.0,
    )
    assert built["mean_e2el_ms"] == 140.0
    assert built["ttfts"] == [0.1, None, 0.1, None] and built["latencies"] == [0.14] * 4
    assert built["itls"] == [[0.01] * 4, [None, 0.01, 0.01, 0.01]] * 2
    text = msgspec.json.encode(built)
    (row,) = imported("result.json", text).rows
    assert row.samples is not None and row.get("mean_ttft_ms") is None
    assert [math.isnan(t) for t in row.samples.latencies("ttft")] == [
        False,
        True,
        False,
        True,
    ]
    assert len(row.samples.latencies("itl")) == 14


def test_a_latency_that_is_known_in_part_gives_no_samples_to_compare_or_to_draw() -> None:
    records, result = half_seen()
    row = row_of("run", manifest(TRIAL), result, records=records)
    assert (
        row.samples is not None
        and row.samples.latencies("ttft") == row.samples.latencies("tpot") == []
    )
    assert row.samples.latencies("e2el") == [140.0] * 4
    assert row.get("mean_e2el_ms") == 140.0 and row.get("mean_ttft_ms") is None
    # whenever the late ones came, two of four took that long
    assert row.get("p90_ttft_ms") == 100.0
    bars = bars_of_records(records)
    assert [bar.first_s for bar in bars] == [0.1, None, 0.1, None]


# ---- freezes ----


def streams_with_a_pause(
    pause_ms: float = 0, at_ms: float = 600, streams: int = 4, **more: Any
) -> list[Record]:
    """Each stream sends one request after the other: 50 ms, then 40 gaps of 5 ms; nothing moves during the pause."""

    def paused(at: float) -> float:
        return at if at <= at_ms else at + pause_ms

    records = []
    for stream in range(streams):
        sent = stream * 7.0
        for _ in range(8):
            first = sent + 50
            times = [int(paused(first + 5 * i) * MS) for i in range(41)]
            r = record(
                len(records),
                sent_ms=paused(sent),
                chunk_ns=times,
                end_ns=times[-1],
                output_tokens=41,
                **more,
            )
            records.append(r)
            sent = first + 200
    return records


def frozen_at(records: list[Record], **facts: Any) -> list[tuple[float, float]]:
    return [(f.at_s, f.length_s) for f in summarize(records, 5.0, **facts).freezes]


def test_a_pause_of_all_streams_is_found_with_its_time_and_length() -> None:
    assert frozen_at(streams_with_a_pause()) == []
    ((at_s, length_s),) = frozen_at(streams_with_a_pause(3000))
    assert at_s == pytest.approx(0.6, abs=0.02) and length_s == pytest.approx(3.0, abs=0.02)


def test_a_pause_of_some_streams_is_not_a_freeze() -> None:
    running = [r for r in streams_with_a_pause() if r.index < 8]
    assert (
        frozen_at([*running, *(r for r in streams_with_a_pause(1000) if r.index >= 8)])
        == []
    )


def test_nothing_to_do_is_not_a_freeze() -> None:
    assert frozen_at([record(0), record(1, sent_ms=3000)]) == []


def test_a_long_prompt_is_not_a_freeze_and_a_short_one_that_takes_as_long_is() -> None:
    usual = streams_with_a_pause(streams=1, prompt_tokens=100)
    begin = max(r.end_ns for r in usual) / MS
    long_ = record(99, sent_ms=begin, first_ms=1000, prompt_tokens=1500, gaps_ms=[5] * 40)
    assert frozen_at([*usual, long_]) == []
    short = record(99, sent_ms=begin, first_ms=1000, prompt_tokens=100, gaps_ms=[5] * 40)
    assert len(frozen_at([*usual, short])) == 1


def test_a_client_that_looked_away_does_not_call_that_a_freeze() -> None:
    blind: dict[str, Any] = {"unseen": [*range(40)], "prompt_tokens": 1}
    late = [
        msgspec.structs.replace(
            r, chunk_ns=[r.chunk_ns[-1]] * 41, unseen_since_ns=[r.sent_ns] * 40, **blind
        )
        for r in streams_with_a_pause(streams=1)
    ]
    assert frozen_at(late) == []


def test_the_figures_without_a_freeze_are_those_of_a_run_without_it() -> None:
    calm, paused = streams_with_a_pause(), streams_with_a_pause(3000)
    without, frozen = summarize(calm, 2.1), summarize(paused, 5.1)
    assert frozen.tpot.mean is not None and frozen.tpot.mean > 1.3 * 5
    cuts = Cuts(paused, frozen)
    tally = Tally(TRIAL)
    for r in paused:
        tally.add(cuts.record(r))
    again = unfrozen(tally.summary(cuts.client(client_facts(5.1, sent=32))))
    assert again.tpot.mean == pytest.approx(5.0, rel=0.01) and again.itl.percentiles[
        "90"
    ] == pytest.approx(5.0)
    assert again.output_throughput == pytest.approx(without.output_throughput, rel=0.01)
    assert again.ttft.mean == pytest.approx(50, rel=0.01)


# ---- what counts ----


def test_throughputs_are_over_the_whole_run() -> None:
    s = summarize([record(i, sent_ms=i) for i in range(4)], duration_s=2.0)
    assert s.request_throughput == 2.0
    assert s.output_throughput == 10.0
    assert (s.total_input_tokens, s.total_output_tokens) == (32, 20)
    assert s.total_token_throughput == 26.0


def test_the_input_is_the_servers_count_or_else_the_planned_one() -> None:
    assert summarize([record(), record(prompt_tokens=None)]).total_input_tokens == 8 + 7


def test_failed_requests_enter_no_latency_and_no_token_count() -> None:
    good = [record(0), record(1, sent_ms=5)]
    bad = [
        failed("reset", first_ms=9000),
        failed("http_500", output_tokens=1000),
        failed("reset", sent_ms=2),
    ]
    s, without = summarize([*good, *bad], sent=5), summarize(good)
    for name in ("ttft", "tpot", "itl", "e2el", "response_ttft", "response_e2el", "queue"):
        assert s.latencies[name] == without.latencies[name], name
    for name in ("total_input_tokens", "total_output_tokens", "chunks", "peak_output_tokens_per_s", "finish_reasons",
                 "models_answered", "tokens_by", "request_throughput", "output_throughput"):  # fmt: skip
        assert getattr(s, name) == getattr(without, name), name
    assert (s.completed, s.failed) == (2, 3)
    assert s.completed + s.failed == s.sent
    assert s.failures == {"reset": 2, "http_500": 1}  # the most frequent first
    assert s.failure_examples == {
        "reset": "reset, in words",
        "http_500": "http_500, in words",
    }


def test_an_answer_of_the_end_token_alone_is_completed_and_counted_apart() -> None:
    s = summarize([record(), record(chunk_ns=[], output_tokens=1, finish_reason="stop")])
    assert (s.completed, s.failed, s.end_at_once) == (2, 0, 1)
    assert s.ttft.count == s.e2el.count == 1
    assert s.total_output_tokens == 6


def test_goodput_counts_completed_requests_that_keep_every_limit() -> None:
    trial = with_(goodput_ms={"ttft": 100.0, "tpot": 10.0})
    runs = [
        record(0),  # just on both limits
        record(1, first_ms=101),
        record(2, gaps_ms=[11]),
        record(3, gaps_ms=[]),  # one token: no TPOT to miss
        failed("reset"),
        record(5, chunk_ns=[], output_tokens=1),
    ]
    assert summarize(runs, duration_s=2.0, trial=trial).goodput == 1.0
    assert summarize(runs).goodput is None


def test_the_peak_is_the_fullest_second() -> None:
    early = record(0, sent_ms=0, first_ms=100, gaps_ms=[10.0] * 29)
    late = record(1, sent_ms=1000, first_ms=100, gaps_ms=[10.0] * 49)
    assert summarize([early, late], duration_s=2.0).peak_output_tokens_per_s == 50.0


def test_a_run_far_longer_than_the_first_buckets_is_counted_whole() -> None:
    s = summarize([record(i, sent_ms=60_000.0 * i) for i in range(5)], duration_s=300)
    assert s.peak_output_tokens_per_s == 5.0
    assert s.total_output_tokens == 25


def test_the_most_streams_open_at_once_hand_slots_on() -> None:
    a, b = record(0, sent_ms=0), record(1, sent_ms=50)
    c = record(2, sent_ms=a.end_ns / MS)  # takes a's slot at the very moment
    assert summarize([a, b, c]).client.streams_peak == 2


def closed_loop(count: int, streams: int = 2) -> list[Record]:
    """`streams` slots, each request 100 ms long: 49 tokens at 2 ms and the millisecond to the end."""
    return [
        record(i, sent_ms=100.0 * (i // streams), first_ms=3, gaps_ms=[2.0] * 48)
        for i in range(count)
    ]  # ends at 3 + 96 + 1 = 100 ms


def test_the_steady_window_is_from_the_first_end_to_the_last_sending() -> None:
    s = summarize(closed_loop(20), duration_s=1.0)
    assert s.steady == Steady(
        start_s=pytest.approx(0.1),
        end_s=pytest.approx(0.9),
        request_throughput=pytest.approx(20.0, rel=0.03),
        output_throughput=pytest.approx(49 * 20, rel=0.01),
        streams_mean=pytest.approx(2.0),
    )


def test_failed_requests_are_not_served_in_the_steady_window() -> None:
    runs = closed_loop(20)
    for r in runs[1::2]:
        r.error = "http_503"
    s = summarize(runs)
    assert s.steady is not None
    assert s.steady.request_throughput == pytest.approx(10.0)
    assert s.steady.output_throughput == pytest.approx(490, rel=0.01)
    assert s.steady.streams_mean == pytest.approx(2.0)  # they were open all the same


def test_a_request_that_fails_at_once_does_not_begin_the_steady_window() -> None:
    runs = [failed("refused", end_ns=1 * MS), *closed_loop(20)]
    s = summarize(runs)
    assert s.steady is not None and s.steady.start_s == pytest.approx(0.1)


def test_a_run_of_one_wave_has_no_steady_window() -> None:
    assert summarize(closed_loop(2)).steady is None
    assert summarize([]).steady is None
    assert summarize([failed("reset"), failed("reset", sent_ms=5000)]).steady is None


def test_how_late_the_client_was_is_reported_at_p99_whatever_percentiles_are_asked_for() -> (
    None
):
    runs = [
        record(i, sent_ms=10.0 * i, due_ms=10.0 * i - (50 if i % 20 == 0 else 0))
        for i in range(1, 100)
    ]
    late = summarize(
        runs, trial=with_(percentiles=[50.0], load=LoadSpec(request_rate_rps=100))
    ).client.send_late
    assert late.percentiles["50"] == 0.0 and late.percentiles["99"] == 50.0


def test_waiting_for_a_slot_is_not_the_clients_lateness() -> None:
    capped = with_(load=LoadSpec(request_rate_rps=100, max_concurrency=1))
    first = record(0, sent_ms=0)
    # 2 ms after the slot was free
    second = record(1, sent_ms=first.end_ns / MS + 2, due_ms=10)
    s = summarize([first, second], trial=capped)
    assert s.client.send_late.percentiles["99"] == pytest.approx(2.0, rel=0.05)
    assert s.latencies["queue"].percentiles["90"] > 100


def test_what_each_replica_did_is_reported_where_there_are_several() -> None:
    target = TargetSpec(
        "http://a", "openai", "/v1/completions", "m", more_urls=["http://b", "http://c"]
    )
    runs = [
        record(0),
        record(1, first_ms=200, gaps_ms=[20.0] * 4, replica=1),
        record(2, replica=1, gaps_ms=[]),
    ]
    s = summarize([*runs, failed("reset", replica=1)], trial=with_(target=target))
    assert s.replicas == [
        ReplicaSummary(
            0,
            sent=1,
            completed=1,
            failed=0,
            output_tokens=5,
            ttft_mean_ms=100.0,
            tpot_mean_ms=10.0,
        ),
        ReplicaSummary(
            1,
            sent=3,
            completed=2,
            failed=1,
            output_tokens=6,
            ttft_mean_ms=150.0,
            tpot_mean_ms=20.0,
        ),
        ReplicaSummary(
            2,
            sent=0,
            completed=0,
            failed=0,
            output_tokens=0,
            ttft_mean_ms=None,
            tpot_mean_ms=None,
        ),
    ]
    assert summarize(runs[:1]).replicas == []


# ---- nothing measured ----


def json_of(s: Summary, findings: list[Finding] | None = None) -> dict[str, Any]:
    result = Result(s, findings or [], verdict(findings or []))
    return file_of(result)


def test_no_completed_request_gives_no_zero_that_looks_like_a_measurement() -> None:
    out = json_of(summarize([failed("reset")] * 3))
    latencies = {k: v for k, v in out.items() if k.endswith("_ms")}
    assert len(latencies) == 5 * (3 + 2)
    assert set(latencies.values()) == {None}
    assert {v for k, v in out["dyno"]["response"].items()} == {None}
    assert (out["completed"], out["failed"]) == (0, 3)


def test_answers_of_the_end_token_alone_give_no_latency() -> None:
    out = json_of(summarize([record(chunk_ns=[], output_tokens=1)] * 3))
    assert out["completed"] == 3 and out["dyno"]["end_at_once"] == 3
    assert out["mean_ttft_ms"] is None and out["p90_e2el_ms"] is None


def test_single_tokens_give_a_ttft_and_no_tpot() -> None:
    out = json_of(summarize([record(gaps_ms=[])] * 3))
    assert out["mean_ttft_ms"] == 100.0
    assert out["mean_tpot_ms"] is None and out["mean_itl_ms"] is None


@pytest.mark.parametrize(
    ("p", "needed"), [(99.0, 662), (95.0, 130), (90.0, 64), (50.0, 11), (100.0, 1)]
)
def test_how_many_samples_a_percentile_needs(p: float, needed: int) -> None:
    assert samples_needed(p) == needed


def test_no_samples_make_an_empty_distribution() -> None:
    d = distribution_ms([], [99.0])
    assert d.empty and d.count == 0


# ---- findings ----

SOUND = msgspec.structs.replace(
    summarize(
        closed_loop(2000, streams=2), duration_s=100.0, trial=with_(percentiles=[99.0])
    ),
    planned_input_tokens=16_000,  # as the server counted
)


NO_GAPS = msgspec.structs.replace(SOUND.itl, count=0)


def evidence(
    summary: dict[str, Any] | None = None,
    client: dict[str, Any] | None = None,
    trial: dict[str, Any] | None = None,
    **fields: Any,
) -> Evidence:
    """A run without blemish, but for these."""
    facts: Callable[..., Any] = msgspec.structs.replace
    given = summary or {}
    latencies = {name: value for name, value in given.items() if name in LATENCIES}
    s = facts(
        SOUND, **{name: value for name, value in given.items() if name not in LATENCIES}
    )
    s = facts(s, latencies=s.latencies | latencies)
    s = facts(s, client=facts(s.client, **(client or {})))
    calm = with_(
        workload=WorkloadSpec("random", num_prompts=2000, input_len=8), percentiles=[99.0]
    )
    values: dict[str, Any] = {
        "trial": with_(calm, **(trial or {})),
        "target": TargetFacts("m", models_listed=["m"]),
        "counted_by": "tokenizer",
        "prompts": 2000,
        "repeated_prompts": 0,
        "sent_before": None,
        "summary": s,
    }
    return Evidence(**{**values, **fields})


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (5, "3.000 s at 4.000 s (up"),
        (6, "4.000 s and once more (up"),
        (8, " and 3 more times (up"),
    ],
)
def test_freezes_beyond_the_fifth_are_counted(times: int, words: str) -> None:
    """It was 'and 1 more times'."""
    some = [Freeze(float(i), 3.0) for i in range(times)]
    (finding,) = engine.frozen(evidence({"freezes": some}))
    assert words in finding.text and finding.text.count(" s at ") == 5


TALKS = SessionSummary(
    501, 500, 1, 0, 0, 5.0, 20.0, 4.0, *[SOUND.ttft] * 6
)  # of 2,000 requests, and one session that failed
REUSE = ReuseSummary(16_000, 8000, 8000, 8000, 16)
MOST = ReuseSummary(16_000, 8000, 8000, 80_000, 16)


def cancelling(generated: int | None) -> Evidence:
    """100 requests were cancelled, with 10,000 tokens to come; 10,000 tokens were delivered in all."""
    return evidence(
        {"cancelled": 100, "cancelling": CancelSummary(500, 10_000, 10_000, generated)}
    )


def steady(**fields: Any) -> Steady:
    values = {"start_s": 0.0, "end_s": 100.0, "request_throughput": 10.0,
              "output_throughput": 100.0, "streams_mean": 2.0}  # fmt: skip
    return Steady(**{**values, **fields})


def wait(**fields: Any) -> Wait:
    values = {"offered_rps": 16.0, "span_s": 60.0, "first_median_ms": 1000.0, "first_p75_ms": 1200.0,
              "last_p25_ms": 800.0, "last_median_ms": 1000.0}  # fmt: skip
    return Wait(**{**values, **fields})


def copies(*each: tuple[int, float | None]) -> list[ReplicaSummary]:
    """Completed and mean TPOT."""
    return [
        ReplicaSummary(i, done, done, 0, 10 * done, 100.0, tpot)
        for i, (done, tpot) in enumerate(each)
    ]


def processes(*each: dict[str, Any]) -> dict[str, Any]:
    """Fields of a client: a blameless process for each, but for these fields."""
    facts: Callable[..., Any] = msgspec.structs.replace
    return {"processes": [facts(SOUND.client, **fields) for fields in each]}


def clock(round_trip_ms: float) -> NodeClock:
    return NodeClock(ClockReading(0, 0, int(round_trip_ms * MS)))


def slip(why: Any) -> EngineFacts:
    return EngineFacts("vllm", "0.24.0", [], misspelt=[Misspelt("VLLM_X", None, why)])


def launched(*devices: list[int] | None) -> EngineFacts:
    return EngineFacts("vllm", "0.24.0", [Launch([], {}, 0, share) for share in devices])


PAIR = {
    "target": TargetSpec(
        "http://a", "openai", "/v1/completions", "m", more_urls=["http://b"]
    )
}
GROWN = wait(last_p25_ms=30_000.0, last_median_ms=34_000.0)
SOME_LATE = distribution_ms([0.0] * 98 + [3e7] * 2, [99])
RATE = {"load": LoadSpec(request_rate_rps=10)}
CHATS = {"workload": WorkloadSpec("chat"), "load": LoadSpec(max_concurrency=4)}
REPLAY = {"load": LoadSpec(arrivals="recorded")}
# 2,000 requests in 100 s, of a trace that has them in as much time, or in half of it.
AS_RECORDED, TWICE_AS_FAST = (
    ReplaySummary(20.0, 20.0, 1, 2, 3),
    ReplaySummary(40.0, 40.0, 1, 2, 3),
)
CAPPED_REPLAY = {"load": LoadSpec(arrivals="recorded", max_concurrency=4)}


def rig_of(
    accelerators: list[dict[str, Any]] | None = None,
    state: dict[str, str] | None = None,
    **fields: Any,
) -> Rig:
    """A machine without blemish, with two accelerators of which the engine uses the first, but for these."""
    usual = {"name": "AMD Instinct MI300X", "vendor": "amd", "engine": True,
             "power_cap_w": 750.0, "power_cap_default_w": 750.0}  # fmt: skip
    found = [
        Accelerator(**{"index": i, **usual, **a})
        for i, a in enumerate(accelerators or [{}, {"engine": False}])
    ]
    calm = {"numa_balancing": "off", "governor": "performance", "iommu": "off"}
    values: dict[str, Any] = {
        "numa_nodes": 2,
        "memory_bytes": 1 << 40,
        "swap_used_bytes": 0,
        **fields,
    }
    return Rig(
        "Ubuntu",
        "6.8",
        "x86_64",
        "EPYC",
        96,
        accelerators=found,
        state={**calm, **(state or {})},
        **values,
    )


def on_rig(*args: Any, **fields: Any) -> Evidence:
    return evidence(rig=rig_of(*args, **fields))


TRAINING = "train.py (pid 7)"
ELSEWHERE = {"target": TargetSpec("http://10.0.0.7:8000", "openai", "/v1/completions", "m")}

LONG = distribution_ms([2e9], [99])  # two seconds


def sampled(
    accelerator: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """Telemetry without blemish, but for these: one accelerator, the engine's, and one engine."""
    a = AcceleratorTelemetry(
        **{
            "index": 0,
            "engine": True,
            "samples": 100,
            "power_mean_w": 650.0,
            **(accelerator or {}),
        }
    )
    x = EngineTelemetry(
        **{
            "index": 0,
            "samples": 50,
            "running_mean": 2.0,
            "waiting_mean": 0.0,
            **(engine or {}),
        }
    )
    usual = {
        "interval_s": 0.2,
        "engine_interval_s": 1.0,
        "cost": 0.002,
        "longest_gap_s": 0.2,
    }
    return {
        "telemetry": TelemetrySummary(
            **{**usual, "accelerators": [a], "engines": [x], **fields}
        )
    }


def near(measured: bool = False, count: int = 1, **share: Any) -> dict[str, Any]:
    """A single stream on an H200, well below its peaks, but for these."""
    peaks = Peaks(
        "NVIDIA H200", count, 4.8e12, {"bf16": 9.9e14}, "a page", measured=measured
    )
    usual = {
        "bandwidth": 0.64,
        "bandwidth_least": 0.64,
        "arithmetic": 0.003,
        "about": "15.0 GB in 4.9 ms",
    }
    return {
        "roofline": Roofline(
            peaks,
            "bf16",
            15e9,
            131072,
            7.5e9,
            [Share("decode", streams=1.0, **{**usual, **share})],
        )
    }


# check, evidence, the code and level that it gives (None: it is silent)
Q4 = TargetFacts("llama.Q4_K_M.gguf", quantization="Q4_K - Medium")
RIG_OF_TWO = Rig("Linux", "6", "aarch64", "Arm", 2)
UP = EngineFacts("vllm", "0.32.0", [], 30.0)


def beside_a_gpu(args: list[str] | None = None, **facts: Any) -> Evidence:
    """A run of an engine that dyno started on a machine with a GPU."""
    return evidence(
        trial={"engine": EngineSpec("llamacpp", model="m", args=args or [])},
        engine=msgspec.structs.replace(UP, **facts),
        rig=rig_of(),
    )


def quantized(quantize: str | None, served: str) -> Evidence:
    """A run of a model that dyno quantized."""
    engine = msgspec.structs.replace(
        UP, models={"m": ModelOrigin("hub:o/n@1", 1, quantize=quantize)}
    )
    target = TargetFacts("m", models_listed=["m"], quantization=served)
    return evidence(
        trial={"engine": EngineSpec("vllm", model="m")}, engine=engine, target=target
    )


def said(*texts: str, tokens: int = 16, **fields: Any) -> list[GreedyAnswer]:
    """The answers to the first prompts; the last one also to all that are left."""
    each = [*texts, *texts[-1:] * (len(PROMPTS) - len(texts))]
    how = {"finish_reason": "length", "output_tokens": tokens, **fields}
    return [
        GreedyAnswer(prompt, text, **how)
        for prompt, text in zip(PROMPTS, each, strict=True)
    ]


SENSIBLE = said(
    " 6, 7, 8, 9,", " Paris.", "river stone 42 lamp bridge", " width * height", " 42"
)
LOST = GreedyAnswer(PROMPTS[0], error="http_500", error_detail="out of memory")
OTHER = GreedyAnswer(PROMPTS[0], " 6, 7, 7, 7,")
# As engines answer that are broken, and good ones that look alike.
NONSENSE: list[tuple[list[GreedyAnswer], str | None, str | None]] = [
    (SENSIBLE, None, None),
    (said("", tokens=1, finish_reason="stop"), "empty", "void"),
    (said(" \n", tokens=1, finish_reason="stop"), "empty", "void"),
    (said("", tokens=16), "empty", "doubt"),  # or reasoning that isn't sent
    (said("", tokens=1)[:1], "empty", "doubt"),
    # a base model may end a question at once
    (said(" 6, 7, 8, 9,", "", tokens=1), None, None),
    (said("!" * 16), "garbage", "void"),
    (said("!" * 16)[:1], "garbage", "doubt"),
    (said("!" * 16, " Paris."), None, None),
    (said("G" * 16, "=" * 12), "garbage", "doubt"),
    (
        said(" Life? Life? Life? Life? Life?", " the the the the the", "0, 0, 0, 0, 0, 0,"),
        "garbage",
        "doubt",
    ),
    (said(" 6, 7, 8, 9,", " the the the the the"), None, None),
    # too short for a repetition, but the same for each prompt
    (said("1111"), "garbage", "doubt"),
    (
        said("\ufffd\ufffd a\x00 \ufffd", "\ufffd\x03 bc", "\ufffd\ufffdd"),
        "garbage",
        "doubt",
    ),
    # half a character at the end
    (said(" 6, 7, 8, 9 \ufffd", " Paris is in the north \ufffd"), None, None),
    (said("Hello! How can I help you today?", finish_reason="stop"), "garbage", "void"),
    # they may differ later
    (said("The answer to this question depends on"), "garbage", "doubt"),
    (said("Thinking Process:\n\n1.  **Analyze the Request:**", reasoning=True), None, None),
    (said("<think>\nOkay, the user wants"), None, None),
    (said("The answer to this")[:2], None, None),
    (
        said(
            " port616Effortly180 cleany", " faithness& crew659", "2%\n\tkxq", "ähnlich", "0"
        ),
        None,
        None,
    ),  # random weights
    (said("", error="http_500"), None, None),
]


# 20 images of 326 tokens by the rule, in prompts of 20 tokens
SEEN = MediaSummary(20, 20, 5.0, 400, 6_920, 6_520, rule="qwen2-vl", template_tokens=0)
FORMS = StructuredSummary(20, 20, 1.0, {}, {}, tpot_ms=10.0, free_tpot_ms=10.0, free=20)
INVALID = msgspec.structs.replace(
    FORMS, valid=15, valid_share=0.75, problems={"schema": 5}, examples={"schema": "a: 7"}
)
CASES: list[tuple[Callable[[Evidence], Any], Evidence, str | None, str | None]] = [
    (requests_check.failed, evidence(), None, None),
    (
        requests_check.failed,
        evidence({"failed": 1, "failures": {"reset": 1}}),
        "requests.failed",
        "doubt",
    ),
    (
        requests_check.failed,
        evidence({"failed": 1000, "failures": {"empty": 1000}}),
        "requests.failed",
        "void",
    ),
    (requests_check.failed, evidence({"failed": 1, "failures": {"client": 1}}), None, None),
    (client.limits, evidence({"failed": 1, "failures": {"reset": 1}}), None, None),
    (
        client.limits,
        evidence({"failed": 1, "failures": {"client": 1}}),
        "client.limits",
        "doubt",
    ),
    (
        client.limits,
        evidence({"failed": 1000, "failures": {"client": 1000}}),
        "client.limits",
        "void",
    ),
    (
        requests_check.failed,
        evidence({"failed": 2, "failures": {"interrupted": 2}}),
        None,
        None,
    ),
    (
        requests_check.failed,
        evidence({"completed": 0, "failed": 2000}),
        "requests.none_completed",
        "void",
    ),
    (requests_check.cut_short, evidence(), None, None),
    (
        requests_check.cut_short,
        evidence({"outcome": "interrupted"}),
        "requests.cut_short",
        "doubt",
    ),
    (
        requests_check.cut_short,
        evidence({"outcome": "server gone"}),
        "requests.cut_short",
        "doubt",
    ),
    (requests_check.end_at_once, evidence(), None, None),
    (
        requests_check.end_at_once,
        evidence({"end_at_once": 5}),
        "requests.end_at_once",
        "note",
    ),
    (
        requests_check.end_at_once,
        evidence({"end_at_once": 379}),
        "requests.end_at_once",
        "doubt",
    ),
    (client.others, evidence(), None, None),
    (client.others, evidence(client={"others_cpu": 0.2}, rig=RIG_OF_TWO), None, None),
    (
        client.others,
        evidence(client={"others_cpu": 1.0}, rig=RIG_OF_TWO),
        "client.others_cpu",
        "doubt",
    ),
    (
        correctness.failed,
        evidence(correctness=Correctness([SENSIBLE[0]], SENSIBLE)),
        None,
        None,
    ),
    (
        correctness.failed,
        evidence(correctness=Correctness(SENSIBLE, [LOST])),
        "correctness.failed",
        "doubt",
    ),
    (correctness.changed, evidence(), None, None),
    (
        correctness.changed,
        evidence(correctness=Correctness(SENSIBLE, SENSIBLE)),
        None,
        None,
    ),
    (correctness.changed, evidence(correctness=Correctness(SENSIBLE, [LOST])), None, None),
    (
        correctness.changed,
        evidence(correctness=Correctness(SENSIBLE, [OTHER], [OTHER])),
        "correctness.changed",
        "doubt",
    ),
    (
        correctness.changed,
        evidence(correctness=Correctness(SENSIBLE, [OTHER], [SENSIBLE[0]])),
        "correctness.not_deterministic",
        "note",
    ),
    (correctness.nonsense, evidence(), None, None),
    *(
        (
            correctness.nonsense,
            evidence(correctness=Correctness(answers)),
            code and f"correctness.{code}",
            level,
        )
        for answers, code, level in NONSENSE
    ),
    (
        correctness.nonsense,
        evidence(correctness=Correctness(SENSIBLE, said("", tokens=1))),
        "correctness.empty",
        "void",
    ),
    (
        correctness.nonsense,
        evidence(
            trial={"engine": EngineSpec("vllm", load_format="dummy")},
            correctness=Correctness(said("!" * 16)),
        ),
        None,
        None,
    ),
    (
        correctness.nonsense,
        evidence(
            trial=PAIR, correctness=Correctness([*SENSIBLE, *said("!" * 16, replica=1)])
        ),
        "correctness.garbage",
        "void",
    ),
    (requests_check.resent, evidence(), None, None),
    (requests_check.resent, evidence({"resent": 3}), "requests.resent", "note"),
    (engine.model_name, evidence(), None, None),
    (engine.model_name, evidence(target=TargetFacts("m", models_listed=None)), None, None),
    (
        engine.model_name,
        evidence(target=TargetFacts("m", models_listed=["q8"])),
        "model.not_listed",
        "doubt",
    ),
    (
        engine.model_name,
        evidence({"models_answered": {"m": 1, "q8": 1999}}),
        "model.other_answered",
        "void",
    ),
    (engine.model_name, evidence({"models_answered": {}}), None, None),  # TGI doesn't say
    (engine.as_said, evidence(), None, None),
    (
        engine.as_said,
        evidence(trial={"engine": EngineSpec("openai", quantization="q4_k_m")}, target=Q4),
        None,
        None,
    ),
    (
        engine.as_said,
        evidence(trial={"engine": EngineSpec("openai", quantization="Q8_0")}, target=Q4),
        "engine.not_as_said",
        "void",
    ),
    (
        engine.as_said,
        evidence(
            trial={"engine": EngineSpec("openai", version="0.6.3")},
            target=TargetFacts("m", version="0.11.0"),
        ),
        "engine.not_as_said",
        "void",
    ),
    (
        engine.as_said,
        evidence(
            trial={
                "engine": EngineSpec("openai", kv_cache_dtype="fp8", prefix_caching=False)
            }
        ),
        "engine.unverified",
        "doubt",
    ),
    (engine.quantization_made, evidence(), None, None),
    *(
        (engine.quantization_made, quantized(quantize, served), code, code and "void")
        for quantize, served, code in (
            ("llama.cpp:Q4_K_M", "Q4_K - Medium", None),
            ("llama.cpp:Q4_K_M", "Q8_0", "engine.other_weights"),
            # which one, the files say
            ("llm-compressor:fp8-dynamic", "compressed-tensors", None),
            ("quark:fp8", "awq", "engine.other_weights"),
            ("llm-compressor:w4a16", "gptq", None),
            (None, "Q8_0", None),
        )
    ),
    (engine.quantization_named, evidence(target=Q4), None, None),
    # it doesn't tell
    (
        engine.quantization_named,
        evidence(target=TargetFacts("llama.Q8_0.gguf")),
        None,
        None,
    ),
    # a family
    (
        engine.quantization_named,
        evidence(target=TargetFacts("q8", quantization="Q8_0")),
        None,
        None,
    ),
    (
        engine.quantization_named,
        evidence(target=TargetFacts("q4", quantization="Q8_0")),
        "engine.quantization",
        "void",
    ),
    (
        engine.quantization_named,
        evidence(target=TargetFacts("llama.Q8_0.gguf", quantization="Q4_K - Medium")),
        "engine.quantization",
        "void",
    ),
    (load.slots, evidence(), None, None),
    (load.slots, evidence(target=TargetFacts("m", slots=2)), None, None),
    (load.slots, evidence(target=TargetFacts("m", slots=1)), "load.slots", "doubt"),
    (
        load.slots,
        evidence(
            target=TargetFacts("m", slots=1),
            trial={"target": TargetSpec("a", "openai", "", more_urls=["b"])},
        ),
        None,
        None,
    ),
    (tokens.cache_emptied, evidence(), None, None),
    (tokens.cache_emptied, evidence(cache_emptied=True), None, None),
    (
        tokens.cache_emptied,
        evidence({"cached_input_tokens": None}, cache_emptied=False),
        "cache.not_emptied",
        "doubt",
    ),
    (
        tokens.cache_emptied,
        evidence({"cached_input_tokens": 0}, cache_emptied=False),
        "cache.not_emptied",
        "note",
    ),
    (engine.died, evidence(engine=UP), None, None),
    (
        engine.died,
        evidence(engine=msgspec.structs.replace(UP, died="Out of memory.")),
        "engine.died",
        "void",
    ),
    (engine.second_attempt, evidence(), None, None),
    (
        engine.second_attempt,
        evidence(first_failure="It died."),
        "engine.second_attempt",
        "note",
    ),
    (engine.variables_withheld, evidence(engine=UP), None, None),
    (
        engine.variables_withheld,
        evidence(
            engine=msgspec.structs.replace(
                UP, withheld={"LD_PRELOAD": "/x.so is not mounted"}
            )
        ),
        "engine.variables_withheld",
        "note",
    ),
    (engine.memory_held, evidence(engine=UP), None, None),
    (
        engine.memory_held,
        evidence(engine=msgspec.structs.replace(UP, memory_held_bytes=2**30)),
        "engine.memory_held",
        "doubt",
    ),
    (engine.accelerator_unused, beside_a_gpu(), None, None),
    (
        engine.accelerator_unused,
        beside_a_gpu(embedded=True),
        "engine.accelerator_unused",
        "doubt",
    ),
    (engine.accelerator_unused, beside_a_gpu(["-ngl", "0"], embedded=True), None, None),
    (
        engine.accelerator_unused,
        beside_a_gpu(["-ngl", "99"], embedded=True),
        "engine.accelerator_unused",
        "doubt",
    ),
    (
        engine.accelerator_unused,
        beside_a_gpu(memory_before_bytes={0: 2**30}, memory_loaded_bytes={0: 2**30}),
        "engine.accelerator_unused",
        "doubt",
    ),
    (
        engine.accelerator_unused,
        beside_a_gpu(memory_before_bytes={0: 0}, memory_loaded_bytes={0: 2**30}),
        None,
        None,
    ),
    (
        engine.accelerator_unused,
        beside_a_gpu(
            program="the environment vllm-0.32.0-cpu",
            memory_before_bytes={0: 0},
            memory_loaded_bytes={0: 0},
        ),
        None,
        None,
    ),
    (engine.accelerator_unused, evidence(engine=UP), None, None),
    (
        engine.accelerator_unused,
        msgspec.structs.replace(
            beside_a_gpu(embedded=True), target=TargetFacts("dyno-5m-F16")
        ),
        None,
        None,
    ),
    (engine.generic_build, evidence(engine=UP), None, None),
    (
        engine.generic_build,
        evidence(engine=msgspec.structs.replace(UP, unused_instructions=["DOTPROD"])),
        "engine.generic_build",
        "note",
    ),
    (tokens.output_short, evidence(), None, None),
    (
        tokens.output_short,
        evidence({"wanted_output_tokens": 200_000}),
        "tokens.output_short",
        "note",
    ),
    (
        tokens.output_short,
        evidence({"wanted_output_tokens": 200_000}, trial={"ignore_eos": True}),
        "tokens.output_short",
        "doubt",
    ),
    (tokens.input_length, evidence(), None, None),
    (
        tokens.input_length,
        evidence({"planned_input_tokens": 20_000}),
        "tokens.input_length",
        "doubt",
    ),
    (  # a tokenizer that can't make prompts of that length
        tokens.input_length,
        evidence(
            trial={"workload": WorkloadSpec("random", num_prompts=2000, input_len=512)}
        ),
        "tokens.input_length",
        "doubt",
    ),
    (
        tokens.input_length,
        evidence(
            trial={
                "workload": WorkloadSpec(
                    "random", num_prompts=2000, input_len=512, range_ratio_input=0.9
                )
            }
        ),
        None,
        None,
    ),
    (
        tokens.input_length,
        evidence(
            {"planned_input_tokens": 12_000},
            trial={"target": TargetSpec("http://x", "openai-chat", "/v1/chat", "m")},
        ),
        "tokens.input_length",
        "note",
    ),
    (  # a server doesn't count answers, so histories may be a little shorter
        tokens.input_length,
        evidence(
            {"planned_input_tokens": 220_000, "total_input_tokens": 200_000},
            trial=CHATS,
            counted_by="server",
        ),
        "tokens.input_length",
        "note",
    ),
    (
        tokens.input_length,
        evidence(
            {"planned_input_tokens": 300_000, "total_input_tokens": 200_000},
            trial=CHATS,
            counted_by="server",
        ),
        "tokens.input_length",
        "doubt",
    ),
    (
        tokens.input_length,
        evidence(
            {"planned_input_tokens": 220_000, "total_input_tokens": 200_000}, trial=CHATS
        ),
        "tokens.input_length",
        "doubt",
    ),
    (
        tokens.input_length,
        evidence(counted_by="approximate"),
        "tokens.input_approximate",
        "note",
    ),
    (
        tokens.input_length,
        evidence({"tokens_by": {"chunks": 2000}}, counted_by="approximate"),
        "tokens.input_approximate",
        "doubt",
    ),
    (tokens.media, evidence(), None, None),
    (tokens.media, evidence({"media": SEEN}), None, None),
    (
        tokens.media,
        evidence({"media": msgspec.structs.replace(SEEN, prompt_tokens=440)}),
        "tokens.media",
        "doubt",
    ),
    (answers.forms, evidence({"structured": FORMS}), None, None),
    (
        answers.forms,
        evidence({"structured": INVALID}),
        "answers.form",
        "doubt",
    ),
    (answers.constrained, evidence({"structured": FORMS}), None, None),
    (
        answers.constrained,
        evidence(
            {"structured": msgspec.structs.replace(FORMS, tpot_ms=20.0, tpot_slower=5.0)}
        ),
        "answers.constrained",
        "note",
    ),
    (tokens.counting, evidence(), None, None),
    (
        tokens.counting,
        evidence({"tokens_by": {"tokenizer": 3, "usage": 1997}}),
        "tokens.by_tokenizer",
        "note",
    ),
    (
        tokens.counting,
        evidence({"tokens_by": {"chunks": 2000}}),
        "tokens.by_chunks",
        "doubt",
    ),
    (tokens.cached, evidence(), None, None),
    (tokens.cached, evidence({"cached_input_tokens": 100}), None, None),  # under 1 %
    # a block of a template each
    (tokens.cached, evidence({"cached_input_tokens": 16 * 2000}), None, None),
    (tokens.cached, evidence({"cached_input_tokens": 80_000}), "cache.hits", "doubt"),
    (tokens.sent_before, evidence(), None, None),
    # the server tells
    (
        tokens.sent_before,
        evidence({"cached_input_tokens": 0}, sent_before="runs/x"),
        None,
        None,
    ),
    (tokens.sent_before, evidence(sent_before="runs/x"), "cache.sent_before", "doubt"),
    (tokens.buffered, evidence(), None, None),
    (tokens.buffered, evidence({"at_once": 1500}), "stream.buffered", "doubt"),
    (requests_check.unasked, evidence(), None, None),
    (
        requests_check.unasked,
        evidence({"failures": {"unasked": 4}}),
        "requests.unasked",
        "doubt",
    ),
    (tokens.output_long, evidence(), None, None),
    (
        tokens.output_long,
        evidence({"wanted_output_tokens": 1_000}),
        "tokens.output_long",
        "doubt",
    ),
    (
        tokens.output_long,
        evidence({"wanted_output_tokens": 1_000}, trial={"extra_body": {"max_tokens": 9}}),
        None,
        None,
    ),
    (tokens.believed, evidence(), None, None),
    (
        tokens.believed,
        evidence({"impossible": Counts(3, 10**6, 30)}),
        "tokens.impossible",
        "doubt",
    ),
    (tokens.believed, evidence({"odd_prompts": 3}), "tokens.impossible", "doubt"),
    (
        tokens.believed,
        evidence({"miscounted": Counts(3, 300, 30)}),
        "tokens.miscounted",
        "doubt",
    ),
    (
        tokens.counting,
        evidence(
            {"tokens_by": {"chunks": 3, "usage": 1997}, "impossible": Counts(3, 10**6, 30)}
        ),
        None,
        None,
    ),
    (requests_check.unaccounted, evidence(), None, None),
    (requests_check.unaccounted, evidence({"sent": 2100}), "requests.unaccounted", "void"),
    (requests_check.unaccounted, evidence({"sent": 2100, "cancelled": 100}), None, None),
    (
        requests_check.unaccounted,
        evidence({"sessions": TALKS, "skipped": 5}),
        "requests.unaccounted",
        "void",
    ),
    (
        requests_check.unaccounted,
        evidence({"sessions": TALKS, "skipped": 5, "planned": 2005}),
        None,
        None,
    ),
    (requests_check.skipped, evidence(), None, None),
    (
        requests_check.skipped,
        evidence({"sessions": TALKS, "skipped": 5}),
        "requests.skipped",
        "doubt",
    ),
    (
        requests_check.skipped,
        evidence(
            {
                "sessions": msgspec.structs.replace(TALKS, failed=0, cancelled=1),
                "skipped": 5,
                "cancelled": 1,
            }
        ),
        "requests.skipped",
        "note",
    ),
    (requests_check.cancelled, evidence(), None, None),
    (requests_check.cancelled, cancelling(None), None, None),
    (requests_check.cancelled, cancelling(10_900), None, None),  # under a tenth of the rest
    (requests_check.cancelled, cancelling(15_000), "requests.cancelled_went_on", "note"),
    (tokens.reuse_missed, evidence(), None, None),
    (tokens.reuse_missed, evidence({"reuse": REUSE}), None, None),  # the server doesn't say
    (
        tokens.reuse_missed,
        evidence({"reuse": REUSE, "cached_input_tokens": 6000}),
        None,
        None,
    ),
    (
        tokens.reuse_missed,
        evidence({"reuse": REUSE, "cached_input_tokens": 0}),
        "cache.reuse_missed",
        "note",
    ),
    (tokens.cached, evidence({"reuse": MOST, "cached_input_tokens": 80_000}), None, None),
    (
        tokens.cached,
        evidence(
            {"cached_input_tokens": 8000},
            trial={"workload": WorkloadSpec("random", num_prompts=2000, prefix_len=4)},
        ),
        None,  # as meant
        None,
    ),
    (tokens.bundled, evidence(), None, None),
    (tokens.bundled, evidence({"itl_per_token": SOUND.itl}), "tokens.bundled", "note"),
    (
        tokens.bundled,
        evidence({"itl_per_token": NO_GAPS, "itl": NO_GAPS}),
        "tokens.bundled",
        "doubt",
    ),
    (
        requests_check.unknown_end,
        evidence({"finish_reasons": {"stop": 1900, "tool_calls": 100}}),
        None,
        None,
    ),
    # it never says why
    (requests_check.unknown_end, evidence({"finish_reasons": {"none": 2000}}), None, None),
    (
        requests_check.unknown_end,
        evidence({"finish_reasons": {"stop": 1900, "engine_error": 100}}),
        "requests.unknown_end",
        "doubt",
    ),
    (
        requests_check.unknown_end,
        evidence({"finish_reasons": {"length": 1999, "none": 1}}),
        "requests.unknown_end",
        "doubt",
    ),
    (load.rate, evidence(), None, None),
    (load.rate, evidence({"wait": wait()}, trial=RATE), None, None),
    (load.rate, evidence({"wait": GROWN}, trial=RATE), "load.rate_not_reached", "doubt"),
    (load.rate, evidence({"wait": GROWN}), None, None),  # a closed loop has no rate
    # scatter
    (
        load.rate,
        evidence({"wait": wait(last_p25_ms=900.0, last_median_ms=9000.0)}, trial=RATE),
        None,
        None,
    ),
    # little
    (
        load.rate,
        evidence({"wait": wait(last_p25_ms=1300.0, last_median_ms=1500.0)}, trial=RATE),
        None,
        None,
    ),
    (load.rate, evidence({"wait": None}, trial=RATE), None, None),  # too few to tell
    (load.rate, evidence({"steady": None}, trial=RATE), None, None),
    (load.rate, evidence({"replay": AS_RECORDED, "wait": GROWN}, trial=REPLAY), None, None),
    (
        load.rate,
        evidence({"replay": TWICE_AS_FAST}, trial=REPLAY),
        "load.rate_not_reached",
        "doubt",
    ),
    (load.streams, evidence({"steady": steady()}), None, None),
    (
        load.streams,
        evidence({"steady": steady(streams_mean=1.5)}),
        "load.streams_missing",
        "doubt",
    ),
    (load.streams, evidence({"steady": steady(streams_mean=1.5)}, trial=RATE), None, None),
    # users think
    (load.streams, evidence({"steady": steady(streams_mean=1.5)}, trial=CHATS), None, None),
    (load.profiled, evidence(), None, None),
    (load.profiled, evidence(trial={"profile": True}), "load.profiled", "doubt"),
    (load.no_template, evidence(), None, None),
    (load.no_template, evidence(template="applied"), None, None),
    (load.no_template, evidence(template="missing"), "load.no_chat_template", "note"),
    (load.left_out, evidence(), None, None),
    (
        load.left_out,
        evidence(dropped={"messages that are empty": 3}),
        "load.left_out",
        "note",
    ),
    (load.replay, evidence(), None, None),
    (
        load.replay,
        evidence({"replay": ReplaySummary(9, 9, 300, 900, 990)}, trial=REPLAY),
        None,
        None,
    ),  # dyno's own fault
    (
        load.replay,
        evidence({"replay": ReplaySummary(9, 9, 1, 9, 99)}, trial=CAPPED_REPLAY),
        None,
        None,
    ),
    (
        load.replay,
        evidence({"replay": ReplaySummary(9, 5, 300, 900, 990)}, trial=CAPPED_REPLAY),
        "load.replay_late",
        "doubt",
    ),
    (load.repeated_prompts, evidence(), None, None),
    (load.repeated_prompts, evidence(repeated_prompts=3), "load.repeated_prompts", "doubt"),
    (load.repeated_prompts, evidence({"sent": 2500}), "load.repeated_prompts", "doubt"),
    (load.replicas_on_cpu, evidence(), None, None),
    (load.replicas_on_cpu, evidence(engine=launched([0, 1], [2, 3])), None, None),
    (
        load.replicas_on_cpu,
        evidence(engine=launched(None, None)),
        "load.replicas_share_cpu",
        "note",
    ),
    (engine.misspelt, evidence(engine=UP), None, None),
    (engine.misspelt, evidence(engine=slip("unlike")), "engine.misspelt_variable", "doubt"),
    (
        engine.misspelt,
        evidence(engine=slip("unlisted")),
        "engine.misspelt_variable",
        "note",
    ),
    (engine.remarks, evidence(), None, None),
    (
        engine.remarks,
        evidence(remarks=[Remark("fallback", "x")]),
        "engine.fallback",
        "doubt",
    ),
    (load.replicas, evidence(), None, None),  # one server
    (load.replicas, evidence({"replicas": copies((1000, 10.0), (1000, 10.0))}), None, None),
    # a little
    (load.replicas, evidence({"replicas": copies((1100, 9.0), (900, 11.0))}), None, None),
    (
        load.replicas,
        evidence({"replicas": copies((1250, 8.0), (750, 9.0))}, trial=PAIR),
        "load.replicas_uneven",
        "doubt",
    ),
    (
        load.replicas,
        evidence({"replicas": copies((1050, 8.0), (950, 10.1))}, trial=PAIR),
        "load.replicas_uneven",
        "doubt",
    ),
    (
        load.replicas,
        evidence({"replicas": copies((2000, 8.0), (0, None))}, trial=PAIR),
        "load.replicas_uneven",
        "doubt",
    ),
    # too few
    (
        load.replicas,
        evidence({"replicas": copies((9, 8.0), (5, 20.0)), "completed": 14}),
        None,
        None,
    ),
    (
        load.replicas,
        evidence({"replicas": copies((3, 1.0), (3, 10.0)), "completed": 6}, trial=PAIR),
        "load.replicas_uneven",
        "doubt",  # few, but ten times as slow
    ),
    (
        load.replicas,
        evidence({"replicas": copies((2, 1.0), (2, 10.0)), "completed": 4}),
        None,
        None,
    ),
    (
        load.replicas,
        evidence({"replicas": copies((0, None), (0, None)), "completed": 0}),
        None,
        None,
    ),
    (client.unseen_chunks, evidence(client={"unseen_share": 0.005}), None, None),
    (
        client.unseen_chunks,
        evidence(client={"unseen_share": 0.02}),
        "client.unseen_chunks",
        "note",
    ),
    (
        client.unseen_chunks,
        evidence(client={"unseen_share": 0.2}),
        "client.unseen_chunks",
        "note",
    ),
    (
        client.unseen_chunks,
        evidence({"bounds": {"goodput": (1.0, 2.0)}}),
        "client.unseen_chunks",
        "doubt",
    ),
    (engine.frozen, evidence(), None, None),
    (engine.frozen, evidence({"freezes": [Freeze(1.0, 3.0)]}), "engine.frozen", "doubt"),
    (statistics.short, evidence(), None, None),
    (statistics.short, evidence({"duration_s": 1.5}), "statistics.short", "note"),
    (client.clock_set, evidence(), None, None),
    (client.clock_set, evidence(client={"unstamped": 3}), "client.clock_set", "note"),
    (client.late_sends, evidence(), None, None),
    (
        client.late_sends,
        evidence(client={"send_late": distribution_ms([5e5], [99])}),
        None,
        None,
    ),
    (
        client.late_sends,
        evidence(client={"send_late": distribution_ms([5e6], [99])}, trial=RATE),
        None,
        None,
    ),
    # one in fifty, and a slot waits
    (client.late_sends, evidence(client={"send_late": SOME_LATE}), None, None),
    (
        client.late_sends,
        evidence(client={"send_late": SOME_LATE}, trial=RATE),
        "client.late_sends",
        "doubt",
    ),
    (
        client.late_sends,
        evidence(client={"send_late": distribution_ms([5e7], [99])}),
        "client.late_sends",
        "doubt",
    ),
    # the kernel's stamps don't mind
    (client.late_loop, evidence(client={"loop_late_p99_ms": 50.0}), None, None),
    (
        client.late_loop,
        evidence(client={"loop_late_p99_ms": 50.0, "kernel_stamps": False}),
        "client.late_loop",
        "doubt",
    ),
    (
        client.late_loop,
        evidence(client={"loop_late_p99_ms": 0.5, "kernel_stamps": False}),
        None,
        None,
    ),
    (client.proxy, evidence(), None, None),
    (
        client.proxy,
        evidence(
            trial={"target": TargetSpec("http://h", "openai", "/", proxy="http://p:1")}
        ),
        "client.proxy",
        "note",
    ),
    (network.round_trip, evidence(), None, None),
    (network.round_trip, evidence(round_trips_ns=[2_000, 3_000]), "client.network", "note"),
    (
        network.round_trip,
        evidence(round_trips_ns=[200_000, 900_000_000]),
        "client.network",
        "doubt",
    ),
    (client.busy, evidence(client={"cpu_share": 0.5}), None, None),
    (client.busy, evidence(client={"cpu_share": 0.93}), "client.busy", "note"),
    (client.busy, evidence(client={"cpu_share": 0.99}), "client.busy", "doubt"),
    (
        client.busy,
        evidence(client=processes({}, {"cpu_share": 0.99})),
        "client.busy",
        "doubt",
    ),
    (
        client.unseen_chunks,
        evidence(client=processes({"unseen_share": 0.2}, {})),
        "client.unseen_chunks",
        "note",
    ),
    (
        client.late_sends,
        evidence(client=processes({}, {"send_late": SOME_LATE})),
        None,
        None,
    ),
    (
        client.clocks,
        evidence(client=processes({}, {"node": "n", "clock": clock(0.01)})),
        None,
        None,
    ),
    (
        client.clocks,
        evidence(client=processes({}, {"node": "n", "clock": clock(40)})),
        "client.clock_uncertain",
        "note",
    ),
    (client.lost, evidence(), None, None),
    (client.lost, evidence(client=processes({}, {})), None, None),
    (
        client.lost,
        evidence(client=processes({}, {"lost": True})),
        "client.process_lost",
        "doubt",
    ),
    (
        client.lost,
        evidence(client=processes({"lost": True}, {"lost": True})),
        "client.process_lost",
        "void",
    ),
    (machine.throttled, evidence(), None, None),
    (machine.throttled, evidence(**sampled()), None, None),
    # as it is built
    (machine.throttled, evidence(**sampled({"throttled": {"power cap": 1.0}})), None, None),
    # for a moment
    (machine.throttled, evidence(**sampled({"throttled": {"heat": 0.02}})), None, None),
    (
        machine.throttled,
        evidence(**sampled({"throttled": {"heat": 1.0}, "samples": 3})),
        None,
        None,
    ),
    (
        machine.throttled,
        evidence(**sampled({"throttled": {"heat": 1.0}, "engine": False})),
        None,
        None,
    ),
    (
        machine.throttled,
        evidence(**sampled({"throttled": {"heat": 0.3}})),
        "telemetry.throttled",
        "doubt",
    ),
    (
        machine.power_limited,
        evidence(**sampled({"throttled": {"power cap": 0.3}})),
        None,
        None,
    ),
    (
        machine.power_limited,
        evidence(**sampled({"throttled": {"power cap": 0.9}})),
        "telemetry.power_limited",
        "note",
    ),
    (engine.preempted, evidence(), None, None),
    (engine.preempted, evidence(**sampled(engine={"preemptions": 0})), None, None),
    (
        engine.preempted,
        evidence(**sampled(engine={"preemptions": 5})),
        "engine.preemptions",
        "note",
    ),
    (
        engine.preempted,
        evidence(**sampled(engine={"preemptions": 500})),
        "engine.preemptions",
        "doubt",
    ),
    (engine.restarted, evidence(**sampled()), None, None),
    (
        engine.restarted,
        evidence(**sampled(engine={"restarted": True})),
        "engine.restarted",
        "doubt",
    ),
    (
        load.engine_streams,
        evidence({"steady": steady(), "e2el": LONG}, **sampled()),
        None,
        None,
    ),
    (
        load.engine_streams,
        evidence(
            {"steady": steady(streams_mean=64), "e2el": LONG},
            **sampled(engine={"running_mean": 40.0, "waiting_mean": 23.0}),
        ),
        "load.engine_streams",
        "note",
    ),
    (
        load.engine_streams,
        evidence(
            {"steady": steady(streams_mean=64), "e2el": LONG},
            **sampled(engine={"running_mean": 40.0}),
        ),
        "load.engine_streams",
        "note",
    ),
    (
        # short requests are on their way for a good part of their lives
        load.engine_streams,
        evidence(
            {"steady": steady(streams_mean=64)}, **sampled(engine={"running_mean": 40.0})
        ),
        None,
        None,
    ),
    (
        load.engine_streams,
        evidence(
            {"steady": steady(streams_mean=64), "e2el": LONG},
            **sampled(engine={"running_mean": 1.0, "samples": 3}),
        ),
        None,
        None,
    ),
    (
        load.other_requests,
        evidence(
            {"steady": steady(streams_mean=1)},
            **sampled(engine={"running_mean": 4.0, "waiting_mean": 5.0}),
        ),
        "load.other_requests",
        "doubt",
    ),
    (
        load.other_requests,
        evidence(
            {"steady": steady(streams_mean=64)},
            **sampled(engine={"running_mean": 40.0, "waiting_mean": 24.5}),
        ),
        None,
        None,
    ),
    (
        load.other_requests,  # too few samples for a mean
        evidence(
            {"steady": steady(streams_mean=1)},
            **sampled(engine={"running_mean": 4.0, "samples": 3}),
        ),
        None,
        None,
    ),
    (
        load.engine_streams,  # said by load.slots
        evidence(
            {"steady": steady(streams_mean=2), "e2el": LONG},
            target=TargetFacts("m", slots=1),
            **sampled(engine={"running_mean": 1.0}),
        ),
        None,
        None,
    ),
    (
        machine.energy,
        evidence(**sampled({"energy_j": 1000.0, "energy_by_power_j": 1040.0})),
        None,
        None,
    ),
    (
        machine.energy,
        evidence(**sampled({"energy_j": 1000.0, "energy_by_power_j": 1200.0})),
        "telemetry.energy_differs",
        "note",
    ),
    (
        machine.energy,  # power is of the second before
        evidence(
            {"duration_s": 3.0},
            **sampled({"energy_j": 1000.0, "energy_by_power_j": 1200.0}),
        ),
        None,
        None,
    ),
    (machine.sparse, evidence(), None, None),
    (machine.sparse, evidence(**sampled()), None, None),
    (machine.sparse, evidence(**sampled(longest_gap_s=4.0, interval_s=1.0)), None, None),
    (machine.sparse, evidence(**sampled(longest_gap_s=4.0)), "telemetry.sparse", "note"),
    (tokens.cached, evidence(**sampled(engine={"prefix_hit_tokens": 100})), None, None),
    (
        tokens.cached,
        evidence(**sampled(engine={"prefix_hit_tokens": 80_000})),
        "cache.hits",
        "doubt",
    ),
    (
        tokens.sent_before,  # the server's counters tell
        evidence(
            {"cached_input_tokens": None},
            sent_before="runs/x",
            **sampled(engine={"prefix_hit_tokens": 0}),
        ),
        None,
        None,
    ),
    (
        tokens.cache_emptied,
        evidence(
            {"cached_input_tokens": None},
            cache_emptied=False,
            **sampled(engine={"prefix_hit_tokens": 0}),
        ),
        "cache.not_emptied",
        "note",
    ),
    (physics.roofline, evidence(), None, None),
    (physics.roofline, evidence(**near()), None, None),
    # a sheet's rounding
    (physics.roofline, evidence(**near(bandwidth_least=1.01)), None, None),
    # it may have been less
    (physics.roofline, evidence(**near(bandwidth=1.3)), None, None),
    (
        physics.roofline,
        evidence(**near(bandwidth_least=1.03)),
        "physics.above_roofline",
        "void",
    ),
    (physics.roofline, evidence(**near(arithmetic=2.0)), "physics.above_roofline", "void"),
    (
        physics.roofline,
        evidence(**near(True, bandwidth_least=1.01)),
        "physics.above_roofline",
        "doubt",
    ),
    (
        physics.roofline,
        evidence(**near(True, bandwidth_least=1.2)),
        "physics.above_roofline",
        "void",
    ),
    (physics.roofline, evidence(), None, None),
    (physics.roofline, evidence(**near()), None, None),
    (physics.roofline, evidence(**near(bandwidth=0.04)), "physics.far_below", "note"),
    (physics.roofline, evidence(**near(bandwidth=0.04, arithmetic=0.4)), None, None),
    # one works after the other
    (physics.roofline, evidence(**near(bandwidth=0.04, count=4)), None, None),
    (physics.roofline, evidence(**near(bandwidth=None)), None, None),  # it fits a cache
    (physics.roofline, evidence(**near(True, bandwidth=0.04)), None, None),
    (machine.accelerator_shared, on_rig(), None, None),
    (
        machine.accelerator_shared,
        on_rig([{"processes": [TRAINING]}]),
        "rig.accelerator_shared",
        "doubt",
    ),
    (
        machine.accelerator_shared,
        on_rig([{}, {"engine": False, "processes": [TRAINING]}]),
        None,
        None,
    ),
    (
        machine.accelerator_shared,
        on_rig([{"engine": None, "processes": [TRAINING]}]),
        None,
        None,
    ),  # it may be the engine
    (
        machine.accelerator_shared,
        on_rig([{"engine": None, "processes": [TRAINING] * 2}]),
        "rig.accelerator_shared",
        "note",
    ),
    (machine.power_capped, on_rig(), None, None),
    (machine.power_capped, on_rig([{"power_cap_w": 600.0}]), "rig.power_capped", "note"),
    (
        machine.power_capped,
        on_rig([{}, {"engine": False, "power_cap_w": 600.0}]),
        None,
        None,
    ),
    (machine.power_capped, on_rig([{"power_cap_w": None}]), None, None),
    (machine.numa_balancing, on_rig(), None, None),
    (
        machine.numa_balancing,
        on_rig(state={"numa_balancing": "on"}),
        "rig.numa_balancing",
        "note",
    ),
    (
        machine.numa_balancing,
        on_rig(state={"numa_balancing": "on"}, numa_nodes=1),
        None,
        None,
    ),
    (
        machine.numa_balancing,
        on_rig([{"integrated": True}], {"numa_balancing": "on"}),
        None,
        None,
    ),
    (machine.governor, on_rig(), None, None),
    (
        machine.governor,
        on_rig(state={"governor": "powersave (balance_performance)"}),
        "rig.governor",
        "note",
    ),
    (
        machine.governor,
        on_rig(state={"governor": "performance on 2, schedutil on 1"}),
        "rig.governor",
        "note",
    ),
    # the processor chooses
    (machine.governor, on_rig(state={"governor": "powersave (performance)"}), None, None),
    # not known
    (
        machine.governor,
        evidence(rig=Rig("Debian", "6.1", "x86_64", "a guest's", 4)),
        None,
        None,
    ),
    (machine.iommu, on_rig(), None, None),
    (machine.iommu, on_rig([{}, {}], {"iommu": "on (DMA-FQ)"}), "rig.iommu", "note"),
    (machine.iommu, on_rig([{}, {}], {"iommu": "on amd_iommu=on"}), "rig.iommu", "note"),
    (machine.iommu, on_rig([{}, {}], {"iommu": "on (identity) iommu=pt"}), None, None),
    # one alone talks to no other
    (machine.iommu, on_rig([{}], {"iommu": "on (DMA-FQ)"}), None, None),
    (machine.memory_short, on_rig(), None, None),
    (machine.memory_short, on_rig(swap_used_bytes=200 << 20), None, None),
    (machine.memory_short, on_rig(swap_used_bytes=20 << 30), "rig.memory_short", "note"),
    (
        machine.memory_short,
        on_rig(memory_pressure_percent=30.0),
        "rig.memory_short",
        "doubt",
    ),
    (statistics.few_samples, evidence(), None, None),
    (
        statistics.few_samples,
        evidence(trial={"percentiles": [99.9]}),
        "statistics.few_samples",
        "note",
    ),
    (statistics.few_samples, evidence({"ttft": distribution_ms([], [99])}), None, None),
    (statistics.ramp, evidence(), None, None),
    (statistics.ramp, evidence({"steady": None}), "statistics.ramp_and_drain", "note"),
    (
        statistics.ramp,
        evidence({"steady": steady(end_s=40.0)}),
        "statistics.ramp_and_drain",
        "note",
    ),
    (statistics.ramp, evidence({"completed": 1, "steady": None}), None, None),
    (statistics.single_run, evidence(), "statistics.single_run", "note"),
    (statistics.single_run, evidence({"completed": 0}), None, None),
]


def judges(*needs: str) -> set[Callable[..., Any]]:
    return {
        judge for check in CHECKS for need, judge in check.judges.items() if need in needs
    }


@pytest.mark.parametrize(("check", "of", "code", "level"), CASES)
def test_a_check_speaks_when_it_should_and_only_then(
    check: Callable[[Any], Any], of: Evidence, code: str | None, level: str | None
) -> None:
    found = list(check(of.rig if check in judges("rig") else of))
    assert [(f.code, f.level) for f in found] == ([(code, level)] if code else [])
    assert all(f.text.endswith(".") for f in found)


def test_every_check_is_tested_speaking_and_silent() -> None:
    every = judges("server", "run", "rig")
    assert (
        {c for c, _, code, _ in CASES if code}
        == {c for c, _, code, _ in CASES if code is None}
        == every
    )


def test_a_rig_says_nothing_about_a_server_elsewhere() -> None:
    shared = rig_of([{"processes": [TRAINING]}])
    here, elsewhere = evidence(rig=shared), evidence(rig=shared, trial=ELSEWHERE)
    codes = [{f.code for f in examine(e)} for e in (here, elsewhere, evidence())]
    assert ["rig.accelerator_shared" in c for c in codes] == [True, False, False]


def test_a_finding_reports_the_numbers() -> None:
    (f,) = requests_check.failed(
        evidence({"failed": 28, "sent": 64, "failures": {"reset": 20, "empty": 8}})
    )
    assert "28 of 64" in f.text and "20 reset, 8 empty" in f.text
    (f,) = load.rate(evidence({"wait": GROWN, "request_throughput": 9.9}, trial=RATE))
    assert "16.00 requests/s offered, 9.900 served" in f.text


def test_an_uneven_replica_is_named_with_its_numbers() -> None:
    (f,) = load.replicas(
        evidence({"replicas": copies((1250, 8.0), (750, 12.0))}, trial=PAIR)
    )
    assert (
        "http://b completed 750 requests (even share: 1,000); http://b has a mean TPOT of 12.00 ms"
        in f.text
    )


TGI_ROUTE = {"target": TargetSpec("http://x", "tgi", "/generate_stream", "m")}


@pytest.mark.parametrize(
    "tgi",
    [
        {"trial": TGI_ROUTE},
        {"trial": {**TGI_ROUTE, "ignore_eos": True}},
        {"target": TargetFacts("m", kind="tgi")},
    ],
)
def test_no_user_is_advised_to_make_tgi_ignore_the_end_token(tgi: dict[str, Any]) -> None:
    short = evidence({"wanted_output_tokens": 200_000, "end_at_once": 5}, **tgi)
    for f in (*tokens.output_short(short), *requests_check.end_at_once(short)):
        assert "TGI can't ignore the end token" in f.advice
        assert "--ignore-eos" not in f.advice and "honour" not in f.advice


def test_too_few_samples_name_the_percentile_that_needs_most() -> None:
    few = {"ttft": distribution_ms([1e6] * 50, [99])}
    (f,) = statistics.few_samples(evidence(few, trial={"percentiles": [99.0, 90.0]}))
    assert (
        "p99, p90" in f.text
        and "p99 needs 662" in f.text
        and "--num-prompts 662" in f.advice
    )


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], "sound"),
        (["note"], "sound"),
        (["note", "doubt", "note"], "doubtful"),
        (["doubt", "void", "note"], "void"),
    ],
)
def test_the_verdict_is_the_worst_level(levels: list[Any], expected: str) -> None:
    assert verdict(Finding("a.b", level, "x.", "y.") for level in levels) == expected


def test_a_run_without_blemish_is_sound_and_a_bad_ones_worst_comes_first() -> None:
    assert verdict(examine(evidence())) == "sound"
    some = {
        "sent": 2009,
        "failed": 9,
        "failures": {"reset": 9},
        "models_answered": {"q8": 2000},
    }
    bad = examine(evidence(some, prompts=2009))
    assert [f.level for f in bad] == ["void", "doubt", "note"]
    assert verdict(bad) == "void"


# ---- several processes ----


def test_of_several_processes_the_worst_is_named() -> None:
    late = distribution_ms([5e7], [99])
    busy = {"waited_share": 0.3, "unseen_share": 0.2, "send_late": late, "cpu_share": 0.95}
    e = evidence({"duration_s": 60.0}, processes({}, {}, busy))
    texts = [
        f.text
        for check in (client.unseen_chunks, client.late_sends, client.busy)
        for f in check(e)
    ]
    assert len(texts) == 3 and all(text.startswith("Process 3 of 3 ") for text in texts)
    assert "no free core for 30 % of the load" in texts[0]


def test_each_process_is_judged_by_its_own_requests() -> None:
    tally = Tally(TRIAL, processes=2)
    for i in range(40):
        late_ns = 20 * NS_PER_MS * (i % 2)  # the second process sends late, and reads late
        r = record(i, sent_ns=late_ns, due_ns=0)
        r.late_ns_sum, r.late_ns_max, r.reads = late_ns, late_ns, 1
        tally.add(r)
    each = [
        client_facts(1.0, sent=20, cpu_s=0.2),
        client_facts(1.0, sent=20, cpu_s=0.7, ticks_late_ns=[NS_PER_S]),
    ]
    s = tally.summary(client_facts(1.0, sent=40, cpu_s=0.9, processes=each))
    first, second = s.client.processes
    assert (first.send_late.mean, second.send_late.mean, s.client.send_late.mean) == (
        0,
        20,
        10,
    )
    assert (first.cpu_share, second.cpu_share, s.client.cpu_share) == pytest.approx(
        (0.2, 0.7, 0.7)
    )
    assert (first.read_late_max_ms, second.read_late_max_ms, s.client.read_late_max_ms) == (
        0,
        20,
        20,
    )
    assert s.client.loop_late_p99_ms == second.loop_late_p99_ms == 1000
    assert s.completed == 40 and (first.streams_peak, s.client.streams_peak) == (20, 40)


def test_a_slot_is_free_for_the_requests_of_its_own_process() -> None:
    """With a rate and a cap, a request that waits for a slot of its process is not the client's delay."""
    capped = with_(load=LoadSpec(request_rate_rps=10, max_concurrency=2))
    tally = Tally(capped, processes=2)
    # Process 1: busy for 50 ms, then its next request is sent at once. Process 2 had a free slot all the time.
    for i, (due_ms, sent_ms, end_ms) in enumerate(
        [(0, 0, 50), (0, 0, 1), (10, 50, 60), (10, 10, 12)]
    ):
        r = record(i, due_ns=due_ms * NS_PER_MS, sent_ns=sent_ms * NS_PER_MS)
        r.end_ns = end_ms * NS_PER_MS
        tally.add(r)
    s = tally.summary(client_facts(1.0, sent=4, processes=[client_facts(1.0, sent=2)] * 2))
    assert s.client.send_late.mean == 0
