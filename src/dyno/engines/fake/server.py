"""The fake engine's server: one epoll loop that sends each piece of each answer when it is due.

A request's arrival is the kernel's receive stamp, so that the time in which this server was busy is not counted
against a client.
"""

import gc
import itertools
import math
import os
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush, heapreplace
from random import Random
from typing import Any

import msgspec

from dyno.clock import now_ns, wall_offset_ns
from dyno.engines.fake import FakeSpec, apis, tgi
from dyno.engines.fake.answer import RESET, STALL, FakeAnswer, Script, plain, whole
from dyno.engines.fake.tgi import TgiAnswer
from dyno.errors import EngineError
from dyno.units import NS_PER_MS, NS_PER_S

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_SENDS_A_TURN = 64
_FORM = re.compile(rb"(?i)\r\ncontent-type: *(multipart/form-data[^\r]*)")
_ANSWERS: dict[str, type[FakeAnswer]] = {
    "/v1/completions": FakeAnswer,
    "/v1/chat/completions": FakeAnswer,
    apis.RESPONSES: apis.ResponsesAnswer,
    apis.MESSAGES: apis.MessagesAnswer,
    **dict.fromkeys(apis.AUDIO, apis.AudioAnswer),
    **dict.fromkeys(apis.POOLING, apis.PoolingAnswer),
    **dict.fromkeys(tgi.ROUTES, TgiAnswer),
}
_Route = Callable[[dict[str, Any]], Script]  # from a request's body to its answer


class _Connection:
    __slots__ = ("gone", "inbox", "log", "next", "script", "socket", "turn")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.gone = False  # the client closed it, and that isn't noticed
        self.inbox = b""
        self.script: Script | None = None
        # the number of its answer: a file descriptor is soon another connection's
        self.turn = 0
        self.next = 0  # of the script's pieces
        self.log: list[int] = []


