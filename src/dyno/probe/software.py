"""The software beside an engine: packages and environment variables."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import EngineKind
from dyno.secrets import shown

# ---- a question to another program ----


class Output(NamedTuple):
    text: str | None  # None: there is none
    failure: str | None  # why, in words


def ask(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> Output:
    """Run a program that may be missing, hang, crash or answer nonsense."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            env=env,
        )
    except FileNotFoundError:
        return Output(None, "isn't installed")
    except (OSError, ValueError) as e:
        return Output(None, f"can't be run: {e}")
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except BaseException as e:  # also Ctrl-C, which doesn't reach another session
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipe
        process.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            return Output(None, f"didn't answer within {timeout_s:g} s")
        raise
    if process.returncode < 0:
        names = {s.value: s.name for s in signal.Signals}
        what = names.get(-process.returncode, f"signal {-process.returncode}")
        return Output(None, f"crashed ({what})")
    if process.returncode:
        return Output(None, f"exited with code {process.returncode}")
    return Output(out, None)


def last_json(out: str | None) -> Any:
    """Return the last line that is JSON, or the whole: libraries print other lines too. None: there is no such."""
    if out is None:
        return None
    for piece in (*reversed(out.strip().splitlines()), out):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(piece)
    return None


# ---- packages ----

OTHER_ENGINES = ("tensorrt-llm", "lmdeploy", "mlx-lm")  # which dyno can't start
LIBRARIES = (
    "torch", "triton", "pytorch-triton-rocm", "triton-rocm",
    "transformers", "tokenizers", "accelerate", "flashinfer-python", "flash-attn", "xformers", "aiter",
    "amd-aiter", "bitsandbytes", "gptqmodel", "compressed-tensors", "xgrammar", "ray", "safetensors", "numpy",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12",
    "nvidia-cublas", "intel-extension-for-pytorch",
)  # fmt: skip


def packages() -> list[str]:
    """Return the distributions whose versions are recorded."""
    engines = [
        name
        for kind in KINDS.values()
        for name in (*kind.packages, *kind.companions)
        if name not in LIBRARIES
    ]
    return [*engines, *OTHER_ENGINES, *LIBRARIES]


# Runs where dyno isn't installed. torch is not imported, which takes seconds: what it was built for is in a file.
SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, json, os, re
packages = {"python": sys.version.split()[0]}
try:
    from importlib import metadata
except ImportError:
    metadata = None
for name in sys.argv[1:]:
    try:
        version = metadata.version(name)
        if version:
            packages[name] = version
    except Exception:  # not installed, or half removed
        pass
try:
    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    with open(os.path.join(folder, "version.py")) as file:
        text = file.read()
    pattern = r"^(cuda|hip|rocm|xpu)\\b[^=\\n]*= *['\\"]([^'\\"]+)"
    packages.update(re.findall(pattern, text, re.MULTILINE))
except Exception:  # no torch
    pass
for folder, file in (("/opt/rocm", ".info/version"), ("/usr/local/cuda", "version.json")):
    try:
        with open(os.path.join(folder, file)) as lines:
            packages[folder] = re.search(r"\\d+\\.\\d+[\\w.-]*", lines.read()).group()
    except Exception:  # no such toolkit
        pass
print(json.dumps(packages))
"""


def versions(
    *python: str, timeout_s: float = 30.0, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return versions by name; {} for an interpreter that doesn't run. `python`: a path, or words before `-c`, as
    `docker exec NAME python3`. `env`: the engine's, for its PYTHONPATH."""
    answer = ask([*python, "-c", SCRIPT, *packages()], timeout_s, env)
    versions_by_name = last_json(answer.text)
    if not isinstance(versions_by_name, dict):
        return {}
    return {str(name): str(version) for name, version in versions_by_name.items()}


# ---- environment variables that move an engine's numbers ----

# Beside those of the engines, which their files name.
PREFIXES = (
    "CUDA_", "NVIDIA_", "NCCL_", "CUBLAS_", "CUDNN_", "HIP_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "HIPBLASLT_",
    "TENSILE_", "RCCL_", "MIOPEN_", "AITER_", "GPU_", "AMD_", "FLASHINFER_", "PYTORCH_", "TORCH_",
    "TORCHINDUCTOR_", "TRITON_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "XLA_",
)  # fmt: skip
HUB = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_")
NOISE = ("NVIDIA_REQUIRE_",)  # which drivers an image would take: two thousand letters
NAMES = {
    "HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_ENABLE_HF_TRANSFER", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX",
}  # fmt: skip


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the secrets among them."""
    return {
        name: shown(name, value)
        for name, value in sorted(environ.items())
        if _matters(name)
    }


def exported(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what an engine in a container should get, too: those, and the Hub's, with its token."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _matters(name) or name.startswith(HUB)
    }


def _matters(name: str) -> bool:
    if name.startswith(NOISE):
        return False
    return (
        name in NAMES
        or name.startswith(PREFIXES)
        or any(map(partial(_is_of, name), KINDS.values()))
    )


def _is_of(name: str, kind: EngineKind) -> bool:
    return name in kind.recorded_variables or name.startswith(kind.variable_prefixes)
