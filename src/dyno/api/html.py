"""Tables for notebooks. Everything that comes from a server, an engine or a file is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from dyno.facts.finding import Finding
from dyno.numbers import count, number
from dyno.visible import visible

_CELL = "padding:2px 10px;text-align:{}"
_COLOURS = {
    "sound": "#2e7d32",
    "doubtful": "#b26a00",
    "void": "#c62828",
    "note": "#607d8b",
    "doubt": "#b26a00",
}
_LONGEST = 120  # characters of a cell


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return a table. Numbers are right-aligned and have four digits, as in dyno's other tables."""
    head = "".join(f'<th style="{_CELL.format("left")}">{text(c)}</th>' for c in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f'<caption style="text-align:left">{text(caption)}</caption>' if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def findings(some: Iterable[Finding]) -> str:
    """Return findings as a list, each with its level and what to do about it."""
    items = "".join(
        f"<li>{mark(f.level)} <code>{text(f.code)}</code>: {text(f.text)} <i>{text(f.advice)}</i></li>"
        for f in some
    )
    return f"<ul>{items}</ul>" if items else ""


def mark(word: str) -> str:
    """Return a verdict or a level in its colour."""
    return f'<b style="color:{_COLOURS.get(word, "inherit")}">{text(word)}</b>'


def paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def lines(printed: str) -> str:
    """Return printed text as it is on a terminal."""
    return f"<pre>{text(printed)}</pre>"


def text(value: object) -> str:
    """Return a value as text that is neither markup nor invisible."""
    return escape(visible(str(value)))


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "<td></td>"
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = str(value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} …"
        return f'<td style="{_CELL.format("left")}">{text(shown)}</td>'
    words = count(value) if float(value).is_integer() else number(value)
    return f'<td style="{_CELL.format("right")}">{text(words)}</td>'
