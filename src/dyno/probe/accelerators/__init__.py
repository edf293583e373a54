"""The accelerators of this machine, by vendor."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dyno.probe.accelerators.amd import Amd
from dyno.probe.accelerators.base import (
    AcceleratorReading,
    Inventory,
    Meter,
    Process,
    Vendor,
)
from dyno.probe.accelerators.nvidia import Nvidia

__all__ = [
    "VENDORS", "AcceleratorReading", "Inventory", "Meter", "Process", "Vendor", "inventory", "memory_used", "meters",
    "processes",
]  # fmt: skip

ROOT = Path("/")
VENDORS: tuple[Vendor, ...] = (Nvidia(), Amd())


def inventory(root: Path = ROOT, vendors: Sequence[Vendor] = VENDORS) -> Inventory:
    """Return all accelerators, and one matrix of links: there are none between vendors."""
    parts = [vendor.inventory(root) for vendor in vendors]
    all_ = [a for part in parts for a in part.accelerators]
    linked = [part.topology for part in parts if part.accelerators]
    return Inventory(
        [msgspec.structs.replace(a, index=i) for i, a in enumerate(all_)],
        linked[0] if len(linked) == 1 else [],
        [why for part in parts for why in part.unknown],
    )


def memory_used(
    indices: Iterable[int] | None = None,
    root: Path = ROOT,
    vendors: Sequence[Vendor] = VENDORS,
) -> dict[int, int]:
    """Return the bytes in use now, by index; unknown ones are left out. Cheap enough to ask repeatedly."""
    used = [n for vendor in vendors for n in vendor.memory_used(root)]
    known = {i: n for i, n in enumerate(used) if n is not None}
    if indices is None:
        return known
    wanted = set(indices)
    return {i: n for i, n in known.items() if i in wanted}


def processes(
    root: Path = ROOT, vendors: Sequence[Vendor] = VENDORS
) -> list[list[Process]]:
    """Return those on each accelerator, of all users that the driver shows. Pids are the host's, in containers too."""
    return [on for vendor in vendors for on in vendor.processes(root)]


def meters(root: Path = ROOT, vendors: Sequence[Vendor] = VENDORS) -> list[Meter]:
    """Return meters in the order of the indices; close each."""
    return [meter for vendor in vendors if (meter := vendor.meter(root)) is not None]
