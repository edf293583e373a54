"""Sums that several processes make of shares of the records: packed by one, and added to those of another."""

from array import array
from collections import Counter
from typing import Any, ClassVar

import numpy as np

# of a Counter: what is no sum but the largest of all
MAXIMA = ("late_max",)


class Summed:
    """Sums of records. `SUMMED` names the attributes that hold them; the others say how it sums."""

    SUMMED: ClassVar[tuple[str, ...]] = ()

    def packed(self) -> dict[str, Any]:
        """Return the sums as values that MessagePack has."""
        return {name: _packed(getattr(self, name)) for name in self.SUMMED}

    def add_packed(self, sums: dict[str, Any]) -> None:
        """Add the sums of another share, as that has packed them."""
        for name in self.SUMMED:
            setattr(self, name, _joined(getattr(self, name), sums[name]))


def _packed(value: Any) -> Any:
    if isinstance(value, Summed):
        return value.packed()
    if isinstance(value, Counter):
        return dict(value)
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        return _packed_buckets(value)
    if isinstance(value, dict):
        return {name: each.packed() for name, each in value.items()}
    if isinstance(value, list):
        return _packed_list(value)
    return value


def _packed_list(values: list[Any]) -> Any:
    """Pack sums one by one, and gaps as one array."""
    if values and not isinstance(values[0], np.ndarray):
        return [*map(_packed, values)]
    return np.concatenate([np.zeros(0, np.float32), *values], dtype=np.float32).tobytes()


def _packed_buckets(buckets: np.ndarray) -> tuple[int, bytes]:
    """Pack the buckets of a load's time from the first to the last that is not 0."""
    used = np.flatnonzero(buckets)
    if not len(used):
        return 0, b""
    return int(used[0]), buckets[used[0] : used[-1] + 1].tobytes()


def _joined(own: Any, other: Any) -> Any:
    if isinstance(own, Summed):
        own.add_packed(other)
    elif isinstance(own, Counter):
        add_counts(own, other)
    elif isinstance(own, array):
        own.frombytes(other)
    elif isinstance(own, np.ndarray):
        return _joined_buckets(own, *other)
    elif isinstance(own, dict):
        for name, each in own.items():
            each.add_packed(other[name])
    elif isinstance(own, list):
        _join_lists(own, other)
    elif own is None:
        return None
    else:
        return own + other
    return own


def add_counts(own: Counter[str], other: dict[str, int]) -> None:
    for name, count in other.items():
        own[name] = max(own[name], count) if name in MAXIMA else own[name] + count


def _join_lists(own: list[Any], other: Any) -> None:
    if isinstance(other, bytes):
        if other:
            own.append(np.frombuffer(other, np.float32))
        return
    for each, more in zip(own, other, strict=True):
        _joined(each, more)


def _joined_buckets(own: np.ndarray, first: int, data: bytes) -> np.ndarray:
    more = np.frombuffer(data)
    end = first + len(more)
    if end > len(own):
        own = np.append(own, np.zeros(max(end, 2 * len(own)) - len(own)))
    own[first:end] += more
    return own
