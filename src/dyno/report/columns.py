"""Rows as plain text: aligned columns, or a Markdown table. A thousand rows take a millisecond; rich takes a second."""

from collections.abc import Collection, Sequence

Rows = Sequence[Sequence[str]]


# What a terminal would obey: names and messages may come from an archive of somebody else's.
_CONTROL = dict.fromkeys((*range(32), 127, *range(128, 160)), " ")


def aligned(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """`right`: the columns of numbers."""
    rows = [[cell.translate(_CONTROL) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = range(len(widths))
    return [
        "  ".join(row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in columns).rstrip()
        for row in rows
    ]


def markdown(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """The first row holds the titles."""
    titles, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---:" if i in right else "---" for i in range(len(titles))]
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *rest)]
