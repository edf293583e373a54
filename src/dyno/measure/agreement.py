"""Differences between an engine setting and what the server reports that it serves."""

import re
from collections.abc import Callable, Iterator, Sequence
from operator import eq, le
from typing import Any

import msgspec

from dyno.engines.kinds import KINDS
from dyno.facts import llama
from dyno.facts.engine import EngineSpec, will_do
from dyno.facts.model import ModelShape
from dyno.facts.target import TargetFacts

_SAME = {
    "half": "fp16", "float16": "fp16", "f16": "fp16", "bfloat16": "bf16", "float32": "fp32", "f32": "fp32",
    "float": "fp32", "w8a8": "int8", "w8a8-int8": "int8", "int8-w8a8": "int8", "gptq-marlin": "gptq",
    "gptq-marlin-24": "gptq", "moe-wna16": "gptq", "auto-gptq": "gptq", "awq-marlin": "awq", "auto-awq": "awq",
}  # fmt: skip
# In a model's name: a GGUF type or the start of one (q8, Q4_K), a number format, or bits alone. The rest is free.
_IN_NAME = re.compile(
    r"(?i)(?:^|[-._])([it]?q\d+(?:_(?:[01](?:_\d_\d)?|nl|xxs|xs|s|m|k(?:_(?:xs|s|m|l|xl|xxl))?))?"
    r"|mxfp4|nvfp4|fp[48]|bf16|f(?:p|loat)?(?:16|32)|int[48]|w\d+a\d+|[2-8][-_]?bits?)(?=[-._]|$)"
)
# A claim that several types meet: q8 is Q8_0 and Q8_K, int4 and 4bit are whatever has four bits.
_BROAD = re.compile(r"(iq|tq|q|int|fp|w|)\d+(?:a\d+|-?bits?)?")
_BITS = re.compile(r"(?:q|int|fp|bf|(?<![a-z0-9])w)(\d+)|(\d+)-?bit")
_UNQUANTIZED = {"fp16", "bf16", "fp32"}
# vLLM's names for what holds others: which one it is, is the checkpoint's to say.
_CONTAINERS = {"compressed-tensors", "quark", "gguf", "inc", "auto-round"}
_UNREPORTED = (
    "load_format",
    "pipeline_parallel",
    "max_batched_tokens",
    "memory_fraction",
    "chunked_prefill",
    "draft_model",
    "draft_tokens",
)


def plain(quantization: str) -> str:
    """Return one spelling: 'Q4_K - Medium', 'mostly Q4_K_M' and 'q4_k_m' are q4-k-m."""
    text = re.sub(
        r"\(.*\)|\b(?:mostly|all|guessed|moe)\b|- [\d.]+ bpw.*", "", quantization.lower()
    ).strip()
    text = re.sub(
        r"^(q2_k|q3_k|q4_k|q5_k)\s*-\s*(small|medium|large)$",
        lambda m: f"{m[1]}_{m[2][0]}",
        text,
    )
    text = text.replace("iq3_s mix", "iq3_m").replace("_moe", "")
    text = re.sub(r"[_\s]+", "-", text.strip(" -"))
    return _SAME.get(text, text)


def contradicted(model: str, served: str, dtype: str | None) -> bool:
    """Return whether a model's name claims a quantization, as llama-2-7b.Q4_K_M.gguf does, and the served one is
    another."""
    claims = _IN_NAME.findall(model.rsplit("/", 1)[-1])
    return bool(claims) and all(_meets(claim, served, dtype) is False for claim in claims)


def _meets(claim: str, served: str, dtype: str | None) -> bool | None:
    """Return whether the served quantization is the claimed one, or of the claimed family. None: unknown."""
    same = same_quantization(claim, served, dtype)
    a, b = plain(claim), plain(served)
    broad = _BROAD.fullmatch(a)
    if same is not False or broad is None or a in _UNQUANTIZED:
        return same
    kind, is_float, bits = broad[1], "fp" in b, _bits(b)
    if bits is None:  # AWQ and GPTQ say that they are integers, and not of how many bits
        return False if kind == "fp" and b in ("awq", "gptq") else None
    if bits != _bits(a):
        return False
    if kind in ("iq", "tq"):
        return b.startswith(kind)
    return is_float if kind == "fp" else not (kind == "int" and is_float)


def _bits(quantization: str) -> int | None:
    match = _BITS.search(quantization)
    return int(match[1] or match[2]) if match else None


def same_quantization(asked: str, served: str | None, dtype: str | None) -> bool | None:
    """Return whether both are one quantization. `served`: '' where the server reports no quantization. None:
    unknown."""
    a = plain(asked)
    if served is None or (served == "" and a in _UNQUANTIZED):
        return plain(dtype) == a if dtype is not None and a in _UNQUANTIZED else None
    b = plain(served)
    if {a, b} & _CONTAINERS:
        return None
    return _alike(a, b)


def _family(quantization: str) -> str:
    if quantization.startswith(("fp8", "ptpc-fp8", "fbgemm-fp8", "w8a8-fp8", "mxfp8")):
        return "fp8"
    if "mxfp4" in quantization:
        return "mxfp4"
    if quantization.startswith("modelopt"):
        return "modelopt"
    return quantization


