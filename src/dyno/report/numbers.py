"""Numbers as text. An imported one shows the digits that its author printed, dyno's own four that mean something."""

import math

from dyno.facts.entry import Number

NONE = "–"  # not told


def printed(number: Number) -> str:
    if number.half > 0:
        return f"{number.value:.{decimals(number.half)}f}"
    exact = number.low is None and not number.definition  # a count, if it is whole
    return count(number.value) if exact else significant(number.value)


def decimals(half: float) -> int:
    """Half a unit of the last digit → digits after the point: 0.005 → 2."""
    return max(0, round(-math.log10(2 * half)))


def significant(value: float, digits: int = 4) -> str:
    """Before the point all digits stay: 12346, not 12350. No separators: what is copied stays a number."""
    if not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(value)))
    if after > 8:
        return f"{value:.{digits - 1}g}"
    return f"{value:.{max(0, after)}f}"


def count(value: float) -> str:
    """Of requests, repeats, accelerators: whole unless it isn't."""
    return f"{value:.0f}" if math.isfinite(value) and value == round(value) else significant(value)


def interval(number: Number) -> str:
    """'±0.40', or both sides apart where they differ by more than a fifth; '' where it isn't known."""
    if number.low is None or number.high is None:
        return f"±{significant(number.deviation, 3)}" if number.deviation else ""
    below, above = number.value - number.low, number.high - number.value
    if not (math.isfinite(below) and math.isfinite(above)):
        return ""
    if min(below, above) < 0 or abs(above - below) > 0.2 * max(below, above):
        return f"{significant(number.low, 3)}…{significant(number.high, 3)}"
    return f"±{significant((above + below) / 2, 2)}"


def money(value: float) -> str:
    if not math.isfinite(value):
        return NONE
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else significant(value, 3)


def currency(name: str) -> str:
    return {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "CNY": "CN¥"}.get(name.upper(), name)


def scalar(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return count(value) if value % 1 == 0 else f"{value:g}"
    return str(value)
