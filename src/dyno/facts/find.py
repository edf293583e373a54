"""A search for the highest load within a target: what is asked, and the answer."""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from dyno.errors import UsageError
from dyno.facts import limits
from dyno.facts.finding import Finding, Verdict, verdict
from dyno.facts.limits import Limit
from dyno.facts.metric import OUTPUTS, TARGETS
from dyno.option import Option

Over = Literal["concurrency", "rate"]
Outcome = Literal["meets", "misses", "undecided"]
# Why a search ended. narrow: the answer is known as closely as it can be.
Ended = Literal[
    "narrow",
    "every load meets",
    "no load meets",
    "budget",
    "client",
    "interrupted",
    "server gone",
    "void",
]
# and the start
RANGES: dict[str, tuple[float, float, float]] = {
    "concurrency": (1, 1024, 4),
    "rate": (0.1, 1000, 1),
}


_LEAST = 50  # percentile of a target
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
TARGET = Option(
    "--target",
    "FIGURE:LIMIT",
    f"what the load must keep, such as {limits.EXAMPLE}",
    nargs="+",
)


class FindSpec(msgspec.Struct, frozen=True):
    """Flags of `dyno find`; a study's [find] has the same names without dashes."""

    limits: Annotated[list[Limit], Option(setting="--target")]
    over: Annotated[
        Over,
        Option("--over", help="what rises: requests in flight, or requests per second"),
    ] = "concurrency"
    least: Annotated[
        float | None,
        Option("--from", "N", "lowest load to try (default: 1, or 0.1/s)", above=0),
    ] = None
    most: Annotated[
        float | None,
        Option("--to", "N", "highest load to try (default: 1024, or 1000/s)", above=0),
    ] = None
    resolution: Annotated[
        float,
        Option(
            "--resolution",
            "R",
            "share by which the bounds of the answer may differ",
            least=0.01,
            most=1,
        ),
    ] = 0.05
    budget_s: Annotated[
        float,
        Option(
            "--budget",
            "S",
            "end after S seconds with the best answer so far; 20m and 2h work, too",
            above=0,
        ),
    ] = 1200.0
    confirm_s: Annotated[
        float | None,
        Option(
            "--confirm",
            "S",
            "measure the answer once more, for this long (default: don't)",
            above=0,
        ),
    ] = None

    @property
    def range(self) -> tuple[float, float, float]:
        """Return the lowest and the highest load, and the first one to try."""
        least, most, start = RANGES[self.over]
        low, high = self.least or least, self.most or most
        return low, high, min(max(start, low), high)


def spec_of(target: Sequence[str], values: dict[str, Any], dashes: str = "--") -> FindSpec:
    """Make a spec from a target's words. `dashes`: before the names of settings in messages."""
    wanted = limits.parse(target, f"{dashes}target", TARGETS)
    for limit in wanted:
        percentile = limit.percentile
        if limit.statistic == "max" or (percentile is not None and percentile < _LEAST):
            raise UsageError(
                f"{dashes}target {limit.stem}_{limit.statistic}: a search takes ttft, tpot, itl or e2el with _mean or "
                f"_p{_LEAST} to _p99.9, such as {limit.stem}_p95. No number of requests shows the highest value; "
                "below the median, most requests may exceed the limit."
            )
    spec = FindSpec(limits=limits.with_statistic(wanted), **values)
    low, high, _ = spec.range
    if low > high:
        raise UsageError(
            f"{dashes}from {low:g} is above {dashes}to {high:g}. Lower the first or raise the second."
        )
    if spec.over == "concurrency" and (
        part := next((x for x in (low, high) if x % 1), None)
    ):
        name = "from" if part == low else "to"
        raise UsageError(
            f"{dashes}{name} {part:g}: concurrency is a whole number of requests."
        )
    return spec


