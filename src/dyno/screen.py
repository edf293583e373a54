"""How wide the lines are that people read, and their colours. The command line sets it once; renderers ask."""

import re
from contextvars import ContextVar
from textwrap import wrap
from typing import Literal, NamedTuple

Style = Literal["", "good", "doubt", "bad", "best"]
PIPED = 100  # columns of sentences where no terminal says how many there are
HARD = "\xa0"  # a blank at which `wrapped` breaks no line
_LONGEST = 120  # columns of a sentence: longer lines are hard to read


class Screen(NamedTuple):
    width: int = PIPED
    # tables, too, fit the width. In a pipe they are as wide as their data: a script may read them
    fits: bool = False
    colour: bool = False


PLAIN = Screen()
SCREEN: ContextVar[Screen] = ContextVar("screen", default=PLAIN)

# A style is marked by characters of private use, which cli/terminal.py turns into a terminal's colours: written as
# those at once, they could not be distinguished from those in others' text.
_END = "\U0010ff00"
_STYLES: dict[str, tuple[str, str]] = {
    "good": ("\U0010ff01", "\x1b[32m"),
    "doubt": ("\U0010ff02", "\x1b[33m"),
    "bad": ("\U0010ff03", "\x1b[31m"),
    "best": ("\U0010ff04", "\x1b[1m"),
}
_CODES = {_END: "\x1b[0m", **dict(_STYLES.values())}
_MARKS = re.compile("[\U0010ff00-\U0010ff04]")
# The first word of a verdict, of a finding's level or of a comparison's result → its style.
VERDICTS: dict[str, Style] = {
    "sound": "good", "better": "good", "faster": "good", "doubtful": "doubt", "doubt": "doubt", "void": "bad",
    "failed": "bad", "worse": "bad", "slower": "bad",
}  # fmt: skip


def styled(text: str, style: Style) -> str:
    return (
        f"{_STYLES[style][0]}{text}{_END}"
        if style and text and SCREEN.get().colour
        else text
    )


def verdict_style(words: str) -> Style:
    """'void, no result' → 'bad'."""
    match = re.match(r"[a-z]+", words)
    return VERDICTS.get(match[0], "") if match else ""


def coloured(text: str, colour: bool) -> str:
    """Turn marks into a terminal's codes, or drop them. A mark in others' text ends with it."""
    marks = _MARKS.findall(text)
    return _MARKS.sub(
        (lambda m: _CODES[m[0]]) if colour else "",
        text + (_END if marks and marks[-1] != _END else ""),
    )


# A number stays with its unit, ± with both its sides, a range in one piece.
_UNITS = (
    r"(?:%|±|×|[mµn]?s|min|h|[KMGT]i?B|B|W|J|MHz|GHz|°C|cores?|tokens?|requests?|trials?|runs?|repeats?|tok|req|T|G)"
    r"(?![\w-])"
)
_GLUED = re.compile(
    rf"(?<=\d) (?={_UNITS})|(?<=[±×≤≥<>]) (?=[\d+-])|(?<=\d) (?=to [+-]?\d)|(?<= to) (?=[+-]?\d)"
)


def glued(text: str) -> str:
    return _GLUED.sub(HARD, text)


def wrapped(
    text: str, first: str = "", rest: str | None = None, width: int | None = None
) -> list[str]:
    """Break a sentence at word borders. `first`, `rest`: what the first line and the others begin with."""
    room = min(width or SCREEN.get().width, _LONGEST)
    lines = wrap(
        glued(text),
        room,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(HARD, " ") for line in lines]
