"""Facts of a machine for the record, as PyTorch's collect_env has them: compilers, C library, firmware, boot flags.

They explain a number later and are not compared. Unknown ones are left out.
"""

import functools
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dyno import secrets
from dyno.probe import host, sysfs
from dyno.probe.software import ask

ROOT = Path("/")
COMPILERS = ("gcc", "clang", "cmake", "nvcc", "hipcc")
_ASK_S = 5.0
# also in rootflags=…
_SECRET = re.compile(
    r"([\w.-]*(?:pass|secret|token|credential|luks|key)[\w.-]*)=[^\s,]+", re.I
)


def look(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
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
