"""Plug-ins as pip leaves them: modules with a .dist-info beside them, in a folder of sys.path."""

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from reference import ROOT

EXAMPLES = ROOT / "examples/plugins"
KINDS = ("dataset", "protocol", "engine", "check", "sink", "chart")


def add_example(folder: Path, kind: str) -> None:
    """Lay down an example as its installation would."""
    project = tomllib.loads((EXAMPLES / kind / "pyproject.toml").read_text())["project"]
    [module] = (EXAMPLES / kind).glob("*.py")
    points = project["entry-points"]["dyno"]
    add(
        folder, project["name"], points, module.name, module.read_text(), project["version"]
    )


def add(
    folder: Path,
    name: str,
    points: dict[str, str],
    module: str,
    code: str,
    version: str = "1.0",
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / module).write_text(code)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dyno]", *lines]) + "\n")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1", **more}


def with_examples(folder: Path, kinds: Iterable[str] = KINDS) -> Path:
    for kind in kinds:
        add_example(folder, kind)
    return folder
