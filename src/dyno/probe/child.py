"""A question to another program, which may be missing, hang, crash or answer nonsense."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec


class Answer(NamedTuple):
    out: str | None  # None: there is none
    failed: str | None  # why, in words
    code: int | None = None


def ask(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            errors="replace", start_new_session=True, env=env,
        )  # fmt: skip
    except FileNotFoundError:
        return Answer(None, "isn't installed")
    except (OSError, ValueError) as e:
        return Answer(None, f"can't be run: {e}")
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except BaseException as e:  # also Ctrl-C, which doesn't reach another session
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipe
        process.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            return Answer(None, f"gave no answer in {timeout_s:g} s")
        raise
    if process.returncode < 0:
        names = {s.value: s.name for s in signal.Signals}
        what = names.get(-process.returncode, f"signal {-process.returncode}")
        return Answer(None, f"crashed ({what})", process.returncode)
    if process.returncode:
        return Answer(None, f"exited with code {process.returncode}", process.returncode)
    return Answer(out, None, 0)


def last_json(out: str | None) -> Any:
    """The last line that is JSON, or the whole: libraries print beside what was asked. None: there is no such."""
    if out is None:
        return None
    for piece in (*reversed(out.strip().splitlines()), out):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(piece)
    return None