def span_s(text: str) -> float | None:
    """Read a time in seconds, such as 90, 90s, 20m or 2h. None: it isn't one."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    unit_s = {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]
    return float(match[1]) * unit_s or None


class LimitFigure(msgspec.Struct, frozen=True):
    """A figure at a load, and its limit."""

    limit: Limit
    value: float | None
    within: bool | None  # None: not decided

    @property
    def margin(self) -> float:
        """Return the log of the figure over its limit: below 0 is within."""
        if self.value is None:
            return 0.0
        if not self.limit.most:
            return 1.0 if self.value > 0 else -1.0
        return math.log(max(self.value, 1e-3 * self.limit.most) / self.limit.most)


class Weighed(msgspec.Struct, frozen=True, cache_hash=True):
    """What one probe shows about a limit."""

    count: int = 0  # requests
    worth: float = 0.0  # as many with equal weights
    late_high: float = 1.0  # share of late requests, at most
    late_low: float = 0.0  # at least
    margin: float = 0.0  # log of the figure over its limit
    margin_high: float = 0.0  # at most; in an open loop also by the second half alone
    margin_low: float = 0.0  # at least
    # of the margin, were the requests independent; None: unknown
    error: float | None = None
    value: float | None = None  # the figure
    factor: float = 1.0  # requests that are worth one, by who is late
    alike: float = 1.0  # the same by who is above the figure, or above the median


class ProbeLook(msgspec.Struct, frozen=True):
    """What a probe shows at a time."""

    now_s: float
    from_s: float  # requests count from here
    length_s: float  # of a request, on average; open ones count with their age
    count: int  # requests that count
    rate: float  # ended per second, of those that count
    ready: bool  # the probe is long enough to be judged
    rough: bool = False  # it is long enough to show where to look
    weighed: list[Weighed] = []  # for each limit
    grows: bool = False  # the backlog, without end
    swells: bool = False  # it may
    settled: bool = False  # it is long against what neighbours have in common
    # of each latency with a limit: s since the load began, mean log of what requests took
    profiles: list[list[tuple[float, float]]] = []

    @property
    def margin(self) -> float:
        """Return the margin of the limit that is nearest to being missed, or missed most."""
        worst = max((w.margin for w in self.weighed), default=0.0)
        return max(worst, 0.5) if self.grows else worst


class ProbeFacts(msgspec.Struct, frozen=True):
    """A load that was tried, once."""

    level: float
    outcome: Outcome  # of all probes of this load
    brief: bool
    requests: int  # that were judged
    sent: int
    duration_s: float
    figures: list[LimitFigure]
    # its folder, in that of the search
    run: Annotated[str, msgspec.Meta(pattern=r"\A(?!\.)[\w.-]{1,200}\Z")]
    queue_grew: bool = False
    throughput: float | None = None
    throughput_of: str = OUTPUTS[0]  # its metric
    verdict: str = ""
    length_s: float | None = None  # of a request
    began_s: float = 0.0  # since the search began
    disturbed: str = ""  # what kept dyno or the server from working alone
    doubts: list[str] = []  # codes of the findings that make it doubtful

    @property
    def margin(self) -> float:
        """Return the margin of the limit that is nearest to being missed, or missed most."""
        return max((figure.margin for figure in self.figures), default=0.0)


class StoredProbe(msgspec.Struct, frozen=True):
    """A probe as a search's folder keeps it, to continue the search."""

    facts: ProbeFacts
    look: ProbeLook


class SearchTime(msgspec.Struct, frozen=True):
    """An estimate of how long a search takes, in all."""

    probes_least: int
    probes_most: int
    least_s: float
    most_s: float


class FindAnswer(msgspec.Struct, frozen=True):
    spec: FindSpec
    ended: Ended
    low: float | None  # shown to meet the target
    high: float | None  # shown to miss it
    probes: list[ProbeFacts]
    repeated: int  # probes that were void or disturbed, and are not counted
    duration_s: float
    # figures that miss at `high`, and resources that were short there
    limited_by: list[str] = []
    cliff: str = ""  # where the figures jump
    contradiction: str = ""  # where loads met the target above one that missed it
    confirmed: ProbeFacts | None = None
    estimate: SearchTime | None = None  # after the first probe
    # Where 95 % can't be supported: the interval that the data supports, and its confidence.
    likely_low: float | None = None
    likely_high: float | None = None
    confidence: float | None = None
    # --budget that would probably decide it; None: it is decided, or unknown
    needs_s: float | None = None
    varies: str = ""  # by how much probes of one load differed
    starts: str = ""  # what is left out, where latencies change the first seconds of a load
    line: str = ""  # what the ends rest on, where they are between loads that were tried
    findings: list[Finding] = []  # about the server's answers, from the correctness check
    void: str = ""  # why probes were void, or disturbed, where that ended the search
    command: str = ""  # that measures the answer again

    @property
    def decided(self) -> bool:
        """Return whether both ends are shown, or every load or none was shown to meet the target."""
        if self.ended == "every load meets" or self.none_meets:
            return True
        return self.low is not None and self.high is not None

    @property
    def none_meets(self) -> bool:
        """Return whether the lowest load was shown to miss the target."""
        lowest = self.spec.range[0]
        return self.ended == "no load meets" or (self.low is None and self.high == lowest)

    @property
    def verdict(self) -> Verdict:
        return verdict(self.findings)

    @property
    def below(self) -> ProbeFacts | None:
        """Return the longest probe of the highest load tried that is shown to meet the target."""
        tried = [
            p.level for p in self.probes if self.low is not None and p.level <= self.low
        ]
        return self.at_level(max(tried, default=None))

    @property
    def above(self) -> ProbeFacts | None:
        """Return the longest probe of the lowest load tried that is shown to miss it."""
        tried = [
            p.level for p in self.probes if self.high is not None and p.level >= self.high
        ]
        return self.at_level(min(tried, default=None))

    def at_level(self, level: float | None) -> ProbeFacts | None:
        """Return the longest probe at this load."""
        same = [p for p in self.probes if p.level == level]
        return max(same, key=lambda p: p.requests, default=None)
