"""A distribution is one text, and draws the same numbers from the same seed."""

from statistics import fmean, stdev

import numpy as np
import pytest

from dyno.workload.draw import Draw, count_problem, problem


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [("5", 5, 0), ("0", 0, 0), ("3..8", 5.5, 5 / 12**0.5), ("normal:200,30", 200, 30), ("lognormal:200,100", 200, 100),
     ("exponential:2.5", 2.5, 2.5), ("normal:4,0", 4, 0)],
)  # fmt: skip
def test_drawn_numbers_have_the_mean_and_deviation_that_were_asked_for(
    text: str, mean: float, deviation: float
) -> None:
    distribution = Draw.parse(text)
    drawn = distribution.numbers(np.random.default_rng(1), 20_000)
    assert distribution.mean == mean
    assert fmean(drawn) == pytest.approx(mean, rel=0.03)
    assert stdev(drawn) == pytest.approx(deviation, rel=0.06)
    assert drawn == distribution.numbers(np.random.default_rng(1), 20_000)


def test_counts_are_whole_and_an_even_one_reaches_both_ends() -> None:
    drawn = Draw.parse("3..5").counts(np.random.default_rng(2), 3000)
    assert {3, 4, 5} == set(drawn)
    assert all(900 < drawn.count(n) < 1100 for n in (3, 4, 5))


def test_what_is_drawn_too_low_is_raised_to_the_least() -> None:
    drawn = Draw.parse("normal:2,5").counts(np.random.default_rng(3), 1000, least=1)
    assert min(drawn) == 1
    assert min(Draw.parse("normal:0.1,1").numbers(np.random.default_rng(3), 1000)) == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lognormel:3,4", "has no shape 'lognormel'. Did you mean lognormal?"),
        ("zeta:3", "has no shape 'zeta'. Known: 5, 3..8 (evenly), normal:MEAN,SD"),
        ("normal:3", "must be normal:MEAN,SD, but is normal:3"),
        ("exponential:3,4", "must be exponential:MEAN, but is exponential:3,4"),
        ("normal:200,-3", "must have numbers from 0 to 100,000,000, but has -3"),
        ("lognormal:0,3", "must have a mean above 0"),
        ("8..3", "must go from low to high, but is 8..3"),
        ("..3", "must be a number or a distribution"),
        ("", "must be a number or a distribution"),
        ("nan", "but has 'nan'"),
        ("inf", "but has 'inf'"),
        ("1e99", "must have numbers from 0"),
        ("-1", "must have numbers from 0"),
        ("five", "but has 'five'"),
    ],
)
def test_a_wrong_distribution_says_what_is_wrong(text: str, words: str) -> None:
    assert words in (problem(text) or "")


def test_counts_begin_at_one() -> None:
    assert count_problem("0..3") == "must be at least 1, but is 0..3"
    assert count_problem("1..3") is None and problem("0..3") is None
