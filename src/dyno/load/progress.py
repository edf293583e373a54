"""Progress that the wire reports while it runs, and the request to stop."""

from collections import deque

import msgspec

RECENT = 64  # times of first bytes that the live figure is of
FOLLOWED = 4  # responses at a time, for the live rate: their reads are looked into
_USAGE_KEYS = (b'"completion_tokens":', b'"generated_tokens":', b'"tokens_predicted":')
_EVENT = b"data:"
_LAST_READS = 4  # of a response: its usage is in one of them
_FADE_PER_TICK = 0.95
_FADE_PER_RESPONSE = 0.98
# events of a response without a token: role, finish reason, usage, end mark …
_TOKENLESS_MOST = 6
_TOKENLESS = 3


class Progress(msgspec.Struct):
    """Counts while the load runs; for a progress line, not for results."""

    count: int
    until_s: float | None = None  # the load's duration, where it has one
    elapsed_ns: int = 0
    sent: int = 0
    ended: int = 0
    failed: int = 0  # by the wire's knowledge: errors inside a stream are found in decoding
    in_flight: int = 0
    reads: int = 0
    firsts: int = 0  # responses whose body has begun …
    # … and the sum of their times from sent: near the time to the first token
    first_ns: int = 0
    # … and the last of these times
    recent_ns: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT))
    bytes: int = 0  # received
    events: float = 0.0  # that carried tokens, by the bytes received
    tokens_per_event: float = 1.0  # by the usage of finished responses, where it was there


class FollowedResponse:
    """A response whose events are counted, read by read."""

    __slots__ = ("bytes", "events", "last", "noted_bytes", "noted_events")

    def __init__(self) -> None:
        self.bytes = self.events = 0
        self.noted_bytes = self.noted_events = 0  # at the last tick
        self.last: deque[bytes] = deque(maxlen=_LAST_READS)

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self.events += data.count(_EVENT)
        self.last.append(data)

    def tokens(self) -> int:
        """Return how many it has by its usage; 0: none was found."""
        return reported_tokens(b"".join(self.last))


class TokenPace:
    """Estimates events and tokens while streams run: bytes received, divided by the bytes of an event.

    Both sizes come from a few responses that are followed. To look into every read would slow the wire down. Until a
    followed response has ended, an event counts as one token.
    """

    def __init__(self) -> None:
        self._following: set[FollowedResponse] = set()
        self._event_bytes = self._events = 0.0  # of followed responses; older ones fade
        # of followed responses with a usage; likewise
        self._ended = self._ended_events = self._ended_tokens = 0.0
        self._noted_bytes = self._noted_ended = 0
        self._tokenless = 0.0  # events of a response that carry no token

    def follow(self) -> FollowedResponse | None:
        """Return what is to be given the reads of a response that begins now. None: enough are followed."""
        if len(self._following) >= FOLLOWED:
            return None
        response = FollowedResponse()
        self._following.add(response)
        return response

    def leave(self, response: FollowedResponse | None, whole: bool) -> None:
        """Follow it no longer. Whole answers show how many tokens an event has."""
        if response is None:
            return
        self._take_in(response)
        self._following.discard(response)
        if whole and (tokens := response.tokens()):
            self._ended = self._ended * _FADE_PER_RESPONSE + 1
            self._ended_events = self._ended_events * _FADE_PER_RESPONSE + response.events
            self._ended_tokens = self._ended_tokens * _FADE_PER_RESPONSE + tokens

    def note(self, progress: Progress) -> None:
        """Update the estimate. Called ten times a second."""
        self._event_bytes *= _FADE_PER_TICK
        self._events *= _FADE_PER_TICK
        for response in self._following:
            self._take_in(response)
        if not self._events:
            return
        if self._ended:
            self._tokenless, progress.tokens_per_event = self._tokens_per_event()
        fresh = (progress.bytes - self._noted_bytes) * self._events / self._event_bytes
        progress.events += fresh - self._tokenless * (progress.ended - self._noted_ended)
        self._noted_bytes = progress.bytes
        self._noted_ended = progress.ended

    def _take_in(self, response: FollowedResponse) -> None:
        self._event_bytes += response.bytes - response.noted_bytes
        self._events += response.events - response.noted_events
        response.noted_bytes = response.bytes
        response.noted_events = response.events

    def _tokens_per_event(self) -> tuple[float, float]:
        """Return how many events of a response carry no token, and how many tokens each other one carries."""
        without = (self._ended_events - self._ended_tokens) / self._ended
        if 0 <= without <= _TOKENLESS_MOST:  # one token each, and a few events more
            return without, 1.0
        return _TOKENLESS, self._ended_tokens / max(
            self._ended_events - _TOKENLESS * self._ended, self._ended
        )


class Stop:
    """Set by a signal handler; the loop looks at it ten times a second."""

    requested = False
    decided = False  # what was to be known is known: not an interruption

    def request(self, *_: object) -> None:
        self.requested = True

    def decide(self) -> None:
        """End a load that has answered its question."""
        self.requested = self.decided = True


def reported_tokens(data: bytes) -> int:
    """Return the last token count in these bytes, without decoding them: for the live figure only."""
    for key in _USAGE_KEYS:
        start = data.rfind(key) + len(key)
        if start >= len(key):
            digits = data[start : start + 12].strip().split(b",")[0].split(b"}")[0]
            return int(digits) if digits.isdigit() else 0
    return 0
