"""The distribution of a figure's values."""

import msgspec

from dyno.numbers import deviating


class Distribution(msgspec.Struct, frozen=True):
    """Distribution of times, in milliseconds."""

    count: int
    mean: float
    median: float
    std: float
    percentiles: dict[str, float]  # '99', '99.9' → value

    @property
    def empty(self) -> bool:
        return self.count == 0


class Latency(msgspec.Struct, frozen=True):
    """A distribution of which a busy client may not know everything. None: not known well enough, see `bounds`."""

    count: int
    mean: float | None
    median: float | None
    std: float | None
    percentiles: dict[str, float | None]
    # 'mean', 'median', '99': bounds of a figure that is None
    bounds: dict[str, tuple[float, float]] = {}

    @property
    def empty(self) -> bool:
        return self.count == 0


class Spread(msgspec.Struct, frozen=True):
    """Distribution of a figure over iterations."""

    count: int
    mean: float
    std: float  # of a sample; 0.0 where there is one

    def __str__(self) -> str:
        return deviating(self.mean, self.std if self.count > 1 else None)
