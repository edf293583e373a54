"""llama.cpp's converter, quantizer and importance matrix for real, on a tiny model; and one of its files is served.

`make test-tools`. The tools are built once, outside the project (`dyno engines install llama-tools`).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from dyno.engines import environment
from dyno.errors import EngineError, ModelError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.models import gguf, library
from dyno.models.library import ModelEntry
from dyno.numbers import human_bytes

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
def tools() -> environment.Environment:
    """By the command, as a user would; a second time costs a second."""
    if environment.find(gguf.KIND) is None:
        command = [sys.executable, "-m", "dyno", "engines", "install", gguf.KIND]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = environment.find(gguf.KIND)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def home(
    tools: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models go to a folder of the test, the tools stay where they are."""
    engines = environment.engines_folder()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "engines").symlink_to(engines)
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))


def pulled(path: Path) -> ModelEntry:
    recipe = ModelRecipe(source=f"file:{path}")
    return ModelEntry(
        recipe.name, recipe, "pull", str(path), recipe.source, {}, library.now()
    )


def show(entry: ModelEntry) -> None:
    words = {
        name: text
        for name, text in entry.verified.items()
        if name in ("types", "values", "generation")
    }
    print(
        f"\n{entry.name}: {human_bytes(entry.size_bytes)} in {entry.took_s:.1f} s; "
        + " | ".join(words.values())
    )


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_is_converted_and_quantized_to_each_kind_of_type(
    tmp_path: Path, kind: str
) -> None:
    source = pulled(tiny.build(tmp_path / kind, tiny.WIDE._replace(kind=kind)))
    sizes = []
    for quantization in (
        "Q8_0",
        "Q6_K",
        "Q5_1",
        "Q4_K_M",
        "Q4_0",
        "IQ4_XS",
        "IQ3_S",
        "Q3_K_S",
        "Q2_K",
    ):
        recipe = ModelRecipe(
            source=source.recipe.source, quantize=f"llama.cpp:{quantization}"
        )
        entry = gguf.quantize(recipe, source, print, lambda _: None)
        show(entry)
        assert (
            entry.verified["types"].count(gguf.TYPES[quantization])
            and entry.verified["text"]
        )
        sizes.append(entry.size_bytes)
    show(next(entry for entry in library.entries() if entry.step == "convert"))
    assert len([entry for entry in library.entries() if entry.step == "convert"]) == 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_each_conversion_keeps_the_weights(tmp_path: Path, kind: str) -> None:
    source = pulled(tiny.build(tmp_path / "tiny", tiny.WIDE))
    recipe = ModelRecipe(source=source.recipe.source, convert=f"gguf:{kind}")
    entry = gguf.convert(recipe, source, print, lambda _: None)
    show(entry)
    error = re.search(r"relative error up to ([\d.e-]+) in", entry.verified["values"])
    assert error and float(error[1]) < (0.01 if kind == "Q8_0" else 0.001)


def test_types_of_two_bits_need_text_and_get_an_importance_matrix(tmp_path: Path) -> None:
    source = pulled(tiny.build(tmp_path / "tiny", tiny.WIDE))
    text = tmp_path / "calibration.jsonl"
    lines = [
        json.dumps(
            {"text": f"The {i} birds fly over the river and the harbor, which is cold."}
        )
        for i in range(200)
    ]
    text.write_text("\n".join(lines))
    recipe = ModelRecipe(
        source=source.recipe.source,
        quantize="llama.cpp:IQ2_XS",
        calibration=str(text),
        length=128,
    )
    entry = gguf.quantize(recipe, source, print, lambda _: None)
    show(entry)
    assert "IQ2_XS" in entry.verified["types"]
    with pytest.raises(UsageError, match="needs text"):
        gguf.quantize(
            ModelRecipe(source=source.recipe.source, quantize="llama.cpp:IQ2_XS"),
            source,
            print,
            print,
        )


def test_types_are_those_that_llama_quantize_lists(tools: environment.Environment) -> None:
    done = subprocess.run(
        [tools.folder / "bin" / "llama-quantize", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    listed = set(re.findall(r"^ +\d+ +or +(\w+)", done.stdout + done.stderr, re.M))
    assert listed - set(gguf.TYPES) <= {"F16", "BF16", "F32", "Q2_0"}, (
        "a new type: add it to TYPES"
    )
    assert set(gguf.TYPES) - listed <= {"Q1_0"}, "an older build"


def test_a_model_that_is_not_what_its_config_says_is_refused_in_one_sentence(
    tmp_path: Path,
) -> None:
    folder = tiny.build(tmp_path / "tiny", tiny.WIDE)
    config = (folder / "config.json").read_text()
    for change, message in (
        (
            ("LlamaForCausalLM", "NoSuchForCausalLM"),
            "Model NoSuchForCausalLM is not supported",
        ),
        (
            ('"num_hidden_layers": 3', '"num_hidden_layers": 5'),
            "has no weights of 2 layers, the first one 3",
        ),
    ):
        (folder / "config.json").write_text(config.replace(*change))
        recipe = ModelRecipe(source=f"file:{folder}", convert="gguf:F16")
        with pytest.raises((EngineError, ModelError), match=message):
            gguf.convert(recipe, pulled(folder), print, print)
        assert not library.entries()


def test_a_quantized_file_is_served_by_the_embedded_engine(tmp_path: Path) -> None:
    source = pulled(tiny.build(tmp_path / "tiny", tiny.WIDE))
    recipe = ModelRecipe(source=source.recipe.source, quantize="llama.cpp:Q4_K_M")
    entry = gguf.quantize(recipe, source, print, lambda _: None)
    command = [
        sys.executable,
        "-m",
        "dyno",
        "bench",
        "serve",
        "--engine",
        "llamacpp",
        "--model",
        entry.path,
    ]
    command += [
        "--num-prompts",
        "4",
        "--random-input-len",
        "16",
        "--random-output-len",
        "8",
        "--runs",
        str(tmp_path / "r"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Successful requests: +4", done.stdout)
