"""From `main` to `send()` there are few frames of our own. ARCHITECTURE.md quotes how many."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import dyno
from conftest import StartFake
from dyno.cli.main import main
from dyno.load import connection

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

ROOT = Path(dyno.__file__).parent
STUDY = """
repeats = 1
[engines.quick]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = 2
requests_per_stream = 3
[trial]
correctness_check = false
"""


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """For each request that the wire sends: dyno's own functions from `main` to the one that calls send()."""
    stacks: list[list[str]] = []

    class Watched(connection.socket.socket):  # type: ignore[name-defined, misc]
        def send(self, data: bytes) -> int:
            frame: FrameType | None = sys._getframe(1)
            names = []
            while frame is not None:
                if Path(frame.f_code.co_filename).is_relative_to(ROOT):
                    names.append(frame.f_code.co_qualname)
                frame = frame.f_back
            stacks.append(names[::-1])
            return super().send(data)

    real = connection.begin

    def begin(replica: connection.Replica) -> connection.Connection:
        opened = real(replica)
        opened.socket = Watched(fileno=opened.socket.detach())
        opened.socket.setblocking(False)
        opened.recv = opened.socket.recvmsg
        return opened

    monkeypatch.setattr("dyno.load.pool.begin", begin)
    return stacks


def bench(url: str, folder: Path, *flags: str) -> None:
    lengths = [
        "--num-prompts",
        "6",
        "--random-input-len",
        "8",
        "--random-output-len",
        "3",
        "--no-correctness-check",
    ]
    assert (
        main(
            [
                "bench",
                "serve",
                "--base-url",
                url,
                "--runs",
                str(folder),
                "--disable-tqdm",
                *lengths,
                *flags,
            ]
        )
        == 0
    )


def test_bench_serve_sends_at_once_from_few_frames(
    sends: list[list[str]], fake: StartFake, tmp_path: Path
) -> None:
    url = fake().base_url
    bench(url, tmp_path, "--max-concurrency", "2")
    way = [
        *("main", "run", "on_server", "serve", "measure"),
        *("Wire.drive", "Wire._send_due", "Wire._send"),
    ]
    # a closed loop sends as soon as an answer is read
    later = [*way[:6], "Wire._read", "Wire._take", *way[6:]]
    assert sends[:2] == [way, way] and later in sends
    deepest = max(map(len, sends))
    assert deepest == len(later) == 10
    sends.clear()
    bench(url, tmp_path, "--request-rate", "200")
    assert sends and all(stack == way for stack in sends)
    page = (ROOT.parent.parent / "ARCHITECTURE.md").read_text()
    assert re.findall(r"Between `main` and `send\(\)` there are (\d+) frames", page) == [
        str(deepest)
    ]


def test_a_connection_opened_for_a_request_sends_from_no_more(
    sends: list[list[str]], fake: StartFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyno.load.pool.IDLE_MAX_NS", 0)  # none that is open is used
    bench(fake().base_url, tmp_path, "--max-concurrency", "2")
    assert {"Wire._connect"} == {stack[-2] for stack in sends}
    assert max(map(len, sends)) == 9


def test_a_study_sends_from_few_more(
    sends: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(STUDY)
    assert main(["run", "s.toml", "--plain", "--no-report"]) == 0
    assert max(map(len, sends)) == 16
