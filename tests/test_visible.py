"""Words of somebody else's on a screen: what steers a terminal is shown, and all else stays."""

import json
import os
import unicodedata

import pytest

from dyno.visible import visible

# Colour, title, bell, 8-bit CSI, return, backspace, delete, turned writing, no width, other line ends, tags, filler.
STEERS = (
    "\x1b[31m", "\x1b]0;owned\x07", "\x9b2J", "\x85", "\r", "\b", "\x7f", "\0", "\x0b\x0c", "\u202a\u202b\u202c\u202d",
    "\u202e", "\u2066\u2067\u2068\u2069", "\u200b\u200c\u200d\u200e\u200f", "\ufeff", "\u2060", "\u2028\u2029", "\xad",
    "\u061c", "\U000e0041", "\u3164",
)  # fmt: skip


def steering(text: str) -> list[str]:
    """By Unicode's own categories, and what of other categories has no look."""
    return [
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t")
        or c in "\u3164"
    ]


@pytest.mark.parametrize(
    "char", sorted({c for part in STEERS for c in part if not (" " <= c <= "~")})
)
def test_what_steers_is_shown_as_json_would_write_it(char: str) -> None:
    assert not steering(visible(f"a{char}b"))
    assert visible(char).startswith("\\u")
    if char >= " ":  # others JSON escapes by itself
        assert json.loads(visible(json.dumps(char, ensure_ascii=False))) == char


def test_other_letters_line_ends_and_tabs_stay() -> None:
    for text in ("äöü ß 模型 мир ✓ …\n\tx", "→ ± 🚀 אב", "é" + "e\u0301"):
        assert visible(text) == text


def test_a_name_that_is_not_utf_8_is_shown() -> None:
    assert visible(os.fsdecode(b"a\xffb")) == "a\\udcffb"
