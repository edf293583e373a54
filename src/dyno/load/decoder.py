"""Decoding in several processes, `python -m dyno.load.decoder`, and the side that starts them.

Each process reads the whole spool and decodes a share of its exchanges. It reports a line for each record, with the
record's place among all; `Decoders` yields them in order. A process that can't be started or that ends too early costs
nothing but time: the rest of its share is decoded here.
"""

import contextlib
import heapq
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from dyno import child
from dyno.child import Child
from dyno.facts.record import Record
from dyno.load import decode
from dyno.load.decode import Lengths
from dyno.load.exchanges import ExchangeShare
from dyno.load.protocols import PROTOCOLS, WireProtocol
from dyno.load.spool import blocks

# of a spool: below that, one process has decoded it before others have started
SEVERAL_FROM_BYTES = 16 << 20
_WAIT_S = 1.0


class PlannedTokens(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int
    output_tokens: int


class DecodeTask(msgspec.Struct, frozen=True):
    spool: str
    lengths: list[PlannedTokens]
    backend: str  # of PROTOCOLS
    zero_ns: int | None
    rest: int  # of the share
    parts: int

    def run(self) -> Iterator[tuple[int, Record]]:
        share = ExchangeShare(self.rest, self.parts)
        protocol = PROTOCOLS[self.backend]
        return decode.numbered(
            Path(self.spool), self.lengths, protocol, self.zero_ns, share
        )


class Decoded(msgspec.Struct, frozen=True, array_like=True):
    """A line that a process writes. The last has no record."""

    place: int
    record: Record | None = None


_decode = msgspec.json.Decoder(Decoded).decode


def main() -> None:
    task = child.task(DecodeTask)
    count = 0
    for place, record in task.run():
        child.report(Decoded(place, record))
        count += 1
    child.report(Decoded(count))


# ---- whoever starts them ----


class Decoders:
    """The processes that decode a spool. A context: when it is left, they have ended."""

    def __init__(
        self,
        spool: Path,
        lengths: Sequence[Lengths],
        protocol: WireProtocol,
        zero_ns: int | None,
        processes: int,
    ) -> None:
        tokens = [PlannedTokens(n.prompt_tokens, n.output_tokens) for n in lengths]
        backend = next(name for name, known in PROTOCOLS.items() if known is protocol)
        self._tasks = [
            DecodeTask(str(spool), tokens, backend, zero_ns, rest, processes)
            for rest in range(processes)
        ]
        self._running = contextlib.ExitStack()
        self._children: list[Child | None] = []

    def __enter__(self) -> "Decoders":
        for task in self._tasks:
            self._children.append(self._start(task))
        return self

    def __exit__(self, *_: Any) -> None:
        self._running.close()

    def records(self) -> Iterator[Record]:
        """Yield the records in the order in which their exchanges ended."""
        shares = map(_share, self._tasks, self._children)
        for _, record in heapq.merge(*shares, key=itemgetter(0)):
            yield record

    def _start(self, task: DecodeTask) -> Child | None:
        try:
            process = self._running.enter_context(Child("dyno.load.decoder", end_s=0))
        except OSError:
            return None
        process.give(task)
        return process


def _share(task: DecodeTask, process: Child | None) -> Iterator[tuple[int, Record]]:
    count = 0
    while process is not None:
        for line in process.hear(_WAIT_S):
            decoded = _read_answer(line)
            if decoded is None:  # half a line: it was killed
                break
            if decoded.record is None:
                return
            count += 1
            yield decoded.place, decoded.record
        if process.gone:
            break
    yield from islice(task.run(), count, None)


def _read_answer(line: bytes) -> Decoded | None:
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None


def worthwhile(spool: Path) -> bool:
    """Whether other processes decode a spool sooner than this one does."""
    try:
        large = spool.stat().st_size >= SEVERAL_FROM_BYTES
    except OSError:
        return False
    return large and blocks(spool) is not None


if __name__ == "__main__":
    main()
    os._exit(0)
