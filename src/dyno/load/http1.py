"""HTTP/1.1 as far as a benchmark client needs it: build a request, read a head, know where a body ends."""

import re

import msgspec

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
# Chunk headers met before, and their sizes: a look-up costs a quarter of reading the number.
SIZES: dict[bytes, int] = {}
_HEADER = re.compile(rb"\r\n([!-9;-~]+):[ \t]*([^\r\n]*)")


class Head(msgspec.Struct):
    status: int
    length: int  # of the head itself, blank line included
    content_type: str
    content_length: int | None
    chunked: bool
    keep_alive: bool


def front(method: str, path: str, host: str) -> bytes:
    """What a request begins with: the part in which the requests to two copies of a server differ."""
    return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n".encode("latin-1")


def payload(headers: dict[str, str], body: bytes) -> bytes:
    """All the rest of it."""
    lines = [*(f"{k}: {v}" for k, v in headers.items()), f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def head(raw: bytes) -> Head | None:
    """The response's head, or None while it is incomplete. ValueError if it is no HTTP response."""
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        if not b"HTTP/1.".startswith(raw[:7]) or len(raw) > 65536:
            raise ValueError("not an HTTP response")
        return None
    status = _STATUS.match(raw)
    if status is None:
        raise ValueError("not an HTTP response")
    if status[1].startswith(b"1"):  # 100 Continue and its like come before the answer
        final = head(raw[end + 4 :]) if len(raw) > end + 4 else None
        if final is not None:
            final.length += end + 4
        return final
    fields = {k.lower(): v.strip() for k, v in _HEADER.findall(raw, 0, end + 2)}
    length = fields.get(b"content-length", b"")
    connection = fields.get(b"connection", b"").lower()
    return Head(
        status=int(status[1]),
        length=end + 4,
        content_type=fields.get(b"content-type", b"").decode("latin-1"),
        content_length=int(length) if length.isdigit() else None,
        chunked=b"chunked" in fields.get(b"transfer-encoding", b"").lower(),
        keep_alive=connection != b"close" and not (raw.startswith(b"HTTP/1.0") and connection != b"keep-alive"),
    )


def chunk_size(header: bytes) -> int:
    """0 for the last chunk. ValueError if it is no number."""
    size = SIZES.get(header)
    if size is None:
        size = int(header.partition(b";")[0], 16)
        if size < 0:
            raise ValueError("a chunk of negative size")
        if size and len(SIZES) < 10_000:
            SIZES[header] = size
    return size


ONE, SEVERAL, OVER = range(3)  # what Chunked makes of a read: one chunk or a part of it, more, the body's end


class Chunked:
    """Follows chunked framing read by read. The wire must know: has the body ended, and did chunks come together?"""

    __slots__ = ("_carry", "_last", "left")

    def __init__(self) -> None:
        self.left = 0  # bytes of the current chunk and its line end still to come
        self._carry = b""  # a chunk header or trailer that was cut
        self._last = False  # the zero chunk was seen: trailers follow

    def take(self, data: bytes) -> int:
        """Takes one read's bytes: ONE, SEVERAL or OVER. ValueError where the framing is broken."""
        left, size = self.left, len(data)
        if not left and not self._carry:
            # The usual case, once for each token: the read is one whole chunk.
            line_end = data.find(b"\r\n", 0, 16)
            chunk = SIZES.get(data[:line_end]) if line_end > 0 else None
            if chunk is not None and line_end + chunk + 4 == size:
                return ONE
        elif left >= size:
            self.left = left - size
            return ONE
        position = left
        if self._carry:
            data = self._carry + data[position:]
            self._carry, position, size = b"", 0, len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._carry, self.left = data[position:], 0
                if len(self._carry) > 4096:
                    raise ValueError("a chunk header that doesn't end")
                return SEVERAL
            if self._last:
                if line_end == position:
                    return OVER
                position = line_end + 2
                continue
            chunk = chunk_size(data[position:line_end])
            if chunk:
                position = line_end + chunk + 4
            else:
                self._last = True
                position = line_end + 2
        self.left = position - size
        return SEVERAL


def dechunk(raw: bytes, start: int) -> list[tuple[int, int]]:
    """Where the payload of each whole or cut chunk lies in `raw`, from `start` on."""
    spans: list[tuple[int, int]] = []
    append, find, size = spans.append, raw.find, len(raw)
    position = start
    while position < size:
        line_end = find(b"\r\n", position)
        if line_end < 0:
            break
        chunk = chunk_size(raw[position:line_end])
        if not chunk:
            break
        begin = line_end + 2
        position = begin + chunk + 2
        append((begin, begin + chunk if position <= size else min(begin + chunk, size)))
    return spans


def body(raw: bytes, head: Head) -> bytes:
    if not head.chunked:
        return raw[head.length :]
    return b"".join(raw[begin:end] for begin, end in dechunk(raw, head.length))