class FakeServer:
    def __init__(self, spec: FakeSpec, port: int) -> None:
        self._spec = spec
        self._answers = 0
        self._tokens = 0  # of finished answers
        self._turns = 0
        self._accepted = 0
        # for each answered generation: arrival, then each send
        self._log: list[list[int]] = []
        self._bodies: list[Any] = []  # of generations, as they arrived
        self._heads: list[str] = []  # likewise
        self._profiles: list[list[Any]] = []  # route, and the answers begun until then
        self._words: dict[str, int] = {}
        self._streams: dict[tuple[object, ...], list[bytes]] = {}
        self._cache = PrefixCache() if spec.prefix_cache else None
        self._listener = socket.create_server(
            (spec.host, port), backlog=4096, reuse_port=False
        )
        self._listener.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._agenda: list[tuple[int, int, int]] = []  # (due, fd, turn)
        self._offset_ns = wall_offset_ns()
        self._offset_read_ns = now_ns()
        self._routes: dict[str, _Route] = {
            "/": lambda asked: plain(200, "text/plain", b""),
            "/health": lambda asked: plain(200, "text/plain", b""),
            "/v1/models": self._models,
            "/info": lambda asked: whole(200, tgi.info(spec)),
            "/version": lambda asked: whole(200, {"version": "fake"}),
            "/metrics": lambda asked: plain(
                200, "text/plain; version=0.0.4", self._metrics().encode()
            ),
            "/fake/log": self._take_log,
        }
        if self._cache is not None:
            self._routes["/reset_prefix_cache"] = self._reset_cache
        self._post_routes: dict[str, _Route] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        if spec.profiler:
            for route in ("/start_profile", "/stop_profile"):
                self._post_routes[route] = partial(self._profile, route)

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
            if now_ns() - self._offset_read_ns > NS_PER_S:
                self._offset_ns, self._offset_read_ns = wall_offset_ns(), now_ns()

    def _send_due(self) -> None:
        agenda, connections = self._agenda, self._connections
        now = now_ns()
        for _ in range(_SENDS_A_TURN):
            if not agenda or agenda[0][0] > now:
                return
            due, fd, turn = agenda[0]
            connection = connections.get(fd)
            if (
                connection is None
                or connection.turn != turn
                or (script := connection.script) is None
            ):
                heappop(agenda)
                continue
            data = script.writes[connection.next]
            connection.next += 1
            if connection.next < len(script.writes):
                heapreplace(agenda, (due + script.gap_ns, fd, turn))
            else:
                heappop(agenda)
            if data[:1] == b"\0":
                self._act(fd, connection, data)
                continue
            connection.log.append(now_ns())
            try:
                sent = len(data) if connection.gone else connection.socket.send(data)
                if sent < len(data):  # the log itself, or a client that doesn't read
                    connection.socket.settimeout(30)
                    connection.socket.sendall(data[sent:])
                    connection.socket.setblocking(False)
            except OSError:
                self._leave(fd)
                if not connection.gone:
                    continue
            if connection.next == len(script.writes):
                self._tokens += script.tokens
                if script.logged:
                    self._log.append(connection.log)
                connection.script = None
                if connection.gone:
                    self._close(fd)

    def _act(self, fd: int, connection: _Connection, action: bytes) -> None:
        if action == RESET:
            connection.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        if action != STALL:
            self._close(fd)

    def _leave(self, fd: int) -> None:
        """The client has gone: stop its answer, or don't notice."""
        connection = self._connections[fd]
        script = connection.script
        if script is None or not script.deaf:
            self._close(fd)
        elif not connection.gone:
            connection.gone = True
            self._poller.unregister(fd)

    def _close(self, fd: int) -> None:
        connection = self._connections.pop(fd)
        # it stops in the middle
        if (script := connection.script) is not None and connection.next:
            self._tokens += script.tokens * connection.next // len(script.writes)
        if not connection.gone:
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
            self._leave(fd)
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
        arrival = now = now_ns()
        if extra:
            s, ns = _TIMESPEC.unpack(extra[0][2])
            stamp = s * NS_PER_S + ns - self._offset_ns
            # Another time: the clock was set since its offset was read, and the answer would wait for as long.
            arrival = stamp if now - 10 * NS_PER_S < stamp <= now else now
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if self._spec.bodies and method == "POST" and path in _ANSWERS:
            self._heads.append(head.decode("latin-1"))
        # a proxy may add an empty query
        kind = _FORM.search(head)
        body = body[:length]
        script = self._answer(
            method, path.partition("?")[0], body, kind[1].decode("latin-1") if kind else ""
        )
        self._turns += 1
        connection.script, connection.turn, connection.next, connection.log = (
            script,
            self._turns,
            0,
            [arrival],
        )
        heappush(self._agenda, (arrival + script.first_ns, fd, self._turns))

    # ---- answers ----

    def _answer(self, method: str, path: str, body: bytes, form: str = "") -> Script:
        """`form`: the content type of a form of several parts; '': the body is JSON."""
        try:
            asked = apis.read_form(form, body) if form else _json(body)
        except msgspec.DecodeError:
            asked = None
        if not isinstance(asked, dict):
            return whole(400, {"error": {"message": "the body is not a JSON object"}})
        if method == "POST" and path in _ANSWERS:
            return self._generate(path, asked)
        route = self._routes.get(path)
        if route is None and method == "POST":
            route = self._post_routes.get(path)
        if route is None:
            return whole(404, {"error": {"message": f"no route {method} {path}"}})
        return route(asked)

    def _models(self, asked: dict[str, Any]) -> Script:
        model, length = self._spec.model, self._spec.max_model_len
        card = {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": model,
            "max_model_len": length,
        }
        return whole(200, {"object": "list", "data": [card]})

    def _tokenize(self, asked: dict[str, Any]) -> Script:
        if "inputs" in asked:
            return whole(200, tgi.tokenized(str(asked["inputs"]), self._words))
        ids = [
            self._words.setdefault(w, len(self._words))
            for w in asked.get("prompt", "").split()
        ]
        return whole(
            200,
            {"count": len(ids), "max_model_len": self._spec.max_model_len, "tokens": ids},
        )

    def _detokenize(self, asked: dict[str, Any]) -> Script:
        words = list(self._words)
        return whole(
            200, {"prompt": " ".join(words[i] for i in asked["tokens"] if i < len(words))}
        )

    def _take_log(self, asked: dict[str, Any]) -> Script:
        """Return what was logged since the last time."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        log, self._log = self._log, []
        bodies, self._bodies = self._bodies, []
        heads, self._heads = self._heads, []
        cpu_s = usage.ru_utime + usage.ru_stime
        return whole(
            200,
            {
                "cpu_s": cpu_s,
                "connections": self._accepted,
                "streams": log,
                "bodies": bodies,
                "heads": heads,
                "profiles": self._profiles,
            },
        )

    def _profile(self, route: str, asked: dict[str, Any]) -> Script:
        self._profiles.append([route, self._answers])
        return plain(200, "text/plain", b"")

    def _reset_cache(self, asked: dict[str, Any]) -> Script:
        if self._cache is not None:
            self._cache.clear()
        return plain(200, "text/plain", b"")

    def _metrics(self) -> str:
        """Return metrics as vLLM and TGI name them. Requests beyond its slots count as waiting."""
        sent = [c.next for c in self._connections.values() if c.script is not None]
        running = min(len(sent), self._spec.slots or len(sent))
        waiting = len(sent) - running
        gauges: dict[str, float] = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
        }
        # one context is all it has
        gauges["vllm:kv_cache_usage_perc"] = min(sum(sent) / self._spec.max_model_len, 1.0)
        gauges |= {"tgi_batch_current_size": running, "tgi_queue_size": waiting}
        counters = {
            "vllm:generation_tokens_total": self._tokens,
            "vllm:num_preemptions_total": 0,
        }
        counters["tgi_request_count"] = self._answers
        if self._cache is not None:
            counters["vllm:prefix_cache_queries_total"] = self._cache.queried
            counters["vllm:prefix_cache_hits_total"] = self._cache.hit
        lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in gauges.items()]
        lines += [
            f"# TYPE {name} counter\n{name} {value}\n" for name, value in counters.items()
        ]
        return "".join(lines)

    def _fault(self) -> str | None:
        struck = (
            kind for kind, every in self._spec.faults.items() if self._answers % every == 0
        )
        busy = self._spec.busy_faults
        return next((kind for kind in struck if self._open() > busy.get(kind, 0)), None)

    def _open(self) -> int:
        """Return how many requests there are at once, with the one that begins now."""
        answered = [c.script for c in self._connections.values() if c.script is not None]
        return 1 + sum(script.logged for script in answered)

    def _slower(self) -> float:
        """Return how many times as long an answer takes that begins now."""
        spec = self._spec
        if not (spec.slots or spec.cliff or spec.noise):
            return 1.0
        open_ = self._open()
        slower = 1.0
        if spec.slots:
            slower = max(open_ / spec.slots, 1.0)
        if spec.cliff and open_ > spec.cliff:
            slower *= 10
        if spec.noise:
            slower *= math.exp(Random(self._answers).gauss(0.0, spec.noise))
        return slower

    def _generate(self, path: str, asked: dict[str, Any]) -> Script:
        self._answers += 1
        if self._spec.bodies:
            self._bodies.append({k: _loggable(v) for k, v in asked.items()})
        fault = self._fault()
        slower = self._slower()
        first_ns, gap_ns = (
            int(ms * NS_PER_MS * slower) for ms in (self._spec.first_ms, self._spec.gap_ms)
        )
        if fault == "refuse":
            return Script([RESET], 0, 0)
        if fault == "die":
            os._exit(3)
        if fault == "not_a_stream":
            return whole(
                200, {"id": "fake", "choices": [{"index": 0, "text": "all at once"}]}
            )
        answer = _ANSWERS[path](path, asked, self._spec, fault)
        if answer.constrained:
            gap_ns = int(gap_ns * self._spec.constrained)
        if fault in ("429", "500", "503"):
            return answer.refused(int(fault), f"injected fault: {fault}")
        if problem := answer.problem():
            return answer.refused(422, problem)
        if self._cache is not None:
            answer.cached_tokens = self._cache.hits(
                answer.words, "".join(answer.texts()).split()
            )
        if not answer.streamed:  # faults of a stream don't strike it
            script = whole(
                200, answer.whole(), first_ns + gap_ns * max(len(answer.texts()) - 1, 0)
            )
            script.tokens = answer.tokens
            return script
        return self._stream(answer, fault, first_ns, gap_ns)

    def _stream(
        self, answer: FakeAnswer, fault: str | None, first_ns: int, gap_ns: int
    ) -> Script:
        # A thousand clients ask for the same: making the answer anew each time would be this server's own delay.
        key = (*answer.key, answer.cached_tokens)
        writes = self._streams.get(key) or self._streams.setdefault(key, answer.writes())
        if fault == "slow_headers":
            head, writes = writes[0], writes[1:]
            return Script(
                [head[:10], head[10:40], head[40:], *writes],
                first_ns,
                20 * NS_PER_MS,
                tokens=answer.tokens,
            )
        if fault == "dribble":
            writes = list(itertools.chain.from_iterable(_in_three(w) for w in writes))
        return Script(writes, first_ns, gap_ns, tokens=answer.tokens, deaf=fault == "deaf")


def _json(body: bytes) -> Any:
    return msgspec.json.decode(body) if body else {}


def _loggable(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


def _in_three(write: bytes) -> tuple[bytes, bytes, bytes]:
    third = len(write) // 3
    return write[:third], write[third:-5], write[-5:]


class PrefixCache:
    """Blocks of words that earlier prompts and their answers began with. It has no limit."""

    SIZE = 16

    def __init__(self) -> None:
        self.queried = self.hit = 0
        self._blocks: set[tuple[object, ...]] = set()

    def clear(self) -> None:
        self._blocks.clear()

    def hits(self, prompt: Sequence[object], answer: Sequence[object]) -> int:
        """Return how many words of the prompt it has. Then it has all of them, and those of the answer."""
        last: tuple[object, ...] = ()
        cached, text = 0, [*prompt, *answer]
        for end in range(self.SIZE, len(text) + 1, self.SIZE):
            last = (hash(last), *text[end - self.SIZE : end])
            if last in self._blocks and end < len(prompt) and cached == end - self.SIZE:
                cached = end
            self._blocks.add(last)
        self.queried += len(prompt)
        self.hit += cached
        return cached


def serve(spec: FakeSpec, port: int, ready: Callable[[], None] | None = None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = FakeServer(spec, port)
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or e
        raise EngineError(
            f"The fake engine can't listen on port {port}: {why}. Choose another --port."
        ) from None
    if ready is not None:
        ready()
    server.serve()
