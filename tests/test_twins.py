"""The shipped studies through `dyno run`: each as a dry run, and its twin for real, on engines that are here."""

import tomllib
from pathlib import Path

import pytest

from dyno.cli.main import main
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


@pytest.mark.parametrize(("path", "rig"), of_rigs(), ids=[f"{path.stem}-{rig}" for path, rig in of_rigs()])
def test_a_twin_runs_to_its_end(
    path: Path, rig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path(path.name).write_text(twin(path, keep=2))
    assert main(["run", path.name, "--rig", rig, "--plain"]) == 0
    mine = [p for p in study(twin(path, keep=2), path).trials if p.place.rig == rig]
    served = [p for p in mine if p.trial.kind == "serve"]
    folder = StudyFolder(tmp_path / "runs" / path.stem)
    assert len(folder.done()) == len(served)
    for planned in served:
        summary = folder.run(planned.place).result().served
        assert (summary.completed, summary.failed) == (planned.trial.workload.num_prompts, 0)
    told = capsys.readouterr().err
    assert (f"{len(mine) - len(served)} offline trials" in told) is (len(mine) > len(served))
