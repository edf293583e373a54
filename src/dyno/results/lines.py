"""A file's bytes as lines that can be read: numbered as in an editor, without terminal colours."""

import codecs
import mmap
import re
from collections.abc import Iterator
from typing import NamedTuple

# characters of a line that are looked at; progress bars and dumps may have megabytes
LONGEST = 32_768
_PART = 1 << 20  # bytes that are made text at once
_EMPTY = 3  # lines in a row that say that something is over
_PAINT = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FRACTION = re.compile(rb"(?<![\d.])\d+\.\d+(?![\d.])")
_MEASURED = re.compile(
    rb"\d\s?(?:tok(?:en)?s?\s?/\s?s|t/s|tps|req(?:uest)?s?\s?/\s?s|ms|it/s)(?![\w-])", re.I
)
_STRAY = re.compile(r"[\udc80-\udcff]")
_MANGLED = re.compile(
    r"[ÂÃâðï][\x80-\xbf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
)


# What Windows-1252 shows for bytes where Latin-1 has control characters.
_TO_BYTES = {
    ord(bytes([b]).decode("cp1252")): b
    for b in range(0x80, 0xA0)
    if b not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


class TextLine(NamedTuple):
    number: int  # from 1
    text: str


def decoded(data: bytes) -> bytes:
    """Convert to UTF-8. UTF-16 is detected by its mark, as Windows writes it."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(name, errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def holds_numbers(data: bytes) -> bool:
    """Return whether there are two fractions at least, or a measured unit: whole numbers are dates, ports and versions
    too."""
    data = data[: 1 << 20]
    return len(_FRACTION.findall(data)) > 1 or _MEASURED.search(data) is not None


def lines(
    data: bytes | mmap.mmap, first: int = 1, start: int = 0, stop: int | None = None
) -> Iterator[TextLine]:
    """Decode UTF-8, or a line that isn't as Windows-1252. A progress bar is seen in its last state; of empty lines in a
    row, the first few. `first`: the number of the line at `start`."""
    number, empty, stop = first, 0, len(data) if stop is None else stop
    while start < stop:
        end = (
            data.rfind(b"\n", start, start + _PART) + 1
            or data.find(b"\n", start + _PART) + 1
            or stop
        )
        end = min(end, stop)
        part = data[start:end].decode("utf-8", errors="surrogateescape")
        for text in part.removesuffix("\n").split("\n"):
            if not text:
                empty += 1
                if empty <= _EMPTY:
                    yield TextLine(number, "")
                number += 1
                continue
            empty = 0
            if text.isascii() and text.isprintable():
                yield TextLine(number, text.rstrip()[:LONGEST])
            elif "\r" in text:
                for piece in text.rstrip("\r").split("\r")[-2:]:
                    yield TextLine(number, clean(piece[-LONGEST:]))
            else:
                yield TextLine(number, clean(text[:LONGEST]))
            number += 1
        start = end


def clean(text: str) -> str:
    if "\x1b" in text:
        text = _PAINT.sub("", text)
    if _STRAY.search(text):
        text = _whole(text)
    if not text.isascii() and _MANGLED.search(text):
        text = repaired(text)
    return _CONTROL.sub("", text).rstrip()


def _whole(text: str) -> str:
    """Bytes that were not UTF-8: another encoding's letters, or the rest of a cut letter."""
    raw = text.encode("utf-8", errors="surrogateescape")
    return raw.decode(
        "cp1252" if _STRAY.sub("", text).isascii() else "utf-8", errors="replace"
    )


def repaired(text: str) -> str:
    """Return UTF-8 that was read as Windows-1252 and saved again as it was: 'Â±' is '±'. Else the text as it is."""
    raw = text.translate(_TO_BYTES).encode("latin-1", errors="replace")
    mended = raw.decode("utf-8", errors="replace")
    return (
        mended
        if mended.count("\ufffd") <= text.count("\ufffd") + len(text) // 50 + 1
        else text
    )
