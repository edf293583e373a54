"""Lines of an engine's log that say: it doesn't run as the setting or its reader would think.

Texts are those in the sources of vLLM 0.5.4 to 0.28, llama.cpp b4000 to b11500, SGLang 0.5.9 and TGI 3.3.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import cast

from dyno import secrets
from dyno.facts.engine import About, Remark
from dyno.visible import one_line

_LONG = 2000  # characters: a line with a prompt in it, whose words are not the engine's
_SHOWN = 240
_REQUEST = re.compile(r"[Rr]eceived request|[Pp]rompt: ")
# Time, process and place in the source come before the words: vLLM, TGI, SGLang, others, llama.cpp.
_HEADS = (
    r".{0,120}?\[[\w./]+:\d+\] ", r".{0,80}?text_generation_\w+(?:::\w+)*: (?:\S+/src/\S+: )?", r"\[[^]]*\] ",
    r".{0,60}?\b(?:WARN(?:ING)?|INFO)\b:? ", r"[^:]{0,60}: ",
)  # fmt: skip
# Only lines with one of these are looked at more closely: a log may have 16 MB.
_WORDS = (
    "deprecat", "ignor", "no effect", "fall", "disabl", "disabled", "sub-optimal", "not fully optimized", "preempt",
    "retract", "scal", "eager", "unknown", "cannot use", "overrid", "reset to", "reduced", "forcing", "offloaded",
    "swap space", "slow", "native", "emulation", "precluded", "enabled by default", "failed to", "deactivating",
    "capping", "import", "casting",
)  # fmt: skip

_Patterns = Mapping[About, str]
_ANY: _Patterns = {
    "deprecated": r"argument '[^']+' is deprecated|DEPRECATED: |--[\w-]+`?(?: option| flag)? (?:is|are|has been) "
    r"deprecated|\b(?!PYTORCH_)[A-Z][A-Z0-9_]{4,}(?: environment variable| on ROCm)? is deprecated"
    r"|quantization method \S+ is deprecated",
    "ignored": r"--[\w-]+\W[^\n]{0,80}?(?:will be|is|are) ignored|\w is currently not supported and will be ignored"
    r"|[Ii]gnoring (?:`?--|option ')|(?:--[\w-]+|parameter)`? (?:will have|has) no effect",
    "untuned": r"Performance might be sub-?optimal|quantization is not fully optimized yet",
    "kv_scales": r"KV cache scaling factors? (?:= )?1\.0|Defaulting to scaling factors of 1\.0|uncalibrated q_scale",
}
_VLLM: _Patterns = {
    "unknown_variable": r"Unknown vLLM environment variable detected",
    "eager": r"Enforce eager set, disabling|TORCH_COMPILE_DISABLE is set, disabling"
    r"|graph is not supported (?!on (?:CPU|XPU|OpenVINO))[^\n]{0,60}fall ?back to (?:the )?eager mode"
    r"|`torch\.compile` is turned on, but the model \S+ does not support it",
    "fallback": r"[Ff]all(?:ing|s)? ?back to (?:the )?(?:V0|unoptimized|slow|Moe WNA16|PyTorch-native|CUTLASS"
    r"|Triton|torch linear|global attention|Transformers implementation|\S+ for compatibility)"
    r"|sampling unavailable: [^\n]*falling back|Cannot use (?:FA version|FlashAttention|FlashInfer|ROCm custom)"
    r"|does not have native support for FP\d|does not support native MX|Emulation\w* MO?o?E backend"
    r"|precluded higher-priority backend|Custom allreduce is disabled (?:because|due)|Using a slow tokenizer",
    "unsupported": r"does not officially support (?:disabling )?(?:prefix caching|chunked prefill)",
    "changed": r"[Dd]isabl(?:ing|ed)(?: unsupported)? (?:prefix caching|chunked prefill)"
    r"|(?:[Pp]refix caching|[Cc]hunked prefill) is not supported [^\n]{0,60}disabl(?:e|ing) it"
    r"|do not support chunked prefill nor prefix caching|not supported [^\n]{0,40}and has been disabled"
    r"|forcing chunked prefill and prefix caching to be disabled|max_model_len: reduced from"
    r"|capping the max length to the sliding window|max_num_scheduled_tokens is set to"
    r"|float16 is not supported on CPU, casting",
    "chosen": r"Chunked prefill is enabled by default for models|Async scheduling [^\n]{0,120}will be disabled",
    "preempted": r"is preempted by \S+ mode because there is not enough KV cache space",
    "swap_space": r"Possibly too large swap space",
}
_LLAMA: _Patterns = {
    "fallback": r"flash_attn (?:requires|is not compatible)[^\n]*forcing off|not supported, set to disabled"
    r"|Flash Attention was auto, set to disabled|NCCL [^\n]*falling back to internal AllReduce"
    r"|failed to (?:fit params to free|mlock|allocate [\d.]+ MiB of pinned)",
    "changed": r"\w+ is not supported by [\w ]+, it will be disabled|speculative decoding not supported by this",
    "offloaded": r"offloaded (?!(?P<all>\d+)/(?P=all) )\d+/\d+ layers to GPU",
}
_SGLANG: _Patterns = {
    "eager": r"[Cc]uda graph is disabled because",
    "fallback": r"will fallback to \w+ backend|Falling back to slow implementation|Moe WNA16 kernels",
    "changed": r"Max running requests is reset to|[Cc]hunked prefill (?:is|are) disabled"
    r"|[Oo]verlap schedule\w* is disabled|radix cache (?:is|are) disabled|disabling radix cache"
    r"|ttention backends? (?:is|are) overridden",
    "preempted": r"KV cache pool is full\. Retract requests",
}
_TGI: _Patterns = {
    "eager": r"cuda graphs, deactivating them",
    "fallback": r"Could not import Flash Attention|Forcing attention to '",
    "changed": r"Disabling prefix caching",
}
_KINDS: Mapping[str, _Patterns] = {"vllm": _VLLM, "llamacpp": _LLAMA, "sglang": _SGLANG, "tgi": _TGI}


def remarks(kind: str, text: str) -> list[Remark]:
    """Return the engine's remarks in the order of the log, each once."""
    counted: dict[tuple[About, str], int] = {}
    pattern = _pattern(kind)
    for line in text.split("\n"):
        low = line[: _LONG + 1].lower()
        if len(low) > _LONG or not any(word in low for word in _WORDS) or _REQUEST.search(line):
            continue
        line = one_line(line)
        match = pattern.search(line)
        if match is None or match.lastgroup is None:
            continue
        about, words = cast(About, match.lastgroup), _message(line, match.start())
        counted[about, words] = counted.get((about, words), 0) + 1
    return [Remark(about, line, count) for (about, line), count in counted.items()]


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    own = _KINDS.get(kind, {})
    every = {name: [t[name] for t in (own, _ANY) if name in t] for name in (*own, *_ANY)}
    return re.compile("|".join(f"(?P<{name}>{'|'.join(parts)})" for name, parts in every.items()))


def _message(line: str, start: int) -> str:
    """Return the line without its head, which differs from copy to copy."""
    heads = (head.end() for pattern in _HEADS if (head := re.match(pattern, line)))
    message = line[next((end for end in heads if end <= start), 0) :]
    return secrets.clean(secrets.without_looks(message))[:_SHOWN]
