"""What looks like a stall and is none: halts at any interval, steps that grow with the queue. Bounds contain the
simulator's truth, or stalls are one part with decoding."""

import pytest

from kinds import ALL, explained, wrong_parts
from schedulers import Load, Rules, simulate

Claims = tuple[str, ...]


@pytest.mark.parametrize("claims", [(), ALL])
@pytest.mark.parametrize(
    ("halt_ms", "every_ms", "rate"), [(100, 700, 10), (150, 1500, 8), (250, 2000, 5)]
)
def test_halts_are_not_stalls_where_requests_come_at_even_intervals(
    halt_ms: float, every_ms: float, rate: float, claims: Claims
) -> None:
    """The time between two requests is too short for such a halt: quiet time shows none of them."""
    rules = Rules(slots=32, halt_ms=halt_ms, halt_every_ms=every_ms, seed=2)
    load = Load(count=250, concurrency=None, rate=rate, seed=2)
    run = simulate(rules, load, claims)
    assert not wrong_parts(run, explained(run))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("steps", "halt_ms"), [(16, 40), (32, 60), (32, 120), (64, 100)])
def test_a_halt_after_a_number_of_steps_is_not_a_stall(
    steps: int, halt_ms: float, seed: int
) -> None:
    rules = Rules(slots=32, halt_ms=halt_ms, halt_steps=steps, seed=seed)
    for rate in (6, 10):
        run = simulate(rules, Load(count=250, concurrency=None, rate=rate, seed=seed))
        assert not wrong_parts(run, explained(run))


@pytest.mark.parametrize("chunk", [None, 128])
@pytest.mark.parametrize("waiting_ms", [0.05, 0.1, 0.2])
@pytest.mark.parametrize(("rate", "burst"), [(6, 20), (8, 40), (6, 60)])
def test_steps_that_grow_with_the_queue_are_not_stalls(
    waiting_ms: float, rate: float, burst: int, chunk: int | None
) -> None:
    """Gaps without a waiting request never show it."""
    at_once = 1 if chunk is None else 4
    rules = Rules(slots=16, waiting_ms=waiting_ms, chunk=chunk, prefills_at_once=at_once)
    run = simulate(rules, Load(count=240, concurrency=None, rate=rate, burst=burst))
    assert not wrong_parts(run, explained(run))


@pytest.mark.parametrize("chunk", [None, 256])
@pytest.mark.parametrize(("rate", "burst"), [(8, 30), (6, 20), (8, 60)])
def test_a_machine_that_prompts_heat_has_longer_quiet_steps_than_others(
    rate: float, burst: int, chunk: int | None
) -> None:
    """Quiet gaps come after a burst, when it is warm."""
    at_once = 1 if chunk is None else 4
    rules = Rules(slots=16, heat=0.4, chunk=chunk, prefills_at_once=at_once)
    run = simulate(rules, Load(count=300, concurrency=None, rate=rate, burst=burst))
    assert not wrong_parts(run, explained(run))


def test_a_prompt_of_many_chunks_does_not_count_as_a_growing_step() -> None:
    """More requests wait, the longer a prompt takes; its steps are longer all the same while one waits."""
    run = simulate(Rules(chunk=512), Load(long_every=10))
    s = explained(run)
    assert any(p.covers == ("stall",) for p in s.parts)
    assert not wrong_parts(run, s)
