"""Removing a run or a study from the disk: only what dyno made, and only where nobody works on it."""

import os
import shutil
from pathlib import Path

import msgspec

from dyno.errors import StoreError, UsageError
from dyno.store.shelf import in_use, kind_of, trial_folders


class Weight(msgspec.Struct, frozen=True):
    files: int
    bytes: int
    trials: int | None  # of a study


def weigh(path: Path) -> Weight:
    """What would go. Refuses what must stay."""
    if path.is_symlink():
        raise UsageError(f"{path} is a link to {path.resolve()}: name that folder, or remove the link by hand.")
    kind = kind_of(path)
    if kind is None:
        raise StoreError(f"{path} is not removed: it is no run and no study, or its trial.json can't be read.")
    if why := in_use(path):
        raise StoreError(f"{path} is not removed: {why}. End that first.")
    files = size = 0
    for folder, _, names in os.walk(path):
        files += len(names)
        size += sum((Path(folder) / name).lstat().st_size for name in names)
    return Weight(files, size, len(trial_folders(path)) if kind == "study" else None)


def remove(path: Path) -> None:
    """Out of sight first: half a run must not look like one. Links in it are removed, not followed."""
    path = path.absolute()
    going = path.with_name(f".deleting-{path.name}")
    try:
        path.rename(going)
        shutil.rmtree(going)
    except OSError as e:
        rest = going if going.exists() else path
        raise StoreError(f"{rest} can't be removed whole: {e.strerror}. Remove the rest of it by hand.") from None
