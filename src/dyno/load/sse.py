"""Server-sent events out of a response's bytes, each with the time at which it was complete."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from dyno.load import http1

_PLAIN = re.compile(rb"[0-9a-fA-F]{1,8}\r\ndata: ([^\n]*)\n\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def events(
    raw: bytes, start: int, chunked: bool, ends: list[int], times: list[int], whole: bool = True
) -> list[tuple[int, bytes]]:
    """(arrival, data) of each event in the body that begins at `start`. `ends`: where each read of `raw` ended;
    `times`: when it arrived. An event has arrived with the read that holds its closing blank line. A last one
    without it counts if the response is `whole`, and is half an event if the response was cut."""
    found = _one_in_each_chunk(raw, start, ends, times) if chunked else None
    if found is None:
        spans = http1.dechunk(raw, start) if chunked else [(start, len(raw))]
        found = list(_events_anyhow(raw, spans, ends, times, whole))
    return found


def _one_in_each_chunk(raw: bytes, start: int, ends: list[int], times: list[int]) -> list[tuple[int, bytes]] | None:
    """The usual case, once for each token: every HTTP chunk is one whole event of one line. One regular expression
    finds them all in half the time of a loop; that they fill the body without a gap is checked. Else None."""
    found: list[tuple[int, bytes]] = []
    append = found.append
    position, read = start, 0
    for data in _PLAIN.findall(raw, start):
        length = len(data) + 8
        position += ((length.bit_length() + 3) >> 2) + length + 4  # the size line has no leading zeros
        while ends[read] < position - 2:
            read += 1
        append((times[read], data))
    return found if raw[position:] == b"0\r\n\r\n" else None


def _events_anyhow(
    raw: bytes, spans: list[tuple[int, int]], ends: list[int], times: list[int], whole: bool
) -> Iterator[tuple[int, bytes]]:
    """Events cut and joined at will, any line ends, comments, several data lines, a last event left open."""
    body = b"".join(raw[begin:end] for begin, end in spans)
    piece_ends = list(accumulate(end - begin for begin, end in spans))

    def arrival(position: int) -> int:  # of the body's byte before `position`
        piece = bisect_left(piece_ends, position)
        in_raw = spans[piece][1] - (piece_ends[piece] - position)
        return times[bisect_left(ends, in_raw)]

    data: list[bytes] = []
    position = 0
    for line_end in _LINE_END.finditer(body):
        line, position = body[position : line_end.start()], line_end.end()
        if not line:
            if data:
                yield arrival(position), b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
    if not whole:
        return
    rest = body[position:]
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:  # the server forgot the blank line
        yield times[-1], b"\n".join(data)
