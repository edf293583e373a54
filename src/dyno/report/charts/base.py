"""A chart being made: its rows, its words, and its selects.

Names and words of strangers are in rows and in values of parameters alone, never in an expression.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import msgspec

from dyno.facts.entry import Entry, Number
from dyno.facts.imported import KINDS, RowKind
from dyno.facts.load import Load
from dyno.facts.report import DATA, Chart
from dyno.numbers import many
from dyno.report.charts import vega
from dyno.report.charts.vega import constant, expr, let, tip, when
from dyno.report.look import PALETTE, Look, theme

ROWS_MAX = 12_000  # items of a chart; a page holds many charts
# kinds of entries with requests, and no test or task
WHOLE = ("serve", "throughput", "latency")

T = TypeVar("T")
Row = dict[str, Any]
Workload = tuple[RowKind, Load]


class Select(msgspec.Struct, frozen=True):
    """A box to choose from. Its words are also a parameter, `<name>_words`, for titles."""

    # where rows have a field of this name, only those with the chosen value are drawn
    name: str
    label: str
    words: Mapping[Any, str]  # option → in words
    value: str | int
    also: str = ""  # test of rows that are drawn whatever is chosen

    def params(self) -> list[Any]:
        options = list(self.words)
        labels = [cut(text, 90) for text in self.words.values()]
        bind = alt.BindRadioSelect(
            input="select", options=options, labels=labels, name=f"{self.label} "
        )
        menu = bind if len(options) > 1 else alt.Undefined
        return [
            alt.VariableParameter(name=self.name, value=self.value, bind=menu),
            constant(
                f"{self.name}_words",
                {str(k): text for k, text in zip(options, labels, strict=True)},
            ),
        ]

    @property
    def chosen(self) -> str:
        """Return the expression of what is chosen, in words."""
        return f"{self.name}_words[{self.name}]"

    @property
    def test(self) -> str:
        test = f"datum.{self.name} == {self.name}"
        return f"({test} || {self.also})" if self.also else test


SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


class Drawing(msgspec.Struct):
    """All of a chart but its layers."""

    look: Look
    rows: list[Row]
    name: str
    group: str
    title: str
    about: str = ""
    selects: list[Select] = []
    subtitle: list[str] = []  # expressions; []: what is selected
    steps: list[Any] = []  # transforms of the rows that are selected
    toggles: bool = True  # a click on its legend hides a series
    params: list[Any] = []
    per: list[str] = []
    height: int = 300
    resolve: Any = alt.Undefined

    @property
    def series(self) -> list[str]:
        return self.look.ordered(
            row["series"] for row in self.rows if row["series"] in self.look.places
        )

    def colour(self, symbol: str = "stroke", left: str = "80") -> alt.Color:
        """Return the colours of the series. `symbol`: of the legend; '': it has none."""
        scale = alt.Scale(
            domain=self.series, range=[self.look.colour(n) for n in self.series]
        )
        return alt.Color(
            "series:N", scale=scale, legend=_legend(symbol, left) if symbol else None
        )

    def dashes(self) -> Any:
        """Return the dashes of the series; undefined where colours are enough to distinguish all."""
        if all(self.look.places[n] < len(PALETTE) for n in self.series):
            return alt.Undefined
        scale = alt.Scale(
            domain=self.series, range=[self.look.dash(n) for n in self.series]
        )
        return alt.StrokeDash("series:N", scale=scale, legend=_legend("stroke", "80"))

    def chart(self, layers: Sequence[Any]) -> Chart:
        chosen = [
            s
            for s in self.selects
            if len(s.words) > 1 and any(s.name in row for row in self.rows)
        ]
        visible = [
            *(when(s.test) for s in chosen),
            when("indexof(hidden, datum.series) < 0"),
        ]
        if self.toggles:
            visible.append(vega.TOGGLED)
        lines = f"[{', '.join(self.subtitle or [s.chosen for s in self.selects])}]"
        switch = [constant("per", "measured")] if self.per else []
        selects = [p for s in self.selects for p in s.params()]
        spec = alt.TopLevelLayerSpec(
            layer=list(layers),
            data=alt.NamedData(name=DATA),
            transform=[*visible, *self.steps],
            params=[constant("hidden", []), vega.ROOM, *switch, *self.params, *selects],
            # A phone shows them one below the other.
            title=alt.TitleParams(
                text=self.title,
                subtitle=expr(f"room < 480 ? {lines} : join({lines}, ' · ')"),
            ),
            width="container",
            height=self.height,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            resolve=self.resolve,
        ).to_dict(validate=False)
        spec["$schema"] = SCHEMA
        spec["config"] = theme("currentColor")
        name = self.name.replace("_", "-")
        return Chart(name, self.group, self.title, self.about, spec, self.rows, self.per)


def _legend(symbol: str, left: str) -> alt.Legend:
    """Return as many columns as fit: a phone has one. `left`: pixels left of the plot."""
    columns = f"max(1, floor((room - {left}) / 210))"
    return vega.legend(
        symbol, columns, f"(room - {left}) / {columns} - 34", symbolStrokeWidth=2.5
    )


# ---- numbers and words ----


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def short(value: float) -> float | int:
    """Round to five digits: no eye sees more."""
    return _whole(float(f"{value:.5g}")) if math.isfinite(value) else 0


def shown(number: Number) -> float | int:
    """Leave a printed figure as it was printed."""
    return _whole(number.value) if number.half else short(number.value)


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def shorts(
    items: Iterable[T], value: Callable[[T], float | None]
) -> list[float | int | None]:
    return [None if (number := value(item)) is None else short(number) for item in items]


def evenly(items: list[T], most: int) -> list[T]:
    """Return at most `most` items, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def commonest(values: Sequence[Any]) -> Any:
    return max(sorted(set(values)), key=values.count)


