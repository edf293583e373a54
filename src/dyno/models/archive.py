"""Models in one archive, for a machine without a network: a manifest, then the files, all checked on the way in.

It is a plain tar, as weights don't shrink: dyno-models.json, then NAME/PATH of each file.
"""

import os
import re
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO

import msgspec

from dyno import files
from dyno.archive import UnsafeMember, plain_files
from dyno.errors import ModelError, UsageError
from dyno.models import checksum, hub, shelf
from dyno.models.cache import etag, place, storage_folder, unsafe
from dyno.models.shelf import ModelEntry, ModelFile, Say
from dyno.numbers import human_bytes
from dyno.probe.model import hub_cache

_MANIFEST, _MANIFEST_MAX = "dyno-models.json", 64 << 20
_DEEPEST = 16  # folders inside one another


class PackedModel(msgspec.Struct, frozen=True):
    entry: ModelEntry
    path: str  # what an engine gets, below the model's folder; empty: the folder
    files: dict[str, ModelFile]  # by path below that folder
    blobs: dict[str, str] = {}  # of a fetched model: the files' names in the Hub's cache


class PackedModels(msgspec.Struct, frozen=True):
    models: list[PackedModel]
    format: int = 1


# ---- export ----


def export(entries: Sequence[ModelEntry], file: Path, say: Say, below: Say) -> int:
    """Write the models to a file, and return its size. Damaged files aren't written."""
    if file.exists():
        raise UsageError(f"{file} exists. Remove it, or give another name.")
    for entry in entries:
        if not entry.whole:
            raise ModelError(f"{entry.name} is incomplete. Pull or make it again before the export.")
    size = sum(entry.size_bytes for entry in entries)
    if size > (free := files.free_bytes(file.absolute().parent)):
        raise ModelError(f"{file} needs {human_bytes(size)}, but its disk has {human_bytes(free)} free.")
    partial = file.with_name(f"{file.name}.partial")
    try:
        packed = [_packed(entry, below) for entry in entries]
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
            data = msgspec.json.encode(PackedModels([p for p, _ in packed]))
            tar.addfile(_member(_MANIFEST, len(data)), BytesIO(data))
            for model, root in packed:
                say(f"Writing {model.entry.name}, {human_bytes(model.entry.size_bytes)}")
                for name, facts in model.files.items():
                    below(name)
                    _add(tar, root / name, f"{model.entry.name}/{name}", facts)
        partial.replace(file)
    except OSError as e:
        raise ModelError(f"{file} can't be written: {e.strerror or e}. Give another path.") from None
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def _packed(entry: ModelEntry, below: Say) -> tuple[PackedModel, Path]:
    """Return the model as the manifest has it, and the folder with its files."""
    snapshot = hub.snapshot_root(entry)
    root = snapshot or entry.folder
    own = hub.fetched(entry) if snapshot else entry.files
    sums = {}
    for name, facts in own.items():
        below(f"reading {name}")
        # Of a local file, no checksum is known until now.
        sums[name] = ModelFile(facts.size_bytes, facts.sha256 or checksum.read(root / name).sha256)
    blobs = {name: blob for name in own if (blob := etag(root / name))} if snapshot else {}
    path = os.path.relpath(entry.path, root)
    return PackedModel(entry, "" if path == "." else path, sums, blobs), root


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)  # no owner, and no mode of its own
    info.size = size
    return info


def _add(tar: tarfile.TarFile, path: Path, name: str, facts: ModelFile) -> None:
    if checksum.read(path).sha256 != facts.sha256:
        raise ModelError(f"{path} is corrupted: its checksum has changed. Run `dyno models verify`.")
    with files.opened(path) as source:
        tar.addfile(_member(name, facts.size_bytes), source)


# ---- import ----


def import_file(file: Path, say: Say, below: Say) -> list[ModelEntry]:
    """Put the models of an archive on the shelf: all of them, or none where one is damaged."""
    cache, own = hub_cache(), shelf.models_folder()
    try:
        for folder in (cache, own):
            folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".dyno-import-", dir=cache) as for_hub,
            tempfile.TemporaryDirectory(prefix=".import-", dir=own) as for_shelf,
            files.opened(file, pipes=True) as stream,
        ):
            staged = _read(stream, file, (Path(for_hub), Path(for_shelf)), say, below)
            return [_put(model, folder, say) for model, folder in staged]
    except FileNotFoundError as e:
        raise UsageError(f"{e.filename}: no such file.") from None
    except UnsafeMember as e:
        raise ModelError(
            f"{file} contains {str(e)!r}, which is a link or an unsafe path, so it isn't from `dyno models export`. "
            "Nothing was imported."
        ) from None
    except (tarfile.TarError, EOFError, *files.BROKEN) as e:
        raise ModelError(
            f"{file} is cut off, or not from `dyno models export` ({e}). Nothing was imported. Copy it again."
        ) from None
    except OSError as e:
        raise ModelError(f"{file} can't be imported: {e.strerror or e}. Nothing was imported.") from None