def _alike(a: str, b: str) -> bool:
    """llama.cpp has S, M and L of Q3_K to Q5_K; makers of files add letters of their own (Q4_K_XL, Q6_K_L)."""
    if _family(a) == _family(b):
        return True
    for family, member in ((a, b), (b, a)):
        if re.fullmatch(r"q\d+", family):  # no type is called Q8
            return re.match(rf"i?{family}-", member) is not None
    own = any(
        re.match(r"q[2-6]-k", q) and not re.fullmatch(r"q[3-5]-k-[sml]", q) for q in (a, b)
    )
    return own and re.match(r"q[2-6]-k", a) is not None and a[:4] == b[:4]


# a sentence, asked, served, whether they agree
_Comparison = tuple[str, Any, Any, Callable[[Any, Any], bool]]


def differences(
    spec: EngineSpec,
    facts: TargetFacts,
    model: ModelShape | None = None,
    command: Sequence[str] = (),
    by: str = "it",
) -> Iterator[str]:
    """Yield a sentence for each thing that isn't as asked. What the server doesn't report is not a difference.

    `command`: what was run. `by`: the program that reports."""
    if facts.models_listed is not None and facts.model not in facts.models_listed:
        listed = ", ".join(map(repr, facts.models_listed[:10])) or "none"
        yield f"the setting asks for model {facts.model!r}, but the server lists {listed}"
    for sentence, asked, served, agree in _comparisons(spec, facts, model):
        if (
            asked not in (None, "")
            and served not in (None, "")
            and not agree(asked, served)
        ):
            yield sentence.format(asked, served)
    yield from llama.differences(command, facts.settings or {}, by)


def _comparisons(
    spec: EngineSpec, facts: TargetFacts, model: ModelShape | None
) -> tuple[_Comparison, ...]:
    files = model.quantization if model and not spec.quantization else None
    server = KINDS.get(facts.kind or "")
    path = model.path if model and server and server.reports_path else None
    serves = facts.quantization or facts.dtype or "none"

    def same_weights(quantization: str, _: str) -> bool:
        return same_quantization(quantization, facts.quantization, facts.dtype) is not False

    def names_alike(asked: str, served: str) -> bool:
        return plain(asked) == plain(served)

    def families_alike(asked: str, served: str) -> bool:
        return _family(plain(asked)) == _family(plain(served))

    def setting(
        name: str, asked: Any, served: Any, agree: Callable[[Any, Any], bool] = eq
    ) -> _Comparison:
        return f"the setting asks for {name} {{}}, but it has {{}}", asked, served, agree

    asked_version = "the setting asks for version {}, but this is {}"
    asked_weights = "the setting asks for quantization {}, but it serves {}"
    files_weights = "the model's files are {}, but it serves {}"
    asked_context = "the setting asks for a context of {} tokens, but a request may have {}"
    asked_model = "the setting asks for the model at {}, but it loaded {}"
    cache, cached = _chosen(spec.kv_cache_dtype), facts.kv_cache_dtype
    return (
        (asked_version, spec.version, facts.version, lambda _, b: will_do(b, spec)),
        (asked_weights, spec.quantization, serves, same_weights),
        (files_weights, files, facts.quantization, same_weights),
        (asked_context, spec.max_model_len, facts.max_model_len or None, le),
        setting("max_num_seqs =", spec.max_num_seqs, facts.slots),
        setting("tensor_parallel =", _tensor_parallel(spec), facts.tensor_parallel),
        setting("prefix_caching =", spec.prefix_caching, facts.prefix_caching),
        setting("chunked_prefill =", spec.chunked_prefill, facts.chunked_prefill),
        setting("dtype", _chosen(spec.dtype), facts.dtype, names_alike),
        (asked_model, path, facts.model_path, _same_file),
        setting("a KV cache in", cache, cached, families_alike),
    )


def _chosen(dtype: str | None) -> str | None:
    return dtype if dtype != "auto" else None


def unverified(spec: EngineSpec, facts: TargetFacts) -> list[str]:
    """Return the settings that were asked for and that the server doesn't report."""
    reported = {
        "quantization": facts.dtype if facts.quantization == "" else facts.quantization,
        "dtype": facts.dtype,
        "version": facts.version,
        "max_model_len": facts.max_model_len,
        "max_num_seqs": facts.slots,
        "kv_cache_dtype": facts.kv_cache_dtype,
        "prefix_caching": facts.prefix_caching,
        "tensor_parallel": facts.tensor_parallel,
    }
    asked = msgspec.structs.asdict(spec)
    default = {f.name: f.default for f in msgspec.structs.fields(EngineSpec)}
    given = [
        name
        for name in (*reported, *_UNREPORTED)
        if asked[name] not in (default[name], "auto")
    ]
    return [name for name in given if reported.get(name) is None]


def _same_file(a: str, b: str) -> bool:
    a, b = a.rstrip("/"), b.rstrip("/")
    return a == b or a.rsplit("/", 1)[-1] == b.rsplit("/", 1)[-1]


def _tensor_parallel(spec: EngineSpec) -> int | None:
    """Return the setting, if asked for; None: not, or by the engine's own flag."""
    return spec.tensor_parallel if spec.tensor_parallel > 1 else None
