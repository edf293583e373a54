"""How often `dyno find` is right about servers whose truth is known: the search and the judge of the real command, in
simulated time (bench/servers.py, bench/strange_servers.py, bench/production_servers.py).

    python bench/find.py                        the whole table
    python bench/find.py --seeds 1000           the same, closer; an hour on two cores
    python bench/find.py --seeds 50 --only M/M  a few
    python bench/find.py --markdown             as METHOD.md has it
    python bench/find.py --only M/M/1 --trace 3 one search, probe by probe

`answered`: both ends are shown, or every load or none is, within five minutes; `holds`: of these, the share whose
interval contains the truth; `wrong`: of all searches, those that show an end which is wrong; `within 2`: answered with
ends at most a factor of 2 apart. `needs`: of the others, what they say they need; `then`: the share of these that
answer, rightly, if they get it. `grid`: requests of a grid of loads that is as fine, each with as many requests as the
load that took most.

It exits with 1 if a promise isn't kept: intervals hold in 93 % or more, and no load above what a server serves is
shown to meet its target. Of servers that are slower than any probe nothing is promised.
"""

import argparse
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from every_server import EVERY, server
from servers import Server, requests_of

from dyno.facts.find import RANGES, ProbeLook
from dyno.search.judge import Judge
from dyno.search.search import Probe, ProbeStep, Search, enough, looks

SEEDS = 60
BUDGET_S = 300.0
PROBE_S = 0.7  # that a probe costs beside its load
HOLDS = 0.93
_FACTOR = 2.0001
_AGAIN = 20  # searches that get the time which they say they need
_LONGEST_S = 1800.0  # those that need more are not tried
_AHEAD = 3  # models that are begun before one has ended


class Found(NamedTuple):
    """The answer of one search."""

    low: float
    high: float
    spent_s: float
    requests: int
    needs_s: float | None
    every: bool
    none: bool
    grid: float

    @property
    def answered(self) -> bool:
        return self.every or self.none or (self.low > 0 and math.isfinite(self.high))


def probe(
    model: Server,
    search: Search,
    step: ProbeStep,
    rng: np.random.Generator,
    begins_s: float,
) -> tuple[ProbeLook, int]:
    """Make one probe: as long as the real command would."""
    wave = int(step.level) if model.over == "concurrency" else 0
    judge = Judge(
        search.limits,
        wave,
        model.turns,
        search.alike_nearby(step.level),
        search.start_nearby(step.level),
    )
    load = model.load(step.level, rng, begins_s)
    for now_s in looks(step):
        load.until(now_s)
        requests = requests_of(load, model.limits)
        look = judge.look(requests, now_s)
        if enough(step, look):
            break
    return look, int(np.searchsorted(requests.sent, look.now_s))


def find(
    model: Server,
    seed: int,
    budget_s: float = BUDGET_S,
    resolution: float = 0.05,
    trace: bool = False,
) -> Found:
    """Search, as `dyno find` does, in simulated time."""
    rng = np.random.default_rng(seed)
    start = min(max(RANGES[model.over][2], model.least), model.most)
    whole = model.over == "concurrency"
    search = Search(
        model.limits,
        model.least,
        model.most,
        whole=whole,
        start=start,
        resolution=resolution,
    )
    spent_s, sent = 0.0, 0
    phase_s = float(rng.uniform(0, 1000)) if model.phased else 0.0
    while budget_s - spent_s > 1.0 and (step := search.next(budget_s - spent_s, spent_s)):
        look, count = probe(model, search, step, rng, phase_s + spent_s)
        took_s = look.now_s + PROBE_S
        search.add(Probe(step.level, look, step.brief, took_s, spent_s))
        spent_s, sent = spent_s + took_s, sent + count
        if trace:
            print(_describe(search, step, look, spent_s))
    known, more_s = search.interval(), search.time_needed()
    return Found(
        known.low, known.high, spent_s, sent, None if more_s is None else 1.2 * (more_s + spent_s),
        known.low == model.most, known.high == model.least, _grid(model, search),
    )  # fmt: skip


