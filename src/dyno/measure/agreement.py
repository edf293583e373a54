"""Does a server serve what the label says? Differences between a setting and what the server tells, in words."""

import re
from collections.abc import Iterator

from dyno.facts.engine import EngineSpec
from dyno.facts.model import ModelShape
from dyno.facts.target import TargetFacts

_SAME = {
    "half": "fp16", "float16": "fp16", "f16": "fp16", "bfloat16": "bf16", "float32": "fp32", "f32": "fp32",
    "float": "fp32", "w8a8": "int8", "w8a8-int8": "int8", "gptq-marlin": "gptq", "awq-marlin": "awq",
    "gptq-marlin-24": "gptq", "fp8-e4m3": "fp8", "moe-wna16": "gptq",
}  # fmt: skip
_IN_NAME = re.compile(r"(?i)(?:^|[-._])((?:i?q\d+(?:_[a-z0-9]+)*)|mxfp4|f16|bf16|f32)(?=\.gguf$|[-._]|$)")
_UNQUANTIZED = {"fp16", "bf16", "fp32"}
# vLLM's names for what holds others: which one it is, is the checkpoint's to say.
_CONTAINERS = {"compressed-tensors", "quark", "modelopt", "gguf"}
_SIZES = {"small": "s", "medium": "m", "large": "l"}


def plain(quantization: str) -> str:
    """One spelling: 'Q4_K - Medium', 'mostly Q4_K_M' and 'q4_k_m' are q4-k-m."""
    text = re.sub(r"\(.*\)|\b(?:mostly|all|guessed)\b", "", quantization.lower())
    text = re.sub(r"\s*-\s*(small|medium|large)\b", lambda m: "-" + _SIZES[m[1]], text.strip())
    text = re.sub(r"[_\s]+", "-", text)
    return _SAME.get(text, text)


def named_quantization(model: str) -> str | None:
    """That a model's name claims: Q4_K_M of llama-2-7b.Q4_K_M.gguf."""
    found = _IN_NAME.findall(model.rsplit("/", 1)[-1])
    return found[-1].upper() if found else None


def same_quantization(asked: str, served: str | None, dtype: str | None) -> bool | None:
    """None: what the server tells doesn't decide it."""
    a = plain(asked)
    if served is None:
        if a in _UNQUANTIZED:
            return None if dtype is None else plain(dtype) == a
        return None
    b = plain(served)
    if b in _CONTAINERS:
        return None
    return a == b or (a.startswith("fp8") and b.startswith(("fp8", "ptpc-fp8", "fbgemm-fp8")))


def differences(spec: EngineSpec, facts: TargetFacts, model: ModelShape | None = None) -> Iterator[str]:
    """One sentence for each thing that isn't as asked. What the server doesn't tell is not held against it."""
    if facts.models_listed is not None and facts.model not in facts.models_listed:
        yield f"the model {facts.model!r} was asked for, and it lists {', '.join(map(repr, facts.models_listed))}"
    if spec.version and facts.version and not _begins(facts.version, spec.version):
        yield f"version {spec.version} was asked for, and it is {facts.version}"
    if spec.quantization and same_quantization(spec.quantization, facts.quantization, facts.dtype) is False:
        yield f"the quantization {spec.quantization} was asked for, and it serves {facts.quantization or facts.dtype}"
    elif (
        not spec.quantization
        and (files := model and model.quantization)
        and facts.quantization
        and same_quantization(files, facts.quantization, facts.dtype) is False
    ):
        yield f"the model's files are {files}, and it serves {facts.quantization}"
    if spec.max_model_len and facts.max_model_len and facts.max_model_len < spec.max_model_len:
        yield f"a context of {spec.max_model_len} tokens was asked for, and a request may have {facts.max_model_len}"
    for name, asked, found in (
        ("max_num_seqs", spec.max_num_seqs, facts.slots),
        ("tensor_parallel", spec.tensor_parallel, facts.tensor_parallel),
        ("prefix_caching", spec.prefix_caching, facts.prefix_caching),
    ):
        if asked is not None and found is not None and asked != found:
            yield f"{name} = {asked} was asked for, and it has {found}"
    kv = spec.kv_cache_dtype
    if kv and kv != "auto" and facts.kv_cache_dtype and plain(kv) != plain(facts.kv_cache_dtype):
        yield f"a KV cache of {kv} was asked for, and it has {facts.kv_cache_dtype}"


def _begins(version: str, asked: str) -> bool:
    return bool(re.match(re.escape(asked) + r"(?!\d)", version.removeprefix("v"))) or asked in version
