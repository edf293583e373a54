"""mypy takes the examples as strict, and refuses wrong keywords: dyno is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

from reference import ROOT

pytestmark = pytest.mark.real

WRONG = """
import dyno
dyno.serve(max_concurency=3)
dyno.serve(max_concurrency="many")
dyno.load("runs")[0].verdikt
reveal_type(dyno.load("runs")[0].records["ttft_ms"])
reveal_type(dyno.find("ttft_p50:1s").low)
"""
EXPECTED = (
    'Unexpected keyword argument "max_concurency" for "serve"',
    'Argument "max_concurrency" to "serve" has incompatible type "str"; expected "int | None"',
    'has no attribute "verdikt"; maybe "verdict"?',
    'Revealed type is "numpy.ndarray',
    'Revealed type is "float | None"',
)


def mypy(*arguments: str | Path, folder: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11"]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary"]
    done = subprocess.run(
        [*command, *cache, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.engines
def test_the_examples_are_typed(tmp_path: Path) -> None:
    files = sorted((ROOT / "examples").glob("**/*.py"))
    assert len(files) >= 9 and mypy(*files, folder=tmp_path) == ""
    (tmp_path / "wrong.py").write_text(WRONG)
    reported = mypy("wrong.py", folder=tmp_path)
    assert [words for words in EXPECTED if words not in reported] == []
