"""A schedule as one value: a rate or a concurrency that changes during the load, `sine: 2..8 period=60`."""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path

import msgspec

from dyno import files
from dyno.errors import UsageError
from dyno.option import setting_name

_FORMS = {  # shape → what follows its name
    "step": "0=2 30=8 60=2",
    "ramp": "2..8 over=60",
    "sine": "2..8 period=60",
    "burst": "2 peak=20 every=30 for=3",
    "file": "rates.csv",
}
GRAMMAR = ", ".join(f"'{shape}: {form}'" for shape, form in _FORMS.items())
_NUMBER = r"(\d+\.?\d*|\.\d+)"
_PATTERNS = {
    "ramp": re.compile(rf"{_NUMBER}\.\.{_NUMBER} over={_NUMBER}"),
    "sine": re.compile(rf"{_NUMBER}\.\.{_NUMBER} period={_NUMBER}"),
    "burst": re.compile(rf"{_NUMBER} peak={_NUMBER} every={_NUMBER} for={_NUMBER}"),
}
_PIECES = 64  # straight lines in a period of a sine: the area is right within 0.1 %
_MOST, _POINTS = 1e7, 10_000
Point = tuple[float, float]  # seconds, value


class Schedule(msgspec.Struct, frozen=True):
    """Straight lines between points, the first at 0 s. At a step there are two points of one time."""

    shape: str
    points: tuple[Point, ...]
    period_s: float | None = None  # it repeats; None: the last value stays

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Raise ValueError with words that follow a setting's name."""
        shape, _, rest = (part.strip() for part in text.partition(":"))
        if shape == "step":
            return cls(shape, _checked(_steps([_pair(word) for word in rest.split()])))
        match = (
            _PATTERNS[shape].fullmatch(" ".join(rest.split()))
            if shape in _PATTERNS
            else None
        )
        if match is None:
            known = (
                f"'{shape}: {_FORMS[shape]}'" if shape in _FORMS else f"one of {GRAMMAR}"
            )
            raise ValueError(f"must be like {known}, but is {text!r}")
        low, high, length, *more = map(float, match.groups())
        if not length or more == [0]:
            raise ValueError(f"must have times above 0, but is {text!r}")
        if shape == "ramp":
            return cls(shape, _checked([(0, low), (length, high)]))
        if shape == "sine":
            turns = [i / _PIECES for i in range(_PIECES + 1)]
            wave = [
                (length * x, low + (high - low) * (1 - math.cos(math.tau * x)) / 2)
                for x in turns
            ]
            return cls(shape, _checked(wave), length)
        if more[0] >= length:
            raise ValueError(
                f"must have bursts shorter than their distance, but is {text!r}"
            )
        quiet = length - more[0]
        return cls(
            shape, _checked([(0, low), (quiet, low), (quiet, high), (length, high)]), length
        )

    @property
    def low(self) -> float:
        return min(value for _, value in self.points)

    @property
    def peak(self) -> float:
        return max(value for _, value in self.points)

    @property
    def words(self) -> str:
        """Describe the range: '2 to 8'."""
        return f"{self.low:g} to {self.peak:g}"

    def area(self, until_s: float) -> float:
        """Return the integral from 0 on: how many arrivals a rate makes in this time."""
        total = 0.0
        for start, length, first, last in self._lines():
            if start >= until_s:
                break
            part = min(length, until_s - start)
            slope = (last - first) / length
            total += part * (first + slope * part / 2)
        return total

    def times(self, areas: Iterable[float]) -> Iterator[float]:
        """Yield when the area from 0 on reaches each of these, which ascend: the inverse of `area`."""
        lines, done = self._lines(), 0.0
        start, length, first, last = next(lines)
        for area in areas:
            while area > done + length * (first + last) / 2 and length < math.inf:
                done += length * (first + last) / 2
                start, length, first, last = next(lines)
            slope = (last - first) / length
            root = first + math.sqrt(max(first * first + 2 * slope * (area - done), 0.0))
            if not root and area > done:
                raise UsageError(
                    f"The rate schedule ends at 0 before all requests are due. Give {setting_name('--duration')}."
                )
            yield start + (2 * (area - done) / root if root else 0.0)

    def levels(self, until_s: float) -> list[tuple[float, int]]:
        """Return the whole numbers nearest to it, each with the time from which it holds."""
        out: list[tuple[float, int]] = []
        for start, length, first, last in self._lines():
            if start >= until_s:
                break
            now, end = round(first), round(last)
            sign = 1 if last > first else -1
            changes = [(start, now)]
            for level in range(now, end, sign):
                changes.append(
                    (
                        start + length * (level + sign / 2 - first) / (last - first),
                        level + sign,
                    )
                )
            before = out[-1][1] if out else None
            for change in changes:
                if change[1] != before:
                    out.append(change)
                before = change[1]
        return [change for change in out if change[0] < until_s]

    def _lines(self) -> Iterator[tuple[float, float, float, float]]:
        """Yield start, length, first and last value of each line; the last one has no end."""
        rounds = count() if self.period_s else (0,)
        for shift in (i * (self.period_s or 0.0) for i in rounds):
            for (start, first), (end, last) in pairwise(self.points):
                if end > start:
                    yield shift + start, end - start, first, last
        end, value = self.points[-1]
        yield end, math.inf, value, value


