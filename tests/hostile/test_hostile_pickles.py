"""Models with pickled weights that would run code: through each command that takes a model's folder, none runs."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantized_files
import tiny
from test_hostile_kills import Place


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def as_torch_saves(path: Path, value: object) -> None:
    """Write the archive of torch.save: data.pkl in a zip."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def plainly(path: Path, value: object) -> None:
    path.write_bytes(pickle.dumps(value))


FILES: dict[str, Callable[[Path, object], None]] = {
    "pytorch_model.bin": as_torch_saves, "pytorch_model-00001-of-00001.bin": plainly, "model.pt": as_torch_saves,
    "consolidated.00.pth": as_torch_saves, "training_args.bin": as_torch_saves, "optimizer.pkl": plainly,
    "tokenizer.model": plainly, "model.safetensors": plainly, "model.gguf": as_torch_saves,
}  # fmt: skip


class Trap:
    """A model's folder with such files, and what is there if one was loaded."""

    def __init__(self, folder: Path, weights: bool) -> None:
        self.place, self.model, self.canary = (
            Place(folder),
            folder / "model",
            folder / "ran",
        )
        tiny.build(self.model, quantized_files.SHAPE)
        for name, save in FILES.items():
            if not (weights and name == "model.safetensors"):
                save(self.model / name, Evil(self.canary))
        code = "import pathlib; pathlib.Path(%r).touch()\n" % str(self.canary)  # noqa: UP031
        for name in (
            "modeling_evil.py",
            "tokenization_evil.py",
            "conversion.py",
            "conftest.py",
            "sitecustomize.py",
        ):
            (self.model / name).write_text(code)
        config = json.loads((self.model / "config.json").read_text())
        config["auto_map"] = {
            "AutoModelForCausalLM": "modeling_evil.Evil",
            "AutoConfig": "modeling_evil.Evil",
        }
        (self.model / "config.json").write_text(json.dumps(config))

    def dyno(self, *words: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "dyno", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.place.folder, env=self.place.env, capture_output=True, text=True, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr and "bug in dyno" not in done.stderr, words
        assert not self.canary.exists(), words
        return done


@pytest.fixture(params=["with weights beside them", "alone"])
def trap(tmp_path: Path, request: pytest.FixtureRequest) -> Trap:
    return Trap(tmp_path, weights=request.param != "alone")


def test_the_files_run_their_code_where_they_are_unpickled(tmp_path: Path) -> None:
    """Else nothing below would be shown."""
    trap = Trap(tmp_path, weights=False)
    for name, save in FILES.items():
        data = (trap.model / name).read_bytes()
        if save is as_torch_saves:
            with zipfile.ZipFile(trap.model / name) as archive:
                data = archive.read("archive/data.pkl")
        pickle.loads(data)
        assert trap.canary.exists(), name
        trap.canary.unlink()


def test_no_command_that_takes_a_models_folder_loads_a_pickle(trap: Trap) -> None:
    model = trap.model
    pulled = trap.dyno("models", "pull", f"file:{model}")
    trap.dyno("models", "info", model)
    trap.dyno("models", "list")
    if pulled.returncode == 0:
        name = pulled.stdout.split()[0]
        trap.dyno("models", "verify", name)
        trap.dyno("models", "export", name, "out.tar")
        if (trap.place.folder / "out.tar").exists():
            trap.dyno("models", "remove", name)
            trap.dyno("models", "import", "out.tar")
    for file in ("model.gguf", "pytorch_model.bin"):
        trap.dyno("models", "info", model / file)
        trap.dyno("models", "pull", f"file:{model / file}")
    study = f'[engines.e]\nkind = "vllm"\nmodel = "{model}"\n[workloads.w]\ninput_len = 8\noutput_len = 4\n'
    (trap.place.folder / "s.toml").write_text(
        f"{study}num_prompts = 4\n[loads.l]\nmax_concurrency = 1\n"
    )
    trap.dyno("run", "s.toml", "--dry-run")
    for engine in ("vllm", "llamacpp", "transformers", "sglang"):
        trap.dyno(
            "bench",
            "serve",
            "--engine",
            engine,
            "--model",
            model,
            "--num-prompts",
            "2",
            "--dry-run",
        )
    trap.dyno(
        "bench",
        "serve",
        "--engine",
        "llamacpp",
        "--model",
        model / "model.gguf",
        "--num-prompts",
        "2",
    )
    trap.dyno(
        "bench", "serve", "--base-url", "http://127.0.0.1:1", "--tokenizer", model, "--num-prompts", "2",
        "--ready-check-timeout-sec", "0", "--model", "m",
    )  # fmt: skip


@pytest.mark.parametrize(
    "scheme", ["llm-compressor:fp8-dynamic", "quark:fp8-dynamic", "llama.cpp:Q4_0"]
)
def test_a_folder_of_pickles_is_not_quantized_and_none_is_copied_to_a_model_that_is(
    trap: Trap, scheme: str
) -> None:
    trap.place.env["FAKE"] = "works"
    home = trap.place.folder / "home"
    if not scheme.startswith("llama.cpp"):
        quantized_files.install_fake(home, scheme.partition(":")[0])
        trap.dyno("models", "quantize", trap.model, scheme)
        copies = [
            p.name
            for p in home.rglob("*")
            if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".py")
        ]
        assert copies == []
    else:
        assert trap.dyno(
            "models", "quantize", trap.model / "model.gguf", scheme
        ).returncode in (1, 2)


def test_a_folder_of_pickles_is_not_converted(tmp_path: Path) -> None:
    trap = Trap(tmp_path, weights=False)
    (trap.model / "model.safetensors").unlink()
    done = trap.dyno("models", "convert", trap.model, "gguf:F16")
    assert done.returncode == 2
    assert "is not a model in safetensors" in done.stderr
    assert not list((tmp_path / "home").rglob("*.gguf"))
