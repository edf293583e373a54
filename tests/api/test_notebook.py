"""examples/notebook.ipynb runs from top to bottom, in a thread whose event loop is running, as in Jupyter.

The cells are run here as IPython runs them: `await` at the top, the last expression shown by its HTML.
"""

import ast
import asyncio
import json
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from reference import ROOT

pytestmark = [pytest.mark.real, pytest.mark.engines]

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def compiled(cell: str) -> tuple[CodeType, bool]:
    """A cell as code, and whether it ends with an expression: `_` is its value then."""
    tree = ast.parse(cell)
    shown = isinstance(tree.body[-1], ast.Expr)
    if isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        target = ast.Name("_", ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
    fixed = ast.fix_missing_locations(tree)
    return compile(fixed, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), shown


async def executed() -> list[Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells():
        code, has_value = compiled(cell)
        waiting = eval(code, names)
        if asyncio.iscoroutine(waiting):
            await waiting
        if has_value:
            shown.append(names["_"])
    return shown


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = asyncio.run(executed())
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert sum("one user" in page for page in pages) >= 2  # the run, and the table of runs
    assert any("<svg" in page for page in pages)
    assert capfd.readouterr() == ("", "")


def test_its_cells_are_stored_without_results() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
