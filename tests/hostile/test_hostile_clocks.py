"""Clocks that are set back or forward, before a command and in the middle of it: durations, names, resumes, sweeps.

The processes of a test have a time of day of their own, in `time.time` and `datetime`. The monotonic clock stays, and
so does `time.time_ns`, by which dyno places the kernel's receive stamps: those can't be set here. test_spool.py has
steps of that clock.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest

import quantized_files
import tiny
from conftest import StartFake
from dyno.engines import model
from dyno.models import library
from rigs_over_ssh import DynoProcess
from test_hostile_kills import Place
from test_hostile_processes import wait_for

DAY_S = 86_400
# Python imports it at its start.
SITE = """
import datetime, os, time

def offset_s():
    with open(os.environ["TEST_CLOCK"]) as file:
        return int(file.read())

real = time.time
time.time = lambda: real() + offset_s()

class Set(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Set
"""


class Clock:
    """A place whose processes have a time of day of their own."""

    def __init__(self, folder: Path) -> None:
        self.place, self._file = Place(folder), folder / "clock"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self.place.env |= {
            "PYTHONPATH": str(folder / "site"),
            "TEST_CLOCK": str(self._file),
        }
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Set it off by this from now on, also for processes that run."""
        partial = self._file.with_suffix(".new")
        partial.write_text(f"{offset_s}\n")
        partial.replace(self._file)

    def start(self, *words: str) -> DynoProcess:
        return DynoProcess(
            [sys.executable, "-m", "dyno", *words], self.place.folder, self.place.env
        )

    def dyno(self, *words: str, code: int = 0) -> str:
        with self.start(*words) as process:
            return process.expect(code, 120)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def results(folder: Path) -> list[dict[str, float]]:
    return [
        json.loads(p.read_text())["summary"] for p in sorted(folder.rglob("summary.json"))
    ]


JUMPS: dict[str, list[int]] = {
    "a day back": [-DAY_S], "a day forward": [DAY_S], "to and fro": [DAY_S, -DAY_S, 400 * DAY_S, 0],
    "to 1972": [-int(time.time()) + 2 * 365 * DAY_S], "beyond 2038": [20 * 365 * DAY_S],
}  # fmt: skip
FIRST = "a day back"


def some(names: dict[str, list[int]]) -> list[object]:
    return [
        name if name == FIRST else pytest.param(name, marks=pytest.mark.nightly)
        for name in names
    ]


@pytest.mark.parametrize("jump", some(JUMPS))
def test_a_clock_that_jumps_during_a_load_moves_no_figure(
    clock: Clock, fake: StartFake, jump: str
) -> None:
    url = fake(first_ms=20, gap_ms=5).base_url
    began = time.monotonic()
    with clock.start(
        "bench", "serve", "--base-url", url, "--num-prompts", "120", "--output-len", "8", "--max-concurrency", "2",
        "--num-warmups", "0", "--runs", "runs",
    ) as dyno:  # fmt: skip
        wait_for(lambda: list((clock.place.folder / "runs").rglob("*.spool")), 30)
        for offset_s in JUMPS[jump]:
            clock.set(offset_s)
            time.sleep(0.2)
        text = dyno.expect(0, 120)
    took = time.monotonic() - began
    (summary,) = results(clock.place.folder / "runs")
    assert summary["completed"] == 120
    # 60 requests one after the other, of 55 ms each
    assert 2 < summary["duration_s"] < took
    assert "Traceback" not in text and "This is a bug" not in text
    assert clock.dyno("runs").count("\n") >= 1
    clock.dyno("report", "runs", "--allow-void")


STUDY = """
[engines.e]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.w]
input_len = 8
output_len = 4
num_prompts = 10
[loads.l]
max_concurrency = [1, 2, 3]
"""


@pytest.mark.parametrize(
    "jump", some({name: jump for name, jump in JUMPS.items() if len(jump) == 1})
)
def test_a_study_resumes_on_a_machine_whose_clock_was_set(clock: Clock, jump: str) -> None:
    (clock.place.folder / "s.toml").write_text(STUDY)
    words = ("run", "s.toml", "--runs", "runs", "--no-report", "--plain")
    clock.dyno(*words, "--limit", "1")
    clock.set(JUMPS[jump][0])
    text = clock.dyno(*words)
    assert "1 of 3 trials are done; resuming" in text
    assert len(results(clock.place.folder / "runs")) == 3
    assert all(
        0 < summary["duration_s"] < 60 for summary in results(clock.place.folder / "runs")
    )
    clock.dyno("report", "runs/s", "-o", "page.html", "--allow-void")


def test_two_runs_with_one_time_in_their_names_are_two(
    clock: Clock, fake: StartFake
) -> None:
    url = fake(first_ms=1, gap_ms=1).base_url
    for _ in range(2):
        clock.set(-int(time.time()) + 365 * DAY_S)  # the same second again
        clock.dyno(
            "bench",
            "serve",
            "--base-url",
            url,
            "--num-prompts",
            "3",
            "--output-len",
            "2",
            "--runs",
            "runs",
        )
    assert len(results(clock.place.folder / "runs")) == 2


def test_a_model_of_changed_files_is_made_again_though_the_clock_was_set_back(
    clock: Clock,
) -> None:
    """By the times alone, the new source was older than the model that was made of the old one."""
    folder = clock.place.folder
    clock.place.env["FAKE"] = "works"
    quantized_files.install_fake(folder / "home", "llm-compressor")
    source = tiny.build(folder / "source", quantized_files.SHAPE)
    words = ("models", "quantize", str(source), "llm-compressor:fp8-dynamic")
    assert "done," in clock.dyno(*words)
    assert "done," not in clock.dyno(*words), "it is there"
    clock.set(-DAY_S)
    assert "done," not in clock.dyno(*words), "it is there, whatever the time"
    os.utime(source / "config.json", (1, 1))
    assert "done," in clock.dyno(*words)
    assert "done," not in clock.dyno(*words)


def test_a_build_of_a_live_dyno_is_not_swept_however_old_it_looks(tmp_path: Path) -> None:
    """Its age is by the time of day, and was taken for that of a build that was killed an hour ago."""
    path = tmp_path / "x.gguf"
    with model._whole(path) as part:
        part.write_text("mine")
        os.utime(part, (0, 0))
        os.utime(part.parent, (0, 0))
        with model._whole(tmp_path / "y.gguf") as other:
            other.write_text("other")
        assert part.exists()
    assert path.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf", "y.gguf"]


@pytest.mark.parametrize("seconds", [0.0, 1e9, 2**31, 2**33, 253_402_300_799.0])
def test_any_time_of_day_is_a_stamp(seconds: float) -> None:
    assert len(library.stamp(seconds)) == 20
