"""Read the values of a JSON file: one value, one per line, or one after the other; and report what is broken.

A value knows its line, and is decoded when it is asked for. msgspec's Raw is a view of the bytes: its place in them
tells the line, and a list of a million generated texts that is never used is never built.

Intact values are read. Python writes NaN and Infinity, which JSON doesn't have: they become null and "inf", vLLM's word
for an unlimited rate (SGLang writes Infinity). A value that is cut off is closed after its last complete part.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, TypeVar

import msgspec
import numpy as np

from dyno.facts.imported import Scalar, Unread

T = TypeVar("T")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_FAILURES: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BLOCK: Final = 1 << 12
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_BREAK: Final = re.compile(r"\(byte (\d+)\)")
_NAN: Final = re.compile(rb"(?<=[:,\[\s])NaN(?=\s*[,\]}])")
_INFINITE: Final = re.compile(rb"(?<=[:,\[\s])(-?)Infinity(?=\s*[,\]}])")
# A text that isn't closed is one piece to the end: else each quote in it would be tried anew.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_COMMA: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|,', re.DOTALL)
_OPENING: Final = re.compile(rb'\{\s*(?:"|\}|\Z)|\[\s*(?:[{\["\]\-\d]|\Z)')
_NEXT: Final = re.compile(rb"\n[{\[]")
_MENDED: Final = 128 << 20  # bytes of the largest value that is mended
_DEEPEST: Final = 500
_TOO_DEEP: Final = -1
_BROKEN: Final = 200  # pieces after which the rest is left
_MENDED_MOST: Final = 10_000  # likewise, of those that could be mended


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

    def line(self, offset: int) -> int:
        offset = min(max(offset, 0), len(self.data))
        block = offset // _BLOCK
        return (
            self.first
            + self._before[block]
            + self.data.count(b"\n", block * _BLOCK, offset)
        )

    def offset(self, raw: msgspec.Raw | bytes) -> int:
        """Return a view's offset in the data."""
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
        return self._lines.line(self._lines.offset(self._raw))

    @property
    def end(self) -> int:
        """Its last line."""
        return self._lines.line(self._lines.offset(self._raw) + self.size - 1)

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
        """Return the fields of an object; {} for anything else, and for one that is broken inside."""
        if self.size == 0 or self._first() != 0x7B:
            return {}
        decoded = self._decoded(_FIELDS)
        return (
            {k: self._inside(v) for k, v in decoded.items()} if decoded is not None else {}
        )

    @property
    def is_object(self) -> bool:
        return self.size > 0 and self._first() == 0x7B

    @property
    def is_list(self) -> bool:
        return self.size > 0 and self._first() == 0x5B

    def items(self) -> "Iterator[Value]":
        if self.is_list:
            yield from (self._inside(v) for v in self._decoded(_ITEMS) or [])

    def get(self, *keys: str) -> "Value | None":
        value: Value | None = self
        for key in keys:
            value = value.fields.get(key) if value is not None else None
        return value

    def find(self, path: str) -> "Value | None":
        """Return the value at a path such as 'config.backend.model'."""
        return self.get(*path.split("."))

    def first(self, paths: Sequence[str]) -> "Value | None":
        return next(
            (value for path in paths if (value := self.find(path)) is not None), None
        )

    def each(self, path: str) -> "Iterator[Value]":
        """Yield the items of the list at a path."""
        listed = self.find(path)
        return listed.items() if listed is not None else iter(())

    def text_of(self, path: str) -> str | None:
        value = self.find(path)
        return value.text if value is not None else None

    def has(self, *keys: str) -> bool:
        return all(key in self.fields for key in keys)

    @cached_property
    def digits(self) -> str:
        """Return a number as it is written; '' for anything else."""
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
        """Return the value, or None for null, lists, objects and numbers beyond a double."""
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
        """Return it as a type; None where it isn't of that type."""
        return self._decoded(msgspec.json.Decoder(kind))

    def _decoded(self, decoder: "msgspec.json.Decoder[T]") -> T | None:
        try:
            return decoder.decode(self._raw)
        except _FAILURES:
            return None

    def _inside(self, raw: msgspec.Raw) -> "Value":
        return Value(raw, self._lines)


# ---- a whole file ----


class Values(msgspec.Struct):
    values: list[Value]
    unread: list[Unread]
    broken: int  # pieces of which nothing could be kept
    mended: int = 0


