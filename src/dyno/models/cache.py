"""The Hub's own cache, which other tools read too (huggingface_hub, guide 'Understand caching').

$HF_HUB_CACHE/models--OWNER--NAME/      data sets: datasets--OWNER--NAME
├── blobs/ETAG                          ETAG: SHA-256 of a large file, Git's checksum of another
├── refs/main                           the commit that the branch had
└── snapshots/COMMIT/config.json        a link to its blob
"""

import os
import re
import shutil
from pathlib import Path

import msgspec

from dyno.probe.model import hub_cache


class FetchedFile(msgspec.Struct, frozen=True):
    size: int
    etag: str


def storage_folder(kind: str, repo: str) -> Path:
    return hub_cache() / f"{kind}s--{repo.replace('/', '--')}"


def snapshot(storage: Path, revision: str) -> tuple[str, dict[str, FetchedFile]]:
    """Return the commit of a revision, and the files that are here: none where the cache doesn't have it."""
    commit = revision
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        try:
            commit = Path((storage / "refs" / revision).read_text().strip()).name
        except (OSError, ValueError):
            return "", {}
    root = storage / "snapshots" / commit
    paths = [p for p in sorted(root.rglob("*")) if p.is_file()]
    listed = {p.relative_to(root).as_posix(): FetchedFile(p.stat().st_size, etag(p)) for p in paths}
    return commit, listed


def unsafe(name: str) -> bool:
    """Return whether a file's name, as a server or an archive has it, leads out of its folder."""
    parts = name.split("/")
    return any(part in ("", ".", "..") for part in parts) or re.search(r"[\\\x00-\x1f]", name) is not None


def etag(path: Path) -> str:
    """Return the name of a file's blob; empty where the cache has no links."""
    return path.readlink().name if path.is_symlink() else ""


def place(blob: Path, link: Path) -> None:
    """Make a blob a file of a snapshot: a link, or the file itself where the disk has no links."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        shutil.move(blob, link)
