"""An entry of a report: one result as pages and pictures show it, the repeats of a trial together.

Charts and tables use only this, whatever the source: a run, a study's trial or another tool's table.
"""

import msgspec

from dyno.facts.comparison import Basis
from dyno.facts.explanation import Neighbourhood, Part
from dyno.facts.find import FindAnswer
from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import Row, RowKind, Scalar
from dyno.facts.load import Load
from dyno.facts.rig import Peaks
from dyno.facts.summary import ClassSummary, TurnSummary


class Number(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure with what is known of its exactness."""

    value: float
    low: float | None = None  # of the 95 % interval; None: not known
    high: float | None = None
    by: Basis = ""  # whence the interval
    half: float = 0.0  # half a unit of the last digit that was printed; 0: it is dyno's own
    definition: str = ""  # key in facts/metric.py
    deviation: float | None = None  # standard deviation, as printed with ±
    # The interval is wider than the figure: how many of what `by` counts would make it ± 10 %; 0: unknown.
    enough: int | None = None

    @property
    def usable(self) -> bool:
        """Return whether it has an interval that is narrower than itself."""
        return self.low is not None and self.high is not None and self.enough is None


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Each figure charges the full price to one kind of token (METHOD.md)."""

    currency: str
    hour: float  # of what was measured; 0: only the price of energy is known
    per_million_input: float | None = None
    per_million_output: float | None = None
    per_million_total: float | None = None
    per_thousand_requests: float | None = None
    energy_per_million_output: float | None = None  # electricity alone, besides
    source: str = ""  # where the price is from, in words
    # The price covers whole machines, also where only a part was used, or accelerators: then others pay for the rest.
    basis: str = "accelerators"  # or machine


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """A request in the timeline. Seconds since the load began."""

    sent_s: float
    first_s: float | None  # its first token
    end_s: float
    error: str = ""  # '': completed


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """A slice of the load's time. None: not known there."""

    at_s: float  # its middle, since the load began
    power_w: float | None
    tokens_per_s: float | None
    joules_per_token: float | None


class Position(msgspec.Struct, frozen=True):
    """A figure's position under the roofline."""

    what: str  # decode, prefill, whole
    intensity: float  # operations for each byte of memory
    flops: float  # operations/s that were done
    bandwidth_share: float
    arithmetic_share: float


class Memory(msgspec.Struct, frozen=True):
    # when the engine was ready, before any request; of all its accelerators together
    after_load_bytes: float | None
    peak_bytes: float | None
    # or processes: what the engine's processes hold of the machine's
    basis: str = "accelerators"


class Quality(msgspec.Struct, frozen=True, omit_defaults=True):
    """How well a series answers, beside how fast it is."""

    score: Number
    items: int | None
    test: str  # which tasks, in words
    entry: str  # the id of the score's entry
    # the series that it is compared with; '': it is the reference, or the only one
    reference: str = ""
    # against the reference, in score; None: it is the reference, or not comparable
    change: Number | None = None
    detectable: float | None = None  # smallest loss
    word: str = ""  # how sure the change is
    timed: bool = False  # this entry's speed is the one that is shown beside the score


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str  # 't12': the anchor of its facts in a page
    # what is compared, the same colour throughout; of a trial that differs in no setting, its engine
    series: str
    kind: RowKind
    load: Load
    verdict: Verdict
    label: str = ""  # the trial's whole name
    tool: str = ""  # who measured; '' of a table that doesn't say
    # as rows name them (facts/imported.py); empty where the trial failed
    figures: dict[str, Number] = {}
    completed: float | None = None  # requests, of all repeats
    failed: float | None = None
    findings: list[Finding] = []
    settings: dict[str, Scalar] = {}
    repeats: int = 1
    rows: list[Row] = []  # the repeats that it was made of; the first one has the settings
    locations: list[str] = []  # run folders, or file:line
    failure: str = ""  # it has no result: why
    accelerator: str = ""  # name
    accelerators: float | None = None  # that it used
    machine: float | None = None  # accelerators of the whole machine; None: not known
    cost: Cost | None = None
    price: str = ""  # the assumption behind the cost, in words
    quality: Quality | None = None  # of its series; of a score, its own
    # the search whose highest load within its target this is
    search: FindAnswer | None = None
    memory: Memory | None = None
    power_w: float | None = None
    joules_per_token: float | None = None
    positions: list[Position] = []
    peaks: Peaks | None = None
    precision: str = ""  # of the arithmetic, by which a position is meant
    # From the single requests, of the first repeat that has them:
    # 'ttft' → [(share of samples, milliseconds)]
    quantiles: dict[str, list[tuple[float, float]]] = {}
    bars: list[Bar] = []
    bars_of: int = 0  # requests there were, of which some are shown
    moments: list[Moment] = []
    parts: list[Part] = []  # where the time of its requests went
    slowest: list[Neighbourhood] = []
    # Of the first repeat:
    turns: list[TurnSummary] = []  # by place in the session
    classes: list[ClassSummary] = []  # of traffic

    def value(self, name: str) -> float | None:
        number = self.figures.get(name)
        return None if number is None else number.value

    def statistic(self, statistic: str, stem: str) -> Number | None:
        """Return a statistic of a latency by name: some call the median p50."""
        other = {"p50": "median", "median": "p50"}.get(statistic, statistic)
        return self.figures.get(f"{statistic}_{stem}_ms") or self.figures.get(
            f"{other}_{stem}_ms"
        )

    @property
    def axes(self) -> dict[str, float]:
        return self.load.axes

    @property
    def axis(self) -> str:
        """Return the axis of its load's level; '' where there is none."""
        return self.load.level[0] if self.load.level else ""
