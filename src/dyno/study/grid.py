"""From tables with lists in them to the cells of single trials.

A list is an axis: the grid is the product of all axes. Keys that are zipped walk together, and so do all the places
that use one variable whose value is a list.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dyno.study.cells import CELLS, choices
from dyno.study.document import Document, Path

_VARIABLE = re.compile(r"\$\{\s*([A-Za-z0-9_.-]+)\s*\}")


class Section(NamedTuple):
    """One of a trial's tables: its keys, and where each of them stands in the file."""

    part: str  # engine, workload, load, trial
    cells: dict[str, Any]
    paths: dict[str, Path]
    zipped: list[list[str]]


class Cell(NamedTuple):
    """All sections of one trial, each key with its single value."""

    sections: dict[str, dict[str, Any]]
    varying: dict[str, Any]  # 'engine.tensor_parallel' → 4: what tells it from its neighbours


def expand(document: Document, sections: list[Section], variables: Mapping[str, Any]) -> Iterator[Cell]:
    """One for each point of the grid that these sections span."""
    axes: dict[str, int] = {}  # its name → how many choices
    on_axis: dict[tuple[str, str], str] = {}  # part, key → the axis that picks its value
    for section in sections:
        for key, value in section.cells.items():
            for name in dict.fromkeys(used(value)):
                if name not in variables:
                    known = f"There are: {', '.join(variables)}." if variables else "There are none."
                    document.mistake(section.paths[key], f"there is no variable {name}. {known}")
                    return
                if isinstance(variables[name], list):
                    _add(document, axes, f"${{{name}}}", len(variables[name]), section.paths[key])
            hint = CELLS[section.part].get(key)
            several = choices(hint, _plain(value, variables))
            if several is not None:
                group = next((g for g in section.zipped if key in g), [key])
                axis = f"{section.part}." + "+".join(group)
                on_axis[section.part, key] = axis
                _add(document, axes, axis, len(several), section.paths[key])
    if 0 in axes.values():
        return  # told
    for point in itertools.product(*(range(n) for n in axes.values())):
        at = dict(zip(axes, point, strict=True))
        chosen = {name: v[at[f"${{{name}}}"]] if f"${{{name}}}" in at else v for name, v in variables.items()}
        out: dict[str, dict[str, Any]] = {}
        varying: dict[str, Any] = {}
        for section in sections:
            cells = out[section.part] = {}
            for key, value in section.cells.items():
                picked_by = on_axis.get((section.part, key))
                plain = _plain(value, variables)
                cells[key] = _filled(plain[at[picked_by]] if picked_by else plain, chosen)
                names = [name for name in used(value) if isinstance(variables[name], list)]
                # How many are sent goes with how they are sent: it tells no trial from another.
                counts = key in ("num_prompts", "num_warmups") and picked_by != f"{section.part}.{key}"
                if (picked_by and axes[picked_by] > 1 and not counts) or any(axes[f"${{{n}}}"] > 1 for n in names):
                    varying[f"{section.part}.{key}"] = cells[key]
        yield Cell(out, varying)


def _add(document: Document, axes: dict[str, int], axis: str, count: int, path: Path) -> None:
    if not count:
        axes[axis] = 0
        document.mistake(path, "is an empty list: there would be no trial.")
    elif axes.setdefault(axis, count) != count:
        document.mistake(path, f"has {count} values, and what it is zipped with has {axes[axis]}. They walk together.")
        axes[axis] = min(axes[axis], count)


def used(value: Any) -> Iterator[str]:
    """The variables that a value names."""
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


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        if whole := _VARIABLE.fullmatch(value):
            return variables[whole[1]]
        return _VARIABLE.sub(lambda m: str(variables[m[1]]), value)
    if isinstance(value, list):
        return [_filled(v, variables) for v in value]
    if isinstance(value, dict):
        return {k: _filled(v, variables) for k, v in value.items()}
    return value
