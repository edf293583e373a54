"""What a llama.cpp was built without: instructions of this processor that it leaves unused."""

import re
from collections.abc import Collection

from dyno.probe import host

# The kernel's name of an instruction set → llama.cpp's.
_NAMES = {
    "asimddp": "DOTPROD", "asimdhp": "FP16_VA", "i8mm": "MATMUL_INT8", "sve": "SVE", "avx": "AVX", "avx2": "AVX2",
    "f16c": "F16C", "fma": "FMA", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}  # fmt: skip


def unused(log: str, features: Collection[str] | None = None) -> list[str]:
    """By the line in which it tells what it was built with. None there, or none of the CPU's: nothing is known."""
    found = re.findall(r"system_info: .*", log)
    if not found or "CPU : " not in found[-1]:
        return []
    built = set(re.findall(r"(\w+) = 1", found[-1]))
    here = host.features() if features is None else features
    return [own for name, own in _NAMES.items() if name in here and own not in built]
