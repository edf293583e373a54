"""The rig: machine, state, accelerators, and other processes on them."""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.rig import Accelerator, Rig
from dyno.http import Url
from dyno.numbers import human_bytes
from dyno.probe import accelerators, details, host, software, sysfs
from dyno.probe.accelerators import Process, Vendor
from dyno.probe.accelerators.base import process_name

ROOT = Path("/")


def look(
    urls: Iterable[str] = (),
    *,
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    vendors: Sequence[Vendor] = accelerators.VENDORS,
    record: bool = False,
) -> Rig:
    """Describe this machine. `urls`: where the engine listens, to distinguish its processes from others. `record`: with
    details, for which compilers are asked."""
    inventory = accelerators.look(root, vendors)
    processes = accelerators.processes(root, vendors) if inventory.accelerators else []
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
        accelerators=_shared(inventory.accelerators, processes, urls, root),
        topology=inventory.topology,
        state=host.state(root),
        environment=software.variables(environ),
        container=host.container(root, environ),
        memory_pressure_percent=host.memory_pressure_percent(root),
        unknown=inventory.unknown,
        details=details.look(root, environ) if record else {},
        **host.memory(root),
    )


def _shared(
    devices: list[Accelerator],
    processes: list[list[Process]],
    urls: Iterable[str],
    root: Path,
) -> list[Accelerator]:
    """Add the processes of others on each, and whether the engine's are there too."""
    pids = {p.pid for on in processes for p in on}
    roots = {os.getpid(), *_serving(urls, root)} if pids else set()
    own = {pid for pid in pids if roots & {pid, *_above(pid, root)}}
    out = []
    for device in devices:
        on = processes[device.index] if device.index < len(processes) else []
        others = [_describe(p) for p in on if p.pid not in own]
        # Where the engine is on none, it may run on the processor, or the pids are those outside a container.
        engine = any(p.pid in own for p in on) if own else None
        out.append(msgspec.structs.replace(device, processes=others, engine=engine))
    return out


def _describe(process: Process) -> str:
    held = "" if process.memory_bytes is None else f", {human_bytes(process.memory_bytes)}"
    return f"{process.name} (pid {process.pid}{held})"


def _above(pid: int, root: Path) -> Iterator[int]:
    """Yield its parent, the parent's parent, …"""
    for _ in range(64):
        # The name in brackets may itself have brackets and spaces.
        words = (sysfs.text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(words) < 2 or not words[1].isdecimal() or int(words[1]) <= 1:
            return
        pid = int(words[1])
        yield pid


def _serving(urls: Iterable[str], root: Path) -> set[int]:
    """Return the processes that listen at these addresses, if they are here and may be seen. With TGI the launcher
    above."""
    ports = {url.port for url in map(Url, urls) if url.local}
    pids = _listening(ports) if ports and root == ROOT else set()
    for pid in list(pids):
        name = process_name(root, pid)
        for parent in _above(pid, root):
            if process_name(root, parent) != name:
                break
            pids.add(parent)
    return pids


def _listening(ports: set[int]) -> set[int]:
    import psutil

    try:
        connections: list[Any] = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # macOS wants root for that
        return set()
    return {
        c.pid
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr.port in ports and c.pid
    }
