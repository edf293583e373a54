"""One line on stderr while a load runs. Cheap to draw, and never waited for: the wire calls it."""

import select
import shutil
import sys
import time

from dyno.experiment.trial import Watcher
from dyno.load.progress import Progress
from dyno.units import seconds

_EVERY_S = 0.2


class Line(Watcher):
    def __init__(self, bar: bool = True) -> None:
        self._bar = bar and sys.stderr.isatty()
        self._drawn = False
        self._next = 0.0
        self._before: list[tuple[float, int, float]] = []  # time, ended, tokens: for rates over the last seconds

    def phase(self, text: str) -> None:
        self._wipe()
        if text:
            print(f"{text} …", file=sys.stderr, flush=True)

    def over(self) -> None:
        self._wipe()
        self._before.clear()

    def progress(self, p: Progress) -> None:
        now = time.monotonic()
        if not self._bar or now < self._next:
            return
        self._next = now + _EVERY_S
        self._before.append((now, p.ended, p.tokens_estimate))
        del self._before[:-15]
        # A terminal that was stopped with Ctrl-S must not stop the load.
        if select.select([], [sys.stderr], [], 0)[1]:
            self._drawn = True
            sys.stderr.write("\r" + self._text(p, shutil.get_terminal_size().columns) + "\x1b[K")
            sys.stderr.flush()

    def _text(self, p: Progress, columns: int) -> str:
        (t0, ended0, tokens0), (t1, ended1, tokens1) = self._before[0], self._before[-1]
        span = t1 - t0 or 1.0
        elapsed = seconds(p.elapsed_ns)
        share = min(1.0, p.ended / p.count if p.until_s is None else max(elapsed / p.until_s, 0))
        left = elapsed / share - elapsed if share > 0 else 0.0
        total = f"{p.ended}/{p.count}" if p.until_s is None else f"{p.ended}"
        text = (
            f"{total} done, {p.in_flight} open, {p.failed} failed, {(ended1 - ended0) / span:.1f} req/s, "
            f"~{max(tokens1 - tokens0, 0) / span:,.0f} tok/s, {_clock(left)} left"
        )
        width = min(30, columns - len(text) - 9)  # the bar takes what room there is
        filled = round(width * share)
        bar = f" [{'#' * filled}{'.' * (width - filled)}]" if width >= 5 else ""
        return f"{share:4.0%}{bar} {text}"[: columns - 1]

    def _wipe(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def _clock(s: float) -> str:
    return f"{int(s) // 60}:{int(s) % 60:02d}"
