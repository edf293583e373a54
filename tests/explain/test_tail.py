"""The slowest requests: those of one wave are one group."""

from dyno.explain.explain import Explained, RunContext, explain
from dyno.report.explain import run_text
from schedulers import Load, Rules, simulate


def explained(load: Load) -> Explained:
    return explain(simulate(Rules(slots=64), load).records, RunContext("run"))


def test_slow_requests_of_one_wave_are_one_group() -> None:
    """All ten were sent at once, and got their tokens together."""
    load = Load(
        count=40, concurrency=None, rate=10, burst=10, prompt=(400, 400), output=(32, 32)
    )
    each = explained(load)
    e = each.explanation
    assert sorted(n for group in e.tail_groups for n in group) == sorted(
        r.index for r in e.tail
    )
    largest = max(e.tail_groups, key=len)
    assert len(largest) >= 3
    text = run_text(each).replace("\n", " ")
    assert f"{len(largest)} of the 10 are alike (requests " in text


def test_slow_requests_with_other_parts_are_groups_of_their_own() -> None:
    """Each waits for one more prompt than the one before it."""
    load = Load(count=10, concurrency=10, prompt=(2000, 2000), output=(2, 2))
    e = explained(load).explanation
    latencies = {r.index: r.latency_ms for r in e.tail}
    for group in e.tail_groups:
        slowest, *others = (latencies[n] for n in group)
        assert all(abs(slowest - other) <= 0.2 * slowest for other in others)
    assert len(e.tail_groups) > 1
