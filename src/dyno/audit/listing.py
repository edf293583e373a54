"""Figures that a program printed without bars: aligned columns, and names with a number behind them."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from dyno.results import columns
from dyno.results.lines import Line
from dyno.results.printed import printed

LONGEST: Final = 400  # characters of a line
_CELL: Final = re.compile(r"\S+(?: \S+)*")  # two spaces or a tab end it
_RULE: Final = re.compile(r"[\s=─━═+-]{3,}")
_MEASURED: Final = re.compile(
    r"throughput|latency|ttft|tpot|\bitl\b|tok(?:en)?s?\s?(?:/s|per s)|req(?:uest)?s?/s|\bt/s|\bms\b|\dms\b|"
    r"\bp[59]\d\b|accuracy|\btps\b",
    re.I,
)
# One of these, in small letters, is in every line that has a match of the above: looking for them is much quicker.
_HINTS: Final = ("throughput", "latency", "ttft", "tpot", "itl", "/s", "per s", "ms", "p5", "p9", "accuracy", "tps")
_VALUE: Final = re.compile(r"[:=]\s{0,60}[~≈]?\$?\d[\d,]*(?:\.\d+)?(?![\d.:])\s?([A-Za-z%µ]{0,12}(?:/\w{1,8})?)")
_NAME: Final = re.compile(r"[A-Za-z][\w/().%@-]*(?: [\w/().%@-]+){0,6}\s?$")
_LOGGED: Final = ("INFO", "WARN", "DEBUG", "ERROR", "(", "[")
_CODE: Final = re.compile(
    r"\s*(?:```|~~~)\s*(?:py|ya?ml|json|toml|js|ts|javascript|typescript|c|cpp|cuda|rust|go|java|docker\w*|sql|diff|ini|xml|html)",
    re.I,
)


class _Cell(NamedTuple):
    start: int
    end: int
    text: str


class Aligned:
    """A table in aligned columns: titles, perhaps a rule, and lines whose cells stand below the titles."""

    def __init__(self, line: int, titles: Sequence[_Cell]) -> None:
        self.line, self._titles = line, titles
        self.body: list[tuple[int, list[str]]] = []

    @property
    def header(self) -> list[str]:
        return [title.text for title in self._titles]

    def take(self, line: Line) -> bool:
        """False where the table is over, and this line is not part of it."""
        if len(line.text) > LONGEST:
            return False
        if _RULE.fullmatch(line.text):
            return True
        row = self._row(_cells(line.text))
        if row is None or not any(printed(text) for text in row):
            return False
        self.body.append((line.number, row))
        return True

    def misses(self, text: str) -> bool:
        """A line with several numbers that was not taken: it may be a line of the table that is out of place."""
        words = text[:LONGEST].split()
        return sum(printed(word) is not None for word in words) > 1 and len(words) >= len(self._titles)

    def _row(self, cells: Sequence[_Cell]) -> list[str] | None:
        """Each cell below its own title. None where it is not certain which title that is."""
        row = [""] * len(self._titles)
        for i, cell in enumerate(cells):
            if cell.start >= self._titles[-1].end + 2 and i >= len(row):
                break  # a remark behind the columns
            below = [k for k, title in enumerate(self._titles) if cell.start < title.end and title.start < cell.end]
            if not below and len(cells) == len(row):
                below = [i]
            if len(below) != 1 or row[below[0]] or (len(cells) == len(row) and below[0] != i):
                return None
            row[below[0]] = cell.text
        return row


def is_measured(text: str) -> bool:
    """Whether a line speaks of a figure at all. A log's own lines do not count."""
    if len(text) > LONGEST or text.lstrip().startswith(_LOGGED):
        return False
    small = text.lower()
    return any(hint in small for hint in _HINTS) and _MEASURED.search(text) is not None


def aligned(number: int, text: str) -> Aligned | None:
    """A table that may begin with a measured line: three titles at least, no number among them, and one of a figure."""
    if "  " not in text.strip() and "\t" not in text:
        return None
    titles = _cells(text)
    if len(titles) < 3 or any(printed(title.text) or len(title.text) > 40 for title in titles):
        return None
    return Aligned(number, titles) if any(_is_figure(title.text) for title in titles) else None


def _is_figure(title: str) -> bool:
    column = columns.meaning(title)
    return column.figure if column is not None else _MEASURED.search(title) is not None and len(title.split()) < 5


def _cells(text: str) -> list[_Cell]:
    return [
        _Cell(found.start(), found.end(), found[0]) for found in _CELL.finditer(text.replace("\t", " \t").expandtabs())
    ]


def measured(text: str) -> list[str]:
    """Names of figures with a number behind them: 'Avg latency: 12.3 s', 'TTFT=176ms'."""
    if " --" in text:
        return []
    names = []
    for value in _VALUE.finditer(text):
        name = _NAME.search(text[max(0, value.start() - 50) : value.start()])
        if name is not None and _MEASURED.search(f"{name[0]} {value[1]}"):
            names.append(name[0].strip())
    return names


def is_code(fence: str) -> bool:
    """A program or a configuration: its numbers were set, not measured."""
    return _CODE.match(fence) is not None
