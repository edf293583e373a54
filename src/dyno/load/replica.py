"""A replica: one copy of the server, where it is, and what is on its way to it."""

import socket
import ssl
from typing import TYPE_CHECKING, Any

from dyno.errors import TargetError
from dyno.http import Route

if TYPE_CHECKING:
    from dyno.load.connection import Connection


class Replica:
    __slots__ = (
        "address", "family", "front", "held", "idle", "in_flight", "mark", "opening", "refused", "route", "tls", "url",
    )  # fmt: skip

    def __init__(self, index: int, route: Route, front: bytes, tls: ssl.SSLContext | None) -> None:
        self.url, self.route = route.url, route
        self.front = front  # what goes before each payload; empty: payloads are whole
        self.tls = tls
        self.family, self.address = _resolve(route)
        self.mark = index.to_bytes((index.bit_length() + 7) // 8, "little")  # in the spool; empty for the first
        self.in_flight = 0
        self.idle: list[Connection] = []  # last in, first out: the warmest connection is used first
        self.opening = 0  # connections under way that no exchange waits for yet
        self.refused = 0  # connections in a row
        self.held = False  # it didn't answer a request: no other one for it until a connection to it opens


def _resolve(route: Route) -> tuple[int, Any]:
    """The first of its addresses that takes a connection: localhost is often ::1 first, and the server IPv4 only."""
    error: OSError | None = None
    try:
        found = route.addresses()
        for family, address in found:
            if len(found) == 1:
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
