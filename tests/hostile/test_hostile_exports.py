"""`dyno models export` of a model folder that is anybody's, to a place where something lies already."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import quantized_files
import tiny
from dyno.cli.main import main

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"
Run = Callable[..., tuple[int, str, str]]


class Desk:
    """A user's folder with a private file and a model, which others may have filled."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.model, self._capsys = folder, folder / "model", capsys
        self.private = folder / "id_ed25519"
        self.private.write_text(KEY)
        tiny.build(self.model, quantized_files.SHAPE)

    def dyno(self, *words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = self._capsys.readouterr()
        assert "bug in dyno" not in err
        return code, out, err

    def pull(self) -> str:
        code, out, _ = self.dyno("models", "pull", f"file:{self.model}")
        assert code == 0
        return out.split()[0]

    def export(self, file: Path | str = "out.tar") -> tuple[int, str]:
        code, _, err = self.dyno("models", "export", self.pull(), self.folder / file)
        return code, err

    def left(self) -> list[str]:
        return [
            p.name
            for p in self.folder.iterdir()
            if p.name.startswith(".dyno-") or p.name.endswith(".partial")
        ]


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return Desk(tmp_path, capsys)


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer.model", "original/params.json"])
def test_a_link_to_a_private_file_is_neither_exported_nor_copied_to_another_model(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was cloned has any link: the archive had the user's key."""
    (desk.model / name).parent.mkdir(exist_ok=True)
    (desk.model / name).symlink_to(desk.private)
    code, said = desk.export()
    assert code == 1
    assert f"is a link to {desk.private}, which is outside the model's folder." in said
    assert not (desk.folder / "out.tar").exists()
    quantized_files.install_fake(desk.folder / "home", "llm-compressor")
    monkeypatch.setenv("FAKE", "works")
    desk.dyno("models", "quantize", desk.model, "llm-compressor:fp8-dynamic")
    copies = [
        p
        for p in (desk.folder / "home").rglob("*")
        if p.is_file() and KEY.encode() in p.read_bytes()
    ]
    assert copies == []


def test_links_inside_the_folder_and_to_blobs_of_the_hub_are_files(desk: Desk) -> None:
    blobs = desk.folder / "hub" / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("c" * 40)).write_text("{}")
    (desk.model / "notes.txt").symlink_to("config.json")
    (desk.model / "extra.json").symlink_to(blobs / ("c" * 40))
    code, said = desk.export()
    assert code == 0, said
    with tarfile.open(desk.folder / "out.tar") as tar:
        members = {Path(member.name).name: member for member in tar}
    assert members["notes.txt"].isreg() and members["extra.json"].isreg()


NAMES = {
    "a line end": b"a\nb",
    "an escape": b"\x1b[2J",
    "no text": b"\xff\xfe",
    "turned": "\u202etxt".encode(),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_file_whose_name_is_not_text_is_refused_when_the_folder_is_recorded(
    desk: Desk, name: bytes
) -> None:
    (desk.model / os.fsdecode(name)).touch()
    code, _, said = desk.dyno("models", "pull", f"file:{desk.model}")
    assert code == 2
    assert "whose name isn't text. Rename it, or leave it out: --exclude." in said


@pytest.mark.parametrize("name", ["a\\b", "/".join(["d"] * 20)])
def test_a_name_that_no_import_accepts_is_refused_by_the_export(
    desk: Desk, name: str
) -> None:
    (desk.model / name).parent.mkdir(parents=True, exist_ok=True)
    (desk.model / name).touch()
    code, said = desk.export()
    assert code == 1
    assert "which no import accepts. Rename it, and pull again." in said
    assert not (desk.folder / "out.tar").exists()


def test_what_is_not_a_file_is_left_out_and_not_waited_for(desk: Desk) -> None:
    os.mkfifo(desk.model / "pipe")
    (desk.model / "zero").symlink_to("/dev/zero")
    (desk.model / "loop").symlink_to("loop")
    (desk.model / "up").symlink_to(desk.model)
    assert desk.export()[0] == 0
    with tarfile.open(desk.folder / "out.tar") as tar:
        assert not {"pipe", "zero", "loop", "up"} & {
            Path(name).name for name in tar.getnames()
        }


def test_what_lies_beside_the_archive_is_neither_overwritten_nor_removed(
    desk: Desk,
) -> None:
    """A link of the name that dyno wrote to first led its bytes into another file, and the user's file was removed."""
    (desk.folder / "victim").write_text("mine")
    (desk.folder / "a.tar.partial").symlink_to(desk.folder / "victim")
    (desk.folder / "b.tar.partial").write_text("mine")
    for name in ("a.tar", "b.tar"):
        assert desk.export(name)[0] == 0
    assert (
        (desk.folder / "victim").read_text()
        == (desk.folder / "b.tar.partial").read_text()
        == "mine"
    )
    assert sorted(desk.left()) == ["a.tar.partial", "b.tar.partial"]


def test_a_target_that_exists_or_cannot_be_is_refused(desk: Desk) -> None:
    (desk.folder / "there.tar").write_text("mine")
    (desk.folder / "dangling.tar").symlink_to(desk.folder / "elsewhere")
    for file in (
        "there.tar",
        ".",
        "/dev/null",
        "no-folder/x.tar",
        "model/config.json",
        "x" * 300,
    ):
        code, said = desk.export(file)
        assert code in (1, 2), file
        assert said.startswith("dyno: ") and said.count("\n") == 1, said
    assert (desk.folder / "there.tar").read_text() == "mine"
    desk.export("dangling.tar")
    assert not (desk.folder / "elsewhere").exists(), "a link is replaced, not followed"
    assert desk.left() == []


def test_a_target_inside_the_model_is_not_part_of_it(desk: Desk) -> None:
    assert desk.export("model/out.tar")[0] == 0
    with tarfile.open(desk.model / "out.tar") as tar:
        assert "out.tar" not in {Path(name).name for name in tar.getnames()}
    assert desk.export("model/second.tar")[0] == 0


def test_a_file_that_changes_after_it_was_recorded_is_refused(desk: Desk) -> None:
    name = desk.pull()
    (desk.model / "generation_config.json").unlink()
    (desk.model / "generation_config.json").symlink_to(desk.private)
    code, _, said = desk.dyno("models", "export", name, desk.folder / "out.tar")
    assert code == 1
    assert "is incomplete. Pull or make it again before the export." in said
