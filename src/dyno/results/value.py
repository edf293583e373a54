"""A value of a JSON file that knows the line it stands on, and is decoded when it is asked for.

msgspec's Raw is a view of the bytes that were decoded: where it lies in them tells its line, and a list of a million
generated texts that nobody asks for is never made.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final, TypeVar

import msgspec
import numpy as np

from dyno.facts.imported import Scalar

T = TypeVar("T")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
FAILURES: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BLOCK: Final = 1 << 12


class Lines:
    """The line of each byte. `first`: the file's line that these bytes begin with."""

    def __init__(self, data: bytes, first: int = 1) -> None:
        self.data, self.first = data, first
        self._base = _address(data)

    @cached_property
    def _before(self) -> list[int]:
        """Newlines before each block."""
        total, out = 0, []
        for start in range(0, len(self.data) + 1, _BLOCK):
            out.append(total)
            total += self.data.count(b"\n", start, start + _BLOCK)
        return out

    def of(self, offset: int) -> int:
        offset = min(max(offset, 0), len(self.data))
        block = offset // _BLOCK
        return self.first + self._before[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def where(self, raw: msgspec.Raw | bytes) -> int:
        """A view's offset in the data."""
        return _address(raw) - self._base


def _address(view: msgspec.Raw | bytes) -> int:
    if isinstance(view, bytes) and not view:
        return 0
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class Value:
    def __init__(self, raw: msgspec.Raw, lines: Lines) -> None:
        self._raw, self._lines = raw, lines

    @property
    def line(self) -> int:
        return self._lines.of(self._lines.where(self._raw))

    @property
    def end(self) -> int:
        """Its last line."""
        return self._lines.of(self._lines.where(self._raw) + self.size - 1)

    @property
    def size(self) -> int:
        return len(memoryview(self._raw))

    @property
    def null(self) -> bool:
        return self.size == 4 and bytes(memoryview(self._raw)) == b"null"

    def _first(self) -> int:
        return memoryview(self._raw)[0]

    @cached_property
    def fields(self) -> "dict[str, Value]":
        """Of an object; {} of anything else, and of one that is broken inside."""
        if self.size == 0 or self._first() != 0x7B:
            return {}
        found = self._decoded(_FIELDS)
        return {k: self._inside(v) for k, v in found.items()} if found is not None else {}

    @property
    def is_object(self) -> bool:
        return self.size > 0 and self._first() == 0x7B

    @property
    def is_list(self) -> bool:
        return self.size > 0 and self._first() == 0x5B

    def items(self) -> "Iterator[Value]":
        if self.is_list:
            yield from (self._inside(v) for v in self._decoded(_ITEMS) or [])

    def get(self, *path: str) -> "Value | None":
        value: Value | None = self
        for key in path:
            value = value.fields.get(key) if value is not None else None
        return value

    def has(self, *keys: str) -> bool:
        return all(key in self.fields for key in keys)

    @cached_property
    def digits(self) -> str:
        """A number as it is written; '' of anything else."""
        if self.size == 0 or self.size > 400 or self._first() not in b"-0123456789":
            return ""
        return bytes(memoryview(self._raw)).decode("ascii", "replace")

    @property
    def number(self) -> float | None:
        try:
            number = float(self.digits) if self.digits else math.nan
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    @property
    def text(self) -> str | None:
        if self.size == 0 or self._first() != 0x22:
            return None
        return self._decoded(_TEXT)

    @property
    def scalar(self) -> Scalar | None:
        """None of null, of lists and objects, and of numbers beyond a double."""
        if self.size == 0:
            return None
        if (first := self._first()) == 0x22:
            return self.text
        if first in b"tf":
            return first == 0x74
        number, digits = self.number, self.digits
        if number is None:
            return None
        return int(digits) if digits.lstrip("-").isdigit() and len(digits) <= 18 else number

    def decoded(self, kind: type[T]) -> T | None:
        """As a type; None where it isn't of it."""
        return self._decoded(msgspec.json.Decoder(kind))

    def _decoded(self, decoder: "msgspec.json.Decoder[T]") -> T | None:
        try:
            return decoder.decode(self._raw)
        except FAILURES:
            return None

    def _inside(self, raw: msgspec.Raw) -> "Value":
        return Value(raw, self._lines)
