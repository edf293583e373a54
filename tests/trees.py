"""Syntax trees of the source, parsed once for all tests that read it. No test changes them."""

import ast
import functools
from pathlib import Path


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.lru_cache(maxsize=1)
def nodes(module: ast.Module) -> list[ast.AST]:
    """Return all nodes of the module that is looked at: a walk takes longer than what is asked of it."""
    return [*ast.walk(module)]
