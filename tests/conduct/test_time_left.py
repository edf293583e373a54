"""The time that a study still takes, on a clock that the test sets."""

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from dyno.cli import progress as screen
from dyno.cli.progress import StudyView
from dyno.cli.run import describe_others
from dyno.conduct import study_plan
from dyno.conduct.estimate import trials_s
from dyno.conduct.study import TrialEnd
from dyno.load.progress import Progress
from dyno.probe import host, rig
from dyno.probe.telemetry.sampler import Sampler
from dyno.study.duration import TimeLeft
from dyno.units import NS_PER_S

STUDIES = Path(__file__).parents[2] / "studies"
TRIALS = {"a": 10.0, "b": 20.0, "c": 30.0}


def falls(values: list[float]) -> bool:
    return all(b < a for a, b in pairwise(values))


def run(
    left: TimeLeft, begin: float, took: float, load_from: float = 0.0, steps: int = 20
) -> list[float]:
    """What is shown while a trial runs whose load begins a while after the trial and ends with it."""
    shown = []
    for step in range(1, steps):
        at = took * step / steps
        if at > load_from:
            left.progress((at - load_from) / (took - load_from), at - load_from, begin + at)
        shown.append(left.seconds(begin + at))
    return shown


def test_the_time_left_falls_within_each_trial_and_as_trials_end() -> None:
    left, shown, now = TimeLeft(TRIALS, 100.0), [], 100.0
    for name, estimate in TRIALS.items():
        shown += run(left, now, estimate)
        now += estimate
        left.ended(name, True, now)
    assert falls(shown)
    assert shown[0] == 60 - 0.5 and shown[-1] == 1.5
    assert left.seconds(now) == 0


def test_the_time_left_falls_with_the_clock_while_no_request_has_ended() -> None:
    left = TimeLeft(TRIALS, 0.0)
    assert falls([left.seconds(now) for now in range(10)])
    # the first trial is late; the others are still to come
    assert left.seconds(12.0) == left.seconds(50.0) == 50


def test_a_trial_that_is_faster_than_estimated_brings_the_time_left_down_at_once() -> None:
    left = TimeLeft(TRIALS, 0.0)
    shown = run(left, 0.0, took=2.0)
    assert falls(shown)
    # of this trial; the others keep their estimates …
    assert abs(shown[-1] - (50 + 0.1)) < 0.01
    left.ended("a", True, 2.0)
    assert left.seconds(2.0) == 10  # … until it has ended: a fifth of 50 s
    assert left.known


def test_the_time_left_rises_only_when_a_load_turns_out_to_be_much_slower() -> None:
    left = TimeLeft({"a": 100.0, "b": 100.0}, 0.0)
    slower = run(left, 0.0, took=120.0)
    # a fifth slower is not news: it falls more slowly
    assert all(b <= a for a, b in pairwise(slower))
    left = TimeLeft({"a": 10.0, "b": 10.0}, 0.0)
    much = run(left, 0.0, took=100.0, steps=100)
    rises = [b for a, b in pairwise(much) if b > a]
    # early, by the load's own speed
    assert 0 < len(rises) < 10 and much.index(rises[-1]) < 15
    assert falls(much[20:]) and abs(much[-1] - (10 + 1)) < 0.01


def test_failed_and_skipped_trials_leave_the_speed_of_others_alone() -> None:
    left = TimeLeft(TRIALS, 0.0)
    left.ended("a", False, 0.01)
    assert not left.known and left.seconds(0.01) == 50
    left.ended("b", False, 0.02)
    assert left.seconds(0.02) == 30


def test_a_trial_that_is_run_again_counts_from_its_new_beginning() -> None:
    left = TimeLeft(TRIALS, 0.0)
    left.seconds(8.0)
    left.again(8.0)
    assert left.seconds(8.0) == 60
    left.ended("a", True, 18.0)
    assert left.seconds(18.0) == 50


def test_an_engines_start_does_not_stop_the_time_left() -> None:
    left = TimeLeft({"a": 40.0, "b": 40.0}, 0.0)
    shown = run(left, 0.0, took=50.0, load_from=10.0, steps=100)
    assert all(b <= a for a, b in pairwise(shown))
    left.ended("a", True, 50.0)
    assert left.seconds(50.0) == 50


