"""What a model's name says: its size, whether it was taught to answer, how it is quantized. Names are all that others'
results tell."""

import re
from collections.abc import Iterator

import msgspec

from dyno.facts.imported import Row

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,2})?)\s?[bB](?![A-Za-z0-9])")
_EXPERTS = re.compile(
    r"(?<![A-Za-z0-9])\d{1,3}x\d{1,3}(?:\.\d)?[bB]|(?<![A-Za-z0-9])A\d{1,3}(?:\.\d)?[bB](?![A-Za-z0-9])|moe", re.I
)
# Without a word in the name that says so.
_MIXTURES = re.compile(
    r"gpt-?oss|mixtral|deepseek-?(?:v[23]|r1(?!-distill)|coder-v2|llm-moe)|llama-?4|glm-?4\.[56]|kimi|grok|dbrx|arctic"
    r"|minimax|ernie-4\.5|hunyuan|qwen3-next|qwen3\.5|jamba|phi-?3\.5-moe|olmoe|granite-4|step-?3|longcat|ling-",
    re.I,
)
_DENSE = re.compile(
    r"llama-?(?:[23](?!\.?\d*-?4-)|3\.[123])|llama-[0-9]+b|qwen(?:1\.5|2|2\.5)(?!.*moe)"
    r"|qwen3-(?:0\.6|1\.7|4|8|14|32)b|mistral-?(?:7b|nemo|small|large)|gemma-?[23]?|phi-?[234](?!\.5-moe)"
    r"|falcon-?(?:7|40|180)b|opt-|pythia|yi-|codellama|tinyllama|vicuna|starcoder",
    re.I,
)
_TAUGHT = re.compile(r"(?<![a-z])(instruct|chat|it|sft|dpo|assistant)(?![a-z])", re.I)
_NO_NAME = {
    "hf", "gguf", "ggml", "kv", "fp8", "fp16", "bf16", "f16", "f32", "int8", "int4", "awq", "gptq", "w8a8", "w4a16",
    "quantized", "dynamic", "nvfp4", "mxfp4", "fp4", "marlin", "meta", "instruct", "chat", "it", "ud", "model", "bnb",
    "4bit", "8bit", "quark", "ptpc", "block", "imatrix", "nm", "testing",
}  # fmt: skip
# Q4_K_M, IQ2_XXS, Q8_0, 'Q4_K - Medium': llama.cpp's quantizations.
_QUANTIZED = re.compile(
    r"(?<![a-z0-9])i?q\d(?:_(?:\d|k|xxs|xs|s|m|l|xl|nl))*(?: - (?:small|medium|large))?(?![a-z0-9])"
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# A dot inside a number is part of a version (GLM-5.1); any other dot separates words. Llama-3_1 is Llama-3.1.
_UNDERSCORED = re.compile(r"(?<=\d)_(?=\d(?![\da-z]))")
_SEPARATOR = re.compile(r"[-_ :,()]+|\.(?!\d)|(?<!\d)\.")
_FAMILY = re.compile(r"([a-z]{3,})(\d+(?:\.\d+)?b?)")  # qwen2.5 is qwen 2.5
_WEIGHTS = {  # bytes of a parameter, at least
    "fp32": 4.0, "f32": 4.0, "float32": 4.0, "fp16": 2.0, "f16": 2.0, "bf16": 2.0, "float16": 2.0, "bfloat16": 2.0,
    "fp8": 1.0, "int8": 1.0, "w8a8": 1.0, "q8_0": 1.06, "q6_k": 0.8, "q5_k_m": 0.68, "q5_k": 0.66, "q4_k_m": 0.56,
    "q4_k": 0.54, "q4_0": 0.56, "awq": 0.5, "gptq": 0.5, "int4": 0.5, "w4a16": 0.5, "fp4": 0.5,
    "nvfp4": 0.5, "mxfp4": 0.5,
}  # fmt: skip
LEAST = 0.25  # of a parameter whose quantization is unknown


class ModelName(msgspec.Struct, frozen=True):
    name: str  # without organisation, folder and ending
    base: tuple[str, ...]  # its words without quantization and tuning: equal for all variants of a model
    taught: bool  # to answer: instruct, chat
    billions: float | None
    dense: bool | None  # all parameters are read for each token; None: not known


def named(text: str) -> ModelName:
    name = re.sub(r"models--[\w.-]+--", "", str(text)).split("/snapshots/")[0].rstrip("/").rpartition("/")[2]
    name = re.sub(r"\.(gguf|bin|safetensors)$", "", name, flags=re.I)
    low = name.lower()
    sizes = [float(s) for s in _SIZE.findall(name.replace("_", "-"))]
    mixture = bool(_EXPERTS.search(name) or _MIXTURES.search(name))
    dense = False if mixture else True if _DENSE.search(name.replace(" ", "-")) else None
    return ModelName(name, tuple(_words(low)), bool(_TAUGHT.search(low)), max(sizes) if sizes else None, dense)


def _words(name: str) -> Iterator[str]:
    """The words of a name, with each version whole: 'glm-5.1' → 'glm', '5.1'."""
    name = _UNDERSCORED.sub(".", _QUANTIZED.sub(" ", _SHARD.sub("", name)))
    for word in _SEPARATOR.split(name):
        if not word or word in _NO_NAME:
            continue
        family = _FAMILY.fullmatch(word)
        yield from family.groups() if family else (word.removesuffix(".0"),)


def related(a: ModelName, b: ModelName) -> bool:
    """Variants of one model, or one whose name says less."""
    one, other = set(a.base), set(b.base)
    return not one or not other or one <= other or other <= one


def same_model(a: Row, b: Row) -> bool:
    """Whether two results may be of one model, by what they say of it."""
    return related(*(named(str(row.setting("model") or "")) for row in (a, b)))


def bytes_each(quantization: object, dtype: object, name: str) -> float:
    """Bytes of a parameter, at least: by the settings, else by the name, else by the smallest that there is."""
    for name_of_type in (quantization, dtype):
        low = str(name_of_type or "").lower()
        if low in _WEIGHTS:
            return _WEIGHTS[low]
    low = name.lower()
    for word in sorted(_WEIGHTS, key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", low):
            return _WEIGHTS[word]
    return LEAST
