"""Temporary folders that don't outlive dyno: after a kill -9, the next dyno that makes one there sweeps them."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_KEPT_FILE = ".kept"  # in a folder that no dyno sweeps


class Scratch:
    """A new folder, locked as long as it is used. The kernel unlocks that of a killed dyno."""

    def __init__(self, prefix: str, folder: Path | None = None) -> None:
        """`folder`: where to make it; None: where this system has temporary files."""
        folder = folder or Path(tempfile.gettempdir())
        sweep(folder, prefix)
        while not self._make_locked(prefix, folder):
            pass

    def _make_locked(self, prefix: str, folder: Path) -> bool:
        """Make and lock a folder. False: another dyno swept it before it was locked."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        except OSError:  # a disk without locks
            held = True
        if not held or not self.path.exists():
            os.close(self._handle)
            return False
        return True

    def keep(self) -> None:
        """Let the folder stay after this dyno: a message names a file in it."""
        (self.path / _KEPT_FILE).touch()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


@contextlib.contextmanager
def scratch(prefix: str = "dyno-work-", folder: Path | None = None) -> Iterator[Path]:
    """Yield a new folder and remove it after."""
    locked = Scratch(prefix, folder)
    try:
        yield locked.path
    finally:
        locked.remove()


def sweep(folder: Path, prefix: str) -> None:
    """Remove the folders of killed dyno processes: their locks are free."""
    for path in folder.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, or a live dyno's
            handle = os.open(
                path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (path / _KEPT_FILE).exists():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
