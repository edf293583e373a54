"""Units: integers of nanoseconds inside, milliseconds and seconds at the edge."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def seconds(ns: int | float) -> float:
    return ns / NS_PER_S


def human_bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
