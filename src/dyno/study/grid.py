"""Expand tables with lists into the cells of single trials.

A list is an axis: the grid is the product of all axes. Keys that are zipped walk together, and so do all the places
that use one variable whose value is a list.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dyno.study.cells import CELLS, choices
from dyno.study.document import Path, TomlDocument

_MANY = 100_000  # trials: more is a slip of the pen
_FILLED_MOST = 64 << 20  # characters of expanded variables, in all trials together
_VARIABLE = re.compile(r"\$\{\s*([A-Za-z0-9_.-]+)\s*\}")


class Section(NamedTuple):
    """One of a trial's tables: its keys, and their places in the file."""

    part: str  # engine, workload, load, trial
    cells: dict[str, Any]
    paths: dict[str, Path]
    zipped: list[list[str]]
    table: Path = ()  # its own place in the file; keys that it takes over have others


class GridCell(NamedTuple):
    """All sections of one trial, each key with its single value."""

    sections: dict[str, dict[str, Any]]
    # 'engine.tensor_parallel' → 4: what distinguishes it from its neighbours
    varying: dict[str, Any]


class Room:
    """How large a study may grow. A line of lists spans millions of trials, and a few names may expand to gigabytes
    through other names: so both are counted before they are expanded."""

    def __init__(self, document: TomlDocument, repeats: int) -> None:
        self._doc, self._repeats, self._trials, self._filled = document, repeats, 0, 0

    def trials(self, count: int) -> None:
        """Count trials, also those that are excluded later."""
        self._trials += count * self._repeats
        if self._trials > _MANY:
            self._doc.mistake(
                (),
                f"The grid has more than {_MANY:,} trials. Shorten a list, or lower repeats.",
            )
            self._doc.check()

    def filled(self, value: Any, variables: Mapping[str, Any]) -> Any:
        """Replace variables by their values. An unknown one stays as it is written."""
        if isinstance(value, list):
            return [self.filled(v, variables) for v in value]
        if isinstance(value, dict):
            return {k: self.filled(v, variables) for k, v in value.items()}
        if not isinstance(value, str) or "${" not in value:
            return value
        if whole := _VARIABLE.fullmatch(value):
            return variables.get(whole[1], value)
        return _VARIABLE.sub(
            lambda match: self._counted(str(variables.get(match[1], match[0]))), value
        )

    def _counted(self, text: str) -> str:
        self._filled += len(text)
        if self._filled > _FILLED_MOST:
            most = f"{_FILLED_MOST >> 20} million characters"
            self._doc.mistake(
                ("variables",), f"expand to more than {most} in all trials. Shorten them."
            )
            self._doc.check()
        return text


