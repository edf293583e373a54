"""pip and uv, as commands. Each reads its own configuration: indexes, proxies and find-links are the user's."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

Run = Callable[[list[str]], None]  # runs a command to its end, and raises where that isn't 0

_NOT_INHERITED = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "UV_PROJECT_ENVIRONMENT"),  # it goes where we say
)


class Found(msgspec.Struct, frozen=True):
    """A package before it is installed."""

    version: str
    wants: dict[str, str]  # name → its own requirement on it: torch → torch==2.13.0+cpu


class Installer(Protocol):
    name: str

    def make(self, folder: Path) -> list[str]: ...
    def install(self, folder: Path, requirements: Sequence[str], options: Sequence[str]) -> list[str]: ...
    def uninstall(self, folder: Path, names: Sequence[str]) -> list[str]: ...
    def freeze(self, folder: Path) -> list[str]: ...
    def look_up(self, requirement: str, names: Sequence[str], scratch: Path, run: Run) -> Found:
        """What would be installed, from its metadata alone."""


# In the environment's interpreter, for which the markers are meant. Only pip is sure to be there.
_WANTS = """
import json, sys
from pip._vendor.packaging.requirements import Requirement
report, out, *names = sys.argv[1:]
with open(report) as f:
    metadata = json.load(f)["install"][0]["metadata"]
wants = {}
for line in metadata.get("requires_dist", []):
    r = Requirement(line)
    if r.name in names and (r.marker is None or r.marker.evaluate({"extra": ""})):
        wants[r.name] = f"{r.name}{r.specifier}"
with open(out, "w") as f:
    json.dump({"version": metadata["version"], "wants": wants}, f)
"""


class Pip:
    name = "pip"

    def __init__(self, python: str) -> None:
        self._python = python

    def make(self, folder: Path) -> list[str]:
        return [self._python, "-I", "-m", "venv", str(folder)]

    def _pip(self, folder: Path, *words: str) -> list[str]:
        # -I: what lies where the user stands, say a checkout of the engine, is not on its path.
        return [str(folder / "bin" / "python"), "-I", "-m", "pip", *words]

    def install(self, folder: Path, requirements: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        return self._pip(folder, "install", "--progress-bar=off", *options, *requirements)

    def uninstall(self, folder: Path, names: Sequence[str]) -> list[str]:
        return self._pip(folder, "uninstall", "--yes", *names)

    def freeze(self, folder: Path) -> list[str]:
        return self._pip(folder, "freeze")

    def look_up(self, requirement: str, names: Sequence[str], scratch: Path, run: Run) -> Found:
        folder, report, out = scratch / "venv", scratch / "report.json", scratch / "found.json"
        run(self.make(folder))
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--report", str(report)]
        run(self.install(folder, [requirement], options))
        run([str(folder / "bin" / "python"), "-I", "-c", _WANTS, str(report), str(out), *names])
        return Found(**json.loads(out.read_text()))


class Uv:
    name = "uv"

    def __init__(self, python: str) -> None:
        self._python = python

    def make(self, folder: Path) -> list[str]:
        return ["uv", "venv", "--no-project", "--python", self._python, str(folder)]

    def _pip(self, folder: Path, verb: str, *words: str) -> list[str]:
        return ["uv", "pip", verb, "--python", str(folder / "bin" / "python"), *words]

    def install(self, folder: Path, requirements: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        return self._pip(folder, "install", *options, *requirements)

    def uninstall(self, folder: Path, names: Sequence[str]) -> list[str]:
        return self._pip(folder, "uninstall", *names)

    def freeze(self, folder: Path) -> list[str]:
        return self._pip(folder, "freeze")

    def look_up(self, requirement: str, names: Sequence[str], scratch: Path, run: Run) -> Found:
        asked, out = scratch / "asked.in", scratch / "found.txt"
        asked.write_text(f"{requirement}\n")
        words = ["--python", self._python, "--no-annotate", "--no-header", "--quiet", "--output-file", str(out)]
        # It tells a package's requirements only by resolving all of them, which still downloads no wheel.
        run(["uv", "pip", "compile", str(asked), *words, *([] if names else ["--no-deps"])])
        lines = [line.partition(";")[0].strip() for line in out.read_text().splitlines()]
        wants = {name: line for line in lines for name in names if line.startswith(f"{name}==")}
        if (wheel := re.search(r"[^/]+\.whl", requirement)) is not None:
            return Found(wheel[0].split("-")[1].replace("%2B", "+"), wants)
        package = re.split(r"[\[=]", requirement, maxsplit=1)[0]
        [version] = [line.partition("==")[2] for line in lines if line.startswith(f"{package}==")]
        return Found(version, wants)


def environ(inherited: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """What an installer runs under: all that the user has set, but for what would lead it out of the environment."""
    kept = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
    if "CMAKE_ARGS" in more and "CMAKE_ARGS" in kept:
        kept["CMAKE_ARGS"] = f"{more['CMAKE_ARGS']} {kept['CMAKE_ARGS']}"
    ours = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONNOUSERSITE": "1"}
    return {**more, **kept, **ours}
