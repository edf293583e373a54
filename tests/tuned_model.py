"""A model of an engine for `dyno tune`: its loads take no time but that of a clock which the test reads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from dyno.conduct import study_plan
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.tune import Setting, TuneTrial
from dyno.probe import rig
from dyno.search.tune import Tuner, Watch
from dyno.search.tune_plan import TunePlan, folder_for
from dyno.trial.watcher import StudyWatcher

STUDY = """
[engines.fake]
kind = "fake"
[workloads.short]
input_len = 8
output_len = 8
num_prompts = 50
[loads.four]
max_concurrency = 4
[tune]
"""


class Load(NamedTuple):
    """A load that was run."""

    setting: Setting
    repeat: int
    seconds: float
    began: float


class Remarks(StudyWatcher):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def remark(self, text: str) -> None:
        self.texts.append(text)


class Outcome(NamedTuple):
    value: float | None = 100.0
    objection: str = ""
    verdict: str = "sound"


# of a setting and the repeat: 1 short, 2 longer, from 3 on repeats
Model = Callable[[Setting, int], Outcome]


class ModelTuner(Tuner):
    """`start_s`: of the engine. `model`: what a load of a setting gives."""

    start_s: float
    model: Model
    loads: list[Load]
    now: list[float]

    def _conduct(
        self,
        planned: Sequence[PlannedTrial],
        repeats: int = 1,
        wants: Callable[[PlannedTrial], bool] = lambda _: True,
    ) -> None:
        # The two loads of a setting share a start; repeats of two settings don't.
        started: list[str] = []
        for p in sorted(planned, key=lambda p: p.place.repeat):
            if self._known(p) or not wants(p):
                continue
            setting = {
                key.removeprefix("engine.") + "=": value
                for key, value in p.place.settings.items()
            }
            first = not started or p.place.repeat > 2
            self.now[0] += self.start_s * first
            started.append(p.place.id)
            seconds = p.trial.load.duration_s or 0.0
            self.loads.append(Load(setting, p.place.repeat, seconds, self.now[0]))
            self.now[0] += seconds
            self._planned[p.place.id] = p

    def _known(self, planned: PlannedTrial) -> bool:
        return planned.place.id in self._planned

    def _problem(self, planned: PlannedTrial) -> str:
        return ""

    def _result(self, planned: PlannedTrial, setting: Setting) -> TuneTrial:
        mine = {
            key.removeprefix("engine.") + "=": value
            for key, value in planned.place.settings.items()
        }
        made = self.model(mine, planned.place.repeat)
        return TuneTrial(
            setting, "measured", value=made.value, objection=made.objection, verdict=made.verdict,
            throughput=made.value, p99_ttft_ms=made.value, run=f"runs/{planned.place.id}",
        )  # fmt: skip


def unused(whole: Study, planned: Sequence[PlannedTrial], watch: Watch) -> None:
    raise AssertionError("A model is asked instead.")


class NewTuner(NamedTuple):
    tuner: ModelTuner
    remarks: list[str]


def tuner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tune: str, model: Model, *, budget_s: float = float("inf"),
    start_s: float = 1.0,
) -> NewTuner:  # fmt: skip
    path = folder / "study.toml"
    path.write_text(STUDY + tune)
    study, _ = study_plan.read(path)
    plan, now, watcher = TunePlan(study), [0.0], Remarks()
    monkeypatch.setattr("dyno.search.tune_budget.time.monotonic", lambda: now[0])
    made = ModelTuner(
        plan,
        folder_for(folder / "runs", plan),
        rig.read_machine(),
        unused,
        watcher,
        budget_s,
    )
    made.start_s, made.model, made.loads, made.now = start_s, model, [], now
    return NewTuner(made, watcher.texts)


def missing(outcome: Outcome) -> Outcome:
    return outcome._replace(
        objection="p99 TTFT is 812 ms, but the target is p99 TTFT ≤ 500 ms."
    )


def void(outcome: Outcome) -> Outcome:
    return outcome._replace(
        objection="client.overloaded: dyno was too busy.", verdict="void"
    )
