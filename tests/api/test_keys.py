"""dyno/api/keys.py and dyno/__init__.pyi say what the declarations and the module say."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dyno
import keys_file

PACKAGE = Path(dyno.__file__).parent
KEYS = PACKAGE / "api/keys.py"


def test_generated_keys_are_those_of_the_declarations() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        KEYS.write_text(keys_file.text())
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", KEYS], check=True)
    assert ast.dump(ast.parse(KEYS.read_text())) == ast.dump(ast.parse(keys_file.text()))


def test_the_stub_offers_the_names_of_the_module() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    offered = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    own = {name: f"dyno.{module}" for name, module in dyno._OFFERED.items()}
    assert offered == {**own, "aio": "dyno.api"}


@pytest.mark.parametrize("name", sorted(dyno._OFFERED))
def test_each_name_is_offered(name: str) -> None:
    module = importlib.import_module(f"dyno.{dyno._OFFERED[name]}")
    own, offered = getattr(module, name), getattr(dyno, name)
    assert name in dir(dyno) and callable(offered)
    assert own.__doc__ == offered.__doc__ and own.__doc__
    assert offered is own or inspect.signature(offered) == inspect.signature(own)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dyno' has no attribute 'serv'"):
        dyno.serv  # type: ignore[attr-defined]  # noqa: B018
