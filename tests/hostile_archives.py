"""Archives as `dyno models export` writes them, and as somebody who means harm would."""

import hashlib
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.recipe import ModelRecipe
from dyno.models.library import ModelEntry


class Packed:
    """A manifest and members, each of which can be changed before it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: list[dict[str, Any]] = []
        self.members: list[tuple[tarfile.TarInfo, bytes]] = []

    def model(
        self, name: str, files: dict[str, bytes], source: str = "", blobs: bool = False
    ) -> "Packed":
        """Add a model with its files. `source`: a recipe's `from`; empty: a local folder of this name."""
        recipe = ModelRecipe(source or f"file:/models/{name}")
        listed = {
            n: {"size_bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
            for n, b in files.items()
        }
        entry = ModelEntry(
            name=recipe.name,
            recipe=recipe,
            step="pull",
            path=f"/models/{name}",
            origin=f"{source.partition('@')[0]}@{'c' * 40}"
            if blobs
            else f"file:/models/{name}",
            files={},
            created="2026-11-17T04:00:00Z",
        )
        described: dict[str, Any] = {
            "entry": msgspec.to_builtins(entry),
            "path": "",
            "files": listed,
            "blobs": {},
        }
        if blobs:
            described["blobs"] = {
                n: hashlib.sha256(b).hexdigest() for n, b in files.items()
            }
        self.models.append(described)
        for n, data in files.items():
            self.add(f"{recipe.name}/{n}", data)
        return self

    def add(
        self, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
    ) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = len(data), kind, link
        self.members.append((info, data))

    def write(self, file: Path, manifest: bytes | None = None) -> Path:
        data = (
            msgspec.json.encode({"models": self.models, "format": 1})
            if manifest is None
            else manifest
        )
        head = tarfile.TarInfo("dyno-models.json")
        head.size = len(data)
        with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(head, BytesIO(data))
            for info, content in self.members:
                tar.addfile(info, BytesIO(content) if info.isreg() else None)
        return file
