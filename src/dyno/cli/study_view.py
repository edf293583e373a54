"""A study on the screen: a few lines on stderr that stay where they are, or plain lines where there is no terminal.

The wire calls it, so it draws by hand: a table drawn by a library would take the loop's time.
"""

import shutil
import sys
import time
from collections.abc import Sequence

from dyno.cli.progress import Rates, bar, clock, share_done, writable
from dyno.experiment.study import StudyWatcher, Told
from dyno.facts.study import PlannedTrial
from dyno.facts.summary import Result
from dyno.load.progress import Progress
from dyno.store.run import Run
from dyno.study.estimate import trial_s

_EVERY_S = 0.4


class StudyView(StudyWatcher):
    def __init__(self, name: str, trials: Sequence[PlannedTrial], done: int, live: bool = True) -> None:
        """`trials`: those that are left; `done`: how many were there before."""
        self._name, self._live = name, live and sys.stderr.isatty()
        self._left = {p.place.id: trial_s(p.trial) for p in trials}
        self._total, self._done, self._failed, self._skipped = len(trials) + done, done, 0, 0
        self._estimated = 0.0  # seconds, of the trials done in this sitting …
        self._began = time.monotonic()  # … and since when it goes on
        self._trial = ""
        self._phase = ""
        self._rates = Rates()
        self._next = 0.0
        self._drawn = 0  # lines

    def begins(self, planned: PlannedTrial) -> None:
        place = planned.place
        repeat = f" (repeat {place.repeat} of {place.repeats})" if place.repeats > 1 else ""
        self._trial = place.label + repeat

    def ended(self, planned: PlannedTrial, run: Run, told: Told) -> None:
        self._estimated += self._left.pop(planned.place.id, 0.0)
        self._done += told.state == "done"
        self._failed += told.state == "failed"
        self._skipped += told.state == "skipped"
        self._trial = self._phase = ""
        what = _in_words(told.outcome.result) if told.outcome else f"{told.state}: {told.text}"
        repeat = f" r{planned.place.repeat}" if planned.place.repeats > 1 else ""
        self._wipe()
        print(f"{self._count()} {planned.place.label}{repeat}: {what}", file=sys.stderr, flush=True)
        self._draw([])

    def again(self, planned: PlannedTrial, why: str) -> None:
        self._wipe()
        print(f"{self._count()} {planned.place.label}: {why} Once more …", file=sys.stderr, flush=True)

    def phase(self, text: str) -> None:
        self._phase = text
        if self._live:
            self._draw([])
        elif not self._trial:  # a trial's own steps are told by its result
            print(f"  {text} …", file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._live or now < self._next:
            return
        self._next = now + _EVERY_S
        self._rates.see(now, progress)
        width = max(min(shutil.get_terminal_size().columns - 16, 60), 5)
        share = share_done(progress)
        self._draw([f"       {self._rates.text(progress)}", f"       {bar(share, width)} {share:.0%}"])

    def over(self) -> None:
        self._rates.clear()

    def close(self) -> None:
        self._wipe()

    def left_s(self) -> float:
        """By the trials done in this sitting; before there is one, by assumption."""
        left = sum(self._left.values())
        took = time.monotonic() - self._began
        return left * took / self._estimated if self._estimated else left

    def _count(self) -> str:
        return f"[{self._done + self._failed + self._skipped}/{self._total}]"

    def _draw(self, load: list[str]) -> None:
        if not self._live or not writable():
            return
        failed = f", {self._failed} failed" if self._failed else ""
        skipped = f", {self._skipped} left out" if self._skipped else ""
        guess = "" if self._estimated else " (a guess)"
        lines = [
            f"{self._name}  {self._done} of {self._total} trials done{failed}{skipped}, about {clock(self.left_s())} "
            f"left{guess}",
            f"now    {' | '.join(filter(None, (self._trial, self._phase)))}",
            *load,
        ]
        columns = shutil.get_terminal_size().columns
        self._wipe()
        sys.stderr.write("".join(f"{line[: columns - 1]}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)

    def _wipe(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
            sys.stderr.flush()
            self._drawn = 0


def _in_words(result: Result) -> str:
    s = result.summary
    failed = f", {s.failed} FAILED" if s.failed else ""
    ttft = "" if s.ttft.empty else f", TTFT p50 {s.ttft.median:.0f} ms"
    tpot = "" if s.tpot.empty else f", TPOT p50 {s.tpot.median:.1f} ms"
    return f"{s.completed} completed{failed}, {s.output_throughput:,.1f} tok/s{ttft}{tpot}, {result.verdict}"
