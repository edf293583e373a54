"""Scores of the same items: the tests, the intervals and the sizes, against published values and exact coverage."""

import itertools
import math

import numpy as np
import pytest

from dyno.measure.paired import (
    items_to_detect,
    mcnemar,
    paired,
    score_interval,
    share_interval,
    sign_flips,
    smallest_detectable,
    tango,
)  # fmt: skip


def scores(
    both: int, only_a: int, only_b: int, neither: int
) -> tuple[list[int], list[int]]:
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


@pytest.mark.parametrize(
    ("n", "p_a", "p_b"),
    [(30, 0.05, 0.05), (30, 0.02, 0.15), (40, 0.0, 0.1), (40, 0.3, 0.2)],
)
def test_the_interval_covers_the_true_difference_at_small_counts(
    n: int, p_a: float, p_b: float
) -> None:
    """Exact: the probability of every count of differing items, summed where the interval has the true value."""
    covered = total = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            if not p_a and a:
                continue
            log = (
                math.lgamma(n + 1)
                - math.lgamma(a + 1)
                - math.lgamma(b + 1)
                - math.lgamma(n - a - b + 1)
            )
            log += (
                (a * math.log(p_a) if a else 0)
                + b * math.log(p_b)
                + (n - a - b) * math.log(1 - p_a - p_b)
            )
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
        drawn = rng.multinomial(
            n, [(rate + size) / 2, (rate - size) / 2, 1 - rate], size=1500
        )
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
    assert smallest_detectable(items_to_detect(0.06, 0.22), 0.22) == pytest.approx(
        0.06, rel=1e-2
    )


def test_graded_scores_of_many_items_have_students_interval() -> None:
    rng = np.random.default_rng(2)
    a = rng.uniform(0, 1, 200)
    b = np.clip(a + rng.normal(0.05, 0.2, 200), 0, 1)
    d = paired(a.tolist(), b.tolist())
    changes = b - a
    error = changes.std(ddof=1) / math.sqrt(200)
    assert d.difference == pytest.approx(changes.mean())
    assert d.low == pytest.approx(changes.mean() - 1.96 * error, abs=0.15 * error)
    assert d.high == pytest.approx(changes.mean() + 1.96 * error, abs=0.15 * error)
    assert d.detectable == pytest.approx(2.8016 * error, rel=1e-2)
    assert paired(a.tolist(), b.tolist()) == d  # the same data, the same result
    assert paired([0.5, 0.5], [0.5, 0.5]).p == 1


def graded(
    rng: np.random.Generator, items: int, difference: float, skewed: bool
) -> tuple[list[float], list[float]]:
    """Scores whose differences have this true mean."""
    chance = rng.exponential(0.1, items) - 0.1 if skewed else rng.normal(0, 0.1, items)
    a = rng.uniform(0.3, 0.4, items)
    return a.tolist(), np.clip(a + difference + chance, 0, 1).tolist()


@pytest.mark.parametrize("items", [2, 3, 5, 10])
def test_graded_scores_of_few_items_raise_no_false_alarm(items: int) -> None:
    """A bootstrap of 2, 3, 5 and 10 items raised one in 51, 27, 15 and 10 % of comparisons without a difference."""
    rng = np.random.default_rng(items)
    alarms = sum(
        paired(*graded(rng, items, 0.0, skewed)).p <= 0.05
        for skewed in (False, True)
        for _ in range(150)
    )
    assert alarms / 300 <= 0.07
    assert items > 5 or alarms == 0


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("items", [8, 12, pytest.param(30, marks=pytest.mark.nightly)])
def test_graded_scores_of_few_items_are_covered(items: int, skewed: bool) -> None:
    rng = np.random.default_rng(3)
    found = [paired(*graded(rng, items, 0.1, skewed)) for _ in range(150)]
    assert np.mean([d.low <= 0.1 <= d.high for d in found]) >= 0.91


def test_no_verdict_is_given_with_fewer_than_six_differing_items() -> None:
    for differing in range(6):
        same = [0.5] * 40
        d = paired([0.1] * differing + same, [0.9] * differing + same)
        assert d.p > 0.05 and d.low <= 0 <= d.high
    d = paired([0.1] * 6 + [0.5] * 40, [0.9] * 6 + [0.5] * 40)
    assert d.p == pytest.approx(2 / 64, rel=0.3)


