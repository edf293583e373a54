"""The fake engine: known first-token and inter-token times, a log of its own send times, and faults on demand.

Comparisons are made with its log (`GET /fake/log`), never with the nominal times. A request's arrival is the
kernel's receive stamp, so that the time in which this server was busy is not counted against a client.
It speaks OpenAI's completions and chat routes, TGI's /generate_stream, vLLM's /tokenize and /detokenize.
"""

import argparse
import gc
import json
import os
import resource
import select
import socket
import struct
import sys
import time
from heapq import heappop, heappush, heapreplace
from pathlib import Path
from typing import Any, Self

import msgspec

from dyno.clock import now_ns, wall_offset_ns
from dyno.engines.process import EngineProcess, free_port
from dyno.errors import EngineError, TargetError, UsageError
from dyno.http import Client, Url
from dyno.units import NS_PER_MS, NS_PER_S

FAULTS = {
    "refuse": "the connection is reset before any answer",
    "429": "HTTP 429", "500": "HTTP 500", "503": "HTTP 503",
    "reset": "the connection is reset in the middle of the stream",
    "cut": "the connection is closed in the middle of the stream",
    "stall": "nothing more comes after the middle of the stream",
    "error": "an error object inside the stream, then the stream's regular end",
    "garbage": "an event that is no JSON",
    "not_a_stream": "one JSON object instead of a stream",
    "slow_headers": "the head comes in pieces, 20 ms apart",
    "empty": "a stream without text or tokens",
    "end_at_once": "the only token is the end token",
    "bundle": "four tokens in each chunk",
    "joined": "all events in one write",
    "dribble": "each event in three writes",
    "cut_utf8": "a multi-byte character cut in two",
    "comments": "SSE comments between the events",
    "crlf": "lines end in CR LF",
    "no_done": "no [DONE] at the end",
    "no_usage": "no usage, though asked for",
    "reasoning": "the first half comes as reasoning text (chat)",
    "other_model": "answers carry another model's name",
    "trailer": "the last chunk carries a trailer field",
    "silent": "every second token has no text, and the last one comes with the finish reason, as from vLLM",
    "short": "half the tokens asked for, then an end token",
    "die": "the whole server exits",
}  # fmt: skip

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_SENDS_A_TURN = 64
_RESET, _STALL, _CLOSE = b"\0reset", b"\0stall", b"\0close"


class FakeSpec(msgspec.Struct, frozen=True):
    first_ms: float = 50.0
    gap_ms: float = 10.0
    model: str = "fake"
    max_model_len: int = 131_072
    faults: dict[str, int] = {}  # kind → every how many requests it strikes


class _Script(msgspec.Struct):
    """What one answer writes: the first piece after `first_ns`, each next one a gap later."""

    writes: list[bytes]
    first_ns: int
    gap_ns: int
    logged: bool = True  # a stream's send times are; a plain answer's aren't


class _Connection:
    __slots__ = ("at", "inbox", "log", "script", "socket", "turn")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.inbox = b""
        self.script: _Script | None = None
        self.turn = 0  # which of this server's answers the script is: a file number is soon another connection's
        self.at = 0
        self.log: list[int] = []


