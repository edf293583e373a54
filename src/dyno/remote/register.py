"""What dyno has running on other machines: a file for each, outside the runs, so that nothing is forgotten."""

import os
import secrets
from pathlib import Path

import msgspec

from dyno.errors import StoreError
from dyno.facts.elsewhere import RigEntry


class Register:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> list[RigEntry]:
        """Return all, the oldest first. A file that can't be read is an error: a machine may be paid for."""
        return sorted(
            map(_read_entry, self.folder.glob("*.json")), key=lambda entry: entry.since
        )

    def find(self, folder: Path, rig: str) -> RigEntry | None:
        """Return what runs there for a study's folder on this machine."""
        wanted = (str(folder.absolute()), rig)
        return next(
            (entry for entry in self.entries() if (entry.folder, entry.rig) == wanted), None
        )

    def write(self, entry: RigEntry) -> None:
        """Write it whole or not at all, and to the disk: before anything starts there."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self.folder / f"{entry.id}.partial"
        try:
            with open(
                partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry)))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(entry.id))
        except OSError as e:
            raise StoreError(
                f"{partial} can't be written: {e.strerror}. Nothing was started."
            ) from None

    def remove(self, entry: RigEntry) -> None:
        self._path(entry.id).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def new_id() -> str:
    """Return the id of an entry. Two machines may use the same rig: ids don't meet."""
    return secrets.token_hex(6)


def _read_entry(path: Path) -> RigEntry:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RigEntry)
    except (OSError, msgspec.MsgspecError) as e:
        raise StoreError(
            f"{path} can't be read: {e}. It lists something that runs on another machine. Check there, then delete it."
        ) from None
