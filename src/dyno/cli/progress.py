"""Progress on stderr: one line while a load runs, a few that stay in place for a study, plain lines without a terminal.

The wire calls it, so it draws by hand and never waits: a table drawn by a library would take the loop's time.
"""

import contextlib
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Self

from dyno.cli.terminal import draw
from dyno.facts.metric import speed_title
from dyno.facts.offline import OfflineSummary
from dyno.facts.record import INTERRUPTED
from dyno.facts.study import PlannedTrial
from dyno.facts.summary import Result
from dyno.facts.telemetry import Sample
from dyno.load.progress import Progress
from dyno.numbers import clock, count, deviating, duration, many, number, percent
from dyno.probe.telemetry.sampler import Sampler
from dyno.report import find, quality, tune
from dyno.screen import wrapped
from dyno.study.duration import TimeLeft, trial_s
from dyno.trial.outcome import Outcome
from dyno.trial.watcher import StudyWatcher, TrialEnd, Watcher
from dyno.units import NS_PER_MS, seconds
from dyno.visible import visible

_EVERY_S, _STUDY_EVERY_S, _CLOCK_EVERY_S = 0.2, 0.4, 1.0
_PLAIN_EVERY_S = 30.0  # without a terminal, while a step takes long
_WINDOW_S = 3.0  # of live rates


class Rates:
    """Rates over the last seconds of a load, as the wire reports them. For the eye, not for results."""

    def __init__(self) -> None:
        # time since the load began, ended, events
        self._seen: list[tuple[float, int, float]] = []
        self._now: Progress | None = None

    def see(self, p: Progress) -> None:
        now = seconds(p.elapsed_ns)
        if not self._seen or now < self._seen[-1][0]:  # another load has begun
            self._seen = [(0.0, 0, 0.0)]
        # else the processes of the client have reported nothing new
        if now > self._seen[-1][0]:
            self._seen.append((now, p.ended, p.events))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_S:
            del self._seen[0]
        self._now = p

    def clear(self) -> None:
        self._seen.clear()

    @property
    def _span_s(self) -> float:
        return self._seen[-1][0] - self._seen[0][0] or 1.0

    @property
    def requests_per_s(self) -> float:
        return (self._seen[-1][1] - self._seen[0][1]) / self._span_s

    @property
    def tokens_per_s(self) -> float:
        """Return the events that arrived, times the tokens per event as known by now."""
        per_event = self._now.tokens_per_event if self._now else 1.0
        return max(self._seen[-1][2] - self._seen[0][2], 0.0) * per_event / self._span_s

    def text(self, p: Progress) -> str:
        completed = max(p.ended - p.failed, 0)
        total = f" of {p.count}" if p.until_s is None else ""
        parts = [
            f"{completed}{total} completed",
            f"{p.failed} failed",
            f"{p.in_flight} open",
            f"{number(self.requests_per_s, digits=3)} req/s",
            f"~{number(self.tokens_per_s, digits=3)} tok/s",
            *(
                [f"TTFT ~{number(median(p.recent_ns) / NS_PER_MS, digits=3)} ms"]
                if p.recent_ns
                else []
            ),
            f"{clock(_left_s(p)) if share_done(p) else '?'} left",
        ]
        return ", ".join(parts)


def share_done(p: Progress) -> float:
    done = p.ended / p.count if p.until_s is None else seconds(p.elapsed_ns) / p.until_s
    return min(1.0, max(done, 0.0))


def _left_s(p: Progress) -> float:
    share, elapsed = share_done(p), seconds(p.elapsed_ns)
    return elapsed / share - elapsed if share > 0 else 0.0


def bar(share: float, width: int) -> str:
    filled = round(width * share)
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def cut(text: str, width: int) -> str:
    """Shorten a line to a whole number of words."""
    if len(text) <= width:
        return text
    end = text.rfind(" ", 0, width)
    return text[:end] if end > 0 else text[:width]


def iteration_text(done: int, warmups: int, measured: int, took_s: float) -> str:
    left = clock((warmups + measured - done) * took_s)
    which = (
        f"warm-up {done}/{warmups}"
        if done <= warmups
        else f"iteration {done - warmups}/{measured}"
    )
    return f"{which}, last one {duration(took_s)}, about {left} left"


def writable() -> bool:
    """Return whether stderr takes text: a terminal stopped with Ctrl-S must not stop the load."""
    return bool(select.select([], [sys.stderr], [], 0)[1])


