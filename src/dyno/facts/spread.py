"""How values of one figure lie."""

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """Of a latency, in milliseconds."""

    count: int
    mean: float
    median: float
    std: float
    percentiles: dict[str, float]  # '99', '99.9' → value

    @property
    def empty(self) -> bool:
        return self.count == 0


class Spread(msgspec.Struct, frozen=True):
    """Of a figure over the iterations."""

    count: int
    mean: float
    std: float  # of a sample; 0.0 where there is one

    def __str__(self) -> str:
        return f"{self.mean:,.2f} ± {self.std:,.2f}" if self.count > 1 else f"{self.mean:,.2f}"
