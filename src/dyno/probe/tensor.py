"""A tensor, as the head of a file of weights lists it."""

import math
from typing import NamedTuple


class Tensor(NamedTuple):
    name: str
    kind: str  # BF16, F8_E4M3, Q4_K, …
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)
