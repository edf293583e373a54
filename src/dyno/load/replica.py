"""A replica: one copy of the server, where it is, and what is on its way to it."""

import socket
import ssl
from typing import TYPE_CHECKING

from dyno.errors import TargetError
from dyno.http import Url, unreachable

if TYPE_CHECKING:
    from dyno.load.connection import Connection


class Replica:
    __slots__ = (
        "address", "family", "front", "held", "idle", "in_flight", "mark", "opening", "refused", "tls", "url",
    )  # fmt: skip

    def __init__(self, index: int, url: Url, front: bytes, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self.front = front  # what goes before each payload; empty: payloads are whole
        self.tls = tls
        self.family, self.address = _resolve(url)
        self.mark = index.to_bytes((index.bit_length() + 7) // 8, "little")  # in the spool; empty for the first
        self.in_flight = 0
        self.idle: list[Connection] = []  # last in, first out: the warmest connection is used first
        self.opening = 0  # connections under way that no exchange waits for yet
        self.refused = 0  # connections in a row
        self.held = False  # it didn't answer a request: no other one for it until a connection to it opens


def _resolve(url: Url) -> tuple[int, tuple[str, int]]:
    """The first of its addresses that takes a connection: localhost is often ::1 first, and the server IPv4 only."""
    error: OSError | None = None
    try:
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in found:
            if len(found) == 1:
                return family, address  # type: ignore[return-value]
            try:
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.settimeout(5)
                    probe.connect(address)
                return family, address  # type: ignore[return-value]
            except OSError as e:
                error = error or e
    except OSError as e:
        error = e
    raise TargetError(unreachable(url, error or OSError("no address"))) from None
