"""Every oddity that a stream can have is read rightly, over a real socket. One token is ' tok' (fake engine)."""

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conftest import (
    STREAM_HEAD,
    Scripted,
    StartFake,
    chunked,
    drive,
    receive_request,
    requests,
)
from dyno.cli.main import main
from dyno.engines.fake import FAULTS, FakeSpec, changed, parse_faults
from dyno.errors import UsageError
from dyno.facts.load import LoadSpec
from dyno.facts.record import Record
from dyno.load.protocols import PROTOCOLS
from dyno.measure import timing

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

OPENAI = ("openai", "openai-chat")
ALL = (*OPENAI, "tgi")
CAPTURES = Path(__file__).parents[1] / "captures"


def ask(
    fake: StartFake, fault: str | None, backend: str, tokens: int = 8, **options: float
) -> Record:
    server = fake(faults={fault: 1} if fault else {})
    (record,) = drive(
        server.base_url, requests(1, tokens), backend=backend, **options
    ).records
    return record


def completed(record: Record, text: str | None = None, tokens: int = 8) -> None:
    assert (record.error, record.error_detail) == (None, "")
    assert record.status == 200
    assert record.text == (" tok" * tokens if text is None else text)
    assert record.output_tokens == tokens and record.tokens_by == "usage"
    assert record.prompt_tokens == 3


