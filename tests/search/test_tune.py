"""`dyno tune`: the fake engine's best setting is known, and the embedded llama.cpp answers with quality."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.api.headers import key_headers
from dyno.cli.main import main
from dyno.conduct import study_plan
from dyno.conduct.study import conduct_part
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Peaks
from dyno.facts.tune import Setting, TuneAxis, TuneSpec, TuneTrial
from dyno.probe import rig
from dyno.probe.peaks import KnownPeaks
from dyno.search.proposer import Proposer, key_of, possible
from dyno.search.tune import Tuner, stored
from dyno.search.tune_plan import LONGER, TunePlan, applied, folder_for
from dyno.store.run import Run
from dyno.store.study import Failure, StudyFolder, write_failure
from dyno.trial.watcher import StudyWatcher

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

FAKE = """
[engines.fake]
kind = "fake"
args = ["first_ms=40", "gap_ms=10"{more}]
[workloads.short]
input_len = 8
output_len = 8
num_prompts = 50
[loads.four]
max_concurrency = 4
[tune]
seconds = 0.7
"""


def written(folder: Path, tune: str, more: str = "", head: str = FAKE) -> str:
    path = folder / "study.toml"
    path.write_text(head.replace("{more}", more) + tune)
    return str(path)


def trials_of(runs: Path) -> dict[str, int]:
    return {
        p.parent.name: p.stat().st_mtime_ns for p in runs.glob("*/trials/*/summary.json")
    }


def starts_of(runs: Path) -> int:
    return len(list(runs.glob("*/engines/*")))


@pytest.mark.engines  # slow
def test_the_known_best_is_found_confirmed_and_given_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'confirm_repeats = 2\nsettings."gap_ms=" = [1, 30]\nsettings."first_ms=" = [5, 80]\n'
    path, runs = written(tmp_path, tune), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    answer = stored(runs / "study-tune")
    assert answer.ended == "settings" and answer.possible == 4 and len(answer.trials) == 4
    assert answer.best is not None and answer.best.setting == {"gap_ms=": 1, "first_ms=": 5}
    gain = answer.gain
    assert gain is not None and gain.repeats == 2
    # By the nominal times 12 ms instead of 110 ms a request.
    assert (
        gain.low is not None
        and gain.change is not None
        and gain.low > 0
        and gain.change > 1
    )
    assert "gap_ms=1 first_ms=5" in answer.commands[0] and answer.commands[0].startswith(
        "dyno bench serve --engine fake"
    )
    assert (
        answer.commands[1].endswith("8000 first_ms=5 gap_ms=1 model=fake")
        or "first_ms=5" in answer.commands[1]
    )
    effects = answer.effects()
    assert (
        effects["gap_ms="]["1"][0] > effects["gap_ms="]["30"][0]
        and effects["first_ms="]["5"][1] == 2
    )
    assert answer.front()[0].setting == answer.best.setting
    for words in (
        "against the default (95 % interval: +",
        "Effect of each setting",
        "Reproduce",
        "4 of 4 settings",
    ):
        assert words in text

    # Again: nothing is started or measured anew, and the answer is the same.
    before = trials_of(runs), starts_of(runs)
    assert main(["tune", path, "--runs", str(runs), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (trials_of(runs), starts_of(runs)) == before and again["gain"][
        "change"
    ] == gain.change


def tuner_of(folder: Path, tune: str, **study: str) -> Tuner:
    """A search that goes where a test leads it; a second one of the same folder resumes the first."""
    study_, text = study_plan.read(Path(written(folder, tune, **study)))
    plan = TunePlan(study_)
    path = folder_for(folder / "runs", plan).path
    path.mkdir(parents=True, exist_ok=True)
    (path / "search.json").write_text(plan.identity)
    run = StudyFolder(path)
    return Tuner(
        plan,
        run,
        rig.read_machine(),
        partial(conduct_part, text, run, key_headers),
        StudyWatcher(),
    )


@pytest.mark.engines  # slow
def test_a_promising_setting_gets_its_longer_load_in_the_same_start_and_others_none(
    tmp_path: Path,
) -> None:
    tune, runs = (
        'seconds = 0.1\nsettings."gap_ms=" = [1, 60, 100]\nsettings."fault=" = ["die@1"]\n',
        tmp_path / "runs",
    )
    each: list[Setting] = [{"gap_ms=": 1}, {"gap_ms=": 60}, {"fault=": "die@1"}]

    def attempted() -> list[tuple[str, bool]]:
        tuner = tuner_of(tmp_path, tune, head=FAKE.replace("seconds = 0.7", ""))
        for setting in each:
            tuner.trials[key_of(setting)] = tuner.attempt(setting)
        return [(t.state, t.long_value is not None) for t in tuner.trials.values()]

    expected = [("measured", True), ("measured", False), ("failed", False)]
    assert attempted() == expected
    assert starts_of(runs) == 3 and len(trials_of(runs)) == 3  # two loads, one load, none
    before = trials_of(runs)
    assert attempted() == expected  # resumed: no load that was left out is made up for
    assert starts_of(runs) == 3 and trials_of(runs) == before


@pytest.mark.engines  # slow
def test_a_longer_load_that_was_cut_off_or_failed_is_known_after_a_resume(
    tmp_path: Path,
) -> None:
    tune, runs = 'seconds = 0.1\nsettings."gap_ms=" = [1]\n', tmp_path / "runs"
    head = FAKE.replace("seconds = 0.7", "")
    first = tuner_of(tmp_path, tune, head=head).attempt({"gap_ms=": 1})
    longer = tuner_of(tmp_path, tune, head=head).plan.trial({"gap_ms=": 1}, LONGER, 2, 2)
    run = StudyFolder(runs / "study-tune").run(longer.place)
    run.summary_path.unlink()
    (run.path / "client.json").unlink()  # as a dyno that was killed leaves it
    again = tuner_of(tmp_path, tune, head=head).attempt({"gap_ms=": 1})
    assert (
        again.value == first.value and again.long_value is not None and starts_of(runs) == 2
    )
    run.summary_path.unlink()
    write_failure(run, Failure("The engine died.", 1, "2026-01-01T00:00:00+00:00"))
    refused = tuner_of(tmp_path, tune, head=head).attempt({"gap_ms=": 1})
    assert refused.objection == "The engine died." and starts_of(runs) == 2


@pytest.mark.engines
@pytest.mark.nightly  # tests/hostile/test_hostile_tune.py cuts one off, too
def test_interrupted_and_killed_it_resumes_with_what_was_measured(tmp_path: Path) -> None:
    tune = 'confirm_repeats = 0\ntrials = 4\nsettings."gap_ms=" = { from = 1, to = 40, log = true }\n'
    path, runs = written(tmp_path, tune), tmp_path / "runs"
    command = [sys.executable, "-m", "dyno", "tune", path, "--runs", str(runs)]

    def until(count: int, end: signal.Signals) -> tuple[int, str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        deadline = time.monotonic() + 90
        while (
            len(trials_of(runs)) < count
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        process.send_signal(end)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    code, out = until(2, signal.SIGINT)
    assert code == 130 and "Repeat the command to resume" in out
    assert not (runs / "study-tune" / "tune.json").exists()
    first = trials_of(runs)
    until(3, signal.SIGKILL)
    second = trials_of(runs)
    assert second.items() >= first.items()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = stored(runs / "study-tune")
    assert trials_of(runs).items() >= second.items() and len(answer.trials) == 4
    assert len({key_of(t.setting) for t in answer.trials}) == 4
    assert all(isinstance(t.setting["gap_ms="], int) for t in answer.trials)


def test_interrupted_in_its_first_setting_it_has_no_answer_yet(tmp_path: Path) -> None:
    head = FAKE.replace("first_ms=40", "first_ms=600000")
    path, runs = (
        written(tmp_path, 'settings."gap_ms=" = [1]\n', head=head),
        tmp_path / "runs",
    )
    command = [sys.executable, "-m", "dyno", "tune", path, "--runs", str(runs)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 60
    while not starts_of(runs) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (
        process.returncode == 130
        and "not known: no setting was measured yet.\n  Interrupted" in out
    )


@pytest.mark.engines  # slow
def test_what_fails_lies_or_misses_the_target_is_not_an_answer_and_the_reason_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = """confirm_repeats = 0
target = ["ttft_p50:150"]
settings."first_ms=" = [5, 300]
settings."fault=" = ["comments", "bundle", "die@1", "none"]
"""
    path, runs = written(tmp_path, tune), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    answer = stored(runs / "study-tune")
    trials = {(t.setting["fault="], t.setting["first_ms="]): t for t in answer.trials}
    assert len(trials) == 8
    assert (
        trials["none", 5].state == "discarded"
        and "no fault 'none'" in trials["none", 5].why
    )
    assert (
        trials["die@1", 5].state == "failed"
        and "exited with code" in trials["die@1", 5].why
    )
    # its answers repeat one word
    assert trials["bundle", 5].objection.startswith("correctness.garbage:")
    assert "the target is median TTFT ≤ 150 ms" in trials["comments", 300].objection
    assert answer.best is not None and answer.best.setting in (
        {"first_ms=": 5, "fault=": "comments"},
        {},
    )
    assert (
        "Not the best, and why" in text
        and "discarded: The fake engine has no fault 'none'" in text
    )


@pytest.mark.engines  # slow
def test_an_engine_of_vectors_is_tuned_by_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'confirm_repeats = 0\nsettings."first_ms=" = [10]\n'
    head = FAKE.replace('kind = "fake"', 'kind = "fake"\nbackend = "openai-embeddings"')
    path, runs = written(tmp_path, tune, head=head), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    answer = stored(runs / "study-tune")
    assert answer.best is not None and answer.best.setting == {"first_ms=": 10}
    assert answer.best.value and answer.default.value
    assert answer.best.value > 2 * answer.default.value
    out = capsys.readouterr().out
    assert "by inputs/s" in out and "output tokens/s" not in out


@pytest.mark.engines  # slow
def test_a_setting_with_too_many_invalid_answers_is_not_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = """confirm_repeats = 0
target = ["invalid:5%"]
settings."first_ms=" = [40, 5]
settings."fault=" = ["schema@5", "schema@200"]
"""
    head = FAKE.replace(
        "input_len = 8\noutput_len = 8", 'dataset = "structured-output"\noutput_len = 100'
    ).replace('kind = "fake"', 'kind = "fake"\nbackend = "openai-chat"')
    path, runs = written(tmp_path, tune, ', "gap_ms=1"', head), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    answer = stored(runs / "study-tune")
    trials = {(t.setting["fault="], t.setting["first_ms="]): t for t in answer.trials}
    refused = "of the answers are invalid, but the target is invalid answers ≤ 5 %."
    assert trials["schema@5", 5].objection.endswith(refused)
    assert trials["schema@200", 5].objection == ""
    assert answer.best is not None
    assert answer.best.setting == {"first_ms=": 5, "fault=": "schema@200"}


def test_where_every_setting_fails_the_answer_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, 'settings."first_ms=" = [5, 10]\n', more=', "fault=die@1"')
    assert main(["tune", path, "--runs", str(tmp_path / "runs")]) == 1
    text = capsys.readouterr().out
    assert "none: no setting of 3 can be recommended. The reasons are below." in text
    # one reason, three settings
    assert text.count("failed: the fake engine exited with code 3") == 1
    assert "default; first_ms=" in text and "    Log: " in text


@pytest.mark.engines  # slow
def test_a_target_that_no_setting_meets_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'seconds = 0.2\ntarget = "ttft_p50:20"\nsettings."gap_ms=" = [1]\n'
    path, runs = (
        written(tmp_path, tune, head=FAKE.replace("seconds = 0.7", "")),
        tmp_path / "runs",
    )
    assert main(["tune", path, "--runs", str(runs)]) == 4
    text = capsys.readouterr().out
    assert "none: no setting of 2 can be recommended" in text and "Relax the target" in text
    assert "Reproduce" not in text
    assert text.count("ms, but the target is median TTFT ≤ 20 ms.") == 2
    # nothing longer, and nothing is confirmed
    assert starts_of(runs) == 2 == len(trials_of(runs))


@pytest.mark.engines  # slow
def test_an_engine_that_dies_under_load_is_one_failed_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'seconds = 0.2\nsettings."fault=" = ["die@12"]\n'
    path, runs = (
        written(tmp_path, tune, head=FAKE.replace("seconds = 0.7", "")),
        tmp_path / "runs",
    )
    assert main(["tune", path, "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"the default \([\d.]+\): no other setting is better\.", text)
    assert "fault=die@12\n    failed: the fake engine died with code 3 under load" in text
    log = re.search(r"Log: (\S+)", text)
    assert log and Path(log[1]).exists()
    assert starts_of(runs) == 2  # none for the longer load of a failed setting


@pytest.mark.nightly  # minutes
def test_the_highest_load_within_a_target_is_an_objective_and_its_best_is_searched_again(
    tmp_path: Path,
) -> None:
    tune = """objective = "load"
