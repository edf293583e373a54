"""The spool: every read's bytes and times, written to disk during the load.

A frame is a header of 32 bytes and its payload. They collect in `Spool.parts` as `pack(…)` followed by the bytes, so
that one join and one write serve some hundred reads.

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dyno import files
from dyno.errors import StoreError

READ_BYTES = 32_768  # of one read, at most
READ, SENT, END, CLOCK, TURN, SINCE = range(6)
_WRITE = struct.Struct("<IBxHq16s")  # exchange, kind, payload length, read_ns, stamp
_FRAME = struct.Struct("<IBxHqqq")
TIMES = struct.Struct("<qq")
NO_STAMP = bytes(16)
pack = _WRITE.pack

# exchange, kind, read_ns, stamp a, stamp b, payload
Frame = tuple[int, int, int, int, int, bytes]


class Spool:
    """Writes frames. `secrets`: header values. A server may send a key back in its complaint; no file may hold it."""

    def __init__(self, path: Path, secrets: Sequence[bytes] = ()) -> None:
        self.path = path
        # not written yet. The wire's hot path appends here itself
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
        self.parts.append(pack(exchange, kind, len(payload), at_ns, stamp))
        if payload:
            self.parts.append(payload)
            self.size += len(payload)

    def flush(self) -> None:
        # The list itself stays: the hot path holds its append method while it reads.
        try:
            self.write(self.parts)
        finally:  # what a full disk took half of must not be written twice
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


def frames(
    path: Path, block: int = 1 << 20, more_to_come: Callable[[], bool] = lambda: False
) -> Iterator[Frame]:
    """Yield the spool's frames in order, to the first that a crash has cut, or left as zeros or as something else.
    `more_to_come`: waits at the end of a spool that is being written; False: that was all."""
    unpack, header = _FRAME.unpack_from, _FRAME.size
    try:
        opened = files.opened(path)
    except OSError as e:
        raise StoreError(f"{path} can't be read: {e.strerror}.") from None
    with opened as file:
        data = b""
        while (more := file.read(block)) or more_to_come():
            data = data + more if data else more
            position, size = 0, len(data)
            while position + header <= size:
                exchange, kind, length, read_ns, a, b = unpack(data, position)
                if kind > SINCE or not (kind or read_ns):  # a READ has its time
                    return
                end = position + header + length
                if end > size:
                    break
                yield exchange, kind, read_ns, a, b, data[position + header : end]
                position = end
            data = data[position:]