class ProgressLine(Watcher):
    """One line that a load, an iteration or a step draws over and over. Without a terminal, a step is a plain line."""

    def __init__(self, bar: bool = True) -> None:
        self._bar = bar and sys.stderr.isatty()
        self._drawn = False
        self._next = 0.0
        self._rates = Rates()
        self._began, self._below = time.monotonic(), ""  # the step
        self._said = self._began  # of the last plain line
        self._stop_clock: Callable[[], None] = lambda: None
        self._drawing = threading.Lock()  # the clock has a thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def phase(self, text: str) -> None:
        self.say(f"{text} …" if text else "")

    def say(self, text: str) -> None:
        """Print a line. A step begins with it: a clock runs below, until the next one or something better to draw."""
        self.over()
        if text:
            print(text, file=sys.stderr, flush=True)
        self._began = self._said = time.monotonic()
        self._below = ""
        if self._bar:
            self._stop_clock = _every(_CLOCK_EVERY_S, self._draw_clock)

    def below(self, text: str, stays: bool = False) -> None:
        """Show the current phase beside the clock; what stays is printed above it. Without a terminal, print a line
        every half minute: a download of gigabytes isn't silent."""
        if not stays:
            self._below = text
            now = time.monotonic()
            if self._bar or now - self._said < _PLAIN_EVERY_S:
                return
            self._said = now
            text = f"{clock(now - self._began)} {text}"
        with self._drawing:
            self._wipe()
            print(f"  {text}", file=sys.stderr, flush=True)

    def _draw_clock(self) -> None:
        with self._drawing:
            self._draw(
                f"  {clock(time.monotonic() - self._began)} {' '.join(self._below.split())}"
            )

    def sampling(self, sampler: Sampler) -> None:
        self._stop_clock()  # the load begins: no other thread takes time from it

    def over(self) -> None:
        self._stop_clock()
        self._wipe()
        self._rates.clear()

    def progress(self, p: Progress) -> None:
        if self._due():
            self._rates.see(p)
            self._draw_bar(share_done(p), self._rates.text(p))

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        share = done / (warmups + measured)
        if self._due(anyway=share == 1):
            self._draw_bar(share, iteration_text(done, warmups, measured, took_s))

    def within(self, done: int, count: int) -> None:
        if self._due():
            self._draw_bar(done / count, f"{done}/{count} requests in this iteration")

    def step(self, done: int, count: int) -> None:
        if self._due():
            left_s = (time.monotonic() - self._began) / max(done, 1) * (count - done)
            self._draw_bar(done / count, f"{done:,}/{count:,}, {clock(left_s)} left")

    def _due(self, anyway: bool = False) -> bool:
        now = time.monotonic()
        if not self._bar or (now < self._next and not anyway):
            return False
        self._stop_clock()
        self._next = now + _EVERY_S
        return True

    def _draw_bar(self, share: float, text: str) -> None:
        # the bar takes what room there is
        width = min(30, shutil.get_terminal_size().columns - len(text) - 9)
        self._draw(f"{share:4.0%}{f' {bar(share, width)}' if width >= 5 else ''} {text}")

    def _draw(self, text: str) -> None:
        if writable():
            self._drawn = True
            draw("\r", cut(text, shutil.get_terminal_size().columns - 1), "\x1b[K")

    def _wipe(self) -> None:
        if self._drawn:
            draw("\r\x1b[K", "")
            self._drawn = False


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a clock, on a terminal alone, while something takes more than a second."""
    with ProgressLine() as line:
        line.say("")
        line.below(text)
        yield


def _every(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    """Call it again and again in a thread. Return what stops that."""
    stop = threading.Event()

    def turn() -> None:
        while not stop.wait(seconds):
            act()

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(1)

    return end


class StudyView(StudyWatcher):
    def __init__(
        self,
        name: str,
        trials: Sequence[PlannedTrial],
        done: int,
        live: bool = True,
        expected_s: Mapping[str, float] | None = None,
    ) -> None:
        """`trials`: those to run; `done`: how many were done before; `expected_s`: how long each takes, by its id."""
        self._name, self._live = name, live and sys.stderr.isatty()
        known = expected_s or {}
        times_s = {p.place.id: known.get(p.place.id) or trial_s(p.trial) for p in trials}
        self._left = TimeLeft(times_s, time.monotonic())
        self._total, self._done, self._failed, self._skipped = (
            len(trials) + done,
            done,
            0,
            0,
        )
        self._trial = ""
        self._one_load = False  # the trial is one load, whose progress is its own
        self._phase = ""
        self._rates = Rates()
        self._sampler: Sampler | None = None
        self._next = 0.0
        self._drawn = 0  # lines

    def begins(self, planned: PlannedTrial) -> None:
        place = planned.place
        repeat = f" (repeat {place.repeat} of {place.repeats})" if place.repeats > 1 else ""
        self._trial = place.label + repeat
        self._one_load = planned.trial.find is None and planned.trial.quality is None

    def ended(self, planned: PlannedTrial, ending: TrialEnd) -> None:
        # else it was measured before
        measured = ending.state == "done" and bool(self._trial)
        self._left.ended(planned.place.id, measured, time.monotonic())
        self._done += ending.state == "done"
        self._failed += ending.state == "failed"
        self._skipped += ending.state == "skipped"
        self._trial = self._phase = ""
        what = (
            _in_words(ending.outcome.result)
            if ending.outcome
            else f"{ending.state}: {ending.text}"
        )
        self._wipe()
        print(
            f"{self._count()} {_name_of(planned)}: {what}{self._plain_time_left()}",
            file=sys.stderr,
            flush=True,
        )
        self._draw([])

    def cut(self, planned: PlannedTrial, outcome: Outcome) -> None:
        words = (
            f"{_name_of(planned)}, cut off: {_in_words(outcome.result)}. These figures are kept until the trial is "
            f"measured again: `dyno runs show {outcome.run.path}`"
        )
        self._wipe()
        print(*wrapped(f"{self._count()} {words}"), sep="\n", file=sys.stderr, flush=True)

    def again(self, planned: PlannedTrial, why: str) -> None:
        self._left.again(time.monotonic())
        self._wipe()
        print(
            f"{self._count()} {planned.place.label}: {why} Retrying …",
            file=sys.stderr,
            flush=True,
        )

    def remark(self, text: str) -> None:
        self._wipe()
        print(*wrapped(text), sep="\n", file=sys.stderr, flush=True)

    def phase(self, text: str) -> None:
        self._phase = text
        if self._live:
            self._draw([])
        elif not self._trial:  # a trial's own steps are in its result
            print(f"  {text} …", file=sys.stderr, flush=True)

    def below(self, text: str, stays: bool = False) -> None:
        if self._live:
            self._draw(self._indented(text))
        elif stays and not self._trial:
            print(f"    {text}", file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._live or now < self._next:
            return
        self._next = now + _STUDY_EVERY_S
        self._rates.see(progress)
        width = max(min(shutil.get_terminal_size().columns - 16, 60), 5)
        share = share_done(progress)
        if self._one_load and self._sampler is not None:  # not the warm-up
            self._left.progress(share, seconds(progress.elapsed_ns), now)
        self._draw(
            [
                *self._indented(self._rates.text(progress)),
                f"       {bar(share, width)} {share:.0%}",
            ]
        )

    def iteration(self, done: int, warmups: int, measured: int, took_s: float) -> None:
        self._left.progress(done / (warmups + measured), done * took_s, time.monotonic())
        self._draw(self._indented(iteration_text(done, warmups, measured, took_s)))

    def within(self, done: int, count: int) -> None:
        self._draw(
            self._indented(
                f"{bar(done / count, 40)} {done}/{count} requests in this iteration"
            )
        )

    def step(self, done: int, count: int) -> None:
        self._draw([f"       {bar(done / count, 40)} {done:,}/{count:,}"])

    def _indented(self, text: str) -> list[str]:
        """Return the text and the latest samples as indented lines."""
        sampled = self._sampler.latest() if self._sampler else []
        return [f"       {line}" for line in (text, *_telemetry(sampled))]

    def sampling(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def over(self) -> None:
        self._rates.clear()
        self._sampler = None

    def close(self) -> None:
        self._wipe()

    def _time_left(self) -> str:
        guess = "" if self._left.known else " (a guess)"
        return f", about {clock(self._left.seconds(time.monotonic()))} left{guess}"

    def begins_all(self) -> None:
        """Say how many trials follow, and how long they take."""
        trials = many(self._total - self._done, "trial")
        again = " left" if self._done else ""
        print(
            f"{self._name}: {trials}{again}{self._time_left()}.",
            file=sys.stderr,
            flush=True,
        )

    def _plain_time_left(self) -> str:
        """Return the time left for a line that stays. A terminal has it in the lines that are drawn anew."""
        ended = self._done + self._failed + self._skipped == self._total
        return "" if self._live or ended else self._time_left()

    def _count(self) -> str:
        return f"[{self._done + self._failed + self._skipped}/{self._total}]"

    def _draw(self, load: list[str]) -> None:
        if not self._live or not writable():
            return
        failed = f", {self._failed} failed" if self._failed else ""
        skipped = f", {self._skipped} skipped" if self._skipped else ""
        lines = [
            f"{self._name}  {self._done} of {self._total} trials done{failed}{skipped}{self._time_left()}",
            f"now    {' | '.join(filter(None, (self._phase, self._trial)))}",
            *load,
        ]
        columns = shutil.get_terminal_size().columns
        # in one piece with the rest: nothing flickers
        up = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        draw(
            up,
            "".join(
                f"{cut(visible(' '.join(line.splitlines())), columns - 1)}\n"
                for line in lines
            ),
        )
        self._drawn = len(lines)

    def _wipe(self) -> None:
        if self._drawn:
            draw(f"\x1b[{self._drawn}A\x1b[J", "")
            self._drawn = 0


class TuneView(StudyView):
    """Progress of a search among settings: how many there will be is known only roughly."""

    def __init__(self, name: str, trials: int, live: bool = True) -> None:
        super().__init__(name, [], 0, live)
        self._total = trials + 1

    def ended(self, planned: PlannedTrial, ending: TrialEnd) -> None:
        reason, log = tune.brief(ending.text)
        super().ended(
            planned, ending._replace(text=f"{reason} Log: {log}" if log else reason)
        )

    def _count(self) -> str:
        return f"[{self._done + self._failed}]"

    def _time_left(self) -> str:
        return ""  # how many loads a search needs is known at its end


def _telemetry(samples: Sequence[Sample]) -> list[str]:
    """Describe the latest samples: a line for the engine, one for accelerators or the host."""
    by_source: dict[str, list[Sample]] = {}
    for sample in samples:
        by_source.setdefault(sample.source, []).append(sample)
    lines = []
    if engines := by_source.get("engine"):
        lines.append(_engine_line([sample.values for sample in engines]))
    if cards := by_source.get("accelerator"):
        cards.sort(key=lambda sample: sample.index)
        lines.append("accelerators: " + ", ".join(map(_card, cards)))
    elif host := by_source.get("host"):
        busy = host[0].values.get("cpu_busy_cores")
        if busy is not None:
            lines.append(f"host: {number(busy)} cores busy")
    return [line for line in lines if not line.endswith(": ")]


def _engine_line(engines: list[dict[str, float]]) -> str:
    """Describe all replicas together. `engines`: the values of each."""
    parts = []
    for name, words in (("running_requests", "running"), ("waiting_requests", "waiting")):
        if name in engines[0]:
            parts.append(f"{sum(values.get(name, 0) for values in engines):g} {words}")
    shares = [values["kv_used_share"] for values in engines if "kv_used_share" in values]
    if shares:
        parts.append(f"KV cache {percent(max(shares))}")
    return "engine: " + ", ".join(parts)


def _card(sample: Sample) -> str:
    units = {
        "use_percent": (" %", 1),
        "power_w": (" W", 1),
        "memory_used_bytes": (" GiB", 2**30),
    }
    parts = []
    for name, (unit, by) in units.items():
        if name in sample.values:
            parts.append(f"{sample.values[name] / by:.0f}{unit}")
    return f"{sample.index}: {' '.join(parts)}"


def _name_of(planned: PlannedTrial) -> str:
    """Return a trial's label, with the number of its repeat."""
    repeat = f" r{planned.place.repeat}" if planned.place.repeats > 1 else ""
    return f"{planned.place.label}{repeat}"


