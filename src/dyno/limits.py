"""Limits of the machine that dyno runs on: what they stop is the client's failure and not the server's."""

import errno

_ADVICE = {
    errno.EMFILE: "dyno may open no more files: raise the limit (`ulimit -n`), or lower the concurrency.",
    errno.ENFILE: "This system may open no more files: close other programs, or raise fs.file-max.",
    errno.ENOBUFS: "This system has no more memory for sockets: lower the concurrency, or raise net.ipv4.tcp_mem.",
    errno.ENOMEM: "This system has no more memory: free some, raise the limit (`ulimit -v`), or lower the concurrency.",
    errno.EADDRNOTAVAIL: "This machine has no more local ports for connections: lower the rate, widen "
    "net.ipv4.ip_local_port_range, or use a server that keeps connections open.",
}


def advice(error: BaseException) -> str | None:
    """What to do. None: it is not such a limit."""
    return _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
