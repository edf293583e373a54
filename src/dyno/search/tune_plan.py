"""The trials of a search for an engine's best settings, and the folder of their results."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dyno.engines.kinds import starts
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.find import FindSpec, Over, spec_of
from dyno.facts.study import Place, PlannedTrial, Study
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import Setting, TuneSpec
from dyno.load.plan import prompts_needed
from dyno.store.study import StudyFolder
from dyno.study import file
from dyno.study.tune import own_argument
from dyno.trial import answers

LONGER = 3  # times as long a load for the best third
SEARCH = 6  # a search for the highest load takes up to this times `seconds`
_RESOLUTION = 0.1  # of such a search
_STRIDE = 104_729  # between the seeds of repeats; a search adds smaller steps


def applied(spec: EngineSpec, setting: Setting, tune: TuneSpec) -> EngineSpec:
    """Return the engine with this setting. Arguments in the engine's own words follow the others."""
    fields = {key: value for key, value in setting.items() if not own_argument(key)}
    args = [*fields.pop("args", spec.args)]
    for key, value in setting.items():
        if not own_argument(key) or value is False:
            continue
        if value is True:
            args.append(key)
        elif key.endswith("="):
            args.append(f"{key}{value}")
        else:
            args += [key, str(value)]
    recipes = {
        name: recipe for name, recipe in tune.weights.items() if name in fields.values()
    }
    return replace(spec, **fields, args=args, weights={**spec.weights, **recipes})


