"""Who is told what goes on while a trial is measured."""

from dyno.load.progress import Progress
from dyno.probe.telemetry.sampler import Sampler


class Watcher:
    """Told what goes on; a silent one by default. Measuring never prints."""

    def phase(self, text: str) -> None: ...

    def sampling(self, sampler: Sampler) -> None:
        """The load begins, and `sampler.latest()` may be asked at any time until it is over."""

    def progress(self, progress: Progress) -> None: ...

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        """Of an offline trial: one more is done, the warm-ups first."""

    def within(self, done: int, count: int) -> None:
        """… and so many of the requests of the one that runs, where the engine tells."""

    def over(self) -> None: ...
