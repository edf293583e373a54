"""The rig, looked at: machine, state, accelerators, and who else is on them."""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.rig import Accelerator, Rig
from dyno.http import Url
from dyno.probe import accelerators, environment, host, sysfs
from dyno.probe.accelerators import Process, Source
from dyno.probe.accelerators.base import process_name
from dyno.units import human_bytes

ROOT = Path("/")


def look(
    urls: Iterable[str] = (),
    *,
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    sources: Sequence[Source] = accelerators.SOURCES,
) -> Rig:
    """`urls`: where the engine listens, so that its own processes can be told from others."""
    found = accelerators.look(root, sources)
    on = accelerators.all_processes(root, sources) if found.accelerators else []
    return Rig(
        system=host.system(root),
        kernel=host.kernel(root),
        machine=platform.machine(),
        cpu=host.cpu(root),
        cores=host.cores(root),
        sockets=host.sockets(root),
        numa_nodes=host.numa_nodes(root),
        python=platform.python_version(),
        load_average_1min=host.load_average_1min(root),
        accelerators=_shared(found.accelerators, on, urls, root),
        topology=found.topology,
        state=host.state(root),
        environment=environment.kept(environ),
        container=host.container(root, environ),
        memory_pressure_percent=host.memory_pressure_percent(root),
        unknown=found.unknown,
        **host.memory(root),
    )


def _shared(found: list[Accelerator], on: list[list[Process]], urls: Iterable[str], root: Path) -> list[Accelerator]:
    pids = {p.pid for processes in on for p in processes}
    roots = {os.getpid(), *_serving(urls, root)} if pids else set()
    own = {pid for pid in pids if roots & {pid, *_above(pid, root)}}

    def seen(a: Accelerator, processes: list[Process]) -> Accelerator:
        others = [_told(p) for p in processes if p.pid not in own]
        # Where the engine is found nowhere, it may run on the processor, or the pids are those outside a container.
        engine = any(p.pid in own for p in processes) if own else None
        return msgspec.structs.replace(a, processes=others, engine=engine)

    return [seen(a, on[a.index] if a.index < len(on) else []) for a in found]


def _told(process: Process) -> str:
    held = "" if process.memory_bytes is None else f", {human_bytes(process.memory_bytes)}"
    return f"{process.name} (pid {process.pid}{held})"


def _above(pid: int, root: Path) -> Iterator[int]:
    """Its parent, the parent's parent, …"""
    for _ in range(64):
        # The name in brackets may itself have brackets and spaces.
        words = (sysfs.text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(words) < 2 or not words[1].isdecimal() or int(words[1]) <= 1:
            return
        pid = int(words[1])
        yield pid


def _serving(urls: Iterable[str], root: Path) -> set[int]:
    """The processes that listen at these addresses, if they are here and may be seen. With TGI the launcher above."""
    ports = {url.port for url in map(Url, urls) if url.local}
    found = _listening(ports) if ports and root == ROOT else set()
    for pid in list(found):
        name = process_name(root, pid)
        for parent in _above(pid, root):
            if process_name(root, parent) != name:
                break
            found.add(parent)
    return found


def _listening(ports: set[int]) -> set[int]:
    import psutil

    try:
        connections: list[Any] = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # macOS wants root for that
        return set()
    return {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr.port in ports and c.pid}
