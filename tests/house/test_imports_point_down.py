"""Imports point down only, as design.md draws the layers; the siblings of a row don't know one another."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dyno
from trees import parsed

# From the bottom up. A package may import from the rows below it, and from itself.
ROWS: list[set[str]] = [
    {
        "archive",
        "child",
        "units",
        "numbers",
        "screen",
        "clock",
        "errors",
        "files",
        "http",
        "option",
        "outside",
        "plugins",
        "saying",
        "scratch",
        "secrets",
        "signals",
        "transport",
        "visible",
    },
    {"workload"},
    {"facts"},
    {"engines"},
    {"measure"},
    {"explain"},
    {"checks"},
    {"compare"},
    {"study", "load", "probe", "results", "store"},
    {"report", "models", "remote"},
    {"audit", "trial"},
    {"search", "quality"},
    {"conduct"},
    {"api"},
    {"cli"},
    {"__main__"},
]
# What these rooms may ask `engines` for: what an engine is, not how it is installed, started and stopped.
DECLARATIONS = "dyno.engines.kinds"
ASK_FOR_DECLARATIONS = {
    "measure",
    "checks",
    "compare",
    "study",
    "workload",
    "load",
    "probe",
    "results",
    "store",
}
ROOT = {"__init__"}  # holds the version and imports nothing; anyone may ask it

pytestmark = pytest.mark.usefixtures("no_collector")


def imported(module: ast.Module, package: str) -> Iterator[str]:
    """The dyno modules that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if alias.name.split(".")[0] == "dyno"
            )
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], base]
                ).rstrip(".")
            if base == "dyno":
                yield from (f"dyno.{alias.name}" for alias in node.names)
            elif base.startswith("dyno."):
                yield base


def top(name: str) -> str:
    """'dyno.load.wire' → 'load'; the package itself, or a name in it such as __version__ → '__init__'."""
    part = name.split(".")[1] if "." in name else "__init__"
    return "__init__" if part == "__version__" else part


def row(part: str) -> int | None:
    return next((i for i, names in enumerate(ROWS) if part in names), None)


def wrong_imports(root: Path) -> list[str]:
    wrong = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        here = parts[0]
        package = ".".join(["dyno", *parts[:-1]])
        if here in ROOT:
            allowed: set[str] = set()
        elif (height := row(here)) is None:
            wrong.append(f"{'/'.join(parts)}.py: {here!r} is in no row of the picture")
            continue
        else:
            # The bottom row is modules that may import each other; any other row's siblings may not.
            allowed = (
                {here}
                | ROOT
                | set().union(*ROWS[:height])
                | (ROWS[0] if height == 0 else set())
            )
        for name in imported(parsed(path), package):
            asked_too_much = (
                here in ASK_FOR_DECLARATIONS
                and top(name) == "engines"
                and not f"{name}.".startswith(f"{DECLARATIONS}.")
            )
            if top(name) not in allowed or asked_too_much:
                wrong.append(f"{'/'.join(parts)}.py imports {name}")
    return wrong


def test_imports_point_down() -> None:
    assert wrong_imports(Path(dyno.__file__).parent) == []


@pytest.mark.parametrize(
    ("file", "code", "reported"),
    [
        (
            "facts/record.py",
            "from dyno.measure import timing",
            "facts/record.py imports dyno.measure",
        ),
        (
            "workload/spec.py",
            "from dyno.facts import load",
            "workload/spec.py imports dyno.facts",
        ),
        (
            "load/wire.py",
            "from dyno.store.run import Run",
            "load/wire.py imports dyno.store.run",
        ),
        (
            "load/wire.py",
            "import dyno.engines.fake",
            "load/wire.py imports dyno.engines.fake",
        ),
        (
            "checks/load.py",
            "from dyno.engines import install",
            "checks/load.py imports dyno.engines",
        ),
        (
            "engines/kinds/vllm.py",
            "from dyno.probe import host",
            "engines/kinds/vllm.py imports dyno.probe",
        ),
        ("load/wire.py", "from dyno import study", "load/wire.py imports dyno.study"),
        (
            "load/protocols/tgi.py",
            "from ...store import run",
            "load/protocols/tgi.py imports dyno.store",
        ),
        (
            "report/block.py",
            "def f():\n    from dyno.conduct import trial",
            "report/block.py imports dyno.conduct",
        ),
        (
            "trial/online.py",
            "from dyno.cli import serve",
            "trial/online.py imports dyno.cli",
        ),
        (
            "http.py",
            "from dyno.facts.target import TargetSpec",
            "http.py imports dyno.facts.target",
        ),
        ("__init__.py", "from dyno.clock import now_ns", "__init__.py imports dyno.clock"),
        ("utils.py", "", "utils.py: 'utils' is in no row of the picture"),
        (
            "measure/summary.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dyno.load.plan import Plan",
            "measure/summary.py imports dyno.load.plan",
        ),
    ],
)
def test_a_wrong_import_is_found(
    tmp_path: Path, file: str, code: str, reported: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert wrong_imports(tmp_path) == [reported]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("http.py", "from dyno.errors import TargetError"),
        (
            "load/decode.py",
            "from dyno.load import http1\nfrom dyno.facts.record import Record",
        ),
        ("load/protocols/tgi.py", "from .base import Asked\nfrom .. import http1"),
        (
            "trial/online.py",
            "import dyno\nfrom dyno import workload, __version__\nfrom dyno.store.run import Run",
        ),
        (
            "cli/main.py",
            "from dyno.report.block import block\nfrom dyno.trial.online import serve",
        ),
        ("__main__.py", "from dyno.cli.main import main"),
        (
            "checks/load.py",
            "from dyno.engines.kinds import KINDS\nfrom dyno.engines.kinds.base import EngineKind",
        ),
        ("models/gguf.py", "from dyno.engines import install"),
        ("units.py", "import json\nimport dynamite"),
    ],
)
def test_a_right_import_is_let_pass(tmp_path: Path, file: str, code: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert wrong_imports(tmp_path) == []
