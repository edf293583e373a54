"""docs/troubleshooting.md quotes messages. Those that no example of the page produces are held against the source."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from listings import Listing, listings
from reference import ROOT
from trees import parsed

# reads the whole source
pytestmark = [pytest.mark.house, pytest.mark.usefixtures("no_collector")]

PAGE = ROOT / "docs" / "troubleshooting.md"
_ANY = "\0"  # what a message fills in


def _messages() -> Iterator[str]:
    """Yield the texts of the source, with a mark where a value is filled in."""
    for path in (ROOT / "src" / "dyno").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else _ANY
                    for part in node.values
                )
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _plain(text: str) -> str:
    """Leave out numbers, breaks, and the braces in which a message names a flag."""
    text = re.sub(r"\{(--[a-z-]+)\}", r"\1", text)
    return " ".join(re.sub(r"\d[\d.,]*", " ", text).split())


def _quotes() -> list[str]:
    """The lines of the messages that no command of the page prints."""
    quoted = [n for n in listings(PAGE) if n.language == "text" and n.how != "printed"]
    return [line for n in quoted for line in _lines(n)]


def _lines(listing: Listing) -> list[str]:
    return [
        re.sub(r"^(dyno|note|doubt|void)[: ]+", "", line.strip())
        for line in listing.text.splitlines()
    ]


@functools.cache
def _pieces() -> set[str]:
    """What is constant between two values of a message, if it is several words."""
    pieces = (_plain(piece) for message in _messages() for piece in message.split(_ANY))
    return {piece for piece in pieces if piece.count(" ") >= 2}


def unknown(quotes: list[str]) -> list[str]:
    """The quotes that have no piece of a message, and are none."""
    pieces = _pieces()
    plain = {quote: _plain(quote) for quote in quotes}
    return [
        quote
        for quote, text in plain.items()
        if not any(piece in text or text in piece for piece in pieces)
    ]


def test_each_quoted_message_is_in_the_source() -> None:
    quotes = _quotes()
    assert len(quotes) >= 8
    assert unknown(quotes) == []


def test_a_message_that_dyno_never_prints_would_be_refused() -> None:
    invented = "The flux capacitor is empty. Refill it before the next measurement."
    assert unknown([invented]) == [invented]