def values(data: bytes) -> Values | None:
    """Return None for a file that doesn't begin with JSON."""
    start = _skip(data, 0)
    if not _OPENING.match(data, start):
        return None
    lines = Lines(data)
    result = Values([], [], 0)
    view = memoryview(data)
    while start < len(data):
        end, break_at = _one(view[start:])
        if break_at is None:
            result.values.append(Value(msgspec.Raw(view[start : start + end]), lines))
            start = _skip(data, start + end)
            continue
        if not result.values and not result.unread and not _begins(data, start):
            return None
        if result.broken > _BROKEN or result.mended >= _MENDED_MOST:
            result.unread.append(
                Unread(
                    lines.line(start),
                    "too many errors; the rest of the file was not read",
                    "lines",
                )
            )
            break
        following = _next(data, start)
        result.mended += 1
        _mend(data[start:following], break_at, lines.line(start), result)
        start = _skip(data, following)
    return result


def _one(view: memoryview) -> tuple[int, int | None]:
    """Return the length of the text's first value and None; or 0 and the byte at which it breaks."""
    try:
        _ANY.decode(view)
        return len(view), None
    except _FAILURES as e:
        if match := _TRAILING.search(str(e)):
            return _whole(view, int(match[1]))
        if match := _BREAK.search(str(e)):
            return 0, int(match[1])
        return 0, _TOO_DEEP if isinstance(e, RecursionError) else len(view)


def _whole(view: memoryview, byte: int) -> tuple[int, int | None]:
    # The byte that is named is the one behind the value, or one further if there are blanks between.
    for end in (byte, byte - 1):
        try:
            _ANY.decode(view[:end])
            return end, None
        except _FAILURES:
            continue
    return 0, byte


def _skip(data: bytes, start: int) -> int:
    match = re.compile(rb"[\s,\x1e]*").match(data, start)  # \x1e: of JSON text sequences
    return match.end() if match else start


def _next(data: bytes, start: int) -> int:
    """Return where the next value may begin: a line that opens one."""
    # one search: a bracket that never comes is not looked for at every line
    match = _NEXT.search(data, start + 1)
    return match.start() if match else len(data)


def _begins(data: bytes, start: int) -> bool:
    """Return whether a broken value nevertheless is JSON: an object's first key, or a list of objects."""
    head = data[start : start + 4096]
    return bool(
        re.match(
            rb'(?:\[\s*)?\{\s*(?:"(?:[^"\\\n]|\\.)*"\s*(?::|\Z)|\Z)|(?:[\[{]\s*){50}', head
        )
    )


def _mend(piece: bytes, break_at: int, line: int, result: Values) -> None:
    lines = Lines(piece, line)
    if break_at == _TOO_DEEP:
        result.unread.append(Unread(line, "nested too deeply", "lines"))
        result.broken += 1
        return
    if len(piece) > _MENDED:
        result.unread.append(
            Unread(lines.line(break_at), "invalid JSON, too large to repair", "lines")
        )
        result.broken += 1
        return
    if b"NaN" in piece or b"Infinity" in piece:
        first = _NAN.search(piece)
        if first is not None:
            result.unread.append(
                Unread(lines.line(first.start()), "NaN is not a number; excluded")
            )
        piece = _NAN.sub(b"null", _INFINITE.sub(rb'"\1inf"', piece))
        lines = Lines(piece, line)
        end, broken = _one(memoryview(piece))
        if broken is None and end:
            result.values.append(Value(msgspec.Raw(memoryview(piece)), lines))
            return
        break_at = len(piece) if broken is None or broken == _TOO_DEEP else broken
    whole = _closed(piece, break_at)
    end, broken = _one(memoryview(whole)) if whole else (0, 0)
    if whole and broken is None and end == len(whole):
        result.unread.append(
            Unread(
                lines.line(min(break_at, len(piece))),
                "invalid JSON from here; the part before was read",
                "lines",
            )
        )
        result.values.append(Value(msgspec.Raw(memoryview(whole)), Lines(whole, line)))
        return
    result.unread.append(
        Unread(lines.line(min(break_at, len(piece))), "not valid JSON", "lines")
    )
    result.broken += 1


def _closed(piece: bytes, end: int) -> bytes:
    """Return the data up to the last value that is whole, with its brackets closed; b'' where there is none."""
    stack: list[bytes] = []
    safe = 0
    closing = {b"{": b"}", b"[": b"]"}
    for token in _TOKEN.finditer(piece, 0, end):
        char = token[0]
        if char in closing:
            stack.append(closing[char])
            safe = token.end()
        elif char in (b"}", b"]"):
            if not stack or stack.pop() != char:
                return b""
            safe = token.end()
        if len(stack) > _DEEPEST:
            return b""
    # There may be millions of commas between the brackets; only the last one matters.
    for token in _COMMA.finditer(piece, safe, end):
        if token[0] == b",":
            safe = token.start()
    return piece[:safe] + b"".join(reversed(stack)) if safe > 1 else b""
