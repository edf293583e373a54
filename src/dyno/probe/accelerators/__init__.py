"""The accelerators of this machine, each vendor by a source of its own."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dyno.probe.accelerators.amd import Amd
from dyno.probe.accelerators.base import Found, Meter, Process, Reading, Source
from dyno.probe.accelerators.nvidia import Nvidia

__all__ = [
    "SOURCES", "Found", "Meter", "Process", "Reading", "Source", "all_processes", "look", "memory_used",
    "meters", "processes",
]  # fmt: skip

ROOT = Path("/")
SOURCES: tuple[Source, ...] = (Nvidia(), Amd())


def look(root: Path = ROOT, sources: Sequence[Source] = SOURCES) -> Found:
    """One matrix of links: between vendors there are none to speak of."""
    parts = [source.look(root) for source in sources]
    found = Found([], [], [why for part in parts for why in part.unknown])
    for part in parts:
        for a in part.accelerators:
            found.accelerators.append(msgspec.structs.replace(a, index=len(found.accelerators)))
    with_links = [part for part in parts if part.accelerators]
    if len(with_links) == 1:
        found.topology = with_links[0].topology
    return found


def memory_used(
    indices: Iterable[int] | None = None, root: Path = ROOT, sources: Sequence[Source] = SOURCES
) -> dict[int, int]:
    """Bytes in use now, by index; those that don't tell are left out. Light: fit for asking again and again."""
    wanted = None if indices is None else set(indices)
    used = [n for source in sources for n in source.memory_used(root)]
    return {i: n for i, n in enumerate(used) if n is not None and (wanted is None or i in wanted)}


def processes(index: int, root: Path = ROOT, sources: Sequence[Source] = SOURCES) -> list[Process]:
    """Of all users, as far as the driver tells; pids are the host's, also inside a container."""
    found = all_processes(root, sources)
    return found[index] if index < len(found) else []


def all_processes(root: Path = ROOT, sources: Sequence[Source] = SOURCES) -> list[list[Process]]:
    return [on for source in sources for on in source.processes(root)]


def meters(root: Path = ROOT, sources: Sequence[Source] = SOURCES) -> list[Meter]:
    """In the order of the indices; each is to be closed."""
    return [meter for source in sources if (meter := source.meter(root)) is not None]
