"""Quantized models: schemes, files right and wrong, and tools that fail, die, hang or lie."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import quantized_files as made
import tiny
from dyno.cli.main import main
from dyno.errors import ModelError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.models import calibration, library, quantize, schemes

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("source"), made.SHAPE)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAKE", "works")
    made.install_fake(tmp_path / "home", "llm-compressor")
    return tmp_path / "home"


# ---- schemes ----


def test_an_unknown_scheme_gets_the_nearest_name_and_the_list():
    with pytest.raises(
        UsageError, match=r"Did you mean quark:fp8\? Known: .*llm-compressor:awq"
    ):
        schemes.find("quark:fp88")


def test_a_recipe_that_no_tool_can_follow_is_refused():
    with pytest.raises(UsageError, match="only for fp8, not 'int8'"):
        schemes.check(ModelRecipe("file:x", quantize="quark:fp8", kv_cache="int8"))
    with pytest.raises(UsageError, match=r"needs no calibration\. Remove samples"):
        schemes.check(ModelRecipe("file:x", quantize="quark:fp8-dynamic", samples=8))
    with_cache = ModelRecipe(
        "file:x", quantize="quark:fp8-dynamic", samples=8, kv_cache="fp8"
    )
    assert schemes.calibrates(schemes.check(with_cache), with_cache)


def test_the_documentation_lists_every_scheme():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for scheme in schemes.SCHEMES.values():
        needs = (
            f"{scheme.samples} × {scheme.length:,} tokens" if scheme.calibrates else "none"
        )
        assert f"| `{scheme.key}` | {scheme.about} | {scheme.contents} | {needs} |" in text


# ---- files ----


@pytest.mark.parametrize(
    ("key", "kv"),
    [
        ("llm-compressor:fp8", True),
        ("llm-compressor:fp8-dynamic", False),
        ("llm-compressor:int8", False),
        ("llm-compressor:gptq", False),
        ("quark:fp8", True),
        ("quark:gptq", False),
    ],
)
def test_right_files_are_verified_by_type_scale_and_value(tmp_path, source, key, kv):
    scheme = schemes.find(key)
    folder = made.build(tmp_path / "out", key, kv)
    facts = quantize.verify(
        folder, source, scheme, ModelRecipe("x", kv_cache="fp8" if kv else None)
    )
    assert facts["types"] == f"7 linear layers {scheme.weights}; left BF16: lm_head"
    assert ("2 of the KV cache" in facts["scales"]) is kv
    assert 0 < float(re.search(r"within ([\d.]+) %", facts["values"])[1]) < 20


def _bf16(tensors, config):
    tensors[f"{UP}.weight"] = made.bf16(np.ones((256, 128), np.float32))


def _no_scale(tensors, config):
    del tensors[f"{UP}.weight_scale"]


def _nan(tensors, config):
    tensors[f"{UP}.weight_scale"][1][0] = np.nan


def _hundredfold(tensors, config):
    for name, (_, values) in tensors.items():
        if name.endswith("weight_scale"):
            values *= 100


def _one_scale(tensors, config):
    tensors[f"{UP}.weight_scale"] = "F32", np.ones(1, np.float32)


def _cut(tensors, config):
    tensors[f"{UP}.weight"] = "F8_E4M3", np.zeros((8, 128), np.uint8)


def _claims_int8(tensors, config):
    config["config_groups"]["group_0"]["weights"]["type"] = "int"


def _ignores_all(tensors, config):
    config["ignore"] = ["re:.*"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_bf16, f"{UP}.weight is BF16, not F8_E4M3"),
        (_no_scale, f"{UP}.weight_scale is missing"),
        (_nan, f"{UP}.weight_scale has 1 value that can't be a scale, such as nan"),
        (_hundredfold, "a scale is wrong"),
        (_one_scale, "has 1 values, not 256"),
        (_cut, "has the shape (8, 128), but the source has (256, 128)"),
        (_claims_int8, "claims ('compressed-tensors', 'I8', False)"),
        (_ignores_all, "quantized none of the 8 linear layers"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_files_are_named(tmp_path, source, spoil, message):
    folder = made.build(tmp_path / "out", "llm-compressor:fp8-dynamic", change=spoil)
    with pytest.raises(ModelError, match=re.escape(message)):
        quantize.verify(
            folder, source, schemes.find("llm-compressor:fp8-dynamic"), ModelRecipe("x")
        )


def test_missing_scales_of_the_kv_cache_are_noticed(tmp_path, source):
    folder = made.build(tmp_path / "out", "quark:fp8", kv=False)
    with pytest.raises(ModelError, match="have 0 scales of a KV cache, not 2"):
        quantize.verify(
            folder, source, schemes.find("quark:fp8"), ModelRecipe("x", kv_cache="fp8")
        )


# ---- calibration ----


def test_generated_text_is_the_same_every_time_and_recorded(source):
    recipe = ModelRecipe("x", quantize="quark:fp8", samples=3, length=32)
    first, second = (
        calibration.texts(recipe, schemes.find("quark:fp8"), source) for _ in range(2)
    )
    assert first == second and len(first.lines.splitlines()) == 3
    assert re.search(
        r"3 texts of up to 32 tokens, generated with seed 0, sha256 \w{64}$", first.about
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n', 2),
        ("A paragraph.\nOf two lines.\n\nAnother.\n", 2),
    ],
)
def test_calibration_text_is_json_lines_or_paragraphs(tmp_path, text, rows):
    file = tmp_path / "text"
    file.write_text(text)
    recipe = ModelRecipe("x", calibration=str(file))
    assert (
        len(
            calibration.texts(
                recipe, schemes.find("quark:fp8"), tmp_path
            ).lines.splitlines()
        )
        == rows
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "a"}\n{"words": 1}', "Line 2 of"),
        ("", "is empty"),
        (None, "can't be read"),
    ],
)
def test_calibration_text_that_is_none_is_refused(tmp_path, text, message):
    file = tmp_path / "text"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=message):
        calibration.texts(
            ModelRecipe("x", calibration=str(file)), schemes.find("quark:fp8"), tmp_path
        )


# ---- the step ----

COMMAND = ["models", "quantize"]


def test_a_model_is_quantized_once_and_described(home, source, capsys):
    words = [
        *COMMAND,
        str(source),
        "llm-compressor:fp8",
        "--kv-cache",
        "fp8",
        "--samples",
        "2",
        "--length",
        "16",
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        "7 linear layers F8_E4M3; left BF16: lm_head" in out
        and "2 tokens on cpu, 1 as the source's" in out
    )
    [entry] = [e for e in library.entries() if e.step == "quantize"]
    assert f"dyno bench serve --engine vllm --model {entry.path}" in out
    assert entry.whole and entry.tool == "llm-compressor" and entry.tool_version == "0.1"
    assert "2 texts of up to 16 tokens" in entry.verified["calibration"]
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= set(entry.files)
    assert (entry.folder / "make.log").exists()
    os.environ["FAKE"] = "fails"  # it isn't run again
    assert main(words) == 0


def test_a_model_is_made_again_after_its_source_or_its_calibration_text_has_changed(
    home, source, tmp_path, capsys
):
    text = tmp_path / "calibration.txt"
    text.write_text("One text.")
    words = [*COMMAND, str(source), "llm-compressor:fp8", "--calibration", str(text)]

    def changed(path: Path) -> None:
        # as if everything was made long ago
        for manifest in library.models_folder().glob("*/dyno.json"):
            manifest.write_bytes(
                re.sub(
                    rb'"created": "[^"]*"',
                    b'"created": "2026-01-01T00:00:00Z"',
                    manifest.read_bytes(),
                )
            )
        os.utime(path)

    assert main(words) == 0
    old = time.time() - 1e9
    os.utime(text, (old, old))
    for path in (text, source / "config.json"):
        changed(path)
        assert main(words) == 0
        [entry] = [e for e in library.entries() if e.step == "quantize"]
        assert entry.created > "2026-01-01T00:00:00Z", path
        os.utime(text, (old, old))
    capsys.readouterr()
    assert main(words) == 0
    assert "quantizing" not in capsys.readouterr().err


@pytest.mark.engines
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fails", r'llm-compressor failed with code 1: ".*no template for this model'),
        (
            "dies",
            "was killed, most likely because the memory was full. The model needs about .*; this machine has",
        ),
        ("lies", f"{UP}.weight is BF16, not F8_E4M3"),
        ("nan", "logits are not finite"),
        ("babbles", "logits 200 % off those of the source"),
    ],
)
def test_a_tool_that_fails_or_lies_leaves_no_model_and_a_log(
    home, source, monkeypatch, capsys, behaviour, message
):
    monkeypatch.setenv("FAKE", behaviour)
    assert main([*COMMAND, str(source), "llm-compressor:fp8-dynamic"]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert [e.step for e in library.entries()] == ["pull"]
    assert not list(library.models_folder().glob(".*.part")) and list(
        (home / "logs").glob("make-*.log")
    )


def test_a_source_that_the_scheme_cannot_take_is_refused_before_anything_starts(
    home, tmp_path, source, capsys
):
    quantized = tiny.build(tmp_path / "q", made.SHAPE)
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "fp8"}})
    )
    assert main([*COMMAND, str(quantized), "llm-compressor:fp8-dynamic"]) == 2
    assert "is quantized already (fp8)" in capsys.readouterr().err
    narrow = tiny.build(tmp_path / "n", made.SHAPE._replace(width=64))
    assert main([*COMMAND, str(narrow), "llm-compressor:gptq"]) == 2
    assert "in groups of 128, but the rows of model.layers.0" in capsys.readouterr().err


def test_too_little_disk_is_noticed_before_the_tool_starts(
    home, source, monkeypatch, capsys
):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert main([*COMMAND, str(source), "llm-compressor:fp8-dynamic"]) == 1
    assert "needs about" in (err := capsys.readouterr().err) and "1,000 B free" in err


@pytest.mark.hostile
def test_after_kill_9_nothing_is_taken_for_whole_and_the_same_command_makes_it(
    home, source
):
    words = [
        sys.executable,
        "-m",
        "dyno",
        *COMMAND,
        str(source),
        "llm-compressor:fp8-dynamic",
    ]
    dyno = subprocess.Popen(
        words, env={**os.environ, "FAKE": "hangs"}, stderr=subprocess.DEVNULL
    )
    tool = _wait(
        lambda: next(
            (int(m[1]) for log in (home / "logs").glob("make-*") if (m := _hanging(log))),
            None,
        )
    )
    dyno.send_signal(signal.SIGKILL)
    dyno.wait()
    _wait(
        lambda: (
            not psutil.pid_exists(tool)
            or psutil.Process(tool).status() == psutil.STATUS_ZOMBIE
        )
    )
    # half of it is there
    assert list(library.models_folder().glob(".*.part/model.safetensors"))
    assert [e.step for e in library.entries()] == ["pull"]
    done = subprocess.run(
        words,
        env={**os.environ, "FAKE": "works"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "7 linear layers F8_E4M3" in done.stdout
    assert not list(library.models_folder().glob(".*.part"))


def _hanging(log: Path) -> re.Match[str] | None:
    return re.search(r"hanging as (\d+)", log.read_text())


def _wait(look, timeout_s: float = 60):
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return seen


def test_progress_is_read_from_the_tools_own_bars():
    assert quantize.describe('{"phase": "loading the model"}') == "loading the model"
    assert (
        quantize.describe("(2/3): Calibrating:  40%|####      | 6/16 [00:01<00:01]")
        == "layer 2 of 3: calibrating"
    )
    assert quantize.describe("GPTQ:  50%|#####     | 1/2 [00:01<00:01]") == "GPTQ: 1 of 2"


def test_tools_are_listed_apart_and_serve_nothing(home, capsys):
    assert main(["engines", "list"]) == 0
    assert re.search(
        r"Tools of `dyno models`:\n(.*\n)*llm-compressor +llm-compressor-0.1-cpu",
        capsys.readouterr().out,
    )
    assert main(["bench", "serve", "--engine", "quark", "--model", "x"]) == 2
    assert "quark" in capsys.readouterr().err
