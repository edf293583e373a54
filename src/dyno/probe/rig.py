"""The rig: machine, state, accelerators, and other processes on them."""

import functools
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno import secrets
from dyno.facts.rig import Accelerator, Rig
from dyno.http import Url
from dyno.numbers import human_bytes
from dyno.probe import accelerators, host, software, sysfs
from dyno.probe.accelerators import Process, Vendor
from dyno.probe.accelerators.base import process_name
from dyno.probe.software import ask

ROOT = Path("/")


def read_machine(
    urls: Iterable[str] = (),
    *,
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    vendors: Sequence[Vendor] = accelerators.VENDORS,
    record: bool = False,
) -> Rig:
    """Describe this machine. `urls`: where the engine listens, to distinguish its processes from others. `record`: with
    details, for which compilers are asked."""
    inventory = accelerators.inventory(root, vendors)
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
        details=record_details(root, environ) if record else {},
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


# ---- details for the record, as PyTorch's collect_env has them. Not compared; unknown ones are left out ----

COMPILERS = ("gcc", "clang", "cmake", "nvcc", "hipcc")
_ASK_S = 5.0
# also in rootflags=…
_SECRET = re.compile(
    r"([\w.-]*(?:pass|secret|token|credential|luks|key)[\w.-]*)=[^\s,]+", re.I
)


def record_details(
    root: Path = ROOT, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return what is known. Programs are asked once in a process, and only on the machine itself."""
    details = dict(compilers()) if root == ROOT else {}
    for name, read in FACTS.items():
        value = read(root)
        if value:
            details[name] = value
    image = container_image(root, environ)
    if image:
        details["container_image"] = image
    return details


@functools.cache
def compilers() -> dict[str, str]:
    """Return the versions of compilers on PATH."""
    answers = {name: ask([name, "--version"], _ASK_S).text or "" for name in COMPILERS}
    return {
        name: version for name, text in answers.items() if (version := version_in(text))
    }


def version_in(text: str) -> str | None:
    """Return the version in the first lines of what a compiler prints: nvcc has it in its fourth."""
    match = re.search(
        r"(?:release |version:? |\) |\b)v?(\d+\.\d+(?:\.\d+)*)",
        "\n".join(text.splitlines()[:4]),
    )
    return match[1] if match else None


def _libc(root: Path) -> str | None:
    if root != ROOT:
        return None
    return " ".join(part for part in platform.libc_ver() if part) or None


def _command_line(root: Path) -> str | None:
    """Return the kernel's flags. A key in them, as of a disk over the network, is not kept."""
    line = (sysfs.text(root / "proc/cmdline") or "").strip()
    return secrets.public_command(_SECRET.sub(r"\1=***", line)) if line else None


def _bios(root: Path) -> str | None:
    names = ("bios_vendor", "bios_version", "bios_date")
    words = [sysfs.text(root / "sys/class/dmi/id" / name) for name in names]
    return " ".join(word.strip() for word in words if word and word.strip()) or None


def _board(root: Path) -> str | None:
    words = [
        sysfs.text(root / "sys/class/dmi/id" / name)
        for name in ("sys_vendor", "product_name")
    ]
    return " ".join(word.strip() for word in words if word and word.strip()) or None


def _numa_per_socket(root: Path) -> str | None:
    """Return the memory domains of a socket: what AMD's firmware calls NPS, and Intel's SNC."""
    nodes, sockets = host.numa_nodes(root), host.sockets(root)
    if not nodes or not sockets or nodes % sockets:
        return None
    return f"NPS{nodes // sockets}" if "AMD" in host.cpu(root) else str(nodes // sockets)


FACTS: dict[str, Callable[[Path], str | None]] = {
    "libc": _libc,
    "kernel_command_line": _command_line,
    "bios": _bios,
    "board": _board,
    "numa_nodes_per_socket": _numa_per_socket,
}


def container_image(
    root: Path = ROOT, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the image that this process runs in: podman writes it down, and Singularity names its file."""
    match = re.search(
        r'^image="([^"]+)"', sysfs.text(root / "run/.containerenv") or "", re.M
    )
    return (
        match[1]
        if match
        else environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER")
    )
