"""Figures of sessions, turns, classes of traffic and prefix reuse: of records with known times, then of real runs."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import StartFake
from dyno.audit.document import read_bytes as imported
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts, Record
from dyno.facts.summary import ReuseSummary, SessionSummary, Summary
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS
from dyno.measure.reuse import ReuseTally
from dyno.measure.summary import Tally
from dyno.report import result_json
from dyno.report.block import block
from dyno.store.rows import read_row
from dyno.store.sql import RunTables
from dyno.trial import online as conducting
from dyno.trial.online import Outcome
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.dataset import Dataset
from dyno.workload.datasets import DATASETS
from dyno.workload.request import Answers, StoredRequest, Turn
from dyno.workload.spec import TrafficClass, WorkloadSpec
from test_sessions import chat

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

MS = NS_PER_MS
TRIAL = TrialSpec(
    target=TargetSpec("http://localhost:8000", "openai-chat", "/v1/chat/completions", "m"),
    workload=WorkloadSpec("chat"),
    load=LoadSpec(max_concurrency=2),
    percentiles=[50.0],
)


def record(
    session: int, turn: int, sent_ms: float, first_ms: float, end_ms: float, **fields: Any
) -> Record:
    """Of the whole session, `turn` is its place; its last token arrives at `end_ms`."""
    return Record(
        index=10 * session + turn, session=session, turn=turn, due_ns=int(sent_ms * MS), sent_ns=int(sent_ms * MS),
        end_ns=int(end_ms * MS), prompt_tokens_planned=10 * (turn + 1), output_tokens_wanted=2, output_tokens=2,
        chunk_ns=[int(first_ms * MS), int(end_ms * MS)], status=200, **fields,
    )  # fmt: skip


def summed(
    records: Sequence[Record],
    sizes: Sequence[int] = (),
    trial: TrialSpec = TRIAL,
    **facts: Any,
) -> Summary:
    tally = Tally(trial)
    for r in records:
        tally.add(r)
    count = len(records)
    values = {"planned": count, "sent": count, **facts}
    client = ClientFacts(
        0,
        10 * NS_PER_S,
        "complete",
        cpu_s=0.0,
        reads=0,
        ticks_late_ns=[],
        kernel_stamps=True,
        **values,
    )
    return tally.summary(client, sizes)


def sessions(records: Sequence[Record], sizes: Sequence[int]) -> SessionSummary:
    s = summed(records, sizes).sessions
    assert s is not None
    return s


# ---- records with known times ----


def test_a_session_lasts_from_its_first_sending_to_its_last_token_and_is_busy_without_the_think_time() -> (
    None
):
    s = sessions([record(0, 0, 0, 100, 200), record(0, 1, 700, 720, 1000)], [2])
    assert (s.session.median, s.session_busy.median) == (1000.0, 500.0)
    assert (s.first_turn_ttft.median, s.later_turn_ttft.median) == (100.0, 20.0)
    assert (s.first_turn_e2el.median, s.later_turn_e2el.median) == (200.0, 300.0)
    assert (s.throughput, s.turn_throughput, s.turns_mean) == (0.1, 0.2, 2.0)
    assert [(t.turn, t.completed, t.input_tokens_mean, t.ttft.median) for t in s.turns] == [
        (1, 1, 10.0, 100.0), (2, 1, 20.0, 20.0)
    ]  # fmt: skip


def test_parallel_branches_count_their_common_time_once() -> None:
    branches = [
        record(0, 0, 0, 10, 100),
        record(0, 1, 100, 110, 400),
        record(0, 1, 150, 160, 300),
    ]
    last = record(0, 2, 500, 510, 600)
    s = sessions([*branches, last, record(1, 0, 5000, 5010, 5100)], [4, 1])
    assert s.session.count == 2
    assert (s.session.mean, s.session_busy.mean) == ((600 + 100) / 2, (500 + 100) / 2)


def test_each_session_is_completed_failed_cancelled_or_unfinished() -> None:
    done = [record(0, 0, 0, 10, 20), record(0, 1, 30, 40, 50)]
    failed = [record(1, 0, 0, 10, 20), record(1, 1, 30, 40, 50, error="http_500")]
    cancelled = [record(2, 0, 0, 10, 20, error="cancelled")]
    cut = [record(3, 0, 0, 10, 20, error="interrupted")]
    silent = [record(4, 0, 0, 10, 20)]  # the time was up before its second request
    s = sessions([*cancelled, *silent, *failed, *done, *cut], [2] * 5)
    assert (s.begun, s.completed, s.failed, s.cancelled, s.unfinished) == (5, 1, 1, 1, 2)
    assert s.session.count == 1


def test_later_rounds_have_the_sizes_of_the_first() -> None:
    s = sessions(
        [record(3, 0, 0, 10, 20), record(4, 0, 0, 10, 20), record(4, 1, 30, 40, 50)],
        [1, 2, 2],
    )
    assert (s.completed, s.unfinished) == (2, 0)


def test_a_chunk_that_was_read_late_gives_bounds() -> None:
    late = record(0, 1, 700, 720, 1000, unseen=[1], unseen_since_ns=[800 * MS])
    s = sessions([record(0, 0, 0, 100, 200), late], [2])
    assert s.session.median is None and s.session.bounds["median"] == (800.0, 1000.0)
    assert s.session_busy.bounds["median"] == (300.0, 500.0)


def test_cancelled_requests_are_neither_completed_nor_failed() -> None:
    s = summed(
        [
            record(0, 0, 0, 10, 20),
            record(1, 0, 0, 10, 20, error="cancelled"),
            record(2, 0, 0, 1, 2, error="cut"),
        ]
    )
    assert (s.completed, s.failed, s.cancelled, s.failures) == (1, 1, 1, {"cut": 1})
    assert s.total_output_tokens == 2 and s.request_throughput == 0.1
    assert s.cancelling is not None
    assert (s.cancelling.received_tokens, s.cancelling.delivered_tokens) == (2, 6)


def test_each_class_is_judged_by_its_own_limits() -> None:
    quick = TrafficClass("random", goodput_ms={"ttft": 50.0})
    work = WorkloadSpec("mix", classes={"quick": quick, "bulk": TrafficClass("random")})
    trial = msgspec.structs.replace(TRIAL, workload=work, goodput_ms={"ttft": 1000.0})
    records = [record(i, 0, 0, 40 + 20 * (i % 2), 100, group="quick") for i in range(4)]
    records += [
        record(9, 0, 0, 500, 600, group="bulk"),
        record(8, 0, 0, 5, 6, group="bulk", error="http_500"),
    ]
    bulk, fast = summed(records, trial=trial).classes
    assert (fast.name, fast.completed, fast.goodput) == ("quick", 4, 0.2)
    assert (bulk.name, bulk.sent, bulk.completed, bulk.failed, bulk.goodput) == (
        "bulk",
        2,
        1,
        1,
        0.1,
    )
    assert (fast.ttft.mean, bulk.ttft.mean) == (50.0, 500.0)


# ---- prefix reuse, of texts and times ----


def reuse(
    requests: Sequence[Turn],
    times: Sequence[tuple[float, float, float]],
    answers: Answers = "server",
    **fields: Any,
) -> ReuseSummary:
    """`times`: sent, first token, end; of each request."""
    stored = [
        msgspec.json.decode(msgspec.json.encode(r), type=StoredRequest) for r in requests
    ]
    tally = ReuseTally(stored, answers)
    for i, (sent, first, end) in enumerate(times):
        r = record(0, 0, sent, first, end, text="an answer of a few words " * 8, **fields)
        r.index, r.prompt_tokens_planned = i, requests[i].prompt_tokens
        tally.add(r)
    return tally.summary(stored)


# 1,248 characters
SYSTEM = (
    "You are a system prompt that all requests share, and here are its many words. " * 16
)


def test_a_prompt_that_was_answered_before_can_be_reused_and_one_that_is_still_open_perhaps() -> (
    None
):
    turns = [
        Turn(SYSTEM + f"question {i}: {'xyz'[i] * 200}", 400, 4, session=i)
        for i in range(3)
    ]
    s = reuse(turns, [(0, 10, 20), (5, 15, 25), (30, 40, 50)])
    shared = int(400 * 1248 / 1470) // 16 * 16
    assert abs(s.possible_tokens - shared) <= 16 and s.own_tokens == 0
    assert s.most_tokens == 2 * s.possible_tokens and s.prompt_tokens == 1200


def test_a_conversation_reuses_its_history_with_the_servers_answer_but_not_with_a_recorded_one() -> (
    None
):
    first = Turn("a" * 800, 200, 50)
    second = Turn("b" * 800, 450, 50, after=[0], history=0)
    times = [(0.0, 10.0, 20.0), (30.0, 40.0, 50.0)]
    own = reuse([first, second], times)
    thought = reuse([first, second], times, reasoning=True)
    recorded = reuse(
        [first, msgspec.structs.replace(second, prompt_tokens=400)],
        times,
        answers="recorded",
    )
    assert own.possible_tokens == own.own_tokens == 240  # of 1,017 characters
    assert thought.possible_tokens == recorded.possible_tokens == 192  # of 806


def test_prompts_that_differ_at_their_start_share_nothing() -> None:
    turns = [Turn(f"{i:016d} " + SYSTEM, 400, 4, session=i) for i in range(3)]
    assert reuse(turns, [(0, 1, 2), (3, 4, 5), (6, 7, 8)]).most_tokens == 0


def test_token_ids_and_adapters_are_part_of_the_prefix() -> None:
    ids = [Turn(list(range(500)), 500, 4, session=i) for i in range(2)]
    assert reuse(ids, [(0, 1, 2), (3, 4, 5)]).possible_tokens == 496
    adapters = [
        Turn(SYSTEM, 400, 4, session=i, body={"model": f"adapter-{i}"}) for i in range(2)
    ]
    assert reuse(adapters, [(0, 1, 2), (3, 4, 5)]).most_tokens == 0


# ---- real runs ----

Measure = Callable[..., Outcome]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure]:
    """`measure(url, turns, load)`: a trial with these requests."""

    def run(
        url: str, turns: Sequence[Turn], load: LoadSpec | None = None, **fields: Any
    ) -> Outcome:
        by_hand = Dataset(
            name="by-hand", about="", make=lambda spec, tokenizer: iter(turns)
        )
        monkeypatch.setitem(DATASETS.own, "by-hand", by_hand)
        target = TargetSpec(url, "openai-chat", PROTOCOLS["openai-chat"].path, "fake")
        work = WorkloadSpec("by-hand", num_prompts=len(turns), **fields.pop("work", {}))
        trial = TrialSpec(
            target, work, load or LoadSpec(max_concurrency=4), ignore_eos=True, **fields
        )
        return conducting.serve(trial, runs=tmp_path, headers={})

    yield run


def long_chat(users: int, turns: int) -> list[Turn]:
    """Each turn has 40 words of its own."""
    texts = [t.prompt for t in chat(users, turns)]
    words = [
        f"{text} " + " ".join(f"w{i}x{k}" for k in range(34))
        for i, text in enumerate(texts)
    ]
    return [
        msgspec.structs.replace(
            t, prompt=words[i], prompt_tokens=(40 + 8) * (i % turns + 1), output_tokens=8
        )
        for i, t in enumerate(chat(users, turns))
    ]


def codes(outcome: Outcome) -> list[str]:
    return [f.code for f in outcome.result.findings]


def test_the_reuse_that_a_conversation_allows_is_what_a_prefix_cache_reports(
    fake: StartFake, measure: Measure
) -> None:
    outcome = measure(fake(prefix_cache=True).base_url, long_chat(12, 5))
    s = outcome.result.served
    assert s.reuse is not None and s.cached_input_tokens is not None
    assert s.reuse.prompt_tokens == s.total_input_tokens
    assert s.reuse.possible_share > 0.5
    assert abs(s.cached_input_tokens / s.reuse.possible_tokens - 1) < 0.1
    assert not [c for c in codes(outcome) if c.startswith("cache.")]


def test_a_server_without_a_cache_misses_the_reuse(
    fake: StartFake, measure: Measure
) -> None:
    # A running server that says nothing of it: there is nothing to compare with.
    silent = measure(fake().base_url, long_chat(8, 4))
    assert (
        silent.result.served.cached_input_tokens is None
        and "cache.reuse_missed" not in codes(silent)
    )
    for on in (True, False):
        spec = EngineSpec("fake", prefix_caching=on, args=["first_ms=5", "gap_ms=1"])
        outcome = measure("", long_chat(8, 4), engine=spec)
        found = [f.text for f in outcome.result.findings if f.code.startswith("cache.")]
        assert (found == []) == on
    assert found[0].endswith("of the prompt tokens, but prefix caching is off.")


def test_a_session_that_fails_in_the_middle_is_counted_and_found(
    fake: StartFake, measure: Measure
) -> None:
    outcome = measure(fake(faults={"500": 7}).base_url, chat(6, 4), correctness_check=False)
    s = outcome.result.served
    assert s.sessions is not None
    assert s.completed + s.failed + s.cancelled + s.skipped == s.planned == 24
    assert s.sessions.completed + s.sessions.failed == s.sessions.begun == 6
    assert s.skipped > 0 and s.sessions.failed > 0
    found = next(f for f in outcome.result.findings if f.code == "requests.skipped")
    assert (
        found.text
        == f"{s.skipped} requests were not sent because an earlier request of their session failed."
    )


def test_figures_of_sessions_and_classes_are_in_every_output(
    fake: StartFake, measure: Measure, tmp_path: Path
) -> None:
    turns = [msgspec.structs.replace(t, group="ab"[t.session % 2]) for t in long_chat(6, 3)]
    outcome = measure(fake(prefix_cache=True).base_url, turns)
    s = outcome.result.served
    assert s.sessions is not None and s.sessions.completed == 6
    shown = block(outcome.result, outcome.manifest.trial, ["ttft", "tpot", "itl", "e2el"])
    for word in ("Sessions", "Session throughput (sessions/s):", "Later-turn TTFT, p50 (ms):", "Traffic Classes",
                 "Prefix reuse, possible:", "reported by the server:"):  # fmt: skip
        assert word in shown
    row = read_row(outcome.run)
    written = json.loads(
        json.dumps(result_json.build(outcome.result, outcome.manifest, row))
    )["dyno"]
    assert written["sessions"]["completed"] == 6 and len(written["sessions"]["turns"]) == 3
    assert written["sessions"]["p99_session_ms"] == s.sessions.session.percentiles["99"]
    assert [c["name"] for c in written["classes"]] == ["a", "b"]
    assert sum(c["completed"] for c in written["classes"]) == s.completed == 18
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result_json.build(outcome.result, outcome.manifest, row)))
    (read,) = imported("result.json", path.read_bytes()).rows
    own = {
        n: f.value
        for n, f in row.figures.items()
        if "session" in n or "turn" in n or "reuse" in n
    }
    assert {n: f.value for n, f in read.figures.items() if n in own} == pytest.approx(
        own
    ) and len(own) > 20
    assert read.setting("num_prompts") == 18
    assert row.get("session_throughput") == s.sessions.throughput
    assert row.get("median_later_turn_ttft_ms") == s.sessions.later_turn_ttft.median
    query = "select sessions_completed, p99_session_ms, mean_first_turn_ttft_ms, reuse_possible_tokens from trials"
    assert list(RunTables(tmp_path).ask(query).rows) == [
        (
            6,
            s.sessions.session.percentiles["99"],
            s.sessions.first_turn_ttft.mean,
            s.reuse and s.reuse.possible_tokens,
        )
    ]


def test_single_prompts_have_no_session_figures(fake: StartFake, tmp_path: Path) -> None:
    target = TargetSpec(fake().base_url, "openai", "/v1/completions", "fake")
    trial = TrialSpec(
        target,
        WorkloadSpec("random", num_prompts=5, input_len=5, output_len=2),
        LoadSpec(max_concurrency=2),
    )
    s = conducting.serve(trial, runs=tmp_path, headers={}).result.served
    assert (
        s.sessions is None and s.reuse is None and s.classes == [] and s.cancelling is None
    )
