"""What is reported around a request: failed requests did no prefill, and each engine has its own metrics."""

import random

import msgspec
import pytest

from dyno.explain.columns import columns
from dyno.explain.explain import Explained, RunContext, explain
from dyno.explain.split import Split, split
from dyno.facts.record import Record
from dyno.facts.telemetry import Sample
from schedulers import Load, Rules, simulate

S = 1_000_000_000


def texts(each: Explained, kind: str) -> list[str]:
    tail = each.explanation.tail
    return [event.text for r in tail for event in r.events if event.kind == kind]


def failed(index: int, sent_ns: int, end_ns: int, status: int, error: str) -> Record:
    return Record(
        index=index,
        due_ns=sent_ns,
        sent_ns=sent_ns,
        end_ns=end_ns,
        prompt_tokens_planned=4000,
        output_tokens_wanted=64,
        status=status,
        error=error,
    )


def shares(s: Split) -> dict[tuple[str, ...], tuple[int, tuple[int, int]]]:
    return {p.covers: (int(p.value.sum()), p.sums) for p in s.parts}


@pytest.mark.parametrize(
    ("status", "error"), [(429, "http_429"), (503, "http_503"), (0, "refused")]
)
def test_a_refused_request_counts_neither_as_a_prefill_nor_as_waiting(
    status: int, error: str
) -> None:
    good = simulate(Rules(), Load(count=40, concurrency=4)).records
    end = max(r.end_ns for r in good)
    rng = random.Random(3)
    moments = [rng.randrange(end) for _ in range(400)]
    bad = [
        failed(1000 + i, at, at + 1_000_000, status, error) for i, at in enumerate(moments)
    ]
    alone, beside = (explain(r, RunContext("run")) for r in (good, good + bad))
    assert [p.total_ns for p in alone.explanation.parts] == [
        p.total_ns for p in beside.explanation.parts
    ]
    assert [r.events for r in alone.explanation.tail] == [
        r.events for r in beside.explanation.tail
    ]
    assert beside.explanation.failed == 400


def test_a_request_that_hangs_does_not_hide_the_stalls_of_a_run() -> None:
    good = simulate(Rules(), Load(count=200, concurrency=8)).records
    end = max(r.end_ns for r in good)
    hung = failed(9999, 1, end, 0, "timeout")
    alone, beside = (split(columns(r)) for r in (good, [*good, hung]))
    stall = next(p for p in beside.parts if p.covers == ("stall",))
    before = next(p for p in alone.parts if p.covers == ("stall",))
    assert stall.value.sum() == pytest.approx(before.value.sum(), rel=0.05)


def test_a_prompt_that_failed_late_was_open_as_long_as_the_slowest_first_token() -> None:
    """The server may have worked on it. It had a second; no other prompt took longer than half of one."""
    good = simulate(Rules(), Load(count=60, concurrency=4)).records
    longest = max(r.chunk_ns[0] - r.sent_ns for r in good)
    c = columns([*good, failed(9999, 2 * S, 3 * S, 500, "http_500")])
    (row,) = (c.number == 9999).nonzero()[0]
    assert c.open_until[row] == 2 * S + min(longest, S)


def test_answers_in_one_piece_have_no_prefills_around_them() -> None:
    run = simulate(Rules(), Load(count=60, concurrency=8)).records
    whole = [
        msgspec.structs.replace(r, answered_ns=r.chunk_ns[-1], chunk_ns=[]) for r in run
    ]
    each = explain(whole, RunContext("run"))
    (row, *_) = texts(each, "queue")
    assert " came meanwhile; when it was sent, " in row
    assert not any("first token" in text for text in texts(each, "queue"))
    lanes = [lane for n in each.happenings.neighbourhoods() for lane in n.lanes]
    stretches = {segment.what for lane in lanes for segment in lane.segments}
    assert stretches <= {"client's wait", "until the answer"}


def test_the_metrics_of_another_engine_say_nothing_of_a_request() -> None:
    """The second URL has counted 100 preemptions before the load, the first one 5."""
    records = simulate(Rules(), Load(count=40, concurrency=4)).records
    end_s = max(r.end_ns for r in records) // S + 2
    samples = [
        Sample(
            k * S + url * S // 2, "engine", url, {"preemptions": n, "kv_used_share": full}
        )
        for k in range(-1, end_s)
        for url, n, full in ((0, 5.0, 0.1), (1, 100.0, 0.99))
    ]
    of_first, of_second = (
        explain(
            [msgspec.structs.replace(r, replica=url) for r in records],
            RunContext("run", samples=samples),
        )
        for url in (0, 1)
    )
    assert not texts(of_first, "preemption")
    assert {*texts(of_second, "preemption")} == {"the KV cache was 99 % full"}
