"""Read files that a user or another file names, up to a size limit. Anything but a plain file (a folder, a device, a
socket) raises an OSError with a message for the reader."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dyno.numbers import human_bytes

TEXT = 4 << 20  # a file that a person writes: a study, prices, a query
FACTS = 1 << 30  # one that dyno writes: the plan of a large study
DATA = 2 << 30  # another tool's results, a dataset
LINE = 256 << 20  # of a file that is read line by line
_PART = 1 << 20
# what decoders of JSON and TOML make of a damaged or a hostile one
BROKEN = (ValueError, RecursionError)
_FILE_TYPES = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


def opened(path: Path, pipes: bool = False) -> IO[bytes]:
    """`pipes`: also read a pipe (`<(…)`), without waiting for a writer."""
    try:
        # before it is opened: to open some devices does something
        mode = stat.S_IFMT(path.stat().st_mode)
        if mode == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, _FILE_TYPES[mode], str(path))
        if mode != stat.S_IFREG and not (pipes and mode == stat.S_IFIFO):
            raise OSError(
                errno.EINVAL, _FILE_TYPES.get(mode, "it is not a file"), str(path)
            )
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL in its name
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def read(path: Path, most: int = FACTS, pipes: bool = False) -> bytes:
    """Return all of it, up to `most` bytes; a larger one is refused before it fills the memory."""
    with opened(path, pipes) as file:
        return taken(file, most, path, os.fstat(file.fileno()).st_size)


def taken(file: IO[bytes], most: int, name: object, size: int = 0) -> bytes:
    """Read the rest of an open file, such as standard input, under the same limit. `size`: if known."""
    data = file.read(min(size, most) + 1)
    if len(data) > size:  # a pipe, or it has grown
        parts, got = [data], len(data)
        while got <= most and (more := file.read(_PART)):
            parts.append(more)
            got += len(more)
        data = b"".join(parts)
    if len(data) > most:
        raise OSError(
            errno.EFBIG, f"it is larger than {human_bytes(most)}, the limit", str(name)
        )
    return data


def lines(path: Path) -> Iterator[bytes]:
    """Yield its lines one by one. A line that fills the memory is refused."""
    with opened(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise OSError(
                    errno.EFBIG, f"a line is longer than {human_bytes(LINE)}", str(path)
                )
            yield line


def present(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(p for p in (folder, *folder.parents) if p.exists())


def free_bytes(folder: Path) -> int:
    """Return what is free on a folder's disk, whether or not the folder exists yet."""
    return shutil.disk_usage(present(folder)).free
