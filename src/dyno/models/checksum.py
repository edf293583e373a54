"""Checksums of a model's files, as the Hub has them: SHA-256 of large files, Git's own of the others."""

import hashlib
from pathlib import Path
from typing import IO, NamedTuple

from dyno import files

_PART = 4 << 20


class Checksums(NamedTuple):
    sha256: str
    git: str  # of the blob: SHA-1 over its size and content

    def matches(self, etag: str) -> bool:
        return etag in self


def read(path: Path) -> Checksums:
    with files.opened(path) as file:
        return copy(file, None, path.stat().st_size)


def copy(source: IO[bytes], out: IO[bytes] | None, size: int) -> Checksums:
    """Read the source to its end, and write it to `out`. `size`: the bytes that it has."""
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while part := source.read(_PART):
        sha256.update(part)
        git.update(part)
        if out is not None:
            out.write(part)
    return Checksums(sha256.hexdigest(), git.hexdigest())
