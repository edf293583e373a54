"""A table as a value, with renderers for terminal, Markdown and CSV; page/page.html renders the same value as HTML.

A thousand rows take a millisecond; rich takes a second.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import msgspec

from dyno.facts.comparison import REPEATABLE
from dyno.facts.entry import Number
from dyno.numbers import count, interval, many, number, plus_minus, rounded_up
from dyno.screen import SCREEN, Style, glued, styled, verdict_style, wrapped
from dyno.visible import visible

# How a column is shown. number: a count or a setting of the load. figure: a measured value. trials: links to them.
Kind = Literal["text", "number", "figure", "verdict", "level", "code", "places", "trials"]
_ONE_LINE = dict.fromkeys(map(ord, "\t\n\r"), " ")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?\Z")


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    title: str  # in a terminal, a line end makes it two lines
    unit: str = ""
    kind: Kind = "text"
    per: bool = False  # follows the switch to one accelerator, one machine, one dollar
    keep: bool = False  # a narrow terminal shows it still
    # statistics (p50, mean, p99) that a page shows this column for; []: always
    shown: list[str] = []

    @property
    def right(self) -> bool:
        return self.kind in ("number", "figure")


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    value: float | None = None  # sort key; None: the text
    interval: str = ""
    bold: bool = False
    style: Style = ""  # in a terminal
    per: dict[str, str] = {}  # by facts.report.PER: as shown, a space, the full value
    trials: list[str] = []  # Entry.id


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    cells: list[Cell]
    entry: str = ""  # Entry.id
    series: str = ""
    verdict: str = ""


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    columns: list[Column]
    lines: list[Line]
    name: str = ""  # anchor
    title: str = ""
    about: str = ""


def text_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    right: Collection[int] = (),
    keep: Collection[int] = (),
) -> Table:
    """Make a table of plain text. `right`: the columns of numbers; `keep`: those that a narrow terminal shows still."""
    columns = [
        Column(t, kind="number" if i in right else "text", keep=i in keep)
        for i, t in enumerate(titles)
    ]
    return Table(
        columns,
        [
            Line([cell if isinstance(cell, Cell) else Cell(cell) for cell in row])
            for row in rows
        ],
    )


def failed_cell(count_: float | None) -> Cell:
    return Cell(count(count_), count_, style="bad" if count_ else "")


TOO_WIDE = "± ?"  # for an interval that is wider than its figure
_GAP = "  "
_NARROW = 12  # a text is not folded into less
_NAMED = 8  # hidden columns
_JUDGED = ("verdict", "level", "B is")  # titles of columns that are coloured by their words


def terminal(table: Table, indent: str = "", more: str = "--json") -> list[str]:
    """Return aligned columns. A table without titles has no head.

    In a terminal it is as wide as that: texts are folded at word borders, then columns are left out from the right, and
    a last line says which. Under a name that still leaves no room the rest stands in a line of its own. `more`: what
    shows all columns.
    """
    columns = table.columns
    heads = _heads(columns)
    rows = [*heads, *(_visible(cell.text for cell in line.cells) for line in table.lines)]
    styles: list[list[Style]] = [[""] * len(columns) for _ in heads]
    styles += _styles(table)
    fit, below = _fitted(columns, rows, indent)
    lines = []
    for row, style in zip(rows, styles, strict=True):
        sides = [
            _Side(row[i], fit.widths[i], columns[i].right, style[i]) for i in fit.shown
        ]
        name = row[0] if below else ""
        if name:
            lines.append(indent + styled(name, style[0]))
        if name or any(side.text for side in sides):  # else it is a head of hidden columns
            lines += [(below or indent) + line for line in _row(sides)]
    if fit.hidden:
        titles = [columns[i].title.replace("\n", " ") for i in sorted(fit.hidden)]
        lines += wrapped(_hidden_words(titles, more), indent)
    return lines


def _heads(columns: Sequence[Column]) -> list[list[str]]:
    """Return the lines of the titles, shorter ones at the bottom; none where no column has a title."""
    titles = [f"{c.title}\n{c.unit}".rstrip() for c in columns]
    height = max(title.count("\n") + 1 for title in titles)
    split = [["", *title.split("\n")][-height:] for title in titles]
    if not any(map(any, split)):
        return []
    return [[title[i] for title in split] for i in range(height)]


def _styles(table: Table) -> Iterator[list[Style]]:
    judged = [
        column.kind == "verdict" or column.title in _JUDGED for column in table.columns
    ]
    for line in table.lines:
        yield [
            _style(cell, by_words)
            for cell, by_words in zip(line.cells, judged, strict=True)
        ]


def _hidden_words(titles: Sequence[str], more: str) -> str:
    named = ", ".join(titles[:_NAMED])
    if len(titles) > _NAMED:
        named += ", …"
    remedy = "Widen the terminal"
    if more:
        remedy += f" or use {more}"
    return f"{many(len(titles), 'column')} hidden: {named}. {remedy}."


def _style(cell: Cell, judged: bool) -> Style:
    if cell.style:
        return cell.style
    if cell.bold:
        return "best"
    return verdict_style(cell.text) if judged else ""


class _Fit:
    """Which columns are shown, and how wide."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        self.widths = []
        self._least = []
        for i, column in enumerate(columns):
            texts = [row[i] for row in rows]
            width = max(map(len, texts), default=0)
            self.widths.append(width)
            self._least.append(
                width if column.right else min(width, max(_longest_word(texts), _NARROW))
            )
        droppable = (
            i
            for i, column in enumerate(columns)
            if not column.keep and column.kind != "verdict"
        )
        self._droppable = [i for i in droppable if i > 0]  # the first names the row
        self.shown = list(range(len(columns)))
        self.hidden: list[int] = []

    def into(self, room: int) -> bool:
        """Hide and fold columns until all fit. Return False where a single word is too long."""
        while self._droppable and self._excess(self._least, room) > 0:
            self.hidden.append(self._droppable.pop())
            self.shown.remove(self.hidden[-1])
        while (over := self._excess(self.widths, room)) > 0:
            folding = [i for i in self.shown if self.widths[i] > self._least[i]]
            if not folding:
                return False
            widest = max(folding, key=lambda i: self.widths[i])
            self.widths[widest] = max(self._least[widest], self.widths[widest] - over)
        return True

    def _excess(self, widths: Sequence[int], room: int) -> int:
        gaps = len(_GAP) * (len(self.shown) - 1)
        return sum(widths[i] for i in self.shown) + gaps - room


