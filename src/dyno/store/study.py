"""A study's folder: the file as it was, what it came to, each start of an engine, and a run for each trial.

study.toml    the file, word for word
study.json    resolved: every trial with its settings
trials/       a run folder for each trial that was begun; failed.json in it where it couldn't be measured
engines/      a folder for each start of an engine: its facts and its whole log
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dyno.errors import StoreError
from dyno.facts.study import Place, Study
from dyno.store.run import Run, pretty, read, write


class Failure(msgspec.Struct, frozen=True):
    """Why a trial has no result."""

    text: str
    attempts: int
    when: str  # wall time, ISO 8601


class StudyFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.toml_path = path / "study.toml"
        self.json_path = path / "study.json"
        self.trials_path = path / "trials"
        self.engines_path = path / "engines"

    @property
    def exists(self) -> bool:
        return self.json_path.exists()

    def study(self) -> Study:
        return read(self.json_path, Study)

    def write(self, study: Study, text: str) -> None:
        try:
            self.trials_path.mkdir(parents=True, exist_ok=True)
            self.engines_path.mkdir(exist_ok=True)
        except OSError as e:
            raise StoreError(f"{self.path} can't be made: {e.strerror}. Choose another place with --runs.") from None
        write(self.toml_path, text.encode())
        write(self.json_path, pretty(study))

    @contextmanager
    def held(self) -> Iterator[None]:
        """By one dyno at a time: two would measure each other."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read(20).decode(errors="replace").strip()
                raise StoreError(
                    f"Another dyno{who and f' (process {who})'} runs the study in {self.path}. Wait for it, or choose "
                    "another place with --runs."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
            yield

    def run(self, place: Place) -> Run:
        return Run(self.trials_path / trial_name(place))

    def fresh(self, place: Place) -> Run:
        """Its folder, empty: what a cut or failed attempt has left is gone."""
        run = self.run(place)
        shutil.rmtree(run.path, ignore_errors=True)
        try:
            run.path.mkdir(parents=True)
        except OSError as e:
            raise StoreError(f"The run folder {run.path} can't be made: {e.strerror}.") from None
        return run

    def engine_start(self, name: str) -> Path:
        """A new folder for one start of an engine."""
        number = len(list(self.engines_path.iterdir())) + 1 if self.engines_path.is_dir() else 1
        path = self.engines_path / f"{number:03d}-{slug(name)}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def done(self) -> set[str]:
        """The names of the trials' folders that hold a result: one look at each, and nothing is read."""
        if not self.trials_path.is_dir():
            return set()
        with os.scandir(self.trials_path) as entries:
            return {entry.name for entry in entries if (Path(entry.path) / "summary.json").exists()}


def write_failure(run: Run, failure: Failure) -> None:
    write(run.path / "failed.json", pretty(failure))


def failure_of(run: Run) -> Failure | None:
    path = run.path / "failed.json"
    return read(path, Failure) if path.exists() else None


def trial_name(place: Place) -> str:
    repeat = f"-r{place.repeat}" if place.repeats > 1 else ""
    return f"{slug(place.label)[:70].rstrip('-')}{repeat}-{place.id}"


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=]+", "-", text).strip("-.")[:80]


def studies(runs: Path) -> list[StudyFolder]:
    return [StudyFolder(p.parent) for p in sorted(runs.glob("**/study.json"))] if runs.is_dir() else []
