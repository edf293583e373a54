"""The shipped studies through `dyno run`: each as a dry run, and its twin for real, from an empty home.

A twin's models and data sets come from a Hub on loopback by the names that the study gives them (studies.py says what a
twin replaces). One command fetches them, starts every engine, measures every trial and writes the report.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import report_hub
from dyno.cli.main import main
from dyno.engines.model import default_cache
from dyno.facts.study import PlannedTrial
from dyno.models import hub as hub_names
from dyno.store.run import Run
from dyno.store.study import StudyFolder
from dyno.trial.offline import counts
from hub_server import TOKEN, HubServer, commit_of
from studies import REPORTS, SHIPPED, study, twin

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_dry_run_shows_every_trial_and_runs_nothing(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(["run", str(path), "--dry-run"])
    shown, reported = capsys.readouterr()
    assert (status, reported) == (0, ""), "the machine that it is meant for is assumed"
    for planned in study(path.read_text(), path).trials:
        assert planned.place.label in shown
    assert list(tmp_path.iterdir()) == []


# ---- twins ----


# Left to the nightly run: others go the same ways, and each takes seconds.
NIGHTLY = (
    "mi300x-llama405b-tgi-vs-vllm", "mi300x-llama70b-tp-fp8", "rocm-fp8-serving", "rocm-fp8-throughput",
)  # fmt: skip


def of_rigs() -> Iterator[Any]:
    """Yield each study with its first rig, in which every engine, workload and load of it is there once. Nightly: with
    each rig, and both ends of each axis."""
    for path in REPORTS:
        first, *others = tomllib.loads(path.read_text())["rigs"]
        if path.stem not in NIGHTLY:
            yield pytest.param(path, first, 1, id=f"{path.stem}-{first}")
        for rig in (first, *others):
            yield pytest.param(
                path, rig, 2, id=f"{path.stem}-{rig}-ends", marks=pytest.mark.nightly
            )


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with report_hub.serving(tmp_path_factory.mktemp("hub")) as server:
        yield server


@pytest.fixture
def bare(tmp_path: Path, hub: HubServer) -> dict[str, str]:
    """The environment of a user whose home is empty, but for the speed of the processor: each would measure it."""
    home = tmp_path / "home"
    kept = home / ".cache" / "dyno" / "peaks.json"
    kept.parent.mkdir(parents=True)
    shutil.copy(default_cache().parent / kept.name, kept)
    ours = {name: os.environ[name] for name in ("PATH", "LANGUAGE", "DYNO_TRACEBACK")}
    return {**ours, "HOME": str(home), "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}


@pytest.mark.engines
@pytest.mark.parametrize(("path", "rig", "keep"), [*of_rigs()])
def test_one_command_takes_a_twin_from_an_empty_home_to_its_report(
    path: Path, rig: str, keep: int, tmp_path: Path, hub: HubServer, bare: dict[str, str]
) -> None:
    text = twin(path, keep)
    (tmp_path / path.name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "dyno",
        "run",
        path.name,
        "--rig",
        rig,
        "--any-rig",
        "--plain",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    mine = [p for p in study(text, path).trials if p.place.rig == rig]
    folder = StudyFolder(tmp_path / "runs" / path.stem)
    assert len(folder.done()) == len(mine)
    for planned in mine:
        run = folder.run(planned.place)
        check_work(planned, run, done.stdout)
        check_origins(planned, run, hub)
    page = (folder.path / "report.html").read_text()
    assert all(planned.place.engine in page for planned in mine)


def check_work(planned: PlannedTrial, run: Run, table: str) -> None:
    """Everything that was asked for was done."""
    result, trial = run.result(), planned.trial
    if trial.quality:
        assert result.quality is not None
        return
    if trial.offline is None:
        assert (result.served.completed, result.served.failed) == (
            trial.workload.num_prompts,
            0,
        )
        return
    assert result.offline is not None
    assert result.offline.iterations == counts(trial)[0]
    assert (
        result.offline.completed == result.offline.iterations * trial.workload.num_prompts
    )
    assert result.offline.output_tokens == result.offline.wanted_output_tokens
    assert (result.offline.speculation is not None) is bool(
        trial.engine and trial.engine.draft_model
    )
    assert {"throughput": "total", "latency": "batch", "micro": "tg BW"}[
        trial.kind
    ] in table


def check_origins(planned: PlannedTrial, run: Run, hub: HubServer) -> None:
    """Models and data sets are those of the Hub, at its commit."""
    spec, engine = planned.trial.engine, run.engine()
    assert spec and engine
    for name in filter(None, (spec.model, spec.draft_model)):
        source = hub_names.parse(spec.weights[name].source)
        assert isinstance(source, hub_names.HubSource)
        assert (
            engine.models[name].origin
            == f"{source.label}@{commit_of(hub.folder / source.repo)}"
        )
    if planned.trial.workload.dataset == "sharegpt":
        data = run.manifest().dataset
        folder = hub.folder / "datasets" / report_hub.SHAREGPT
        assert (
            data
            and data.origin == f"hub:datasets/{report_hub.SHAREGPT}@{commit_of(folder)}"
        )
