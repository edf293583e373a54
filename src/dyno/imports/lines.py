"""A file's bytes as lines that can be read: numbered as an editor numbers them, without what terminals paint."""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 32_768  # characters of a line that are looked at; progress bars and dumps may go on for megabytes
_PAINT = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MANGLED = re.compile(
    r"[ÂÃâðï][\x80-\xbf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
)


class Line(NamedTuple):
    number: int  # from 1
    text: str


def decoded(data: bytes) -> bytes:
    """UTF-8, whatever it was. UTF-16 is told by its mark, as Windows writes it."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(name, errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def lines(data: bytes, first: int = 1) -> Iterator[Line]:
    """Of UTF-8; bytes that are none become marks. A bar that was painted over is seen as it was last."""
    number = first
    start, end = 0, len(data)
    while start < end:
        stop = data.find(b"\n", start)
        stop = end if stop < 0 else stop
        raw = data[start : min(stop, start + 4 * LONGEST)]
        if stop - start > 4 * LONGEST and b"\r" in data[stop - 4 * LONGEST : stop]:
            raw = data[stop - 4 * LONGEST : stop]  # a bar: what counts is its end
        for piece in raw.rstrip(b"\r").split(b"\r")[-2:]:
            yield Line(number, clean(piece.decode("utf-8", errors="replace")[:LONGEST]))
        start = stop + 1
        number += 1


def clean(text: str) -> str:
    if "\x1b" in text:
        text = _PAINT.sub("", text)
    if not text.isascii() and _MANGLED.search(text):
        text = repaired(text)
    return _CONTROL.sub("", text).rstrip()


def repaired(text: str) -> str:
    """UTF-8 that somebody read as Windows-1252 and saved again: 'Â±' is '±'. Else as it is."""
    raw = bytearray()
    for char in text:
        try:
            raw += char.encode("cp1252")
        except UnicodeEncodeError:
            raw += char.encode("latin-1") if char <= "\xff" else "\ufffd".encode()
    mended = raw.decode("utf-8", errors="replace")
    return mended if mended.count("\ufffd") <= text.count("\ufffd") + len(text) // 50 + 1 else text
