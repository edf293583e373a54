"""The head of a safetensors file: its tensors. The weights themselves aren't read."""

import os
import struct
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from dyno import files
from dyno.probe.tensor import Tensor

_HEAD_MAX = 100_000_000  # bytes; safetensors itself takes no longer one


def tensors(path: Path) -> list[Tensor]:
    """ValueError where it is none, or is cut."""
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= min(_HEAD_MAX, size - 8):
            raise ValueError(f"{path} has no head of a safetensors file")
        text = file.read(length)
    try:
        head = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except files.BROKEN:
        raise ValueError(f"{path} has a head that can't be read") from None
    return [_tensor(name, about, size - 8 - length) for name, about in head.items() if name != "__metadata__"]


def _tensor(name: str, about: dict[str, Any], room: int) -> Tensor:
    kind, shape, place = about.get("dtype"), about.get("shape"), about.get("data_offsets")
    if not isinstance(kind, str) or not _counts(shape) or not _counts(place) or len(place) != 2:
        raise ValueError(f"the tensor {name} has no type, shape or place")
    begin, end = place
    if not begin <= end <= room:
        raise ValueError(f"the tensor {name} doesn't lie inside its file")
    return Tensor(name, kind, tuple(shape), end - begin)


def _counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
