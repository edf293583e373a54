"""Progress that the wire reports while it runs, and the request to stop."""

from collections import deque

import msgspec

RECENT = 64  # times of first bytes that the live figure is of
_USAGE_KEYS = (b'"completion_tokens":', b'"generated_tokens":', b'"tokens_predicted":')


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
    first_ns: int = 0  # … and the sum of their times from sent: near the time to the first token
    recent_ns: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT))  # … and the last of these times
    tokens_ended: int = 0  # by the usage at the end of finished responses, where it was there

    @property
    def tokens_estimate(self) -> float:
        """Reads so far, scaled by the tokens per read of finished responses. Responses in flight count as half done."""
        if not self.tokens_ended:
            return float(self.reads)
        done = self.ended / (self.ended + self.in_flight / 2)
        return self.tokens_ended / done


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
    """Return the token count in a response's last bytes, without decoding them: for the live figure only."""
    for key in _USAGE_KEYS:
        start = data.rfind(key) + len(key)
        if start >= len(key):
            digits = data[start : start + 12].strip().split(b",")[0].split(b"}")[0]
            return int(digits) if digits.isdigit() else 0
    return 0
