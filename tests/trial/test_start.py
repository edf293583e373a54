"""A start that takes long is not given up while something moves; a hang is, and the message says what was last seen."""

import contextlib
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.engines import port
from dyno.errors import EngineError
from dyno.facts.engine import EngineSpec
from dyno.facts.offline import Batch
from dyno.trial import start_watch
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import Fleet, running
from dyno.trial.offline_engine import working
from test_fleet import FAKE, RIG, descendants_of, script, wait_for

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

IMPORTS = """
import os, sys, time
from dyno.engines.fake.server import serve
from dyno.engines.fake import FakeSpec
"""
SERVES = """
serve(FakeSpec(first_ms=1, gap_ms=1, model="m"), int(sys.argv[sys.argv.index("--port") + 1]))
"""


class Heard(list[tuple[str, bool]]):
    def below(self, text: str, stays: bool = False) -> None:
        self.append((text, stays))

    @property
    def staying(self) -> list[str]:
        return [text for text, stays in self if stays]


@contextlib.contextmanager
def up(
    tmp_path: Path, text: str, heard: Heard | None = None, **fields: Any
) -> Iterator[Fleet]:
    """A script in place of vLLM."""
    binary = script(
        tmp_path / "vllm", (IMPORTS if SERVES in text else "import sys, time\n") + text
    )
    plan = EnginePlan(EngineSpec("vllm", model="m", binary=binary, **fields), RIG)
    folder = tmp_path / "e"
    folder.mkdir(exist_ok=True)
    heard = Heard() if heard is None else heard
    with running(plan, folder, {}, lambda _: None, lambda _: None, heard.below) as fleet:
        yield fleet


# ---- slow ----


@pytest.mark.parametrize(
    "moves",
    [
        "print('Loading shard', i, flush=True)",
        pytest.param("os.write(data, bytes(1 << 20))", marks=pytest.mark.engines),
        pytest.param("sum(range(100_000))", marks=pytest.mark.engines),
    ],
    ids=["log", "data", "cpu"],
)
def test_a_start_longer_than_the_limit_is_waited_for_while_something_moves(
    tmp_path: Path, moves: str
) -> None:
    span_s = 3.0
    text = f"""
data = os.open({str(tmp_path / "download")!r}, os.O_WRONLY | os.O_CREAT)
end, i = time.monotonic() + {span_s}, 0
while time.monotonic() < end:
    i += 1
    {moves}
    time.sleep({0 if "sum" in moves else 0.02})
{SERVES}
"""
    with up(tmp_path, text, ready_stall_s=2) as fleet:
        assert (fleet.facts.ready_s or 0) > span_s


def test_a_sign_of_life_shows_the_last_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_watch, "_WORD_AFTER_S", 0.1)
    monkeypatch.setattr(start_watch, "_LOOK_S", 0.05)
    seen = tmp_path / "seen"
    text = f"""
print('Loading safetensors checkpoint shards:   3% 1/30\\rLoading safetensors checkpoint shards:  10% 3/30', flush=True)
while not os.path.exists({str(seen)!r}):
    time.sleep(0.01)
{SERVES}
"""

    class Until(Heard):
        def below(self, text: str, stays: bool = False) -> None:
            super().below(text, stays)
            if stays and "3/30" in text:
                seen.touch()

    heard = Until()
    with up(tmp_path, text, heard):
        pass
    last = "Loading safetensors checkpoint shards:  10% 3/30"
    assert (last, False) in heard
    assert any(
        re.fullmatch(rf"Still starting after \d+ s: {last}", line) for line in heard.staying
    )


# ---- hung ----


@pytest.mark.hostile
def test_a_hang_is_reported_by_the_limit_and_what_was_last_seen(tmp_path: Path) -> None:
    text = "print('Loading shard 3 of 9', flush=True)\ntime.sleep(600)\n"
    with pytest.raises(EngineError) as error, up(tmp_path, text, ready_stall_s=1):
        pass
    reported = str(error.value)
    assert re.search(
        r"vLLM made no progress for \d+ s while starting: no new log line since \d\d:\d\d:\d\d",
        reported,
    )
    for words in (
        "CPU 0 %", "no data read or written", "it doesn't listen yet", '"Loading shard 3 of 9"',
        "The limit is 1 s without progress", "Raise --engine-ready-stall-sec", "engine.log",
    ):  # fmt: skip
        assert words in reported
    assert "Nothing listens" not in reported


@pytest.mark.hostile
def test_an_engine_that_only_says_that_it_waits_hangs(tmp_path: Path) -> None:
    """As TGI's launcher and vLLM's workers do when a rank is lost."""
    text = "while True:\n    print('Waiting for shard to be ready... rank=0', flush=True)\n    time.sleep(0.1)\n"
    with (
        pytest.raises(EngineError, match=r"made no progress .*Waiting for shard"),
        up(tmp_path, text, ready_stall_s=1),
    ):
        pass


