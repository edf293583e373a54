"""Words of somebody else's, as plain text: what a terminal or a reader's eye would obey is left out."""

import re

# Escape sequences go whole; then control characters, what turns the writing's direction, and halves of characters
# (from file names that are no UTF-8), which no file could hold.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def plain(words: str) -> str:
    """Line ends stay."""
    return _CONTROL.sub(" ", _ESCAPE.sub("", words.replace("\r\n", "\n")))


def line(words: str) -> str:
    """The same, in one line."""
    return " ".join(plain(words).split())
