"""Run a tool as a child process: its output in a log, its progress as one line, its failure as one sentence."""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dyno.engines.environment import home
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, StoreError
from dyno.files import free_bytes
from dyno.models.library import models_folder
from dyno.numbers import human_bytes
from dyno.saying import Say

Progress = Callable[[str], str]
# Patterns of a failure, and what to do about it. Causes come before consequences.
_ADVICE = {
    r"no space left on device|\d+ requested and \d+ written|iostream error":  # the others: numpy, llama-quantize
        "The disk is full. Free some space, and run the command again.",
    r"out of memory|memoryerror|cannot allocate memory|std::bad_alloc": "Use a machine with more memory.",
    r"mmap length is greater|safetensorerror|not within the file bounds|corrupted or incomplete":
        "The model's files are damaged or incomplete. Fetch them again.",
    r"pre-tokenizer was not recognized|is not supported|unknown (?:model )?architecture":
        "This version doesn't know the model. Install a newer one with `dyno engines install`.",
}  # fmt: skip


def run(
    name: str,
    command: list[str],
    log: Path,
    below: Say,
    progress: Progress,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    needs: str = "",
) -> None:
    """Run a tool. `progress` turns the output's last line into the line of progress. It doesn't outlive dyno, nor a
    Ctrl-C.

    `needs`: a sentence about its memory, for when the system killed it.
    """
    # Threads that spin while they wait take minutes for seconds where something else uses the processor.
    surroundings = {"OMP_WAIT_POLICY": "passive", **(os.environ if env is None else env)}
    with EngineProcess(command, surroundings, log) as process:
        due = time.monotonic() + 1
        while process.alive() and (timeout_s is None or process.age_s < timeout_s):
            time.sleep(0.05)
            if time.monotonic() > due:
                due += 1
                below(progress(process.last_line()))
        code = process.exit_code
        lines = [
            line
            for line in dict.fromkeys([*process.last_lines(), process.last_line()])
            if "%|" not in line
        ]
    if code is None:
        raise EngineError(f"{name} didn't finish within {timeout_s:g} s. Read {log}.")
    if code == -signal.SIGKILL:
        raise EngineError(
            f"{name} was killed, most likely because the memory was full. {needs}Read {log}."
        )
    if code != 0:
        line, advice = _cause(lines)
        raise EngineError(f'{name} failed with code {code}: "{line}". {advice}Read {log}.')


def _cause(lines: Sequence[str]) -> tuple[str, str]:
    """Return the line with a known problem and what to do; where none is known, all lines."""
    for pattern, advice in _ADVICE.items():
        for line in lines:
            if re.search(pattern, line, re.I):
                return line, f"{advice} "
    return " | ".join(lines), ""


def log_path(name: str) -> Path:
    """Return a new log's path. It stays there where the step fails, and belongs to the model where it succeeds."""
    folder = home() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"make-{name}.log"
    path.unlink(missing_ok=True)
    return path


def check_space(needed: int, what: str) -> None:
    """Raise where the disk of dyno's models is too small."""
    folder = models_folder()
    if needed > (free := free_bytes(folder)):
        raise StoreError(
            f"{what} needs about {human_bytes(needed)}, but the disk of {folder} has {human_bytes(free)} free. "
            "Free some space, or set DYNO_HOME to a folder on another disk."
        )
