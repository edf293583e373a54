"""Server-sent events out of a response's bytes, each with the time at which it was complete."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

_LINE_END = re.compile(rb"\r\n|\n|\r")


def events(
    raw: bytes, spans: list[tuple[int, int]], ends: list[int], times: list[int], whole: bool = True
) -> list[tuple[int, bytes]]:
    """(arrival, data) of each event. `spans`: where the body's pieces lie in `raw`; `ends`: where each read of
    `raw` ended; `times`: when it arrived. An event has arrived with the read that holds its closing blank line.
    A last one without it counts if the response is `whole`, and is half an event if the response was cut."""
    found: list[tuple[int, bytes]] = []
    append = found.append
    read = 0
    for begin, end in spans:
        piece = raw[begin:end]
        # The usual case, once for each token: a piece is one whole event of one line.
        if piece.startswith(b"data: ") and piece.find(b"\n") == end - begin - 2 and piece.endswith(b"\n\n"):
            while ends[read] < end:
                read += 1
            append((times[read], piece[6:-2]))
        else:
            return list(_events_anyhow(raw, spans, ends, times, whole))
    return found


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
