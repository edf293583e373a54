"""All errors, as one tree. Each message says what happened, where, and what to do next.

DynoError                exit 1   it failed
├── UsageError           exit 2   wrong usage
├── WorkloadError        exit 2   prompts or tokenizer: missing, unreadable, too few
├── TargetError          exit 1   the server can't be reached, or answers wrongly
├── EngineError          exit 1   an engine didn't start, or died
├── ModelError           exit 1   a model or data set can't be fetched or made, or isn't what it should be
│   └── HubRefusal       exit 1   the Hub has no such files, or not for this user
├── RigError             exit 1   another machine can't be used
│   └── Unreachable      exit 1   there is no connection to it; what it runs goes on
├── StoreError           exit 1   a run or result can't be written or read
│   └── NotSummedUp      exit 1   a trial is measured, but can't be summarized
├── DrawError            exit 1   a picture or a page's charts can't be drawn
├── ImportFailed         exit 1   another tool's file can't be opened
├── StudyStopped         exit 1   a study stopped: a trial failed, or an engine's version changed
└── Interrupted          exit 130 Ctrl-C: what was measured until then is kept in its `folder`

A failed request is not an error: it is a record (facts/record.py).
"""

import errno
from typing import TYPE_CHECKING

from dyno import secrets

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST = 2000  # characters of a message


class DynoError(Exception):
    """Anything that dyno reports as an error: all others are of this kind."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        """Remove secrets, and the middle of a long text: a message quotes servers, engines and files."""
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        super().__init__(secrets.clean(secrets.without_looks(text)))


class UsageError(DynoError):
    """Wrong usage: nothing was started."""

    exit_code = 2


class NotFound(UsageError):
    """No file, run or study has this name."""


class WorkloadError(DynoError):
    """Prompts or tokenizer are missing, unreadable, or too few."""

    exit_code = 2


class TargetError(DynoError):
    """The server can't be reached, or answers wrongly."""


class EngineError(DynoError):
    """An engine didn't start, or died."""


class ModelError(DynoError):
    """A model or data set can't be fetched or made, or isn't what it should be."""


class HubRefusal(ModelError):
    """The Hub has no such files, or not for this user."""


class RigError(DynoError):
    """Another machine can't be used."""


class Unreachable(RigError):
    """There is no connection to another machine; what it runs continues."""


class StoreError(DynoError):
    """A run or result can't be written or read."""


class NotSummedUp(StoreError):
    """A trial is measured, but can't be summarized."""


class DrawError(DynoError):
    """A picture or a page's charts can't be drawn."""


class ImportFailed(DynoError):
    """Another tool's file can't be opened, or holds no results."""


class StudyStopped(DynoError):
    """A study stopped: a trial failed, or an engine's version changed."""


class Interrupted(DynoError):
    """Ctrl-C. What was measured until then is kept in `folder`."""

    exit_code = 130

    def __init__(self, text: str, folder: "Path | None" = None) -> None:
        """`folder`: where what was measured until then is kept. None: nothing was, or the text says it."""
        super().__init__(text)
        self.folder = folder


_ADVICE = {
    errno.EMFILE: "dyno has too many open files. Raise the limit (`ulimit -n`), or lower the concurrency.",
    errno.ENFILE: "This system has too many open files. Close other programs, or raise fs.file-max.",
    errno.ENOBUFS: "This system has no memory left for sockets. Lower the concurrency, or raise net.ipv4.tcp_mem.",
    errno.ENOMEM: "This system is out of memory. Free some, raise the limit (`ulimit -v`), or lower the concurrency.",
    errno.EADDRNOTAVAIL: "This machine has no local ports left. Lower the rate, widen net.ipv4.ip_local_port_range, "
    "or use a server that keeps connections open.",
}


def describe_error(error: BaseException) -> str:
    """Describe an error of the system by its words, without its number and Python's marks."""
    words = getattr(error, "strerror", None)
    if not isinstance(words, str):
        return str(error) or type(error).__name__
    name = getattr(error, "filename", None)
    return f"{name}: {words}" if name else words


def limit_advice(error: BaseException) -> str | None:
    """Return advice for a limit of dyno's machine, which is not the server's failure. None: another error."""
    return _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
