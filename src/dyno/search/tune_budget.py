"""The time of a search for settings: what a budget buys, what is kept for the repeats at its end, and what is left.

Half of a budget at most is kept for repeats. What they don't need goes to more settings and to more repeats.
"""

import math
import time
from typing import NamedTuple

from dyno.errors import UsageError
from dyno.facts.tune import TuneSpec
from dyno.numbers import count, many, rough_time, trimmed
from dyno.search.tune_plan import LONGER, SEARCH

_START_S = 10.0  # of an engine, until one was started
_REPEATS_SHARE = 0.5  # of the whole budget, at most, for repeats
_ENOUGH = 2  # repeats of each: fewer give no interval
_SIDES = 2  # the best setting and the default


class Repeats(NamedTuple):
    """Repeats of two settings in turn."""

    number: int  # of each
    times: int  # as long a load as a short one


class TuneBudget:
    def __init__(self, spec: TuneSpec, total_s: float = math.inf) -> None:
        self._spec, self.total_s = spec, total_s
        self._short_s = spec.seconds * (SEARCH if spec.objective == "load" else 1)
        self.released = False  # the time that was kept for repeats is for settings, too
        self._kept_pairs = 1  # after that
        self._began = time.monotonic()
        # what each setting that was started now took beside its loads
        self._starts_s: list[float] = []

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s

    @property
    def start_s(self) -> float:
        return sum(self._starts_s) / len(self._starts_s) if self._starts_s else _START_S

    def load_s(self, times: int) -> float:
        return self._short_s * times

    def started(self, took_s: float, loads: int) -> None:
        """Learn how long a start takes. `loads`: in short ones, that were part of `took_s`."""
        self._starts_s.append(max(took_s - self.load_s(loads), 0.0))

    # ---- what there is time for ----

    def release(self, *, repeats: bool) -> None:
        """Keep no more time than one short repeat of two settings needs. `repeats`: keep that."""
        self.released, self._kept_pairs = True, int(repeats)

    def allows_setting(self, *, longer: bool) -> bool:
        """`longer`: with its longer load."""
        loads = 1 + LONGER * longer
        return self.left_s - self._kept_s() >= self.start_s + self.load_s(loads)

    def allows_longer(self) -> bool:
        """Return whether a setting's longer load in the same start leaves time for two more settings."""
        more_s = 0.0 if self.released else 2 * (self.start_s + self.load_s(1))
        return self.left_s - self._kept_s() - self.load_s(LONGER) >= more_s

    def allows_second_start(self) -> bool:
        """Return whether a setting may be started once more, for its longer load."""
        return self.left_s - self._kept_s() >= self.start_s + self.load_s(LONGER)

    def allows_pair(self, times: int) -> bool:
        return self.left_s >= self._pair_s(times)

    def repeats(self) -> Repeats:
        """Return the repeats of the best setting and the default: longer ones, if there is time for enough of them."""
        return self._repeats_within(self.left_s)

    def _pair_s(self, times: int) -> float:
        return _SIDES * (self.start_s + self.load_s(times))

    def _kept_s(self) -> float:
        if math.isinf(self.total_s):
            return 0.0
        if self.released:
            return self._pair_s(1) * min(self._spec.confirm_repeats, self._kept_pairs)
        return min(
            self._spec.confirm_repeats * self._pair_s(LONGER), _REPEATS_SHARE * self.total_s
        )

    def _repeats_within(self, span_s: float) -> Repeats:
        wanted = self._spec.confirm_repeats
        for times in (LONGER, 1):
            number = int(min(max(span_s, 0.0) / self._pair_s(times), wanted))
            if number >= min(wanted, _ENOUGH):
                return Repeats(number, times)
        return Repeats(number, times)

    # ---- in words ----

    def check(self) -> None:
        """Refuse a budget in which nothing can be compared, before anything is started."""
        sides = _SIDES * (2 if self._spec.confirm_repeats else 1)
        least_s = sides * self._short_s
        if self.total_s >= least_s:
            return
        again = " and a repeat of each" if self._spec.confirm_repeats else ""
        enough = _flag(sides * (self._short_s + _START_S))
        what = "searches" if self._spec.objective == "load" else "loads"
        raise UsageError(
            f"--budget {_span(self.total_s)} can't start anything: the default, one setting{again} need "
            f"{_span(least_s)} for their {what} alone, and each start of the engine needs more. Give --budget "
            f"{enough} or more, or lower [tune] seconds (now {count(self._spec.seconds)})."
        )

    def words(self, possible: int | None = None) -> str:
        """'4 min: about 9 short loads of 5 s and 3 repeats of the best two, 15 s each, if a start takes 10 s.'

        `possible`: settings in all; None: no end of them.
        """
        kept_s = self._kept_s()
        most = 1 + min(self._spec.trials, possible or self._spec.trials)
        loads = min(
            round(max(self.left_s - kept_s, 0.0) / (self.start_s + self.load_s(1))), most
        )
        repeats = self._repeats_within(
            max(kept_s, self.left_s - loads * (self.start_s + self.load_s(1)))
        )
        known = "a start takes" if self._starts_s else "if a start takes"
        short = "searches of up to" if self._spec.objective == "load" else "short loads of"
        text = f"{_span(self.left_s)}: about {count(loads)} {short} {_span(self.load_s(1))}"
        if self._spec.confirm_repeats and repeats.number:
            each = _span(self.load_s(repeats.times))
            text += f" and {many(repeats.number, 'repeat')} of the best two, {each} each"
        return f"{text} ({known} {_span(self.start_s)})."


def _span(seconds: float) -> str:
    return f"{trimmed(round(seconds, 1))} s" if seconds < 90 else rough_time(seconds)


def _flag(seconds: float) -> str:
    """Return a time as a flag takes it, rounded up: 40, 2m."""
    return f"{math.ceil(seconds)}" if seconds < 90 else f"{math.ceil(seconds / 60)}m"
