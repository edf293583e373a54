"""The kernel's small files under /proc and /sys: their text or number, or None where they can't be read."""

import os
from pathlib import Path
from typing import Self


class OpenFile:
    """A file that is read repeatedly: kept open, a reading is one system call."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Return an open file. None: it can't be read now."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        file = cls(fd)
        if file.bytes():
            return file
        os.close(fd)
        return None

    def bytes(self, size: int = 65536) -> bytes:
        """Return its content. Empty: it can't be read any more."""
        try:
            return os.pread(self._fd, size, 0)
        except OSError:
            return b""

    def number(self) -> int | None:
        try:
            return int(self.bytes(64))
        except ValueError:
            return None


def text(path: Path) -> str | None:
    """Return a file's text. None for an empty file too: the kernel leaves one where it has nothing to say."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> int | None:
    return whole(text(path))


def whole(text: str | None) -> int | None:
    """Return the number of `16` or `0x1002`."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above may not be looked into
        return False


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing where it can't be looked into."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def fields(path: Path, separator: str | None = None) -> dict[str, str]:
    """Return the values of `key value` lines, or `key: value` and `key=value` with that separator. The first of a key
    counts."""
    values: dict[str, str] = {}
    for line in (text(path) or "").splitlines():
        parts = [p.strip() for p in line.split(separator, 1)]
        if len(parts) == 2:
            values.setdefault(parts[0], parts[1])
    return values


def numbered(folder: Path, prefix: str = "") -> list[Path]:
    """Return `node0`, `node1`, … or `0`, `1`, … in the order of their numbers; nothing else in the folder."""
    names = [p.name for p in entries(folder)]
    numbered = [n for n in names if n.startswith(prefix) and n[len(prefix) :].isdecimal()]
    return [folder / n for n in sorted(numbered, key=lambda n: int(n[len(prefix) :]))]
