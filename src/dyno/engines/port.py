"""The port of an engine on this machine: whether it is free, and whose socket answers there."""

import contextlib
import errno
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

_LOOPBACK = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"
_LISTENS = "0A"  # Linux's TCP_LISTEN
ADVICE = "stop it, or leave the port out of the setting: dyno then takes a free one."


def in_use(port: int) -> str | None:
    """By whom, in words. None: it is free, as far as can be told."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what was closed lately is free
        try:
            probe.bind(("", port))
        except OSError as e:
            return holder(port) if e.errno == errno.EADDRINUSE else None
    return None


def holder(port: int) -> str:
    """Whose socket would take a connection to it."""
    wanted = listeners(port) or set()
    for folder in Path("/proc").glob("[0-9]*"):
        if wanted & set(_sockets(int(folder.name))):
            with contextlib.suppress(OSError):
                return f"{(folder / 'comm').read_text('utf-8', 'replace').strip()} (pid {folder.name})"
    return "another program"


def belongs(port: int, pids: Collection[int]) -> bool | None:
    """A connection to it reaches one of these processes. None: nobody listens, or it can't be told."""
    found = listeners(port)
    if not found:
        return None
    if found <= {inode for pid in pids for inode in _sockets(pid)}:
        return True
    return None if any(_closed(pid) for pid in pids) else False


def listeners(port: int) -> set[str] | None:
    """The inodes of the sockets of which one would take a connection to 127.0.0.1. None: can't be told here."""
    tiers: list[set[str]] = [set(), set(), set()]  # as the kernel prefers them: this address, any, any of IPv6
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
    """It lives, and its files can't be seen: it runs as another user."""
    try:
        next(Path(f"/proc/{pid}/fd").iterdir(), None)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
