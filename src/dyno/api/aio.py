"""The measuring functions for asyncio: `await aio.serve(…)`.

Each runs in a process of its own, so an event loop and its threads take no time from the client. Cancelling the task
interrupts that process as Ctrl-C does: the load ends, engines are stopped, and what was measured is kept.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno import errors
from dyno.api.job import JobEnd, JobProgress, MeasuringJob
from dyno.api.progress import LOG, OnProgress
from dyno.api.runs import RUNS, MeasuredRun, MeasuredRuns
from dyno.child import Child

if TYPE_CHECKING:
    from typing import Unpack

    from dyno.api.keys import LatencyKeys, MicroKeys, ServeKeys, ThroughputKeys


_LOOK_S = 0.5
_STOP_S = 120.0  # an engine frees its memory first


async def serve(
    *,
    label: str | None = None,
    headers: Mapping[str, str] | None = None,
    runs: str | os.PathLike[str] = RUNS,
    keep_raw: bool = False,
    progress: OnProgress | None = None,
    **settings: "Unpack[ServeKeys]",
) -> MeasuredRun:
    """Measure as `dyno.serve` does."""
    own = {"headers": dict(headers or {}), "keep_raw": keep_raw}
    return await _run("serve", {**settings, **own}, label, runs, progress)


async def throughput(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[ThroughputKeys]",
) -> MeasuredRun:
    """Measure as `dyno.throughput` does."""
    return await _run("throughput", settings, label, runs, progress)


async def latency(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[LatencyKeys]",
) -> MeasuredRun:
    """Measure as `dyno.latency` does."""
    return await _run("latency", settings, label, runs, progress)


async def micro(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[MicroKeys]",
) -> MeasuredRun:
    """Measure as `dyno.micro` does."""
    return await _run("micro", settings, label, runs, progress)


async def study(
    source: str | os.PathLike[str],
    *,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **choices: Any,
) -> MeasuredRuns:
    """Run a study as `dyno.study(source).run(**choices)` does."""
    keywords = {**choices, "source": os.fspath(source)}
    folders = await _folders("study", keywords, runs, progress)
    return MeasuredRuns(MeasuredRun(folder) for folder in folders)


async def _run(
    call: str,
    settings: Mapping[str, Any],
    label: str | None,
    runs: str | os.PathLike[str],
    progress: OnProgress | None,
) -> MeasuredRun:
    [folder] = await _folders(call, {**settings, "label": label}, runs, progress)
    return MeasuredRun(folder)


async def _folders(
    call: str,
    keywords: Mapping[str, Any],
    runs: str | os.PathLike[str],
    progress: OnProgress | None,
) -> list[str]:
    """Let a process do it, and return the folders of its runs."""
    job = MeasuringJob(call, _sendable({**keywords, "runs": os.fspath(runs)}))
    loop = asyncio.get_running_loop()

    def hear(report: JobProgress) -> None:
        if progress is not None:
            loop.call_soon_threadsafe(progress, report.now)

    with Child("dyno.api.job", end_s=_STOP_S) as child:
        waiting = asyncio.ensure_future(asyncio.to_thread(_wait, child, job, hear))
        try:
            end = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            child.order(b"stop")
            await _ended(waiting)
            raise
    for warning in end.warnings:
        LOG.warning("%s", warning)
    if end.error:
        raise _error(end)
    return end.folders


def _wait(child: Child, job: MeasuringJob, hear: Callable[[JobProgress], None]) -> JobEnd:
    """Hand the job over, and hear of it until it is over."""
    child.give(job)
    while True:
        for line in child.hear(within_s=_LOOK_S):
            report = msgspec.json.decode(line, type=JobProgress | JobEnd)
            if isinstance(report, JobEnd):
                return report
            hear(report)
        if child.gone:
            text = "The process that measures ended without a result. Look for the cause in the system's log."
            return JobEnd(error="DynoError", text=text)


async def _ended(waiting: "asyncio.Future[JobEnd]") -> None:
    """Wait until the process has stopped its engines. A second cancellation doesn't hurry it."""
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)


def _sendable(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords as they are sent: paths as text."""
    given = {name: value for name, value in keywords.items() if value is not None}
    plain: dict[str, Any] = msgspec.to_builtins(given, enc_hook=os.fspath)
    return plain


def _error(end: JobEnd) -> errors.DynoError:
    kind = getattr(errors, end.error, errors.DynoError)
    if kind is errors.Interrupted:
        return errors.Interrupted(end.text, Path(end.folder) if end.folder else None)
    error: errors.DynoError = kind(end.text)
    return error
