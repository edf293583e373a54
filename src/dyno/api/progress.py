"""Progress of a measurement, to a function of the user's and to the log `dyno`. Nothing is printed."""

import logging
from collections.abc import Callable

import msgspec

from dyno.facts.study import PlannedTrial
from dyno.load.progress import Progress
from dyno.trial.watcher import StudyWatcher, TrialEnd
from dyno.units import seconds

LOG = logging.getLogger("dyno")
LOG.addHandler(logging.NullHandler())  # else warnings of it would be printed


class ProgressReport(msgspec.Struct, frozen=True):
    """What is done at a moment."""

    phase: str  # 'Warming up with 8 requests', 'Measuring', …
    trial: str = ""  # of a study: its label
    share: float | None = None  # of this phase, from 0 to 1; None: not known
    detail: str = ""  # a line about it, such as the last of an engine's log
    # of a load; None: there is none now
    ended: int | None = None  # requests that are over, failed ones included
    failed: int | None = None
    in_flight: int | None = None
    elapsed_s: float | None = None


OnProgress = Callable[[ProgressReport], None]


class Reporter(StudyWatcher):
    """Calls a function with what it hears. An error in it is logged, and it is not called again."""

    def __init__(self, call: OnProgress | None = None) -> None:
        self._call = call
        self._now = ProgressReport("")

    def phase(self, text: str) -> None:
        LOG.info("%s", text)
        self._report(ProgressReport(text, self._now.trial))

    def below(self, text: str, stays: bool = False) -> None:
        LOG.debug("%s", text)
        self._report(msgspec.structs.replace(self._now, detail=text))

    def progress(self, progress: Progress) -> None:
        elapsed_s = seconds(progress.elapsed_ns)
        by_count = progress.ended / progress.count if progress.count else 0.0
        by_time = elapsed_s / progress.until_s if progress.until_s else by_count
        self._report(
            msgspec.structs.replace(
                self._now,
                share=min(by_time, 1.0),
                ended=progress.ended,
                failed=progress.failed,
                in_flight=progress.in_flight,
                elapsed_s=elapsed_s,
            )
        )

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        self.step(done, warmups + measured)

    def step(self, done: int, count: int) -> None:
        share = min(done / count, 1.0) if count else None
        self._report(msgspec.structs.replace(self._now, share=share))

    def begins(self, planned: PlannedTrial) -> None:
        LOG.info("%s", planned.place.label)
        self._report(ProgressReport("Beginning", planned.place.label))

    def again(self, planned: PlannedTrial, why: str) -> None:
        LOG.info("%s is tried again: %s", planned.place.label, why)

    def ended(self, planned: PlannedTrial, end: TrialEnd) -> None:
        LOG.info("%s: %s %s", planned.place.label, end.state, end.text)
        self._report(ProgressReport(end.state, planned.place.label, 1.0, end.text))

    def remark(self, text: str) -> None:
        self.phase(text)

    def _report(self, now: ProgressReport) -> None:
        self._now = now
        if self._call is None:
            return
        try:
            self._call(now)
        except Exception:  # the user's own mistake costs the progress, not the measurement
            self._call = None
            LOG.exception("The progress function failed and is not called again.")
