"""The pool: connections opened ahead of need, kept, and used again."""

import contextlib
import resource
import socket
from collections.abc import Callable

from dyno.clock import now_ns
from dyno.errors import TargetError, UsageError
from dyno.http import Url, tls_context, unreachable
from dyno.load.connection import Connection, Tls, begin
from dyno.load.plan import Plan
from dyno.load.poller import IN, OUT, Poller
from dyno.units import NS_PER_S

AHEAD_NS = NS_PER_S // 2  # connections are opened this long before a request needs them
IDLE_MAX_NS = 4 * NS_PER_S  # uvicorn closes a kept-alive connection after 5 s: don't race it
OPENING_MAX = 256  # at a time: a server's queue for new connections is short


class Pool:
    def __init__(self, url: Url, insecure: bool) -> None:
        self.poller = Poller()
        self.connections: dict[int, Connection] = {}
        self._url = url
        self._tls = tls_context(insecure) if url.tls else None
        self._family, self._address = _resolve(url)
        self._idle: list[Connection] = []  # last in, first out: the warmest connection is used first
        self._opening = 0  # connections under way that no exchange waits for yet
        self._error: Exception | None = None  # of one that was opened ahead
        self._reuse = True  # connections carry several exchanges

    def open(self) -> Connection:
        tls = None if self._tls is None else Tls(self._tls, self._url.host)
        connection = begin(self._family, self._address, tls)
        self.connections[connection.fd] = connection
        self.poller.register(connection.fd, IN | OUT)
        return connection

    def open_first(self, plan: Plan, stopped: Callable[[], bool], attend: Callable[[Connection, int], None]) -> None:
        """Before the clock starts: as many as the first moments need, a few hundred at a time."""
        wanted = plan.first_wave(AHEAD_NS)
        _allow_open_files(plan)
        deadline = now_ns() + 30 * NS_PER_S
        while len(self._idle) < wanted and not stopped():
            while self._opening < OPENING_MAX and self._opening + len(self._idle) < wanted:
                try:
                    self._open_spare()
                except OSError as e:
                    raise TargetError(unreachable(self._url, e)) from None
            for fd, event in self.poller.poll(0.1):
                if fd in self.connections:
                    attend(self.connections[fd], event)
            if self._error is not None:
                raise TargetError(unreachable(self._url, self._error)) from None
            if now_ns() > deadline:
                raise TargetError(
                    f"{self._url} took only {len(self._idle)} of {wanted} connections within 30 s. "
                    "Lower --max-concurrency, or raise the server's limit on connections."
                )
        now = now_ns()
        for connection in self._idle:
            connection.idle_ns = now

    def open_ahead(self, plan: Plan, index: int, in_flight: int, until_ns: int) -> None:
        """Keeps as many idle connections as requests are due until then, counted from the one at `index`."""
        assert plan.due_ns is not None
        ready = len(self._idle) + self._opening
        index += ready
        room = plan.in_flight_max is None or ready + in_flight < plan.in_flight_max
        if room and index < plan.count and plan.due_ns[index] <= until_ns and ready < OPENING_MAX:
            with contextlib.suppress(OSError):  # the request itself will meet it, and tell
                self._open_spare()

    def _open_spare(self) -> None:
        self.open()
        self._opening += 1

    def opened(self, connection: Connection) -> None:
        """One that was opened ahead is ready."""
        self._opening -= 1
        self._keep(connection)

    def not_opened(self, connection: Connection, error: Exception) -> None:
        self._opening -= 1
        self._error = error
        self.drop(connection)

    def take(self) -> Connection | None:
        now = now_ns()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_ns < IDLE_MAX_NS:
                connection.waited = True
                return connection
            self.drop(connection)
        return None

    def lost(self, connection: Connection) -> None:
        """The server closed or reset an idle connection."""
        self.learn_to_reconnect(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self.drop(connection)

    def give_back(self, connection: Connection) -> None:
        """After an exchange."""
        connection.carried = True
        if connection.keep_alive and self._reuse and not connection.out:
            self._keep(connection)
        else:
            self.drop(connection)

    def _keep(self, connection: Connection) -> None:
        connection.idle_ns = now_ns()
        self._idle.append(connection)

    def learn_to_reconnect(self, connection: Connection) -> None:
        """llama.cpp's server promises to keep connections and closes each one after its stream."""
        if connection.carried and now_ns() - connection.idle_ns < NS_PER_S:
            self._reuse = False

    def drop(self, connection: Connection) -> None:
        # By identity: its file number may be another connection's by now.
        if self.connections.get(connection.fd) is connection:
            del self.connections[connection.fd]
            with contextlib.suppress(OSError):
                self.poller.unregister(connection.fd)
            connection.socket.close()

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self.drop(connection)
        self.poller.close()


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


def _allow_open_files(plan: Plan) -> None:
    streams = min(plan.in_flight_max or plan.count, plan.count)
    need = streams + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard != resource.RLIM_INFINITY and need > hard:
        if plan.due_ns is None or plan.in_flight_max is not None:
            raise UsageError(
                f"{streams} connections at once need {need} open files; the system allows {hard}. "
                "Set --max-concurrency lower, or raise the limit (ulimit -Hn)."
            )
        need = hard  # an open loop rarely has all its requests in flight
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
