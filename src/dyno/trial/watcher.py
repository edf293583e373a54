"""Who watches trials. Commands that only prepare something show their progress too, so this imports next to nothing."""

from typing import NamedTuple

from dyno.facts.study import PlannedTrial
from dyno.load.progress import Progress
from dyno.probe.telemetry.sampler import Sampler
from dyno.trial.outcome import Outcome


class TrialEnd(NamedTuple):
    """The outcome of a trial."""

    state: str  # done, failed, skipped
    text: str = ""
    outcome: Outcome | None = None


class Watcher:
    """Hears of progress; a silent one by default. Measuring never prints."""

    def phase(self, text: str) -> None: ...

    def below(self, text: str, stays: bool = False) -> None:
        """Show what the current phase does, in a line: the last of a log. `stays`: a line of a command's output."""

    def sampling(self, sampler: Sampler) -> None:
        """The load begins; `sampler.latest()` may be called at any time until it is over."""

    def progress(self, progress: Progress) -> None: ...

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        """One more iteration of an offline trial is done, warm-ups first."""

    def within(self, done: int, count: int) -> None:
        """`done` of `count` requests of the current iteration are done, where the engine reports that."""

    def step(self, done: int, count: int) -> None:
        """So much of the current phase is done."""

    def over(self) -> None: ...


class StudyWatcher(Watcher):
    """Hears of the trials as well; a silent one by default."""

    def begins(self, planned: PlannedTrial) -> None: ...

    def close(self) -> None:
        """No more trials follow."""

    def again(self, planned: PlannedTrial, why: str) -> None: ...

    def ended(self, planned: PlannedTrial, end: TrialEnd) -> None: ...

    def cut(self, planned: PlannedTrial, outcome: Outcome) -> None:
        """The user stopped the study during this trial's load; `outcome` has its figures until then."""

    def remark(self, text: str) -> None:
        """Show a sentence between trials."""
