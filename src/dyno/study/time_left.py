"""The time that a running study still takes, for its live view."""

import math
from collections.abc import Mapping

KNOWN_FROM = 0.1  # share of a load from which its own speed counts, and not the estimate
# an estimate that is this much above what was shown is shown; a smaller rise is not news
LONGER = 1.25


class TimeLeft:
    """It falls while a trial runs. It rises only where trials turn out to take longer, or one is run again.

    Each trial has an estimate, made before anything is known of the engine. Finished trials correct the estimates of
    the others; the progress of the current one's load corrects its own. A trial's time is counted from the end of the
    one before: it includes the engine's start.
    """

    def __init__(self, estimates_s: Mapping[str, float], now: float) -> None:
        """`estimates_s`: of the trials to run, by id, in their order."""
        self._left = dict(estimates_s)
        self._took = self._estimated = 0.0  # of finished trials
        # of the current one
        self._since = self._expected_s = self._deadline = self._share = 0.0
        self._shown = math.inf  # last
        self._expect(now)

    @property
    def known(self) -> bool:
        """Return whether a trial has been finished. Before that, it is a guess."""
        return self._estimated > 0

    def progress(self, share: float, elapsed_s: float, now: float) -> None:
        """Note that this share of the current trial's work is done, after so long."""
        if share <= self._share:
            return
        self._share = share
        trust = min(share / KNOWN_FROM, 1.0)
        by_estimate, by_speed = (
            (1 - share) * self._expected_s,
            elapsed_s * (1 - share) / share,
        )
        self._deadline = now + (1 - trust) * by_estimate + trust * by_speed

    def ended(self, id: str, measured: bool, now: float) -> None:
        """Note the end of a trial. One that failed or was skipped says nothing of the others."""
        estimate = self._left.pop(id, 0.0)
        if measured:
            self._took += now - self._since
            self._estimated += estimate
        self._expect(now)

    def again(self, now: float) -> None:
        """Note that the current trial begins anew."""
        self._expect(now)

    def seconds(self, now: float) -> float:
        others = self._scale * sum(list(self._left.values())[1:])
        left = others + max(self._deadline - now, 0.0)
        if left < LONGER * self._shown:
            left = min(left, self._shown)
        self._shown = left
        return left

    @property
    def _scale(self) -> float:
        return self._took / self._estimated if self._estimated else 1.0

    def _expect(self, now: float) -> None:
        """Begin to count for the next trial."""
        self._since, self._share, self._shown = now, 0.0, math.inf
        self._expected_s = self._scale * next(iter(self._left.values()), 0.0)
        self._deadline = now + self._expected_s
