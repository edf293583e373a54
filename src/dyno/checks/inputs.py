"""The inputs of checks: the figures and settings without which a check can't judge a result of another tool.

A check states them in the list of checks. A verdict names those that the results lack: 'not checked: token counts'.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from dyno.facts.imported import Document, Row
from dyno.facts.metric import SAMPLED, latency
from dyno.facts.rig import Peaks
from dyno.measure.points import finite_rate, named, subject

# by the accelerator's name, and how many there are
PeaksOf = Callable[[str, int], Peaks | None]


class Input(NamedTuple):
    """One of its figures or settings is enough."""

    words: str  # as a verdict names it
    figures: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    samples: bool = False  # or lists of single requests or iterations
    deviation: bool = False  # or a printed deviation
    # the accelerator's bandwidth and arithmetic; of a known accelerator
    peaks: bool = False
    # how many parameters a token reads: all of a dense model's, by the name of a known model
    read: bool = False

    def known(self, row: Row, document: Document, peaks_of: PeaksOf) -> bool:
        """Return whether a row or its document has this input."""
        if self.peaks:
            name = row.setting("accelerator")
            return name is None or peaks_of(str(name), 1) is not None
        if self.read:
            model = row.setting("model")
            return model is None or named(str(model)).dense is True
        if self._is_measured(row):
            return True
        # A dump of versions and devices holds for all results of its document.
        dumps = (row.settings, *document.environments)
        return any(name in settings for settings in dumps for name in self.settings)

    def _is_measured(self, row: Row) -> bool:
        """Return whether a row has one of the figures, or samples or a deviation where these are enough."""
        if any(name in row.figures for name in self.figures):
            return True
        if self.samples and row.samples is not None:
            return True
        return self.deviation and any(
            figure.deviation is not None for figure in row.figures.values()
        )


REQUESTS = Input("request counts", figures=("completed",))
FAILURES = Input("failures", figures=("failed",), settings=("num_prompts",))
TOKENS = Input("token counts", figures=("total_output_tokens", "total_tokens"))
LENGTHS = Input("requested lengths", settings=("input_len", "output_len"))
DURATION = Input("durations", figures=("duration_s",))
LOAD = Input("concurrency", settings=("concurrency", "rate"))
SLOTS = Input("the engine's slots", settings=("max_num_seqs",))
SINGLE = Input("single requests", samples=True)
ITERATIONS = Input("single iterations", samples=True, deviation=True)
MODEL = Input("models", settings=("model", "parameters"))
ACCELERATOR = Input("accelerators", settings=("accelerator",))
PEAKS = Input("peaks of the accelerators", peaks=True)
ACTIVE = Input("active parameters", read=True)
VERSION = Input("versions", settings=("engine_version",))
PRICE = Input("prices", settings=("price_per_hour",))
ERROR = Input("standard errors", figures=("stderr",))


class Needs(NamedTuple):
    """The inputs that a check needs for the results it applies to."""

    inputs: tuple[Input, ...]
    applies: Callable[[Row], bool]
    compares: bool = False  # it applies only where several subjects were measured


def where(applies: Callable[[Row], bool], *inputs: Input) -> Needs:
    return Needs(inputs, applies)


def served(*inputs: Input) -> Needs:
    return Needs(inputs, of_kinds("serve"))


def compared(*inputs: Input, kinds: Sequence[str] = ("serve",)) -> Needs:
    return Needs(inputs, of_kinds(*kinds), compares=True)


def of_kinds(*kinds: str) -> Callable[[Row], bool]:
    return lambda row: row.kind in kinds


def reporting(*figures: str) -> Callable[[Row], bool]:
    """Results with one of these figures: the figure is what the check is about."""
    return lambda row: any(name in row.figures for name in figures)


def both(*conditions: Callable[[Row], bool]) -> Callable[[Row], bool]:
    return lambda row: all(condition(row) for condition in conditions)


def of_tools(*tools: str) -> Callable[[Row], bool]:
    return lambda row: row.tool in tools


def with_percentiles(row: Row) -> bool:
    parts = (latency(name) for name in row.figures)
    return any(p is not None and p[1] in SAMPLED and p[0][0] == "p" for p in parts)


def of_fixed_lengths(row: Row) -> bool:
    """Prompts of a dataset have the lengths that they have."""
    dataset = str(row.setting("dataset") or "random").lower()
    return row.kind == "serve" and ("random" in dataset or dataset == "synthetic")


def in_a_closed_loop(row: Row) -> bool:
    return row.kind == "serve" and finite_rate(row) is None


class Unchecked(NamedTuple):
    """An input that results lack."""

    words: str
    results: int  # that lack it
    applicable: int  # results to which checks that need it apply

    def describe(self) -> str:
        if self.results == self.applicable:
            return self.words
        return f"{self.words} in {self.results:,} of {self.applicable:,} results"


def unchecked(
    results: Sequence[tuple[Row, Document]], needs: Iterable[Needs], peaks_of: PeaksOf
) -> Iterator[Unchecked]:
    """Yield inputs that are missing. dyno's own runs were examined with all their records when they were measured."""
    rows = [(row, d) for row, d in results if not row.complete and row.verdict is None]
    for one, places in _applicable(rows, needs).items():
        missing = sum(not one.known(*rows[i], peaks_of) for i in places)
        if missing:
            yield Unchecked(one.words, missing, len(places))


def _applicable(
    rows: Sequence[tuple[Row, Document]], needs: Iterable[Needs]
) -> dict[Input, set[int]]:
    """Return the places of rows for which a check needs an input, by input."""
    several = len({subject(row) for row, _ in rows}) > 1
    places: dict[Input, set[int]] = {}
    for need in needs:
        if need.compares and not several:
            continue
        applying = {i for i, (row, _) in enumerate(rows) if need.applies(row)}
        for one in need.inputs:
            places.setdefault(one, set()).update(applying)
    return places
