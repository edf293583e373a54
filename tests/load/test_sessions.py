"""Sessions: requests that wait for one another, sent by the real wire to the fake engine."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from conftest import STREAM_HEAD, Scripted, StartFake, drive, receive_request
from dyno.facts.load import LoadSpec
from dyno.load import slices
from dyno.load.plan import Cancelling, Plan
from dyno.load.script import AnswerCollector
from dyno.load.sessions import Graph
from dyno.store.run import StoredLengths
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.request import Turn

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


def chat(
    sessions: int, turns: int, wait_s: float = 0.0, output: int = 4, **fields: Any
) -> list[Turn]:
    """Conversations, each turn after the one before."""
    requests = []
    for s in range(sessions):
        for t in range(turns):
            before = [len(requests) - 1] if t else []
            history = before[0] if before else None
            text = f"question {t} of user {s} please"
            requests.append(
                Turn(
                    text,
                    6 * (t + 1),
                    output,
                    session=s,
                    after=before,
                    wait_s=wait_s if t else 0,
                    history=history,
                    **fields,
                )
            )
    return requests


def said(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in body["messages"]]


def test_a_conversation_sends_the_servers_own_answers_back(fake: StartFake) -> None:
    engine = fake(bodies=True)
    driven = drive(engine.base_url, chat(1, 3), backend="openai-chat")
    bodies = engine.log()["bodies"]
    texts = [r.text for r in driven.records]
    assert all(texts) and driven.client.outcome == "complete"
    assert said(bodies[2]) == [
        ("user", "question 0 of user 0 please"), ("assistant", texts[0]),
        ("user", "question 1 of user 0 please"), ("assistant", texts[1]),
        ("user", "question 2 of user 0 please"),
    ]  # fmt: skip


def test_recorded_answers_stand_in_for_the_servers(fake: StartFake) -> None:
    engine = fake(bodies=True)
    recorded = {"role": "assistant", "content": 'a "recorded" one'}
    drive(
        engine.base_url,
        chat(1, 2, answer=recorded),
        backend="openai-chat",
        answers="recorded",
    )
    assert said(engine.log()["bodies"][1])[1] == ("assistant", 'a "recorded" one')


def test_completions_hold_the_history_as_one_text(fake: StartFake) -> None:
    engine = fake(bodies=True)
    driven = drive(engine.base_url, chat(1, 2))
    first, second = engine.log()["bodies"]
    assert (
        second["prompt"]
        == first["prompt"] + driven.records[0].text + "question 1 of user 0 please"
    )


def test_a_turn_is_due_when_the_one_before_has_ended_and_the_user_has_thought(
    fake: StartFake,
) -> None:
    driven = drive(
        fake().base_url,
        chat(4, 3, wait_s=0.05),
        LoadSpec(max_concurrency=4),
        backend="openai-chat",
    )
    for i, r in enumerate(driven.records):
        if i % 3:
            assert (
                abs(r.due_ns - driven.records[i - 1].end_ns - 50 * NS_PER_MS)
                < NS_PER_MS // 10
            )
        assert r.error is None and r.sent_ns >= r.due_ns


def test_a_user_begins_the_next_conversation_when_the_last_is_over(fake: StartFake) -> None:
    driven = drive(
        fake().base_url, chat(6, 2), LoadSpec(max_concurrency=2), backend="openai-chat"
    )
    spans = [
        (driven.records[2 * s].sent_ns, driven.records[2 * s + 1].end_ns) for s in range(6)
    ]
    for begin, end in spans:
        # itself, one beside, and those before and after
        assert sum(b < end and begin < e for b, e in spans) <= 4
    assert max(sum(b <= t < e for b, e in spans) for t, _ in spans) == 2


def test_conversations_begin_at_a_session_rate(fake: StartFake) -> None:
    load = LoadSpec(request_rate_rps=50.0, burstiness=None)
    driven = drive(fake().base_url, chat(5, 2), load, backend="openai-chat")
    firsts = [driven.records[2 * s].due_ns for s in range(5)]
    assert [round(t / NS_PER_MS) for t in firsts] == [20, 40, 60, 80, 100]


def test_recorded_times_are_replayed_with_a_speedup(fake: StartFake) -> None:
    requests = [Turn("a b c d", 4, 2, session=i) for i in range(4)]
    load = LoadSpec(arrivals="recorded", speedup=10.0)
    driven = drive(fake().base_url, requests, load, starts_s=[0.0, 0.5, 0.5, 2.0])
    assert [r.due_ns // NS_PER_MS for r in driven.records] == [0, 50, 50, 200]


def test_branches_run_in_parallel_and_their_join_waits_for_all(fake: StartFake) -> None:
    # 0 → 1, 2 (after 30 ms) → 3
    turns = [
        Turn("plan it well now", 4, 2, session=0),
        Turn("branch one of two", 4, 40, session=0, after=[0], history=0),
        Turn("branch two of two", 4, 2, session=0, after=[0], wait_s=0.03, history=0),
        Turn("join them all now", 4, 2, session=0, after=[1, 2], history=1),
    ]
    r = drive(
        fake(gap_ms=2.0).base_url, turns, LoadSpec(max_concurrency=1), backend="openai-chat"
    ).records
    assert r[1].sent_ns < r[2].sent_ns < r[1].end_ns, "branches overlap"
    assert r[3].due_ns == max(r[1].end_ns, r[2].end_ns)


DELTA = '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}'
GIVEN_UP = {
    "aborted": [DELTA % (" a", "null"), DELTA % ("", '"abort"')],
    "an error": [DELTA % (" a", "null"), '{"error":{"message":"out of cache blocks"}}'],
    "neither: it speaks of one": [
        DELTA % ('\\"error\\":{', "null"),
        DELTA % ('\\"finish_reason\\":\\"abort\\"', '"stop"'),
    ],
}


@pytest.mark.parametrize("name", GIVEN_UP)
def test_an_answer_that_was_given_up_ends_the_session_also_where_usage_and_end_mark_follow(
    scripted: Callable[..., Scripted], name: str
) -> None:
    events = [
        *GIVEN_UP[name],
        '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
        "[DONE]",
    ]

    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(STREAM_HEAD)
            for event in events:
                time.sleep(0.002)  # a read of its own
                sock.sendall(b"%x\r\ndata: %s\n\n\r\n" % (len(event) + 8, event.encode()))
            sock.sendall(b"0\r\n\r\n")

    driven = drive(scripted(talk).base_url, chat(1, 3), backend="openai-chat")
    assert driven.client.skipped == (0 if name.startswith("neither") else 2)
    assert len(driven.records) == 3 - driven.client.skipped


@pytest.mark.parametrize("fault", ["500", "cut", "error", "abort"])
def test_after_a_failure_the_rest_of_the_session_is_not_sent(
    fake: StartFake, fault: str
) -> None:
    # the first one's last request
    driven = drive(fake(faults={fault: 4}).base_url, chat(3, 4), backend="openai-chat")
    # Of session 0, the fourth fails; then each fourth answer: the fourth of each session.
    assert len(driven.records) == 12 and driven.client.skipped == 0
    driven = drive(fake(faults={fault: 3}).base_url, chat(3, 4), backend="openai-chat")
    assert len(driven.records) == driven.client.sent == 9 and driven.client.skipped == 3
    assert [r.index for r in driven.records] == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert driven.client.outcome == "complete" and driven.client.planned == 12


def test_conversations_come_round_again_until_time_is_up(fake: StartFake) -> None:
    load = LoadSpec(max_concurrency=2, duration_s=0.5)
    driven = drive(
        fake(first_ms=2.0).base_url, chat(2, 3), load, backend="openai-chat", count=2**31
    )
    assert driven.client.outcome == "complete" and len(driven.records) > 12
    assert all(r.error is None for r in driven.records)
    assert driven.client.skipped == 0, "what time cut off was not skipped"


def test_cancelled_requests_end_the_load_like_any_other(fake: StartFake) -> None:
    load = LoadSpec(max_concurrency=8, cancel_rate=0.5, cancel_after_s=0.05, seed=3)
    requests = [Turn("a b c d", 4, 200, session=i) for i in range(40)]
    driven = drive(fake(gap_ms=1.0).base_url, requests, load)
    cancelled = [r for r in driven.records if r.error == "cancelled"]
    plan = Cancelling(0.5, NS_PER_S // 20, 3)
    assert {r.index for r in cancelled} == {
        i for i in range(40) if plan.after(i) is not None
    }
    assert driven.client.outcome == "complete" and all(
        r.error in (None, "cancelled") for r in driven.records
    )
    for r in cancelled:
        assert r.end_ns - r.sent_ns >= plan.after(r.index)  # type: ignore[operator]


def test_slots_follow_the_steps_of_a_schedule(fake: StartFake) -> None:
    steps = [(0, 1), (200 * NS_PER_MS, 4), (400 * NS_PER_MS, 2)]
    requests = [Turn("a b c d", 4, 8, session=i) for i in range(60)]
    driven = drive(
        fake(gap_ms=3.0).base_url, requests, plan_=Plan(60, None, 4, steps=steps)
    )

    def most(begin_ms: int, end_ms: int) -> int:
        times = range(begin_ms * NS_PER_MS, end_ms * NS_PER_MS, NS_PER_MS)
        return max(sum(r.sent_ns <= t < r.end_ns for r in driven.records) for t in times)

    assert (most(20, 190), most(260, 390), most(500, 600)) == (1, 4, 2)


# ---- slices, and numbers ----


@pytest.mark.parametrize(
    ("sessions", "count", "n"), [(6, 6, 2), (7, 7, 3), (3, 40, 2), (4, 17, 3), (5, 5, 1)]
)
def test_slices_have_every_session_once_and_number_them_as_one_client_would(
    sessions: int, count: int, n: int
) -> None:
    graph = Graph.from_requests(
        [
            Turn("", 1, 1, session=s, after=[])
            for s in range(sessions)
            for _ in range(1 + s % 3)
        ]
    )
    assert graph is not None
    plan = Plan(count, None, n, graph=graph)
    numbers = []
    for k in range(n):
        part = slices.share(plan, k, n)
        number = slices.Numbering(graph, k, n)
        numbers += [number(exchange) for exchange in range(part.requests)]
    assert sorted(numbers) == list(range(plan.requests))


def test_what_is_stored_of_requests_has_their_order() -> None:
    requests = chat(5, 3, wait_s=0.5)
    stored = [
        msgspec.json.decode(msgspec.json.encode(r), type=StoredLengths) for r in requests
    ]
    assert Graph.from_requests(stored) == Graph.from_requests(requests) is not None


# ---- the answer in a response ----


def collected(*reads: bytes) -> bytes:
    answer = AnswerCollector("openai-chat")
    for read in reads:
        answer.add(read)
        answer.digest()
    return answer.text()


def response(*events: str) -> bytes:
    chunks = (f"data: {e}\n\n".encode() for e in events)
    body = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"0\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        (['{"role":"assistant","content":""}', '{"content":"a\\n"}'], "a\n"),
        (['{"content": "say \\"x\\" "}', '{"content": "\\ud83d\\ude00"}'], 'say "x" 😀'),
        (['{"reasoning_content":"hm"}', '{"content":"yes"}'], "yes"),
        (['{"content":null,"reasoning":"hm"}', '{"content":"no"}'], "no"),
    ],
)
def test_the_answer_is_taken_from_the_response_as_it_was_escaped(
    deltas: list[str], text: str
) -> None:
    whole = response(*(f'{{"choices":[{{"delta":{delta}}}]}}' for delta in deltas))
    assert msgspec.json.decode(b'"' + collected(whole) + b'"') == text
    for cut in range(len(whole)):  # a quiet moment may come anywhere
        assert (
            msgspec.json.decode(b'"' + collected(whole[:cut], whole[cut:]) + b'"') == text
        )


def test_the_answer_is_read_where_http_chunks_cut_events_or_there_are_none() -> None:
    event = b'data: {"choices":[{"delta":{"content":"ab"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    assert collected(head + b"\r\n" + event + event) == b"abab"
    for cut in range(1, len(event)):
        parts = [event, event, event[:cut], event[cut:], event]
        chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
        reads = [
            head + b"transfer-encoding: chunked\r\n\r\n" + chunks[0],
            *chunks[1:],
            b"0\r\n\r\n",
        ]
        assert collected(*reads) == b"abababab"


def test_an_event_cut_by_an_http_chunk_is_decoded_instead() -> None:
    whole = response('{"choices":[{"delta":{"content":"one two"}}]}')
    head, _, body = whole.partition(b"\r\n\r\n")
    event = body.split(b"\r\n", 1)[1].split(b"\r\n0\r\n")[0]
    cut = event.index(b"two")
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (event[:cut], event[cut:]))
    assert collected(head + b"\r\n\r\n" + pieces + b"0\r\n\r\n") == b"one two"


def test_an_event_cut_by_a_read_is_decoded_instead() -> None:
    whole = response(
        '{"choices":[{"delta":{"content":"one two"}}]}',
        '{"choices":[{"delta":{"content":" three"}}]}',
    )
    for cut in range(1, len(whole)):
        assert collected(whole[:cut], whole[cut:]) == b"one two three"
