"""Archives, weights and tokenizers that mean harm. Nothing leaves its folder, nothing is stored by halves."""

import contextlib
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.errors import ModelError, UsageError, WorkloadError
from dyno.facts.recipe import ModelRecipe
from dyno.models import archive, check, library
from dyno.probe import model as model_files
from dyno.probe.tensors import read_safetensors
from dyno.workload.tokenizer import LocalTokenizer
from hostile_archives import Packed
from test_hostile_hub import JSON, NAMES, memory_bytes

COMMIT = "c" * 40


class Machine:
    """A home with a cache, a shelf and files that must stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".bashrc").write_text("mine\n")
        (folder / "hf" / "hub").mkdir(parents=True)
        (folder / "dyno" / "models").mkdir(parents=True)

    def attempt(self, packed: Packed, manifest: bytes | None = None) -> str:
        """Import, and return the refusal; empty: it was imported. Whatever happens, it is all or nothing."""
        file = packed.write(self.folder / "models.tar", manifest)
        before = self.everything()
        try:
            archive.import_file(file, lambda text: None, lambda text: None)
        except (ModelError, UsageError) as e:
            assert self.everything() == before
            return str(e)
        outside = {
            p
            for p in self.everything() - before
            if not p.startswith(("hf/hub/models--", "dyno/models/"))
        }
        assert outside == set()
        assert (self.folder / ".bashrc").read_text() == "mine\n"
        return ""

    def everything(self) -> set[str]:
        return {
            str(p.relative_to(self.folder))
            for p in self.folder.rglob("*")
            if (p.is_file() or p.is_symlink()) and not p.name.endswith(".lock")
        }


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "dyno"))
    return Machine(tmp_path)


def local(machine: Machine) -> Packed:
    return Packed(machine.folder).model("a", {"config.json": b"{}", "w.bin": b"w" * 5000})


def from_hub(machine: Machine, revision: str = "") -> Packed:
    source = "hub:acme/tiny" + (f"@{revision}" if revision else "")
    return Packed(machine.folder).model("tiny", {"config.json": b"{}"}, source, blobs=True)


def test_honest_archives_are_imported(machine: Machine) -> None:
    assert machine.attempt(local(machine)) == ""
    assert machine.attempt(from_hub(machine, "v1")) == ""
    storage = machine.folder / "hf/hub/models--acme--tiny"
    assert (storage / "refs/v1").read_text() == COMMIT
    assert (storage / "snapshots" / COMMIT / "config.json").read_bytes() == b"{}"
    assert len(library.entries()) == 2


# ---- names ----


@pytest.mark.parametrize("name", NAMES, ids=lambda n: repr(n)[:20])
def test_a_file_whose_name_leads_elsewhere_is_refused(name: str, machine: Machine) -> None:
    packed = local(machine)
    packed.models[0]["files"][name] = packed.models[0]["files"]["config.json"]
    packed.add(f"{packed.models[0]['entry']['name']}/{name}".replace("\ud800", "?"), b"{}")
    assert "Nothing was imported" in machine.attempt(packed)


@pytest.mark.parametrize(
    "name", [*NAMES[:20], ".hidden", "a/b", "models"], ids=lambda n: repr(n)[:20]
)
def test_a_model_whose_name_leads_elsewhere_is_refused(name: str, machine: Machine) -> None:
    packed = local(machine)
    packed.models[0]["entry"]["name"] = name
    assert "Nothing was imported" in machine.attempt(packed)


REVISIONS = [
    "../../../x",
    "..",
    ".",
    "a/../../b",
    "a//b",
    "a/",
    "../" * 8 + ".bashrc",
    "x\\y",
    "/etc/x",
    "x\0",
]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_that_leads_elsewhere_is_refused(
    revision: str, machine: Machine
) -> None:
    """By the recipe: refs/REVISION was written wherever it led."""
    packed = from_hub(machine)
    recipe = packed.models[0]["entry"]["recipe"]
    recipe["from"] = f"hub:acme/tiny@{revision}"
    packed.models[0]["entry"]["name"] = ModelRecipe(recipe["from"]).name
    assert machine.attempt(packed) != ""


@pytest.mark.parametrize("commit", [*REVISIONS, "", "main", "C" * 40, "c" * 39, "c" * 41])
def test_a_commit_that_is_none_is_refused(commit: str, machine: Machine) -> None:
    packed = from_hub(machine)
    packed.models[0]["entry"]["origin"] = f"hub:acme/tiny@{commit}"
    assert machine.attempt(packed) != ""


@pytest.mark.parametrize(
    "origin",
    ["file:/etc", "hub:", "hub:../..@" + COMMIT, "hub:a/b/c@" + COMMIT, "", "/etc", "x y"],
)
def test_an_origin_that_is_not_the_hubs_has_no_place_in_its_cache(
    origin: str, machine: Machine
) -> None:
    packed = from_hub(machine)
    packed.models[0]["entry"]["origin"] = origin
    assert machine.attempt(packed) != ""


@pytest.mark.parametrize(
    "blob", ["../../../.bashrc", "", "x" * 40, "a" * 40, "A" * 64, "a" * 64 + "/x"]
)
def test_a_blob_of_another_name_is_refused(blob: str, machine: Machine) -> None:
    packed = from_hub(machine)
    packed.models[0]["blobs"]["config.json"] = blob
    assert machine.attempt(packed) != ""


# ---- what a manifest may claim ----


def twice(packed: Packed) -> None:
    packed.models.append(packed.models[0])


def negative(packed: Packed) -> None:
    packed.models[0]["files"]["w.bin"]["size_bytes"] = -5000


def huge(packed: Packed) -> None:
    packed.models[0]["files"]["w.bin"]["size_bytes"] = 1 << 60


def link(packed: Packed) -> None:
    packed.add("a/evil", kind=tarfile.SYMTYPE, link="/etc/passwd")


def hard_link(packed: Packed) -> None:
    packed.add("a/evil", kind=tarfile.LNKTYPE, link="../../.bashrc")


def device(packed: Packed) -> None:
    packed.add("a/evil", kind=tarfile.CHRTYPE)


def unlisted(packed: Packed) -> None:
    packed.add("a/more", b"x")


def missing(packed: Packed) -> None:
    packed.members.pop()


def again(packed: Packed) -> None:
    packed.members.append(packed.members[-1])


def altered(packed: Packed) -> None:
    info, data = packed.members[-1]
    packed.members[-1] = (info, data[:-1] + b"!")


def other_path(packed: Packed) -> None:
    packed.models[0]["path"] = "../../.bashrc"


def no_path(packed: Packed) -> None:
    packed.models[0]["path"] = "not/there.gguf"


def other_recipe(packed: Packed) -> None:
    packed.models[0]["entry"]["recipe"] = {"from": "hub:other/model"}


def blobs_of_none(packed: Packed) -> None:
    packed.models[0]["blobs"] = {"other": "a" * 40}


CHANGES: list[Callable[[Packed], None]] = [
    twice, negative, huge, link, hard_link, device, unlisted, missing, again, altered, other_path, no_path,
    other_recipe, blobs_of_none,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_manifest_that_lies_stores_nothing(
    change: Callable[[Packed], None], machine: Machine
) -> None:
    packed = local(machine)
    change(packed)
    assert machine.attempt(packed) != ""
    assert library.entries() == []


MANIFESTS = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"models": 1}',
    b'{"models": []}',
    b'{"models": [{}]}',
    b"[" * 100_000,
    b"\xff",
]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: repr(m)[:20])
def test_a_manifest_that_is_none_stores_nothing(manifest: bytes, machine: Machine) -> None:
    assert machine.attempt(local(machine), manifest) != ""


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    change=st.dictionaries(
        st.sampled_from(["entry", "path", "files", "blobs"]), JSON, max_size=2
    ),
    entry=st.data(),
)
def test_any_manifest_is_imported_whole_or_not(
    change: dict[str, Any], entry: st.DataObject, machine: Machine
) -> None:
    packed = local(machine)
    key = entry.draw(st.sampled_from(sorted(packed.models[0]["entry"])))
    packed.models[0]["entry"][key] = entry.draw(JSON)
    packed.models[0] |= change
    machine.attempt(packed)


# ---- weights ----


def safetensors(
    path: Path, head: Any, data: bytes = b"", length: int | None = None
) -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(
        struct.pack("<Q", len(text) if length is None else length) + text + data
    )
    return path


def tensor(
    shape: Any = (2, 2), dtype: Any = "F16", offsets: Any = (0, 8)
) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


HEADS: dict[str, Any] = {
    "10^36 values in 8 bytes": tensor([10**12, 10**12, 10**12]),
    "more values than bytes": tensor([100, 100]),
    "fewer values than bytes": tensor([1, 1]),
    "negative shape": tensor([-2, -2]),
    "negative offsets": tensor(offsets=[-8, 0]),
    "offsets backwards": tensor(offsets=[8, 0]),
    "offsets beyond": tensor(offsets=[0, 1 << 40]),
    "three offsets": tensor(offsets=[0, 4, 8]),
    "a shape of words": tensor(["x"]),
    "a shape of none": tensor(None),
    "a deep shape": tensor([1] * 100_000),
    "more values of an unknown type than bits": tensor([9, 9], dtype="F3"),
    "a type of numbers": tensor(dtype=5),
    "a list": [],
    "a number": 5,
    "no tensors": {},
    "a tensor of none": {"a": None},
    "deep": b"[" * 100_000,
    "not UTF-8": b"\xff" * 20,
    "overlapping": {**tensor(), "b": tensor()["a"]},
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_header_that_does_not_fit_its_file_is_not_verified(
    head: Any, tmp_path: Path
) -> None:
    safetensors(tmp_path / "model.safetensors", head, b"x" * 8)
    before = memory_bytes()
    problem = check.problem(tmp_path)
    model_files.read(tmp_path)
    assert problem is not None or head == {}
    assert memory_bytes() - before < 200 << 20


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_length_that_is_not_the_headers_is_refused(length: int, tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", tensor(), b"x" * 8, length)
    assert check.problem(tmp_path) is not None


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(head=JSON, data=st.binary(max_size=40))
def test_any_header_is_read_or_refused(head: Any, data: bytes, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", head, data)
    check.problem(tmp_path)
    model_files.read(tmp_path)
    with contextlib.suppress(ValueError):
        list(read_safetensors(path))


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.binary(max_size=300))
def test_any_gguf_is_read_or_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0" + data)
    check.problem(tmp_path / "m.gguf")
    model_files.read(tmp_path / "m.gguf")


# ---- tokenizers ----


def tokenizer(**other: Any) -> dict[str, Any]:
    vocab = {chr(c): c - 32 for c in range(32, 127)} | {"[UNK]": 95}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "[UNK]"}, **other,
    }  # fmt: skip


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*rules: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(rules)}


def nested(rule: Any, deep: int) -> Any:
    for _ in range(deep):
        rule = sequence(rule)
    return rule


WORDS = {"type": "WordLevel", "vocab": {"hello": 0}, "unk_token": "[UNK]"}
GROWS = sequence(*[replace({"String": "a"}, "a" * 10)] * 12)
BACKTRACKS = {
    "type": "Split",
    "pattern": {"Regex": "(x+x+)+y"},
    "behavior": "Isolated",
    "invert": False,
}
TOKENIZERS: dict[str, Any] = {
    "a regex that backtracks": tokenizer(pre_tokenizer=BACKTRACKS),
    "a normalizer that backtracks": tokenizer(normalizer=replace({"Regex": "(x+x+)+y"}, "")),
    "a broken regex": tokenizer(pre_tokenizer={**BACKTRACKS, "pattern": {"Regex": "(((("}}),
    "a recursive regex": tokenizer(pre_tokenizer={**BACKTRACKS, "pattern": {"Regex": r"(?<a>\g<a>x)"}}),
    "a lookbehind": tokenizer(pre_tokenizer={**BACKTRACKS, "pattern": {"Regex": "(?<=x{1,100})y"}}),
    "no [UNK]": tokenizer(model=WORDS),
    "no vocabulary": tokenizer(model={"type": "BPE", "vocab": {}, "merges": []}),
    "a normalizer that multiplies": tokenizer(normalizer=GROWS),
    "one that adds between letters": tokenizer(normalizer=sequence(*[replace({"Regex": ""}, "aa")] * 10)),
    "one long replacement": tokenizer(normalizer=replace({"String": "x"}, "y" * 1_000_000)),
    "a hundred prefixes": tokenizer(normalizer=sequence(*[{"type": "Prepend", "prepend": "aa"}] * 100)),
    "rules in rules": tokenizer(normalizer=nested(GROWS, 50)),
    "too many rules": tokenizer(normalizer=sequence(*[{"type": "NFC"}] * 100_000)),
    "rules in rules in rules": tokenizer(normalizer=nested({"type": "NFC"}, 100)),
    "a decoder that multiplies": tokenizer(
        decoder={"type": "Sequence", "decoders": [replace({"String": "a"}, "a" * 99)] * 9}),
    "negative ids": tokenizer(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}),
    "huge ids": tokenizer(model={"type": "BPE", "vocab": {"a": 2**31}, "merges": []}),
    "the same id twice": tokenizer(model={"type": "BPE", "vocab": {"a": 1, "b": 1}, "merges": []}),
    "merges of none": tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}),
    "merges of one": tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}),
    "an unknown model": tokenizer(model={"type": "Evil"}),
    "no model": {k: v for k, v in tokenizer().items() if k != "model"},
    "a unigram of nan": tokenizer(model={"type": "Unigram", "vocab": [["a", -1e308], ["b", 0]], "unk_id": 5}),
    "a unigram of nothing": tokenizer(model={"type": "Unigram", "vocab": [], "unk_id": 0}),
    "a wordpiece of one letter": tokenizer(
        model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "?", "max_input_chars_per_word": 0,
               "continuing_subword_prefix": ""}),
    "a template of none": tokenizer(post_processor={"type": "TemplateProcessing", "single": [], "pair": [],
                                                    "special_tokens": {}}),
    "an added token of nothing": tokenizer(added_tokens=[{"id": 0, "content": "", "single_word": False,
        "lstrip": False, "rstrip": False, "normalized": False, "special": True}]),
    "truncation to nothing": tokenizer(truncation={"max_length": 0, "strategy": "LongestFirst", "stride": 5,
                                                   "direction": "Right"}),
    "padding without end": tokenizer(padding={"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x", "pad_to_multiple_of": None}),
    **{f"{part} {value!r:.20}": tokenizer(**{part: value})
       for part in ("normalizer", "pre_tokenizer", "decoder", "model")
       for value in (1, "x", [], {}, {"type": None}, {"type": "Sequence"}, [[]], True)},
    **{f"a file of {value!r:.20}": value for value in (None, 1, "x", [], [[]], {}, True)},
}  # fmt: skip
TEXTS = ["hello", "x" * 3000, "a" * 2000, "", "\0", "日本", "\U0010ffff" * 10, " " * 1000]


@pytest.mark.parametrize("document", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_a_tokenizer_counts_or_is_refused_in_one_sentence(
    document: Any, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    before = memory_bytes()
    try:
        made = LocalTokenizer("t", tmp_path / "tokenizer.json")
        for text in TEXTS:
            made.decode(made.encode(text))
    except WorkloadError as e:
        assert "\n" not in str(e)
        assert "okenizer" in str(e)
    assert memory_bytes() - before < 500 << 20


def test_an_honest_tokenizer_counts(tmp_path: Path) -> None:
    honest = sequence(
        {"type": "NFC"}, replace({"String": " "}, "▁"), {"type": "Prepend", "prepend": "▁"}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(normalizer=honest)))
    assert LocalTokenizer("t", tmp_path / "tokenizer.json").count("hello") == 6


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    change=st.dictionaries(
        st.sampled_from(
            ["normalizer", "pre_tokenizer", "decoder", "model", "added_tokens"]
        ),
        JSON,
    )
)
def test_any_tokenizer_counts_or_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(**change)))
    with contextlib.suppress(WorkloadError):
        LocalTokenizer("t", tmp_path / "tokenizer.json").count("hello")