def in_order(record: Record) -> None:
    assert 0 <= record.due_ns <= record.sent_ns < record.chunk_ns[0]
    assert record.chunk_ns == sorted(record.chunk_ns)
    assert record.chunk_ns[-1] <= record.end_ns


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "tgi", "sglang"])
def test_a_server_that_streams_where_one_piece_was_asked_for_is_a_failure_and_no_bug(
    scripted: Callable[..., Scripted],
    backend: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk(sock: Any, number: int) -> None:
        while head := sock.recv(1 << 16):
            if head.startswith(b"GET"):
                sock.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            events = b'data: {"text": "a"}\n\n', b"data: [DONE]\n\n"
            sock.sendall(STREAM_HEAD + chunked(*events))

    words = ["bench", "serve", "--base-url", scripted(talk).base_url, "--model", "m"]
    words += [
        "--num-prompts",
        "2",
        "--max-concurrency",
        "1",
        "--ready-check-timeout-sec",
        "0",
    ]
    words += ["--random-input-len", "8", "--random-output-len", "4"]
    asked = ["--backend", backend, "--no-streaming"]
    code = main([*words, *asked, "--runs", str(tmp_path)])
    captured = capsys.readouterr()
    assert code == 1 and "bug" not in captured.err
    assert "a_stream" in captured.out


def test_sglangs_text_may_get_shorter_at_a_stop_string() -> None:
    """Its events have the text so far, and the last one without the stop string that it cut off."""
    events = [
        {"text": text, "meta_info": {"completion_tokens": count}, "output_ids": [7] * count}
        for count, text in enumerate(("Hello", "Hello world", "Hello world\n"), 1)
    ]
    events.append({"text": "Hello world", "meta_info": {"completion_tokens": 3}})
    lines = [(i, json.dumps(event).encode()) for i, event in enumerate(events)]
    assert "".join(PROTOCOLS["sglang"].read(lines).texts) == "Hello world\n"


@pytest.mark.parametrize("params", ["null", '"x"', "[1]"])
def test_sglangs_sampling_params_must_be_an_object(
    params: str, shared_fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "serve", "--base-url", shared_fake().base_url, "--backend", "sglang"]
    words += ["--num-prompts", "2", "--extra-body", f'{{"sampling_params": {params}}}']
    assert main([*words, "--runs", str(tmp_path)]) == 2
    assert "sampling_params in --extra-body must be an object" in capsys.readouterr().err


def test_every_fault_of_the_fake_engine_has_a_test_here() -> None:
    tests = Path(__file__).parents[1]
    named = (Path(__file__), tests / "load/test_wire.py", tests / "cli/test_endpoints.py")
    text = "".join(path.read_text() for path in named)
    assert [fault for fault in FAULTS if f'"{fault}"' not in text] == []


@pytest.mark.parametrize("backend", ALL)
def test_a_plain_stream_gives_one_chunk_a_token(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, None, backend)
    completed(record)
    in_order(record)
    assert len(record.chunk_ns) == 8
    assert record.done and record.finish_reason == "length"
    assert record.model == (None if backend == "tgi" else "fake")
    # 5 ms, less what two clocks may differ by
    assert record.chunk_ns[0] - record.sent_ns >= 4_500_000


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize(
    "fault", ["joined", "dribble", "comments", "crlf", "trailer", "slow_headers"]
)
def test_the_way_it_is_cut_and_joined_changes_nothing_of_what_was_written(
    shared_fake: StartFake, fault: str, backend: str
) -> None:
    record = ask(shared_fake, fault, backend)
    completed(record)
    in_order(record)
    assert len(record.chunk_ns) == 8 and record.done and record.finish_reason == "length"


def test_events_of_one_write_arrive_together(shared_fake: StartFake) -> None:
    record = ask(shared_fake, "joined", "openai")
    assert len(record.chunk_ns) == 8 and len(set(record.chunk_ns)) == 1


def test_an_event_in_three_writes_arrives_with_the_third(fake: StartFake) -> None:
    server = fake(faults={"dribble": 1})
    driven = drive(server.base_url, requests(1, 8))
    ((_, *sends),) = server.log()["streams"]
    # the end mark alone is the last event's third write
    thirds = [*sends[2:-1:3], sends[-1]]
    chunks = [t + driven.client.start_ns for t in driven.records[0].chunk_ns]
    slack_ns = 300_000  # between the two clocks' readings
    assert len(sends) == 24 and len(chunks) == 8
    assert all(
        c > third - slack_ns for c, third in zip(chunks[:-1], thirds[:-1], strict=True)
    )
    # Not with the next event either, unless a late client read them together.
    following = zip(pairwise(chunks), thirds[1:], strict=True)
    assert all(c == after or c < third + slack_ns for (c, after), third in following)


@pytest.mark.parametrize("backend", ALL)
def test_a_character_cut_in_two_is_whole_again(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "cut_utf8", backend)
    completed(record, " tok" * 7 + " grüß")
    assert len(record.chunk_ns) == 8


@pytest.mark.parametrize("backend", OPENAI)
def test_four_tokens_in_a_chunk_are_four_tokens(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "bundle", backend)
    completed(record)
    assert len(record.chunk_ns) == 2


@pytest.mark.parametrize("backend", ALL)
def test_a_token_without_text_is_a_token_and_its_gap_counts(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "silent", backend)
    completed(record, " tok" * 4, tokens=8)  # of 8 tokens, one in two says something
    assert len(record.chunk_ns) == 8
    in_order(record)
    tpot = timing.tpot_ns(record)
    assert (
        tpot is not None
        and tpot.low <= (record.chunk_ns[-1] - record.chunk_ns[0]) / 7 <= tpot.high
    )


def test_events_that_the_servers_count_has_no_token_for_are_not_chunks(
    scripted: Callable[..., Scripted],
) -> None:
    choices = [
        {"text": " a"},
        {"text": ""},
        {"text": " b"},
        {"text": ""},
        {"text": "", "finish_reason": "stop"},
    ]
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    events = [
        f"data: {json.dumps(e)}\n\n".encode()
        for e in (*({"choices": [c]} for c in choices), usage)
    ]

    def talk(sock: socket.socket, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + chunked(*events))

    (record,) = drive(scripted(talk).base_url, requests(1, 2)).records
    assert record.error is None
    assert (record.text, len(record.chunk_ns), record.output_tokens) == (" a b", 2, 2)


@pytest.mark.parametrize("backend", OPENAI)
def test_a_missing_done_is_not_a_failure(shared_fake: StartFake, backend: str) -> None:
    record = ask(shared_fake, "no_done", backend)
    completed(record)
    assert not record.done and record.finish_reason == "length"


@pytest.mark.parametrize("backend", OPENAI)
def test_without_usage_no_token_count_is_made_up(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "no_usage", backend)
    assert record.error is None and record.text == " tok" * 8
    assert (
        record.output_tokens is None
        and record.tokens_by is None
        and record.prompt_tokens is None
    )


def test_the_first_token_is_the_first_reasoning_chunk(shared_fake: StartFake) -> None:
    record = ask(shared_fake, "reasoning", "openai-chat")
    completed(record, " hm" * 4 + " tok" * 4)
    assert record.reasoning
    assert len(record.chunk_ns) == 8  # the thoughts are tokens like the others


def test_an_empty_role_chunk_does_not_stop_the_clock(
    scripted: Callable[..., Scripted],
) -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    word = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    wait_s = 0.05

    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + b"%x\r\n%s\r\n" % (len(role), role))
        time.sleep(wait_s)
        sock.sendall(chunked(word, b"data: [DONE]\n\n"))

    (record,) = drive(scripted(talk).base_url, requests(1), backend="openai-chat").records
    assert record.error is None and record.text == "Hi"
    assert record.empty_chunks == 1
    assert record.chunk_ns[0] - record.sent_ns >= wait_s * 1e9


