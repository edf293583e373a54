"""All errors, as one tree. Each message says what happened, where, and what to do next.

DynoError                exit 1   it failed
├── UsageError           exit 2   the command asks for something that can't be done
├── WorkloadError        exit 2   prompts or tokenizer: not there, unreadable, too few
├── TargetError          exit 1   the server can't be reached or doesn't answer as it must
├── EngineError          exit 1   an engine that dyno started didn't come up or died
├── StoreError           exit 1   a run or result can't be written or read
│   └── NotSummedUp      exit 1   a trial is measured, and its answers are such that dyno can't sum them up
├── ImportFailed         exit 1   another tool's file can't be opened
├── StudyStopped         exit 1   a study that doesn't go on: a trial failed, or an engine is of another version
└── Interrupted          exit 130 Ctrl-C after the load: all is measured, and not yet summed up

A failed request is not an error: it is a record (facts/record.py).
"""

import errno

from dyno import secrets


class DynoError(Exception):
    exit_code = 1

    def __init__(self, text: str) -> None:
        """Into a message goes what servers, engines and files say: no secret stays in it, wherever it ends."""
        super().__init__(secrets.clean(secrets.without_looks(text)))


class UsageError(DynoError):
    exit_code = 2


class WorkloadError(DynoError):
    exit_code = 2


class TargetError(DynoError):
    pass


class EngineError(DynoError):
    pass


class StoreError(DynoError):
    pass


class NotSummedUp(StoreError):
    pass


class ImportFailed(DynoError):
    pass


class StudyStopped(DynoError):
    pass


class Interrupted(DynoError):
    exit_code = 130


_ADVICE = {
    errno.EMFILE: "dyno may open no more files: raise the limit (`ulimit -n`), or lower the concurrency.",
    errno.ENFILE: "This system may open no more files: close other programs, or raise fs.file-max.",
    errno.ENOBUFS: "This system has no more memory for sockets: lower the concurrency, or raise net.ipv4.tcp_mem.",
    errno.ENOMEM: "This system has no more memory: free some, raise the limit (`ulimit -v`), or lower the concurrency.",
    errno.EADDRNOTAVAIL: "This machine has no more local ports for connections: lower the rate, widen "
    "net.ipv4.ip_local_port_range, or use a server that keeps connections open.",
}


def limit_advice(error: BaseException) -> str | None:
    """Return advice for a limit of dyno's machine, which is not the server's failure. None: another error."""
    return _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
