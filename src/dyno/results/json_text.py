"""The values of a file that is JSON: one of them, one a line, or one behind the other; and what of it is broken.

What is sound is read. Python writes NaN and Infinity, which JSON has not: they become null and "inf", which is what
vLLM calls a rate without a limit, where SGLang writes Infinity. A value that breaks off is closed where it was whole.
"""

import re
from typing import Final

import msgspec

from dyno.facts.imported import Unread
from dyno.results.value import FAILURES, Lines, Value

_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_AT: Final = re.compile(r"\(byte (\d+)\)")
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


class Found(msgspec.Struct):
    values: list[Value]
    unread: list[Unread]
    broken: int  # pieces of which nothing could be kept
    mended: int = 0


def values(data: bytes) -> Found | None:
    """None where it isn't JSON from its beginning on."""
    start = _skip(data, 0)
    if not _OPENING.match(data, start):
        return None
    lines = Lines(data)
    found = Found([], [], 0)
    view = memoryview(data)
    while start < len(data):
        end, at = _one(view[start:])
        if at is None:
            found.values.append(Value(msgspec.Raw(view[start : start + end]), lines))
            start = _skip(data, start + end)
            continue
        if not found.values and not found.unread and not _begins(data, start):
            return None
        if found.broken > _BROKEN or found.mended >= _MENDED_MOST:
            found.unread.append(
                Unread(lines.of(start), "too much is broken; the rest of the file was left unread", "lines")
            )
            break
        following = _next(data, start)
        found.mended += 1
        _mend(data[start:following], at, lines.of(start), found)
        start = _skip(data, following)
    return found


def _one(view: memoryview) -> tuple[int, int | None]:
    """The length of the value that a text begins with, and None; or 0 and the byte at which it breaks."""
    try:
        _ANY.decode(view)
        return len(view), None
    except FAILURES as e:
        if match := _TRAILING.search(str(e)):
            return _whole(view, int(match[1]))
        if match := _AT.search(str(e)):
            return 0, int(match[1])
        return 0, _TOO_DEEP if isinstance(e, RecursionError) else len(view)


def _whole(view: memoryview, byte: int) -> tuple[int, int | None]:
    # The byte that is named is the one behind the value, or one further where blanks stand between.
    for end in (byte, byte - 1):
        try:
            _ANY.decode(view[:end])
            return end, None
        except FAILURES:
            continue
    return 0, byte


def _skip(data: bytes, start: int) -> int:
    match = re.compile(rb"[\s,\x1e]*").match(data, start)  # \x1e: of JSON text sequences
    return match.end() if match else start


def _next(data: bytes, start: int) -> int:
    """Where the next value may begin: a line that opens one."""
    found = _NEXT.search(data, start + 1)  # one search: a bracket that never comes is not looked for at every line
    return found.start() if found else len(data)


def _begins(data: bytes, start: int) -> bool:
    """A broken value that nevertheless is JSON: an object's first key, or a list of objects."""
    head = data[start : start + 4096]
    return bool(re.match(rb'(?:\[\s*)?\{\s*(?:"(?:[^"\\\n]|\\.)*"\s*(?::|\Z)|\Z)|(?:[\[{]\s*){50}', head))


def _mend(piece: bytes, at: int, line: int, found: Found) -> None:
    lines = Lines(piece, line)
    if at == _TOO_DEEP:
        found.unread.append(Unread(line, "nested too deep to be a result", "lines"))
        found.broken += 1
        return
    if len(piece) > _MENDED:
        found.unread.append(Unread(lines.of(at), "broken here, and too large to be mended", "lines"))
        found.broken += 1
        return
    if b"NaN" in piece or b"Infinity" in piece:
        first = _NAN.search(piece)
        if first is not None:
            found.unread.append(Unread(lines.of(first.start()), "NaN is no number: left out"))
        piece = _NAN.sub(b"null", _INFINITE.sub(rb'"\1inf"', piece))
        lines = Lines(piece, line)
        end, broken = _one(memoryview(piece))
        if broken is None and end:
            found.values.append(Value(msgspec.Raw(memoryview(piece)), lines))
            return
        at = len(piece) if broken is None or broken == _TOO_DEEP else broken
    whole = _closed(piece, at)
    end, broken = _one(memoryview(whole)) if whole else (0, 0)
    if whole and broken is None and end == len(whole):
        found.unread.append(
            Unread(lines.of(min(at, len(piece))), "broken here: what stands before it was read", "lines")
        )
        found.values.append(Value(msgspec.Raw(memoryview(whole)), Lines(whole, line)))
        return
    found.unread.append(Unread(lines.of(min(at, len(piece))), "this is no JSON", "lines"))
    found.broken += 1


def _closed(piece: bytes, at: int) -> bytes:
    """Cut behind the last value that is whole, with its brackets closed; b'' where there is none."""
    stack: list[bytes] = []
    safe = 0
    closing = {b"{": b"}", b"[": b"]"}
    for token in _TOKEN.finditer(piece, 0, at):
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
    # Millions of commas stand between the brackets; only the last one matters.
    for token in _COMMA.finditer(piece, safe, at):
        if token[0] == b",":
            safe = token.start()
    return piece[:safe] + b"".join(reversed(stack)) if safe > 1 else b""
