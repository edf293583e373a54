"""Tar archives from elsewhere: only plain files, below the folder that they are unpacked into, with bounded headers."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import IO

from dyno.numbers import human_bytes
from dyno.outside import OutsideName, UnsafeName

_HEADER = 1 << 20  # bytes of a member's extended header


class UnsafeMember(Exception):
    """A link, a device or an unsafe path. Its text is the member's name."""


class Member(tarfile.TarInfo):
    """A bound for extended headers: tarfile reads them whole, names and comments of gigabytes too."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in tarfile.REGULAR_TYPES and self.size > _HEADER:
            raise tarfile.ReadError(
                f"{self.name[:60]!r} has a header of {human_bytes(self.size)}"
            )
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member


def plain_files(
    stream: IO[bytes], deepest: int, each: Callable[[], None] = lambda: None
) -> Iterator[tuple[OutsideName, int, IO[bytes]]]:
    """Yield name, size and content of each file in a stream, one after the other. `each`: called for every member."""
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            each()
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise UnsafeMember(member.name[:200])
            try:
                name = OutsideName(str(PurePosixPath(member.name)), deepest)
            except UnsafeName as e:
                raise UnsafeMember(str(e)) from None
            source = tar.extractfile(member)
            assert source is not None  # of a regular file
            yield name, member.size, source
