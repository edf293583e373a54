"""Make others' text safe to print: control and invisible characters are shown as escapes."""

import re

# Control characters except line end and tab, characters that change the direction or have no width, and lone
# surrogates (from file names that are not UTF-8).
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def visible(words: str) -> str:
    """Escape as JSON does, so that JSON stays valid."""
    return OBEYED.sub(_escaped, words)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


# Escape sequences go whole; then single characters.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
)


def plain(words: str) -> str:
    """Drop what a terminal would obey or an eye not see. Line ends stay."""
    return OBEYED.sub(" ", _ESCAPE.sub("", words.replace("\r\n", "\n")))


def one_line(words: str) -> str:
    return " ".join(plain(words).split())
