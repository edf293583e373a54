"""What an engine's interpreter tells of itself."""

import os
import sys
from pathlib import Path

import pytest

from dyno.probe import software
from machines import executable, lay

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


def test_an_interpreter_reports_what_it_has_without_importing_torch(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "torch/__init__.py": "raise SystemExit('imported')",
            "torch/version.py": "from typing import Optional\n__version__ = '2.11.0+rocm6.3'\n"
            "cuda: Optional[str] = None\nhip: Optional[str] = '6.3.42131'\nrocm: Optional[str] = \"6.3\"\n",
            "vllm-0.24.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n",
            "flash_attn-2.8.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.8\n",
        },
    )
    reported = software.versions(
        sys.executable, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert reported["python"] == sys.version.split()[0]
    assert (
        reported["vllm"],
        reported["flash-attn"],
        reported["hip"],
        reported["rocm"],
    ) == (
        "0.24.0",
        "2.8",
        "6.3.42131",
        "6.3",
    )
    assert "cuda" not in reported and "sglang" not in reported


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "print('hello')", "print([1])"])
def test_a_broken_interpreter_reports_nothing(tmp_path: Path, code: str) -> None:
    assert software.versions(executable(tmp_path / "python", code)) == {}


def test_an_interpreter_that_hangs_or_is_not_there_reports_nothing(
    tmp_path: Path,
) -> None:
    assert (
        software.versions(
            executable(tmp_path / "python", "import time; time.sleep(60)"), timeout_s=0.5
        )
        == {}
    )
    assert software.versions(str(tmp_path / "nowhere")) == {}
    assert software.versions(str(tmp_path)) == {}  # a folder


def test_an_answer_is_the_last_line_that_is_one() -> None:
    assert software.last_json('warning: 1\n{"a": 1}\n') == {"a": 1}
    assert software.last_json('{\n"a": 1\n}\n') == {"a": 1}
    assert software.last_json("nothing") is software.last_json(None) is None