target = "ttft_p50:90"
confirm_repeats = 1
settings."slots=" = [16]
[find]
target = ["ttft_p50:1"]
to = 64
"""
    head = FAKE.replace("seconds = 0.7", "seconds = 10")
    path, runs = written(tmp_path, tune, more=', "slots=2"', head=head), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs)]) == 0
    answer = stored(runs / "study-tune")
    assert answer.best is not None and answer.best.setting == {"slots=": 16}
    # TTFT grows from 40 ms in proportion to the requests beyond the slots: 90 ms at twice their number.
    assert answer.default.judged is not None and answer.best.judged is not None
    assert answer.default.judged <= 5 and answer.best.judged >= 8
    assert answer.best.long_value is None  # a search is as long as it must be
    assert f"--max-concurrency {answer.best.judged:g}" in answer.commands[0]
    assert answer.gain is not None and answer.gain.best > answer.gain.default
    searches = [
        r
        for p in runs.glob("*/trials/*/summary.json")
        if (r := Run(p.parent).result().find)
    ]
    assert sorted(s.spec.budget_s for s in searches) == [60, 60, 180, 180]
    # [find]'s range, [tune]'s target
    assert {(s.spec.most, s.spec.limits[0].most) for s in searches} == {(64, 90)}
    before = starts_of(runs)
    assert main(["tune", path, "--runs", str(runs)]) == 0
    assert starts_of(runs) == before == 4


@pytest.mark.engines
@pytest.mark.nightly  # a minute
def test_a_search_in_which_no_load_meets_the_target_is_refused_with_the_lowest_load(
    tmp_path: Path,
) -> None:
    tune = 'objective = "load"\ntarget = "ttft_p50:20"\nsettings."slots=" = [16]\n'
    trial = tuner_of(tmp_path, tune, head=FAKE.replace("0.7", "8")).attempt({})
    assert (
        trial.value is None
        and trial.objection == "No load meets the target, not even concurrency 1."
    )


PRICE = "[rigs.here]\nprice = { machine_hour = 3.6 }\n"


@pytest.mark.engines  # slow
@pytest.mark.parametrize(
    "objective",
    [
        "cost",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("ttft_p90", "tpot_mean")
        ),
    ],
)
def test_less_is_better_of_costs_and_latencies(objective: str, tmp_path: Path) -> None:
    key, best, other = (
        ("gap_ms=", 2, 20) if objective == "tpot_mean" else ("first_ms=", 10, 80)
    )
    tune = f'objective = "{objective}"\nsettings."{key}" = [{best}, {other}]\n'
    head = FAKE.replace("seconds = 0.7", "seconds = 0.2\nconfirm_repeats = 0")
    path, runs = written(tmp_path, tune + PRICE, head=head), tmp_path / "runs"
    assert main(["tune", path, "--runs", str(runs), "--rig", "here"]) == 0
    answer = stored(runs / "study-tune")
    assert answer.best is not None and answer.best.setting == {key: best}
    each = [answer.default, *answer.trials]
    if objective == "cost":  # $3.60 an hour is $0.001 a second
        assert all(t.shown == pytest.approx(1e-3 / (t.throughput or 0) * 1e6) for t in each)
        assert answer.unit == "cost per million output tokens (USD)"
    else:
        assert answer.best.value == pytest.approx(best, rel=0.5)
    effects = answer.effects()[key]
    assert effects[str(best)][0] < effects[str(other)][0]


@pytest.mark.engines  # slow
def test_energy_is_read_from_telemetry_and_refused_where_nothing_reports_it(
    tmp_path: Path,
) -> None:
    tuner = tuner_of(tmp_path, 'objective = "energy"\nsettings."gap_ms=" = [1]\n')
    setting = {"gap_ms=": 1}
    trial = tuner.attempt(setting)
    assert (
        trial.value is None and trial.objection == "energy per output token (J) is unknown."
    )
    run = Run(Path(trial.run))
    sampled = run.result().telemetry
    assert sampled is not None
    # as a GPU's counter gives it
    counted = msgspec.structs.replace(sampled, energy_per_output_token_j=0.25)
    run.write_result(msgspec.structs.replace(run.result(), telemetry=counted))
    again = tuner._result(tuner.plan.trial(setting), setting)
    assert again.value == 0.25 and not again.objection and tuner.spec.lower


def test_what_the_machines_bandwidth_forbids_is_discarded_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Peaks("a processor", 1, 1e8, {"fp32": 1e12}, "a sheet")
    monkeypatch.setattr("dyno.probe.peaks.of_processor", lambda *_, **__: KnownPeaks(slow))
    head = re.sub(
        r"(?s)\[engines.fake\].*?\[workloads",
        "[engines.llama]\nkind = 'llamacpp'\n[workloads",
        FAKE,
    )
    axes = 'settings.quantization = ["F16", "Q4_0"]\nsettings.max_num_seqs = [1, 4]\n'
    # 5.2 million weights: 10.5 MB in F16, 3.0 MB in Q4_0, at 0.1 GB/s.
    tuner = tuner_of(tmp_path, f'target = "tpot_p50:60"\n{axes}', head=head)
    whole = tuner.attempt({"quantization": "F16"})
    assert whole.state == "discarded" and starts_of(tmp_path / "runs") == 0
    assert re.fullmatch(
        r"A step reads 0\.010\d+ GB of weights at up to 0\.1000 GB/s: at least 10\d(\.\d)? ms per token, "
        r"but the target is median TPOT ≤ 60 ms\.",
        whole.why,
    )
    assert tuner._problem(tuner.plan.trial({"quantization": "Q4_0"})) == ""
    # By throughput: one request at a time has at most 33 tok/s in Q4_0, four have 133.
    tuner = tuner_of(tmp_path, axes, head=head)
    tuner.trials["measured"] = TuneTrial({"max_num_seqs": 4}, "measured", value=90.0)
    why = tuner.attempt({"quantization": "Q4_0", "max_num_seqs": 1}).why
    assert why.startswith("A step reads 0.002962 GB")
    assert why.endswith(
        "for 1 request at once: at most 33.76 tok/s, but another setting has 90.00."
    )
    assert (
        tuner._problem(tuner.plan.trial({"quantization": "Q4_0", "max_num_seqs": 4})) == ""
    )
    # A peak that was measured may be too low: what it forbids by a little is tried.
    tuner.trials["measured"] = TuneTrial({"max_num_seqs": 4}, "measured", value=36.0)
    alone = tuner.plan.trial({"quantization": "Q4_0", "max_num_seqs": 1})
    assert "another setting has 36.00" in tuner._problem(alone)
    measured = KnownPeaks(msgspec.structs.replace(slow, measured=True))
    monkeypatch.setattr("dyno.probe.peaks.of_processor", lambda *_, **__: measured)
    assert tuner._problem(alone) == ""


@pytest.mark.engines  # slow
def test_a_setting_that_answers_worse_is_refused(tmp_path: Path) -> None:
    head = """
