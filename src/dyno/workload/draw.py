"""A distribution as one value: `5`, `3..8`, `normal:200,50`. Turns, waits and lengths are drawn from it."""

import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from numpy.random import Generator

# shape → what follows its name
_PARAMETERS = {"normal": "MEAN,SD", "lognormal": "MEAN,SD", "exponential": "MEAN"}
GRAMMAR = "5, 3..8 (evenly), " + ", ".join(
    f"{shape}:{p}" for shape, p in _PARAMETERS.items()
)
_MOST = 1e8


class Draw(msgspec.Struct, frozen=True):
    """`values`: low and high of an even distribution; else the mean and the standard deviation of what is drawn."""

    shape: str  # constant, even, or one of the named ones
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Draw":
        """Raise ValueError with words that follow a setting's name: 'has no shape …'."""
        name, colon, rest = text.strip().partition(":")
        if colon:
            return cls(name, _parameters(name, rest))
        low, dots, high = text.partition("..")
        values = (_number(low), _number(high)) if dots else (_number(low),)
        if values[0] > values[-1]:
            raise ValueError(f"must go from low to high, but is {text}")
        return cls("even" if dots else "constant", values)

    @property
    def mean(self) -> float:
        """Return the mean, before anything drawn is raised to a least value."""
        return sum(self.values) / 2 if self.shape == "even" else self.values[0]

    def numbers(self, rng: "Generator", count: int, least: float = 0.0) -> list[float]:
        """Return `count` numbers. Those below `least` are raised to it."""
        mean, spread = self.values[0], self.values[-1]
        if self.shape == "constant":
            drawn = [mean] * count
        elif self.shape == "even":
            drawn = rng.uniform(mean, spread, count).tolist()
        elif self.shape == "normal":
            drawn = rng.normal(mean, spread, count).tolist()
        elif self.shape == "exponential":
            drawn = rng.exponential(mean, count).tolist()
        else:
            # numpy takes the mean and deviation of the logarithm.
            variance = math.log1p((spread / mean) ** 2)
            drawn = rng.lognormal(
                math.log(mean) - variance / 2, math.sqrt(variance), count
            ).tolist()
        return [max(value, least) for value in drawn]

    def counts(self, rng: "Generator", count: int, least: int = 1) -> list[int]:
        """Return `count` whole numbers. Those below `least` are raised to it."""
        if self.shape == "even":  # both ends as often as any other
            whole: list[int] = rng.integers(
                round(self.values[0]), round(self.values[1]) + 1, count
            ).tolist()
            return [max(value, least) for value in whole]
        return [max(round(value), least) for value in self.numbers(rng, count)]


def problem(text: str, least: float = 0.0) -> str | None:
    """Return why it isn't a distribution of numbers from `least` on, in words that follow a setting's name."""
    try:
        distribution = Draw.parse(text)
    except ValueError as e:
        return str(e)
    if distribution.values[0] < least:
        return f"must be at least {least:g}, but is {text}"
    return None


def count_problem(text: str) -> str | None:
    """Return why it isn't a distribution of whole numbers from 1 on."""
    return problem(text, least=1)


def _parameters(shape: str, text: str) -> tuple[float, ...]:
    if shape not in _PARAMETERS:
        near = get_close_matches(shape, _PARAMETERS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"has no shape {shape!r}.{hint} Known: {GRAMMAR}")
    form, parts = _PARAMETERS[shape], text.split(",")
    if len(parts) != len(form.split(",")):
        raise ValueError(f"must be {shape}:{form}, but is {shape}:{text}")
    values = tuple(map(_number, parts))
    if shape == "lognormal" and not values[0]:
        raise ValueError("must have a mean above 0 where it is lognormal")
    return values


def _number(text: str) -> float:
    if not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.strip(), re.I):
        raise ValueError(
            f"must be a number or a distribution ({GRAMMAR}), but has {text.strip()!r}"
        )
    value = float(text)
    if not 0 <= value <= _MOST:
        raise ValueError(
            f"must have numbers from 0 to {_MOST:,.0f}, but has {text.strip()}"
        )
    return value
