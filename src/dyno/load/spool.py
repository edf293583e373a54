"""The spool: every read's bytes and times, written to disk during the load.

A frame is a header of 32 bytes and its payload. Some hundred frames are written at once, as a block: a header of the
kind BLOCK (read_ns: how many frames; stamp: the bytes of all payloads, 0), the headers of the frames, their payloads.
So a reader gets the headers of a block as one array. Spools of earlier versions have frames without blocks, each
header followed by its payload.

kind   READ   payload: bytes read; read_ns: when; stamp: the kernel's receive time (wall clock s, ns), or zeros
       SENT   read_ns: just before the first byte went out; stamp: (due_ns, how long the connection that was
              opened for it took to open, or 0); payload: the replica's number, in as few bytes as it needs (none
              for the first). A second SENT for an exchange replaces the first: the request was sent again on a
              fresh connection before anything came back
       END    payload: empty, or why the exchange failed on the wire as 'kind: detail'
       CLOCK  stamp: (wall minus monotonic clock in ns, 0); holds for the READs after it
       TURN   stamp: (when the loop had last looked at all sockets, 0); holds for the READs after it. Written where the
              kernel gives no stamps
       SINCE  stamp: (the earliest moment at which the bytes of the exchange's last READ can have arrived, whatever
              kept the loop from running; 0). Written where a read holds more than one HTTP chunk
"""

import contextlib
import fcntl
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dyno import files
from dyno.errors import StoreError

READ_BYTES = 32_768  # of one read, at most
BLOCK_FRAMES = 1 << 20  # of a block, at most
READ, SENT, END, CLOCK, TURN, SINCE, BLOCK = range(7)
_WRITE = struct.Struct("<IBxHq16s")  # exchange, kind, payload length, read_ns, stamp
_FRAME = struct.Struct("<IBxHqqq")
TIMES = struct.Struct("<qq")
HEADER_BYTES = _FRAME.size
# The headers of frames, as columns.
_NAMES = ["exchange", "kind", "length", "read_ns", "a", "b"]
_FORMATS = ["<u4", "u1", "<u2", "<i8", "<i8", "<i8"]
_OFFSETS = [0, 4, 6, 8, 16, 24]
COLUMNS = np.dtype(
    {
        "names": _NAMES,
        "formats": _FORMATS,
        "offsets": _OFFSETS,
        "itemsize": HEADER_BYTES,
    }
)
NO_STAMP = bytes(16)
pack = _WRITE.pack

# exchange, kind, read_ns, stamp a, stamp b, payload
Frame = tuple[int, int, int, int, int, bytes]
Head = tuple[
    int, int, int, int, int, int
]  # exchange, kind, length, read_ns, stamp a, stamp b


class Spool:
    """Writes frames. `secrets`: header values. A server may send a key back in its complaint; no file may hold it."""

    def __init__(self, path: Path, secrets: Sequence[bytes] = ()) -> None:
        self.path = path
        # Headers and payloads that are not written yet. The wire's hot path appends to both itself.
        self.heads: list[bytes] = []
        self.parts: list[bytes] = []
        self.size = 0  # of the payloads among them
        self._secrets = secrets
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            # as long as it is held, the run is under way
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as e:
            raise StoreError(
                f"{path} can't be written: {e.strerror}. Choose another folder with --runs."
            ) from None

    def write(self, parts: list[bytes]) -> None:
        data = b"".join(parts)
        for secret in self._secrets:
            if secret in data:
                # of the same length: frames stay whole
                data = data.replace(secret, b"*" * len(secret))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as e:
            raise StoreError(
                f"{self.path} can no longer be written: {e.strerror}. Results until then are kept."
            ) from None

    def note(
        self,
        kind: int,
        exchange: int,
        at_ns: int,
        stamp: bytes = NO_STAMP,
        payload: bytes = b"",
    ) -> None:
        self.heads.append(pack(exchange, kind, len(payload), at_ns, stamp))
        if payload:
            self.parts.append(payload)
            self.size += len(payload)

    def flush(self) -> None:
        if not self.heads:
            return
        payloads = b"".join(self.parts)
        block = pack(0, BLOCK, 0, len(self.heads), TIMES.pack(len(payloads), 0))
        # The lists themselves stay: the hot path holds their append methods while it reads.
        try:
            self.write([block, *self.heads, payloads])
        finally:  # what a full disk took half of must not be written twice
            self.heads.clear()
            self.parts.clear()
            self.size = 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._fd)  # before anything says that the load is over
        os.close(self._fd)


def responses(path: Path) -> Iterator[bytes]:
    """Yield the bytes of each response, whole: in the order in which they ended, then those that didn't."""
    open_: dict[int, list[bytes]] = {}
    for exchange, kind, _, _, _, payload in frames(path):
        if kind == READ:
            open_.setdefault(exchange, []).append(payload)
        elif kind == END:
            yield b"".join(open_.pop(exchange, ()))
    yield from map(b"".join, open_.values())


