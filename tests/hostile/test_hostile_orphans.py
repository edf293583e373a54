"""A study with llama.cpp whose dyno is ended at any moment: no engine, keeper, client or test of a processor stays."""

import signal
import sys
import time
from pathlib import Path

import pytest

from rigs_over_ssh import DynoProcess
from test_hostile_kills import Place
from test_hostile_processes import living_in, wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are looked at in /proc"
)

STUDY = """
[engines.llamacpp]
kind = "llamacpp"
max_num_seqs = 4
max_model_len = 256
[workloads.short]
input_len = 16
output_len = 16
num_prompts = 16
[loads.closed]
max_concurrency = [1, 4]
"""
# from its first line on: the peaks' test, the start, loads, the stop
MOMENTS_MS = range(100, 6100, 300)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
ONE = [1600]  # of them in each run of the suite


@pytest.mark.parametrize(
    "moment_ms",
    [ms if ms in ONE else pytest.param(ms, marks=pytest.mark.nightly) for ms in MOMENTS_MS],
)
def test_a_study_with_llama_cpp_that_is_ended_leaves_no_process(
    tmp_path: Path, moment_ms: int
) -> None:
    place = Place(tmp_path)
    (tmp_path / "s.toml").write_text(STUDY)
    how = SIGNALS[moment_ms // 300 % len(SIGNALS)]
    command = [sys.executable, "-m", "dyno", "run", "s.toml", "--plain", "--no-report"]
    with DynoProcess(command, tmp_path, place.env) as dyno:
        wait_for(lambda: dyno.text() or dyno.process.poll() is not None)
        time.sleep(moment_ms / 1000)
        dyno.signal(how)
        dyno.process.wait(60)
        assert "Traceback" not in dyno.text()
    wait_for(lambda: not living_in(tmp_path), 20)
