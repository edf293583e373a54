"""The pool: connections opened ahead of need, kept, and used again; and which replica the next request goes to."""

import contextlib
import resource
from collections.abc import Callable, Sequence
from operator import attrgetter

from dyno.clock import now_ns
from dyno.errors import TargetError, UsageError, limit_advice
from dyno.http import Route, tls_context
from dyno.load.connection import IN, OUT, Connection, Poller, Replica, begin
from dyno.load.plan import Plan
from dyno.numbers import count
from dyno.option import setting_name
from dyno.units import NS_PER_S, ns

AHEAD_NS = NS_PER_S // 2  # connections are opened this long before a request needs them
# uvicorn closes a kept-alive connection after 5 s: don't race it
IDLE_MAX_NS = 4 * NS_PER_S
OPENING_MAX = 256  # at a time: a server's queue for new connections is short
_BUSY = attrgetter("held", "in_flight")  # those that are held come last


class Pool:
    def __init__(self, routes: Sequence[Route], fronts: Sequence[bytes]) -> None:
        self.poller = Poller()
        self.connections: dict[int, Connection] = {}
        via = routes[0].via
        context = tls_context(via) if any(route.url.tls for route in routes) else None
        self.replicas = [
            Replica(i, route, front, context if route.url.tls else None)
            for i, (route, front) in enumerate(zip(routes, fronts, strict=True))
        ]
        self._connect_ns = ns(via.connect_timeout_s)
        self.only = self.replicas[0] if len(self.replicas) == 1 else None
        # whoever has waited longest for a request first
        self._in_turn = list(self.replicas)
        self._error: str | None = None  # of one that was opened ahead
        self._reuse = True  # connections carry several exchanges

    # ---- replicas ----

    def choose(self) -> Replica:
        """Return the replica for the next request: the one with the least in flight, by turns among equals."""
        chosen = min(self._in_turn, key=_BUSY)
        self._in_turn.remove(chosen)
        self._in_turn.append(chosen)
        return chosen

    def hold(self, replica: Replica, error: Exception | None = None) -> None:
        """Send nothing to this replica until a connection to it opens, unless all are held.

        Called after a request without an answer, or with 429 or 5xx. A dead replica fails at once, so it always has the
        least in flight and would be sent everything. A limit of the client's own (`error`) holds none.
        """
        if error is None or not limit_advice(error):
            replica.held = self.only is None

    def try_held(self) -> None:
        """Try those held by a connection, not by a request: that costs no failure."""
        for replica in self.replicas:
            if replica.held and not replica.opening:
                self._open_spare(replica)

    # ---- connections ----

    def open(self, replica: Replica) -> Connection:
        connection = begin(replica)
        self.connections[connection.fd] = connection
        self.poller.register(connection.fd, IN | OUT)
        return connection

    def open_first(
        self,
        plan: Plan,
        stopped: Callable[[], bool],
        read: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        """Open what the first moments need before the clock starts, a few hundred at a time, at least one to each
        replica."""
        wanted = max(plan.first_wave(AHEAD_NS), len(self.replicas))
        _allow_open_files(plan)
        allowed_ns = max(30 * NS_PER_S, self._connect_ns)
        deadline = now_ns() + allowed_ns
        while (idle := sum(len(r.idle) for r in self.replicas)) < wanted and not stopped():
            while (
                (spare := self._spare()) < wanted
                and spare - idle < OPENING_MAX
                and self._error is None
            ):
                self._open_spare(self._fewest())
            read(self.poller.poll(0.1))
            self.give_up(now_ns())
            if self._error is not None:
                raise TargetError(self._error) from None
            if now_ns() > deadline:
                short = min(self.replicas, key=lambda r: len(r.idle))
                raise TargetError(
                    f"{short.url} accepted only {len(short.idle)} of {wanted // len(self.replicas)} connections within "
                    f"{count(allowed_ns / NS_PER_S)} s. Lower {setting_name('--max-concurrency')}, or raise the "
                    "server's limit on connections."
                )

    def touch(self) -> None:
        """The load begins now: connections that were opened for it have not been idle."""
        now = now_ns()
        for replica in self.replicas:
            for connection in replica.idle:
                connection.idle_ns = now

    def open_ahead(self, plan: Plan, index: int, in_flight: int, until_ns: int) -> None:
        """Keep as many idle connections as requests are due until then, counted from the one at `index`."""
        assert plan.due_ns is not None
        ready = self._spare()
        index += ready
        room = plan.in_flight_max is None or ready + in_flight < plan.in_flight_max
        if (
            room
            and index < plan.count
            and plan.due_ns[index] <= until_ns
            and ready < OPENING_MAX
        ):
            self._open_spare(self._fewest())

    def open_for(self, requests: int) -> None:
        """Open one more, if there are fewer without an exchange than requests that are due soon."""
        if self._spare() < min(requests, OPENING_MAX):
            self._open_spare(self._fewest())

    def _spare(self) -> int:
        """Count connections without an exchange: idle, or being opened."""
        if self.only is not None:
            return len(self.only.idle) + self.only.opening
        return sum(len(r.idle) + r.opening for r in self.replicas)

    def _fewest(self) -> Replica:
        """Return the replica to open a connection to ahead of need, spread as the requests will be."""
        return self.only or min(
            self._in_turn, key=lambda r: (r.held, r.in_flight + len(r.idle) + r.opening)
        )

    def _open_spare(self, replica: Replica) -> None:
        try:
            self.open(replica)
        except OSError as e:  # the request itself will meet it, and report it
            self._not_reached(replica, e)
            return
        replica.opening += 1

    def opened(self, connection: Connection) -> None:
        """Take in a connection that was opened ahead and is ready."""
        connection.replica.opening -= 1
        self._keep(connection)

    def not_opened(self, connection: Connection, error: Exception) -> None:
        connection.replica.opening -= 1
        self.drop(connection)
        self._not_reached(connection.replica, error)

    def give_up(self, now: int) -> None:
        """Drop connections opened ahead that the server doesn't accept in time."""
        late = [
            c
            for c in self.connections.values()
            if c.exchange < 0 and self.connects_late(c, now)
        ]
        for connection in late:
            self.not_opened(connection, TimeoutError())

    def connects_late(self, connection: Connection, now: int) -> bool:
        return not connection.ready and connection.idle_ns < now - self._connect_ns

    def _not_reached(self, replica: Replica, error: Exception) -> None:
        self._error = replica.route.unreachable(error)
        self.hold(replica, error)

    def take(self, replica: Replica) -> Connection | None:
        now = now_ns()
        idle = replica.idle
        while idle:
            connection = idle.pop()
            if now - connection.idle_ns < IDLE_MAX_NS:
                connection.waited = True
                return connection
            self.drop(connection)
        return None

    def lost(self, connection: Connection, error: Exception | None = None) -> None:
        """Drop an idle connection that the server closed or reset; by TLS it may say why."""
        if error is not None:
            self._not_reached(connection.replica, error)
        self.learn_to_reconnect(connection)
        with contextlib.suppress(ValueError):
            connection.replica.idle.remove(connection)
        self.drop(connection)

    def give_back(self, connection: Connection) -> None:
        """Keep or drop the connection after an exchange."""
        connection.carried = True
        if connection.keep_alive and self._reuse and not connection.out:
            self._keep(connection)
        else:
            self.drop(connection)

    def _keep(self, connection: Connection) -> None:
        connection.idle_ns = now_ns()
        connection.replica.idle.append(connection)

    def learn_to_reconnect(self, connection: Connection) -> None:
        """Stop reuse: llama.cpp's server promises to keep connections and closes each one after its stream."""
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
                f"Share them among processes ({setting_name('--procs')}), set {setting_name('--max-concurrency')} "
                "lower, or raise the limit (ulimit -Hn)."
            )
        need = hard  # an open loop rarely has all its requests in flight
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
