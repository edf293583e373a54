"""Sessions: requests that wait for one another. A request is due when its session begins, or when others have ended,
plus a wait. A single prompt is a session of one request, and needs none of this."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dyno.units import ns


class Graph(msgspec.Struct, frozen=True):
    """The order of the requests of a workload, session by session. Where the load has more sessions, they come round
    again."""

    starts: list[int]  # the first request of each session; then the number of all requests
    after: list[list[int]]  # for each request, those that must have ended before
    wait_ns: list[int]  # from then on, or from the start of the session

    @property
    def sessions(self) -> int:
        return len(self.starts) - 1

    @property
    def requests(self) -> int:
        return self.starts[-1]

    @classmethod
    def from_requests(cls, requests: Sequence[Any]) -> "Graph | None":
        """Return the order of requests. `requests`: turns, or what is stored of them. None: each is its own session,
        due when that begins."""
        numbers = [getattr(r, "session", None) for r in requests]
        waits = (
            s is not None and (s != i or requests[i].wait_s) for i, s in enumerate(numbers)
        )
        if not any(waits):
            return None
        starts = [
            i for i, session in enumerate(numbers) if not i or session != numbers[i - 1]
        ]
        return cls(
            [*starts, len(requests)],
            [r.after for r in requests],
            [ns(r.wait_s) for r in requests],
        )

    def members(self, session: int) -> range:
        """Return the exchanges of a session, which may be of a later round."""
        rounds, position = divmod(session, self.sessions)
        first = rounds * self.requests
        return range(first + self.starts[position], first + self.starts[position + 1])

    def session_of(self, exchange: int) -> int:
        rounds, request = divmod(exchange, self.requests)
        return rounds * self.sessions + bisect_right(self.starts, request) - 1

    def beside(self, exchange: int) -> range:
        """Return the exchanges of its session."""
        return self.members(self.session_of(exchange))

    def part(self, sessions: Sequence[int]) -> "Graph":
        """Return the graph of some of its sessions, numbered anew."""
        starts = [0]
        after = []
        wait_ns = []
        for session in sessions:
            first = self.starts[session]
            end = self.starts[session + 1]
            shift = starts[-1] - first
            after += [[i + shift for i in self.after[j]] for j in range(first, end)]
            wait_ns += self.wait_ns[first:end]
            starts.append(end + shift)
        return Graph(starts, after, wait_ns)

    def faster(self, speedup: float) -> "Graph":
        """Return the graph with waits divided by this."""
        if speedup == 1:
            return self
        return Graph(
            self.starts, self.after, [round(wait / speedup) for wait in self.wait_ns]
        )

    def requests_of(self, sessions: Sequence[int]) -> Iterator[int]:
        """Yield the requests of these sessions, in the order in which `part` numbers them."""
        for session in sessions:
            yield from range(self.starts[session], self.starts[session + 1])

    def turns(self) -> list[int]:
        """Return each request's place in its session: how many had to end before it, one after another."""
        turns: list[int] = []
        for before in self.after:
            turns.append(max((turns[i] + 1 for i in before), default=0))
        return turns


class _Session:
    __slots__ = ("in_flight", "unsent")

    def __init__(self, exchanges: range) -> None:
        self.unsent = set(exchanges)
        self.in_flight = 0


class Sessions:
    """The sessions that have begun and aren't over. Exchanges are numbered as in the graph, round after round."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.skipped = 0
        self.unsent = 0  # requests of sessions that have begun
        # exchange → its session, until it has ended or is skipped
        self._by_exchange: dict[int, _Session] = {}
        self._missing: dict[int, int] = {}  # exchange → how many must still end before it
        # request → those that wait for it
        self._next: list[list[int]] = [[] for _ in graph.after]
        for i, before in enumerate(graph.after):
            for j in before:
                self._next[j].append(i)

    def begin(self, number: int, now: int) -> list[tuple[int, int]]:
        """Return its first requests, each after the time when it is due."""
        graph = self._graph
        members = self._graph.members(number)
        session = _Session(members)
        first = []
        self.unsent += len(members)
        for exchange in members:
            self._by_exchange[exchange] = session
            request = exchange % graph.requests
            if graph.after[request]:
                self._missing[exchange] = len(graph.after[request])
            else:
                first.append((now + graph.wait_ns[request], exchange))
        return first

    def sends(self, exchange: int) -> bool:
        """Note that it is sent. False: it is skipped."""
        session = self._by_exchange.get(exchange)
        if session is None:
            return False
        session.unsent.remove(exchange)
        self.unsent -= 1
        session.in_flight += 1
        return True

    def ended(
        self, exchange: int, now: int, failed: bool
    ) -> tuple[list[tuple[int, int]], bool]:
        """Return the requests that had to wait for it alone, each after the time when it is due; and whether the
        session is over. After a failure the rest of the session is skipped."""
        graph = self._graph
        session = self._by_exchange.pop(exchange)
        session.in_flight -= 1
        following = []
        if failed:
            self.skipped += len(session.unsent)
            self._skip(session)
        else:
            request = exchange % graph.requests
            first = exchange - request
            for i in self._next[request]:
                if first + i not in self._missing:
                    continue  # skipped
                self._missing[first + i] -= 1
                if not self._missing[first + i]:
                    del self._missing[first + i]
                    following.append((now + graph.wait_ns[i], first + i))
        return following, not (session.in_flight or session.unsent)

    def stop(self) -> int:
        """Send nothing more; return how many sessions are over by this. What isn't sent is not counted as skipped."""
        begun = {id(session): session for session in self._by_exchange.values()}.values()
        for session in begun:
            self._skip(session)
        return sum(not session.in_flight for session in begun)

    def _skip(self, session: _Session) -> None:
        for exchange in session.unsent:
            del self._by_exchange[exchange]
            self._missing.pop(exchange, None)
        self.unsent -= len(session.unsent)
        session.unsent.clear()
