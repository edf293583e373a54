"""Words of somebody else's, as plain text: what a terminal or a reader's eye would obey is left out."""

import re

from dyno.visible import OBEYED

# Escape sequences go whole; then single characters.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def plain(words: str) -> str:
    """Line ends stay."""
    return OBEYED.sub(" ", _ESCAPE.sub("", words.replace("\r\n", "\n")))


def line(words: str) -> str:
    """The same, in one line."""
    return " ".join(plain(words).split())
