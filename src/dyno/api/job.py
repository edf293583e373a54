"""A measurement in a process of its own, for `aio`. It gets a call, writes progress, and ends with folders or an error.

Where who started it is gone or gives up, it is interrupted as by Ctrl-C: engines are stopped, and results are kept.
"""

import logging
import os
import signal
import threading
from typing import Any

import msgspec

from dyno import child
from dyno.api.progress import LOG, ProgressReport
from dyno.errors import DynoError, Interrupted


class MeasuringJob(msgspec.Struct):
    call: str  # a function of dyno's
    keywords: dict[str, Any]


class JobProgress(msgspec.Struct, tag="progress"):
    now: ProgressReport


class JobEnd(msgspec.Struct, tag="end"):
    folders: list[str] = []  # of its runs
    error: str = ""  # the class of an error; '': there was none
    text: str = ""
    folder: str = ""  # of what an interrupted one has kept
    warnings: list[str] = []  # of the log


def main() -> None:
    job = child.task(MeasuringJob)
    threading.Thread(target=_interrupt_on_order, daemon=True).start()
    child.report(_outcome(job))


def _interrupt_on_order() -> None:
    child.Orders().next()
    os.kill(os.getpid(), signal.SIGINT)


class _Warned(logging.Handler):
    """Keeps warnings for who started this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _outcome(job: MeasuringJob) -> JobEnd:
    LOG.addHandler(warned := _Warned())
    try:
        folders = _folders(job)
        end = JobEnd(folders)
    except DynoError as e:
        folder = e.folder if isinstance(e, Interrupted) else None
        end = JobEnd(error=type(e).__name__, text=str(e), folder=str(folder or ""))
    except KeyboardInterrupt:
        end = JobEnd(error="Interrupted", text="interrupted. Nothing was measured.")
    except Exception as e:  # a bug, which is reported as one
        end = JobEnd(error="DynoError", text=f"A bug in dyno: {type(e).__name__}: {e}.")
    end.warnings = warned.texts
    return end


def _folders(job: MeasuringJob) -> list[str]:
    from dyno.api import measuring, studies

    def progress(now: ProgressReport) -> None:
        child.report(JobProgress(now))

    if job.call == "study":
        source = job.keywords.pop("source")
        runs = studies.study(source).run(progress=progress, **job.keywords)
        return [str(run.path) for run in runs]
    run = getattr(measuring, job.call)(progress=progress, **job.keywords)
    return [str(run.path)]


if __name__ == "__main__":
    main()
