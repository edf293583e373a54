"""One way to write numbers, as METHOD.md has it."""

import math

import pytest

from dyno import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.6, "1.600"), (1580.2, "1,580"), (12345.6, "12,346"), (12.676, "12.68"), (0.042312, "0.04231"),
     (999.96, "1,000"), (9.9996, "10.00"), (1e-10, "1e-10"), (-3.14159, "-3.142"), (math.nan, "–"), (None, "–")],
)  # fmt: skip
def test_a_measured_value_has_four_significant_digits(
    value: float | None, text: str
) -> None:
    assert numbers.number(value) == text


def test_no_digit_is_added_to_those_that_a_source_printed() -> None:
    assert numbers.number(12.3, half=0.05) == "12.3"
    assert numbers.number(12.3456, half=0.00005) == "12.35"


@pytest.mark.parametrize(
    ("value", "text"),
    [(900, "900"), (2000.0, "2,000"), (0.5, "0.5"), (12.345, "12.345"), (1234567.5, "1,234,568"), (math.inf, "inf"),
     (None, "–")],
)  # fmt: skip
def test_a_count_or_a_setting_is_exact(value: float | None, text: str) -> None:
    assert numbers.count(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.254, "25.4 %"), (0.25, "25 %"), (0.0042, "0.42 %"), (0.00042, "0.042 %"), (1e-9, "0 %"),
     (1.004, "100 %"), (13.61, "1,361 %"), (-0.0312, "-3.1 %"), (None, "–")],
)  # fmt: skip
def test_a_share_in_percent(share: float | None, text: str) -> None:
    assert numbers.percent(share) == text


def test_a_change_has_its_sign() -> None:
    assert (
        numbers.change(0.1234) == "+12.3 %"
        and numbers.change(-0.0042) == "-0.42 %"
        and numbers.change(0) == "0 %"
    )
    assert numbers.change_interval(0.118, 0.129) == "+11.8 to +12.9 %"


def test_sizes_times_and_money() -> None:
    assert [*map(numbers.human_bytes, (0, 512, 1536, 15.62 * 2**30, 2**50))] == [
        "0 B", "512 B", "1.5 KiB", "15.62 GiB", "1,024 TiB"
    ]  # fmt: skip
    assert numbers.duration(94.1712) == "94.17 s"
    assert [*map(numbers.money, (1234.5, 0, 0.12345, 0.03))] == [
        "1,234.50",
        "0.00",
        "0.123",
        "0.03",
    ]
    assert [*map(numbers.price, (2.495, 2.5, 2))] == ["2.495", "2.50", "2.00"]
    assert (
        numbers.many(1, "request") == "1 request"
        and numbers.many(2000, "request") == "2,000 requests"
    )


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [(12.68, 0.4, "12.68 ± 0.40"), (1580, 3.2, "1,580 ± 3"),
     (1580, 0.34, "1,580 ± 0.3"), (220.2, 0.045, "220.2 ± 0.04"),
     (15800, 123, "15,800 ± 123"),
     (5.0, None, "5.000")],
)  # fmt: skip
def test_a_deviation_has_no_more_decimals_than_its_mean(
    mean: float, deviation: float | None, text: str
) -> None:
    assert numbers.deviating(mean, deviation) == text


def test_an_interval_shows_both_ends_where_its_sides_differ() -> None:
    assert numbers.interval(12.68, 12.3, 13.05) == "± 0.38"
    assert numbers.interval(100, 99, 120) == "(99.0 to 120)"
    assert numbers.interval(100, -math.inf, 120) == ""


def test_a_setting_that_is_a_name_has_no_separators() -> None:
    assert [*map(numbers.setting, (8000, 0.5, True, "auto"))] == [
        "8000",
        "0.5",
        "yes",
        "auto",
    ]
