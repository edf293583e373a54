"""Models in one archive: carried to another machine, or refused as a whole."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dyno.cli.main import main
from dyno.errors import DynoError
from dyno.facts.recipe import ModelRecipe
from dyno.models import archive, checksum, hub, library
from dyno.models.cache import place
from dyno.models.library import ModelEntry, ModelFile
from dyno.outside import OutsideName
from dyno.probe.model import hub_cache

COMMIT = "c" * 40


def quiet(text: str) -> None:
    pass


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Machines]":
    yield Machines(tmp_path, monkeypatch)


class Machines:
    """Two homes on one disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        self.use("first")

    def use(self, name: str) -> None:
        self._patch.setenv("HF_HOME", str(self._folder / name / "hf"))
        self._patch.setenv("DYNO_HOME", str(self._folder / name / "dyno"))


def fetched_model() -> ModelEntry:
    """As a pull leaves it."""
    storage = hub_cache() / "models--acme--tiny"
    root = storage / "snapshots" / COMMIT
    files = {}
    (storage / "blobs").mkdir(parents=True)
    for name, data in (("config.json", b"{}"), ("sub/weights.bin", b"w" * 20_000)):
        draft = storage / "draft"
        draft.write_bytes(data)
        sums = checksum.read(draft)
        blob = storage / "blobs" / (sums.git if len(data) < 100 else sums.sha256)
        draft.replace(blob)
        place(blob, OutsideName(name), root)
        files[name] = ModelFile(len(data), sums.sha256)
    recipe = ModelRecipe("hub:acme/tiny")
    entry = ModelEntry(
        recipe.name,
        recipe,
        "pull",
        str(root),
        f"hub:acme/tiny@{COMMIT}",
        files,
        library.now(),
    )
    with library.making(recipe, quiet) as part:
        return library.put(part, entry)


def made_model(parent: ModelEntry) -> ModelEntry:
    recipe = ModelRecipe("hub:acme/tiny", quantize="llama.cpp:Q4_0")
    with library.making(recipe, quiet) as part:
        (part / "tiny.gguf").write_bytes(b"GGUF" * 100)
        file = ModelFile(400, checksum.read(part / "tiny.gguf").sha256)
        path = library.models_folder() / recipe.name / "tiny.gguf"
        entry = ModelEntry(
            recipe.name,
            recipe,
            "quantize",
            str(path),
            parent.origin,
            {"tiny.gguf": file},
            library.now(),
            1.0,
            parent.name,
        )
        return library.put(part, entry)


def test_models_reach_another_machine_with_their_names_and_the_hubs_layout(
    machine: Machines, tmp_path: Path
) -> None:
    first = fetched_model()
    second = made_model(first)
    file = tmp_path / "models.tar"
    assert main(["models", "export", "acme/tiny", second.name, str(file)]) == 0
    machine.use("second")
    assert main(["models", "import", str(file)]) == 0
    one, two = library.find(first.recipe), library.find(second.recipe)
    assert one and two
    assert (one.files, two.files) == (first.files, second.files)
    assert one.path.startswith(str(hub_cache()))
    assert (one.folder / "config.json").is_symlink()
    assert (hub_cache() / "models--acme--tiny" / "refs" / "main").read_text() == COMMIT
    assert Path(two.path) == library.models_folder() / two.name / "tiny.gguf"
    assert library.verify(one, quiet) == library.verify(two, quiet) == {}
    assert not list(hub_cache().glob(".dyno*"))


def exported(tmp_path: Path) -> Path:
    file = tmp_path / "models.tar"
    archive.export([fetched_model()], file, quiet, quiet)
    return file


def refused(file: Path, machine: Machines) -> str:
    machine.use("second")
    with pytest.raises(DynoError) as caught:
        archive.import_file(file, quiet, quiet)
    assert library.entries() == []
    assert not list(hub_cache().rglob("*.bin"))
    return str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cut_archive_is_refused(machine: Machines, tmp_path: Path, share: float) -> None:
    file = exported(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data.rstrip(b"\0")) * share)])
    assert "is cut off" in refused(file, machine)


def test_a_changed_byte_is_refused(machine: Machines, tmp_path: Path) -> None:
    file = exported(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"wwww", b"wwwx", 1))
    assert "sub/weights.bin is corrupted" in refused(file, machine)


def repacked(file: Path, change: "object") -> None:
    """Write the archive again, with members as `change` returns them."""
    with tarfile.open(file) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(file, "w") as tar:
        for member, data in members:
            member, data = change(member, data)  # type: ignore[operator]
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("path", ["../../evil", "/evil", "{name}/../evil"])
def test_an_unsafe_path_is_refused(machine: Machines, tmp_path: Path, path: str) -> None:
    file = exported(tmp_path)
    name = library.entries()[0].name

    def change(member: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if member.name.endswith("weights.bin"):
            member.name = path.format(name=name)
        return member, data

    repacked(file, change)
    assert "unsafe path" in refused(file, machine)


@pytest.mark.parametrize(
    ("old", "new"),
    [("sub/weights.bin", "../weights.bin"), (COMMIT, "../../../up"), ("tiny-", "../tiny-")],
)
def test_a_manifest_that_leads_elsewhere_is_refused(
    machine: Machines, tmp_path: Path, old: str, new: str
) -> None:
    file = exported(tmp_path)

    def change(member: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return member, data.replace(old.encode(), new.encode()) if member.name.endswith(
            ".json"
        ) else data

    repacked(file, change)
    assert "Nothing was imported" in refused(file, machine)


def test_a_corrupted_model_is_not_exported(machine: Machines, tmp_path: Path) -> None:
    entry = fetched_model()
    (entry.folder / "sub" / "weights.bin").resolve().write_bytes(b"v" * 20_000)
    with pytest.raises(DynoError, match="is corrupted"):
        archive.export([entry], tmp_path / "models.tar", quiet, quiet)
    assert not list(tmp_path.glob("models.tar*"))


def test_local_files_are_carried_as_a_model_of_the_shelf(
    machine: Machines, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    (folder / "pytorch_model.bin").write_bytes(b"1")
    entry = hub.pull(ModelRecipe(f"file:{folder}"), quiet)
    archive.export([entry], tmp_path / "models.tar", quiet, quiet)
    machine.use("second")
    (imported,) = archive.import_file(tmp_path / "models.tar", quiet, quiet)
    assert Path(imported.path) == library.models_folder() / imported.name
    assert imported.whole
    assert msgspec.json.decode((Path(imported.path) / "config.json").read_bytes()) == {
        "hidden_size": 8
    }
