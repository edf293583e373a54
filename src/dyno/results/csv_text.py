"""A CSV or TSV file: a header, and lines of as many cells as it has."""

import csv
import io
import re
from itertools import islice
from pathlib import PurePath
from typing import Final, Literal

import msgspec

from dyno.facts.imported import Document, DocumentCell, DocumentTable, Unread
from dyno.results import columns, tables
from dyno.results.printed import printed
from dyno.results.tools import llama_bench
from dyno.secrets import HIDDEN, is_secret, shown

_CELLS: Final = 100_000  # of a larger file, the first of them: some seconds
_LOOKED_AT: Final = 20  # lines that show what it is
_COMMENTS: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*")


def read(file: str, data: bytes) -> Document | None:
    """Return None for a text whose lines happen to have commas."""
    text = data.decode("utf-8", "replace")
    start = _start(text)
    separator = _separator(text[start : start + 200_000], text[:start].strip() != "")
    if separator is None:
        return None
    first = 1 + text.count("\n", 0, start)
    rows, lines, unread = _cells(text[start:], separator, first)
    if len(rows) < 2:
        return None
    header = [title.strip() for title in rows[0]]
    titles = [title for title in header if title]
    if not titles or any(printed(title) for title in titles):
        return Document(
            file,
            "csv",
            unread=[*unread, Unread(lines[0], "CSV without a header line", "table")],
        )
    if llama_bench.is_header(header):
        results, wrong = llama_bench.texts(header, rows[1:], lines[1:], file, "csv")
        return Document(file, "llama-bench csv", results, unread=unread + wrong)
    table = DocumentTable(lines[0], header, _without_secrets(header, rows[1:]), lines[1:])
    return _document(file, table, unread)


def _document(file: str, table: DocumentTable, unread: list[Unread]) -> Document:
    """Return the results of a table. `unread`: lines that were left out of it."""
    if tables.of_requests(table):
        return Document(
            file,
            "csv",
            unread=[
                *unread,
                Unread(table.line, "one line per request, no summary", "table"),
            ],
        )
    results = tables.rows_of(table, 0, file, "csv")
    unread += tables.unread(table, results)
    if not results:
        return Document(
            file, "csv", unread=unread or [Unread(table.line, "no known columns")]
        )
    stem = PurePath(file).stem
    results = [
        row if row.label else msgspec.structs.replace(row, label=stem) for row in results
    ]
    return Document(file, "csv", results, tables=[table], unread=unread)


def _without_secrets(header: list[str], rows: list[list[str]]) -> list[list[DocumentCell]]:
    hidden = [is_secret(title) for title in header]
    return [
        [
            DocumentCell(_open(secret, cell))
            for secret, cell in zip(hidden, row, strict=False)
        ]
        for row in rows
    ]


def _open(secret: bool, cell: str) -> str:
    """Hide secrets. total_token_throughput sounds like one, so numbers pass."""
    return HIDDEN if secret and printed(cell) is None else shown("", cell)


def _start(text: str) -> int:
    """Return where the table starts: after blank lines and comments."""
    match = _COMMENTS.match(text[:20_000])
    return match.end() if match else 0


def _separator(text: str, commented: bool) -> str | None:
    """Return the separator that cuts the first lines into equally many cells. Prose may follow a comment that is a
    title, so there the titles of columns have to be known."""
    for separator in ("\t", ",", ";"):
        try:
            first = [
                row
                for row in islice(
                    csv.reader(io.StringIO(text), delimiter=separator), _LOOKED_AT
                )
                if row
            ]
        except csv.Error:
            continue
        if len(first) >= 2 and _is_table(first, len(text) >= 200_000, commented):
            return separator
    return None


def _is_table(rows: list[list[str]], cut: bool, commented: bool) -> bool:
    """Return whether the first lines of a text are a table's."""
    header, body = rows[0], rows[1:]
    if cut and len(rows) > 2:
        body = rows[1:-1]
    if header[:2] == tables.AIPERF:
        return True  # it has short lines in its second part
    if len(header) < 2 or any(len(title) > 100 for title in header) or _is_markdown(rows):
        return False
    known = sum(columns.meaning(title) is not None for title in header)
    same = sum(_fits(row, len(header)) for row in body)
    # Titles that are known prove more than lines that someone may have broken.
    if known >= 2:
        return 10 * same >= 3 * len(body)
    if commented or 10 * same < 7 * len(body):
        return False
    # Two or three words with commas between are a sentence as well.
    all_same = len(header) >= 5 and same == len(body)
    return all_same or _is_mostly_numbers(body)


def _is_markdown(rows: list[list[str]]) -> bool:
    return any(re.match(r"\s*(?:\||#{1,6} |```|[-*+] )", row[0]) for row in rows)


def _is_mostly_numbers(rows: list[list[str]]) -> bool:
    """Return whether a third of the cells are numbers."""
    numbers = sum(printed(cell) is not None for row in rows for cell in row)
    return numbers * 3 >= sum(len(row) for row in rows)


def _fits(row: list[str], width: int) -> bool:
    return len(row) >= width and not any(cell.strip() for cell in row[width:])


def _cells(
    text: str, separator: str, first: int
) -> tuple[list[list[str]], list[int], list[Unread]]:
    """Return rows with as many cells as the header has, their lines, and what was left out."""
    rows: list[list[str]] = []
    lines: list[int] = []
    unread: list[Unread] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    cells = 0
    while cells < _CELLS:
        line = first + reader.line_num
        try:
            row = next(reader, None)
        except csv.Error:
            if len(unread) < 50:
                unread.append(Unread(line, "a cell is too long", "lines"))
            continue
        if row is None:
            return rows, lines, unread
        if not any(cell.strip() for cell in row):
            continue
        if rows and rows[0][:2] == tables.AIPERF:
            # its metrics of one value, 'Metric,Value', follow as short lines
            row += [""] * (len(rows[0]) - len(row))
        if rows and not _fits(row, len(rows[0])):
            # An unquoted comma has moved the rest: no cell of it can be trusted.
            if len(unread) < 50:
                part: Literal["", "lines"] = (
                    "lines" if any(printed(cell) for cell in row) else ""
                )
                unread.append(
                    Unread(line, f"{len(row)} cells, but {len(rows[0])} titles", part)
                )
            continue
        rows.append(row)
        lines.append(line)
        cells += len(row)
    unread.append(
        Unread(lines[-1], "the file is too large; the rest was not read", "lines")
    )
    return rows, lines, unread