def problem(text: str) -> str | None:
    """Return why it isn't a schedule of a rate, in words that follow a setting's name."""
    if text.partition(":")[0].strip() == "file":
        return None  # read later, see `located`
    try:
        schedule = Schedule.parse(text)
    except ValueError as e:
        return str(e)
    return None if schedule.peak > 0 else f"must have a value above 0, but is {text!r}"


def slots_problem(text: str) -> str | None:
    """Return why it isn't a schedule of a concurrency."""
    why = problem(text)
    if why or text.partition(":")[0].strip() == "file":
        return why
    low = Schedule.parse(text).low
    return f"must have values from 1 on, but has {low:g}" if low < 1 else None


def located(text: str, folder: Path) -> str:
    """Return the schedule with the values of its file: a result then holds all of it. Raise UsageError."""
    shape, _, name = (part.strip() for part in text.partition(":"))
    if shape != "file":
        return text
    try:
        lines = (
            files.read(folder / Path(name).expanduser(), files.TEXT).decode().splitlines()
        )
    except (OSError, ValueError) as e:
        raise UsageError(
            f"The schedule's file {name} can't be read: {getattr(e, 'strerror', None) or e}."
        ) from None
    pairs = _pairs(name, lines)
    first = float(pairs[0][0])
    resolved = "step: " + " ".join(
        f"{float(time) - first:.9g}={value}" for time, value in pairs
    )
    if why := problem(resolved):
        raise UsageError(f"{name} {why[:300]}.")
    return resolved


def _pairs(name: str, lines: list[str]) -> list[list[str]]:
    """Return time and value of each line, without a header. Raise UsageError."""
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        if not words or (number == 1 and not re.fullmatch(_NUMBER, words[0])):  # a header
            continue
        if len(words) != 2 or not all(re.fullmatch(_NUMBER, word) for word in words):
            raise UsageError(
                f"{name}, line {number}: {line[:60]!r} is not 'seconds,value'."
            )
        pairs.append(words)
    if not pairs:
        raise UsageError(f"{name} has no lines 'seconds,value'.")
    return pairs


def _pair(word: str) -> Point:
    time, equals, value = word.partition("=")
    if not equals or not all(re.fullmatch(_NUMBER, part) for part in (time, value)):
        raise ValueError(f"must have steps SECONDS=VALUE, such as 30=8, but has {word!r}")
    return float(time), float(value)


def _steps(pairs: list[Point]) -> list[Point]:
    """Return two points for each step but the first: the value before it, and its own."""
    if not pairs or pairs[0][0] != 0:
        raise ValueError("must have steps from 0 s on: '0=2 30=8'")
    points = [pairs[0]]
    for (_, before), (time, value) in pairwise(pairs):
        points += [(time, before), (time, value)]
    return points


def _checked(points: list[Point]) -> tuple[Point, ...]:
    if len(points) > 2 * _POINTS:
        raise ValueError(f"has more than {_POINTS:,} steps")
    if any(value > _MOST or time > 10 * _MOST for time, value in points):
        raise ValueError(f"must have values up to {_MOST:,.0f}")
    if any(start > end for (start, _), (end, _) in pairwise(points)):
        raise ValueError("must have times that ascend")
    return tuple(points)
