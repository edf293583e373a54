"""Commands as a user types them, up to what `--dry-run` prints, on a machine with eight MI300X and no engine."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.facts.rig import Accelerator, Rig
from dyno.probe import rig

DryRun = Callable[..., str]
MI300X = [
    Accelerator(i, "AMD Instinct MI300X", "amd", memory_bytes=192 << 30) for i in range(8)
]


@pytest.fixture
def dry_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> DryRun:
    """Return a function from a command to the engine's command, or to dyno's refusal. Models need not be here."""
    machine = Rig("Linux", "6.8", "x86_64", "Xeon", 104, accelerators=MI300X)
    monkeypatch.setattr(rig, "read_machine", lambda: machine)
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(line: str, version: str = "") -> str:
        code = main(
            [
                *shlex.split(line),
                *(["--engine-version", version] if version else []),
                "--dry-run",
            ]
        )
        out, err = capsys.readouterr()
        commands = [
            text for text in out.splitlines() if not text.startswith(("#", "docker pull"))
        ]
        command = commands[0] if commands else ""
        problems = [
            text
            for text in err.splitlines()
            if not re.search(r"model .* does not exist|no effect", text)
        ]
        assert bool(code) == bool(re.sub(".*no effect.*\n", "", err)), err
        return "\n".join(problems) or re.sub(r"^\S*python3 \S+/worker ", "", command)

    return call
