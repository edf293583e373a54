"""llm-compressor and AMD Quark themselves: installed, and every scheme made of the tiny model and verified."""

import re
import time
from pathlib import Path

import pytest

import tiny
from dyno.engines import environment, install
from dyno.facts.recipe import ModelRecipe
from dyno.models import library, schemes, steps
from dyno.numbers import human_bytes

pytestmark = pytest.mark.tools


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny"), tiny.WIDE)


@pytest.fixture
def home(tmp_path, monkeypatch) -> None:
    """Models go to a folder of the test's own; environments stay where they are, as they take minutes."""
    engines = environment.engines_folder()
    engines.mkdir(parents=True, exist_ok=True)
    (tmp_path / "engines").symlink_to(engines)
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))


CASES = [
    *((key, None) for key in schemes.SCHEMES),
    ("llm-compressor:fp8-dynamic", "fp8"),
    ("quark:fp8", "fp8"),
]


@pytest.mark.parametrize(("key", "kv_cache"), CASES, ids=lambda value: str(value))
def test_the_tool_makes_what_its_scheme_says(home, source, capsys, key, kv_cache):
    tool = schemes.find(key).tool
    if environment.find(tool) is None:
        install.install(tool, variant="cpu")
    needs = schemes.find(key).calibrates or kv_cache
    text = {"samples": 8, "length": 64} if needs else {}
    recipe = ModelRecipe(f"file:{source}", quantize=key, kv_cache=kv_cache, **text)
    began = time.monotonic()
    entry = steps.run(recipe, lambda text: None, lambda text: None)
    took, before = (
        time.monotonic() - began,
        sum(p.stat().st_size for p in source.glob("*.safetensors")),
    )
    assert library.find(recipe) == entry
    assert entry.verified["types"].startswith("21 linear layers ")
    # Random weights have no clear favourite among tokens, so tokens differ; logits stay near, as the type allows.
    generation = re.search(
        r"^8 tokens on \w+, .*; logits differ by ([\d.]+) %$", entry.verified["generation"]
    )
    assert (
        0
        < float(generation[1])
        < {"F8_E4M3": 25, "I8": 20, "I32": 60}[schemes.find(key).weights]
    )
    assert ("6 of the KV cache" in entry.verified["scales"]) is bool(kv_cache)
    assert (Path(entry.path) / "model.safetensors").stat().st_size < before
    with capsys.disabled():
        size = f"{human_bytes(before)} → {human_bytes(entry.size_bytes)}"
        print(f"\n{key} {kv_cache or ''}: {took:.0f} s, {size}; {entry.verified}")