class TunePlan:
    """The trials of a study that is tuned: of any setting, as long as wanted."""

    def __init__(self, study: Study, rig: str | None = None) -> None:
        if study.tune is None:
            raise UsageError(
                f"The study {study.name} has no [tune]: docs/tune.md shows one."
            )
        self.study, self.spec = study, study.tune
        mine = self._tuned_trials(rig)
        self.base = self._base_of(mine)
        self._own_seed = self._seed()
        answers.check(self.base.trial, [limit.stem for limit in self.spec.limits])
        self.search = self._search() if self.spec.objective == "load" else None
        self.quality = next((p for p in mine if p.trial.quality), None)
        if self.base.trial.engine is None or not starts(self.base.trial.engine):
            raise UsageError(
                "[tune] needs an engine that dyno starts, not a running server."
            )
        if self.spec.objective == "cost" and self.base.place.price is None:
            raise UsageError(
                "[tune] objective = 'cost' needs the rig's price: [rigs.NAME] price = { machine_hour = … }."
            )

    def _tuned_trials(self, rig: str | None) -> list[PlannedTrial]:
        """Return the study's trials of the engine that is tuned, each once."""
        mine = []
        for planned in self.study.trials:
            place = planned.place
            tuned = not self.spec.engine or place.engine == self.spec.engine
            if tuned and place.repeat == 1 and place.rig == rig:
                mine.append(planned)
        return mine

    def _base_of(self, mine: Sequence[PlannedTrial]) -> PlannedTrial:
        """Return the one trial that is varied: a search, where the highest load is tuned for and the study has one."""
        serving: list[PlannedTrial] = []
        if self.spec.objective == "load":
            serving = [p for p in mine if p.trial.find]
        if not serving:
            serving = [p for p in mine if p.trial.kind == "serve" and not p.trial.find]
        if len(serving) != 1:
            which = "; ".join(p.place.label for p in serving[:3]) or "none"
            raise UsageError(
                f"[tune] needs one trial of the engine that it tunes, but the study has {len(serving)}: {which}. Leave "
                "one workload and one load, and no lists in the engine's table."
            )
        return serving[0]

    def _seed(self) -> int:
        """Return the workload's own seed; 0: it has none, and the study has given it one."""
        trial, place = self.base.trial, self.base.place
        plain = replace(
            trial,
            workload=replace(trial.workload, seed=0),
            load=replace(trial.load, seed=0),
        )
        given = file.placed(
            place, plain, None, self.study.name, self.study.seed, 1, 1
        ).trial
        return 0 if trial.workload.seed == given.workload.seed else trial.workload.seed

    def _search(self) -> FindSpec:
        """Return the search for a setting's highest load: the study's [find] may set its range, [tune] the target."""
        load, asked = self.base.trial.load, self.base.trial.find
        over: Over = "rate" if load.request_rate_rps else "concurrency"
        spec = spec_of(self.spec.target, {"over": over, "resolution": _RESOLUTION}, "tune.")
        return replace(asked, limits=spec.limits, confirm_s=None) if asked else spec

    @property
    def identity(self) -> str:
        """The same for a file that asks the same: how many trials and repeats may change."""
        plain = replace(self.spec, trials=1, confirm_repeats=0)
        return msgspec.json.encode(
            [plain, self.base.place.id], order="deterministic"
        ).decode()

    def _spec(self, setting: Setting) -> EngineSpec:
        assert self.base.trial.engine is not None
        return applied(self.base.trial.engine, setting, self.spec)

    def _place(self, place: Place, setting: Setting) -> Place:
        return replace(
            place,
            settings={
                **place.settings,
                **{f"engine.{k.rstrip('=')}": v for k, v in setting.items()},
            },
        )

    def trial(
        self, setting: Setting, times: int = 1, repeat: int = 1, repeats: int = 1
    ) -> PlannedTrial:
        """Return the trial of a setting, with a load `times` as long as a short one."""
        base, seconds = self.base.trial, self.spec.seconds * times
        load, work = base.load, base.workload
        search = replace(self.search, budget_s=seconds * SEARCH) if self.search else None
        if search:
            count = work.num_prompts
        elif load.max_concurrency or not load.closed_loop:
            load = replace(load, duration_s=seconds)
            each = prompts_needed(load) or max(
                work.num_prompts, 20 * (load.max_concurrency or 1)
            )
            count = each if work.num_prompts else 0  # 0: all of a file
        else:  # all at once
            count = work.num_prompts * times
        # Other prompts in each repeat: two loads of one start would meet a cache of the same ones.
        seed = self._own_seed and self._own_seed + _STRIDE * (repeat - 1)
        percentiles = [
            x.percentile
            for x in [*self.spec.limits, self.spec.latency]
            if x and x.percentile
        ]
        trial = replace(
            base,
            engine=self._spec(setting),
            load=replace(load, seed=seed),
            workload=replace(work, seed=seed, num_prompts=count),
            percentiles=sorted({*base.percentiles, *percentiles, 99.0}),
            find=search,
        )
        place, key = self._place(self.base.place, setting), self.base.api_key_env
        return file.placed(
            place, trial, key, self.study.name, self.study.seed, repeat, repeats
        )

    def quality_trial(self, setting: Setting) -> PlannedTrial:
        assert self.quality is not None
        trial = replace(self.quality.trial, engine=self._spec(setting))
        place, key = self._place(self.quality.place, setting), self.quality.api_key_env
        return file.placed(place, trial, key, self.study.name, self.study.seed, 1, 1)

    def models(self) -> list[TrialSpec]:
        """Return trials that name every model and engine that the search may need."""
        named = [
            key
            for key in ("model", "draft_model", "quantization")
            if key in self.spec.settings
        ]
        each: list[Setting] = [
            {key: value} for key in named for value in self.spec.settings[key].values
        ]
        quality = [self.quality.trial] if self.quality else []
        return [self.trial(setting).trial for setting in ({}, *each)] + quality


def folder_for(runs: Path, plan: TunePlan) -> StudyFolder:
    """Return where this search resumes or begins: NAME-tune, NAME-tune-2, …"""
    for n in range(1, 10_000):
        folder = StudyFolder(runs / f"{plan.study.name}-tune{f'-{n}' if n > 1 else ''}")
        mark = folder.path / "search.json"
        if not folder.path.exists() or (
            mark.exists() and mark.read_text() == plan.identity
        ):
            return folder
    raise UsageError(
        f"{runs} has too many searches of this study. Choose another place with --runs DIR."
    )
