"""Rows as plain text: aligned columns, or a Markdown table. A thousand rows take a millisecond; rich takes a second."""

from collections.abc import Collection, Sequence

from dyno.visible import visible

Rows = Sequence[Sequence[str]]
_ONE_LINE = dict.fromkeys(map(ord, "\t\n\r"), " ")


def aligned(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """`right`: the columns of numbers."""
    rows = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = range(len(widths))
    return [
        "  ".join(row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in columns).rstrip()
        for row in rows
    ]


def _cells(rows: Rows) -> list[list[str]]:
    """Each in one line, and as wide as it looks: names and messages may be somebody else's."""
    return [[visible(cell.translate(_ONE_LINE)) for cell in row] for row in rows]


def markdown(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """The first row holds the titles."""
    titles, *rest = [[cell.replace("|", "\\|") for cell in row] for row in _cells(rows)]
    rule = ["---:" if i in right else "---" for i in range(len(titles))]
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *rest)]
