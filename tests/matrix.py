"""A test of every combination of some values: a sample by default, the rest by `make test-nightly`."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

Combination = tuple[Any, ...]


def sampled(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Of three axes and more, the sample has each pair of values of two axes; of two, each value of either."""
    every = list(itertools.product(*axes.values()))
    sample = set(_cover(every, together=1 if len(axes) < 3 else 2))
    cases = [
        pytest.param(
            *case,
            marks=() if i in sample else pytest.mark.nightly,
            id="-".join(map(str, case)),
        )
        for i, case in enumerate(every)
    ]
    return pytest.mark.parametrize(tuple(axes), cases)


def _cover(every: Sequence[Combination], together: int) -> Iterable[int]:
    """Choose combinations until they have all that any `together` of the axes can have, those that add most first."""
    parts = [
        set(itertools.combinations(enumerate(map(repr, case)), together)) for case in every
    ]
    missing = set().union(*parts)
    while missing:
        best = max(range(len(every)), key=lambda i: len(parts[i] & missing))
        missing -= parts[best]
        yield best
