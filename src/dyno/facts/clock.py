"""A clock on another machine, read from here: how far it is ahead, and how exactly that is known."""

import msgspec


class ClockReading(msgspec.Struct, frozen=True):
    """The shortest of many round trips. The other clock was read within it, so half of it is the uncertainty."""

    at_ns: int  # on the other clock
    ahead_ns: int  # the other clock minus this one
    round_trip_ns: int

    @property
    def uncertainty_ns(self) -> int:
        return self.round_trip_ns // 2


class NodeClock(msgspec.Struct, frozen=True):
    """The monotonic clock of a node, read before and after the load. Both clocks are assumed to run evenly between."""

    before: ClockReading
    after: ClockReading | None = None  # None: the node was lost

    @property
    def uncertainty_ns(self) -> int:
        return max(r.uncertainty_ns for r in (self.before, self.after) if r)

    @property
    def drift(self) -> float:
        """Return the seconds that the node's clock gains in a second."""
        if self.after is None or self.after.at_ns <= self.before.at_ns:
            return 0.0
        return (self.after.ahead_ns - self.before.ahead_ns) / (
            self.after.at_ns - self.before.at_ns
        )

    @property
    def gain_ns(self) -> int:
        """Return how far the clocks went apart between the two readings."""
        return abs(self.after.ahead_ns - self.before.ahead_ns) if self.after else 0

    def ahead_ns(self, node_ns: int) -> int:
        """Return how far the node's clock is ahead when it shows this time."""
        return self.before.ahead_ns + round(self.drift * (node_ns - self.before.at_ns))