@pytest.mark.parametrize("backend", ALL)
def test_an_answer_of_the_end_token_alone_is_completed_and_has_no_first_token(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "end_at_once", backend)
    completed(record, "", tokens=1)
    assert record.finish_reason == "stop"
    assert (
        timing.ttft_ns(record) is None
        and timing.e2el_ns(record) is None
        and timing.tpot_ns(record) is None
    )
    assert timing.end_at_once(record)


@pytest.mark.parametrize("backend", ALL)
def test_an_answer_of_nothing_is_a_failure(shared_fake: StartFake, backend: str) -> None:
    record = ask(shared_fake, "empty", backend)
    assert record.error == "empty" and record.status == 200
    assert not timing.end_at_once(record)


@pytest.mark.parametrize("backend", ALL)
def test_an_error_inside_the_stream_is_a_failure_with_the_servers_words(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "error", backend)
    assert record.error == "stream_error"
    assert record.error_detail == "the engine ran out of cache blocks"
    assert record.status == 200 and len(record.chunk_ns) == 4


@pytest.mark.parametrize("backend", OPENAI)
def test_an_answer_that_the_server_aborts_is_a_failure(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "abort", backend)
    assert record.error == "aborted" and "finish reason abort" in record.error_detail
    assert record.done and record.finish_reason == "abort" and record.text == " tok"


def reads(scripted: Callable[..., Scripted], backend: str, *events: bytes) -> Record:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + chunked(*(event + b"\n\n" for event in events)))

    (record,) = drive(scripted(talk).base_url, requests(1), backend=backend).records
    return record


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
TEXT = b'data: {"choices":[{"index":0,"text":" tok","finish_reason":%s}]}'
ABORTED = {  # the events of a stream that its server gave up, and what of it the message has
    "vllm": ("openai", [TEXT % b"null", TEXT % b'"abort"', USAGE, b"data: [DONE]"], "reason abort"),
    "vllm, an error": ("openai", [TEXT % b"null", TEXT % b'"error"', b"data: [DONE]"], "reason error"),
    "sglang": (
        "openai",
        [TEXT % b'{"type":"abort","message":"Abort in waiting queue","status_code":null}', b"data: [DONE]"],
        "Abort in waiting queue",
    ),
    "sglang, chat": ("openai-chat", [
        b'data: {"choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":null}]}',
        b'data: {"choices":[{"index":0,"delta":{"content":null},"finish_reason":"abort","matched_stop":null}]}',
        b"data: [DONE]",
    ], "reason abort"),
    "tensorrt-llm": ("openai", [TEXT % b'"cancelled"', b"data: [DONE]"], "reason cancelled"),
    "deepseek": ("openai", [TEXT % b'"insufficient_system_resource"', b"data: [DONE]"], "insufficient"),
    "tgi": ("tgi", [
        b'data:{"index":1,"token":{"text":" tok","special":false},"generated_text":" tok",'
        b'"details":{"finish_reason":"error","generated_tokens":1}}'
    ], "reason error"),
    "llama.cpp": ("llama.cpp", [
        b'data: {"index":0,"content":" tok","tokens":[7],"stop":false}',
        b'data: {"index":0,"content":"","stop":true,"stop_type":"error","tokens_predicted":1}',
    ], "reason error"),
}  # fmt: skip


