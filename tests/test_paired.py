"""Scores of the same items: the tests, the intervals and the sizes, against published values and exact coverage."""

import math

import numpy as np
import pytest

from dyno.measure.paired import (
    items_to_detect,
    mcnemar,
    paired,
    score_interval,
    smallest_detectable,
    tango,
    wilson,
)  # fmt: skip


def scores(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[int], list[int]]:
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return a, b


def test_published_values_of_a_paired_study_are_reproduced() -> None:
    # Airway reactivity before and after a transplant: 1, 1, 7, 12 (Fagerland, Lydersen and Laake 2013 and 2014).
    d = paired(*scores(1, 1, 7, 12))
    assert (d.items, d.only_a, d.only_b) == (21, 1, 7)
    assert d.p == pytest.approx(0.0703, abs=5e-5)  # exact conditional test
    assert tango(7, 1, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert d.difference == pytest.approx(6 / 21)


def test_the_exact_test_is_the_binomial_sum() -> None:
    for only_a, only_b in ((0, 0), (0, 5), (0, 6), (3, 14), (40, 61)):
        n, least = only_a + only_b, min(only_a, only_b)
        by_hand = min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)
        assert mcnemar(only_a, only_b) == pytest.approx(by_hand)
    assert mcnemar(6, 0) == 2 / 64
    # 2,000 and 3,000: a normal tail at 14.1 standard errors, and no overflow.
    assert 0 < mcnemar(2000, 3000) < 1e-40


def test_the_interval_of_no_difference_has_its_closed_form() -> None:
    z2 = 1.959964**2
    assert tango(0, 0, 44) == pytest.approx((-z2 / (44 + z2), z2 / (44 + z2)), abs=1e-6)


@pytest.mark.parametrize(("n", "p_a", "p_b"), [(30, 0.05, 0.05), (30, 0.02, 0.15), (40, 0.0, 0.1), (40, 0.3, 0.2)])
def test_the_interval_covers_the_true_difference_at_small_counts(n: int, p_a: float, p_b: float) -> None:
    """Exact: the probability of every count of differing items, summed where the interval has the true value."""
    covered = total = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            if not p_a and a:
                continue
            log = math.lgamma(n + 1) - math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(n - a - b + 1)
            log += (a * math.log(p_a) if a else 0) + b * math.log(p_b) + (n - a - b) * math.log(1 - p_a - p_b)
            if log < -14:
                continue
            low, high = tango(a, b, n)
            total += math.exp(log)
            covered += math.exp(log) * (low <= p_b - p_a <= high)
    assert total > 0.999
    assert 0.93 < covered / total < 0.99


def test_interval_and_test_never_contradict_each_other() -> None:
    for only_a in range(4):
        for only_b in range(16):
            d = paired(*scores(10, only_a, only_b, 10))
            assert (d.low <= 0 <= d.high) == (d.p > 0.05), (only_a, only_b)


def test_the_detectable_difference_is_found_in_four_of_five_comparisons() -> None:
    rng = np.random.default_rng(1)
    for n, rate in ((100, 0.0), (100, 0.3), (500, 0.05), (1000, 0.2)):
        size = smallest_detectable(n, rate)
        rate = max(rate, size)
        drawn = rng.multinomial(n, [(rate + size) / 2, (rate - size) / 2, 1 - rate], size=1500)
        shown = np.mean([mcnemar(int(a), int(b)) <= 0.05 for a, b, _ in drawn])
        assert 0.76 < shown < 0.9, (n, size, shown)


def test_identical_answers_do_not_prove_that_nothing_is_lost() -> None:
    d = paired([1, 0] * 50, [1, 0] * 50)
    assert (d.difference, d.p, d.items_needed) == (0, 1, None)
    assert d.high == pytest.approx(0.037, abs=1e-3)
    assert d.detectable == pytest.approx(0.086, abs=2e-3)  # a loss of 8 to 9 items of 100
    assert paired([1] * 5, [0] * 5).detectable == 1  # five items can't show anything
    assert paired([1] * 5, [0] * 5).p > 0.05


def test_items_needed_are_more_than_there_were() -> None:
    d = paired(*scores(60, 8, 14, 18))
    assert d.p > 0.05 and d.items_needed is not None and d.items_needed > d.items
    # Connor (1987): (1.96 √0.22 + 0.8416 √(0.22 − 0.06²))² / 0.06² + 1 / 0.06
    assert d.items_needed == math.ceil(
        (1.95996 * 0.22**0.5 + 0.84162 * (0.22 - 0.0036) ** 0.5) ** 2 / 0.0036 + 1 / 0.06
    )
    assert smallest_detectable(items_to_detect(0.06, 0.22), 0.22) == pytest.approx(0.06, rel=1e-2)


def test_graded_scores_are_compared_by_drawing_items_again() -> None:
    rng = np.random.default_rng(2)
    a = rng.uniform(0, 1, 200)
    b = np.clip(a + rng.normal(0.05, 0.2, 200), 0, 1)
    d = paired(a.tolist(), b.tolist())
    changes = b - a
    error = changes.std(ddof=1) / math.sqrt(200)
    assert d.difference == pytest.approx(changes.mean())
    assert d.low == pytest.approx(changes.mean() - 1.96 * error, abs=0.15 * error)
    assert d.high == pytest.approx(changes.mean() + 1.96 * error, abs=0.15 * error)
    assert d.detectable == pytest.approx(2.8016 * error, rel=1e-3)
    assert paired(a.tolist(), b.tolist()) == d  # the same data, the same result
    assert paired([0.5, 0.5], [0.5, 0.5]).low == 0


def test_graded_scores_of_few_items_are_covered() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(150):
        a = rng.normal(0.5, 0.2, 12)
        d = paired(a.tolist(), (a + rng.normal(0.1, 0.1, 12)).tolist())
        hits += d.low <= 0.1 <= d.high
    assert hits >= 0.89 * 150


def test_pairs_need_two_equal_lists() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired([1, 0], [1])
    with pytest.raises(ValueError, match="0 and 0"):
        paired([], [])


def test_the_interval_of_a_share_is_wilsons() -> None:
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998
    assert score_interval(0.0, 20, 0.0) == pytest.approx((0, 0.1611), abs=5e-5)
    # lm-eval's standard error of 0.5 over 100 items is that of a share; a wider one is of another kind.
    assert score_interval(0.5, 100, 0.0503) == wilson(0.5, 100)
    assert score_interval(0.5, 100, 0.08) == pytest.approx((0.343, 0.657), abs=1e-3)
    assert score_interval(0.5, None, 0.05) == pytest.approx((0.402, 0.598), abs=1e-3)
    assert score_interval(25.3, 100, None) is None