def test_p_is_below_a_twentieth_exactly_where_the_interval_excludes_zero() -> None:
    rng = np.random.default_rng(4)
    shown = 0
    for _ in range(400):
        items = int(rng.integers(1, 40))
        levels = (
            [0, 1]
            if rng.random() < 0.3
            else [0, 0.25, 0.5, 1]
            if rng.random() < 0.5
            else np.linspace(0, 1, 50)
        )
        a = rng.choice(levels, items)
        b = np.where(rng.random(items) < rng.random(), a, rng.choice(levels, items))
        b = np.maximum(a, b) if rng.random() < 0.4 else b
        d = paired(a.tolist(), b.tolist())
        assert (d.p <= 0.05) == (not d.low <= 0 <= d.high)
        assert -1 <= d.low <= d.difference <= d.high <= 1
        shown += d.p <= 0.05
    assert 20 < shown < 380


def test_all_flips_of_few_items_are_the_exact_permutation_test() -> None:
    changes = np.array([-0.1, 0.5, 0.05, 0.35, 0.15, 0.25, 0.2])  # even around 0.2
    p, (low, high) = sign_flips(changes, (-1, 1))
    flips = itertools.product((1, -1), repeat=7)
    sums = [abs(sum(s * c for s, c in zip(signs, changes, strict=True))) for signs in flips]
    by_hand = np.mean([s >= abs(changes.sum()) - 1e-9 for s in sums])
    assert p == pytest.approx(by_hand)
    assert (p <= 0.05) == (low > 0) and low < changes.mean() < high < 0.5


def test_pairs_need_two_equal_lists() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired([1, 0], [1])
    with pytest.raises(ValueError, match="0 and 0"):
        paired([], [])


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    # Newcombe 1998, Clopper-Pearson
    assert share_interval(81 / 263, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)
    assert share_interval(15 / 148, 148) == pytest.approx((0.0578, 0.1617), abs=5e-5)
    assert score_interval(0.0, 20, 0.0) == pytest.approx((0, 0.1684), abs=5e-5)
    for n in (10, 50, 100):
        for right in (0, 1, n // 2, n - 1, n):
            low, high = share_interval(right / n, n)
            tails = [sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in ks) for p, ks in (
                (low, range(right, n + 1)), (high, range(right + 1)))]  # fmt: skip
            assert right == 0 or tails[0] == pytest.approx(0.025, rel=1e-6)
            assert right == n or tails[1] == pytest.approx(0.025, rel=1e-6)


def test_the_interval_of_a_score_near_1_holds_as_often_as_it_says() -> None:
    """Exact. Wilson's held in 92 % of tests of 100 items at 99 %."""
    for n, true in ((10, 0.9), (100, 0.99), (100, 0.98), (30, 0.97)):
        held = [
            low <= true <= high
            for low, high in (share_interval(k / n, n) for k in range(n + 1))
        ]
        chance = [math.comb(n, k) * true**k * (1 - true) ** (n - k) for k in range(n + 1)]
        assert sum(c for c, h in zip(chance, held, strict=True) if h) >= 0.95


def test_scores_by_their_standard_error_have_it_on_both_sides() -> None:
    # lm-eval's standard error of 0.5 over 100 items is that of a share; a wider one is of another kind.
    assert score_interval(0.5, 100, 0.0503) == share_interval(0.5, 100)
    assert score_interval(0.5, 100, 0.08) == pytest.approx((0.343, 0.657), abs=1e-3)
    assert score_interval(0.5, None, 0.05) == pytest.approx((0.402, 0.598), abs=1e-3)
    assert score_interval(25.3, 100, None) is None


def test_the_interval_of_a_score_stays_between_0_and_1_and_contains_it() -> None:
    assert score_interval(0.98, None, 0.05) == pytest.approx((0.882, 1.0), abs=1e-3)
    assert score_interval(0.02, None, 0.05) == pytest.approx((0.0, 0.118), abs=1e-3)
    assert score_interval(0.98, None, 0.05, most=math.inf) == pytest.approx(
        (0.882, 1.078), abs=1e-3
    )
    for right in range(21):
        low, high = share_interval(right / 20, 20)
        assert 0 <= low <= right / 20 <= high <= 1
