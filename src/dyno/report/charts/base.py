"""A chart being made: its rows, its words, and what a reader can select.

Names and words of strangers are in rows and in values of parameters alone, never in an expression.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import msgspec

from dyno.facts.chart import DATA, Chart
from dyno.facts.entry import Entry, Number
from dyno.facts.imported import Scalar
from dyno.facts.load import whole
from dyno.report.charts import vega
from dyno.report.charts.vega import constant, expr, let, tip, when
from dyno.report.look import PALETTE, Look, theme

ROWS_MAX = 12_000  # items of a chart; a page holds many charts
WHOLE = ("serve", "throughput", "latency")  # kinds of entries with requests, and no test or task

T = TypeVar("T")
Row = dict[str, Any]
Option = str | int
LoadItems = tuple[tuple[str, Scalar], ...]


class Select(msgspec.Struct, frozen=True):
    """A box to choose from. Its words are also a parameter, `<name>_words`, for titles."""

    name: str  # where rows have a field of this name, only those with the chosen value are drawn
    label: str
    words: Mapping[Any, str]  # option → in words
    value: Option
    also: str = ""  # test of rows that are drawn whatever is chosen

    def params(self) -> list[Any]:
        options = list(self.words)
        labels = [cut(text, 90) for text in self.words.values()]
        bind = alt.BindRadioSelect(input="select", options=options, labels=labels, name=f"{self.label} ")
        return [
            alt.VariableParameter(name=self.name, value=self.value, bind=bind if len(options) > 1 else alt.Undefined),
            constant(f"{self.name}_words", {str(k): text for k, text in zip(options, labels, strict=True)}),
        ]

    @property
    def chosen(self) -> str:
        """The expression of what is chosen, in words."""
        return f"{self.name}_words[{self.name}]"

    @property
    def test(self) -> str:
        test = f"datum.{self.name} == {self.name}"
        return f"({test} || {self.also})" if self.also else test


class Drawing(msgspec.Struct, kw_only=True):
    """All of a chart but its layers."""

    name: str
    group: str
    title: str
    about: str
    look: Look
    rows: list[Row]
    selects: Sequence[Select] = ()
    subtitle: Sequence[str] = ()  # expressions; (): what is selected
    steps: Sequence[Any] = ()  # transforms of the rows that are selected
    toggles: bool = True  # a click on its legend hides a series
    params: Sequence[Any] = ()
    per: Sequence[str] = ()
    height: int = 300
    resolve: Any = alt.Undefined

    @property
    def series(self) -> list[str]:
        return self.look.ordered(row["series"] for row in self.rows if row["series"] in self.look.places)

    def colour(self, symbol: str = "stroke", left: str = "80") -> alt.Color:
        """`symbol`: of the legend; '': it has none."""
        scale = alt.Scale(domain=self.series, range=[self.look.colour(n) for n in self.series])
        return alt.Color("series", type="nominal", scale=scale, legend=vega.legend(symbol, left) if symbol else None)

    def dashes(self) -> Any:
        """Undefined where colours are enough to distinguish all series."""
        if all(self.look.places[n] < len(PALETTE) for n in self.series):
            return alt.Undefined
        scale = alt.Scale(domain=self.series, range=[self.look.dash(n) for n in self.series])
        return alt.StrokeDash("series", type="nominal", scale=scale, legend=vega.legend("stroke"))

    def any(self, key: str) -> bool:
        return any(row.get(key) for row in self.rows)

    def chart(self, layers: Sequence[Any]) -> Chart:
        chosen = [s for s in self.selects if len(s.words) > 1 and any(s.name in row for row in self.rows)]
        lines = f"[{', '.join(self.subtitle or [s.chosen for s in self.selects])}]"
        switch = [constant("per", "measured")] if self.per else []
        selects = [p for s in self.selects for p in s.params()]
        spec = alt.TopLevelLayerSpec(
            layer=list(layers),
            data=alt.NamedData(name=DATA),
            transform=[
                *(when(s.test) for s in chosen),
                when("indexof(hidden, datum.series) < 0"),
                *([vega.TOGGLED] if self.toggles else []),
                *self.steps,
            ],
            params=[constant("hidden", []), vega.ROOM, *switch, *self.params, *selects],
            # A phone shows them one below the other.
            title=alt.TitleParams(text=self.title, subtitle=expr(f"room < 480 ? {lines} : join({lines}, ' · ')")),
            width="container",
            height=self.height,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            resolve=self.resolve,
        ).to_dict(validate=False)
        spec["$schema"] = "https://vega.github.io/schema/vega-lite/v6.json"
        spec["config"] = theme("currentColor")
        return Chart(self.name, self.group, self.title, self.about, spec, self.rows, list(self.per))


# ---- numbers and words ----


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def short(value: float) -> float | int:
    """Round to five digits: no eye sees more."""
    if not math.isfinite(value) or value == 0:
        return 0
    return _whole(float(f"{value:.5g}"))


def shown(number: Number) -> float | int:
    """Leave a printed figure as it was printed."""
    return _whole(number.value) if number.half else short(number.value)


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def shorts(items: Iterable[T], value: Callable[[T], float | None]) -> list[float | int | None]:
    return [None if (number := value(item)) is None else short(number) for item in items]


def evenly(items: list[T], most: int) -> list[T]:
    """Take at most so many, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def commonest(values: Sequence[Any]) -> Any:
    return max(sorted(set(values)), key=values.count)


