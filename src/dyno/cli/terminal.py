"""The one way out: all that dyno prints goes through `shown`, which makes visible what would steer a terminal."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from dyno.visible import visible


class _Shown:
    def __init__(self, stream: TextIO) -> None:
        self.exact = stream

    def write(self, text: str) -> int:
        text = visible(text)
        try:
            return self.exact.write(text)
        except UnicodeEncodeError:  # a terminal of other letters
            return self.exact.write(text.encode(self.exact.encoding, "backslashreplace").decode(self.exact.encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Wrap standard output and error while a command runs, for `print`, argparse and warnings."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Shown(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def for_programs() -> TextIO:
    """Standard output for what a program reads, byte for byte; on a terminal a person reads it."""
    return sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)


def draw(before: str, text: str, after: str = "") -> None:
    """Draw dyno's own line on stderr; what is before and after the text controls the terminal."""
    stream = _exact(sys.stderr)
    stream.write(before + visible(text) + after)
    stream.flush()


def _exact(stream: TextIO) -> TextIO:
    return cast(TextIO, getattr(stream, "exact", stream))