def _longest_word(texts: Iterable[str]) -> int:
    return max((len(word) for text in texts for word in glued(text).split(" ")), default=0)


def _fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: str
) -> tuple[_Fit, str]:
    """Return the columns as they fit the terminal, and the indent of what stands under a name, '' where all stands
    beside it."""
    fit = _Fit(columns, rows)
    screen = SCREEN.get()
    if not screen.fits or fit.into(screen.width - len(indent)):
        return fit, ""
    below = indent + "    "
    fit = _Fit(columns, rows)
    fit.shown.pop(0)
    fit.into(screen.width - len(below))
    return fit, below


class _Side(NamedTuple):
    """A cell in its place."""

    text: str
    width: int
    right: bool
    style: Style

    def folded(self) -> list[str]:
        return (
            [self.text]
            if len(self.text) <= self.width
            else wrapped(self.text, width=self.width)
        )

    def line(self, text: str) -> str:
        """Style the words, not the blanks around them."""
        blanks = " " * (self.width - len(text))
        words = styled(text, self.style)
        return blanks + words if self.right else words + blanks


def _row(sides: Sequence[_Side]) -> list[str]:
    """Lay out a row, in several lines where a text is folded."""
    folded = [side.folded() for side in sides]
    out = []
    for texts in zip_longest(*folded, fillvalue=""):
        cells = [side.line(text) for side, text in zip(sides, texts, strict=True)]
        out.append(_GAP.join(cells).rstrip())
    return out


