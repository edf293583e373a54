"""Models in one archive, for a machine without a network: a manifest, then the files, all checked on the way in.

It is a plain tar, as weights don't shrink: dyno-models.json, then NAME/PATH of each file.
"""

import os
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from dyno import files
from dyno.archive import UnsafeMember, plain_files
from dyno.errors import ModelError, UsageError
from dyno.models import checksum, hub, library
from dyno.models.cache import (
    blob_path,
    etag,
    place,
    ref_path,
    snapshot_folder,
    storage_folder,
)
from dyno.models.library import ModelEntry, ModelFile
from dyno.numbers import human_bytes
from dyno.outside import OutsideName, UnsafeName, is_safe
from dyno.probe.model import hub_cache
from dyno.saying import Say
from dyno.scratch import scratch

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
            raise ModelError(
                f"{entry.name} is incomplete. Pull or make it again before the export."
            )
    size = sum(entry.size_bytes for entry in entries)
    if size > (free := files.free_bytes(file.absolute().parent)):
        raise ModelError(
            f"{file} needs {human_bytes(size)}, but its disk has {human_bytes(free)} free."
        )
    try:
        packed = [_packed(entry, below) for entry in entries]
        with scratch(".dyno-export-", file.absolute().parent) as temporary:
            _write(packed, temporary / "archive", say, below)
            (temporary / "archive").replace(file)
    except OSError as e:
        raise ModelError(
            f"{file} can't be written: {e.strerror or e}. Give another path."
        ) from None
    return file.stat().st_size


def _write(
    packed: Sequence[tuple[PackedModel, Path]], file: Path, say: Say, below: Say
) -> None:
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        data = msgspec.json.encode(PackedModels([p for p, _ in packed]))
        tar.addfile(_member(_MANIFEST, len(data)), BytesIO(data))
        for model, root in packed:
            say(f"Writing {model.entry.name}, {human_bytes(model.entry.size_bytes)}")
            for name, facts in model.files.items():
                below(name)
                _add(tar, root / name, f"{model.entry.name}/{name}", facts)


def _packed(entry: ModelEntry, below: Say) -> tuple[PackedModel, Path]:
    """Return the model as the manifest has it, and the folder with its files."""
    snapshot = hub.snapshot_root(entry)
    root = snapshot or entry.folder
    own = hub.fetched(entry) if snapshot else entry.files
    sums = {}
    for name, facts in own.items():
        if not is_safe(name):
            raise ModelError(
                f"{entry.name} has a file {name!r}, which no import accepts. Rename it, and pull again."
            )
        library.check_link(root / name, root)
        below(f"reading {name}")
        # Of a local file, no checksum is known until now.
        sums[name] = ModelFile(
            facts.size_bytes, facts.sha256 or checksum.read(root / name).sha256
        )
    blobs = {name: blob for name in own if (blob := etag(root / name))} if snapshot else {}
    path = os.path.relpath(entry.path, root)
    return PackedModel(entry, "" if path == "." else path, sums, blobs), root


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)  # no owner, and no mode of its own
    info.size = size
    return info


def _add(tar: tarfile.TarFile, path: Path, name: str, facts: ModelFile) -> None:
    if checksum.read(path).sha256 != facts.sha256:
        raise ModelError(
            f"{path} is corrupted: its checksum has changed. Run `dyno models verify`."
        )
    with files.opened(path) as source:
        tar.addfile(_member(name, facts.size_bytes), source)


# ---- import ----


def import_file(file: Path, say: Say, below: Say) -> list[ModelEntry]:
    """Put the models of an archive in the library: all of them, or none where one is damaged."""
    cache, own = hub_cache(), library.models_folder()
    try:
        for folder in (cache, own):
            folder.mkdir(parents=True, exist_ok=True)
        with (
            scratch(".dyno-import-", cache) as for_hub,
            scratch(".import-", own) as for_shelf,
            files.opened(file, pipes=True) as stream,
        ):
            staged = _stage_files(stream, file, (for_hub, for_shelf), say, below)
            return [_put(model, folder, say) for model, folder in staged]
    except FileNotFoundError as e:
        raise UsageError(f"{e.filename}: no such file.") from None
    except (UnsafeMember, UnsafeName) as e:
        raise ModelError(
            f"{file} contains {str(e)!r}, which is a link or an unsafe path, so it isn't from `dyno models export`. "
            "Nothing was imported."
        ) from None
    except (tarfile.TarError, EOFError, *files.BROKEN) as e:
        raise ModelError(
            f"{file} is cut off, or not from `dyno models export` ({e}). Nothing was imported. Copy it again."
        ) from None
    except OSError as e:
        raise ModelError(
            f"{file} can't be imported: {e.strerror or e}. Nothing was imported."
        ) from None


class _Expected(NamedTuple):
    """A file that the manifest lists."""

    path: Path  # where it is written
    facts: ModelFile
    blob: str | None  # its name in the Hub's cache


_Members = Iterator[tuple[OutsideName, int, IO[bytes]]]  # name, size, and content


