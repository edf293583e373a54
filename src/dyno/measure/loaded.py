"""A model as an engine holds it: what is read and reckoned for a token. Files may be converted as they are loaded."""

import math

import msgspec

from dyno.facts.engine import EngineSpec, valued
from dyno.facts.model import ModelShape
from dyno.facts.target import TargetFacts
from dyno.measure.agreement import plain

_WIDTHS = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
# Bytes of a value where an engine quantizes as it loads; of others that do, the smallest.
_MADE = {"fp8": 1.0, "ptpc-fp8": 1.0, "fbgemm-fp8": 1.0, "mxfp8": 1.0, "int8": 1.0, "eetq": 1.0, "experts-int8": 1.0}
_SMALLEST = 0.5
_UNQUANTIZED = {*_WIDTHS, "auto", ""}
# GGUF's blocks, by bytes for each value.
_KV = {
    "f32": 4.0, "fp32": 4.0, "float32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32, "int4": 0.5, "f16": 2.0, "bf16": 2.0,
}  # fmt: skip
_KV_FLAGS = (("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv"))
_ALL = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32")
_HALF = ("bf16", "fp16")


class Loaded(msgspec.Struct, frozen=True):
    shape: ModelShape
    dense_bytes: float  # read at every step
    expert_bytes: float  # all routed experts
    body_parameters: float  # multiplied for every token, its experts' among them, without the head
    head_parameters: float  # … where a token is drawn
    kv_width: float  # bytes of a value in the KV cache
    precisions: tuple[str, ...]  # in which it may be reckoned: the fastest of them is the bound

    def weights_bytes(self, tokens: float) -> float:
        """Read in a step of so many tokens, each of which takes its experts as if by lot."""
        untouched = math.pow(1 - self._used_share, max(tokens, 1.0))
        return self.dense_bytes + self.expert_bytes * (1 - untouched)

    @property
    def least_bytes(self) -> float:
        """… where all of them take the same experts."""
        return self.dense_bytes + self.expert_bytes * self._used_share

    def kv_bytes(self, context: float) -> float:
        return self.shape.kv_bytes_read(context, self.kv_width) or 0.0

    @property
    def _used_share(self) -> float:
        there, used = self.shape.experts, self.shape.experts_used
        return min(used / there, 1.0) if there and used else 1.0


def as_loaded(shape: ModelShape, spec: EngineSpec | None, target: TargetFacts | None = None) -> Loaded | None:
    """`target`: what the engine said of itself, which goes before the setting. None: the shape says too little."""
    # Experts whose weights aren't found, or of which it isn't said how many are used, would count as read whole.
    if shape.parameters is None or bool(shape.expert_parameters) != bool(shape.experts and shape.experts_used):
        return None
    table = 0 if _tied(shape) else shape.embedding_parameters
    head = shape.embedding_parameters if _tied(shape) else shape.head_parameters
    body = shape.parameters - shape.expert_parameters - shape.embedding_parameters - shape.head_parameters
    body -= shape.aside_parameters
    used = shape.expert_parameters * shape.experts_used / shape.experts if shape.experts and shape.experts_used else 0.0
    dtype = _dtype(shape, spec, target)
    made = _quantized_on_load(shape, spec, target)
    as_they_lie = sum(shape.bytes_by_type.values()) - shape.aside_bytes
    if as_they_lie > 0 and (shape.format == "gguf" or shape.quantization):
        table_bytes = shape.embedding_bytes if table else 0
        experts = float(shape.expert_bytes)
        dense = as_they_lie - table_bytes - experts
    else:
        width = _WIDTHS[dtype]
        body_width = made if made is not None and _quantization(spec, target) != "experts-int8" else width
        dense = body * body_width + head * width
        experts = shape.expert_parameters * (made if made is not None else width)
    return Loaded(
        shape=shape,
        dense_bytes=dense,
        expert_bytes=experts,
        body_parameters=body + used,
        head_parameters=head,
        kv_width=_kv_width(dtype, spec, target),
        precisions=_precisions(shape, dtype, _quantization(spec, target)),
    )


def _tied(shape: ModelShape) -> bool:
    return shape.head_parameters == 0


def _quantization(spec: EngineSpec | None, target: TargetFacts | None) -> str:
    """The quantization that the engine was told or tells, in one spelling. '': none."""
    said = (target.quantization if target else None) or (spec.quantization if spec else None) or ""
    return plain(said)


def _quantized_on_load(shape: ModelShape, spec: EngineSpec | None, target: TargetFacts | None) -> float | None:
    """Bytes of a value in the layers between embeddings and head. None: nothing is quantized, or the files are.

    Where only a config is there, what it says of the files counts.
    """
    name = _quantization(spec, target)
    if name in _UNQUANTIZED:
        name = plain(shape.quantization or "")
    return None if name in _UNQUANTIZED else _MADE.get(name, _SMALLEST)


def _dtype(shape: ModelShape, spec: EngineSpec | None, target: TargetFacts | None) -> str:
    """Of what isn't quantized. Files of 32 bits count as 16 unless somebody says otherwise: vLLM halves them."""
    for said in (target.dtype if target else None, spec.dtype if spec else None, _quantization(spec, target)):
        if plain(said or "") in _WIDTHS:
            return plain(said or "")
    return shape.dtype if shape.dtype in _HALF else "bf16"


def _kv_width(dtype: str, spec: EngineSpec | None, target: TargetFacts | None) -> float:
    """Of keys and values, whose types llama.cpp sets apart: the mean."""
    said = (target.kv_cache_dtype if target else None) or (spec.kv_cache_dtype if spec else None) or "auto"
    flags = [valued(spec.args, *names) or said for names in _KV_FLAGS] if spec and spec.kind == "llamacpp" else [said]
    own_width = 4.0 if dtype == "fp32" and (spec is None or spec.kind != "llamacpp") else 2.0
    return sum(_width(flag.lower(), own_width) for flag in flags) / len(flags)


def _width(said: str, own_width: float) -> float:
    """Bytes of a value; of what isn't known, the smallest."""
    if said == "auto":
        return own_width
    if said.startswith(("fp8", "int8")):
        return 1.0
    return _KV.get(said, 2.0 if plain(said) in _WIDTHS else _SMALLEST)


def _precisions(shape: ModelShape, dtype: str, made: str) -> tuple[str, ...]:
    """llama.cpp multiplies its blocks as 8-bit integers; vLLM's 4-bit weights are widened to 16 bits."""
    name = plain(shape.quantization or "") or made
    if shape.format == "gguf":
        if name in ("fp16", "bf16"):
            return ("fp16", "bf16", "fp32")
        if name == "fp32":
            return ("tf32", "fp32")
        return ("int8", "fp16", "bf16", "fp32") if name.startswith(("q", "iq", "tq")) else _ALL
    if name in _UNQUANTIZED:
        return {"fp32": ("tf32", "fp32"), "fp16": ("fp16",)}.get(dtype, ("bf16",))
    if "fp8" in name:
        return ("fp8", *_HALF)
    if name in ("gptq", "awq", "bitsandbytes") or name.endswith("a16"):
        return _HALF
    return ("int8", *_HALF) if name in ("int8", "eetq", "experts-int8") else _ALL
