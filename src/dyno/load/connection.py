"""A connection to the server, from the first step of opening it, and the state of the exchange that is on it."""

import contextlib
import errno
import os
import socket
import ssl
import sys
from array import array
from collections.abc import Callable
from typing import Any

from dyno.clock import now_ns
from dyno.errors import limit_advice
from dyno.http import connect_unix, describe_tls
from dyno.load import http1
from dyno.load.poller import IN
from dyno.load.replica import Replica
from dyno.transport import ProxyRefused, granted

READ_BYTES = 32_768
UNIX_CONNECT_S = 1.0  # at most, for a place in its queue: the loop stands still meanwhile
SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None  # the kernel stamps what arrives

Recv = Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]


class Connection:
    """A connection and the exchange that is on it."""

    __slots__ = (
        "body", "carried", "due_ns", "exchange", "fd", "framing", "head", "history", "idle_ns", "keep_alive", "left",
        "out", "read_ns", "ready", "recv", "replica", "room", "sent_ns", "silent", "socket", "take", "tls", "tunnel",
        "waited", "way",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, replica: Replica) -> None:
        self.socket = sock
        self.replica = replica
        self.fd = sock.fileno()
        self.recv: Recv = sock.recvmsg
        if replica.url.unix or replica.route.via.read_timeout_s is not None:
            self.recv = self._recv
        self.tls = None if replica.tls is None else Tls(replica.tls, replica.url.host)
        self.tunnel = replica.route.tunnel  # to be sent to a proxy before all else
        self.way: bytes | None = b"" if self.tunnel else None  # what it has answered; None: the way is open
        self.ready = False  # connected (and through the TLS handshake)
        self.exchange = -1  # which one is on it; -1: idle
        self.due_ns = 0  # … and when it was due
        self.carried = False  # an exchange, before
        self.history = array("I")  # all exchanges that it was given
        self.room = 0  # bytes that the response may still take
        self.waited = False  # was idle before its exchange, so that the server may have closed it meanwhile
        self.idle_ns = now_ns()  # since when it carries nothing
        self.out = b""  # what of the request didn't fit into the socket yet
        self.clear()

    def advance(self, event: int) -> bool:
        """One more step of connecting and the TLS handshake; True when it is ready. OSError where it fails."""
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
                    raise ConnectionResetError(errno.ECONNRESET, "closed during the TLS handshake")
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
        """Through the proxy."""
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

    def _recv(self, size: int, extra: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """Where more is to be known of a read than the kernel's stamp. A Unix socket has none; what may come beside
        the data there are open files, which nobody wants."""
        read = self.socket.recvmsg(size, 0 if self.replica.url.unix else extra)
        self.read_ns = now_ns()
        return read

    def clear(self) -> None:
        self.silent = True  # no byte of the response yet
        self.head = b""  # a head that is still incomplete
        self.body = False
        self.framing: http1.Chunked | None = None
        self.take: Callable[[bytes], int] | None = None  # set while nothing but plain chunked reads are to come
        self.left = -1  # bytes of a body of known length still to come; -1: until the connection closes
        self.keep_alive = True
        self.sent_ns = 0
        self.read_ns = 0  # of its last byte, where there is a limit to its silence


class Tls:
    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    def plain(self, data: bytes) -> bytes:
        self.incoming.write(data)
        parts = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self.object.read(READ_BYTES):
                parts.append(part)
        return b"".join(parts)


def begin(replica: Replica) -> Connection:
    """A connection under way. OSError where the system refuses at once."""
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
    """The kind and the words of a failed request."""
    what = describe_tls(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or error
    return f"{_kind(error)}: {what}"


def _kind(error: Exception) -> str:
    if limit_advice(error):
        return "client"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", 0) == errno.ECONNREFUSED:
        return "refused"
    if isinstance(error, TimeoutError) or getattr(error, "errno", 0) == errno.ETIMEDOUT:
        return "timeout"
    if getattr(error, "errno", 0) in (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED):
        return "reset"
    return "connection"