def present(words: Mapping[str, str], rows: Sequence[Row]) -> dict[str, str]:
    """Those of which at least one row has a value."""
    return {key: text for key, text in words.items() if any(key in row for row in rows)}


# ---- rows and tooltips ----


def entry_row(entry: Entry, failed: bool = False) -> Row:
    """Fields of every row of an entry. `failed`: it has no result to draw, but a reason."""
    row: Row = {"entry": entry.id, "series": entry.series, "verdict": entry.verdict}
    if entry.completed is not None:
        row["completed"] = short(entry.completed)
    if entry.failed:
        row["failed"] = short(entry.failed)
    return row | {"why": cut(re.sub(r"\s+", " ", entry.failure), 160)} if failed else row


def put(row: Row, key: str, number: Number) -> None:
    """Put a figure and its interval into a row, unless it is infinite or not a number."""
    if not math.isfinite(number.value):
        return
    row[key] = shown(number)
    if number.low is not None and number.high is not None:
        row[f"{key}_low"], row[f"{key}_high"] = short(number.low), short(number.high)


def tips(*more: tuple[str, str]) -> list[alt.Tooltip]:
    fields = [("series", "Series"), *more, ("requests", "Requests"), ("verdict", "Verdict")]
    return [tip(field, title) for field, title in fields]


FAILED_TIPS = [tip("series", "Series"), tip("why", "No result"), tip("verdict", "Verdict")]
REQUESTS = let(
    "requests",
    "(isValid(datum.completed) ? format(datum.completed, ',') + ' completed' : 'completed: not told')"
    " + (datum.failed > 0 ? ', ' + format(datum.failed, ',') + ' failed' : '')",
)

# ---- workloads: what stays the same along a line ----

_KINDS = {"serve": "serving", "throughput": "offline", "latency": "offline batch", "micro": "micro", "quality": "task"}


def workload(entry: Entry, axis: str) -> LoadItems:
    """The load without what the axis shows. Points of two workloads are never on one line."""
    return (("kind", entry.kind), *entry.beside(axis).items())


def load_words(load: Iterable[tuple[str, Scalar]]) -> str:
    """In words, and all of it: two workloads must not read alike."""
    rest = dict(load)
    kind = rest.pop("kind", "")
    return whole(rest) or _KINDS.get(str(kind), "") or "one workload"


def several_words(loads: Sequence[LoadItems]) -> list[str]:
    words = [load_words(load) for load in loads]
    return [
        f"{text} ({_KINDS[str(dict(load)['kind'])]})" if words.count(text) > 1 else text
        for text, load in zip(words, loads, strict=True)
    ]


def panels(entries: Sequence[Entry], axis: str, least: int = 2) -> tuple[Select, dict[str, int]] | None:
    """The select of a workload, at first that with most entries, and the option of each entry's id. None where no
    workload was measured at so many loads."""
    groups: dict[LoadItems, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(workload(entry, axis), []).append(entry)
    if not any(len({e.axes[axis] for e in group}) >= least for group in groups.values()):
        return None
    options = {e.id: i for i, group in enumerate(groups.values()) for e in group}
    most = max(enumerate(groups.values()), key=lambda pair: (len(pair[1]), -pair[0]))[0]
    return Select("workload", "Workload", dict(enumerate(several_words(list(groups)))), most), options


# ---- charts that show one trial at a time ----


class OneTrial:
    """The first entries that have something, as many as keep `least` items each."""

    def __init__(self, entries: Sequence[Entry], least: int) -> None:
        self.entries = entries[: ROWS_MAX // least]
        self.most = max(least, ROWS_MAX // len(self.entries)) if entries else 0  # items of each
        some = len(self.entries) < len(entries)
        self.less = f" The first {len(self.entries)} of {len(entries)} trials are kept." if some else ""

    def select(self) -> Select:
        """At first that with most requests."""
        first = max(enumerate(self.entries), key=lambda pair: (pair[1].completed or 0.0, -pair[0]))[0]
        words = {i: e.label or f"{e.series}: {load_words(e.load.items())}" for i, e in enumerate(self.entries)}
        return Select("trial", "Trial", words, first)

    def signs(self) -> Any:
        """Verdict and failures, for the subtitle: `trial_signs[trial]`."""
        return constant("trial_signs", [", ".join(_signs(e)) or "sound" for e in self.entries])


def _signs(entry: Entry) -> Iterator[str]:
    if entry.verdict != "sound":
        yield f"verdict: {entry.verdict}"
    if entry.failed:
        yield f"{entry.failed:,.0f} requests failed"
