"""The shipped studies through `dyno run`: each as a dry run, and its twin for real, on engines that are here."""

import tomllib
from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.conduct.offline import counts
from dyno.store.study import StudyFolder
from studies import REPORTS, SHIPPED, study, twin


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_dry_run_shows_every_trial_and_runs_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(["run", str(path), "--dry-run"])
    shown, told = capsys.readouterr()
    assert (status, told) == (0, ""), "the machine that it is meant for is assumed"
    for planned in study(path.read_text(), path).trials:
        assert planned.place.label in shown
    assert list(tmp_path.iterdir()) == []


def of_rigs() -> list[tuple[Path, str]]:
    return [(path, rig) for path in REPORTS for rig in tomllib.loads(path.read_text())["rigs"]]


@pytest.mark.engines  # a hundred trials on the embedded engine: a minute
@pytest.mark.parametrize(("path", "rig"), of_rigs(), ids=[f"{path.stem}-{rig}" for path, rig in of_rigs()])
def test_a_twin_runs_to_its_end(
    path: Path, rig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = twin(path, keep=2)
    Path(path.name).write_text(text)
    assert main(["run", path.name, "--rig", rig, "--plain", "--no-report"]) == 0
    mine = [p for p in study(text, path).trials if p.place.rig == rig]
    folder = StudyFolder(tmp_path / "runs" / path.stem)
    assert len(folder.done()) == len(mine)
    table = capsys.readouterr().out
    for planned in mine:
        result, trial = folder.run(planned.place).result(), planned.trial
        if trial.offline is None:
            assert (result.served.completed, result.served.failed) == (trial.workload.num_prompts, 0)
            continue
        assert result.offline is not None
        assert result.offline.iterations == counts(trial)[0]
        assert result.offline.completed == result.offline.iterations * trial.workload.num_prompts
        assert result.offline.output_tokens == result.offline.wanted_output_tokens
        assert (result.offline.speculation is not None) is bool(trial.engine and trial.engine.draft_model)
        assert {"throughput": "total", "latency": "batch", "micro": "tg BW"}[trial.kind] in table
