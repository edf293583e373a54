"""Names and bodies that come from outside: a Hub, an archive, a rig, another user's run folder, a trace.

An `OutsideName` is not a string and not a path. `below` is the only way to make a path of it, and the path is below the
folder that it is given. `tests/house/test_outside.py` walks the source and refuses any other way.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path

_DEEPEST = 16  # folders inside one another
_LONGEST = 1024  # characters of a name
_PART = 255  # bytes of one part, as Linux has it


class UnsafeName(ValueError):
    """A name that may lead out of its folder, or can't be one. Its text is the name."""


class OutsideName:
    """A relative name with one or more parts: `config.json`, `original/notes.txt`."""

    __slots__ = ("parts",)

    def __init__(self, text: str, deepest: int = _DEEPEST) -> None:
        self.parts = tuple(text.split("/"))
        if (
            len(text) > _LONGEST
            or len(self.parts) > deepest
            or any(map(_is_unsafe, self.parts))
        ):
            raise UnsafeName(text[:200])

    @classmethod
    def single(cls, text: str) -> "OutsideName":
        """Read a name of one part that isn't hidden: of a folder that dyno makes."""
        if text.startswith("."):
            raise UnsafeName(text[:200])
        return cls(text, deepest=1)

    @classmethod
    def digest(cls, text: str) -> "OutsideName":
        """Read a checksum or a commit in hexadecimal digits, by which a file or a folder is named."""
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text):
            raise UnsafeName(text[:200])
        return cls(text, deepest=1)

    def __str__(self) -> str:
        return "/".join(self.parts)

    def __repr__(self) -> str:
        return f"OutsideName({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutsideName) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def below(self, folder: Path) -> Path:
        """Return the path below a folder. A link on the way there that leads out of the folder is refused."""
        path = folder.joinpath(*self.parts)
        if path.parent != folder and not path.parent.resolve().is_relative_to(
            folder.resolve()
        ):
            raise UnsafeName(str(self))
        return path


def _is_unsafe(part: str) -> bool:
    if part in ("", ".", "..") or "\\" in part or not part.isprintable():
        return True
    try:
        return len(part.encode()) > _PART
    except UnicodeEncodeError:  # half of a surrogate pair
        return True


def is_safe(text: str) -> bool:
    """Return whether a text from outside can be a name."""
    try:
        OutsideName(text)
    except UnsafeName:
        return False
    return True


class TooMuch(ValueError):
    """A body is larger than it may be."""


class TooSlow(ValueError):
    """A body was not complete in its time."""


def bounded(parts: Iterable[bytes], most: int, deadline: float) -> bytes:
    """Return a body, read in parts, of at most `most` bytes. `deadline`: by time.monotonic()."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > most:
            raise TooMuch
        if time.monotonic() > deadline:
            raise TooSlow
    return bytes(body)
