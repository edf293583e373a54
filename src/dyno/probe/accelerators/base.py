"""The interface of each vendor's module. An accelerator's index is its position in a list."""

from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from dyno.facts.rig import Accelerator
from dyno.probe import sysfs


class Process(NamedTuple):
    pid: int
    name: str
    memory_bytes: int | None = None  # on the accelerator


class Inventory(msgspec.Struct):
    accelerators: list[Accelerator] = []
    topology: list[list[str]] = []
    unknown: list[str] = []  # what is there and doesn't answer


class AcceleratorReading(NamedTuple):
    """One accelerator at one moment. The names are those of a telemetry sample."""

    values: dict[str, float]
    throttle: list[str]  # why clocks are held down


class Meter(Protocol):
    """A vendor's accelerators, open while a load runs. Reading never raises: unknown values are left out."""

    absent: list[str]  # what can't be read and why
    notes: list[str]  # how a figure is meant

    def read(self, full: bool) -> list[AcceleratorReading]:
        """Return a reading of each accelerator. `full`: also what is expensive to read."""
        ...

    def close(self) -> None: ...


class Vendor(Protocol):
    """Never raises for what isn't there."""

    def inventory(self, root: Path) -> Inventory: ...

    def memory_used(self, root: Path) -> list[int | None]: ...

    def processes(self, root: Path) -> list[list[Process]]: ...

    def meter(self, root: Path) -> Meter | None:
        """Return a meter. None: there is nothing to read."""
        ...


_WORDS = {
    "use_percent": "use",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "energy_j": "energy counter",
    "clock_mhz": "clocks",
    "temperature_c": "temperature",
}


def missing(readings: list[AcceleratorReading], but: str = "") -> list[str]:
    """Say which values accelerators don't report; all but the one named `but`."""
    indices: dict[str, list[str]] = {}
    for i, reading in enumerate(readings):
        words = [
            word
            for name, word in _WORDS.items()
            if name not in reading.values and name != but
        ]
        if words:
            indices.setdefault(", ".join(words), []).append(str(i))
    return [
        f"accelerator {', '.join(which)}: {words} not reported"
        for words, which in indices.items()
    ]


def process_name(root: Path, pid: int) -> str:
    """Return a name, not the command line: keys are given in those. Pids of another namespace have no name here."""
    return sysfs.text(root / f"proc/{pid}/comm") or "?"


def numa_node(device: Path) -> int | None:
    node = sysfs.number(device / "numa_node")
    return None if node is None or node < 0 else node


def pcie(generation: int | None, width: int | None, width_max: int | None) -> str | None:
    """Return the highest generation, since it drops at rest, and the width in use."""
    if not width and not width_max:
        return None
    text = f"PCIe {generation or '?'} x{width or width_max}"
    if width and width_max and width < width_max:
        text += f" of x{width_max}"
    return text
