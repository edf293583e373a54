"""Parts against kinds of schedulers, hazards and loads that are drawn by a seed: nothing of explain is made for one of
them."""

import pytest

from kinds import CLAIMS, HAZARDS, SCHEDULERS, Kind, drawn, explained, run_of, wrong_parts

SEEDS, BATCH = 1000, 50


def wrong(kind: Kind, seed: int) -> list[str]:
    """Return the parts that are neither near the truth nor within narrow bounds."""
    run = run_of(kind, CLAIMS[seed % len(CLAIMS)])
    s = explained(run, counted=seed % 3 == 0)
    assert (sum(p.value for p in s.parts) == s.latency).all()
    return [f"{seed}: {kind.name}: {part}" for part in wrong_parts(run, s)]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_part_of_a_kind_of_scheduler_is_wrong(scheduler: str) -> None:
    assert not wrong(drawn(0, scheduler, ()), 0)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_no_part_of_a_server_or_a_way_with_a_hazard_is_wrong(hazard: str) -> None:
    schedulers = ["whole prompts", "small chunks"]
    kinds = [(drawn(n, name, [hazard]), n) for n, name in enumerate(schedulers)]
    assert not [w for kind, n in kinds for w in wrong(kind, n)]


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_part_of_a_thousand_schedulers_is_wrong(first: int) -> None:
    assert not [w for n in range(first, first + BATCH) for w in wrong(drawn(n), n)]


def test_some_of_these_schedulers_have_stalls_of_their_own() -> None:
    """A part that covers everything would never be wrong."""
    kinds = [drawn(n) for n in range(10)]
    parts = [part for kind in kinds for part in explained(run_of(kind)).parts]
    alone = [p for p in parts if p.covers == ("stall",) and p.value.any()]
    assert len(alone) >= 2
