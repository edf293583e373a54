"""One line on stderr while a load runs. Cheap to draw, and never waited for: the wire calls it."""

import select
import shutil
import sys
import time

from dyno.cli.terminal import draw
from dyno.conduct.session import Watcher
from dyno.load.progress import Progress
from dyno.units import NS_PER_MS, seconds

_EVERY_S = 0.2


class Rates:
    """Over the last few seconds, from what the wire tells. For the eye, not for results."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, float, int, int]] = []  # time, ended, tokens, firsts, their ns

    def see(self, now: float, p: Progress) -> None:
        self._seen.append((now, p.ended, p.tokens_estimate, p.firsts, p.first_ns))
        del self._seen[:-15]

    def clear(self) -> None:
        self._seen.clear()

    def text(self, p: Progress) -> str:
        (t0, ended0, tokens0, firsts0, ns0), (t1, ended1, tokens1, firsts1, ns1) = self._seen[0], self._seen[-1]
        span = t1 - t0 or 1.0
        firsts, first_ns = (firsts1 - firsts0, ns1 - ns0) if firsts1 > firsts0 else (firsts1, ns1)
        ttft = f", TTFT ~{first_ns / firsts / NS_PER_MS:,.0f} ms" if firsts else ""
        total = f"{p.ended}/{p.count}" if p.until_s is None else f"{p.ended}"
        return (
            f"{total} done, {p.in_flight} open, {p.failed} failed, {(ended1 - ended0) / span:.1f} req/s, "
            f"~{max(tokens1 - tokens0, 0) / span:,.0f} tok/s{ttft}, {clock(_left_s(p)) if share_done(p) else '?'} left"
        )


def share_done(p: Progress) -> float:
    done = p.ended / p.count if p.until_s is None else seconds(p.elapsed_ns) / p.until_s
    return min(1.0, max(done, 0.0))


def _left_s(p: Progress) -> float:
    share, elapsed = share_done(p), seconds(p.elapsed_ns)
    return elapsed / share - elapsed if share > 0 else 0.0


def bar(share: float, width: int) -> str:
    filled = round(width * share)
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def clock(s: float) -> str:
    hours, minutes = divmod(int(s) // 60, 60)
    return f"{hours}:{minutes:02d}:{int(s) % 60:02d}" if hours else f"{minutes}:{int(s) % 60:02d}"


def iteration_text(done: int, warmups: int, measured: int, took_s: float) -> str:
    left = clock((warmups + measured - done) * took_s)
    which = f"warm-up {done}/{warmups}" if done <= warmups else f"iteration {done - warmups}/{measured}"
    return f"{which}, the last took {took_s:.2f} s, about {left} left"


def writable() -> bool:
    """A terminal that was stopped with Ctrl-S must not stop the load."""
    return bool(select.select([], [sys.stderr], [], 0)[1])


class Line(Watcher):
    def __init__(self, bar: bool = True) -> None:
        self._bar = bar and sys.stderr.isatty()
        self._drawn = False
        self._next = 0.0
        self._rates = Rates()

    def phase(self, text: str) -> None:
        self._wipe()
        if text:
            print(f"{text} …", file=sys.stderr, flush=True)

    def over(self) -> None:
        self._wipe()
        self._rates.clear()

    def progress(self, p: Progress) -> None:
        now = time.monotonic()
        if not self._bar or now < self._next:
            return
        self._next = now + _EVERY_S
        self._rates.see(now, p)
        if writable():
            self._drawn = True
            draw("\r", self._text(p, shutil.get_terminal_size().columns), "\x1b[K")

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        now = time.monotonic()
        if not self._bar or (now < self._next and done < warmups + measured):
            return
        self._next = now + _EVERY_S
        if writable():
            self._drawn = True
            share = done / (warmups + measured)
            text = f"{share:4.0%} {bar(share, 20)} {iteration_text(done, warmups, measured, took_s)}"
            draw("\r", text[: shutil.get_terminal_size().columns - 1], "\x1b[K")

    def within(self, done: int, count: int) -> None:
        if self._bar and writable():
            self._drawn = True
            draw("\r", f"{bar(done / count, 20)} {done}/{count} requests of this iteration", "\x1b[K")

    def _text(self, p: Progress, columns: int) -> str:
        text = self._rates.text(p)
        share = share_done(p)
        width = min(30, columns - len(text) - 9)  # the bar takes what room there is
        drawn = f" {bar(share, width)}" if width >= 5 else ""
        return f"{share:4.0%}{drawn} {text}"[: columns - 1]

    def _wipe(self) -> None:
        if self._drawn:
            draw("\r\x1b[K", "")
            self._drawn = False
