"""Kinds of schedulers, loads and ways of delivery, drawn by a seed; and how far explain's parts are from the truth."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dyno.explain.columns import columns
from dyno.explain.explain import totals
from dyno.explain.split import Split, split
from schedulers import Load, Rules, Simulated, simulate

WITHIN = 0.05  # of the truth
WIDEST = 0.15  # of the latency: bounds
ALL = ("queue", "prefill", "decode")
CLAIMS: tuple[tuple[str, ...], ...] = ((), ALL, ("prefill", "decode"), ("queue",))
Delivery = Callable[[random.Random, int, float], float]


def growing(rng: random.Random, number: int, made: float) -> float:
    return 0.2 + 0.5 * number


def in_blocks(rng: random.Random, number: int, made: float) -> float:
    return 80 - made % 80


def jittery(rng: random.Random, number: int, made: float) -> float:
    return rng.expovariate(1 / 4)


def some_late(rng: random.Random, number: int, made: float) -> float:
    return 0.2 if rng.random() < 0.98 else 60.0


def far_behind(rng: random.Random, number: int, made: float) -> float:
    return 6.0 * number


# What a scheduler does differently from the plain one. Each may come with others.
SCHEDULERS: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "whole prompts": lambda rng: {},
    "several prompts a step": lambda rng: {"prefills_at_once": rng.choice([2, 4, 16])},
    "shortest first": lambda rng: {"order": "shortest"},
    "priority classes": lambda rng: {"order": "priority"},
    "last come, first served": lambda rng: {"order": "last"},
    "small chunks": lambda rng: {"chunk": rng.randint(72, 160), "prefills_at_once": 4},
    "large chunks": lambda rng: {"chunk": rng.randint(512, 4096), "prefills_at_once": 16},
    "decodes first": lambda rng: {"decode_first": True},
    "prompts on another machine": lambda rng: {"apart": True},
    "batches of a fixed size": lambda rng: {"batch": 8, "prefills_at_once": 8},
    "streams in turns": lambda rng: {"turns": rng.randint(3, 12)},
    "a lane for each adapter": lambda rng: {"lanes": rng.randint(2, 4)},
    "preempts and recomputes": lambda rng: {"kv_tokens": rng.randint(2500, 6000), "prefills_at_once": 4},
    "preempts and swaps": lambda rng: {
        "kv_tokens": rng.randint(2500, 6000), "prefills_at_once": 4, "swap_ms": 0.02,
    },
    "a cache of prompts": lambda rng: {"cached": rng.random(), "cached_reported": rng.random() < 0.5},
    "drafted tokens": lambda rng: {"drafted": rng.randint(1, 4), "drafted_together": rng.random() < 0.5},
    "several steps at a time": lambda rng: {"multistep": rng.randint(2, 8), "events_of_steps": rng.random() < 0.5},
    "admission at ticks": lambda rng: {"tick_ms": rng.choice([20.0, 50.0, 100.0])},
    "two to four workers": lambda rng: {"workers": rng.randint(2, 4)},
}  # fmt: skip
HAZARDS: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "steps vary": lambda rng: {"sigma": rng.uniform(0.1, 0.6)},
    "steps grow with contexts": lambda rng: {"context_ms": rng.uniform(0.2, 2.0)},
    "a machine that slows down": lambda rng: {"slower": rng.uniform(0.2, 3.0)},
    "halts": lambda rng: {"halt_ms": rng.uniform(50, 400), "halt_every_ms": rng.uniform(500, 4000)},
    "one freeze": lambda rng: {"halt_ms": rng.uniform(1000, 5000), "halt_every_ms": 3000, "halts": 1},
    "a noisy neighbour": lambda rng: {"neighbour": rng.uniform(0.1, 0.6)},
    "a slow front end": lambda rng: {"front_ms": rng.uniform(1, 8), "front_token_ms": rng.uniform(0, 0.02)},
    "a front end that blocks": lambda rng: {
        "front_ms": rng.uniform(1, 8), "front_token_ms": rng.uniform(0, 0.02), "front_blocks": True,
    },
    "a gateway with a limit": lambda rng: {"gate_rps": rng.uniform(5, 40)},
    "a proxy that collects": lambda rng: {"proxy_chunks": rng.randint(2, 12)},
    "a proxy with a rate": lambda rng: {"proxy_rate": rng.uniform(40, 160)},
    "a far network": lambda rng: {"network_ms": rng.uniform(1, 40)},
    "growing delivery": lambda rng: {"delivery": growing},
    "delivery in blocks": lambda rng: {"delivery": in_blocks},
    "jittery delivery": lambda rng: {"delivery": jittery},
    "some tokens late": lambda rng: {"delivery": some_late},
    "delivery far behind": lambda rng: {"delivery": far_behind},
}  # fmt: skip


class Kind(NamedTuple):
    name: str
    rules: Rules
    load: Load


def drawn(
    seed: int, scheduler: str | None = None, hazards: Sequence[str] | None = None
) -> Kind:
    """Return a scheduler with up to two hazards, and a load."""
    rng = random.Random(seed)
    scheduler = scheduler or rng.choice([*SCHEDULERS])
    if hazards is None:
        hazards = rng.sample([*HAZARDS], rng.choice([0, 0, 1, 1, 2]))
    changes: dict[str, object] = {
        "slots": rng.choice([4, 8, 16, 32, 64]),
        "step_ms": rng.uniform(4, 20),
        "stream_ms": rng.uniform(0.02, 0.4),
        "token_ms": rng.uniform(0.01, 0.2),
        "seed": seed,
    }
    for name in hazards:
        changes |= HAZARDS[name](rng)
    changes |= SCHEDULERS[scheduler](rng)
    rules = Rules(**changes)  # type: ignore[arg-type]
    load = _load(rng, rules)
    return Kind(", ".join([scheduler, *hazards]), rules, load)


def _load(rng: random.Random, rules: Rules) -> Load:
    prompt = rng.choice([(20, 60), (64, 256), (200, 800), (500, 2000)])
    output = rng.choice([(1, 8), (16, 48), (32, 96), (64, 256)])
    if rules.kv_tokens is not None:
        prompt, output = (50, 150), (100, 300)
    at_a_rate = rng.random() < 0.4
    return Load(
        count=rng.choice([100, 200, 400]),
        concurrency=None if at_a_rate else rng.choice([1, 4, 16, 48, 96]),
        rate=rng.uniform(2, 60) if at_a_rate else None,
        burst=rng.choice([1, 1, 10]),
        prompt=prompt,
        output=output,
        long_every=rng.choice([0, 0, 0, 10, 25]) if rules.kv_tokens is None else 0,
        connect_ms=rng.choice([0, 0, 5.0]),
        priorities=3,
        seed=rng.randrange(1000),
    )


class Wrong(NamedTuple):
    """A part that is neither near the truth nor within narrow bounds. All in shares of the latency."""

    title: str
    value: float
    low: float
    high: float
    truth: float

    @property
    def by(self) -> float:
        return max(
            self.low - self.truth, self.truth - self.high, self.high - self.low - WIDEST
        )

    def __str__(self) -> str:
        shares = " ".join(
            f"{100 * each:.1f}" for each in (self.value, self.low, self.high, self.truth)
        )
        return f"{self.title}: value, low, high, truth (%) {shares}"


def wrong_parts(run: Simulated, s: Split) -> list[Wrong]:
    latency = float(s.latency.sum())
    *parts, rest = totals(s.parts, s.latency)
    out = []
    for part in parts:
        shares = (part.total_ns, part.low_ns, part.high_ns, run.truth(part.covers) * 1e6)
        value, low, high, truth = (each / latency for each in shares)
        inside = high - low <= WIDEST and low - 1e-6 <= truth <= high + 1e-6
        if not inside and abs(value - truth) > WITHIN * truth:
            out.append(Wrong(part.title, value, low, high, truth))
    if abs(rest.share) >= WITHIN:
        out.append(Wrong(rest.title, rest.share, 0, 0, 0))
    return out


def explained(run: Simulated, counted: bool = False) -> Split:
    """`counted`: the server says how many requests it has preempted."""
    return split(columns(run.records), preemptions=run.preemptions if counted else None)


def run_of(kind: Kind, claims: Sequence[str] = ()) -> Simulated:
    return simulate(kind.rules, kind.load, claims)