@pytest.mark.parametrize("name", ABORTED)
def test_each_engines_word_for_giving_up_is_a_failure(
    scripted: Callable[..., Scripted], name: str
) -> None:
    backend, events, words = ABORTED[name]
    record = reads(scripted, backend, *events)
    assert record.error == "aborted" and words in record.error_detail


@pytest.mark.parametrize(
    "reason",
    [b'"content_filter"', b'"repetition"', b'"tool_calls"', b'"length"', b'"stop"'],
)
def test_other_finish_reasons_are_completed(
    scripted: Callable[..., Scripted], reason: bytes
) -> None:
    record = reads(scripted, "openai", TEXT % reason, USAGE, b"data: [DONE]")
    assert record.error is None and record.finish_reason == reason.decode().strip('"')


def test_an_end_mark_without_a_finish_reason_is_completed(
    scripted: Callable[..., Scripted],
) -> None:
    """vLLM's last chunk has null there in some versions."""
    assert reads(scripted, "openai", TEXT % b"null", USAGE, b"data: [DONE]").error is None


@pytest.mark.parametrize("backend", ["openai", "llama.cpp"])
def test_an_error_in_a_field_of_its_own_is_an_error_inside_the_stream(
    scripted: Callable[..., Scripted], backend: str
) -> None:
    """llama.cpp's way until 2025: on OpenAI's routes the regular end mark follows."""
    token = (
        TEXT % b"null"
        if backend == "openai"
        else b'data: {"index":0,"content":" tok","stop":false}'
    )
    error = b'error: {"code":500,"message":"the request exceeds the available context size","type":"server_error"}'
    record = reads(scripted, backend, token, error, b"data: [DONE]")
    assert (record.error, record.error_detail) == (
        "stream_error",
        "the request exceeds the available context size",
    )


@pytest.mark.parametrize("backend", OPENAI)
def test_two_answers_in_one_stream_are_a_failure_and_not_one_fast_answer(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "choices", backend)
    assert record.error == "choices" and "dyno times one per request" in record.error_detail


TWO = {
    "in one event": (
        "openai",
        b'data: {"choices":[{"index":0,"text":" a"},{"index":1,"text":" b"}]}',
    ),
    "the second first": ("openai", b'data: {"choices":[{"index":1,"text":" b"}]}'),
    "llama.cpp": (
        "llama.cpp",
        b'data: {"index":1,"content":" b","tokens":[7],"stop":false}',
    ),
}


@pytest.mark.parametrize("name", TWO)
def test_an_event_of_another_answer_is_noticed(
    scripted: Callable[..., Scripted], name: str
) -> None:
    backend, event = TWO[name]
    assert reads(scripted, backend, event, b"data: [DONE]").error == "choices"


@pytest.mark.parametrize("backend", ALL)
def test_an_event_that_is_not_json_is_a_failure_that_shows_it(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "garbage", backend)
    assert record.error == "garbage"
    assert "{'not': json" in record.error_detail


@pytest.mark.parametrize("backend", ALL)
def test_one_object_instead_of_a_stream_is_a_failure(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "not_a_stream", backend)
    assert record.error == "not_a_stream"
    assert (
        "application/json" in record.error_detail and "all at once" in record.error_detail
    )


