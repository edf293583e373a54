"""What a source of facts about accelerators gives. An accelerator's place in a list is its index there."""

from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from dyno.facts.rig import Accelerator
from dyno.probe import sysfs


class Process(NamedTuple):
    pid: int
    name: str
    memory_bytes: int | None = None  # that it holds on the accelerator


class Found(msgspec.Struct):
    accelerators: list[Accelerator] = []
    topology: list[list[str]] = []
    unknown: list[str] = []  # what was there and didn't answer


class Reading(NamedTuple):
    """Of one accelerator, at one moment. The names are those of a telemetry sample."""

    values: dict[str, float]
    throttle: list[str]  # why clocks are held down


class Meter(Protocol):
    """A source kept open while a load runs. A reading never raises: what isn't told is left out."""

    absent: list[str]  # what can't be read and why
    notes: list[str]  # how a figure is meant

    def read(self, full: bool) -> list[Reading]:
        """One for each accelerator, empty where there is nothing new. `full`: also what is dear to read."""
        ...

    def close(self) -> None: ...


class Source(Protocol):
    """Reads what is there; never raises for what isn't."""

    def look(self, root: Path) -> Found: ...

    def memory_used(self, root: Path) -> list[int | None]: ...

    def processes(self, root: Path) -> list[list[Process]]: ...

    def meter(self, root: Path) -> Meter | None:
        """None where there is nothing to read."""
        ...


def missing(readings: list[Reading], wanted: dict[str, str]) -> list[str]:
    """What accelerators don't tell, in words: `wanted` has a word for each name."""
    which: dict[str, list[str]] = {}
    for i, reading in enumerate(readings):
        if not_told := ", ".join(word for name, word in wanted.items() if name not in reading.values):
            which.setdefault(not_told, []).append(str(i))
    return [f"accelerator {', '.join(indices)}: {what} not told" for what, indices in which.items()]


def process_name(root: Path, pid: int) -> str:
    """Not the command line: keys are given in those. Pids of another namespace have no name here."""
    return sysfs.text(root / f"proc/{pid}/comm") or "?"


def pci_device(root: Path, bus: str) -> Path:
    return root / "sys/bus/pci/devices" / bus


def numa_node(root: Path, bus: str | None) -> int | None:
    node = sysfs.number(pci_device(root, bus) / "numa_node") if bus else None
    return None if node is None or node < 0 else node


def pcie(generation: int | None, width: int | None, width_max: int | None) -> str | None:
    """The highest generation, since it drops at rest, and the width it runs at."""
    if not width and not width_max:
        return None
    narrow = f" of x{width_max}" if width and width_max and width < width_max else ""
    return f"PCIe {generation or '?'} x{width or width_max}{narrow}"
