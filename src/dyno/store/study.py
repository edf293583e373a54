"""A study's folder: the file as it was, what it came to, each start of an engine, and a run for each trial.

study.toml    the file, word for word but for secrets
study.json    resolved: every trial with its settings
trials/       a run folder for each trial that was begun; failed.json in it where it couldn't be measured
engines/      a folder for each start of an engine: its facts and its whole log
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dyno import files
from dyno.errors import StoreError
from dyno.facts.study import PARTS, Place, Study, short
from dyno.store.run import Run, make_folder, pretty, read, read_optional, slug, write

_BEGINNINGS = {
    ".lock",
    "trials",
    "engines",
    "study.toml",
    "study.toml.partial",
    "study.json.partial",
}


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
        self.skipped_path = path / "skipped.json"
        self._names: dict[str, str] | None = None

    @property
    def exists(self) -> bool:
        return self.json_path.exists()

    @property
    def blank(self) -> bool:
        """Return whether it is empty, or holds only what a dyno killed while making it has left."""
        if not any(self.path.iterdir()):
            return True
        known = (
            path.relative_to(self.path).as_posix() in _BEGINNINGS
            for path in self.path.rglob("*")
        )
        return (self.path / ".lock").exists() and all(known)

    def study(self) -> Study:
        return read(self.json_path, Study)

    def text(self) -> str:
        """Return the text of its file; '' where that can't be read."""
        try:
            return files.read(self.toml_path, files.TEXT).decode(errors="replace")
        except OSError:
            return ""

    def write(self, study: Study, text: str) -> None:
        try:
            make_folder(self.trials_path)
            make_folder(self.engines_path)
        except OSError as e:
            raise StoreError(
                f"{self.path} can't be created: {e.strerror}. Choose another folder with --runs."
            ) from None
        write(self.toml_path, text.encode())
        write(self.json_path, pretty(study))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock it for one dyno at a time: two would measure each other."""
        try:
            make_folder(self.path)
            file = (self.path / ".lock").open("a+b", buffering=0)
        except OSError as e:
            raise StoreError(
                f"{self.path} can't be created: {e.strerror}. Choose another folder with --runs."
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read(20).decode(errors="replace").strip()
                raise StoreError(
                    f"Another dyno{who and f' (process {who})'} runs the study in {self.path}. Wait for it, or choose "
                    "another folder with --runs."
                ) from None
            # a full disk: the number only says who holds the lock
            with contextlib.suppress(OSError):
                file.truncate(0)
                file.write(str(os.getpid()).encode())
            try:
                yield
            finally:
                if not self.exists:  # it was refused: nothing is left behind
                    (self.path / ".lock").unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        self.path.rmdir()

    def run(self, place: Place) -> Run:
        """Return the folder of a trial, by its id: it stays the same where the file's words for the trial change."""
        if self._names is None:
            self._names = {name.rpartition("-")[2]: name for name in self._listed()}
        return Run(self.trials_path / self._names.get(place.id, trial_name(place)))

    def _listed(self) -> list[str]:
        return (
            sorted(path.name for path in self.trials_path.iterdir())
            if self.trials_path.is_dir()
            else []
        )

    def fresh(self, place: Place, keep: bool = False) -> Run:
        """Return a trial's folder without the rest of a cut or failed attempt. `keep`: with the failure."""
        if keep and (run := self.run(place)).path.is_dir():
            (run.path / "failed.json").unlink(missing_ok=True)
            return run
        shutil.rmtree(self.run(place).path, ignore_errors=True)
        run = Run(self.trials_path / trial_name(place))
        try:
            make_folder(run.path, new=True)
        except OSError as e:
            raise StoreError(
                f"The run folder {run.path} can't be created: {e.strerror}."
            ) from None
        self._names = None
        return run

    def take(self, place: Place, path: Path) -> None:
        """Take a whole folder of this trial, which was measured elsewhere, in place of what is here."""
        shutil.rmtree(self.run(place).path, ignore_errors=True)
        path.rename(self.trials_path / trial_name(place))
        self._names = None

    def engine_start(self, name: str) -> Path:
        """Make a new folder for one start of an engine."""
        folders = self.engines_path.iterdir() if self.engines_path.is_dir() else ()
        taken = [folder.name.partition("-")[0] for folder in folders]
        number = max((int(n) for n in taken if n.isdigit()), default=0) + 1
        path = self.engines_path / f"{number:03d}-{slug(name)}"
        make_folder(path, new=True)
        return path

    def done(self) -> set[str]:
        """Return the ids of the trials that have a result: one look at each, and nothing is read."""
        names = (
            name
            for name in self._listed()
            if (self.trials_path / name / "summary.json").exists()
        )
        return {name.rpartition("-")[2] for name in names}

    def write_skipped(self, skipped: dict[str, str]) -> None:
        """Write which trials were left out, by id, and why. For lists: a run of the study finds it out anew."""
        write(self.skipped_path, pretty(skipped))

    def skipped(self) -> dict[str, str]:
        return read_optional(self.skipped_path, dict[str, str]) or {}


def write_failure(run: Run, failure: Failure) -> None:
    write(run.path / "failed.json", pretty(failure))


def failure_of(run: Run) -> Failure | None:
    return read_optional(run.path / "failed.json", Failure)


def trial_name(place: Place) -> str:
    """Return a folder's name from names and values: vllm-4-fp8-chat-closed-128-r1-4f14c74afd."""
    words: list[str] = []
    for part in PARTS:
        words += [getattr(place, part), *map(short, place.varying(part).values())]
    words += map(short, place.varying("trial").values())
    repeat = f"-r{place.repeat}" if place.repeats > 1 else ""
    return f"{slug('-'.join(words))}{repeat}-{place.id}"
