"""Quantization schemes of llm-compressor and AMD Quark: what each makes of a model's linear layers."""

import difflib
from typing import Any, Literal

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
    # rescales weights across layers before it rounds: they differ from the source's
    moves: bool = False
    samples: int
    length: int

    @property
    def contents(self) -> str:
        """Describe the tensors in the files."""
        kind = f"{self.weights}, eight values each" if self.bits == 4 else self.weights
        return "; ".join(
            [
                kind,
                f"scale per {self.scales}",
                *["zero points"] * self.zeros,
                *["input scales"] * self.static,
            ]
        )

    @property
    def key(self) -> str:
        return f"{self.tool}:{self.name}"

    @property
    def bits(self) -> int:
        return 4 if self.weights == "I32" else 8

    @property
    def bits_per_weight(self) -> float:
        """Return the bits with its scales: one of 16 bits for each group of four-bit values, and their zero points."""
        groups = (16 + self.bits * self.zeros) / GROUP if self.scales == "group" else 0.0
        return self.bits + groups


def _each(name: str, about: str, **fields: Any) -> list[Scheme]:
    """Return one scheme of both tools, each with its own habits for calibration."""
    habits = (("llm-compressor", 512, 2048), ("quark", 128, 512))
    return [
        Scheme(tool=t, name=name, about=about, samples=n, length=m, **fields)
        for t, n, m in habits
    ]


_ALL = [
    *_each("fp8", "FP8 weights and inputs, one static scale each per layer",
           weights="F8_E4M3", scales="tensor", static=True),
    *_each("fp8-dynamic", "FP8 weights with a scale per channel; inputs get one per token while serving",
           weights="F8_E4M3", scales="channel", calibrates=False),
    Scheme(tool="llm-compressor", name="int8", weights="I8", scales="channel", samples=512, length=2048,
           about="INT8 weights by GPTQ with a scale per channel; inputs get one per token while serving"),
    Scheme(tool="quark", name="int8", weights="I8", scales="tensor", static=True, zeros=True, samples=128, length=512,
           about="INT8 weights and inputs, one static scale each per layer"),
    Scheme(tool="llm-compressor", name="gptq", weights="I32", scales="group", samples=512, length=2048,
           about="4-bit weights in groups of 128, rounded by GPTQ"),
    Scheme(tool="quark", name="gptq", weights="I32", scales="group", zeros=True, samples=128, length=512,
           about="4-bit weights in groups of 128 with zero points, rounded by GPTQ"),
    *_each("awq", "4-bit weights in groups of 128 with zero points, channels rescaled by AWQ",
           weights="I32", scales="group", zeros=True, moves=True),
]  # fmt: skip
SCHEMES = {scheme.key: scheme for scheme in _ALL}


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
        raise UsageError(
            f"{scheme.tool} stores KV-cache scales only for fp8, not {recipe.kv_cache!r}."
        )
    given = [
        name
        for name in ("calibration", "samples", "length")
        if getattr(recipe, name) is not None
    ]
    if given and not calibrates(scheme, recipe):
        raise UsageError(
            f"{scheme.key} needs no calibration. Remove {', '.join(given)}, or add kv_cache."
        )
    return scheme


def calibrates(scheme: Scheme, recipe: ModelRecipe) -> bool:
    return scheme.calibrates or recipe.kv_cache is not None
