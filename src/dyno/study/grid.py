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
    varying: dict[str, Any]  # 'engine.tensor_parallel' → 4: what distinguishes it from its neighbours


class Room:
    """How large a study may grow. A line of lists spans millions of trials, and a few names may expand to gigabytes
    through other names: so both are counted before they are expanded."""

    def __init__(self, document: TomlDocument, repeats: int) -> None:
        self._doc, self._repeats, self._trials, self._filled = document, repeats, 0, 0

    def trials(self, count: int) -> None:
        """Count trials, also those that are excluded later."""
        self._trials += count * self._repeats
        if self._trials > _MANY:
            self._doc.mistake((), f"The grid has more than {_MANY:,} trials. Shorten a list, or lower repeats.")
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
        return _VARIABLE.sub(lambda match: self._counted(str(variables.get(match[1], match[0]))), value)

    def _counted(self, text: str) -> str:
        self._filled += len(text)
        if self._filled > _FILLED_MOST:
            self._doc.mistake(
                ("variables",), f"expand to more than {_FILLED_MOST >> 20} million characters in all trials. Shorten "
                "them.",
            )  # fmt: skip
            self._doc.check()
        return text


def expand(
    document: TomlDocument, sections: list[Section], variables: Mapping[str, Any], room: Room
) -> Iterator[GridCell]:
    """Yield a cell for each point of the grid that these sections span."""
    axes: dict[str, int] = {}  # its name → how many choices
    on_axis: dict[tuple[str, str], str] = {}  # part, key → the axis that picks its value
    wrong: set[tuple[str, str]] = set()  # part, key: reported, and left out
    for section in sections:
        for key, value in section.cells.items():
            for name in dict.fromkeys(used(value)):
                if name not in variables:
                    document.unknown(section.paths[key], name, list(variables), "variable")
                    wrong.add((section.part, key))
                elif isinstance(variables[name], list) and not _add(
                    document, axes, f"${{{name}}}", len(variables[name]), section.paths[key]
                ):
                    wrong.add((section.part, key))
            if (section.part, key) in wrong:
                continue
            hint = CELLS[section.part].get(key)
            several = choices(hint, _plain(value, variables))
            if several is not None:
                group = next((g for g in section.zipped if key in g), [key])
                axis = f"{section.part}." + "+".join(group)
                on_axis[section.part, key] = axis
                if not _add(document, axes, axis, len(several), section.paths[key]):
                    wrong.add((section.part, key))
    room.trials(math.prod(axes.values()))
    for indices in itertools.product(*(range(n) for n in axes.values())):
        point = dict(zip(axes, indices, strict=True))
        chosen = {name: v[point[f"${{{name}}}"]] if f"${{{name}}}" in point else v for name, v in variables.items()}
        out: dict[str, dict[str, Any]] = {}
        varying: dict[str, Any] = {}
        for section in sections:
            cells = out[section.part] = {}
            for key, value in section.cells.items():
                if (section.part, key) in wrong:
                    continue
                picked_by = on_axis.get((section.part, key))
                plain = _plain(value, variables)
                cells[key] = room.filled(plain[point[picked_by]] if picked_by else plain, chosen)
                # The number of requests follows from the load: it distinguishes no trials.
                counts = key in ("num_prompts", "num_warmups") and picked_by != f"{section.part}.{key}"
                by_variable = any(axes.get(f"${{{name}}}", 1) > 1 for name in used(value))
                if by_variable or (picked_by and axes[picked_by] > 1 and not counts):
                    varying[f"{section.part}.{key}"] = _distinct(cells[key], plain if picked_by else [])
        yield GridCell(out, varying)


def _distinct(value: Any, several: Any) -> Any:
    """Return of a table (variables of an engine, say) what differs among the tables of its axis."""
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in several):
        return value
    missing = object()
    return {
        name: own
        for name, own in value.items()
        if not several or any(each.get(name, missing) != several[0].get(name, missing) for each in several)
    }


def _add(document: TomlDocument, axes: dict[str, int], axis: str, count: int, path: Path) -> bool:
    """Add an axis. False: its list is empty."""
    if not count:
        document.mistake(path, "is an empty list. Give at least one value, or remove it.")
    elif axes.setdefault(axis, count) != count:
        document.mistake(path, f"has {count} values, but the list it is zipped with has {axes[axis]}.")
        axes[axis] = min(axes[axis], count)
    return count > 0


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
    """A key that is nothing but a variable takes its value, unless that is a list: then the variable is the axis."""
    if isinstance(value, str) and (whole := _VARIABLE.fullmatch(value)) and whole[1] in variables:
        named = variables[whole[1]]
        return value if isinstance(named, list) else named
    return value
