"""A server that knows the answers of the built-in tasks, and counts how often each question is asked."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dyno.workload.tasks import TASKS, items

Answer = Callable[[str], "str | None"]  # None: a refusal


def known(count: int = 30) -> dict[str, str]:
    """Questions with and without choices, and their answers."""
    out = {}
    for item in items(list(TASKS), count):
        out[item.question] = item.answer
        question, letter = item.with_choices()
        out[question] = letter
    return out


class Pupil:
    def __init__(
        self, answer: Answer, pause_s: float, finish: str, prompt_tokens: int | None
    ) -> None:
        self.answer, self.pause_s, self.finish, self.prompt_tokens = (
            answer,
            pause_s,
            finish,
            prompt_tokens,
        )
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.url = ""

    def reply(self, body: dict[str, Any], chat: bool) -> bytes | None:
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        question = text.rpartition("Question: ")[2].removesuffix("\nAnswer:")
        if not question.startswith("Are you ready"):
            self.asked[question] += 1
            self.bodies.append(body)
            time.sleep(self.pause_s)
        said = "yes" if question.startswith("Are you ready") else self.answer(question)
        if said is None:
            return None
        usage = {
            "prompt_tokens": self.prompt_tokens or len(text.split()),
            "completion_tokens": 3,
        }
        part = (
            {"delta": {"content": said}, "message": {"content": said}}
            if chat
            else {"text": said}
        )
        choice = {"index": 0, "finish_reason": self.finish, **part}
        whole = json.dumps({"model": "pupil", "choices": [choice], "usage": usage})
        return (
            f"data: {whole}\n\ndata: [DONE]\n\n" if body.get("stream") else whole
        ).encode()


@contextmanager
def pupil(
    answer: Answer | None = None,
    pause_s: float = 0.0,
    finish: str = "stop",
    prompt_tokens: int | None = None,
) -> Iterator[Pupil]:
    right = known()
    state = Pupil(
        answer or (lambda question: right.get(question, "?")),
        pause_s,
        finish,
        prompt_tokens,
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", 1 << 16  # head and body in one packet

        def log_message(self, *_: Any) -> None: ...

        def send(self, status: int, data: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            is_list = self.path == "/v1/models"
            self.send(
                200 if is_list else 404,
                json.dumps({"data": [{"id": "pupil", "max_model_len": 512}]}).encode(),
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.keys.add(self.headers["authorization"])
            chat = self.path.endswith("chat/completions")
            data = state.reply(body, chat) if self.path.endswith("completions") else None
            kind = "text/event-stream" if body.get("stream") else "application/json"
            if data:
                self.send(200, data, kind)
            else:
                self.send(400, b'{"error": {"message": "refused"}}')

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
