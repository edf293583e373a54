"""Where the time of requests went: parts that add up to their latency. METHOD.md defines each part and its error.

A part covers one or several of ATOMS. It covers several where they can't be separated, and then its title says so.
"""

from typing import Literal

import msgspec

# What a latency, from due to the last token, is made of. `front_end`: the server's, until the request is in its queue:
# HTTP, template, tokens of the prompt. `first_delivery` and `later_delivery`: from the moment at
# which the server has a token to the moment at which it arrives; of the first token, and by how much more of the last.
ATOMS = {
    "client_wait": "client's wait",
    "connection": "connection",
    "network": "network",
    "front_end": "front end",
    "queue": "queue",
    "prefill_bound": "prefill at the bound",
    "prefill_above": "prefill above the bound",
    "first_delivery": "first delivery",
    "decode_bound": "decode at the bound",
    "decode_above": "decode above the bound",
    "stall": "stalls by other prompts",
    "preemption": "preemption",
    "later_delivery": "later delivery",
}
REST = "rest"
# measured: by dyno's own times. claimed: the server says so. calculated: from the hardware's peaks, or from other gaps.
PartSource = Literal["measured", "claimed", "calculated"]
IncidentKind = Literal[
    "prefill", "stall", "pause", "silence", "client", "preemption", "queue"
]


class Part(msgspec.Struct, frozen=True):
    """One part of all requests together."""

    name: str
    title: str
    covers: list[str]  # of ATOMS; []: the rest
    sources: list[PartSource]
    about: str  # where it comes from, in words
    total_ns: int  # over all requests
    low_ns: int  # its bounds; both are the total where it is exact
    high_ns: int
    mean_ms: float
    share: float  # of the latency of all requests


class Incident(msgspec.Struct, frozen=True):
    """Something else that happened while a request was open."""

    kind: IncidentKind
    at_s: float  # since the load began
    length_s: float
    text: str


class RequestParts(msgspec.Struct, frozen=True):
    """One request."""

    index: int
    due_s: float
    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int
    latency_ms: float  # from due to the last token
    parts_ms: dict[str, float]  # by the part's name; the rest among them
    events: list[Incident] = []


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a request's time. Seconds since the load began."""

    what: str  # waited in dyno, queue, prefill, …, in words
    begin_s: float
    end_s: float


class Lane(msgspec.Struct, frozen=True):
    """One request in a timeline."""

    number: int
    prompt_tokens: int
    output_tokens: int
    segments: list[Segment]


class Neighbourhood(msgspec.Struct, frozen=True):
    """A request, among those that were sent next to it."""

    request: RequestParts
    lanes: list[Lane]  # in the order of sending; the request's own is among them


class Explanation(msgspec.Struct, frozen=True):
    """The parts of a run. Those of its requests may be coarser: what a server reports of all requests together splits
    no single one."""

    run: str
    title: str
    requests: int  # that are explained: completed, with at least one chunk, or in one piece
    failed: int
    left_out: int  # completed without any chunk
    output_tokens: int
    latency_ns: int  # of all of them, from due to the last token
    parts: list[Part]  # the rest is the last one
    request_parts: list[Part]  # as single requests have them
    tail: list[RequestParts]  # the slowest ones
    tail_groups: list[
        list[int]
    ]  # their numbers: those with alike parts and neighbours together
    notes: list[str]  # what to know about the split

    @property
    def mean_ms(self) -> float:
        return self.latency_ns / self.requests / 1e6 if self.requests else 0.0

    @property
    def rest(self) -> Part:
        return self.parts[-1]

    def part(self, atom: str) -> Part | None:
        """Return the part that covers this atom and nothing else."""
        return next((p for p in self.parts if p.covers == [atom]), None)


class PartChange(msgspec.Struct, frozen=True):
    """By how much a part differs between two sides, per request or per output token."""

    title: str
    covers: list[str]
    a_ms: float
    b_ms: float
    change_ms: float
    low_ms: float | None  # 95 % interval of the change; None: unknown
    high_ms: float | None
    points: float  # of the change of the latency, in percent of A's latency


class PartDifference(msgspec.Struct, frozen=True):
    a: str
    b: str
    per: Literal["request", "output token"]
    by: Literal["repeats", "requests"]  # where the intervals come from
    a_ms: float | None  # None: none of its requests completed, and nothing is compared
    b_ms: float | None
    change: PartChange | None  # of the whole latency
    parts: list[PartChange]
    sentence: str
    a_requests: int = 0  # completed
    a_failed: int = 0
    b_requests: int = 0
    b_failed: int = 0
    notes: list[str] = []
