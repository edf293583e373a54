"""`dyno bench forward`: vLLM's own program, here a stand-in that prints what it is asked."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real  # starts processes


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that has a vLLM 0.33 whose program prints its words and ends with 7."""
    lib = tmp_path / "lib"
    program = lib / "vllm/entrypoints/cli"
    program.mkdir(parents=True)
    (program / "main.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    install(lib, "0.33.0")
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={lib} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def install(lib: Path, version: str) -> None:
    info = lib / "vllm-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    )


def forward(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "dyno",
            "bench",
            "forward",
            "--engine-python",
            python,
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_all_flags_go_to_vllm_s_own_program_and_its_exit_code_is_the_command_s(
    python: Path,
) -> None:
    done = forward(
        python, "--model", "M", "--case", "decode=32*1@4096", "--exclude-drafter"
    )
    given = ["--model", "M", "--case", "decode=32*1@4096", "--exclude-drafter"]
    assert done.stdout.strip() == str(["bench", "forward", *given])
    assert done.returncode == 7
    assert done.stderr == "vLLM's own benchmark: dyno checks nothing, and keeps no run.\n"


def test_a_dry_run_prints_the_command(python: Path) -> None:
    done = forward(python, "M", "--case", "a=8", "--dry-run")
    assert done.stdout == (
        f"{python} -m vllm.entrypoints.cli.main bench forward --model M --case a=8\n"
    )
    assert done.returncode == 0


def test_an_older_vllm_is_refused_with_the_version_that_has_it(
    python: Path, tmp_path: Path
) -> None:
    install(tmp_path / "lib", "0.32.0")
    done = forward(python, "--model", "M", "--case", "a=8")
    assert done.returncode == 2
    assert "`vllm bench forward` is new in vLLM 0.33" in done.stderr
    assert f"{python} has 0.32.0" in done.stderr
