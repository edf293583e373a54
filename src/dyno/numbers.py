"""Numbers as people read them, in one way everywhere: the rule is in METHOD.md, "Numbers".

A script gets the full value: JSON, CSV and SQL never come through here. Neither do formats copied from other tools.
"""

import math

UNKNOWN = "–"


def number(value: float | None, half: float = 0.0, digits: int = 4) -> str:
    """Return a measured value with four significant digits: 1,580; 12.68; 0.04231. Digits before the point all stay.

    `half`: half a unit of the last digit that its source printed. No digit is added to those.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    after = _decimals(value, digits)
    if half > 0:
        after = min(after, decimals(half))
    return f"{value:.{digits - 1}g}" if after > 8 else f"{value:,.{after}f}"


def _decimals(value: float, digits: int) -> int:
    """Digits after the point, so that `digits` are significant. 9.9996 rounds to 10.00 and has two, not three."""
    if value == 0:
        return 0
    return max(0, digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2]))


def decimals(half: float) -> int:
    """Half a unit of the last digit → digits after the point: 0.005 → 2."""
    return max(0, round(-math.log10(2 * half)))


def count(value: float | None) -> str:
    """Return a count or a setting as it is: 900; 2,000; 0.5; inf."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return f"{value}"
    if value == round(value):
        return f"{value:,.0f}"
    text = f"{value:,.6g}"
    return number(value) if "e" in text else text


def trimmed(value: float | None) -> str:
    """Return four significant digits at most: for a value whose printed digits are unknown."""
    return _trimmed(number(value))


def many(value: float, what: str) -> str:
    """1 result, 2,000 results."""
    return f"{count(value)} {what}{'' if value == 1 else 's'}"


def rounded_up(n: int) -> int:
    """Round a number of repeats, requests or items that is needed to two digits: more would be false precision."""
    unit = int(10 ** max(len(str(n)) - 2, 0))
    return -(-n // unit) * unit


def percent(share: float | None, signed: bool = False) -> str:
    """0.254 → '25.4 %'. One decimal; below 1 % two significant digits, from 100 % on none. A whole one has none."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if abs(value) >= 100:
        after = 0
    elif abs(value) >= 1:
        after = 1
    else:
        after = min(_decimals(value, 2), 4)
    sign = "+" if signed else ""
    text = _trimmed(f"{value:{sign},.{after}f}")
    return "0 %" if float(text.replace(",", "")) == 0 else f"{text} %"


def change(share: float | None) -> str:
    """0.254 → '+25.4 %'."""
    return percent(share, signed=True)


def change_interval(low: float | None, high: float | None) -> str:
    """Return '+11.8 to +12.9 %'."""
    return (
        UNKNOWN
        if low is None or high is None
        else f"{change(low).removesuffix(' %')} to {change(high)}"
    )


def score(value: float) -> str:
    """0.97 → '97 %'. One that isn't a share, such as perplexity, is a number."""
    return percent(value) if 0 <= value <= 1 else number(value)


def points(share: float | None, signed: bool = False) -> str:
    """Return a difference of scores from 0 to 1 in hundredths: 0.012 → '1.2 pt'."""
    return percent(share, signed).replace("%", "pt")


def points_interval(low: float | None, high: float | None) -> str:
    return change_interval(low, high).replace("%", "pt")


def clock(seconds: float) -> str:
    """4:05, 1:00:00."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    return (
        f"{hours}:{minutes:02d}:{int(seconds) % 60:02d}"
        if hours
        else f"{minutes}:{int(seconds) % 60:02d}"
    )


def duration(seconds: float | None) -> str:
    return f"{number(seconds)} s"


def rough_span(least_s: float, most_s: float) -> str:
    """'20 s to 2 min'."""
    one, other = rough_time(least_s), rough_time(most_s)
    return one if one == other else f"{one} to {other}"


def rough_time(seconds: float) -> str:
    """Round a time that isn't known exactly: '40 s', '3 min', '2 h'."""
    if seconds < 100:
        return f"{max(round(seconds, -1), 10):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.2g} h"


def human_bytes(n_bytes: float | None) -> str:
    """1536 → '1.5 KiB'."""
    if n_bytes is None:
        return UNKNOWN
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(n_bytes) >= 1024 and len(units) > 1:
        n_bytes /= 1024
        units.pop(0)
    return f"{_trimmed(number(n_bytes))} {units[0]}"


def money(value: float | None) -> str:
    """Return an amount without its currency: 1,234.50; below 1 with three significant digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return (
        f"{value:,.2f}"
        if abs(value) >= 1 or value == 0
        else _cents(number(value, digits=3))
    )


def price(value: float) -> str:
    """Return an amount that was given, not calculated: 2.495, not 2.50."""
    return _cents(f"{value:,.4f}")


def currency(name: str) -> str:
    return {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "CNY": "CN¥"}.get(
        name.upper(), name
    )


def plus_minus(half_width: float, value: float) -> str:
    """Return '± 0.40': two significant digits, but no more decimals than the value has; one digit at least."""
    two, one = _decimals(half_width, 2), _decimals(half_width, 1)
    most = _decimals(value, 4) if math.isfinite(value) else two
    return f"± {half_width:,.{min(two, max(most, one))}f}"


def deviating(mean: float, deviation: float | None) -> str:
    """Return '12.68 ± 0.40', or the mean alone where no deviation is known."""
    return (
        number(mean)
        if deviation is None
        else f"{number(mean)} {plus_minus(deviation, mean)}"
    )


def interval(value: float, low: float, high: float) -> str:
    """Return '± 0.40', or '(12.1 to 13.9)' where the sides differ. No figure with an interval is below 0."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    reach = max(value - low, high - value)
    if not even(value, low, high) or reach > value:
        return f"({_outward(low, -1)} to {_outward(high, 1)})"
    return plus_minus(reach, value)


def even(value: float, low: float, high: float) -> bool:
    """Return whether both sides of an interval are as long, to a tenth."""
    below, above = value - low, high - value
    return min(below, above) >= 0.9 * max(below, above)


def change_with_interval(
    share: float, low: float, high: float, least: float = -1.0, most: float = math.inf
) -> str:
    """Return '+12.3 % ± 0.6', or '+12.3 % (-2 to +31 %)' where the sides differ, or where ± would pass the least or the
    most that there can be."""
    reach = max(share - low, high - share)
    if not even(share, low, high) or share - reach < least or share + reach > most:
        return f"{change(share)} ({change_interval(low, high)})"
    return f"{change(share)} ± {percent(reach).removesuffix(' %')}"


def points_with_interval(share: float, low: float, high: float) -> str:
    return change_with_interval(share, low, high, -1.0, 1.0).replace("%", "pt")


def _outward(value: float, way: int) -> str:
    """Return an end of an interval with three digits, rounded away from the middle: the figure stays inside."""
    after = _decimals(value, 3)
    unit = 10.0**-after
    moved = (math.floor if way < 0 else math.ceil)(round(value / unit, 6)) * unit
    return f"{moved:,.{after}f}" if after <= 8 else f"{value:.2e}"


def setting(value: str | int | float | bool) -> str:
    """Return the value of any setting. A port or a seed is a name, not an amount: it has no separators."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return count(value) if isinstance(value, float) else str(value)


def _cents(text: str) -> str:
    whole, _, rest = text.rstrip("0").partition(".")
    return f"{whole}.{rest:0<2}"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
