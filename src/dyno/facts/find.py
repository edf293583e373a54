"""A search for the highest load within a target: what is asked, and the answer."""

from typing import Annotated, Literal

import msgspec

from dyno.facts.limits import Limit
from dyno.option import Option

Over = Literal["concurrency", "rate"]
# Why a search ended. narrow: the answer is known as closely as it can be.
Ended = Literal["narrow", "every load meets", "no load meets", "budget", "client", "interrupted", "server gone", "void"]
RANGES: dict[str, tuple[float, float, float]] = {"concurrency": (1, 1024, 4), "rate": (0.1, 1000, 1)}  # and the start


class FindSpec(msgspec.Struct, frozen=True):
    limits: list[Limit]
    over: Annotated[Over, Option("--over", help="what rises: requests in flight, or requests per second")] = (
        "concurrency"
    )
    least: Annotated[float | None, Option("--from", "N", "lowest load to try (default: 1, or 0.1/s)", above=0)] = None
    most: Annotated[float | None, Option("--to", "N", "highest load to try (default: 1024, or 1000/s)", above=0)] = None
    resolution: Annotated[
        float,
        Option("--resolution", "R", "share by which the bounds of the answer may differ", least=0.01, most=1),
    ] = 0.05
    budget_s: Annotated[
        float, Option("--budget", "S", "end after S seconds with the best answer so far; 20m and 2h work, too", above=0)
    ] = 1200.0
    confirm_s: Annotated[
        float | None, Option("--confirm", "S", "measure the answer once more, for this long (default: don't)", above=0)
    ] = None

    @property
    def range(self) -> tuple[float, float, float]:
        """The lowest and the highest load, and the first one to try."""
        least, most, start = RANGES[self.over]
        low, high = self.least or least, self.most or most
        return low, high, min(max(start, low), high)


class LimitFigure(msgspec.Struct, frozen=True):
    """A figure at a load, and its limit."""

    limit: Limit
    value: float | None
    within: bool | None  # None: not decided


class ProbeFacts(msgspec.Struct, frozen=True):
    """A load that was tried."""

    level: float
    outcome: Literal["meets", "misses", "undecided"]
    brief: bool
    requests: int  # that were judged
    sent: int
    duration_s: float
    figures: list[LimitFigure]
    run: str  # its folder
    queue_grew: bool = False
    throughput: float | None = None  # output tokens/s
    verdict: str = ""


class FindAnswer(msgspec.Struct, frozen=True):
    spec: FindSpec
    ended: Ended
    low: float | None  # shown to meet the target
    high: float | None  # shown to miss it
    probes: list[ProbeFacts]
    repeated: int  # probes that were void or limited by the client, and are not counted
    duration_s: float
    limited_by: list[str] = []  # figures that miss at `high`, and resources that were short there
    cliff: str = ""  # where the figures jump
    contradiction: str = ""  # where loads met the target above one that missed it
    confirmed: ProbeFacts | None = None

    def at_level(self, level: float | None) -> ProbeFacts | None:
        """The longest probe there."""
        same = [p for p in self.probes if p.level == level]
        return max(same, key=lambda p: p.requests, default=None)
