"""Units: integers of nanoseconds inside, milliseconds and seconds at the edge."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000


def ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def seconds(ns: int | float) -> float:
    return ns / NS_PER_S
