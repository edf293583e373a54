"""The heads of files of weights, GGUF and safetensors: which tensors they hold, and where. No weights are read."""

import math
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import msgspec

from dyno import files

_HEAD_MAX = 100_000_000  # bytes; safetensors itself takes no longer one
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
# arrays up to this length are kept: head counts by layer are, vocabularies aren't
_SMALL = 4096
_TEXT_MAX = 1 << 26  # bytes of all texts that are kept; a chat template is some kilobytes
_MANY = 10_000_000  # entries, tensors or words: no vocabulary has as many
_DIMENSIONS_MAX = 8  # ggml has 4
# ggml's types: values in a block, and its bytes (ggml-org/llama.cpp, gguf-py/gguf/constants.py).
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
# Of safetensors' types: bits of a value (huggingface/safetensors, Dtype).
_BITS = {
    **dict.fromkeys(("F4",), 4), **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16), **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}  # fmt: skip
# Values and bytes of a block, by type.
BLOCKS = {name: (block, size) for name, block, size in _TYPES.values()}


class Tensor(NamedTuple):
    name: str
    kind: str  # BF16, F8_E4M3, Q4_K, …
    shape: tuple[int, ...]
    size_bytes: int
    start: int  # its first byte in the file

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor in the head of a safetensors file."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def read_safetensors(path: Path) -> list[Tensor]:
    """Return a file's tensors. Raises ValueError where the file isn't one, or is cut."""
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= min(_HEAD_MAX, size - 8):
            raise ValueError(f"{path} has no safetensors header")
        text = file.read(length)
    try:
        head = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        head.pop("__metadata__", None)
        entries = msgspec.convert(head, dict[str, _Entry])
    except files.BROKEN:
        raise ValueError(f"{path} has an unreadable header") from None
    if not all(
        e.data_offsets[0] <= e.data_offsets[1] <= size - 8 - length
        for e in entries.values()
    ):
        raise ValueError(f"{path} is shorter than its header says")
    if wrong := next((name for name, entry in entries.items() if not _fits(entry)), None):
        raise ValueError(f"{path}: the shape of {wrong!r:.80} doesn't fit its bytes")
    ends = sorted(
        e.data_offsets for e in entries.values() if e.data_offsets[0] < e.data_offsets[1]
    )
    if any(begin < end for (_, end), (begin, _) in pairwise(ends)):
        raise ValueError(f"{path}: two tensors have the same bytes")
    tensors = []
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        tensors.append(
            Tensor(name, entry.dtype, entry.shape, end - begin, 8 + length + begin)
        )
    return tensors


def _fits(entry: _Entry) -> bool:
    """Return whether a tensor has as many values as its bytes. A value of an unknown type has a bit or more."""
    if len(entry.shape) > _DIMENSIONS_MAX:
        return False
    bits = 8 * (entry.data_offsets[1] - entry.data_offsets[0])
    each = _BITS.get(entry.dtype)
    values = math.prod(entry.shape)
    return values <= bits if each is None else values * each == bits


def read_gguf(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Return metadata and tensors. Raise ValueError where the file is not GGUF, or incomplete."""
    try:
        with files.opened(path) as file:
            return _Gguf(file).head()
    except (struct.error, OverflowError, MemoryError, RecursionError):
        raise ValueError(f"{path} is cut off inside its metadata") from None


class _Gguf:
    """The `gguf` package's reader builds an array for every token of the vocabulary (seconds for 8,000, minutes for
    128,000); here they are stepped over.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._texts, self._counted = file, 0, 0

    def head(self) -> tuple[dict[str, Any], list[Tensor]]:
        if self._file.read(4) != b"GGUF":
            raise ValueError("not a GGUF file")
        version, tensors, entries = self._take("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version}")
        self._check(entries, tensors)
        metadata = {self._string(): self._value(self._take("I")[0]) for _ in range(entries)}
        listed = [self._tensor() for _ in range(tensors)]
        align = metadata.get("general.alignment")
        align = align if type(align) is int and align > 0 else 32
        data = -(-self._file.tell() // align) * align
        return metadata, [tensor._replace(start=data + tensor.start) for tensor in listed]

    def _check(self, *counts: int) -> None:
        """Refuse a header with too many entries. A file may claim anything, and be as long as that without holding
        it."""
        self._counted += sum(counts)
        if self._counted > _MANY:
            raise ValueError(f"{self._counted} entries in the header")

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._take("I")[0]
        if dimensions > _DIMENSIONS_MAX:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions")
        shape = self._take(f"{dimensions}Q")
        number, start = self._take("IQ")
        # Of a type that came after this list, the values are known and the bytes aren't.
        kind, block, size = _TYPES.get(number, (f"type {number}", 1, 0))
        return Tensor(name, kind, shape, math.prod(shape) * size // block, start)

    def _take(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _string(self) -> str:
        length = self._take("Q")[0]
        self._texts += length
        if self._texts > _TEXT_MAX:
            raise ValueError(f"a text of {length} bytes in the metadata")
        return self._file.read(length).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(*self._take("IQ"))
        return self._take(_SCALARS[kind])[0]

    def _array(self, kind: int, length: int) -> list[Any] | None:
        if scalar := _SCALARS.get(kind):
            if length <= _SMALL:
                return list(self._take(f"{length}{scalar}"))
            self._file.seek(struct.calcsize("<" + scalar) * length, 1)
            return None
        self._check(length)
        for _ in range(length):
            if kind == _STRING:
                self._file.seek(self._take("Q")[0], 1)
            else:
                self._value(kind)
        return None