def _read(
    stream: IO[bytes], file: Path, folders: tuple[Path, Path], say: Say, below: Say
) -> list[tuple[PackedModel, Path]]:
    """Write the archive's files to a place on the disk of their own, and check each."""
    members = plain_files(stream, _DEEPEST)
    parts, size, source = next(members, ((), 0, BytesIO()))
    if parts != (_MANIFEST,) or size > _MANIFEST_MAX:
        raise ValueError("no manifest")
    manifest = msgspec.json.decode(source.read(), type=PackedModels)
    missing: dict[str, tuple[Path, ModelFile]] = {}
    staged = []
    for model in manifest.models:
        _check_names(model)
        folder = folders[0 if model.blobs else 1] / model.entry.name
        staged.append((model, folder))
        missing |= {f"{model.entry.name}/{name}": (folder / name, f) for name, f in model.files.items()}
    needed, free = sum(f.size_bytes for _, f in missing.values()), files.free_bytes(folders[0])
    if needed > free:
        raise ModelError(f"{file} needs {human_bytes(needed)}, but the disk has {human_bytes(free)} free.")
    say(f"Reading {len(staged)} models, {human_bytes(needed)}")
    for parts, size, source in members:
        name = "/".join(parts)
        path, facts = missing.pop(name, (None, None))
        if path is None or facts is None or size != facts.size_bytes:
            raise ValueError(f"{name} is not as the manifest lists it")
        below(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            sums = checksum.copy(source, out, size)
        blob = next((m.blobs.get(name.partition("/")[2]) for m, _ in staged if m.entry.name == parts[0]), None)
        if sums.sha256 != facts.sha256 or (blob and not sums.matches(blob)):
            raise ModelError(f"{name} is corrupted in {file}. Nothing was imported. Copy the archive again.")
    if missing:
        raise EOFError(f"{next(iter(missing))} is missing")
    return staged


def _check_names(model: PackedModel) -> None:
    entry = model.entry
    names = [*model.files, *([model.path] if model.path else [])]
    if unsafe(entry.name) or "/" in entry.name or entry.name.startswith(".") or any(unsafe(name) for name in names):
        raise UnsafeMember(entry.name)
    if model.blobs:
        hashes = [*model.blobs.values(), entry.origin.rpartition("@")[2]]
        if set(model.blobs) != set(model.files) or not all(re.fullmatch("[0-9a-f]{40,64}", text) for text in hashes):
            raise ValueError(f"{entry.name} has no place in the Hub's cache")


def _put(model: PackedModel, staged: Path, say: Say) -> ModelEntry:
    with shelf.making(model.entry.recipe, say) as part:
        if model.blobs:
            root = _into_cache(model, staged)
        else:
            staged.mkdir(exist_ok=True)
            for path in staged.iterdir():
                path.replace(part / path.name)
            root = shelf.models_folder() / model.entry.name
        path = root / model.path if model.path else root
        folder = path.parent if path.suffix == ".gguf" else path
        entry = msgspec.structs.replace(
            model.entry,
            path=str(path),
            files={os.path.relpath(root / name, folder): facts for name, facts in model.files.items()},
        )
        return shelf.put(part, entry)


def _into_cache(model: PackedModel, staged: Path) -> Path:
    source = hub.parse(model.entry.origin)
    assert isinstance(source, hub.HubSource)
    storage = storage_folder(source.kind, source.repo)
    root = storage / "snapshots" / source.revision
    (storage / "blobs").mkdir(parents=True, exist_ok=True)
    for name, blob in model.blobs.items():
        (staged / name).replace(storage / "blobs" / blob)
        place(storage / "blobs" / blob, root / name)
    asked = hub.parse(model.entry.recipe.source)
    ref = storage / "refs" / (asked.revision if isinstance(asked, hub.HubSource) else "main")
    if ref.name != source.revision and not ref.exists():  # what this machine has of its own stays
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(source.revision)
    return root
