"""A connection to the server, from the first step of opening it, and the state of the exchange that is on it."""

import contextlib
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable

from dyno import limits
from dyno.clock import now_ns
from dyno.load import http1
from dyno.load.poller import IN
from dyno.load.replica import Replica

READ_BYTES = 32_768
SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None  # the kernel stamps what arrives


class Connection:
    """A connection and the exchange that is on it."""

    __slots__ = (
        "body", "carried", "due_ns", "exchange", "fd", "framing", "head", "idle_ns", "keep_alive", "left",
        "out", "ready", "recv", "replica", "sent_ns", "silent", "socket", "take", "tls", "waited",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, replica: Replica) -> None:
        self.socket = sock
        self.replica = replica
        self.fd = sock.fileno()
        self.recv = sock.recvmsg
        self.tls = None if replica.tls is None else Tls(replica.tls, replica.url.host)
        self.ready = False  # connected (and through the TLS handshake)
        self.exchange = -1  # which one is on it; -1: idle
        self.due_ns = 0  # … and when it was due
        self.carried = False  # an exchange, before
        self.waited = False  # was idle before its exchange, so that the server may have closed it meanwhile
        self.idle_ns = now_ns()  # since when it carries nothing
        self.out = b""  # what of the request didn't fit into the socket yet
        self.clear()

    def advance(self, event: int) -> bool:
        """One more step of connecting and the TLS handshake; True when it is ready. OSError where it fails."""
        if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
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

    def clear(self) -> None:
        self.silent = True  # no byte of the response yet
        self.head = b""  # a head that is still incomplete
        self.body = False
        self.framing: http1.Chunked | None = None
        self.take: Callable[[bytes], int] | None = None  # set while nothing but plain chunked reads are to come
        self.left = -1  # bytes of a body of known length still to come; -1: until the connection closes
        self.keep_alive = True
        self.sent_ns = 0


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
    return f"{_kind(error)}: {getattr(error, 'strerror', None) or error}"


def _kind(error: Exception) -> str:
    if limits.advice(error):
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