@pytest.mark.parametrize(
    ("backend", "status"),
    [(b, s) for b in ALL for s in ("429", "500", "503") if (b, s) != ("tgi", "429")],
)
def test_an_http_error_is_a_failure_of_that_kind(
    shared_fake: StartFake, backend: str, status: str
) -> None:
    record = ask(shared_fake, status, backend)
    assert record.error == f"http_{status}" and record.status == int(status)
    assert f"injected fault: {status}" in record.error_detail
    assert record.chunk_ns == []


def test_tgi_says_that_it_is_overloaded_inside_a_stream_with_status_200(
    shared_fake: StartFake,
) -> None:
    record = ask(shared_fake, "429", "tgi")
    assert (record.error, record.error_detail, record.status) == (
        "stream_error",
        "Model is overloaded",
        200,
    )
    assert record.chunk_ns == []


@pytest.mark.parametrize("backend", ALL)
def test_a_reset_before_any_answer_is_a_failure(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "refuse", backend)
    assert record.error == "reset" and record.status == 0


@pytest.mark.parametrize(("fault", "kind"), [("reset", "reset"), ("cut", "cut")])
@pytest.mark.parametrize("backend", ALL)
def test_a_stream_that_breaks_in_the_middle_is_a_failure(
    shared_fake: StartFake, backend: str, fault: str, kind: str
) -> None:
    record = ask(shared_fake, fault, backend)
    assert record.error == kind and record.status == 200
    assert len(record.chunk_ns) == 4  # what came before is kept


@pytest.mark.parametrize("backend", ALL)
def test_an_answer_cut_after_its_finish_reason_and_before_its_end_is_a_failure(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "cut_at_end", backend)
    assert record.finish_reason == "length" and record.text == " tok" * 8
    assert (
        record.error == "cut" and "before the response was complete" in record.error_detail
    )


FINISHED = [
    b'data: {"choices":[{"index":0,"text":" tok","finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    b"data: [DONE]\n\n",
]
LENGTHS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
)
CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ENDS = {
    "all chunks": (STREAM_HEAD + chunked(*FINISHED), None),
    "no end mark, but the last chunk": (STREAM_HEAD + chunked(*FINISHED[:2]), None),
    "an end mark, but no last chunk": (
        STREAM_HEAD + chunked(*FINISHED)[: -len(b"0\r\n\r\n")],
        "cut",
    ),
    "half of the last chunk": (STREAM_HEAD + chunked(*FINISHED)[:-2], "cut"),
    "the whole length": (LENGTHS % len(b"".join(FINISHED)) + b"".join(FINISHED), None),
    "a byte less than the length": (
        LENGTHS % len(b"".join(FINISHED)) + b"".join(FINISHED)[:-1],
        "cut",
    ),
    "a length, and only the finish reason": (
        LENGTHS % len(b"".join(FINISHED)) + FINISHED[0],
        "cut",
    ),
    "no length: the close is the end": (CLOSED + b"".join(FINISHED[:2]), None),
}


@pytest.mark.parametrize("name", ENDS)
def test_http_says_whether_a_response_is_complete(
    scripted: Callable[..., Scripted], name: str
) -> None:
    response, error = ENDS[name]

    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(response)

    (record,) = drive(scripted(talk).base_url, requests(1)).records
    assert record.finish_reason == "stop" and record.error == error


@pytest.mark.parametrize("where", [b'"ind', b"data", b" tok", b"\n"])
def test_a_stream_that_breaks_inside_an_event_is_cut_and_not_garbage(
    scripted: Callable[..., Scripted], where: bytes
) -> None:
    event = b'data: {"choices":[{"index":0,"text":" tok"}]}\n\n'

    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        whole = b"%x\r\n%s\r\n" % (len(event), event)
        sock.sendall(STREAM_HEAD + whole + whole[: whole.index(where) + 2])

    (record,) = drive(scripted(talk).base_url, requests(1)).records
    assert record.error == "cut" and record.text == " tok"


