"""A table as a value, with renderers for terminal, Markdown and CSV; page/page.html renders the same value as HTML.

A thousand rows take a millisecond; rich takes a second.
"""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec

from dyno.facts.entry import Number
from dyno.numbers import count, interval, number, plus_minus
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
    shown: list[str] = []  # statistics (p50, mean, p99) that a page shows this column for; []: always

    @property
    def right(self) -> bool:
        return self.kind in ("number", "figure")


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    value: float | None = None  # sort key; None: the text
    interval: str = ""
    bold: bool = False
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


def text_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> Table:
    """Make a table of plain text. `right`: the columns of numbers."""
    columns = [Column(title, kind="number" if i in right else "text") for i, title in enumerate(titles)]
    return Table(columns, [Line([Cell(text) for text in row]) for row in rows])


def terminal(table: Table) -> list[str]:
    """Return aligned columns. A table without titles has no head."""
    height = max(column.title.count("\n") + 1 for column in table.columns)
    split = [["", *column.title.split("\n")][-height:] for column in table.columns]
    heads = [[title[i] for title in split] for i in range(height)] if any(map(any, split)) else []
    rows = [_visible(row) for row in (*heads, *([cell.text for cell in line.cells] for line in table.lines))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust if column.right else str.ljust for column in table.columns]
    return [
        "  ".join(side(text, width) for side, text, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _visible(row: Iterable[str]) -> list[str]:
    """Each cell in one line, and as wide as it looks: names and messages may come from others."""
    return [visible(cell.translate(_ONE_LINE)) for cell in row]


def markdown(table: Table, escape: Callable[[str], str] = str) -> list[str]:
    def shown(cell: Cell) -> str:
        text = escape(f"{cell.text} {cell.interval}".strip())
        return f"**{text}**" if cell.bold and text else text

    titles = [escape(f"{c.title}, {c.unit}" if c.unit else c.title) for c in table.columns]
    rule = ["---:" if column.right else "---" for column in table.columns]
    titles, *rows = [
        [cell.replace("|", "\\|") for cell in _visible(row)]
        for row in (titles, *([shown(cell) for cell in line.cells] for line in table.lines))
    ]
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *rows)]


def write_csv(file: Any, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows with their texts guarded against formula injection."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([guarded(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    write_csv(out, rows)
    return out.getvalue()


def guarded(words: str) -> str:
    """Prevent CSV formula injection; numbers pass."""
    return f"'{words}" if words.lstrip()[:1] in ("=", "+", "-", "@") and not _NUMBER.match(words) else words


def figure_text(figure: Number) -> str:
    exact = figure.low is None and not figure.definition and not figure.half  # a count, if it is whole
    return count(figure.value) if exact else number(figure.value, figure.half)


def figure_interval(figure: Number) -> str:
    """'' where it isn't known."""
    if figure.low is not None and figure.high is not None:
        return interval(figure.value, figure.low, figure.high)
    return plus_minus(figure.deviation, figure.value) if figure.deviation else ""