[engines.llama]
kind = "llamacpp"
quantization = "Q8_0"
[workloads.short]
input_len = 8
output_len = 8
[loads.two]
max_concurrency = 2
num_prompts = 4
[quality]
tasks = ["copy"]
limit = 24
[tune]
settings.quantization = ["TQ2_0", "F16"]
"""
    tuner = tuner_of(tmp_path, "", head=head)
    assert tuner._worse({"quantization": "F16"}) == ""
    assert "Its answers score lower" in tuner._worse({"quantization": "TQ2_0"})


def test_a_workloads_own_seed_is_used_and_every_setting_has_the_same_prompts(
    tmp_path: Path,
) -> None:
    def seeds(head: str) -> list[int]:
        plan = tuner_of(tmp_path, 'settings."gap_ms=" = [1]\n', head=head).plan
        each = [
            plan.trial(s, t, r, r)
            for t, r in ((1, 1), (LONGER, 2))
            for s in ({}, {"gap_ms=": 1})
        ]
        assert all(p.trial.load.seed == p.trial.workload.seed for p in each)
        return [p.trial.workload.seed for p in each]

    own = seeds(FAKE.replace("num_prompts = 50", "num_prompts = 50\nseed = 7"))
    assert own[:2] == [7, 7] and own[2] == own[3] != 7
    given, other = seeds(FAKE), seeds("seed = 5\n" + FAKE)
    assert given[0] == given[1] != given[2] == given[3] and not {*given} & {*other, 0, 7}


def test_ctrl_c_in_the_repeats_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = tuner_of(tmp_path, 'settings."gap_ms=" = [1]\n')

    def pressed(_: TuneTrial) -> None:
        raise KeyboardInterrupt

    def measured(setting: Setting) -> TuneTrial:
        return TuneTrial(
            setting,
            "measured",
            value=9.0 if setting else 5.0,
            long_value=9.0 if setting else 5.0,
        )

    monkeypatch.setattr(tuner, "attempt", measured)
    monkeypatch.setattr(tuner, "_confirm", pressed)
    answer = tuner.run(lambda _: "")
    assert answer.ended == "interrupted" and answer.gain is None
    assert answer.best is not None and answer.best.setting == {"gap_ms=": 1}
    assert not (tuner.folder.path / "tune.json").exists()


def test_a_range_in_which_nothing_works_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = 'trials = 2\nsettings."fault=" = { from = 1, to = 1000000 }\n'
    path = written(tmp_path, tune, head=FAKE.replace("0.7", "0.1"), more=', "fault=1"')
    assert main(["tune", path, "--runs", str(tmp_path / "runs")]) == 1
    text = capsys.readouterr().out
    assert (
        "none: no setting of 42 can be recommended" in text
        and "Nearly all proposed settings can't work: narrow them." in text
    )
    assert "41 of 1,000,000 settings besides the default (41 discarded)" in text


def test_no_setting_is_proposed_twice_and_all_are(tmp_path: Path) -> None:
    axes = {
        "a": TuneAxis([1, 2, 4]),
        "b": TuneAxis(["x", "y"]),
        "c": TuneAxis(least=1, most=3, whole=True),
    }
    assert possible(axes) == 18

    def proposer() -> Proposer:
        return Proposer(tmp_path / "log", axes, lower=False, seed=1, trials=18)

    first, seen = proposer(), []
    for i in range(9):
        setting = first.propose()
        assert setting is not None
        seen.append(setting)
        if i != 8:  # dyno was killed there
            first.tell(setting, None if setting["b"] == "y" else float(setting["a"]))
    second = proposer()
    assert second.earlier == seen
    second.tell(seen[-1], 1.0)
    while (setting := second.propose()) is not None:
        seen.append(setting)
        second.tell(setting, float(setting["a"]))
    assert len(seen) == 18 == len(set(map(key_of, seen)))


def test_most_proposals_are_near_the_best(tmp_path: Path) -> None:
    axes = {"a": TuneAxis(list(range(16))), "b": TuneAxis(list(range(16)))}
    proposer = Proposer(tmp_path / "log", axes, lower=True, seed=3, trials=40)
    best = min(_reported(proposer) for _ in range(40))
    assert best <= 2  # of 256 settings, 13 are as good


def _reported(proposer: Proposer) -> float:
    setting = proposer.propose()
    assert setting is not None
    value = float(abs(setting["a"] - 11) + abs(setting["b"] - 4))
    proposer.tell(setting, value)
    return value


@pytest.mark.parametrize(
    ("setting", "args", "fields"),
    [
        ({"--threads": 2}, ["-v", "--threads", "2"], {}),
        ({"slots=": 4, "--flash": True, "--mmap": False}, ["-v", "slots=4", "--flash"], {}),
        ({"args": ["-x"], "--threads": 1}, ["-x", "--threads", "1"], {}),
        ({"max_num_seqs": 8}, ["-v"], {"max_num_seqs": 8}),
    ],
)
def test_a_setting_becomes_fields_and_arguments(
    setting: Any, args: list[str], fields: dict[str, Any]
) -> None:
    spec = applied(EngineSpec("fake", args=["-v"]), setting, TuneSpec({}))
    assert spec.args == args and all(getattr(spec, k) == v for k, v in fields.items())


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        (
            "settings.max_num_seq = [1]",
            r"study.toml:\d+: tune.settings.max_num_seq: unknown key. Did you mean max_num_seqs",
        ),
        ("settings.max_num_seqs = [0]", "max_num_seqs: must be at least 1"),
        ("settings.max_num_seqs = 4", "must be a list of values, or a range"),
        ("settings.max_num_seqs = []", "must be a list of values, or a range"),
        ("settings.max_num_seqs = { from = 4, to = 2 }", "from 4 must be below to 2"),
        ("settings.max_num_seqs = { from = 4, to = 4 }", "from 4 must be below to 4"),
        (
            "settings.max_num_seqs = { from = 1, upto = 2 }",
            "unknown key. Did you mean|needs two numbers",
        ),
        ('settings.quantization = { from = "a", to = "b" }', "a range needs two numbers"),
        ("trials = 3", "settings is missing"),
        (
            'objective = "throughputs"\nsettings.max_num_seqs = [1]',
            "Did you mean throughput",
        ),
        ('objective = "load"\nsettings.max_num_seqs = [1]', "load needs a target"),
        ('objective = "cost"\nsettings.max_num_seqs = [1]', "needs the rig's price"),
        ('target = ["tfft:5"]\nsettings.max_num_seqs = [1]', "Did you mean ttft"),
        (
            'engine = "fakee"\nsettings.max_num_seqs = [1]',
            "there is no engine 'fakee'. Did you mean fake",
        ),
        (
            "trails = 4\nsettings.max_num_seqs = [1]",
            "trails: unknown key. Did you mean trials",
        ),
    ],
)
def test_mistakes_get_a_sentence(
    tune: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", written(tmp_path, tune), "--runs", str(tmp_path)]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_study_without_tune_or_with_several_loads_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = FAKE.partition("[tune]")[0]
    assert main(["tune", written(tmp_path, "", head=plain)]) == 2
    assert "has no [tune]: docs/tune.md shows one." in capsys.readouterr().err
    second = "[loads.one]\nmax_concurrency = 1\n[tune]\n"
    for several in (
        FAKE.replace("max_concurrency = 4", "max_concurrency = [1, 4]"),
        FAKE.replace("[tune]\n", second),
    ):
        assert (
            main(["tune", written(tmp_path, "settings.max_model_len = [64]", head=several)])
            == 2
        )
        error = capsys.readouterr().err
        assert (
            "[tune] needs one trial of the engine that it tunes, but the study has 2: fake, short, "
            in error
        )
        assert "Leave one workload and one load" in error


def test_without_optuna_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert (
        main(
            [
                "tune",
                written(tmp_path, 'settings."slots=" = [1]'),
                "--runs",
                str(tmp_path / "runs"),
            ]
        )
        == 2
    )
    assert "pip install '.[tune]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))  # before anything is measured


def test_a_dry_run_lists_what_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        tmp_path,
        'trials = 5\nsettings."slots=" = [1, 2]\nsettings.max_model_len = { from = 64, to = 128 }\n',
    )
    assert main(["tune", path, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    text = capsys.readouterr().out
    assert (
        "slots=: 1, 2" in text
        and "max_model_len: 64 to 128" in text
        and "130 settings; 5 trials, each with a load of 0.7 s" in text
    )
    assert "-m dyno.engines.fake" in text and not (tmp_path / "runs").exists()
    path = written(
        tmp_path, 'objective = "load"\ntarget = "ttft_p99:90"\nsettings."slots=" = [1, 2]\n'
    )
    assert main(["tune", path, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "each with a search of up to 4.200 s" in text and "longer loads" not in text