class _Axes:
    """The axes that a trial's sections span: one for each list, for lists that are zipped, and for each variable."""

    def __init__(
        self, document: TomlDocument, sections: list[Section], variables: Mapping[str, Any]
    ) -> None:
        self._doc, self._variables = document, variables
        self.sizes: dict[str, int] = {}  # its name → how many choices
        # part, key → the axis that picks its value
        self.by_key: dict[tuple[str, str], str] = {}
        self.wrong: set[tuple[str, str]] = set()  # part, key: reported, and left out
        for section in sections:
            for key, value in section.cells.items():
                if not self._collect(section, key, value):
                    self.wrong.add((section.part, key))
        self.varying: set[tuple[str, str]] = set()
        for section in sections:
            for key, value in section.cells.items():
                if self._varies(section.part, key, value):
                    self.varying.add((section.part, key))

    def points(self) -> Iterator[dict[str, int]]:
        """Yield each point of the grid: the index of the choice on each axis."""
        for indices in itertools.product(*(range(n) for n in self.sizes.values())):
            yield dict(zip(self.sizes, indices, strict=True))

    def _collect(self, section: Section, key: str, value: Any) -> bool:
        """Add the axes of a key. False: a mistake was reported."""
        path = section.paths[key]
        if not self._collect_variables(path, value):
            return False
        several = choices(CELLS[section.part].get(key), _plain(value, self._variables))
        if several is None:
            return True
        group = next((g for g in section.zipped if key in g), [key])
        axis = f"{section.part}." + "+".join(group)
        self.by_key[section.part, key] = axis
        return self._add(axis, len(several), path)

    def _collect_variables(self, path: Path, value: Any) -> bool:
        right = True
        for name in dict.fromkeys(used(value)):
            if name not in self._variables:
                self._doc.unknown(path, name, list(self._variables), "variable")
                right = False
                continue
            listed = self._variables[name]
            if isinstance(listed, list) and not self._add(
                _variable_axis(name), len(listed), path
            ):
                right = False
        return right

    def _add(self, axis: str, count: int, path: Path) -> bool:
        """Add an axis. False: its list is empty."""
        if not count:
            self._doc.mistake(
                path, "is an empty list. Give at least one value, or remove it."
            )
        elif self.sizes.setdefault(axis, count) != count:
            self._doc.mistake(
                path,
                f"has {count} values, but the list it is zipped with has {self.sizes[axis]}.",
            )
            self.sizes[axis] = min(self.sizes[axis], count)
        return count > 0

    def _varies(self, part: str, key: str, value: Any) -> bool:
        """Return whether a key distinguishes trials."""
        if any(self.sizes.get(_variable_axis(name), 1) > 1 for name in used(value)):
            return True
        axis = self.by_key.get((part, key))
        # The number of requests follows from the load: it distinguishes no trials.
        if key in ("num_prompts", "num_warmups") and axis != f"{part}.{key}":
            return False
        return axis is not None and self.sizes.get(axis, 1) > 1


def _variable_axis(name: str) -> str:
    return f"${{{name}}}"


def expand(
    document: TomlDocument,
    sections: list[Section],
    variables: Mapping[str, Any],
    room: Room,
) -> Iterator[GridCell]:
    """Yield a cell for each point of the grid that these sections span."""
    axes = _Axes(document, sections, variables)
    room.trials(math.prod(axes.sizes.values()))
    for point in axes.points():
        chosen = _chosen(variables, point)
        out: dict[str, dict[str, Any]] = {}
        varying: dict[str, Any] = {}
        for section in sections:
            cells = out[section.part] = {}
            for key, value in section.cells.items():
                if (section.part, key) in axes.wrong:
                    continue
                axis = axes.by_key.get((section.part, key))
                plain = _plain(value, variables)
                picked = plain[point[axis]] if axis else plain
                cells[key] = room.filled(picked, chosen)
                if (section.part, key) in axes.varying:
                    varying[f"{section.part}.{key}"] = _distinct(
                        cells[key], plain if axis else []
                    )
        yield GridCell(out, varying)


def _chosen(variables: Mapping[str, Any], point: Mapping[str, int]) -> dict[str, Any]:
    """Return each variable's single value at a point of the grid."""
    values = {}
    for name, value in variables.items():
        axis = _variable_axis(name)
        values[name] = value[point[axis]] if axis in point else value
    return values


def _distinct(value: Any, several: Any) -> Any:
    """Return of a table (variables of an engine, say) what differs among the tables of its axis."""
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in several):
        return value
    missing = object()
    return {
        name: own
        for name, own in value.items()
        if not several
        or any(each.get(name, missing) != several[0].get(name, missing) for each in several)
    }


def used(value: Any) -> Iterator[str]:
    """Yield the variables that a value names."""
    if isinstance(value, str):
        yield from _VARIABLE.findall(value)
    elif isinstance(value, list):
        for v in value:
            yield from used(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from used(v)


def _plain(value: Any, variables: Mapping[str, Any]) -> Any:
    """Replace a value that is nothing but a variable, unless that is a list: then the variable is the axis."""
    if (
        isinstance(value, str)
        and (whole := _VARIABLE.fullmatch(value))
        and whole[1] in variables
    ):
        named = variables[whole[1]]
        return value if isinstance(named, list) else named
    return value
