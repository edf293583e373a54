"""Two sides: which part differs, by how much, with an interval; and histograms that split all requests together."""

import msgspec
import pytest

from dyno.explain.difference import difference
from dyno.explain.explain import Explained, RunContext, explain
from dyno.facts.telemetry import EngineTelemetry, TelemetrySummary
from schedulers import Load, Rules, simulate

ALL = ("queue", "prefill", "decode")
NAMES = ("a", "b")


def explained(
    rules: Rules, load: Load, claims: tuple[str, ...] = ALL, seed: int = 1
) -> Explained:
    rules.seed = seed
    return explain(simulate(rules, load, claims).records, RunContext("run"))


def test_a_slower_step_is_found_in_decoding() -> None:
    load = Load(count=300)
    sides = [[explained(Rules(step_ms=ms), load)] for ms in (8, 12)]
    d = difference(sides[0], sides[1], NAMES)
    assert (d.per, d.by) == ("request", "requests")
    (decode,) = [p for p in d.parts if "decode_above" in p.covers]
    assert decode.points == pytest.approx(d.change.points, abs=6)
    assert decode.low_ms is not None and decode.low_ms > 0
    assert d.sentence.startswith("b is ") and " slower than a per request (" in d.sentence
    assert f"points of it in {decode.title}" in d.sentence
    assert sum(p.change_ms for p in d.parts) == pytest.approx(d.change.change_ms)


def test_fewer_slots_are_found_in_the_queue() -> None:
    load = Load(count=300, concurrency=24)
    sides = [[explained(Rules(slots=slots), load)] for slots in (24, 8)]
    d = difference(sides[0], sides[1], NAMES)
    largest = max(d.parts, key=lambda p: p.points)
    assert largest.covers == ["queue"]
    assert "points of it in queue" in d.sentence


def test_the_same_server_twice_has_no_difference() -> None:
    load = Load(count=300)
    sides = [[explained(Rules(), load, seed=seed)] for seed in (1, 2)]
    d = difference(sides[0], sides[1], NAMES)
    assert d.sentence.startswith("No difference detected between a and b per request (")


def test_repeats_on_both_sides_make_the_intervals() -> None:
    load = Load(count=100)
    a = [explained(Rules(), load, seed=seed) for seed in (1, 2, 3)]
    b = [explained(Rules(token_ms=0.12), load, seed=seed) for seed in (4, 5, 6)]
    assert difference(a, b, NAMES).by == "repeats"
    assert difference(a, b[:1], NAMES).by == "requests"


def test_answers_of_other_lengths_are_compared_by_token() -> None:
    sides = [[explained(Rules(), Load(output=(n, n)))] for n in (32, 64)]
    d = difference(sides[0], sides[1], NAMES)
    assert d.per == "output token"
    assert d.a_ms == pytest.approx(sides[0][0].explanation.mean_ms / 32)


def test_sides_are_compared_by_what_both_separate() -> None:
    load = Load(count=200, concurrency=24)
    speaking, silent = ([explained(Rules(slots=8), load, claims)] for claims in (ALL, ()))
    d = difference(speaking, silent, NAMES)
    before = next(p for p in d.parts if "queue" in p.covers)
    assert {"network", "queue", "prefill_above", "first_delivery"} <= {*before.covers}
    assert not {"decode_above", "later_delivery"} & {*before.covers}
    assert before.change_ms == pytest.approx(0, abs=1e-3)
    assert d.sentence.startswith("No difference detected")


def test_the_failures_of_a_side_are_named() -> None:
    run = simulate(Rules(), Load(count=100))
    some = [
        msgspec.structs.replace(r, error="http_503", status=503, chunk_ns=[])
        if r.index % 2
        else r
        for r in run.records
    ]
    a, b = (explain(records, RunContext("run")) for records in (run.records, some))
    d = difference([a], [b], NAMES)
    assert d.sentence.endswith(" b: 50 of 100 requests failed.")
    assert (d.a_requests, d.a_failed, d.b_requests, d.b_failed) == (100, 0, 50, 50)


