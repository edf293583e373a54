"""Percentages and ratios in a table against the numbers beside them.

What they are reckoned from isn't told: the two columns for which most rows come out right are taken, and the rows that
then don't are wrong.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Table

ROWS, MOST = 3, 0.6  # rows that come out right, at least, and their share
POINTS, SHARE = 0.6, 0.05  # of per cent, and of the percentage, that rounding may take
_NUMBER = re.compile(
    r"(?<![\w.])([+\-−–]?)\s?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)\s?(%|[x×](?![\w]))?(?!\w*\d)"
)
_WIDEST = 24  # numbers of a row


class Number(NamedTuple):
    value: float
    half: float  # of a unit of its last digit
    mark: str  # %, x or ''; ± before it where a sign stands


def percentages(documents: list[Document]) -> Iterator[Finding]:
    for d in documents:
        for table in d.tables:
            yield from _of_table(d.file, table)


def _of_table(file: str, table: Table) -> Iterator[Finding]:
    # The first column is what they are of: '2×q4k' is no figure.
    rows = [(line, _numbers([c.text for c in cells[1:]])) for cells, line in zip(table.rows, table.lines, strict=False)]
    width = max((len(numbers) for _, numbers in rows), default=0)
    if len(rows) < ROWS + 1 or not 3 <= width <= _WIDEST:
        return
    # Only rows of one shape can be held together.
    shapes = [tuple(n.mark for n in numbers) for _, numbers in rows]
    shape = max(set(shapes), key=shapes.count)
    alike = [(line, numbers) for (line, numbers), s in zip(rows, shapes, strict=True) if s == shape]
    plain = [i for i, mark in enumerate(shape) if not mark]
    if len(alike) < ROWS + 1 or not 2 <= len(plain) <= 10:
        return
    for k, mark in enumerate(shape):
        if mark and mark != "%":  # without a sign it is a share of something
            yield from _of_column(file, alike, plain, k, mark.removeprefix("±"))


def _of_column(
    file: str, rows: Sequence[tuple[int, list[Number]]], plain: list[int], k: int, mark: str
) -> Iterator[Finding]:  # fmt: skip
    best: tuple[int, int, int, bool] | None = None
    for i in plain:
        for j in plain:
            for less in (False, True) if i != j else ():
                right = sum(_fits(numbers, i, j, k, mark, less) for _, numbers in rows)
                if best is None or right > best[0]:
                    best = (right, i, j, less)
    if best is None or best[0] < ROWS or best[0] < MOST * len(rows) or best[0] == len(rows):
        return
    _, i, j, less = best
    for line, numbers in rows:
        if not any(_fits(numbers, a, b, k, mark, way) for a in plain for b in plain if a != b for way in (False, True)):
            is_so = _reckoned(numbers, i, j, mark, less)
            if is_so is None:
                continue
            unit = "%" if mark == "%" else "×"
            yield Finding(
                "consistency.percent",
                "doubt",
                f"From {numbers[i].value:,g} to {numbers[j].value:,g} it is {is_so:+,.1f}{unit}, and "
                f"{numbers[k].value:+,g}{unit} is told; {best[0]} of {len(rows)} rows of the table come out right.",
                "Reckon it anew.",
                [f"{file}:{line}"],
            )


def _numbers(cells: list[str]) -> list[Number]:
    """Of a row, in order. A number before a word, as in '7B' or 'FP8', is none."""
    out = []
    for cell in cells:
        if len(cell) > 300:
            continue
        for sign, digits, mark in _NUMBER.findall(cell):
            value = float(digits.replace(",", ""))
            # '+7 %' is a difference, '52 %' may be a share: rows of one kind are held together.
            shown = mark.replace("×", "x")
            half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
            signed = -value if sign in ("-", "−", "–") else value
            out.append(Number(signed, half, f"±{shown}" if sign and shown else shown))
    return out


def _reckoned(numbers: list[Number], i: int, j: int, mark: str, less: bool) -> float | None:
    """`less`: a gain where the number falls, as of a latency."""
    a, b = numbers[i].value, numbers[j].value
    if a <= 0 or b <= 0:
        return None
    if mark == "x":
        return a / b if less else b / a
    return 100 * (a - b) / a if less else 100 * (b / a - 1)


def _fits(numbers: list[Number], i: int, j: int, k: int, mark: str, less: bool) -> bool:
    is_so, told = _reckoned(numbers, i, j, mark, less), numbers[k]
    if is_so is None:
        return True
    a, b = numbers[i], numbers[j]
    # By how much the printed digits of both may move it, and those of what is told.
    moved = (100 if mark == "%" else 1) * (b.value / a.value) * (a.half / a.value + b.half / b.value) + told.half
    slack = max(POINTS if mark == "%" else 0.06, SHARE * abs(is_so), 1.1 * moved)
    return abs(told.value - is_so) <= slack or abs(abs(told.value) - abs(is_so)) <= slack
