"""Streams as most servers send them: each HTTP chunk is one event of one line, and most events differ in a text alone.

The texts of such a stream are read at once. Every byte outside of them is compared, so nothing is taken for granted:
where a byte differs, each event is read by itself, and a body of another form is read by load/decode.py.
"""

import functools
from itertools import accumulate
from typing import NamedTuple

import msgspec

_FRONT, _BACK = (
    b"\r\ndata: ",
    b"\n\n\r\n",
)  # of an event, after the digits of its HTTP chunk's size
_AROUND = len("data: ") + len("\n\n")
_LAST = b"0\r\n\r\n"
_TRAILING = 8  # events after the last text: the finish reason, usage, the end mark
_texts = msgspec.json.Decoder(list[str]).decode


@functools.lru_cache(4096)
def _digits(length: int) -> int:
    """Return how many digits the size of an HTTP chunk has that takes so many bytes with them, to its data's end."""
    for digits in range(1, 9):
        size = length - digits - len(_FRONT) + _AROUND
        if len(f"{max(size, 0):x}") == digits:
            return digits
    return 0


class TextShape(NamedTuple):
    """The bytes of an event before its text and after it."""

    before: bytes
    after: bytes

    def event(self, text: bytes) -> bytes:
        return b"%s%s%s" % (self.before, text, self.after)


def shape_of(data: bytes, key: str) -> TextShape | None:
    """Return an event's shape around the last text under this key; None: there is none, or it is escaped."""
    for opening in (b'"%s":"' % key.encode(), b'"%s": "' % key.encode()):
        key_at = data.rfind(opening)
        if key_at < 0:
            continue
        begin = key_at + len(opening)
        end = data.find(b'"', begin)
        if end < 0 or b"\\" in data[begin:end]:
            return None
        return TextShape(data[:begin], data[end:])
    return None


class PlainEvents:
    """The events of a body in HTTP chunks, in order, each with the place of its end in the response."""

    def __init__(self, pieces: list[bytes], ends: list[int]) -> None:
        self._pieces = (
            pieces  # from the line end after the chunk's size on, to the end of the data
        )
        self.ends = ends

    @classmethod
    def read(cls, raw: bytes, start: int) -> "PlainEvents | None":
        """Find them from `start` on. None: other bytes are between them, or the body isn't whole."""
        pieces = raw[start:].split(_BACK)
        if pieces.pop() != _LAST or not pieces:
            return None
        lengths = [*map(len, pieces)]
        digits = {length: _digits(length) for length in set(lengths)}
        if not all(digits.values()):
            return None
        # of an event with its blank line, before the line end of its HTTP chunk
        ends = [*accumulate(map(len(_BACK).__add__, lengths), initial=start - 2)]
        if len({*digits.values()}) == 1:
            cut = digits[lengths[0]]
            return cls([piece[cut:] for piece in pieces], ends[1:])
        cuts = zip(pieces, map(digits.__getitem__, lengths), strict=True)
        return cls([piece[cut:] for piece, cut in cuts], ends[1:])

    def __len__(self) -> int:
        return len(self._pieces)

    def data(self, number: int) -> bytes | None:
        """Return the data of an event; None: this is none of one line."""
        piece = self._pieces[number]
        data = piece[len(_FRONT) :]
        if not piece.startswith(_FRONT) or b"\n" in data or b"\r" in data:
            return None
        return data

    def texts(self, begin: int, shape: TextShape) -> list[str]:
        """Return the texts of events of this shape, from the one with the number `begin` on."""
        before = _FRONT + shape.before
        after = shape.after
        pieces = self._pieces[begin : self._last_of(begin, before, after) + 1]
        front = len(before)
        back = -len(after)
        escaped = [piece[front:back] for piece in pieces]
        # Byte by byte the same as the events with these texts would be.
        if (after + before).join(escaped) != b"".join(pieces)[front:back]:
            return []
        try:
            texts = _texts(b'["%s"]' % b'","'.join(escaped))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return []
        return texts if len(texts) == len(escaped) else []

    def _last_of(self, begin: int, before: bytes, after: bytes) -> int:
        """Return the number of the last event of a shape, if not too many others follow it."""
        pieces = self._pieces
        for i in range(len(pieces) - 1, max(begin, len(pieces) - _TRAILING) - 1, -1):
            if pieces[i].startswith(before) and pieces[i].endswith(after):
                return i
        return begin - 1