def test_equal_sides_have_no_difference() -> None:
    """Too few requests for an interval."""
    each = explain(simulate(Rules(), Load(count=20)).records, RunContext("run"))
    sentence = difference([each], [each], NAMES).sentence
    assert sentence.startswith("No difference: a and b take ")
    assert " 0 %" not in sentence


def test_a_note_of_one_side_says_of_which() -> None:
    """Chunks of b come in groups."""
    load = Load(count=100)
    a, b = (explained(rules, load) for rules in (Rules(), Rules(proxy_chunks=8)))
    notes = difference([a], [b], NAMES).notes
    assert notes and all(note.startswith("b: ") for note in notes)
    (note, *_) = difference([b], [b], NAMES).notes
    assert note == notes[0].removeprefix("b: ")


# ---- histograms ----


def with_histogram(
    queue_s: float, count: int, claims: tuple[str, ...] = ()
) -> tuple[Explained, float]:
    """Explain a run of 200 requests whose server has a histogram; return also the true queue, s."""
    run = simulate(Rules(slots=8), Load(concurrency=24), claims)
    true_s = run.truth(["queue"]) / 1e3
    prefill_s = run.truth(["prefill_above"]) / 1e3
    engine = EngineTelemetry(
        0, 5, queue_s=queue_s * true_s, prefill_s=prefill_s, timed_requests=count
    )
    telemetry = TelemetrySummary(0.2, 1.0, 0.0, 0.2, engines=[engine])
    return explain(run.records, RunContext("run", telemetry=telemetry)), true_s


def test_a_histogram_splits_all_requests_together_and_no_single_one() -> None:
    each, true_s = with_histogram(1.0, 200)
    e = each.explanation
    queue = e.part("queue")
    assert queue is not None and queue.sources == ["claimed"]
    assert queue.total_ns == pytest.approx(true_s * 1e9, rel=0.01)
    assert sum(p.total_ns for p in e.parts) == e.latency_ns
    assert all(p.covers != ["queue"] for p in e.request_parts)
    assert any("queue" in name.split("+") for name in e.tail[0].parts_ms)


@pytest.mark.parametrize(
    ("factor", "count", "note"),
    [(1.0, 150, "histograms have 150 requests"), (9.0, 200, "doesn't fit")],
)
def test_a_histogram_that_does_not_fit_is_not_used(
    factor: float, count: int, note: str
) -> None:
    e = with_histogram(factor, count)[0].explanation
    assert e.part("queue") is None
    assert any(note in text for text in e.notes)
    assert sum(p.total_ns for p in e.parts) == e.latency_ns


def test_the_engines_count_of_its_steps_is_printed_and_used_for_no_part() -> None:
    run = simulate(Rules(slots=8), Load(concurrency=24))
    engines = [EngineTelemetry(0, 5, steps=n, step_tokens=4 * n) for n in (1000, 500)]
    telemetry = TelemetrySummary(0.2, 1.0, 0.0, 0.2, engines=engines)
    silent, counted = (
        explain(run.records, RunContext("run", telemetry=t)).explanation
        for t in (None, telemetry)
    )
    (note,) = [text for text in counted.notes if text not in silent.notes]
    assert "1,500 steps with 4.00 tokens each" in note
    assert counted.parts == silent.parts


def test_times_of_each_answer_go_before_histograms() -> None:
    e = with_histogram(2.0, 200, ALL)[0].explanation
    assert [p.covers for p in e.parts] == [p.covers for p in e.request_parts]


def test_a_run_without_completed_requests_is_explained_as_empty() -> None:
    records = simulate(Rules(), Load(count=4, concurrency=2)).records
    failed = [msgspec.structs.replace(r, error="cut", chunk_ns=[]) for r in records]
    e = explain(failed, RunContext("run")).explanation
    assert (e.requests, e.failed, e.latency_ns) == (0, 4, 0)
    assert explain([], RunContext("run")).explanation.requests == 0
