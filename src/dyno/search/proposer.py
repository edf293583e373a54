"""Proposes settings: Optuna's TPE over a study's axes. Its journal is in the study's folder, so a search resumes."""

import contextlib
import itertools
import math
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dyno.errors import StoreError, UsageError
from dyno.facts.tune import Setting, TuneAxis
from dyno.store.run import unwritable

_ASKS = 30  # proposals of settings that are known, before one is drawn among the others
_LISTED = 20_000  # settings, of which one is drawn
_STARTUP = (4, 10)  # proposals by chance at the beginning: a third of all, within these


def key_of(setting: Setting) -> str:
    return msgspec.json.encode(setting, order="deterministic").decode()


def possible(axes: Mapping[str, TuneAxis]) -> int | None:
    """Return how many settings there are. None: a range of numbers with a point has no end of them."""
    if any(axis.least is not None and not axis.whole for axis in axes.values()):
        return None
    return math.prod(
        len(a.values) or int((a.most or 0) - (a.least or 0)) + 1 for a in axes.values()
    )


class Proposer:
    def __init__(
        self,
        path: Path,
        axes: Mapping[str, TuneAxis],
        *,
        lower: bool,
        seed: int,
        trials: int,
    ) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise UsageError(
                "`dyno tune` needs Optuna, which isn't installed. In a clone of dyno: pip install '.[tune]'."
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._axes, self._path = axes, path
        startup = min(max(trials // 3, _STARTUP[0]), _STARTUP[1])
        with self._writing():
            _repair(path)
        with self._writing(), self._reading():
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            self._study = optuna.create_study(
                study_name="tune",
                storage=storage,
                direction="minimize" if lower else "maximize",
                load_if_exists=True,
            )
            known = self._study.get_trials(deepcopy=False)
            proposed = [
                (trial.number, self._setting(trial.params))
                for trial in known
                if self._counts(trial)
            ]
        # Another seed than before: the same one would propose again what it proposed first.
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed + len(known), n_startup_trials=startup, multivariate=True
        )
        self._rng = random.Random(seed + len(known))
        self._numbers: dict[str, int] = {}
        # proposed before this dyno was started; perhaps not measured
        self.earlier: list[Setting] = []
        for number, setting in proposed:
            if key_of(setting) not in self._numbers:
                self.earlier.append(setting)
            self._numbers[key_of(setting)] = number

    def _counts(self, trial: Any) -> bool:
        """Return whether a trial of the journal is a setting of this search, and not a copy."""
        if trial.state == self._states.COMPLETE:
            msgspec.convert(trial.values, tuple[float])  # the sampler sorts by it
        return bool(
            trial.params.keys() == self._axes.keys() and trial.state != self._states.FAIL
        )

    def _setting(self, raw: Mapping[str, Any]) -> Setting:
        return {name: self._value(name, value) for name, value in raw.items()}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Refuse a journal that Optuna didn't write, or that was damaged."""
        try:
            yield
        except OSError:
            raise
        except Exception as e:  # Optuna checks nothing that it reads, and fails in any way
            raise StoreError(
                f"{self._path} can't be read ({type(e).__name__}). Remove it, and repeat the command: the search "
                "proposes settings anew, and those that were measured are not measured again."
            ) from None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise unwritable(self._path, e) from None

    def propose(self) -> Setting | None:
        """Return a setting that was not proposed before. None: there is none left."""
        with self._writing():
            return self._proposed()

    def _proposed(self) -> Setting | None:
        for again in range(_ASKS + 1):
            if again == _ASKS:
                if (drawn := self._drawn()) is None:
                    return None
                self._study.enqueue_trial(drawn)
            trial = self._study.ask()
            setting = self._setting(
                {name: self._suggest(trial, name) for name in self._axes}
            )
            if key_of(setting) not in self._numbers:
                self._numbers[key_of(setting)] = trial.number
                return setting
            # a copy: the sampler ignores it
            self._study.tell(trial, state=self._states.FAIL)
        return None

    def tell(self, setting: Setting, value: float | None) -> None:
        """Report the objective of a proposed setting. None: it doesn't work, and settings like it are avoided."""
        number = self._numbers[key_of(setting)]
        if self._study.get_trials(deepcopy=False)[number].state != self._states.RUNNING:
            return  # known from before a resume
        with self._writing():
            if value is None:
                self._study.tell(number, state=self._states.PRUNED)
            else:
                self._study.tell(number, value)

    def _suggest(self, trial: Any, name: str) -> Any:
        axis = self._axes[name]
        if axis.values:
            last = len(axis.values) - 1
            if axis.ordered:
                return trial.suggest_int(name, 0, last)
            return trial.suggest_categorical(name, range(last + 1))
        assert axis.least is not None and axis.most is not None
        if axis.whole:
            return trial.suggest_int(name, int(axis.least), int(axis.most), log=axis.log)
        return trial.suggest_float(name, axis.least, axis.most, log=axis.log)

    def _value(self, name: str, raw: Any) -> Any:
        axis = self._axes[name]
        if axis.values:
            return axis.values[raw]
        # no more digits than anyone would set
        return raw if axis.whole else float(f"{raw:.4g}")

    def _drawn(self) -> dict[str, Any] | None:
        """Draw one of the settings that were not proposed yet, where they can be listed."""
        count = possible(self._axes)
        if count is None or count > _LISTED:
            return None
        left = []
        for each in itertools.product(*map(_span, self._axes.values())):
            drawn = dict(zip(self._axes, each, strict=True))
            setting = {name: self._value(name, raw) for name, raw in drawn.items()}
            if key_of(setting) not in self._numbers:
                left.append(drawn)
        return self._rng.choice(left) if left else None


def _span(axis: TuneAxis) -> range:
    """Return all that may be drawn of an axis that can be listed: indices of its values, or whole numbers."""
    if axis.values:
        return range(len(axis.values))
    return range(int(axis.least or 0), int(axis.most or 0) + 1)


def _repair(path: Path) -> None:
    """Make a journal readable again that a kill or a full disk has cut. The study's folder is locked: no other dyno
    writes it now, so its lock is that of a dead one, for which Optuna would wait half a minute."""
    with contextlib.suppress(FileNotFoundError):
        path.with_name(f"{path.name}.lock").unlink()
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        whole = file.read().rfind(b"\n") + 1
        if whole < file.tell():
            os.truncate(file.fileno(), whole)
