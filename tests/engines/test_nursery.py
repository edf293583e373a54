"""Processes that tests fork are those that dyno starts otherwise."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dyno.engines import process
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.engines.process import EngineProcess

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


def _signals(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]


def _files(pid: int) -> list[str]:
    return sorted(
        path.readlink().name.partition(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir()
    )


def _leads_a_session(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3] == str(pid)


def _facts(engine: EngineProcess) -> dict[str, object]:
    keeper = psutil.Process(engine.pid).parent()
    assert keeper is not None
    both = keeper.pid, engine.pid
    return {
        "signals": [_signals(pid) for pid in both],
        "files": [_files(pid) for pid in both],
        "sessions": [_leads_a_session(pid) for pid in both],
        "descendants": len(engine.processes()),
        "folder": psutil.Process(engine.pid).cwd(),
    }


def test_a_forked_engine_has_the_files_signals_session_and_end_of_a_started_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert process.subprocess is not subprocess
    with Fake.start(FakeSpec(), tmp_path / "log") as forked, monkeypatch.context() as patch:
        patch.setattr(process, "subprocess", subprocess)
        with Fake.start(FakeSpec(), tmp_path / "log") as started:
            # A keeper opens a file and sets signals now and then: what it is between two looks counts.
            until = time.monotonic() + 10
            while (
                _facts(forked.process) != _facts(started.process)
                and time.monotonic() < until
            ):
                time.sleep(0.05)
            assert _facts(forked.process) == _facts(started.process)
        forked.stop()
        assert forked.process.exit_code == started.process.exit_code == -15


@pytest.mark.parametrize("forked", [True, False])
def test_a_mistake_ends_it_with_code_1_and_the_same_words(
    forked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not forked:
        monkeypatch.setattr(process, "subprocess", subprocess)
    command = [sys.executable, "-P", "-m", "dyno.engines.fake", "no-port"]
    with EngineProcess(command, None, tmp_path / "log") as engine:
        assert engine._exit_code(20) == 1
        assert (
            engine.last_line()
            == "ValueError: invalid literal for int() with base 10: 'no-port'"
        )
