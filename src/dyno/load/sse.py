"""Server-sent events out of a response's bytes, each with the place where it ends."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from dyno.load import http1

_PLAIN = re.compile(rb"[0-9a-fA-F]{1,8}\r\ndata: ([^\n]*)\n\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def events(raw: bytes, head: http1.Head, whole: bool = True) -> list[tuple[int, bytes]]:
    """(end, data) of each event in the response's body; `raw[:end]` holds its closing blank line. A last event without
    that line counts if the response is `whole`, and is half an event if the response was cut."""
    found = _one_in_each_chunk(raw, head.length) if head.chunked else None
    if found is None:
        found = list(_events_anyhow(raw, http1.body_spans(raw, head), whole))
    return found


def _one_in_each_chunk(raw: bytes, start: int) -> list[tuple[int, bytes]] | None:
    """The usual case, once for each token: every HTTP chunk is one whole event of one line. One regular expression
    finds them all in half the time of a loop; that they fill the body without a gap is checked. Else None."""
    found: list[tuple[int, bytes]] = []
    append = found.append
    position = start
    for data in _PLAIN.findall(raw, start):
        length = len(data) + 8
        position += ((length.bit_length() + 3) >> 2) + length + 4  # the size line has no leading zeros
        append((position - 2, data))
    return found if raw[position:] == b"0\r\n\r\n" else None


def _events_anyhow(raw: bytes, spans: list[tuple[int, int]], whole: bool) -> Iterator[tuple[int, bytes]]:
    """Events cut and joined at will, any line ends, comments, several data lines, a last event left open."""
    body = b"".join(raw[begin:end] for begin, end in spans)
    piece_ends = list(accumulate(end - begin for begin, end in spans))

    def in_raw(position: int) -> int:
        piece = bisect_left(piece_ends, position)
        return spans[piece][1] - (piece_ends[piece] - position)

    data: list[bytes] = []
    position = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    for line_end in _LINE_END.finditer(body):
        line, position = body[position : line_end.start()], line_end.end()
        if not line:
            if data:
                yield in_raw(position), b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
    if not whole:
        return
    rest = body[position:]
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:  # the server forgot the blank line
        yield len(raw), b"\n".join(data)