class FrameBlock(NamedTuple):
    """Frames that were written at once."""

    heads: np.ndarray  # of COLUMNS
    payloads: bytes  # one after the other
    begin: int = 0  # in the spool


def blocks(path: Path, begin: int = 0) -> Iterator[FrameBlock] | None:
    """Return the blocks of a spool, to the first that a crash has cut; None: it has frames without blocks.
    `begin`: of the first one that is wanted."""
    with _opened(path) as file:
        first = file.read(HEADER_BYTES)
    if len(first) == HEADER_BYTES and _FRAME.unpack(first)[1] != BLOCK:
        return None
    return _blocks(path, begin)


def _blocks(path: Path, begin: int) -> Iterator[FrameBlock]:
    with _opened(path) as file:
        end: int | None = begin
        while end is not None:
            block, end = _block_at(file, end)
            if block is not None:
                yield block


def growing(path: Path, wait: Callable[[], None]) -> Iterator[FrameBlock]:
    """Yield the blocks of a spool that is being written, for ever. `wait`: is called where the next isn't whole yet."""
    while not path.exists():
        wait()
    begin = 0
    with _opened(path) as file:
        while True:
            block, end = _block_at(file, begin)
            if block is None or end is None:
                wait()
            else:
                yield block
                begin = end


def _block_at(file: IO[bytes], begin: int) -> tuple[FrameBlock | None, int | None]:
    """Return what is there of a block, and where the next one begins; None: it isn't whole."""
    file.seek(begin)
    head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None, None
    _, kind, _, count, size, _ = _FRAME.unpack(head)
    if kind != BLOCK or not _possible(count, size):
        return None, None
    packed = file.read(count * HEADER_BYTES)
    if len(packed) < count * HEADER_BYTES:
        return None, None
    heads = np.frombuffer(packed, dtype=COLUMNS)
    payloads = file.read(size)
    present = _present(heads, len(payloads))
    end = begin + HEADER_BYTES * (1 + count) + size
    block = FrameBlock(heads[:present], payloads, begin)
    return block, end if present == count else None


def frames_of(block: FrameBlock) -> Iterator[Frame]:
    """Yield the frames of a block one by one."""
    position = 0
    for exchange, kind, length, read_ns, a, b in block.heads.tolist():
        end = position + length
        yield exchange, kind, read_ns, a, b, block.payloads[position:end]
        position = end


def _possible(count: int, size: int) -> bool:
    """Whether a block can have so many frames and bytes: no payload is longer than a read."""
    return 0 < count <= BLOCK_FRAMES and 0 <= size <= count * 0xFFFF


def _present(heads: np.ndarray, size: int) -> int:
    """Return how many of the frames make sense and have their payloads among so many bytes."""
    kinds = heads["kind"]
    sound = (kinds <= SINCE) & (
        (kinds != READ) | (heads["read_ns"] != 0)
    )  # a READ has its time
    sound &= np.cumsum(heads["length"], dtype=np.int64) <= size
    return len(heads) if sound.all() else int(sound.argmin())


def _opened(path: Path) -> IO[bytes]:
    try:
        return files.opened(path)
    except OSError as e:
        raise StoreError(f"{path} can't be read: {e.strerror}.") from None


def frames(
    path: Path, block: int = 1 << 20, more_to_come: Callable[[], bool] = lambda: False
) -> Iterator[Frame]:
    """Yield the spool's frames in order, to the first that a crash has cut, or left as zeros or as something else.
    `more_to_come`: waits at the end of a spool that is being written; False: that was all."""
    with _opened(path) as file:
        data = b""
        heads: deque[Head] = deque()  # of a block's frames, whose payloads follow
        while (more := file.read(block)) or more_to_come():
            data = data + more if data else more
            read, position = _in_order(data, heads)
            yield from read
            if position is None:
                return
            data = data[position:]


def _in_order(data: bytes, heads: "deque[Head]") -> tuple[list[Frame], int | None]:
    """Return the frames that are whole in these bytes, and where the rest begins; None: nothing there makes sense.

    `heads`: headers whose payloads haven't come; they stay for the next bytes."""
    read: list[Frame] = []
    position = 0
    size = len(data)
    while True:
        while heads:
            exchange, kind, length, read_ns, a, b = heads[0]
            if kind > SINCE or not (kind or read_ns):  # a READ has its time
                return read, None
            end = position + length
            if end > size:
                return read, position
            heads.popleft()
            read.append((exchange, kind, read_ns, a, b, data[position:end]))
            position = end
        end = position + HEADER_BYTES
        if end > size:
            return read, position
        head = _FRAME.unpack_from(data, position)
        if head[1] != BLOCK:
            heads.append(head)
            position = end
            continue
        _, _, _, count, payloads, _ = head
        if not _possible(count, payloads):
            return read, None
        if end + count * HEADER_BYTES > size:
            return read, position
        position = end + count * HEADER_BYTES
        heads.extend(_FRAME.iter_unpack(data[end:position]))
