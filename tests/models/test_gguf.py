"""GGUF files are converted and quantized by tools that may fail, hang or lie: what is on the shelf is verified."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import gguf_files
import tiny
from dyno.engines import model
from dyno.errors import EngineError, ModelError, StoreError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.models import gguf, library
from dyno.models.library import ModelEntry
from dyno.models.programs.convert_gguf import rule
from dyno.probe.tensors import BLOCKS

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    gguf_files.install()
    return tmp_path / "home"


@pytest.fixture(scope="module")
def f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny-F16.gguf"
    gguf_files.write(path, "F16")
    return path


def pulled(path: Path) -> ModelEntry:
    recipe = ModelRecipe(source=f"file:{path}")
    return ModelEntry(
        recipe.name, recipe, "pull", str(path), recipe.source, {}, library.now()
    )


def quantized(
    path: Path, kind: str, say: Callable[[str], None] = print, **more: Any
) -> ModelEntry:
    recipe = ModelRecipe(source=f"file:{path}", quantize=f"llama.cpp:{kind}", **more)
    return gguf.quantize(recipe, pulled(path), say, print)


# ---- what is asked for ----


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"convert": "gguf:Q4_K_M"},
            "'gguf:Q4_K_M' is not a conversion. Use gguf:F32, gguf:F16",
        ),
        ({"convert": "onnx:F16"}, "'onnx:F16' is not a conversion"),
        (
            {"quantize": "llama.cpp:Q4_K_XL"},
            "llama.cpp has no type Q4_K_XL. Did you mean Q4_K",
        ),
        ({"quantize": "llama.cpp:"}, "has no type (none)"),
        (
            {"quantize": "llama.cpp:IQ2_XS"},
            "llama.cpp:IQ2_XS needs text .* --calibration FILE",
        ),
        ({"quantize": "llama.cpp:Q8_0", "kv_cache": "fp8"}, "takes no kv_cache"),
        ({"quantize": "llama.cpp:Q8_0", "ignore": ["lm_head"]}, "takes no ignore"),
    ],
)
def test_a_recipe_that_the_tools_cannot_follow_is_refused_before_one_starts(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(").replace(")", r"\)")):
        gguf.check(ModelRecipe(source="file:/m", **asked))


def test_types_are_known_in_any_case_and_each_has_a_tensor_type() -> None:
    assert (
        gguf.parse_type("llama.cpp:q4_k_m") == "Q4_K_M"
        and gguf.parse_conversion("gguf:bf16") == "BF16"
    )
    assert gguf.parse_conversion("gguf") == gguf.parse_conversion("gguf:auto") == "AUTO"
    assert set(gguf.TYPES.values()) <= set(BLOCKS) and set(gguf.NEED_TEXT) <= set(
        gguf.TYPES
    )


def test_a_quantized_file_is_not_quantized_again(home: Path, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "q8.gguf", "Q8_0")
    with pytest.raises(UsageError, match=r"q8.gguf is quantized already \(Q8_0\)"):
        quantized(tmp_path / "q8.gguf", "Q4_0")


def test_only_safetensors_are_converted(home: Path, f16: Path, tmp_path: Path) -> None:
    for path, message in (
        (f16, "is GGUF already"),
        (tmp_path, "is not a model in safetensors"),
    ):
        with pytest.raises(UsageError, match=message):
            gguf.convert(
                ModelRecipe(source=f"file:{path}", convert="gguf:F16"),
                pulled(path),
                print,
                print,
            )


# ---- tokenizers ----


def tokenizer() -> Any:
    return json.loads((model.FOLDER / "tokenizer.json").read_text(encoding="utf-8"))


def test_a_tokenizer_is_named_by_the_rule_that_it_splits_text_by() -> None:
    ours = tokenizer()
    assert rule(ours) == "qwen2"
    first = ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    first["Regex"] = first["Regex"].replace(r"\p{N}|", r"\p{N}{1,3}|")
    ours["model"]["ignore_merges"] = True
    assert rule(ours) == "llama-bpe"
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    assert rule({"model": {"type": "BPE"}, "pre_tokenizer": level}) == "gpt-2"


@pytest.mark.parametrize(
    "other",
    [
        {"model": {"type": "Unigram"}},
        {"model": {"type": "BPE", "ignore_merges": True}},
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": None},
    ],
)
def test_a_tokenizer_that_splits_otherwise_has_no_name(other: dict[str, Any]) -> None:
    ours = tokenizer()
    assert rule(ours | other) is None
    ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] += "|x"
    assert rule(ours) is None


# ---- verified files ----


def test_a_right_file_is_described_by_its_types_values_and_metadata(
    f16: Path, tmp_path: Path
) -> None:
    gguf_files.write(tmp_path / "q4.gguf", "Q4_0")
    verified = gguf.check_file(tmp_path / "q4.gguf", "Q4_0", f16)
    assert verified["metadata"] == "llama, 2 layers, context 1024, tokenizer gpt2 qwen2"
    assert (
        verified["types"].startswith("Q4_0: 16 tensors, 1.")
        and "output.weight Q4_0" in verified["types"]
    )
    assert verified["values"].startswith("6 tensors finite, relative error up to 0.08")


def spoiled(what: str) -> dict[str, np.ndarray]:
    tensors = gguf_files.weights()
    if what == "nan":
        tensors["blk.0.ffn_up.weight"][3, 7] = np.nan
    if what == "noise":
        tensors["blk.1.ffn_down.weight"] = tensors["blk.1.ffn_down.weight"][:, ::-1].copy()
    if what == "layer":
        tensors = {name: values for name, values in tensors.items() if "blk.1." not in name}
    return tensors


@pytest.mark.parametrize(
    ("stored", "what", "message"),
    [
        ("Q8_0", "", "should have Q4_0 weights, but most of its weights are Q8_0"),
        ("F16", "", "most of its weights are F16"),
        ("Q4_0", "nan", "blk.0.ffn_up.weight has NaN or infinite values"),
        (
            "Q4_0",
            "noise",
            r"blk.1.ffn_down.weight differs from its source by 1.4\d+ of its size; Q4_0 should stay below",
        ),
        ("Q4_0", "layer", "has no weights of 1 layer, the first one 1"),
        ("Q4_0", "tokenizer", "lacks tokenizer.ggml.model, tokenizer.ggml.tokens"),
        ("Q4_0", "cut", "is cut off"),
        ("Q4_0", "head", "can't be read as GGUF"),
    ],
)
# by the writer of the one with NaN
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_wrong_file_is_refused(
    f16: Path, tmp_path: Path, stored: str, what: str, message: str
) -> None:
    path = tmp_path / "out.gguf"
    gguf_files.write(path, stored, spoiled(what), None if what == "tokenizer" else "qwen2")
    if what in ("cut", "head"):
        os.truncate(path, path.stat().st_size // 2 if what == "cut" else 2000)
    with pytest.raises(ModelError, match=message):
        gguf.check_file(path, "Q4_0", f16)


def test_a_file_that_generates_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    gguf_files.write(path, "Q8_0", rule="no-such-rule")
    with pytest.raises(ModelError, match=r"out.gguf was written, but generates nothing"):
        gguf.generate(path, tmp_path / "log", print, print)


# ---- steps ----


def test_safetensors_are_converted_then_quantized_and_neither_is_done_twice(
    home: Path, tmp_path: Path
) -> None:
    source = tiny.build(tmp_path / "tiny", gguf_files.SHAPE)
    says: list[str] = []
    entry = quantized(source, "Q8_0", says.append)
    first = library.find(ModelRecipe(source=f"file:{source}", convert="gguf:auto"))
    assert first and entry.parent == first.name and first.tool_version == "llama.cpp 1"
    assert first.verified["types"].startswith("BF16: 16 tensors")
    assert (
        entry.verified["types"].startswith("Q8_0: 16 tensors")
        and "as its source" in entry.verified["generation"]
    )
    assert [entry.path] == [
        str(p) for p in Path(entry.path).parent.glob("*.gguf")
    ] and entry.whole
    assert "splits text as qwen2 does" in (Path(first.path).parent / "make.log").read_text()
    assert library.find(entry.recipe) == entry and entry.verified["text"]
    assert ["converting" in line for line in says].count(True) == 1
    quantized(source, "Q4_0", says.append)
    assert ["converting" in line for line in says].count(True) == 1, (
        "the converted model is taken from the shelf"
    )


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (
            "fail",
            'llama-quantize failed with code 1: "error: No space left on device". The disk is full',
        ),
        ("Q8_0", "should have Q4_0 weights, but most of its weights are Q8_0"),
    ],
)
def test_a_tool_that_fails_or_lies_leaves_nothing(
    home: Path, f16: Path, monkeypatch: pytest.MonkeyPatch, way: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_TOOL", way)
    with pytest.raises((EngineError, ModelError), match=message):
        quantized(f16, "Q4_0")
    assert not library.entries() and not list(home.glob("models/.*.part"))


def test_a_full_disk_is_noticed_before_the_tool_starts(
    home: Path, f16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=999))
    with pytest.raises(
        StoreError, match=r"needs about 1.\d+ MiB, but the disk of .* has 999 B free"
    ):
        quantized(f16, "Q4_0")


_CHILD = """
import sys; sys.path[:0] = [{tests!r}, {tests!r} + "/models"]
from pathlib import Path
import test_gguf
test_gguf.quantized(Path({path!r}), "Q8_0")
"""


@pytest.mark.engines
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_step_leaves_no_model_and_no_tool_and_the_same_command_continues(
    home: Path, f16: Path, how: signal.Signals
) -> None:
    code = _CHILD.format(tests=str(Path(__file__).parents[1]), path=str(f16))
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "FAKE_TOOL": "slow"},
        stderr=subprocess.PIPE,
    )
    while not (pids := list(home.glob("models/.*.part/*.pid"))):
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    tool = psutil.Process(int(pids[0].read_text()))
    child.send_signal(how)
    child.communicate(timeout=60)
    psutil.wait_procs([tool], timeout=30)
    assert not tool.is_running() or tool.status() == psutil.STATUS_ZOMBIE
    recipe = ModelRecipe(source=f"file:{f16}", quantize="llama.cpp:Q8_0")
    assert library.find(recipe) is None and not list(home.glob("models/[!.]*"))
    entry = quantized(f16, "Q8_0")
    assert (
        entry.whole
        and entry == library.find(recipe)
        and not list(home.glob("models/.*.part"))
    )


def test_one_type_in_two_spellings_is_one_model() -> None:
    spelt = [("gguf:f16", "llama.cpp:q4_k_m"), ("gguf:F16", "llama.cpp:Q4_K_M")]
    recipes = [
        ModelRecipe(source="file:x", convert=convert, quantize=quantize)
        for convert, quantize in spelt
    ]
    assert recipes[0] == recipes[1] and recipes[0].name == recipes[1].name
    assert ModelRecipe(source="file:x", convert="gguf:auto").convert == "gguf:auto"
