"""The budget of `dyno tune`: what it buys is said before, all of it is used, and one that is too short is refused."""

import re
from pathlib import Path

import pytest

from dyno.cli import exit_codes
from dyno.cli.main import main
from dyno.cli.tune import _exit_code
from dyno.errors import UsageError
from dyno.facts.tune import Setting, TuneSpec
from dyno.report.tune import lines
from dyno.search.tune import stored
from dyno.search.tune_budget import TuneBudget
from test_tune import FAKE, starts_of, written
from tuned_model import Outcome, tuner

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

MANY = 'settings."slots=" = { from = 1, to = 500 }\ntrials = 100\n'


def better(setting: Setting, _: int) -> Outcome:
    return Outcome(100.0 + setting.get("slots=", 0))


def worse(setting: Setting, _: int) -> Outcome:
    return Outcome(1000.0 - setting.get("slots=", 0))


@pytest.mark.parametrize("total_s", [60, 120, 240, 360])
@pytest.mark.parametrize("start_s", [1.0, 6.0])
@pytest.mark.parametrize("model", [better, worse])
def test_a_budget_is_used_and_kept(
    total_s: float,
    start_s: float,
    model: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, remarks = tuner(
        tmp_path,
        monkeypatch,
        f"seconds = 5\n{MANY}",
        model,
        budget_s=total_s,
        start_s=start_s,
    )  # type: ignore[arg-type]
    answer = made.run(lambda _: "")
    used_s = made.now[0]
    # What is left is too short for another setting, its longer load and a repeat of two.
    assert total_s - (start_s + 4 * 5 + 2 * (start_s + 5)) <= used_s <= total_s
    assert (
        answer.ended == "budget" and answer.budget_s == total_s and answer.best is not None
    )
    repeats = [load for load in made.loads if load.repeat > 2]
    if model is better:
        assert answer.best.setting and len(answer.best.repeats) >= (
            2 if total_s > 60 else 1
        )
        assert answer.gain is not None and (answer.gain.low is not None) == (
            len(answer.best.repeats) > 1
        )
        assert len(repeats) == 2 * len(answer.best.repeats)
    else:
        # what was kept for repeats went to more settings
        assert not answer.best.setting and not repeats
    [said] = remarks
    match = re.search(
        r"about (\d+) short loads of 5 s and (\d) repeats? of the best two, (5|15) s each",
        said,
    )
    assert match, said
    shorts = sum(load.repeat == 1 for load in made.loads)
    if model is better:
        assert len(answer.best.repeats) >= int(match[2])
        # some settings get longer loads instead
        assert 0.3 * int(match[1]) <= shorts - 1 <= 1.5 * int(match[1])


def test_a_budget_of_four_minutes_compares_settings_and_repeats_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads of the usual 20 s: no three longer repeats of two settings fit, and it once ended after the default."""
    made, _ = tuner(tmp_path, monkeypatch, MANY, better, budget_s=240.0, start_s=5.0)
    answer = made.run(lambda _: "")
    assert made.now[0] >= 190 and len(answer.trials) >= 3
    assert (
        answer.best is not None
        and len(answer.best.repeats) >= 2
        and answer.gain is not None
    )
    assert "of 240.0 s (--budget)" in list(lines(answer))[-1]


def test_without_a_budget_nothing_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, remarks = tuner(
        tmp_path,
        monkeypatch,
        'seconds = 5\nsettings."slots=" = [1, 2, 3]\n',
        better,
        start_s=300.0,
    )
    answer = made.run(lambda _: "")
    assert answer.ended == "settings" and answer.budget_s is None and not remarks
    assert answer.best is not None and len(answer.best.repeats) == 3
    assert all(load.seconds == 15 for load in made.loads if load.repeat > 2)


def test_starts_that_take_longer_than_thought_leave_the_best_unconfirmed_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = tuner(
        tmp_path, monkeypatch, f"seconds = 10\n{MANY}", better, budget_s=165.0, start_s=70.0
    )
    answer = made.run(lambda _: "")
    assert answer.best is not None and answer.best.setting and answer.unconfirmed
    text = " ".join(" ".join(lines(answer)).split())
    assert "not confirmed by repeats: there was no time for them (--budget)" in text
    assert _exit_code(answer) == exit_codes.UNDECIDED


@pytest.mark.parametrize(
    ("spec", "budget_s", "words"),
    [
        (TuneSpec({}), 60, "--budget 60 s can't start anything: the default, one setting and a repeat of each need "
         r"80 s for their loads alone, .* Give --budget 2m or more, or lower \[tune\] seconds \(now 20\)\."),
        (TuneSpec({}, confirm_repeats=0), 30, "the default, one setting need 40 s .* Give --budget 60 or more"),
        (TuneSpec({}, objective="load"), 400, r"--budget 7 min can't .* need 8 min for their searches alone"),
    ],
)  # fmt: skip
def test_a_budget_that_can_t_start_anything_is_refused_with_the_least_that_would_do(
    spec: TuneSpec, budget_s: float, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        TuneBudget(spec, budget_s).check()
    TuneBudget(spec, 480).check()


def test_it_is_refused_before_anything_is_started_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = (
        written(tmp_path, 'settings."gap_ms=" = [1]\n', head=FAKE.replace("0.7", "20")),
        tmp_path / "runs",
    )
    for more in ([], ["--dry-run"]):
        assert main(["tune", path, "--runs", str(runs), "--budget", "50", *more]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert (
            "--budget 50 s can't start anything" in error
            and "Give --budget 2m or more" in error
        )
    assert not runs.exists()


def test_a_dry_run_says_what_a_budget_buys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, MANY, head=FAKE.replace("0.7", "5"))
    assert (
        main(
            ["tune", path, "--budget", "10m", "--dry-run", "--runs", str(tmp_path / "runs")]
        )
        == 0
    )
    text = capsys.readouterr().out
    words = "about 30 short loads of 5 s and 3 repeats of the best two, 15 s each (if a start takes 10 s)."
    assert f"# --budget 10 min: {words}" in text


@pytest.mark.engines  # slow
def test_a_real_search_says_what_its_budget_buys_and_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = (
        written(tmp_path, 'settings."gap_ms=" = { from = 1, to = 60 }\n'),
        tmp_path / "runs",
    )
    main(["tune", path, "--runs", str(runs), "--budget", "45"])
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    answer = stored(runs / "study-tune")
    assert (
        "--budget 45 s: about" in err and "Time left: " in err and "(a start takes" in err
    )
    assert answer.best is not None and answer.ended == "budget" and starts_of(runs) >= 4
    assert answer.duration_s > 22 and len(answer.trials) >= 2
    assert answer.gain is not None or not answer.best.setting or answer.unconfirmed
    assert "of 45.00 s (--budget)" in out


@pytest.mark.engines  # slow
def test_a_search_that_is_resumed_with_a_short_budget_answers_from_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'confirm_repeats = 0\nsettings."gap_ms=" = [1]\n'
    path, runs = written(tmp_path, tune, head=FAKE.replace("0.7", "0.3")), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    before = starts_of(runs)
    assert main(["tune", path, "--runs", str(runs), "--budget", "0.1"]) in (0, 4)
    assert starts_of(runs) == before
