"""Replicas of a server, connections to them, and the state of the exchange on each connection."""

import contextlib
import errno
import os
import select
import socket
import ssl
import sys
from array import array
from collections.abc import Callable
from typing import Any

from dyno.clock import now_ns
from dyno.errors import TargetError, limit_advice
from dyno.http import Route, connect_unix, describe_tls
from dyno.load import http1
from dyno.load.progress import FollowedResponse
from dyno.load.script import AnswerCollector
from dyno.load.spool import READ_BYTES
from dyno.transport import ProxyRefused, granted

UNIX_CONNECT_S = 1.0  # at most, for a place in its queue: the loop waits meanwhile
SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None  # the kernel stamps what arrives

Recv = Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]

if sys.platform == "linux":
    IN = select.EPOLLIN
    OUT = select.EPOLLOUT
    ERROR = select.EPOLLERR | select.EPOLLHUP

    Poller = select.epoll
else:  # macOS and the BSDs: kqueue behind the same calls. Written from its documentation, never run there.
    IN = 1
    OUT = 4
    ERROR = 8

    class Poller:  # type: ignore[no-redef]
        def __init__(self) -> None:
            self._queue = select.kqueue()
            self._masks: dict[int, int] = {}

        def register(self, fd: int, mask: int) -> None:
            self._masks[fd] = 0
            self.modify(fd, mask)

        def modify(self, fd: int, mask: int) -> None:
            before = self._masks[fd]
            self._masks[fd] = mask
            changes = [
                select.kevent(
                    fd, kind, select.KQ_EV_ADD if mask & bit else select.KQ_EV_DELETE
                )
                for bit, kind in (
                    (IN, select.KQ_FILTER_READ),
                    (OUT, select.KQ_FILTER_WRITE),
                )
                if (mask ^ before) & bit
            ]
            if changes:
                self._queue.control(changes, 0)

        def unregister(self, fd: int) -> None:
            self.modify(fd, 0)
            del self._masks[fd]

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            return [
                (int(e.ident), IN if e.filter == select.KQ_FILTER_READ else OUT)
                for e in self._queue.control(None, 1024, timeout)
            ]

        def close(self) -> None:
            self._queue.close()


