"""Servers that report their times in forms of their own: TGI in the headers of answers in one piece, SGLang in the
`meta_info` of its own route. Both have one slot, and note what they did."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from dyno.cli.main import main
from dyno.load.protocols import PROTOCOLS, protocol_of

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

PREFILL_S, STEP_S = 0.02, 0.004
REQUESTS, TOKENS = 16, 6


class OneSlot:
    """Works on one request at a time, and notes the true times of all."""

    def __init__(self) -> None:
        self._times: list[dict[str, float]] = []
        self._slot = threading.Lock()
        self.bodies: list[dict[str, Any]] = []

    @property
    def true(self) -> dict[str, float]:
        """Return the ms of each part over all requests of the load. A test request like them comes before, and
        the questions of the correctness check are longer."""
        alike = [t for t in self._times if t["tokens"] == TOKENS]
        of_load = sorted(alike, key=itemgetter("came"))[-REQUESTS:]
        spans = {
            "queue": ("came", "began"),
            "prefill": ("began", "first"),
            "decode": ("first", "last"),
        }
        return {
            name: 1000 * sum(t[end] - t[begin] for t in of_load)
            for name, (begin, end) in spans.items()
        }

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        raise NotImplementedError

    def work(
        self, tokens: int, each: Callable[[int, dict[str, float]], None]
    ) -> dict[str, float]:
        """Call `each` with the number of every token and the times so far. Return the times in seconds."""
        came = time.monotonic()
        with self._slot:
            t = {"tokens": tokens, "came": came, "began": time.monotonic()}
            time.sleep(PREFILL_S)
            t["first"] = t["last"] = time.monotonic()
            for i in range(tokens):
                time.sleep(STEP_S if i else 0)
                t["last"] = time.monotonic()
                each(i, t)
        self._times.append(t)
        return t


def whole_milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


class Tgi(OneSlot):
    """POST /generate: the answer in one piece, its times in its headers."""

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        count = body["parameters"]["max_new_tokens"]
        t = self.work(count, lambda i, so_far: None)
        details = {"finish_reason": "length", "generated_tokens": count}
        times = {
            "X-Queue-Time": t["began"] - t["came"],
            "x-inference-time": t["last"] - t["began"],
            "x-total-time": t["last"] - t["came"],
        }
        headers = {name: f"{int(1000 * value)}" for name, value in times.items()}
        send_json(handler, {"generated_text": " tok" * count, "details": details}, headers)


class SGLang(OneSlot):
    """POST /generate: a stream whose events have the text so far, or the new text alone."""

    def __init__(self, grows: bool, metrics: bool = True) -> None:
        super().__init__()
        self.grows, self.metrics = grows, metrics

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        count = body["sampling_params"]["max_new_tokens"]
        if not body["stream"]:
            t = self.work(count, lambda i, so_far: None)
            send_json(handler, self._event(count - 1, count, t), {})
            return
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()

        def send(i: int, t: dict[str, float]) -> None:
            event = json.dumps(self._event(i, count, t))
            send_chunk(handler, f"data: {event}\n\n")

        self.work(count, send)
        send_chunk(handler, "data: [DONE]\n\n")
        send_chunk(handler, "")

    def _event(self, i: int, count: int, t: dict[str, float]) -> dict[str, Any]:
        done = i + 1 == count
        meta: dict[str, Any] = {
            "id": "a",
            "finish_reason": {"type": "length", "length": count} if done else None,
            "prompt_tokens": 7,
            "completion_tokens": i + 1,
            "cached_tokens": 3,
        }
        if self.metrics:
            meta |= {
                "queue_time": t["began"] - t["came"],
                "forward_entry_time": t["began"],
                "prefill_finished_time": t["first"],
            }
        if done:
            meta["e2e_latency"] = t["last"] - t["came"]
        pieces = [" tok"] * (i + 1) if self.grows else [" tok"]
        return {"text": "".join(pieces), "output_ids": [5] * len(pieces), "meta_info": meta}


def send_chunk(handler: BaseHTTPRequestHandler, text: str) -> None:
    handler.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())


def send_json(
    handler: BaseHTTPRequestHandler, answer: dict[str, Any], headers: dict[str, str]
) -> None:
    data = json.dumps(answer).encode()
    handler.send_response(200)
    about = {"content-type": "application/json", "content-length": str(len(data))}
    for name, value in (about | headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


Start = Callable[[OneSlot], str]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(server)` serves on a port of its own, and returns its URL."""
    with ExitStack() as stack:

        def serve(server: OneSlot) -> str:
            class Handler(BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def do_GET(self) -> None:
                    self.send_error(404)

                def do_POST(self) -> None:
                    data = self.rfile.read(int(self.headers["content-length"]))
                    if self.path != "/generate":
                        self.send_error(404)
                        return
                    body = json.loads(data)
                    server.bodies.append(body)
                    server.answer(self, body)

                def log_message(self, *_: Any) -> None:
                    """Say nothing."""

            http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            http.daemon_threads = True
            stack.callback(http.server_close)
            stack.callback(http.shutdown)
            threading.Thread(target=http.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{http.server_port}"

        yield serve


def explained(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str], *words: str
) -> Any:
    load = (
        f"--max-concurrency 4 --num-prompts {REQUESTS} --random-input-len 7 --disable-tqdm"
    )
    load += f" --random-output-len {TOKENS}"
    port = url.rpartition(":")[2]
    command = ["bench", "serve", "--port", port, *load.split()]
    runs = str(folder / "runs")
    assert main([*command, *words, "--model", "m", "--runs", runs, "--json"]) in (0, 3)
    result = json.loads(capsys.readouterr().out)
    (run,) = [p.parent for p in (folder / "runs").glob("*/trial.json")]
    assert main(["explain", str(run), "--json"]) == 0
    (e,) = json.loads(capsys.readouterr().out)["runs"]
    assert sum(p["total_ns"] for p in e["parts"]) == e["latency_ns"]
    return result, {p["name"]: p for p in e["parts"]}, e


def test_the_headers_of_tgi_split_answers_in_one_piece(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Tgi()
    result, parts, e = explained(
        tmp_path, start(server), capsys, "--backend", "tgi", "--no-streaming"
    )
    assert result["completed"] == e["requests"] == REQUESTS
    assert result["total_output_tokens"] == REQUESTS * TOKENS
    queue, work = (
        parts["queue"],
        parts["prefill_bound+prefill_above+decode_bound+decode_above+stall+preemption"],
    )
    assert queue["sources"] == work["sources"] == ["claimed"]
    # a millisecond of each answer is rounded away
    true = server.true
    assert true["queue"] - REQUESTS <= queue["total_ns"] / 1e6 <= true["queue"]
    both = true["prefill"] + true["decode"]
    assert both - REQUESTS <= work["total_ns"] / 1e6 <= both
    assert parts["network+front_end+first_delivery+later_delivery"]["total_ns"] > 0


@pytest.mark.parametrize("grows", [True, False], ids=["the text so far", "new text alone"])
def test_the_times_in_sglangs_own_answers_are_its_queue_and_prefill(
    grows: bool, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SGLang(grows)
    result, parts, e = explained(
        tmp_path,
        start(server),
        capsys,
        "--backend",
        "sglang",
        "--seed",
        "5",
        "--ignore-eos",
    )
    assert result["completed"] == e["requests"] == REQUESTS
    assert result["total_output_tokens"] == REQUESTS * TOKENS
    assert result["total_input_tokens"] == REQUESTS * 7
    assert "queue" in parts, e["notes"]
    queue, prefill = parts["queue"], parts["prefill_bound+prefill_above"]
    assert queue["total_ns"] / 1e6 == pytest.approx(server.true["queue"], abs=0.1)
    assert prefill["total_ns"] / 1e6 == pytest.approx(server.true["prefill"], abs=0.1)
    assert prefill["sources"] == ["claimed"]
    sent = next(
        b for b in server.bodies if b["sampling_params"]["max_new_tokens"] == TOKENS
    )
    assert sent["stream"] and sent["sampling_params"]["ignore_eos"]
    assert sent["text"].split()


def test_without_metrics_sglang_says_no_times_and_none_are_made_up(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SGLang(grows=True, metrics=False)
    _, parts, _ = explained(tmp_path, start(server), capsys, "--backend", "sglang")
    assert not any("claimed" in part["sources"] for part in parts.values())


def test_sglangs_answer_in_one_piece_has_its_times_too(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SGLang(grows=True)
    result, parts, _ = explained(
        tmp_path, start(server), capsys, "--backend", "sglang", "--no-streaming"
    )
    assert result["total_output_tokens"] == REQUESTS * TOKENS
    for name, atoms in (("queue", "queue"), ("prefill", "prefill_bound+prefill_above")):
        assert parts[atoms]["total_ns"] / 1e6 == pytest.approx(server.true[name], abs=0.1)


def test_answers_in_one_piece_without_a_word_of_the_server_are_one_part(
    shared_fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = shared_fake().base_url
    _, parts, e = explained(tmp_path, url, capsys, "--backend", "openai", "--no-streaming")
    named = [p for name, p in parts.items() if "prefill_above" in name]
    assert len(named) == 1 and {"queue", "decode_above"} <= {*named[0]["covers"]}
    assert named[0]["share"] > 0.8 and e["requests"] == REQUESTS


def events(*texts: str, ids: bool = True) -> list[tuple[int, bytes]]:
    out = []
    for count, text in enumerate(texts, 1):
        event: dict[str, Any] = {"text": text, "meta_info": {"completion_tokens": count}}
        if ids:
            event["output_ids"] = [1] * count
        out.append((10 * count, json.dumps(event).encode()))
    return [*out, (100, b"[DONE]")]


def test_a_text_so_far_is_cut_into_what_each_event_added() -> None:
    for ids in (True, False):
        reading = PROTOCOLS["sglang"].read(events("a", "a b", "a b", "a b c", ids=ids))
        assert reading.texts == ["a", " b", "", " c"]
        assert reading.chunk_tokens == [1, 1, 1, 1] and reading.done


def test_the_queue_of_a_preempted_request_is_that_before_its_first_token() -> None:
    """After a retraction SGLang counts from when the request was put back: less than nothing."""
    times = [(0.5, 100.2), (0.5, 100.2), (-3.2, 100.2)]
    stream = [
        (10 * n, json.dumps({"text": " a" * n, "meta_info": said(n, *each)}).encode())
        for n, each in enumerate(times, 1)
    ]
    reading = PROTOCOLS["sglang"].read([*stream, (100, b"[DONE]")])
    assert reading.times is not None
    assert reading.times.queue_ns == 500_000_000
    assert reading.times.prefill_ns == pytest.approx(200_000_000, rel=1e-6)
    assert reading.times.decode_ns is None


def said(tokens: int, queue_s: float, prefilled_s: float) -> dict[str, object]:
    return {
        "completion_tokens": tokens,
        "queue_time": queue_s,
        "forward_entry_time": 100.0,
        "prefill_finished_time": prefilled_s,
    }


def test_what_sglang_gives_up_is_an_error() -> None:
    said = {
        "text": "a",
        "meta_info": {"finish_reason": {"type": "abort", "message": "no memory"}},
    }
    reading = PROTOCOLS["sglang"].read([(10, json.dumps(said).encode())])
    assert reading.error == "aborted" and "no memory" in reading.error_detail
    refused = {"error": {"message": "too long", "code": 400}}
    reading = PROTOCOLS["sglang"].read([(10, json.dumps(refused).encode())])
    assert reading.error == "stream_error" and reading.error_detail == "too long"


def test_tgis_answers_in_one_piece_come_from_a_route_of_their_own() -> None:
    assert protocol_of("tgi/whole").path == "/generate"
    assert protocol_of("tgi").path == "/generate_stream"
    assert protocol_of("openai/whole").path == PROTOCOLS["openai"].path
    reading = protocol_of("tgi/whole").read_whole(b'[{"generated_text": "a b"}]')
    assert reading.texts == ["a b"] and reading.done
