"""Servers that lie, babble or mix up their answers: a failed request or a finding, and never a sound wrong figure."""

import gzip
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from conftest import (
    STREAM_HEAD,
    Scripted,
    answer,
    chunked,
    drive,
    receive_request,
    requests,
    tokens,
)
from dyno.cli.main import main
from dyno.facts.load import LoadSpec
from dyno.load import decoder

Serve = Callable[..., Scripted]
Answer = Callable[[int], bytes]  # of the request with that number, from 0 on
COUNT, LENGTH = 10, 8


def serving(scripted: Serve, each: Answer) -> Scripted:
    """Lists a model, and answers the completions one after the other."""
    lock, number = threading.Lock(), 0

    def talk(sock: Any, _: int) -> None:
        nonlocal number
        while request := receive_head(sock):
            if request.startswith(b"POST /v1/completions"):
                with lock:
                    mine, number = number, number + 1
                sock.sendall(each(mine))
            elif request.startswith(b"GET /v1/models"):
                sock.sendall(plain(200, b'{"data":[{"id":"fake"}]}'))
            else:
                sock.sendall(plain(404, b"{}"))

    return scripted(talk)


def receive_head(sock: Any) -> bytes:
    """A request's head, once its body has come too; b"" where the client closed instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := sock.recv(65536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    while len(body) < int(length or 0):
        body += sock.recv(65536)
    return head


def plain(status: int, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (
            status,
            len(body),
            body,
        )
    )


def claiming(output: object, prompt: object = 20, length: int = LENGTH) -> bytes:
    """An honest answer but for its usage."""
    usage = json.dumps(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
    )
    events = tokens(length)
    return STREAM_HEAD + chunked(*events[:-2], f"data: {usage}\n\n".encode(), events[-1])


class Bench:
    """`dyno bench serve`, and what came of it."""

    def __init__(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._runs, self._capsys = runs, capsys

    def __call__(self, server: Scripted, *more: str) -> dict[str, Any]:
        words = [
            "bench",
            "serve",
            "--base-url",
            server.base_url,
            "--num-prompts",
            str(COUNT),
            "--max-concurrency",
            "1",
        ]
        words += [
            "--random-input-len",
            "20",
            "--random-output-len",
            str(LENGTH),
            "--runs",
            str(self._runs),
        ]
        main(
            [
                *words,
                "--disable-tqdm",
                "--json",
                "--ready-check-timeout-sec",
                "0",
                "--no-correctness-check",
                *more,
            ]
        )
        found: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return found

    def runs(self) -> list[Path]:
        return sorted(self._runs.iterdir())


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path / "runs", capsys)


def codes(result: dict[str, Any]) -> dict[str, str]:
    return {f["code"]: f["level"] for f in result["dyno"]["findings"]}


# ---- counts ----


@pytest.mark.parametrize(
    "claim", [320_000, 2**32, 10**8, 10**18, 10**300, -5, -(10**30), 2 * LENGTH]
)
def test_a_count_that_cant_be_is_replaced_by_dynos_own(
    scripted: Serve, bench: Bench, claim: int
) -> None:
    result = bench(serving(scripted, lambda _: claiming(claim)))
    assert (result["completed"], result["total_output_tokens"]) == (COUNT, COUNT * LENGTH)
    assert codes(result)["tokens.impossible"] == "doubt"
    [text] = [
        f["text"] for f in result["dyno"]["findings"] if f["code"] == "tokens.impossible"
    ]
    assert f"dyno counted {COUNT * LENGTH} " in text
    assert result["dyno"]["verdict"] != "sound"


def test_one_false_count_among_many_touches_no_other(scripted: Serve, bench: Bench) -> None:
    result = bench(serving(scripted, lambda n: claiming(10**18 if n == 3 else LENGTH)))
    assert (result["completed"], result["total_output_tokens"]) == (COUNT, COUNT * LENGTH)
    assert result["dyno"]["tokens_by"] == {"usage": COUNT - 1, "chunks": 1}


def test_a_server_that_sends_more_than_asked_is_believed_and_doubted(
    scripted: Serve, bench: Bench
) -> None:
    result = bench(serving(scripted, lambda _: answer(3 * LENGTH)))
    assert result["total_output_tokens"] == COUNT * 3 * LENGTH
    assert codes(result)[
        "tokens.output_long"
    ] == "doubt" and "tokens.impossible" not in codes(result)


def test_more_tokens_than_the_text_can_hold_are_a_doubt(
    scripted: Serve, bench: Bench
) -> None:
    result = bench(
        serving(scripted, lambda _: claiming(200, length=2)), "--random-output-len", "200"
    )
    assert result["total_output_tokens"] == COUNT * 200
    assert codes(result)["tokens.miscounted"] == "doubt"


@pytest.mark.parametrize("claim", [-1, 10**18, 10**30])
def test_a_false_count_of_the_prompt_is_replaced_too(
    scripted: Serve, bench: Bench, claim: int
) -> None:
    result = bench(serving(scripted, lambda _: claiming(LENGTH, prompt=claim)))
    assert 0 < result["total_input_tokens"] < COUNT * 40
    assert codes(result)["tokens.impossible"] == "doubt"


# ---- one bad answer ----

DEEP = b"[" * 100_000
POISON = {
    "nested": STREAM_HEAD + chunked(b'data: {"error":' + DEEP + b"\n\n"),
    "nested in a tool call": STREAM_HEAD
    + chunked(b'data: {"choices":[{"delta":{"tool_calls":[' + DEEP + b"\n\n"),
    "continued without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    "a length and chunks": STREAM_HEAD[:-2]
    + b"content-length: 5\r\n\r\n"
    + chunked(*tokens(LENGTH)),
    "not text": STREAM_HEAD + chunked(b"data: \xff\xfe\x00\n\n"),
    "half a character": STREAM_HEAD
    + chunked(b'data: {"choices":[{"text":"\\ud800"}]}\n\n'),
    "a chunk too long": STREAM_HEAD + b"5\r\nabcdefgh\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", POISON)
def test_a_poisoned_answer_is_one_failed_request(
    scripted: Serve, bench: Bench, kind: str
) -> None:
    result = bench(serving(scripted, lambda n: POISON[kind] if n == 4 else answer(LENGTH)))
    assert (result["completed"], result["failed"]) == (COUNT - 1, 1)
    [run] = bench.runs()
    kinds = [
        json.loads(line)["error"]
        for line in (run / "records.jsonl").read_text().splitlines()
    ]
    assert sorted(kinds, key=str) == [None] * (COUNT - 1) + ["garbage"]
    assert main(["runs", "show", str(run)]) == 0


def test_a_study_continues_past_poisoned_answers(scripted: Serve, tmp_path: Path) -> None:
    server = serving(
        scripted, lambda n: POISON["nested"] if n in (2, 3, 4) else claiming(10**18)
    )
    (tmp_path / "s.toml").write_text(
        f'name = "s"\n[engines.a]\nkind = "openai"\nbase_url = "{server.base_url}"\n'
        "[workloads.w]\ninput_len = 20\noutput_len = 8\n[loads.l]\nmax_concurrency = [1, 2]\nnum_prompts = 10\n"
        "[trial]\ncorrectness_check = false\n"
    )
    words = [
        "run",
        str(tmp_path / "s.toml"),
        "--runs",
        str(tmp_path / "runs"),
        "--no-report",
    ]
    assert main(words) == 0
    summaries = list((tmp_path / "runs").rglob("summary.json"))
    assert sorted(json.loads(s.read_text())["summary"]["completed"] for s in summaries) == [
        7,
        10,
    ]


# ---- whose answer is it? ----


def test_two_answers_for_each_request_void_the_run(scripted: Serve, bench: Bench) -> None:
    result = bench(serving(scripted, lambda _: answer(LENGTH) * 2))
    assert result["completed"] == 0 and codes(result)["requests.unasked"] == "doubt"
    assert result["dyno"]["verdict"] == "void"


def test_a_second_answer_that_comes_later_is_found_too(
    scripted: Serve, bench: Bench
) -> None:
    def talk(sock: Any, _: int) -> None:
        while request := receive_head(sock):
            if not request.startswith(b"POST /v1/completions"):
                sock.sendall(plain(200, b'{"data":[{"id":"fake"}]}'))
                continue
            time.sleep(0.02)
            sock.sendall(answer(LENGTH))
            time.sleep(0.005)
            sock.sendall(answer(LENGTH))

    result = bench(scripted(talk))
    assert result["completed"] == 0 and result["dyno"]["verdict"] == "void"


def test_bytes_without_a_request_put_the_answers_of_one_connection_in_doubt(
    scripted: Serve,
) -> None:
    seen = threading.Semaphore(0)

    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            sock.sendall(answer(2))
            if number == 1:
                seen.acquire(timeout=30)
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            else:
                seen.release()

    errors = {
        r.error
        for r in drive(
            scripted(talk).base_url, requests(6), LoadSpec(max_concurrency=2)
        ).records
    }
    # the last: another request met them
    assert {None, "unasked"} <= errors <= {None, "unasked", "not_a_stream"}


@pytest.mark.parametrize("tail", [b"\r\n", b"\r\n\r\n"])
def test_a_line_end_too_many_is_not_an_answer(scripted: Serve, tail: bytes) -> None:
    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(answer(2) + tail)

    assert [r.error for r in drive(scripted(talk).base_url, requests(6)).records] == [
        None
    ] * 6


def test_a_408_on_an_idle_connection_is_how_some_close_it(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        if receive_request(sock):
            sock.sendall(
                answer(2) + b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n"
            )

    assert [r.error for r in drive(scripted(talk).base_url, requests(4)).records] == [
        None
    ] * 4


@pytest.mark.parametrize("more", [b"", b"data: more\n\n"])
def test_a_content_length_is_where_an_answer_ends(scripted: Serve, more: bytes) -> None:
    body = b"".join(tokens(3))
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )

    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            sock.sendall(head + body + more)

    [record] = drive(scripted(talk).base_url, requests(1)).records
    assert (record.error, len(record.chunk_ns)) == ("unasked" if more else None, 3)


def test_an_answer_shorter_than_its_content_length_is_cut(scripted: Serve) -> None:
    body = b"".join(tokens(3)[:-1])
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % (len(body) + 10)
    )

    def talk(sock: Any, _: int) -> None:
        if receive_request(sock):
            sock.sendall(head + body[: body.rindex(b"data:") - 100])

    assert [r.error for r in drive(scripted(talk).base_url, requests(1)).records] == ["cut"]


# ---- size and form ----


@pytest.mark.parametrize(
    "head", [STREAM_HEAD, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"]
)
def test_an_endless_answer_fails_at_the_limit(
    scripted: Serve, bench: Bench, head: bytes
) -> None:
    block = tokens(1)[0] * 100
    block = b"%x\r\n%s\r\n" % (len(block), block) if head is STREAM_HEAD else block
    sent = []

    def talk(sock: Any, _: int) -> None:
        while request := receive_head(sock):
            if not request.startswith(b"POST /v1/completions"):
                sock.sendall(plain(200, b'{"data":[{"id":"fake"}]}'))
                continue
            sent.append(0)
            sock.sendall(head)
            while True:  # until the client closes
                sock.sendall(block)
                sent[-1] += len(block)

    result = bench(
        scripted(talk), "--num-prompts", "3", "--max-response-bytes", "200000", "--keep-raw"
    )
    assert (result["completed"], result["failed"]) == (0, 3)
    [run] = bench.runs()
    records = [
        json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()
    ]
    assert [r["error"] for r in records] == ["too_large"] * 3
    assert (run / "exchanges.spool").stat().st_size < 3 * 300_000


def test_a_byte_order_mark_costs_no_token(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            first, *others = tokens(4)
            sock.sendall(STREAM_HEAD + chunked(b"\xef\xbb\xbf" + first, *others))

    [record] = drive(scripted(talk).base_url, requests(1)).records
    assert (record.error, len(record.chunk_ns), record.output_tokens) == (None, 4, 4)


def test_an_encoded_answer_is_refused_by_name(scripted: Serve, bench: Bench) -> None:
    body = gzip.compress(b"".join(tokens(LENGTH)))
    asked = []

    def talk(sock: Any, _: int) -> None:
        while request := receive_head(sock):
            if not request.startswith(b"POST /v1/completions"):
                sock.sendall(plain(200, b'{"data":[{"id":"fake"}]}'))
                continue
            asked.append(b"accept-encoding: identity" in request)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            sock.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)

    result = bench(scripted(talk))
    assert all(asked) and len(asked) >= COUNT
    assert result["dyno"]["failures"] == {"encoded": COUNT}
    [run] = bench.runs()
    assert (
        "gzip"
        in json.loads((run / "records.jsonl").read_text().splitlines()[0])["error_detail"]
    )


@pytest.mark.parametrize(
    "junk",
    [
        b"\x15\x03\x03\x00\x02\x02\x50",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\x17\x03\x03\xff\xff" * 9,
    ],
)
@pytest.mark.parametrize("when", ["instead of an answer", "after one"])
def test_bytes_that_are_not_tls_fail_one_request(
    scripted: Serve, junk: bytes, when: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    spoiled = threading.Event()

    def talk(sock: Any, _: int) -> None:
        while receive_request(sock):
            bad = not spoiled.is_set()
            if not bad or when == "after one":
                sock.sendall(answer(2))
            if bad:
                spoiled.set()
                os.write(sock.fileno(), junk)
                return

    server = scripted(talk, wrap=lambda sock: context.wrap_socket(sock, server_side=True))
    errors = [r.error for r in drive(server.base_url, requests(4), insecure=True).records]
    # the junk after an answer may meet the next request, or none
    assert sum(e is None for e in errors) >= 3
    assert {e for e in errors if e} <= {"tls", "cut", "reset"}


# ---- dyno's own mistakes ----


def test_a_trial_that_cant_be_summed_up_is_failed_and_the_study_continues(
    scripted: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serving(scripted, lambda _: answer(LENGTH))
    study = tmp_path / "s.toml"
    study.write_text(
        f'name = "s"\n[engines.a]\nkind = "openai"\nbase_url = "{server.base_url}"\n'
        "[workloads.w]\ninput_len = 20\noutput_len = 8\n[loads.l]\nmax_concurrency = [1, 2]\nnum_prompts = 10\n"
    )
    words = ["run", str(study), "--runs", str(tmp_path / "runs"), "--no-report"]
    real, poisoned = decoder.SpoolRecords, []

    def records(source: decoder.SpoolSource) -> Any:
        spool = Path(source.path)
        if spool.name == "exchanges.spool" and (not poisoned or spool in poisoned):
            poisoned.append(spool)
            raise MemoryError("14 GiB")
        return real(source)

    monkeypatch.setattr(decoder, "SpoolRecords", records)
    assert main(words) == 1
    said = capsys.readouterr()
    assert "can't calculate its result (MemoryError: 14 GiB)" in said.out + said.err
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 1
    assert main(["runs", "show", str(poisoned[0].parent)]) == 1
    assert "can't calculate its result" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(words) == 0  # what failed is run again
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2