def test_a_stream_that_stalls_is_a_timeout(shared_fake: StartFake) -> None:
    record = ask(shared_fake, "stall", "openai", timeout_s=0.3)
    assert record.error == "timeout" and "0.3 s" in record.error_detail
    assert len(record.chunk_ns) == 4
    assert record.end_ns - record.sent_ns >= 300_000_000


@pytest.mark.parametrize("backend", OPENAI)
def test_another_models_name_is_reported(shared_fake: StartFake, backend: str) -> None:
    record = ask(shared_fake, "other_model", backend)
    completed(record)
    assert record.model == "some-other-model"


@pytest.mark.parametrize("backend", ALL)
def test_an_answer_shorter_than_asked_is_completed_with_its_own_length(
    shared_fake: StartFake, backend: str
) -> None:
    record = ask(shared_fake, "short", backend)
    # TGI counts the end token
    completed(record, " tok" * 4, tokens=5 if backend == "tgi" else 4)
    assert record.output_tokens_wanted == 8 and record.finish_reason == "stop"


@pytest.mark.parametrize("backend", OPENAI)
def test_a_server_that_does_not_notice_leaving_clients_answers_those_that_stay(
    shared_fake: StartFake, backend: str
) -> None:
    completed(ask(shared_fake, "deaf", backend))


@pytest.mark.parametrize("text", ["schema@²", "schema>", "schema@", "reset@0", "reset@2>x"])
def test_a_fault_without_a_whole_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="whole number of requests"):
        parse_faults([text])


def test_a_later_word_replaces_an_earlier_fault_whole() -> None:
    spec = changed(FakeSpec(), ["fault=reset@10>4", "fault=reset@5"])
    assert (spec.faults, spec.busy_faults) == ({"reset": 5}, {})


def test_a_fault_strikes_every_so_many_requests_and_no_other(
    shared_fake: StartFake,
) -> None:
    server = shared_fake(faults={"500": 3})
    records = drive(server.base_url, requests(9)).records
    assert [r.index for r in records if r.error] == [2, 5, 8]


def test_a_refused_request_is_not_sent_again_in_silence(shared_fake: StartFake) -> None:
    """But for one on each slot: the first reset of a kept connection may be a close that the request crossed."""
    server = shared_fake(faults={"refuse": 3})
    records = drive(server.base_url, requests(12)).records
    assert [r.index for r in records if r.error == "reset"] == [4, 7, 10]


def test_a_reset_of_a_connection_opened_ahead_is_a_failure_and_the_request_is_sent_once(
    scripted: Callable[..., Scripted],
) -> None:
    seen = []

    def talk(sock: Any, number: int) -> None:
        if receive_request(sock):
            seen.append(number)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    records = drive(scripted(talk).base_url, requests(5), LoadSpec()).records
    assert [r.error for r in records] == ["reset"] * 5
    assert len(seen) == 5


# ---- streams of real servers ----


def capture(name: str) -> list[bytes]:
    return [line + b"\n\n" for line in (CAPTURES / name).read_bytes().splitlines() if line]


def replay(scripted: Callable[..., Scripted], backend: str, events: list[bytes]) -> Record:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + chunked(*events))

    (record,) = drive(scripted(talk).base_url, requests(1, 8), backend=backend).records
    assert (record.error, record.error_detail) == (None, "")
    return record


def test_vllms_completions_stream(scripted: Callable[..., Scripted]) -> None:
    record = replay(scripted, "vllm", capture("vllm-0.24-completions.sse"))
    assert record.text == " w17ud w163" * 4
    assert record.chunk_tokens == [1] * 8  # it was asked for a usage in each chunk
    assert (record.prompt_tokens, record.output_tokens) == (64, 8)
    assert record.finish_reason == "length" and record.done and record.model == "llama8b"
    assert record.empty_chunks == 0