@pytest.mark.hostile
def test_an_engine_that_spins_is_given_up_after_three_times_the_limit(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    text = "print('NCCL init', flush=True)\nwhile True:\n    pass\n"
    with pytest.raises(EngineError) as error, up(tmp_path, text, ready_stall_s=1):
        pass
    assert time.monotonic() - began > 3
    assert re.search(
        r"made no progress for \d+ s .*it only computes: no new log line", str(error.value)
    )
    assert "1 s without progress, 3 times that while it computes" in str(error.value)


@pytest.mark.hostile
def test_a_server_that_takes_a_first_request_and_never_answers_hangs(
    tmp_path: Path,
) -> None:
    text = """
import socket
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(600)
"""
    with (
        pytest.raises(EngineError, match="it listens and has not answered"),
        up(tmp_path, text, ready_stall_s=1),
    ):
        pass


def test_the_longest_time_is_a_limit_also_with_progress(tmp_path: Path) -> None:
    text = (
        "while True:\n    print('loading', time.time(), flush=True)\n    time.sleep(0.05)\n"
    )
    with (
        pytest.raises(
            EngineError, match=r"wasn't ready within 1 s.*--engine-ready-timeout-sec limits"
        ),
        up(tmp_path, text, ready_timeout_s=1.0, ready_stall_s=5),
    ):
        pass


@pytest.mark.hostile
def test_an_offline_engine_that_hangs_is_reported_likewise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = script(tmp_path / "vllm", "")
    hangs = [
        "-c",
        "import sys, time; print('Loading', file=sys.stderr, flush=True); time.sleep(600)",
    ]
    monkeypatch.setattr(
        "dyno.engines.launch.worker_argv", lambda *_: [sys.executable, *hangs]
    )
    spec = EngineSpec("vllm", model="m", binary=binary, ready_stall_s=1)
    plan = EnginePlan(spec, RIG, batch=Batch("latency", 1, 8))
    with (
        pytest.raises(
            EngineError, match=r'made no progress for \d+ s while loading: .*: "Loading"'
        ),
        working(plan, tmp_path, lambda _: None, lambda _: None),
    ):
        pass


# ---- commands before and after ----


def test_the_output_of_a_command_is_shown_line_by_line_while_it_runs(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"

    class Until(Heard):
        def below(self, text: str, stays: bool = False) -> None:
            super().below(text, stays)
            if text == "tuned":
                go.touch()  # it goes on when its first line was seen

    heard = Until()
    command = (
        f"echo tuned; while [ ! -e {go} ]; do sleep 0.02; done; printf '10%%\\r90%%'; "
        "echo; echo hf_thisisasecretvalue"
    )
    spec = msgspec.structs.replace(
        FAKE, before=[command], env={"HF_TOKEN": "hf_thisisasecretvalue"}
    )
    with running(
        EnginePlan(spec, RIG), tmp_path, {}, lambda _: None, lambda _: None, heard.below
    ):
        pass
    assert heard.staying[0] == "tuned"
    assert "90%" in heard.staying
    assert "hf_thisisasecretvalue" not in str(heard)
    assert "tuned\n" in (tmp_path / "engine.log").read_text()


def test_a_command_that_fails_is_reported_with_its_code_and_last_lines(
    tmp_path: Path,
) -> None:
    spec = msgspec.structs.replace(FAKE, before=["echo no such partition; exit 4"])
    with (
        pytest.raises(
            EngineError,
            match=r"\(before the engine\) exited with code 4: \"no such partition\"\. Read .*engine\.log",
        ),
        running(EnginePlan(spec, RIG), tmp_path, {}, lambda _: None, lambda _: None),
    ):
        pass


def test_what_a_command_leaves_in_the_background_neither_ends_nor_is_waited_for(
    tmp_path: Path,
) -> None:
    marker = f"dyno-monitor-{os.getpid()}"
    start = f"{sys.executable} -c 'import time; time.sleep(600)' {marker} &"
    spec = msgspec.structs.replace(
        FAKE, before=[start], after=[f"kill $(pgrep -f '[d]{marker[1:]}')"]
    )
    with running(EnginePlan(spec, RIG), tmp_path, {}, lambda _: None, lambda _: None):
        assert descendants_of(marker)
    wait_for(lambda: not descendants_of(marker))


def test_ctrl_c_ends_a_command_and_its_children(tmp_path: Path) -> None:
    marker = f"dyno-long-{os.getpid()}"
    spec = msgspec.structs.replace(
        FAKE,
        before=[
            f"echo begins; {sys.executable} -c 'import time; time.sleep(600)' {marker}; true"
        ],
    )

    def press() -> None:
        wait_for(lambda: descendants_of(marker))
        os.kill(os.getpid(), signal.SIGINT)

    def watch(line: str, stays: bool = False) -> None:
        if line == "begins":
            thread.start()

    thread = threading.Thread(target=press)
    with (
        pytest.raises(KeyboardInterrupt),
        running(EnginePlan(spec, RIG), tmp_path, {}, print, print, watch),
    ):
        pass
    thread.join()
    assert not descendants_of(marker)


def test_an_engine_that_ends_while_its_port_is_looked_at_has_not_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with up(tmp_path, SERVES) as fleet:
        engine = fleet.engines[0]
        seen, looks = port.listeners, itertools.count(1)

        def ended_since(number: int) -> set[str] | None:
            sockets = seen(number)
            if next(looks) == 2:  # before it is looked for whose they are
                engine.process.stop()
            return sockets

        monkeypatch.setattr(port, "listeners", ended_since)
        assert engine.owns_port() is None
