"""A comparison: what was paired, what differs and how sure that is. METHOD.md, Comparing, has the words."""

from typing import Literal

import msgspec

from dyno.facts.finding import Finding, Verdict
from dyno.facts.load import Scalar
from dyno.facts.quality import PairedDifference
from dyno.numbers import (
    UNKNOWN,
    change,
    change_interval,
    change_with_interval,
    count,
    many,
    percent,
    points,
    points_interval,
    points_with_interval,
)

CONFIDENCE = 0.95
# Deviation from run to run, as a share of a figure, that no machine stays below for long, however well a few repeats
# agree: clocks, heat, memory layout.
LEAST = 0.005
LEAST_VARIATION = f"assuming run-to-run variation of at least {percent(LEAST)}"
ONE_RUN = "by single runs: they know nothing of slow spells that come fewer than ten times in a run"
# tests whose greedy answers are compared
ANSWERS_CHECK = "Check of answers around the load"
QUALITY_TEST = "Quality test"

# How it is known how far a figure may be off. shared: a single run, assumed to vary as the other side's repeats do.
Basis = Literal[
    "repeats",
    "shared",
    "requests",
    "iterations",
    "slices",
    "deviation",
    "stderr",
    "items",
    "",
]
# more of them make an interval narrower
REPEATABLE: tuple[Basis, ...] = ("repeats", "iterations", "requests")
# Of B against A. higher, lower: where neither way is better.
Word = Literal[
    "better", "worse", "perhaps better", "perhaps worse", "higher", "lower", "perhaps higher", "perhaps lower",
    "no difference detected", "inconclusive", "confidence unknown",
]  # fmt: skip
# Of a load: of all figures that are shown for it.
Summary = Literal[
    "better", "worse", "mixed", "higher", "lower", "no difference detected", "inconclusive", "confidence unknown",
    "not comparable",
]  # fmt: skip
GateState = Literal["held", "undecided", "broken"]


class Estimate(msgspec.Struct, frozen=True):
    """A figure of one side, and how far it may be off by chance."""

    value: float
    count: int  # of what `by` names
    error: float | None = None  # standard error, as a share of the value; None: not known
    df: float = 0.0  # degrees of freedom of the error
    by: Basis = ""
    why: str = ""  # there is no error, in words


class Difference(msgspec.Struct, frozen=True):
    metric: str
    a: Estimate
    b: Estimate
    word: Word
    change: float | None = None  # B ÷ A − 1, of scores from 0 to 1 B − A; None: A is 0
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    # difference that would have been found in four of five such comparisons
    smallest: float | None = None
    p: float | None = None
    # of each side, until a difference of this size would be found
    more_requests: int | None = None
    more_repeats: int | None = None
    why: str = ""  # there is no interval: why, in words
    paired: PairedDifference | None = None  # of scores of the same items
    lower: bool = False  # of a score that is better when it is lower
    # of scores from 0 to 1: change, low, high and smallest are differences, not shares
    points: bool = False
    # The interval includes 0 and is wider than B ÷ A: how many repeats per side would make it ± 10 %; 0: unknown.
    enough_repeats: int | None = None

    @property
    def inseparable(self) -> bool:
        """Return whether the data show no difference between the sides."""
        equal = self.word in ("no difference detected", "inconclusive")
        return equal or self.word.startswith("perhaps")

    @property
    def change_words(self) -> str:
        return points(self.change, signed=True) if self.points else change(self.change)

    @property
    def interval_words(self) -> str:
        """Return the two ends, or why they are of no use."""
        if self.enough_repeats is not None:
            return self.too_few
        return (
            points_interval(self.low, self.high)
            if self.points
            else change_interval(self.low, self.high)
        )

    @property
    def interval_phrase(self) -> str:
        """Return '95 % interval +11.8 to +12.9 %', or why there is none."""
        return (
            self.too_few
            if self.enough_repeats is not None
            else f"95 % interval {self.interval_words}"
        )

    @property
    def too_few(self) -> str:
        return (
            "too few repeats" if "repeats" in (self.a.by, self.b.by) else "too few samples"
        )

    @property
    def both_words(self) -> str:
        """Return the change with its interval: '+12.3 % ± 0.6', '+30.2 % (-2 to +73 %)'."""
        if self.change is None or self.low is None or self.high is None:
            return self.change_words
        if self.enough_repeats is not None:
            return f"{self.change_words} ({self.too_few})"
        shown = points_with_interval if self.points else change_with_interval
        return shown(self.change, self.low, self.high)

    @property
    def smallest_words(self) -> str:
        """A smallest detectable difference of a million percent says no more than its interval does."""
        if self.enough_repeats is not None:
            return UNKNOWN
        return points(self.smallest) if self.points else percent(self.smallest)


class Agreement(msgspec.Struct, frozen=True):
    """Greedy answers of both sides to the same prompts."""

    answers: int
    identical: int
    # length of what the others begin with alike: median; None: there are none
    divergence: int | None = None
    unit: Literal["token", "character"] = "token"

    @property
    def words(self) -> str:
        verb = "is" if self.answers == 1 else "are"
        text = f"{count(self.identical)} of {many(self.answers, 'greedy answer')} {verb} identical"
        if self.divergence is None:
            return text
        others = (
            "the others agree" if self.answers - self.identical > 1 else "the other agrees"
        )
        middle = " (median)" if self.answers - self.identical > 1 else ""
        return f"{text}; {others} for {many(self.divergence, self.unit)}{middle}"


class LeftOut(msgspec.Struct, frozen=True):
    metric: str
    why: str


class Side(msgspec.Struct, frozen=True):
    """The repeats of one setting."""

    rows: list[str]  # their locations
    label: str
    completed: int | None
    failed: int | None


class Pairing(msgspec.Struct, frozen=True):
    kind: str
    load: dict[str, Scalar]  # what both have in common: workload and load
    a: Side
    b: Side
    verdict: Verdict
    findings: list[Finding]
    word: Summary = "inconclusive"
    refused: bool = False
    differences: list[Difference] = []
    left_out: list[LeftOut] = []  # figures that mean different things on the two sides
    total: bool = False  # scores of several tasks together
    agreement: Agreement | None = None  # None: no greedy answers of both sides are known


class GateResult(msgspec.Struct, frozen=True):
    gate: str  # as it was written
    state: GateState
    text: str
    pairing: int | None  # index in the comparison's; None: no pairing has the figure
    # from the limit to the end of the interval that is nearest to it, in the gate's unit; below 0: beyond the limit
    room: float | None = None


class Comparison(msgspec.Struct, frozen=True):
    a: str
    b: str
    verdict: Verdict
    pairings: list[Pairing]
    unpaired_a: list[str]  # loads that the other side doesn't have, in words
    unpaired_b: list[str]
    findings: list[Finding] = []  # about the whole
    anyway: bool = False
    gates: list[GateResult] = []