def _visible(row: Iterable[str]) -> list[str]:
    """Return each cell in one line, and as wide as it looks: names and messages may come from others."""
    return [visible(cell.translate(_ONE_LINE)) for cell in row]


def markdown(table: Table, escape: Callable[[str], str] = str) -> list[str]:
    def shown(cell: Cell) -> str:
        text = escape(f"{cell.text} {cell.interval}".strip())
        return f"**{text}**" if cell.bold and text else text

    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def escaped(cells: Iterable[str]) -> str:
        return row(cell.replace("|", "\\|") for cell in _visible(cells))

    titles = [escape(f"{c.title}, {c.unit}" if c.unit else c.title) for c in table.columns]
    rule = ["---:" if column.right else "---" for column in table.columns]
    lines = [escaped(map(shown, line.cells)) for line in table.lines]
    return [escaped(titles), row(rule), *lines]


def write_csv(file: Any, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows with their texts guarded against formula injection."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_for_csv(cell) for cell in row] for row in rows)


def _for_csv(cell: Any) -> Any:
    if isinstance(cell, str):
        return guarded(cell)
    return json.dumps(cell, default=_for_json) if isinstance(cell, list | dict) else cell


def _for_json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    write_csv(out, rows)
    return out.getvalue()


def guarded(words: str) -> str:
    """Prevent CSV formula injection; numbers pass."""
    if words.lstrip()[:1] in ("=", "+", "-", "@") and not _NUMBER.match(words):
        return f"'{words}"
    return words


def figure_text(figure: Number) -> str:
    exact = (
        figure.low is None
        and not figure.definition
        and not figure.half
        and figure.value == round(figure.value)
    )
    return count(figure.value) if exact else number(figure.value, figure.half)


def too_few(figure: Number) -> str:
    """Say why an interval that is wider than its figure is not shown, and what would do."""
    if figure.by == "slices":
        few = "too short a run"
    elif figure.by in REPEATABLE:
        few = f"too few {figure.by}"
    else:
        few = "too few samples"
    if not figure.enough:
        return few
    return f"{few}; about {count(rounded_up(figure.enough))} would do"


def figure_interval(figure: Number) -> str:
    """Return the interval of a figure: '' where it isn't known, '± ?' where it is wider than the figure."""
    return TOO_WIDE if figure.enough is not None else _known_interval(figure)


def too_wide(lines: Iterable[Line]) -> str:
    """Explain the mark of an interval that is wider than its figure; '' where no line has it."""
    cells = (cell for line in lines for cell in line.cells)
    if not any(cell.interval == TOO_WIDE or cell.text.endswith(TOO_WIDE) for cell in cells):
        return ""
    return f"{TOO_WIDE}: the 95 % interval is wider than the figure. Too few repeats, or too short a run."


def whole_interval(figure: Number) -> str:
    """Return the interval of a figure, where there is room for the reason why it has none."""
    return f"({too_few(figure)})" if figure.enough is not None else _known_interval(figure)


def _known_interval(figure: Number) -> str:
    if figure.low is not None and figure.high is not None:
        return interval(figure.value, figure.low, figure.high)
    return plus_minus(figure.deviation, figure.value) if figure.deviation else ""


def database_cell(value: Any) -> str:
    """Return a value of a query's answer in a line."""
    return "" if value is None else _in_a_line(value)


def _in_a_line(value: Any) -> str:
    if isinstance(value, float | Decimal):
        return number(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inside, value))}]"
    if isinstance(value, dict):
        pairs = (f"{name}: {_inside(part)}" for name, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    return " ".join(str(value).split())


def _inside(value: Any) -> str:
    return "null" if value is None else _in_a_line(value)