def _stage_files(
    stream: IO[bytes], file: Path, folders: tuple[Path, Path], say: Say, below: Say
) -> list[tuple[PackedModel, Path]]:
    """Write the archive's files to a place on the disk of their own, and check each."""
    members = plain_files(stream, _DEEPEST)
    staged = _staged(_manifest(members), folders)
    expected = _expected(staged)
    needed, free = (
        sum(e.facts.size_bytes for e in expected.values()),
        files.free_bytes(folders[0]),
    )
    if needed > free:
        raise ModelError(
            f"{file} needs {human_bytes(needed)}, but the disk has {human_bytes(free)} free."
        )
    say(f"Reading {len(staged)} models, {human_bytes(needed)}")
    for member, size, source in members:
        name = str(member)
        listed = expected.pop(name, None)
        if listed is None or size != listed.facts.size_bytes:
            raise ValueError(f"{name} is not as the manifest lists it")
        below(name)
        if not _copied(source, size, listed):
            raise ModelError(
                f"{name} is corrupted in {file}. Nothing was imported. Copy the archive again."
            )
    if expected:
        raise EOFError(f"{next(iter(expected))} is missing")
    return staged


def _manifest(members: _Members) -> PackedModels:
    """Read the first file of an archive."""
    first, size, source = next(members, (None, 0, BytesIO()))
    if str(first) != _MANIFEST or size > _MANIFEST_MAX:
        raise ValueError("no manifest")
    manifest = msgspec.json.decode(source.read(), type=PackedModels)
    if not manifest.models:
        raise ValueError("its manifest lists no model")
    return manifest


def _staged(
    manifest: PackedModels, folders: tuple[Path, Path]
) -> list[tuple[PackedModel, Path]]:
    """Return each model with the folder that its files are written to. `folders`: on the disk of the Hub's cache, and
    of the library."""
    for_hub, for_shelf = folders
    staged: dict[str, tuple[PackedModel, Path]] = {}
    for model in manifest.models:
        _check_model(model)
        name = model.entry.name
        if name in staged:
            raise ValueError(f"{name} is listed twice")
        folder = OutsideName.single(name).below(for_hub if model.blobs else for_shelf)
        staged[name] = model, folder
    return list(staged.values())


def _expected(staged: Sequence[tuple[PackedModel, Path]]) -> dict[str, _Expected]:
    """Return the files that an archive must have, by their names in it."""
    expected = {}
    for model, folder in staged:
        for name, facts in model.files.items():
            path = OutsideName(name).below(folder)
            expected[f"{model.entry.name}/{name}"] = _Expected(
                path, facts, model.blobs.get(name)
            )
    return expected


def _copied(source: IO[bytes], size: int, listed: _Expected) -> bool:
    """Write a file, and return whether it is what the manifest lists."""
    listed.path.parent.mkdir(parents=True, exist_ok=True)
    with listed.path.open("xb") as out:
        sums = checksum.copy(source, out, size)
    if sums.sha256 != listed.facts.sha256:
        return False
    return not listed.blob or sums.matches(listed.blob)


def _check_model(model: PackedModel) -> None:
    """Refuse a model whose names lead elsewhere, or that has no place here: before anything is written."""
    entry = model.entry
    OutsideName.single(entry.name)
    for name in model.files:
        OutsideName(name)
    if model.path:
        OutsideName(model.path)
    if entry.name != entry.recipe.name:
        raise ValueError(f"{entry.name} is not the name of its recipe, {entry.recipe.name}")
    if any(facts.size_bytes < 0 for facts in model.files.values()):
        raise ValueError(f"{entry.name} has a file of a negative size")
    if model.path and not any(
        name == model.path or name.startswith(f"{model.path}/") for name in model.files
    ):
        raise ValueError(f"{entry.name} has no {model.path}")
    if model.blobs:
        _check_place(model)


def _check_place(model: PackedModel) -> None:
    """Refuse a fetched model that has no place in the Hub's cache."""
    try:
        source = hub.parse(model.entry.origin)
        hub.parse(model.entry.recipe.source)
    except UsageError as e:
        raise ValueError(str(e)) from None
    if not isinstance(source, hub.HubSource) or set(model.blobs) != set(model.files):
        raise ValueError(f"{model.entry.name} has no place in the Hub's cache")
    for digest in (source.revision, *model.blobs.values()):
        OutsideName.digest(digest)


def _put(model: PackedModel, staged: Path, say: Say) -> ModelEntry:
    with library.making(model.entry.recipe, say) as part:
        if model.blobs:
            root = _into_cache(model, staged)
        else:
            staged.mkdir(exist_ok=True)
            for path in staged.iterdir():
                path.replace(part / path.name)
            root = library.model_folder(model.entry.name)
        path = OutsideName(model.path).below(root) if model.path else root
        folder = path.parent if path.suffix == ".gguf" else path
        entry = msgspec.structs.replace(
            model.entry,
            path=str(path),
            files={
                os.path.relpath(OutsideName(n).below(root), folder): facts
                for n, facts in model.files.items()
            },
        )
        return library.put(part, entry)


def _into_cache(model: PackedModel, staged: Path) -> Path:
    source = hub.parse(model.entry.origin)
    assert isinstance(source, hub.HubSource)
    storage = storage_folder(source.kind, source.repo)
    root = snapshot_folder(storage, source.revision)
    (storage / "blobs").mkdir(parents=True, exist_ok=True)
    for text, digest in model.blobs.items():
        name, blob = OutsideName(text), blob_path(storage, digest)
        name.below(staged).replace(blob)
        place(blob, name, root)
    asked = hub.parse(model.entry.recipe.source)
    revision = asked.revision if isinstance(asked, hub.HubSource) else "main"
    ref = ref_path(storage, revision)
    # what this machine has of its own stays
    if revision != source.revision and not ref.exists():
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(source.revision)
    return root