def _grid(model: Server, search: Search) -> float:
    """Requests of a grid as fine as the answer, each load with as many as the one that took most."""
    known = search.interval()
    if not known.low or math.isinf(known.high):
        return math.nan
    each = max(
        sum(p.look.count for p in search.probes_at(x)) for x in (known.low, known.high)
    )
    return each * math.log(model.most / model.least) / math.log(known.high / known.low)


def _describe(search: Search, step: ProbeStep, look: ProbeLook, spent_s: float) -> str:
    words = [f"{spent_s:6.1f}", f"{step.level:7.4g}", "brief" if step.brief else "long ", f"{look.now_s:5.1f}",
             f"n={look.count}", f"ready={look.ready}"]  # fmt: skip
    for w in look.weighed:
        words.append(
            f"worth={w.worth:.0f} alike={w.alike:.1f} late={w.late_low:.3f}-{w.late_high:.3f} x{w.factor:.1f}"
        )
        words.append(f"margin={w.margin_low:+.3f} {w.margin:+.3f} {w.margin_high:+.3f}")
    if step.level not in search.left_out:
        meets, misses = search.meets(step.level), search.misses(step.level)
        words.append(f"meets={meets.doubt:.1e} misses={misses.doubt:.1e}")
    words.append(search.outcome(step.level))
    words.append(f"crossing={search.crossing():.2f} spread={search.variation().spread:.3f}")
    return " ".join(words)


class Row(NamedTuple):
    model: Server
    truth: float
    seeds: int
    answered: float
    holds: float | None  # None: none was answered
    wrong: float
    narrow: float
    above: int  # a low end at or above what is served
    width: float
    requests: float
    grid: float
    spent_s: float
    needs_s: float
    then: float

    @property
    def kept(self) -> bool:
        return self.model.slower or (self.above == 0 and self.wrong <= 1 - HOLDS)

    @property
    def cells(self) -> list[str]:
        return [
            self.model.name, f"`{self.model.target}`", _number(self.truth), f"{self.answered:.0%}",
            "–" if self.holds is None else f"{self.holds:.1%}", f"{self.wrong:.1%}", f"{self.narrow:.0%}",
            _number(self.width), _number(self.requests), _number(self.grid), f"{self.spent_s:.0f}",
            _number(self.needs_s / 60), "–" if math.isnan(self.then) else f"{self.then:.0%}",
        ]  # fmt: skip


TITLES = ["server", "target", "truth", "answered", "holds", "wrong", "within 2", "width", "requests", "grid", "s",
          "needs, min", "then"]  # fmt: skip


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "every load"
    return "none" if value == 0 else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def row(model: Server, truth: float, found: Sequence[Found], again: Sequence[Found]) -> Row:
    answered = [f for f in found if f.answered]
    right = [f for f in answered if f.low <= truth <= f.high]
    widths = [f.high / f.low for f in answered if f.low and math.isfinite(f.high)]
    needs = [f.needs_s for f in found if not f.answered and f.needs_s]
    then = [f.answered and f.low <= truth <= f.high for f in again]
    return Row(
        model=model,
        truth=truth,
        seeds=len(found),
        answered=len(answered) / len(found),
        holds=len(right) / len(answered) if answered else None,
        wrong=sum(f.low > truth or f.high < truth for f in found) / len(found),
        narrow=sum(f.every or f.none or f.high / f.low <= _FACTOR for f in answered)
        / len(found),
        above=sum(f.low >= model.served for f in found),
        width=float(np.median(widths)) if widths else math.nan,
        requests=float(np.mean([f.requests for f in found])),
        grid=float(np.nanmedian([f.grid for f in answered])) if widths else math.nan,
        spent_s=float(np.mean([f.spent_s for f in found])),
        needs_s=float(np.median(needs)) if needs else math.nan,
        then=float(np.mean(then)) if then else math.nan,
    )