class Replica:
    """One copy of the server, where it is, and what is on its way to it."""

    __slots__ = (
        "address", "family", "front", "held", "idle", "in_flight", "mark", "opening", "refused", "route", "tls", "url",
    )  # fmt: skip

    def __init__(
        self, index: int, route: Route, front: bytes, tls: ssl.SSLContext | None
    ) -> None:
        self.url = route.url
        self.route = route
        self.front = front  # what goes before each payload; empty: payloads are whole
        self.tls = tls
        self.family, self.address = _resolve(route)
        # in the spool; empty for the first
        self.mark = index.to_bytes((index.bit_length() + 7) // 8, "little")
        self.in_flight = 0
        # last in, first out: the warmest connection is used first
        self.idle: list[Connection] = []
        self.opening = 0  # connections under way that no exchange waits for yet
        self.refused = 0  # connections in a row
        # it didn't answer a request: no other one for it until a connection to it opens
        self.held = False


def _resolve(route: Route) -> tuple[int, Any]:
    """Return the first address that takes a connection: localhost is often ::1 first, and the server IPv4 only."""
    error: OSError | None = None
    try:
        addresses = route.addresses()
        for family, address in addresses:
            if len(addresses) == 1:
                return family, address
            try:
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.settimeout(min(5.0, route.via.connect_timeout_s))
                    probe.connect(address)
                return family, address
            except OSError as e:
                error = error or e
    except OSError as e:
        error = e
    raise TargetError(route.unreachable(error or OSError("no address"))) from None


class Connection:
    """A connection and the exchange that is on it."""

    __slots__ = (
        "answer", "between", "body", "carried", "due_ns", "exchange", "failing", "fd", "followed", "framing", "head",
        "history", "idle_ns", "keep_alive", "left", "out", "read_ns", "ready", "recv", "replica", "room", "sent_ns",
        "silent", "skips", "socket", "take", "tls", "tunnel", "waited", "way",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, replica: Replica) -> None:
        self.socket = sock
        self.replica = replica
        self.fd = sock.fileno()
        self.recv: Recv = sock.recvmsg
        if replica.url.unix or replica.route.via.read_timeout_s is not None:
            self.recv = self._recv
        self.tls = None if replica.tls is None else Tls(replica.tls, replica.url.host)
        self.tunnel = replica.route.tunnel  # sent to a proxy before all else
        # what it has answered; None: the way is open
        self.way: bytes | None = b"" if self.tunnel else None
        self.ready = False  # connected (and through the TLS handshake)
        self.exchange = -1  # which one is on it; -1: idle
        self.due_ns = 0  # … and when it was due
        self.carried = False  # an exchange, before
        self.history = array("I")  # all exchanges that it was given
        self.room = 0  # bytes that the response may still take
        # was idle before its exchange, so that the server may have closed it meanwhile
        self.waited = False
        self.idle_ns = now_ns()  # since when it carries nothing
        self.out = b""  # what of the request didn't fit into the socket yet
        self.clear()

    def advance(self, event: int) -> bool:
        """Take one more step of connecting and the TLS handshake. Return True when ready; raise OSError on failure."""
        if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        if self.way is not None:
            if not self._tunnelled(event):
                return False
            event = 0
        if self.tls is not None:
            if event & IN:
                data = self.socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError(
                        errno.ECONNRESET, "closed during the TLS handshake"
                    )
                self.tls.incoming.write(data)
            try:
                self.tls.object.do_handshake()
                self.ready = True
            except ssl.SSLWantReadError:
                pass
            if out := self.tls.outgoing.read():
                self.socket.send(out)
        else:
            self.ready = True
        return self.ready

    def _tunnelled(self, event: int) -> bool:
        """Ask the proxy for a tunnel; return True once it is open."""
        if self.tunnel:
            self.socket.send(self.tunnel)
            self.tunnel = b""
            return False
        data = self.socket.recv(READ_BYTES) if event & IN else b""
        if event & IN and not data:
            raise ProxyRefused("the proxy closed the connection")
        self.way = (self.way or b"") + data
        if not granted(self.way):
            return False
        self.way = None
        return True

    def _recv(
        self, size: int, extra: int
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """Read and note the time: for a limit on silence, and on Unix sockets, where the kernel stamps nothing and
        ancillary data could only be open files."""
        read = self.socket.recvmsg(size, 0 if self.replica.url.unix else extra)
        self.read_ns = now_ns()
        return read

    def clear(self) -> None:
        self.silent = True  # no byte of the response yet
        self.head = b""  # a head that is still incomplete
        self.body = False
        self.failing = False  # by its status
        self.framing: http1.Chunked | None = None
        # set while nothing but plain chunked reads are to come
        self.take: Callable[[bytes], int] | None = None
        self.skips = False  # only the framing wants these reads
        self.between = False  # … and the next one begins a chunk
        self.answer: AnswerCollector | None = None  # where a later request holds it
        self.followed: FollowedResponse | None = None  # for the live rate
        # bytes of a body of known length still to come; -1: until the connection closes
        self.left = -1
        self.keep_alive = True
        self.sent_ns = 0
        self.read_ns = 0  # of its last byte, where there is a limit to its silence


class Tls:
    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    def plain(self, data: bytes) -> bytes:
        self.incoming.write(data)
        parts = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self.object.read(READ_BYTES):
                parts.append(part)
        return b"".join(parts)


def begin(replica: Replica) -> Connection:
    """Start to connect. Raise OSError where the system refuses at once."""
    sock = socket.socket(replica.family, socket.SOCK_STREAM)
    try:
        if replica.family == socket.AF_UNIX:
            connect_unix(sock, replica.address, UNIX_CONNECT_S)
        else:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if SO_TIMESTAMPNS is not None:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            error = sock.connect_ex(replica.address)
            if error not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
    except OSError:
        sock.close()
        raise
    return Connection(sock, replica)


def failure(error: Exception) -> str:
    """Return "kind: detail" of a failed request."""
    what = (
        describe_tls(error)
        if isinstance(error, ssl.SSLError)
        else getattr(error, "strerror", None) or error
    )
    return f"{_kind(error)}: {what}"


def _kind(error: Exception) -> str:
    if limit_advice(error):
        return "client"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if (
        isinstance(error, ConnectionRefusedError)
        or getattr(error, "errno", 0) == errno.ECONNREFUSED
    ):
        return "refused"
    if isinstance(error, TimeoutError) or getattr(error, "errno", 0) == errno.ETIMEDOUT:
        return "timeout"
    if getattr(error, "errno", 0) in (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED):
        return "reset"
    return "connection"
