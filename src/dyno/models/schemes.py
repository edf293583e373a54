"""Quantization schemes of llm-compressor and AMD Quark: what each makes of a model's linear layers."""

import difflib
from typing import Literal

import msgspec

from dyno.errors import UsageError
from dyno.facts.recipe import ModelRecipe

GROUP = 128  # values that share a scale, in schemes of four bits


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    name: str
    about: str
    weights: str  # type of the quantized tensors in the files
    scales: Literal["tensor", "channel", "group"]  # what each scale of the weights is for
    static: bool = False  # scales of a layer's inputs are in the files too
    zeros: bool = False  # zero points are
    calibrates: bool = True  # needs text
    moves: bool = False  # rescales weights across layers before it rounds: they differ from the source's
    samples: int
    length: int
    served_by: str

    @property
    def key(self) -> str:
        return f"{self.tool}:{self.name}"

    @property
    def bits(self) -> int:
        return 4 if self.weights == "I32" else 8


def _both(name: str, about: str, served_by: str, **fields: object) -> list[Scheme]:
    """One scheme of both tools, with each tool's own defaults for calibration."""
    tools = (("llm-compressor", 512, 2048), ("quark", 128, 512))
    return [
        Scheme(tool=tool, name=name, about=about, samples=samples, length=length, served_by=served_by, **fields)  # type: ignore[arg-type]
        for tool, samples, length in tools
    ]


_FP8 = "vLLM, SGLang"
_ALL = [
    *_both("fp8", "FP8 weights and inputs, one static scale each per layer", _FP8, weights="F8_E4M3", scales="tensor",
           static=True),
    *_both("fp8-dynamic", "FP8 weights with a scale per channel; inputs get one per token while serving", _FP8,
           weights="F8_E4M3", scales="channel", calibrates=False),
    Scheme(tool="llm-compressor", name="int8", about="INT8 weights by GPTQ with a scale per channel; inputs get one "
           "per token while serving", weights="I8", scales="channel", samples=512, length=2048, served_by=_FP8),
    Scheme(tool="quark", name="int8", about="INT8 weights and inputs, one static scale each per layer", weights="I8",
           scales="tensor", static=True, zeros=True, samples=128, length=512, served_by="vLLM"),
    Scheme(tool="llm-compressor", name="gptq", about="4-bit weights in groups of 128, rounded by GPTQ", weights="I32",
           scales="group", samples=512, length=2048, served_by=_FP8),
    Scheme(tool="quark", name="gptq", about="4-bit weights in groups of 128 with zero points, rounded by GPTQ",
           weights="I32", scales="group", zeros=True, samples=128, length=512, served_by="Quark's own loader"),
    Scheme(tool="llm-compressor", name="awq", about="4-bit weights in groups of 128 with zero points, channels "
           "rescaled by AWQ", weights="I32", scales="group", zeros=True, moves=True, samples=256, length=512,
           served_by=_FP8),
    Scheme(tool="quark", name="awq", about="4-bit weights in groups of 128 with zero points, channels rescaled by AWQ",
           weights="I32", scales="group", zeros=True, moves=True, samples=128, length=512,
           served_by="Quark's own loader"),
]  # fmt: skip
SCHEMES = {scheme.key: scheme for scheme in _ALL}
TOOLS = tuple(dict.fromkeys(scheme.tool for scheme in _ALL))


def find(text: str) -> Scheme:
    """Return the scheme of "quark:fp8"."""
    if text in SCHEMES:
        return SCHEMES[text]
    near = difflib.get_close_matches(text, SCHEMES, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"No quantization scheme named {text!r}. {hint}Known: {', '.join(SCHEMES)}, and llama.cpp:TYPE for GGUF."
    )


def check(recipe: ModelRecipe) -> Scheme:
    """Raise where the recipe asks for what its tool can't do."""
    scheme = find(recipe.quantize or "")
    if recipe.kv_cache not in (None, "fp8"):
        raise UsageError(f"{scheme.tool} stores KV-cache scales only for fp8, not {recipe.kv_cache!r}.")
    given = [name for name in ("calibration", "samples", "length") if getattr(recipe, name) is not None]
    if given and not calibrates(scheme, recipe):
        raise UsageError(f"{scheme.key} needs no calibration. Remove {', '.join(given)}, or add kv_cache.")
    return scheme


def calibrates(scheme: Scheme, recipe: ModelRecipe) -> bool:
    return scheme.calibrates or recipe.kv_cache is not None