def present(words: Mapping[str, str], rows: Sequence[Row]) -> dict[str, str]:
    """Return those of which at least one row has a value."""
    return {key: text for key, text in words.items() if any(key in row for row in rows)}


# ---- rows and tooltips ----


def entry_row(entry: Entry) -> Row:
    """Return the fields of every row of an entry."""
    row: Row = {"entry": entry.id, "series": entry.series, "verdict": entry.verdict}
    if entry.completed is not None:
        row["completed"] = short(entry.completed)
    if entry.failed:
        row["failed"] = short(entry.failed)
    if entry.failure:
        row["why"] = cut(re.sub(r"\s+", " ", entry.failure), 160)
    return row


def put(row: Row, key: str, number: Number) -> None:
    """Put a figure and its interval into a row, unless it is infinite or not a number."""
    if not math.isfinite(number.value):
        return
    row[key] = shown(number)
    if number.usable and number.low is not None and number.high is not None:
        row[f"{key}_low"], row[f"{key}_high"] = short(number.low), short(number.high)


def tips(*more: tuple[str, str]) -> list[alt.Tooltip]:
    fields = [("series", "Series"), *more, ("requests", "Requests"), ("verdict", "Verdict")]
    return [tip(field, title) for field, title in fields]


FAILED_TIPS = [tip("series", "Series"), tip("why", "No result"), tip("verdict", "Verdict")]
REQUESTS = let(
    "requests",
    "(isValid(datum.completed) ? format(datum.completed, ',') + ' completed' : 'completed: unknown')"
    " + (datum.failed > 0 ? ', ' + format(datum.failed, ',') + ' failed' : '')",
)

# ---- workloads: what stays the same along a line ----


def workload(entry: Entry, axis: str) -> Workload:
    """Return the load without what the axis shows. Points of two workloads are never on one line."""
    return entry.kind, entry.load.beside(axis)


def load_words(kind: RowKind, load: Load) -> str:
    return load.words or KINDS[kind].load


def several_words(loads: Iterable[Workload]) -> dict[int, str]:
    """Return loads in words by number, each different from the others."""
    words = [(load_words(kind, load), KINDS[kind].load) for kind, load in loads]
    texts = [text for text, _ in words]
    return {
        i: f"{text} ({kind})" if texts.count(text) > 1 else text
        for i, (text, kind) in enumerate(words)
    }


def panels(
    entries: Sequence[Entry], axis: str, field: str = "x", least: int = 2
) -> tuple[Select, list[Row]] | None:
    """Return the select of a workload, at first that with most entries, and a row for each entry, with its load in
    `field`. None where there is no result, or no workload was measured at `least` loads."""
    groups: dict[Workload, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(workload(entry, axis), []).append(entry)
    enough = any(len({e.axes[axis] for e in group}) >= least for group in groups.values())
    if not enough or all(e.failure for e in entries):
        return None
    numbers = {load: i for i, load in enumerate(groups)}
    first = max(groups, key=lambda load: (len(groups[load]), -numbers[load]))
    rows = []
    for entry in entries:
        row = entry_row(entry)
        row[field] = short(entry.axes[axis])
        row["workload"] = numbers[workload(entry, axis)]
        rows.append(row)
    return Select("workload", "Workload", several_words(groups), numbers[first]), rows


# ---- charts that show one trial at a time ----


class OneTrial:
    """The first entries that have something, as many as keep `least` items each."""

    def __init__(self, entries: Sequence[Entry], least: int) -> None:
        self.entries = entries[: ROWS_MAX // least]
        self.most = max(least, ROWS_MAX // max(1, len(self.entries)))  # items of each
        some = len(self.entries) < len(entries)
        self.less = (
            f" The first {len(self.entries)} of {len(entries)} trials are shown."
            if some
            else ""
        )

    def add_to(self, drawing: Drawing, *subtitle: str) -> None:
        """Let a reader select one, at first that with most requests, and show its verdict and failures."""
        requests = [e.completed or 0.0 for e in self.entries]
        first = requests.index(max(requests))
        words = {
            i: e.label or f"{e.series}: {e.load.words}" for i, e in enumerate(self.entries)
        }
        drawing.selects = [Select("trial", "Trial", words, first)]
        drawing.subtitle = [drawing.selects[0].chosen, *subtitle, "trial_signs[trial]"]
        drawing.params.append(constant("trial_signs", [_signs(e) for e in self.entries]))
        drawing.about += self.less
        drawing.toggles = False


def _signs(entry: Entry) -> str:
    signs = []
    if entry.verdict != "sound":
        signs.append(f"verdict: {entry.verdict}")
    if entry.failed:
        signs.append(f"{many(entry.failed, 'request')} failed")
    return ", ".join(signs) or "sound"
