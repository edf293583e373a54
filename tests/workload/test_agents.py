"""Agents: recorded sessions whose calls wait for one another and for tools, replayed against the fake engine."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import StartFake, drive
from dyno.errors import WorkloadError
from dyno.facts.load import LoadSpec
from dyno.workload import prompts
from dyno.workload.request import Turn
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

FIXTURES = Path(__file__).parents[1] / "fixtures" / "agents"


class Words:
    """One token a word, as the fake engine counts."""

    name, counted_by = "words", "tokenizer"

    def encode(self, text: str) -> list[int]:
        return [hash(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        raise NotImplementedError

    def count(self, text: str) -> int:
        return len(text.split())


def make(path: Path, **fields: Any) -> Workload:
    return prompts.make(
        WorkloadSpec("agents", path=str(path), **fields), ApproximateTokenizer()
    )


def turns(path: Path, **fields: Any) -> list[Turn]:
    return [r for r in make(path, **fields).requests if isinstance(r, Turn)]


def written(folder: Path, *values: Any) -> Path:
    path = folder / "agents.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def rows(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"conversation_id": "c", "turn": i, **message}
        for i, message in enumerate(messages, 1)
    ]


CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
}


def span(name: str, start: float, end: float, **fields: Any) -> dict[str, Any]:
    messages = fields.pop("messages", [{"role": "user", "content": f"question of {name}"}])
    answer = fields.pop("answer", f"answer of {name}")
    attributes = {
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.text": answer,
    }
    times = {
        k: f"2026-02-25T10:00:{s:09.6f}"
        for k, s in (("start_time", start), ("end_time", end))
    }
    return {"trace_id": "t", "span_id": name, "attributes": attributes, **times, **fields}


# ---- what a file becomes ----


def test_mlperfs_rows_become_sessions_with_tools_waits_and_recorded_answers() -> None:
    work = make(FIXTURES / "mlperf_coding.jsonl")
    requests = [r for r in work.requests if isinstance(r, Turn)]
    assert [r.session for r in requests] == [0] * 4 + [1] * 4
    assert work.answers == "recorded" and work.starts_s is None
    first, second = requests[:2]
    assert [m["role"] for m in first.messages] == ["system", "user"] and first.after == []
    assert [m["role"] for m in second.messages] == ["tool"]
    assert (
        second.after == [0]
        and second.history == 0
        and second.wait_s == pytest.approx(0.36833)
    )
    assert (
        first.answer
        and first.answer["tool_calls"][0]["id"] == second.messages[0]["tool_call_id"]
    )
    assert all(r.body["tools"][0]["function"]["name"] == "bash" for r in requests)
    assert second.prompt_tokens > first.prompt_tokens + first.output_tokens


def test_a_gzipped_file_and_a_folder_of_files_are_read_alike(tmp_path: Path) -> None:
    plain = (FIXTURES / "mlperf_coding.jsonl").read_bytes()
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(plain))
    assert make(folder).sha256 == make(FIXTURES / "mlperf_coding.jsonl").sha256
    assert make(folder / "a.jsonl.gz").sha256 == make(folder).sha256


def test_a_line_of_messages_and_tools_is_a_request_of_its_own(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    line = {
        "messages": [{"role": "user", "content": "When is the concert?"}],
        "tools": tools,
        "subset": "simple",
    }
    requests = turns(written(tmp_path, line, line))
    assert [(r.session, r.after, r.messages, r.body) for r in requests] == [(0, [], [], {"tools": tools}),
                                                                            (1, [], [], {"tools": tools})]  # fmt: skip
    assert {r.output_tokens for r in requests} == {256}
    assert {r.output_tokens for r in turns(written(tmp_path, line), output_len=7)} == {7}


def test_spans_follow_what_had_ended_when_they_began_and_branches_are_parallel() -> None:
    work = make(FIXTURES / "otel_multi_agent_research.json")
    requests = [r for r in work.requests if isinstance(r, Turn)]
    assert [r.after for r in requests[:6]] == [[], [0], [0], [0], [1, 2, 3], [4]]
    assert [r.wait_s for r in requests[:6]] == pytest.approx([0, 0.5, 1.0, 1.5, 1.0, 1.0])
    assert work.starts_s == [0.0] and work.answers == "server"


def test_spans_that_continue_with_a_conversation_hold_its_history() -> None:
    requests = turns(FIXTURES / "otel_parallel_requests.json")
    assert [r.history for r in requests] == [None, 0, 0, 1, 3]
    assert [r.after for r in requests] == [[], [0], [0], [1, 2], [3]]
    assert requests[4].messages == [], "only what is new"


def test_a_span_is_asked_for_no_more_tokens_than_it_had_asked_for(tmp_path: Path) -> None:
    words = {"gen_ai.output.text": "one two three four five six seven eight"}
    asked = {"gen_ai.request.max_tokens": 3}
    used = {"gen_ai.usage.output_tokens": 9}
    spans = [span(f"s{i}", i, i + 0.5) for i in range(4)]
    for one, more in zip(spans, (words | asked, used | asked, words, asked), strict=True):
        one["attributes"] = {
            key: value
            for key, value in one["attributes"].items()
            if "usage" not in key and "max_tokens" not in key and "output" not in key
        } | more
    lengths = [r.output_tokens for r in turns(written(tmp_path, {"spans": spans}))]
    assert lengths[0] == lengths[1] == lengths[3] == 3 and lengths[2] > 3


def test_histories_of_servers_answers_and_of_recorded_ones_are_called_mixed(
    tmp_path: Path,
) -> None:
    spans = [span(f"s{i}", i, i + 0.5) for i in range(3)]
    question = {"role": "user", "content": "Why is the sky blue?"}
    answer = {"role": "assistant", "content": "Because of its air."}
    more = {"role": "user", "content": "And at night?"}
    inputs: list[list[dict[str, str]]] = [
        [question],
        [question, answer, more],
        [question, {**answer, "content": "Because."}, more],  # no span has this answer
    ]
    for one, messages in zip(spans, inputs, strict=True):
        one["attributes"] |= {
            "gen_ai.input.messages": json.dumps(messages),
            "gen_ai.output.messages": json.dumps([answer]),
        }
    work = make(written(tmp_path, {"spans": spans}))
    assert [r.history for r in work.requests if isinstance(r, Turn)] == [None, 0, None]
    assert work.histories == "mixed"
    assert make(written(tmp_path, {"spans": spans[:2]})).histories == "server"
    alone = make(written(tmp_path, {"spans": [spans[2]]}))
    assert alone.histories == "recorded"
    assert make(written(tmp_path, {"spans": [spans[0]]})).histories is None


def test_sub_agents_that_overlap_dont_wait_for_one_another(tmp_path: Path) -> None:
    agents = [
        span("agent-a", 2, 8, parent_span_id="root"),
        span("agent-b", 2, 9, parent_span_id="root"),
    ]
    root = span("root", 0, 20)
    for outer in (root, *agents):
        outer["attributes"] = {}
    trace = [
        root,
        span("plan", 0, 1, parent_span_id="root"),
        *agents,
        span("a1", 2, 3, parent_span_id="agent-a"),
        span("b1", 2.5, 4, parent_span_id="agent-b"),
        span("a2", 5, 8, parent_span_id="agent-a"),
        span("b2", 6, 9, parent_span_id="agent-b"),
        span("join", 10, 12, parent_span_id="root"),
    ]
    requests = turns(written(tmp_path, {"spans": trace}))
    names = [r.prompt.rpartition(" ")[2] for r in requests]
    assert names == ["plan", "a1", "b1", "a2", "b2", "join"]
    assert {n: [names[i] for i in r.after] for n, r in zip(names, requests, strict=True)} == {
        "plan": [], "a1": ["plan"], "b1": ["plan"], "a2": ["a1"], "b2": ["b1"], "join": ["a2", "b2"],
    }  # fmt: skip


def test_otlps_own_form_and_the_conventions_parts_are_read(tmp_path: Path) -> None:
    parts = [
        {"role": "user", "parts": [{"type": "text", "content": "list the files"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "tool_call", "id": "1", "name": "ls", "arguments": {"path": "."}}
            ],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "1", "response": "a b"}],
        },
    ]
    attributes = {"gen_ai.input.messages": parts, "gen_ai.usage.output_tokens": "5"}
    otlp = [{"key": k, "value": {"stringValue": v if isinstance(v, str) else json.dumps(v)}}
            for k, v in attributes.items()]  # fmt: skip
    raw = {
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "2000000000",
    }
    path = written(
        tmp_path,
        {"resourceSpans": [{"scopeSpans": [{"spans": [{**raw, "attributes": otlp}]}]}]},
    )
    (request,) = turns(path)
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1]["tool_calls"][0]["function"] == {
        "name": "ls",
        "arguments": '{"path":"."}',
    }
    assert request.messages[2] == {"role": "tool", "tool_call_id": "1", "content": "a b"}
    assert request.output_tokens == 5


def test_tracelabs_rounds_share_the_prefixes_that_the_cache_split_says() -> None:
    raw = [
        json.loads(line)
        for line in (FIXTURES / "tracelab_rounds.jsonl").read_text().splitlines()
    ]
    spec = WorkloadSpec("agents", path=str(FIXTURES / "tracelab_rounds.jsonl"))
    requests = prompts.make(spec, Words()).requests  # type: ignore[arg-type]
    texts = [r.prompt.split() for r in requests if isinstance(r.prompt, str)]
    assert [r.prompt_tokens for r in requests] == [row["input_tokens_total"] for row in raw]
    for i, row in enumerate(raw):
        if row["round_index"]:
            pairs = enumerate(zip(texts[i - 1], texts[i], strict=False))
            shared = next((k for k, (a, b) in pairs if a != b), len(texts[i - 1]))
            wanted = min(row["prefix_tokens"], len(texts[i - 1]))
            assert wanted <= shared <= wanted + 4, "words after it agree by chance"
    assert [r.wait_s for r in requests[:3] if isinstance(r, Turn)] == pytest.approx(
        [0, 19.291, 12.688]
    )


def test_block_traces_share_blocks_and_their_sub_agents_run_beside_one_another() -> None:
    requests = turns(FIXTURES / "block_trace.json")
    assert [r.prompt_tokens for r in requests] == [40, 32, 32, 48, 70]
    assert [r.after for r in requests] == [[], [0], [0], [1], [2, 3]]
    assert [r.wait_s for r in requests] == pytest.approx([0, 2, 3, 1, 3])
    first, one, two, _, last = (str(r.prompt) for r in requests)
    assert (
        last.startswith(first[: 32 * 4])
        and one[: 16 * 4] == two[: 16 * 4] != one[4 : 17 * 4]
    )
    other = json.loads((FIXTURES / "block_trace.json").read_text()) | {"id": "trace_b"}
    assert other["hash_id_scope"] == "local"


def test_the_same_file_makes_the_same_prompts_again() -> None:
    for name in (
        "block_trace.json",
        "tracelab_rounds.jsonl",
        "otel_parallel_requests.json",
    ):
        assert make(FIXTURES / name).sha256 == make(FIXTURES / name).sha256
        assert len({make(FIXTURES / name, seed=s).sha256 for s in (0, 1)}) == (
            1 if "otel" in name else 2
        )


# ---- against a server ----


def test_the_servers_log_confirms_the_order_of_an_agents_branches(fake: StartFake) -> None:
    engine = fake(bodies=True, first_ms=10.0, gap_ms=2.0)
    requests = turns(FIXTURES / "otel_multi_agent_research.json", output_len=60)
    driven = drive(
        engine.base_url,
        requests,
        LoadSpec(max_concurrency=1, speedup=50),
        backend="openai-chat",
    )
    assert driven.client.outcome == "complete" and not any(r.error for r in driven.records)
    log = engine.log()
    spans = {}
    for body, times in zip(
        log["bodies"], sorted(log["streams"], key=lambda s: s[0]), strict=True
    ):
        last = body["messages"][-1]["content"]
        (number,) = [
            i
            for i, r in enumerate(requests)
            if (r.messages or [{"content": r.prompt}])[-1]["content"] == last
        ]
        spans[number] = times[0], times[-1]
    assert len(spans) == len(requests) == 12
    for i, request in enumerate(requests):
        for parent in request.after:
            assert spans[parent][1] <= spans[i][0], f"{parent} ended before {i} arrived"
    for branches in ([1, 2, 3], [6, 7, 8]):
        assert max(spans[i][0] for i in branches) < min(spans[i][1] for i in branches), (
            "branches overlap"
        )


def test_tool_calls_are_sent_as_tools_and_their_results_as_tool_messages(
    fake: StartFake,
) -> None:
    engine = fake(bodies=True)
    requests = turns(FIXTURES / "mlperf_coding.jsonl", output_len=4)
    drive(
        engine.base_url,
        requests,
        LoadSpec(speedup=100),
        backend="openai-chat",
        answers="recorded",
    )
    bodies = [
        b
        for b in engine.log()["bodies"]
        if "django__django-16899" in json.dumps(b) or b["tools"]
    ]
    longest = max(bodies, key=lambda b: len(b["messages"]))
    assert [m["role"] for m in longest["messages"]] == ["system", "user"] + [
        "assistant",
        "tool",
    ] * 3
    for answer, result in zip(
        longest["messages"][2::2], longest["messages"][3::2], strict=True
    ):
        assert result["tool_call_id"] in [call["id"] for call in answer["tool_calls"]]
    assert all(b["tools"][0]["type"] == "function" for b in bodies) and len(bodies) == 8


def test_speedup_divides_tool_waits(fake: StartFake) -> None:
    requests = [Turn("a b c d", 4, 2), Turn("e f g h", 4, 2, after=[0], wait_s=1.0)]
    first, second = drive(fake().base_url, requests, LoadSpec(speedup=20)).records
    assert second.due_ns - first.end_ns == 50_000_000


# ---- bad input ----


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"spans": [span("a", 0, 1, parent_span_id="b"), span("b", 2, 3, parent_span_id="a")]}],
         "span a: its parents form a cycle: a → b → a"),
        ([{"spans": [span("a", 0, 1, parent_span_id="gone")]}], "span a: its parent gone is not in the file"),
        ([{"spans": [span("a", 2, 1)]}], "span a: it ends 1 s before it starts"),
        ([{"spans": [span("a", 0, 1) | {"end_time": "noon"}]}], "span a: end_time is 'noon'"),
        ([{"spans": [span("a", 0, 1, messages=[])]}], "span a: gen_ai.input.messages is not a list of messages"),
        ([{"spans": [span("a", 0, 1) | {"attributes": {}}]}], "no span has gen_ai.input.messages"),
        (rows({"role": "tool", "tool_results": [{"tool_call_id": "x", "content": "y"}]}), "result for 'x'"),
        (rows({"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [CALL]},
              {"role": "tool", "tool_results": [{"tool_call_id": "call-2", "content": "y"}]}),
         "line 3: a tool's result for 'call-2', but no answer before it makes that call"),
        (rows({"role": "assistant", "content": "hello"}), ": an answer without a message before it"),
        (rows({"role": "user", "content": ""}), ": a user message is empty"),
        (rows({"role": "robot", "content": "x"}), ": a message has the role 'robot'"),
        (rows({"role": "user", "content": "x", "delay_seconds": -1}), ": delay_seconds is -1"),
        ([{"conversation_id": "c", "role": "user"}], ": Object missing required field `turn`"),
        ([*rows({"role": "user", "content": "x"}), *rows({"role": "user", "content": "x"})], "turn 1 follows turn 1"),
        ([{"messages": []}], "the conversation has no message to send"),
        ([{"something": 1}], "not an agent session"),
        ([[1, 2]], "not an agent session"),
        ([{"id": "x", "block_size": 16, "requests": []}], "trace x has no requests"),
        ([{"id": "x", "block_size": 16, "requests": [{"type": "n", "t": 0, "in": 0, "out": 1}]}],
         "Expected `int` >= 1"),
        ([{"session_id": "s", "round_index": 0, "input_tokens_total": 5, "output_tokens": 1, "prefix_tokens": 6}],
         "prefix_tokens (6) is more than input_tokens_total (5)"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_name_and_place(
    tmp_path: Path, values: list[Any], message: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        make(written(tmp_path, *values))
    assert message in str(caught.value) and "agents.jsonl" in str(caught.value)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress((FIXTURES / "mlperf_coding.jsonl").read_bytes())[:-20])
    with pytest.raises(WorkloadError, match="can't be decompressed"):
        make(path)
    with pytest.raises(WorkloadError, match="There is no file"):
        make(tmp_path / "none.jsonl")
    with pytest.raises(WorkloadError, match="has no file that ends in"):
        make(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_server_answers_are_refused_where_tools_answered() -> None:
    with pytest.raises(
        WorkloadError, match="results of tools, which belong to the recorded answers"
    ):
        make(FIXTURES / "mlperf_coding.jsonl", answers="server")


def test_turns_survive_the_way_to_the_processes_that_send_them() -> None:
    requests = turns(FIXTURES / "mlperf_coding.jsonl")
    assert msgspec.json.decode(msgspec.json.encode(requests), type=list[Turn]) == requests