STUDY = """
repeats = 3
[engines.e]
kind = "fake"
[workloads.w]
input_len = 16
output_len = 300
[loads.c]
max_concurrency = [2]
requests_per_stream = 10
"""


def test_the_screen_of_a_study_counts_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    trials = study_plan.read(tmp_path / "s.toml")[0].trials
    drawn: list[str] = []
    now = 1000.0
    monkeypatch.setattr(screen, "draw", lambda _, text: drawn.append(text))
    monkeypatch.setattr(screen, "writable", lambda: True)
    monkeypatch.setattr(screen.time, "monotonic", lambda: now)
    view = StudyView("s", trials, 0)
    view._live = True
    sampler = object.__new__(Sampler)
    monkeypatch.setattr(Sampler, "latest", lambda _: [])
    for planned in trials:
        view.begins(planned)
        # the warm-up says nothing of the load
        view.progress(Progress(4, ended=4, elapsed_ns=NS_PER_S))
        view.sampling(sampler)
        for second in range(1, 60):
            now += 1.0
            view.progress(Progress(20, ended=second // 3, elapsed_ns=second * NS_PER_S))
        view.over()
        now += 1.0
        view.ended(planned, TrialEnd("done"))
    shown = [found for text in drawn for found in re.findall(r"about ([0-9:]+) left", text)]
    left = [
        60 * int(minutes) + int(s) for minutes, s in (text.split(":") for text in shown)
    ]
    assert len(left) > 150 and left[-1] == 0
    last = left[len(left) // 3 + 5 :]  # a trial has been finished: the speed is known
    assert all(b <= a for a, b in pairwise(last)), last
    assert len(set(last)) > 100  # it never stands still for long


def test_the_demo_says_how_long_it_takes_before_its_first_trial(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = study_plan.read(STUDIES / "demo.toml")[0]
    machine = rig.read_machine()
    plans = study_plan.plans(study, study.trials, machine, dry=True)
    expected_s = trials_s(study, plans, machine)
    assert set(expected_s) == {p.place.id for p in study.trials}
    assert 30 < sum(expected_s.values()) < 120
    view = StudyView("demo", study.trials, 0, False, expected_s)
    view.begins_all()
    shown = capsys.readouterr().err
    found = re.fullmatch(
        r"demo: (\d+) trials, about (\d):(\d\d) left \(a guess\)\.\n", shown
    )
    assert found and int(found[1]) == len(study.trials)
    assert abs(60 * int(found[2]) + int(found[3]) - sum(expected_s.values())) < 5


def test_repeats_of_a_finished_trial_are_expected_to_take_as_long_as_it_did() -> None:
    study = study_plan.read(STUDIES / "demo.toml")[0]
    plans = study_plan.plans(study, study.trials, rig.read_machine(), dry=True)
    labels = {p.place.id: p.place.label for p in study.trials}
    measured = min(labels.values())
    usual, resumed = (
        trials_s(study, plans, rig.read_machine(), took)
        for took in (None, {measured: 500.0})
    )
    for id, label in labels.items():
        if label == measured:
            assert 500 < resumed[id] < 510
        else:
            assert resumed[id] == usual[id]


def test_plain_lines_of_a_study_have_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen.time, "monotonic", lambda: 1000.0)
    (tmp_path / "s.toml").write_text(STUDY)
    trials = study_plan.read(tmp_path / "s.toml")[0].trials
    view = StudyView("s", trials, 0, False, {p.place.id: 1000.0 for p in trials})
    for planned in trials:
        view.begins(planned)
        view.ended(planned, TrialEnd("skipped", "not wanted"))
    first, second, last = capsys.readouterr().err.splitlines()
    assert "about 33:20 left" in first and "about 16:40 left" in second
    assert "left" not in last


def test_other_programs_on_the_machine_are_reported_before_the_demo_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = msgspec.structs.replace(rig.read_machine(), cores=2)
    monkeypatch.setattr(host, "busy_cores", lambda _: 1.6)
    words = "Other programs use 1.6 of 2 cores: the results will be doubtful."
    assert describe_others(machine).startswith(words)
    for used in (0.1, None):
        monkeypatch.setattr(host, "busy_cores", lambda _, used=used: used)
        assert describe_others(machine) == ""
