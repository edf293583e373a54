"""The Hub's own cache, which other tools read too (huggingface_hub, guide 'Understand caching').

$HF_HUB_CACHE/models--OWNER--NAME/      data sets: datasets--OWNER--NAME
├── blobs/ETAG                          ETAG: SHA-256 of a large file, Git's checksum of another
├── refs/main                           the commit that the branch had
└── snapshots/COMMIT/config.json        a link to its blob
"""

import os
import shutil
from pathlib import Path

import msgspec

from dyno import files
from dyno.outside import OutsideName
from dyno.probe.model import hub_cache


class FetchedFile(msgspec.Struct, frozen=True):
    size: int  # bytes, never negative
    etag: str


def storage_folder(kind: str, repo: str) -> Path:
    return OutsideName.single(f"{kind}s--{repo.replace('/', '--')}").below(hub_cache())


def snapshot_folder(storage: Path, commit: str) -> Path:
    return OutsideName.digest(commit).below(storage / "snapshots")


def blob_path(storage: Path, etag: str) -> Path:
    return OutsideName.digest(etag).below(storage / "blobs")


def partial_path(storage: Path, etag: str) -> Path:
    """Return where a blob is until all its bytes are there."""
    return OutsideName(f"{OutsideName.digest(etag)}.incomplete").below(storage / "blobs")


def ref_path(storage: Path, revision: str) -> Path:
    return OutsideName(revision).below(storage / "refs")


def snapshot(storage: Path, revision: str) -> tuple[str, dict[str, FetchedFile]]:
    """Return the commit of a revision, and the files that are here: none where the cache doesn't have it."""
    commit = revision
    try:
        if not is_commit(revision):
            commit = files.read(ref_path(storage, revision), 4096).decode().strip()
        root = snapshot_folder(storage, commit)
    except (OSError, ValueError):
        return "", {}
    paths = [p for p in sorted(root.rglob("*")) if p.is_file()]
    listed = {
        p.relative_to(root).as_posix(): FetchedFile(p.stat().st_size, etag(p))
        for p in paths
    }
    return commit, listed


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and set(revision) <= set("0123456789abcdef")


def etag(path: Path) -> str:
    """Return the name of a file's blob; empty where the cache has no links."""
    return path.readlink().name if path.is_symlink() else ""


def place(blob: Path, name: OutsideName, root: Path) -> None:
    """Make a blob a file of a snapshot: a link, or the file itself where the disk has no links.

    Only a link to a blob, or a file of the cache, is replaced: whatever else is there isn't dyno's.
    """
    link = name.below(root)
    link.parent.mkdir(parents=True, exist_ok=True)
    link = name.below(root)  # again: a folder on the way may have been a link to nowhere
    if link.is_symlink():
        OutsideName.digest(etag(link))  # raises where it leads to anything but a blob
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        shutil.move(blob, link)
