"""The repeats at the end of `dyno tune` decide: void ones don't count, and a missed target refuses the setting."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dyno.cli import exit_codes
from dyno.cli.main import main
from dyno.cli.tune import _exit_code
from dyno.facts.study import PlannedTrial
from dyno.facts.tune import Setting
from dyno.report.tune import lines
from dyno.search.tune import stored
from dyno.search.tune_plan import TunePlan
from test_tune import FAKE, written
from tuned_model import Outcome, missing, tuner, void

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

TUNE = 'seconds = 10\ntarget = "ttft_p99:500"\nsettings."slots=" = [1, 2, 3]\n'
BEST, SECOND, THIRD = {"slots=": 3}, {"slots=": 2}, {"slots=": 1}


def speed(setting: Setting) -> float:
    return 100.0 * (1 + setting.get("slots=", 0))


def test_a_setting_that_misses_the_target_in_its_repeats_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        made = Outcome(speed(setting))
        return (
            missing(made._replace(value=390.0)) if setting == BEST and repeat > 2 else made
        )

    made = tuner(tmp_path, monkeypatch, TUNE, model).tuner
    answer = made.run(lambda _: "")
    assert (
        answer.best is not None and answer.best.setting == SECOND and not answer.unconfirmed
    )
    assert answer.gain is not None and (answer.gain.repeats, answer.gain.change) == (
        3,
        pytest.approx(2.0),
    )
    [refused] = answer.refused_in_repeats
    assert refused.setting == BEST and refused.objection.startswith(
        "Repeat 1 of 3: p99 TTFT is 812 ms"
    )
    assert (refused.load, refused.shown, refused.judged) == ("repeat", 390.0, 400.0)
    # after a missed target the others would change nothing
    assert len(refused.repeats) == 1
    repeated = [load.setting for load in made.loads if load.repeat > 2]
    assert (
        repeated.count(BEST) == 1
        and repeated.count(SECOND) == 3
        and repeated.count({}) >= 3
    )
    assert len(
        {load.repeat for load in made.loads if load.setting == {} and load.repeat > 2}
    ) == repeated.count({})
    text = " ".join(" ".join(lines(answer)).split())
    assert (
        "Refused in the repeats, though better at first: slots=3." in text
        and "+200 % against the default" in text
    )
    assert (
        "refused: Repeat 1 of 3: p99 TTFT is 812 ms, but the target is p99 TTFT ≤ 500 ms."
        in text
    )
    assert _exit_code(answer) == exit_codes.DONE


def test_void_repeats_give_no_gain_and_refuse_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        made = Outcome(speed(setting))
        return void(made) if setting == BEST and repeat > 2 else made

    answer = tuner(tmp_path, monkeypatch, TUNE, model).tuner.run(lambda _: "")
    [refused] = answer.refused_in_repeats
    assert len(refused.repeats) == 3 and not refused.counted and refused.verdict == "void"
    assert (
        refused.objection
        == "None of its 3 repeats counts. client.overloaded: dyno was too busy."
    )
    assert answer.best is not None and answer.best.setting == SECOND
    assert answer.gain is not None and answer.gain.best == speed(SECOND)


def test_a_void_repeat_among_good_ones_is_left_out_of_the_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        made = Outcome(speed(setting))
        return (
            void(made._replace(value=9_999.0)) if setting == BEST and repeat == 4 else made
        )

    answer = tuner(tmp_path, monkeypatch, TUNE, model).tuner.run(lambda _: "")
    assert (
        answer.best is not None
        and answer.best.setting == BEST
        and len(answer.best.repeats) == 3
    )
    assert answer.gain is not None and (answer.gain.best, answer.gain.repeats) == (
        speed(BEST),
        2,
    )


def test_a_default_whose_repeats_are_void_leaves_the_best_without_a_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        made = Outcome(speed(setting))
        return void(made) if not setting and repeat > 2 else made

    answer = tuner(tmp_path, monkeypatch, TUNE, model).tuner.run(lambda _: "")
    assert answer.best is not None and answer.best.setting == BEST and answer.gain is None
    text = " ".join(lines(answer))
    assert (
        "400.0 (mean of 3 repeats). The gain is unknown: the default has no repeat that counts."
        in text
    )
    assert _exit_code(answer) == exit_codes.DONE


def test_a_default_that_misses_the_target_still_counts_for_the_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        return Outcome(speed(setting)) if setting else missing(Outcome(speed(setting)))

    answer = tuner(tmp_path, monkeypatch, TUNE, model).tuner.run(lambda _: "")
    assert answer.best is not None and answer.best.setting == BEST
    assert answer.gain is not None and answer.gain.default == speed({})


@pytest.mark.parametrize("refuse", [missing, void])
def test_where_no_setting_s_repeats_hold_none_is_recommended(
    refuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        return refuse(Outcome(speed(setting))) if repeat > 2 else Outcome(speed(setting))

    answer = tuner(tmp_path, monkeypatch, TUNE, model).tuner.run(lambda _: "")
    assert answer.best is None and answer.gain is None and not answer.commands
    assert len(answer.refused_in_repeats) == 4  # the default, too
    text = " ".join(" ".join(lines(answer)).split())
    assert (
        "none: no setting of 4 can be recommended." in text
        and "against the default" not in text
    )
    assert "4 settings were good enough at first, but not in their repeats." in text
    assert _exit_code(answer) == exit_codes.VOID


def test_the_exit_code_says_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(model: Any, tune: str = TUNE, **more: Any) -> int:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return _exit_code(
            tuner(folder, monkeypatch, tune, model, **more).tuner.run(lambda _: "")
        )

    assert code(lambda s, r: missing(Outcome(speed(s)))) == exit_codes.UNDECIDED
    assert code(lambda s, r: void(Outcome(speed(s)))) == exit_codes.VOID
    assert code(lambda s, r: Outcome(speed(s))) == exit_codes.DONE
    # Time for the default and a setting, none for repeats: the starts are longer than was thought.
    assert (
        code(lambda s, r: Outcome(speed(s)), budget_s=165.0, start_s=70.0)
        == exit_codes.UNDECIDED
    )


def test_all_figures_of_a_row_are_of_one_load_and_the_row_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(setting: Setting, repeat: int) -> Outcome:
        made = Outcome(speed(setting) + repeat)  # other figures in each load
        return missing(made) if setting == SECOND and repeat == 2 else made

    answer = tuner(tmp_path, monkeypatch, TUNE + "confirm_repeats = 0\n", model).tuner.run(
        lambda _: ""
    )
    each = [answer.default, *answer.trials]
    assert all(trial.shown == trial.throughput == trial.p99_ttft_ms for trial in each)
    by_setting = {trial.setting.get("slots=", 0): trial for trial in each}
    assert (by_setting[0].load, by_setting[0].shown) == ("longer", 102.0)
    refused = by_setting[2]
    # the order of proposals decides whether it was among the best third
    if refused.long_value is not None:
        assert (refused.load, refused.shown, refused.value) == ("longer", 302.0, 301.0)
    table = [line for line in lines(answer) if re.match(r"slots=\d|default", line)]
    rows = {row.split()[0]: row for row in table[:4]}
    assert "102.0  longer" in re.sub(r" {2,}", "  ", rows["default"])


def test_repeats_are_part_of_the_stored_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tuner(tmp_path, monkeypatch, TUNE, lambda s, r: Outcome(speed(s))).tuner
    answer = made.run(lambda _: "")
    assert stored(made.folder.path) == answer and answer.best is not None
    assert [r.run for r in answer.best.repeats] == sorted(
        r.run for r in answer.best.repeats
    ) or answer.best.repeats


# ---- with real loads ----


def slower_later(monkeypatch: pytest.MonkeyPatch, setting: Setting, *args: str) -> None:
    """An engine whose setting is worse from its repeats on, as on another day."""
    planned = TunePlan.trial

    def trial(
        self: TunePlan, chosen: Setting, times: int = 1, repeat: int = 1, repeats: int = 1
    ) -> PlannedTrial:
        made = planned(self, chosen, times, repeat, repeats)
        if chosen != setting or repeat <= 2 or made.trial.engine is None:
            return made
        engine = replace(made.trial.engine, args=[*made.trial.engine.args, *args])
        return replace(made, trial=replace(made.trial, engine=engine))

    monkeypatch.setattr(TunePlan, "trial", trial)


@pytest.mark.engines  # slow
def test_the_best_of_short_loads_that_is_slow_in_its_repeats_is_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'confirm_repeats = 2\ntarget = ["ttft_p50:150ms"]\nsettings."gap_ms=" = [1, 4]\n'
    slower_later(monkeypatch, {"gap_ms=": 1}, "first_ms=400")
    path, runs = written(tmp_path, tune), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    text, answer = capsys.readouterr().out, stored(runs / "study-tune")
    assert answer.best is not None and answer.best.setting == {"gap_ms=": 4}
    assert (
        answer.gain is not None
        and answer.gain.change is not None
        and answer.gain.change > 0
    )
    [refused] = answer.refused_in_repeats
    assert re.match(
        r"Repeat 1 of 2: median TTFT is 4\d\d\.\d ms, but the target is median TTFT ≤ 150 ms",
        refused.objection,
    )
    assert (
        "Refused in the repeats, though better at first: gap_ms=1." in text
        and "gap_ms=4" in answer.commands[0]
    )


@pytest.mark.engines  # slow
def test_repeats_in_which_most_requests_fail_are_void_and_the_default_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'confirm_repeats = 2\nsettings."gap_ms=" = [1]\n'
    slower_later(monkeypatch, {"gap_ms=": 1}, "fault=500@2", "fault=503@3")
    path, runs = written(tmp_path, tune, head=FAKE.replace("0.7", "0.3")), tmp_path / "runs"
    main(["tune", path, "--runs", str(runs)])
    text, answer = capsys.readouterr().out, stored(runs / "study-tune")
    [refused] = answer.refused_in_repeats
    assert refused.setting == {"gap_ms=": 1} and not refused.counted and answer.gain is None
    assert answer.best is not None and not answer.best.setting  # the default is left
    assert "against the default" not in text