class FakeServer:
    def __init__(self, spec: FakeSpec, port: int) -> None:
        self._spec = spec
        self._answers = 0
        self._turns = 0
        self._accepted = 0
        self._log: list[list[int]] = []  # for each answered generation: arrival, then each send
        self._words: dict[str, int] = {}
        self._made: dict[tuple[object, ...], list[bytes]] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096, reuse_port=False)
        self._listener.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._agenda: list[tuple[int, int, int]] = []  # (due, fd, turn)
        self._offset_ns = wall_offset_ns()
        self._offset_at = now_ns()

    def serve(self) -> None:
        gc.freeze()
        gc.disable()  # nothing here makes cycles while streams run
        agenda, poll = self._agenda, self._poller.poll
        while True:
            self._send_due()
            wait = agenda[0][0] - now_ns() if agenda else NS_PER_S // 4
            if wait >= NS_PER_MS:
                events = poll(min(wait // NS_PER_MS, 250) / 1000)
            else:
                if wait > 0:
                    time.sleep(wait / NS_PER_S)
                events = poll(0)
            for fd, _ in events:
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._connections:
                    self._receive(fd)
            if now_ns() - self._offset_at > NS_PER_S:
                self._offset_ns, self._offset_at = wall_offset_ns(), now_ns()

    def _send_due(self) -> None:
        agenda, connections = self._agenda, self._connections
        now = now_ns()
        for _ in range(_SENDS_A_TURN):
            if not agenda or agenda[0][0] > now:
                return
            due, fd, turn = agenda[0]
            connection = connections.get(fd)
            if connection is None or connection.turn != turn or (script := connection.script) is None:
                heappop(agenda)
                continue
            data = script.writes[connection.at]
            connection.at += 1
            if connection.at < len(script.writes):
                heapreplace(agenda, (due + script.gap_ns, fd, turn))
            else:
                heappop(agenda)
            if data[:1] == b"\0":
                self._act(fd, connection, data)
                continue
            connection.log.append(now_ns())
            try:
                sent = connection.socket.send(data)
                if sent < len(data):  # the log itself, or a client that doesn't read
                    connection.socket.settimeout(30)
                    connection.socket.sendall(data[sent:])
                    connection.socket.setblocking(False)
            except OSError:
                self._close(fd)
                continue
            if connection.at == len(script.writes):
                if script.logged:
                    self._log.append(connection.log)
                connection.script = None

    def _act(self, fd: int, connection: _Connection, action: bytes) -> None:
        if action == _RESET:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if action != _STALL:
            self._close(fd)

    def _close(self, fd: int) -> None:
        connection = self._connections.pop(fd)
        self._poller.unregister(fd)
        connection.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._accepted += 1
            self._connections[sock.fileno()] = _Connection(sock)
            self._poller.register(sock.fileno(), select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        connection = self._connections[fd]
        try:
            data, extra, _, _ = connection.socket.recvmsg(65536, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(fd)
            return
        connection.inbox += data
        head, blank, body = connection.inbox.partition(b"\r\n\r\n")
        if not blank:
            return
        length = 0
        for line in head.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        if len(body) < length:
            return
        connection.inbox = body[length:]
        arrival = now_ns()
        if extra:
            s, ns = _TIMESPEC.unpack(extra[0][2])
            arrival = s * NS_PER_S + ns - self._offset_ns
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        script = self._answer(method, path, body[:length])
        self._turns += 1
        connection.script, connection.turn, connection.at, connection.log = script, self._turns, 0, [arrival]
        heappush(self._agenda, (arrival + script.first_ns, fd, self._turns))

    # ---- what it answers ----

    def _answer(self, method: str, path: str, body: bytes) -> _Script:
        try:
            asked = msgspec.json.decode(body) if body else {}
        except msgspec.DecodeError:
            return _whole(400, {"error": {"message": "the body is no JSON"}})
        if path in ("/v1/completions", "/v1/chat/completions", "/generate_stream") and method == "POST":
            return self._generate(path, asked)
        if path == "/v1/models":
            card = {"id": self._spec.model, "object": "model", "max_model_len": self._spec.max_model_len}
            return _whole(200, {"object": "list", "data": [card]})
        if path == "/tokenize" and method == "POST":
            ids = [self._words.setdefault(w, len(self._words)) for w in asked.get("prompt", "").split()]
            return _whole(200, {"count": len(ids), "max_model_len": self._spec.max_model_len, "tokens": ids})
        if path == "/detokenize" and method == "POST":
            words = list(self._words)
            return _whole(200, {"prompt": " ".join(words[i] for i in asked["tokens"] if i < len(words))})
        if path == "/fake/log":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            log, self._log = self._log, []
            cpu_s = usage.ru_utime + usage.ru_stime
            return _whole(200, {"cpu_s": cpu_s, "connections": self._accepted, "streams": log})
        if path in ("/health", "/version", "/info"):
            return _whole(200, {"version": "fake", "model_id": self._spec.model})
        return _whole(404, {"error": {"message": f"no route {method} {path}"}})

    def _fault(self) -> str | None:
        return next((kind for kind, every in self._spec.faults.items() if self._answers % every == 0), None)

    def _generate(self, path: str, asked: dict[str, Any]) -> _Script:
        self._answers += 1
        fault = self._fault()
        first_ns, gap_ns = int(self._spec.first_ms * NS_PER_MS), int(self._spec.gap_ms * NS_PER_MS)
        if fault in ("429", "500", "503"):
            return _whole(int(fault), {"error": {"message": f"as told: {fault}", "code": int(fault)}})
        if fault == "refuse":
            return _Script([_RESET], 0, 0)
        if fault == "die":
            os._exit(3)
        if fault == "not_a_stream":
            return _whole(200, {"id": "fake", "choices": [{"index": 0, "text": "all at once"}]})
        stream = _Stream(path, asked, self._spec, fault)
        # A thousand clients ask for the same: making the answer anew each time would be this server's own delay.
        writes = self._made.get(stream.key) or self._made.setdefault(stream.key, stream.writes())
        if fault == "slow_headers":
            head, writes = writes[0], writes[1:]
            return _Script([head[:10], head[10:40], head[40:], *writes], first_ns, 20 * NS_PER_MS)
        if fault == "dribble":
            writes = [part for w in writes for part in (w[: len(w) // 3], w[len(w) // 3 : -5], w[-5:])]
        return _Script(writes, first_ns, gap_ns)


class _Stream:
    """The writes of one streamed answer: one for each event, the last together with usage and end mark."""

    def __init__(self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None) -> None:
        self._fault = fault
        self._chat = path.endswith("chat/completions")
        self._tgi = path == "/generate_stream"
        self._model = "some-other-model" if fault == "other_model" else spec.model
        parameters = asked.get("parameters", {}) if self._tgi else asked
        count = parameters.get("max_new_tokens" if self._tgi else "max_tokens")
        count = count or asked.get("max_completion_tokens") or 16
        self._asked = count
        self._count = {"empty": 0, "end_at_once": 0, "short": max(count // 2, 1)}.get(fault or "", count)
        prompt = asked.get("inputs" if self._tgi else "prompt") or asked.get("messages", [{}])[-1].get("content", "")
        self._prompt_tokens = len(prompt.split() if isinstance(prompt, str) else prompt)
        self._usage = bool(asked.get("stream_options", {}).get("include_usage")) and fault != "no_usage"
        self._eol = "\r\n" if fault == "crlf" else "\n"
        self.key = (path, fault, self._asked, self._prompt_tokens, self._usage)

    def writes(self) -> list[bytes]:
        each = 4 if self._fault == "bundle" else 1
        text = " grüß" if self._fault == "cut_utf8" else " tok" * each
        last = self._frame(self._text_event(text))
        count = -(-self._count // each)
        plain = self._frame(self._text_event(" tok" * each))
        events = [plain] * (count - 1) + [last] if count else []
        if self._fault == "silent" and not self._tgi:
            mute = self._frame(self._text_event(""))
            events = [mute if i % 2 else plain for i in range(count - 1)] + [b""]  # its end is the last token
        if self._fault == "reasoning" and self._chat:
            thought = self._frame(self._openai([{"index": 0, "delta": {"reasoning_content": " hm"}}]))
            events[: count // 2] = [thought] * (count // 2)
        if self._fault == "comments":
            events = [_chunk(b": ping\n\n") + e for e in events]
        if self._chat:
            role = self._frame(self._openai([{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
            events = [role + events[0], *events[1:]] if events else [role]
        events = events or [b""]
        events[0] = _HEAD + events[0]
        half = max(len(events) // 2, 1)
        if self._fault in ("reset", "cut", "stall"):
            return [*events[:half], {"reset": _RESET, "cut": _CLOSE, "stall": _STALL}[self._fault]]
        end = b"" if self._tgi else self._frame(self._last_event())
        if self._tgi and self._fault != "empty":  # its last token's event carries the details
            if self._count:
                events[-1] = events[-1].removesuffix(last)
            end = self._frame(self._tgi_event(text if self._count else "</s>", last=True))
        if self._fault == "error":
            message = {"message": "the engine ran out of cache blocks", "type": "server_error"}
            events = events[:half]
            end = self._frame({"error": message})
        elif self._fault == "garbage":
            end = _chunk(b"data: {'not': json\n\n")
        if self._usage and not self._tgi and self._fault not in ("error", "garbage"):
            tokens = {"empty": 0, "end_at_once": 1}.get(self._fault or "", self._count)
            usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens}
            end += self._frame(self._openai([], usage))
        if self._fault != "no_done" and not self._tgi:
            end += _chunk(f"data: [DONE]{self._eol}{self._eol}".encode())
        end += b"0\r\nx-took: 1\r\n\r\n" if self._fault == "trailer" else b"0\r\n\r\n"
        events[-1] += end
        if self._fault == "joined":
            return [b"".join(events)]
        if self._fault == "cut_utf8":
            at = events[-1].index("ü".encode()) + 1
            return [*events[:-1], events[-1][:at], events[-1][at:]]
        return events

    def _text_event(self, text: str) -> dict[str, Any]:
        if self._tgi:
            return self._tgi_event(text)
        if self._chat:
            return self._openai([{"index": 0, "delta": {"content": text}, "finish_reason": None}])
        return self._openai([{"index": 0, "text": text, "logprobs": None, "finish_reason": None}])

    def _last_event(self) -> dict[str, Any]:
        reason = "length" if self._count == self._asked else "stop"
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._openai([{"index": 0, **empty, "finish_reason": reason}])

    def _openai(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        chunk = {
            "id": "cmpl-9eb36b82a6ec3ac1",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": 1794702811,
            "model": self._model,
            "choices": choices,
        }
        return chunk if usage is None else {**chunk, "usage": usage}

    def _tgi_event(self, text: str, last: bool = False) -> dict[str, Any]:
        details = {
            "finish_reason": "length" if self._count == self._asked else "eos_token",
            "generated_tokens": self._count or 1,
            "input_length": self._prompt_tokens,
        }
        return {
            "index": 1,
            "token": {"id": 17, "text": text, "logprob": -0.5, "special": text == "</s>"},
            "generated_text": text * self._count if last else None,
            "details": details if last else None,
        }

    def _frame(self, event: dict[str, Any]) -> bytes:
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        return _chunk(f"data: {text}{self._eol}{self._eol}".encode())


_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: dyno-fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _whole(status: int, answer: Any) -> _Script:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return _Script([head.encode() + body], 0, 0, logged=False)


class Fake:
    """A running fake engine."""

    version = "fake"

    def __init__(self, process: EngineProcess, base_url: str) -> None:
        self.process = process
        self.command = process.command
        self.base_url = base_url

    @classmethod
    def start(cls, spec: FakeSpec, log: Path, port: int | None = None) -> Self:
        port = port or free_port()
        command = [sys.executable, "-P", "-m", "dyno.engines.fake", "--port", str(port)]
        command += ["--first-ms", str(spec.first_ms), "--gap-ms", str(spec.gap_ms), "--model", spec.model]
        command += ["--max-model-len", str(spec.max_model_len)]
        for kind, every in spec.faults.items():
            command += ["--fault", f"{kind}@{every}"]
        process = EngineProcess(command, None, log)
        client = Client(Url(f"http://127.0.0.1:{port}"), {})
        try:
            while True:
                try:
                    client.call("/health")
                    return cls(process, str(client.url))
                except TargetError:
                    if not process.alive() or process.age_s > 30:
                        raise EngineError(
                            f"The fake engine didn't come up: {' | '.join(process.last_lines())}. Read {log}."
                        ) from None
                    time.sleep(0.02)
        except BaseException:
            process.stop()
            raise
        finally:
            client.close()

    def log(self) -> dict[str, Any]:
        """What it sent and when, since the last call: arrival, then each send, for each finished stream."""
        client = Client(Url(self.base_url), {}, timeout_s=120)
        try:
            answer: dict[str, Any] = client.call("/fake/log")[1]
            return answer
        finally:
            client.close()

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def parse_faults(texts: list[str]) -> dict[str, int]:
    faults = {}
    for text in texts:
        kind, _, every = text.partition("@")
        if kind not in FAULTS:
            raise UsageError(f"The fake engine has no fault {kind!r}. Known: {', '.join(FAULTS)}.")
        if every and not (every.isdigit() and int(every)):
            raise UsageError(f"--fault {text}: after the @ stands every how many requests it strikes, from 1 on.")
        faults[kind] = int(every or 1)
    return faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = FakeSpec()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--first-ms", type=float, default=default.first_ms, help="to the first token")
    parser.add_argument("--gap-ms", type=float, default=default.gap_ms, help="between tokens")
    parser.add_argument("--model", default=default.model)
    parser.add_argument("--max-model-len", type=int, default=default.max_model_len)
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[@N]",
        help="strikes every Nth request (default: each one). Kinds: "
        + "; ".join(f"{kind}: {what}" for kind, what in FAULTS.items()),
    )  # fmt: skip


def serve(options: argparse.Namespace) -> None:
    spec = FakeSpec(
        first_ms=options.first_ms,
        gap_ms=options.gap_ms,
        model=options.model,
        max_model_len=options.max_model_len,
        faults=parse_faults(options.fault),
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = FakeServer(spec, options.port)
    except OSError as e:
        raise EngineError(
            f"The fake engine can't listen on port {options.port}: {e.strerror}. Choose another --port."
        ) from None
    server.serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="dyno.engines.fake", description=__doc__)
    add_arguments(parser)
    serve(parser.parse_args())