def _searches(name: str, seeds: Sequence[tuple[int, float]]) -> list[Found]:
    return [find(server(name), seed, budget_s) for seed, budget_s in seeds]


def _truth(name: str) -> float:
    return server(name).truth


class _Jobs:
    """Searches of some models, in several processes: those of the next models fill the time while one ends."""

    def __init__(
        self, pool: ProcessPoolExecutor, seeds: int, workers: int, budget_s: float
    ) -> None:
        self._pool, self._workers = pool, workers
        self._seeds = [(seed, budget_s) for seed in range(seeds)]

    def begin(self, name: str) -> "_Begun":
        return _Begun(
            name, self._pool.submit(_truth, name), self._shared(name, self._seeds)
        )

    def again(self, begun: "_Begun") -> "_Again":
        """Give those that were undecided the time that they said they need."""
        found = _joined(begun.searches)
        open_ = [
            (1_000_000 + i, f.needs_s)
            for i, f in enumerate(found)
            if not f.answered and f.needs_s and f.needs_s <= _LONGEST_S
        ]
        again = self._shared(begun.name, open_[:_AGAIN])
        return _Again(begun.name, begun.truth, found, again)

    def _shared(
        self, name: str, seeds: Sequence[tuple[int, float]]
    ) -> list["Future[list[Found]]"]:
        parts = [seeds[i :: self._workers] for i in range(self._workers)]
        return [self._pool.submit(_searches, name, part) for part in parts if part]


class _Begun(NamedTuple):
    name: str
    truth: "Future[float]"
    searches: list["Future[list[Found]]"]


class _Again(NamedTuple):
    name: str
    truth: "Future[float]"
    found: list[Found]
    again: list["Future[list[Found]]"]


def _joined(parts: Sequence["Future[list[Found]]"]) -> list[Found]:
    return [found for part in parts for found in part.result()]


def rows(names: Sequence[str], seeds: int, workers: int, budget_s: float) -> Iterator[Row]:
    with ProcessPoolExecutor(workers) as pool:
        jobs = _Jobs(pool, seeds, workers, budget_s)
        begun: deque[_Begun] = deque()
        again: deque[_Again] = deque()
        for name in names:
            begun.append(jobs.begin(name))
            if len(begun) > _AHEAD:
                again.append(jobs.again(begun.popleft()))
            if len(again) > _AHEAD:
                yield _row_of(again.popleft())
        again.extend(jobs.again(each) for each in begun)
        yield from map(_row_of, again)


def _row_of(again: _Again) -> Row:
    found = _joined(again.again)
    return row(server(again.name), again.truth.result(), again.found, found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--only",
        default="",
        help="models whose name contains this, or one of these parts, with |",
    )
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--trace", type=int, default=None, metavar="SEED")
    options = parser.parse_args()
    parts = options.only.split("|")
    names = [name for name in EVERY if any(part in name for part in parts)]
    if options.trace is not None:
        for name in names:
            print(f"{name}: the truth is {server(name).truth:g}")
            print(find(server(name), options.trace, options.budget, trace=True))
        return 0
    began, kept = time.monotonic(), True
    if options.markdown:
        print(f"| {' | '.join(TITLES)} |\n|---|---|{'---:|' * (len(TITLES) - 2)}")
    else:
        print(
            "  ".join(
                [
                    f"{TITLES[0]:26}",
                    f"{TITLES[1]:26}",
                    *(f"{title:>10}" for title in TITLES[2:]),
                ]
            )
        )
    for each in rows(names, options.seeds, options.workers, options.budget):
        kept = kept and each.kept
        cells = each.cells
        line = f"| {' | '.join(cells)} |"
        if not options.markdown:
            line = "  ".join(
                [f"{cells[0]:26}", f"{cells[1]:26}", *(f"{cell:>10}" for cell in cells[2:])]
            )
        print(line + ("" if each.kept or options.markdown else "  BROKEN"), flush=True)
    print(
        f"{options.seeds} searches of each server, {time.monotonic() - began:.0f} s",
        file=sys.stderr,
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
