"""The one way out: all that dyno prints goes through `shown`, which makes visible what would steer a terminal.

Here alone marks of styles become colours, and here the screen's width is looked up: see screen.py.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from dyno.screen import PIPED, SCREEN, Screen, coloured, wrapped
from dyno.visible import visible

_NARROWEST = 40


class _Shown:
    def __init__(self, stream: TextIO, fold: bool = False) -> None:
        """`fold`: break long lines at word borders, where a terminal would break inside words."""
        self.exact = stream
        self._colour = _colour(stream)
        self._fold = fold and _isatty(stream)

    def write(self, text: str) -> int:
        text = visible(text)
        if self._fold:
            text = _folded(text, _width(self.exact))
        if SCREEN.get().colour:  # else there is no mark in it
            text = coloured(text, self._colour)
        try:
            return self.exact.write(text)
        except UnicodeEncodeError:  # a terminal of other letters
            return self.exact.write(
                text.encode(self.exact.encoding, "backslashreplace").decode(
                    self.exact.encoding
                )
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Wrap standard output and error while a command runs, for `print`, argparse and warnings."""
    before = sys.stdout, sys.stderr
    screen = SCREEN.set(_screen(sys.stdout))
    sys.stdout = cast(TextIO, _Shown(before[0]))
    sys.stderr = cast(TextIO, _Shown(before[1], fold=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        SCREEN.reset(screen)


def _screen(stream: TextIO) -> Screen:
    terminal = _isatty(stream)
    return Screen(
        _width(stream) if terminal else PIPED, fits=terminal, colour=_colour(stream)
    )


def _width(stream: TextIO) -> int:
    """Return the columns of a terminal. COLUMNS has the last word, as in other programs."""
    try:
        columns = int(
            os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns
        )
    except (ValueError, OSError):
        columns = 0
    return max(columns, _NARROWEST) if columns > 0 else 80


def _colour(stream: TextIO) -> bool:
    """Return whether to use colour: NO_COLOR and FORCE_COLOR work as on no-color.org and force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (
        _isatty(stream) and os.environ.get("TERM") != "dumb"
    )


def _isatty(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty()


def _folded(text: str, width: int) -> str:
    lines = text.split("\n")
    return "\n".join(
        line if len(line) <= width else _hanging(line, width) for line in lines
    )


def _hanging(line: str, width: int) -> str:
    """Fold a line; what follows stands back by two. A command stays whole: it may be copied from here."""
    words = line.lstrip(" ")
    if words.startswith("dyno "):
        return line
    blanks = " " * (len(line) - len(words))
    return "\n".join(wrapped(words, blanks, blanks + "  ", width))


def for_programs() -> TextIO:
    """Return standard output for what a program reads, byte for byte; on a terminal a person reads it."""
    return sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)


def draw(before: str, text: str, after: str = "") -> None:
    """Draw dyno's own line on stderr; what is before and after the text controls the terminal."""
    stream = _exact(sys.stderr)
    stream.write(before + coloured(visible(text), _colour(stream)) + after)
    stream.flush()


def _exact(stream: TextIO) -> TextIO:
    return cast(TextIO, getattr(stream, "exact", stream))
