"""A module that only one other imports is a file more to open.

It is worth it as an entry of a registry, as a program of its own, or where the two would be too long to read as one.
The figures of MOST may only fall.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dyno
from test_house import modules
from trees import parsed

SOURCE = Path(dyno.__file__).parent
# Folder of entries → the one file that lists them by design.
REGISTRIES = {
    "dyno.checks": "dyno.checks",
    "dyno.engines.kinds": "dyno.engines.kinds",
    "dyno.load.protocols": "dyno.load.protocols",
    "dyno.probe.accelerators": "dyno.probe.accelerators",
    "dyno.report.charts": "dyno.report.charts",
    "dyno.results.tools": "dyno.results.structured",
    "dyno.workload.datasets": "dyno.workload.datasets",
}
MOST = {"in one room": 23, "across rooms": 17}

pytestmark = pytest.mark.usefixtures("no_collector")


class Only(NamedTuple):
    """A module, and the one other that imports it."""

    module: str
    importer: str


def needed(path: Path, package: str, known: set[str]) -> Iterator[str]:
    """Yield the modules that a file imports, also inside functions. A package is needed for names of its own only."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in known else base


def single_importers(root: Path) -> list[Only]:
    files = modules(root)
    importers: dict[str, set[str]] = {}
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in needed(path, package, set(files)):
            if name != module:
                importers.setdefault(name, set()).add(module)
    return [
        Only(name, *importers[name])
        for name in sorted(files)
        if len(importers.get(name, ())) == 1
    ]


def kind(only: Only, files: dict[str, Path], commands: set[str]) -> str:
    """Return why a module has one importer: 'registry', 'program', 'across rooms', or 'in one room'."""
    folder = only.module.rpartition(".")[0]
    if REGISTRIES.get(folder) == only.importer or only.module in commands:
        return "registry"
    if '__name__ == "__main__"' in files[only.module].read_text():
        return "program"
    same = only.module.split(".")[1] == only.importer.split(".")[1]
    return "in one room" if same else "across rooms"


def by_kind(root: Path) -> dict[str, list[Only]]:
    from dyno.cli.main import COMMANDS

    named = {
        f"dyno.cli.{function.partition('.')[0]}"
        for group in COMMANDS.values()
        for function, _ in group.values()
    }
    files, found = modules(root), dict[str, list[Only]]()
    for only in single_importers(root):
        found.setdefault(kind(only, files, named), []).append(only)
    return found


def test_few_modules_have_a_single_importer() -> None:
    found = by_kind(SOURCE)
    counted = Counter({name: len(some) for name, some in found.items()})
    assert {name: found[name] for name in MOST if counted[name] > MOST[name]} == {}


def test_single_importers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "noun.py").write_text("")
    (tmp_path / "room" / "shared.py").write_text("")
    (tmp_path / "room" / "a.py").write_text("from dyno.room import noun, shared")
    (tmp_path / "b.py").write_text("def f():\n    from dyno.room.shared import x")
    assert single_importers(tmp_path) == [Only("dyno.room.noun", "dyno.room.a")]


if __name__ == "__main__":  # lists them: python tests/house/test_single_importers.py
    for reason, some in by_kind(SOURCE).items():
        print(f"{reason}: {len(some)}")
        print(*(f"    {only.module}  ← {only.importer}" for only in some), sep="\n")
