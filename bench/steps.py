"""What Python steps cost the wire: the time from a poll that returned to the next one, by how many reads it returned.

The server is in the poller: before each poll it sends some chunks, and the clock is stopped meanwhile. So nothing
waits, sleeps or shares a core, and the fastest tenth is nearly the same on a busy machine. `bare`: the least that a
loop in Python can do with the same reads: recvmsg, a clock reading, two list appends.

    python bench/steps.py
    PYTHONPATH=OTHER/src python bench/steps.py    another version's wire
"""

import select
import socket
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from dyno.http import Route, Url
from dyno.load import pool
from dyno.load.plan import Plan
from dyno.load.script import PromptScript
from dyno.load.spool import Spool
from dyno.load.wire import Traffic, Wire

STREAMS, ROUNDS, CHUNKS = 64, 3, 100
READS = (1, 8, 32)  # that a poll returns
_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"fake",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":%s}]}\n\n'
)


def _chunk(reason: bytes) -> bytes:
    event = _EVENT % reason
    return b"%x\r\n%s\r\n" % (len(event), event)


_PIECE, _LAST = _chunk(b"null"), _chunk(b'"length"') + b"0\r\n\r\n"


class Server:
    """Answers all requests in turn, some chunks before each poll."""

    def __init__(self, reads: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=STREAMS)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._left: dict[socket.socket, int] = {}
        self._turn: deque[socket.socket] = deque()
        self._reads = reads

    def send(self) -> int:
        """Send the next chunks; return how many. 0: heads, or last ones among them."""
        self._accept()
        if not self._turn:
            self._begin()
            return 0
        plain = True
        for _ in range(min(self._reads, len(self._turn))):
            connection = self._turn.popleft()
            self._left[connection] -= 1
            more = self._left[connection] > 0
            connection.send(_PIECE if more else _LAST)
            if more:
                self._turn.append(connection)
            plain = plain and more
        return self._reads if plain else 0

    def close(self) -> None:
        for connection in (self._listener, *self._connections):
            connection.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
        except BlockingIOError:
            pass

    def _begin(self) -> None:
        for connection in self._connections:
            try:
                asked = connection.recv(65_536)
            except BlockingIOError:
                continue
            if asked:
                connection.send(_HEAD)
                self._left[connection] = CHUNKS
                self._turn.append(connection)


class Poller:
    """An epoll that times what is done between two polls."""

    server: Server
    spans_ns: list[int]

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._returned_ns = self._reads = 0
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.close = self._epoll.close

    def poll(self, timeout: float = 0) -> list[tuple[int, int]]:
        now = time.perf_counter_ns()
        if self._reads:
            self.spans_ns.append((now - self._returned_ns) // self._reads)
        sent = self.server.send()
        events = self._epoll.poll(timeout)
        self._reads = sent if len(events) == sent else 0
        self._returned_ns = time.perf_counter_ns()
        return events


def of_wire(reads: int) -> float:
    """Return the time of a read in the wire, in µs."""
    Poller.server = server = Server(reads)
    Poller.spans_ns = []
    known: Any = pool
    known.Poller = Poller
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    traffic = Traffic(
        [Route(Url(f"http://127.0.0.1:{server.port}"))],
        [b""],
        PromptScript([request]),
        Plan(count=STREAMS * ROUNDS, due_ns=None, in_flight_max=STREAMS),
    )
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        spool = Spool(Path(folder) / "spool")
        Wire(traffic, spool).drive()
        spool.close()
    server.close()
    return _fast()


def of_bare_loop(reads: int) -> float:
    """Return the time of a read in the least loop, in µs."""
    Poller.server = server = Server(reads)
    Poller.spans_ns = []
    poller = Poller()
    receive = {}
    sockets = []
    for _ in range(STREAMS):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        connection.send(b"x")
        connection.setblocking(False)
        poller.register(connection.fileno(), select.EPOLLIN)
        receive[connection.fileno()] = connection.recvmsg
        sockets.append(connection)
    times: list[int] = []
    parts: list[bytes] = []
    for _ in range(STREAMS * CHUNKS // reads):
        for fd, _ in poller.poll(0.01):
            data, _extra, _, _ = receive[fd](32_768, 64)
            times.append(time.monotonic_ns())
            parts.append(data)
    for connection in sockets:
        connection.close()
    poller.close()
    server.close()
    return _fast()


def _fast() -> float:
    """Return the time that a tenth is faster than."""
    spans = sorted(Poller.spans_ns)
    return spans[len(spans) // 10] / 1e3


def main() -> int:
    print("us for each read, without the poll\nreads a poll   bare   wire")
    for reads in READS:
        print(f"{reads:>12} {of_bare_loop(reads):>6.1f} {of_wire(reads):>6.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
