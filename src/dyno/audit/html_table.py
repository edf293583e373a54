"""A table written as HTML inside Markdown, as reports do where a cell spans several."""

import re
from collections.abc import Iterable
from html import unescape

from dyno.results.lines import Line

_TAG = re.compile(r"<(/?)(table|tr|td|th|b|strong)\b([^<>]{0,400})>", re.I)
_SPAN = re.compile(r"(row|col)span\s{0,4}=\s{0,4}[\"']?(\d{1,2})\b", re.I)
_OTHER = re.compile(r"</?[a-zA-Z][^<>]{0,400}>")
WIDEST, _MOST = 200, 100_000  # columns; cells


class _Cell:
    def __init__(self, attributes: str) -> None:
        self.parts: list[str] = []
        spans = {kind.lower(): min(max(int(n), 1), 50) for kind, n in _SPAN.findall(attributes)}
        self.down, self.across = spans.get("row", 1), spans.get("col", 1)

    @property
    def text(self) -> str:
        return " ".join(unescape(_OTHER.sub(" ", "".join(self.parts))).split())


def rows(lines: Iterable[Line]) -> list[tuple[int, list[str]]]:
    """Each row's line and its cells, with what spans several said in each; bold text between asterisks."""
    found: list[tuple[int, list[_Cell]]] = []
    cell: _Cell | None = None
    for number, text in lines:
        at = 0
        for tag in _TAG.finditer(text):
            if cell is not None:
                cell.parts.append(text[at : tag.start()])
            at = tag.end()
            closes, name = bool(tag[1]), tag[2].lower()
            if name in ("b", "strong"):
                if cell is not None:
                    cell.parts.append("**")
            elif name in ("td", "th") and not closes and found:
                cell = _Cell(tag[3])
                found[-1][1].append(cell)
            else:
                cell = None
                if name == "tr" and not closes:
                    found.append((number, []))
        if cell is not None:
            cell.parts += (text[at:], " ")
    return _spread([row for row in found if row[1]])


def _spread(found: list[tuple[int, list[_Cell]]]) -> list[tuple[int, list[str]]]:
    out, count, hanging = [], 0, dict[int, tuple[int, str]]()  # column → rows that it still hangs into, its text
    for number, cells in found:
        row: list[str] = []
        left = list(reversed(cells))
        while (left or len(row) in hanging) and len(row) < WIDEST:
            if len(row) in hanging:
                more, text = hanging.pop(len(row))
                down, across = more, 1
            else:
                cell = left.pop()
                text, down, across = cell.text, cell.down, cell.across
            for _ in range(across):
                if down > 1:
                    hanging[len(row)] = (down - 1, text)
                row.append(text)
        out.append((number, row))
        count += len(row)
        if count > _MOST:
            break
    return out