def _in_words(result: Result) -> str:
    if result.offline is not None:
        return f"{_offline_in_words(result.offline)}, {result.verdict}"
    if result.quality is not None:
        return f"{quality.scores_line(result.quality)}, {result.verdict}"
    if result.find is not None:
        return f"{find.headline(result.find)}, {result.verdict}"
    s = result.served
    cut = s.failures.get(INTERRUPTED, 0)
    failed = f", {s.failed - cut} FAILED" if s.failed > cut else ""
    if cut:
        failed += f", {cut} still open"
    ttft = (
        ""
        if s.ttft.empty or s.ttft.median is None
        else f", TTFT p50 {number(s.ttft.median)} ms"
    )
    pace = s.true_tpot
    tpot = (
        "" if pace.empty or pace.median is None else f", TPOT p50 {number(pace.median)} ms"
    )
    speed = f"{number(s.speed.value)} {speed_title(s.speed.metric)}"
    return f"{count(s.completed)} completed{failed}, {speed}{ttft}{tpot}, {result.verdict}"


def _offline_in_words(o: OfflineSummary) -> str:
    failed = f", {o.failed} FAILED" if o.failed else ""
    if o.kind == "latency":
        return f"{deviating(o.latency.mean, o.latency.std)} ms a batch, {o.output_throughput} tok/s{failed}"
    if o.kind == "throughput":
        return (
            f"{count(o.completed)} completed{failed}, {o.output_throughput} output tok/s, "
            f"{o.request_throughput} req/s"
        )
    speeds = {"pp": o.prefill_speed, "tg": o.decode_speed}
    return (
        ", ".join(f"{name} {speed} tok/s" for name, speed in speeds.items() if speed)
        + failed
    )
