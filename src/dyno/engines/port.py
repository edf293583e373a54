"""Ports on this machine: find a free one, or the process that listens on one."""

import contextlib
import errno
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

_LOOPBACK = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"
_LISTENS = "0A"  # Linux's TCP_LISTEN
ADVICE = (
    "stop it, or choose another port. A study's setting without a port gets a free one."
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def in_use(port: int) -> str | None:
    """Describe the process that uses it. None: unused, or unknown."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: a port that was closed lately is free
        try:
            probe.bind(("", port))
        except OSError as e:
            return holder(port) if e.errno == errno.EADDRINUSE else None
    return None


def holder(port: int) -> str:
    """Return whose socket would take a connection to it."""
    wanted = listeners(port) or set()
    for folder in Path("/proc").glob("[0-9]*"):
        if wanted & set(_sockets(int(folder.name))):
            with contextlib.suppress(OSError):
                return f"{(folder / 'comm').read_text('utf-8', 'replace').strip()} (pid {folder.name})"
    return "another program"


def belongs(port: int, pids: Collection[int]) -> bool | None:
    """Return whether a connection to it reaches one of these processes. None: nothing listens, or it is unknown."""
    sockets = listeners(port)
    if not sockets:
        return None
    if sockets <= {inode for pid in pids for inode in _sockets(pid)}:
        return True
    return None if any(_closed(pid) for pid in pids) else False


def listeners(port: int) -> set[str] | None:
    """Return the inodes of the sockets that compete for a connection to 127.0.0.1. None: unknown on this system."""
    # as the kernel prefers them: this address, any, any of IPv6
    tiers: list[set[str]] = [set(), set(), set()]
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            if name == "tcp":
                return None
            continue
        for cells in map(str.split, lines):
            address, _, its_port = cells[1].partition(":")
            if cells[3] == _LISTENS and int(its_port, 16) == port:
                if address.endswith(_LOOPBACK):
                    tiers[0].add(cells[9])
                elif not address.strip("0"):
                    tiers[1 if name == "tcp" else 2].add(cells[9])
    return next(filter(None, tiers), set())


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(link.readlink()).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


def _closed(pid: int) -> bool:
    """Return whether it lives and its files can't be seen, because it runs as another user."""
    try:
        next(Path(f"/proc/{pid}/fd").iterdir(), None)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
