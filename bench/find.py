"""How often `dyno find` is right about servers whose truth is known: the search and the judge of the real command, in
simulated time.

    python bench/find.py                        the whole table, about 15 minutes on two cores
    python bench/find.py --seeds 50 --only M/M  a few
    python bench/find.py --markdown             as METHOD.md has it
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from servers import Server, requests_of, servers

from dyno.facts.find import RANGES, Look
from dyno.measure.judge import Judge
from dyno.measure.search import Probe, Search, Step, enough, looks

SEEDS = 1000
BUDGET_S = 300.0
PROBE_S = 0.7  # that a probe costs beside its load


class Found(NamedTuple):
    low: float
    high: float
    best: tuple[float, float, float]
    spent_s: float
    requests: int
    needs_s: float | None
    probes: int
    every: bool
    none: bool


def probe(server: Server, search: Search, step: Step, rng: np.random.Generator, begins_s: float) -> tuple[Look, int]:
    """Make one probe: as long as the real command would."""
    wave = int(step.level) if server.over == "concurrency" else 0
    judge = Judge(search.limits, wave, server.turns, search.factors(step.level))
    load = server.load(step.level, rng, begins_s)
    for now_s in looks(step):
        load.until(now_s)
        requests = requests_of(load, server.limits)
        look = judge.look(requests, now_s)
        if enough(search, step, look):
            break
    return look, int(np.searchsorted(requests.sent, look.now_s))


def find(server: Server, seed: int, budget_s: float = BUDGET_S, resolution: float = 0.05, trace: bool = False) -> Found:
    rng = np.random.default_rng(seed)
    start = min(max(RANGES[server.over][2], server.least), server.most)
    search = Search(server.limits, server.least, server.most, whole=server.over == "concurrency", start=start,
                    resolution=resolution)  # fmt: skip
    spent_s, sent = 0.0, 0
    phase = float(rng.uniform(0, 1000))
    while budget_s - spent_s > 1.0 and (step := search.next(budget_s - spent_s, spent_s)):
        look, count = probe(server, search, step, rng, phase + spent_s)
        took_s = look.now_s + PROBE_S
        search.add(Probe(step.level, look, step.brief, took_s, spent_s))
        spent_s, sent = spent_s + took_s, sent + count
        if trace:
            w = look.weighed[0] if look.weighed else None
            print(f"{spent_s:6.1f} {step.level:7.4g} {'brief' if step.brief else 'long '} {took_s:5.1f}/{step.most_s:5.1f} "
                  f"n={look.count} ready={look.ready} " + (f"worth={w.worth:.0f} f={w.factor:.1f} high={w.high:.3f} "
                  f"low={w.low:.3f} m={w.margin:+.3f}±{w.error or 9:.3f} " if w else "")
                  + f"strength={search.strength(step.level)} {search.outcome(step.level)}/{search.shown(step.level)} "
                  f"grows={look.grows} swells={look.swells} x={search.crossing():.2f}")  # fmt: skip
    known, best = search.interval(), search.best()
    more = search.time_needed()
    return Found(
        known.low, known.high, (best.low, best.high, best.confidence), spent_s, sent,
        None if more is None else more + spent_s, len(search.probes),
        known.low == server.most, known.high == server.least,
    )  # fmt: skip


class Row(NamedTuple):
    name: str
    seeds: int
    answered: float
    holds: float | None  # of those answered
    false: float  # of all: an end shown that is wrong
    narrow: float  # of all: answered within a factor of 2
    above: int  # a low end above what is served
    width: float
    requests: float
    spent_s: float
    needs_s: float


def row(server: Server, found: Sequence[Found]) -> Row:
    truth = server.truth
    answered = [f for f in found if _answered(f)]
    right = [f for f in answered if f.low <= truth <= f.high]
    wrong = [f for f in found if f.low > truth or f.high < truth]
    narrow = [f for f in answered if f.every or f.none or f.high / f.low <= 2.0001]
    widths = [f.high / f.low for f in answered if f.low and math.isfinite(f.high)]
    needs = [f.needs_s for f in found if not _answered(f) and f.needs_s]
    return Row(
        server.name, len(found), len(answered) / len(found), len(right) / len(answered) if answered else None,
        len(wrong) / len(found), len(narrow) / len(found), sum(f.low >= server.served for f in found),
        float(np.median(widths)) if widths else math.nan, float(np.mean([f.requests for f in found])),
        float(np.mean([f.spent_s for f in found])), float(np.median(needs)) if needs else math.nan,
    )  # fmt: skip


def _answered(f: Found) -> bool:
    return f.every or f.none or (f.low > 0 and math.isfinite(f.high))


def _one(job: tuple[str, range, float]) -> list[Found]:
    name, seeds, budget_s = job
    return [find(servers()[name], seed, budget_s) for seed in seeds]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trace", type=int, default=None)
    options = parser.parse_args()
    names = [name for name in servers() if options.only in name]
    if options.trace is not None:
        for name in names:
            server = servers()[name]
            print(name, server.truth)
            print(find(server, options.trace, options.budget, trace=True))
        return 0
    print(f"{'model':28} truth answered holds false narrow above width requests  s  needs  cpu-ms")
    with ProcessPoolExecutor(options.workers) as pool:
        for name in names:
            began = time.perf_counter()
            parts = [range(i, options.seeds, options.workers) for i in range(options.workers)]
            found = [f for each in pool.map(_one, [(name, p, options.budget) for p in parts]) for f in each]
            r = row(servers()[name], found)
            took = (time.perf_counter() - began) * options.workers / options.seeds * 1e3
            holds = "    -" if r.holds is None else f"{r.holds:5.1%}"
            print(f"{name:28} {servers()[name].truth:5.4g} {r.answered:6.0%} {holds} {r.false:6.1%} {r.narrow:6.0%} "
                  f"{r.above:4} {r.width:6.2f} {r.requests:8.0f} {r.spent_s:4.0f} {r.needs_s:6.0f} {took:6.0f}", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
