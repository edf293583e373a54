"""The fake engine as TGI, judged by Hugging Face's client for TGI: `make test-engines`.

The client can't live beside dyno (it wants an older huggingface_hub), so it gets a virtual environment of its own,
made on first use under $DYNO_HOME/test-environments and kept.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import StartFake

CLIENT = "text-generation==0.7.0"

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def client_python() -> Path:
    home = Path(os.environ.get("DYNO_HOME") or "~/.local/share/dyno").expanduser()
    folder = home / "test-environments" / CLIENT.replace("==", "-")
    python, whole = folder / "bin" / "python", folder / "whole"
    if not whole.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", folder],
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                CLIENT,
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, (
                f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
            )
        whole.touch()
    return python


def test_hugging_faces_client_reads_all_that_the_fake_says_as_tgi(
    client_python: Path, fake: StartFake
) -> None:
    script = Path(__file__).with_name("tgi_client.py")
    command = [
        client_python,
        "-P",
        script,
        fake().base_url,
        fake(faults={"429": 1}).base_url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = {
        "text": " tok" * 4,
        "tokens": [" tok"] * 4,
        "finish_reason": "length",
        "count": 4,
        "seed": 7,
    }
    assert json.loads(done.stdout) == {
        "generate": answer,
        "generate_stream": answer,
        "async generate": answer,
        "async generate_stream": answer,
        "chat": {"text": " tok" * 4, "finish_reason": "length"},
        "overloaded generate": "OverloadedError: Model is overloaded",
        "overloaded generate_stream": "OverloadedError: Model is overloaded",
    }
