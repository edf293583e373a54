"""What the llama.cpp that comes with dyno was built without: instructions of this processor that it leaves unused."""

import re
import sys
from collections.abc import Collection

from dyno.probe import host
from dyno.probe.child import ask

# The kernel's name of an instruction set → llama.cpp's.
_NAMES = {
    "asimddp": "DOTPROD", "asimdhp": "FP16_VA", "i8mm": "MATMUL_INT8", "sve": "SVE", "avx": "AVX", "avx2": "AVX2",
    "f16c": "F16C", "fma": "FMA", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}  # fmt: skip
_ASK_S = 20.0


def unused() -> list[str]:
    """Asked of the wheel itself, in a process of its own."""
    told = ask([sys.executable, "-c", "import xllamacpp; print(xllamacpp.get_system_info())"], _ASK_S).out
    return missing(told, host.features()) if told else []


def missing(told: str, features: Collection[str]) -> list[str]:
    built = set(re.findall(r"(\w+) = 1", told))
    return [own for name, own in _NAMES.items() if name in features and own not in built]
