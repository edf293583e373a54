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
_WINDOW_BYTES = 1 << 23
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


class FrameWindow(NamedTuple):
    """The frames of some blocks."""

    heads: np.ndarray  # of COLUMNS
    data: bytes
    ends: np.ndarray  # of their payloads, in `data`
    begin: int  # in the spool


def in_blocks(path: Path) -> bool:
    """Return whether a spool has blocks, or is empty. Those of earlier versions have frames without."""
    with _opened(path) as file:
        first = file.read(HEADER_BYTES)
    return len(first) < HEADER_BYTES or _FRAME.unpack(first)[1] == BLOCK


def windows(
    path: Path, begin: int = 0, wait: Callable[[], None] | None = None
) -> Iterator[FrameWindow]:
    """Yield the frames of a spool in blocks, to the first that a crash has cut. `begin`: of the first block wanted.
    `wait`: the spool is being written; it is called where the next window isn't there yet, and this never ends."""
    while wait and not path.exists():
        wait()
    asked = _WINDOW_BYTES
    with _opened(path) as file:
        while True:
            while wait and os.fstat(file.fileno()).st_size < begin + asked:
                wait()
            file.seek(begin)
            data = file.read(asked)
            window, length = _window(data, begin, is_last=len(data) < asked)
            if window is not None:
                yield window
            if length is None:
                return
            asked = _WINDOW_BYTES if length else 2 * asked  # a block may be longer
            begin += length


class _Block(NamedTuple):
    """Where a block is in some data."""

    heads: np.ndarray
    payloads: int  # where they begin
    end: int


def _window(
    data: bytes, begin: int, is_last: bool
) -> tuple[FrameWindow | None, int | None]:
    """Return the frames of the whole blocks at the beginning of the data, and the length of these; None: nothing
    follows them. `is_last`: there is no more data, and half a block counts."""
    each: list[_Block] = []
    position = 0
    over = is_last
    while position + HEADER_BYTES <= len(data):
        _, kind, _, count, size, _ = _FRAME.unpack_from(data, position)
        payloads = position + HEADER_BYTES * (1 + count)
        if kind != BLOCK or not _possible(count, size):
            over = True
            break
        if payloads > len(data) or (payloads + size > len(data) and not is_last):
            break
        heads = np.frombuffer(data, COLUMNS, count, position + HEADER_BYTES)
        position = payloads + size
        each.append(_Block(heads, payloads, min(position, len(data))))
    if not each:
        return None, None if over else 0
    window, whole = _joined(each, data, begin)
    return window, position if whole and not over else None


def _joined(each: list[_Block], data: bytes, begin: int) -> tuple[FrameWindow, bool]:
    """Return the frames of blocks, up to the first that makes no sense, and whether that is all."""
    heads = np.concatenate([block.heads for block in each])
    counts = [len(block.heads) for block in each]
    ends = np.cumsum(heads["length"], dtype=np.int64)
    before = ends[np.cumsum(counts) - 1]
    shifts = np.array([block.payloads for block in each])
    shifts[1:] -= before[:-1]
    ends += np.repeat(shifts, counts)
    kinds = heads["kind"]
    sound = ends <= np.repeat([block.end for block in each], counts)
    # a READ has its time
    sound &= (kinds <= SINCE) & ((kinds != READ) | (heads["read_ns"] != 0))
    present = len(heads) if sound.all() else int(sound.argmin())
    window = FrameWindow(heads[:present], data, ends[:present], begin)
    return window, present == len(heads)


def frames_of(window: FrameWindow) -> Iterator[Frame]:
    """Yield the frames of a window one by one."""
    for (exchange, kind, length, read_ns, a, b), end in zip(
        window.heads.tolist(), window.ends.tolist(), strict=True
    ):
        yield exchange, kind, read_ns, a, b, window.data[end - length : end]


def _possible(count: int, size: int) -> bool:
    """Return whether a block can have so many frames and bytes: no payload is longer than a read."""
    return 0 < count <= BLOCK_FRAMES and 0 <= size <= count * 0xFFFF


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
