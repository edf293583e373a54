"""The amdgpu driver's table of metrics (`gpu_metrics`): energy, and what holds clocks down.

A binary table that AMD's own tools read too. Its layout is told by a format and a content revision in its header
(the kernel's kgd_pp_interface.h); those whose units are written there are read, others are left out. Little-endian.
"""

import struct
from typing import NamedTuple

from dyno.probe import sysfs

ENERGY_J = 2**-16  # 15.259 µJ a count, of the tables for Instinct from 1.4 on
CYCLES = 0.1  # of those since the reading before: a limit that was at work for less is let pass


class Layout(NamedTuple):
    energy: int | None = None  # where it lies
    bits: int | None = None  # limits at work now, 64 bits that mean the same for all chips
    residency: int | None = None  # six counts of cycles: all, and those under each limit


LAYOUTS = {
    (1, 3): Layout(bits=112),
    (1, 4): Layout(energy=24),
    (1, 5): Layout(energy=88),
    (1, 6): Layout(energy=16, residency=32),
    (1, 7): Layout(energy=24, residency=40),
    (1, 8): Layout(energy=24, residency=40),
}
BITS = ((0, 16, "power cap"), (16, 32, "current"), (32, 56, "heat"))  # first, behind the last, in words
LIMITS = ("prochot", "power cap", "heat (socket)", "heat (voltage regulator)", "heat (memory)")


class Table:
    def __init__(self, file: sysfs.Kept) -> None:
        self._file = file
        data = file.bytes(4)
        self._layout = LAYOUTS.get((data[2], data[3]) if len(data) == 4 else (0, 0), Layout())
        self._counts: tuple[int, ...] = ()

    @property
    def tells_throttling(self) -> bool:
        return self._layout.bits is not None or self._layout.residency is not None

    def read(self) -> tuple[float | None, list[str]]:
        """Joules since the driver was loaded, and what holds clocks down."""
        data, layout = self._file.bytes(), self._layout
        energy = _at("<Q", data, layout.energy)
        joules = energy[0] * ENERGY_J if energy and energy[0] not in (0, 2**64 - 1) else None  # not filled in
        bits = _at("<Q", data, layout.bits)
        if bits and bits[0] != 2**64 - 1:
            return joules, [word for low, high, word in BITS if bits[0] >> low & (1 << high - low) - 1]
        return joules, self._limits(_at("<6I", data, layout.residency))

    def _limits(self, counts: tuple[int, ...]) -> list[str]:
        before, self._counts = self._counts, counts
        if not counts or not before:
            return []
        all_, *under = ((now - then) % 2**32 for now, then in zip(counts, before, strict=True))
        return [word for word, n in zip(LIMITS, under, strict=True) if all_ and n > CYCLES * all_]


def _at(shape: str, data: bytes, offset: int | None) -> tuple[int, ...]:
    if offset is None or len(data) < offset + struct.calcsize(shape):
        return ()
    return struct.unpack_from(shape, data, offset)
