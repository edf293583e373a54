"""HTTP/1.1 as far as a benchmark client needs it: build a request, read a head, know where a body ends."""

import re
from functools import lru_cache

import msgspec

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
# Chunk headers met before, and their sizes: a look-up costs a quarter of reading the number.
SIZES: dict[bytes, int] = {}
# What a read of this length began with that was one whole chunk: of most reads, no more has to be looked at.
BEGINS: dict[int, bytes] = {}
_HEADER = re.compile(rb"\r\n([!-9;-~]+):[ \t]*([^\r\n]*)")
_HEX = re.compile(rb"[0-9a-fA-F]{1,15}")
HEAD_MAX = 65_536
_SIZES_MAX = 10_000
_LENGTH_DIGITS = 15


class Head(msgspec.Struct, frozen=True):
    status: int
    length: int  # of the head itself, blank line included
    content_type: str
    encoding: str  # of the content; '': none
    content_length: int | None
    chunked: bool
    keep_alive: bool


def front(method: str, path: str, host: str) -> bytes:
    """Return the start of a request: the part in which requests to two copies of a server differ."""
    return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n".encode("latin-1")


def head_before_length(headers: dict[str, str]) -> bytes:
    """Return the rest of a request's head, to the value of its content length, which is the last."""
    return "\r\n".join(
        [*(f"{k}: {v}" for k, v in headers.items()), "content-length: "]
    ).encode("latin-1")


def payload(head: bytes, body: bytes, last: bytes = b"") -> bytes:
    """Return the rest of a request: its head, to the value of its content length, and its body. `last`: a header line
    of this request alone."""
    return b"".join((head, b"%d\r\n%b\r\n" % (len(body), last), body))


def head(raw: bytes) -> Head | None:
    """Return the response's head, or None while it is incomplete. ValueError if it isn't an HTTP response, or one whose
    end can't be known."""
    begin = 0
    while True:
        end = raw.find(b"\r\n\r\n", begin)
        if (end if end >= 0 else len(raw)) > HEAD_MAX:
            raise ValueError(f"a head of more than {HEAD_MAX} bytes")
        if end < 0:
            if not b"HTTP/1.".startswith(raw[begin : begin + 7]):
                raise ValueError("not an HTTP response")
            return None
        status = _STATUS.match(raw, begin)
        if status is None:
            raise ValueError("not an HTTP response")
        if not status[1].startswith(b"1"):
            break
        if status[1] == b"101":
            raise ValueError("the server switched to another protocol (101)")
        begin = end + 4  # 100 Continue and its like come before the answer
    read = _read(raw[begin : end + 4])
    return msgspec.structs.replace(read, length=end + 4) if begin else read


@lru_cache(256)  # within a second, the heads of most servers are alike
def _read(raw: bytes) -> Head:
    fields: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(raw, 0, len(raw) - 2):
        name, value = name.lower(), value.strip()
        if name == b"content-length" and fields.get(name, value) != value:
            raise ValueError("two content lengths that differ")
        fields[name] = value
    length = fields.get(b"content-length")
    coding = fields.get(b"transfer-encoding", b"").lower()
    if length is not None and not (length.isdigit() and len(length) <= _LENGTH_DIGITS):
        raise ValueError("a content length that is not a number")
    if coding not in (b"", b"identity", b"chunked"):
        raise ValueError(
            f"a transfer encoding that dyno doesn't read: {coding[:40].decode('latin-1')}"
        )
    if length is not None and coding == b"chunked":
        raise ValueError("a content length on an answer in chunks")
    connection = fields.get(b"connection", b"").lower()
    encoding = fields.get(b"content-encoding", b"").lower()
    return Head(
        status=int(raw[9:12]),
        length=len(raw),
        content_type=fields.get(b"content-type", b"").decode("latin-1"),
        encoding="" if encoding == b"identity" else encoding.decode("latin-1"),
        content_length=None if length is None else int(length),
        chunked=coding == b"chunked",
        keep_alive=connection != b"close"
        and not (raw.startswith(b"HTTP/1.0") and connection != b"keep-alive"),
    )


def chunk_size(header: bytes) -> int:
    """Return a chunk's size; 0 for the last. ValueError if it is not a number."""
    size = SIZES.get(header)
    if size is None:
        digits = header.partition(b";")[0].strip()
        if not _HEX.fullmatch(digits):
            raise ValueError("a chunk size that is not a number")
        size = int(digits, 16)
        if size and len(header) <= 8 and len(SIZES) < _SIZES_MAX:
            SIZES[header] = size
    return size


# what Chunked makes of a read: one chunk or a part of it, more, the body's end
ONE, SEVERAL, OVER = range(3)


class Chunked:
    """Follows chunked framing read by read. The wire must know: has the body ended, and did chunks come together?"""

    __slots__ = ("_carry", "_last", "excess", "left")

    def __init__(self) -> None:
        self.left = 0  # bytes of the current chunk and its line end still to come
        self.excess = b""  # what came after the body's end, with it
        self._carry = b""  # a chunk header or trailer that was cut
        self._last = False  # the zero chunk was seen: trailers follow

    @property
    def between(self) -> bool:
        """Return whether the next byte begins a chunk."""
        return not (self.left or self._carry or self._last)

    def take(self, data: bytes) -> int:
        """Take one read's bytes: ONE, SEVERAL or OVER. ValueError where the framing is broken."""
        left = self.left
        size = len(data)
        if not left and not self._carry:
            # The usual case, once for each token: the read is one whole chunk.
            line_end = data.find(b"\r\n", 0, 16)
            chunk = SIZES.get(data[:line_end]) if line_end > 0 else None
            if chunk is not None and line_end + chunk + 4 == size:
                BEGINS[size] = data[: line_end + 2]
                return ONE
        elif left >= size:
            self.left = left - size
            return ONE
        position = left
        if self._carry:
            data = self._carry + data[position:]
            self._carry = b""
            position = 0
            size = len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._carry = data[position:]
                self.left = 0
                if len(self._carry) > 4096:
                    raise ValueError("a chunk header that doesn't end")
                return SEVERAL
            if self._last:
                if line_end == position:
                    self.excess = data[position + 2 :]
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
    """Return the spans of each whole or cut chunk's payload in `raw`, from `start` on. ValueError where a chunk is
    longer than it says."""
    spans: list[tuple[int, int]] = []
    append = spans.append
    find = raw.find
    size = len(raw)
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
        append((begin, min(begin + chunk, size)))
        if not b"\r\n".startswith(raw[begin + chunk : position]):
            raise ValueError("a chunk longer than its size")
    return spans


def body_spans(raw: bytes, head: Head) -> list[tuple[int, int]]:
    """Return the spans of the body in `raw`, in order."""
    if head.chunked:
        return dechunk(raw, head.length)
    size = (
        len(raw)
        if head.content_length is None
        else min(head.length + head.content_length, len(raw))
    )
    return [(head.length, size)]


def complete(raw: bytes, head: Head) -> bool:
    """Return whether the body has come to its end. False without a length or chunks: the connection's end shows it."""
    if head.chunked:
        return Chunked().take(raw[head.length :]) == OVER
    return head.content_length is not None and len(raw) >= head.length + head.content_length


def body(raw: bytes, head: Head) -> bytes:
    return b"".join(raw[begin:end] for begin, end in body_spans(raw, head))