def test_a_usage_in_each_chunk_reports_how_many_tokens_it_carries(
    scripted: Callable[..., Scripted],
) -> None:
    """As with speculative decoding: the capture with every second event left out."""
    events = capture("vllm-0.24-completions.sse")
    record = replay(scripted, "vllm", [*events[1:8:2], *events[8:]])
    assert record.chunk_tokens == [2, 2, 2, 2]
    assert record.output_tokens == 8


def test_vllms_chat_stream_begins_with_a_role_chunk(
    scripted: Callable[..., Scripted],
) -> None:
    record = replay(scripted, "openai-chat", capture("vllm-0.24-chat.sse"))
    assert record.text == " w2lrc w3" * 3
    assert record.empty_chunks == 1 and len(record.chunk_ns) == 6
    assert (record.prompt_tokens, record.output_tokens) == (3, 6)
    assert record.chunk_tokens is None
    assert record.finish_reason == "length" and record.done and record.model == "llama8b"


def test_llamacpps_native_stream(scripted: Callable[..., Scripted]) -> None:
    event = (
        'data: {"index":0,"content":"%s","tokens":[%s],"stop":false,"id_slot":0,"tokens_predicted":%d,'
        '"tokens_evaluated":9}\n\n'
    )
    last = (
        'data: {"index":0,"content":"","tokens":[],"id_slot":0,"stop":true,"model":"stories.gguf","tokens_predicted":4,'
        '"tokens_evaluated":9,"generation_settings":{"seed":1},"prompt":"<s> a b","has_new_line":false,'
        '"truncated":false,"stop_type":"limit","stopping_word":"","tokens_cached":12,"timings":{"cache_n":2,'
        '"prompt_n":7,"prompt_ms":1.5,"predicted_n":4,"predicted_ms":2.5}}\n\n'
    )
    events = [
        event % (" a", "123", 1),
        event % (" grü", "5,6", 3),
        event % ("ß", "7", 4),
        last,
    ]
    record = replay(scripted, "llama.cpp", [e.encode() for e in events])
    assert record.text == " a grüß"
    assert record.chunk_tokens == [1, 2, 1]
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (9, 2, 4)
    assert (
        record.finish_reason == "length" and record.done and record.model == "stories.gguf"
    )


@pytest.mark.parametrize(
    ("stop_type", "reason"), [("eos", "stop"), ("word", "stop"), ("limit", "length")]
)
def test_llamacpps_reasons_are_reported_in_openais_words(
    scripted: Callable[..., Scripted], stop_type: str, reason: str
) -> None:
    last = f'data: {{"content":" a","stop":true,"stop_type":"{stop_type}","tokens_predicted":1}}\n\n'
    assert replay(scripted, "llama.cpp", [last.encode()]).finish_reason == reason


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        (
            [
                b'data: {"error":{"code":500,"message":"Compute error.","type":"server_error"}}\n\n'
            ],
            "Compute error.",
        ),
        (
            [
                b'data: {"error":"Request failed during generation","error_type":"generation"}\n\n'
            ],
            "Request failed",
        ),
        (
            [b'event: error\ndata: {"error":{"message":"out of memory"}}\n\n'],
            "out of memory",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["openai", "openai-chat", "tgi", "llama.cpp"])
def test_an_error_alone_in_a_stream_is_reported_whatever_its_shape(
    scripted: Callable[..., Scripted], backend: str, events: list[bytes], detail: str
) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.sendall(STREAM_HEAD + chunked(*events))

    (record,) = drive(scripted(talk).base_url, requests(1), backend=backend).records
    assert record.error == "stream_error" and re.search(detail, record.error_detail)


def test_many_streams_at_once_do_not_mix(shared_fake: StartFake) -> None:
    server = shared_fake(faults={"bundle": 5, "dribble": 3, "crlf": 2})
    records = drive(server.base_url, requests(60, 12), LoadSpec(max_concurrency=20)).records
    assert len(records) == 60
    for record in records:
        completed(record, tokens=12)
