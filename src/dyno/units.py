"""Units: integers of nanoseconds inside, milliseconds and seconds at the edge."""

import math

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def seconds(ns: int | float) -> float:
    return ns / NS_PER_S


def digits(value: float, significant: int = 4) -> str:
    """For a sentence: 1,080 and 0.1375, never 1.08e+03."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    after = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(after, 0), 12)}f}"


def many(count: float, what: str) -> str:
    """1 result, 2,000 results."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def human_bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
