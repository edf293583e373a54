"""Reasoning models: the first token and the first token of the answer apart, and the tokens of both."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake, drive, ends_ms
from dyno.cli.main import main
from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts, Record
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS
from dyno.load.protocols.base import StreamReading
from dyno.measure import timing
from dyno.measure.counting import Counting
from dyno.measure.summary import Tally
from dyno.units import NS_PER_MS, NS_PER_S
from dyno.workload.request import Turn
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

MS = NS_PER_MS
TRIAL = TrialSpec(
    target=TargetSpec("http://localhost:8000", "openai-chat", "/v1/chat/completions", "m"),
    workload=WorkloadSpec("random", num_prompts=10),
    load=LoadSpec(max_concurrency=2),
    percentiles=[50.0],
)


def reading(*deltas: dict[str, Any], usage: dict[str, Any] | None = None) -> StreamReading:
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if usage:
        events.append({"choices": [], "usage": usage})
    return PROTOCOLS["openai-chat"].read(
        [(10 * i, json.dumps(e).encode()) for i, e in enumerate(events, 1)]
    )


def thought(text: str) -> dict[str, Any]:
    return {"reasoning_content": text}


def said(text: str) -> dict[str, Any]:
    return {"content": text}


# llama.cpp and SGLang; vLLM
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_an_answer_begins_with_the_first_chunk_that_isnt_reasoning(key: str) -> None:
    got = reading(
        {"role": "assistant", "content": ""},
        {key: "hm"},
        {key: " so", "content": None},
        said("Yes"),
    )
    assert got.answer_chunks() == [False, False, True] and got.answer == "Yes"


@pytest.mark.parametrize(
    ("deltas", "answers", "text"),
    [
        ([said("Hello"), said(" <think>")], None, "Hello <think>"),
        (
            [thought("hm"), {"reasoning_content": "so", "content": "Yes"}],
            [False, True],
            "Yes",
        ),
        (
            [thought("hm"), said("A"), thought("hm"), said("B")],
            [False, True, False, True],
            "AB",
        ),
        (
            [thought("hm"), {"tool_calls": [{"function": {"name": "ls"}}]}],
            [False, True],
            "ls",
        ),
        (
            [said("<think>"), said("hm"), said("</think>"), said("\n\n"), said("Yes")],
            [False] * 4 + [True],
            None,
        ),
        ([said("<th"), said("ink>hm</think> Yes"), said("!")], [False, True, True], None),
        ([said("\n<think>hm"), said(" hm")], [False, False], None),
    ],
)
def test_reasoning_is_known_by_its_field_or_by_the_marks_around_it(
    deltas: list[dict[str, Any]], answers: list[bool] | None, text: str | None
) -> None:
    got = reading(*deltas)
    assert got.answer_chunks() == answers
    assert text is None or got.answer == text


def test_the_servers_count_of_reasoning_tokens_is_read() -> None:
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 6}}
    assert reading(thought("hm"), said("Yes"), usage=usage).reasoning_tokens == 6
    usage["completion_tokens_details"] = {"reasoning_tokens": None}
    assert reading(thought("hm"), said("Yes"), usage=usage).reasoning_tokens is None


def record(chunks: int = 8, **fields: Any) -> Record:
    times = [100 * MS + 10 * MS * i for i in range(chunks)]
    defaults = {
        "output_tokens": chunks,
        "tokens_by": "usage",
        "done": True,
        "chunk_ns": times,
    }
    return Record(0, 0, 0, times[-1] + MS, 4, chunks, **{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"reasoning": True, "answer_from": 6, "reasoning_chunks": 6}, 6),
        ({"reasoning": True, "answer_from": 6, "reasoning_chunks": 6, "reasoning_tokens": 5}, 5),
        ({"reasoning": True, "answer_from": 6, "reasoning_chunks": 6, "reasoning_tokens": 0}, 6),
        ({"reasoning": True, "answer_from": 6, "reasoning_chunks": 6, "reasoning_tokens": 99}, 6),
        ({"reasoning": True, "answer_from": 2, "reasoning_chunks": 2, "chunk_tokens": [4, 4] + [1] * 6,
          "output_tokens": 14}, 8),
        ({"reasoning": True, "answer_from": 4, "reasoning_chunks": 4, "output_tokens": 16}, 8),
        ({"reasoning": True, "reasoning_chunks": 8}, 8),  # cut off before the answer
        ({"reasoning_tokens": 3}, 3),  # not sent as text
    ],
)  # fmt: skip
def test_reasoning_tokens_are_the_servers_count_or_the_share_of_the_chunks(
    fields: dict[str, Any], tokens: int | None
) -> None:
    r = record(**fields)
    r.output_tokens_wanted = 99
    Counting(None, True, False).settle(r)
    assert r.reasoning_tokens == tokens


def test_figures_distinguish_the_first_token_from_the_first_of_the_answer() -> None:
    thinking = record(reasoning=True, answer_from=6, reasoning_chunks=6, reasoning_tokens=6)
    plain, cut = record(), record(reasoning=True, reasoning_chunks=8, reasoning_tokens=8)
    assert timing.ttfo_ns(thinking) == timing.Span(160 * MS, 160 * MS)
    assert timing.ttfo_ns(plain) == timing.ttft_ns(plain) and timing.ttfo_ns(cut) is None
    late = record(
        reasoning=True, answer_from=6, unseen=[5, 6], unseen_since_ns=[120 * MS, 120 * MS]
    )
    assert timing.ttfo_ns(late) == timing.Span(120 * MS, 160 * MS)
    trial = TrialSpec(
        TRIAL.target,
        TRIAL.workload,
        TRIAL.load,
        percentiles=[50.0],
        goodput_ms={"ttfo": 150},
    )
    tally = Tally(trial)
    for r in (thinking, plain, cut):
        tally.add(r)
    s = tally.summary(ClientFacts(0, NS_PER_S, "complete", 3, 3, 0.1, 30, [], True))
    assert (s.latencies["ttfo"].count, s.latencies["ttfo"].mean) == (
        2,
        130.0,
    ) and s.ttft.mean == 100.0
    assert (s.reasoning, s.unanswered, s.reasoning_tokens, s.answer_tokens) == (
        2,
        1,
        14,
        10,
    )
    assert s.goodput == 1.0, (
        "the one without reasoning: an answer that never came met no limit"
    )


def test_a_run_without_reasoning_has_none_of_its_figures() -> None:
    tally = Tally(TRIAL)
    tally.add(record())
    s = tally.summary(ClientFacts(0, NS_PER_S, "complete", 1, 1, 0.1, 10, [], True))
    assert (
        "ttfo" not in s.latencies
        and s.reasoning_tokens is None
        and "ttfo" not in s.latencies
    )


def test_a_stream_with_reasoning_is_measured_to_its_answer(fake: StartFake) -> None:
    (r,) = drive(
        fake(faults={"reasoning": 1}, gap_ms=5.0).base_url,
        [Turn("a b c d", 4, 8)],
        backend="openai-chat",
    ).records
    assert (r.reasoning, r.answer_from, r.reasoning_chunks) == (True, 4, 4)
    answer = timing.ttfo_ns(r)
    assert answer and answer.low == r.chunk_ns[4] - r.sent_ns >= 20 * MS


def test_the_history_holds_answers_without_the_reasoning(fake: StartFake) -> None:
    engine = fake(faults={"reasoning": 1}, bodies=True)
    turns = [Turn("a b c d", 4, 8), Turn("e f g h", 16, 8, after=[0], history=0)]
    drive(engine.base_url, turns, backend="openai-chat")
    answer = engine.log()["bodies"][1]["messages"][1]["content"]
    assert answer and "hm" not in answer


def test_block_result_and_sql_show_reasoning(
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    url = fake(faults={"reasoning": 1}).base_url
    flags = "--backend openai-chat --num-prompts 4 --random-input-len 16 --random-output-len 8 --max-concurrency 2"
    main(
        [
            "bench",
            "serve",
            "--base-url",
            url,
            *flags.split(),
            "--save-result",
            "--result-filename",
            "r.json",
        ]
    )
    block = capsys.readouterr().out
    for line in ("Requests with reasoning:                 4", "Reasoning tokens:                        16",
                 "Answer tokens:                           16", "Mean TTFO (ms):"):  # fmt: skip
        assert line in block
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["reasoning_tokens"] == result["answer_tokens"] == 16
    assert ends_ms(result, "mean_ttfo_ms")[1] > ends_ms(result, "mean_ttft_ms")[0]
    query = (
        "select coalesce(mean_ttfo_ms > mean_ttft_ms, true), t.reasoning_tokens, "
        "sum(r.reasoning_tokens), min(ttfo_ms - ttft_ms) > 0"
    )
    main(
        ["sql", f"{query} from trials t join requests r using (run) group by all", "--csv"]
    )
    assert capsys.readouterr().out.splitlines()[1] == "True,16,16,True"
