"""The head of a GGUF file: its metadata and how many values its tensors hold.

The `gguf` package's reader builds an array for every token of the vocabulary (seconds for 8,000, minutes for
128,000); here they are stepped over.
"""

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SMALL = 4096  # arrays up to this length are kept: head counts by layer are, vocabularies aren't


def head(path: Path) -> tuple[dict[str, Any], int]:
    """Metadata and the number of parameters. ValueError where the file is no GGUF, or is cut."""
    try:
        with path.open("rb") as file:
            return _Reader(file).head()
    except (struct.error, OverflowError, MemoryError):
        raise ValueError(f"{path} ends before its metadata does") from None


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def head(self) -> tuple[dict[str, Any], int]:
        if self._file.read(4) != b"GGUF":
            raise ValueError("no GGUF file")
        version, tensors, entries = self._take("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version}")
        metadata = {self._string(): self._value(self._take("I")[0]) for _ in range(entries)}
        parameters = 0
        for _ in range(tensors):
            self._skip_string()
            dimensions = self._take("I")[0]
            parameters += math.prod(self._take(f"{dimensions}Q"))
            self._take("IQ")
        return metadata, parameters

    def _take(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _string(self) -> str:
        return self._file.read(self._take("Q")[0]).decode("utf-8", "replace")

    def _skip_string(self) -> None:
        self._file.seek(self._take("Q")[0], 1)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            of, length = self._take("IQ")
            return self._array(of, length)
        return self._take(_SCALARS[kind])[0]

    def _array(self, of: int, length: int) -> list[Any] | None:
        if of in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[of])
            if length > _SMALL:
                self._file.seek(size * length, 1)
                return None
            return list(self._take(f"{length}{_SCALARS[of]}"))
        for _ in range(length):
            if of == _STRING:
                self._skip_string()
            else:
                self._value(of)
        return None
