"""A study whose rig is a real sshd on loopback: the study, the machine, and dyno as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from dyno.store.study import StudyFolder
from sshd import LoopbackSshd, sshd

STUDY = """
repeats = {repeats}
[rigs.far]
ssh = {{ host = "rig", config_file = "{config}" }}
{rig}
[engines.llamacpp]
kind = "llamacpp"
max_num_seqs = 4
max_model_len = 256
{engine}
[workloads.short]
input_len = 16
output_len = 16
num_prompts = {prompts}
[loads.closed]
max_concurrency = [1, 4]
"""


class SshRig:
    """A home folder of this machine, a rig, and a study between them."""

    def __init__(self, folder: Path, server: LoopbackSshd, wheels: Path) -> None:
        self.folder, self.server = folder, server
        (folder / "dyno" / "rigs").mkdir(parents=True)
        (folder / "dyno" / "rigs" / "wheels").symlink_to(wheels)  # made once for all tests
        self.env = {**os.environ, "DYNO_HOME": str(folder / "dyno"), "COLUMNS": "100"}
        self.env.pop("OPENAI_API_KEY", None)
        self.study = StudyFolder(folder / "runs" / "s")

    def write(
        self, rig: str = "", engine: str = "", repeats: int = 1, prompts: int = 8
    ) -> None:
        text = STUDY.format(
            config=self.server.config,
            rig=rig,
            engine=engine,
            repeats=repeats,
            prompts=prompts,
        )
        (self.folder / "s.toml").write_text(text)

    def dyno(self, *words: str) -> "DynoProcess":
        return DynoProcess([sys.executable, "-m", "dyno", *words], self.folder, self.env)

    def run(self, *words: str) -> str:
        return self.dyno("run", "s.toml", "--plain", "--no-report", *words).expect(0)

    def entries(self) -> int:
        return len(list((self.folder / "dyno" / "rigs").glob("*.json")))

    def left(self) -> list[str]:
        """What dyno left behind: entries of the register, and files on the rig."""
        entries = [path.name for path in (self.folder / "dyno" / "rigs").glob("*.json")]
        return entries + self.server.left()


class DynoProcess:
    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  (closed at its end)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._out.close()

    def text(self) -> str:
        self._out.seek(0)
        return self._out.read().decode()

    def until(self, pattern: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no {pattern!r} in\n{self.text()}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def expect(self, code: int, timeout_s: float = 240) -> str:
        """Wait for its end, and return what it printed."""
        self.process.wait(timeout_s)
        text = self.text()
        self._out.close()
        assert self.process.returncode == code, text
        return text


@pytest.fixture(scope="session")
def ssh_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def ssh_rig(tmp_path: Path, ssh_wheels: Path) -> Iterator[SshRig]:
    with sshd(tmp_path / "rig") as server:
        home = tmp_path / "here"
        home.mkdir()
        yield SshRig(home, server, ssh_wheels)
